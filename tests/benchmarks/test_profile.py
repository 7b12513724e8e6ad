"""Test the measurements and the page of the profile on made-up data, and one tiny run of all sections."""

import re
import sys

import pytest

from benchmarks import timing
from benchmarks.profile_gpu import __main__ as profile
from benchmarks.profile_gpu import measuring, page, roofline, sections

TINY = measuring.make_plan(True, "cpu")._replace(
    rounds=1, count=2**10, sizes=(2**8, 2**9), firsts=1, batches=2, chain=2**8
)


def fails(*_):
    raise MemoryError("<script>too\nlarge")


def test_a_race_gives_rates_ratios_and_failures():
    players = {"b": fails, "a": lambda i: 0.5, "c": lambda i: 2.0}
    samples = [
        measuring.Sample({"line": name}, 100, timing.Competitor(draw, measures=True)) for name, draw in players.items()
    ]
    failed, first, slower = measuring.race(samples, TINY)
    assert failed == {"line": "b", "count": 100, "failed": "MemoryError: <script>too"}
    assert first == {"line": "a", "count": 100, "seconds": 0.5, "span": (0.5, 0.5), "rate": 200.0}
    assert (slower["rate"], slower["ratio"]) == (50.0, (0.25, 0.25, 0.25))


def test_a_ceiling_is_the_best_rate_and_a_bound_the_longest_time():
    row = {"kind": "bytes", "seconds": 2.0, "operations": 0, "bytes": 400}
    assert roofline.ceiling([row, row | {"bytes": 10**9, "failed": "out of memory"}], "bytes") == 200
    stage = {"kind": "stage", "seconds": 4.0, "operations": 400, "bytes": 400}
    assert roofline.share(stage, {"bytes": 200.0, "operations": 400.0}) == {"share": 0.5, "bound_by": "bytes"}
    assert roofline.share(stage, {"bytes": None, "operations": 400.0}) == {}


@pytest.mark.more
def test_another_key_and_concentration_compile_nothing():
    counts = sections.compiled(TINY)
    assert list(counts.values()) == [1, 0, 0, 0, 1]
    rows = [{"line": step, "compiled": count} for step, count in counts.items()]
    assert list(sections.compiling_findings(rows)) == []
    rows[2]["compiled"] = 1
    assert "compiles again for: another key." in next(sections.compiling_findings(rows))


def test_the_fastest_row_is_a_finding_only_if_its_interval_is_above_one():
    rows = [{"line": "a", "rate": 1.0}, {"line": "b", "rate": 2.0, "ratio": timing.Interval(2.0, 1.9, 2.1)}]
    assert list(sections.fastest(rows)) == ["The rate of b is 2 (1.9 to 2.1) times that of a."]
    rows[1]["ratio"] = timing.Interval(2.0, 0.9, 2.1)
    assert list(sections.fastest(rows)) == list(sections.fastest([{"line": "a", "failed": "x"}])) == []


def run(out, *names):
    """Return the exit code of a tiny profile, and its page or None."""
    code = profile.main(["--out", str(out), "--sections", *names], TINY)
    return code, out.read_text() if out.exists() else None


@pytest.mark.more
@pytest.mark.parametrize(
    "names", [("keys", "trace"), pytest.param(tuple(sections.SECTIONS), marks=pytest.mark.slow)], ids=len
)
def test_every_section_is_measured_and_shown(tmp_path, monkeypatch, names):
    monkeypatch.setattr(sections, "IMPLEMENTATIONS", sections.IMPLEMENTATIONS[:2])
    monkeypatch.setattr(sections, "DTYPES", sections.DTYPES[:2])
    code, text = run(tmp_path / "profile.html", *names)
    assert code == 0
    assert re.findall(r'<section id="(\w+)">', text) == [name for name in sections.SECTIONS if name in names]
    assert "failed" not in text
    assert "Error" not in text
    assert all("<td>" in part for part in text.split("<section ")[1:])
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)  # the page needs no other files and no network
    assert [path.name for path in tmp_path.iterdir()] == ["profile.html"]


def test_a_failing_section_and_an_interrupted_run_keep_the_others(tmp_path, monkeypatch, capsys):
    def interrupt(plan):
        raise KeyboardInterrupt

    made_up = {"memory": interrupt, "streams": lambda plan: [{"line": "a", "failed": "no"}], "dtypes": fails}
    for name, measure in made_up.items():
        monkeypatch.setitem(sections.SECTIONS, name, sections.SECTIONS[name]._replace(measure=measure))
    assert run(tmp_path / "none.html", "memory", "streams") == (130, None)
    monkeypatch.setitem(sections.SECTIONS, "keys", sections.SECTIONS["keys"]._replace(measure=interrupt))
    code, text = run(tmp_path / "some.html", "streams", "dtypes", "keys", "trace")
    assert code == 130
    assert "has 2 of 4 sections" in capsys.readouterr().err
    assert "Missing sections: keys, trace." in text
    assert "MemoryError: &lt;script&gt;too" in text
    assert "<script" not in text
    assert "<p>None.</p>" in text  # no findings


def test_there_is_no_picture_without_two_points():
    rows = [{"line": "a", "count": 1, "seconds": 1.0, "span": (1.0, 1.0), "rate": 1.0}, {"line": "b", "failed": "x"}]
    assert "<img" not in page.section("keys", rows)[0]
    assert "<img" in page.section("keys", [rows[0], rows[0] | {"line": "c"}])[0]


def test_a_missing_library_is_named_before_the_measurement(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"^This program needs matplotlib: .*\[bench\]'$"):
        profile.main([])

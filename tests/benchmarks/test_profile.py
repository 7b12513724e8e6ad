"""Test the measurements and the page of the profile on made-up data, and one tiny run of all sections."""

import re
import sys

import pytest

from benchmarks import measuring, timing
from benchmarks.profile_gpu import __main__ as profile
from benchmarks.profile_gpu import page, sections

TINY = sections.make_plan(True, "cpu")._replace(rounds=1, count=2**10, sizes=(2**8, 2**9), firsts=1, batches=2)


def fails(*_):
    raise MemoryError("<script>too\nlarge")


def test_a_race_gives_rates_ratios_and_failures():
    players = {"b": fails, "a": lambda i: 0.5, "c": lambda i: 2.0}
    samples = [measuring.Sample(name, 100, timing.Competitor(draw, measures=True)) for name, draw in players.items()]
    failed, first, slower = measuring.race(samples, 1, 5)
    assert failed == {"line": "b", "count": 100, "failed": "MemoryError: <script>too"}
    assert first == {"line": "a", "count": 100, "seconds": 0.5, "span": (0.5, 0.5), "rate": 200.0}
    assert (slower["rate"], slower["ratio"]) == (50.0, (0.25, 0.25, 0.25))


@pytest.mark.more
def test_another_key_and_concentration_compile_nothing():
    rows = sections.recompiling(TINY)
    assert [row["compiled"] for row in rows] == [1, 0, 0, 0, 1]
    assert "only another size compiles again" in next(sections.recompiling_findings(rows))
    rows[2]["compiled"] = 1
    assert "compiles again for: another key." in next(sections.recompiling_findings(rows))


def rated(line, *ratio, count=1, rate=1.0):
    """Return a row with a rate and an interval of its ratio."""
    return {"line": line, "count": count, "rate": rate} | ({"ratio": timing.Interval(*ratio)} if ratio else {})


def test_gains_and_losses_are_findings_if_the_interval_shows_them():
    rows = [rated("a"), rated("b", 2.0, 1.9, 2.1), rated("c", 0.5, 0.4, 0.6), rated("d", 2.0, 0.9, 2.1)]
    rows += [rated("e", 1.02, 1.01, 1.03), {"line": "f", "failed": "no"}]
    found = list(sections.compared("Keys", "Use.", "Avoid.")(rows))
    assert found == ["Keys: faster than a: b 2 (1.9 to 2.1). Use.", "Keys: slower than a: c 0.5 (0.4 to 0.6). Avoid."]
    (same,) = sections.compared("Keys", "Use.", "Avoid.")([rows[0], *rows[3:]])
    assert "none is clearly faster or slower than a" in same
    assert list(sections.compared("Keys", "", "")(rows[-1:])) == list(sections.compared("Keys", "", "")([])) == []


def test_sizes_name_losses_gains_and_the_size_that_is_enough():
    rows = [
        rated(sections.ONE, 0.4, 0.3, 0.5, count=10, rate=1e6),
        rated(sections.ONE, 2, 1.5, 3, count=20, rate=9.5e6),
    ]
    rows.append(rated(sections.ONE, 1.0, 0.9, 1.1, count=30, rate=1e7))
    slower, faster, enough = sections.size_findings(rows)
    assert "slower than jax.random.normal at 10 angles 0.4 (0.3 to 0.5)." in slower
    assert faster.endswith("faster than jax.random.normal at 20 angles 2 (1.5 to 3).")
    assert "calls of 20 angles are the first to reach 90% of the best rate, 10 million" in enough


def test_the_finding_about_memory_is_the_largest_number_of_the_table():
    rows = [
        {"line": "a", "count": 10, "result": 1024, "temporary": 2048},
        {"line": "a", "count": 20, "result": 4096, "temporary": 8},
        {"line": "b", "count": 20, "result": 4096, "temporary": 8},
        {"line": "c", "count": 20, "result": 4096, "temporary": None},
    ]
    a, b = sections.memory_findings(rows)
    assert "at most 2 KiB in addition to its result, namely for 10 angles, whose result has 1 KiB" in a
    assert b == "Memory, b: a call needs no more than its result and 8 B."


def run(out, *names):
    """Return the exit code of a tiny profile, and its page or None."""
    code = profile.main(["--out", str(out), "--sections", *names], TINY)
    return code, out.read_text() if out.exists() else None


@pytest.mark.more
@pytest.mark.parametrize(
    "names", [("keys", "recompile"), pytest.param(tuple(sections.SECTIONS), marks=pytest.mark.slow)], ids=len
)
def test_every_section_is_measured_and_shown(tmp_path, monkeypatch, names):
    monkeypatch.setattr(sections, "IMPLEMENTATIONS", sections.IMPLEMENTATIONS[:2])
    monkeypatch.setattr(sections, "DTYPES", sections.DTYPES[:2])
    code, text = run(tmp_path / "profile.html", *names)
    assert code == 0
    assert re.findall(r'<section id="(\w+)">', text) == [
        *(name for name in sections.SECTIONS if name in names),
        "method",
    ]
    assert "failed" not in text
    assert "Error" not in text
    assert all("<td>" in part or "nothing to compare" in part for part in text.split("<section ")[1:-1])
    assert "It cannot show what a GPU would do" in text
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
    code, text = run(tmp_path / "some.html", "streams", "dtypes", "keys", "devices")
    assert code == 130
    assert "has 2 of 4 sections" in capsys.readouterr().err
    assert "Missing sections: keys, devices." in text
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

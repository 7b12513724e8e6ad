"""Test the measurements and findings of the profile on made-up data, and one tiny run of all sections."""

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import quiet
from benchmarks.profile_gpu import __main__ as profile
from benchmarks.profile_gpu import accuracy, calls, findings, measuring, pictures, programs, report, roofline, sections
from tests import children
from tests.made_up import FakeClock

QUIET = quiet.decide(0.1, 2, 0.0, 0.01)
BUSY = quiet.decide(9.0, 2, 0.0, 0.01)


def row(line, seconds=1.0, spread=0.01, count=100, **more):
    """Return a row like those of `measuring.race`, from made-up turns."""
    turns = [seconds * (1 - spread), seconds, seconds * (1 + spread)]
    return {"line": line, "count": count} | measuring.summary(turns, count) | more


def result(state=QUIET, **measured):
    """Return a made-up result with these sections."""
    environment = {"platform": "cpu", "device": "cpu", "device_count": 1, "cpu": "made up", "cores": 2}
    environment |= {"load_average": 0.1, "system": "made up", "python": "3", "x64": False, "versions": {}}
    environment |= {"variables": {}, "commit": None}
    options = {"mode": "quick", "rounds": 3}
    data = {"environment": environment, "options": options, "seconds": 1.0, "sections": measured}
    return data | {"machine_state": state.as_dict()}


def test_a_race_gives_medians_rates_and_failures():
    clock = FakeClock()

    def fails(i):
        raise MemoryError("too\nlarge")

    samples = [
        measuring.Sample({"line": "a"}, 100, clock.competitor("a", 8.0, 0.5)),
        measuring.Sample({"line": "b"}, 10, clock.competitor("b", 1.0)._replace(draw=fails)),
    ]
    steady, failed = measuring.race(samples, 4, clock=clock)
    assert steady == {
        "line": "a",
        "count": 100,
        "seconds": 0.5,
        "fastest": 0.5,
        "spread": 0.0,
        "steady": True,
        "rate": 200.0,
    }
    assert failed == {"line": "b", "count": 10, "failed": "MemoryError: too"}
    assert not measuring.summary([1.0, 2.0, 3.0])["steady"]


def test_a_ceiling_is_the_fastest_quarter_and_a_bound_the_longest_time():
    rows = [
        row("copy", 2.0, 0.5, kind="bytes", operations=0, bytes=300),
        row("chain", kind="operations", operations=400, bytes=1),
        row("broken", kind="bytes", operations=0, bytes=10**9) | {"failed": "out of memory"},
    ]
    assert roofline.ceiling(rows, "bytes") == 200
    stage = row("stage", 4.0, kind="stage", operations=400, bytes=400)
    assert roofline.share(stage, {"bytes": 200.0, "operations": 400.0}) == {"share": 0.5, "bound_by": "bytes"}
    assert roofline.share(stage, {"bytes": None, "operations": 400.0}) == {}


@pytest.mark.parametrize(
    ("program", "dtype", "each"), [(roofline.multiply_adds, np.float32, 2), (roofline.rounds, np.uint32, 1)]
)
def test_xla_counts_what_a_chain_does(program, dtype, each):
    compiled = jax.jit(program(4)).lower(jnp.ones(100, dtype)).compile()
    assert compiled.cost_analysis()["flops"] == pytest.approx(100 * each * roofline.STEPS, rel=0.1)


def test_accuracy_detects_a_breach(monkeypatch):
    assert accuracy.errors(5.0, "table", 30)["worst"] < 1
    exact = accuracy.transform.angles
    monkeypatch.setattr(accuracy.transform, "angles", lambda *arguments: exact(*arguments) * np.float32(1 + 3e-6))
    assert accuracy.errors(5.0, "table", 30)["worst"] > 1


def test_compilations_are_counted():
    jax.clear_caches()
    with programs.compilations() as compiled:
        jax.jit(lambda x: x + 1)(np.float32(1))
    assert len(compiled) == 1


def test_another_key_and_concentration_compile_nothing():
    names = programs.compiled_again(TINY)
    assert {step: len(compiled) for step, compiled in names.items()} == {
        **dict.fromkeys(("first call", "another size"), 1),
        **dict.fromkeys(("same call", "another key", "another concentration"), 0),
    }


def compile_data(**again):
    return {
        "rows": [],
        "compiled": {"first call": ["f"], "same call": [], "another key": []} | {"another concentration": []} | again,
    }


def test_findings_do_not_depend_on_a_busy_machine():
    errors = {"rows": [{"line": "table", "worst": 0.4}, {"line": "direct", "worst": 1.2}]}
    again = compile_data(**{"another key": ["g"]})
    assert [finding.good for finding in findings.findings(result(QUIET, accuracy=errors, compile=compile_data()))] == [
        False,
        True,
    ]
    assert not findings.findings(result(QUIET, compile=again))[0].good
    assert findings.findings(result(QUIET, accuracy={"error": "broken"})) == []


def test_unreliable_cells_are_grey():
    columns = sections.SECTIONS["keys"].columns
    assert report.cells(row("a", 1e-6), columns, True) == [("a", False), ("100 ± 0%", False)]
    assert report.cells(row("a", 1e-6), columns, False)[1][1]
    assert report.cells(row("a", 1e-6, 0.9), columns, True)[1] == ("100 ± 45%", True)
    assert report.cells({"line": "rbg", "failed": "ValueError"}, columns, True) == [
        ("rbg", False),
        ("ValueError", True),
    ]


def test_there_is_no_picture_without_two_points():
    assert pictures.draw(result(devices={"rows": [row("1")]}, keys={"rows": [row("a") | {"failed": "x"}]})) == {}
    assert set(pictures.draw(result(BUSY, keys={"rows": [row("a"), row("b", spread=0.9)]}))) == {"keys"}


TINY = measuring.make_plan(True, "cpu", "")._replace(
    rounds=1, count=2**10, sizes=(2**8, 2**9), firsts=1, batches=2, chain=2**8, tail_points=8
)


QUICK = ("keys", "trace")  # the sections with the fewest programs to compile


@pytest.fixture(scope="module", params=[QUICK, pytest.param(tuple(sections.SECTIONS), marks=pytest.mark.slow)], ids=len)
def ran(request, tmp_path_factory):
    """Return the folder of a report, the data that `--json` writes, and the names of the sections."""
    folder = tmp_path_factory.mktemp("profile")
    out, kept = folder / "report", folder / "result.json"
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(calls, "IMPLEMENTATIONS", calls.IMPLEMENTATIONS[-2:])
        fewer.setattr(calls, "DTYPES", calls.DTYPES[:2])
        fewer.setattr(accuracy, "CONCENTRATIONS", (5.0,))
        options = ["--quick", "--out", str(out), "--json", str(kept), "--sections", *request.param]
        assert profile.main(options, TINY) == 0
    return out, json.loads(kept.read_text()), request.param


def test_every_section_is_measured_and_shown(ran):
    out, saved, names = ran
    assert set(saved["sections"]) == set(names)
    page = (out / "report.html").read_text()
    for name, data in saved["sections"].items():
        failed = [line for line in data.get("rows", []) if "failed" in line]
        assert "error" not in data, data
        assert data["rows"], name
        assert not failed
        assert f'<section id="{name}">' in page
        assert {column.field for column in sections.SECTIONS[name].columns} <= set().union(*data["rows"]) | {"line"}
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)  # the page needs no other files and no network
    assert (out / "trace").is_dir()
    assert (out / "keys.png").stat().st_size > 1000


def test_a_failing_section_is_shown_escaped_and_a_report_replaced(ran, monkeypatch, capsys):
    out, *_ = ran
    (out / "mine.txt").write_text("keep")

    def breaks(plan, tick):
        raise RuntimeError("<script>no</script>")

    monkeypatch.setitem(sections.SECTIONS, "keys", sections.SECTIONS["keys"]._replace(measure=breaks))
    before = (out / "report.html").read_text()
    with monkeypatch.context() as patched:
        patched.setitem(sections.SECTIONS, "keys", sections.SECTIONS["keys"]._replace(measure=interrupt))
        assert profile.main(["--sections", "keys", "--out", str(out)], TINY) == 130
    assert (out / "report.html").read_text() == before
    assert profile.main(["--sections", "keys", "--out", str(out)], TINY) == 0
    page = (out / "report.html").read_text()
    assert "RuntimeError: &lt;script&gt;no" in page
    assert "<script>" not in page
    assert "<h2>Findings</h2>" not in page  # there are none
    assert sorted(path.name for path in out.iterdir()) == ["files.json", "mine.txt", "report.html"]
    assert [path.name for path in out.parent.iterdir() if path.name.endswith(".partial")] == []


def interrupt(plan, tick):
    raise KeyboardInterrupt


def test_an_interrupted_run_writes_the_sections_that_it_finished(tmp_path, monkeypatch, capsys):
    def measured(plan, tick):
        return {"rows": [row("a"), row("b")]}

    def interrupted(plan, tick):
        (plan.folder / "trace").mkdir()
        raise KeyboardInterrupt

    for name, measure in {"keys": measured, "trace": interrupted, "accuracy": measured}.items():
        monkeypatch.setitem(sections.SECTIONS, name, sections.SECTIONS[name]._replace(measure=measure))
    out, kept = tmp_path / "report", tmp_path / "result.json"
    names = ["keys", "trace", "accuracy"]
    assert profile.main(["--sections", *names, "--out", str(out), "--json", str(kept)], TINY) == 130
    assert "interrupted: only 1 of 3 sections" in capsys.readouterr().err
    saved = json.loads(kept.read_text())
    assert saved["interrupted"]
    assert set(saved["sections"]) == {"keys"}
    page = (out / "report.html").read_text()
    assert "The run was interrupted" in page
    assert '<section id="keys">' in page
    assert '<section id="trace">' not in page
    assert not (out / "trace").exists()


def test_a_missing_library_is_named_before_the_measurement(tmp_path):
    """Without the extra, the program names it in one line."""
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'jinja2' else find(name, *a)\n"
        "from benchmarks.profile_gpu import __main__ as profile; sys.exit(profile.main([]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=children.ROOT, env=children.environment())
    assert done.returncode == 2, done.stderr
    assert done.stderr == "the profile needs jinja2: pip install -e '.[bench]'\n"


def test_paths_are_refused_before_the_measurement(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine.txt").write_text("")
    for options in (
        ["--out", str(tmp_path / "file")],
        ["--out", str(folder)],
        ["--json", str(tmp_path / "no" / "x.json")],
    ):
        assert profile.main(options) == 2
        assert options[0] in capsys.readouterr().err


def test_plans_are_larger_in_full_and_on_a_gpu():
    quick, full = (measuring.make_plan(short, "cpu", "") for short in (True, False))
    assert quick.count < full.count < measuring.make_plan(False, "gpu", "").count
    assert quick.rounds < full.rounds

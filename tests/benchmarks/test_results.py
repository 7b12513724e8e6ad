"""Test the result files and the tables made of them, the comparison of two files, and the runner on made-up cases."""

import math
import random

import pytest

from benchmarks import environment, guard, results, runner, text, timing
from benchmarks.competitors import Unavailable
from benchmarks.results import OURS, Results, Row
from docs import results as pages_results

HEAD = {"date": "2026-11-26", "version": "1.2.3", "tree": "0123", "processor": "a: processor, with # and commas"}
ROWS = [
    Row("circle", "κ = 5", OURS, 2**20, "draws", 2.5e8, 2.4e8, 2.6e8, 1.0, 1.0, 1.0, 7),
    Row("circle", "κ = 5", "slow", 2**10, "draws", 1.25e7, 1e7, 2e7, 20.0, 18.0, 21.0, 7),
    Row("circle", "κ = 5", "fast", 2**20, "draws", 5e8, 4e8, 6e8, 0.5, 0.48, 0.55, 9),
    Row("circle", "κ = 5", "equal", 2**20, "draws", 2.5e8, 2e8, 3e8, 1.02, 0.9, 1.1, 25),
    Row("circle", "κ = 5", "absent", 2**20, "draws", note='not installed: "absent", see below'),
    Row("startup", "draw", OURS, 1, "s", 0.7, 0.6, 0.9, 1.0, 1.0, 1.0, 5),
    Row("startup", "draw", "slow", 1, "s", 1.4, 1.2, 1.5, 2.0, 1.9, 2.1, 5),
    Row("accuracy", "cdf", OURS, 1, "error", 1e-7, 1e-7, 1e-7, 1.0, 1.0, 1.0, 5),
    Row("accuracy", "cdf", "slow", 1, "error", math.inf, math.inf, math.inf, math.inf, math.inf, math.inf, 5),
]


def test_a_file_is_read_as_it_was_written():
    assert results.parse(Results(HEAD, ROWS).text()) == Results(HEAD, ROWS)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv has no results of performance_benchmark: the columns are a, b"):
        results.of(path)


def test_tables_show_ratios_with_intervals_and_no_blank():
    shown = pages_results.compared([row for row in ROWS if row.group == "circle"])
    line = shown.splitlines()[2]
    ratios = "20†<br><small>18–21</small> | **0.5**<br><small>0.48–0.55</small> | about<br>the same"
    assert line == f"| κ = 5 | $2^{{20}}$ | 250 M/s | {ratios} |"
    assert "† fewer elements per call." in shown
    assert "absent" not in shown  # a peer that ran in no case has no column


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        ((2.0, 1.8, 2.2), "2 (1.8 to 2.2)"),
        ((0.7, 0.6, 0.8), "0.7 (0.6 to 0.8)"),
        ((1.1, 0.9, 1.3), "1.1 (0.9 to 1.3)"),
        ((99.7, 78.2, 12345.6), "100 (78 to 12,346)"),
        ((3.0, 3.0, 3.0), "3"),
    ],
)
def test_intervals(ratio, shown):
    assert text.interval_text(*ratio) == shown


def test_tables_of_times_and_errors():
    shown = pages_results.compared([row for row in ROWS if row.group == "startup"])
    assert "| draw | 700 ms | 2<br><small>1.9–2.1</small> |" in shown
    errors = [row._replace(case=f"{row.case}, κ = 5") for row in ROWS if row.group == "accuracy"]
    assert "Cdf:\n" in pages_results.errors(errors)
    assert "| κ = 5 | 1.0e-07 | not finite |" in pages_results.errors(errors)


def test_changes_need_intervals_that_do_not_overlap():
    def changed(peer, ratio):
        return [
            row._replace(ratio=ratio * row.ratio, ratio_low=ratio * row.ratio_low, ratio_high=ratio * row.ratio_high)
            if row.peer == peer and row.group == "circle"
            else row
            for row in ROWS
        ]

    old = Results(HEAD, ROWS)
    assert guard.changes(old, old) == ([], [])
    slower, faster = guard.changes(old, Results(HEAD, changed("slow", 0.8)))
    assert [(was.ratio, now.ratio) for was, now in slower] == [(20.0, 16.0)]
    assert not faster
    slower, faster = guard.changes(old, Results(HEAD, changed("fast", 1.3)))
    assert ([now.peer for _, now in faster], slower) == (["fast"], [])
    assert guard.changes(old, Results(HEAD, changed("equal", 1.05))) == ([], [])


def test_tables_drop_empty_columns_and_show_failures():
    rows = [{"line": "a", "count": 1000, "ratio": (1.1, 0.9, 1.3)}, {"line": "b", "failed": "no memory"}]
    assert text.cells(rows, ("line", "count", "counted", "ratio")) == [
        ["", "per call", "relative rate"],
        ["a", "1,000", "1.1 (0.9 to 1.3)"],
        ["b", "no memory", ""],
    ]
    assert text.table([("", "time"), ("long", "1 s")]) == "        time\n  long   1 s"


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """Return the path of a file of results."""
    path = tmp_path / guard.NEEDED
    path.write_text(Results(HEAD, ROWS).text(), encoding="utf-8")
    monkeypatch.setattr(guard, "FOLDER", tmp_path)
    monkeypatch.setattr(environment, "tree", lambda: "4567")
    return path


@pytest.mark.parametrize(
    ("version", "arguments", "code", "says"),
    [
        ("1.2.3", ["--strict"], 0, "version 1.2.3, of an earlier state of its code (2026-11-26)\n"),
        ("1.3.0", [], 0, "version 1.2.3, not 1.3.0 (2026-11-26)\n"),
        ("1.3.0", ["--strict"], 1, "measure cpu-2-cores.csv again"),
    ],
)
def test_the_guard_compares_versions(version, arguments, code, says, committed, monkeypatch, capsys):
    monkeypatch.setattr(guard, "__version__", version)
    assert guard.main(arguments) == code
    assert says in capsys.readouterr().out


def test_the_version_of_a_file_without_one_is_that_of_its_code(monkeypatch):
    known = {"0123:version.py": '"""About."""\n\n__version__ = "0.9.1"'}
    monkeypatch.setattr(environment, "git", lambda command, name: known.get(name))
    assert [guard.version_of({"tree": tree}) for tree in ("0123", "4567")] == ["0.9.1", None]
    assert guard.version_of({"commit": "0123"}) is None
    assert guard.version_of({"version": "1.0.0", "tree": "0123"}) == "1.0.0"


def test_the_guard_compares_files(committed, tmp_path, capsys):
    other = tmp_path / "new.csv"
    other.write_text(Results(HEAD, ROWS[:1]).text(), encoding="utf-8")
    assert guard.main([str(committed), str(other)]) == 0
    assert "0 ratios are slower" in capsys.readouterr().out
    assert guard.main([str(committed), str(tmp_path / "none.csv")]) == 2


def of_seconds(each, log=None):
    """Return a function of the number of elements that makes a competitor which takes `each` for an element."""

    def make(count):
        if log is not None:
            log.append(count)
        return timing.Competitor(lambda i: each, measures=True)

    return make


def lacking(count):
    raise Unavailable("has no such function")


def uninstalled(count):
    raise ModuleNotFoundError(name="absent")


def broken(count):
    raise RuntimeError("a strange\nmessage")


CASE = runner.Case("case", 100, {OURS: of_seconds(1e-6), "slow": of_seconds(5e-6), "a": lacking, "b": uninstalled})


def test_a_case_gives_a_row_for_each_peer():
    ours, slow, a, b = runner.measure("group", CASE)
    assert (ours.value, ours.ratio, ours.count) == (pytest.approx(1e6), 1.0, 100)
    assert (slow.value, slow.ratio) == (pytest.approx(2e5), pytest.approx(5.0))
    assert (a.value, a.note, b.note) == (None, "has no such function", "not installed: absent")


def test_a_failing_peer_is_a_reason_and_a_failure_of_ours_an_error():
    rows = runner.measure("group", CASE._replace(peers={OURS: of_seconds(1e-6), "a": broken}))
    assert rows[1].note == "fails: RuntimeError: a strange"
    with pytest.raises(RuntimeError, match="strange"):
        runner.measure("group", CASE._replace(peers={OURS: broken}))


def test_long_calls_get_fewer_elements(monkeypatch):
    seconds = iter([9.0, 4.0, 0.2, 0.2])
    monkeypatch.setattr(timing, "first_call", lambda competitor: next(seconds))
    monkeypatch.setattr(timing, "timed", lambda competitor, inputs: next(seconds))
    asked = []

    def make(count):
        asked.append(count)
        return timing.Competitor(lambda i: None)

    assert runner.prepared(make, 2**20).count == 2**16
    assert asked == [2**20, 2**16]


def test_an_interrupted_run_continues(tmp_path):
    out, measured = tmp_path / "machine.csv", []

    def interrupting(count):
        if len(measured) == 1:
            measured.append("interrupted")
            raise KeyboardInterrupt
        return of_seconds(1e-6)(count)

    first = runner.Case("first", 10, {OURS: of_seconds(1e-6, measured)})
    second = runner.Case("second", 10, {OURS: interrupting})
    with pytest.raises(KeyboardInterrupt):
        runner.run({"group": [first, second]}, 1, out)
    assert not out.exists()
    runner.run({"group": [first, second]}, 1, out)
    assert measured == [10, "interrupted"]  # the first case is not measured again
    assert [row.case for row in results.of(out).rows] == ["first", "second"]
    assert list(tmp_path.iterdir()) == [out]


def test_finished_cases_after_an_interrupted_one_are_kept(tmp_path):
    """A case whose peers have changed is measured again; a second interrupt there loses none of the later cases."""
    out, measured = tmp_path / "machine.csv", []

    def interrupting(count):
        raise KeyboardInterrupt

    names = ["first", "second", "third"]
    cases = [runner.Case(name, 10, {OURS: of_seconds(1e-6, measured)}) for name in names]
    last = runner.Case("last", 10, {OURS: interrupting})
    changed = cases[1]._replace(peers={OURS: interrupting})
    for group in ([*cases, last], [cases[0], changed._replace(unit="other"), cases[2], last]):
        with pytest.raises(KeyboardInterrupt):
            runner.run({"group": group}, 1, out)
    kept = results.of(tmp_path / "machine.csv.partial").rows
    assert [row.case for row in kept] == names
    assert measured == [10, 10, 10]


def test_cases_with_wide_intervals_are_named(tmp_path, capsys):
    generator = random.Random(0)

    def wide(count):
        return timing.Competitor(lambda i: math.exp(generator.gauss(0, 1)), measures=True)

    cases = [
        runner.Case("steady", 10, {OURS: of_seconds(1e-6), "a": of_seconds(2e-6)}),
        runner.Case("wild", 10, {OURS: of_seconds(1e-6), "a": wide}),
    ]
    runner.run({"group": cases}, 1)
    assert "Rounds ended before all intervals were within 10%: group, wild\n" in capsys.readouterr().out


def test_results_of_other_code_are_not_continued(tmp_path, capsys):
    out, measured = tmp_path / "machine.csv", []
    partial = tmp_path / "machine.csv.partial"
    partial.write_text(Results({"tree": "other"}, [ROWS[0]._replace(group="group", case="first")]).text(), "utf-8")
    runner.run({"group": [runner.Case("first", 10, {OURS: of_seconds(1e-6, measured)})]}, 1, out)
    assert measured == [10]
    assert "starting again" in capsys.readouterr().out

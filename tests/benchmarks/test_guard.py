"""Test the guard's bounds, its repeated attempts at noisy cases, and its verdict."""

import pytest

from benchmarks import files, goals, guard, performance_benchmark, quiet
from benchmarks.cases import CASES
from tests.made_up import timed_case

BOUNDS = (goals.Goal("cpu", "one", "numpy", 2.0), goals.Goal("cpu", "one", "normal", 2.0))
NOISY = [0.5, 0.7, 1.0, 1.6, 2.0]


def attempt(*entries):
    """Judge a case by successive measurements; return the states and the number of attempts."""
    remaining = list(entries)
    entry, verdicts = guard.attempt(lambda: remaining.pop(0), "cpu", BOUNDS)
    assert entry is entries[len(entries) - len(remaining) - 1]
    return {verdict.peer: verdict.state for verdict in verdicts}, len(entries) - len(remaining)


def test_bounds_are_below_every_goal():
    for bound, goal in zip(guard.bounds(), goals.GOALS, strict=True):
        assert bound.at_least == pytest.approx((0.25 if goal.group == "small" else 0.4) * goal.at_least)
        assert bound._replace(at_least=goal.at_least) == goal


def test_guarded_cases_have_bounds():
    groups = {case.name: case.group for case in CASES}
    for name in guard.CASES:
        assert {goal.peer for goal in goals.GOALS if goal.group == groups[name]} & set(guard.PEERS)


def test_a_case_is_measured_until_no_verdict_is_noisy():
    noisy, steady = timed_case(ours=NOISY, numpy=3.0, normal=3.0), timed_case(ours=1.0, numpy=2.1, normal=1.9)
    settled = {"numpy": goals.MET, "normal": goals.MISSED}
    assert attempt(steady, noisy) == (settled, 1)
    assert attempt(noisy, noisy, steady) == (settled, 3)
    assert attempt(noisy, noisy, noisy, steady) == (dict.fromkeys(settled, goals.TOO_NOISY), 3)
    close = timed_case(ours=1.0, numpy=2.0, normal=3.0)
    assert attempt(close, steady) == ({"numpy": goals.MET, "normal": goals.MET}, 2)


def test_a_settled_verdict_stays():
    """If a case is repeated because of one peer, the verdict on another peer does not change."""
    first = timed_case(ours=1.0, numpy=1.0, normal=NOISY)
    second = timed_case(ours=1.0, numpy=100.0, normal=100.0)
    assert attempt(first, second)[0] == {"numpy": goals.MISSED, "normal": goals.MET}


def verdict(ratio, noisy=False):
    return goals.Verdict("k=1", "numpy", 2.0, ratio, noisy)


@pytest.mark.parametrize(
    ("verdicts", "word", "code"),
    [
        ([verdict(3.0), verdict(None)], guard.PASS, 0),
        ([verdict(3.0), verdict(1.0), verdict(1.0, True)], guard.FAIL, 1),
        ([verdict(3.0), verdict(1.0, True)], guard.TOO_NOISY, 0),
        ([verdict(None)], guard.NOTHING, 2),
        ([], guard.NOTHING, 2),
    ],
)
def test_overall_verdict(verdicts, word, code):
    assert guard.overall(verdicts) == word
    assert guard.EXIT_CODES[word] == code


@pytest.mark.parametrize(("seconds", "spread", "word"), [(1.0, 0, "PASS"), (30.0, 0, "FAIL"), (30.0, 0.5, "TOO NOISY")])
def test_a_run(seconds, spread, word, tmp_path, monkeypatch, capsys):
    """The complete program judges made-up timings; on a busy machine it measures nothing."""
    monkeypatch.setattr(quiet, "check", lambda: quiet.decide(0.0, 2, 0.0, spread))
    monkeypatch.setattr(
        performance_benchmark, "run_case", lambda case, *_: timed_case(case.name, ours=seconds, numpy=50.0, normal=5.0)
    )
    path = tmp_path / "result.json"
    code = performance_benchmark.main(["--guard", "--cases", "k=0.1", "--json", str(path)])
    assert code == guard.EXIT_CODES[word]
    assert f"\n{word}" in capsys.readouterr().out
    result = files.read_result(path)
    assert result["verdict"] == word
    assert len(result["cases"]) == (spread == 0)

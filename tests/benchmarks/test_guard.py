"""The guard: its bounds, its patience with noise, and its verdict."""

import json

import pytest

from benchmarks import files, goals, guard, timing
from benchmarks.cases import CASES
from tests.made_up import FakeClock, timed_case

BOUNDS = (goals.Goal("cpu", "one", "numpy", 2.0), goals.Goal("cpu", "one", "normal", 2.0))
NOISY = [0.5, 0.7, 1.0, 1.6, 2.0]


def attempts(*entries):
    """A measurement that gives one entry after the other, and counts."""
    given = iter(entries)
    return lambda: next(given)


def test_bounds_are_below_every_goal():
    asked = guard.bounds()
    assert len(asked) == len(goals.GOALS)
    for bound, goal in zip(asked, goals.GOALS, strict=True):
        assert bound.at_least == pytest.approx((0.25 if goal.group == "small" else 0.4) * goal.at_least)
        assert bound._replace(at_least=goal.at_least) == goal


def test_guarded_cases_are_in_the_table_and_have_bounds():
    cases = {case.name: case for case in CASES}
    for name in guard.NAMES:
        case = cases[name]
        asked = {goal.peer for goal in goals.GOALS if goal.platform == "cpu" and goal.group == case.group}
        assert asked & set(guard.FAST_PEERS)


def test_a_quiet_case_is_measured_once():
    judged = guard.attempt(attempts(timed_case(ours=1.0, numpy=2.1, normal=1.9)), "cpu", BOUNDS)
    assert judged.attempts == 1
    assert [(v.peer, v.state) for v in judged.verdicts] == [("numpy", goals.MET), ("normal", goals.MISSED)]
    assert guard.overall(judged.verdicts) == guard.FAIL


def test_a_noisy_case_is_measured_again():
    noisy, quiet = timed_case(ours=NOISY, numpy=3.0, normal=3.0), timed_case(ours=1.0, numpy=3.0, normal=3.0)
    judged = guard.attempt(attempts(noisy, noisy, quiet), "cpu", BOUNDS)
    assert judged.attempts == 3
    assert judged.entry is quiet
    assert guard.overall(judged.verdicts) == guard.PASS


def test_what_is_too_close_to_its_bound_is_measured_again():
    close, clear = timed_case(ours=1.0, numpy=2.0, normal=3.0), timed_case(ours=1.0, numpy=2.1, normal=1.0)
    judged = guard.attempt(attempts(close, clear), "cpu", BOUNDS)
    assert {v.peer: v.state for v in judged.verdicts} == {"numpy": goals.MET, "normal": goals.MET}
    stays = guard.attempt(attempts(*[close] * guard.ATTEMPTS), "cpu", BOUNDS)
    assert guard.overall(stays.verdicts) == guard.TOO_NOISY
    assert {v.state for v in stays.verdicts} == {goals.TOO_CLOSE, goals.MET}


def test_noise_that_stays_is_no_verdict():
    noisy = timed_case(ours=NOISY, numpy=0.1, normal=0.1)
    judged = guard.attempt(attempts(*[noisy] * guard.ATTEMPTS), "cpu", BOUNDS)
    assert judged.attempts == guard.ATTEMPTS
    assert {v.state for v in judged.verdicts} == {goals.TOO_NOISY}
    assert guard.overall(judged.verdicts) == guard.NOTHING
    assert "everything was too noisy" in guard.explanation(guard.NOTHING, judged.verdicts)


def test_what_was_judged_stays_judged():
    """A case that is repeated for one peer does not get a second chance against another."""
    first = timed_case(ours=1.0, numpy=1.0, normal=NOISY)
    second = timed_case(ours=1.0, numpy=100.0, normal=100.0)
    judged = guard.attempt(attempts(first, second), "cpu", BOUNDS)
    assert {v.peer: v.state for v in judged.verdicts} == {"numpy": goals.MISSED, "normal": goals.MET}


def verdict(ratio, noisy=False):
    return goals.Verdict("k=1", "numpy", 2.0, ratio, noisy)


@pytest.mark.parametrize(
    ("verdicts", "word", "code"),
    [
        ([verdict(3.0), verdict(3.0)], guard.PASS, 0),
        ([verdict(3.0), verdict(1.0)], guard.FAIL, 1),
        ([verdict(3.0), verdict(1.0), verdict(1.0, True)], guard.FAIL, 1),
        ([verdict(3.0), verdict(1.0, True)], guard.TOO_NOISY, 0),
        ([verdict(3.0), verdict(None)], guard.PASS, 0),
        ([verdict(None)], guard.NOTHING, 2),
        ([verdict(3.0, True), verdict(None)], guard.NOTHING, 2),
        ([], guard.NOTHING, 2),
    ],
)
def test_one_word_for_all(verdicts, word, code):
    assert guard.overall(verdicts) == word
    assert guard.EXIT_CODES[word] == code
    assert guard.explanation(word, verdicts)


@pytest.mark.parametrize(("seconds", "code"), [(1.0, 0), (30.0, 1)])
def test_a_run(seconds, code, tmp_path, monkeypatch, capsys):
    """The whole program on made-up timings; its result is one that `--compare` reads."""
    monkeypatch.setattr(guard, "run_case", lambda case, *_: timed_case(case.name, ours=seconds, numpy=50.0, normal=5.0))
    path = tmp_path / "result.json"
    assert guard.main(["--cases", "k=0.1", "--json", str(path)]) == code
    told = capsys.readouterr().out
    assert ("\nPASS: all 2 ratios" if code == 0 else "\nFAIL: too slow in k=0.1; 2 ratios") in told
    assert files.read_result(path)["guard"]["verdict"] == ("FAIL" if code else "PASS")


def test_refusal_by_the_clock():
    """From turns that disagree to a verdict that is none, with no number made up between."""
    clock = FakeClock()
    seconds = timing.interleave(
        {"ours": clock.competitor("ours", *[1.0, 0.25, 0.5, 0.75, 1.0, 0.25] * 2), "numpy": clock.competitor("n", 4.0)},
        9,
        clock,
    )
    entry = timed_case(ours=seconds["ours"], numpy=seconds["numpy"])
    assert entry["results"]["ours"]["wide"]
    assert not entry["results"]["numpy"]["wide"]
    (found,) = goals.verdicts("cpu", [entry], BOUNDS[:1])
    assert found.ratio >= found.at_least
    assert found.state == goals.TOO_NOISY


def test_a_real_run(tmp_path, monkeypatch, capsys):
    small = [case._replace(count=2**16) for case in CASES if case.name == "k=1e4"]
    monkeypatch.setattr(guard, "CASES", small)
    monkeypatch.setattr(guard, "ATTEMPTS", 1)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.001)
    path = tmp_path / "result.json"
    code = guard.main(["--rounds", "2", "--json", str(path)])
    found = json.loads(path.read_text())
    assert code == guard.EXIT_CODES[found["guard"]["verdict"]]
    assert {"ours", "normal", "numpy"} <= set(found["cases"][0]["results"])
    assert {row["peer"] for row in found["guard"]["bounds"]} == {"normal", "numpy", "numpyro"}
    assert found["guard"]["verdict"] in capsys.readouterr().out

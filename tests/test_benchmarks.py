"""The clock, the tables and the verdicts of the benchmarks; nothing here measures a sampler."""

import json

import numpy as np
import pytest

from benchmarks import accuracy, goals, peers, performance_benchmark, timing
from benchmarks.cases import CASES, Case, LogUniform, on_gpu


class FakeClock:
    """Seconds that pass only when a test says so, and the order of what happened."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        """Read the clock."""
        return self.now

    def competitor(self, name, *durations, making=0.0):
        """Make a competitor whose call ``i`` takes the i-th duration, the last one from there on."""

        def fresh(i):
            self.now += making
            return i

        def draw(i):
            self.log.append((name, i))
            return durations[min(i, len(durations) - 1)]

        def wait(seconds):
            self.now += seconds

        return timing.Competitor(draw, fresh, wait)


@pytest.fixture
def clock():
    return FakeClock()


def test_first_call_is_timed_apart(clock):
    competitor = clock.competitor("a", 8.0, 0.5)
    assert timing.first_call(competitor, clock) == 8.0
    assert timing.interleave({"a": competitor}, 3, clock) == {"a": [0.5, 0.5, 0.5]}


def test_time_of_making_inputs_does_not_count(clock):
    competitor = clock.competitor("a", 0.5, making=100.0)
    assert timing.first_call(competitor, clock) == 0.5
    assert timing.interleave({"a": competitor}, 2, clock) == {"a": [0.5, 0.5]}


def test_competitors_take_turns_in_changing_order(clock):
    competitors = {name: clock.competitor(name, 0.5) for name in "abc"}
    timing.interleave(competitors, 40, clock)
    turns = "".join(name for name, _ in clock.log)
    rounds = [turns[i : i + 3] for i in range(3, len(turns), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) == 6


def test_every_call_has_an_input_of_its_own(clock):
    competitor = clock.competitor("a", 1e-3)
    timing.first_call(competitor, clock)
    timing.interleave({"a": competitor}, 4, clock)
    inputs = [i for _, i in clock.log]
    assert inputs == list(range(len(inputs)))


def test_short_calls_are_repeated_within_a_turn(clock):
    clock.now = 1.0
    seconds = timing.interleave({"a": clock.competitor("a", 2.0**-10)}, 2, clock)["a"]
    assert seconds == [2.0**-10, 2.0**-10]
    # Each turn starts with a call that does not count.
    assert len(clock.log) == 1 + 2 * (1 + np.ceil(timing.SHORTEST_TURN * 2**10))


def test_repetition_is_bounded(clock):
    timing.interleave({"a": clock.competitor("a", 0.0)}, 1, clock)
    assert len(clock.log) == 1 + 1 + timing.MOST_CALLS


def test_a_short_call_warms_up_in_every_turn(clock):
    seconds = timing.interleave({"a": clock.competitor("a", 2.0**-4, 2.0**-2, 2.0**-4)}, 1, clock)["a"]
    assert seconds == [2.0**-4]


def test_long_calls_have_fewer_turns(clock):
    competitors = {"long": clock.competitor("long", 4.0), "short": clock.competitor("short", 0.5)}
    seconds = timing.interleave(competitors, 7, clock)
    assert seconds == {"long": [4.0] * 3, "short": [0.5] * 7}


def test_median_quartiles_and_spread():
    measured = timing.Timing(first=9.0, seconds=(1.0, 2.0, 3.0, 4.0, 100.0))
    assert (measured.median, measured.quartiles) == (3.0, (2.0, 4.0))
    assert measured.spread == pytest.approx(2 / 3)
    assert measured.wide
    assert not timing.Timing(first=9.0, seconds=(1.0, 1.01, 1.0, 50.0, 1.02)).wide


@pytest.mark.parametrize("table", [CASES, peers.PEERS], ids=["cases", "peers"])
def test_names_are_unique(table):
    names = [row.name for row in table]
    assert len(set(names)) == len(names)


def test_every_case_has_a_goal_on_the_cpu():
    groups = {goal.group for goal in goals.GOALS if goal.platform == "cpu"}
    assert {case.group for case in CASES} == groups


def test_goals_name_peers():
    assert {goal.peer for goal in goals.GOALS} <= {peer.name for peer in peers.PEERS}


def test_log_uniform_concentrations():
    values = LogUniform(1e-2, 1e4).values(1000)
    assert values.dtype == np.float32
    assert values.shape == (1000,)
    assert values.min() >= 1e-2
    assert values.max() <= 1e4
    assert np.median(np.log10(values)) == pytest.approx(1, abs=0.2)
    # A peer with fewer draws gets the first of the same concentrations.
    assert np.array_equal(values[:10], LogUniform(1e-2, 1e4).values(10))


def test_a_gpu_gets_more_draws_but_not_in_the_small_call():
    for case in CASES:
        assert (on_gpu(case).draws > case.draws) == (case.group != "small")


def entry(name, group, concentration, **ratios):
    """Make the part of a result file that the goals look at."""
    results = {peer: {"ratio": ratio, "wide": False} for peer, ratio in ratios.items()}
    return {"name": name, "group": group, "concentration": concentration, "results": results}


def test_verdicts():
    table = [goals.Goal("cpu", "one", "numpy", 15), goals.Goal("gpu", "one", "numpy", 100)]
    cases = [entry("a", "one", 1.0, numpy=15.0), entry("b", "one", 1.0, numpy=14.9), entry("c", "one", 1.0)]
    cases.append(entry("d", "small", 1.0, numpy=1.0))
    found = goals.verdicts("cpu", cases, table)
    assert [(v.case, v.state) for v in found] == [("a", "met"), ("b", "MISSED"), ("c", "not measured")]


def test_the_higher_goal_counts_from_its_concentration_on():
    table = [goals.Goal("cpu", "one", "numpyro", 20), goals.Goal("cpu", "one", "numpyro", 50, above=1.0)]
    cases = [entry("low", "one", 0.1, numpyro=30.0), entry("high", "one", 1.0, numpyro=30.0)]
    assert [(v.at_least, v.state) for v in goals.verdicts("cpu", cases, table)] == [(20, "met"), (50, "MISSED")]


def test_a_wide_spread_marks_the_verdict():
    case = entry("a", "one", 1.0, numpy=20.0, ours=1.0)
    case["results"]["ours"]["wide"] = True
    assert goals.verdicts("cpu", [case], [goals.Goal("cpu", "one", "numpy", 15)])[0].noisy


def test_accuracy_counts():
    angles = np.array([0.5, -0.5, 0.25, 0.0, np.nan, 0.25 + 1e-12, 1.0, 2.0])
    assert accuracy.summarise(angles) == {"distinct": 5, "zero": 1 / 8, "nan": 1 / 8}


def absent(case):
    raise peers.Unavailable("no such library")


def broken(case):
    raise RuntimeError("out of memory\nand a long story")


def steady(case):
    return peers.Ready(timing.Competitor(lambda i: np.full(case.draws, 0.1)))


CASE = Case("tiny", "one", draws=100, concentration=1.0)


def test_run_case_reports_rates_and_reasons():
    table = [
        peers.Peer(peers.OURS, "ours", steady),
        peers.Peer("capped", "capped", steady, most_draws=10),
        peers.Peer("absent", "absent", absent),
        peers.Peer("broken", "broken", broken),
    ]
    found, missing = performance_benchmark.run_case(CASE, table, rounds=2, capped=True)
    assert missing == {"absent": "no such library", "broken": "failed: RuntimeError: out of memory"}
    assert {name: result["draws"] for name, result in found["results"].items()} == {"ours": 100, "capped": 10}
    assert found["results"]["ours"]["ratio"] == 1
    rates = {name: result["rate"] for name, result in found["results"].items()}
    assert found["results"]["capped"]["ratio"] == rates["ours"] / rates["capped"]
    uncapped, _ = performance_benchmark.run_case(CASE, table, rounds=1, capped=False)
    assert uncapped["results"]["capped"]["draws"] == 100


def test_a_failure_of_ours_is_an_error():
    with pytest.raises(RuntimeError, match="out of memory"):
        performance_benchmark.run_case(CASE, [peers.Peer(peers.OURS, "ours", broken)], rounds=1, capped=True)


def test_run_case_fits_into_json(tmp_path):
    path = tmp_path / "result.json"
    array = Case("array", "array", draws=100, concentration=LogUniform(0.1, 1.0))
    found, _ = performance_benchmark.run_case(array, [peers.Peer(peers.OURS, "ours", steady)], 2, capped=True)
    performance_benchmark.write_json(path, {"cases": [found]})
    assert json.loads(path.read_text()) == {"cases": [found]}
    assert found["concentration"] == {"low": 0.1, "high": 1.0}


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    performance_benchmark.write_json(path, {"old": 1})

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(performance_benchmark.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        performance_benchmark.write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_one_line(capsys, tmp_path):
    assert performance_benchmark.main(["--json", str(tmp_path / "none" / "result.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_picture_is_the_same_bytes_every_time(tmp_path):
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    from benchmarks import plots

    case = entry("a", "one", 1.0) | {"draws": 100, "results": {"ours": {"rate": 1e6, "draws": 100}}}
    result = {
        "environment": {"platform": "cpu", "device": "cpu", "cpu": "a CPU", "cores": 2, "versions": {"jax": "0.10"}},
        "cases": [case],
        "accuracy": [{"peer": "ours", "concentration": 1e3, "draws": 100, "distinct": 99}],
    }
    source = tmp_path / "result.json"
    performance_benchmark.write_json(source, result)
    pictures = []
    for name in ("one.svg", "two.svg"):
        assert plots.main([str(source), "--out", str(tmp_path / name)]) == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]

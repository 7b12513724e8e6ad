"""The clock, the tables and the verdicts of the benchmarks; nothing here measures a sampler."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy, files, goals, peers, performance_benchmark, plots, reference, timing
from benchmarks.cases import CASES, TASKS, Case, LogUniform, on_gpu
from tests import reference as exact

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "cpu-epyc-2-cores.json"


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
    # The density is a formula that every peer has; it is timed without a goal.
    assert {case.group for case in CASES} - groups == {"log_prob"}
    assert groups <= {case.group for case in CASES}


def test_every_task_has_a_case():
    assert {case.task for case in CASES} == set(TASKS)
    assert all(case.group == case.task for case in CASES if case.task != "sample")


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_a_peer_does_a_task_or_says_why_not(peer):
    does = {task for task in TASKS if hasattr(peer, task)}
    assert does.isdisjoint(peer.lacks)
    assert does | set(peer.lacks) == set(TASKS)
    assert {*peer.most, *peer.most_ever} <= does


def test_goals_are_set_for_what_peers_do():
    tasks = {case.group: case.task for case in CASES}
    table = {peer.name: peer for peer in peers.PEERS}
    assert not [goal for goal in goals.GOALS if tasks[goal.group] in table[goal.peer].lacks]


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


def test_a_gpu_gets_more_work_but_not_in_the_small_call():
    for case in CASES:
        assert (on_gpu(case).count > case.count) == (case.group != "small")


@pytest.mark.parametrize("task", ["icdf", "cdf", "log_prob", "fit"])
def test_inputs_differ_from_call_to_call_and_not_from_run_to_run(task):
    case = Case("tiny", task, count=10, concentration=5.0, task=task, size=20)
    first, second = case.inputs(0), case.inputs(1)
    assert first.dtype == np.float32
    assert first.shape == ((10, 20) if task == "fit" else (10,))
    assert np.all((first >= 0) & (first < 1)) if task == "icdf" else np.all(np.abs(first) <= np.pi)
    assert not np.any(first == second)
    assert np.array_equal(first, case.inputs(0))


def test_a_case_describes_itself():
    texts = [Case("a", task, 2000, 5.0, task, size=1000).describe() for task in ("sample", "cdf", "fit")]
    assert texts == [
        "2,000 draws, concentration 5, float32, threefry2x32 key",
        "2,000 points, concentration 5, float32",
        "2,000 data sets of 1,000 angles, concentration 5, float32",
    ]


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


@pytest.mark.parametrize("k", [0.1, 5.0, 49.0, 51.0, 1e4, 1e7])
def test_reference_of_the_benchmarks(k):
    x = np.linspace(-1, 1, 400) * min(3.14, 10 / np.sqrt(k))
    tail = exact.sf(np.abs(x), k)
    assert np.allclose(reference.cdf(x, k)[x < 0], tail[x < 0], rtol=1e-11, atol=0)
    assert np.allclose(reference.cdf(x, k)[x > 0], 1 - tail[x > 0], rtol=1e-11, atol=0)
    assert np.allclose(reference.log_prob(x, k), np.log(exact.pdf(x, k)), rtol=1e-11, atol=1e-11)
    q = np.array([1e-9, 1e-3, 0.3, 0.5, 0.7, 1 - 2.0**-24])
    angles = np.sign(q - 0.5) * exact.quantile(np.minimum(q, 1 - q), k)
    assert np.allclose(reference.icdf(q, k), angles, rtol=1e-10, atol=1e-12 / np.sqrt(k))


def test_questions_reach_into_both_tails():
    for k in accuracy.ERROR_CONCENTRATIONS:
        x, q = accuracy.questions("cdf", k), accuracy.questions("icdf", k)
        assert (x.dtype, q.dtype) == (np.float32, np.float32)
        assert np.all(np.abs(x) <= np.pi)
        assert x.min() < 0 < x.max()
        assert 0 < q.min() < 1e-8
        assert 1 - 1e-7 < q.max() < 1


def test_distances_are_zero_for_the_reference_and_see_an_error():
    for error in accuracy.ERRORS:
        given = accuracy.questions(error.task, 5.0)
        right = getattr(reference, error.task)(given.astype(np.float64), 5.0)
        assert not np.any(accuracy.distances(error.task, 5.0, given, right)[error.measure])
        wrong = accuracy.distances(error.task, 5.0, given, right + 1e-3)[error.measure]
        assert np.max(wrong) >= 0.9e-3


class Fake(peers.Peer):
    """A peer that draws 0.1, or whatever `make` makes."""

    def __init__(self, name, make=None, most=None, most_ever=None):
        self.name = self.label = name
        self.make = make
        self.most = {} if most is None else {"sample": most}
        self.most_ever = {} if most_ever is None else {"sample": most_ever}

    def sample(self, case):
        """Draws."""
        if self.make is not None:
            return self.make(case)
        return peers.Ready(timing.Competitor(lambda i: np.full(case.count, 0.1)))

    def cdf(self, case):
        """No probability at all."""
        return peers.Ready(timing.Competitor(lambda x: np.full_like(x, np.nan)))


def absent(case):
    raise peers.Unavailable("no such library")


def broken(case):
    raise RuntimeError("out of memory\nand a long story")


CASE = Case("tiny", "one", count=100, concentration=1.0)


def test_run_case_reports_rates_and_reasons():
    table = [
        Fake(peers.OURS),
        Fake("capped", most=10),
        Fake("slow", most_ever=20),
        Fake("both", most=30, most_ever=20),
        Fake("absent", absent),
        Fake("broken", broken),
    ]
    found = performance_benchmark.run_case(CASE, table, rounds=2, capped=True)
    assert found["missing"] == {"absent": "no such library", "broken": "failed: RuntimeError: out of memory"}
    counts = {name: result["count"] for name, result in found["results"].items()}
    assert counts == {"ours": 100, "capped": 10, "slow": 20, "both": 20}
    assert found["results"]["ours"]["ratio"] == 1
    rates = {name: result["rate"] for name, result in found["results"].items()}
    assert found["results"]["capped"]["ratio"] == rates["ours"] / rates["capped"]
    uncapped = performance_benchmark.run_case(CASE, table[:3], rounds=1, capped=False)
    assert [result["count"] for result in uncapped["results"].values()] == [100, 100, 20]


def test_a_failure_of_ours_is_an_error():
    with pytest.raises(RuntimeError, match="out of memory"):
        performance_benchmark.run_case(CASE, [Fake(peers.OURS, broken)], rounds=1, capped=True)


def test_errors_leave_out_who_fails_and_tell_nan():
    rows = accuracy.errors(["cdf"], [Fake("nan"), peers.PEERS[1]], [1.0])
    assert [(row["measure"], row["peer"], row["largest"]) for row in rows] == [
        ("absolute", "nan", None),
        ("tail", "nan", None),
    ]
    assert accuracy.measure([Fake("absent", absent), Fake("broken", broken)], 10, [1.0]) == []
    with pytest.raises(RuntimeError, match="out of memory"):
        accuracy.measure([Fake(peers.OURS, broken)], 10, [1.0])


def test_run_case_fits_into_json(tmp_path):
    path = tmp_path / "result.json"
    array = Case("array", "array", count=100, concentration=LogUniform(0.1, 1.0))
    found = performance_benchmark.run_case(array, [Fake(peers.OURS)], 2, capped=True)
    files.write_json(path, {"cases": [found]})
    assert json.loads(path.read_text()) == {"cases": [found]}
    assert found["concentration"] == {"low": 0.1, "high": 1.0}


def ready(peer, case):
    """Prepare `peer`; skips where its library is missing."""
    if case.task in peer.lacks:
        with pytest.raises(peers.Unavailable):
            peer.prepare(case)
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's libraries
        try:
            return peer.prepare(case)
        except peers.Unavailable as reason:
            pytest.skip(str(reason))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_every_peer_does_what_it_is_timed_for(peer, task):
    case = Case("tiny", task, count=50, concentration=5.0, task=task, size=40)
    found = ready(peer, case)
    if found is None:
        return
    draw, fresh, wait = found.competitor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [draw(fresh(i)) for i in range(2)]
    for result in results:
        wait(result)
    if task == "fit":
        # SciPy has its own order: concentration, loc, scale.
        locs, concentrations = np.array(results[0])[:, 1::-1].T if peer.name == "scipy" else results[0]
        mean = np.exp(1j * case.inputs(0).astype(np.float64)).mean(1)
        assert np.allclose(locs, np.angle(mean), atol=1e-5)
        assert np.allclose(exact.ratio(np.asarray(concentrations, float)), np.abs(mean), rtol=1e-5)
        return
    first, second = (found.read(result) for result in results)
    assert first.shape == second.shape == (() if task == "gradient" else (50,))
    assert not np.array_equal(first, second)
    if task in ("icdf", "cdf", "log_prob"):
        right = getattr(reference, task)(case.inputs(0).astype(np.float64), 5.0)
        assert np.allclose(first, right, atol=1e-5)
        assert np.allclose(found.read(draw(found.give(case.inputs(0)))), right, atol=1e-5)


def test_our_gradient_is_that_of_the_draws():
    case = Case("tiny", "gradient", count=50, concentration=5.0, task="gradient")
    ours = peers.PEERS[0]
    found = ours.prepare(case).competitor
    key = found.fresh(0)
    x = np.asarray(ours.package().sample_von_mises(key, 0.0, 5.0, (50,), "float32"), np.float64)
    assert found.draw(key) == pytest.approx(np.sum(np.sign(x) * exact.dquantile_dk(np.abs(x), 5.0)), rel=1e-4, abs=1e-4)


def test_a_whole_run(tmp_path, monkeypatch, capsys):
    small = [case._replace(count=50, size=20) for case in CASES if case.name in ("small", "icdf", "cdf", "fit")]
    monkeypatch.setattr(performance_benchmark, "CASES", small)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.0)
    monkeypatch.setattr(accuracy.measure, "__defaults__", (peers.PEERS, 100, (1e3,)))
    monkeypatch.setattr(accuracy.errors, "__defaults__", (peers.PEERS, (5.0,)))
    monkeypatch.setattr(accuracy, "PROBABILITIES", 5)
    path = tmp_path / "result.json"
    command = ["--quick", "--rounds", "1", "--peers", "ours", "scipy", "--json", str(path)]
    assert performance_benchmark.main(command) == 0
    text = capsys.readouterr().out
    for part in ("M draws/s", "M points/s", "k data sets/s", "left out: SciPy (", "cdf below 1/2", "goals: "):
        assert part in text
    result = json.loads(path.read_text())
    assert result["format"] == performance_benchmark.FORMAT
    assert [case["name"] for case in result["cases"]] == [case.name for case in small]
    assert {row["task"] for row in result["errors"]} == {"cdf", "icdf"}
    assert {row["peer"] for row in result["errors"]} == {"ours", "scipy"}
    # The package keeps the bounds that it states.
    assert max(row["largest"] for row in result["errors"] if row["peer"] == "ours") < 4e-6
    assert plots.upgraded(result) is result


def test_accuracy_follows_the_cases_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(performance_benchmark, "CASES", [case._replace(count=50, size=20) for case in CASES])
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.0)
    assert performance_benchmark.main(["--rounds", "1", "--peers", "scipy", "--cases", "fit"]) == 0
    assert "Different values" not in (text := capsys.readouterr().out)
    assert "Largest errors" not in text


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    files.write_json(path, {"old": 1})

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_one_line(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        performance_benchmark.main(["--json", str(tmp_path / "none" / "result.json")])
    assert "there is no folder" in capsys.readouterr().err


def test_picture_is_the_same_bytes_every_time(tmp_path):
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")

    case = entry("a", "one", 1.0) | {"count": 100, "results": {"ours": {"rate": 1e6, "count": 100}}}
    result = {
        "format": performance_benchmark.FORMAT,
        "environment": {"platform": "cpu", "device": "cpu", "cpu": "a CPU", "cores": 2, "versions": {"jax": "0.10"}},
        "cases": [case],
        "accuracy": [{"peer": "ours", "concentration": 1e3, "draws": 100, "distinct": 99}],
    }
    source = tmp_path / "result.json"
    files.write_json(source, result)
    pictures = []
    for name in ("one.svg", "two.svg"):
        assert plots.main([str(source), "--out", str(tmp_path / name)]) == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]


def test_plots_read_the_committed_result():
    result = plots.upgraded(json.loads(RESULT.read_text(encoding="utf-8")))
    series = plots.speed_series(result)
    assert [k for k, _ in series["ours"]] == [0.1, 1, 5, 100, 1e4]
    assert plots.draws_text(result).startswith("16,777,216 (NumPy")
    assert set(series) | set(plots.accuracy_series(result)) <= set(plots.STYLES)


def test_every_sampler_has_a_style():
    assert {peer.name for peer in peers.PEERS if "sample" not in peer.lacks} <= set(plots.STYLES)


@pytest.mark.parametrize(("text", "message"), [('{"format": 99}', "not 1 or 2"), ("{}", "has no 'format'")])
def test_plots_refuse_other_files(text, message, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    source = tmp_path / "result.json"
    source.write_text(text)
    assert plots.main([str(source), "--out", str(tmp_path / "picture.svg")]) == 1
    assert message in capsys.readouterr().err

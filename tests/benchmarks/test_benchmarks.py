"""Test the timing, the cases and peers, the verdicts, the result files, and a complete run of the benchmark."""

import contextlib
import io
import json
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import (
    accuracy,
    environment,
    files,
    goals,
    peers,
    performance_benchmark,
    plots,
    quiet,
    reference,
    timing,
)
from benchmarks.cases import ARC, CASES, GRIDS, LOCS, TASKS, WEIGHTS, Case, LogUniform, on_gpu
from tests import reference as exact
from tests.made_up import FakeClock, entry, timed_case, waits

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "cpu-epyc-2-cores.json"


@pytest.fixture
def clock():
    return FakeClock()


def test_first_call_is_timed_separately(clock):
    competitor = clock.competitor("a", 8.0, 0.5)
    assert timing.first_call(competitor, clock) == 8.0
    assert timing.interleave({"a": competitor}, 3, clock) == {"a": [0.5, 0.5, 0.5]}


def test_time_of_making_inputs_is_excluded(clock):
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


def test_every_call_has_a_new_input(clock):
    competitor = clock.competitor("a", 1e-3)
    timing.first_call(competitor, clock)
    timing.interleave({"a": competitor}, 4, clock)
    inputs = [i for _, i in clock.log]
    assert inputs == list(range(len(inputs)))


def test_short_calls_are_repeated_within_a_turn(clock):
    clock.now = 1.0
    seconds = timing.interleave({"a": clock.competitor("a", 2.0**-10)}, 2, clock)["a"]
    assert seconds == [2.0**-10, 2.0**-10]
    # Each turn starts with an untimed call.
    assert len(clock.log) == 1 + 2 * (1 + np.ceil(timing.SHORTEST_TURN * 2**10))


def test_a_short_call_warms_up_in_every_turn(clock):
    seconds = timing.interleave({"a": clock.competitor("a", 2.0**-4, 2.0**-2, 2.0**-4)}, 1, clock)["a"]
    assert seconds == [2.0**-4]


def test_long_calls_have_fewer_turns(clock):
    competitors = {"long": clock.competitor("long", 4.0), "short": clock.competitor("short", 0.5)}
    seconds = timing.interleave(competitors, 7, clock)
    assert seconds == {"long": [4.0] * 3, "short": [0.5] * 7}


def in_stages(clock, *stages):
    """Return a competitor with the given times for the stages of each call, and a function that fetches a result."""

    def draw(i):
        dispatch, *rest = stages[min(i, len(stages) - 1)]
        clock.now += dispatch
        return rest

    def wait(result):
        clock.now += result[0]

    def fetch(result):
        clock.now += result[1]

    return timing.Competitor(draw, wait=wait), fetch


def test_stages_are_distinguished(clock):
    competitor, fetch = in_stages(clock, (0.125, 0.5, 0.25))
    stages = timing.stages({"a": competitor}, fetch, 3, clock)
    assert stages == {"a": [timing.Stages(0.125, 0.5, 0.25)] * 3}


def test_stages_of_short_calls_are_averaged_over_a_turn(clock):
    first, odd, even = (9.0, 9.0, 9.0), (2.0**-8, 2.0**-7, 0.0), (2.0**-7, 2.0**-8, 2.0**-7)
    # Call 0 is not made here. Call 1 sets the number of calls per turn to 7, and call 2 warms up without being timed.
    competitor, fetch = in_stages(clock, first, (2.0**-6, 0.0, 0.0), first, odd, odd, odd, odd, even, even, even)
    (stages,) = timing.stages({"a": competitor}, fetch, 1, clock)["a"]
    assert stages == pytest.approx(((4 + 3 * 2) / 7 / 256, (4 * 2 + 3) / 7 / 256, 3 * 2 / 7 / 256))


def test_median_quartiles_and_spread():
    measured = timing.Timing(first=9.0, seconds=(1.0, 2.0, 3.0, 4.0, 100.0))
    assert (measured.median, measured.quartiles) == (3.0, (2.0, 4.0))
    assert measured.spread == pytest.approx(2 / 3)
    assert measured.wide
    assert not timing.Timing(first=9.0, seconds=(1.0, 1.01, 1.0, 50.0, 1.02)).wide


@pytest.mark.parametrize(("turns", "wide"), [(1, True), (2, True), (3, False)])
def test_too_few_turns_have_no_spread(turns, wide):
    """A timing of one or two turns counts as wide, since so few turns prove nothing."""
    assert timing.Timing(1.0, (0.5,) * turns).wide == wide


@pytest.mark.parametrize(
    "rows", [(*CASES, *(case for cases in GRIDS.values() for case in cases)), peers.PEERS], ids=["cases", "peers"]
)
def test_names_are_unique(rows):
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_a_peer_does_a_task_or_gives_the_reason(peer):
    does = {task for task in TASKS if hasattr(peer, task)}
    assert does.isdisjoint(peer.lacks)
    assert does | set(peer.lacks) == set(TASKS)
    assert {*peer.most, *peer.most_ever} <= does


def test_goals_are_set_for_what_peers_do():
    tasks = {case.group: case.task for case in (*CASES, *GRIDS["keys"])}
    table = {peer.name: peer for peer in peers.PEERS}
    assert not [goal for goal in goals.GOALS if tasks[goal.group] in table[goal.peer].lacks]
    assert {goal.group for goal in goals.GOALS if goal.platform == "cpu"} == set(tasks)
    # The pictures of the default cases must not include a grid.
    assert not {*GRIDS} & {case.group for case in CASES}


def test_log_uniform_concentrations():
    values = LogUniform(1e-2, 1e4).values(1000)
    assert values.dtype == np.float32
    assert values.shape == (1000,)
    assert values.min() >= 1e-2
    assert values.max() <= 1e4
    assert np.median(np.log10(values)) == pytest.approx(1, abs=0.2)
    # A peer with fewer draws gets the first concentrations of the same list.
    assert np.array_equal(values[:10], LogUniform(1e-2, 1e4).values(10))


def test_a_gpu_gets_more_work_but_not_where_the_size_is_the_point():
    assert all((on_gpu(case).count > case.count) == (case.group != "small") for case in CASES)
    assert all(on_gpu(case) == case for case in (*GRIDS["sizes"], *GRIDS["arrays"]))


@pytest.mark.parametrize("task", ["icdf", "cdf", "log_prob", "fit"])
def test_inputs_differ_from_call_to_call_and_not_from_run_to_run(task):
    case = Case("tiny", task, count=10, concentration=5.0, task=task, size=20)
    first, second = case.inputs(0), case.inputs(1)
    assert first.dtype == np.float32
    assert first.shape == ((10, 20) if task == "fit" else (10,))
    assert np.all((first >= 0) & (first < 1)) if task == "icdf" else np.all(np.abs(first) <= np.pi)
    assert not np.any(first == second)
    assert np.array_equal(first, case.inputs(0))


def test_verdicts():
    table = [goals.Goal("cpu", "one", "numpy", 15), goals.Goal("gpu", "one", "numpy", 100)]
    cases = [entry("a", "one", 1.0, numpy=15.2), entry("b", "one", 1.0, numpy=14.8), entry("c", "one", 1.0)]
    cases += [entry("d", "small", 1.0, numpy=1.0), entry("e", "one", 1.0, numpy=15.1)]
    verdicts = goals.verdicts("cpu", cases, table)
    assert [(v.case, v.state) for v in verdicts] == [
        ("a", goals.MET),
        ("b", goals.MISSED),
        ("c", goals.NOT_MEASURED),
        # No timing is more precise than 1%.
        ("e", goals.TOO_CLOSE),
    ]


@pytest.mark.parametrize(
    ("ratio", "state"), [(18.0, goals.TOO_CLOSE), (19.0, goals.MET), (12.5, goals.TOO_CLOSE), (11.0, goals.MISSED)]
)
def test_a_goal_is_judged_beyond_the_noise_of_both(ratio, state):
    case = entry("a", "one", 1.0, numpy=ratio)
    for peer, spread in (("ours", 0.15), ("numpy", 0.2)):
        case["results"][peer]["spread"] = spread
    (verdict,) = goals.verdicts("cpu", [case], [goals.Goal("cpu", "one", "numpy", 15)])
    assert verdict.noise == pytest.approx(0.25)
    assert verdict.state == state


def test_the_higher_goal_counts_from_its_concentration_on():
    table = [goals.Goal("cpu", "one", "numpyro", 20), goals.Goal("cpu", "one", "numpyro", 50, above=1.0)]
    cases = [entry("low", "one", 0.1, numpyro=30.0), entry("high", "one", 1.0, numpyro=30.0)]
    assert [(v.at_least, v.state) for v in goals.verdicts("cpu", cases, table)] == [(20, "met"), (50, "MISSED")]


def test_noise_and_a_busy_machine_give_no_verdict():
    case = entry("a", "one", 1.0, numpy=20.0)
    table = [goals.Goal("cpu", "one", "numpy", 15)]
    assert goals.verdicts("cpu", [case], table)[0].state == goals.MET
    assert goals.verdicts("cpu", [case], table, busy=True)[0].state == quiet.BUSY
    case["results"]["ours"]["wide"] = True
    assert goals.verdicts("cpu", [case], table)[0].state == goals.TOO_NOISY
    del case["results"]["ours"]
    assert goals.verdicts("cpu", [case], table)[0].state == goals.NOT_MEASURED


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
        inputs = accuracy.questions(error.task, 5.0)
        right = getattr(reference, error.task)(inputs.astype(np.float64), 5.0)
        assert not np.any(accuracy.distances(error.task, 5.0, inputs, right)[error.measure])
        wrong = accuracy.distances(error.task, 5.0, inputs, right + 1e-3)[error.measure]
        assert np.max(wrong) >= 0.9e-3


class Fake(peers.Peer):
    """A peer whose draws all equal 0.1, unless `make` prepares them."""

    def __init__(self, name, make=None, most=None, most_ever=None):
        self.name = self.label = name
        self.make = make
        self.most = {} if most is None else {"sample": most}
        self.most_ever = {} if most_ever is None else {"sample": most_ever}

    def sample(self, case):
        """Return a prepared function that draws."""
        if self.make is not None:
            return self.make(case)
        return peers.Ready(timing.Competitor(lambda i: np.full(case.count, 0.1)))

    def cdf(self, case):
        """Return a prepared function whose probabilities are all NaN."""
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
    measured = performance_benchmark.run_case(CASE, table, rounds=2, capped=True)
    assert measured["missing"] == {"absent": "no such library", "broken": "failed: RuntimeError: out of memory"}
    counts = {name: result["count"] for name, result in measured["results"].items()}
    assert counts == {"ours": 100, "capped": 10, "slow": 20, "both": 20}
    assert measured["results"]["ours"]["ratio"] == 1
    rates = {name: result["rate"] for name, result in measured["results"].items()}
    assert measured["results"]["capped"]["ratio"] == rates["ours"] / rates["capped"]
    uncapped = performance_benchmark.run_case(CASE, table[:3], rounds=1, capped=False)
    assert [result["count"] for result in uncapped["results"].values()] == [100, 100, 20]


def test_a_failure_of_ours_is_an_error():
    with pytest.raises(RuntimeError, match="out of memory"):
        performance_benchmark.run_case(CASE, [Fake(peers.OURS, broken)], rounds=1, capped=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", [*GRIDS["dtypes"], *GRIDS["keys"]], ids=lambda case: case.name)
def test_our_draws_in_each_dtype_and_of_each_key(case, monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.0)
    measured = performance_benchmark.run_case(case._replace(count=50), peers.PEERS[:1], 1, capped=True)
    assert not measured["missing"]
    assert measured["results"]["ours"]["dtype"] == case.dtype
    assert not jax.config.jax_enable_x64


def test_a_key_that_jax_does_not_have_is_a_reason():
    chosen = [peer for peer in peers.PEERS if peer.name in ("ours", "normal")]
    measured = performance_benchmark.run_case(CASE._replace(key_impl="md5"), chosen, 1, capped=True)
    assert measured["missing"] == dict.fromkeys(("ours", "normal"), "this JAX has no md5")


def test_errors_skip_failing_peers_and_report_nan():
    rows = accuracy.errors(["cdf"], [Fake("nan"), peers.PEERS[1]], [1.0])
    assert [(row["measure"], row["peer"], row["largest"]) for row in rows] == [
        ("absolute", "nan", None),
        ("tail", "nan", None),
    ]
    assert accuracy.measure([Fake("absent", absent), Fake("broken", broken)], 10, [1.0]) == []
    with pytest.raises(RuntimeError, match="out of memory"):
        accuracy.measure([Fake(peers.OURS, broken)], 10, [1.0])


def ready(peer, case):
    """Return the prepared `peer`, or None if it lacks the task; skip the test if its library is missing."""
    if case.task in peer.lacks:
        with pytest.raises(peers.Unavailable):
            peer.prepare(case)
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries may warn
        try:
            return peer.prepare(case)
        except peers.Unavailable as reason:
            pytest.skip(str(reason))


@pytest.mark.few(2)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_every_peer_computes_its_tasks(peer, task):
    case = Case("tiny", task, count=50, concentration=5.0, task=task, size=40)
    prepared = ready(peer, case)
    if prepared is None:
        return
    draw, fresh, wait = prepared.competitor
    # Other libraries may warn, and rely on implicit broadcasting.
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore")
        results = [draw(fresh(i)) for i in range(2)]
    for result in results:
        wait(result)
    if isinstance(results[0], np.ndarray | list):
        assert prepared.device == "cpu"  # the result is ready when the call returns
    else:
        assert waits(wait)
    if task == "fit":
        # SciPy returns concentration, loc and scale.
        locs, concentrations = np.array(results[0])[:, 1::-1].T if peer.name == "scipy" else results[0]
        mean = np.exp(1j * case.inputs(0).astype(np.float64)).mean(1)
        assert np.allclose(locs, np.angle(mean), atol=1e-5)
        assert np.allclose(exact.ratio(np.asarray(concentrations, float)), np.abs(mean), rtol=1e-5)
        return
    first, second = (prepared.read(result) for result in results)
    assert first.shape == second.shape == (() if task == "gradient" else (50,))
    assert not np.array_equal(first, second)
    if task == "truncated":
        assert all(ARC[0] <= x <= ARC[1] for x in first) or peer.name == "normal"
    if task == "mixture":
        x = case.inputs(0).astype(np.float64)
        parts = [w * np.exp(reference.log_prob(x - loc, 5.0)) for w, loc in zip(WEIGHTS, LOCS, strict=True)]
        assert np.allclose(first, np.log(sum(parts)), atol=1e-5)
    if task in ("icdf", "cdf", "log_prob"):
        right = getattr(reference, task)(case.inputs(0).astype(np.float64), 5.0)
        assert np.allclose(first, right, atol=1e-5)
        assert np.allclose(prepared.read(draw(prepared.give(case.inputs(0)))), right, atol=1e-5)


def test_our_gradient_is_that_of_the_draws():
    case = Case("tiny", "gradient", count=50, concentration=5.0, task="gradient")
    ours = peers.PEERS[0]
    competitor = ours.prepare(case).competitor
    key = competitor.fresh(0)
    x = np.asarray(ours.package().sample_von_mises(key, 0.0, 5.0, (50,), "float32"), np.float64)
    assert competitor.draw(key) == pytest.approx(
        np.sum(np.sign(x) * exact.dquantile_dk(np.abs(x), 5.0)), rel=1e-4, abs=1e-4
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the result and the text of a complete run on tiny cases, on a machine reported as quiet."""
    path = tmp_path_factory.mktemp("run") / "result.json"
    tiny = [case._replace(count=50, size=20) for case in CASES if case.name in ("small", "icdf", "cdf", "array")]
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setattr(performance_benchmark, "CASES", tiny)
        patch.setattr(performance_benchmark, "GRIDS", {"sizes": GRIDS["sizes"][:1]})
        patch.setattr(timing, "SHORTEST_TURN", 0.0)
        patch.setattr(accuracy, "PROBABILITIES", 5)
        patch.setattr(accuracy.measure, "__defaults__", (peers.PEERS, 100, ()))
        patch.setattr(quiet, "check", lambda: quiet.decide(0.0, 2, 0.0, 0.0))
        command = ["--rounds", "3", "--peers", "ours", "scipy", "--cases", *(case.name for case in tiny)]
        assert performance_benchmark.main([*command, "--grid", "sizes", "--json", str(path)]) == 0
    return files.read_result(path), text.getvalue()


def test_tuned_runs_start_again_with_huge_pages(monkeypatch):
    started = []
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    monkeypatch.setattr(performance_benchmark.os, "execv", lambda *arguments: started.append(arguments))
    monkeypatch.setattr("jax_von_mises.runtime.configure", lambda **arguments: started.append(arguments))
    performance_benchmark.tune(["--tuned", "--quick"])
    (python, command), width = started
    assert command == [python, "-m", "benchmarks.performance_benchmark", "--tuned", "--quick"]
    assert width == {"vector_width": 512}
    assert performance_benchmark.os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=0:glibc.malloc.hugetlb=1"
    performance_benchmark.tune([])
    assert len(started) == 3  # exactly once


def test_a_complete_run(run):
    result, text = run
    assert [case["name"] for case in result["cases"]] == ["array", "small", "icdf", "cdf", "size=1"]
    assert result["cases"][0]["concentration"] == {"low": 1e-2, "high": 1e4}
    assert result["machine_state"]["quiet"]
    assert {row["task"] for row in result["errors"]} == {"cdf", "icdf"}
    # The package's errors are below the bounds that it states.
    assert max(row["largest"] for row in result["errors"] if row["peer"] == "ours") < 4e-6
    # The grid of sizes has no goals, and the pictures omit it.
    assert {row["case"] for row in result["goals"]} == {"array", "small", "icdf", "cdf"}
    assert plots.speed_series(result) == {}
    for case in result["cases"]:
        assert f"\n{case['name']}: " in text


def test_a_busy_machine_gives_no_verdict(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(quiet, "check", lambda: quiet.decide(9.0, 2, 0.0, 0.5))
    monkeypatch.setattr(performance_benchmark, "run_case", lambda case, *_: timed_case(case.name, ours=1.0, numpy=0.1))
    monkeypatch.setattr(performance_benchmark, "measure_accuracy", lambda *_: ([], []))
    path = tmp_path / "result.json"
    assert performance_benchmark.main(["--cases", "k=1", "--json", str(path)]) == 0
    result = files.read_result(path)
    assert not result["machine_state"]["quiet"]
    assert {row["state"] for row in result["goals"]} == {quiet.BUSY, goals.NOT_MEASURED}
    assert "~0.10" in capsys.readouterr().out


def test_files_have_a_line_for_each_list_of_numbers(tmp_path):
    result = {"a": [1.5, 2, None], "b": [{"c": []}, "x, [1,\n 2]"], "d": (True, 3.0), "e": [[1, 2], [3, 4]]}
    files.write_json(tmp_path / "x.json", result)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {**result, "d": [True, 3.0]}
    assert ' "a": [1.5, 2, null],' in text.splitlines()
    assert "  [1, 2]," in text.splitlines()


def test_rounding_changes_only_floats():
    value = {"a": [1 / 3, 12345678, "1.23456789", None, True], "b": (2e-9 / 3,)}
    assert files.rounded(value) == {"a": [0.333333, 12345678, "1.23456789", None, True], "b": [6.66667e-10]}


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


def test_missing_folder_gives_one_line(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        performance_benchmark.main(["--json", str(tmp_path / "none" / "result.json")])
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.slow
def test_picture_is_the_same_bytes_every_time(tmp_path):
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")

    case = entry("a", "one", 1.0) | {"count": 100, "results": {"ours": {"rate": 1e6, "count": 100, "wide": False}}}
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
    result = files.read_result(RESULT)
    series = plots.speed_series(result)
    assert [k for k, _ in series["ours"]] == [0.1, 1, 5, 100, 1e4]
    assert plots.draws_text(result) == "16,777,216"
    result["cases"][0]["results"]["numpy"]["count"] = 1000
    assert plots.draws_text(result) == "16,777,216 (NumPy: 1,000)"
    assert set(series) | set(plots.accuracy_series(result)) <= set(plots.STYLES)


def test_every_sampler_has_a_style():
    assert {peer.name for peer in peers.PEERS if "sample" not in peer.lacks} <= set(plots.STYLES)


@pytest.mark.parametrize(("text", "message"), [('{"format": 99}', "its format is 99"), ("{}", "has no 'format'")])
def test_plots_refuse_other_files(text, message, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    source = tmp_path / "result.json"
    source.write_text(text)
    assert plots.main([str(source), "--out", str(tmp_path / "picture.svg")]) == 1
    assert message in capsys.readouterr().err


def test_untimeable_settings_are_refused(monkeypatch):
    """Runs without compilation or without a device are refused, since their times would be meaningless."""
    with jax.disable_jit(), pytest.raises(SystemExit, match="JAX_DISABLE_JIT is on"):
        environment.describe()

    def fail():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(SystemExit, match=r"JAX does not start with JAX_PLATFORMS=cpu.*doctor"):
        environment.describe()


def test_variables_that_matter_are_recorded(monkeypatch):
    names = {"JAX_THREEFRY_PARTITIONABLE": "1", "MKL_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MY_PASSWORD", "x")
    recorded = environment.describe()["variables"]
    assert recorded.items() >= names.items()
    assert "MY_PASSWORD" not in recorded

"""Test the comparison of two results, including slower cases and noise."""

import copy
import json
import math

import pytest

from benchmarks import compare, files, performance_benchmark, quiet, timing
from tests.benchmarks.test_benchmarks import RESULT
from tests.made_up import result_file, timed_case

NOISY = [0.5, 0.7, 1.0, 1.6, 2.0]


def states(comparison):
    return {(change.case, change.peer): change.state for change in comparison.changes}


def compared(before, after, tolerance=0.3, **environment):
    """Compare two results of a case, made from the seconds that each peer takes before and after."""
    old, new = result_file(timed_case(**before)), result_file(timed_case(**after), **environment)
    return compare.compare(old, new, tolerance)


@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        (1.0, compare.SAME),
        (1.0 / 0.7 - 0.01, compare.SAME),
        (1.0 / 0.7 + 0.01, compare.SLOWER),
        (0.71, compare.SAME),
        (0.69, compare.FASTER),
    ],
)
def test_tolerance(seconds, state):
    comparison = compared({"ours": 1.0, "numpy": 10.0}, {"ours": seconds, "numpy": 10.0})
    assert states(comparison) == {("k=1", "numpy"): state}
    assert [change.peer for change in comparison.regressions] == (["numpy"] if state == compare.SLOWER else [])


def test_a_peer_that_became_faster_is_a_loss_too():
    comparison = compared({"ours": 1.0, "numpy": 10.0}, {"ours": 1.0, "numpy": 5.0})
    (change,) = comparison.regressions
    assert (change.old, change.new) == (10.0, 5.0)


def test_a_slower_machine_is_no_regression():
    comparison = compared({"ours": 1.0, "numpy": 10.0}, {"ours": 3.0, "numpy": 30.0})
    assert states(comparison) == {("k=1", "numpy"): compare.SAME}


def test_our_rate_is_judged_where_no_peer_can_be():
    assert states(compared({"ours": 1.0}, {"ours": 3.0})) == {("k=1", "rate"): compare.SLOWER}
    noisy_peer = compared({"ours": 1.0, "numpy": NOISY}, {"ours": 3.0, "numpy": 1.0})
    assert states(noisy_peer) == {("k=1", "numpy"): compare.TOO_NOISY, ("k=1", "rate"): compare.SLOWER}


@pytest.mark.parametrize("machine", [{"cpu": "another CPU"}, {"cores": 4}, {"device": "H100"}])
def test_rates_of_other_machines_are_not_compared(machine):
    comparison = compared({"ours": 1.0, "numpy": 10.0}, {"ours": 3.0, "numpy": 10.0}, **machine)
    assert states(comparison) == {("k=1", "numpy"): compare.SLOWER}
    (name,) = machine
    assert any(line.startswith(f"{name}: ") for line in comparison.differences)
    assert states(compared({"ours": 1.0}, {"ours": 3.0}, **machine)) == {}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("who", ["ours", "numpy"])
def test_noise_gives_no_verdict(where, who):
    """A ratio that falls to a tenth gets no verdict if one of its four timings is noisy."""
    timings = {"before": {"ours": 1.0, "numpy": 10.0}, "after": {"ours": 10.0, "numpy": 10.0}}
    assert compared(**timings).regressions
    timings[where][who] = NOISY
    comparison = compared(**timings)
    assert states(comparison)["k=1", "numpy"] == compare.TOO_NOISY
    assert not [change for change in comparison.regressions if change.peer == "numpy"]


def test_a_change_within_the_noise_is_no_change():
    """A loss of 20% is within the noise: four spreads of 15%, none of them wide, combine to 30%."""
    steady, loose = [1.0] * 5, [0.9, 0.925, 1.0, 1.075, 1.1]
    scaled = [1.25 * seconds for seconds in loose]
    before, after = {"ours": loose, "numpy": loose}, {"ours": scaled, "numpy": loose}
    (change,) = compared(before, after, 0.1).changes
    assert change.noise == pytest.approx(0.3)
    assert change.state == compare.SAME
    (change,) = compared({"ours": steady, "numpy": steady}, {"ours": [1.25] * 5, "numpy": steady}, 0.1).changes
    assert (change.noise, change.state) == (timing.LEAST_NOISE, compare.SLOWER)
    # This loss is beyond the tolerance, but not beyond the noise.
    assert compare.judge(0.6, math.expm1(0.6), 0.3) == compare.SAME


def test_a_busy_machine_gives_no_verdict(tmp_path):
    results = [result_file(timed_case(ours=seconds, numpy=10.0)) for seconds in (1.0, 5.0)]
    results[1]["machine_state"] = quiet.decide(9.0, 2, 0.0, 0.5).as_dict()
    comparison = compare.compare(*results)
    assert set(states(comparison).values()) == {quiet.BUSY}
    assert comparison.judged == 0
    assert any("the new run was busy: load average 9.0" in line for line in comparison.differences)


def test_different_work_is_not_compared():
    old = result_file(timed_case("a", ours=1.0, numpy=10.0), timed_case("b", ours=1.0, numpy=1.0, torch=1.0))
    new = copy.deepcopy(old)
    new["cases"][0]["count"] = 2000
    new["cases"][1]["results"]["numpy"]["count"] = 1
    del new["cases"][1]["results"]["torch"]
    new["cases"][1]["missing"]["torch"] = "not installed"
    new["cases"].append(timed_case("c", ours=1.0))
    old["cases"].append(timed_case("d", ours=1.0))
    comparison = compare.compare(old, new)
    assert states(comparison) == {("b", "rate"): compare.SAME}
    assert comparison.unmatched == [
        ("a", "count: 1000 before, 2000 now"),
        ("b", "NumPy, elements per call: 1,000 before, 1 now"),
        ("b", "PyTorch is in the old result only (not installed)"),
        ("c", "in the new result only"),
        ("d", "in the old result only"),
    ]


def test_noise_alone_is_no_pass(tmp_path):
    paths = [tmp_path / name for name in ("old.json", "new.json")]
    for path in paths:
        files.write_json(path, result_file(timed_case(ours=NOISY, numpy=1.0)))
    assert performance_benchmark.main(["--from", str(paths[1]), "--compare", str(paths[0])]) == 2


def test_versions_that_differ_are_listed():
    comparison = compared({"ours": 1.0}, {"ours": 1.0}, versions={"jax": "0.12.0"})
    assert comparison.differences == ["jax: 0.10.2 before, 0.12.0 now", "numpy: 2.4.6 before, None now"]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an old result and a slower new one."""
    for name, seconds in (("old", 1.0), ("new", 2.0)):
        files.write_json(tmp_path / f"{name}.json", result_file(timed_case(ours=seconds, numpy=10.0)))
    return tmp_path


def run(folder, *arguments):
    names = [str(folder / word) if word.endswith(".json") else word for word in arguments]
    return performance_benchmark.main(names)


def test_exit_codes(folder, capsys):
    assert run(folder, "--from", "new.json", "--compare", "old.json") == 1
    assert "SLOWER" in capsys.readouterr().out
    assert run(folder, "--from", "old.json", "--compare", "new.json") == 0
    assert run(folder, "--from", "new.json", "--compare", "old.json", "--tolerance", "0.6") == 0
    for text in ("", "[]", "{}", '{"format": 3}', '{"format": 2, "cases": [{"name": 1}]}', '{"format": 2, "cases": 1}'):
        (folder / "bad.json").write_text(text)
        assert run(folder, "--from", "new.json", "--compare", "bad.json") == 2
        assert run(folder, "--from", "bad.json", "--compare", "old.json") == 2
        assert "bad.json" in capsys.readouterr().err
    assert run(folder, "--from", "none.json", "--compare", "old.json") == 2


@pytest.mark.parametrize(("name", "value"), [("rate", 0), ("rate", math.nan), ("spread", -1), ("ratio", 0)])
def test_impossible_numbers_are_refused(name, value, folder):
    wrong = result_file(timed_case(ours=1.0, numpy=2.0))
    wrong["cases"][0]["results"]["numpy"][name] = value
    (folder / "bad.json").write_text(json.dumps(wrong))
    assert run(folder, "--from", "new.json", "--compare", "bad.json") == 2


def test_an_invalid_old_file_is_reported_before_the_measurement(folder, monkeypatch):
    monkeypatch.setattr(performance_benchmark, "measure", lambda options: pytest.fail("measured"))
    assert run(folder, "--compare", "none.json") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "new.json"],
        ["--from", "new.json", "--compare", "old.json", "--json", "again.json"],
        ["--tolerance", "1"],
        ["--tolerance", "0"],
        ["--tolerance", "nan"],
    ],
)
def test_invalid_options_are_refused(arguments, folder):
    with pytest.raises(SystemExit, match="2"):
        run(folder, *arguments)


def test_the_committed_result_equals_itself():
    result = files.read_result(RESULT)
    comparison = compare.compare(result, result)
    assert {change.state for change in comparison.changes} <= {compare.SAME, compare.TOO_NOISY}
    assert sum(change.peer != "rate" for change in comparison.changes) >= 40
    assert not comparison.unmatched

"""Test the declared cases: each computes what its name says, for every library that is installed."""

import re

import jax
import numpy as np
import pytest
from scipy import stats

from benchmarks import competitors, environment, peers, performance_benchmark, reference, subjects
from benchmarks.results import OURS
from benchmarks.subjects import accuracy, classes, rotations
from jax_von_mises.engine import base
from tests import reference as exact

CASES = [(group, case) for group, found in subjects.cases().items() for case in found]
IN_PROCESS = [
    (group, case)
    for group, case in CASES
    if group not in ("startup", "streams", "accuracy") and "first call" not in case.name
]


def called(make, count):
    """Return the result of one call."""
    competitor = make(count)
    result = competitor.draw(competitor.fresh(0))
    competitor.wait(result)
    return result


def named(value):
    return value if isinstance(value, str) else value.name


def test_names_are_unique_and_the_package_comes_first():
    names = [(group, case.name) for group, case in CASES]
    assert len(set(names)) == len(names)
    assert all(next(iter(case.peers)) == OURS and "|" not in case.name for _, case in CASES)


# The first case of a group runs in `make test` if it compiles within a second, and otherwise in `make test-more`.
FIRST = [next(case for name, case in IN_PROCESS if name == group) for group in dict(IN_PROCESS)]
QUICK = ("functions", "arrays", "fits")


def mark(group, case):
    """Return when a case runs."""
    if case not in FIRST:
        return pytest.mark.slow
    return () if group in QUICK else pytest.mark.more


EACH = [pytest.param(group, case, marks=mark(group, case)) for group, case in IN_PROCESS]


@pytest.mark.parametrize(("group", "case"), EACH, ids=named)
def test_every_case_runs(group, case):
    """All peers compute finite numbers of the dtype of the case, or give a reason.

    The logarithm of a sum of waves in float32 is NaN where rounding makes the sum negative.
    """
    with competitors.precision(case.dtype), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for peer, make in case.peers.items():
            try:
                result = called(make, 8)
            except (competitors.Unavailable, ModuleNotFoundError):
                if peer == OURS:
                    raise
                continue
            for leaf in jax.tree.leaves(result):
                assert peer == rotations.SERIES or np.isfinite(np.asarray(leaf, np.float64)).all(), peer
            if peer == OURS and group in ("arrays", "float64"):
                assert result.dtype == case.dtype
            if group in ("arrays", "circle") and result is not None:
                assert result.shape == (8,), peer


def test_every_declared_class_has_rows():
    names = {kind.__name__ for kind in base.declared()} | {"CircularDistribution", "Mixture", "SineSkewed", "Torus"}
    found = {case.name.split("`")[1] for group, case in CASES if group == "classes"}
    assert found == names


@pytest.mark.slow
def test_the_slowest_first_call_is_named():
    competitor = classes.slowest("ProjectedNormal", 1)
    assert re.fullmatch(r"[\w ]+, the slowest of \d+ methods", competitor.note)
    assert competitor.draw(0) > 0


@pytest.mark.parametrize("name", ["jax_von_mises", "NumPy", "NumPyro"])
def test_samplers_draw_from_the_distribution(name):
    draws = np.asarray(called(peers.samplers(5.0)[name], 2000), np.float64)
    assert stats.kstest(draws, lambda x: reference.cdf(x, 5.0)).pvalue > 1e-4


def test_our_gradient_is_that_of_the_draws():
    with jax.numpy_dtype_promotion("standard"):
        found = called(peers.gradients(peers.Spread(1.0, 9.0))[OURS], 8)
    assert found.shape == (8,)


@pytest.mark.parametrize("k", [0.1, 5.0, 49.0, 51.0, 1e4, 1e7])
def test_the_reference_of_errors(k):
    """Compare it with the references of the tests."""
    x = np.linspace(-1, 1, 400) * min(3.14, 10 / np.sqrt(k))
    tail = exact.sf(np.abs(x), k)
    assert np.allclose(reference.cdf(x, k)[x < 0], tail[x < 0], rtol=1e-11, atol=0)
    assert np.allclose(reference.cdf(x, k)[x > 0], 1 - tail[x > 0], rtol=1e-11, atol=0)
    assert np.allclose(reference.log_prob(x, k), np.log(exact.pdf(x, k)), rtol=1e-11, atol=1e-11)
    q = np.array([1e-9, 1e-3, 0.3, 0.5, 0.7, 1 - 2.0**-24])
    angles = np.sign(q - 0.5) * exact.quantile(np.minimum(q, 1 - q), k)
    assert np.allclose(reference.icdf(q, k), angles, rtol=1e-10, atol=1e-12 / np.sqrt(k))


def test_errors_are_seen():
    x = accuracy.reaching("cdf", 5.0)
    right = reference.cdf(x.astype(np.float64), 5.0)
    assert accuracy.largest_error("cdf", 5.0, x, right) == 0
    wrong = right.copy()
    wrong[3] *= 1.001
    assert accuracy.largest_error("cdf", 5.0, x, wrong) == pytest.approx(1e-3)
    wrong[4] = np.nan
    assert accuracy.largest_error("cdf", 5.0, x, wrong) == np.inf


def test_distinct_values():
    assert accuracy.distinct([0.5, -0.5, 0.25, 0.25]) == 2.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["circles"], "there is no group circles"),
        (["--out", "{folder}/none/a.csv"], "there is no folder"),
        (["--minutes", "0"], "must be above 0"),
    ],
)
def test_bad_requests_are_refused(arguments, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as refused:
        performance_benchmark.main([each.format(folder=tmp_path) for each in arguments])
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


def test_results_need_a_clean_clone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "tree", lambda: "0123")
    monkeypatch.setattr(environment, "dirty", lambda: ["benchmarks/timing.py"])
    with pytest.raises(SystemExit):
        performance_benchmark.main(["--out", str(tmp_path / "a.csv")])
    assert "commit or undo those of benchmarks/timing.py" in capsys.readouterr().err


def test_variables_that_matter_are_recorded(monkeypatch):
    for name, value in (("JAX_PLATFORMS", "cpu"), ("OMP_NUM_THREADS", "1"), ("HOME_X", "")):
        monkeypatch.setenv(name, value)
        assert (f"{name}={value}" in environment.describe()["variables"]) == (name != "HOME_X")


def test_untimeable_settings_are_refused():
    with jax.disable_jit(), pytest.raises(SystemExit, match="JAX_DISABLE_JIT is on"):
        environment.describe()

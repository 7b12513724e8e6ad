"""Test the quasi-Monte Carlo example: the exact mean, the distribution of each scheme, and how fast errors fall."""

import itertools

import numpy as np
import pytest
from jax import random
from scipy import special, stats

from docs.examples import quasi_monte_carlo as example

pytestmark = pytest.mark.slow

SIZES = (128, 1024)
REPLICATES = 50


@pytest.fixture(scope="module")
def rms_errors():
    return example.errors(0, np.array(SIZES), REPLICATES)


def test_squared_distance():
    """The squared distance is 16 for a straight chain and 0 for a closed square."""
    assert float(example.squared_distance(np.zeros(3, np.float32))) == pytest.approx(16)
    assert float(example.squared_distance(np.full(3, np.pi / 2, np.float32))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("angles", [1, 2, 3])
def test_exact_mean_by_quadrature(angles):
    """The exact mean equals a sum over a periodic grid, which integrates smooth periodic functions up to rounding."""
    grid = np.linspace(-np.pi, np.pi, 32, endpoint=False)
    weights = np.exp(example.CONCENTRATION * np.cos(grid - example.LOC))
    weights /= weights.sum()
    points = np.array(list(itertools.product(grid, repeat=angles)))
    joint = np.prod(list(itertools.product(weights, repeat=angles)), axis=1)
    heading = np.c_[np.zeros(len(points)), np.cumsum(points, axis=1)]
    assert example.exact_mean(angles) == pytest.approx(joint @ np.abs(np.exp(1j * heading).sum(axis=1)) ** 2, rel=1e-12)


# The shapes are those of `rms_errors`, so that each program is compiled only once.
SCHEMES = {
    "independent": lambda: example.independent(random.key(1), max(SIZES), REPLICATES, 6),
    "mirrored pairs": lambda: example.mirrored(random.key(1), max(SIZES), REPLICATES, 6),
    "strata": lambda: example.stratified(random.key(1), max(SIZES), REPLICATES),
    "Sobol points": lambda: example.sobol(1, max(SIZES), REPLICATES, 6),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_angles_of_each_scheme_have_the_distribution(name):
    """Trigonometric moments are exact up to five standard errors, estimated from the spread of the replicates."""
    angles = np.asarray(SCHEMES[name](), float)
    assert angles.shape[:2] == (max(SIZES), REPLICATES)
    for order in (1, 2):
        exact = special.ive(order, example.CONCENTRATION) / special.i0e(example.CONCENTRATION)
        means = np.mean(np.cos(order * (angles - example.LOC)), axis=(0, 2))
        assert abs(means.mean() - exact) < 5 * means.std(ddof=1) / np.sqrt(REPLICATES)
        means = np.mean(np.sin(order * (angles - example.LOC)), axis=(0, 2))
        assert abs(means.mean()) < 5 * means.std(ddof=1) / np.sqrt(REPLICATES) + 1e-8  # rounding


def test_mirrored_angles_are_adjacent():
    """The first points consist of complete pairs if their number is even."""
    angles = np.asarray(SCHEMES["mirrored pairs"](), float)
    around = np.exp(1j * (angles - example.LOC))
    np.testing.assert_allclose(around[::2], np.conj(around[1::2]), atol=1e-6)


def test_sobol_angles_are_as_even_as_the_points():
    """In every coordinate, each of n strata of equal probability holds exactly one of n points."""
    angles = np.asarray(SCHEMES["Sobol points"](), float)[:, :4]
    probability = stats.vonmises.cdf(angles - example.LOC, example.CONCENTRATION)
    within = max(SIZES) * np.sort(probability, axis=0) - np.arange(max(SIZES))[:, None, None]
    assert within.min() > -5e-3
    assert within.max() < 1 + 5e-3


def test_independent_error_is_the_standard_deviation(rms_errors):
    """The mean squared error for n points is the variance of 2 + 2 cos(x), divided by n.

    The 50 replicates for each of the two sizes together give it with a relative standard error of 14%.
    """
    first, second = (special.ive(p, example.CONCENTRATION) / special.i0e(example.CONCENTRATION) for p in (1, 2))
    variance = 4 * (0.5 + 0.5 * second * np.cos(2 * example.LOC) - (first * np.cos(example.LOC)) ** 2)
    assert np.mean(np.array(SIZES) * rms_errors[1]["independent"] ** 2) == pytest.approx(variance, rel=0.5)


def test_errors_fall_at_the_expected_rates(rms_errors):
    slopes = {d: {name: example.slope(SIZES, rms) for name, rms in by.items()} for d, by in rms_errors.items()}
    assert slopes[1]["independent"] == pytest.approx(-0.5, abs=0.2)
    assert slopes[1]["strata"] == pytest.approx(-1.5, abs=0.25)
    assert slopes[1]["Sobol points"] < -1.2
    assert slopes[6]["Sobol points"] < -0.6
    assert [list(by) for by in rms_errors.values()][1:] == [["independent", "mirrored pairs", "Sobol points"]] * 2
    last = {name: rms[-1] for name, rms in rms_errors[6].items()}
    assert last["Sobol points"] < 0.6 * last["mirrored pairs"] < 0.36 * last["independent"]

"""Test the goodness of fit of up to two million angles, with a common false-alarm rate.

The rate is `goodness_of_fit.FALSE_ALARM`.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import random
from scipy import special

from jax_von_mises import sample_von_mises
from jax_von_mises.engine import counter
from tests import goodness_of_fit, reference
from tests.marks import more, slow

DRAWS = 2**21
# Locations are exact in float32. For narrow distributions they are small, since float32 numbers just below 1 are 6e-8
# apart.
PAIRS = [
    (0.0, 0.0), (2.0, 0.0), (0.0, 1e-3), (-3.0, 0.01), (0.0, 0.05), (1.0, 0.1), (0.0, 0.3), (-2.5, 0.5), (0.0, 0.8),
    (3.0, 1.0), (0.0, 1.5), (0.5, 2.0), (0.0, 3.0), (-1.0, 4.0), (0.0, 4.99), (0.25, 5.01), (0.0, 8.0), (1.5, 12.0),
    (0.0, 16.9), (-0.5, 17.1), (0.0, 30.0), (0.125, 100.0), (0.0, 1e3), (0.0, 1e4), (0.0, 1e5), (0.0, 1e7), (0.0, 1e9),
]  # fmt: skip
LAGS = (1, 2, 3, 4, 8)  # a block of words serves 2 or 4 neighbours


@functools.cache
def exact_tail(k):
    return goodness_of_fit.ExactTail(k)


def centred(x, loc):
    """Return angles minus `loc`, wrapped to [-pi, pi), in float64."""
    return np.remainder(np.asarray(x, np.float64) - loc + np.pi, 2 * np.pi) - np.pi


def assert_distribution(x, k, where):
    """Assert that angles centred at 0 pass all tests."""
    goodness_of_fit.assert_fits(goodness_of_fit.battery(x, k, exact_tail(k)), where)


def assert_independent(streams):
    """Assert that neighbours in each stream are independent, and so are any two streams, aligned or shifted by one."""
    p_values = {}
    for i, u in enumerate(streams):
        for lag in LAGS:
            p_values[f"{i}, lag {lag}"] = goodness_of_fit.independent(u[lag:], u[:-lag])
    for (i, u), (j, v) in itertools.combinations(enumerate(streams), 2):
        p_values[f"{i} and {j}"] = goodness_of_fit.independent(u, v)
        p_values[f"{i} and {j}, shifted"] = goodness_of_fit.independent(u[1:], v[:-1])
    goodness_of_fit.assert_fits(p_values, "dependence")


QUICK = [(-2.5, 0.5)]


@pytest.mark.parametrize(
    ("loc", "k"), [*QUICK, *more(*PAIRS[::4]), *slow(*(pair for pair in PAIRS if pair not in [*QUICK, *PAIRS[::4]]))]
)
def test_one_concentration(key, loc, k):
    x = sample_von_mises(key, loc, k, (DRAWS,))
    assert_distribution(centred(x, loc), float(np.float32(k)), f"loc={loc}, k={k}")


@pytest.mark.slow
def test_lanes_of_a_mixed_batch(key):
    """Each lane has the distribution of its parameters. Lanes are independent, and so are neighbours in a lane."""
    locs, ks = np.float32(PAIRS[1::2]).T
    x = np.asarray(sample_von_mises(key, locs, ks, (2**18, len(ks))))
    lanes = []
    for j, (loc, k) in enumerate(zip(locs.tolist(), ks.tolist(), strict=True)):
        angles = centred(x[:, j], loc)
        assert_distribution(angles, k, f"lane {j}: loc={loc}, k={k}")
        lanes.append(goodness_of_fit.probabilities(angles, exact_tail(k))[0])
    assert_independent(lanes)


@pytest.mark.parametrize("implementation", slow(*counter.GENERATORS))
def test_key_implementations(implementation):
    """Streams of split and folded keys have the right distribution and are independent, for every implementation."""
    key = random.key(1, impl=implementation)
    # Use two parents, since `fold_in` with a number returns the child that `split` returns at that index.
    first, second = random.split(key)
    streams = []
    for child in [*random.split(first, 3), random.fold_in(second, 1), random.fold_in(second, 2)]:
        x = np.asarray(sample_von_mises(child, 0.0, 2.0, (DRAWS // 4,)))
        assert_distribution(x, 2.0, implementation)
        streams.append(goodness_of_fit.probabilities(x, exact_tail(2.0))[0])
    assert_independent(streams)


@pytest.mark.parametrize(("k", "method"), more((0.5, "direct"), (30.0, "table"), (1e6, "direct")))
def test_float64(key, k, method):
    with jax.enable_x64(True):
        x = np.asarray(sample_von_mises(key, 0.0, k, (DRAWS // 2,), method=method))
    assert x.dtype == np.float64
    assert_distribution(x, k, f"float64, k={k}")


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2.0**-7), *more(("float16", 2.0**-10))])
def test_narrow_dtypes(key, dtype, step):
    """Counts of the values of a narrow dtype pass a chi-square test; the other tests would reject repeated values.

    The bin of a value holds all angles that round to it, between the midpoints to its neighbours.
    """
    k = 2.0
    x = np.asarray(sample_von_mises(key, 0.0, k, (DRAWS,), dtype)).astype(np.float64)
    # Between 1 and 2 the spacing is `step`. It halves at 1 and again at 1/2, and doubles at 2. Two bins hold the rest.
    values = np.unique(np.abs(x[(np.abs(x) >= 0.5) & (np.abs(x) < 3)]))
    assert np.isin(values * (2 / step), np.arange(2 * 3 / step)).all()
    edges = np.r_[values[0], (values[1:] + values[:-1]) / 2, values[-1]]
    edges[0] -= step / 8  # half the spacing below 1/2
    edges[-1] += step  # half the spacing above 2
    tails = reference.sf(np.r_[0.0, edges, np.pi], k)
    cells = np.digitize(np.abs(x), edges)
    counts = np.bincount(cells, minlength=len(edges) + 1)
    goodness_of_fit.assert_fits({"chi-square": goodness_of_fit.chi_square(counts, -2 * DRAWS * np.diff(tails))}, dtype)


# The tests must be able to fail: each of these defects occurs, or occurred, in a published sampler.


@functools.cache
def sound(k):
    """Return angles to be damaged, after asserting that they pass all tests."""
    x = np.asarray(sample_von_mises(random.key(5), 0.0, k, (DRAWS,)), np.float64)
    assert_distribution(x, k, f"k={k}")
    return x


def with_uniform_angles(x):
    x = x.copy()
    x[::10_000] = np.linspace(-3, 3, len(x[::10_000]))
    return x


def with_a_repeated_value(x):
    x = x.copy()
    x[::300] = x[0]
    return x


ALL = ("kolmogorov-smirnov", "anderson-darling", "moments")
DEFECTS = {
    # The standard error of the concentration is about 0.1% for so many angles.
    "concentration 2% off": (2.0, lambda x: 1.02 * x, ALL),
    "shift": (1e4, lambda x: x + 6e-5, ALL),
    # The 1254 distinct values of a float32 arccos, which other JAX samplers use.
    "quantised": (1e5, lambda x: np.arccos(np.float32(np.cos(x))) * np.sign(x), ("halving bins",)),
    # Tails that end at probability 2^-15, as with 15-bit uniform numbers: 128 angles are missing.
    "missing tail": (2.0, lambda x: np.where(exact_tail(2.0)(x) > 2.0**-15, x, 0.1), ("halving bins",)),
    # One uniform angle in 10,000, as from a rejection loop that gave up.
    "heavy tail": (1e3, with_uniform_angles, ("halving bins",)),
    "repeated value": (2.0, with_a_repeated_value, ("equal bins",)),
}


@pytest.mark.parametrize("name", ["concentration 2% off", *more(*list(DEFECTS)[1:])])
def test_rejects(name):
    """The tests named in the table reject damaged angles."""
    k, damage, by = DEFECTS[name]
    p_values = goodness_of_fit.battery(damage(sound(k)), k, exact_tail(k))
    assert all(p_values[test] <= goodness_of_fit.P_VALUE for test in by), p_values


@pytest.mark.parametrize("damage", ["copied", "mirrored", "as far out"])
def test_detects_dependence(damage):
    """Dependence of one angle in 50 on its neighbour is detected: a copy, a mirror image, or a random sign."""
    u = np.random.default_rng(0).uniform(size=2**18)
    source = u[::50][: len(u[1::50])]
    sign = np.random.default_rng(1).integers(0, 2, len(source))
    mirrored = {"copied": 0, "mirrored": 1, "as far out": sign}[damage]
    assert goodness_of_fit.independent(u[1:], u[:-1]) > goodness_of_fit.P_VALUE
    u[1::50] = np.where(mirrored, 1 - source, source)
    assert goodness_of_fit.independent(u[1:], u[:-1]) <= goodness_of_fit.P_VALUE


# The components of the tests above.


@pytest.mark.parametrize("k", [0.0, 0.3, 17.0, 1e6])
def test_exact_tail(k):
    """The relative error is below 1e-10, apart from the effect of rounding the angle, which is larger near pi."""
    x = reference.quantile(np.r_[np.geomspace(1e-10, 0.4999, 2000), 0.5 - np.geomspace(1e-9, 1e-4, 500)], k)
    tail = reference.sf(x, k)
    rounding = np.spacing(x) * reference.pdf(x, k)
    assert (np.abs(exact_tail(k)(x) - tail) < 1e-10 * tail + 4 * rounding).all()


def test_anderson_darling_tail():
    """At the 5% and 1% critical values of Marsaglia and Marsaglia (2004), the relative error is below 1%."""
    assert goodness_of_fit.anderson_darling_tail(2.492) == pytest.approx(0.05, rel=0.01)
    assert goodness_of_fit.anderson_darling_tail(3.878) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("k", [0.0, 0.4, 9.0, 400.0, 1e4])
def test_mean_cosine(k):
    """The quadrature agrees with ratios of Bessel functions at integer frequencies."""
    for n in (1, 2, round(4 * max(1, k**0.5)), round(8 * max(1, k**0.5))):
        assert goodness_of_fit.mean_cosine(n, k) == pytest.approx(special.ive(n, k) / special.ive(0, k), abs=1e-13)


@pytest.mark.more
def test_p_values_are_uniform():
    """For exact samples, between 0.5% and 10% of each test's p-values are below 5%, in 400 repetitions."""
    rng = np.random.default_rng(2)
    exact, repetitions = exact_tail(2.0), 400
    p_values = []
    for _ in range(repetitions):
        u = rng.uniform(size=2**13)
        x = np.where(u < 0.5, -1, 1) * np.interp(np.minimum(u, 1 - u), exact.t[::-1], exact.x[::-1])
        p_values.append([*goodness_of_fit.battery(x, 2.0, exact).values(), goodness_of_fit.independent(u[1:], u[:-1])])
    below = np.mean(np.array(p_values) < 0.05, axis=0)
    # The first bound allows four standard deviations; tests with a Bonferroni correction have rates below 5 %.
    assert (below < 0.05 + 4 * np.sqrt(0.05 * 0.95 / repetitions)).all(), below
    assert (below > 0.005).all(), below

"""Compare tests and intervals with published formulas, other libraries, exact distributions and simulated samples."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from docs.examples.angle_statistics import DEGREES
from jax_von_mises import CircularDistribution, TruncatedVonMises, VonMises, VonMisesFisher, fit, statistics

TURTLES = np.deg2rad(DEGREES)
SOME = TURTLES[::4]
OTHER = np.mod(SOME + np.sin(3 * SOME) + 0.8 * np.cos(7 * SOME), 2 * np.pi)
TESTS = {
    "rayleigh_test": statistics.rayleigh_test,
    "watson_test": statistics.watson_test,
    "kuiper_test": statistics.kuiper_test,
    "circular_correlation": lambda x, **given: statistics.circular_correlation(x, jnp.sin(3 * x) + x, **given),
    "confidence_interval": statistics.confidence_interval,
}
WEIGHTED = [name for name in TESTS if name not in ("watson_test", "kuiper_test")]


def random_angles(shape, k=0.0, seed=0):
    """Return angles from NumPy's sampler, which needs no compilation."""
    return np.random.default_rng(seed).vonmises(0.0, k, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_libraries(dtype):
    """The statistics are those of pycircstat2 0.1.15, whose V is Stephens' V*, as is the p value of the correlation."""
    with jax.enable_x64(dtype == "float64"):
        turtles, some, other = (x.astype(dtype) for x in (TURTLES, SOME, OTHER))
        near = functools.partial(pytest.approx, rel=1e-5 if dtype == "float32" else 1e-13)
        assert float(statistics.rayleigh_test(turtles).statistic) == near(18.779642333654564)
        assert float(statistics.rayleigh_test(some).statistic) == near(4.346326967197622)
        assert float(statistics.watson_test(turtles).statistic) == near(1.1924247685185188)
        scale = np.sqrt(76) + 0.155 + 0.24 / np.sqrt(76)
        assert float(statistics.kuiper_test(turtles).statistic) * scale == near(3.901050097936718)
        r, p = statistics.circular_correlation(some, other)
        assert float(r) == near(0.2513367542915835)
        assert float(p) == near(0.26609349765284707)
        assert r.dtype == p.dtype == dtype


def test_interval_of_a_large_sample():
    """For many angles, it is the interval of Fisher's dispersion: pycircstat2 has 0.8875 to 1.3525 for the turtles."""
    low, high = statistics.confidence_interval(np.float32(TURTLES), weights=np.full(76, 100.0, np.float32))
    half = (1.352491581231619 - 0.8875108951232304) / 2
    assert float(high - low) / 2 == pytest.approx(half / 10, rel=2e-2)
    assert float(low + high) / 2 == pytest.approx(1.1200012381774247, abs=2e-3)


@pytest.mark.parametrize(("n", "bound"), [(5, 0.05), (10, 0.03), (20, 0.015)])
def test_rayleigh_is_near_the_exact_distribution(n, bound):
    """The exact p value is Barakat's series (Optica Acta 21, 1974) in Bessel functions on the disc of radius n."""
    with mp.workdps(30):
        zeros = [mp.besseljzero(0, k) for k in range(1, 25 if n > 5 else 160)]
        terms = [(j, mp.besselj(0, j / n) ** n / (j * mp.besselj(1, j) ** 2)) for j in zeros]
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            exact = 1 - 2 * share * mp.fsum(factor * mp.besselj(1, j * share) for j, factor in terms)
            pairs = np.arccos(share) * np.array([1.0, -1.0])  # two directions with this mean resultant length
            p = statistics.rayleigh_test(pairs, weights=np.full(2, n / 2)).pvalue
            if exact > 1e-6:
                assert float(p) == pytest.approx(float(exact), rel=bound)


def test_published_critical_values():
    """The points of 10%, 5% and 1% of U* are 0.152, 0.187 and 0.267, and of V* 1.620, 1.747 and 2.001 (Stephens)."""
    levels = [0.1, 0.05, 0.01]
    exponents = jnp.asarray(2 * np.pi**2 * np.array([0.152, 0.187, 0.267]))
    p = statistics._series(exponents, 9, lambda k, x: (-1.0) ** (k - 1))
    np.testing.assert_allclose(p, levels, rtol=0.03)
    exponents = jnp.asarray(2 * np.square([1.620, 1.747, 2.001]))
    np.testing.assert_allclose(statistics._series(exponents, 9, lambda k, x: 2 * k * k * x - 1), levels, rtol=0.01)


@pytest.mark.parametrize("name", [name for name in TESTS if name != "confidence_interval"])
def test_levels_under_the_null(name):
    """In 20,000 samples of 50 uniform or independent angles, where the share of p values has a deviation of 3%."""
    x = random_angles((50, 20_000))
    if name == "circular_correlation":
        p = statistics.circular_correlation(random_angles(x.shape, 1.0, 1), random_angles(x.shape, 2.0, 2), axis=0)
    else:
        p = TESTS[name](x, axis=0)
    for level in (0.1, 0.05):
        assert np.mean(p.pvalue <= level) == pytest.approx(level, rel=0.1)


@pytest.mark.parametrize("name", ["watson_test", "kuiper_test"])
def test_known_distributions(name):
    """A batch of distributions belongs to the data sets; angles may be full turns away."""
    models = VonMises(np.float32([0.5, 3.0]), np.float32([1.0, 20.0]))
    x = models.sample(jax.random.key(0), (400,))
    found = TESTS[name](x + 2 * np.pi * np.arange(-3, 1)[:, None].repeat(100, 0), models, axis=0)
    assert (found.pvalue > 0.01).all()
    assert (TESTS[name](x, VonMises(1.0, 1.0), axis=0).pvalue < 1e-3).all()
    one = stats.vonmises(20.0, loc=3.0)  # any object with `cdf`
    assert float(TESTS[name](x[:, 1], one).statistic) == pytest.approx(float(found.statistic[1]), rel=1e-3)


def test_goodness_of_fit():
    """P values are uniform if the model is right, where those of `watson_test` are too large; small if it is wrong."""
    x = np.array(VonMises(0.5, 2.0).sample(jax.random.key(0), (30, 300)))
    x[:, -1] = np.linspace(-3, 3, 30) ** 3 / 9
    x[0, -2] = np.nan
    found = statistics.goodness_of_fit(jax.random.key(1), x, VonMises.fit, 99, axis=0)
    assert stats.kstest(found.pvalue[:-2], "uniform").pvalue > 0.01
    assert np.isnan(found.pvalue[-2])
    assert found.pvalue[-1] == np.float32(0.01)
    known = statistics.watson_test(x, VonMises.fit(x, axis=0), axis=0)
    np.testing.assert_allclose(found.statistic, known.statistic, rtol=1e-4)
    assert stats.kstest(known.pvalue[:-2], "uniform").pvalue < 1e-3


def any_density(x, loc, shape):
    return jnp.exp(shape) * jnp.cos(x - loc)


@pytest.mark.more
def test_fits_of_other_kinds(key):
    """Fits with further arguments go through `partial`, and those without `axis` get one data set at a time."""
    x = random_angles(60)
    expected = statistics.goodness_of_fit(key, x, VonMises, 99)
    fit = functools.partial(CircularDistribution.fit, any_density, start=(0.0, 0.0), nodes=512)
    found = statistics.goodness_of_fit(key, x, fit, 99)
    assert float(found.statistic) == pytest.approx(float(expected.statistic), rel=1e-3)
    assert float(found.pvalue) == pytest.approx(float(expected.pvalue), abs=0.2)
    with pytest.raises(ValueError, match=r"goodness_of_fit: fit=.* has no argument `axis`, so samples must be one"):
        statistics.goodness_of_fit(key, np.ones((3, 2), np.float32), fit, axis=0)
    for kind, missing in ((TruncatedVonMises, "`low` and `high`"), (CircularDistribution, "`log_density` and `start`")):
        with pytest.raises(TypeError, match=f"goodness_of_fit: fit=.* also needs {missing}. Give a functools.partial"):
            statistics.goodness_of_fit(key, x, kind)
    with pytest.raises(TypeError, match=r"goodness_of_fit: fit=.*must be a class of distributions of one angle"):
        statistics.goodness_of_fit(key, x, VonMisesFisher)


def test_coverage_of_the_interval():
    """It is near the level, also of a distribution without symmetry."""
    rng = np.random.default_rng(0)
    x = rng.exponential(1.0, (10, 20_000)).astype(np.float32)
    low, high = statistics.confidence_interval(x, axis=0)  # the mean direction is that of 1 / (1 - i), pi / 4
    assert np.mean((np.pi / 4 - low) % (2 * np.pi) <= high - low) == pytest.approx(0.95, abs=0.006)


def test_ends_of_the_interval():
    """They do not wrap; without a direction they are the full circle; for equal angles they are the angle."""
    x = random_angles(100, 5.0)
    low, high = statistics.confidence_interval(x)
    turned = statistics.confidence_interval(x + np.float32(np.pi - 0.01))
    assert turned.low < np.pi < turned.high + 2 * np.pi
    assert turned.high - turned.low == pytest.approx(float(high - low), rel=1e-4)
    wide = statistics.confidence_interval([0.0, 0.3, 0.2])
    np.testing.assert_allclose(np.subtract(wide, fit(np.array([0.0, 0.3, 0.2])).loc), [-np.pi, np.pi], rtol=1e-5)
    np.testing.assert_array_equal(statistics.confidence_interval(np.ones(9, np.float32)), [1.0, 1.0])
    assert statistics.confidence_interval(x, 0.5).high < high


@pytest.mark.parametrize("name", TESTS)
def test_batches_jit_and_vmap(name):
    """An axis of data sets, `vmap` and `jit` give the results of a loop."""
    x = random_angles((3, 40), 0.5)
    expected = np.transpose([TESTS[name](each) for each in x])
    for found in (TESTS[name](x.T, axis=0), jax.jit(jax.vmap(TESTS[name]))(x)):
        np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_count_observations(name):
    """A weight of 2 is an angle observed twice; one of 0 hides a missing angle."""
    x = random_angles(30, 0.5)
    for missing in (np.nan, np.inf, 1e30):
        found = TESTS[name](np.r_[x, np.float32(missing)], weights=np.r_[np.full(30, 2.0), 0.0].astype(np.float32))
        np.testing.assert_allclose(found, TESTS[name](np.tile(x, 2)), rtol=2e-5)


@pytest.mark.parametrize("name", TESTS)
def test_missing_angles_give_nan(name):
    """So do no angles, and angles that are too large for a direction."""
    for x in (np.float32([]), np.float32([1.0, np.nan, 2.0]), np.float32([1.0, 2.0, 1e30])):
        assert np.isnan(TESTS[name](x)).all()


def test_extreme_samples():
    """Equal angles are not uniform at any n; angles in equal steps are, to the last digit."""
    for name in ("rayleigh_test", "watson_test", "kuiper_test"):
        assert float(TESTS[name](np.float32([0.3])).pvalue) == 1
    assert float(statistics.rayleigh_test(np.ones(50, np.float32)).pvalue) < 1e-30
    even = np.float32(np.arange(40) * (2 * np.pi / 40))
    for name in ("rayleigh_test", "watson_test", "kuiper_test"):
        assert float(TESTS[name](even).pvalue) == pytest.approx(1, abs=1e-5)
    assert np.isnan(statistics.circular_correlation(np.ones(9, np.float32), random_angles(9))).all()


def test_distributions_that_do_not_fit_the_samples():
    """The message names the argument and both shapes, or what `fit` must be."""
    models = VonMises(0.0, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"watson_test: distribution has the batch shape \(4,\)"):
        statistics.watson_test(np.ones(4, np.float32), models)
    with pytest.raises(TypeError, match=r"kuiper_test: distribution=.*must be a distribution of one angle"):
        statistics.kuiper_test(np.ones(4, np.float32), VonMises)

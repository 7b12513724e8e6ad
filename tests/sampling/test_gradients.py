"""Compare derivatives of the angles with the float64 reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from jax_von_mises import sample_von_mises
from tests import reference
from tests.marks import more

KEY = random.key(3)
CONCENTRATIONS = (1e-6, 1e-3, 0.1, 1.0, 4.99, 5.01, 16.9, 17.1, 100.0, 1e4, 1e6, 1e8)
METHODS = ("direct", "table")


def angles_and_slopes(k, method, dtype=jnp.float32, size=20000):
    draw = functools.partial(sample_von_mises, KEY, 0.0, shape=(size,), dtype=dtype, method=method)
    x, slope = jax.jvp(draw, (dtype(k),), (dtype(1),))
    return np.asarray(x, np.float64), np.asarray(slope, np.float64)


@pytest.mark.parametrize("k", CONCENTRATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_slope_is_that_of_the_distribution(k, method):
    """Every angle's derivative agrees with the reference derivative at that angle."""
    x, slope = angles_and_slopes(k, method)
    exact = np.sign(x) * reference.dquantile_dk(np.abs(x), float(np.float32(k)))
    # The slope is the integral of a function that changes sign, so its error is at least the rounding of its parts,
    # two ulp of 1 for wide distributions.
    np.testing.assert_allclose(slope, exact, rtol=5e-6, atol=2.4e-7 / max(k, 1.0))


@pytest.mark.more
@pytest.mark.parametrize("k", [1e-3, 2.0, 29.0, 31.0, 1e6])
@pytest.mark.parametrize("method", METHODS)
def test_float64(k, method):
    with jax.enable_x64(True):
        x, slope = angles_and_slopes(k, method, jnp.float64, 4000)
    exact = np.sign(x) * reference.dquantile_dk(np.abs(x), k)
    np.testing.assert_allclose(slope, exact, rtol=2e-11, atol=1e-15)


@pytest.mark.parametrize(("transform", "method"), more((jax.jacfwd, "table"), (jax.jacrev, "direct")))
def test_limits(transform, method):
    """Slopes are -sin(x) at k = 0, -x / (2 k) for huge k, 0 at infinity, and NaN for NaN."""

    def draw(k):
        return sample_von_mises(KEY, 0.0, k, (500,), method=method)

    slope = jax.jit(transform(draw))
    x = np.asarray(draw(0.0), np.float64)
    # To first order in k, F = 1/2 + (x + k sin x) / (2 pi), so dx/dk = -sin x at k = 0.
    np.testing.assert_allclose(slope(0.0), -np.sin(x), rtol=2e-6, atol=3e-7)
    assert (np.asarray(slope(jnp.inf)) == 0).all()
    huge = np.asarray(slope(1e20), np.float64)
    np.testing.assert_allclose(huge, -0.5 * np.asarray(draw(1e20), np.float64) / 1e20, rtol=1e-6)
    assert np.isnan(slope(jnp.nan)).all()


@pytest.mark.parametrize("method", ["direct", *more("table")])
def test_loc_has_slope_one(method):
    """The derivative with respect to `loc` is 1 on either side of the cut at +-pi."""
    slope = jax.jit(jax.jacfwd(lambda m: sample_von_mises(KEY, m, 0.5, (1000,), method=method)))
    for loc in (0.0, 3.1, -50.0):
        assert (np.asarray(slope(loc)) == 1).all()


def test_an_invalid_lane_affects_no_other():
    k = np.float32([1.0, np.nan, -2.0, 4.0])
    slope = jax.jit(jax.grad(lambda k: jnp.sum(sample_von_mises(KEY, 0.0, k))))(k)
    assert np.isfinite(slope).tolist() == [True, False, False, True]


@pytest.mark.more
def test_second_derivative():
    """The second derivative agrees with central differences of the reference's first derivative."""
    draw = functools.partial(sample_von_mises, KEY, 0.0, shape=(200,))

    def first(k):
        return jax.jvp(draw, (k,), (jnp.ones_like(k),))[1]

    second = jax.jit(lambda k: jax.jvp(first, (k,), (jnp.ones_like(k),))[1])
    for k in (0.5, 3.0, 50.0):
        x = np.asarray(draw(k), np.float64)
        step = 1e-4 * k
        t = reference.sf(np.abs(x), k)
        slopes = [reference.dquantile_dk(reference.quantile(t, k + s), k + s) for s in (step, -step)]
        difference = np.sign(x) * (slopes[0] - slopes[1]) / (2 * step)
        np.testing.assert_allclose(second(jnp.float32(k)), difference, rtol=1e-4, atol=2e-6 / k)


def test_expectation():
    """The derivative of the mean of 1 - cos x over draws is -A'(k), with a relative error of at most 2%."""
    slope = jax.jit(jax.grad(objective))
    for k in (0.3, 5.0, 1e6):
        step = 1e-4 * k
        exact = (reference.ratio_complement(k + step) - reference.ratio_complement(k - step)) / (2 * step)
        assert float(slope(k)) == pytest.approx(float(exact), rel=0.02)


def objective(k):
    # Use 2 sin^2(x / 2), since 1 - cos x loses almost all digits of float32 at k = 1e6.
    return jnp.mean(2 * jnp.sin(sample_von_mises(KEY, 0.0, k, (2**18,)) / 2) ** 2)

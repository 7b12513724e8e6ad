"""Test the Bessel functions of the distribution, the inverse of their ratio, and derivatives at all concentrations."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jax_von_mises.von_mises import bessel
from tests import reference
from tests.marks import more

GRID = np.r_[1e-30, np.geomspace(1e-8, 1e-2, 40), np.geomspace(1e-2, 100, 400), np.geomspace(100, 1e30, 100)]
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
DTYPES = ("float32", "float64")
# Bounds in ulp for each function, a few ulp above the largest measured error.
ULP = {"log_i0": 4, "ratio": 3, "one_minus_ratio": 3, "slope": 6, "inverse_ratio": 8}


def exact(name, k):
    """Return values from the float64 reference, or from mpmath where cancellation makes float64 inaccurate."""
    if name == "log_i0":
        # At small k the logarithm of the norm loses the digits of log I0, which is k^2 / 4 - k^4 / 64 + ...
        mps = np.array([float(reference.mp_log_i0(float(v))) for v in k[k < 30]])
        return np.r_[mps, k[k >= 30] + np.log(reference.norm(k[k >= 30]) / (2 * np.pi))]
    functions = {
        "ratio": reference.ratio,
        "one_minus_ratio": reference.ratio_complement,
        "slope": reference.ratio_slope,
    }
    return functions[name](k)


LANES = 601


@functools.cache
def compiled(name, derivatives=0):
    """Return a function of `bessel`, or its derivative of this order, compiled as one program, as in the package."""
    function = getattr(bessel, name)
    for _ in range(derivatives):
        function = jax.grad(function)
    return jax.jit(jax.vmap(function))


def call(name, k, dtype, derivatives=0):
    """Return values in float64, from an array of LANES elements, so that all tests of a dtype share a program."""
    k = np.atleast_1d(np.asarray(k, dtype))
    assert len(k) <= LANES
    return np.asarray(compiled(name, derivatives)(np.resize(k, LANES)), np.float64)[: len(k)]


def grid(dtype):
    return np.unique(GRID.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["log_i0", "ratio", "one_minus_ratio", "slope"])
def test_values(name, dtype):
    k = grid(dtype)
    with jax.enable_x64(dtype == "float64"):
        value = call(name, k, dtype)
    expected = exact(name, k.astype(np.float64))
    normal = expected > np.finfo(dtype).tiny
    error = np.abs(value / expected - 1)[normal]
    # Between 1e-15 and 30 the reference's difference of two Bessel functions has a relative error of about 1e-14.
    allowed = ULP[name] * EPS[dtype] + (3e-14 if name != "log_i0" and dtype == "float64" else 0)
    assert error.max() <= allowed, f"{error.max() / EPS[dtype]:.2f} ulp at k={k[normal][error.argmax()]:g}"
    assert (np.abs(value[~normal]) < 2 * np.finfo(dtype).tiny).all()


@pytest.mark.parametrize("name", ["log_i0", "ratio", "one_minus_ratio", "slope"])
def test_float64_against_mpmath(name):
    """Errors in float64 are at most a few ulp; the float64 reference is not accurate enough to show this."""
    points = [1e-6, 0.2, 0.99, 1.01, 4.9, 5.1, 7.9, 8.1, 29.0, 1e3, 1e7]
    exact = {
        "log_i0": reference.mp_log_i0,
        "ratio": reference.mp_ratio,
        "one_minus_ratio": lambda k: 1 - reference.mp_ratio(k),
        "slope": reference.mp_ratio_slope,
    }[name]
    with jax.enable_x64(True), mp.workdps(60):
        for k, value in zip(points, call(name, points, "float64"), strict=True):
            error = abs(float(mp.mpf(float(value)) / exact(k) - 1))
            assert error <= (ULP[name] + 2) * EPS["float64"], f"k={k}: {error / EPS['float64']:.1f} ulp"


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends(dtype):
    with jax.enable_x64(dtype == "float64"):
        for name, ends in {
            "log_i0": (0, np.inf),
            "ratio": (0, 1),
            "one_minus_ratio": (1, 0),
            "slope": (0.5, 0),
        }.items():
            value = call(name, [0.0, np.inf, np.nan], dtype)
            np.testing.assert_allclose(value[:2], ends, rtol=EPS[dtype], err_msg=name)
            assert np.isnan(value[2]), name


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_inverse(dtype):
    """The inverse recovers the concentration from A and 1 - A, each rounded once."""
    k = grid(dtype).astype(np.float64)
    r, c = reference.ratio(k), reference.ratio_complement(k)
    with jax.enable_x64(dtype == "float64"):
        inverse = np.asarray(jax.jit(bessel.inverse_ratio)(r.astype(dtype), c.astype(dtype)), np.float64)
    # Rounding the smaller of A and 1 - A changes the concentration by this fraction.
    slope = reference.ratio_slope(k)
    rounding = EPS[dtype] / 2 * np.where(r < 0.5, r, c) / (slope * k)
    allowed = ULP["inverse_ratio"] * EPS[dtype] + 2 * rounding + (1e-13 if dtype == "float64" else 0)
    error = np.abs(inverse / k - 1)
    worst = np.argmax(error / allowed)
    assert (error <= allowed).all(), f"{error[worst]:.2e} at k={k[worst]:g}, allowed {allowed[worst]:.2e}"


def test_inverse_ends():
    inverse = bessel.inverse_ratio(jnp.array([0.0, 1.0, jnp.nan]), jnp.array([1.0, 0.0, jnp.nan]))
    np.testing.assert_array_equal(inverse, [0, np.inf, np.nan])


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_derivatives(dtype):
    """Derivatives of log I0 are A and A', and those of A are A' and, up to the error of a difference quotient, A''."""
    k = np.array([0.0, 1e-3, 0.7, 4.0, 6.0, 50.0, 1e4], dtype).astype(float)
    a, slope = reference.ratio(k), reference.ratio_slope(k)
    with jax.enable_x64(dtype == "float64"):
        for name, order, exact in (
            ("log_i0", 1, a),
            ("ratio", 1, slope),
            ("one_minus_ratio", 1, -slope),
            ("log_i0", 2, slope),
        ):
            value = call(name, k, dtype, order)
            np.testing.assert_allclose(value, exact, rtol=8 * EPS[dtype], atol=1e-30, err_msg=name)
        third = call("ratio", k, dtype, 2)
    step = 1e-4 * (1 + k)
    difference = (reference.ratio_slope(k + step) - reference.ratio_slope(np.abs(k - step))) / (step + step)
    assert (np.abs(third - difference) <= np.maximum(1e-4 * np.abs(difference), 1e-6 / (1 + k) ** 3)).all()


@jax.jit
@jax.vmap
def inverse_slopes(c):
    """Return the first and second derivatives of the concentration with respect to 1 - A."""
    slope = jax.grad(lambda c: bessel.inverse_ratio(1 - c, c))
    return slope(c), jax.grad(slope)(c)


def test_derivative_of_the_inverse():
    with jax.enable_x64(True):
        k = np.array([0.0, 0.3, 3.0, 300.0])
        first, second = inverse_slopes(reference.ratio_complement(k))
        np.testing.assert_allclose(first, -1 / reference.ratio_slope(k), rtol=1e-9)
        assert np.isfinite(second).all()

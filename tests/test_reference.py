"""Compare the float64 reference of the tests with mpmath."""

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from tests import reference

CONCENTRATIONS = (1e-6, 2.0, 40.0, 1e12)
TAILS = np.array([0.5 - 2.0**-30, 1e-2, 2.0**-60])
EPS = np.finfo(float).eps
# A mass is a sum of 40 terms times a density. The exponent of the density, up to 42, carries the rounding error of the
# sine.
MASS = 40 * EPS
# The cancelling factor cos(theta) - A(k) adds to this error.
SLOPE = 200 * EPS


def relative(value, exact):
    return abs(float(mp.mpf(float(value)) / exact - 1))


@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_against_mpmath(k):
    """The tail, centre and quantile, and the quantile's derivative, agree with mpmath, down to tails of 2^-60."""
    x = reference.quantile(TAILS, k)
    tail, centre, slope = reference.sf(x, k), reference.central(x, k), reference.dquantile_dk(x, k)
    for j, t in enumerate(TAILS):
        exact = reference.mp_tail(x[j], k)
        assert relative(tail[j], exact) < MASS
        assert relative(centre[j], mp.mpf(1) / 2 - exact) < MASS
        assert relative(reference.pdf(x[j], k), reference.mp_pdf(x[j], k)) < MASS
        assert relative(x[j], reference.mp_quantile(t, k, x[j])) < MASS
        assert relative(slope[j], reference.mp_dquantile_dk(x[j], k)) < SLOPE
        assert abs(reference.log_pdf(x[j], k) - float(mp.log(reference.mp_pdf(x[j], k)))) < MASS
        assert abs(reference.log_sf(x[j], k) - float(mp.log(exact))) < MASS


def test_quantile_inverts_tail():
    """On a dense grid the quantile inverts the tail up to the rounding of the angle; no iteration stops early."""
    k, t = np.meshgrid(np.r_[0.0, 1e-300, np.geomspace(1e-3, 1e5, 60)], 2.0 ** -np.linspace(1, 60, 150))
    x = reference.quantile(t, k)
    rounding = np.spacing(x) * reference.pdf(x, k) / t
    assert (np.abs(reference.sf(x, k) / t - 1) < MASS + 2 * rounding).all()


@pytest.mark.parametrize("k", [1e-6, 0.3, 29.9, 30.1, 1e5])
def test_bessel(k):
    with mp.workdps(40):
        i0, i1 = mp.besseli(0, k), mp.besseli(1, k)
        assert relative(reference.norm(k), reference.mp_norm(k)) < 8 * EPS
        assert relative(reference.log_norm(k), mp.log(2 * mp.pi * i0)) < 8 * EPS
        assert relative(reference.ratio(k), i1 / i0) < 8 * EPS
        assert relative(reference.ratio_complement(k), 1 - i1 / i0) < SLOPE
        assert relative(reference.ratio_slope(k), reference.mp_ratio_slope(k)) < SLOPE


@pytest.mark.parametrize("k", [0.3, 2.0, 40.0, 1e6])
@pytest.mark.parametrize("t", [0.45, 0.1, 1e-6])
def test_derivative_of_quantile(k, t):
    """The derivative agrees with central differences, which are independent of the integral."""
    x = reference.quantile(t, k)
    step = 1e-4 * k
    difference = (reference.quantile(t, k + step) - reference.quantile(t, k - step)) / (2 * step)
    assert reference.dquantile_dk(x, k) == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize("k", [0.0, 1e-3, 1.0, 7.0, 1e3, 1e30])
def test_quantile_next_to_zero(k):
    """Next to 0 the angle is c / density(0); t alone cannot resolve c = 1/2 - t."""
    c = np.array([1e-9, 1e-15, 1e-30])
    np.testing.assert_allclose(reference.quantile(0.5 - c, k, c), c * reference.norm(k), rtol=8 * EPS)
    assert reference.quantile(0.5, k) == 0


@pytest.mark.parametrize("k", [0.0, 1e-3, 1.0, 7.0])
def test_next_to_pi(k):
    """Next to pi the tail is the density times the distance from exact pi, not from the nearest double."""
    x = np.pi - np.array([0.0, 2.0**-51, 1e-13])
    with mp.workdps(40):
        width = np.array([float(mp.pi - mp.mpf(float(v))) for v in x])
    np.testing.assert_allclose(reference.sf(x, k), width * reference.pdf(np.pi, k), rtol=8 * EPS)


def test_normal_limit():
    """At k = 1e30, x sqrt(k) has a standard normal distribution to 30 digits."""
    z = -special.ndtri(TAILS)
    np.testing.assert_allclose(reference.quantile(TAILS, 1e30) * 1e15, z, rtol=1e-13)
    np.testing.assert_allclose(reference.dquantile_dk(z * 1e-15, 1e30) * 1e45, -z / 2, rtol=1e-13)


def test_uniform_and_point_mass():
    x = np.linspace(0, np.pi, 9)
    np.testing.assert_allclose(reference.sf(x, 0.0), 0.5 - x / (2 * np.pi), rtol=8 * EPS, atol=EPS)
    np.testing.assert_allclose(reference.central(x, 0.0), x / (2 * np.pi), rtol=8 * EPS)
    assert (reference.quantile(TAILS, np.inf) == 0).all()
    np.testing.assert_array_equal(reference.sf(x, np.inf)[1:], 0)
    np.testing.assert_array_equal(reference.pdf(x, np.inf), np.where(x == 0, np.inf, 0))
    assert reference.log_norm(np.inf) == np.inf
    assert reference.ratio(np.inf) == 1
    assert reference.ratio_complement(np.inf) == 0
    assert reference.ratio_slope(np.inf) == pytest.approx(0, abs=1e-190)
    assert reference.ratio_slope(0.0) == pytest.approx(0.5, rel=8 * EPS)

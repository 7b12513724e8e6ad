"""Compare the numerics of the sphere with float64 quadrature and mpmath, in many dimensions and far in the tails."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jax_von_mises import VonMisesFisher
from jax_von_mises.sphere import fits, moments, radial, shipped
from tests import sphere_reference as reference
from tests.marks import more, slow
from tools import make_sphere_fits

DIMENSIONS = [5, *more(3, 10, 100), *slow(4, 6, 16, 32, 256, 1024)]
CONCENTRATIONS = np.concatenate([[0.0], np.geomspace(1e-4, 1e9, 23)])


def quantile(t, near, kappa, d):
    t, near, kappa = (jnp.asarray(x) for x in (t, near, kappa))
    return radial.closed_quantile_share(t, near, kappa) if d == 3 else radial.quantile_share(t, near, kappa, d)


@functools.cache
def program(function, d):
    return jax.jit(functools.partial(function, d=d))


def grid(dtype, count, smallest):
    t = np.exp(np.linspace(np.log(smallest), np.log(0.5), count))
    kappa, t, near = (x.ravel() for x in np.meshgrid(CONCENTRATIONS, t, [True, False], indexing="ij"))
    return t.astype(dtype), near, kappa.astype(dtype)


@pytest.mark.parametrize("d", [7, *more(4, 100)])
def test_reference(d):
    """Integration in mpmath, in another variable, confirms the reference of the other tests."""
    for k, small, near in ((0, 0.3, True), (2, 0.01, True), (2, 0.2, False), (30, 0.02, True), (9, 0.4, False)):
        exact = float(mp.log(reference.exact_tail(small, near, d, k)))
        assert float(reference.log_tail(small, near, True, d, k)) == pytest.approx(exact, rel=2e-12, abs=2e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_quantile(d):
    """The relative error of the tail is below 2e-6, or min(1 - w, 1 + w) / 2 is within 4 ulp (6 if d > 10)."""
    t, near, kappa = grid(np.float32, 30, 2.0**-33)
    signed = np.asarray(program(quantile, d)(t, near, kappa))
    small, own = np.abs(signed).astype(float), (signed >= 0) == near
    error = reference.log_tail(small, near, own, d, kappa) - np.log(t.astype(float))
    ulp = np.spacing(np.abs(signed)).astype(float)
    moved = reference.log_tail(small + 16 * ulp, near, own, d, kappa) - reference.log_tail(small, near, own, d, kappa)
    good = np.abs(np.expm1(error)) < 2e-6
    ulps = np.where(good, 0, np.abs(error) / np.maximum(np.abs(moved) / 16, 1e-300))
    assert ulps.max() < (6 if d > 10 else 4)


@pytest.mark.parametrize("d", [*more(3, 5), *slow(4, 10, 100)])
def test_quantile_in_float64(d):
    with jax.enable_x64(True):
        t, near, kappa = grid(np.float64, 12, 2.0**-65)
        signed = np.asarray(program(quantile, d)(t, near, kappa))
    small, own = np.abs(signed), (signed >= 0) == near
    error = np.abs(np.expm1(reference.log_tail(small, near, own, d, kappa) - np.log(t)))
    moved = np.abs(reference.log_tail(small * (1 + 1e-14), near, own, d, kappa) - np.log(t))
    assert (np.minimum(error, error / np.maximum(moved, 1e-300) * 1e-12) < 1e-12).all()


@pytest.mark.parametrize("d", more(4, 5, 100))
def test_table(d):
    """Look-ups between the table's nodes have a relative error below 2e-6 in the tail, or are within 6 ulp."""
    t = np.exp(np.random.default_rng(d).uniform(np.log(2.0**-33), np.log(0.5), 400)).astype(np.float32)
    near = np.arange(400) % 2 == 0

    def look_up(kappa):
        return radial.look_up_share(jnp.asarray(t), near, radial.odds_table(kappa, d), kappa, d)

    program_of_table = jax.jit(look_up)
    for k in (0.0, 0.3, 7.0, 1e3, 1e7):
        signed = np.asarray(program_of_table(np.float32(k)))
        small, own = np.abs(signed).astype(float), (signed >= 0) == near
        k = float(np.float32(k))
        error = np.abs(np.expm1(reference.log_tail(small, near, own, d, k) - np.log(t.astype(float))))
        ulp = np.spacing(np.abs(signed)).astype(float)
        allowed = 6 * np.abs(
            reference.log_tail(small + ulp, near, own, d, k) - reference.log_tail(small, near, own, d, k)
        )
        assert (error < np.maximum(2e-6, allowed)).all()


def slope(signed, near, kappa, d):
    return radial.slope_of_share(signed, near, kappa, d)


@pytest.mark.parametrize("d", [*more(3, 4, 5), *slow(16, 100, 1024)])
def test_slope(d):
    """The derivative of the quantile agrees with differences of the reference's tail."""
    t, near, kappa = grid(np.float32, 8, 2.0**-33)
    use = (kappa > 0.01) & (kappa < 1e8)
    t, near, kappa = t[use], near[use], kappa[use]
    signed = program(quantile, d)(t, near, kappa)
    slopes = np.asarray(program(slope, d)(signed, near, kappa), float)
    signed = np.asarray(signed, float)
    small, own = np.abs(signed), (signed >= 0) == near
    h = 1e-4 * kappa.astype(float)
    tails = [reference.log_tail(small, near, own, d, kappa + j * h) for j in (-2, -1, 1, 2)]
    by_kappa = (tails[0] - 8 * tails[1] + 8 * tails[2] - tails[3]) / (12 * h)
    step = 1e-4 * small
    tails = [reference.log_tail(small + j * step, near, own, d, kappa) for j in (-2, -1, 1, 2)]
    by_small = (tails[0] - 8 * tails[1] + 8 * tails[2] - tails[3]) / (12 * step)
    exact = -by_kappa / by_small * np.where(signed >= 0, 1, -1)
    np.testing.assert_allclose(slopes, exact, rtol=3e-5)


def all_moments(kappa, d):
    return (
        moments.mean_cosine(kappa, d),
        moments.versine_mean(kappa, d),
        moments.cosine_variance(kappa, d),
        moments.log_norm(kappa, d),
    )


@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        (5, "float32"),
        *more((2, "float64"), (3, "float32"), (4, "float64"), (100, "float32")),
        *slow((3, "float64"), (10, "float64"), (1024, "float32")),
    ],
)
def test_moments(d, dtype):
    bound = 1e-6 if dtype == "float32" else 1e-12
    if d == 2 and dtype == "float64":
        bound = 1e-10
    kappa = np.concatenate([[0.0], np.geomspace(1e-3, 1e9, 13)]).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        values = [np.asarray(x, float) for x in program(all_moments, d)(jnp.asarray(kappa))]
        back = program(moments_inverse, d)(jnp.asarray(values[0], dtype), jnp.asarray(values[1], dtype))
    for i, k in enumerate(kappa):
        a, variance, norm = reference.moments(d, k)
        assert abs(mp.mpf(values[0][i]) - a) <= bound * abs(a)
        assert abs(mp.mpf(values[1][i]) / (1 - a) - 1) < bound
        assert abs(mp.mpf(values[2][i]) / variance - 1) < bound
        assert abs(mp.mpf(values[3][i]) - norm) < bound * max(1, abs(norm))
    np.testing.assert_allclose(back, kappa, rtol=2e-6 if dtype == "float32" else 1e-11)


def moments_inverse(resultant, complement, d):
    return moments.inverse_mean_cosine(resultant, complement, d)


def fisher(kappa, d):
    return VonMisesFisher(np.eye(1, d, dtype=np.float32)[0], kappa)


@pytest.mark.parametrize("d", [3, *more(2), *slow(5, 100)])
def test_cosine_cdf_and_icdf(d):
    w = np.linspace(-1, 1, 41)[1:-1].astype(np.float32)
    w, kappa = (x.ravel() for x in np.meshgrid(w, np.float32([0.0, 0.3, 5.0, 40.0, 1e4])))
    probability = np.asarray(fisher(kappa, d).cosine_cdf(w), float)
    small = 0.5 * (1 - np.abs(w.astype(float)))
    near, far = (reference.log_tail(small, side, (w >= 0) == side, d, kappa.astype(float)) for side in (True, False))
    tiny = far < np.log(1.2e-38)
    exact = np.exp(far)
    assert (probability[tiny] == 0).all()
    tail = ~tiny & (far < near)
    ulp = np.spacing(small.astype(np.float32)).astype(float)
    moved = np.abs(np.expm1(reference.log_tail(small + 6 * ulp, False, w < 0, d, kappa.astype(float)) - far))
    assert (np.abs(probability / np.maximum(exact, 1e-300) - 1) < np.maximum(4e-6, moved))[tail].all()
    # At the mode, a relative rounding error of 2^-24 in (1 - w) / 2 shifts y by at most as much. It changes
    # probabilities by that times the density there.
    s = 2 * kappa.astype(float) / (d - 1 + np.hypot(d - 1, 2 * kappa.astype(float)))
    density = np.sqrt((d - 1) * (1 + s * s) / (2 * np.pi))
    assert (np.abs(probability - exact) < 1.8e-7 + 2.0**-24 * density).all()
    inside = (exact > 1e-30) & (exact < 0.9)
    back = np.asarray(fisher(kappa, d).cosine_icdf(probability), float)
    # The rounding of the float32 probability limits the accuracy of the cosine.
    slope = np.abs(np.gradient(exact.reshape(5, -1), w[:39].astype(float), axis=1).ravel())
    assert (np.abs(back - w)[inside] < 3e-7 + 1e-6 * (exact / np.maximum(slope, 1e-300))[inside]).all()
    np.testing.assert_array_equal(fisher(3.0, d).cosine_icdf(np.float32([0, 1])), [-1, 1])
    assert np.isnan(fisher(3.0, d).cosine_icdf(np.float32([-0.1, 1.1]))).all()


def test_fits_state_their_error():
    """The error of the fitted guess is below 0.08, so one step suffices, in dimensions from 4 to 1024."""
    for n in (3, 4, 9, 10, 40, 1023):
        for near in (True, False):
            assert fits.fitted_guess(n, fits.SMALLEST_WORD["float32"], near).error < 0.08


@pytest.mark.parametrize("n", [1, 3, *more(9)])
def test_shipped_fits(n):
    """The file agrees with new fits, which its coefficients replace."""
    for name, entry in make_sphere_fits.entries(n).items():
        assert make_sphere_fits.agrees(name, entry), name
    assert fits.fits(n, "float32").peak == shipped.find(fits.fits_name(n, "float32"))[0][0]


def test_shipped_dimensions():
    """Up to 16 dimensions, float32 programs and float64 draws use no fit made on this machine."""
    words, deep = fits.SMALLEST_WORD["float32"], fits.SMALLEST_QUANTILE["float32"]
    assert deep == fits.SMALLEST["float32"]
    for n in (3, 15):
        for near in (True, False):
            for smallest in (words, deep):
                assert shipped.find(fits.guess_name(n, smallest, near))
                for order in (0, 1):
                    assert shipped.find(fits.surface_name(n, "float32", smallest, near, order))
            assert shipped.find(fits.guess_name(n, fits.SMALLEST_WORD["float64"], near))
            assert shipped.find(fits.surface_name(n, "float64", fits.SMALLEST_WORD["float64"], near, 0))
        assert fits.corrects_closed_base(n, words, False) == fits.computed_guess(n, words, False).closed_base
    assert shipped.find(fits.fits_name(16, "float32")) is None


def test_fits_use_no_lapack(monkeypatch):
    """The last digits of LAPACK depend on the number of threads, and so would the draws."""

    def refuse(*_, **__):
        raise AssertionError("numpy.linalg was called")

    for name in ("inv", "solve", "lstsq", "svd", "qr", "cholesky"):
        monkeypatch.setattr(np.linalg, name, refuse)
    fits.computed_fits(19, "float32")
    for near in (True, False):
        fits.computed_surface(19, "float32", fits.SMALLEST_WORD["float32"], near)
        fits.computed_guess(19, fits.SMALLEST_WORD["float32"], near)


def test_series_of_the_arc_tangent():
    r = np.sqrt(np.linspace(1e-3, 0.3, 200))
    series = np.polynomial.polynomial.polyval(r * r, radial.ATANH["float32"])
    assert np.abs(1 + r * r * series - np.arctanh(r) / r).max() < 2e-8


@pytest.mark.parametrize("d", [2, 3])
def test_the_simplifier_finds_an_end(d, capfd):
    """XLA prints no error where a concentration is broadcast in float64."""
    with jax.enable_x64(True):
        jax.jit(lambda k: all_moments(jnp.broadcast_to(k, (10,)), d))(jnp.ones(()))
    assert "simplif" not in capfd.readouterr().err

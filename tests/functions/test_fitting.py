"""Maximum likelihood against its definition, SciPy, and the spread that the Fisher information promises."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax import random
from scipy import stats

from jax_von_mises import VonMises, fit, log_prob, sample_von_mises, standard_errors
from tests import reference

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


def exact_fit(x, w=None):
    """Direction and concentration in mpmath, from the angles as they are."""
    with mp.workdps(50):
        w = [mp.mpf(1)] * len(x) if w is None else [mp.mpf(float(v)) for v in w]
        x = [mp.mpf(float(v)) for v in x]
        c = sum(a * mp.cos(b) for a, b in zip(w, x, strict=True)) / sum(w)
        s = sum(a * mp.sin(b) for a, b in zip(w, x, strict=True)) / sum(w)
        r = mp.sqrt(c * c + s * s)
        near = 1 / (2 * (1 - r)) if r > 0.9 else 2 * r
        k = mp.findroot(lambda k: mp.besseli(1, k) / mp.besseli(0, k) - r, near) if near < 1e4 else inverse(1 - r)
        return float(mp.atan2(s, c)), float(k)


def inverse(c):
    """From the asymptotic 1 - A = 1/2k + 1/8k^2 + 1/8k^3, by two fixed-point steps; to 1e-12 from k = 1e4."""
    k = 1 / (2 * c)
    for _ in range(6):
        k = (1 / mp.mpf(2) + 1 / (8 * k) + 1 / (8 * k * k) + 25 / (128 * k**3)) / c
    return k


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("k", [0.05, 0.7, 3.0, 7.0, 40.0, 1e3, 1e6, 1e10])
def test_exact(k, dtype):
    """On angles about several directions, at the cut too. Near 0 the direction alone is what little data allow."""
    with jax.enable_x64(dtype == "float64"):
        for i, loc in enumerate((0.0, 3.1, -2.0)):
            x = np.asarray(sample_von_mises(random.key(i), loc, k, (300,), dtype))
            direction, concentration = exact_fit(x)
            found = fit(x)
            assert found.concentration.dtype == dtype
            # A sum of 300 terms, and what an ulp of the mean length does to the concentration.
            a, c = float(reference.ratio(concentration)), float(reference.ratio_complement(concentration))
            condition = min(a, c) / (concentration * float(reference.ratio_slope(concentration)))
            assert float(found.concentration) == pytest.approx(concentration, rel=60 * EPS[dtype] * (1 + condition))
            spread = 1 / np.sqrt(concentration * a)
            step = 60 * EPS[dtype] * max(spread, 0.1) + 4 * EPS[dtype]
            assert abs(np.angle(np.exp(1j * (float(found.loc) - direction)))) <= step


def test_an_outlier_among_the_first():
    """The first angles serve as origin; one far from all others must not cost digits."""
    x = np.r_[3.0, 1e-3 * np.random.default_rng(0).normal(size=999)].astype(np.float32)
    direction, concentration = exact_fit(x)
    found = fit(x)
    assert float(found.concentration) == pytest.approx(concentration, rel=2e-5)
    assert float(found.loc) == pytest.approx(direction, abs=1e-7)


def test_many_angles():
    """Rounding does not grow with their number."""
    x = sample_von_mises(random.key(0), 1.0, 2.0, (3_000_001,))
    exact = np.asarray(x, np.float64)
    c, s = np.cos(exact).mean(), np.sin(exact).mean()
    found = fit(x)
    assert float(found.loc) == pytest.approx(np.arctan2(s, c), abs=1e-6)
    assert float(reference.ratio(float(found.concentration))) == pytest.approx(np.hypot(s, c), rel=2e-6)


def test_against_scipy(key):
    x = np.asarray(sample_von_mises(key, 0.5, 3.0, (50, 400)), np.float64)
    found = fit(x.astype(np.float32), axis=1)
    for i in range(len(x)):
        k, loc, _ = stats.vonmises.fit(x[i], fscale=1)
        assert float(found.loc[i]) == pytest.approx(loc, abs=2e-6)
        assert float(found.concentration[i]) == pytest.approx(k, rel=2e-5)


def test_is_the_maximum(key):
    x = sample_von_mises(key, -1.0, 5.0, (500,))
    best = fit(x)

    def mean(loc, concentration):
        return float(jnp.mean(log_prob(x, loc, concentration)))

    top = mean(*best)
    for direction, factor in ((0.02, 1.0), (-0.02, 1.0), (0.0, 1.05), (0.0, 0.95)):
        assert mean(best.loc + direction, best.concentration * factor) < top


def test_axes_and_weights(key):
    x = sample_von_mises(key, 0.3, 2.0, (4, 5, 60))
    w = np.random.default_rng(0).integers(0, 4, (4, 5, 60)).astype(np.float32)
    for axis in (None, 0, -1, (0, 2), (1, -1), ()):
        found = fit(x, axis=axis)
        axes = range(3) if axis is None else np.atleast_1d(np.array(axis, int)) % 3
        kept = tuple(size for i, size in enumerate(x.shape) if i not in list(axes))
        assert found.loc.shape == found.concentration.shape == kept
    one = fit(x, axis=(0, 2))
    for j in range(5):
        alone = fit(x[:, j])
        np.testing.assert_allclose(one.loc[j], alone.loc, rtol=1e-5)
        np.testing.assert_allclose(one.concentration[j], alone.concentration, rtol=1e-5)
    # A weight of 3 is the angle three times over, and the scale of all weights does not matter.
    repeated = np.repeat(np.asarray(x).ravel(), w.ravel().astype(int))
    for scale in (1.0, 1e-3):
        weighted = fit(x, scale * w)
        np.testing.assert_allclose(weighted.concentration, fit(repeated).concentration, rtol=1e-5)
        np.testing.assert_allclose(weighted.loc, fit(repeated).loc, rtol=1e-5)
    along = fit(x, w[0, :, 0], axis=1)
    spread = fit(x, np.broadcast_to(w[0, :, :1], x.shape), axis=1)
    np.testing.assert_allclose(along.concentration, spread.concentration, rtol=1e-5)


def test_extremes():
    assert fit([1.0, 1.0, 1.0]) == (1.0, np.inf)
    assert fit([-2.5]) == (-2.5, np.inf)
    assert fit(np.full(1000, 3.0), weights=np.ones(1000)) == (3.0, np.inf)
    assert fit([3.0, 1.0, 1.0], weights=[0.0, 1.0, 1.0]) == (1.0, np.inf)
    even = fit(np.linspace(-np.pi, np.pi, 8, endpoint=False))
    assert even.concentration < 1e-6
    assert -np.pi <= even.loc < np.pi
    for nothing in (fit([]), fit([1.0, np.nan]), fit([1.0, np.inf]), fit([1.0, 2.0], [-1.0, 2.0]), fit([1.0], [0.0])):
        assert np.isnan(nothing).all()
    assert fit(np.zeros((3, 0)), axis=1).loc.shape == (3,)
    for weight in (3e38, 1e-37):  # neither their sum nor its inverse is a float
        heavy = fit(jnp.array([0.0, 1.0]), jnp.full(2, weight))
        assert (float(heavy.loc), float(heavy.concentration)) == pytest.approx((0.5, 4.4086), rel=1e-4)
    assert standard_errors(np.float32(3e38), 100.0).concentration == pytest.approx(4.2426e37, rel=1e-4)
    turns = fit(np.array([0.1, 0.2, 0.4]) + 2 * np.pi * np.array([0, 3, -2]))
    assert float(turns.loc) == pytest.approx(float(fit([0.1, 0.2, 0.4]).loc), abs=1e-5)
    assert fit(jnp.array([0.1, 0.5], jnp.bfloat16)).loc.dtype == jnp.bfloat16


@jax.jit
def fit_rows(x, w):
    """Both estimates of each row."""
    return jax.vmap(lambda x, w: jnp.stack(fit(x, w)))(x, w)


@jax.jit
def fit_slopes(x, w):
    """The Jacobians of both estimates in angles and weights; without weights the gradients, and one Hessian."""
    both = jax.jacrev(lambda x, w: jnp.stack(fit(x, w)), (0, 1))(x, w)
    return both, jax.jacrev(lambda x: jnp.stack(fit(x)))(x), jax.hessian(lambda x: fit(x).concentration)(x)


@pytest.mark.parametrize("k", [0.3, 4.0, 200.0])
def test_gradient(k, key):
    """In the angles and the weights, against central differences; second derivatives finite."""
    with jax.enable_x64(True):
        x = sample_von_mises(key, 2.0, k, (7,), "float64")
        w = jnp.linspace(0.5, 2.0, 7)
        both, alone, hessian = fit_slopes(x, w)
        steps = 1e-6 * np.eye(7)
        for argument, slope in enumerate(both):
            up, down = (
                fit_rows(x[None] + s * steps, w[None] + 0 * steps)
                if argument == 0
                else fit_rows(x[None] + 0 * steps, w[None] + s * steps)
                for s in (1, -1)
            )
            np.testing.assert_allclose(slope, (up - down).T / 2e-6, rtol=1e-5, atol=1e-7 * (1 + k))
        assert np.isfinite(hessian).all()
        # Turning all angles turns the direction, and nothing else.
        assert np.sum(alone[0]) == pytest.approx(1.0)
        assert np.sum(alone[1]) == pytest.approx(0.0, abs=1e-9 * k)


def test_jit_and_vmap(key):
    x = sample_von_mises(key, 0.3, 2.0, (6, 100))
    np.testing.assert_allclose(jax.jit(fit, static_argnames="axis")(x, axis=1), fit(x, axis=1), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(fit)(x), fit(x, axis=1), rtol=1e-6)


def test_errors_of_arguments():
    with pytest.raises(ValueError, match=r"fit: weights of shape \(3,\) do not broadcast to samples of shape \(2,\)"):
        fit([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"fit: axis=2 is out of range"):
        fit([1.0], axis=2)
    with pytest.raises(ValueError, match=r"fit: axis=\(0, -1\) names an axis twice"):
        fit([1.0], axis=(0, -1))
    with pytest.raises(TypeError, match=r"fit: axis='x' must be an integer"):
        fit([1.0], axis="x")
    with pytest.raises(TypeError, match=r"fit: samples must be a real number"):
        fit([1j])


@pytest.mark.parametrize("k", [0.2, 1.5, 30.0, 1e5])
def test_standard_errors(k, key):
    """The spread of 4000 estimates is what the information says, up to the bias of order 1 / n of small samples."""
    size = 1000
    found = fit(sample_von_mises(key, 0.0, k, (4000, size)), axis=1)
    errors = standard_errors(k, size)
    # The standard deviation of a standard deviation from 4000 estimates is 1.1 %.
    assert np.std(np.asarray(found.loc, np.float64)) == pytest.approx(float(errors.loc), rel=0.06)
    assert np.std(np.asarray(found.concentration, np.float64)) == pytest.approx(float(errors.concentration), rel=0.06)


def test_standard_errors_are_the_information():
    """The mean of the second derivatives of log p, by quadrature over the circle."""
    with jax.enable_x64(True):
        x = np.linspace(-np.pi, np.pi, 400, endpoint=False)
        bends = jax.jit(jax.vmap(jax.hessian(lambda a, x: log_prob(x, a[0], a[1])), (None, 0)))
        for k in (0.3, 5.0):
            p = np.exp(log_prob(x, 0.0, k)) * (2 * np.pi / 400)
            bend = bends(np.array([0.0, k]), x)
            information = -np.einsum("n,nij->ij", p, bend)
            errors = standard_errors(k, 7)
            np.testing.assert_allclose(np.diag(information) * 7, 1 / np.square(errors), rtol=1e-9)
            assert abs(information[0, 1]) < 1e-12


def test_standard_errors_at_the_ends():
    assert standard_errors(0.0, 100).loc == np.inf
    assert standard_errors(0.0, 100).concentration == pytest.approx(np.sqrt(2) / 10)
    assert standard_errors(np.inf, 100) == (0.0, np.inf)
    assert standard_errors(1e30, 4).concentration == pytest.approx(1e30 / np.sqrt(2))
    assert np.isnan(standard_errors(-1.0, 100)).all()
    assert np.isnan(standard_errors(1.0, -5)).all()


def test_class_method(key):
    law = VonMises.fit(VonMises(0.4, 6.0).sample(key, (10_000,)))
    assert isinstance(law, VonMises)
    assert float(law.concentration) == pytest.approx(6.0, rel=0.1)

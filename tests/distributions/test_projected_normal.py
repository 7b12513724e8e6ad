"""Test the projected normal density against quadrature in many digits' worth of panels, also far from the mode."""

import jax
import numpy as np
import pytest
from scipy import special

from jax_von_mises import ProjectedNormal


def exact(mean, x):
    """Return the log density by a composite Gauss rule in float64, of exponents less their maximum."""
    x = x / np.linalg.norm(x)
    d, t = len(x), mean @ x
    across = mean - t * x
    mode = 2 * (d - 1) / (np.hypot(t, 2 * np.sqrt(d - 1)) - t) if t < 0 else (t + np.hypot(t, 2 * np.sqrt(d - 1))) / 2
    log = lambda r: (d - 1) * np.log(r / mode) - (r - mode) * (r + mode - 2 * t) / 2  # noqa: E731
    end = mode + min(10, 60 * mode)
    z, w = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(max(0, mode - 10), end, 401)
    half = np.diff(edges)[:, None] / 2
    r = edges[:-1, None] + half * (1 + z)
    peak = (d - 1) * np.log(mode) - (mode - t) ** 2 / 2
    return np.log(np.sum(half * w * np.exp(log(r)))) + peak - across @ across / 2 - d / 2 * np.log(2 * np.pi)


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 2e-6), (np.float64, 1e-13)])
@pytest.mark.parametrize("d", [2, 3, 10])
def test_log_prob(d, dtype, bound):
    rng = np.random.default_rng(d)
    lengths = np.array([0, 0.01, 1, 5, 50, 1e4])
    mean = rng.normal(size=(6, d))
    mean *= (lengths / np.linalg.norm(mean, axis=1))[:, None]
    x = rng.normal(size=(8, 6, d))
    x[-2:] = [mean + 0.01 * x[-1], -mean + 0.01 * x[-1]]
    mean, x = mean.astype(dtype), x.astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        found = np.asarray(jax.jit(lambda mean, x: ProjectedNormal(mean).log_prob(x))(mean, x), float)
    wide, unit = mean.astype(float), x / np.linalg.norm(x.astype(float), axis=-1, keepdims=True)
    expected = np.array([[exact(m, each) for m, each in zip(wide, row, strict=True)] for row in unit])
    # Rounded unit vectors move the part of the mean orthogonal to them.
    across = np.linalg.norm(wide - np.sum(wide * unit, -1, keepdims=True) * unit, axis=-1)
    moved = 2 * np.finfo(dtype).eps * lengths * (across + 1)
    assert np.all(np.abs(found - expected) < bound * np.maximum(1, np.abs(expected)) + moved)


def test_uniform():
    one = ProjectedNormal(np.zeros(3, np.float32))
    np.testing.assert_allclose(one.log_prob([0.6, 0.0, 0.8]), -np.log(4 * np.pi), rtol=1e-6)
    assert np.isnan(one.mode()).all()


def test_circle():
    """The angle of a normal vector in the plane has a density with the normal distribution function."""
    angle = np.linspace(-3, 3, 40)
    t = 2.5 * np.cos(angle)
    density = np.exp(-3.125) / (2 * np.pi) * (1 + t * special.ndtr(t) * np.sqrt(2 * np.pi) * np.exp(t * t / 2))
    x = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    np.testing.assert_allclose(ProjectedNormal(np.float32([2.5, 0])).prob(x), density, rtol=1e-5)

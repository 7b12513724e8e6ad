"""Check the Bingham distribution of axes against mpmath, SciPy, quadrature, other classes and its own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.test_util import check_grads

from jax_von_mises import Bingham
from jax_von_mises.rotations import MatrixFisher, matrices
from tests.marks import more

# Logarithms of the integrals over the sphere, for the eigenvalues of the form: from mpmath, with the area 4 pi taken
# out for three dimensions, and with the area 2 pi^2 for four, as other libraries print them.
KNOWN = {(0, -1, -2): -0.869118599560845, (0, -2, -5): -1.62706835793077}
KNOWN_4 = {(0, -1, -2, -5): np.log(4.23895015814555), (0, -10, -20, -900): np.log(0.0273970684079051)}


def axes_of(dimension):
    """Return some orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(dimension).normal(size=(dimension, dimension)))[0]


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_known_values(dtype):
    limit = {"float32": 3e-6, "float64": 1e-12}[dtype]
    with jax.enable_x64(dtype == "float64"):
        for known, area in ((KNOWN, np.log(4 * np.pi)), (KNOWN_4, 0)):
            for values, log_c in known.items():
                axes = np.eye(len(values), dtype=dtype)
                found = Bingham.from_axes(axes, np.array(values, dtype)).log_prob(axes)
                np.testing.assert_allclose(found, np.array(values) - log_c - area, rtol=0.4 * limit, atol=limit)


@pytest.mark.parametrize("concentration", [3.0, -3.0, *more(0.0, 100.0, -100.0)])
def test_watson(concentration):
    """The normaliser is a confluent hypergeometric function."""
    axis = np.array([0.6, 0.0, 0.8], np.float32)
    distribution = Bingham.watson(5 * axis, concentration)
    exact = np.log(scipy.special.hyp1f1(0.5, 1.5, concentration)) + np.log(4 * np.pi)
    expected = np.array([concentration - exact, -exact])
    x = np.float32([axis, [-0.8, 0.0, 0.6]])
    np.testing.assert_allclose(distribution.log_prob(x), expected, rtol=2e-6, atol=2e-5)
    uniform = Bingham(np.zeros((3, 3), np.float32))
    np.testing.assert_allclose(distribution.kl_divergence(uniform), distribution.kl_to_uniform(), atol=2e-6)
    np.testing.assert_allclose(uniform.entropy(), np.log(4 * np.pi), rtol=1e-6)


@pytest.mark.more
def test_rotations_are_axes_in_four_dimensions():
    """`MatrixFisher` has the same draws up to sign, moments and divergences."""
    parameter = np.float32([[3, 1, 0], [-2, 2, 0.5], [0, 0, 1]])
    rotation, axis = MatrixFisher(parameter), Bingham(matrices.quadratic_form(jnp.asarray(parameter)))
    q, x = (each.sample(jax.random.key(0), (2000,)) for each in (rotation, axis))
    np.testing.assert_allclose(np.abs(np.sum(q * x, 1)), 1, atol=1e-6)
    assert 0.45 < np.mean(np.sum(q * x, 1) > 0) < 0.55
    np.testing.assert_allclose(axis.log_prob(x), rotation.log_prob(q) - np.log(2 * np.pi**2), atol=1e-5)
    np.testing.assert_allclose(axis.kl_to_uniform(), rotation.kl_to_uniform(), rtol=1e-6)
    np.testing.assert_allclose(matrices.of_moments(axis.second_moment()), rotation.mean(), atol=1e-6)
    estimates = Bingham.fit(q).parameter, matrices.quadratic_form(MatrixFisher.fit(q).parameter)
    both = [each - each[0, 0] * jnp.eye(4) for each in estimates]
    np.testing.assert_allclose(*both, atol=2e-5)


@pytest.mark.more
@pytest.mark.parametrize("values", [(0, 0, 0), (0, 0, -5), (0, -5, -5), (0, -2, -300)])
def test_draws_fits_and_derivatives(values):
    """Moments of draws and their derivatives are within 5 standard errors of those by quadrature."""
    axes, number = axes_of(3), 2**18
    parameter = (axes @ np.diag(values) @ axes.T).astype(np.float32)
    along = np.random.default_rng(7).normal(size=(3, 3)).astype(np.float32)
    along = along + along.T

    def statistics(parameter):
        x = Bingham(parameter).sample(jax.random.key(8), (number,))
        return (x[:, :, None] * x[:, None, :]).reshape(number, 9)

    found, moved = (np.asarray(x, float) for x in jax.jvp(jax.jit(statistics), (parameter,), (along,)))
    with jax.enable_x64(True):
        wide = parameter.astype(float)
        mean, rise = jax.jvp(lambda a: Bingham(a).second_moment(), (wide,), (along.astype(float),))
    for sample, exact in ((found, mean), (moved, rise)):
        error = sample.std(0) / np.sqrt(number)
        assert np.all(np.abs(sample.mean(0) - np.asarray(exact).ravel()) <= 5 * error + 1e-6)
    x = Bingham(parameter).sample(jax.random.key(9), (20_000,))
    fitted, errors = Bingham.fit(x), Bingham(parameter).standard_errors(20_000)
    wide = np.asarray(x, float)
    # Eigenvalues have an error of 7e-7 of the largest, by which moments move at most as by the variance of a square.
    error = 1e-6 + 7e-7 * np.ptp(values) * np.max(np.var(wide**2, 0))
    np.testing.assert_allclose(fitted.second_moment(), wide.T @ wide / 20_000, atol=error)
    if values == (0, -2, -300):  # elsewhere, the largest eigenvalue is not smooth
        assert np.all(np.abs(fitted.parameter - parameter) <= 5 * errors)


@pytest.mark.more
def test_derivatives():
    with jax.enable_x64(True):
        x, axes = jnp.array([0.3, -0.5, 0.8]), axes_of(3)
        for values in ((0, 0, 0), (0, 0, -5), (0, -3, -5)):
            parameter = jnp.asarray(axes @ np.diag(values) @ axes.T)
            check_grads(lambda a, x: Bingham(a).log_prob(x), (parameter, x), 2, rtol=1e-5)
            check_grads(lambda a: Bingham(a).entropy(), (parameter,), 1, rtol=1e-5)


def test_fits_without_maximum():
    """The estimate is a distribution that can be used, also if its gaps are the largest."""
    x = np.random.default_rng(0).normal(size=(50, 1, 3)).astype(np.float32)
    x[25:, :, 2] = 0
    assert np.all(np.isfinite(Bingham.fit(x, axis=1).entropy()))


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"Bingham: parameter has shape \(2, 2\), but must hold matrices"):
        Bingham(np.eye(2))
    with pytest.raises(ValueError, match=r"Bingham.fit: samples has shape \(5, 2\), but its last axis must have"):
        Bingham.fit(np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"Bingham.kl_divergence: other is a distribution in 4 dimensions"):
        Bingham(np.eye(3)).kl_divergence(Bingham(np.eye(4)))
    assert np.isnan(Bingham(np.diag([np.inf, 1, 1]).astype(np.float32)).mean()).all()

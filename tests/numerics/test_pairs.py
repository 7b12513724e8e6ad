"""Compare the numerics of the bivariate models with quadrature and mpmath, for concentrations from 0 to 1e7."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises.pairs import models, moments, quantile
from tests import pairs_reference as reference
from tests.marks import more, slow

KINDS = {"sine": models.Sine, "cosine": models.Cosine}
names = pytest.mark.parametrize("name", KINDS)
# The cosine model is slow to compile.
sine_first = pytest.mark.parametrize("name", ["sine", *more("cosine")])


@functools.cache
def program(name, function):
    return jax.jit(functools.partial(function, KINDS[name]))


def anchored(name, rises, k):
    """Return the means of the statistics, given the means of their differences from the values at the mode."""
    zero = jnp.zeros_like(k[0])
    at_zero = program(name, moments.rises)(zero, zero, *k)
    return [
        anchor + (x - np.asarray(y)) for anchor, x, y in zip((1, 1, KINDS[name].at_zero()), rises, at_zero, strict=True)
    ]


@names
def test_reference(name):
    """Sums over both angles in mpmath confirm the quadrature over one angle that the other tests compare with."""
    for k in ((0, 0, 0), (2, 3, 1), (5, 6, -7), (0.3, 0.2, 9), (3, 3, 3), (1, 3, 3)):
        marginal = reference.Marginal(name, *k)
        at_mode = k[0] * np.cos(marginal.mode) + marginal.top
        assert at_mode + marginal.log_total == pytest.approx(reference.log_normaliser_mp(name, *k), abs=1e-11)


@sine_first
@pytest.mark.parametrize(
    ("dtype", "count", "bound"), [("float32", 40, 1e-6), *slow(("float32", 1500, 1e-6), ("float64", 300, 1e-12))]
)
def test_normaliser_and_moments(name, dtype, count, bound):
    """The means, and the log normaliser minus the exponent at the mode, have absolute errors below `bound`."""
    with jax.enable_x64(dtype == "float64"):
        parameters = reference.parameters(name, count)
        k = [jnp.asarray(x, dtype) for x in parameters.T]
        total = np.asarray(program(name, moments.log_total)(*k), float)
        means = np.array(anchored(name, [np.asarray(x, float) for x in program(name, moments.mean_rises)(*k)], k))
        jax.clear_caches()
        program.cache_clear()
    exact = [reference.Marginal(name, *map(float, k)) for k in parameters]
    assert np.abs(total - [marginal.log_total for marginal in exact]).max() < bound
    assert np.abs(means - np.array([marginal.means() for marginal in exact]).T).max() < bound


@pytest.mark.more
@names
def test_derivatives_of_normaliser(name):
    """The means and covariances of the statistics are the first and second derivatives of the log normaliser."""
    step, k = 1e-3, (5.0, 6.0, -7.0)

    def log_normaliser(*k):
        marginal = reference.Marginal(name, *k)
        return k[0] * np.cos(marginal.mode) + marginal.top + marginal.log_total

    means = anchored(name, program(name, moments.mean_rises)(*map(jnp.float32, k)), [jnp.float32(x) for x in k])
    covariance = np.array(program(name, moments.cumulants)(*map(jnp.float32, k)).covariance)
    for i in range(3):
        up, down = (tuple(x + sign * step * (i == j) for j, x in enumerate(k)) for sign in (1, -1))
        assert float(means[i]) == pytest.approx((log_normaliser(*up) - log_normaliser(*down)) / (2 * step), abs=2e-6)
        slopes = (np.array(reference.Marginal(name, *up).means()) - reference.Marginal(name, *down).means()) / (
            2 * step
        )
        np.testing.assert_allclose(covariance[i], slopes, atol=3e-6)


@sine_first
@pytest.mark.parametrize("count", [0, *slow(60)])
def test_quantile(name, count):
    """The probability beyond each angle on the half circle is accurate in both tails, down to the smallest word."""
    check_quantile(name, reference.parameters(name, count)[:: 1 if count else 4], np.float32, 2.0**-32, 4e-6)


@pytest.mark.more
@names
def test_float64_quantile(name):
    with jax.enable_x64(True):
        check_quantile(name, reference.parameters(name, 10), np.float64, 2.0**-64, 1e-11)


def check_quantile(name, parameters, dtype, smallest, bound):
    tau = np.exp(np.linspace(np.log(smallest), np.log(0.5), 50)).astype(dtype)
    tau, upper = np.r_[tau, tau], np.r_[np.ones(50, bool), np.zeros(50, bool)]

    @jax.jit
    def draw(k1, k2, r):
        return quantile.half_quantile(KINDS[name].of(k1, k2, r), jnp.asarray(tau), jnp.asarray(upper))

    for k in parameters:
        model = KINDS[name].of(*(jnp.asarray(x, dtype) for x in k))
        x = np.asarray(draw(*(dtype(each) for each in k)), float)
        # Measure from the model's own origin, since a difference from pi would lose the digits of a small angle.
        flip = float(model.flip)
        marginal = reference.Marginal(name, flip * float(k[0]), float(k[1]), flip * float(k[2]), points=x)
        above, below, density = marginal.tails(x)
        tail = np.where(upper, above, below)
        # An angle below the mode has the resolution of the mode.
        room = 4 * np.spacing(np.where(upper, x, np.maximum(x, float(model.mode))).astype(dtype)) * density
        error = np.maximum(np.abs(tail - tau) - room, 0) / tau
        assert error.max() < bound, (k, error.max())


@pytest.mark.slow
@names
def test_table(name):
    """Beyond 4 ulp of the angle, the table and the direct quantile differ by less than 4e-6 of the tail probability."""
    tau = jnp.exp(jnp.linspace(np.log(2.0**-32), np.log(0.5), 3001)).astype(jnp.float32)
    upper = jnp.arange(3001) % 2 == 0

    @jax.jit
    def both(k1, k2, r):
        model = KINDS[name].of(k1, k2, r)
        return quantile.look_up(quantile.quantile_table(model), tau, upper), quantile.half_quantile(model, tau, upper)

    for k in ((2, 3, 1), (5, 6, -7), (1e7, 1e7, 2e7), (1e5, 1e5, 1.0005e5), (0, 5, 5), (0, 0, 0), (0.3, 0.2, 40)):
        model = KINDS[name].of(*map(jnp.float32, k))
        from_table, direct = (np.asarray(x, float) for x in both(*map(jnp.float32, k)))
        beyond = np.pi - direct if float(model.flip) < 0 else direct
        marginal = reference.Marginal(name, *map(float, np.float32(k)), points=beyond)
        density = marginal.tails(beyond)[2]
        room = 4 * np.spacing(np.maximum(direct, float(model.mode)).astype(np.float32))
        error = np.maximum(np.abs(from_table - direct) - room, 0) * density / np.asarray(tau)
        assert error.max() < 4e-6, k


def test_direction():
    angle = np.linspace(-np.pi, np.pi, 4001)[:-1]
    for length in (1e-9, 1.0, 1e8):
        actual = quantile.angle_of_vector(jnp.float32(length * np.cos(angle)), jnp.float32(length * np.sin(angle)))
        np.testing.assert_allclose(actual, angle, atol=4e-7)

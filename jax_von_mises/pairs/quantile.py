r"""Compute the quantile of the first angle's marginal, the angle in [0, pi) with a given tail probability.

The marginal density p is symmetric and has one mode on [0, pi]. Its tail T(x), towards pi or towards 0, is p J. A
Gauss-Legendre rule from x to where the density is negligible gives J with full relative accuracy. The step towards the
angle with the tail :math:`T e^{-f}` is that of the generalised Pareto tail with the same value and first two
derivatives,

.. math:: x + J\,\frac{1 - e^{-bf}}{b}, \qquad b = 1 + J\,(\log p)',

which is exact where the density is constant (b = 1) or exponential (b = 0). A fixed number of steps is enough for all
parameters.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import elementary, quadrature
from jax_von_mises.numerics.circle import largest_angle
from jax_von_mises.numerics.table import QuantileTable, two_tails
from jax_von_mises.pairs import models, moments
from jax_von_mises.pairs.models import Model
from jax_von_mises.von_mises import bessel

NODES = {"float32": 20, "float64": 56}
# Fall of E within the integral of a tail.
DEPTH = {"float32": 17.0, "float64": 38.0}
STEPS = {"float32": 5, "float64": 6}


def sum_over_nodes(
    term: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]], offset: jax.Array
) -> tuple[jax.Array, ...]:
    """Sum the arrays of ``term(node, weight)``, which have the shape of `offset`."""
    return quadrature.add_terms(term, *quadrature.gauss_legendre(NODES[offset.dtype.name]), offset, loop=True)


def tail_integral(model: Model, offset: jax.Array, sign: jax.Array) -> tuple[jax.Array, models.FirstAngle]:
    """Return J at a* + `offset`, towards pi (`sign` 1) or 0 (-1), and the `models.FirstAngle` there."""
    name = offset.dtype.name
    length = moments.reach(model, offset, sign, DEPTH[name] + moments.allowance(model))
    here = model.at(offset)
    n, shift = bessel.norm(here.rho, 1 / jnp.maximum(here.rho, bessel.SWITCH))

    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        place = model.at(offset + (sign * length) * node)
        far, shift_far = bessel.norm(place.rho, 1 / jnp.maximum(place.rho, bessel.SWITCH))
        return (weight * far * jnp.exp((place.exponent - here.exponent) - (shift_far - shift)),)

    (total,) = sum_over_nodes(term, offset)
    return length * total / n, here


def marginal_score(model: Model, place: models.FirstAngle) -> jax.Array:
    """Return the derivative of the logarithm of the marginal density with respect to a."""
    return bessel.ratio(place.rho) * model.slope(place) - model.k1 * place.sin


def half_quantile(model: Model, tau: jax.Array, upper: jax.Array) -> jax.Array:
    """Return the angle in [0, pi) with the fraction `tau` of the half circle's mass beyond it, towards pi or 0.

    Parameters
    ----------
    model : Sine or Cosine
        A model of scalars, or of arrays with the shape of `tau`.
    tau : array in (0, 1/2]
    upper : bool array
        Whether the mass is counted towards pi.

    Returns
    -------
    array
        The fraction has a relative error of at most 4e-6 (float32) or 1e-11 (float64), or the angle is within 4 ulp
        (below the mode, 4 ulp of the mode).
    """
    dtype = tau.dtype
    sign = jnp.where(upper, 1, -1).astype(dtype)
    log_mass = jnp.log(tau) + log_half_mass(model)
    room = jnp.where(upper, np.pi - model.mode, model.mode)
    # Start where the exponent has fallen by `level`, or nearer, where a tail of constant density would have that mass.
    level = jnp.maximum(-jnp.log(2 * tau), 1e-3)
    zero = jnp.zeros_like(tau)
    distance = moments.reach(model, zero, sign, level)
    least = moments.marginal_density(model.at(zero)) * jnp.exp(-level)
    left = jnp.exp(log_mass) / jnp.maximum(moments.marginal_density(model.at(sign * distance)), least)
    distance = jnp.maximum(jnp.minimum(distance, room - left), room - np.pi)

    def step(_: jax.Array, distance: jax.Array) -> jax.Array:
        integral, place = tail_integral(model, sign * distance, sign)
        f = jnp.log(integral * moments.marginal_density(place)) - log_mass
        step = quadrature.tail_step(integral, f, 1 + integral * sign * marginal_score(model, place))
        return jnp.maximum(jnp.minimum(distance + step, 0.5 * (distance + room)), room - np.pi)

    distance = lax.fori_loop(0, STEPS[dtype.name], step, distance)
    return jnp.clip(model.mode + sign * distance, 0, largest_angle(dtype))


def log_half_mass(model: Model) -> jax.Array:
    """Return the logarithm of the integral of `moments.marginal_density` over the half circle."""
    zero = jnp.zeros_like(model.mode)
    sides = jax.vmap(lambda sign: tail_integral(model, zero, jnp.full_like(zero, sign))[0])(
        jnp.asarray([1.0, -1.0], zero.dtype)
    )
    return jnp.log(moments.marginal_density(model.at(zero)) * jnp.sum(sides, 0))


def quantile_table(model: Model) -> QuantileTable:
    """Tabulate `half_quantile`, for the upper tail and then for the lower one."""
    tau, upper = two_tails(model.mode.dtype)
    return QuantileTable.of(half_quantile(model, jnp.asarray(tau, model.mode.dtype), jnp.asarray(upper)))


def look_up(table: QuantileTable, tau: jax.Array, upper: jax.Array) -> jax.Array:
    """Evaluate `half_quantile` from a `quantile_table`."""
    return elementary.clip(table.at(tau, ~upper), 0, largest_angle(tau.dtype))


def derivatives(kind: type[Model], a: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> moments.Triple:
    """Return the derivatives of quantiles `a` in [0, pi), as the model counts them, with respect to (k1, k2, r)."""
    model = kind.of(k1, k2, r)
    offset = a - model.mode
    means = moments.signed(model, moments.mean_rises(kind, k1, k2, r))
    # Use the side with less mass, where nothing cancels.
    sign = jnp.where(offset > 0, 1, -1).astype(a.dtype)
    name = a.dtype.name
    length = moments.reach(model, offset, sign, DEPTH[name] + moments.allowance(model))
    here = moments.marginal_density(model.at(offset))

    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        place = model.at(offset + (sign * length) * node)
        share = weight * moments.marginal_density(place) / here
        given_first, _ = moments.conditional_means(model, place)
        return tuple(share * (value - mean) for value, mean in zip(given_first, means, strict=True))

    totals = sum_over_nodes(term, offset)
    return moments.signed(model, [sign * length * total for total in totals])


# Coefficients of arctan(t) / t in powers of t^2 for t in [0, 1], from a Chebyshev fit with an error of about 3e-8.
ARCTANGENT = (
    0.999999998,
    -0.333332823,
    0.199982306,
    -0.142615737,
    0.10940199,
    -0.0837206395,
    0.0574635579,
    -0.0307175089,
    0.0106807195,
    -0.00174370115,
)


def direction_slopes(_: jax.Array, cosine: jax.Array, sine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of `angle_of_vector`."""
    square = cosine * cosine + sine * sine
    return -sine / square, cosine / square


@elementary.with_slopes(direction_slopes)
def angle_of_vector(cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Return the angle of a vector of length 1e-20 or more; in float32, this compiles to one vector loop."""
    if sine.dtype == jnp.float64:
        return jnp.arctan2(sine, cosine)
    across, along = jnp.abs(sine), jnp.abs(cosine)
    large, small = jnp.maximum(across, along), jnp.minimum(across, along)
    t = small * elementary.reciprocal(large)
    angle = t * elementary.polynomial(ARCTANGENT, t * t)
    angle = jnp.where(across > along, np.pi / 2 - angle, angle)
    angle = jnp.where(cosine < 0, np.pi - angle, angle)
    return jnp.where(sine < 0, -angle, angle)

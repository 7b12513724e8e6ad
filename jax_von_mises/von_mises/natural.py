r"""Convert natural parameters, and differentiate draws with respect to them.

The natural parameter :math:`\eta = \kappa\mu` is the concentration times the mean direction, a vector. At
:math:`\eta = 0` the direction has no derivative, but the distribution has one.

*Conversion.* Vectors that are nearly 0 are replaced by a fixed one of the length `SMALLEST`, with the derivatives of
the identity. The derivative of a density with respect to the direction is proportional to the length, and that of the
direction is its inverse. Their product is right, and the distribution is uniform to rounding.

*Draws.* If a draw x turned with the mean direction, its derivative would be proportional to :math:`1/\kappa`. Let w be
the cosine of the angle between both, and :math:`d\eta` a change orthogonal to :math:`\mu`. Draws may instead move by
:math:`b(w) (w\,d\eta - (x \cdot d\eta)\mu)`, a rotation in the plane of :math:`\mu` and :math:`d\eta`. By the equation
of continuity, they keep the right distribution in any dimension if :math:`(p b)' = p` for the density
:math:`p \propto e^{\kappa w}`. The solution

.. math:: b(w) = (1 - e^{-\kappa(1 + w)}) / \kappa

is finite everywhere, 0 opposite to the mean direction, and 1 + w at :math:`\kappa = 0`.

*Densities.* The gradient of log p is x minus the mean vector :math:`m = A \mu`, and the Hessian minus the covariance,
:math:`(A / \kappa) (I - \mu\mu^T) + A' \mu\mu^T`. Both are given as they stand: the chain rule through the direction
would divide by :math:`\kappa^2`, and differences of large terms would remain at 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics.circle import TWO_PI, deviation, exact_deviation, reduce_turns, with_derivative_of
from jax_von_mises.numerics.elementary import undifferentiable, valid
from jax_von_mises.sphere import moments, vectors
from jax_von_mises.von_mises import density

# Lengths below this one are replaced by it. The smallest float16 needs a larger one.
SMALLEST, SMALLEST_HALF = 2.0**-60, 2.0**-13


def away_from_zero(natural: jax.Array, smallest: float) -> jax.Array:
    """Return vectors along the last axis, with `smallest` times the first unit vector for those that are shorter."""
    fixed = lax.stop_gradient(natural)
    least = jnp.zeros_like(fixed).at[..., 0].set(smallest)
    short = jnp.max(jnp.abs(fixed), -1, keepdims=True) < smallest
    moved: jax.Array = natural + jnp.where(short, least - fixed, 0)
    return moved


def concentration_of(vector: jax.Array) -> jax.Array:
    """Return the lengths of vectors that are not 0, without overflow."""
    return jnp.sum(vector * vectors.direction_of(vector).unit, -1)


def angle_of(vector: jax.Array) -> jax.Array:
    """Return the angles of vectors in two dimensions that are not 0."""
    unit = vectors.direction_of(vector).unit
    return jnp.arctan2(unit[..., 1], unit[..., 0])


def vector_of(angle: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the natural parameter of an angle and a concentration; NaN for invalid ones."""
    angle, kappa = reduce_turns(angle), valid(kappa)
    return jnp.stack(jnp.broadcast_arrays(kappa * jnp.cos(angle), kappa * jnp.sin(angle)), -1)


def turning(kappa: jax.Array, one_plus_cosine: jax.Array) -> jax.Array:
    """Return b."""
    return -jnp.expm1(-kappa * one_plus_cosine) / kappa


@jax.custom_jvp
def turn_angles(x: jax.Array, loc: jax.Array, vector: jax.Array) -> jax.Array:
    """Return angles `x`, drawn about the angle `loc` of a `vector`, with derivatives for changes of its direction."""
    return x


@turn_angles.defjvp
def _turn_angles_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    x, loc, vector = primals
    unit = vectors.direction_of(vector).unit
    across = unit[..., 0] * tangents[2][..., 1] - unit[..., 1] * tangents[2][..., 0]
    loc, kappa, across = (jnp.broadcast_to(each, x.shape) for each in (loc, concentration_of(vector), across))
    half = jnp.cos(0.5 * deviation(x.astype(loc.dtype), loc)[0])
    moved = turning(kappa, 2 * half * half) * across
    return x, tangents[0] + moved.astype(x.dtype)


@jax.custom_jvp
def turn_directions(x: jax.Array, vector: jax.Array) -> jax.Array:
    """Return directions `x`, drawn about a `vector`, with derivatives for changes of its direction."""
    return x


@turn_directions.defjvp
def _turn_directions_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, vector = primals
    unit, change = (jnp.broadcast_to(each, x.shape) for each in (vectors.direction_of(vector).unit, tangents[1]))
    kappa = jnp.broadcast_to(concentration_of(vector), x.shape[:-1])[..., None]
    change = change - unit * jnp.sum(unit * change, -1, keepdims=True)
    at = x.astype(vector.dtype)
    cosine = jnp.sum(at * unit, -1, keepdims=True)
    moved = cosine * change - jnp.sum(at * change, -1, keepdims=True) * unit
    return x, tangents[0] + (turning(kappa, 1 + cosine) * moved).astype(x.dtype)


class Polar(NamedTuple):
    """Angles measured from the directions of vectors, and the lengths of these vectors."""

    away: jax.Array
    """In [-pi, pi] up to rounding."""
    turns: jax.Array
    """The number of turns removed."""
    lost: jax.Array
    """What rounding has removed from `away`; in float64, without the rounding of the angle of the vector."""
    length: jax.Array
    lost_length: jax.Array
    """What rounding has removed from `length`; 0 in float64."""


def polar(x: jax.Array, vector: jax.Array) -> Polar:
    """Return the `Polar` of angles and vectors; in float32, from angles and lengths in float64."""
    length, angle = concentration_of(vector), angle_of(vector)
    away, turns, lost = exact_deviation(x, angle)
    length = jnp.broadcast_to(length, away.shape)
    if vector.dtype == jnp.float64:
        return Polar(away, turns, lost, length, jnp.zeros_like(length))
    with jax.enable_x64(True):
        fixed = (lax.stop_gradient(each) for each in (x, vector[..., 0], vector[..., 1], turns))
        wide, first, second, whole = (lax.convert_element_type(each, np.float64) for each in fixed)
        exact = (wide - lax.atan2(second, first)) - whole * TWO_PI, lax.sqrt(first * first + second * second)
        near = [lax.convert_element_type(each, np.float32) for each in exact]
        rest = [
            lax.convert_element_type(each - lax.convert_element_type(rounded, np.float64), np.float32)
            for each, rounded in zip(exact, near, strict=True)
        ]
    # Invalid numbers are NaN in both.
    length = with_derivative_of(length, jnp.broadcast_to(near[1], away.shape))
    away = with_derivative_of(away, near[0] + 0 * lax.stop_gradient(away))
    return Polar(away, turns, rest[0], length, jnp.broadcast_to(rest[1], away.shape))


@jax.custom_jvp
def mean_vector(vector: jax.Array) -> jax.Array:
    """Return the mean vector for natural parameters away from 0."""
    return (
        moments.mean_cosine(concentration_of(vector), vector.shape[-1])[..., None] * vectors.direction_of(vector).unit
    )


@mean_vector.defjvp
def _mean_vector_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (vector,), (change,) = primals, tangents
    dimension, kappa, unit = vector.shape[-1], concentration_of(vector), vectors.direction_of(vector).unit
    share = (moments.mean_cosine(kappa, dimension) / kappa)[..., None]
    along = unit * jnp.sum(unit * change, -1, keepdims=True)
    variance = moments.cosine_variance(kappa, dimension)[..., None]
    return mean_vector(vector), share * (change - along) + variance * along


@jax.custom_jvp
def log_density_of_angles(x: jax.Array, vector: jax.Array) -> jax.Array:
    """Return log p at angles, for natural parameters away from 0."""
    away, _, lost, kappa, lost_length = polar(x, vector)
    by_angle, along = density.score(away, kappa)
    return density.log_density(away, kappa) + (by_angle * lost + along * lost_length)


@jax.custom_jvp
def density_of_angles(x: jax.Array, vector: jax.Array) -> jax.Array:
    """Return p at angles, for natural parameters away from 0."""
    away, _, lost, kappa, lost_length = polar(x, vector)
    return density.nearby_density(away, kappa, lost, lost_length)


@density_of_angles.defjvp
def _density_of_angles_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    p, rate = density_of_angles(*primals), jax.jvp(log_density_of_angles, primals, tangents)[1]
    return p, p * rate


def differentiable_once(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a function of angles and vectors whose second derivatives raise NotImplementedError.

    Through the direction of the vector, they would have no correct digit near 0.
    """

    @jax.custom_jvp
    def compute(x: jax.Array, vector: jax.Array) -> jax.Array:
        return function(x, vector)

    @compute.defjvp
    def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, vector = primals
        value, push = jax.linearize(function, x, vector)
        units = [jnp.zeros_like(vector).at[..., j].set(1) for j in range(2)]
        slopes = [push(jnp.ones_like(x), jnp.zeros_like(vector)), *(push(jnp.zeros_like(x), unit) for unit in units)]
        moves = tangents[0], tangents[1][..., 0], tangents[1][..., 1]
        terms = (
            constant(slope) * jnp.broadcast_to(move, value.shape) for slope, move in zip(slopes, moves, strict=True)
        )
        return value, sum(terms, jnp.zeros_like(value))

    result: Callable[..., jax.Array] = compute
    return result


# Marks a derivative that must not be differentiated again.
constant = undifferentiable(
    "VonMises.from_natural: only `log_prob` and `prob` have second derivatives. For those of `cdf` and `sf`, make a "
    "VonMises from loc and concentration."
)


@log_density_of_angles.defjvp
def _log_density_of_angles_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, vector = primals
    unit = vectors.direction_of(vector).unit
    away, _, _, kappa, _ = polar(x, vector)
    by_angle, along = density.score(away, kappa)
    across = jnp.stack([-unit[..., 1], unit[..., 0]], -1)
    angle = reduce_turns(x)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    by_vector = along[..., None] * unit + jnp.sin(away)[..., None] * across
    by_vector = with_derivative_of(jnp.stack([cosine, sine], -1) - mean_vector(vector), by_vector)
    by_angle = with_derivative_of(vector[..., 1] * cosine - vector[..., 0] * sine, by_angle)
    return log_density_of_angles(x, vector), by_angle * tangents[0] + jnp.sum(by_vector * tangents[1], -1)


@jax.custom_jvp
def log_density_of_directions(x: jax.Array, vector: jax.Array) -> jax.Array:
    """Return log p at directions, for natural parameters away from 0."""
    kappa = concentration_of(vector)
    versine = vectors.versine(x, vectors.direction_of(vector))
    return -kappa * versine - moments.log_norm(kappa, vector.shape[-1])


@log_density_of_directions.defjvp
def _log_density_of_directions_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, vector = primals
    direction, kappa = vectors.direction_of(vector), concentration_of(vector)
    found = vectors.unit_of(x)
    y = found.y / jnp.sqrt(found.square)[..., None]
    by_vector = (y - direction.unit - direction.lost) + (
        moments.versine_mean(kappa, x.shape[-1])[..., None] * direction.unit
    )
    by_vector = with_derivative_of(y - mean_vector(vector), by_vector)
    versine, backwards = jax.vjp(lambda x: vectors.versine(x, direction), x)
    (by_value,) = backwards(jnp.broadcast_to(-kappa, versine.shape))
    across = vector - y * jnp.sum(vector * y, -1, keepdims=True)
    by_value = with_derivative_of(found.times(across), by_value)
    change = jnp.sum(by_value * tangents[0], -1) + jnp.sum(by_vector * tangents[1], -1)
    return log_density_of_directions(x, vector), change

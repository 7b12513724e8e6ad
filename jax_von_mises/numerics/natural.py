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
"""

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.numerics.circle import deviation, reduce_turns
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.sphere import vectors

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

"""Compute the probabilities on either side of an angle, their logarithms and the hazard, down to the smallest float.

All of them come from the integral J of `tail_integral`, in float32 with more nodes than samples need. At large
concentrations, factors of a probability would overflow or underflow; `density.rescaled` and `density.density_root`
prevent that. For many angles at one concentration, see `quantile.quantile_table`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises.numerics.elementary import with_slopes
from jax_von_mises.von_mises.density import HalfAngle, density, density_root, log_density, rescaled, score
from jax_von_mises.von_mises.tail_integral import FAR_RULE, derivative, integrals


@with_slopes(lambda y, x, kappa, lost: (density(x, kappa), -density(x, kappa) * odd_derivative(x, kappa), None))
def lower_tail(x: jax.Array, kappa: jax.Array, lost: ArrayLike = 0.0) -> jax.Array:
    """Return P(X < x + lost) for x in [-pi, pi], where `lost` is what rounding has removed from x.

    The relative error of a probability below 1/2 is at most 4e-6 (float32) or 1e-12 (float64).
    """
    size = jnp.abs(x)
    tail = jnp.where(
        kappa == jnp.inf, 0 * size, tail_beyond(size, kappa, jnp.where(x < 0, -1, 1).astype(x.dtype) * lost)
    )
    # At x = 0 this is 1/2, or 1 for a point mass.
    return jnp.where(x >= 0, 1 - tail, tail)


def odd_derivative(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return `derivative` with the sign of x, for x in [-pi, pi]."""
    sign = jnp.where(x < 0, -1, 1).astype(x.dtype)
    return sign * derivative(sign * x, kappa)


def tail_beyond(x: jax.Array, kappa: jax.Array, lost: ArrayLike) -> jax.Array:
    """Return P(X > x + lost) for x in [0, pi]; a probability below the smallest float is 0."""
    # The float nearest pi may exceed pi, where `sides` is negative.
    return jnp.maximum(sides(x, kappa, lost)[0], 0)


def far_integral(x: jax.Array, kappa: jax.Array, loop: bool = False) -> tuple[list[jax.Array], jax.Array, HalfAngle]:
    """Return `integrals` for tails of any size."""
    return integrals(x, kappa, 1 / kappa, rule=FAR_RULE if x.dtype == jnp.float32 else None, loop=loop)


def sides(x: jax.Array, kappa: jax.Array, lost: ArrayLike = 0.0) -> tuple[jax.Array, jax.Array]:
    """Return P(X > x + lost) and P(0 < X < x + lost), with full relative accuracy; they sum to 1/2.

    The first is negative between pi and the float nearest pi.
    """
    mass, centre = signed_mass(x, kappa, lost)
    return jnp.where(centre, 0.5 + mass, mass), jnp.where(centre, -mass, 0.5 - mass)


def signed_mass(
    x: jax.Array, kappa: jax.Array, lost: ArrayLike = 0.0, loop: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Return P(X > x + lost), or minus P(0 < X < x + lost) where the second result is true.

    P(X > x) is J p. Its derivative is -p, and p `lost` is always small against P, except next to pi, where p is
    constant. See `quadrature.add_terms` for `loop`.
    """
    moved, k, factor = rescaled(x, kappa)
    (j,), centre, half = far_integral(moved, k, loop)
    root, n = density_root(half, k, 1 / k)
    return (((j - lost * factor) / n) * root) * root, centre


def log_slopes(_: jax.Array, x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of `log_lower_tail`."""
    rate = hazard(x, kappa)
    along, in_kappa = score(x, kappa)
    # Use the derivative of log p where log p is so steep that its curvature is below rounding. It is also the limit at
    # the float nearest -pi, below which no probability is left.
    like_density = (along * jnp.sin(-x) > 1 / np.finfo(x.dtype).eps) | (rate == jnp.inf)
    return rate, jnp.where(like_density, in_kappa, -rate * odd_derivative(x, kappa))


@with_slopes(lambda y, x, kappa, lost: (*log_slopes(y, x, kappa), None))
def log_lower_tail(x: jax.Array, kappa: jax.Array, lost: ArrayLike = 0.0) -> jax.Array:
    """Return log P(X < x + lost), even for tails that underflow."""
    far, rate, probability = tail_rate(x, kappa, lost)
    return jnp.where(far, log_density(x, kappa) - jnp.log(rate), jnp.log(probability))


def tail_rate(x: jax.Array, kappa: jax.Array, lost: ArrayLike = 0.0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a mask, a rate and the probability P = P(X < x + lost).

    The mask is true where P is so small that log P must come from P = J p. The rate is 1 / J there, and 1 elsewhere.
    """
    moved, k, factor = rescaled(jnp.abs(x), kappa)
    (j,), centre, _ = far_integral(moved, k)
    # Where a rescaled angle is not small, 1 / J is the slope of log p to rounding. For floats beyond pi, J is set to 0.
    steep = (factor > 1) & (moved > 1e-3)
    rate = jnp.where(steep, kappa * jnp.abs(jnp.sin(x)), factor / jnp.maximum(j + lost * factor, 0))
    probability = lower_tail(x, kappa, lost)
    far = (x < 0) & ~centre & (probability < 1e-20)
    return far, jnp.where(far, rate, 1), probability


@jax.custom_jvp
def hazard(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return p(x) / P(X < x), even where both underflow."""
    far, rate, probability = tail_rate(x, kappa)
    return jnp.where(far, rate, density(x, kappa) / probability)


@hazard.defjvp
def _hazard_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    x, kappa = primals
    rate, (along, across) = hazard(x, kappa), score(x, kappa)
    in_kappa = across + odd_derivative(x, kappa) * rate
    return rate, rate * ((along - rate) * tangents[0] + in_kappa * tangents[1])

r"""Compute densities and quantiles of the wrapped Cauchy, cardioid and wrapped normal distributions, centred at 0.

Functions take the distance or the angle from the centre, and return NaN for invalid parameters. The wrapped Cauchy
density is :math:`(1-\rho^2) / (2\pi(1+\rho^2-2\rho\cos x))`, and the cardioid density :math:`(1+2\rho\cos x) / (2\pi)`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.numerics.sphere import vectors

# Terms on each side of the wrapped normal's series. Beyond them, terms are below 1e-16 of the sum.
TERMS = 5
# Steps of Newton's method for the cardioid quantile, from a start that is at most 1.2 times too large.
STEPS = 6


def valid_length(rho: jax.Array, most: float) -> jax.Array:
    """Return `rho`, with NaN outside [0, `most`]."""
    return nan_unless(rho, (rho >= 0) & (rho <= most))


def cauchy_log_density(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the logarithm of the wrapped Cauchy density; the relative error of the density is a few roundings."""
    rho = valid_length(rho, 1)
    # 1 + rho^2 - 2 rho cos(x), without cancellation
    across = jnp.square(1 - rho) + 4 * rho * jnp.square(jnp.sin(0.5 * x))
    return jnp.where(across == 0, jnp.inf, jnp.log((1 - rho) * (1 + rho)) - jnp.log(2 * np.pi * across))


def cauchy_lower_tail(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the probability of an angle below `x` in [-pi, pi], with the relative error of a few roundings."""
    rho = valid_length(rho, 1)
    half = 0.5 * x
    # The cosine is negative for the float32 beyond pi.
    return jnp.arctan2((1 - rho) * jnp.maximum(jnp.cos(half), 0), -(1 + rho) * jnp.sin(half)) / np.pi


def cauchy_quantile(t: jax.Array, half_minus_t: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the distance in [0, pi] beyond which an angle lies, on one side, with probability `t` in [0, 1/2]."""
    rho = valid_length(rho, 1)
    return 2 * jnp.arctan2((1 - rho) * jnp.sin(np.pi * half_minus_t), (1 + rho) * jnp.sin(np.pi * t))


def cauchy_length(order: int, rho: jax.Array) -> jax.Array:
    """Return the mean of cos(order * x)."""
    return valid_length(rho, 1) ** order


def cardioid_log_density(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the logarithm of the cardioid density."""
    rho = valid_length(rho, 0.5)
    # 1 + 2 rho cos(x), without cancellation near pi
    return jnp.log(((1 - 2 * rho) + 4 * rho * jnp.square(jnp.cos(0.5 * x))) / (2 * np.pi))


def less_sine(y: jax.Array) -> jax.Array:
    """Return y - sin(y) for y in [0, pi], with the relative error of a few roundings."""
    square = y * y
    series = jnp.ones_like(y)
    for k in range(12, 0, -1):
        series = 1 - series * square / ((2 * k + 2) * (2 * k + 3))
    return jnp.where(y < 1.5, y * square / 6 * series, y - jnp.sin(y))


def cardioid_lower_tail(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the probability of an angle below `x` in [-pi, pi]; each tail has a relative error of a few roundings."""
    rho = valid_length(rho, 0.5)
    y = np.pi - jnp.abs(x)
    y = jnp.maximum(y, 0)
    tail = ((1 - 2 * rho) * y + 2 * rho * less_sine(y)) / (2 * np.pi)
    return jnp.where(x < 0, tail, 1 - tail)


def cardioid_quantile(t: jax.Array, half_minus_t: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the distance in [0, pi] beyond which an angle lies, on one side, with probability `t` in [0, 1/2].

    The distance from pi solves Kepler's equation y - 2 rho sin(y) = 2 pi t. Newton's method starts above the solution,
    where it cannot overshoot because the left side is convex.
    """
    e = 2 * valid_length(rho, 0.5)
    area = 2 * np.pi * t
    tiny = float(np.finfo(t.dtype).tiny)
    fixed, of = lax.stop_gradient(e), lax.stop_gradient(area)
    # y - e sin(y) is at least (1 - e) y, and at least e y^3 / pi^2.
    start = jnp.minimum(of / jnp.maximum(1 - fixed, tiny), jnp.cbrt(np.pi**2 * of / jnp.maximum(fixed, tiny)))
    y = jnp.minimum(start, np.pi)

    def step(y: jax.Array, e: jax.Array, area: jax.Array) -> jax.Array:
        slope = (1 - e) + 2 * e * jnp.square(jnp.sin(0.5 * y))
        return y - ((1 - e) * y + e * less_sine(y) - area) / jnp.maximum(slope, tiny)

    for _ in range(STEPS):
        y = step(y, fixed, of)
    # The last step has the derivatives.
    return jnp.maximum(np.pi - step(lax.stop_gradient(y), e, area), 0)


def cardioid_length(order: int, rho: jax.Array) -> jax.Array:
    """Return the mean of cos(order * x)."""
    rho = valid_length(rho, 0.5)
    return {0: jnp.ones_like(rho) + 0 * rho, 1: rho}.get(order, 0 * rho)


def normal_log_density(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the logarithm of the wrapped normal density."""
    scale = nan_unless(scale, scale >= 0)
    narrow = scale < 2.5  # where both series have as many terms
    small = jnp.where(narrow, jnp.maximum(scale, 1e-18), 1.0)
    turns = [2 * np.pi * k for k in range(-TERMS, TERMS + 1)]
    first = -0.5 * jnp.square(x / small)
    # Each exponent relative to that of the nearest turn: -((x + turn)^2 - x^2) / (2 scale^2)
    sums = sum(jnp.exp(-(x + 0.5 * turn) * (turn / small) / small) for turn in turns)
    direct = first + jnp.log(sums) - jnp.log(small * np.sqrt(2 * np.pi))
    rho = jnp.exp(-0.5 * jnp.square(jnp.where(narrow, 2.5, scale)))
    series = sum(rho ** (k * k) * jnp.cos(k * x) for k in range(1, TERMS + 1))
    value = jnp.where(narrow, direct, jnp.log1p(2 * series) - np.log(2 * np.pi))
    return jnp.where(scale == 0, jnp.where(x == 0, jnp.inf, -jnp.inf), value)


def normal_length(order: int, scale: jax.Array) -> jax.Array:
    """Return the mean of cos(order * x)."""
    return jnp.exp(-0.5 * jnp.square(order * nan_unless(scale, scale >= 0)))


def normal_quantile(t: jax.Array, half_minus_t: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the distance, before it is wrapped, beyond which an angle lies on one side with probability `t`."""
    return nan_unless(scale, scale >= 0) * jnp.abs(vectors.normal(t, half_minus_t, jnp.zeros_like(t, bool)))


def normal_variance(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the circular variance."""
    return nan_unless(-jnp.expm1(-0.5 * jnp.square(nan_unless(scale, scale >= 0))), jnp.isfinite(loc))

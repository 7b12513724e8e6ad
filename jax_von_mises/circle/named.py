r"""Compute densities and quantiles of the wrapped Cauchy, cardioid and wrapped normal distributions, centred at 0.

Functions take the distance or the angle from the centre, and return NaN for invalid parameters. The wrapped Cauchy
density is :math:`(1-\rho^2) / (2\pi(1+\rho^2-2\rho\cos x))`, and the cardioid density :math:`(1+2\rho\cos x) / (2\pi)`.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import normal
from jax_von_mises.numerics.circle import HALF_PI, half_pi_rest, with_derivative_of
from jax_von_mises.numerics.elementary import clip, nan_unless, with_slopes

# Terms on each side of the wrapped normal's series. Beyond them, terms are below 1e-16 of the sum.
TERMS = 5
# Steps of Newton's method for the cardioid quantile, from a start that is at most 1.2 times too large.
STEPS = 6
# From this scale on, the wrapped normal density differs from the uniform one by less than 1e-21 of it.
WIDE = 10.0
# From this scale on, the wrapped normal's mean resultant length is 0 in float64, as is its derivative.
WIDEST = 40.0
# The scale at which the score changes from one series to the other.
SCORE_SWITCH = 1.5
# Steps of Newton's method for the wrapped normal quantile; the start is at most 0.1 scales away.
NORMAL_STEPS = 4
# Nodes and weights on [-1, 1] of the rule for small probabilities next to -pi, and the largest exponent over the turn
# around -pi for which it is used; its relative error is then below 3e-14.
NODES, WEIGHTS = (each.tolist() for each in np.polynomial.legendre.leggauss(6))
FALL = 1.5
# Half the number of angles of the trapezoidal rule for the entropy of a wrapped normal of at least the second number.
# Below, the entropy is that of the normal distribution.
ENTROPY_ANGLES, ENTROPY_SWITCH = 64, 0.35
# Below this scale, the wrapped normal's log density is that of the nearest turn alone, up to rounding.
NARROW = 1e-8


def valid_length(rho: jax.Array, most: float) -> jax.Array:
    """Return `rho`, with NaN outside [0, `most`]."""
    return nan_unless(rho, (rho >= 0) & (rho <= most))


def cauchy_across(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return 1 + rho^2 - 2 rho cos(x), without cancellation."""
    return jnp.square(1 - rho) + 4 * rho * jnp.square(jnp.sin(0.5 * x))


def cauchy_log_density(x: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the logarithm of the wrapped Cauchy density; the relative error of the density is a few roundings."""
    rho = valid_length(rho, 1)
    across = cauchy_across(x, rho)
    return jnp.where(across == 0, jnp.inf, jnp.log1p(-rho) + jnp.log1p(rho) - jnp.log(2 * np.pi * across))


def cauchy_log_density_of_atanh(x: jax.Array, t: jax.Array) -> jax.Array:
    """Return the logarithm of the wrapped Cauchy density with rho = tanh(t), also where 1 - rho underflows in rho."""
    gap = 2 / (jnp.exp(2 * t) + 1)
    across = gap * gap + 4 * (1 - gap) * jnp.square(jnp.sin(0.5 * x))
    return jnp.log(gap) + jnp.log(2 - gap) - jnp.log(2 * np.pi * across)


def cauchy_lower_tail(x: jax.Array, rho: jax.Array, lost: ArrayLike = 0.0) -> jax.Array:
    """Return the probability of an angle below `x` + `lost`, where x in [-pi, pi] is rounded by `lost`.

    Each tail has the relative error of a few roundings.
    """
    return tail_of_cauchy(x, valid_length(rho, 1), lost)


def slopes_of_cauchy(
    tail: jax.Array, x: jax.Array, rho: jax.Array, lost: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    """Return the derivatives of `tail_of_cauchy`, also at the ends, where its cosine is clipped."""
    across = np.pi * cauchy_across(x, rho)
    return 0.5 * (1 - rho) * (1 + rho) / across, jnp.sin(x) / across, None


@with_slopes(slopes_of_cauchy)
def tail_of_cauchy(x: jax.Array, rho: jax.Array, lost: ArrayLike) -> jax.Array:
    """Return `cauchy_lower_tail` of a valid `rho`."""
    half = 0.5 * x
    sine = jnp.sin(half)
    # The cosine is negative for the float32 beyond pi.
    cosine = jnp.maximum(jnp.cos(half) - 0.5 * lost * sine, 0)
    return jnp.arctan2((1 - rho) * cosine, -(1 + rho) * sine) / np.pi


def cauchy_quantile(t: jax.Array, half_minus_t: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the distance in [0, pi] beyond which an angle lies, on one side, with probability `t` in [0, 1/2]."""
    rho = valid_length(rho, 1)
    return 2 * jnp.arctan2((1 - rho) * jnp.sin(np.pi * half_minus_t), (1 + rho) * jnp.sin(np.pi * t))


def cauchy_entropy(loc: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the differential entropy, log(2 pi (1 - rho^2))."""
    rho = valid_length(rho, 1)
    return nan_unless(math.log(2 * np.pi) + jnp.log1p(-rho) + jnp.log1p(rho), jnp.isfinite(loc))


def cauchy_divergence(x: jax.Array, rho: jax.Array, other: jax.Array) -> jax.Array:
    """Return the divergence from the law to that at `x` with the length `other`, with full relative accuracy."""
    rho, other = valid_length(rho, 1), valid_length(other, 1)
    apart = jnp.square(rho - other) + 4 * rho * other * jnp.square(jnp.sin(0.5 * x))
    return jnp.where(apart == 0, 0, jnp.log1p(apart / ((1 - rho) * (1 + rho) * (1 - other) * (1 + other))))


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


def distance_from_cut(x: jax.Array, lost: ArrayLike) -> jax.Array:
    """Return the distance of `x` + `lost` from -pi or pi, the nearer one."""
    rest = (HALF_PI - 0.5 * jnp.abs(x)) + (half_pi_rest(x.dtype) - jnp.where(x < 0, -0.5, 0.5) * lost)
    return jnp.maximum(2 * rest, 0)


def cardioid_lower_tail(x: jax.Array, rho: jax.Array, lost: ArrayLike = 0.0) -> jax.Array:
    """Return the probability of an angle below `x` + `lost`, as `cauchy_lower_tail` does."""
    return tail_of_cardioid(x, valid_length(rho, 0.5), lost)


def slopes_of_cardioid(
    tail: jax.Array, x: jax.Array, rho: jax.Array, lost: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    """Return the derivatives of `tail_of_cardioid`, also at the ends and at the centre, where its formula changes."""
    return ((1 - 2 * rho) + 4 * rho * jnp.square(jnp.cos(0.5 * x))) / (2 * np.pi), jnp.sin(x) / np.pi, None


@with_slopes(slopes_of_cardioid)
def tail_of_cardioid(x: jax.Array, rho: jax.Array, lost: ArrayLike) -> jax.Array:
    """Return `cardioid_lower_tail` of a valid `rho`."""
    y = distance_from_cut(x, lost)
    tail = ((1 - 2 * rho) * y + 2 * rho * less_sine(y)) / (2 * np.pi)
    return jnp.where(x < 0, tail, 1 - tail)


def cardioid_quantile(t: jax.Array, half_minus_t: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the distance in [0, pi] beyond which an angle lies, on one side, with probability `t` in [0, 1/2].

    The distance from pi solves Kepler's equation y - 2 rho sin(y) = 2 pi t. Newton's method starts above the solution,
    where it cannot overshoot because the left side is convex.
    """
    e = 2 * valid_length(rho, 0.5)
    area = 2 * np.pi * t
    # XLA may compute area * pi^2 / e as t * (2 pi^3 / e), which must not overflow: 0 times infinity would be NaN.
    tiny = 64 * float(np.finfo(t.dtype).tiny)
    fixed, of = lax.stop_gradient(e), lax.stop_gradient(area)
    # y - e sin(y) is at least (1 - e) y, and at least e y^3 / pi^2.
    start = jnp.minimum(of / jnp.maximum(1 - fixed, tiny), jnp.cbrt(np.pi**2 * of / jnp.maximum(fixed, tiny)))
    y = jnp.minimum(start, np.pi)

    def step(y: jax.Array, e: jax.Array, area: jax.Array) -> jax.Array:
        slope = (1 - e) + 2 * e * jnp.square(jnp.sin(0.5 * y))
        return y - ((1 - e) * y + e * less_sine(y) - area) / jnp.maximum(slope, tiny)

    for _ in range(STEPS):
        y = step(y, fixed, of)
    # The last step has the derivatives, also where rounding made the distance negative.
    distance = np.pi - step(lax.stop_gradient(y), e, area)
    return distance + lax.stop_gradient(jnp.maximum(-distance, 0))


def cardioid_entropy(loc: jax.Array, rho: jax.Array) -> jax.Array:
    """Return the differential entropy, log(4 pi / (1 + s)) - (1 - s) with s = sqrt(1 - 4 rho^2)."""
    rho = nan_unless(valid_length(rho, 0.5), jnp.isfinite(loc))
    s = jnp.sqrt((1 - 2 * rho) * (1 + 2 * rho))
    return math.log(4 * np.pi) - jnp.log1p(s) - 4 * rho * rho / (1 + s)


def cardioid_divergence(x: jax.Array, rho: jax.Array, other: jax.Array) -> jax.Array:
    """Return the divergence from the law to that at `x` with the length `other`.

    The density is that of (1 + b^2 + 2 b cos(x)) / (1 + b^2), with b = 2 rho / (1 + sqrt(1 - 4 rho^2)).
    """
    rho, other = valid_length(rho, 0.5), valid_length(other, 0.5)
    b, of_other = (2 * r / (1 + jnp.sqrt((1 - 2 * r) * (1 + 2 * r))) for r in (rho, other))
    apart = (b - of_other) + 2 * of_other * jnp.square(jnp.sin(0.5 * x))
    found = jnp.log1p((of_other - b) * (of_other + b) / (1 + b * b)) + 2 * rho * apart
    return with_derivative_of(found, jnp.maximum(found, 0))


def cardioid_length(order: int, rho: jax.Array) -> jax.Array:
    """Return the mean of cos(order * x)."""
    rho = valid_length(rho, 0.5)
    return {0: jnp.ones_like(rho) + 0 * rho, 1: rho}.get(order, 0 * rho)


@with_slopes(lambda y, x, scale: (1 / scale, -y / scale))
def in_scales(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return x / scale; its derivatives, unlike those of JAX, do not divide by a square that underflows."""
    return x / scale


def normal_log_density(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the logarithm of the wrapped normal density."""
    scale = nan_unless(scale, scale >= 0)
    narrow = scale < 2.5  # where both series have as many terms
    small = jnp.where(narrow & (scale > 0), scale, 1.0)
    turns = [2 * np.pi * k for k in range(-TERMS, TERMS + 1)]
    # Each exponent relative to that of the nearest turn: -((x + turn)^2 - x^2) / (2 scale^2)
    within = jnp.maximum(small, NARROW)
    relative = [-(x + 0.5 * turn) * (turn / within) / within for turn in turns]
    # The largest is 0, or more if the reduction of a large angle has rounded `x` to more than pi.
    top = lax.stop_gradient(functools.reduce(jnp.maximum, relative))
    sums = sum(jnp.exp(each - top) for each in relative)
    direct = -0.5 * jnp.square(in_scales(x, small)) + top + jnp.log(sums) - jnp.log(small * math.sqrt(2 * np.pi))
    rho = normal_length(1, jnp.where(narrow, 2.5, scale))
    series = sum(rho ** (k * k) * jnp.cos(k * x) for k in range(1, TERMS + 1))
    value = jnp.where(narrow, direct, jnp.log1p(2 * series) - math.log(2 * np.pi))
    return jnp.where(scale == 0, jnp.where(x == 0, jnp.inf, -jnp.inf), value)


def compact_normal_log_density(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return `normal_log_density` by fewer operations, so that its second derivatives compile faster.

    The relative error of the density is below 1e-11, besides rounding; it is largest near a scale of `SCORE_SWITCH`.
    """
    x, scale = (each[None] for each in jnp.broadcast_arrays(x, scale))
    narrow = scale < SCORE_SWITCH
    small, wide = jnp.where(narrow, scale, SCORE_SWITCH), jnp.where(narrow, SCORE_SWITCH, scale)
    turns = (2 * np.pi * jnp.arange(-2, 3, dtype=x.dtype)).reshape(-1, *[1] * (x.ndim - 1))
    relative = -(x + 0.5 * turns) * (turns / small) / small
    # No exponent is above 0 by more than rounding.
    sums = jnp.sum(jnp.exp(relative), 0, keepdims=True)
    direct = jnp.log(sums) - 0.5 * jnp.square(x / small) - jnp.log(small * math.sqrt(2 * np.pi))
    k = jnp.arange(1, TERMS + 1, dtype=x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    waves = jnp.sum(jnp.exp(-0.5 * jnp.square(k * wide)) * jnp.cos(k * x), 0, keepdims=True)
    return jnp.where(narrow, direct, jnp.log1p(2 * waves) - math.log(2 * np.pi))[0]


def normal_score(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the derivative of the logarithm of the wrapped normal density with respect to `x`.

    The error is a few roundings of the result, or of 1 / scale for the nearest turns of both sides, which cancel at pi.
    """
    scale = nan_unless(scale, scale >= 0)
    narrow = scale < SCORE_SWITCH
    small = jnp.maximum(jnp.where(narrow, scale, 1.0), np.finfo(x.dtype).tiny)
    within = jnp.maximum(small, NARROW)
    # As in `normal_log_density`, but pi is a sum of two numbers, since the weights of two turns are equal there.
    turns = range(-TERMS, TERMS + 1)
    relative = [-moved_by(x, k) * (2 * np.pi * k / within) / within for k in turns]
    top = lax.stop_gradient(functools.reduce(jnp.maximum, relative))
    weights = [jnp.exp(each - top) for each in relative]
    mean = sum(w * moved_by(x, 2 * k) for w, k in zip(weights, turns, strict=True)) / sum(weights)
    # XLA would merge two divisions into one by a square that underflows.
    inverse = in_scales(jnp.ones_like(small), small)
    direct = -(mean * inverse) * inverse
    rho = normal_length(1, jnp.where(narrow, SCORE_SWITCH, scale))
    waves = [rho ** (k * k) for k in range(1, TERMS + 1)]
    above = sum(k * each * jnp.sin(k * x) for k, each in enumerate(waves, 1))
    series = -2 * above / (1 + 2 * sum(each * jnp.cos(k * x) for k, each in enumerate(waves, 1)))
    return jnp.where(scale == 0, jnp.where(x == 0, 0, -jnp.inf * jnp.sign(x)), jnp.where(narrow, direct, series))


def moved_by(x: jax.Array, halves: int) -> jax.Array:
    """Return x + pi * `halves` without the rounding error of pi."""
    exact = halves * np.pi
    near = float(np.asarray(exact, x.dtype))
    rest = halves * 1.2246467991473532e-16 if x.dtype == jnp.float64 else exact - near
    return xla.round_here(x + near, 64) + rest


def half_square(scale: jax.Array) -> jax.Array:
    """Return scale^2 / 2, at most that of `WIDEST`."""
    return 0.5 * jnp.square(clip(nan_unless(scale, scale >= 0), 0, WIDEST))


def normal_length(order: int, scale: jax.Array) -> jax.Array:
    """Return the mean of cos(order * x)."""
    return jnp.exp(-(order**2) * half_square(scale))


def normal_quantile(t: jax.Array, half_minus_t: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the distance, before it is wrapped, beyond which an angle lies on one side with probability `t`.

    A `scale` above `WIDE` counts as `WIDE`, so that the distance has enough digits after the turns are removed.
    """
    scale = clip(nan_unless(scale, scale >= 0), 0, WIDE)
    return scale * jnp.abs(normal.quantile(t, half_minus_t, jnp.zeros_like(t, bool)))


def slopes_of_normal(
    tail: jax.Array, x: jax.Array, scale: jax.Array, lost: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    """Return the derivatives of `tail_of_normal`; the second one follows from the heat equation."""
    density = jnp.exp(normal_log_density(x, scale))
    # Where the density underflows, the score may overflow.
    in_scale = jnp.where(density == 0, 0, density * (jnp.minimum(scale, WIDEST) * normal_score(x, scale)))
    in_scale = jnp.where(scale == 0, 0, in_scale)
    return density, in_scale, None


def wrapped_normal_lower_tail(x: jax.Array, scale: jax.Array, lost: ArrayLike = 0.0) -> jax.Array:
    """Return the probability of an angle below `x` + `lost`, as `cauchy_lower_tail` does.

    A tail above 1e-30 has a relative error below 2e-5 (1e-12 in float64).
    """
    return tail_of_normal(x, nan_unless(scale, scale >= 0), lost)


@with_slopes(slopes_of_normal)
def tail_of_normal(x: jax.Array, scale: jax.Array, lost: ArrayLike) -> jax.Array:
    """Return `wrapped_normal_lower_tail` of a valid `scale`.

    A narrow law has, below -d, the sum over turns j of Q((d + 2 pi j) / scale) - Q((2 pi (j + 1) - d) / scale), where Q
    is the upper tail of the normal distribution. Next to -pi the two are nearly equal, and a Gauss rule gives their
    difference. A wide law has a series of waves.
    """
    y = distance_from_cut(x, lost)
    small = jnp.clip(scale, float(np.finfo(x.dtype).tiny), SCORE_SWITCH)
    distance, width = jnp.abs(x) + jnp.where(x < 0, -1, 1) * lost, 2 * y / small
    short = jnp.minimum(width, FALL * small / np.pi)
    apart: Any = 0.0
    near: Any = 0.0
    for j in (0, 1):
        first, last = distance + 2 * np.pi * j, (2 * j + 2) * np.pi - distance
        apart += jax.scipy.special.ndtr(-first / small) - jax.scipy.special.ndtr(-last / small)
        middle = (2 * j + 1) * np.pi / small
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            near += weight * jnp.exp(-0.5 * jnp.square(middle + (0.5 * node) * short))
    narrow = jnp.where(width < FALL * small / np.pi, short * near / math.sqrt(8 * np.pi), apart)
    rho = normal_length(1, jnp.maximum(scale, SCORE_SWITCH))
    waves = sum([float((-1) ** k) / k * rho ** (k * k) * jnp.sin(k * y) for k in range(1, TERMS + 1)])
    tail = jnp.where(scale < SCORE_SWITCH, narrow, (0.5 * y + waves) / np.pi)
    tail = jnp.where(scale == 0, 0, tail)
    return jnp.where((x < 0) | jnp.isnan(tail), tail, 1 - tail)


def slopes_of_quantile(
    distance: jax.Array, t: jax.Array, half_minus_t: jax.Array, scale: jax.Array
) -> tuple[jax.Array, None, jax.Array]:
    """Return the derivatives of `distance_of_normal`, by the implicit function theorem."""
    in_scale = jnp.where(scale == 0, 0, -jnp.minimum(scale, WIDEST) * normal_score(distance, scale))
    return -jnp.exp(-normal_log_density(distance, scale)), None, in_scale


@with_slopes(slopes_of_quantile)
def distance_of_normal(t: jax.Array, half_minus_t: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the distance in [0, pi] beyond which an angle lies, on one side, with probability `t` in [0, 1/2].

    Newton's method starts from the quantile of the normal distribution on [-pi, pi].
    """
    tiny = float(np.finfo(t.dtype).tiny)
    small = jnp.clip(nan_unless(scale, scale >= 0), tiny, WIDE)
    cut = jax.scipy.special.ndtr(-np.pi / small)
    some = jnp.maximum(t * (1 - 2 * cut) + cut, tiny)
    start = -small * jax.scipy.special.ndtri(some)
    rho = normal_length(1, small)

    def step(_: int, distance: jax.Array) -> jax.Array:
        # The slope needs few terms.
        turns = sum([jnp.exp(-0.5 * jnp.square((distance - turn) / small)) for turn in (0, 2 * np.pi)])
        waves = 0.5 + rho * jnp.cos(distance) + rho**4 * jnp.cos(2 * distance)
        slope = jnp.where(small < SCORE_SWITCH, turns / (math.sqrt(2 * np.pi) * small), waves / np.pi)
        move = (tail_of_normal(-distance, small, 0 * distance) - t) / jnp.maximum(slope, tiny)
        return clip(distance + move, 0, np.pi)

    distance = lax.fori_loop(0, NORMAL_STEPS, step, clip(start, 0, np.pi))
    return jnp.where(t == 0, np.pi + 0 * distance, jnp.where(scale == 0, 0, distance))


def normal_entropy(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the differential entropy: that of the normal distribution, or a sum over angles."""
    scale = nan_unless(scale, (scale >= 0) & jnp.isfinite(loc))
    angles = np.arange(ENTROPY_ANGLES + 1) * (np.pi / ENTROPY_ANGLES)
    weights = np.where(angles % np.pi == 0, 0.5, 1) * (2 * np.pi / ENTROPY_ANGLES)
    shape = (*scale.shape, len(angles))
    x, minus_weights = (jnp.broadcast_to(jnp.asarray(each, scale.dtype), shape) for each in (angles, -weights))
    log_density = normal_log_density(x, jnp.broadcast_to(jnp.maximum(scale, ENTROPY_SWITCH)[..., None], shape))
    by_angles = jnp.sum(minus_weights * jnp.exp(log_density) * log_density, -1)
    narrow = 0.5 * math.log(2 * np.pi * math.e) + jnp.log(jnp.minimum(scale, ENTROPY_SWITCH))
    return jnp.where(scale < ENTROPY_SWITCH, narrow, by_angles)


def normal_variance(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the circular variance."""
    return nan_unless(-jnp.expm1(-half_square(scale)), jnp.isfinite(loc))


def normal_deviation(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the circular standard deviation."""
    return nan_unless(scale, (scale >= 0) & jnp.isfinite(loc))

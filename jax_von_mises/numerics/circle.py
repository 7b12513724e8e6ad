"""Subtract angles, remove full turns, and wrap results to [-pi, pi)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises.numerics.elementary import clip, nan_unless, with_slopes

# The largest float below pi. The float32 nearest pi is larger than pi.
LARGEST_ANGLE = {
    np.dtype(np.float32): float(np.nextafter(np.float32(np.pi), np.float32(0))),
    np.dtype(np.float64): float(np.pi),
}
TWO_PI = 2 * np.pi
HALF_PI = np.pi / 2
# 2 pi as a sum of three numbers. The first two have so few digits that their products with the number of turns are
# exact up to 2^12 turns (float32) or 2^27 (float64). For more turns, the rounding errors stay below the spacing of
# floats near `loc`.
TURN_PARTS = {
    "float32": (6.25, 0.033184051513671875, 2 * np.pi - 6.25 - 0.033184051513671875),
    "float64": (6.283185243606567, 6.357301884918343e-08, 2.4492935982947064e-16),
}
# The same with the third number cut to as few digits, and the rest as a fourth one.
EXACT_TURN_PARTS = {
    "float32": (6.25, 0.033184051513671875, 1.255422830581665e-06, 2.430840202602477e-10),
    "float64": (*TURN_PARTS["float64"], 0.0),
}
LARGEST_LOC = {"float32": 2.0**24, "float64": 2.0**53}


def largest_angle(dtype: DTypeLike) -> float:
    """Return the largest float below pi."""
    return LARGEST_ANGLE[np.dtype(dtype)]


def reduce_turns(loc: jax.Array) -> jax.Array:
    """Return `loc` minus full turns, in [-pi, pi] up to rounding; angles already in that interval are unchanged.

    The result is NaN where `loc` is not finite, or so large that neighbouring floats are more than a radian apart.
    """
    name = np.dtype(loc.dtype).name
    turns = lax.round(loc * (1 / TWO_PI), lax.RoundingMethod.TO_NEAREST_EVEN)
    reduced = loc
    for part in TURN_PARTS[name]:
        reduced = reduced - turns * part
    return nan_unless(reduced, jnp.abs(loc) <= LARGEST_LOC[name])


@with_slopes(lambda y, x, loc: (1, 1))
def wrap(x: jax.Array, loc: jax.Array) -> jax.Array:
    """Return x + loc wrapped to [-pi, pi), for `x` and `loc` in [-pi, pi].

    A sum that is already in the interval is only rounded once. The derivatives with respect to both arguments are 1,
    even where the sum is clipped.
    """
    total = x + loc
    turn = jnp.where(total >= np.pi, -1.0, jnp.where(total < -np.pi, 1.0, 0.0)).astype(total.dtype)
    limit = largest_angle(total.dtype)
    return clip(total + turn * TWO_PI, -limit, limit)


def deviation(x: jax.Array, loc: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x - loc minus full turns, in [-pi, pi] up to rounding, and the number of turns removed."""
    difference, missing = x - loc, rounded_off(x, loc)
    turns = lax.round(lax.stop_gradient(difference) * (1 / TWO_PI), lax.RoundingMethod.TO_NEAREST_EVEN)
    return less_turns(difference, missing), turns


def exact_deviation(x: jax.Array, loc: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the results of `deviation`, up to rounding, and what rounding has removed from the first one.

    It matters next to -pi and pi, where hardly any probability is left, and at large concentrations. It has no
    derivatives.
    """
    away, turns = deviation(x, loc)
    x, loc = lax.stop_gradient((x, loc))
    first, second, third, fourth = EXACT_TURN_PARTS[np.dtype(x.dtype).name]
    # The first three products are exact, so it does not matter whether a compiler rounds them before it subtracts.
    reduced = ((x - loc) - turns * first) - turns * second
    nearly, rest = reduced - turns * third, rounded_off(x, loc) - turns * fourth
    lost = rounded_off(reduced, turns * third) + rounded_off(nearly, -rest)
    return with_derivative_of(away, nan_unless(nearly + rest, ~jnp.isnan(away))), turns, lost


@with_slopes(lambda y, x, value: (1, None))
def with_derivative_of(x: jax.Array, value: jax.Array) -> jax.Array:
    """Return `value`, equal to `x` up to rounding, with the derivative of `x`."""
    return value


def at_exact(function: Callable[[jax.Array], jax.Array], x: jax.Array, lost: jax.Array) -> jax.Array:
    """Return ``function(x + lost)``, for a `lost` that is small against the spacing of floats at `x`, to first order.

    The change itself has no derivatives.
    """
    value = function(x)
    change = jax.jvp(function, (lax.stop_gradient(x),), (lost,))[1]
    return value + lax.stop_gradient(jnp.where(jnp.isfinite(change), change, 0))


@with_slopes(lambda y, x, loc: (None, None))
def rounded_off(x: jax.Array, loc: jax.Array) -> jax.Array:
    """Return the rounding error of x - loc [1]_, the exact difference minus the rounded one.

    The error matters at large concentrations.

    .. [1] D. E. Knuth. The Art of Computer Programming, volume 2, 1998, section 4.2.2, theorem B.
    """
    # Keep this order of operations, since XLA would cancel a constant `loc` that is subtracted and then added again.
    difference = x - loc
    part = difference - x
    return (x - (difference - part)) + (-loc - part)


@with_slopes(lambda y, x, missing: (nan_unless(jnp.ones_like(y), ~jnp.isnan(y)), None))
def less_turns(x: jax.Array, missing: ArrayLike) -> jax.Array:
    """Return `x` minus its full turns, plus `missing`; only `x` has a derivative, which is 1."""
    return reduce_turns(x) + missing


def half_pi_rest(dtype: DTypeLike) -> float:
    """Return pi/2 minus the float nearest to it.

    Without this correction, the tail integral would be inaccurate near pi.
    """
    nearest = np.asarray(HALF_PI, dtype)
    return float(HALF_PI - float(nearest)) + (6.123233995736766e-17 if dtype == jnp.float64 else 0.0)

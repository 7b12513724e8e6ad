"""Angles on the circle: full turns, differences, and the interval [-pi, pi) of all results."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics.elementary import clip, nan_unless

# The angles lie in [-pi, pi): the largest float below pi, since the nearest float32 to pi is larger than pi.
LARGEST_ANGLE = {
    np.dtype(np.float32): float(np.nextafter(np.float32(np.pi), np.float32(0))),
    np.dtype(np.float64): float(np.pi),
}
TWO_PI = 2 * np.pi
# 2 pi in three parts, the first two short: their products with the number of turns are exact as long as that is
# small, and beyond (2^12 turns in float32, 2^27 in float64) their rounding stays below the spacing of `loc`.
TURN_PARTS = {
    "float32": (6.25, 0.033184051513671875, 2 * np.pi - 6.25 - 0.033184051513671875),
    "float64": (6.283185243606567, 6.357301884918343e-08, 2.4492935982947064e-16),
}
LARGEST_LOC = {"float32": 2.0**24, "float64": 2.0**53}


def largest_angle(dtype):
    """Return the largest float below pi."""
    return LARGEST_ANGLE[np.dtype(dtype)]


def reduce_turns(loc):
    """Return `loc` less full turns, in [-pi, pi] up to rounding; itself if it is there already.

    NaN where neighbouring floats are more than a radian apart and so hold no direction, or `loc` is not finite.
    """
    name = np.dtype(loc.dtype).name
    turns = lax.round(loc * (1 / TWO_PI), lax.RoundingMethod.TO_NEAREST_EVEN)
    reduced = loc
    for part in TURN_PARTS[name]:
        reduced = reduced - turns * part
    return nan_unless(reduced, jnp.abs(loc) <= LARGEST_LOC[name])


@jax.custom_jvp
def wrap(x, loc):
    """Return x + loc in [-pi, pi), for both in [-pi, pi]. Only sums outside are moved, so the others keep all digits.

    The derivative in either is 1, also where the sum is moved to the end of the interval.
    """
    total = x + loc
    turn = jnp.where(total >= np.pi, -1.0, jnp.where(total < -np.pi, 1.0, 0.0)).astype(total.dtype)
    limit = largest_angle(total.dtype)
    return clip(total + turn * TWO_PI, -limit, limit)


@wrap.defjvp
def _wrap_jvp(primals, tangents):
    return wrap(*primals), tangents[0] + tangents[1]


def deviation(x, loc):
    """Return x - loc less full turns, in [-pi, pi] up to rounding, and the turns."""
    difference, missing = x - loc, rounded_off(x, loc)
    turns = lax.round(lax.stop_gradient(difference) * (1 / TWO_PI), lax.RoundingMethod.TO_NEAREST_EVEN)
    return less_turns(difference, missing), turns


@jax.custom_jvp
def rounded_off(x, loc):
    """Return the rounding error of x - loc, exactly [1]_; it matters at large concentrations.

    .. [1] D. E. Knuth. The Art of Computer Programming, volume 2, 1998, section 4.2.2, theorem B.
    """
    # In this order: of a constant loc that is subtracted and added again XLA would make nothing.
    difference = x - loc
    part = difference - x
    return (x - (difference - part)) + (-loc - part)


@rounded_off.defjvp
def _rounded_off_jvp(primals, tangents):
    missing = rounded_off(*primals)
    return missing, jnp.zeros_like(missing)


@jax.custom_jvp
def less_turns(x, missing):
    """Return `reduce_turns` of x + `missing`; its derivative in x is 1."""
    return reduce_turns(x) + missing


@less_turns.defjvp
def _less_turns_jvp(primals, tangents):
    x = less_turns(*primals)
    return x, nan_unless(tangents[0], ~jnp.isnan(x))

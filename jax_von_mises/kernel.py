"""From words to angles in one elementwise pass: sign and tail probability, quantile, location, wrap.

Two routes from the tail probability t to |x|, on the same words and to the same accuracy:

- *direct*: the quantile of `quantile.half_quantile` for every element. Any concentrations.
- *table*: for one concentration. The quantile is computed once on a grid that halves towards t = 0, inside
  the program, so that a traced concentration works too; an element then costs one row of four coefficients
  and three multiply-adds.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises import integral, lookup, quantile, xla
from jax_von_mises.elementary import only
from jax_von_mises.sharding import broadcast_sharded

# One word's smallest tail probability is 2^-33, two words' 2^-65, so this many octaves lie below 1/2.
OCTAVES = {"float32": 32, "float64": 64}
# Cells in an octave (as a power of two) and degree of the polynomial in each. The interpolation error is
# about cells^-(degree + 1) / (100 degree): below rounding in both precisions.
CELL_BITS = {"float32": 4, "float64": 5}
DEGREE = {"float32": 3, "float64": 7}

TWO_PI = 2 * np.pi
# 2 pi in three parts, the first two short: their products with the number of turns are exact as long as that is
# small, and beyond (2^12 turns in float32, 2^27 in float64) their rounding stays below the spacing of `loc`.
TURN_PARTS = {
    "float32": (6.25, 0.033184051513671875, 2 * np.pi - 6.25 - 0.033184051513671875),
    "float64": (6.283185243606567, 6.357301884918343e-08, 2.4492935982947064e-16),
}
LARGEST_LOC = {"float32": 2.0**24, "float64": 2.0**53}


class Tail(NamedTuple):
    """Tail probability `t` in (0, 1/2), its complement `c` = 1/2 - t, both exact to rounding, and a sign bit."""

    t: jax.Array
    c: jax.Array
    sign: jax.Array


def words_per_element(dtype):
    """How many 32-bit words one angle takes."""
    return 2 if dtype == jnp.float64 else 1


def tail(words):
    """Split the word (float32) or two words (float64) of each element.

    The lowest bit of the first word is the sign. The other 31 or 63 bits m give t = (m + 1/2) 2^-32 or
    (m + 1/2) 2^-64, and the complemented bits give c, so that neither end of (0, 1/2) is rounded away.
    """
    first = words[0]
    high = first >> 1
    negative = (first & np.uint32(1)) == 1

    def value(high, low):
        # As signed, which every backend converts in one instruction; the top bit is clear.
        number = lax.bitcast_convert_type(high, jnp.int32)
        if low is None:
            return (number.astype(jnp.float32) + 0.5) * 2.0**-32
        return number.astype(jnp.float64) * 2.0**-32 + (low.astype(jnp.float64) + 0.5) * 2.0**-64

    low = words[1] if len(words) == 2 else None
    mask = np.uint32(0x7FFFFFFF)
    return Tail(value(high, low), value(high ^ mask, None if low is None else ~low), negative)


def table_grid(dtype):
    """Tail probabilities (rows, nodes) where the table samples the quantile, float64, rows ascending."""
    octaves, cells, degree = OCTAVES[dtype.name], 2 ** CELL_BITS[dtype.name], DEGREE[dtype.name]
    # Chebyshev points with both ends: cells then join without a step, and the first coefficient is a value.
    nodes = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    octave = 2.0 ** -np.arange(octaves + 1.0, 1.0, -1.0)
    return (octave[:, None, None] * (1 + (np.arange(cells)[:, None] + nodes) / cells)).reshape(-1, degree + 1), nodes


def octave_table(kappa):
    """Coefficients (degree + 1, rows) of |x| in each cell, for a scalar `kappa`."""
    dtype = kappa.dtype
    t, nodes = table_grid(np.dtype(dtype))
    # What depends on one number alone would be a kernel of its own each time.
    kappa = xla.store_on_cuda(jnp.broadcast_to(kappa, t.shape))
    x = quantile.half_quantile(jnp.asarray(t, dtype), jnp.asarray(0.5 - t, dtype), kappa)
    return lookup.cell_polynomials(x, nodes)


def look_up(t, table, out_sharding=None):
    """The cubic (float32) of the cell that holds each `t`."""
    dtype = np.dtype(t.dtype)
    info = jnp.finfo(dtype)
    cell_bits, unsigned = CELL_BITS[dtype.name], jnp.uint64 if dtype == np.float64 else jnp.uint32
    constant = np.dtype(unsigned).type
    bits = lax.bitcast_convert_type(jnp.minimum(t, below_half(dtype)), unsigned)
    # Exponent and first mantissa bits number the cells; the other mantissa bits are the place in the cell.
    smallest = (1 - info.minexp) - 1 - OCTAVES[dtype.name]
    row = (bits >> constant(info.nmant - cell_bits)) - constant(smallest << cell_bits)
    one = constant((1 - info.minexp) << info.nmant)
    mantissa = (bits << constant(cell_bits)) & constant((1 << info.nmant) - 1)
    place = lax.bitcast_convert_type(mantissa | one, dtype) - 1
    return lookup.evaluate(table, row.astype(jnp.int32), place, out_sharding)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def magnitude(t, c, kappa, method, out_sharding):
    """|x| of the tail probability `t`; `kappa` is a scalar for the table route, else of the shape of `t`.

    A negative `kappa` becomes NaN in here, so that its derivative is NaN in both modes; outside, a selection would give
    it the derivative 0.
    """
    kappa = jnp.where(kappa >= 0, kappa, jnp.nan)
    if method == "table":
        return xla.clip(look_up(t, octave_table(kappa), out_sharding), 0, quantile.largest_angle(t.dtype))
    return quantile.half_quantile(t, c, kappa)


@magnitude.defjvp
def _magnitude_jvp(method, out_sharding, primals, tangents):
    # Both routes differentiate the law, not the interpolation: by the implicit function theorem at the angle drawn.
    t, c, kappa = primals
    x = magnitude(t, c, kappa, method, out_sharding)
    slope = integral.derivative(x, broadcast_sharded(kappa, x.shape, out_sharding))
    return x, slope * broadcast_sharded(tangents[2], x.shape, out_sharding)


def reduce_turns(loc):
    """`loc` less whole turns, in [-pi, pi] up to rounding; itself if it is there already.

    NaN where neighbouring floats are more than a radian apart and so hold no direction, or `loc` is not finite.
    """
    name = np.dtype(loc.dtype).name
    turns = lax.round(loc * (1 / TWO_PI), lax.RoundingMethod.TO_NEAREST_EVEN)
    reduced = loc
    for part in TURN_PARTS[name]:
        reduced = reduced - turns * part
    return only(reduced, jnp.abs(loc) <= LARGEST_LOC[name])


def wrap(x, loc):
    """x + loc in [-pi, pi), for both in [-pi, pi]. Only sums outside are moved, so the others keep all digits."""
    total = x + loc
    turn = jnp.where(total >= np.pi, -1.0, jnp.where(total < -np.pi, 1.0, 0.0)).astype(total.dtype)
    limit = quantile.largest_angle(total.dtype)
    return xla.clip(total + turn * TWO_PI, -limit, limit)


def below_half(dtype):
    """The largest float below 1/2: 1/2 is where the rounding of the largest words ends; it belongs to the last cell."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


def angles(words, loc, kappa, method, out_sharding=None):
    """Angles in [-pi, pi) from the words of each element.

    Parameters
    ----------
    words : tuple of one (float32) or two (float64) uint32 arrays
    loc, kappa : float32 or float64 arrays
        Mean direction in radians and concentration; broadcast against the words. Negative or NaN `kappa` and
        non-finite `loc` give NaN.
    method : {"direct", "table"}
        "table" needs a scalar `kappa`.
    """
    if method == "direct":
        words = xla.finish_words(words)
    t, c, negative = tail(words)
    if method == "direct":
        kappa = broadcast_sharded(kappa, t.shape, out_sharding)
    else:
        t, negative = xla.carry_sign_on_cuda(t, negative, below_half(t.dtype))
    x = magnitude(t, c, kappa, method, out_sharding)
    return wrap(jnp.where(negative, -x, x), broadcast_sharded(reduce_turns(loc), x.shape, out_sharding))

"""Piecewise polynomials that a program makes for itself: a function is computed on a grid, and then looked up.

One concentration of many angles has two: a table of its quantile, for the sampler, and one of its tail probability.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import quantile, tail_probability, xla
from jax_von_mises.numerics.elementary import whole_bits

# One word's smallest tail probability is 2^-33, two words' 2^-65, so this many octaves lie below 1/2.
OCTAVES = {"float32": 32, "float64": 64}
# Cells in an octave (as a power of two) and degree of the polynomial in each. The interpolation error is
# about cells^-(degree + 1) / (100 degree): below rounding in both precisions.
CELL_BITS = {"float32": 4, "float64": 5}
DEGREE = {"float32": 3, "float64": 7}


def cell_polynomials(values, nodes):
    """Coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1).

    `nodes` are their places in a cell, from 0 to 1.
    """
    # From differences: formed from the values themselves, the power coefficients would lose a digit.
    powers = np.linalg.inv(np.vander(nodes, increasing=True)[1:, 1:]).T
    return xla.cell_coefficients(values, powers)


def evaluate(coefficients, cell, place, out_sharding=None):
    """The polynomial of each `cell` (int32, within bounds) at `place` in [0, 1]."""
    value = None
    for column in reversed(tuple(coefficients)):
        term = column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding)
        value = term if value is None else value * place + term
    return value


def table_grid(dtype):
    """Tail probabilities (rows, nodes) where the table samples the quantile, float64, rows ascending."""
    octaves, cells, degree = OCTAVES[dtype.name], 2 ** CELL_BITS[dtype.name], DEGREE[dtype.name]
    # Chebyshev points with both ends: cells then join without a step, and the first coefficient is a value.
    nodes = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    octave = 2.0 ** -np.arange(octaves + 1.0, 1.0, -1.0)
    return (octave[:, None, None] * (1 + (np.arange(cells)[:, None] + nodes) / cells)).reshape(-1, degree + 1), nodes


def quantile_table(kappa):
    """Coefficients (degree + 1, rows) of |x| in each cell, for a scalar `kappa`."""
    dtype = kappa.dtype
    t, nodes = table_grid(np.dtype(dtype))
    kappa = jnp.broadcast_to(kappa, t.shape)
    x = quantile.half_quantile(jnp.asarray(t, dtype), jnp.asarray(0.5 - t, dtype), kappa)
    return cell_polynomials(x, nodes)


def evaluate_quantile_table(t, table, out_sharding=None):
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
    return evaluate(table, row.astype(jnp.int32), place, out_sharding)


def below_half(dtype):
    """The largest float below 1/2: 1/2 is where the rounding of the largest words ends; it belongs to the last cell."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


# Float32 only. Cells are powers of two wide, and nodes such fractions of them, so that no place in a cell is rounded:
# far out one rounding of the angle is 1e-5 of the tail.
TAIL_CELLS = 2048
TAIL_NODES = (0.0, 0.25, 0.75, 1.0)
# Up to this concentration the table has two halves, one from 0 upwards and one from the float next to pi downwards;
# beyond, a tail at pi is no float, and the table ends where e^-q is e^-90.
TWO_HALVES_BELOW = 45.0
HALF_CELL = 2.0**-9
NEAR_PI = float(np.float32(np.pi))
# The table's factor: the coefficients of a tail next to the smallest float would be none.
TAIL_FACTOR = 2.0**40


class TailTable(NamedTuple):
    """Cubics (4, TAIL_CELLS), the inverse of a cell's width, and whether there are two halves."""

    coefficients: jax.Array
    scale: jax.Array
    halves: jax.Array


def tail_table(kappa):
    """Tail probabilities of one concentration; the polynomials add an error of 4e-7 of the tail."""
    halves = kappa < TWO_HALVES_BELOW
    end = 2 * jnp.arcsin(jnp.sqrt(jnp.minimum(TWO_HALVES_BELOW / kappa, 1)))
    # The power of two next above.
    bits = lax.bitcast_convert_type(end / TAIL_CELLS, jnp.uint32)
    cell = lax.bitcast_convert_type((bits + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000), jnp.float32)
    scale = jnp.where(jnp.isnan(kappa), kappa, jnp.where(halves, 1 / HALF_CELL, jnp.minimum(1 / cell, 1e30)))
    # Cells share their ends, so three values each, and one at the end of either half.
    half = TAIL_CELLS // 2
    count = (np.arange(TAIL_CELLS)[:, None] + np.array(TAIL_NODES[:3])).reshape(2, -1)
    count = np.concatenate([count, [[half], [TAIL_CELLS]]], axis=1)
    wide = np.stack([count[0] * HALF_CELL, NEAR_PI - (count[1] - half) * HALF_CELL])
    x = jnp.where(halves, jnp.asarray(wide, jnp.float32), jnp.asarray(count, jnp.float32) * cell)
    values = jnp.where(
        kappa == jnp.inf, 0, tail_probability.signed_tail(x, jnp.broadcast_to(kappa, x.shape), TAIL_FACTOR)
    )
    last = jnp.concatenate([values[:, 3:-1:3], values[:, -1:]], axis=1)
    values = jnp.concatenate([values[:, :-1].reshape(TAIL_CELLS, 3), last.reshape(TAIL_CELLS, 1)], axis=1)
    return TailTable(cell_polynomials(values, TAIL_NODES), scale, halves)


def evaluate_tail_table(x, table):
    """P(X > x) for x in [0, pi]."""
    upper = table.halves & (x > 0.5 * np.pi)
    # Rounding may have taken the angle beyond pi, by no more than the tail there allows to ignore.
    place = jnp.where(upper, jnp.abs(NEAR_PI - x), x) * table.scale
    whole = jnp.floor(place)
    # Within bounds for NaN and beyond the end, too.
    cell = whole_bits(whole) & (TAIL_CELLS - 1)
    row = jnp.where(upper, cell + TAIL_CELLS // 2, cell)
    value = evaluate(table.coefficients, row, place - whole) * (1 / TAIL_FACTOR)
    return jnp.where(place >= TAIL_CELLS, 0, jnp.maximum(value, 0))


@jax.custom_jvp
def lower_tail_by_table(x, kappa):
    """`tail_probability.lower_tail` of float32 angles at one concentration, a scalar."""
    return tail_probability.of_either_side(x, evaluate_tail_table(jnp.abs(x), tail_table(kappa)))


@lower_tail_by_table.defjvp
def _lower_tail_by_table_jvp(primals, tangents):
    return lower_tail_by_table(*primals), tail_probability.lower_tail_tangent(primals, tangents)

"""Piecewise polynomials of a function that the program computes on a grid once and then looks up.

One concentration of many angles has two: a table of its quantile, for the sampler, and one of its tail probability.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import quantile, tail_probability, xla
from jax_von_mises.numerics.density import half_pi_rest
from jax_von_mises.numerics.elementary import whole_bits

# One word's smallest tail probability is 2^-33, two words' 2^-65, so this many octaves lie below 1/2.
OCTAVES = {"float32": 32, "float64": 64}
# Cells in an octave (as a power of two) and degree of the polynomial in each. The interpolation error is
# about cells^-(degree + 1) / (100 degree): below rounding in both precisions.
CELL_BITS = {"float32": 4, "float64": 5}
DEGREE = {"float32": 3, "float64": 7}


def cell_polynomials(values, nodes):
    """Return the power coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1).

    `nodes` are their places in a cell, from 0 to 1.
    """
    # From differences: formed from the values themselves, the power coefficients would lose a digit.
    powers = np.linalg.inv(np.vander(nodes, increasing=True)[1:, 1:]).T
    return xla.cell_coefficients(values, powers)


def divided_differences(nodes):
    """Order of the nodes, and a matrix from rises above the value at the first node to coefficients in Newton's form.

    Power coefficients lose four digits to cancellation at degree 7. The order is Leja's: the next node is the one with
    the largest product of distances from those before, which keeps the coefficients small.
    """
    order = [0]
    while len(order) < len(nodes):
        products = [np.prod([abs(node - nodes[j]) for j in order]) for node in nodes]
        order.append(int(np.argmax(products)))
    matrix = np.zeros((len(nodes) - 1,) * 2)
    for k in range(1, len(nodes)):
        for j in order[1 : k + 1]:
            matrix[j - 1, k - 1] = 1 / np.prod([nodes[j] - nodes[i] for i in order[: k + 1] if i != j])
    return [nodes[j] for j in order], matrix


def evaluate(coefficients, cell, place, out_sharding=None, nodes=None):
    """Evaluate the polynomial of each `cell` (int32, within bounds) at `place` in [0, 1], in powers or by `nodes`."""
    places = [place - node for node in nodes[:-1]] if nodes else [place] * (len(coefficients) - 1)
    *columns, last = (
        column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding) for column in coefficients
    )
    for term, place in zip(reversed(columns), reversed(places), strict=True):
        last = last * place + term
    return last


def table_grid(dtype):
    """Return the tail probabilities (rows, nodes) where the table samples the quantile, float64, rows ascending."""
    octaves, cells, degree = OCTAVES[dtype.name], 2 ** CELL_BITS[dtype.name], DEGREE[dtype.name]
    # Chebyshev points with both ends: cells then join without a step, and the first coefficient is a value.
    nodes = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    octave = 2.0 ** -np.arange(octaves + 1.0, 1.0, -1.0)
    return (octave[:, None, None] * (1 + (np.arange(cells)[:, None] + nodes) / cells)).reshape(-1, degree + 1), nodes


def quantile_table(kappa):
    """Return coefficients (degree + 1, rows) of |x| in each cell, for a scalar `kappa`."""
    dtype = kappa.dtype
    t, nodes = table_grid(np.dtype(dtype))
    kappa = jnp.broadcast_to(kappa, t.shape)
    x = quantile.half_quantile(jnp.asarray(t, dtype), jnp.asarray(0.5 - t, dtype), kappa)
    return cell_polynomials(x, nodes)


def evaluate_quantile_table(t, table, out_sharding=None):
    """Return the cubic (float32) of the cell that holds each `t`."""
    return evaluate(table, *quantile_cell(t), out_sharding)


def quantile_cell(t):
    """Return the cell (int32) of `table_grid` that holds each `t`, and the place in it."""
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
    return row.astype(jnp.int32), lax.bitcast_convert_type(mantissa | one, dtype) - 1


def below_half(dtype):
    """Return the largest float below 1/2. The largest words round to 1/2, which belongs to the last cell."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


class TailGrid(NamedTuple):
    """Where a tail table samples the tail probability."""

    cells: int
    nodes: tuple[float, ...]
    """Places in a cell, dyadic fractions: pi less a node is exact."""
    wide: float
    """Up to this concentration the table has two halves, one from 0 upwards and one from the float next to pi
    downwards; beyond, a tail at pi is no float, and the table ends where e^-q is e^(-2 `wide`)."""
    half_cell: float
    """Width of a cell where there are two halves."""
    largest_scale: float
    """Of the inverse width of a cell: times pi still a float."""
    dyadic: bool
    """Whether cells are powers of two wide, so that no place in a cell is rounded: far out one rounding of the angle is
    1e-5 of the tail in float32, and 2e-13 in float64."""


TAIL_GRIDS = {
    "float32": TailGrid(2048, (0.0, 0.25, 0.75, 1.0), 45.0, 2.0**-9, 1e30, True),
    # Chebyshev points with both ends.
    "float64": TailGrid(
        4096, tuple(np.round(2.0**19 * (1 - np.cos(np.pi * np.arange(8) / 7))) / 2**20), 356.0, 2.0**-10, 1e300, False
    ),
}
# The table's factor: the coefficients of a tail next to the smallest float would be none.
TAIL_FACTOR = 2.0**40


class TailTable(NamedTuple):
    """Polynomials (degree + 1, cells) in Newton's form; the inverse of a cell's width; whether there are two halves.

    In the upper half of two they are those of the tail over the distance from pi, where it ends.
    """

    coefficients: jax.Array
    scale: jax.Array
    halves: jax.Array


def tail_table(kappa):
    """Return the tail probabilities of one concentration, with a relative error of 4e-7 (float32) or 2e-13."""
    dtype = np.dtype(kappa.dtype)
    grid = TAIL_GRIDS[dtype.name]
    halves = kappa < grid.wide
    cell = 2 * jnp.arcsin(jnp.sqrt(jnp.minimum(grid.wide / kappa, 1))) / grid.cells
    if grid.dyadic:  # the power of two next above
        bits = lax.bitcast_convert_type(cell, jnp.uint32)
        cell = lax.bitcast_convert_type((bits + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000), jnp.float32)
    scale = jnp.where(
        jnp.isnan(kappa), kappa, jnp.where(halves, 1 / grid.half_cell, jnp.minimum(1 / cell, grid.largest_scale))
    )
    # Cells share their ends, so a value less each, and one at the end of either half.
    half, degree = grid.cells // 2, len(grid.nodes) - 1
    count = (np.arange(grid.cells)[:, None] + np.array(grid.nodes[:-1])).reshape(2, -1)
    count = np.concatenate([count, [[half], [grid.cells]]], axis=1)
    from_pi = (count[1] - half) * grid.half_cell
    wide = np.stack([count[0] * grid.half_cell, nearest_pi(dtype) - from_pi])
    x = jnp.where(halves, jnp.asarray(wide, dtype), jnp.asarray(count, dtype) * cell)
    values = tail_probability.signed_tail(x, jnp.broadcast_to(kappa, x.shape), TAIL_FACTOR)
    divisor = np.stack([np.ones_like(from_pi), from_pi + 2 * half_pi_rest(dtype)])
    values = jnp.where(kappa == jnp.inf, 0, jnp.where(halves, values * jnp.asarray(1 / divisor, dtype), values))
    last = jnp.concatenate([values[:, degree:-1:degree], values[:, -1:]], axis=1)
    values = jnp.concatenate([values[:, :-1].reshape(-1, degree), last.reshape(-1, 1)], axis=1)
    return TailTable(xla.cell_coefficients(values, divided_differences(grid.nodes)[1]), scale, halves)


def nearest_pi(dtype):
    """Return the float next to pi."""
    return float(np.asarray(np.pi, dtype))


def evaluate_tail_table(x, table):
    """Return P(X > x) for x in [0, pi]."""
    grid = TAIL_GRIDS[np.dtype(x.dtype).name]
    cells, nodes = grid.cells, divided_differences(grid.nodes)[0]
    upper = table.halves & (x > 0.5 * np.pi)
    # Rounding may have taken the angle beyond pi, by no more than the tail there allows to ignore.
    from_pi = jnp.abs(nearest_pi(x.dtype) - x)
    place = jnp.where(upper, from_pi, x) * table.scale
    whole = jnp.floor(place)
    # Within bounds for NaN and beyond the end, too.
    cell = whole_bits(whole.astype(jnp.float32)) & (cells - 1)
    row = jnp.where(upper, cell + cells // 2, cell)
    factor = jnp.where(upper, from_pi + 2 * half_pi_rest(x.dtype), 1) * (1 / TAIL_FACTOR)
    value = evaluate(table.coefficients, row, place - whole, nodes=nodes) * factor
    return jnp.where(place >= cells, 0, jnp.maximum(value, 0))


@jax.custom_jvp
def lower_tail_by_table(x, kappa):
    """Return `tail_probability.lower_tail` of angles at one concentration, a scalar."""
    return tail_probability.of_either_side(x, evaluate_tail_table(jnp.abs(x), tail_table(kappa)))


@lower_tail_by_table.defjvp
def _lower_tail_by_table_jvp(primals, tangents):
    return lower_tail_by_table(*primals), tail_probability.lower_tail_tangent(primals, tangents)

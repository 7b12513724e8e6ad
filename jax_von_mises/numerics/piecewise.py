"""Tabulate functions as piecewise polynomials at run time, to evaluate them at many points.

For many angles at one concentration, the sampler tabulates the quantile function, and `cdf` and `sf` tabulate the tail
probability.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from jax_von_mises.numerics import quantile, tail_probability, xla
from jax_von_mises.numerics.density import half_pi_rest
from jax_von_mises.numerics.elementary import whole_bits

# Number of octaves below 1/2, down to the smallest tail probability of samples: 2^-33 (float32) or 2^-65 (float64).
OCTAVES = {"float32": 32, "float64": 64}
# Number of cells per octave (as a power of two), and the degree of the polynomial in each. The interpolation error is
# about cells^-(degree + 1) / (100 degree), less than the rounding error in either dtype.
CELL_BITS = {"float32": 4, "float64": 5}
DEGREE = {"float32": 3, "float64": 7}


def cell_polynomials(values: jax.Array, nodes: np.ndarray) -> jax.Array:
    """Return the power coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1).

    `nodes` are the places of the values in a cell, from 0 to 1.
    """
    # Compute the coefficients from differences; using the values themselves would cost a digit.
    powers = np.linalg.inv(np.vander(nodes, increasing=True)[1:, 1:]).T
    return xla.cell_coefficients(values, powers)


def divided_differences(nodes: Sequence[float]) -> tuple[list[float], np.ndarray]:
    """Return the nodes in Leja's order and a matrix that maps differences from the first value to Newton coefficients.

    At degree 7, power coefficients would lose four digits to cancellation. In Leja's order, each node maximises the
    product of its distances from the earlier ones, which keeps the coefficients small.
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


def evaluate(
    coefficients: jax.Array,
    cell: jax.Array | np.ndarray,
    place: jax.Array,
    out_sharding: NamedSharding | None = None,
    nodes: Sequence[float] | None = None,
) -> jax.Array:
    """Evaluate the polynomial of each `cell` (int32, within bounds) at `place` in [0, 1].

    With `nodes`, the coefficients are those of Newton's form, and otherwise those of powers of `place`.
    """
    places = [place - node for node in nodes[:-1]] if nodes else [place] * (len(coefficients) - 1)
    columns: list[jax.Array] = [
        column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding) for column in coefficients
    ]
    value = columns.pop()
    for term, at in zip(reversed(columns), reversed(places), strict=True):
        value = value * at + term
    return value


def table_grid(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending tails (cells, nodes) at which tables sample the quantile, and the nodes of a cell."""
    octaves, cells, degree = OCTAVES[dtype.name], 2 ** CELL_BITS[dtype.name], DEGREE[dtype.name]
    # Use Chebyshev points that include both ends, so that neighbouring cells join without a step.
    nodes = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    octave = 2.0 ** -np.arange(octaves + 1.0, 1.0, -1.0)
    return (octave[:, None, None] * (1 + (np.arange(cells)[:, None] + nodes) / cells)).reshape(-1, degree + 1), nodes


def quantile_table(kappa: jax.Array) -> jax.Array:
    """Return the coefficients (degree + 1, cells) of |x| in each cell of `table_grid`, for a scalar `kappa`."""
    dtype = kappa.dtype
    t, nodes = table_grid(np.dtype(dtype))
    kappa = jnp.broadcast_to(kappa, t.shape)
    x = quantile.half_quantile(jnp.asarray(t, dtype), jnp.asarray(0.5 - t, dtype), kappa)
    return cell_polynomials(x, nodes)


def evaluate_quantile_table(t: jax.Array, table: jax.Array, out_sharding: NamedSharding | None = None) -> jax.Array:
    """Return the |x| with the tail probability `t`, from a `quantile_table`."""
    return evaluate(table, *quantile_cell(t), out_sharding)


def quantile_cell(t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cell (int32) of `table_grid` that holds each `t`, and the place in it."""
    dtype = np.dtype(t.dtype)
    info = np.finfo(dtype)
    cell_bits, unsigned = CELL_BITS[dtype.name], jnp.uint64 if dtype == np.float64 else jnp.uint32
    constant = np.dtype(unsigned).type
    bits = lax.bitcast_convert_type(jnp.minimum(t, below_half(dtype)), unsigned)
    # The exponent and the first mantissa bits give the number of the cell, and the other mantissa bits the place in it.
    smallest = (1 - info.minexp) - 1 - OCTAVES[dtype.name]
    row = (bits >> constant(info.nmant - cell_bits)) - constant(smallest << cell_bits)
    one = constant((1 - info.minexp) << info.nmant)
    mantissa = (bits << constant(cell_bits)) & constant((1 << info.nmant) - 1)
    return row.astype(jnp.int32), lax.bitcast_convert_type(mantissa | one, dtype) - 1


def below_half(dtype: DTypeLike) -> float:
    """Return the largest float below 1/2; tail probabilities that round to 1/2 are treated as this value."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


class TailGrid(NamedTuple):
    """Grid on which a tail table samples the tail probability."""

    cells: int
    nodes: tuple[float, ...]
    """Places in a cell, as dyadic fractions so that the float nearest pi minus a node is exact."""
    wide: float
    """Below this concentration, the table has two halves, one upwards from 0 and one downwards from the float nearest
    pi. Above it, the tail at pi underflows, and the table ends where q = 2 `wide`."""
    half_cell: float
    """Width of a cell in a table with two halves."""
    largest_scale: float
    """Largest inverse width of a cell; its product with pi is finite."""
    dyadic: bool
    """Whether the width of a cell is a power of two, so that places in it are exact. Far in the tail, one rounding of a
    place would change the probability by 1e-5 of its value in float32, but only by 2e-13 in float64."""


TAIL_GRIDS = {
    "float32": TailGrid(2048, (0.0, 0.25, 0.75, 1.0), 45.0, 2.0**-9, 1e30, True),
    # Chebyshev points, with both ends included.
    "float64": TailGrid(
        4096, tuple(np.round(2.0**19 * (1 - np.cos(np.pi * np.arange(8) / 7))) / 2**20), 356.0, 2.0**-10, 1e300, False
    ),
}
# Tables hold the tail times this factor, because the coefficients of a tail near the smallest float would underflow.
TAIL_FACTOR = 2.0**40


class TailTable(NamedTuple):
    """Piecewise polynomials of the tail probability at one concentration."""

    coefficients: jax.Array
    """(degree + 1, cells), in Newton's form; the upper of two halves holds the tail divided by the distance from pi."""
    scale: jax.Array
    """Inverse width of a cell."""
    halves: jax.Array
    """Whether there are two halves."""


def tail_table(kappa: jax.Array) -> TailTable:
    """Return the tail table of a scalar `kappa`, with a relative error of 4e-7 (float32) or 2e-13 (float64)."""
    dtype = np.dtype(kappa.dtype)
    grid = TAIL_GRIDS[dtype.name]
    halves = kappa < grid.wide
    cell = 2 * jnp.arcsin(jnp.sqrt(jnp.minimum(grid.wide / kappa, 1))) / grid.cells
    if grid.dyadic:  # round up to a power of two
        bits = lax.bitcast_convert_type(cell, jnp.uint32)
        cell = lax.bitcast_convert_type((bits + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000), jnp.float32)
    scale = jnp.where(
        jnp.isnan(kappa), kappa, jnp.where(halves, 1 / grid.half_cell, jnp.minimum(1 / cell, grid.largest_scale))
    )
    # Neighbouring cells share an end, so each cell needs `degree` values, and each half needs one more at its end.
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


def nearest_pi(dtype: DTypeLike) -> float:
    """Return the float nearest pi."""
    return float(np.asarray(np.pi, dtype))


def evaluate_tail_table(x: jax.Array, table: TailTable) -> jax.Array:
    """Return P(X > x) for x in [0, pi]."""
    grid = TAIL_GRIDS[np.dtype(x.dtype).name]
    cells, nodes = grid.cells, divided_differences(grid.nodes)[0]
    upper = table.halves & (x > 0.5 * np.pi)
    # Take the magnitude, since rounding may have moved the angle beyond pi, where the tail is negligible.
    from_pi = jnp.abs(nearest_pi(x.dtype) - x)
    place = jnp.where(upper, from_pi, x) * table.scale
    floor = jnp.floor(place)
    # The mask keeps the index within bounds even for NaN and for angles beyond the end of the table.
    cell = whole_bits(floor.astype(jnp.float32)) & (cells - 1)
    row = jnp.where(upper, cell + cells // 2, cell)
    factor = jnp.where(upper, from_pi + 2 * half_pi_rest(x.dtype), 1) * (1 / TAIL_FACTOR)
    value = evaluate(table.coefficients, row, place - floor, nodes=nodes) * factor
    return jnp.where(place >= cells, 0, jnp.maximum(value, 0))


@jax.custom_jvp
def lower_tail_by_table(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return `tail_probability.lower_tail` for a scalar `kappa`, from a table."""
    return tail_probability.of_either_side(x, evaluate_tail_table(jnp.abs(x), tail_table(kappa)))


@lower_tail_by_table.defjvp
def _lower_tail_by_table_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    return lower_tail_by_table(*primals), tail_probability.lower_tail_tangent(primals, tangents)

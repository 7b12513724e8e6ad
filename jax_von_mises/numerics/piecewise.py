"""Tabulate functions as piecewise polynomials at run time, to evaluate them at many points.

For many angles at one concentration, the sampler tabulates the quantile function.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from jax_von_mises.numerics import quantile, xla

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

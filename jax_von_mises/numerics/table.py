"""Tabulate functions of tail probabilities at run time, as polynomials in cells, to evaluate them at many points.

For many numbers from one distribution, samplers tabulate its quantile function.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from jax_von_mises.numerics import xla


class OctaveGrid(NamedTuple):
    """The numbers from 2^-(octaves + below) to 2^-below, with 2^bits equal cells in each octave."""

    octaves: int
    bits: int
    below: int = 0

    def cell(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the cell (int32) of each `x`, which must be below the upper end, and the place in it, in [0, 1)."""
        info = np.finfo(x.dtype)
        unsigned = np.uint64 if x.dtype == jnp.float64 else np.uint32
        # The exponent and the first mantissa bits give the number of the cell, the other mantissa bits the place in it.
        pattern = lax.bitcast_convert_type(x, unsigned)
        exponent_of_one = 1 - info.minexp
        smallest = exponent_of_one - self.below - self.octaves
        row = (pattern >> unsigned(info.nmant - self.bits)) - unsigned(smallest << self.bits)
        mantissa = (pattern << unsigned(self.bits)) & unsigned((1 << info.nmant) - 1)
        one = unsigned(exponent_of_one << info.nmant)
        return row.astype(jnp.int32), lax.bitcast_convert_type(mantissa | one, x.dtype) - 1

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at `places` in each cell, of shape (cells, places)."""
        cells = 2**self.bits
        octave = 2.0 ** -np.arange(self.octaves + self.below, self.below, -1.0)
        numbers: np.ndarray = octave[:, None, None] * (1 + (np.arange(cells)[:, None] + places) / cells)
        return numbers.reshape(-1, len(places))

    def from_unit(self, x: jax.Array) -> jax.Array:
        """Map [0, 1] into a grid with `below` = 0, to the numbers from 2^-octaves to 1 - 2^-octaves."""
        return x * (1 - 2.0 ** (1 - self.octaves)) + 2.0**-self.octaves

    def to_unit(self, number: np.ndarray) -> np.ndarray:
        """Invert `from_unit`; the upper end of the grid is slightly above 1."""
        return (number - 2.0**-self.octaves) / (1 - 2.0 ** (1 - self.octaves))


# Cells of tails from the smallest one of samples, 2^-33 (float32) or 2^-65 (float64), to 1/2, and the degree of the
# polynomial in each. With n cells per octave, the interpolation error is about n^-(degree + 1) / (100 degree), which is
# less than the rounding error in either dtype.
GRID = {"float32": OctaveGrid(32, 4, below=1), "float64": OctaveGrid(64, 5, below=1)}
DEGREE = {"float32": 3, "float64": 7}


def cell_nodes(degree: int) -> np.ndarray:
    """Return the places in a cell, from 0 to 1, through which its polynomial runs."""
    # Use Chebyshev points that include both ends, so that neighbouring cells join without a step.
    nodes: np.ndarray = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    return nodes


def tails(dtype: DTypeLike) -> np.ndarray:
    """Return the ascending tails (cells, degree + 1) at which to sample a function of one tail."""
    name = np.dtype(dtype).name
    return GRID[name].numbers(cell_nodes(DEGREE[name]))


def two_tails(dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the tails (2 * cells, degree + 1) at which to sample a function of both tails, and which are the first."""
    t = tails(dtype)
    first = np.arange(2 * len(t)) < len(t)
    return np.concatenate([t, t]), np.broadcast_to(first[:, None], (2 * len(t), t.shape[1]))


def polynomials(values: jax.Array) -> jax.Array:
    """Return the power coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1)."""
    # Compute the coefficients from differences; using the values themselves would cost a digit.
    powers = np.linalg.inv(np.vander(cell_nodes(values.shape[1] - 1), increasing=True)[1:, 1:]).T
    return xla.cell_coefficients(values, powers)


def evaluate(
    coefficients: jax.Array,
    cell: jax.Array | np.ndarray,
    place: jax.Array,
    out_sharding: NamedSharding | None = None,
) -> jax.Array:
    """Evaluate the polynomial of each `cell` (int32, within bounds) at `place` in [0, 1]."""
    columns: list[jax.Array] = [
        column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding) for column in coefficients
    ]
    value = columns.pop()
    for term in reversed(columns):
        value = value * place + term
    return value


def cell_of_tail(t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cell (int32) of `GRID` that holds each `t`, and the place in it."""
    return GRID[t.dtype.name].cell(jnp.minimum(t, below_half(t.dtype)))


def below_half(dtype: DTypeLike) -> float:
    """Return the largest float below 1/2; tail probabilities that round to 1/2 are treated as this value."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


class QuantileTable(NamedTuple):
    """A function of a tail probability in (0, 1/2], tabulated for one tail or for two."""

    coefficients: jax.Array
    """Polynomials (degree + 1, cells) in the cells of `GRID`; cells of a second tail follow those of the first."""

    @classmethod
    def of(cls, values: jax.Array) -> Self:
        """Tabulate the function with these `values` at `tails` or `two_tails`."""
        return cls(polynomials(values))

    def at(self, t: jax.Array, second: jax.Array | None = None, out_sharding: NamedSharding | None = None) -> jax.Array:
        """Return the values at the tail probabilities `t`, in the `second` tail where that is true."""
        cell, place = cell_of_tail(t)
        if second is not None:
            cell = jnp.where(second, cell + self.coefficients.shape[1] // 2, cell)
        return evaluate(self.coefficients, cell, place, out_sharding)

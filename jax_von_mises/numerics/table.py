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

from jax_von_mises.compiler import xla


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


class Layout(NamedTuple):
    """Cells of numbers, and the polynomial in each."""

    grid: OctaveGrid
    degree: int
    origin: float = 0.0
    """The place, one of `cell_nodes`, from which a polynomial counts.

    Polynomials of high degree need the middle of the cell, since their coefficients would otherwise cancel.
    """


# Cells of tails from the smallest one of samples, 2^-33 (float32) or 2^-65 (float64), to 1/2. Quantiles that are
# singular only where the tail is 0 have an interpolation error, with n cells per octave, of about
# (4 n + 2)^-(degree + 1), which is less than the rounding error in either dtype.
TAILS = {
    "float32": Layout(OctaveGrid(32, 4, below=1), 3),
    "float64": Layout(OctaveGrid(64, 2, below=1), 10, origin=0.5),
}


def cell_nodes(degree: int) -> np.ndarray:
    """Return the places in a cell, from 0 to 1, through which its polynomial runs."""
    # Use Chebyshev points that include both ends, so that neighbouring cells join without a step.
    nodes: np.ndarray = (1 - np.cos(np.pi * np.arange(degree + 1) / degree)) / 2
    return nodes


def tails(layout: Layout) -> np.ndarray:
    """Return the ascending tails (cells, degree + 1) at which to sample a function of one tail."""
    return layout.grid.numbers(cell_nodes(layout.degree))


def two_tails(dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the tails (2 * cells, degree + 1) at which to sample a function of both tails, and which are the first."""
    t = tails(TAILS[np.dtype(dtype).name])
    first = np.arange(2 * len(t)) < len(t)
    return np.concatenate([t, t]), np.broadcast_to(first[:, None], (2 * len(t), t.shape[1]))


def polynomials(values: jax.Array, origin: float = 0.0) -> jax.Array:
    """Return the power coefficients (degree + 1, cells) of the polynomials through `values` (cells, degree + 1)."""
    # Compute the coefficients from differences; using the values themselves would cost a digit.
    nodes = cell_nodes(values.shape[1] - 1) - origin
    first = int(np.argmin(np.abs(nodes)))
    powers = np.linalg.inv(np.vander(np.delete(nodes, first), len(nodes), increasing=True)[:, 1:]).T
    return xla.cell_coefficients(values, powers, first)


def value_in_cell(
    coefficients: jax.Array,
    cell: jax.Array | np.ndarray,
    place: jax.Array,
    origin: float = 0.0,
    out_sharding: NamedSharding | None = None,
) -> jax.Array:
    """Evaluate the polynomial of each `cell` (int32, within bounds) at `place` in [0, 1]."""
    columns: list[jax.Array] = [
        column.at[cell].get(mode="promise_in_bounds", out_sharding=out_sharding) for column in coefficients
    ]
    if origin:
        place = place - origin
    value = columns.pop()
    for term in reversed(columns):
        value = value * place + term
    return value


def cell_of_tail(t: jax.Array, grid: OctaveGrid) -> tuple[jax.Array, jax.Array]:
    """Return the cell (int32) of `grid` that holds each tail `t`, and the place in it."""
    return grid.cell(jnp.minimum(t, below_half(t.dtype)))


def below_half(dtype: DTypeLike) -> float:
    """Return the largest float below 1/2; tail probabilities that round to 1/2 are treated as this value."""
    return float(np.nextafter(np.dtype(dtype).type(0.5), np.dtype(dtype).type(0)))


class QuantileTable(NamedTuple):
    """A function of a tail probability in (0, 1/2], tabulated for one tail or for two."""

    coefficients: jax.Array
    """Polynomials (degree + 1, cells) in the cells of `TAILS`; cells of a second tail follow those of the first."""

    @classmethod
    def of(cls, values: jax.Array) -> Self:
        """Tabulate the function with these `values` at `tails` or `two_tails`."""
        return cls(polynomials(values, TAILS[values.dtype.name].origin))

    def at(self, t: jax.Array, second: jax.Array | None = None, out_sharding: NamedSharding | None = None) -> jax.Array:
        """Return the values at the tail probabilities `t`, in the `second` tail where that is true."""
        layout = TAILS[t.dtype.name]
        cell, place = cell_of_tail(t, layout.grid)
        if second is not None:
            cell = jnp.where(second, cell + self.coefficients.shape[1] // 2, cell)
        return value_in_cell(self.coefficients, cell, place, layout.origin, out_sharding)

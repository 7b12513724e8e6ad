"""Tabulate the quantile of any density on the circle, so that a draw takes one look-up.

Tail probabilities t in (0, 1/2), counted from either end, fall into the cells of `LAYOUT`, which divide each
octave equally. Each cell holds the polynomial through the quantile at some nodes.

Across a gap between two modes, or at the foot of a spike, the quantile has a step that no polynomial follows.
Evaluating the tail probability at the table's angles shows which cells contain such a step. Up to `HARD` of these hard
cells have a second level: octaves of the distance in t from one point, on both sides of it. Draws from a table without
hard cells skip the second level.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.any_density import panels
from jax_von_mises.any_density.evaluation import LogDensity
from jax_von_mises.any_density.panels import Panels, take
from jax_von_mises.numerics import table
from jax_von_mises.numerics.circle import largest_angle
from jax_von_mises.numerics.elementary import clip

# Largest number of cells with a second level. A gap between two modes takes up to eight.
HARD = 24
# Cells of the second level on each side of its point, for the distance from it.
SECOND_GRID = {"float32": table.OctaveGrid(16, 2), "float64": table.OctaveGrid(36, 3)}
# Cells of the first level, and the degree of the polynomials of both. In float64, they are finer than `table.TAILS`,
# since these quantiles may be singular anywhere near the real line.
LAYOUT = table.TAILS | {"float64": table.Layout(table.OctaveGrid(64, 5, below=1), 7)}
# Cells in which the tail has a larger relative error are hard.
GOOD = {"float32": 1e-6, "float64": 2e-13}
# Places in a cell of each level at which to check its polynomial against the tail probability.
CHECKED = {"float32": (0.12, 0.5), "float64": (0.02, 0.5)}
CHECKED_SECOND = {"float32": (0.12, 0.38, 0.62, 0.88), "float64": (0.02, 0.27, 0.5, 0.73)}
# Factors by which the error may be larger between these places.
BETWEEN, BETWEEN_SECOND = 1.5, 3.0
# Deviations of an angle up to this number of float spacings are no error: between the places, where interpolation and
# rounding may add two more, they are within four spacings.
SPACINGS = 2
# If slopes between nodes differ by more than this factor, a line replaces the polynomial, which would overshoot.
STEEP = 6.0
# The second level stores numbers between its loops, for this many angles at a time. A CPU sets this memory aside even
# for a draw without the second level, and new memory pages cost more time than a draw.
PIECE = 2**20


class Cells(NamedTuple):
    """The arrays that a look-up reads."""

    coefficients: jax.Array
    """Polynomials of the cells counted from -pi, then from pi, of shape (degree + 1, 2 * cells)."""
    hard: jax.Array
    """Number of each hard cell, and -1 for the other cells, int32 of shape (2 * cells,)."""
    point: jax.Array
    """Place in each hard cell from which the second level counts distances, of shape (HARD,)."""
    further: jax.Array
    """Polynomials of the second level, of shape (degree + 1, HARD * cells of the second level)."""

    def angle_of(self, split: Callable[..., tuple[jax.Array, jax.Array]], *arrays: jax.Array) -> jax.Array:
        """Return the angles in [-pi, pi) with the tails t in (0, 1/2) towards -pi or, if `from_end`, towards pi.

        Both are the pair ``split(*arrays)``; the elementwise `split` is fused with the look-up.
        """

        def look_up(
            cell_of: Callable[..., tuple[jax.Array, jax.Array, jax.Array]], cells: Cells, *arrays: jax.Array
        ) -> jax.Array:
            t, from_end = split(*arrays)
            row, place = table.cell_of_tail(t, LAYOUT[t.dtype.name].grid)
            row = jnp.where(from_end, row + cells.hard.shape[0] // 2, row)
            limit = largest_angle(t.dtype)
            return clip(table.value_in_cell(*cell_of(row, place, cells)), -limit, limit)

        def two_levels(cells: Cells, *arrays: jax.Array) -> jax.Array:
            flat = tuple(x.reshape(-1) for x in arrays)
            each = functools.partial(look_up, second_cell, cells)
            angles: jax.Array = lax.map(lambda args: each(*args), flat, batch_size=PIECE)
            return angles.reshape(arrays[0].shape)

        one_level = functools.partial(look_up, first_cell)
        angles: jax.Array = lax.cond(jnp.any(self.hard >= 0), two_levels, one_level, self, *arrays)
        return angles


class Table(NamedTuple):
    """The quantile of a density on the circle; a pytree of arrays."""

    cells: Cells
    panels: Panels
    error: jax.Array
    """Estimated largest relative error of the smaller tail in `Cells.angle_of`, `panels.mass_up_to` and
    `panels.quantile`."""


def first_cell(row: jax.Array, place: jax.Array, cells: Cells) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the polynomials of the first level, and the row and place in them."""
    return cells.coefficients, row, place


def second_cell(row: jax.Array, place: jax.Array, cells: Cells) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the polynomials of both levels, and the row and place in them, from those of the first level."""
    grid = SECOND_GRID[place.dtype.name]
    side = grid.octaves << grid.bits
    number = take(cells.hard, row)
    away = place - take(cells.point, jnp.maximum(number, 0))
    second, second_place = grid.cell(grid.from_unit(jnp.abs(away)))
    second = second + (cells.hard.shape[0] + number * (2 * side)) + jnp.where(away > 0, side, 0)
    hard = number >= 0
    both = jnp.concatenate([cells.coefficients, cells.further], 1)
    return both, jnp.where(hard, second, row), jnp.where(hard, second_place, place)


def shared(grid: np.ndarray, last: float) -> np.ndarray:
    """Return each node of `grid` (cells, degree + 1) once, since neighbouring cells share an end, and then `last`."""
    return np.append(grid[:, :-1].reshape(-1), last)


def cell_polynomials(values: jax.Array, steps: bool = False) -> jax.Array:
    """Return coefficients (degree + 1, groups * cells) from values (groups, degree * cells + 1) at shared nodes.

    With `steps`, cells with a step (see `STEEP`) get a straight line.
    """
    groups, degree = values.shape[0], LAYOUT[values.dtype.name].degree
    cells = values[:, :-1].reshape(groups, -1, degree)
    ends = jnp.concatenate([cells[:, 1:, 0], values[:, -1:]], 1)
    cells = jnp.concatenate([cells, ends[..., None]], -1).reshape(-1, degree + 1)
    if steps:
        nodes = table.cell_nodes(degree)
        slopes = jnp.abs(jnp.diff(lax.stop_gradient(cells), axis=1)) / jnp.asarray(np.diff(nodes)[None], values.dtype)
        most, least = (functools.reduce(of, slopes.T) for of in (jnp.maximum, jnp.minimum))
        steep = most > STEEP * least + 1e-6
        line = cells[:, :1] + (cells[:, -1:] - cells[:, :1]) * jnp.asarray(nodes[None], values.dtype)
        cells = jnp.where(steep[:, None], line, cells)
    return table.polynomials(cells)


def checks(cells: int, at: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and places at which to check the polynomials, for a number of `cells` in order."""
    places = np.array(at)
    return np.repeat(np.arange(cells), places.size), np.tile(places, cells)


def tail_error(fixed: Panels, angle: jax.Array, t: jax.Array, from_end: jax.Array) -> jax.Array:
    """Return the relative error of the tail `t` of each `angle`, apart from the effect of `SPACINGS`."""
    info = np.finfo(angle.dtype)
    unsigned = np.uint64 if angle.dtype == jnp.float64 else np.uint32
    exponent = lax.bitcast_convert_type(jnp.abs(angle), unsigned) & ~unsigned((1 << info.nmant) - 1)
    spacing = (SPACINGS * float(info.eps)) * lax.bitcast_convert_type(exponent, angle.dtype)
    ends = jnp.concatenate([angle - spacing, angle + spacing])
    tails = panels.mass_up_to(fixed, ends, jnp.tile(from_end, 2)) / fixed.total
    first, second = jnp.split(tails, 2)
    return jnp.maximum(jnp.maximum(jnp.minimum(first, second) - t, t - jnp.maximum(first, second)), 0) / t


def tabulate(
    log_density: LogDensity,
    count: int,
    dtype: np.dtype,
    wide: bool = False,
    points: jax.Array | None = None,
    parameters: tuple[jax.Array, ...] = (),
) -> Table:
    """Tabulate the quantile of a density on the circle; the arguments are those of `panels.adapt`.

    The table and its angles have first derivatives with respect to the parameters, by the implicit function theorem, in
    forward and reverse mode.
    """
    return of_panels(panels.adapt(log_density, count, dtype, wide, points, parameters))


def of_panels(divided: Panels) -> Table:
    """Tabulate the quantile of a density from its panels."""
    dtype = np.dtype(divided.edges.dtype)
    fixed = lax.stop_gradient(divided)
    grid = table.tails(LAYOUT[dtype.name])
    cells = len(grid)
    t = shared(grid, 0.5)
    both = jnp.asarray(np.repeat([False, True], t.size))
    x, _ = panels.quantile(divided, jnp.asarray(np.tile(t, 2), dtype) * divided.total, both)
    coefficients = cell_polynomials(x.reshape(2, -1))

    start = np.tile(grid[:, 0], 2)
    extent = np.tile(grid[:, -1] - grid[:, 0], 2)
    rows, places = checks(2 * cells, CHECKED[dtype.name])
    angle = table.value_in_cell(lax.stop_gradient(coefficients), rows, jnp.asarray(places, dtype))
    error = tail_error(
        fixed, angle, jnp.asarray(start[rows] + places * extent[rows], dtype), jnp.asarray(rows >= cells)
    )
    worst, cell = lax.top_k(jnp.max(error.reshape(2 * cells, -1), 1), HARD + 1)
    cell, needed = cell[:HARD], worst[:HARD] > GOOD[dtype.name]
    cell = cell.astype(jnp.int32)
    numbers = jnp.where(needed, jnp.arange(HARD, dtype=jnp.int32), -1)
    hard = jnp.full(2 * cells, -1, jnp.int32).at[cell].set(numbers)
    hard_cells = cell >= cells, *(take(jnp.asarray(a, dtype), cell) for a in (start, extent))

    def none(divided: Panels, *_: jax.Array) -> tuple[jax.Array, ...]:
        results = jax.eval_shape(second_level, divided, *hard_cells)
        return tuple(jnp.zeros(x.shape, x.dtype) for x in results)

    point, further, remaining = lax.cond(jnp.any(needed), second_level, none, divided, *hard_cells)
    left = jnp.where(needed, BETWEEN_SECOND * remaining, BETWEEN * worst[:HARD])
    interpolation = jnp.maximum(BETWEEN * worst[HARD], jnp.max(left))
    return Table(Cells(coefficients, hard, point, further), divided, divided.error + interpolation)


def second_level(
    divided: Panels, from_end: jax.Array, low: jax.Array, extent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the points, polynomials and remaining errors of hard cells, with t from `low` to `low` + `extent`."""
    dtype = np.dtype(low.dtype)
    fixed = lax.stop_gradient(divided)
    grid = SECOND_GRID[dtype.name]
    point = (step_in(fixed, from_end, low, low + extent) - low) / extent
    point = jnp.minimum(jnp.maximum(point, 0), 1)[:, None, None]

    def places_of(numbers: np.ndarray) -> jax.Array:
        """Return the places in the hard cell (HARD, 2, n) on both sides of its point; some are outside of [0, 1]."""
        distance = jnp.asarray(grid.to_unit(numbers), dtype)[None, None]
        sign = jnp.asarray(np.array([-1.0, 1.0])[None, :, None], dtype)
        return point + sign * distance

    def tails_of(places: jax.Array) -> jax.Array:
        return low[:, None, None] + extent[:, None, None] * places

    at_nodes = grid.numbers(table.cell_nodes(LAYOUT[dtype.name].degree))
    t = tails_of(places_of(shared(at_nodes, 1.0)))
    sides = jnp.broadcast_to(from_end[:, None, None], t.shape)
    mass = jnp.maximum(t, 0) * divided.total
    x, _ = panels.quantile(divided, mass.reshape(-1), sides.reshape(-1))
    further = cell_polynomials(x.reshape(2 * HARD, -1), steps=True)
    rows, places = checks(HARD * 2 * len(at_nodes), CHECKED_SECOND[dtype.name])
    t = tails_of(places_of(grid.numbers(np.array(CHECKED_SECOND[dtype.name])).reshape(-1)))
    # Check the whole of a cell of the second level of which only a part is in the hard cell.
    first, last = places_of(at_nodes[:, 0]), places_of(at_nodes[:, -1])
    used = (jnp.maximum(first, last) >= 0) & (jnp.minimum(first, last) <= 1)
    sides = jnp.broadcast_to(from_end[:, None, None], t.shape)
    angle = table.value_in_cell(lax.stop_gradient(further), rows, jnp.asarray(places, dtype))
    error = tail_error(fixed, angle, jnp.maximum(t, 1e-37).reshape(-1), sides.reshape(-1))
    error = jnp.max(error.reshape(*used.shape, -1), -1)
    return point[:, 0, 0], further, jnp.max(jnp.where(used, error, 0), (1, 2))


def step_in(fixed: Panels, from_end: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Estimate the tail probability between `low` and `high` at which the quantile is steepest, for each cell.

    The estimate is the tail probability in the middle of the panel with the least mass per unit change of the log
    density.
    """
    logs = jnp.log(fixed.mean + 1e-37)
    change = jnp.abs(jnp.diff(logs))
    change = jnp.concatenate([change[:1], change]) + jnp.concatenate([change, change[-1:]])
    scale = fixed.width * fixed.mean / (change + 1e-3)
    middles = 0.5 * (fixed.mass[:, :-1] + fixed.mass[:, 1:]) / fixed.total
    scale = jnp.where(from_end[:, None], scale[None, ::-1], scale[None])
    ends = jnp.where(from_end[:, None], fixed.mass[1:], fixed.mass[:1]) / fixed.total
    middles = jnp.where(from_end[:, None], middles[1:], middles[:1])
    within = (ends[:, 1:] >= low[:, None]) & (ends[:, :-1] <= high[:, None])
    best = jnp.argmin(jnp.where(within, scale, jnp.inf), 1)
    return jnp.take_along_axis(middles, best[:, None], 1)[:, 0]

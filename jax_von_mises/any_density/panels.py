r"""Divide the circle into intervals (panels) that adapt to a density, and integrate the density.

1. *Panels.* A few passes move the edges so that every panel holds an equal share of

   .. math:: (v + s)\, s^{1/9} + \text{floor},

   where v is the variation of the log density over the panel plus twice its second difference, and s is the panel's
   mass divided by the smaller of the two tails that contain it. The power 1/9 is optimal for a rule of order 8. In a
   density with jumps, v is limited and the floor is proportional to the width, so that no jump takes all panels.
2. *Rule.* In each panel, the density is replaced by its Legendre interpolant at Gauss-Legendre nodes. The integral of
   the interpolant from an end is computed in the factored form
   :math:`(1+z)(c_0 - (1-z) \sum_k c_k P_k'(z) / (k(k+1)))`, which is exactly 0 at that end and has full relative
   accuracy near it.
3. *Sums.* The masses of the panels are summed from both ends. All terms are positive, so both tail probabilities are
   accurate to rounding.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.any_density.evaluation import FLOAT64, LogDensity, levels_at, scope
from jax_von_mises.numerics.circle import with_derivative_of
from jax_von_mises.numerics.elementary import clip

# Passes that move the edges. If the density jumps, as many as `LOOKS` before them evaluate it at other points of the
# first panels, and keep its largest value in each: a piece between two jumps may be narrower than these panels.
PASSES, LOOKS = 4, 7
# Gauss-Legendre nodes in a panel, and steps of Newton's method on its polynomial.
NODES = {"float32": 8, "float64": 16}
STEPS = {"float32": 3, "float64": 5}
# Smallest tail probability that a random word can represent.
SMALLEST_TAIL = {"float32": 2.0**-33, "float64": 2.0**-65}
# Fraction of the panels that are spread evenly, so that a later pass can find a feature that the first one missed.
FLOOR = 0.2
POWER = 1 / 9
# Largest variation that counts in one panel. Without this limit, the steep slopes far from a narrow mode, which have no
# mass, would attract most panels.
MOST_VARIATION = 100
# A log density has a jump where it varies between two neighbouring points by more than this times as steeply as between
# the points before and after them, and by more than a limit.
ISOLATED = 30.0
# Variation that marks a density with jumps; smaller jumps of such a density; and what each of them counts. Jumps of any
# height, also those to 0, then attract about as many panels.
JUMP, SMALL_JUMP, JUMP_COUNTS = 1.0, 0.01, 2.0
# Error of an integral over part of a panel, relative to the larger of the panel's last two Legendre coefficients times
# its width. It is at most 0.27 for a jump between two nodes; the rest is for cusps, and for two jumps in one panel.
QUADRATURE = 0.34
# Distance of the outermost nodes from the ends of a panel of width 1. Between them, only the difference of neighbouring
# polynomials at their common edge shows a jump.
MARGIN = {"float32": 0.0199, "float64": 0.0053}
# Relative error of a tail probability from rounding in sums and polynomials.
ROUNDING = {"float32": 5e-7, "float64": 5e-14}
# Log densities are cut off this far below the largest one, because variation below that needs no panels.
DEPTH = 1e5
# Length of the blocks of prefix sums. Two levels of sums keep the chains of additions short.
BLOCK = 16
# Distances, in radians, of the first pass's edges from a hinted point.
HINT_DISTANCES = 2.0 ** -np.arange(2.0, 24.0, 2.5)
# How far the float next to pi lies beyond it, in radians. Without this correction, a float32 integral would extend over
# 1.7e-7 radians more than the circle.
BEYOND_PI = {"float32": float(np.float32(np.pi)) - np.pi, "float64": -math.sin(np.pi)}
# Largest allowed difference between the log densities at -pi and pi, divided by (1 + the range of the log density).
END_TOLERANCE = 1e-3


class Panels(NamedTuple):
    """A density on `count` panels of n nodes, scaled so that its largest value at a node is 1."""

    edges: jax.Array
    """Edges of the panels in radians, from -pi to pi, of shape (count + 1,); without derivatives."""
    beyond: jax.Array
    """What to add to the edges: the difference between -pi or pi and the float next to it, and 0 between them."""
    width: jax.Array
    """Widths of the panels in radians, of shape (count,)."""
    mean: jax.Array
    """Scaled mean density of each panel, of shape (count,)."""
    shape: jax.Array
    """Power coefficients in z of the sum in *Rule* of the module docstring, constant first, of shape (n - 1, count)."""
    mass: jax.Array
    """Scaled mass before each edge, counted from -pi and from pi, of shape (2, count + 1)."""
    total: jax.Array
    """Scaled mass of the circle."""
    shift: jax.Array
    """Largest log density at a node."""
    angles: jax.Array
    """Nodes in radians, of shape (count, n)."""
    weights: jax.Array
    """Probabilities of the nodes, which are the weights of expectations, of shape (count, n)."""
    fall: jax.Array
    """Log density at the nodes minus `shift`, of shape (count, n)."""
    error: jax.Array
    """Estimate of the largest relative error of a tail probability, from quadrature and rounding."""

    @property
    def log_normalizer(self) -> jax.Array:
        """Logarithm of the integral of the density."""
        return self.shift + jnp.log(self.total)

    def expectation(self, values: jax.Array) -> jax.Array:
        """Return the mean of a function, from its `values` at `angles`."""
        return jnp.sum(self.weights * values)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return jnp.log(self.total) - self.expectation(jnp.where(self.weights > 0, self.fall, 0))


@functools.cache
def panel_rule(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes in [0, 1], their weights, and two matrices.

    The matrices map values at the nodes to Legendre coefficients and to `Panels.shape`.
    """
    legendre = np.polynomial.legendre
    nodes, weights = legendre.leggauss(count)
    basis = np.eye(count)
    values = np.stack([legendre.legval(nodes, row) for row in basis])
    to_legendre = (np.arange(count) + 0.5)[:, None] * weights * values
    derivatives = np.zeros((count, count - 1))
    for k in range(1, count):
        powers = legendre.leg2poly(legendre.legder(basis[k]))
        derivatives[k, : len(powers)] = powers / (k * (k + 1))
    return (nodes + 1) / 2, weights / 2, to_legendre, derivatives.T @ to_legendre


def prefix_sums(x: jax.Array) -> jax.Array:
    """Return cumulative sums along the last axis, with an error of a few roundings.

    The length of this axis must be a multiple of `BLOCK`.
    """
    product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    inner = product(blocks, jnp.asarray(np.triu(np.ones((BLOCK, BLOCK))), x.dtype))
    before = np.triu(np.ones((blocks.shape[-2],) * 2), 1)
    outer = product(inner[..., -1], jnp.asarray(before, x.dtype))
    return (inner + outer[..., None]).reshape(x.shape)


def take(array: jax.Array, index: jax.Array) -> jax.Array:
    """Return the entries of a one-dimensional array at an `index` that must be within bounds."""
    return array.at[index].get(mode="promise_in_bounds")


def take_each(index: jax.Array, *rows: jax.Array) -> tuple[jax.Array, ...]:
    """Return `take` for each row, or each row of a matrix, at once, since a CPU compiles each gather separately."""
    table = jnp.concatenate([jnp.atleast_2d(row) for row in rows])
    return jnp.unstack(table.at[:, index].get(mode="promise_in_bounds"))


def search(ascending: jax.Array, values: jax.Array, offset: jax.Array | int = 0) -> jax.Array:
    """Return the largest j < count with ``ascending[offset + j] <= value``, or 0 if there is none.

    `ascending` holds rows of count + 1 numbers, and `offset` is the position at which a row starts. The count is a
    power of two.
    """
    half = (ascending.shape[-1] - 1) // 2
    flat = ascending.reshape(-1)

    def halve(i: jax.Array, j: jax.Array) -> jax.Array:
        step = jnp.right_shift(jnp.int32(half), i)
        return jnp.where(take(flat, j + (step + offset)) <= values, j + step, j)

    found: jax.Array = lax.fori_loop(0, half.bit_length(), halve, jnp.zeros_like(values, jnp.int32))
    return found


def exp_mean(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the mean of an exponential over an interval on which its exponent changes linearly from `a` to `b`."""
    top, fall = jnp.maximum(a, b), jnp.abs(a - b)
    return jnp.exp(top) * jnp.where(fall < 1e-2, 1 - 0.5 * fall, -jnp.expm1(-fall) / jnp.maximum(fall, 1e-2))


def isolated_changes(levels: jax.Array, width: jax.Array) -> jax.Array:
    """Return the changes between `levels` at edges and midpoints, and 0 for those too gradual to be jumps."""
    change = jnp.abs(jnp.diff(levels))
    slope = change / jnp.maximum(jnp.repeat(width, 2), 1e-30)
    around = jnp.concatenate([slope[-1:], slope, slope[:1]])
    return jnp.where(slope > ISOLATED * (around[:-2] + around[2:]), change, 0)


def demand(levels: jax.Array, isolated: jax.Array, width: jax.Array, smallest: float, jumps: jax.Array) -> jax.Array:
    """Return what each panel of these widths adds to *Panels* of the module docstring, apart from the floor.

    `levels` holds the log densities at edges and midpoints, in order of increasing angle, and `isolated` their
    `isolated_changes`. Tails below `smallest` count less, as does variation if the log density `jumps`.
    """
    start, middle, end = levels[:-2:2], levels[1:-1:2], levels[2::2]
    variation = jnp.abs(middle - start) + jnp.abs(end - middle) + 2 * jnp.abs(start + end - 2 * middle)
    mass = masses(lifted(levels, isolated > 0), width)
    sums = prefix_sums(jnp.stack([mass, mass[::-1]]))
    share = mass / jnp.maximum(jnp.minimum(sums[0], sums[1, ::-1]), smallest * sums[0, -1])
    is_jump = jnp.maximum(isolated[::2], isolated[1::2]) > SMALL_JUMP
    counted = jnp.where(is_jump, JUMP_COUNTS, jnp.minimum(variation, JUMP_COUNTS))
    variation = jnp.where(jumps, counted, jnp.minimum(variation, MOST_VARIATION))
    wanted = (variation + share) * share**POWER
    # Give each panel at least half of its larger neighbour's demand, to find a feature that one of the two missed.
    padded = jnp.concatenate([wanted[:1], wanted, wanted[-1:]])
    return jnp.maximum(wanted, 0.5 * jnp.maximum(padded[:-2], padded[2:]))


def lifted(levels: jax.Array, jump: jax.Array) -> jax.Array:
    """Return `levels` with each local maximum raised to that of the curve between the points, and the largest at 0.

    `jump` is true between points where the curve jumps: an end of a plateau is no peak.
    """
    # Estimate the maximum by a parabola through three points, which is exact for a normal density.
    left, here, right = levels[:-2], levels[1:-1], levels[2:]
    bend = left + right - 2 * here
    peak = (here >= left) & (here >= right) & (bend < 0)
    rise = jnp.where(peak & ~jump[:-1] & ~jump[1:], (right - left) ** 2 / jnp.maximum(-8 * bend, 1e-30), 0)
    raised = here + jnp.minimum(rise, jnp.maximum(here - jnp.minimum(left, right), 0))
    raised = jnp.concatenate([levels[:1], raised, levels[-1:]])
    return raised - jnp.max(raised)


def masses(levels: jax.Array, width: jax.Array) -> jax.Array:
    """Return the mass of each panel if the log density is linear between `levels` at edges and midpoints."""
    halves = exp_mean(levels[:-1], levels[1:])
    return 0.5 * width * (halves[::2] + halves[1::2]) + 1e-37


def redistribute(edges: jax.Array, wanted: jax.Array, jumps: jax.Array) -> jax.Array:
    """Move the edges so that every panel holds an equal share of what the given panels `wanted`, plus the floor.

    The floor of a panel is proportional to its width if the log density `jumps`: jumps attract panels in each pass, and
    would leave few of them elsewhere.
    """
    width = jnp.diff(edges)
    count = width.shape[0]
    wanted = wanted / jnp.sum(wanted) + jnp.where(jumps, FLOOR / (2 * np.pi) * width, FLOOR / count)
    before = jnp.concatenate([jnp.zeros(1, edges.dtype), prefix_sums(wanted)])
    places = jnp.asarray(np.arange(1, count) / count, edges.dtype) * before[-1]
    j = search(before, places)
    start, width, before_it, share = take_each(j, edges[:-1], width, before[:-1], wanted)
    moved = start + width * clip((places - before_it) / share, 0, 1)
    return jnp.concatenate([edges[:1], moved, edges[-1:]])


def first_edges(count: int, dtype: np.dtype, points: jax.Array | None) -> jax.Array:
    """Return the edges of the first pass, some around each of the hinted `points` and the others equally spaced."""
    ends = jnp.asarray(np.array([-np.pi, np.pi]), dtype)
    if points is None or points.size == 0:
        return jnp.asarray(np.linspace(-np.pi, np.pi, count + 1), dtype)
    away = np.concatenate([-HINT_DISTANCES, [0.0], HINT_DISTANCES])
    near = points.reshape(-1, 1) + jnp.asarray(away[None], dtype)
    near = clip(near, -np.pi, np.pi).reshape(-1)
    rest = jnp.asarray(np.linspace(-np.pi, np.pi, count + 1 - near.size)[1:-1], dtype)
    return jnp.concatenate([ends[:1], jnp.sort(jnp.concatenate([near, rest])), ends[1:]])


def most_points(count: int) -> int:
    """Return the largest number of hinted points, around which at most three quarters of the first edges lie."""
    return 3 * count // 4 // (2 * len(HINT_DISTANCES) + 1)


def adapt(
    log_density: LogDensity,
    count: int,
    dtype: np.dtype,
    wide: bool = False,
    points: jax.Array | None = None,
    parameters: tuple[jax.Array, ...] = (),
) -> Panels:
    """Divide the circle into `count` panels that adapt to a density, and integrate it.

    Parameters
    ----------
    log_density : callable
        Logarithm of the density, up to a constant: ``log_density(angle, *parameters)`` at one angle in [-pi, pi]. It
        may be -inf where the density is 0. All results are NaN if it is NaN or +inf at a node, if the density is 0
        everywhere, or if its logarithm differs between -pi and pi by more than 0.001 times (1 + its range).
    count : int
        A power of two, 32 or more.
    dtype : dtype
        float32 or float64.
    wide : bool
        Whether to use float64 for angles and log densities in a float32 program.
    points : array, optional
        Angles near narrow modes, at most ``most_points(count)`` of them.
    parameters : tuple of arrays
        Further arguments of `log_density`, of dtype `dtype`. Unless `wide` is true, `log_density` may also close over
        other arrays.
    """
    dtype = np.dtype(dtype)
    edges, periodic = place_edges(log_density, first_edges(count, dtype, points), wide, lax.stop_gradient(parameters))
    return integrate(log_density, edges, periodic, wide, parameters)


def place_edges(
    log_density: LogDensity, edges: jax.Array, wide: bool, parameters: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """Move the edges to where the log density needs them, and return whether the log density is periodic."""
    dtype = np.dtype(edges.dtype)

    def move(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        i, edges, _, jumps, highest = state
        looks, looked = (i > 0) & (i <= LOOKS), i == LOOKS + 1
        # Edges and midpoints, in order of increasing angle, or points between them.
        base = jnp.concatenate([jnp.repeat(edges[:-1], 2), edges[-1:]])
        width = jnp.diff(edges)
        half = 0.5 * width
        shift = jnp.where(looks, i.astype(dtype) / (LOOKS + 1), 0) * half
        step = jnp.append(jnp.stack([shift, half + shift], 1).reshape(-1), 0)
        with scope(wide):
            levels = lax.stop_gradient(levels_at(log_density, parameters, base, step, wide))
            levels = jnp.where(jnp.isnan(levels), -jnp.inf, levels)
            largest = jnp.max(levels)
            nowhere = lax.convert_element_type(largest, dtype) == -jnp.inf
            largest = jnp.where(largest == -jnp.inf, 0, largest)
            raw, top = (lax.convert_element_type(x, dtype) for x in (levels, largest))
            levels = lax.convert_element_type(jnp.maximum(levels - largest, -DEPTH), dtype)
        gap, extent = jnp.abs(levels[0] - levels[-1]), -jnp.min(levels)
        # A midpoint of the first panels also stands for the points that were looked at.
        middle = jnp.where(looked, jnp.maximum(levels[1::2], highest - top), levels[1::2])
        levels = jnp.append(jnp.stack([levels[:-1:2], middle], 1).reshape(-1), levels[-1])
        highest = jnp.maximum(highest, jnp.maximum(raw[:-1:2], raw[1::2]))
        isolated = isolated_changes(levels, width)
        jumps = jumps | (~looks & (nowhere | (jnp.max(isolated) > JUMP)))
        wanted = demand(levels, isolated, width, SMALLEST_TAIL[dtype.name] / 4, jumps)
        stay = looks | ((i == 0) & jumps)
        moved = jnp.where(stay, edges, redistribute(edges, wanted, jumps))
        after = jnp.where((i == 0) & ~jumps, LOOKS + 2, i + 1).astype(i.dtype)
        return after, *lax.stop_gradient((moved, gap <= END_TOLERANCE * (1 + extent), jumps, highest))

    unknown = jnp.full(edges.size - 1, -jnp.inf, dtype)
    first: tuple[jax.Array, ...] = jnp.zeros((), jnp.int32), edges, jnp.array(True), jnp.array(False), unknown
    _, edges, periodic, *_ = lax.while_loop(lambda state: state[0] < LOOKS + 1 + PASSES, move, first)
    return edges, periodic


def integrate(
    log_density: LogDensity, edges: jax.Array, periodic: jax.Array, wide: bool, parameters: tuple[jax.Array, ...]
) -> Panels:
    """Return the panels with these edges; all results are NaN if the log density is not `periodic`."""
    dtype = np.dtype(edges.dtype)
    work = FLOAT64 if wide else dtype
    nodes, weights, to_legendre, to_shape = panel_rule(NODES[dtype.name])
    product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    pi = np.asarray(np.pi, dtype)
    beyond = jnp.where(edges <= -pi, 1, jnp.where(edges >= pi, -1, 0)).astype(dtype) * BEYOND_PI[dtype.name]
    width = jnp.diff(edges) + jnp.diff(beyond)
    base = jnp.broadcast_to(edges[:-1, None], (width.size, nodes.size))
    step = beyond[:-1, None] + width[:, None] * jnp.asarray(nodes[None], dtype)
    levels = levels_at(log_density, parameters, base.reshape(-1), step.reshape(-1), wide)
    with scope(wide):
        # Round the shift to the dtype in which it is stored, so that adding it to `fall` gives the log density.
        shift = lax.convert_element_type(jnp.max(lax.stop_gradient(levels)), dtype)
        fall = levels - lax.convert_element_type(shift, work)
        converted = [lax.convert_element_type(x, dtype).reshape(base.shape) for x in (jnp.exp(fall), fall, levels)]
    values, fall, levels = converted
    values = values * jnp.where(periodic, 1, jnp.nan).astype(dtype)
    mean = product(values, jnp.asarray(weights, dtype))
    # Use deviations from the mean, so that small coefficients keep their digits.
    off = values - mean[:, None]
    shape = product(off, jnp.asarray(to_shape.T, dtype)).T
    mass = width * mean
    sums = prefix_sums(jnp.stack([mass, mass[::-1]]))
    total = sums[0, -1]
    probabilities = (width[:, None] * jnp.asarray(weights[None], dtype)) * values / total
    sums = jnp.concatenate([jnp.zeros((2, 1), dtype), sums], 1)
    series = product(off, jnp.asarray(to_legendre.T, dtype))
    missed = mass_errors(*lax.stop_gradient((width, mean, series)))
    rounding = rounding_errors(*lax.stop_gradient((levels, probabilities)), work)
    error = lax.stop_gradient(estimate_error(sums, total, missed, rounding))
    return Panels(edges, beyond, width, mean, shape, sums, total, shift, base + step, probabilities, fall, error)


def rounding_errors(levels: jax.Array, probabilities: jax.Array, work: np.dtype) -> jax.Array:
    """Return the probability that rounding moves in each panel, from the log densities at its nodes, of dtype `work`.

    The terms of a log density are unknown, so its rounding error is taken to be proportional to its size.
    """
    size = jnp.where(probabilities > 0, jnp.abs(levels) * probabilities, 0)
    return float(np.finfo(work).eps) / 2 * jnp.sum(size, 1)


def mass_errors(width: jax.Array, mean: jax.Array, series: jax.Array) -> jax.Array:
    """Estimate the largest error of the mass of a part of each panel, from `mean` and the other Legendre terms."""
    inside = QUADRATURE * jnp.max(jnp.abs(series[:, -2:]), 1)
    even, odd = mean + jnp.sum(series[:, ::2], 1), jnp.sum(series[:, 1::2], 1)
    jump = MARGIN[np.dtype(width.dtype).name] * jnp.abs((even + odd)[:-1] - (even - odd)[1:])
    return width * inside + jnp.append(jump * jnp.maximum(width[:-1], width[1:]), 0)


def estimate_error(sums: jax.Array, total: jax.Array, missed: jax.Array, rounding: jax.Array) -> jax.Array:
    """Return an estimate of the largest relative error of a tail probability that a random word can represent.

    In each panel, `missed` is the largest error of the mass of a part of it, and `rounding` the probability that
    rounding moves.
    """
    dtype = np.dtype(sums.dtype)
    tails = sums[:, 1:] / total
    part = missed / total
    moved = part + rounding
    moved = prefix_sums(jnp.stack([moved, moved[::-1]]))
    error = jnp.minimum(moved / jnp.maximum(tails, 1e-37), 1)
    drawn = jnp.where(tails > 0.6, 0, jnp.minimum(tails / SMALLEST_TAIL[dtype.name], 1))
    return jnp.max(error * drawn) + jnp.sum(part) + ROUNDING[dtype.name]


def partial_mass(y: jax.Array, mean: jax.Array, shape: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the integral from 0 to `y` in a panel of width 1, and the density at `y`."""
    z = 2 * y - 1
    value, slope = shape[-1], jnp.zeros_like(z)
    for term in reversed(shape[:-1]):
        slope = slope * z + value
        value = value * z + term
    inner = mean - 2 * (1 - y) * value
    return y * inner, inner + y * (2 * value - 4 * (1 - y) * slope)


class Seen(NamedTuple):
    """Panels, seen from the end of the circle from which their masses are counted."""

    edge: jax.Array
    """First edge of each panel, in radians."""
    beyond: jax.Array
    """What to add to this edge, as in `Panels`."""
    mass: jax.Array
    """Scaled mass before this edge."""
    width: jax.Array
    mean: jax.Array
    shape: list[jax.Array]


def seen_from(panels: Panels, number: jax.Array, from_end: jax.Array) -> Seen:
    """Return the panels with a `number`, which counts from -pi or, if `from_end`, from pi."""
    count = panels.width.shape[0]
    odd = jnp.asarray(np.arange(panels.shape.shape[0])[:, None] % 2 == 1)
    ahead = panels.edges[:-1], panels.beyond[:-1], panels.width, panels.mean, panels.shape
    back = panels.edges[1:], panels.beyond[1:], panels.width, panels.mean, jnp.where(odd, panels.shape, -panels.shape)
    rows = [jnp.concatenate([x, y[..., ::-1]], -1) for x, y in zip(ahead, back, strict=True)]
    column = jnp.where(from_end, number + count, number)
    edge, beyond, width, mean, *shape, mass = take_each(column, *rows, panels.mass[:, :-1].reshape(-1))
    return Seen(*lax.stop_gradient((edge, beyond)), mass, width, mean, shape)


def quantile(panels: Panels, mass: jax.Array, from_end: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the angle at which the scaled mass from -pi (from pi if `from_end`) is `mass`, and the density there.

    The angle is differentiable with respect to the arrays of the panels by the implicit function theorem, because the
    last step starts from a constant.
    """
    count = panels.width.shape[0]
    offset = jnp.where(from_end, count + 1, 0)
    seen = seen_from(panels, search(lax.stop_gradient(panels.mass), lax.stop_gradient(mass), offset), from_end)
    rest = (mass - seen.mass) / seen.width
    known, target = lax.stop_gradient((seen, rest))
    y = clip(target / jnp.maximum(known.mean, 1e-37), 0, 1)
    for _ in range(STEPS[np.dtype(mass.dtype).name]):
        value, density = partial_mass(y, known.mean, known.shape)
        y = clip(y - (value - target) / jnp.maximum(density, 0.02 * known.mean + 1e-37), 0, 1)
    y = lax.stop_gradient(y)
    value, density = partial_mass(y, seen.mean, seen.shape)
    density = lax.stop_gradient(density)
    y = with_derivative_of((rest - value) / jnp.maximum(density, 1e-37), y)
    away = jnp.where(from_end, -seen.width * y, seen.width * y)
    return seen.edge + (seen.beyond + away), density


def mass_up_to(panels: Panels, x: jax.Array, from_end: jax.Array) -> jax.Array:
    """Return the scaled mass between -pi (pi if `from_end`) and each angle `x` in [-pi, pi], with derivatives."""
    panel = search(panels.edges, lax.stop_gradient(x))
    seen = seen_from(panels, jnp.where(from_end, panels.width.shape[0] - 1 - panel, panel), from_end)
    away = (x - seen.edge) - seen.beyond
    away = jnp.where(from_end, -away, away)
    y = clip(away / jnp.maximum(seen.width, 1e-37), 0, 1)
    return seen.mass + seen.width * partial_mass(y, seen.mean, seen.shape)[0]

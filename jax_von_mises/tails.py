"""Probabilities of the von Mises law on either side of an angle, their logarithms and the hazard, to the last float.

From the integral J of `integral`, with more nodes than the sampler needs. At large concentrations a probability is a
product of numbers that no float holds; see `density.rescaled` and `density.square_root`.

For many angles at one concentration it is computed on a grid instead, inside the program, and looked up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises import lookup
from jax_von_mises.density import density, log_density, rescaled, score, square_root
from jax_von_mises.integral import derivative, integrals


@jax.custom_jvp
def lower_tail(x, kappa):
    """P(X < x) for a law centred at 0 and x in [-pi, pi]: relative error 4e-6 (float32) or 1e-12 where below 1/2.

    `kappa` of the shape of `x`, or a scalar for a float32 array: then by a table.
    """
    size = jnp.abs(x)
    if kappa.ndim == x.ndim:
        tail = jnp.where(kappa == jnp.inf, 0 * size, tail_beyond(size, kappa))
    else:
        tail = look_up(size, tail_table(kappa))
    # At 0 both say 1/2, but for a point mass, which belongs to the lower side.
    return jnp.where(x >= 0, 1 - tail, tail)


@lower_tail.defjvp
def _lower_tail_jvp(primals, tangents):
    value = lower_tail(*primals)
    x, kappa = jnp.broadcast_arrays(*primals)
    return value, density(x, kappa) * (tangents[0] - odd_derivative(x, kappa) * tangents[1])


def odd_derivative(x, kappa):
    """`derivative` for x in [-pi, pi], of the sign of x."""
    sign = jnp.where(x < 0, -1, 1).astype(x.dtype)
    return sign * derivative(sign * x, kappa)


def tail_beyond(x, kappa):
    """P(X > x) for x in [0, pi], to 0 below the smallest float."""
    # The float next to pi may lie beyond it.
    return jnp.maximum(signed_tail(x, kappa), 0)


def signed_tail(x, kappa, scale=1.0):
    """`tail_beyond` times `scale`, negative between pi and the float next to it."""
    moved, k, _ = rescaled(x, kappa)
    (j,), centre, half = integrals(moved, k, 1 / k, far=True)
    root, n = square_root(half, k, 1 / k)
    mass = ((j / n) * root) * (root * scale)
    return jnp.where(kappa >= 0, jnp.where(centre, 0.5 * scale + mass, mass), jnp.nan)


# Float32 only. Cells are powers of two wide, and nodes such fractions of them, so that no place in a cell is rounded:
# far out one rounding of the angle is 1e-5 of the tail.
CELLS = 2048
NODES = (0.0, 0.25, 0.75, 1.0)
# Up to this concentration the table has two halves, one from 0 upwards and one from the float next to pi downwards;
# beyond, a tail at pi is no float, and the table ends where e^-q is e^-90.
WIDE = 45.0
WIDE_CELL = 2.0**-9
NEAR_PI = float(np.float32(np.pi))
# The table's factor: the coefficients of a tail next to the smallest float would be none.
LIFT = 2.0**40


class TailTable(NamedTuple):
    """Cubics (4, CELLS), the inverse of a cell's width, and whether there are two halves."""

    coefficients: jax.Array
    scale: jax.Array
    halves: jax.Array


def tail_table(kappa):
    """Tail probabilities of one concentration, for `look_up`; 4e-7 of the tail from their own polynomials."""
    halves = kappa < WIDE
    end = 2 * jnp.arcsin(jnp.sqrt(jnp.minimum(WIDE / kappa, 1)))
    # The power of two next above.
    bits = lax.bitcast_convert_type(end / CELLS, jnp.uint32)
    cell = lax.bitcast_convert_type((bits + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000), jnp.float32)
    scale = jnp.where(kappa >= 0, jnp.where(halves, 1 / WIDE_CELL, jnp.minimum(1 / cell, 1e30)), jnp.nan)
    # Cells share their ends, so three values each, and one at the end of either half.
    half = CELLS // 2
    count = (np.arange(CELLS)[:, None] + np.array(NODES[:3])).reshape(2, -1)
    count = np.concatenate([count, [[half], [CELLS]]], axis=1)
    wide = np.stack([count[0] * WIDE_CELL, NEAR_PI - (count[1] - half) * WIDE_CELL])
    x = jnp.where(halves, jnp.asarray(wide, jnp.float32), jnp.asarray(count, jnp.float32) * cell)
    values = jnp.where(kappa == jnp.inf, 0, signed_tail(x, jnp.broadcast_to(kappa, x.shape), LIFT))
    last = jnp.concatenate([values[:, 3:-1:3], values[:, -1:]], axis=1)
    values = jnp.concatenate([values[:, :-1].reshape(CELLS, 3), last.reshape(CELLS, 1)], axis=1)
    return TailTable(lookup.cell_polynomials(values, NODES), scale, halves)


def look_up(x, table):
    """P(X > x) for x in [0, pi]."""
    upper = table.halves & (x > 0.5 * np.pi)
    # Rounding may have taken the angle beyond pi, by no more than the tail there allows to ignore.
    place = jnp.where(upper, jnp.abs(NEAR_PI - x), x) * table.scale
    whole = jnp.floor(place)
    # The whole number stands at the end of the mantissa of this sum; XLA's conversion to integers takes six
    # instructions to saturate and to look for NaN. The mask keeps it within bounds, for NaN and beyond the end too.
    cell = lax.bitcast_convert_type(whole + 2.0**23, jnp.int32) & (CELLS - 1)
    row = jnp.where(upper, cell + CELLS // 2, cell)
    value = lookup.evaluate(table.coefficients, row, place - whole) * (1 / LIFT)
    return jnp.where(place >= CELLS, 0, jnp.maximum(value, 0))


@jax.custom_jvp
def log_lower_tail(x, kappa):
    """log P(X < x), down to tails that no float holds."""
    far, rate, probability = tail_rate(x, kappa)
    return jnp.where(far, log_density(x, kappa) - jnp.log(rate), jnp.log(probability))


def tail_rate(x, kappa):
    """Whether P(X < x) is so small that its logarithm should come from J, where it is J p; 1 / J; and P itself."""
    moved, k, factor = rescaled(jnp.abs(x), kappa)
    (j,), centre, _ = integrals(moved, k, 1 / k, far=True)
    # A rescaled angle is no longer small where 1 / J is the slope of log p, to rounding. At the float next to pi, which
    # lies beyond it, J is 0.
    steep = (factor > 1) & (moved > 1e-3)
    rate = jnp.where(steep, kappa * jnp.abs(jnp.sin(x)), factor / jnp.maximum(j, 0))
    probability = lower_tail(x, kappa)
    far = (x < 0) & ~centre & (probability < 1e-20)
    return far, jnp.where(far, rate, 1), probability


@log_lower_tail.defjvp
def _log_lower_tail_jvp(primals, tangents):
    x, kappa = primals
    rate = hazard(x, kappa)
    along, in_kappa = score(x, kappa)
    # As the density's logarithm, where by (x, kappa) it is steeper than it is curved, to rounding; and, in the limit,
    # where nothing is left below: at the float next to -pi.
    like_density = (along * jnp.sin(-x) > 1 / jnp.finfo(x.dtype).eps) | (rate == jnp.inf)
    in_kappa = jnp.where(like_density, in_kappa, -rate * odd_derivative(x, kappa))
    return log_lower_tail(x, kappa), rate * tangents[0] + in_kappa * tangents[1]


@jax.custom_jvp
def hazard(x, kappa):
    """p(x) / P(X < x), not from the two where they are no floats."""
    far, rate, probability = tail_rate(x, kappa)
    return jnp.where(far, rate, density(x, kappa) / probability)


@hazard.defjvp
def _hazard_jvp(primals, tangents):
    x, kappa = primals
    rate, (along, across) = hazard(x, kappa), score(x, kappa)
    in_kappa = across + odd_derivative(x, kappa) * rate
    return rate, rate * ((along - rate) * tangents[0] + in_kappa * tangents[1])

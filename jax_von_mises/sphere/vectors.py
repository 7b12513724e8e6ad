"""Normalise vectors, compute the angle between two of them, and place vectors about a mean direction.

At a concentration of 1e7, the rounding error of a float32 component is 2e-4 of the spread. A `Direction` therefore
stores its rounding error, and 1 - w, where w is the cosine of the angle between two vectors, comes from their
difference.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import platform, xla
from jax_von_mises.numerics.elementary import (
    aligned,
    head,
    integers_of,
    inverse_root,
    nan_unless,
    polynomial,
)
from jax_von_mises.sphere.radial import share_below, sine

# Taylor series of sin(pi x / 2) and cos(pi x / 2) for x in [-1, 1].
_QUARTER = np.pi / 2
SINE_OF_QUARTER = tuple(
    (-1) ** j * _QUARTER ** (2 * j + 1) / float(np.prod(np.arange(1.0, 2 * j + 2))) for j in range(12)
)
COSINE_OF_QUARTER = tuple(
    (-1) ** j * _QUARTER ** (2 * j) / float(np.prod(np.arange(1.0, 2 * j + 1))) for j in range(13)
)
# From this dimension on, the part of a normal vector orthogonal to a direction is so long that its square can be
# computed as a difference.
MANY = 16
# Number of values that `ordered_sum` adds at once, as many as a register holds.
LANES = 8
# A number above every product of components of finite vectors.
LARGE = 1e30
# Vectors are taken for unit vectors if their squared length differs from 1 by less than this.
UNIT = 1e-3
# Vectors with a squared length above 2 to the first power, or below its inverse, are scaled by 2 to the second power.
EXTREME = {"float32": (80, 70), "float64": (600, 700)}


class Direction(NamedTuple):
    """A unit vector along the last axis, and its rounding error."""

    unit: jax.Array
    lost: jax.Array


def times_power_of_two(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return `x` times 2^`exponent`, also for subnormal `x`, and where the power itself is not a normal float."""
    kind = jnp.finfo(x.dtype)
    one = exponent.dtype.type(1)

    def power_of_two(exponent: jax.Array) -> jax.Array:
        # The smallest powers become 0.
        biased = jnp.maximum(exponent + one * (1 - kind.minexp), 0)
        return lax.bitcast_convert_type(biased << (one * kind.nmant), x.dtype)

    def scaled(x: jax.Array, exponent: jax.Array) -> jax.Array:
        half = exponent >> one
        return (x * power_of_two(half)) * power_of_two(exponent - half)

    # XLA:CPU treats subnormal numbers as zero in arithmetic, so read them as multiples of the smallest one.
    bits = integers_of(x)
    count = bits & (one * jnp.iinfo(exponent.dtype).max)
    exact = scaled(count.astype(x.dtype), exponent + one * (kind.minexp - kind.nmant))
    result = scaled(x, exponent)
    exact = lax.stop_gradient(jnp.where(bits < 0, -exact, exact) - result)
    return jnp.where((count > 0) & (count < (one << (one * kind.nmant))), result + exact, result)


def direction_of(vector: jax.Array) -> Direction:
    """Return the `Direction` of vectors of any length; NaN for a zero or non-finite vector.

    Derivatives at subnormal vectors may overflow.
    """
    kind = jnp.finfo(vector.dtype)
    bits = jnp.max(integers_of(jnp.abs(vector)), -1, keepdims=True)  # ordered like the numbers
    integer = bits.dtype.type
    # Scale by a power of two, which is exact, so that the largest component is in [1/2, 1).
    exponent = (bits >> integer(kind.nmant)) + integer(kind.minexp)
    of_count = (integers_of(bits.astype(vector.dtype)) >> integer(kind.nmant)) + integer(2 * kind.minexp - kind.nmant)
    exponent = jnp.where(exponent > kind.minexp, exponent, jnp.where(bits > 0, of_count, 0))
    finite = bits < np.array(np.inf, vector.dtype).view(bits.dtype)
    vector = nan_unless(times_power_of_two(vector, -exponent), finite)
    inverse = lax.rsqrt(jnp.sum(vector * vector, -1, keepdims=True))
    unit = vector * inverse
    if unit.dtype == jnp.float64:
        return Direction(unit, jnp.zeros_like(unit))
    # Compute unit / inverse as an exact product of heads plus the rest. An error in the length moves the result only
    # along the vector.
    length = lax.stop_gradient(1 / inverse)
    exact = lax.stop_gradient(unit)
    unit_head, length_head = head(exact), head(length)
    missing = lax.stop_gradient(vector) - unit_head * length_head
    missing = missing - ((exact - unit_head) * length_head + exact * (length - length_head))
    return Direction(unit, missing * (1 / length))


def direction_if_any(vector: jax.Array, kappa: jax.Array) -> tuple[Direction, jax.Array]:
    """Return the `Direction` of vectors and their concentrations `kappa`; NaN for a zero vector, unless `kappa` is 0.

    The distribution is then uniform, and the direction is that of the first axis. A single `kappa` stays single.
    """
    zero = jnp.all(integers_of(jnp.abs(vector)) == 0, -1)
    first = (lax.broadcasted_iota(jnp.int32, vector.shape, vector.ndim - 1) == 0).astype(vector.dtype)
    if kappa.size == 1:
        known = zero & (kappa.reshape(()) == 0)
        return direction_of(jnp.where(known[..., None], first, vector)), kappa
    shape = lax.broadcast_shapes(zero.shape, kappa.shape)
    kappa = jnp.broadcast_to(kappa, shape)
    kappa = nan_unless(kappa, ~jnp.broadcast_to(zero, shape) | (kappa == 0))
    return direction_of(jnp.where(zero[..., None], first, vector)), kappa


@jax.custom_jvp
def sum_of_squares(x: jax.Array) -> jax.Array:
    """Return the sum of squares over the last axis."""
    # XLA:CPU fuses a few components into one vectorised loop over the vectors, which is several times as fast as sums
    # over short rows.
    if x.shape[-1] <= MANY:
        return xla.tree_sum([jnp.square(x[..., j]) for j in range(x.shape[-1])])
    return jnp.sum(x * x, -1)


@sum_of_squares.defjvp
def _sum_of_squares_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return sum_of_squares(*primals), 2 * jnp.sum(primals[0] * tangents[0], -1)


class Unit(NamedTuple):
    """Vectors divided by their length, unless it is nearly 1."""

    y: jax.Array
    square: jax.Array
    """Squared length of `y`."""
    scale: jax.Array
    """A power of two, without derivatives."""
    inverse: jax.Array
    """The inverse of the divisor is `scale` times `inverse`."""

    def times(self, x: jax.Array) -> jax.Array:
        """Return vectors over the divisor, without overflow or underflow of the divisor."""
        return (x * self.scale[..., None]) * self.inverse[..., None]


@jax.custom_jvp
def unit_of(x: jax.Array) -> Unit:
    """Return the `Unit` of vectors.

    The result is NaN for a vector so short that its
    components may be subnormal, which XLA:CPU treats as zero.
    """
    kind = jnp.finfo(x.dtype)
    square = sum_of_squares(x)
    near_one = jnp.abs(square - 1) < UNIT
    high, shift = EXTREME[x.dtype.name]
    long, short = square > 2.0**high, square < 2.0**-high
    scaled = jnp.where(long, sum_of_squares(x * 2.0**-shift), jnp.where(short, sum_of_squares(x * 2.0**shift), square))
    scaled = nan_unless(scaled, ~short | (scaled >= 2.0 ** (2 * (kind.minexp + kind.nmant + shift))))
    scale = jnp.where(long, 2.0**-shift, jnp.where(short, 2.0**shift, 1)).astype(x.dtype)
    inverse = jnp.where(near_one, 1, lax.rsqrt(scaled))
    found = Unit(x, jnp.where(near_one, square, 1), scale, inverse)
    return found._replace(y=found.times(x))


@unit_of.defjvp
def _unit_of_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Unit, Unit]:
    # Differentiating the scaled sums of squares would overflow.
    unit = unit_of(*primals)
    moved = unit.times(tangents[0])
    along = jnp.sum(unit.y * moved, -1)
    near_one = unit.inverse == 1
    y = jnp.where(near_one[..., None], moved, moved - unit.y * along[..., None])
    square = jnp.where(near_one, 2 * along, 0)
    return unit, Unit(y, square, jnp.zeros_like(unit.scale), jnp.where(near_one, 0, -unit.inverse * along))


def versine(x: jax.Array, direction: Direction, lost: jax.Array | None = None) -> jax.Array:
    """Return 1 - w for the cosine w of the angle between vectors `x` and a `Direction`, with relative accuracy near 0.

    Vectors are along the last axis. Those of `x` may have any length that `unit_of` accepts. If `lost`, the rounding
    error of `x`, is given, they are unit vectors.
    """
    ndim = max(x.ndim, direction.unit.ndim)
    unit, rest = (aligned(each, ndim) for each in direction)
    if lost is None:
        return versine_of(aligned(x, ndim), unit, lax.stop_gradient(rest))
    x, rest = aligned(x, ndim), aligned(lost, ndim) - rest
    return from_difference((x - unit) + lax.stop_gradient(rest), sum_of_squares(x))[0]


def from_difference(difference: jax.Array, square: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return 1 - w, the length l of the vectors x, and l - 1, from x minus the direction and the square of l."""
    length = jnp.sqrt(square)
    excess = (square - 1) / (length + 1)
    versine = sum_of_squares(difference) - excess * excess
    # Unlike a maximum, this keeps the derivatives at equal directions.
    return jnp.where(versine < 0, 0, versine) / (2 * length), length, excess


@jax.custom_jvp
def versine_of(x: jax.Array, unit: jax.Array, rest: jax.Array) -> jax.Array:
    """Compute `versine` from the arrays of a `Direction`; `rest` has no derivative."""
    found = unit_of(x)
    return from_difference((found.y - unit) - rest, found.square)[0]


@versine_of.defjvp
def _versine_of_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # For y of length l in place of x, the derivative with respect to y is -(u - w y / l) / l, written below without the
    # cancellation between u and y. Changes of the direction u are orthogonal to it.
    x, unit, rest = primals
    found = unit_of(x)
    difference = (found.y - unit) - rest
    result = versine_of(*primals)
    _, length, excess = from_difference(difference, found.square)
    slope = difference - found.y * ((excess + result) / length)[..., None]
    return result, jnp.sum(slope * found.times(tangents[0]) - difference * tangents[1], -1) / length


def cosine_and_sine(turn: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return cos(pi x) and sin(pi x) for x = `turn` in [-1, 1]."""
    counts = (6, 7) if turn.dtype == jnp.float32 else (12, 13)
    square = turn * turn
    s = turn * polynomial(SINE_OF_QUARTER[: counts[0]], square)
    c = polynomial(COSINE_OF_QUARTER[: counts[1]], square)
    return 1 - 2 * s * s, 2 * s * c


def orthogonal(unit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two unit vectors orthogonal to each three-dimensional `unit`, by T. Duff et al., JCGT 6 (1), 2017."""
    x, y, z = (unit[..., j] for j in range(3))
    sign = jnp.where(z < 0, -1, 1).astype(z.dtype)
    a = -1 / (sign + z)
    b = x * y * a
    first = jnp.stack([1 + sign * x * x * a, sign * b, -sign * x], -1)
    return first, jnp.stack([b, sign + y * y * a, -y], -1)


@jax.custom_jvp
def place_in_space(signed: jax.Array, turn: jax.Array, unit: jax.Array) -> jax.Array:
    """Return vectors in three dimensions from a `radial.signed_share` and an azimuth in half turns."""
    r, (c, s) = sine(signed), cosine_and_sine(turn)
    first, second = (aligned(x, signed.ndim + 1) for x in orthogonal(unit))
    unit = aligned(unit, signed.ndim + 1)
    r, c, s, along = map(platform.stored, (r, c, s, -2 * share_below(signed)))
    along = along[..., None]
    across = c[..., None] * first + s[..., None] * second
    return unit + (along * unit + r[..., None] * across)


@place_in_space.defjvp
def _place_in_space_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # Differentiate each component as an array. Reverse mode would otherwise add up the components of every vector, and
    # XLA:CPU takes four times as long to reduce such a short axis as to draw the vectors.
    def by_components(signed: jax.Array, turn: jax.Array, unit: jax.Array) -> jax.Array:
        r, (c, s) = sine(signed), cosine_and_sine(turn)
        along = -2 * share_below(signed)
        axes = ([axis[..., j] for axis in (unit, *orthogonal(unit))] for j in range(3))
        return jnp.stack([u + (along * u + r * (c * first + s * second)) for u, first, second in axes], -1)

    return place_in_space(*primals), jax.jvp(by_components, primals, tangents)[1]


def place_across(signed: jax.Array, z: jax.Array, unit: jax.Array) -> jax.Array:
    """Return vectors in any dimension from a `radial.signed_share` and normal vectors `z`.

    The part of `z` orthogonal to `unit` gives the azimuth. Unlike a reflection, this treats all directions alike and
    has finite derivatives everywhere.
    """
    unit = aligned(unit, z.ndim)
    along = ordered_sum(rounded(z * unit))
    if z.shape[-1] < MANY:
        square = ordered_sum(rounded(jnp.square(z - rounded(along[..., None] * unit))))
    else:
        square = ordered_sum(rounded(z * z)) - rounded(along * along)
    r = sine(signed) * inverse_root(square)
    back = 1 - (2 * share_below(signed) + rounded(r * along))
    return rounded(z * r[..., None]) + rounded(unit * back[..., None])


def rounded(product: jax.Array) -> jax.Array:
    """Return `product` rounded before it is added, so that a direction has the same bits in every program."""
    return xla.round_here(product, LARGE)


def ordered_sum(terms: jax.Array) -> jax.Array:
    """Sum over the last axis in the same order in every program, adding `LANES` values at once."""
    size = terms.shape[-1]
    cut = size - size % LANES if size > LANES else 0
    lanes = xla.tree_sum([terms[..., j : j + LANES] for j in range(0, cut, LANES)]) if cut else terms[..., :0]
    columns = [lanes[..., j] for j in range(lanes.shape[-1])] + [terms[..., j] for j in range(cut, size)]
    return xla.tree_sum(columns)

r"""Integrate the density over an arc, and find the angle of the arc that has a given fraction of the mass before it.

Let :math:`q(x) = 2\kappa\sin^2(x/2)` for an angle x measured from the mode. The arc is cut at the mode and at the point
opposite to it, into at most three pieces on which the density is monotone. A piece of length w begins at its `near` end
a and leads away from the mode. Its mass, relative to the density at a, is

.. math:: I(a, w) = \int_0^w e^{q(a)-q(a+u)} du, \qquad q(a+u) - q(a) = 2\kappa \sin(u/2) \sin(a + u/2).

Since :math:`I` needs no probability of the full distribution, no arc is too unlikely or too narrow. The offset s of an
angle from a solves :math:`I(a, s) = f I(a, w)`, where f is the fraction of the piece's mass between a and the angle. If
f is above 1/2, the equation for the mass beyond the angle is solved instead. A fourth-order step refines a starting
value of s. This value comes from the quantile function of the full distribution if a float can hold the tail
probability, and otherwise from bisection.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import quadrature
from jax_von_mises.numerics.circle import TWO_PI, deviation, less_turns, reduce_turns, wrap
from jax_von_mises.numerics.elementary import LOG2_E, clip, cosine, exp2, sine_over
from jax_von_mises.von_mises import quantile, tail_integral
from jax_von_mises.von_mises.density import HalfAngle, density
from jax_von_mises.von_mises.tail_probability import signed_mass

T = TypeVar("T")

# Depth, and number of Gauss-Legendre nodes. Integrals end where the integrand has fallen by a factor of e^depth, below
# rounding. This number of nodes is accurate to rounding even in the hardest case, half a normal density.
RULE = {"float32": (20.0, 20), "float64": (42.0, 40)}
# The same for the smaller part of a piece, which does not begin at the density's maximum. The relative error in
# float32 is 2e-7.
PART_RULE = {"float32": (16.0, 10), "float64": (42.0, 40)}
# Largest fall of the log density from the near end to the most extreme sample: ln 2^33 or ln 2^65, plus a margin for
# the tail integral, which may be larger there.
LARGEST_FALL = {"float32": 30.0, "float64": 55.0}
# Bisection leaves an error of 1/500 of that range, below a quarter of a decay length. A step reduces the error to
# its fourth power.
BISECTIONS = 8
STEPS = {"float32": 1, "float64": 2}
# Tail probabilities of the full distribution. Above the first, the product of a density and a mass does not underflow.
# Samples of the full distribution reach only tail probabilities above the second.
SMALLEST_KNOWN, SMALLEST_TAIL = 1e-34, quantile.SMALLEST_TAIL["float32"]
# Fraction of a decay length up to which the first terms of a series are accurate enough to start a step.
SHORT = 0.02
# If rounding moves an angle out of its arc by less than this many ulp of 1, the angle is moved back to the end. Arcs
# wider than the second number, in radians, are exempt, because the other end may be as near.
SLACK = 32
WIDE_ARC = 6.0
# Limit on the log ratio of densities, so that no derivative overflows; drawn angles stay within `LARGEST_FALL`.
LARGEST_RISE = 80.0


class Piece(NamedTuple):
    """A part of an arc on which the density is monotone; of length 0 if the arc has no such part."""

    near: jax.Array  # distance from the mode to the end with the larger density
    length: jax.Array
    anchor: jax.Array  # the near end as an angle
    side: jax.Array  # 1 where angles increase away from the mode, else -1


class Part(NamedTuple):
    """A `Piece` and the values that depend only on it and on the concentration."""

    piece: Piece
    sin: jax.Array  # of the near end
    cos: jax.Array
    mass: jax.Array  # relative to the density at the near end
    weight: jax.Array  # the mass relative to the largest density of the arc
    probability: jax.Array  # under the full distribution
    near_side: jax.Array  # the probability beyond the near end; if that up to the mode is smaller, this one, negative
    far_side: jax.Array  # the same for the far end

    def as_one(self) -> jax.Array:
        """Return all values along a first axis; each array that enters a loop costs a loop of its own to compile."""
        return jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(self)))

    @classmethod
    def from_one(cls, values: jax.Array) -> "Part":
        """Invert `as_one`."""
        near, length, anchor, side, *others = values
        return cls(Piece(near, length, anchor, side), *others)


class Arc(NamedTuple, Generic[T]):
    """The pieces of an arc (at most three) in order of increasing angle, or one value for each, such as its mass."""

    first: T
    middle: T
    last: T


def cut(low: jax.Array, high: jax.Array, width: jax.Array, loc: jax.Array) -> Arc[Piece]:
    """Cut an arc of this `width` at the mode and at the point opposite to it."""
    alpha, beta = from_mode(low, loc), from_mode(high, loc)
    a, b, zero = jnp.abs(alpha), jnp.abs(beta), jnp.zeros_like(alpha + beta + width)
    left, right = jnp.full_like(zero, -1), jnp.full_like(zero, 1)
    # The density increases with the angle left of the mode, and decreases right of it.
    low_is_left, high_is_right = alpha < 0, beta > 0
    uncut = select(low_is_left, Piece(b, width, high, left), Piece(a, width, low, right))
    from_low = select(low_is_left, Piece(zero, a, loc, left), Piece(a, to_antipode(a), low, right))
    to_high = select(high_is_right, Piece(zero, b, loc, right), Piece(b, to_antipode(b), high, left))
    half_turn = Piece(zero, jnp.full_like(zero, np.pi), loc, -from_low.side)

    no_cut = Arc(uncut, absent(half_turn), absent(to_high))
    one_cut = Arc(from_low, absent(half_turn), to_high)
    two_cuts = Arc(from_low, half_turn, to_high)
    # If both ends are on the same side of the mode, the arc joins them directly or the other way around the circle.
    direct = width - (beta - alpha) < np.pi
    return select(low_is_left == high_is_right, one_cut, select(direct, no_cut, two_cuts))


def select(condition: jax.Array, yes: T, no: T) -> T:
    """Return `jnp.where` applied to each array of two pieces, arcs or tuples."""
    selected: T = jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
    return selected


def absent(piece: Piece) -> Piece:
    """Return `piece` with length 0, and thus without mass."""
    return piece._replace(length=jnp.zeros_like(piece.length))


def stacked(arc: Arc[Piece]) -> Piece:
    """Return the pieces of `arc` as one `Piece` with a first axis of three, so that they are integrated together."""
    return Piece(*(jnp.stack(jnp.broadcast_arrays(*field)) for field in zip(*arc, strict=True)))


def from_mode(x: jax.Array, loc: jax.Array) -> jax.Array:
    """Return the angle `x` measured from the mode, in [-pi, pi]."""
    return clip(deviation(x, loc)[0], -np.pi, np.pi)


def to_antipode(x: jax.Array) -> jax.Array:
    """Return pi - x for x in [0, pi], and 0 where the float next to pi lies beyond it."""
    return jnp.maximum(2 * HalfAngle.of(x).to_pole, 0)


def rise(u: jax.Array, sin_a: jax.Array, cos_a: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return q(a + u) - q(a) for u in [0, pi], without cancellation or premature overflow."""
    half = 0.5 * u
    sine, cos = half * sine_over(half * half), cosine(half * half)
    return (kappa * sine) * (2 * (sin_a * cos + cos_a * sine))


def rise_between(a: jax.Array, b: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return q(b) - q(a), from the half angles."""
    return (kappa * jnp.sin(0.5 * (b - a))) * (2 * jnp.sin(0.5 * (a + b)))


def cutoff_width(sin_a: jax.Array, cos_a: jax.Array, kappa: jax.Array, depth: float) -> jax.Array:
    """Return the u at which `rise` reaches `depth`, with a relative error below 3%, or 2 pi if it never does.

    With e = depth / (2 kappa), T = tan(u / 2) is the smaller root of (cos a - e) T^2 + sin a T - e = 0.
    """
    e = jnp.minimum((0.5 * depth) * (1 / jnp.maximum(kappa, 1e-30)), 2)
    square = sin_a * sin_a + 4 * e * (cos_a - e)
    root = jnp.sqrt(jnp.maximum(square, 0))
    # Arctangent of 2 e / (sin a + root), approximated by a rational function of p.
    p = (2 * e) * (1 / (2 * e + jnp.maximum(sin_a + root, 0)))
    b = 2 / np.pi
    angle = p * (b + (1 - b) * p) * (1 / (1 - (2 - 2 * b) * (p * (1 - p))))
    return jnp.where(square > 0, np.pi * angle, TWO_PI)


def mass(
    sin_a: jax.Array,
    cos_a: jax.Array,
    width: jax.Array,
    kappa: jax.Array,
    rule: dict[str, tuple[float, int]],
    loop: bool = False,
) -> jax.Array:
    """Return I(a, width), as defined in the module's docstring; see `quadrature.add_terms` for `loop`."""
    depth, count = rule[width.dtype.name]
    span = 0.5 * jnp.minimum(width, cutoff_width(sin_a, cos_a, kappa, depth))
    exponent_at = tail_integral.exponents(sin_a, cos_a, span, kappa)
    nodes, weights = quadrature.gauss_legendre(count)
    (total,) = quadrature.add_terms(
        lambda node, weight: (2 * weight * exp2(exponent_at(node)),), nodes, weights, span, loop
    )
    return span * total


def parts_of(pieces: Piece, kappa: jax.Array) -> Part:
    """Return the `Part` of each stacked piece."""
    nearest = jnp.min(jnp.where(pieces.length > 0, pieces.near, np.pi), 0)
    kappa = kappa[None]
    exponent = jnp.maximum(rise_between(nearest[None], pieces.near, kappa), 0)
    sin, cos = jnp.sin(pieces.near), jnp.cos(pieces.near)
    own = mass(sin, cos, pieces.length, kappa, RULE, loop=True)
    beyond, centre = signed_mass(jnp.stack([pieces.near, pieces.near + pieces.length]), kappa[None], loop=True)
    # One signed number holds both probabilities; separate results would be computed in separate loops.
    both = jnp.where(centre, jnp.minimum(beyond, -float(jnp.finfo(beyond.dtype).tiny)), jnp.maximum(beyond, 0))
    return Part(pieces, sin, cos, own, jnp.exp(-exponent) * own, own * density(pieces.near, kappa), *both)


class Equation(NamedTuple):
    """The equation I(near, s) = `f` I(near, length) for the offset s from the near end of a `Part`."""

    f: jax.Array
    g: jax.Array  # 1 - f
    part: Part
    kappa: jax.Array

    @property
    def inner(self) -> jax.Array:
        """Whether the mass is measured from the near end."""
        return self.f < self.g

    @property
    def target(self) -> jax.Array:
        """The smaller of the masses on the two sides of the angle."""
        return jnp.where(self.inner, self.f, self.g) * self.part.mass


def equation(before: jax.Array, after: jax.Array, parts: jax.Array, kappa: jax.Array) -> Equation:
    """Return the equation for the angle with the fractions `before` and `after` of the arc's mass on its sides.

    `parts` are those of `Part.as_one`.
    """
    each_part: Arc[Part] = Arc(*(Part.from_one(parts[:, j]) for j in range(3)))
    each_weight: Arc[jax.Array] = Arc(*(part.weight for part in each_part))
    choose = chosen_piece(before, after, each_weight)
    part, (before, after) = choose(each_part), choose(shares_within(before, after, each_weight))
    f, g = select(part.piece.side > 0, (before, after), (after, before))
    return Equation(clip(f, 0, 1), clip(g, 0, 1), part, kappa)


def chosen_piece(before: jax.Array, after: jax.Array, masses: Arc[jax.Array]) -> Callable[[Arc[T]], T]:
    """Return a function that selects, from any `Arc`, the entry of the piece in which the angle lies."""
    total = masses.first + masses.middle + masses.last
    in_first = before * total <= masses.first
    in_last = ~in_first & ((after * total <= masses.last) | (masses.middle == 0))
    return lambda arc: select(in_first, arc.first, select(in_last, arc.last, arc.middle))


def shares_within(before: jax.Array, after: jax.Array, masses: Arc[jax.Array]) -> Arc[tuple[jax.Array, jax.Array]]:
    """Return the fractions of each piece's mass before and after the angle, as if the angle lay in that piece."""
    first, middle, last = masses
    total = first + middle + last
    last_after, last_before = shares_of_outer(after, before, last, first + middle)
    return Arc(
        shares_of_outer(before, after, first, middle + last),
        ((before * total - first) * (1 / middle), (after * total - last) * (1 / middle)),
        (last_before, last_after),
    )


def shares_of_outer(
    outer: jax.Array, inner: jax.Array, own: jax.Array, others: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the fractions of an outer piece's mass towards the end of the arc and towards the other pieces."""
    ratio = others / own
    return outer * (1 + ratio), inner - outer * ratio


def both_sides(side: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the probabilities beyond an end, and between it and the mode, from the one that a `Part` holds."""
    centre = side < 0
    return jnp.where(centre, 0.5 + side, side), jnp.where(centre, -side, 0.5 - side)


def full_tail(equation: Equation) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return t, 1/2 - t and a flag, for the tail probability t of |x| in the full distribution.

    The flag is true where t is large enough to be computed in float32; elsewhere, t is 1/4.
    """
    part, inner = equation.part, equation.inner
    (near_tail, near_rest), (far_tail, far_rest) = both_sides(part.near_side), both_sides(part.far_side)
    before, after = equation.f * part.probability, equation.g * part.probability
    t = jnp.where(inner, near_tail - before, far_tail + after)
    c = jnp.where(inner, near_rest + before, far_rest - after)
    known = ~((t <= SMALLEST_KNOWN) | (near_tail <= SMALLEST_KNOWN))
    return jnp.where(known, t, 0.25).astype(jnp.float32), c.astype(jnp.float32), known


def common_start(equation: Equation) -> tuple[jax.Array, jax.Array]:
    """Return a starting offset, and whether `quantile.half_quantile` covers its tail probability."""
    t, c, known = full_tail(equation)
    x = quantile.half_quantile(jnp.maximum(t, SMALLEST_TAIL), c, equation.kappa.astype(jnp.float32))
    x, piece = x.astype(equation.f.dtype), equation.part.piece
    # Close to the far end, which may be opposite to the mode, any angle is a good start.
    left = (piece.near + piece.length - x) * decay(np.pi - x, equation.kappa)
    return offset_of(equation, x), known & ~((t < SMALLEST_TAIL) & (left > SHORT))


def rare_start(equation: Equation) -> jax.Array:
    """Return a refined starting offset where `common_start` covers none.

    It comes from `quantile.deep_guess`, or from bisection if no float holds the tail.
    """
    t, _, known = full_tail(equation)
    part, name = equation.part, equation.f.dtype.name
    end = jnp.minimum(part.piece.length, cutoff_width(part.sin, part.cos, equation.kappa, LARGEST_FALL[name]))
    near = offset_of(equation, quantile.deep_guess(t, equation.kappa).astype(equation.f.dtype))
    bracket = jnp.where(known, near, 0), jnp.where(known, 0, end)

    def narrow(i: jax.Array, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, half = bracket[0], 0.5 * bracket[1]
        s = start + half
        u, *place = distance(equation, s, loop=True)
        nearer = jnp.where(u > 0, s, start)
        bisect = i < BISECTIONS
        return jnp.where(bisect, nearer, moved(equation, s, u, *place)), jnp.where(bisect, half, 0)

    begin = jnp.where(jnp.all(known), BISECTIONS, 0)
    offset: jax.Array = lax.fori_loop(begin, BISECTIONS + STEPS[name], narrow, bracket)[0]
    return offset


def offset_of(equation: Equation, x: jax.Array) -> jax.Array:
    """Return the offset of the angle `x`, measured from the mode.

    Close to the near end, where x - near cancels, the offset is computed from the mass.
    """
    part, target, kappa = equation.part, equation.target, equation.kappa
    short = equation.inner & (target * decay(part.sin, kappa) < SHORT)
    s = jnp.clip(x - part.piece.near, 0, part.piece.length)
    return jnp.where(short, cubic_inverse_series(target, part.sin, part.cos, kappa), s)


def decay(sine: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the inverse of a length over which the density changes by a factor of at most e."""
    return jnp.maximum(kappa * sine, jnp.sqrt(kappa))


def improved(equation: Equation, s: jax.Array) -> jax.Array:
    """Return the offset `s` after one fourth-order step."""
    return moved(equation, s, *distance(equation, s))


def distance(equation: Equation, s: jax.Array, loop: bool = False) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the distance from `s` to the root, to first order, and the sine and cosine of the angle at `s`."""
    part, inner, target = equation.part, equation.inner, equation.target
    half = 0.5 * s
    sine, cos = half * sine_over(half * half), cosine(half * half)
    sin_s, cos_s = 2 * sine * cos, 1 - 2 * sine * sine
    sin_x, cos_x = part.sin * cos_s + part.cos * sin_s, part.cos * cos_s - part.sin * sin_s
    from_sin, from_cos = jnp.where(inner, part.sin, sin_x), jnp.where(inner, part.cos, cos_x)
    width = jnp.where(inner, s, jnp.maximum(part.piece.length - s, 0))
    found = mass(from_sin, from_cos, width, equation.kappa, PART_RULE, loop)
    growth = exp2(LOG2_E * jnp.minimum(rise(s, part.sin, part.cos, equation.kappa), LARGEST_RISE))
    return jnp.where(inner, (target - found) * growth, found - target * growth), sin_x, cos_x


def moved(equation: Equation, s: jax.Array, u: jax.Array, sin_x: jax.Array, cos_x: jax.Array) -> jax.Array:
    """Return the offset `s` after one fourth-order step, given the values that `distance` returns."""
    return jnp.clip(s + cubic_inverse_series(u, sin_x, cos_x, equation.kappa), 0, equation.part.piece.length)


def cubic_inverse_series(u: jax.Array, sin_x: jax.Array, cos_x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the distance to the root, given its first-order approximation `u`.

    This is the Taylor series of the inverse function, whose derivative is e^(q(x) - q(s)).
    """
    first = (kappa * sin_x) * u
    return u * (1 + first * (0.5 + first / 3) + ((kappa * cos_x) * u) * u / 6)


def masses_about(
    low: jax.Array, high: jax.Array, x: jax.Array, loc: jax.Array, kappa: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return m and l of the docstring of `truncated`; the first axis of each selects the arc before or after `x`."""
    dtype = x.dtype
    ends = jnp.stack([low, x]), jnp.stack([x, high])
    difference = less_turns(ends[1] - ends[0], 0.0)
    # A negative difference comes from rounding, or from an arc of more than half a turn.
    rounding = SLACK * float(jnp.finfo(dtype).eps)
    width = jnp.where(difference < -rounding, difference + TWO_PI, jnp.maximum(difference, 0))
    pieces = stacked(cut(*ends, width, loc[None]))
    kappa = jnp.broadcast_to(kappa, pieces.near.shape)
    sin_a, cos_a = jnp.sin(pieces.near), jnp.cos(pieces.near)
    # The factor cos theta - cos x equals (q(x) - q(theta)) / kappa.
    size = jnp.broadcast_to(jnp.abs(from_mode(x, loc)), pieces.near.shape)
    one = jnp.ones_like(kappa)
    fall = rise_between(pieces.near, size, one)
    depth, count = RULE[dtype.name]
    span = jnp.minimum(pieces.length, cutoff_width(sin_a, cos_a, kappa, depth))

    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        gain = fall - rise(span * node, sin_a, cos_a, one)
        ratio = jnp.exp(jnp.minimum(kappa * gain, LARGEST_RISE))
        return weight * ratio, weight * (ratio * gain)

    nodes, weights = quadrature.gauss_legendre(count)
    mass_total, l_total = quadrature.add_terms(term, nodes, weights, span)
    return jnp.sum(span * mass_total, 0), jnp.sum(span * l_total, 0)


def back_inside(x: jax.Array, low: jax.Array, high: jax.Array, width: jax.Array) -> jax.Array:
    """Return `x`, or the end of the arc if rounding moved `x` across it."""
    slack = jnp.where(width < WIDE_ARC, SLACK * float(jnp.finfo(x.dtype).eps), 0)
    for end, direction in ((low, -1), (high, 1)):
        angle = wrap(jnp.zeros_like(x), reduce_turns(end))
        beyond = direction * (x - angle)
        x = jnp.where((beyond > 0) & (beyond < slack), angle, x)
    return x

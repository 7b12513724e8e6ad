r"""Compute densities, probabilities and quantiles of the von Mises distribution restricted to an arc.

All come from integrals over pieces of the arc, relative to the largest density on them (see
:mod:`jax_von_mises.von_mises.arc`), so that no arc is too unlikely or too narrow.

*Derivatives of the quantile.* Let :math:`m_1, m_2` be the masses before and after x relative to p(x), and
:math:`l_1, l_2` the same integrals with the factor :math:`\cos\theta - \cos x`. At a fixed fraction of the mass
before x,

.. math:: dx = d\mu + \frac{m_1 l_2 - m_2 l_1}{m_1 + m_2} d\kappa + \frac{m_2\, p(low)}{(m_1 + m_2)\, p(x)}
          (dlow - d\mu) + \frac{m_1\, p(high)}{(m_1 + m_2)\, p(x)} (dhigh - d\mu).
"""

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import quadrature
from jax_von_mises.numerics.circle import TWO_PI, less_turns, reduce_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless, valid
from jax_von_mises.von_mises import arc
from jax_von_mises.von_mises.arc import (
    LARGEST_RISE,
    back_inside,
    cut,
    from_mode,
    masses_about,
    parts_of,
    rise_between,
    stacked,
)

# Above this concentration the formulas would overflow; the standard deviation is below 1e-18 or 1e-150 radians.
POINT_MASS = {"float32": 1e36, "float64": 1e300}


class Integrals(NamedTuple):
    """What an arc holds. Let v be 1 - cos of an angle's distance from the mode, so that a density is exp(-kappa v)."""

    nearest: Array
    """Distance of the arc from the mode, where its density is largest."""
    mass: Array
    """The integral of the density, relative to its largest value on the arc."""
    rise: Array
    """The mean of v, less its value at `nearest`."""
    cosine: Array
    """The mean cosine of the distance from the mode."""
    sine: Array


def over_arc(low: Array, high: Array, width: Array, loc: Array, kappa: Array) -> Integrals:
    """Integrate over an arc of this `width`, for a finite `kappa`."""
    pieces = stacked(cut(low, high, width, loc))
    nearest = jnp.min(jnp.where(pieces.length > 0, pieces.near, np.pi), 0)
    kappa = jnp.broadcast_to(kappa, pieces.near.shape)
    one, sin_a, cos_a = jnp.ones_like(kappa), jnp.sin(pieces.near), jnp.cos(pieces.near)
    further = jnp.maximum(rise_between(nearest[None], pieces.near, one), 0)
    depth, count = arc.RULE[kappa.dtype.name]
    cutoff = arc.cutoff_width(sin_a, cos_a, kappa, depth)
    span = jnp.minimum(pieces.length, lax.stop_gradient(cutoff))

    def term(node: Array, weight: Array) -> tuple[Array, ...]:
        offset = span * node
        rise = arc.rise(offset, sin_a, cos_a, one) + further
        density = weight * jnp.exp(-kappa * rise)
        away = pieces.near + offset
        return density, density * rise, density * jnp.cos(away), density * (pieces.side * jnp.sin(away))

    sums = quadrature.add_terms(term, *quadrature.gauss_legendre(count), span)
    mass, *others = (jnp.sum(span * total, 0) for total in sums)
    return Integrals(nearest, mass, *(total / mass for total in others))


class OnArc(NamedTuple):
    """Where an angle lies, counted from the lower end of the arc."""

    offset: Array
    """Distance from the lower end, in the direction of the arc; at most its width."""
    turns: Array
    """Full turns, which are to be added."""
    inside: Array
    """Whether the angle lies on the arc, or so near to it that rounding may have moved it."""


def place_of(x: Array, low: Array, width: Array) -> OnArc:
    """Return the `OnArc` of an angle."""
    slack = arc.SLACK * float(jnp.finfo(x.dtype).eps)
    difference = less_turns(x - low, 0.0)
    offset = jnp.where(difference < 0, difference + TWO_PI, difference)
    turns = jnp.round(lax.stop_gradient(x - low - offset) / TWO_PI)
    # An angle just below the lower end lies on it, and not at the end of the turn before.
    below = offset > TWO_PI - slack
    below &= offset > width + slack
    inside = below | (offset <= width + slack)
    return OnArc(jnp.where(below, 0, jnp.minimum(offset, width)), turns + below.astype(turns.dtype), inside)


def checked(low: Array, high: Array, kappa: Array) -> tuple[Array, Array, Array]:
    """Return an arc's width, a finite concentration, both NaN where invalid, and whether it was too large."""
    kappa, good = infinite_if_point(kappa), good_arc(low, high)
    finite = nan_unless(finite_concentration(kappa), good)
    return nan_unless(jnp.minimum(high - low, TWO_PI), good), finite, kappa == jnp.inf


def log_prob(x: Array, loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the logarithm of the density, -inf outside the arc."""
    x, loc, kappa, low, high = jnp.broadcast_arrays(x, loc, kappa, low, high)
    width, k, infinite = checked(low, high, kappa)
    whole = over_arc(low, high, width, loc, k)
    fall = rise_between(whole.nearest, jnp.abs(from_mode(x, loc)), jnp.ones_like(k))
    value = -k * fall - jnp.log(whole.mass)
    value = jnp.where(infinite, jnp.where(fall <= 0, jnp.inf, -jnp.inf), value)
    known = ~jnp.isnan(value)
    return nan_unless(jnp.where(place_of(x, low, width).inside, value, -jnp.inf), known)


@jax.custom_jvp
def fractions_at(x: Array, loc: Array, kappa: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the fractions of the arc's probability before and after an angle; all arguments have one shape."""
    return _before_and_after(x, loc, kappa, low, high)[0]


def _before_and_after(
    x: Array, loc: Array, kappa: Array, low: Array, high: Array
) -> tuple[tuple[Array, Array], Integrals, Integrals]:
    width, k, _ = checked(low, high, kappa)
    at = place_of(x, low, width).offset
    whole = over_arc(low, high, width, loc, k)
    before = over_arc(low, low + at, at, loc, k)
    after = over_arc(low + at, high, width - at, loc, k)

    def share(part: Integrals) -> Array:
        fall = jnp.maximum(rise_between(whole.nearest, part.nearest, jnp.ones_like(k)), 0)
        return jnp.minimum(jnp.exp(-k * fall) * (part.mass / whole.mass), 1)

    return (share(before), share(after)), before, after


@fractions_at.defjvp
def _fractions_at_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    x, _, kappa, low, high = primals
    (f, g), before, after = _before_and_after(*primals)
    dx, dloc, dkappa, dlow, dhigh = tangents
    of_x, of_low, of_high = (jnp.exp(log_prob(at, *primals[1:])) for at in (x, low, high))
    apart = rise_between(before.nearest, after.nearest, jnp.ones_like(kappa)) + after.rise - before.rise
    of_kappa = jnp.where((f > 0) & (g > 0) & jnp.isfinite(kappa), f * g * apart, 0)
    width = jnp.minimum(high - low, TWO_PI)
    moved = of_x * (dx - dloc) - g * of_low * (dlow - dloc) - f * of_high * (dhigh - dloc) + of_kappa * dkappa
    moved = jnp.where(place_of(x, low, width).inside | jnp.isnan(f), moved, 0)
    return (f, g), (moved, -moved)


def cdf(x: Array, loc: Array, kappa: Array, low: Array, high: Array, start: Array | None = None) -> Array:
    """Return the probability from `low`, or from `start`, to `x`."""
    before, _, turns = _counted(x, loc, kappa, low, high)
    if start is None:
        return before + turns
    from_start, _, turns_before = _counted(start, loc, kappa, low, high)
    return (before - from_start) + (turns - turns_before)


def sf(x: Array, loc: Array, kappa: Array, low: Array, high: Array, start: Array | None = None) -> Array:
    """Return 1 - `cdf`."""
    if start is not None:
        return 1 - cdf(x, loc, kappa, low, high, start)
    _, after, turns = _counted(x, loc, kappa, low, high)
    return after - turns


def _counted(x: Array, loc: Array, kappa: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    given = jnp.broadcast_arrays(x, loc, kappa, low, high)
    before, after = fractions_at(*given)
    return before, after, place_of(given[0], given[3], jnp.minimum(given[4] - given[3], TWO_PI)).turns


@jax.custom_jvp
def quantile(before: Array, after: Array, loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the angle in [low, high] with these fractions of the arc's probability on its sides."""
    x = restricted(before, after, loc, infinite_if_point(kappa), low, high)
    middle = 0.5 * low + 0.5 * high
    x = jnp.clip(x + TWO_PI * jnp.round((middle - x) / TWO_PI), low, high)
    x = jnp.where(before == 0, low, jnp.where(after == 0, high, x))
    known = (before >= 0) & (after >= 0) & (kappa >= 0) & jnp.isfinite(loc)
    return nan_unless(x, known & good_arc(low, high))


@quantile.defjvp
def _quantile_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    before, after, *given = primals
    x = quantile(*primals)
    _, slopes = jax.jvp(lambda *given: restricted(before, after, *given), tuple(given), tangents[2:])
    share = after * tangents[0] - before * tangents[1]
    return x, slopes + share * jnp.exp(-log_prob(x, *given))


def icdf(q: Array, loc: Array, kappa: Array, low: Array, high: Array, start: Array | None = None) -> Array:
    """Return the angle with probability `q` between `low`, or `start`, and it."""
    return _quantile(q, 1 - q, start, loc, kappa, low, high)


def isf(q: Array, loc: Array, kappa: Array, low: Array, high: Array, start: Array | None = None) -> Array:
    """Return the angle with probability 1 - `q` between `low`, or `start`, and it."""
    return _quantile(1 - q, q, start, loc, kappa, low, high)


def _quantile(
    before: Array,
    after: Array,
    start: Array | None,
    loc: Array,
    kappa: Array,
    low: Array,
    high: Array,
) -> Array:
    if start is None:
        return quantile(*jnp.broadcast_arrays(before, after, loc, kappa, low, high))
    f, g, turns = _counted(start, loc, kappa, low, high)
    before, after, f, g, turns = jnp.broadcast_arrays(before, after, f, g, turns)
    known = (before >= 0) & (after >= 0)
    # Beyond the end of the arc, the angle lies in the next turn.
    beyond = before > g
    share = jnp.where(beyond, before - g, before + f)
    rest = jnp.where(beyond, after + g, after - f)
    x = quantile(*jnp.broadcast_arrays(jnp.clip(share, 0, 1), jnp.clip(rest, 0, 1), loc, kappa, low, high))
    x = x + (turns + beyond.astype(turns.dtype)) * TWO_PI
    # A `start` beyond the arc would otherwise give the end of the arc before it.
    return nan_unless(jnp.clip(x, start, start + TWO_PI), known)


def _moments(loc: Array, kappa: Array, low: Array, high: Array) -> tuple[Integrals, Array, Array]:
    loc, kappa, low, high = jnp.broadcast_arrays(loc, kappa, low, high)
    width, k, infinite = checked(low, high, kappa)
    return over_arc(low, high, width, loc, k), k, infinite


def mean(loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the mean direction."""
    found, *_ = _moments(loc, kappa, low, high)
    away = jnp.arctan2(found.sine, found.cosine)
    return wrap(away, jnp.broadcast_to(reduce_turns(loc), away.shape))


def mean_resultant_length(loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the length of the mean of the unit vectors."""
    found, *_ = _moments(loc, kappa, low, high)
    return jnp.minimum(jnp.hypot(found.sine, found.cosine), 1)


def entropy(loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the differential entropy in nats."""
    found, k, infinite = _moments(loc, kappa, low, high)
    value = jnp.log(found.mass) + k * found.rise
    return jnp.where(infinite & ~jnp.isnan(value), -jnp.inf, value)


def mode(loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the angle of the arc that is nearest to `loc`."""
    loc, kappa, low, high = jnp.broadcast_arrays(loc, kappa, low, high)
    width, k, _ = checked(low, high, kappa)
    from_low, from_high = (jnp.abs(from_mode(end, loc)) for end in (low, high))
    nearest = jnp.where(place_of(loc, low, width).inside, loc, jnp.where(from_low <= from_high, low, high))
    return nan_unless(wrap(jnp.zeros_like(nearest), reduce_turns(nearest)), ~jnp.isnan(width + k + from_low))


def good_arc(low: Any, high: Any, xp: ModuleType = jnp) -> Any:
    """Return whether the ends are finite and 0 < high - low <= 2 pi up to rounding; `xp` is `numpy` or `jax.numpy`."""
    rounding = 2 * float(jnp.finfo(low.dtype).eps) * (xp.abs(low) + xp.abs(high))
    return (high > low) & (high - low <= TWO_PI + rounding) & (xp.abs(low) + xp.abs(high) < xp.inf)


def infinite_if_point(kappa: Array) -> Array:
    """Return the concentration, infinite where the distribution counts as a point mass."""
    return jnp.where(kappa > POINT_MASS[kappa.dtype.name], jnp.inf, kappa)


def finite_concentration(kappa: Array) -> Array:
    """Return `kappa` with a finite number in place of infinity, and NaN where it is negative."""
    return jnp.where(kappa == jnp.inf, 1e30, valid(kappa))


@jax.custom_jvp
def restricted(before: Array, after: Array, loc: Array, kappa: Array, low: Array, high: Array) -> Array:
    """Return the angle with the fractions `before` and `after` of the arc's probability on its two sides."""
    k = finite_concentration(kappa)
    width = jnp.minimum(high - low, TWO_PI)
    given = before, after, parts_of(stacked(cut(low, high, width, loc)), k).as_one(), k

    def start(*given: Any) -> Array:
        s, covered = arc.common_start(arc.equation(*given))
        # XLA:CPU would compute a second result in a second loop. No offset is negative.
        return jnp.where(covered, s, -1)

    def replaced(s: Array, *given: Any) -> Array:
        return jnp.where(s < 0, arc.rare_start(arc.equation(*given)), s)

    starts = xla.boundary(start, *given)
    starts = xla.replace_where_any(starts < 0, replaced, starts, *given)

    def finish(start: Array, kappa: Array, low: Array, high: Array, width: Array, *given: Any) -> Array:
        equation = arc.equation(*given)
        piece, s = equation.part.piece, jnp.where(kappa == jnp.inf, 0, arc.improved(equation, start))
        x = back_inside(wrap(piece.side * s, reduce_turns(piece.anchor)), low, high, width)
        return jnp.where(good_arc(low, high), x, jnp.nan)

    return xla.boundary(finish, starts, kappa, low, high, width, *given)


@restricted.defjvp
def _restricted_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    _, _, loc, kappa, low, high = primals
    x = restricted(*primals)
    loc, kappa, low, high = (jnp.broadcast_to(a, x.shape) for a in (loc, kappa, low, high))
    k = finite_concentration(kappa)
    (before, after), (weighted_before, weighted_after) = masses_about(low, high, x, loc, k[None, None])
    total = before + after
    before, after = before / total, after / total

    def ratio(end: Array) -> Array:
        """Return p(end) / p(x)."""
        at_end, at_x = (jnp.abs(from_mode(a, loc)) for a in (end, x))
        return jnp.exp(jnp.minimum(rise_between(at_end, at_x, k), LARGEST_RISE))

    of_low, of_high = after * ratio(low), before * ratio(high)
    of_kappa = jnp.where(kappa == jnp.inf, 0, before * weighted_after - after * weighted_before)
    _, _, dloc, dkappa, dlow, dhigh = tangents
    return x, dloc + of_kappa * dkappa + of_low * (dlow - dloc) + of_high * (dhigh - dloc)

"""Compute densities, probabilities and quantiles of laws that are symmetric about `loc`.

The probabilities come from the tails of the law centred at 0, so that a small one keeps its relative accuracy where the
angle is far from `loc`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics.circle import (
    TWO_PI,
    at_exact,
    deviation,
    exact_deviation,
    half_pi_rest,
    less_turns,
    reduce_turns,
    with_derivative_of,
    wrap,
)
from jax_von_mises.numerics.elementary import clip, nan_unless

Function = Callable[..., jax.Array]


class Law(NamedTuple):
    """A law centred at 0, with one parameter for its shape. Results are NaN where that is invalid."""

    log_density: Callable[[jax.Array, jax.Array], jax.Array]
    """``log_density(x, shape)`` for x in [-pi, pi]."""
    length: Callable[[int, jax.Array], jax.Array]
    """``length(order, shape)`` is the mean of cos(order * x)."""
    divergence: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None
    """``divergence(x, shape, other)`` is the Kullback-Leibler divergence to the law at x with another shape."""


class Tails(NamedTuple):
    """The distribution function of a law centred at 0."""

    lower: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    """``lower(x, shape, lost)`` is the probability below x + lost, with x in [-pi, pi], from which rounding took it."""
    quantile: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    """``quantile(t, half_minus_t, shape)`` is the distance with the tail t in [0, 1/2] beyond it, on one side."""
    point: float | None = None
    """The shape for which the law is a point mass."""


@functools.cache
def mean(law: Law) -> Function:
    """Return a function of (loc, shape)."""

    def compute(loc: jax.Array, shape: jax.Array) -> jax.Array:
        return wrap(reduce_turns(loc), nan_unless(jnp.zeros_like(loc), ~jnp.isnan(law.length(1, shape))))

    return compute


@functools.cache
def length(law: Law, order: int) -> Function:
    """Return a function of (loc, shape), the mean of cos(order * (x - loc))."""

    def compute(loc: jax.Array, shape: jax.Array) -> jax.Array:
        return nan_unless(law.length(order, shape), jnp.isfinite(loc))

    return compute


@functools.cache
def kl_divergence(law: Law) -> Function | None:
    """Return a function of (loc, shape, loc, shape), the divergence from the first law to the second, if it has one."""
    formula = law.divergence
    if formula is None:
        return None

    def compute(loc: jax.Array, shape: jax.Array, other_loc: jax.Array, other_shape: jax.Array) -> jax.Array:
        return formula(deviation(other_loc, loc)[0], shape, other_shape)

    return compute


@functools.cache
def log_prob(law: Law) -> Function:
    """Return a function of (value, loc, shape)."""

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        difference, _, lost = exact_deviation(value, loc)
        return at_exact(lambda x: law.log_density(x, shape), difference, lost)

    return compute


@functools.cache
def cdf(tails: Tails) -> Function:
    """Return a function of (value, loc, shape): the probability from loc - pi to each value; every turn adds 1.

    With an additional argument `start`, the function counts from there. A probability that is small because both angles
    are far below `loc` keeps its relative accuracy.
    """

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array, start: jax.Array | None = None) -> jax.Array:
        difference, turns, lost = exact_deviation(value, loc)
        if start is None:
            return turns + tails.lower(difference, shape, lost)
        turns_at_start, mass = before(tails, start, loc, shape)
        turns = turns - turns_at_start
        upper = turns < 0  # subtract the tail above the angle
        tail = one_tail(tails, difference, shape, lost, upper)
        return jnp.where(upper, (turns + 1) - tail, turns + tail) + mass

    return compute


@functools.cache
def sf(tails: Tails) -> Function:
    """Return a function of (value, loc, shape), 1 - `cdf`; it is as accurate in the other tail."""

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array, start: jax.Array | None = None) -> jax.Array:
        difference, turns, lost = exact_deviation(value, loc)
        if start is None:
            return one_tail(tails, difference, shape, lost, jnp.ones_like(difference, bool)) - turns
        turns_at_start, mass = before(tails, start, loc, shape)
        turns = turns_at_start - turns
        upper = turns >= 0
        tail = one_tail(tails, difference, shape, lost, upper)
        return jnp.where(upper, turns + tail, (turns + 1) - tail) - mass

    return compute


@functools.cache
def icdf(tails: Tails) -> Function:
    """Return a function of (q, loc, shape), the inverse of `cdf` in [loc - pi, loc + pi].

    With an additional argument `start`, it is the inverse in [start, start + 2 pi].
    """

    def compute(q: jax.Array, loc: jax.Array, shape: jax.Array, start: jax.Array | None = None) -> jax.Array:
        if start is None:
            return about(loc, q, signed_quantile(tails, q, 1 - q, shape))
        loc = less_turns(loc, 0.0)
        turns_at_start, mass = before(tails, start, loc, shape)
        # Probabilities of the centred law on both sides of the angle. If one of them is negative, the angle is beyond
        # the cut of that law at loc - pi or loc + pi, and is counted from the other end.
        below, above = q - mass, (1 - q) + mass
        turns = jnp.where(below < 0, -1, jnp.where(above < 0, 1, 0)).astype(loc.dtype)
        below, above = (
            jnp.where(below < 0, 1 + below, jnp.where(above < 0, -above, below)),
            jnp.where(below < 0, -below, jnp.where(above < 0, 1 + above, above)),
        )
        x = loc + signed_quantile(tails, below, above, shape) + TWO_PI * (turns + turns_at_start)
        # Set the ends explicitly: if the cut is deep in a tail, their probabilities round to those of nearby angles.
        end = start + TWO_PI
        inside = jnp.where(q == 0, start, jnp.where(q == 1, end, jnp.minimum(jnp.maximum(x, start), end)))
        return nan_unless(with_derivative_of(x, jnp.where(jnp.isnan(x), x, inside)), (q >= 0) & (q <= 1))

    return compute


@functools.cache
def isf(tails: Tails) -> Function:
    """Return a function of (q, loc, shape), the inverse of `sf`."""
    mirrored = icdf(tails)

    def compute(q: jax.Array, loc: jax.Array, shape: jax.Array, start: jax.Array | None = None) -> jax.Array:
        if start is None:
            return -mirrored(q, -loc, shape)
        end = start + TWO_PI
        x = -mirrored(q, -loc, shape, -end)
        inside = jnp.where(q == 1, start, jnp.where(q == 0, end, jnp.minimum(jnp.maximum(x, start), end)))
        return with_derivative_of(x, jnp.where(jnp.isnan(x), x, inside))

    return compute


@functools.cache
def width(tails: Tails) -> Function:
    """Return a function of (mass, loc, shape): half the length of the arc about `loc` with a probability."""

    def compute(mass: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        distance = tails.quantile(0.5 - 0.5 * clip(mass, 0, 1), 0.5 * clip(mass, 0, 1), shape)
        distance = with_derivative_of(distance, jnp.where((mass == 1) & ~jnp.isnan(distance), np.pi, distance))
        return nan_unless(distance, (mass >= 0) & (mass <= 1) & jnp.isfinite(loc))

    return compute


def about(loc: jax.Array, q: jax.Array, x: jax.Array) -> jax.Array:
    """Return the quantile `x` of the centred law, moved to a finite `loc`, with both ends at half a turn from it."""
    ends = jnp.where(jnp.isnan(x), x, jnp.where(q == 0, -np.pi, jnp.where(q == 1, np.pi, x)))
    return nan_unless(loc, jnp.isfinite(loc)) + nan_unless(with_derivative_of(x, ends), (q >= 0) & (q <= 1))


def signed_quantile(tails: Tails, below: jax.Array, above: jax.Array, shape: jax.Array) -> jax.Array:
    """Return the angle in [-pi, pi] of the centred law with the probabilities `below` and `above` it."""
    left = below <= above
    tail = clip(jnp.where(left, below, above), 0, 0.5)
    distance = tails.quantile(tail, 0.5 - tail, shape)
    return jnp.where(left, -distance, distance)


def one_tail(tails: Tails, difference: jax.Array, shape: jax.Array, lost: jax.Array, upper: jax.Array) -> jax.Array:
    """Return the probability above or below `difference` + `lost` from the centre.

    A point mass belongs to the lower side.
    """
    tail = tails.lower(jnp.where(upper, -difference, difference), shape, jnp.where(upper, -lost, lost))
    if tails.point is None:
        return tail
    return jnp.where(upper & (difference == 0) & (shape == tails.point), 0, tail)


def before(tails: Tails, start: jax.Array, loc: jax.Array, shape: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the whole turns and the mass by which counting from `start` differs from counting from loc - pi.

    The probability from loc - pi to `start` is the first minus the second. The mass is the smaller tail of the centred
    law at `start`: the upper tail if `start` is above the centre, else the lower tail with a negative sign. The floats
    next to pi and -pi stand for these numbers.
    """
    cut, turns, lost = exact_deviation(start, loc)
    nearest = np.asarray(np.pi, loc.dtype)
    beyond_pi = 2 * half_pi_rest(loc.dtype)
    lost = lost + jnp.where(start == nearest, beyond_pi, jnp.where(start == -nearest, -beyond_pi, 0))
    beyond = cut >= 0
    tail = one_tail(tails, cut, shape, lost, beyond)
    return turns + beyond.astype(loc.dtype), jnp.where(beyond, tail, -tail)

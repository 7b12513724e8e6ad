"""Compute densities, probabilities and quantiles of laws that are symmetric about `loc`, counting from -pi.

The probabilities come from the tails of the law centred at 0, so that a small one keeps its relative accuracy where the
angle is far below `loc`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.functions.von_mises import Function
from jax_von_mises.numerics import density, named
from jax_von_mises.numerics.circle import TWO_PI, deviation, less_turns, reduce_turns, wrap
from jax_von_mises.numerics.elementary import clip, nan_unless, with_slopes


class Law(NamedTuple):
    """A law centred at 0, with one parameter for its shape. Results are NaN where that is invalid."""

    log_density: Callable[[jax.Array, jax.Array], jax.Array]
    """``log_density(x, shape)`` for x in [-pi, pi]."""
    length: Callable[[int, jax.Array], jax.Array]
    """``length(order, shape)`` is the mean of cos(order * x)."""


class Tails(NamedTuple):
    """The distribution function of a law centred at 0."""

    lower: Callable[[jax.Array, jax.Array], jax.Array]
    """``lower(x, shape)`` is the probability of an angle below x in [-pi, pi]."""
    quantile: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    """``quantile(t, half_minus_t, shape)`` is the distance with the tail t in [0, 1/2] beyond it, on one side."""


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
def log_prob(law: Law) -> Function:
    """Return a function of (value, loc, shape)."""

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        return law.log_density(deviation(value, loc)[0], shape)

    return compute


def normal_score(value: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the derivative of the logarithm of the wrapped normal density with respect to the value."""
    return named.normal_score(deviation(value, loc)[0], scale)


@functools.cache
def cdf(tails: Tails) -> Function:
    """Return a function of (value, loc, shape): the probability between -pi and each value, 0 or 1 beyond them."""

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        turns_at_cut, mass = cut_at_pi(tails, loc, shape)
        difference, turns = deviation(clip(value, -np.pi, np.pi), loc)
        turns = turns - turns_at_cut
        upper = turns < 0  # subtract the tail above the angle
        tail = tails.lower(jnp.where(upper, -difference, difference), shape)
        probability = jnp.where(upper, -tail, turns + tail) + mass
        return with_derivative_of(probability, clip(probability, 0, 1))

    return compute


@functools.cache
def sf(tails: Tails) -> Function:
    """Return a function of (value, loc, shape): the probability between each value and pi."""
    mirrored = cdf(tails)

    def compute(value: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        return mirrored(-value, -loc, shape)

    return compute


@functools.cache
def icdf(tails: Tails) -> Function:
    """Return a function of (q, loc, shape), the inverse of `cdf` in [-pi, pi]."""

    def compute(q: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        loc = less_turns(loc, 0.0)
        turns_at_cut, mass = cut_at_pi(tails, loc, shape)
        # Probabilities of the centred law on both sides of the angle. If one of them is negative, the angle is beyond
        # the cut of that law at loc - pi or loc + pi, and is counted from the other end.
        below, above = q - mass, (1 - q) + mass
        left = (above < 0) | ((below >= 0) & (below <= above))
        tail = jnp.where(below < 0, -below, jnp.where(above < 0, -above, jnp.where(left, below, above)))
        turns = jnp.where(below < 0, -1, jnp.where(above < 0, 1, 0)).astype(loc.dtype)
        tail = clip(tail, 0, 0.5)
        distance = tails.quantile(tail, 0.5 - tail, shape)
        x = loc + jnp.where(left, -distance, distance) + TWO_PI * (turns + turns_at_cut)
        # Set the ends explicitly: if the cut is deep in a tail, their probabilities round to those of nearby angles.
        inside = jnp.where(q == 0, -np.pi, jnp.where(q == 1, np.pi, clip(x, -np.pi, np.pi)))
        return jnp.where((q >= 0) & (q <= 1), with_derivative_of(x, jnp.where(jnp.isnan(x), x, inside)), jnp.nan)

    return compute


@functools.cache
def isf(tails: Tails) -> Function:
    """Return a function of (q, loc, shape), the inverse of `sf`."""
    mirrored = icdf(tails)

    def compute(q: jax.Array, loc: jax.Array, shape: jax.Array) -> jax.Array:
        return -mirrored(q, -loc, shape)

    return compute


def cut_at_pi(tails: Tails, loc: jax.Array, shape: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of turns that `cdf` subtracts and the mass that it adds, since it counts from -pi.

    The mass is the smaller tail at -pi of the law centred at `loc`: the upper tail if -pi is above the centre, else the
    lower tail with a negative sign.
    """
    cut, turns = deviation(jnp.full_like(loc, -np.pi), loc)
    cut = cut - 2 * density.half_pi_rest(loc.dtype)  # at pi itself, not at the float next to it
    beyond = cut >= 0
    tail = tails.lower(jnp.where(beyond, -cut, cut), shape)
    return turns + beyond.astype(loc.dtype), jnp.where(beyond, tail, -tail)


@with_slopes(lambda y, x, value: (1, None))
def with_derivative_of(x: jax.Array, value: jax.Array) -> jax.Array:
    """Return `value`, equal to `x` up to rounding, with the derivative of `x`."""
    return value

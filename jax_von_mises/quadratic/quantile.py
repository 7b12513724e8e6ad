"""Compute the quantile of the squared coordinate v, and its derivatives with respect to the gaps.

The step from a place to the one with a given tail probability is that of the generalised Pareto tail, which is exact
where the density is constant, exponential, or proportional to v^(-1/2). Three or four steps are enough for all
parameters.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.engine import tails
from jax_von_mises.numerics import quadrature
from jax_von_mises.numerics.table import QuantileTable, two_tails
from jax_von_mises.quadratic.marginal import Marginal, Place, Sums, normaliser, scaled_i0, tail

STEPS = {"float32": 3, "float64": 4}


def first_guess(marginal: Marginal, t: jax.Array, upper: jax.Array, log_norm: jax.Array) -> Place:
    """Return the place from which the steps start."""
    n, s = scaled_i0(marginal.c)
    low = marginal.start_near_0(t * jnp.exp(log_norm + s) / n)
    low = jnp.minimum(low, 1 / jnp.maximum(marginal.rate, 1))
    # The upper tail of the exponential on [0, 1], then a correction for the factor v^(-1/2).
    high, rest, near_1 = marginal.upper_tail(t)
    high, rest = jnp.where(near_1, 1 - rest, high), jnp.where(near_1, rest, 1 - high)
    less = marginal.share_of_root(high) / (1 + (jnp.pi / 4) * jnp.maximum(marginal.rate, 1e-3) * rest)
    # v becomes v^2 / (v + less (1 - v)), and 1 - v is computed without cancellation.
    bottom = high + less * rest
    high, rest = high * high / bottom, rest * (high + less) / bottom
    rest = jnp.maximum(jnp.where(upper, rest, 1 - low), 1e-3 * t)
    return Place(jnp.where(upper, high, low), rest)


def quantile(marginal: Marginal, t: jax.Array, upper: jax.Array, log_norm: jax.Array) -> Place:
    """Return the place with the probability `t` in (0, 1/2] above it if `upper`, else below it.

    The probability has a relative error of at most 4e-6 (float32) or 1e-11 (float64), or v or 1 - v is within 4 ulp.
    """
    sign = jnp.where(upper, 1, -1).astype(t.dtype)

    def step(_: jax.Array, at: Place) -> Place:
        (integral,) = tail(marginal, at, upper)
        n, s = marginal.factor(at)
        excess = jnp.log((integral * n / t) * jnp.exp(-(log_norm + s) - marginal.fall(jnp.zeros_like(at.v), at.v)))
        move = quadrature.tail_step(integral, excess, 1 + integral * sign * marginal.slope(at))
        move = jnp.clip(sign * move, -0.9 * at.v, 0.999 * at.w)
        return Place(at.v + move, at.w - move)

    start = first_guess(marginal, t, upper, log_norm)
    found: Place = lax.fori_loop(0, STEPS[t.dtype.name], step, Place(*jnp.broadcast_arrays(*start)))
    return found


def quantile_table(marginal: Marginal) -> QuantileTable:
    """Tabulate v / (1 - v), which keeps the digits of both, for the upper tail and then for the lower one."""
    t, upper = two_tails(marginal.a.dtype)
    log_norm, _ = normaliser(marginal)
    at = quantile(marginal, jnp.asarray(t, marginal.a.dtype), jnp.asarray(upper), log_norm)
    return QuantileTable.of(at.v / at.w)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def drawn_place(kind: type[Marginal], words: tuple[jax.Array, ...], gaps: Sums, route: str) -> Place:
    """Return the place for the words of each draw, differentiable with respect to the gaps.

    The gaps are scalars for the route "table". Otherwise, they broadcast to the words, and the integrals that depend on
    them alone are computed once for each.
    """

    def at(words: tuple[jax.Array, ...], gaps: Sums) -> Place:
        t, _, upper = tails.tail(words)
        marginal = kind.of(gaps)
        if route == "table":
            odds = quantile_table(marginal).at(t, ~upper)
            return Place(odds / (1 + odds), 1 / (1 + odds))
        log_norm, _ = normaliser(marginal)
        return quantile(marginal, t, upper, log_norm)

    return Place(*xla.boundary(at, words, gaps))


@drawn_place.defjvp
def _drawn_place_jvp(
    kind: type[Marginal], route: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Place, Place]:
    words, gaps = primals
    at = drawn_place(kind, words, gaps, route)

    def slopes(words: tuple[jax.Array, ...], gaps: Sums, at: Place) -> Sums:
        upper = tails.tail(words).sign
        marginal = kind.of(gaps)
        _, means = normaliser(marginal, marginal.squares)
        integral, *sums = tail(marginal, at, upper, marginal.squares)
        sign = jnp.where(upper, 1, -1).astype(integral.dtype)
        return tuple(sign * (integral * mean - each) for each, mean in zip(sums, means, strict=True))

    moved = sum(s * d for s, d in zip(xla.boundary(slopes, words, gaps, at), tangents[1], strict=True))
    return at, Place(moved, -moved)

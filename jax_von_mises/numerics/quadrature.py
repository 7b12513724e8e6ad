"""Integrate smooth functions by Gauss-Legendre rules, and find where an integral has a given value."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler.xla import tree_sum

# `add_terms` computes longer float64 sums in a loop.
UNROLLED = 16
# Up to this size, `add_terms` computes all terms as one array instead of in a loop.
AT_ONCE = 64


def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Return the Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (0.5 * (nodes + 1)).tolist(), (0.5 * weights).tolist()


def add_terms(
    term: Callable[[Any, Any], tuple[jax.Array, ...]],
    nodes: Sequence[float],
    weights: Sequence[float],
    like: jax.Array,
    loop: bool = False,
) -> tuple[jax.Array, ...]:
    """Return the sums of the arrays ``term(node, weight)``, which have the shape and dtype of `like`.

    A `loop` over the nodes compiles faster than one long sum, which is faster in a program that computes nothing else.
    In float64, more than `UNROLLED` terms always use a loop. Without it, the gradient of 100 float64 pairs would
    compile in 30 s instead of 3 (JAX 0.10.2). For few elements, one array of all terms compiles in still less time. A
    GPU computes a `loop` as such an array, too, which XLA does not store: one kernel computes and adds all terms.
    """

    def at_once() -> tuple[jax.Array, ...]:
        rows = (np.reshape(np.asarray(x, like.dtype), (-1, *[1] * like.ndim)) for x in (nodes, weights))
        with jax.numpy_rank_promotion("allow"):
            return tuple(jnp.sum(x, 0) for x in term(*rows))

    def in_loop() -> tuple[jax.Array, ...]:
        def add(totals: tuple[jax.Array, ...], at: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, ...], None]:
            return tuple(map(jnp.add, totals, term(*at))), None

        columns = jnp.asarray(nodes, like.dtype), jnp.asarray(weights, like.dtype)
        # The zeros have the types of terms, which on a mesh include a sharding; XLA removes the term. Two terms in each
        # pass halve the memory traffic.
        zeros = tuple(jnp.where(True, 0, x) for x in term(*(x[0] for x in columns)))
        return lax.scan(add, zeros, columns, unroll=2)[0]

    if loop and like.size <= AT_ONCE:
        return at_once()
    if loop:
        found: tuple[jax.Array, ...] = lax.platform_dependent(cuda=at_once, rocm=at_once, default=in_loop)
        return found
    if like.dtype == jnp.float64 and len(nodes) > UNROLLED:
        return in_loop()
    terms = zip(*(term(node, weight) for node, weight in zip(nodes, weights, strict=True)), strict=True)
    return tuple(tree_sum(list(each)) for each in terms)


def tail_step(integral: jax.Array, excess: jax.Array, bend: jax.Array) -> jax.Array:
    """Return how far outwards a tail with a given mass begins from a place, by the generalised Pareto distribution.

    Parameters
    ----------
    integral : array
        The mass beyond the place, divided by the density p there.
    excess : array
        The logarithm of the ratio of the mass beyond the place to the given mass.
    bend : array
        1 + `integral` times the derivative of log p, outwards. The mass falls exactly like exp(-x / `integral`) if
        `bend` is 0, and linearly if it is 1. It is kept away from 0, and the step inwards is bounded.
    """
    bend = jnp.where(jnp.abs(bend) < 1e-3, 1e-3, bend)
    return -integral * jnp.expm1(jnp.minimum(-bend * excess, 3)) / bend

r"""Compute the Kullback-Leibler divergence of one distribution from another, on the circle and on spheres.

Let p and q be the concentrations, A the mean of the cosine of the angle to the mean direction, and v = 1 - cos of the
angle between the two mean directions. With the logarithm of the normaliser G, where G' = A, the divergence is

.. math:: G(q) - G(p) - (q - p) A(p) + q A(p) v.

If p and q are close, the first three terms cancel. They are then computed as the integral form of Taylor's remainder,
a sum of positive terms.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics.quadrature import gauss_legendre

# Two concentrations are close if their ratio, after adding d - 1 in d dimensions to both, is below this bound. Nodes on
# [0, 1], with weights that include the remainder's factor, then integrate A' to rounding.
REACH = {"float32": 4.0, "float64": 2.0}
NODES, _WEIGHTS = np.array(gauss_legendre(10))
WEIGHTS = _WEIGHTS * (1 - NODES)

Function = Callable[[jax.Array], jax.Array]


class Normaliser(NamedTuple):
    """What the divergence needs to know of the normaliser G of distributions of one dimension."""

    dimension: int
    mean: Function
    """A."""
    scaled_slope: Function
    """A'(k) max(k, 1)^2, which stays finite for every k."""
    by_norms: Callable[[jax.Array, jax.Array], jax.Array]
    """The divergence for equal directions as the difference G(q) - G(p) - (q - p) A(p), from p and q."""


def divergence(of: Normaliser, p: jax.Array, q: jax.Array, versine: jax.Array, apart: jax.Array) -> jax.Array:
    """Return the divergence for concentrations `p` and `q`, with NaN for a NaN argument.

    `versine` is v, and `apart` is 0 only if the directions are equal, even where v underflows. The arrays have one
    shape.
    """
    infinite = (p == jnp.inf) | (q == jnp.inf)
    first, second = (jnp.where(infinite, 1, x) for x in (p, q))
    reach = REACH[p.dtype.name]
    margin = (of.dimension - 1) * (reach - 1)
    close = (second < reach * first + margin) & (first < reach * second + margin)
    along = jnp.where(close, by_slopes(of, first, jnp.where(close, second - first, 0)), of.by_norms(first, second))
    value = along + second * (of.mean(first) * versine)
    # Two distributions, one of which is a point mass, have an infinite divergence unless they are equal.
    different = lax.stop_gradient(p + q + apart)
    return jnp.where(infinite, jnp.where((p == q) & (apart == 0), 0, different), value)


def by_slopes(of: Normaliser, p: jax.Array, step: jax.Array) -> jax.Array:
    """Return the divergence for equal directions and concentrations p and p + `step`, by Taylor's remainder."""
    nodes, weights = (jnp.asarray(x, p.dtype).reshape((1,) * p.ndim + (-1,)) for x in (NODES, WEIGHTS))
    between = p[..., None] + step[..., None] * nodes
    # Divide by the concentration before squaring, since its inverse square may underflow.
    share = step[..., None] / jnp.maximum(between, 1)
    return jnp.sum(share * share * (of.scaled_slope(between) * weights), -1)

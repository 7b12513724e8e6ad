r"""Compute the entropy and the Kullback-Leibler divergence of isotropic Gaussian distributions of rotations.

Both are means of log f. If p has the mean rotation at the angle :math:`\theta` from that of q, the rotation by an angle
:math:`\omega` from the mean of p is at an angle :math:`\Omega` from that of q with

.. math:: \cos(\Omega / 2) = |u|,\quad u = \cos(\theta/2) \cos(\omega/2) - t \sin(\theta/2) \sin(\omega/2),

where t is uniform in (-1, 1). Since :math:`\Omega` has a kink at u = 0, Gauss-Legendre rules integrate over u below and
above it, and over :math:`\omega` below and above :math:`\pi - \theta`, from where on u changes its sign.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics.elementary import valid
from jax_von_mises.numerics.quadrature import add_terms, gauss_legendre
from jax_von_mises.rotations.heat import (
    MEAN_RULE,
    SMALLEST,
    Angle,
    Kernel,
    relative,
    root_mean_square_score,
    rotation_angle,
    sums_over_angles,
)

# Number of nodes for the angle from the mean, and for u.
NODES = {"float32": (24, 20), "float64": (64, 48)}
# Nodes for u are this power of Gauss-Legendre nodes, since narrow distributions have a peak of log f'' near u = 0.
POWER = 3


def mean_log_density(sigma: jax.Array) -> jax.Array:
    """Return the mean of log f."""
    kernel = Kernel.of(sigma)
    total, of_log = sums_over_angles(kernel, kernel.log_density)
    return of_log / total


@jax.custom_jvp
def entropy(sigma: jax.Array) -> jax.Array:
    """Return the entropy relative to the uniform distribution; -inf for a point mass.

    Its derivative is the scale times the mean squared length of the score (de Bruijn's identity).
    """
    sigma = valid(sigma)
    return jnp.where(sigma == 0, -jnp.inf, -mean_log_density(sigma))


@entropy.defjvp
def _entropy_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (sigma,) = primals
    slope = jnp.where(sigma < np.inf, sigma, 0) * jnp.square(root_mean_square_score(sigma))
    return entropy(sigma), jnp.where((sigma >= 0) & (sigma <= SMALLEST), 0, slope) * tangents[0]


class Part(NamedTuple):
    """A range of abs(u)."""

    least: jax.Array
    length: jax.Array
    rest: jax.Array
    """1 minus the largest value."""

    def mean_log_density(self, kernel: Kernel) -> jax.Array:
        """Return the mean of log f."""
        nodes, of_node = (np.array(x) for x in gauss_legendre(NODES[kernel.sigma.dtype.name][1]))
        share, rest, weight = (
            jnp.asarray(x, kernel.sigma.dtype).reshape((1,) * self.length.ndim + (-1,))
            for x in (nodes**POWER, -np.expm1(POWER * np.log(nodes)), POWER * nodes ** (POWER - 1) * of_node)
        )
        least, length, beyond, sigma = (x[..., None] for x in (*self, kernel.sigma))
        cosine = least + length * share
        sine = jnp.sqrt((beyond + length * rest) * (1 + cosine))
        at = Angle(2 * jnp.arctan2(sine, cosine), 2 * jnp.arctan2(cosine, sine))
        kernel = Kernel(sigma, [x[..., None] for x in kernel.coefficients])
        return jnp.sum(weight * kernel.log_density(at), -1)


def mean_over_axes(kernel: Kernel, at: Angle, way: Angle) -> jax.Array:
    """Return the mean of log f for a turn by the angle `at` about uniform axes, followed by one by the angle `way`."""
    half = 0.5 * (way.angle - at.angle)
    low, high = jnp.sin(0.5 * (way.rest - at.angle)), jnp.maximum(jnp.cos(half), 0)
    positive, zero = low > 0, jnp.zeros_like(low)
    above = jnp.where(positive, 2 * way.half_sine * at.half_sine, high)
    below = jnp.where(positive, 0, -low)
    first = Part(jnp.maximum(low, 0), above, 2 * jnp.square(jnp.sin(0.5 * half))).mean_log_density(kernel)
    second = Part(zero, below, 1 - below).mean_log_density(kernel)
    parts = positive | (above + below == 0)
    share = jnp.where(parts, 1, above / jnp.where(parts, 1, above + below))
    return share * first + (1 - share) * second


def mean_of_other(way: Angle, sigma: jax.Array, other: jax.Array) -> jax.Array:
    """Return the mean of log f with the scale `other` for rotations with the scale `sigma` about a mean at an angle."""
    p, q = Kernel.of(sigma), Kernel.of(other)
    length = jnp.minimum(MEAN_RULE[sigma.dtype.name][1] * p.sigma, np.pi)
    border = jnp.minimum(length, way.rest)

    def sums(start: jax.Array, size: jax.Array) -> tuple[jax.Array, ...]:
        def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
            angle = start + size * node
            at = Angle(angle, (np.pi - start - size) + size * (1 - node))
            share = weight * size * p.relative(at, jnp.zeros_like(angle), angle)
            return share, share * mean_over_axes(q, at, way)

        return add_terms(term, *gauss_legendre(NODES[sigma.dtype.name][0]), size, loop=True)

    below, above = sums(jnp.zeros_like(length), border), sums(border, length - border)
    return (below[1] + above[1]) / (below[0] + above[0])


def divergence(other_mean: jax.Array, other_scale: jax.Array, mean_rotation: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence of another distribution from one."""
    scalar, vector = relative(other_mean, mean_rotation)
    shape = jnp.broadcast_shapes(scalar.shape, scale.shape, other_scale.shape)
    way, _ = rotation_angle(scalar, vector)
    way = Angle(*(jnp.broadcast_to(x, shape) for x in way))
    scale, other_scale = (jnp.broadcast_to(valid(x), shape) for x in (scale, other_scale))
    found = jnp.maximum(-entropy(scale) - mean_of_other(way, scale, other_scale), 0)
    equal = (scale == other_scale) & (way.angle <= 4 * jnp.finfo(scale.dtype).eps)
    point = jnp.where(equal, 0, jnp.inf)
    return jnp.where((scale == 0) | (other_scale == 0), point, found)

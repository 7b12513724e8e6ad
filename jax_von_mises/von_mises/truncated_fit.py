r"""Fit the von Mises distribution restricted to an arc by maximum likelihood.

Angles are measured from one of the samples. With :math:`\eta = \kappa(\cos\mu, \sin\mu)`, the log likelihood is
concave, and Newton's method needs only the integral of :math:`\exp(\eta_1(\cos x - 1) + \eta_2\sin x)` over the arc. A
Gauss-Legendre rule computes it on pieces whose lengths grow from both ends and from the origin in proportion to the
distance.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.likelihood import maximised
from jax_von_mises.engine.samples import WeightedSets
from jax_von_mises.numerics import quadrature
from jax_von_mises.numerics.circle import TWO_PI, deviation, reduce_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.von_mises.fitting import of_both, pilot
from jax_von_mises.von_mises.truncated import POINT_MASS, good_arc, place_of

# Pieces on each side of the origin and next to each end, and nodes in a piece.
PIECES = 10
NODES = {"float32": 8, "float64": 16}


def arc_of(caller: str, sets: WeightedSets, low: ArrayLike, high: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return the checked ends of the arc of each data set."""
    compute = arguments.compute_dtype(sets.dtype)
    ends = []
    for name, value in (("low", low), ("high", high)):
        given = arguments.parameter(caller, name, value)
        if not arguments.broadcasts(np.shape(given), sets.kept):
            raise ValueError(
                f"{caller}: {name} of shape {np.shape(given)} does not broadcast to the shape of the estimate, "
                f"{sets.kept}. Give one angle, or one for each data set."
            )
        ends.append(jnp.broadcast_to(jnp.asarray(given, compute), sets.kept))
    return ends[0], ends[1]


def rule(low: jax.Array, high: jax.Array, spread: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return nodes between `low` <= 0 and `high` >= 0, and the logarithms of their weights, along a last axis."""
    width = (high - low)[..., None]
    least = 0.25 * jnp.minimum(spread[..., None], width)
    powers = jnp.asarray(np.arange(PIECES) / (PIECES - 1), low.dtype).reshape((1,) * low.ndim + (-1,))
    steps = least * (width / least) ** powers
    low, high = low[..., None], high[..., None]
    edges = jnp.concatenate([-steps, 0 * low, steps, low + steps, high - steps, low, high], -1)
    edges = jnp.sort(jnp.clip(edges, low, high), -1)
    shape = (1,) * low.ndim + (-1,)
    nodes, weights = (
        jnp.asarray(each, low.dtype).reshape(shape) for each in quadrature.gauss_legendre(NODES[low.dtype.name])
    )
    start, length = edges[..., :-1, None], jnp.diff(edges)[..., None]
    shape = (*low.shape[:-1], -1)
    logs = jnp.log(jnp.maximum(length * weights, float(jnp.finfo(low.dtype).tiny)))
    return (start + length * nodes).reshape(shape), logs.reshape(shape)


def exponent(numbers: jax.Array, away: jax.Array) -> jax.Array:
    """Return the exponent of the density at angles from the origin."""
    return numbers[1] * jnp.sin(away) - numbers[0] * (2 * jnp.square(jnp.sin(0.5 * away)))


def log_density(numbers: jax.Array, away: jax.Array, nodes: jax.Array, logs: jax.Array) -> jax.Array:
    """Return the log densities of angles from the origin, with a rule for the integral over the arc."""
    return exponent(numbers, away) - jax.scipy.special.logsumexp(exponent(numbers, nodes) + logs)


@jax.jit
def fitted(sets: WeightedSets, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the estimates of `loc` and `concentration` for arcs from `low` to `high`."""
    x, share = sets.rows()
    share = jnp.broadcast_to(share, x.shape)
    origin = pilot(x, share)
    x = jnp.where(share == 0, origin[..., None], x)
    loc, k = of_both(x, share)
    equal = k >= POINT_MASS[x.dtype.name]
    k = jnp.where(equal, 1, k)

    width = nan_unless(jnp.minimum(high - low, TWO_PI), good_arc(low, high))
    inside = jnp.all(place_of(x, low[..., None], width[..., None]).inside, -1)
    width = nan_unless(width, inside)
    before = place_of(origin, low, width).offset
    nodes, logs = rule(-before, width - before, jnp.minimum(lax.rsqrt(k), 1))
    away = deviation(x, origin[..., None])[0]
    mean = deviation(loc, origin)[0]
    start = jnp.stack([k * jnp.cos(mean), k * jnp.sin(mean)], -1) + 0 * width[..., None]
    found = maximised(log_density, start[..., None, :], share, away, nodes, logs)

    along, across = found[..., 0], found[..., 1]
    angle = wrap(jnp.where(equal, 0 * width, jnp.arctan2(across, along)), reduce_turns(origin))
    concentration = jnp.where(equal, jnp.inf + 0 * width, jnp.hypot(along, across))
    return angle.astype(sets.dtype), concentration.astype(sets.dtype)

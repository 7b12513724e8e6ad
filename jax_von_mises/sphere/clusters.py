"""Say what mixtures of von Mises-Fisher distributions need to be fitted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.engine.em import (
    FEW_COMPONENTS,
    FIRST_CONCENTRATIONS,
    MOST_PLACES,
    Clusters,
    Explained,
    pooled,
    responsibilities,
)
from jax_von_mises.engine.samples import Array, rough_concentration, total
from jax_von_mises.sphere import moments as sphere


@functools.partial(jax.jit, static_argnames="tied")
def over_directions(
    x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, held: jax.Array, tied: bool
) -> Explained:
    """Go over directions `x` (sets, d, n), with `parameters` (sets, j, d + 1): mean directions and concentrations.

    The last result holds the new parameters. The concentrations are equal if `tied`. Where `held` says that a mean
    direction stays, the concentration is the best one around it.
    """
    mean, k = parameters[..., :-1], parameters[..., -1]
    d, exact = mean.shape[-1], lax.Precision.HIGHEST
    if d <= FEW_COMPONENTS:
        versine = 0.5 * xla.tree_sum([jnp.square(x[:, None, i] - mean[..., i, None]) for i in range(d)])
    else:
        versine = jnp.maximum(1 - jnp.einsum("sdn,sjd->sjn", x, mean, precision=exact), 0)
    densities = -(k[..., None] * versine) - sphere.log_norm(k, d)[..., None]
    value, log_weight, weights = responsibilities(log_weights, densities, share)
    # Sum in blocks, so that rounding errors grow only with the number of blocks.
    block = min(x.shape[-1], MOST_PLACES)
    left, right = (each.reshape(*each.shape[:-1], -1, block) for each in (weights, x))
    centre = jnp.sum(jnp.einsum("sjmi,sdmi->smjd", left, right, precision=exact), 1)
    length = jnp.sqrt(jnp.sum(jnp.square(centre), -1))
    # With the mean square distance q from the old direction, and the change v of the mean, the square of the length is
    # 1 - q + v^2. A component of weight 0 has the length 0.
    moved = total(weights * versine)
    square = 2 * moved - jnp.sum(jnp.square(centre - mean), -1)
    rest = jnp.where(length > 0.5, jnp.maximum(square, 0) / (1 + length), 1 - length)
    direction = centre / jnp.where(length > 0, length, 1)[..., None]
    stays = held[..., 0]
    length, rest = jnp.where(stays, jnp.maximum(1 - moved, 0), length), jnp.where(stays, moved, rest)
    if tied:
        length, rest = (pooled(log_weight, each, held[..., -1]) for each in (length, rest))
    k = jnp.broadcast_to(sphere.inverse_mean_cosine(length, rest, d), log_weight.shape)
    return value, log_weight, jnp.concatenate([direction, k[..., None]], -1)


class Directions(Clusters):
    """What expectation maximisation asks of von Mises-Fisher components; `parameters` are (sets, j, d + 1)."""

    of_concentrations, of_places = (..., -1), (..., slice(-1))

    def __init__(self, dimension: int, tied: bool) -> None:
        self.empty, self.tied = np.concatenate([np.eye(dimension)[0], [1.0]]), tied

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array, held: Array) -> Explained:
        """Go over the data."""
        found: Explained = over_directions(x, share, log_weights, parameters, held, tied=self.tied)
        return found

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return the parameters that explain the data best, which `over` has found."""
        return np.concatenate([found[..., :-1], np.minimum(found[..., -1:], largest)], -1)

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, d) and `places` (t, d)."""
        apart: Array = np.maximum(1 - places @ x.T, 0)
        return apart

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters of a component at `place` (d,) that explains the samples `x` (n, d)."""
        mean = share @ x / max(share.sum(), np.finfo(float).tiny)
        r = np.sqrt(mean @ mean)
        k = rough_concentration(np.clip(1 - r, 1e-12, 1), len(place))
        k = np.clip(k, *(len(place) - 1) * np.array(FIRST_CONCENTRATIONS))
        return np.append(mean / r if r > 0 else place, k)

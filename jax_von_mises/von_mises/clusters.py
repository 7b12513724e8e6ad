"""Say what mixtures of independent angles need to be fitted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises.engine.em import FIRST_CONCENTRATIONS, Clusters, Explained, pooled, responsibilities
from jax_von_mises.engine.samples import Array, rough_concentration, total, turns_removed
from jax_von_mises.numerics.circle import deviation
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.density import log_density


@functools.partial(jax.jit, static_argnames="tied")
def over_angles(
    x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, held: jax.Array, tied: bool
) -> Explained:
    """Go over angles `x` (sets, d, n), with locations and concentrations `parameters` (sets, j, 2, d).

    The last result is the change of each location, and the new concentrations, which are equal if `tied`. Where `held`
    says that a location stays, the concentration is the best one around it.
    """
    loc, k = parameters[:, :, 0, :, None], parameters[:, :, 1, :, None]
    apart = deviation(x[:, None], loc)[0]
    densities = jnp.sum(log_density(apart, jnp.broadcast_to(k, apart.shape)), 2)
    value, log_weight, weights = responsibilities(log_weights, densities, share)
    half = 0.5 * apart
    sine = jnp.sin(half)
    means = (total(weights[:, :, None] * each) for each in (2 * sine * jnp.cos(half), 2 * sine * sine))
    sine, versine = means
    length = jnp.hypot(sine, 1 - versine)
    rest = jnp.maximum(versine * (2 - versine) - sine * sine, 0) / (1 + length)
    stays = held[:, :, 0]
    length, rest = jnp.where(stays, jnp.maximum(1 - versine, 0), length), jnp.where(stays, versine, rest)
    if tied:
        length, rest = (pooled(log_weight, each, held[:, :, 1]) for each in (length, rest))
    move = jnp.arctan2(sine, 1 - versine)
    k = jnp.broadcast_to(bessel.inverse_ratio(length, rest), move.shape)
    return value, log_weight, jnp.stack([move, k], 2)


class Independent(Clusters):
    """What expectation maximisation asks of components with independent angles; `parameters` are (sets, j, 2, d)."""

    of_concentrations, of_places = (slice(None), slice(None), 1), (slice(None), slice(None), 0)

    def __init__(self, angles: int, tied: bool) -> None:
        self.empty, self.tied = np.broadcast_to([[0.0], [1.0]], (2, angles)), tied

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array, held: Array) -> Explained:
        """Go over the data."""
        found: Explained = over_angles(x, share, log_weights, parameters, held, tied=self.tied)
        return found

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, d) and `places` (t, d)."""
        return chords_of_angles(x, places)

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return the parameters that explain the data best, from what `over` has found."""
        loc = turns_removed(parameters[:, :, 0] + found[:, :, 0])
        return np.stack([loc, np.minimum(found[:, :, 1], largest)], 2)

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters of a component at `place` (d,) that explains the samples `x` (n, d)."""
        mean = share @ np.exp(1j * (x - place)) / max(share.sum(), np.finfo(float).tiny)
        k = rough_concentration(np.clip(1 - np.abs(mean), 1e-12, 1))
        return np.stack([turns_removed(place + np.angle(mean)), np.clip(k, *FIRST_CONCENTRATIONS)])


def number_of_angles(caller: str, samples: ArrayLike, pairs: bool = False) -> int:
    """Return the length of the last axis of checked samples, which holds the angles of a point."""
    shape: tuple[int, ...] = np.shape(samples)
    if not shape or not shape[-1] or (pairs and shape[-1] != 2):
        raise ValueError(
            f"{caller}: samples has shape {shape}, but its last axis must hold the angles of a point"
            f"{', phi and psi' if pairs else ''}."
        )
    return shape[-1]


def chords_of_angles(x: Array, places: Array) -> Array:
    """Return the sums (t, n) over all angles of 1 - cos of the differences of samples (n, d) and places (t, d)."""
    apart: Array = np.sum(2 * np.sin(0.5 * (x - places[:, None])) ** 2, -1)
    return apart

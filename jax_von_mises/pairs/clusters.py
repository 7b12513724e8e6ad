"""Say what mixtures of dependent angles need to be fitted."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises.engine.em import FIRST_CONCENTRATIONS, MOST_PLACES, Explained, responsibilities
from jax_von_mises.engine.samples import Array, turns_removed
from jax_von_mises.numerics.circle import deviation
from jax_von_mises.pairs import fit as pairs_fit
from jax_von_mises.pairs import moments
from jax_von_mises.pairs.fit import Kind
from jax_von_mises.von_mises.clusters import chords_of_angles, number_of_angles

# Both concentrations, and the largest correlation in magnitude, of random components. With the largest correlations,
# their densities have two modes.
RANDOM_CONCENTRATION, LARGEST_RANDOM_CORRELATION = 4.0, 8.0


@functools.partial(jax.jit, static_argnames="kind")
def over_pairs(x: jax.Array, share: jax.Array, log_weights: jax.Array, parameters: jax.Array, kind: Kind) -> Explained:
    """Go over pairs `x` (sets, 2, n), with `parameters` (sets, j, 6): those of the model and `moments.log_total`.

    The last result holds the means of products of (1, sin, 1 - cos) of the deviations from the locations.
    """
    alpha, beta, k1, k2, r, log_total = (parameters[..., i, None] for i in range(6))
    a, b = (deviation(x[:, i, None], loc)[0] for i, loc in enumerate((alpha, beta)))
    k = (jnp.broadcast_to(each, a.shape) for each in (k1, k2, r))
    value, log_weight, weights = responsibilities(log_weights, moments.exponent(kind, a, b, *k) - log_total, share)

    def functions(apart: jax.Array) -> jax.Array:
        sine = jnp.sin(0.5 * apart)
        found = jnp.stack([jnp.ones_like(apart), 2 * sine * jnp.cos(0.5 * apart), 2 * sine * sine], 2)
        # Sum in blocks, so that rounding errors grow only with the number of blocks.
        return found.reshape(*found.shape[:-1], -1, min(found.shape[-1], MOST_PLACES))

    weights = weights.reshape(*weights.shape[:-1], 1, -1, min(weights.shape[-1], MOST_PLACES))
    left, right = weights * functions(a), functions(b)
    products = jnp.einsum("sjami,sjbmi->sjabm", left, right, precision=lax.Precision.HIGHEST)
    return value, log_weight, jnp.sum(products, -1)


class Dependent:
    """What expectation maximisation asks of pairs; `parameters` are (sets, j, 21), with the `pairs_fit.cumulants`."""

    of_concentrations: ClassVar[Any] = (..., slice(2, 5))
    empty = np.array([0.0, 0.0, 1.0, 1.0, 0.0, *np.zeros(16)])

    def __init__(self, kind: Kind, caller: str, samples: ArrayLike, tied: bool) -> None:
        if tied:
            raise ValueError(f"{caller}: tied=True is not supported for pairs of angles. Leave it out.")
        number_of_angles(caller, samples, pairs=True)
        self.kind = kind

    def held(self, caller: str, parameters: Array, dtype: np.dtype) -> Array:
        """Return the parameters (sets, j, 21) of components that are held, NaN for the others."""
        free = np.isnan(parameters)
        if np.any(free.any(-1) != free.all(-1)):
            raise ValueError(
                f"{caller}: fixed holds some parameters of a pair of angles. Give all five of a component, or NaN for "
                "all."
            )
        if np.any(parameters[..., 2:4] < 0):
            raise ValueError(f"{caller}: fixed holds a negative concentration, but concentrations must be 0 or more.")
        free = free[..., :1]
        known = np.where(free, self.empty[:5], parameters)
        return np.where(free, np.nan, self.completed(known, np.abs(known).max(), dtype))

    def around(self, held: Array) -> tuple[Array, Array, Array]:
        """Return that none of the components `held` (j, 21) is a cluster, and that a start places the others."""
        free = np.isnan(held[:, 0])
        return held[:, :2], np.zeros_like(free), free

    def over(self, x: jax.Array, share: jax.Array, log_weights: Array, parameters: Array, held: Array) -> Explained:
        """Go over the data."""
        needed = parameters[..., [0, 1, 2, 3, 4, 5 + pairs_fit.LOG_TOTAL]]
        found: Explained = over_pairs(x, share, log_weights, needed, self.kind)
        return found

    def refitted(self, parameters: Array, found: Array, largest: float, dtype: np.dtype) -> Array:
        """Return parameters that explain the data better, after a few Newton steps."""
        flat, steps = parameters.reshape(-1, 21), pairs_fit.FEW_STEPS
        start = np.concatenate([np.zeros((len(flat), 2)), flat[:, 2:5]], 1)
        end = pairs_fit.maximise(self.kind, found.reshape(-1, 3, 3), start, largest, steps, dtype, flat[:, 5:])
        locs = turns_removed(end.at[:, :2] + flat[:, :2])
        return np.concatenate([locs, end.at[:, 2:], end.known], 1).reshape(parameters.shape)

    def apart(self, x: Array, places: Array) -> Array:
        """Return half the squares (t, n) of the chords between samples `x` (n, 2) and `places` (t, 2)."""
        return chords_of_angles(x, places)

    def rough(self, place: Array, x: Array, share: Array) -> Array:
        """Return the parameters (5,) of a component at `place` (2,) that explains the samples `x` (n, 2)."""
        share = share / max(share.sum(), np.finfo(float).tiny)
        products = pairs_fit.products_of(turns_removed(x - place)[None], share[None])
        parameters: Array = pairs_fit.starts(self.kind, products, FIRST_CONCENTRATIONS)[1][0]
        parameters[:2] = turns_removed(parameters[:2] + place)
        return parameters

    def random(self, generator: np.random.Generator, number: int) -> Array | None:
        """Return the parameters (j, 5) of components with random locations and correlations.

        They serve as starts for components that cross or have two modes, which `rough` rarely separates because they
        are not clusters.
        """
        phi, psi, correlation = generator.uniform(-1, 1, (3, number))
        k, r = np.full(number, RANDOM_CONCENTRATION), LARGEST_RANDOM_CORRELATION * correlation
        return np.stack([np.pi * phi, np.pi * psi, k, k, r], 1)

    def completed(self, parameters: Array, largest: float, dtype: np.dtype) -> Array:
        """Append `pairs_fit.cumulants` to parameters (sets, j, 5) of a start, after scaling them down to `largest`."""
        flat = parameters.reshape(-1, 5).copy()
        flat[:, 2:] *= np.minimum(largest / np.maximum(np.abs(flat[:, 2:]).max(1, keepdims=True), largest), 1)
        known = pairs_fit.known_of(self.kind, flat[:, 2:], dtype)
        return np.concatenate([flat, known], 1).reshape(*parameters.shape[:-1], 21)

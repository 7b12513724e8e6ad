"""Fit mixtures by expectation maximisation, from the best of several starts spread over the data.

The functions take one data set, with samples along the first axis and weights `share` that sum to 1. `Mixture.fit`
maps over several data sets.
"""

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.distributions.bivariate import BivariateVonMises
from jax_von_mises.distributions.torus import Torus
from jax_von_mises.distributions.von_mises import VonMises
from jax_von_mises.functions import bivariate, fitting

if TYPE_CHECKING:
    from jax_von_mises.distributions.mixture import Mixture

Components = VonMises | Torus | BivariateVonMises
# Steps taken, the current mixture, the best one, its mean log likelihood, and the last gain.
State = tuple[jax.Array, "Mixture", "Mixture", jax.Array, jax.Array]
# Steps from each start before the best one continues.
TRIAL_STEPS = 15
# Range of the components' initial concentrations, which keeps a component from starting at a single point.
FIRST_CONCENTRATIONS = 0.5, 50.0


def step(mixture: "Mixture", samples: jax.Array, share: jax.Array, largest: jax.Array) -> tuple["Mixture", jax.Array]:
    """Return the mixture after one step of expectation maximisation, and the mean log likelihood before it.

    The maximisation is exact for independent angles. For dependent angles, it takes a few Newton steps from the current
    parameters. The likelihood never decreases, except by rounding. A component that has lost all weight keeps its
    parameters.
    """
    weights = share[:, None] * mixture.responsibilities(samples)
    value = jnp.sum(share * jnp.where(share > 0, mixture.log_prob(samples), 0))
    total = jnp.sum(weights, 0)
    refitted = refit(mixture.components, samples, weights, largest)
    refitted = jax.tree.map(lambda new, old: jnp.where(jnp.isnan(new), old, new), refitted, mixture.components)
    logits = jnp.log(total).astype(mixture.logits.dtype)
    return type(mixture)(logits=logits, components=refitted), value


def refit(components: Components, samples: jax.Array, weights: jax.Array, largest: jax.Array) -> Components:
    """Fit each of the `components` to `samples` with its column of `weights`."""
    if isinstance(components, VonMises):
        spread = jnp.broadcast_to(samples[:, None], weights.shape)
        estimate = fitting.fit(spread, weights, axis=0)
        return VonMises(estimate.loc, jnp.minimum(estimate.concentration, largest))
    spread = jnp.broadcast_to(samples[:, None], (*weights.shape, samples.shape[-1]))
    if isinstance(components, Torus):
        estimate = fitting.fit(spread, jnp.broadcast_to(weights[..., None], spread.shape), axis=0)
        return Torus(VonMises(estimate.loc, jnp.minimum(estimate.concentration, largest)))
    return type(components)(
        *bivariate.climb_from(components._REQUEST.kind, tuple(jax.tree.leaves(components)), spread, weights, largest)
    )


def seed(
    key: jax.Array, kind: type[Components], number: int, samples: jax.Array, share: jax.Array
) -> tuple[jax.Array, Components]:
    """Return logits and components, each fitted to the samples nearest to one of several distant samples.

    The method is k-means++ (D. Arthur and S. Vassilvitskii, SODA 2007). Each sample is drawn with a probability
    proportional to its weight times the square of its chord to the nearest sample drawn before.
    """
    angles = samples if samples.ndim > 1 else samples[:, None]

    def versine(place: jax.Array) -> jax.Array:
        return jnp.sum(2 * jnp.square(jnp.sin(0.5 * (angles - place[None]))), -1)

    def add(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        nearest, _ = state
        at = jax.random.categorical(key, jnp.log(share * nearest))
        return (jnp.minimum(nearest, versine(angles[at])), at), at

    start = jnp.ones_like(share), jnp.zeros((), jnp.int32)
    first = jax.random.categorical(key, jnp.log(share))
    keys = jax.random.split(jax.random.fold_in(key, 1), number)[1:]
    _, others = lax.scan(add, (versine(angles[first]), first.astype(start[1].dtype)), keys)
    places = angles[jnp.concatenate([first[None], others])]
    nearest = jnp.argmin(jax.vmap(versine, out_axes=1)(places), 1)
    weights = jnp.where(nearest[:, None] == jnp.arange(number)[None], share[:, None], 0)
    spread = jnp.broadcast_to(angles[:, None], (*weights.shape, angles.shape[1]))
    estimate = fitting.fit(spread, jnp.broadcast_to(weights[..., None], spread.shape), axis=0)
    loc = jnp.where(jnp.isnan(estimate.loc), places, estimate.loc)
    concentration = jnp.clip(jnp.nan_to_num(estimate.concentration, nan=0.0), *FIRST_CONCENTRATIONS)
    components: Components
    if issubclass(kind, VonMises):
        components = VonMises(loc[:, 0], concentration[:, 0])
    elif issubclass(kind, Torus):
        components = Torus(VonMises(loc, concentration))
    else:
        components = kind(loc[:, 0], loc[:, 1], concentration[:, 0], concentration[:, 1], jnp.zeros_like(loc[:, 0]))
    return jnp.log(jnp.maximum(jnp.sum(weights, 0), 1e-3)), components


def climb(
    mixture: "Mixture", samples: jax.Array, share: jax.Array, largest: jax.Array, steps: int, tolerance: jax.Array
) -> tuple["Mixture", jax.Array]:
    """Take up to `steps` steps from `mixture`, until one gains at most `tolerance`.

    Return the best mixture and its mean log likelihood.
    """

    def should_continue(state: State) -> jax.Array:
        count, _, _, _, gain = state
        return (count <= steps) & (gain > tolerance)

    def next_state(state: State) -> State:
        count, at, best, best_value, _ = state
        after, value = step(at, samples, share, largest)
        better = value > best_value
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), at, best)
        return count + 1, after, best, jnp.where(better, value, best_value), value - best_value

    lowest = jnp.full((), -jnp.inf, share.dtype)
    state = jnp.zeros((), jnp.int32), mixture, mixture, lowest, -lowest
    _, _, best, value, _ = lax.while_loop(should_continue, next_state, state)
    return best, value


@functools.partial(jax.jit, static_argnames=("mixture", "kind", "number", "starts", "steps"))
def from_seeds(
    key: jax.Array,
    mixture: type["Mixture"],
    kind: type[Components],
    number: int,
    samples: jax.Array,
    share: jax.Array,
    largest: jax.Array,
    starts: int,
    steps: int,
    tolerance: jax.Array,
) -> "Mixture":
    """Fit a mixture of `number` components of the class `kind`; `mixture` is the class of the result."""

    def trial(key: jax.Array) -> tuple["Mixture", jax.Array]:
        logits, components = seed(key, kind, number, samples, share)
        return climb(mixture(logits=logits, components=components), samples, share, largest, TRIAL_STEPS, tolerance)

    mixtures, values = lax.map(trial, jax.random.split(key, starts))
    best = jnp.argmax(values)
    return climb(jax.tree.map(lambda leaf: leaf[best], mixtures), samples, share, largest, steps, tolerance)[0]

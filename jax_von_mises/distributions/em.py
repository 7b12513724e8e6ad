"""Fit mixtures by expectation maximisation, from the best of several starts.

The functions take one data set, with samples along the first axis and weights `share` that sum to 1. `Mixture.fit`
maps over several data sets.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax_von_mises.distributions import pairs_fit
from jax_von_mises.distributions.pairs import BivariateVonMises
from jax_von_mises.distributions.torus import Torus
from jax_von_mises.distributions.von_mises import VonMises
from jax_von_mises.functions import fitting

Components = VonMises | Torus | BivariateVonMises


class Terms(NamedTuple):
    """A mixture: the logarithms of its weights, up to a constant, and its components along the last axis."""

    logits: jax.Array
    components: Components


# Steps taken, the current mixture, the best one, its mean log likelihood, and the last gain.
State = tuple[jax.Array, Terms, Terms, jax.Array, jax.Array]
# Steps from each start before the best one continues.
TRIAL_STEPS = 15
# Range of the components' initial concentrations, which keeps a component from starting at a single point.
FIRST_CONCENTRATIONS = 0.5, 50.0
# Both concentrations, and the largest correlation in magnitude, of random components. With the largest correlations,
# their densities have two modes.
RANDOM_CONCENTRATION, LARGEST_RANDOM_CORRELATION = 4.0, 8.0


def posterior(joint: jax.Array) -> jax.Array:
    """Return the probability of each component, from the logarithms of the joint densities along the last axis."""
    # Components with an infinite density share the probability equally.
    infinite = joint == jnp.inf
    joint = jnp.where(jnp.any(infinite, -1, keepdims=True), jnp.where(infinite, 0.0, -jnp.inf), joint)
    return jax.nn.softmax(joint, axis=-1)


def log_of_term(log_weight: jax.Array, log_prob: jax.Array) -> jax.Array:
    """Return the logarithm of a weight times a density; -inf for a weight of 0, even if the density is infinite."""
    log_weight, log_prob = promote_and_broadcast(log_weight, log_prob)
    return log_weight + jnp.where(log_weight == -jnp.inf, 0, log_prob)


def promote_and_broadcast(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Broadcast `arrays` together, in the dtype of the last one, even where JAX's implicit promotion is off."""
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(jnp.broadcast_to(a, shape).astype(arrays[-1].dtype) for a in arrays)


def step(mixture: Terms, samples: jax.Array, share: jax.Array, largest: jax.Array) -> tuple[Terms, jax.Array]:
    """Return the mixture after one step of expectation maximisation, and the mean log likelihood before it.

    The maximisation is exact for independent angles. For dependent angles, it takes a few Newton steps from the current
    parameters. The likelihood never decreases, except by rounding. A component that has lost all weight keeps its
    parameters.
    """
    densities = mixture.components.log_prob(jnp.expand_dims(samples, 1))
    joint = log_of_term(jnp.broadcast_to(jax.nn.log_softmax(mixture.logits), densities.shape), densities)
    log_prob = special.logsumexp(joint, axis=1)
    weights = share[:, None] * posterior(joint)
    value = jnp.sum(share * jnp.where(share > 0, log_prob, 0))
    total = jnp.sum(weights, 0)
    refitted = refit(mixture.components, samples, weights, largest)

    def unless_empty(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where((total == 0).reshape(-1, *[1] * (new.ndim - 1)), old, new)

    refitted = jax.tree.map(unless_empty, refitted, mixture.components)
    logits = jnp.log(total).astype(mixture.logits.dtype)
    return Terms(logits, refitted), value


def refit(components: Components, samples: jax.Array, weights: jax.Array, largest: jax.Array) -> Components:
    """Fit each of the `components` to `samples` with its column of `weights`."""
    if isinstance(components, VonMises):
        spread = jnp.broadcast_to(samples[:, None], weights.shape)
        estimate = fitting.fit(spread, weights, axis=0)
        return VonMises(estimate.loc, jnp.minimum(estimate.concentration, largest))
    if isinstance(components, Torus):
        spread = jnp.broadcast_to(samples[:, None], (*weights.shape, samples.shape[-1]))
        estimate = fitting.fit(spread, jnp.broadcast_to(weights[..., None], spread.shape), axis=0)
        return Torus(VonMises(estimate.loc, jnp.minimum(estimate.concentration, largest)))
    return type(components)(
        *pairs_fit.climb_from(components._MODEL, jax.tree.leaves(components), samples, weights, largest)
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
    components: Components
    if issubclass(kind, BivariateVonMises):
        components = kind(*pairs_fit.rough(kind._MODEL, angles, weights, places, FIRST_CONCENTRATIONS))
    else:
        spread = jnp.broadcast_to(angles[:, None], (*weights.shape, angles.shape[1]))
        estimate = fitting.fit(spread, jnp.broadcast_to(weights[..., None], spread.shape), axis=0)
        loc = jnp.where(jnp.isnan(estimate.loc), places, estimate.loc)
        concentration = jnp.clip(jnp.nan_to_num(estimate.concentration, nan=0.0), *FIRST_CONCENTRATIONS)
        if issubclass(kind, VonMises):
            components = VonMises(loc[:, 0], concentration[:, 0])
        else:
            components = Torus(VonMises(loc, concentration))
    return jnp.log(jnp.maximum(jnp.sum(weights, 0), 1e-3)), components


def random_pairs(key: jax.Array, kind: type[BivariateVonMises], number: int, dtype: np.dtype) -> BivariateVonMises:
    """Return components with random locations and correlations.

    They serve as starts for components that cross or have two modes, which `seed` rarely separates because they are not
    clusters.
    """
    phi, psi, correlation = jax.random.uniform(key, (3, number), dtype, -1, 1)
    concentration = jnp.full_like(correlation, RANDOM_CONCENTRATION)
    largest = LARGEST_RANDOM_CORRELATION
    return kind(np.pi * phi, np.pi * psi, concentration, concentration, largest * correlation)


def climb(
    mixture: Terms,
    samples: jax.Array,
    share: jax.Array,
    largest: jax.Array,
    steps: int | jax.Array,
    tolerance: jax.Array,
) -> tuple[Terms, jax.Array]:
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


@functools.partial(jax.jit, static_argnames=("kind", "number", "starts", "steps"))
def from_seeds(
    key: jax.Array,
    kind: type[Components],
    number: int,
    samples: jax.Array,
    share: jax.Array,
    largest: jax.Array,
    starts: int,
    steps: int,
    tolerance: jax.Array,
) -> Terms:
    """Fit a mixture of `number` components of the class `kind`."""

    def mixture_from(i: jax.Array, key: jax.Array) -> Terms:
        start = seed(key, kind, number, samples, share)
        if issubclass(kind, BivariateVonMises):
            others = jnp.zeros_like(start[0]), random_pairs(jax.random.fold_in(key, 2), kind, number, samples.dtype)
            start = jax.tree.map(lambda spread, random: jnp.where(i % 2 == 0, spread, random), start, others)
        return Terms(*start)

    seeds = lax.map(lambda each: mixture_from(*each), (jnp.arange(starts), jax.random.split(key, starts)))

    def attempt(i: jax.Array, best: tuple[Terms, jax.Array]) -> tuple[Terms, jax.Array]:
        """Take a few steps from seed `i`, or after the last seed, all steps from the best mixture found."""
        trial = i < starts
        start = jax.tree.map(lambda each, at: jnp.where(trial, each[jnp.minimum(i, starts - 1)], at), seeds, best[0])
        found = climb(start, samples, share, largest, jnp.where(trial, TRIAL_STEPS, steps), tolerance)
        better = found[1] > best[1]
        kept: tuple[Terms, jax.Array] = jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)
        return kept

    first: Terms = jax.tree.map(lambda leaf: leaf[0], seeds)
    best: Terms = lax.fori_loop(0, starts + 1, attempt, (first, jnp.full((), -jnp.inf, share.dtype)))[0]
    return best

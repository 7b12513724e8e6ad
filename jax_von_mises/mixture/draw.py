"""Draw from mixtures of any family.

*Layout of the stream.* A draw uses one number more than a draw of the components' family. The first word of its first
number chooses the component. The other numbers are those of a draw from that component.

A word chooses component j for w_j 2^32 of its values, rounded down to a whole number, and the most likely component for
the rest. The probability of a component is therefore w_j to 2^-32 (to n 2^-32 for the most likely of n components), and
a component of weight 0 is never chosen. In float32, up to 1000 weights w_j have rounding errors of at most 5e-7.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, made_of
from jax_von_mises.numerics.elementary import aligned

# The name of a family of mixtures is that of the components' family after this.
PREFIX = "mixture-of-"


@made_of(PREFIX)
def mixture_of(component: Family) -> Family:
    """Return the family of mixtures of a family, with components along the last axis of each parameter's batch."""
    return Family(
        name=PREFIX + component.name,
        noun=component.noun,
        parameters={"logits": 1, **{name: rank + 1 for name, rank in component.parameters.items()}},
        place=functools.partial(mixed, component),
        numbers=lambda event_shape: 1 + component.numbers(event_shape),
        event_shape=lambda parameters: component.event_shape(parameters[1:]),
        methods=("auto", "direct"),
        vector=component.vector,
    )


def mixed(
    component: Family,
    numbers: Numbers,
    parameters: tuple[jax.Array, ...],
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return draws of a mixture, as a family's `place`."""
    logits, *of_components = parameters
    weights = weights_of(lax.stop_gradient(logits))
    index = chosen(numbers(0)[0], weights)
    known = aligned(~jnp.any(jnp.isnan(weights), -1), index.ndim)
    ranks = component.parameters.values()
    of_draws = tuple(taken(parameter, index, rank) for parameter, rank in zip(of_components, ranks, strict=True))
    x = component.place(numbers.after(1), of_draws, route, sharding)
    return jnp.where(known.reshape(*known.shape, *[1] * (x.ndim - known.ndim)), x, jnp.nan)


def weights_of(logits: jax.Array) -> jax.Array:
    """Return the weights of up to 1000 components, with errors of at most 5e-7 in float32."""
    return jnp.exp(jax.nn.log_softmax(logits))


def chosen(word: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the index of the component that each word chooses; the components are along the last axis of `weights`."""
    count = weights.shape[-1]
    largest = jnp.argmax(weights, -1, keepdims=True).astype(jnp.int32)
    places = lax.broadcasted_iota(jnp.int32, weights.shape, weights.ndim - 1)
    others = jnp.where(places == largest, 0, weights)
    ends = jnp.cumsum((others * 2.0**32).astype(jnp.uint32), -1, dtype=jnp.uint32)
    ends, largest = (aligned(x, word.ndim + 1) for x in (ends, largest))
    index = jnp.sum(word[..., None] >= ends, -1, dtype=jnp.int32)
    return jnp.where(index == count, largest[..., 0], index)


def taken(parameter: jax.Array, index: jax.Array, rank: int) -> jax.Array:
    """Return the values of a `parameter` for the components `index`; `rank` of its last axes belong to a draw."""
    spread = aligned(parameter, index.ndim + 1 + rank)
    at = index.reshape(*index.shape, *[1] * (1 + rank))
    found: jax.Array = jnp.take_along_axis(spread, at, axis=index.ndim, mode="promise_in_bounds")
    return jnp.squeeze(found, index.ndim)

"""Draw from a sine-skewed version of a symmetric family, by reflecting some of its draws about their centre.

*Layout of the stream.* Angle i before the reflection is angle i of the symmetric family. Word i of the stream of the
key ``jax.random.fold_in(key, 1)`` decides the reflection.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, made_of
from jax_von_mises.numerics.circle import deviation, reduce_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless

# The name of a family is that of the symmetric family after this.
PREFIX = "sine-skewed-"


@made_of(PREFIX)
def skewed_of(symmetric: Family) -> Family:
    """Return the family of sine-skewed versions of a family of angles."""
    return Family(
        name=PREFIX + symmetric.name,
        noun="angle",
        parameters={**symmetric.parameters, "centre": 0, "skewness": 0},
        place=functools.partial(skewed, symmetric),
        numbers=symmetric.numbers,
        tabulated=symmetric.tabulated,
        methods=symmetric.methods,
    )


def skewed(
    symmetric: Family,
    numbers: Numbers,
    parameters: tuple[jax.Array, ...],
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return angles, as a family's `place`; their derivatives are NaN, since a reflection has none."""
    *given, centre, skewness = parameters
    x = symmetric.place(numbers, tuple(given), route, sharding)
    (word,) = numbers.in_second_stream()(0)

    def reflected(x: jax.Array, word: jax.Array, centre: jax.Array, skewness: jax.Array) -> jax.Array:
        away, tilt = slant(x, centre, skewness)
        share = (word.astype(x.dtype) + 0.5) * 2.0**-32
        kept = 2 * share < 1 + tilt
        centre = jnp.broadcast_to(reduce_turns(centre), x.shape)
        return jnp.where(jnp.isnan(tilt), tilt, jnp.where(kept, x, wrap(-away, centre)))

    return no_derivative(xla.boundary(reflected, x, word, centre, skewness), parameters)


def slant(x: jax.Array, centre: jax.Array, skewness: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the deviations of angles from the centre, and the skewness times their sines; NaN for invalid skewness."""
    shape = jnp.broadcast_shapes(x.shape, centre.shape, skewness.shape)
    x, centre, skewness = (jnp.broadcast_to(each, shape) for each in (x, centre, skewness))
    away, _ = deviation(x, centre)
    return away, nan_unless(skewness, jnp.abs(skewness) <= 1) * jnp.sin(away)


@jax.custom_jvp
def no_derivative(x: jax.Array, depends_on: Any) -> jax.Array:
    """Return `x` with NaN as its derivative with respect to a pytree."""
    return x


@no_derivative.defjvp
def _no_derivative_jvp(primals: tuple[jax.Array, Any], tangents: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
    moved = sum(jnp.sum(tangent).astype(primals[0].dtype) for tangent in jax.tree.leaves(tangents[1]))
    return primals[0], (tangents[0] + moved) * jnp.nan

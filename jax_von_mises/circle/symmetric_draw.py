"""Draw angles that are symmetric about `loc`, given the quantile of their distance from it.

*Layout of the stream.* Angle i uses number i of the stream (see :mod:`jax_von_mises.engine.numbers`). The lowest bit
of its first word gives the side, and the other bits give the tail probability, as in `tails.tail`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_von_mises.circle import named
from jax_von_mises.compiler import xla
from jax_von_mises.engine import tails
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family
from jax_von_mises.numerics.circle import reduce_turns, wrap

Quantile = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def symmetric(name: str, parameter: str, quantile: Quantile) -> Family:
    """Return the family with the parameters `loc` and `parameter`.

    ``quantile(t, half_minus_t, parameter)`` returns the distance from `loc` beyond which an angle lies, on one side,
    with probability t in (0, 1/2]. Distances beyond pi are wrapped.
    """
    return Family(
        name=name,
        noun="angle",
        parameters={"loc": 0, parameter: 0},
        place=functools.partial(on_both_sides, quantile),
        methods=("auto", "direct"),
    )


def on_both_sides(
    quantile: Quantile,
    numbers: Numbers,
    parameters: tuple[jax.Array, ...],
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return angles, as a family's `place`."""
    loc, parameter = (jnp.broadcast_to(x, numbers.shape) for x in parameters)
    t, half_minus_t, negative = tails.tail(xla.finish_words(numbers(0)))
    distance = quantile(t, half_minus_t, parameter)
    return wrap(reduce_turns(jnp.where(negative, -distance, distance)), reduce_turns(loc))


WRAPPED_CAUCHY = symmetric("wrapped-cauchy", "rho", named.cauchy_quantile)
CARDIOID = symmetric("cardioid", "rho", named.cardioid_quantile)
WRAPPED_NORMAL = symmetric("wrapped-normal", "scale", named.normal_quantile)

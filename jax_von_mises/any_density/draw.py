"""Draw from any density on the circle, given the table of its quantile.

*Layout of the stream.* Angle i uses number i of the stream (see :mod:`jax_von_mises.engine.numbers`). The lowest bit
of its first word is 1 for the lower half of the distribution. The other bits encode the tail probability, from -pi or
from pi, as in `tails.tail`.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_von_mises.any_density.quantiles import Cells
from jax_von_mises.compiler import xla
from jax_von_mises.engine import tails
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family


def tail_and_end(*words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return each angle's tail probability, from its one or two words, and whether it counts from pi."""
    t, _, lower = tails.tail(words)
    return t, ~lower


def looked_up(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return angles from the arrays of a table, as a family's `place`."""
    coefficients, hard, point, further = parameters
    cells = Cells(coefficients, hard.astype(jnp.int32), point, further)
    shape = numbers.shape
    rows = xla.rows_of(shape, coefficients) or shape
    x = cells.angle_of(tail_and_end, *numbers._replace(shape=rows)(0))
    return x if rows == shape else x.reshape(-1)[: math.prod(shape)].reshape(shape)


DENSITY = Family(
    name="density",
    noun="angle",
    parameters={"coefficients": 2, "hard": 1, "point": 1, "further": 2},
    place=looked_up,
    methods=("auto", "table"),
)

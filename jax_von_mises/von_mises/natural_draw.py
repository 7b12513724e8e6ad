"""Draw angles and directions given their natural parameter, the concentration times the mean direction.

The words and the draws are those of the family with the same concentration and mean direction. Derivatives with respect
to the natural parameter are finite at 0 (see :mod:`jax_von_mises.von_mises.natural`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from jax_von_mises import arguments
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, Request, by_family, made_of
from jax_von_mises.von_mises import natural

# The name of a family with a natural parameter is that of the other family after this.
PREFIX = "natural-"


@made_of(PREFIX)
def natural_family(family: Family) -> Family:
    """Return the family with a natural parameter in place of the `family`'s own."""

    def place(
        numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
    ) -> jax.Array:
        def draw(own: tuple[jax.Array, ...]) -> jax.Array:
            return family.place(numbers, own, route, sharding)

        return turned_draws(family, draw, parameters[0])

    def program(request: Request) -> jax.Array:
        def draw(own: tuple[jax.Array, ...]) -> jax.Array:
            return by_family(dataclasses.replace(request, family=family, parameters=own))

        return turned_draws(family, draw, jnp.asarray(request.parameters[0], arguments.compute_dtype(request.dtype)))

    return Family(
        name=PREFIX + family.name,
        noun=family.noun,
        parameters={"natural": 1},
        place=place,
        program=program,
        numbers=family.numbers,
        event_shape=lambda parameters: np.shape(parameters[0])[-1:] if family.vector else (),
        tabulated=("natural",),
        methods=family.methods,
        vector="natural",
    )


def turned_draws(family: Family, draw: Callable[[tuple[jax.Array, ...]], jax.Array], parameter: jax.Array) -> jax.Array:
    """Return the draws of a natural parameter; ``draw(parameters)`` draws the `family`."""
    vector = natural.away_from_zero(parameter, natural.SMALLEST)
    kappa, fixed = natural.concentration_of(vector), lax.stop_gradient(vector)
    if family.vector:
        return natural.turn_directions(draw((fixed, kappa)), vector)
    loc = natural.angle_of(fixed)
    return natural.turn_angles(draw((loc, kappa)), loc, vector)

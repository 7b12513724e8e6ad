"""Draw points on a torus, with an independent von Mises distribution for each angle.

*Layout of the stream.* Point i of m angles uses numbers m i to m i + m - 1 of the stream, one for each angle (see
:mod:`jax_von_mises.engine.numbers`).
"""

import dataclasses

import jax
import numpy as np
from jax.sharding import NamedSharding

from jax_von_mises.engine import counter
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, Request
from jax_von_mises.von_mises import transform
from jax_von_mises.von_mises.sampler import angles_of


def points(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return points on a torus, as a family's `place`; each angle is drawn from one number."""
    loc, concentration = parameters
    return transform.angles(numbers(0, loc.shape[-1]), loc, concentration, route, sharding)


def points_of(request: Request) -> jax.Array:
    """Return the points of a request, as the angles of one request."""
    (angles_per_point,) = request.event_shape
    start = request.start
    if start is not None:
        high, low = counter.multiply_wide(start[1], angles_per_point)
        start = high + start[0] * np.uint32(angles_per_point), low
    return angles_of(dataclasses.replace(request, start=start, shape=(*request.shape, angles_per_point)))


TORUS = Family(
    name="torus",
    noun="point",
    parameters={"loc": 1, "concentration": 1},
    place=points,
    numbers=lambda event_shape: event_shape[0],
    event_shape=lambda parameters: np.shape(parameters[0])[-1:],
    methods=("auto", "direct"),
    program=points_of,
    explicit_meshes=True,
)

"""Draw rotations from counter-based words, without rejection.

*Layout of the stream.* Rotation i uses numbers 3 i, 3 i + 1 and 3 i + 2 of the stream (see
:mod:`jax_von_mises.engine.numbers`): for its angle from the mean, the first component of its axis, and the azimuth of
the axis about the first coordinate axis. The lowest bit of the first word of an angle's number gives its side: 1 for
the half of the probability near the mean, 0 for the other half. The other bits give the tail probability on that side,
as in `tails.tail`. A component of the axis is 1 - 2 t for the tail probability t of its number, or 2 t - 1.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla
from jax_von_mises.engine import tails
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family
from jax_von_mises.numerics.elementary import aligned, nan_unless, square_root, valid
from jax_von_mises.rotations import heat as rotations
from jax_von_mises.sphere import vectors
from jax_von_mises.sphere.draw import half_turns


def quaternions(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return unit quaternions, as a family's `place`."""
    mean, scale = parameters
    if scale.size == 1:
        scale = scale.reshape(())
    if mean.size == 4:
        mean = mean.reshape(4)
    if scale.ndim:
        scale = aligned(scale, len(numbers.shape))
    scale = valid(scale)
    # Below the smallest scale, draws are proportional to it.
    at_least = drawn_angle(xla.finish_words(numbers(0)), jnp.maximum(scale, rotations.SMALLEST), route)
    signed = at_least * rotations.small_share(scale)
    axis = xla.boundary(uniform_axis, numbers(1), numbers(2))
    return rotations.place(signed, axis, vectors.direction_of(mean).unit)


def uniform_axis(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> jax.Array:
    """Return uniform unit vectors from the words of two numbers each."""
    t, _, negative = tails.tail(first)
    z, r = 1 - 2 * t, 2 * square_root(t * (1 - t))
    c, s = vectors.cosine_and_sine(half_turns(second))
    return jnp.stack([jnp.where(negative, -z, z), r * c, r * s], -1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def drawn_angle(words: tuple[jax.Array, ...], scale: jax.Array, route: str) -> jax.Array:
    """Return `rotations.quantile` for the words of each angle, differentiable with respect to `scale`."""

    def angle(words: tuple[jax.Array, ...], scale: jax.Array) -> jax.Array:
        t, _, near = tails.tail(words)
        if route == "table":
            signed = rotations.quantile_table(scale).at(t, near)
        else:
            signed = rotations.quantile(t, ~near, jnp.broadcast_to(scale, t.shape))
        return nan_unless(signed, ~jnp.isnan(scale))

    return xla.boundary(angle, words, scale)


@drawn_angle.defjvp
def _drawn_angle_jvp(route: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    words, scale = primals
    signed = drawn_angle(words, scale, route)

    def slope(scale: jax.Array, signed: jax.Array) -> jax.Array:
        return rotations.slope_by_sigma(signed, jnp.broadcast_to(scale, signed.shape))

    slopes = xla.boundary(slope, scale, signed)
    return signed, slopes * jnp.broadcast_to(tangents[1], signed.shape)


ISOTROPIC_GAUSSIAN = Family(
    name="isotropic-gaussian-so3",
    noun="rotation",
    parameters={"mean_rotation": 1, "scale": 0},
    place=quaternions,
    numbers=lambda event_shape: 3,
    event_shape=lambda parameters: np.shape(parameters[0])[-1:],
    tabulated=("scale",),
    vector="mean_rotation",
)

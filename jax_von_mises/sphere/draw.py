"""Draw directions in any dimension from counter-based words, without rejection.

*Layout of the stream.* In d dimensions, direction i uses these numbers of the stream (see
:mod:`jax_von_mises.engine.numbers`):

======  ====================================================================================================
d = 2   i: the angle of `sample_von_mises`, counterclockwise from the mean direction
d = 3   2 i: the cosine of the angle to the mean direction; 2 i + 1: the azimuth about the mean direction
d >= 4  (d + 1) i: the same cosine; (d + 1) i + 1 + j: component j = 0, ..., d - 1 of a standard normal vector
======  ====================================================================================================

For d >= 4, the part of the normal vector orthogonal to the mean direction gives the azimuth. The lowest bit of the
first word of a cosine's number gives its side: 1 for the half of the probability near the mean direction, 0 for the
other half. The other bits give the tail probability towards the pole on that side, as in `tails.tail`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises.compiler import xla
from jax_von_mises.compiler.sharding import broadcast_sharded
from jax_von_mises.engine import tails
from jax_von_mises.engine.draws import sample
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family
from jax_von_mises.numerics import normal
from jax_von_mises.numerics.elementary import aligned, cosine, sine_over, valid
from jax_von_mises.sphere import radial, vectors
from jax_von_mises.von_mises import transform

quantile_share = xla.traced_once("dimension")(radial.quantile_share)
slope_of_share = xla.traced_once("dimension")(radial.slope_of_share)


def numbers_per_direction(dimension: int) -> int:
    """Return how many numbers of the stream one direction uses."""
    return {2: 1, 3: 2}.get(dimension, dimension + 1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def drawn_share(
    words: tuple[jax.Array, ...], kappa: jax.Array, dimension: int, route: str, out_sharding: NamedSharding | None
) -> jax.Array:
    """Return `radial.quantile_share` for the words of each cosine, differentiable with respect to `kappa`."""
    kappa, (t, _, near) = valid(kappa), tails.tail(words)
    if kappa.ndim:
        kappa = broadcast_sharded(kappa, t.shape, out_sharding)
    if dimension == 3:
        return radial.closed_quantile_share(t, near, kappa)
    if route == "table":
        table = radial.odds_table(kappa, dimension)
        return radial.look_up_share(t, near, table, kappa, dimension, out_sharding)
    return quantile_share(t, near, kappa if kappa.ndim else kappa.reshape((1,) * t.ndim), dimension)


@drawn_share.defjvp
def _drawn_share_jvp(
    dimension: int,
    route: str,
    out_sharding: NamedSharding | None,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[jax.Array, jax.Array]:
    draw = functools.partial(drawn_share, dimension=dimension, route=route, out_sharding=out_sharding)
    signed = xla.boundary(draw, *primals)

    def slope(words: tuple[jax.Array, ...], kappa: jax.Array, signed: jax.Array) -> jax.Array:
        kappa, (t, _, near) = valid(kappa), tails.tail(words)
        if route == "table":
            distance = radial.slope_table(kappa, dimension).at(t, ~near, out_sharding)
            return radial.slope_at(signed, near, kappa, distance)
        return slope_of_share(signed, near, broadcast_sharded(kappa, signed.shape, out_sharding), dimension)

    slopes = xla.boundary(slope, *primals, signed)
    return signed, slopes * broadcast_sharded(tangents[1], signed.shape, out_sharding)


def in_plane(
    words: tuple[jax.Array, ...],
    direction: jax.Array,
    kappa: jax.Array,
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return directions in two dimensions."""
    direction = aligned(direction, words[0].ndim + 1)
    angle_of = functools.partial(transform.angles_about_zero, route=route, out_sharding=sharding)

    def sines(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
        half = 0.5 * angle
        square = half * half
        sine = half * sine_over(square)
        return 2 * sine * cosine(square), sine

    if len(words) == 2:
        across, half = sines(xla.boundary(angle_of, words, kappa))
    else:
        across, half = xla.boundary(xla.as_pair, *sines(angle_of(words, kappa)), joined=True)
    versine = 2 * half * half
    first, second = direction[..., 0], direction[..., 1]
    return jnp.stack([first - (second * across + first * versine), second + (first * across - second * versine)], -1)


def in_space(
    words: tuple[jax.Array, ...],
    direction: jax.Array,
    kappa: jax.Array,
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return directions in three dimensions, from two numbers each."""
    width = len(words) // 2
    signed = drawn_share(words[:width], kappa, 3, route, sharding)
    turn = half_turns(words[width:])
    if width == 1:
        x: jax.Array = xla.boundary(vectors.place_in_space, signed, turn, direction, joined=True)
        return x
    return vectors.place_in_space(signed, turn, direction)


def half_turns(words: tuple[jax.Array, ...]) -> jax.Array:
    """Return uniform numbers in [-1, 1], each from one word (float32) or two words (float64)."""
    high = lax.bitcast_convert_type(words[0], jnp.int32)
    if len(words) == 1:
        turns = (high.astype(jnp.float32) + 0.5) * 2.0**-31
    else:
        turns = (high.astype(jnp.float64) + (words[1].astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-31
    # In a batch of one, XLA would otherwise move the factor out of the powers of `turns`, which would then overflow.
    return xla.round_here(turns, 1)


def across_normals(
    words: tuple[jax.Array, ...],
    normal_words: tuple[jax.Array, ...],
    direction: jax.Array,
    kappa: jax.Array,
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return directions in four or more dimensions."""
    dimension = direction.shape[-1]
    signed = drawn_share(words, kappa, dimension, route, sharding)
    normals = normal.quantile(*tails.tail(normal_words))
    return xla.boundary(vectors.place_across, signed, normals, direction)


def sample_von_mises_fisher(
    key: ArrayLike,
    mean_direction: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> jax.Array:
    r"""Draw directions, unit vectors in d dimensions, from the von Mises-Fisher distribution, without rejection.

    The density is :math:`\exp(\kappa\mu\cdot x) / C(\kappa)`, with the normalizing constant :math:`C(\kappa)`.
    The words of direction ``i`` of the batch, in row-major order, depend only on the key, ``i``, d and the dtype (see
    :mod:`jax_von_mises.sphere.draw`).

    Parameters
    ----------
    key : jax.Array
        One random key of any implementation, typed or legacy.
    mean_direction : array
        :math:`\mu`, a vector of d >= 2 components along the last axis. It is divided by its length; the result is NaN
        where the length is not finite, or 0 with a concentration above 0.
    concentration : float or array
        :math:`\kappa` in [0, inf]; it broadcasts with the batch shape of `mean_direction`. At 0 the distribution is
        uniform on the sphere; at inf it is a point mass at the mean direction. Negative numbers and NaN give NaN.
    shape : int or tuple of ints, optional
        Shape of the batch, to which the parameters broadcast; by default their broadcast shape. The result has one more
        axis, of length d.
    dtype : optional
        As in `sample_von_mises`.
    method : {"auto", "direct", "table"}
        How to convert a word to a cosine for d >= 4 (or an angle for d = 2); the accuracy is the same. "direct" takes
        any concentrations. "table" takes a single one, and is faster for many directions. "auto" uses the table for one
        concentration and at least 2^14 directions (2^13 in float64). For d = 3, every method uses a closed form.
    out_sharding : optional
        Sharding of the result, a `NamedSharding` or a `PartitionSpec` of the mesh in scope. Only the axes of the batch
        can be sharded. Each device draws its own part, without communication.

    Returns
    -------
    jax.Array
        Unit vectors of shape `shape` + (d,).

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape, dtype or method, or a `mean_direction` with fewer than two components, before
        anything is computed.

    Notes
    -----
    *Accuracy.* The cosine w of the angle to the mean direction is computed from a tail probability, which takes 2^31
    values down to 2^-33 on either side (2^63 values down to 2^-65 in float64). The tail probability beyond w has a
    relative error below 2e-6 (1e-12 in float64), or the smaller of 1 - w and 1 + w is within 4 ulp of its exact value
    (6 ulp for d > 10). This holds for every concentration, and was checked against a reference for d up to 1024. The
    vector is computed from 1 - w, so the components orthogonal to the mean direction are accurate at any concentration.

    *Derivatives.* The derivative with respect to the concentration uses the implicit function theorem at a fixed tail
    probability, and is tangent to the sphere. The derivative with respect to the mean direction is that of the formula
    by which the vector is constructed. Both are finite for every concentration, in forward and reverse mode.

    *Source.* The density is equation (9.3.4) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000. The page
    *Directions on the sphere* of the documentation derives the quantile function.

    Examples
    --------
    >>> import jax
    >>> x = sample_von_mises_fisher(jax.random.key(0), [0.0, 0.0, 1.0], 50.0, (1000,))
    >>> x.shape, x.dtype.name
    ((1000, 3), 'float32')
    """
    caller = "sample_von_mises_fisher"
    values = {"mean_direction": mean_direction, "concentration": concentration}
    return sample(caller, VON_MISES_FISHER, key, values, shape, dtype, None, method, out_sharding)


def directions(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return directions, as a family's `place`."""
    mean, kappa = parameters
    if kappa.size == 1:
        kappa = kappa.reshape(())
    if mean.size == mean.shape[-1]:
        mean = mean.reshape(-1)
    dimension = mean.shape[-1]
    (direction, _), kappa = vectors.direction_if_any(mean, kappa)
    if direction.ndim > 1:
        direction = broadcast_sharded(direction, (*numbers.shape, dimension), sharding)
    if dimension == 2:
        return in_plane(xla.finish_words(numbers(0)), direction, kappa, route, numbers.of_batch)
    if dimension == 3:
        cosine, azimuth = numbers.both()
        return in_space((*cosine, *azimuth), direction, kappa, route, numbers.of_batch)
    words = xla.finish_words(numbers(0))
    return across_normals(words, numbers(1, dimension), direction, kappa, route, numbers.of_batch)


VON_MISES_FISHER = Family(
    name="von-mises-fisher",
    noun="direction",
    parameters={"mean_direction": 1, "concentration": 0},
    place=directions,
    numbers=lambda event_shape: numbers_per_direction(event_shape[0]),
    event_shape=lambda parameters: np.shape(parameters[0])[-1:],
    tabulated=("concentration",),
    vector="mean_direction",
    explicit_meshes=True,
)

"""Draw directions in any dimension from counter-based words, without rejection.

*Layout of the stream.* Number j of a stream is word j (float32), or words 2 j and 2 j + 1 (float64). In d dimensions,
direction i uses these numbers:

======  ====================================================================================================
d = 2   i: the angle of `sample_von_mises`, counterclockwise from the mean direction
d = 3   2 i: the cosine of the angle to the mean direction; 2 i + 1: the azimuth about the mean direction
d >= 4  (d + 1) i: the same cosine; (d + 1) i + 1 + j: component j = 0, ..., d - 1 of a standard normal vector
======  ====================================================================================================

For d >= 4, the part of the normal vector orthogonal to the mean direction gives the azimuth. The lowest bit of the
first word of a cosine's number gives its side: 1 for the half of the probability near the mean direction, 0 for the
other half. The other bits give the tail probability towards the pole on that side, as in `transform.tail`.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.numerics import xla
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.sharding import broadcast_sharded
from jax_von_mises.numerics.sphere import radial, vectors
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.request import Family, Request, draw


def numbers_per_direction(dimension: int) -> int:
    """Return how many numbers of the stream one direction uses."""
    return {2: 1, 3: 2}.get(dimension, dimension + 1)


def number_positions(
    shape: tuple[int, ...],
    start: counter.Wide | None,
    numbers: int,
    first: int,
    count: int | None,
    sharding: NamedSharding | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the positions (hi, lo) of numbers `first` to ``first + count - 1`` of each direction, along a last axis.

    If `count` is None, the result has only the position of number `first`, and no such axis. The batch of directions
    has the shape `shape` and begins with direction `start` of the stream. Each direction uses `numbers` numbers.
    """
    full = shape if count is None else (*shape, count)
    place: Any = np.uint32(first)
    if count is not None:
        place = place + lax.broadcasted_iota(jnp.uint32, full, len(shape), out_sharding=sharding)
    hi, lo = counter.indices(shape, start, sharding_of_batch(sharding, len(shape)))
    if count is not None:
        lo, hi = (
            lax.broadcast_in_dim(x, full, range(len(shape)), out_sharding=sharding) if x.ndim else x for x in (lo, hi)
        )
    if start is None and math.prod(shape) * numbers <= counter.UINT32_SPAN:
        return hi, lo * np.uint32(numbers) + place
    high, low = counter.multiply_wide(lo, numbers)
    return counter.add_wide((high + hi * np.uint32(numbers), low), (np.uint32(0), place))


def sharding_of_batch(sharding: NamedSharding | None, ndim: int) -> NamedSharding | None:
    """Return the sharding of the batch of directions, without the axis of the components."""
    if sharding is None:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:ndim]))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def drawn_share(
    words: tuple[jax.Array, ...], kappa: jax.Array, dimension: int, route: str, out_sharding: NamedSharding | None
) -> jax.Array:
    """Return `radial.quantile_share` for the words of each cosine, differentiable with respect to `kappa`."""
    kappa, (t, _, near) = valid(kappa), transform.tail(words)
    if kappa.ndim:
        kappa = broadcast_sharded(kappa, t.shape, out_sharding)
    if dimension == 3:
        return radial.closed_quantile_share(t, near, kappa)
    if route == "table":
        table = radial.odds_table(kappa, dimension)
        return radial.look_up_share(t, near, table, kappa, dimension, out_sharding)
    return radial.quantile_share(t, near, kappa if kappa.ndim else kappa.reshape((1,) * t.ndim), dimension)


@drawn_share.defjvp
def _drawn_share_jvp(
    dimension: int,
    route: str,
    out_sharding: NamedSharding | None,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[jax.Array, jax.Array]:
    draw = functools.partial(drawn_share, dimension=dimension, route=route, out_sharding=out_sharding)
    signed = xla.separate_loop(draw, *primals)

    def slope(words: tuple[jax.Array, ...], kappa: jax.Array, signed: jax.Array) -> jax.Array:
        kappa, (t, _, near) = valid(kappa), transform.tail(words)
        if route == "table":
            distance = radial.look_up(t, near, radial.slope_table(kappa, dimension), out_sharding)
            return radial.slope_at(signed, near, kappa, distance)
        return radial.slope_of_share(signed, near, broadcast_sharded(kappa, signed.shape, out_sharding), dimension)

    slopes = xla.separate_loop(slope, *primals, signed)
    return signed, slopes * broadcast_sharded(tangents[1], signed.shape, out_sharding)


def in_plane(
    words: tuple[jax.Array, ...],
    direction: jax.Array,
    kappa: jax.Array,
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return directions in two dimensions."""
    angle = transform.angles_about_zero(words, kappa, route, sharding)[..., None]
    half = jnp.sin(0.5 * angle)
    direction = vectors.aligned(direction, angle.ndim)
    across = jnp.stack([-direction[..., 1], direction[..., 0]], -1)
    return direction + (across * jnp.sin(angle) - direction * (2 * half * half))


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
        x: jax.Array = xla.in_one_loop(vectors.place_in_space, signed, turn, direction)
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
    normals = vectors.normal(*transform.tail(normal_words))
    return xla.separate_loop(vectors.place_across, signed, normals, direction)


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
    :mod:`jax_von_mises.sampling.sphere`).

    Parameters
    ----------
    key : jax.Array
        One random key of any implementation, typed or legacy.
    mean_direction : array
        :math:`\mu`, a vector of d >= 2 components along the last axis. It is divided by its length; the result is NaN
        where the length is 0 or not finite.
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
        concentration and at least 2^14 directions (2^15 in float64). For d = 3, every method uses a closed form.
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
    return draw(Request.whole(VON_MISES_FISHER, caller, key, values, shape, dtype, method, out_sharding))


def directions(request: Request) -> jax.Array:
    """Return the directions of a request, computed in one program."""
    shape, route, sharding = request.shape, request.route, request.out_sharding
    compute = arguments.compute_dtype(request.dtype)
    mean, kappa = (jnp.asarray(x, compute) for x in request.parameters)
    mean, kappa = xla.hide_constants(mean, kappa)
    if kappa.size == 1:
        kappa = kappa.reshape(())
    if mean.size == mean.shape[-1]:
        mean = mean.reshape(-1)
    automatic = sharding is not None and AxisType.Explicit not in sharding.mesh.axis_types
    declared = None if automatic else sharding
    batch = sharding_of_batch(declared, len(shape))
    dimension = mean.shape[-1]
    direction = vectors.direction_of(mean).unit
    if direction.ndim > 1:
        direction = broadcast_sharded(direction, (*shape, dimension), declared)
    generator, key = counter.key_words(request.key)
    width, numbers = transform.words_per_element(compute), numbers_per_direction(dimension)

    def words(first: int, count: int | None = None) -> tuple[jax.Array, ...]:
        index = number_positions(shape, request.start, numbers, first, count, declared)
        return counter.block_words(generator, key, index, width)

    if dimension == 2:
        x = in_plane(xla.finish_words(words(0)), direction, kappa, route, batch)
    elif dimension == 3 and width == 1:
        # One block of the generator holds both numbers of a direction.
        index = counter.indices(shape, request.start, batch)
        x = in_space(counter.block_words(generator, key, index, 2), direction, kappa, route, batch)
    elif dimension == 3:
        x = in_space((*words(0), *words(1)), direction, kappa, route, batch)
    else:
        x = across_normals(xla.finish_words(words(0)), words(1, dimension), direction, kappa, route, batch)
    x = x.astype(request.dtype)
    return lax.with_sharding_constraint(x, sharding) if automatic else x


VON_MISES_FISHER = Family(
    name="von-mises-fisher",
    noun="direction",
    parameters={"mean_direction": 1, "concentration": 0},
    tabulated=("concentration",),
    program=directions,
    numbers=lambda event_shape: numbers_per_direction(event_shape[0]),
    event_shape=None,
)

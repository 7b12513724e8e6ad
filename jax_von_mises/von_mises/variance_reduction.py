"""Draw dependent angles: mirrored pairs, or one angle in each of many strata.

The samplers apply the quantile function to the words of the key's stream (see :mod:`jax_von_mises.engine.counter`).
Each mirrored pair, and each angle in a stratum, uses one word (two in float64). For quasi-random points, use
``icdf(points, loc, concentration)``.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.compiler.sharding import broadcast_sharded
from jax_von_mises.engine import counter, tails
from jax_von_mises.engine.request import Request, draw
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.elementary import aligned, valid
from jax_von_mises.von_mises import quantile, sampler


def sample_antithetic(
    key: ArrayLike, loc: ArrayLike, concentration: ArrayLike, shape: int | Sequence[int], dtype: DTypeLike | None = None
) -> jax.Array:
    """Draw angles in pairs that are mirrored about `loc`.

    The second half along the first axis mirrors the first half. For a function that is odd about `loc`, the mean over
    both halves is exact. For a nearly odd function, the variance of the mean is smaller than with independent angles.
    For an even function, it is twice as large.

    Parameters
    ----------
    key : jax.Array
        One random key, as for `sample_von_mises`.
    loc, concentration : float or array
        As for `sample_von_mises`; they broadcast to ``shape[1:]``, since both halves share them.
    shape : int or tuple of ints
        Shape of the result; the first axis must have even length.
    dtype : optional
        As for `sample_von_mises`.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), with the accuracy and derivatives of `sample_von_mises`, which draws the first
        half. Before `loc` is added, the two angles of a pair are exactly x and -x.

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape or dtype. An invalid concentration or `loc` gives NaN.

    Examples
    --------
    >>> import jax
    >>> x = sample_antithetic(jax.random.key(0), 0.0, 4.0, (1000,))
    >>> bool((x[:500] == -x[500:]).all())
    True
    """
    caller = "sample_antithetic"
    key, loc, concentration, sizes, of_result = _along_first_axis(caller, key, loc, concentration, shape, dtype)
    if sizes[0] % 2:
        raise ValueError(
            f"{caller}: shape={sizes} has length {sizes[0]} along its first axis, but angles come in pairs. "
            "Give an even number."
        )
    x: jax.Array = _antithetic(key, loc, concentration, sizes, of_result)
    return x


def sample_stratified(
    key: ArrayLike, loc: ArrayLike, concentration: ArrayLike, shape: int | Sequence[int], dtype: DTypeLike | None = None
) -> jax.Array:
    """Draw one angle in each of ``shape[0]`` strata of equal probability.

    Angle i along the first axis lies in stratum i, counted from loc - pi; the other axes hold independent replicates.
    The mean of a smooth function over n strata has a variance of order n^-3, compared with n^-1 for independent angles.

    Parameters
    ----------
    key : jax.Array
        One random key, as for `sample_von_mises`.
    loc, concentration : float or array
        As for `sample_von_mises`; they broadcast to ``shape[1:]``, since all strata share them.
    shape : int or tuple of ints
        Shape of the result.
    dtype : optional
        As for `sample_von_mises`. In float32 the tail probabilities have a relative error below 2e-6, small enough to
        separate a hundred thousand strata everywhere.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), with the derivatives of `sample_von_mises` and the accuracy of `isf`. They
        increase along the first axis, except where they wrap at pi or where neighbours are closer than 8 ulp (the error
        of `icdf`). With a hundred thousand strata, such neighbours are rare. Each tail probability is drawn within its
        stratum with full relative resolution on both sides of `loc`.

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape or dtype. An invalid concentration or `loc` gives NaN.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import cdf
    >>> x = sample_stratified(jax.random.key(0), 0.0, 4.0, (5,))
    >>> (5 * cdf(x, 0.0, 4.0)).astype(int).tolist()
    [0, 1, 2, 3, 4]
    """
    caller = "sample_stratified"
    key, loc, concentration, sizes, of_result = _along_first_axis(caller, key, loc, concentration, shape, dtype)
    if sizes[0] > counter.UINT32_SPAN:
        raise ValueError(
            f"{caller}: shape={sizes} has {sizes[0]} strata, more than 2^32 and far more than floats resolve. Put "
            "replicates along a second axis."
        )
    x: jax.Array = _stratified(key, loc, concentration, sizes, of_result)
    return x


def _along_first_axis(
    caller: str,
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int],
    dtype: DTypeLike | None,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[int, ...], np.dtype[Any]]:
    """Return the checked arguments of a draw that shares its parameters along the first axis."""
    checked_key = arguments.one_key(caller, key)
    arrays, of_result = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
    sizes = arguments.whole_sizes(caller, "shape", shape)
    if not sizes:
        raise ValueError(f"{caller}: shape={sizes} has no first axis. Give one, such as shape=(100,).")
    for name, array in arrays.items():
        if not arguments.broadcasts(array.shape, sizes[1:]):
            raise ValueError(
                f"{caller}: {name} has shape {array.shape}, which does not broadcast to shape[1:]={sizes[1:]}. It "
                f"cannot vary along the first axis. End `shape` with the axes of {name}."
            )
    return checked_key, arrays["loc"], arrays["concentration"], sizes, of_result


def stream_tails(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> tails.Tail:
    """Return the `tails.Tail` of each element of the key's stream."""
    words = counter.words(key, shape, tails.words_per_element(dtype))
    return tails.tail(xla.finish_words(words))


def within_strata(tail: tails.Tail) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Put each element in its stratum; return whether it is left of the mode, its tail probability t, and 1/2 - t."""
    below, above = tails.fractions(tail)
    shape, dtype = tail.t.shape, tail.t.dtype
    # Strata are ranked from the nearer end of the distribution. If their number is odd, the mode halves the middle one.
    count = shape[0]
    place = lax.broadcasted_iota(jnp.uint32, shape, 0)
    rank = jnp.minimum(place, np.uint32(max(count, 1) - 1) - place).astype(dtype)
    half = np.uint32(count // 2)
    middle = (place == half) & (count % 2 == 1)
    left = jnp.where(middle, tail.sign, place < half)
    outer, inner = jnp.where(left, below, above), jnp.where(left, above, below)
    t = (rank + outer) * (1 / max(count, 1))
    # 1/2 - t, from the strata that lie between this one and the mode.
    c = jnp.where(middle, tail.half_minus_t, (0.5 * count - 1 - rank) + inner) * (1 / max(count, 1))
    return left, t, c


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _antithetic(
    key: jax.Array, loc: jax.Array, concentration: jax.Array, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> jax.Array:
    compute = arguments.compute_dtype(dtype)
    # Not `sample_von_mises`, since this trace is kept even if the CUDA kernels are turned on or off later.
    size = shape[0] // 2, *shape[1:]
    values = {"loc": 0.0, "concentration": concentration}
    half = draw(Request.of("sample_antithetic", sampler.VON_MISES, key, values, size, compute))
    x = jnp.concatenate([half, -half])
    return wrap(x, broadcast_sharded(reduce_turns(jnp.asarray(loc, compute)), shape, None)).astype(dtype)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _stratified(
    key: jax.Array, loc: jax.Array, concentration: jax.Array, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> jax.Array:
    compute = arguments.compute_dtype(dtype)
    loc, concentration = (
        jnp.broadcast_to(aligned(jnp.asarray(a, compute), len(shape)), shape) for a in (loc, concentration)
    )
    left, t, c = within_strata(stream_tails(key, shape, compute))
    x = quantile.any_half_quantile(t, c, valid(concentration))
    return wrap(jnp.where(left, -x, x), reduce_turns(loc)).astype(dtype)

"""Draw dependent angles: mirrored pairs, or one in each of many strata.

Both are the quantile function on the words of the key's stream (see :mod:`jax_von_mises.sampling.counter`), one word
(two in float64) an angle. For quasi-random points use ``icdf(points, loc, concentration)``.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.numerics import quantile, xla
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.sharding import broadcast_sharded
from jax_von_mises.sampling import counter, sampler, transform


def sample_antithetic(
    key: ArrayLike, loc: ArrayLike, concentration: ArrayLike, shape: int | Sequence[int], dtype: DTypeLike | None = None
) -> jax.Array:
    """Draw angles in mirrored pairs: the second half along the first axis is the first one mirrored about `loc`.

    The mean over both halves of a function that is odd about `loc` is exact, and of one that is nearly odd it has less
    variance than that of independent angles; of an even function it has twice the variance.

    Parameters
    ----------
    key : jax.Array
        One random key, as for `sample_von_mises`.
    loc, concentration : float or array
        As for `sample_von_mises`; they broadcast to ``shape[1:]``, since both halves share them.
    shape : int or tuple of ints
        Shape of the result; the first axis is even.
    dtype : optional
        As for `sample_von_mises`.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi): the first half is what `sample_von_mises` draws, with its accuracy and
        derivatives. The two angles of a pair deviate from `loc` by the same float, to either side, before `loc` is
        added.

    Raises
    ------
    TypeError, ValueError
        For a bad key, shape or dtype. A bad concentration or `loc` gives NaN.

    Examples
    --------
    >>> import jax
    >>> x = sample_antithetic(jax.random.key(0), 0.0, 4.0, (1000,))
    >>> bool((x[:500] == -x[500:]).all())
    True
    """
    caller = "sample_antithetic"
    key, loc, concentration, shape, dtype = _along_first_axis(caller, key, loc, concentration, shape, dtype)
    if shape[0] % 2:
        raise ValueError(
            f"{caller}: shape={shape} has {shape[0]} angles along its first axis, but they come in pairs. "
            "Ask for an even number."
        )
    return _antithetic(key, loc, concentration, shape, dtype)


def sample_stratified(
    key: ArrayLike, loc: ArrayLike, concentration: ArrayLike, shape: int | Sequence[int], dtype: DTypeLike | None = None
) -> jax.Array:
    """Draw one angle in each of ``shape[0]`` strata of equal probability.

    Angle i along the first axis lies in stratum i, counted from loc - pi; the other axes are independent replicates.
    The mean over n strata of a smooth function has a variance of order n^-3, instead of 1 / n.

    Parameters
    ----------
    key : jax.Array
        One random key, as for `sample_von_mises`.
    loc, concentration : float or array
        As for `sample_von_mises`; they broadcast to ``shape[1:]``, since all strata share them.
    shape : int or tuple of ints
        Shape of the result.
    dtype : optional
        As for `sample_von_mises`. In float32 the strata are as fine as the tail probabilities, 2e-6 relative: a hundred
        thousand of them are distinct everywhere.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), with the derivatives of `sample_von_mises`. Along the first axis they ascend,
        except for the turn where loc - pi is not -pi, and for the rounding of neighbours that are closer than 8 ulp
        (`icdf`), of which a hundred thousand strata have one now and then. The tail probability of each is drawn within
        its stratum with full relative resolution on both sides of `loc`, and its angle has the accuracy of `isf`.

    Raises
    ------
    TypeError, ValueError
        For a bad key, shape or dtype. A bad concentration or `loc` gives NaN.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import cdf
    >>> x = sample_stratified(jax.random.key(0), 0.0, 4.0, (5,))
    >>> (5 * cdf(x, 0.0, 4.0)).astype(int).tolist()
    [0, 1, 2, 3, 4]
    """
    caller = "sample_stratified"
    key, loc, concentration, shape, dtype = _along_first_axis(caller, key, loc, concentration, shape, dtype)
    if shape[0] > counter.UINT32_SPAN:
        raise ValueError(
            f"{caller}: shape={shape} has {shape[0]} strata, more than 2^32, far finer than floats resolve. Put "
            "replicates along a second axis."
        )
    return _stratified(key, loc, concentration, shape, dtype)


def _along_first_axis(
    caller: str,
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int],
    dtype: DTypeLike | None,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[int, ...], np.dtype]:
    key = arguments.one_key(caller, key)
    arrays, dtype = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
    shape = arguments.whole_sizes(caller, "shape", shape)
    if not shape:
        raise ValueError(f"{caller}: shape={shape} has no first axis. Ask for one, such as shape=(100,).")
    for name, array in arrays.items():
        if not arguments.broadcasts(array.shape, shape[1:]):
            raise ValueError(
                f"{caller}: {name} has shape {array.shape}, which does not broadcast to shape[1:]={shape[1:]}. It "
                "cannot vary along the first axis; end `shape` with the axes it has."
            )
    return key, arrays["loc"], arrays["concentration"], shape, dtype


def stream_tails(key, shape, dtype):
    """Return the `transform.Tail` of each element of the key's stream."""
    words = counter.words(key, shape, transform.words_per_element(dtype))
    return transform.tail(xla.finish_words(words))


def within_strata(tail):
    """Whether it is left of the mode, its tail probability t, and 1/2 - t, for each element in its stratum's place."""
    below, above = fractions(tail)
    shape, dtype = tail.t.shape, tail.t.dtype
    # Counted from the nearer end of the distribution. The middle one of an odd number of strata has two halves.
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


def fractions(tail):
    """Return a uniform number and its complement to 1, neither rounded away at its small end."""
    rest = 0.5 + tail.half_minus_t
    return jnp.where(tail.sign, tail.t, rest), jnp.where(tail.sign, rest, tail.t)


def aligned(array, shape, dtype):
    """Return `array` with the rank of `shape`, not its size: what depends on parameters alone is computed once."""
    array = jnp.asarray(array, dtype)
    return jnp.reshape(array, (1,) * (len(shape) - array.ndim) + array.shape)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _antithetic(key, loc, concentration, shape, dtype):
    compute = arguments.compute_dtype(dtype)
    half = sampler.sample_von_mises(key, 0.0, concentration, (shape[0] // 2, *shape[1:]), compute)
    x = jnp.concatenate([half, -half])
    return wrap(x, broadcast_sharded(reduce_turns(jnp.asarray(loc, compute)), shape, None)).astype(dtype)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _stratified(key, loc, concentration, shape, dtype):
    compute = arguments.compute_dtype(dtype)
    loc, concentration = (jnp.broadcast_to(aligned(a, shape, compute), shape) for a in (loc, concentration))
    left, t, c = within_strata(stream_tails(key, shape, compute))
    x = quantile.any_half_quantile(t, c, valid(concentration))
    return wrap(jnp.where(left, -x, x), reduce_turns(loc)).astype(dtype)

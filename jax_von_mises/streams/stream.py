"""Streams: which key, and which counters, a piece of work draws from.

A **stream** is the endless sequence of angles of one (key, loc, concentration, dtype): a row for each position, and in
a row an angle for each element of the broadcast of `loc` and `concentration` (one, where both are numbers). Angle
``j`` of row ``i`` is element ``i * width + j`` of the key's sequence of words. Positions have 64 bits, and nothing else
enters: so batches, devices, processes and restarts share a stream by sharing out its rows, under one key, and the
result does not depend on how they were shared out.

A **key of its own** is for work that is to be independent: another epoch, another data set, another use of
randomness. `derive_key` makes such keys, and is the only place in this package that calls ``fold_in``.
"""

import contextlib
import dataclasses
import hashlib
import math
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises import arguments
from jax_von_mises.sampling import counter, sampler
from jax_von_mises.sampling.request import DrawRequest

# Folded in before a name and before a number, so that the two never meet, nor a derived key one that the user got by
# `split` or by `fold_in` of a small number (which are the same keys: fold_in(key, i) is split(key, n)[i]).
NAME_TAG = 0x6E616D65
NUMBER_TAG = 0x6E756D62


def derive_key(key, *path):
    """Derive a key by names and numbers, for work that is to be independent of all other.

    The rule, which is fixed for ever: for each element of `path`, ``fold_in`` is applied three times, with a tag
    (0x6e616d65 for a name, 0x6e756d62 for a number) and then with two 32-bit words: the first eight bytes of the
    SHA-256 of the name in UTF-8, or the upper and the lower half of the number, both high word first. Hence
    ``derive_key(derive_key(key, a), b)`` is ``derive_key(key, a, b)``, and keys of different paths are different
    (but for chance, 2^-64, where a long path meets the hash of another). An ``unsafe_rbg`` key is folded as an
    ``rbg`` key.

    Batches, devices and processes that share *one* stream do not need this: give each its positions (`sample_block`,
    `sample_batches`, `sample_shard`), and the result does not depend on how many there are.

    Parameters
    ----------
    key : jax.Array
        One random key, typed or legacy, of any implementation.
    *path : str or int
        Names, such as ``"epoch"`` or ``"dropout"``, and numbers 0 <= i < 2^64, such as a batch, an epoch, or
        ``jax.process_index()``. A number may be traced (``jax.lax.axis_index`` for a device): it must not be negative.

    Returns
    -------
    jax.Array
        A key of the same kind.

    Raises
    ------
    TypeError, ValueError
        For a bad key, or an element that is neither a name nor a whole number in range.

    Examples
    --------
    >>> import jax
    >>> key = jax.random.key(0)
    >>> shuffling, angles = derive_key(key, "shuffle"), derive_key(key, "angles")
    >>> third_epoch = derive_key(angles, "epoch", 3)
    """
    caller = "derive_key"
    typed = arguments.one_key(caller, key)
    if not path:
        raise TypeError(f"{caller}: give at least one name or number, as in derive_key(key, 'epoch', 3).")
    words = [word for element in path for word in _path_words(caller, element)]
    implementation = jax.random.key_impl(typed)
    # An `unsafe_rbg` key is folded as the `rbg` key of the same words: its own folding is an exclusive or, which does
    # not tell ("a", "b") from ("b", "a").
    if str(implementation) == "unsafe_rbg":
        typed = jax.random.wrap_key_data(jax.random.key_data(typed), impl="rbg")
    for word in words:
        typed = jax.random.fold_in(typed, word)
    data = jax.random.key_data(typed)
    legacy = not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return data if legacy else jax.random.wrap_key_data(data, impl=implementation)


def _path_words(caller, element):
    """The three words that are folded in for one element of a path."""
    if isinstance(element, str):
        arguments.utf8(caller, "path element", element, "the hash of a name")
        digest = hashlib.sha256(element.encode()).digest()
        return np.uint32(NAME_TAG), *(np.uint32(int.from_bytes(digest[i : i + 4], "big")) for i in (0, 4))
    if isinstance(element, jax.core.Tracer) and jnp.issubdtype(element.dtype, jnp.integer) and element.shape == ():
        return np.uint32(NUMBER_TAG), *counter.halves(element)
    try:
        if isinstance(element, (bool, np.bool_)):
            raise TypeError
        number = operator.index(element)
    except TypeError as error:
        raise TypeError(
            f"{caller}: path element {arguments.safe_repr(element)} must be a name (str) or a whole number."
        ) from error
    if not 0 <= number < 2**64:
        raise ValueError(f"{caller}: path element {arguments.safe_repr(number)} must be at least 0 and below 2^64.")
    return np.uint32(NUMBER_TAG), *counter.halves(number)


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One stream of rows. Make it by `Stream.of`, which checks."""

    row: DrawRequest
    """Its first row."""

    @classmethod
    def of(cls, caller, key, loc, concentration, dtype, method):
        """The stream of these arguments, which are those of `sample_block`."""
        return cls(DrawRequest.part(caller, key, loc, concentration, None, dtype, method))

    @property
    def row_shape(self):
        """Shape of a row."""
        return self.row.shape

    @property
    def dtype(self):
        """Dtype of the angles."""
        return self.row.dtype

    @property
    def width(self):
        """Angles in a row."""
        return math.prod(self.row.shape)

    def rows(self, first, count, buffer=None, out_sharding=None):
        """Rows `first` to ``first + count - 1``, ``(count, *row_shape)``; they may take the memory of `buffer`.

        Computed with 64 bits where the stream is float64, wherever this is called: a background thread starts in
        JAX's default mode.
        """
        # Put there, and not left for the call to send: a user may have forbidden hidden transfers.
        start = jax.device_put(counter.halves(first * self.width))
        request = self.row.at(start, shape=(count, *self.row_shape), out_sharding=out_sharding)
        with jax.enable_x64(True) if self.dtype == np.float64 else contextlib.nullcontext():
            return sampler.draw(request, buffer)

    def identity(self):
        """What decides the angles, as JSON takes it: equal for equal streams, readable where it is short."""
        return {
            "key": {
                "impl": str(jax.random.key_impl(self.row.key)),
                "data": np.asarray(jax.random.key_data(self.row.key)).tolist(),
            },
            "loc": _parameter_identity(self.row.loc, self.dtype),
            "concentration": _parameter_identity(self.row.concentration, self.dtype),
            "dtype": self.dtype.name,
            "method": self.row.route,
        }


# Arrays of parameters up to so many values are written out, longer ones by their hash.
WRITTEN_OUT = 32


def _parameter_identity(value, dtype):
    """A parameter as it enters the computation: a float's shortest text, or shape and values or hash of an array."""
    with np.errstate(over="ignore"):  # too large is infinite, as in the computation
        value = np.ascontiguousarray(np.asarray(value), arguments.compute_dtype(dtype)) + 0  # + 0: no negative zero
    if value.size == 1:
        return str(float(value.reshape(())))
    if value.size <= WRITTEN_OUT:
        return {"shape": list(value.shape), "values": [str(float(x)) for x in value.flat]}
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {"shape": list(value.shape), "sha256": hashlib.sha256(little.tobytes()).hexdigest()}


def split_evenly(count: int, parts: int, part: int) -> range:
    """Which of `count` consecutive pieces of work part `part` of `parts` does: a range, all as long to within one."""
    return range(part * count // parts, (part + 1) * count // parts)


def part_with(count: int, parts: int, piece: int) -> int:
    """Whose `split_evenly` a piece of work is in."""
    return -(-(piece + 1) * parts // count) - 1


class Spans(Sequence):
    """First position and length of each batch of `size` in [start, stop); the last may be shorter.

    Computed when asked for: there may be billions.
    """

    def __init__(self, start, stop, size):
        self.firsts, self.stop = range(start, stop, size), stop

    def __len__(self):
        return len(self.firsts)

    def __getitem__(self, index):
        first = self.firsts[index]
        return first, min(self.firsts.step, self.stop - first)

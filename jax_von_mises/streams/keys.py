"""Derive keys from names and numbers.

Each epoch, data set or other independent use of randomness needs a separate key, which `derive_key` makes. Work that
shares one stream needs one key and distinct positions; see `jax_von_mises.streams.stream`.
"""

import hashlib
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine import counter

# Tags that are folded in before a name or a number. They distinguish the keys of names, the keys of numbers, and those
# that users get by `split` or by `fold_in` of a small number (which are the same: fold_in(key, i) is split(key, n)[i]).
NAME_TAG = 0x6E616D65
NUMBER_TAG = 0x6E756D62


def derive_key(key: ArrayLike, *path: str | int | jax.Array) -> jax.Array:
    """Derive a key from names and numbers, for work that must be independent of all other work.

    The rule will never change. Each element of `path` applies ``fold_in`` three times, with a tag (0x6e616d65 for a
    name, 0x6e756d62 for a number) and then with two 32-bit words. The words are the first eight bytes of the SHA-256
    hash of the name in UTF-8, or the number as eight bytes, both in big-endian order. Hence
    ``derive_key(derive_key(key, a), b)`` is ``derive_key(key, a, b)``. Two distinct paths give distinct keys, except
    with a probability of about 2^-64 (2^-32 for ``philox2x32``, whose keys have 32 bits). An ``unsafe_rbg`` key is
    folded as an ``rbg`` key.

    Batches, devices and processes that share *one* stream do not need separate keys. Give each its positions
    (`sample_block`, `sample_batches`, `sample_shard`), and the result does not depend on how many there are.

    Parameters
    ----------
    key : jax.Array
        One random key, typed or legacy, of any implementation.
    *path : str, int or jax.Array
        Names, such as ``"epoch"`` or ``"dropout"``, and integers 0 <= i < 2^64, such as the index of a batch, an epoch
        or a process. A traced integer (such as the result of ``jax.lax.axis_index``) must not be negative.

    Returns
    -------
    jax.Array
        A key of the same implementation, typed or legacy like `key`.

    Raises
    ------
    TypeError, ValueError
        For an invalid key, or an element that is neither a name nor an integer in range.

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
    # JAX folds an `unsafe_rbg` key by an exclusive or, which would give ("a", "b") and ("b", "a") the same key. It
    # is therefore folded as the `rbg` key of the same words.
    if str(implementation) == "unsafe_rbg":
        typed = jax.random.wrap_key_data(jax.random.key_data(typed), impl="rbg")
    for word in words:
        typed = jax.random.fold_in(typed, word)
    data = jax.random.key_data(typed)
    legacy = not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key))
    return data if legacy else jax.random.wrap_key_data(data, impl=implementation)


def _path_words(caller: str, element: Any) -> tuple[np.uint32 | jax.Array, ...]:
    """Return the three words that are folded in for one element of a path."""
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
            f"{caller}: path element {arguments.safe_repr(element)} must be a name (str) or an integer."
        ) from error
    if not 0 <= number < 2**64:
        raise ValueError(f"{caller}: path element {arguments.safe_repr(number)} must be at least 0 and below 2^64.")
    return np.uint32(NUMBER_TAG), *counter.halves(number)

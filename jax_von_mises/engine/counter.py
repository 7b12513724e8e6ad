"""Compute counter-based random words: word ``i`` of a stream is a pure function of ``(key, i)``.

A generator is a block cipher. Block ``b`` of a stream is the cipher's output for counter ``b`` under the key, and all
its 32-bit words are used in order: word ``i`` is word ``i mod n`` of block ``i div n``, with ``n`` = 2 or 4. The
counter has 64 bits, so a stream has at least 2^65 words. There is no state, so a word does not depend on the batch,
device or process that computes it.

======================== ============ ======= =============================================================
key implementation       cipher       words   counter of block ``b`` (upper half ``hi``, lower half ``lo``)
======================== ============ ======= =============================================================
``threefry2x32``         threefry2x32 2       ``(hi, lo)``: as ``jax.random.bits(key, ..., "uint64")``, upper half first
``threefry4x32``         threefry4x32 4       ``(hi, lo, 0, 0)``
``philox2x32``           philox2x32   2       ``(lo, hi)``
``philox4x32``           philox4x32   4       ``(lo, hi, 0, 0)``: the sequence of C++26's ``std::philox4x32``
``rbg``, ``unsafe_rbg``  threefry4x32 4       ``(hi, lo, 0, 0)`` under the four words of the key
any other                threefry4x32 4       ``(hi, lo, 0, 0)`` under ``jax.random.bits(key, 4)``
======================== ============ ======= =============================================================

The numbers that XLA generates for an ``rbg`` key depend on the backend, the shape and the sharding. The words of a
stream must not, so threefry4x32 computes them instead.

.. [1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw. "Parallel random numbers: as easy as 1, 2, 3".
   SC11, 2011. doi:10.1145/2063384.2063405
.. [2] ISO C++26, [rand.eng.philox].
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla

UINT32_SPAN = 2**32

Words = tuple[jax.Array, ...]
# A 64-bit number as the pair of its upper and lower halves, each a uint32 array or NumPy scalar.
Wide = tuple[Any, Any]

# Constants and numbers of rounds from [1]. Changing one of them would change every stream.
THREEFRY_ROUNDS = 20
THREEFRY_PARITY = np.uint32(0x1BD11BDA)
THREEFRY2_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
THREEFRY4_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
PHILOX_ROUNDS = 10
PHILOX2_MULTIPLIER = np.uint32(0xD256D193)
PHILOX4_MULTIPLIERS = (np.uint32(0xD2511F53), np.uint32(0xCD9E8D57))
PHILOX_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))  # golden ratio, sqrt(3) - 1


def rotate_left(x: jax.Array, bits: int) -> jax.Array:
    """Rotate the 32 bits of `x` by 0 < `bits` < 32."""
    # `lax` operations take half as long to trace as operators, and a cipher contains a hundred of these.
    up, down = lax.shift_left(x, np.uint32(bits)), lax.shift_right_logical(x, np.uint32(32 - bits))
    return lax.bitwise_or(up, down)


def threefry2x32(counter: Words, key: Words) -> Words:
    """Encrypt two counter words under two key words [1], elementwise on uint32 arrays that broadcast."""
    x0, x1 = counter
    schedule = (*key, key[0] ^ key[1] ^ THREEFRY_PARITY)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for r in range(THREEFRY_ROUNDS):
        x0 = x0 + x1
        x1 = rotate_left(x1, THREEFRY2_ROTATIONS[r % 8]) ^ x0
        if r % 4 == 3:
            s = r // 4 + 1
            x0 = x0 + schedule[s % 3]
            x1 = x1 + schedule[(s + 1) % 3] + np.uint32(s)
    return x0, x1


def threefry4x32(counter: Words, key: Words) -> Words:
    """Encrypt four counter words under four key words [1], elementwise on uint32 arrays that broadcast."""
    schedule = (*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ THREEFRY_PARITY)
    x = [c + k for c, k in zip(counter, schedule[:4], strict=True)]
    for r in range(THREEFRY_ROUNDS):
        # The permutation of Threefish: words 1 and 3 change partners every round.
        a, b = (1, 3) if r % 2 == 0 else (3, 1)
        first, second = THREEFRY4_ROTATIONS[r % 8]
        x[0] = x[0] + x[a]
        x[a] = rotate_left(x[a], first) ^ x[0]
        x[2] = x[2] + x[b]
        x[b] = rotate_left(x[b], second) ^ x[2]
        if r % 4 == 3:
            s = r // 4 + 1
            x = [word + schedule[(s + j) % 5] for j, word in enumerate(x)]
            x[3] = x[3] + np.uint32(s)
    return tuple(x)


def philox2x32(counter: Words, key: Words) -> Words:
    """Encrypt two counter words under one key word [1], elementwise on uint32 arrays that broadcast."""
    c0, c1 = counter
    (k0,) = key
    for _ in range(PHILOX_ROUNDS):
        high, low = xla.multiply_high(c0, PHILOX2_MULTIPLIER), PHILOX2_MULTIPLIER * c0
        c0, c1 = high ^ k0 ^ c1, low
        k0 = k0 + PHILOX_WEYL[0]
    return c0, c1


def philox4x32(counter: Words, key: Words) -> Words:
    """Encrypt four counter words under two key words [1], elementwise on uint32 arrays that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = xla.multiply_high(c0, PHILOX4_MULTIPLIERS[0]), PHILOX4_MULTIPLIERS[0] * c0
        high1, low1 = xla.multiply_high(c2, PHILOX4_MULTIPLIERS[1]), PHILOX4_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + PHILOX_WEYL[0], k1 + PHILOX_WEYL[1]
    return c0, c1, c2, c3


class Generator(NamedTuple):
    """A cipher, the number of words in its block, and the function that converts a block number to counter words."""

    cipher: Callable[[Words, Words], Words]
    words: int
    counter: Callable[[jax.Array, jax.Array, jax.Array], Words]


def high_first(hi: jax.Array, lo: jax.Array, zero: jax.Array) -> Words:
    """Return four counter words for the Threefry ciphers; a cipher takes as many of them as its block holds."""
    return hi, lo, zero, zero


def low_first(hi: jax.Array, lo: jax.Array, zero: jax.Array) -> Words:
    """Return four counter words for the Philox ciphers; a cipher takes as many of them as its block holds."""
    return lo, hi, zero, zero


GENERATORS = {
    "threefry2x32": Generator(threefry2x32, 2, high_first),
    "threefry4x32": Generator(threefry4x32, 4, high_first),
    "philox2x32": Generator(philox2x32, 2, low_first),
    "philox4x32": Generator(philox4x32, 4, low_first),
    "rbg": Generator(threefry4x32, 4, high_first),
    "unsafe_rbg": Generator(threefry4x32, 4, high_first),
}


def generator_of(key: jax.Array) -> str:
    """Return the name of the generator for a typed key array."""
    name = str(jax.random.key_impl(key))
    return name if name in GENERATORS else "threefry4x32"


def key_words(key: jax.Array) -> tuple[str, jax.Array]:
    """Return the name of the generator for a typed key array, and the key's uint32 words (last axis)."""
    if (name := str(jax.random.key_impl(key))) in GENERATORS:
        return name, jax.random.key_data(key)
    return generator_of(key), jax.random.bits(key, (4,), jnp.uint32)


def add_wide(a: Wide, b: Wide) -> tuple[jax.Array, jax.Array]:
    """Return the sum of two 64-bit numbers, each a pair (hi, lo) of uint32."""
    lo = a[1] + b[1]
    return a[0] + b[0] + (lo < a[1]).astype(jnp.uint32), lo


def multiply_wide(x: jax.Array, constant: int) -> tuple[jax.Array, jax.Array]:
    """Return uint32 `x` times an integer 0 <= `constant` < 2^64, modulo 2^64, as a pair (hi, lo) of uint32."""
    high, low = np.uint32(constant >> 32), np.uint32(constant % UINT32_SPAN)
    return xla.multiply_high(x, low) + x * high, x * low


def halves(x: Any) -> Wide:
    """Convert an int 0 <= x < 2^64, an integer array or a pair (hi, lo) to a pair (hi, lo) of uint32.

    An array may be traced and have any integer dtype; its negative elements x become 2^64 + x.
    """
    if isinstance(x, tuple):
        hi, lo = (half if isinstance(half, jax.Array) else np.uint32(half) for half in x)
        return hi, lo
    if isinstance(x, int):
        return np.uint32(x >> 32), np.uint32(x % UINT32_SPAN)
    if x.dtype.itemsize == 8:
        high = x >> x.dtype.type(32)
    elif jnp.issubdtype(x.dtype, jnp.signedinteger):
        high = x >> x.dtype.type(8 * x.dtype.itemsize - 1)  # copies of the sign
    else:
        high = lax.full_like(x, 0)
    return lax.convert_element_type(high, np.uint32), lax.convert_element_type(x, np.uint32)


def wide_iota(shape: tuple[int, ...], axis: int, out_sharding: NamedSharding | None) -> tuple[jax.Array, jax.Array]:
    """Return `lax.broadcasted_iota` along an axis of any length, as a pair (hi, lo) of uint32."""
    if shape[axis] <= UINT32_SPAN:
        return jnp.zeros((), jnp.uint32), lax.broadcasted_iota(jnp.uint32, shape, axis, out_sharding=out_sharding)
    with jax.enable_x64(True):
        return halves(lax.broadcasted_iota(jnp.uint64, shape, axis, out_sharding=out_sharding))


def indices(
    shape: tuple[int, ...], start: Wide | None = None, out_sharding: NamedSharding | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the row-major positions in `shape`, plus `start`, as a pair (hi, lo) of uint32 arrays.

    `start` is a pair (hi, lo) of uint32 scalars, or None for 0. If it is None, the result's `hi` may be a scalar. The
    positions come from one iota per axis, not from a reshaped flat one, so that the array can be sharded along any axis
    and each device computes its own part.
    """
    # Within 32 bits, as in most programs, the terms of the axes add up without a carry.
    narrow = math.prod(shape) <= UINT32_SPAN
    zero = jnp.zeros((), jnp.uint32)
    total = (zero, lax.full(shape, np.uint32(0), sharding=out_sharding) if narrow else zero)
    stride = 1
    for axis in reversed(range(len(shape))):
        if narrow:
            step = lax.broadcasted_iota(jnp.uint32, shape, axis, out_sharding=out_sharding)
            total = zero, total[1] + step * np.uint32(stride % UINT32_SPAN)
        else:
            high, low = wide_iota(shape, axis, out_sharding)
            further = multiply_wide(low, stride)
            total = add_wide(total, (further[0] + high * np.uint32(stride % UINT32_SPAN), further[1]))
        stride *= max(shape[axis], 1)
    return total if start is None else add_wide(start, total)


def block_words(name: str, key: jax.Array, index: Wide, width: int) -> Words:
    """Return the `width` words (1 or 2) of each element; those of element ``i`` start at word ``width * i``.

    For each element, the complete block that holds its words is encrypted, and the words are selected from it.
    Neighbouring elements thus repeat the same work. GPU compilers remove the repetition. On a CPU it costs less than
    stacking or interleaving the words of a block, which would break the vector loop.
    """
    cipher, words, counter = GENERATORS[name]
    per_block = words // width
    shift = per_block.bit_length() - 1
    hi, lo = index
    if shift:
        hi, block = hi >> shift, lo >> shift | hi << (32 - shift)
    else:
        block = lo
    zero = jnp.zeros((), jnp.uint32)

    def encrypt(key: Words) -> Words:
        return cipher(counter(hi, block, zero)[:words], key)

    out: Words = xla.vary_key_on_gpu(encrypt, tuple(key[..., j] for j in range(key.shape[-1])), lo)
    groups = [out[width * j : width * (j + 1)] for j in range(per_block)]
    place = lo & np.uint32(per_block - 1)
    picked = groups[-1]
    for j in reversed(range(per_block - 1)):
        here = place == np.uint32(j)
        picked = tuple(jnp.where(here, a, b) for a, b in zip(groups[j], picked, strict=True))
    return picked


def words(
    key: jax.Array,
    shape: tuple[int, ...],
    width: int,
    start: Wide | None = None,
    out_sharding: NamedSharding | None = None,
) -> Words:
    """Return the `width` words of each element of an array that begins at element `start` of a key's stream."""
    generator, key = key_words(key)
    return block_words(generator, key, indices(shape, start, out_sharding), width)

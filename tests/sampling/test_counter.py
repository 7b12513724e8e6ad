"""Compare random words with published values and JAX's generators, and test the guarantees of their streams."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import jax_von_mises
from jax_von_mises.engine import counter

PI_DIGITS = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89)
ONES = (0xFFFFFFFF,) * 8
ZEROS = (0,) * 8

# Rows of Random123's `kat_vectors`: the cipher, its numbers of counter and key words, the digits that fill the counter
# and then the key, and the output.
KNOWN_ANSWERS = [
    (counter.threefry2x32, 2, 2, ZEROS, (0x6B200159, 0x99BA4EFE)),
    (counter.threefry2x32, 2, 2, ONES, (0x1CB996FC, 0xBB002BE7)),
    (counter.threefry2x32, 2, 2, PI_DIGITS, (0xC4923A9C, 0x483DF7A0)),
    (counter.threefry4x32, 4, 4, ZEROS, (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)),
    (counter.threefry4x32, 4, 4, ONES, (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732)),
    (counter.threefry4x32, 4, 4, PI_DIGITS, (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84)),
    (counter.philox2x32, 2, 1, ZEROS, (0xFF1DAE59, 0x6CD10DF2)),
    (counter.philox2x32, 2, 1, ONES, (0x2C3F628B, 0xAB4FD7AD)),
    (counter.philox2x32, 2, 1, PI_DIGITS, (0xDD7CE038, 0xF62A4C12)),
    (counter.philox4x32, 4, 2, ZEROS, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (counter.philox4x32, 4, 2, ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (counter.philox4x32, 4, 2, PI_DIGITS, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
IMPLEMENTATIONS = tuple(counter.GENERATORS)


def stream(key, size, start=0, width=1):
    return np.asarray(program(size, width)(key, np.uint32(start >> 32), np.uint32(start % 2**32))).reshape(-1)


@functools.cache
def program(size, width):
    @jax.jit
    def draw(key, high, low):
        name, words = counter.key_words(key)
        return jnp.stack(counter.block_words(name, words, counter.indices((size,), (high, low)), width), -1)

    return draw


@pytest.mark.parametrize(("cipher", "words", "key_words", "digits", "answer"), KNOWN_ANSWERS)
def test_random123_known_answers(cipher, words, key_words, digits, answer):
    uint32 = [jnp.uint32(d) for d in digits]
    output = cipher(tuple(uint32[:words]), tuple(uint32[words : words + key_words]))
    assert tuple(int(word) for word in output) == answer


@pytest.mark.needs_key("philox4x32")
def test_philox4x32_is_the_cpp_sequence():
    """C++26 requires draw 10000 of a default-constructed std::philox4x32 to be 1955073260."""
    key = random.wrap_key_data(jnp.array([20111115, 0], jnp.uint32), impl="philox4x32")
    assert stream(key, 10000)[-1] == 1955073260


@pytest.mark.parametrize("start", [0, 7, 2**33 - 3])
def test_threefry_words_are_the_halves_of_jax_bits(start):
    """Word pair b is element b of `jax.random.bits(key, n, "uint64")`; distant pairs are compared with the cipher."""
    key = random.key(42)
    words = stream(key, 2048, 2 * start)
    if start == 0:
        with jax.enable_x64(True):
            bits = np.asarray(random.bits(key, (1024,), jnp.uint64))
    else:
        block = start + np.arange(1024, dtype=np.uint64)
        counters = (
            jnp.asarray(block >> np.uint64(32), jnp.uint32),
            jnp.asarray(block & np.uint64(0xFFFFFFFF), jnp.uint32),
        )
        high, low = counter.threefry2x32(counters, tuple(random.key_data(key)))
        bits = np.asarray(high).astype(np.uint64) << np.uint64(32) | np.asarray(low).astype(np.uint64)
    assert (words[0::2] == bits >> np.uint64(32)).all()
    assert (words[1::2] == bits & np.uint64(0xFFFFFFFF)).all()


@pytest.mark.parametrize("implementation", ["threefry2x32", "philox2x32", "philox4x32", "threefry4x32"])
def test_ciphers_give_jax_bits(implementation):
    """A 32-bit draw of `jax.random.bits` is the xor of a block's words at counter (hi, lo, 0, 0)."""
    key = random.key(7, impl=implementation)
    generator = counter.GENERATORS[implementation]
    low = jnp.arange(512, dtype=jnp.uint32)
    zero = jnp.zeros_like(low)
    words = generator.cipher((zero, low, zero, zero)[: generator.words], tuple(random.key_data(key)))
    expected = random.bits(key, (512,))
    assert (np.bitwise_xor.reduce(np.stack(words)) == np.asarray(expected)).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_word_of_a_block_is_used_in_order(implementation):
    key = random.key(3, impl=implementation)
    name, key_words = counter.key_words(key)
    generator = counter.GENERATORS[name]
    block = jnp.arange(5, dtype=jnp.uint32)
    zero = jnp.zeros_like(block)
    words = generator.cipher(generator.counter(zero, block, zero)[: generator.words], tuple(key_words))
    assert (stream(key, 5 * generator.words) == np.stack(words, -1).reshape(-1)).all()


@pytest.mark.parametrize("implementation", ["threefry2x32", "philox4x32"])
def test_two_words_per_element_are_the_same_stream(implementation):
    key = random.key(3, impl=implementation)
    assert (stream(key, 33, start=5, width=2) == stream(key, 66, start=10)).all()


@pytest.mark.parametrize("implementation", ["threefry2x32", "philox4x32"])
@pytest.mark.parametrize("start", [0, 1, 6, 2**32 - 5, 2**33 - 1, 2**64 - 20])
def test_a_slice_is_the_stream(implementation, start):
    """Word i does not depend on the start of the slice, even across carries of the 64-bit counter."""
    key = random.key(11, impl=implementation)
    full = stream(key, 20, start)
    parts = np.concatenate([stream(key, 1, start + i) for i in range(20)])
    assert (full == parts).all()
    assert len(np.unique(full)) == 20


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4), (2, 1, 3), (3, 0, 2)])
def test_indices_count_rows(shape):
    high, low = counter.indices(shape)
    assert (np.broadcast_to(low, shape) == np.arange(int(np.prod(shape))).reshape(shape)).all()
    assert not np.any(high)


def test_indices_beyond_32_bits():
    """Indices continue beyond 32 bits; only the last elements of this large shape are computed."""
    shape = (3, 2**16 + 1, 2**17)

    def corner(high, low):
        return high[-1, -1, -2:], low[-1, -1, -2:]

    high, low = jax.jit(lambda: corner(*counter.indices(shape, (np.uint32(1), np.uint32(5)))))()
    last = 3 * (2**16 + 1) * 2**17 + 2**32 + 5
    assert [int(h) * 2**32 + int(lo) for h, lo in zip(high, low, strict=True)] == [last - 2, last - 1]


@pytest.mark.parametrize("axis", [0, 1])
def test_an_axis_longer_than_32_bits(axis, key):
    """An axis of more than 2^32 elements continues the stream instead of repeating it."""
    rest = 3
    shape = (2**33 + 5, rest) if axis == 0 else (rest, 2**33 + 5)
    start = (2**33 + 1) * rest if axis == 0 else 2 * (2**33 + 5) + 2**33 + 1

    def part(x):
        return x[2**33 + 1 : 2**33 + 3, 0] if axis == 0 else x[2, 2**33 + 1 : 2**33 + 3]

    high, low = jax.jit(lambda: tuple(map(part, counter.indices(shape, (np.uint32(0), np.uint32(9))))))()
    places = [start + 9, start + 9 + (rest if axis == 0 else 1)]
    assert [int(h) * 2**32 + int(lo) for h, lo in zip(high, low, strict=True)] == places
    (drawn,) = jax.jit(lambda key: tuple(map(part, counter.words(key, shape, 1))))(key)
    alone = [counter.words(key, (1,), 1, counter.halves(place - 9))[0][0] for place in places]
    np.testing.assert_array_equal(drawn, np.asarray(alone))


def test_angles_of_an_axis_longer_than_32_bits(key):
    """Angles beyond position 2^32 equal those of a block that starts there."""
    late = jax.jit(lambda key: jax_von_mises.sample_von_mises(key, 0.5, 4.0, (2**32 + 9,))[-9:])(key)
    expected = jax_von_mises.sample_block(key, 0.5, 4.0, 2**32, (9,), method="table")
    np.testing.assert_array_equal(late, expected)


@pytest.mark.needs_key("threefry4x32")
def test_foreign_generators_use_their_own_bits():
    """The random bits of an unknown key implementation provide the key words of threefry4x32."""
    from jax.extend import random as extend

    def bits(key, bit_width, shape):
        assert bit_width == 32
        return jnp.full(shape, key[0]) ^ jnp.arange(np.prod(shape), dtype=jnp.uint32).reshape(shape)

    implementation = extend.define_prng_impl(
        key_shape=(1,),
        seed=lambda seed: jnp.asarray([seed], jnp.uint32),
        split=lambda key, shape: jnp.broadcast_to(key, (*shape, 1)),
        random_bits=bits,
        fold_in=lambda key, data: key ^ data,
        name="foreign",
        tag="foreign",
    )
    key = random.wrap_key_data(jnp.array([96], jnp.uint32), impl=implementation)
    name, words = counter.key_words(key)
    assert name == "threefry4x32"
    assert words.tolist() == [96, 97, 98, 99]
    expected = random.wrap_key_data(words, impl="threefry4x32")
    assert (stream(key, 10) == stream(expected, 10)).all()


def test_wide_products():
    """`multiply_wide` multiplies modulo 2^64, without JAX's 64-bit mode."""
    for x in (0, 1, 7, 2**31 - 1, 2**32 - 1):
        for constant in (0, 1, 100, 2**30, 2**32 - 1, 2**32, 2**59 + 12345):
            hi, lo = counter.multiply_wide(jnp.uint32(x), constant)
            assert (int(hi) << 32) + int(lo) == x * constant % 2**64

"""Test that derived keys follow the documented rule, and that the parts of a stream cover every row once."""

import hashlib
import itertools
import json

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jax_von_mises
from jax_von_mises.streams.stream import Spans, Stream, split_evenly

KEY = jax.random.key(7)


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_derived_keys_follow_the_documented_rule():
    """Each path element is folded in as three words: a tag, and two words of its hash or number."""
    digest = hashlib.sha256(b"epoch").digest()
    words = [0x6E616D65, int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")]
    words += [0x6E756D62, 5, 3]
    expected = KEY
    for word in words:
        expected = jax.random.fold_in(expected, np.uint32(word))
    assert data(jax_von_mises.derive_key(KEY, "epoch", 5 * 2**32 + 3)) == data(expected)


def test_derived_key_is_frozen():
    """The key derived from a given path must never change, since a change would break the streams of all users."""
    derived = jax_von_mises.derive_key(jax.random.key(0, impl="threefry2x32"), "epoch", 3, "device", 1)
    assert data(derived) == (1344172034, 3508488532)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_paths_give_distinct_keys(impl):
    derive, key = jax_von_mises.derive_key, jax.random.key(7, impl=impl)
    keys = [derive(key, *path) for path in [("a",), ("b",), ("a", "b"), ("ab",), ("b", "a"), (0,), (1,), (2**32,)]]
    keys += [derive(key, "0"), derive(key, 0, 0), derive(key, ""), derive(key, "a", "a"), derive(key, 2**32 + 1), key]
    keys += list(jax.random.split(key, 8)) + [jax.random.fold_in(key, i) for i in (8, 9)]
    assert len(set(map(data, keys))) == len(keys)
    assert {jax.random.key_impl(each) for each in keys} == {jax.random.key_impl(key)}


def test_paths_nest():
    derive = jax_von_mises.derive_key
    assert data(derive(derive(KEY, "a", 3), "b")) == data(derive(KEY, "a", 3, "b"))


def test_traced_numbers():
    """A traced integer, such as a loop counter or an axis index, gives the same key as its value."""
    expected = np.array([data(jax_von_mises.derive_key(KEY, "device", i)) for i in range(8)])
    looped = jax.vmap(lambda i: jax.random.key_data(jax_von_mises.derive_key(KEY, "device", i)))(np.arange(8))
    np.testing.assert_array_equal(looped, expected)
    mesh = Mesh(np.array(jax.devices()[:8]), "d")

    def body():
        key = jax_von_mises.derive_key(KEY, "device", jax.lax.axis_index("d"))
        return jax.random.key_data(key)[None]

    sharded = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=PartitionSpec("d")))()
    np.testing.assert_array_equal(sharded, expected)
    with jax.enable_x64(True):
        wide = jax.jit(lambda i: jax.random.key_data(jax_von_mises.derive_key(KEY, i)))(np.uint64(2**40 + 1))
    np.testing.assert_array_equal(wide, data(jax_von_mises.derive_key(KEY, 2**40 + 1)))


def test_legacy_key():
    legacy = jax_von_mises.derive_key(jax.random.PRNGKey(7), "a")
    assert tuple(np.asarray(legacy).tolist()) == data(jax_von_mises.derive_key(KEY, "a"))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ((), TypeError, "at least one name or number"),
        ((1.5,), TypeError, r"path element 1\.5 must be a name"),
        ((True,), TypeError, "path element True must be"),
        ((b"a",), TypeError, "must be a name"),
        (("a", -1), ValueError, "path element -1 must be at least 0"),
        ((2**64,), ValueError, "below 2"),
    ],
)
def test_invalid_path(path, error, message):
    with pytest.raises(error, match=message):
        jax_von_mises.derive_key(KEY, *path)


def test_parts_cover_every_index_once():
    for parts, count in itertools.product((1, 2, 7, 100), (0, 1, 10, 97)):
        shares = [split_evenly(count, parts, part) for part in range(parts)]
        assert [i for share in shares for i in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_spans():
    assert list(Spans(5, 15, 4)) == [(5, 4), (9, 4), (13, 2)]
    assert list(Spans(0, 8, 4)) == [(0, 4), (4, 4)]
    assert not list(Spans(3, 3, 4))
    endless = Spans(0, 2**60, 2)
    assert len(endless) == 2**59
    assert endless[-1] == (2**60 - 2, 2)


def test_identity_distinguishes_streams():
    """The identity contains everything that determines the angles, and nothing else."""

    def identity(key=KEY, loc=0.5, concentration=4.0, dtype=None, method="auto"):
        return Stream.of("test", key, loc, concentration, dtype, method).identity()

    base = identity()
    long = np.linspace(1, 2, 100, dtype=np.float32)
    others = [
        identity(key=jax.random.key(8)),
        identity(key=jax.random.key(7, impl="rbg")),
        identity(loc=np.nextafter(np.float32(0.5), np.float32(1))),
        identity(concentration=np.float32(4.0000005)),
        identity(concentration=np.inf),
        identity(dtype="float16"),
        identity(method="direct"),
        identity(concentration=np.array([4.0, 4.0])),
        identity(concentration=long),
        identity(concentration=long[::-1]),
    ]
    assert all(other != base for other in others)
    assert all(a != b for i, a in enumerate(others) for b in others[:i])
    same = [identity(loc=np.float32(0.5)), identity(concentration=4), identity(method="table"), identity(loc=[0.5][0])]
    assert all(other == base for other in same)
    assert identity(loc=-0.0) == identity(loc=0.0)


@pytest.mark.more
def test_parts_of_a_stream_beyond_32_bits():
    """A row has the same bits however the stream is divided, even beyond the first 2^32 random words."""
    start = 2**32 - 700
    full = np.asarray(jax_von_mises.sample_block(KEY, 0.5, 4.0, start, 1500))
    stream = Stream.of("test", KEY, 0.5, 4.0, None, "auto")
    cut = [np.asarray(stream.rows(first, rows)) for first, rows in Spans(start, start + 1500, 500)]
    np.testing.assert_array_equal(np.concatenate(cut), full)
    wide = Stream.of("test", KEY, np.zeros(3, np.float32), 4.0, None, "auto")
    rows = np.asarray(wide.rows(2**40, 5))
    flat = jax_von_mises.sample_block(KEY, 0.0, 4.0, 3 * 2**40, 15, method="table")
    np.testing.assert_array_equal(rows.reshape(-1), flat)


OF_EACH_KIND = [
    (jax_von_mises.VonMises, 0.5, 4.0),
    (jax_von_mises.VonMises, np.linspace(-3, 3, 50), np.inf),
    (jax_von_mises.VonMises, 1.0, np.geomspace(1e-3, 1e5, 40)),
    (jax_von_mises.VonMisesFisher, [3.0, 0.0, -4.0], 7.0),
    (jax_von_mises.SineBivariateVonMises, 0.1, -2.0, 5.0, 6.0, -7.0),
]


@pytest.mark.needs_key("philox4x32")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("given", OF_EACH_KIND)
def test_streams_are_made_again_from_their_identity(dtype, given):
    """The identity holds every bit of each parameter, also where x64 mode is off."""
    key = jax.random.key(7, impl="philox4x32")
    with jax.enable_x64(dtype == "float64"):
        kind, loc, *others = given
        distribution = kind(np.float64(loc) / 3, *map(np.float64, others))
        stream = Stream.of("test", key, None, None, dtype, "auto", distribution)
        text = json.dumps(stream.identity())
    again = Stream.from_identity("test", json.loads(text))
    assert json.dumps(again.identity()) == text
    assert (again.dtype, again.row_shape) == (stream.dtype, stream.row_shape)
    np.testing.assert_array_equal(jax.random.key_data(again.row.key), jax.random.key_data(key))
    compute = np.float64 if dtype == "float64" else np.float32
    for value, found in zip(stream.row.parameters, again.row.parameters, strict=True):
        assert found.dtype == compute
        np.testing.assert_array_equal(found, np.asarray(value, compute))

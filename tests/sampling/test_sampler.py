"""Test `sample_von_mises` under JAX's transformations, and its error messages."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import jax_von_mises as jvm
from jax_von_mises import sample_block, sample_von_mises
from jax_von_mises.sampling import counter, transform
from tests.arrays import equal

KEY = random.key(5)
METHODS = ("direct", "table")
# A key determines the words, and a method their angles, so keys other than the default are tested with one method.
KEYS_AND_METHODS = [
    *(("threefry2x32", method) for method in METHODS),
    *(
        pytest.param(name, "direct", marks=() if name == "philox4x32" else pytest.mark.slow)
        for name in counter.GENERATORS
        if name != "threefry2x32"
    ),
]
DTYPES = ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)]


# ------------------------------------------------------------------------------------------------ streams


@pytest.mark.few(1)
@pytest.mark.parametrize(("implementation", "method"), KEYS_AND_METHODS)
def test_shape_does_not_matter(implementation, method):
    """Element i in row-major order is the same angle in every shape."""
    key = random.key(1, impl=implementation)
    draw = functools.partial(sample_von_mises, key, 0.3, 2.5, method=method)
    flat = draw(shape=(2310,))
    # Each shape compiles a program, so keys other than the default use only the most critical shape.
    default = implementation == "threefry2x32"
    for shape in ((2310, 1), (7, 11, 5, 6)) if default else ((7, 11, 5, 6),):
        assert equal(draw(shape=shape).reshape(-1), flat)
    for size in (2309,) if default else (127,):
        assert equal(draw(shape=(size,)), flat[:size])


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_block_is_a_slice(method, dtype):
    full = sample_von_mises(KEY, 0.3, 2.5, (1000,), dtype, method=method)
    # Each size compiles a program; short floats, which differ only in a final rounding, use one size.
    for start, size in ((333, 10), (999, 1)) if dtype == "float32" else ((333, 10),):
        block = sample_block(KEY, 0.3, 2.5, start, (size,), dtype, method=method)
        assert equal(block, full[start : start + size])


def test_block_beyond_32_bits():
    start = 2**40 + 3
    full = sample_block(KEY, 0.0, 1.0, start, (64,))
    parts = [sample_block(KEY, 0.0, 1.0, start + i, (1,)) for i in range(64)]
    assert equal(full, jnp.concatenate(parts))
    assert not equal(full, sample_block(KEY, 0.0, 1.0, 3, (64,)))


@pytest.mark.slow
def test_traced_start():
    """A traced start may be anywhere in a stream, even beyond 32 bits; the blocks of a loop form the stream."""
    draw = functools.partial(sample_block, KEY, 0.3, 2.5, shape=(100,))
    full = sample_von_mises(KEY, 0.3, 2.5, (8, 100), method="table")
    assert equal(jax.lax.scan(lambda at, _: (at + 100, draw(at)), 0, None, 8)[1], full)
    assert equal(jax.vmap(draw)(jnp.arange(0, 800, 100, dtype=jnp.uint32)), full)
    traced = jax.jit(draw)
    assert equal(traced(np.uint32(2**32 - 1)), draw(2**32 - 1))
    assert equal(traced((np.uint32(2**31), np.uint32(2**32 - 1))), draw(2**63 + 2**32 - 1))
    # Only draws from a traced start can pass the end of the stream, where the stream repeats.
    last = sample_block(KEY, 0.3, 2.5, 2**64 - 1, (1,))
    assert equal(traced(-1), jnp.concatenate([last, draw(0)[:99]]))
    assert equal(draw((7, 500)), draw(7 * 2**32 + 500))
    assert equal(jax.jit(lambda high: draw((high, 500)))(np.uint32(7)), draw(7 * 2**32 + 500))
    with jax.enable_x64(True):
        x = jnp.zeros((), jnp.float32)
        draw = functools.partial(sample_block, KEY, x, jnp.float32(2.5), shape=(10,))
        for start in (2**40 + 3, 2**63 - 1):
            assert equal(jax.jit(draw)(np.int64(start)), draw(start))
        assert equal(jax.jit(draw)(np.uint64(2**64 - 10)), draw(2**64 - 10))


def test_slices_of_one_size_run_one_program():
    """Blocks of one size agree bit for bit where they overlap, as streams require."""
    draw = functools.partial(sample_block, KEY, 0.0, jnp.array([0.5, 30.0]), shape=(50, 2))
    assert equal(draw(100)[10:], draw(120)[:40])


@pytest.mark.slow
def test_block_array_parameters():
    concentration = jnp.array([0.1, 1.0, 10.0])
    full = sample_von_mises(KEY, 0.0, concentration, (50, 3), method="direct")
    assert equal(sample_block(KEY, 0.0, concentration, 30, (5, 3)), full[10:15])


@pytest.mark.few(1)
def test_methods_agree():
    for concentration in (0.0, 1e-3, 0.5, 3.0, 16.9, 17.1, 1e3, 1e8):
        table = sample_von_mises(KEY, 0.0, concentration, (20000,), method="table")
        direct = sample_von_mises(KEY, 0.0, concentration, (20000,), method="direct")
        np.testing.assert_allclose(table, direct, rtol=4e-6, atol=4e-7 / np.sqrt(1 + concentration))


def test_auto_takes_the_table_for_many():
    many, few = kernel_size(), kernel_size() - 1
    auto = functools.partial(sample_von_mises, KEY, 0.0, 2.0)
    assert equal(auto(shape=(many,)), auto(shape=(many,), method="table"))
    assert equal(auto(shape=(few,)), auto(shape=(few,), method="direct"))


def kernel_size():
    from jax_von_mises.sampling import request

    return request.QUANTILE_TABLE_MIN_SIZE["float32"]


# ------------------------------------------------------------------------------------- transformations


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_inside_jit(method):
    """The angles are the same inside a user's program, also among other computations."""
    draw = functools.partial(sample_von_mises, shape=(5000,), method=method)
    outside = draw(KEY, 0.3, 2.5)
    assert equal(jax.jit(draw)(KEY, 0.3, 2.5), outside)
    cosine, angles = jax.jit(lambda *a: (jnp.cos(2.0 * draw(*a)), draw(*a)))(KEY, 0.3, 2.5)
    assert equal(angles, outside)
    np.testing.assert_allclose(cosine, np.cos(2 * np.asarray(outside)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_constants_of_a_program(method):
    """Constant arguments give the same angles as traced ones.

    Without precautions, the compiler would compute with constants at compile time and round differently.
    """
    draw = functools.partial(sample_von_mises, method=method)
    cases = [(0.3, k, (3000,)) for k in (0.0, 0.169663861, 0.5, 1.79095924, 14.2028522, 17.0, 40.5, 24506.9375)]
    if method == "direct":
        cases.append((0.3, np.float32([[0.1], [0.7], [9.1]]), (3, 1000)))
    # `loc` is reduced at any concentration; the point mass shows the last digit of the remainder.
    cases += [(loc, np.inf, (100,)) for loc in (-2.0, 9.0, 12345.678, -777777.7, 8388609.0, 16000001.0)]
    cases += [(loc, 3.0, (100,)) for loc in (-2.0, 16000001.0)]
    # One program for all cases compiles faster than one for each.
    constant = jax.jit(lambda key: [draw(key, *case) for case in cases])(KEY)
    for case, inside in zip(cases, constant, strict=True):
        assert equal(inside, draw(KEY, *case)), case


@pytest.mark.few(1)
@pytest.mark.parametrize(("implementation", "method"), KEYS_AND_METHODS)
def test_vmap_over_keys(implementation, method):
    keys = random.split(random.key(2, impl=implementation), 3)
    draw = functools.partial(sample_von_mises, loc=0.3, concentration=2.5, shape=(400,), method=method)
    assert equal(jax.vmap(draw)(keys), np.stack([draw(key) for key in keys]))


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_vmap_over_parameters(method):
    locs, concentrations = jnp.linspace(-3.0, 3.0, 4), jnp.array([0.0, 0.5, 20.0, jnp.inf])
    draw = functools.partial(sample_von_mises, KEY, shape=(400,), method=method)
    expected = jnp.stack([draw(m, k) for m, k in zip(locs, concentrations, strict=True)])
    assert equal(jax.vmap(draw)(locs, concentrations), expected)


def test_vmap_over_everything():
    keys = random.split(KEY, 3)
    locs = jnp.linspace(-1.0, 1.0, 3)
    actual = jax.vmap(sample_von_mises, in_axes=(0, 0, None))(keys, locs, jnp.array([1.0, 2.0]))
    expected = jnp.stack([sample_von_mises(k, m, jnp.array([1.0, 2.0])) for k, m in zip(keys, locs, strict=True)])
    assert equal(actual, expected)


def test_scan():
    def step(total, key):
        return total + 1, sample_von_mises(key, 0.0, total, (7,))

    keys = random.split(KEY, 4)
    _, actual = jax.lax.scan(step, jnp.float32(1.0), keys)
    expected = jnp.stack([sample_von_mises(key, 0.0, float(i + 1), (7,)) for i, key in enumerate(keys)])
    assert equal(actual, expected)


@pytest.mark.slow
def test_checkpoint():
    def loss(concentration):
        return jnp.sum(jnp.cos(sample_von_mises(KEY, 0.0, concentration, (100,))))

    expected, actual = (jax.jit(jax.grad(f))(2.0) for f in (loss, jax.checkpoint(loss)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("direct", marks=pytest.mark.slow), "table"])
def test_export(method):
    from jax import export

    draw = jax.jit(functools.partial(sample_von_mises, shape=(100,), method=method))
    exported = export.export(draw, platforms=("cpu", "cuda", "rocm", "tpu"))(KEY, jnp.float32(0.1), jnp.float32(2.0))
    again = export.deserialize(exported.serialize())
    assert equal(again.call(KEY, jnp.float32(0.1), jnp.float32(2.0)), draw(KEY, 0.1, 2.0))


def test_typed_and_legacy_keys_agree():
    assert equal(sample_von_mises(random.PRNGKey(5), 0.0, 1.0, (10,)), sample_von_mises(KEY, 0.0, 1.0, (10,)))


# ------------------------------------------------------------------------------ shapes, dtypes, values


def test_default_shape_is_the_broadcast():
    for loc, concentration, shape, expected in (
        (0.0, 1.0, None, ()),
        (jnp.zeros((3, 1)), jnp.ones(4), None, (3, 4)),
        (jnp.zeros((3, 1)), jnp.ones(4), (2, 3, 4), (2, 3, 4)),
        (0, 1, 5, (5,)),
    ):
        assert jax.eval_shape(lambda m=loc, k=concentration, s=shape: sample_von_mises(KEY, m, k, s)).shape == expected
    assert sample_von_mises(KEY, 0.0, 1.0, (3, 0)).shape == (3, 0)


@pytest.mark.parametrize("array", [np.array, pytest.param(jnp.array, marks=pytest.mark.slow)])
def test_shape_as_an_array(array):
    """An array or a single integer is a valid shape, as for `jax.random`."""
    flat, block = array([2, 3]), sample_von_mises(KEY, 0.0, 1.0, (2, 3))
    assert equal(sample_von_mises(KEY, 0.0, 1.0, flat), block)
    assert equal(sample_block(KEY, 0.0, 1.0, 0, flat, method="direct"), block)
    assert sample_von_mises(KEY, 0.0, 1.0, array(3)).shape == (3,)
    assert sample_von_mises(KEY, 0.0, 1.0, array([], int)).shape == ()
    assert jvm.VonMises(0.0, 1.0).sample(KEY, flat).shape == (2, 3)
    for scheme in (jvm.sample_antithetic, functools.partial(jvm.sample_truncated, low=0.0, high=1.0)):
        assert jax.eval_shape(lambda f=scheme: f(KEY, 0.0, 1.0, shape=flat)).shape == (2, 3)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype(dtype):
    assert sample_von_mises(KEY, 0.0, 1.0, (5,), dtype).dtype == dtype
    parameter = jnp.ones(3, dtype)
    assert sample_von_mises(KEY, parameter, 1.0).dtype == dtype
    assert sample_von_mises(KEY, 0, parameter).dtype == dtype
    narrow = sample_von_mises(KEY, 0.3, 5.0, (3000,), dtype)
    assert equal(narrow, sample_von_mises(KEY, 0.3, 5.0, (3000,)).astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("f2", "i8"))])
def test_byte_order_does_not_matter(dtype):
    """Arrays in the other byte order, as in files from other machines, give the same results."""
    ours = np.array([1, 2, 5], f"={dtype}")
    theirs = ours.astype(ours.dtype.newbyteorder(">" if ours.dtype.newbyteorder("<").isnative else "<"))
    assert not theirs.dtype.isnative
    x, y = (sample_von_mises(KEY, loc, loc, (7, 3)) for loc in (ours, theirs))
    assert equal(x, y)
    assert x.dtype == y.dtype
    for function in (jvm.log_prob, jvm.cdf):
        assert equal(function(ours, 0.0, ours), function(theirs, 0.0, theirs))
    assert equal(jvm.fit(ours).concentration, jvm.fit(theirs, weights=np.ones_like(theirs)).concentration)
    assert equal(*(jvm.VonMises(loc, 2.0).sample(KEY, (4,)) for loc in (ours, theirs)))
    assert equal(*(jvm.batched_apply(lambda x: x + 1, array, 2) for array in (ours, theirs)))


def test_default_dtype():
    def dtype(*parameters, **options):
        return jax.eval_shape(lambda: sample_von_mises(KEY, *parameters, **options)).dtype

    assert dtype(0, 1) == jnp.float32
    assert dtype(np.float64(0.0), np.ones(2)) == jnp.float32
    assert dtype(jnp.zeros(2, jnp.float16), jnp.ones(2, jnp.bfloat16)) == jnp.float32
    assert dtype(jnp.zeros(2, jnp.int32), jnp.ones(2, jnp.bfloat16)) == jnp.bfloat16
    with jax.enable_x64(True):
        assert dtype(0.0, 1.0) == jnp.float64
        assert dtype(0.0, jnp.float32(1.0)) == jnp.float32
        assert dtype(0.0, 1.0, dtype=jnp.float32) == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("method", ["direct", pytest.param("table", marks=pytest.mark.slow)])
def test_float64_streams(method):
    with jax.enable_x64(True):
        draw = functools.partial(sample_von_mises, KEY, 0.3, 2.5, method=method)
        flat = draw(shape=(1000,))
        assert flat.dtype == jnp.float64
        assert equal(draw(shape=(10, 100)).reshape(-1), flat)
        assert equal(sample_block(KEY, 0.3, 2.5, 17, (50,), method=method), flat[17:67])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([(5, 100, 6)], [7]),
        pytest.param([(1000, 3), (3, 1000), (5, 100, 6)], [1, 7, 301], marks=pytest.mark.slow),
    ],
)
def test_float64_shapes(shapes, sizes):
    """The angles do not depend on the shape, although the compiler contracts products and sums only in some loops."""
    with jax.enable_x64(True):
        for k in (0.01, 0.5, 3.0, 40.0, 1e4):
            flat = sample_von_mises(KEY, 0.3, k, (3000,), method="direct")
            wide = np.full((3000,), k)
            for shape in shapes:
                assert equal(sample_von_mises(KEY, 0.3, k, shape, method="direct").reshape(-1), flat)
                assert equal(sample_von_mises(KEY, 0.3, wide.reshape(shape)).reshape(-1), flat)
            for few in sizes:
                assert equal(sample_von_mises(KEY, 0.3, k, (few,), method="direct"), flat[:few])
            mapped = jax.vmap(lambda k: sample_von_mises(KEY, 0.3, k, (3000,), method="direct"))(wide[:3])
            assert equal(mapped, np.stack([flat] * 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loc", [0.0, 3.0, np.pi, -np.pi, 3.1415925, 1e3, -1e6])
def test_range(dtype, loc):
    """Angles lie in [-pi, pi) for every concentration, with the mode on either side of the cut."""
    for concentration in (0.0, 1.0, 1e4, jnp.inf):
        for method in METHODS:
            x = np.asarray(sample_von_mises(KEY, loc, concentration, (5000,), dtype, method=method), np.float64)
            assert (x >= -np.pi).all()
            assert (x < np.pi).all()


def test_whole_turns_do_not_matter():
    """`loc` is reduced without the error of a rounded 2 pi, up to the rounding of `loc` itself."""
    turns = np.array([1, -1, 5, 1000, -123456])
    loc = np.float32(0.5 + 2 * np.pi * turns)
    expected = np.remainder(loc.astype(np.float64) + np.pi, 2 * np.pi) - np.pi
    actual = sample_von_mises(KEY, loc, jnp.inf)
    np.testing.assert_allclose(actual, expected, atol=3e-7, rtol=0)


def test_angles_that_need_no_wrap_keep_their_digits():
    """At large concentrations, angles near 0 keep full relative accuracy, since only sums beyond pi are wrapped."""
    x = np.asarray(sample_von_mises(KEY, 0.0, 1e12, (100000,)))
    assert len(np.unique(np.abs(x))) > 97000


@functools.cache
def ten_inside_jit(method):
    """Return a program that draws ten angles for any parameters."""
    return jax.jit(functools.partial(sample_von_mises, shape=(10,), method=method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("loc", "concentration"),
    [(0.0, -1.0), (0.0, -0.5e-30), (0.0, jnp.nan), (jnp.nan, 1.0), (jnp.inf, 1.0), (-jnp.inf, 1.0), (1e20, 1.0)],
)
def test_invalid_values_give_nan(method, loc, concentration):
    assert np.isnan(sample_von_mises(KEY, loc, concentration, (10,), method=method)).all()
    assert np.isnan(ten_inside_jit(method)(KEY, loc, concentration)).all()


def test_an_invalid_lane_affects_no_other():
    x = np.asarray(sample_von_mises(KEY, 0.5, np.float32([1.0, np.nan, 2.0, -3.0, np.inf])))
    assert np.isnan(x).tolist() == [False, True, False, True, False]
    good = np.asarray(sample_von_mises(KEY, 0.5, np.float32([1.0, 1.0, 2.0, 1.0, np.inf])))
    assert equal(x[[0, 2, 4]], good[[0, 2, 4]])
    assert x[4] == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_limits(method):
    draw = functools.partial(sample_von_mises, KEY, 0.25, shape=(1000,), method=method)
    assert (draw(jnp.inf) == 0.25).all()
    assert (draw(3e38) == 0.25).all()
    uniform = draw(0.0)
    assert equal(uniform, draw(-0.0))
    np.testing.assert_allclose(uniform, draw(1e-38), rtol=5e-7, atol=5e-8)
    assert np.ptp(np.asarray(uniform)) > 6.2


def test_mirror():
    """The lowest bit of a word is the sign, so words that differ only in this bit give opposite angles."""
    low = np.arange(0, 2**16, dtype=np.uint32) << 16
    angles = jax.jit(lambda low: transform.angles((low,), jnp.float32(0.0), jnp.float32(2.0), "table"))
    assert equal(angles(low), -angles(low | 1))


# ---------------------------------------------------------------------------------------------- errors

INVALID_CALLS = [
    (dict(key=0), TypeError, "sample_von_mises: key must be a JAX random key, got 0 of type int.*jax.random.key"),
    (dict(key=jnp.ones(2)), TypeError, "key must be a JAX random key, got an array of dtype float32"),
    (dict(key=jnp.ones(3, jnp.uint32)), ValueError, r"key is a uint32 array of shape \(3,\).*jax.random.key"),
    (dict(key=random.split(KEY, 2)), ValueError, r"one key, got a key array of shape \(2,\).*jax.vmap"),
    (dict(key=random.split(random.PRNGKey(0), 2)), ValueError, r"one key, got a key array of shape \(2,\)"),
    (dict(concentration=jnp.ones(3), shape=(5, 2)), ValueError, r"concentration has shape \(3,\).*shape=\(5, 2\)"),
    (dict(loc=jnp.ones((2, 2)), shape=(2,)), ValueError, r"loc has shape \(2, 2\).*shape=\(2,\)"),
    (dict(loc=jnp.ones(2), concentration=jnp.ones(3)), ValueError, r"loc of shape \(2,\) and concentration of shape"),
    (dict(shape=(-1,)), ValueError, r"shape=\(-1,\) has a negative size"),
    (dict(shape=-3), ValueError, r"shape=\(-3,\) has a negative size"),
    (dict(shape=(2.5,)), TypeError, r"shape=\(2.5,\) must be an integer or a tuple"),
    (dict(shape=True), TypeError, "shape=True must be an integer or a tuple"),
    (dict(shape={2, 3}), TypeError, "shape={2, 3} must be an integer or a tuple"),
    (dict(shape=np.array([2.0])), TypeError, r"shape=array\(\[2.\]\) must be an integer or a tuple"),
    (dict(shape=np.array([[2, 3]])), TypeError, r"shape=array\(\[\[2, 3\]\]\) must be an integer or a tuple"),
    (dict(shape=np.array([True])), TypeError, "shape=array.* must be an integer or a tuple"),
    (dict(shape=np.array([2, -3])), ValueError, r"shape=\(2, -3\) has a negative size"),
    (dict(shape=2**63), ValueError, r"shape=\(9223372036854775808,\) asks for 9.22e\+18 elements.*sample_block"),
    (dict(shape=(2**31, 2**31)), ValueError, r"shape=.* asks for 4.61e\+18 elements"),
    (dict(loc=np.longdouble(1)), TypeError, "loc must be a real number.*Convert it to one of float32"),
    (dict(loc=jnp.float8_e4m3fn(1)), TypeError, "loc must be a real number.*float8"),
    (dict(loc=jax.ShapeDtypeStruct((2,), np.float32)), TypeError, "loc must be a real number"),
    (dict(method=np.array(["table"])), ValueError, "method=array.* is not one of"),
    (dict(shape="ab"), TypeError, "shape='ab' must be an integer or a tuple"),
    (dict(dtype="int32"), TypeError, "dtype=int32 cannot hold an angle. Give one of float32, float64"),
    (dict(dtype="complex64"), TypeError, "dtype=complex64 cannot hold an angle"),
    (dict(dtype="float31"), TypeError, "dtype='float31' is not a dtype"),
    (dict(dtype="float64"), ValueError, "64-bit mode, which is off.*jax_enable_x64"),
    (dict(loc="north"), TypeError, "loc must be a real number"),
    (dict(loc=None), TypeError, "loc must be a real number"),
    (dict(concentration=1j), TypeError, "concentration must be a real number.*complex"),
    (dict(concentration=True), TypeError, "concentration must be a real number.*bool"),
    (dict(method="fast"), ValueError, "method='fast' is not one of 'auto', 'direct', 'table'"),
    (dict(method="table", concentration=jnp.ones(2)), ValueError, r"method='table' needs one.*shape \(2,\)"),
]


@pytest.mark.parametrize(("change", "error", "message"), INVALID_CALLS)
def test_invalid_arguments(change, error, message):
    arguments = dict(key=KEY, loc=0.0, concentration=1.0) | change
    with pytest.raises(error, match=message) as caught:
        sample_von_mises(**arguments)
    assert re.match("sample_von_mises: ", str(caught.value))


def test_traced_shape_names_the_remedy():
    with pytest.raises(TypeError, match="static_argnames"):
        jax.jit(lambda n: sample_von_mises(KEY, 0.0, 1.0, (n,)))(3)


INVALID_STARTS = [
    (-1, ValueError, r"start=-1 must be at least 0 and below 2\^64, the length of a stream"),
    (2**64, ValueError, "start=18446744073709551616 must be"),
    (1.5, TypeError, "start=1.5 must be an integer"),
    (np.arange(2), TypeError, "start=array.* must be an integer"),
    ((1, 2, 3), ValueError, r"start=\(1, 2, 3\) has length 3.*pair \(hi, lo\)"),
    ((2**32, 0), ValueError, r"start\[0\]=4294967296 must be.*below 2\^32"),
    ((0, -1), ValueError, r"start\[1\]=-1 must be.*start % 2\*\*32"),
    ((0, "a"), TypeError, r"start\[1\]='a' must be an integer"),
    (
        2**64 - 2,
        ValueError,
        r"start=18446744073709551614 and shape=\(3,\) reach beyond .*derive_key",
    ),
    ((2**32 - 1, 2**32 - 2), ValueError, r"start=18446744073709551614 and shape=.* reach beyond"),
]
INVALID_TRACED_STARTS = [
    (np.float32(2), "start is traced with dtype float32 and shape .*must be a scalar of int32, uint32"),
    (np.arange(2), r"start is traced with dtype int32 and shape \(2,\)"),
    (True, "start is traced with dtype bool"),
    ((np.uint32(1), np.int32(1)), r"start\[1\] is traced with dtype int32.*scalar of uint32"),
]


@pytest.mark.parametrize(("start", "error", "message"), INVALID_STARTS)
def test_invalid_start(start, error, message):
    with pytest.raises(error, match="sample_block: " + message):
        sample_block(KEY, 0.0, 1.0, start, (3,))


@pytest.mark.parametrize(("start", "message"), INVALID_TRACED_STARTS)
def test_invalid_traced_start(start, message):
    with pytest.raises(TypeError, match="sample_block: " + message):
        jax.jit(lambda start: sample_block(KEY, 0.0, 1.0, start, (3,)))(start)


def test_a_shape_that_equals_one_of_integers_is_refused(key):
    """The arguments of a call are not taken for those of an earlier call that compare equal to them."""
    assert sample_von_mises(key, 0.0, 4.0, (2,)).shape == (2,)
    with pytest.raises(TypeError, match=r"sample_von_mises: shape=\(2\.0,\) must be an integer"):
        sample_von_mises(key, 0.0, 4.0, (2.0,))


@pytest.mark.parametrize("concentration", [4, 4.0, np.float32(4), np.float64(4), np.array(4), np.array(4, ">f4")])
def test_calls_with_arguments_of_all_types_draw_the_same(key, concentration):
    expected = sample_von_mises(key, 0.0, jnp.float32(4), (5,))
    np.testing.assert_array_equal(sample_von_mises(key, 0, concentration, 5, np.float32), expected)


@pytest.mark.needs_key("philox4x32")
def test_legacy_keys_follow_the_default_implementation():
    """A setting of JAX says of which kind a legacy key is; a program compiled before a change is not used."""
    key, default = jnp.array([1, 2], jnp.uint32), jax.config.jax_default_prng_impl
    for implementation in ("threefry2x32", "philox4x32"):
        jax.config.update("jax_default_prng_impl", implementation)
        try:
            x = sample_von_mises(key, 0.0, 4.0, (5,))
        finally:
            jax.config.update("jax_default_prng_impl", default)
        typed = random.wrap_key_data(key, impl=implementation)
        np.testing.assert_array_equal(x, sample_von_mises(typed, 0.0, 4.0, (5,)))


@pytest.mark.usefixtures("no_cache")
def test_calls_of_one_kind_share_a_program(key, compiled, tmp_path):
    """Lists, numbers of NumPy, a default dtype, and the method of a class need no program of their own."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    first = sample_von_mises(key, 0.0, 1.0, (7,))
    zero, one = np.float32(0), np.float32(1)
    compiled.clear()
    for x in (
        sample_von_mises(key, 0, 1, 7),
        sample_von_mises(key, 0.0, one, (7,), "float32"),
        jvm.VonMises(0.0, 1.0).sample(key, (7,)),
        jvm.VonMises(zero, one).sample(key, 7),
        *(sample_von_mises(key, 0, 1.0, shape) for shape in ([7], np.int64(7), (np.int32(7),), np.array([7]))),
        *(sample_von_mises(key, np.int64(0), number, [np.uint8(7)]) for number in (np.float64(1), np.int8(1), 1)),
        sample_von_mises(key, 0.0, 1.0, [7], np.float32, method="auto"),
    ):
        np.testing.assert_array_equal(x, first)
    assert not compiled
    # Other tests do not draw this size, so the program is compiled here. An equal one is loaded, in less time.
    many = np.ones(1_019, np.float32)
    first = sample_von_mises(key, 0.0, many)
    drawing = max(compiled)
    compiled.clear()
    for x in (
        sample_von_mises(key, zero, many, dtype="float32"),
        sample_von_mises(key, 0, many),
        sample_von_mises(key, 0, many.tolist()),
        sample_von_mises(key, 0, many.astype(np.float64), many.shape),
    ):
        np.testing.assert_array_equal(x, first)
    assert [seconds for seconds in compiled if seconds > drawing / 3] == []

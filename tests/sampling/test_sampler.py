"""Test `sample_von_mises` under JAX's transformations, and its error messages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import jax_von_mises as jvm
from jax_von_mises import sample_block, sample_von_mises
from jax_von_mises.von_mises import transform
from tests.arrays import equal
from tests.marks import more

KEY = random.key(5)
METHODS = ("direct", "table")


# ------------------------------------------------------------------------------------------------ streams


@pytest.mark.parametrize("method", ["direct", *more("table")])
def test_shape_does_not_matter(method):
    """Element i in row-major order is the same angle in every shape."""
    flat = sample_von_mises(KEY, 0.3, 2.5, (2310,), method=method)
    for shape in ((7, 11, 5, 6), (2309,)):
        x = sample_von_mises(KEY, 0.3, 2.5, shape, method=method)
        assert equal(x.reshape(-1), flat[: x.size])


@pytest.mark.parametrize(
    ("implementation", "method", "dtype"),
    [
        ("threefry2x32", "direct", "float32"),
        *more(("philox4x32", "table", "float32"), ("rbg", "direct", "bfloat16"), ("threefry4x32", "table", "float16")),
        *more(("philox2x32", "direct", "float32"), ("threefry2x32", "direct", "float64")),
    ],
)
def test_block_is_a_slice(implementation, method, dtype):
    key = random.key(1, impl=implementation)
    with jax.enable_x64(dtype == "float64"):
        full = sample_von_mises(key, 0.3, 2.5, (1000,), dtype, method=method)
        for start, size in ((333, 10), (999, 1)):
            block = sample_block(key, 0.3, 2.5, start, (size,), dtype, method=method)
            assert equal(block, full[start : start + size])


def test_block_beyond_32_bits():
    start = 2**40 + 3
    full = sample_block(KEY, 0.0, 1.0, start, (64,))
    parts = [sample_block(KEY, 0.0, 1.0, start + i, (1,)) for i in range(64)]
    assert equal(full, jnp.concatenate(parts))
    assert not equal(full, sample_block(KEY, 0.0, 1.0, 3, (64,)))


@pytest.mark.more
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


def test_methods_agree():
    for concentration in (0.0, 1e-3, 0.5, 3.0, 16.9, 17.1, 1e3, 1e8):
        table = sample_von_mises(KEY, 0.0, concentration, (20000,), method="table")
        direct = sample_von_mises(KEY, 0.0, concentration, (20000,), method="direct")
        np.testing.assert_allclose(table, direct, rtol=4e-6, atol=4e-7 / np.sqrt(1 + concentration))


@pytest.mark.more
def test_auto_takes_the_table_for_many():
    many, few = kernel_size(), kernel_size() - 1
    auto = functools.partial(sample_von_mises, KEY, 0.0, 2.0)
    assert equal(auto(shape=(many,)), auto(shape=(many,), method="table"))
    assert equal(auto(shape=(few,)), auto(shape=(few,), method="direct"))


def kernel_size():
    from jax_von_mises.engine import request

    return request.QUANTILE_TABLE_MIN_SIZE[np.dtype(np.float32)]


# ------------------------------------------------------------------------------------- transformations


@pytest.mark.parametrize("method", ["table", *more("direct")])
def test_inside_jit(method):
    """The angles are the same inside a user's program, among other computations."""
    draw = functools.partial(sample_von_mises, shape=(5000,), method=method)
    outside = draw(KEY, 0.3, 2.5)
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


@pytest.mark.parametrize("method", ["table", *more("direct")])
def test_vmap(method):
    keys, locs, concentrations = random.split(KEY, 4), jnp.linspace(-3.0, 3.0, 4), jnp.array([0.0, 0.5, 20.0, jnp.inf])
    draw = functools.partial(sample_von_mises, shape=(400,), method=method)
    expected = jnp.stack([draw(*row) for row in zip(keys, locs, concentrations, strict=True)])
    assert equal(jax.vmap(draw)(keys, locs, concentrations), expected)


@pytest.mark.more
def test_scan():
    def step(total, key):
        return total + 1, sample_von_mises(key, 0.0, total, (7,))

    keys = random.split(KEY, 4)
    _, actual = jax.lax.scan(step, jnp.float32(1.0), keys)
    expected = jnp.stack([sample_von_mises(key, 0.0, float(i + 1), (7,)) for i, key in enumerate(keys)])
    assert equal(actual, expected)


@pytest.mark.more
@pytest.mark.parametrize("method", METHODS)
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


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_shape_as_an_array(array):
    """An array or a single integer is a valid shape, as for `jax.random`."""
    flat = array([2, 3])
    calls = {
        "sample_von_mises": (sample_von_mises, flat, (2, 3)),
        "one integer": (sample_von_mises, array(3), (3,)),
        "no integers": (sample_von_mises, array([], int), ()),
        "sample_block": (functools.partial(sample_block, start=0), flat, (2, 3)),
        "sample_antithetic": (jvm.sample_antithetic, flat, (2, 3)),
        "sample_truncated": (functools.partial(jvm.sample_truncated, low=0.0, high=1.0), flat, (2, 3)),
    }
    for name, (draw, shape, expected) in calls.items():
        drawn = jax.eval_shape(lambda draw=draw, shape=shape: draw(KEY, 0.0, 1.0, shape=shape))
        assert drawn.shape == expected, name
    assert jax.eval_shape(lambda: jvm.VonMises(0.0, 1.0).sample(KEY, flat)).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", *more("float16")])
def test_dtype(dtype):
    narrow = sample_von_mises(KEY, 0.3, 5.0, (3000,), dtype)
    assert narrow.dtype == dtype
    assert equal(narrow, sample_von_mises(KEY, 0.3, 5.0, (3000,)).astype(dtype))


@pytest.mark.more
@pytest.mark.parametrize("dtype", ["f4", "i8"])
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
@pytest.mark.parametrize("array", [False, True])
def test_float64_shapes(array):
    """The angles do not depend on the shape; those of an array of concentrations agree to 4.5e-16."""
    with jax.enable_x64(True):
        for k in (0.01, 0.5, 3.0, 40.0, 1e4):
            flat = sample_von_mises(KEY, 0.3, k, (3000,), method="direct")
            for shape in [(5, 100, 6)] if array else [(1000, 3), (3, 1000), (7,), (1,)]:
                concentration = np.full(shape, k) if array else k
                x = sample_von_mises(KEY, 0.3, concentration, shape, method="direct")
                if array:
                    np.testing.assert_allclose(x.reshape(-1), flat[: x.size], rtol=0, atol=4.5e-16)
                else:
                    assert equal(x.reshape(-1), flat[: x.size])
            if not array:
                mapped = jax.vmap(lambda k: sample_von_mises(KEY, 0.3, k, (3000,), method="direct"))(np.full(3, k))
                assert equal(mapped, np.stack([flat] * 3))


@pytest.mark.parametrize(
    ("method", "dtype"), [("direct", "float32"), *more(("table", "bfloat16"), ("direct", "float16"))]
)
def test_range(method, dtype):
    """Angles lie in [-pi, pi) for every concentration, with the mode on either side of the cut."""
    for loc in (0.0, 3.0, np.pi, -np.pi, 3.1415925, 1e3, -1e6):
        for concentration in (0.0, 1.0, 1e4, jnp.inf):
            x = np.asarray(sample_von_mises(KEY, loc, concentration, (5000,), dtype, method=method), np.float64)
            assert ((x >= -np.pi) & (x < np.pi)).all()


def test_whole_turns_do_not_matter():
    """`loc` is reduced without the error of a rounded 2 pi, up to the rounding of `loc` itself."""
    turns = np.array([1, -1, 5, 1000, -123456])
    loc = np.float32(0.5 + 2 * np.pi * turns)
    expected = np.remainder(loc.astype(np.float64) + np.pi, 2 * np.pi) - np.pi
    actual = sample_von_mises(KEY, loc, jnp.inf)
    np.testing.assert_allclose(actual, expected, atol=3e-7, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_invalid_values_give_nan(method):
    for loc, k in [
        (0.0, -1.0),
        (0.0, -0.5e-30),
        (0.0, np.nan),
        (np.nan, 1.0),
        (np.inf, 1.0),
        (-np.inf, 1.0),
        (1e20, 1.0),
    ]:
        assert np.isnan(sample_von_mises(KEY, loc, k, (8,), method=method)).all()


@pytest.mark.parametrize("method", ["direct", *more("table")])
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

# `tests/refusals.py` has the invalid values of single arguments.
INVALID_CALLS = [
    (dict(key=random.split(KEY, 2)), r"one key, got a key array of shape \(2,\).*jax.vmap"),
    (dict(key=random.split(random.PRNGKey(0), 2)), r"one key, got a key array of shape \(2,\)"),
    (dict(concentration=jnp.ones(3), shape=(5, 2)), r"concentration has shape \(3,\).*shape=\(5, 2\)"),
    (dict(loc=jnp.ones((2, 2)), shape=(2,)), r"loc has shape \(2, 2\).*shape=\(2,\)"),
    (dict(loc=jnp.ones(2), concentration=jnp.ones(3)), r"loc of shape \(2,\) and concentration of shape"),
    (dict(shape=2**63), r"shape=\(9223372036854775808,\) asks for 9.22e\+18 elements.*sample_block"),
    (dict(loc=np.longdouble(1)), "loc must be a real number.*Convert it to one of float32"),
    (dict(loc=jnp.float8_e4m3fn(1)), "loc must be a real number.*float8"),
    (dict(loc=jax.ShapeDtypeStruct((2,), np.float32)), "loc must be a real number"),
    (dict(dtype="float64"), "64-bit mode, which is off.*jax_enable_x64"),
    (dict(method="table", concentration=jnp.ones(2)), r"method='table' needs one.*shape \(2,\)"),
]


@pytest.mark.parametrize(("change", "message"), INVALID_CALLS)
def test_invalid_arguments(change, message):
    arguments = dict(key=KEY, loc=0.0, concentration=1.0) | change
    with pytest.raises((TypeError, ValueError), match="sample_von_mises: .*" + message):
        sample_von_mises(**arguments)


def test_traced_shape_names_the_remedy():
    with pytest.raises(TypeError, match="static_argnames"):
        jax.jit(lambda n: sample_von_mises(KEY, 0.0, 1.0, (n,)))(3)


INVALID_STARTS = [
    (2**64 - 2, r"start=18446744073709551614 and shape=\(3,\) reach beyond .*derive_key"),
    ((2**32 - 1, 2**32 - 2), r"start=18446744073709551614 and shape=.* reach beyond"),
    ((0, -1), r"start\[1\]=-1 must be.*start % 2\*\*32"),
]
INVALID_TRACED_STARTS = [
    (np.float32(2), "start is traced with dtype float32 and shape .*must be a scalar of int32, uint32"),
    (np.arange(2), r"start is traced with dtype int32 and shape \(2,\)"),
    (True, "start is traced with dtype bool"),
    ((np.uint32(1), np.int32(1)), r"start\[1\] is traced with dtype int32.*scalar of uint32"),
]


@pytest.mark.parametrize(("start", "message"), INVALID_STARTS)
def test_invalid_start(start, message):
    with pytest.raises(ValueError, match="sample_block: " + message):
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


@pytest.mark.more
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


def test_numbers_are_copied_to_a_gpu_once(key, compiled, monkeypatch):
    """The same numbers are copied for the first call only, and the program is that of other numbers."""
    expected = [sample_von_mises(key, *numbers, (6,)) for numbers in ((0.25, 3.0), (-0.0, 3.0))]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    sample_von_mises(key, 0.25, 3.0, (6,))
    sample_von_mises(key, -0.0, 3.0, (6,))
    compiled.clear()
    with jax.transfer_guard_host_to_device("disallow"):
        assert equal(sample_von_mises(key, 0.25, 3.0, (6,)), expected[0])
        assert equal(sample_von_mises(key, -0.0, 3.0, (6,)), expected[1])
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            sample_von_mises(key, 0.125, 3.0, (6,))
    assert not compiled
    x = jnp.ones(5)
    for call in (
        lambda: jvm.log_prob(x, 0.25, 3.0),
        lambda: jvm.VonMises(0.25, 3.0).cdf(x),
        lambda: jvm.entropy(3.0),
        lambda: jvm.sample_truncated(key, 0.25, 3.0, 0.125, 0.5, (6,)),
    ):
        call()
        with jax.transfer_guard_host_to_device("disallow"):
            call()
    for call in (
        lambda key: sample_von_mises(key, 0.375, 3.0, (6,)),
        lambda key: sample_von_mises(jax.random.key(1), 0.375, 3.0, (6,)),
        lambda key: jvm.sample_truncated(jax.random.key(1), 0.25, 3.0, 0.125, 0.5, (6,)),
        lambda key: jvm.entropy(3.0),
    ):
        assert not jax.make_jaxpr(call)(key).consts
        assert equal(jax.jit(call)(key), call(key))


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
    many = np.ones(1_019, np.float32)
    first = sample_von_mises(key, 0.0, many)
    mean, on_device = jvm.sample_von_mises_fisher(key, [1.0, 0.0, 0.0], 2.0), jnp.asarray(many)
    compiled.clear()
    for x in (
        sample_von_mises(key, zero, many, dtype="float32"),
        sample_von_mises(key, 0, many),
        sample_von_mises(key, 0, many.tolist()),
        sample_von_mises(key, 0, tuple(many)),
        sample_von_mises(key, 0, many.astype(int)),
        sample_von_mises(key, 0, many.astype(np.float64), many.shape),
        sample_von_mises(key, 0, on_device),
    ):
        np.testing.assert_array_equal(x, first)
    for x in (
        jvm.sample_von_mises_fisher(key, (1, 0, 0), np.int64(2), []),
        jvm.VonMisesFisher(np.array([1, 0, 0]), 2).sample(key),
    ):
        np.testing.assert_array_equal(x, mean)
    assert not compiled

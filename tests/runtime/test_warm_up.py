"""Test programs that are compiled in advance in this process."""

import jax
import numpy as np
import pytest

from jax_von_mises import runtime, sample_block, sample_von_mises


def test_nothing_is_left_to_compile(key, compiled):
    many = np.linspace(1, 3, 7, dtype=np.float32)
    programs = runtime.warmup([40_001, (5, 7)], ("float32", "bfloat16"), key=key, concentration=many[:1])
    assert [(item.shape, item.dtype) for item in programs] == [
        (shape, dtype) for shape in ((40_001,), (5, 7)) for dtype in ("float32", "bfloat16")
    ]
    assert [item.method for item in programs] == ["table"] * 2 + ["direct"] * 2
    for item in programs:
        assert min(item.trace_seconds, item.lower_seconds, item.compile_seconds) > 0
        assert item.output_bytes == np.prod(item.shape) * np.dtype(item.dtype).itemsize
        assert item.temporary_bytes >= 0
        assert item.flops > item.shape[0]
    assert str(programs[2]).startswith("float32[5, 7] (direct): ")
    other = jax.random.key(0, impl="rbg")
    runtime.warmup((9,), key=other)
    runtime.warmup((5, 7), loc=0, concentration=jax.ShapeDtypeStruct((7,), np.float32), key=key)
    runtime.warmup((5, 7), key=key, block=True)
    compiled.clear()
    for shape in (40_001, (5, 7)):
        for dtype in ("float32", "bfloat16"):
            sample_von_mises(key, 0.3, many[2:3], shape, dtype)
    sample_von_mises(key, 1, many, (5, 7))
    sample_block(key, 0.25, 9.0, 2**40, (5, 7))
    sample_von_mises(other, 0.0, 1.0, (9,))
    assert not compiled, "`warmup` must have compiled the programs of these calls"
    sample_von_mises(key, 0.25, 9.0, (5, 8))
    assert len(compiled) == 1, "a new shape must be compiled"


def test_described_arguments_on_other_devices(compiled, key):
    """`warmup` accepts a `jax.ShapeDtypeStruct` with a sharding."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    k = jax.device_put(np.linspace(1, 3, 6, dtype=np.float32), sharding)
    runtime.warmup(6, concentration=jax.ShapeDtypeStruct(k.shape, k.dtype, sharding=sharding), key=key)
    compiled.clear()
    sample_von_mises(key, 0.0, k, 6)
    assert not compiled


def test_a_described_key(compiled, key):
    runtime.warmup(11, key=jax.ShapeDtypeStruct((), key.dtype))
    compiled.clear()
    sample_von_mises(key, 0.0, 1.0, 11)
    assert not compiled


def test_described_dtypes_that_jax_narrows(compiled, key):
    """A `jax.ShapeDtypeStruct` may have a dtype that JAX narrows, as it does the array itself."""
    for dtype in (np.float64, np.int64):
        runtime.warmup(6, concentration=jax.ShapeDtypeStruct((6,), dtype), key=key)
        compiled.clear()
        sample_von_mises(key, 0.0, np.arange(1, 7, dtype=dtype), 6)
        assert not compiled


def test_arguments_of_warmup_are_checked_first(compiled):
    with pytest.raises(TypeError, match=r"warmup: .*int8 cannot hold an angle"):
        runtime.warmup(3, ["float32", "int8"])
    assert not compiled

"""Test that `jax_von_mises.dask` agrees with `jax_von_mises` for any chunks, and that its graphs are small."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises

da = pytest.importorskip("dask.array", reason="Dask is not installed (extra `dask`)")

from jax_von_mises import dask as jvm_dask  # noqa: E402
from tests.marks import more, slow  # noqa: E402

KEY = jax.random.key(3)


@pytest.fixture(autouse=True)
def in_this_thread():
    """Compute chunks one after another in this thread, so that tests see errors and warnings."""
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((0, 3), (1, 2)),
        ((40, 25), (20, 5)),
        *more(((), ())),
        *slow(((40, 25), (20, 25))),  # complete rows: a chunk is one range of positions
        *slow(((40, 25), (11, 6)), ((5, 1, 8, 6), (2, 1, 3, 6))),
    ],
)
def test_angles_of_one_call(shape, chunks):
    result = jvm_dask.sample(KEY, 0.5, 4.0, shape, chunks=chunks)
    expected = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, shape))
    assert (result.shape, result.dtype) == (shape, np.float32)
    np.testing.assert_array_equal(result.compute(), expected)


@pytest.mark.more
def test_large_arrays_use_the_table():
    """A large array uses the table, as one call of its size does, even if its chunks are too small for the table."""
    expected = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, (200, 100)))
    np.testing.assert_array_equal(jvm_dask.sample(KEY, 0.5, 4.0, (200, 100), chunks=(100, 50)).compute(), expected)


@pytest.mark.parametrize(
    ("dtype", "lazy"),
    [
        ("float32", True),
        pytest.param("bfloat16", True, marks=pytest.mark.slow),
        pytest.param("float64", False, marks=pytest.mark.slow),
    ],
)
def test_parameters_are_arrays(dtype, lazy):
    """Array parameters are broadcast, and each chunk gets its part of them."""
    loc, concentration = np.linspace(-3, 3, 6, dtype=np.float32), np.geomspace(0.1, 1e3, 7, dtype=np.float32)[:, None]
    with jax.enable_x64(dtype == "float64"):
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, loc, concentration, (3, 7, 6), dtype))
        parameters = (da.from_array(loc, 4), da.from_array(concentration, (3, 1))) if lazy else (loc, concentration)
        result = jvm_dask.sample(KEY, *parameters, (3, 7, 6), dtype, chunks=(3, 4, 3))
    assert result.dtype == expected.dtype
    rounding = 4.5e-16 if dtype == "float64" else 0
    np.testing.assert_allclose(result.compute(), expected, rtol=0, atol=rounding)
    with jax.enable_x64(dtype == "float64"):
        assert jvm_dask.sample(KEY, *parameters, dtype=dtype, chunks=4).shape == (7, 6)


@pytest.mark.more
@pytest.mark.parametrize(
    ("parameters", "wide"),
    [
        ((0.5, 4), True),
        pytest.param((np.float32(0.5), 4.0), False, marks=pytest.mark.more),
        pytest.param((0, np.arange(1, 6)), True, marks=pytest.mark.more),
    ],
)
def test_numbers_have_the_default_dtype(parameters, wide):
    """The default dtype, which determines the random words of an angle, is that of `sample_von_mises`."""
    with jax.enable_x64(wide):
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, *parameters, (5,)))
        result = jvm_dask.sample(KEY, *parameters, (5,), chunks=2).compute()
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.more
def test_other_keys():
    key = jax.random.key(3, impl="rbg")
    expected = np.asarray(jax_von_mises.sample_von_mises(key, 0.5, 4.0, (9, 5)))
    np.testing.assert_array_equal(jvm_dask.sample(key, 0.5, 4.0, (9, 5), chunks=4).compute(), expected)


@pytest.mark.more
def test_operations_of_dask(tmp_path):
    """Arrays can be sliced, rechunked and stored, and equal arrays have equal names."""
    shape = (60, 40)
    expected = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, shape))
    angles = jvm_dask.sample(KEY, 0.5, 4.0, shape, chunks=(25, 40))
    assert angles.name == jvm_dask.sample(KEY, 0.5, 4.0, shape, chunks=(25, 40)).name
    assert angles.name != jvm_dask.sample(KEY, 0.5, 5.0, shape, chunks=(25, 40)).name
    np.testing.assert_array_equal(angles[13:47, ::3].compute(), expected[13:47, ::3])
    np.testing.assert_array_equal(angles.rechunk((7, 9)).compute(), expected)
    zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
    angles.to_zarr(str(tmp_path / "a.zarr"))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[:], expected)


@pytest.mark.more
def test_xarray():
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    angles = jvm_dask.sample(KEY, 0.5, 4.0, (60, 40), chunks=(25, 40))
    labelled = xarray.DataArray(angles, dims=("time", "station"))
    expected = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, (60, 40)))
    np.testing.assert_array_equal(labelled.isel(station=3).compute(), expected[:, 3])
    np.testing.assert_allclose(labelled.mean("time").compute(), expected.mean(0), rtol=1e-5)


def test_graph_is_small():
    """The graph has one task per chunk. A single pickled task, including the key, takes less than 800 bytes."""
    angles = jvm_dask.sample(KEY, 0.5, 4.0, (10**6, 10**6), chunks=(10_000, 10_000))
    graph = dict(angles.__dask_graph__())
    assert len(graph) == angles.npartitions == 10_000
    assert len(pickle.dumps(graph[angles.name, 99, 98])) < 800
    assert len(pickle.dumps(graph)) < 200 * len(graph)


def test_positions_beyond_32_bits():
    """The far corner of an array of 64 TiB equals the block that `sample_block` draws there."""
    row, column = 2**22 - 3, 2**22 - 100
    angles = jvm_dask.sample(KEY, 0.5, 4.0, (2**22, 2**22), chunks=((row, 3), (column, 100)))
    expected = jax_von_mises.sample_block(KEY, 0.5, 4.0, row * 2**22 + column, (100,))
    np.testing.assert_array_equal(angles[row, column:].compute(), expected)


@pytest.mark.more
def test_arrays_of_numbers_have_no_fixed_dtype():
    """A weakly typed JAX array takes the dtype of the other parameter, as in `sample_von_mises`."""
    with jax.enable_x64(True):
        parameters = np.float32(0.5), jnp.asarray(4.0)
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, *parameters, (10,)))
        result = jvm_dask.sample(KEY, *parameters, (10,), chunks=4).compute()
    assert result.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


def test_chunks_of_unknown_sizes():
    """The sizes of chunks must be known, and the error states the remedy."""
    lazy = da.from_array(np.linspace(-3, 3, 10, dtype=np.float32), 3)
    for shape in (None, (5,)):
        with pytest.raises(ValueError, match=r"dask\.sample: loc has chunks of .* loc\.compute_chunk_sizes\(\)"):
            jvm_dask.sample(KEY, lazy[lazy > 0], 4.0, shape)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(key=0), TypeError, "jax_von_mises.dask.sample: key must be"),
        (dict(loc="north"), TypeError, "jax_von_mises.dask.sample: loc must be"),
        (dict(concentration=np.ones(3)), ValueError, r"concentration has shape \(3,\), which does not broadcast"),
        (dict(shape=(-1,)), ValueError, "has a negative size"),
        (dict(dtype="int32"), TypeError, "dtype=int32 cannot hold an angle"),
        (dict(method="tables"), ValueError, "method='tables'"),
        (dict(method="table", concentration=np.ones(2)), ValueError, "method='table'"),
        (dict(chunks=(1, 2, 3)), ValueError, "[Cc]hunks"),
    ],
)
def test_invalid_arguments(change, error, message):
    with pytest.raises(error, match=message):
        jvm_dask.sample(**(dict(key=KEY, loc=0.0, concentration=4.0, shape=(4, 2)) | change))


def test_dask_that_is_not_installed(monkeypatch):
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "dask.array", None)
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delitem(sys.modules, "jax_von_mises.streams.dask")
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[dask\]"'):
        importlib.import_module("jax_von_mises.streams.dask")

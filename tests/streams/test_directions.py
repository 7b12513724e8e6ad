"""Test that streams and files of directions do not depend on how they are divided or on interruptions."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_von_mises
from tests.streams.test_writer import Stop, contents, finished, read, stop_after

KEY = jax.random.key(12)
MEAN = np.float32([0.6, 0.0, -0.8])
FISHER = "von-mises-fisher"


def write(out, total=1_000, mean=MEAN, **options):
    options = {"block_rows": 100, "distribution": FISHER, **options}
    return jax_von_mises.write_samples(out, KEY, mean, 4.0, total, **options)


def batches(total, size, mean=MEAN, **options):
    return jax_von_mises.sample_batches(KEY, mean, 4.0, total, size, distribution=FISHER, **options)


@pytest.fixture(scope="module")
def stream():
    return np.asarray(jax_von_mises.sample_von_mises_fisher(KEY, MEAN, 4.0, (1_000,), method="table"))


@pytest.fixture(params=["npy", "zarr"])
def out(request, tmp_path):
    return tmp_path / f"directions.{request.param}"


@pytest.mark.parametrize("donate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_batches_are_the_stream(stream, donate):
    """Batches, donated or not, and blocks are slices of the stream, whatever their position."""
    drawn = [np.array(batch) for batch in batches(850, 100, start=150, donate=donate)]
    assert [len(batch) for batch in drawn] == [100] * 8 + [50]
    np.testing.assert_array_equal(np.concatenate(drawn), stream[150:])
    block = jax_von_mises.sample_block(KEY, MEAN, 4.0, 200, (5, 20), distribution=FISHER)
    np.testing.assert_array_equal(block.reshape(100, 3), stream[200:300])


@pytest.mark.slow
def test_rows_of_several_directions():
    """Rows have one direction for each mean direction, and a row's position in the stream depends on its length."""
    means = np.stack([MEAN, -MEAN])
    (rows,) = batches(7, 7, means)
    again = np.concatenate([np.asarray(batch) for batch in batches(4, 2, means, start=3)])
    assert rows.shape == (7, 2, 3)
    np.testing.assert_array_equal(again, rows[3:])


@pytest.mark.slow
def test_sharded_batches(stream):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), "d"), PartitionSpec("d"))
    drawn = list(batches(200, 100, out_sharding=sharding))
    assert all(batch.sharding.is_equivalent_to(sharding, 2) for batch in drawn)
    np.testing.assert_array_equal(np.concatenate(drawn), stream[:200])
    with pytest.raises(ValueError, match=r"sample_batches: out_sharding=.* shards the components"):
        batches(200, 100, out_sharding=NamedSharding(sharding.mesh, PartitionSpec(None, "d")))


def test_interrupted_and_resumed(out, stream, tmp_path):
    """A resumed run writes the same bytes as an uninterrupted one."""
    with pytest.raises(Stop):
        write(out, progress=stop_after(4))
    assert not finished(out)
    assert write(out, resume=True)[1:6] == ((1_000, 3), "float32", 6, 4, True)
    np.testing.assert_array_equal(read(out), stream)
    (tmp_path / "alone").mkdir()
    write(tmp_path / "alone" / out.name)
    assert contents(out) == contents(tmp_path / "alone" / out.name)


def test_identity(out):
    write(out)
    drawn = jax_von_mises.verify_samples(out)["stream"]
    parameters = drawn["parameters"]
    assert (drawn["distribution"], parameters["concentration"], drawn["method"]) == (FISHER, "4.0", "table")
    assert np.float32(parameters["mean_direction"]["values"]).tolist() == MEAN.tolist()
    with pytest.raises(ValueError, match="holds another stream: mean_direction"):
        write(out, mean=-MEAN, resume=True)
    with pytest.raises(ValueError, match="holds another stream"):
        jax_von_mises.write_samples(out, KEY, np.zeros(3), 4.0, 1_000, block_rows=100, resume=True)


def test_repair(tmp_path, stream):
    out = tmp_path / "directions.npy"
    write(out)
    np.load(out, mmap_mode="r+")[250, 1] = 0
    with pytest.raises(ValueError, match="block 2 is missing or does not match"):
        jax_von_mises.verify_samples(out)
    assert write(out, resume=True, repair=True).drawn == 1
    np.testing.assert_array_equal(read(out), stream)


def test_parts(tmp_path, stream):
    """Three parts write the stream, even if the middle one runs last."""
    out = tmp_path / "directions.zarr"
    assert [write(out, part=part, parts=3).finished for part in (0, 2, 1)] == [False, False, True]
    np.testing.assert_array_equal(read(out), stream)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dtypes(tmp_path, dtype):
    """In each dtype, a run in five dimensions can be resumed."""
    mean = np.eye(5)[2]
    with jax.enable_x64(dtype == "float64"):
        for kind in ("npy", "zarr"):
            out = tmp_path / f"{dtype}.{kind}"
            with pytest.raises(Stop):
                write(out, 300, mean, dtype=dtype, progress=stop_after(2))
            assert write(out, 300, mean, dtype=dtype, resume=True).shape == (300, 5)
    assert np.linalg.norm(read(tmp_path / f"{dtype}.npy"), axis=1) == pytest.approx(1, abs=0.01)


def test_refusals(tmp_path):
    for change, error, message in (
        (
            {"distribution": "fisher"},
            ValueError,
            "distribution='fisher' is not one of .* 'von-mises', 'von-mises-fisher'",
        ),
        ({"mean": 0.5}, ValueError, "mean_direction has shape"),
        ({"total": 2**59}, ValueError, "rows of length 3 are too many"),
    ):
        with pytest.raises(error, match=message):
            write(tmp_path / "a.npy", **change)
    with pytest.raises(ValueError, match="2\\^64 numbers \\(each direction takes 2\\)"):
        batches(100, 100, start=2**63 - 150)

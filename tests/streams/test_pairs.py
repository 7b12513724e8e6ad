"""Test that streams and files of pairs of angles do not depend on how they are divided or on interruptions."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_von_mises
from tests.streams.test_writer import Stop, contents, finished, read, stop_after

KEY = jax.random.key(12)
LOC, CONCENTRATION = np.float32([0.5, -1.0]), np.float32([5.0, 6.0, -7.0])
CLASSES = {
    "sine-bivariate-von-mises": jax_von_mises.SineBivariateVonMises,
    "cosine-bivariate-von-mises": jax_von_mises.CosineBivariateVonMises,
}
SINE = "sine-bivariate-von-mises"


def write(out, total=1_000, concentration=CONCENTRATION, **options):
    options = {"block_rows": 100, "distribution": SINE, **options}
    return jax_von_mises.write_samples(out, KEY, LOC, concentration, total, **options)


def batches(total, size, concentration=CONCENTRATION, **options):
    options = {"distribution": SINE, **options}
    return jax_von_mises.sample_batches(KEY, LOC, concentration, total, size, **options)


def assert_stream(pairs, first=0, name=SINE):
    """Assert that the pairs are those of the stream from `first` on, up to rounding, which depends on the shape."""
    drawn = CLASSES[name](*LOC, *CONCENTRATION).sample(KEY, (1_000,), method="table")[first : first + len(pairs)]
    difference = np.float64(pairs) - np.float64(drawn)
    assert np.abs(np.remainder(difference + np.pi, 2 * np.pi) - np.pi).max() < 2e-6


@pytest.mark.parametrize("name", [SINE, pytest.param("cosine-bivariate-von-mises", marks=pytest.mark.slow)])
def test_batches_are_the_stream(name):
    """Batches, donated or not, and blocks are slices of the stream, whatever their position."""
    for donate in (False, True):
        drawn = [np.array(batch) for batch in batches(850, 100, start=150, donate=donate, distribution=name)]
        assert [len(batch) for batch in drawn] == [100] * 8 + [50]
        assert_stream(np.concatenate(drawn), 150, name)
    block = jax_von_mises.sample_block(KEY, LOC, CONCENTRATION, 200, (5, 20), distribution=name)
    assert_stream(block.reshape(100, 2), 200, name)


@pytest.mark.slow
def test_rows_of_several_pairs():
    """Rows have one pair for each set of parameters, and a row's position in the stream depends on its length."""
    sets = np.stack([CONCENTRATION, -CONCENTRATION * np.float32([-1, -1, 1])])
    (rows,) = batches(7, 7, sets)
    again = np.concatenate([np.asarray(batch) for batch in batches(4, 2, sets, start=3)])
    assert rows.shape == (7, 2, 2)
    np.testing.assert_allclose(again, rows[3:], atol=2e-6)


@pytest.mark.slow
def test_sharded_batches():
    mesh = Mesh(np.array(jax.devices()[:4]), "d")
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    drawn = list(batches(200, 100, out_sharding=sharding))
    assert all(batch.sharding.is_equivalent_to(sharding, 2) for batch in drawn)
    assert_stream(np.concatenate(drawn))
    with pytest.raises(ValueError, match=r"sample_batches: out_sharding=.* shards the components of a pair"):
        batches(200, 100, out_sharding=NamedSharding(mesh, PartitionSpec(None, "d")))
    explicit = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    with pytest.raises(ValueError, match="a mesh with explicit axes, over which pairs cannot be sharded"):
        batches(200, 100, out_sharding=NamedSharding(explicit, PartitionSpec("d")))


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_interrupted_and_resumed(kind, tmp_path):
    """A resumed run writes the same bytes as an uninterrupted one, and its record describes the stream."""
    out = tmp_path / f"pairs.{kind}"
    with pytest.raises(Stop):
        write(out, progress=stop_after(4))
    assert not finished(out)
    assert write(out, resume=True)[1:6] == ((1_000, 2), "float32", 6, 4, True)
    assert_stream(read(out))
    (tmp_path / "alone").mkdir()
    write(tmp_path / "alone" / out.name)
    assert contents(out) == contents(tmp_path / "alone" / out.name)
    drawn = jax_von_mises.verify_samples(out)["stream"]
    assert (drawn["distribution"], drawn["method"]) == (SINE, "table")
    assert np.float32(drawn["parameters"]["concentration"]["values"]).tolist() == CONCENTRATION.tolist()
    with pytest.raises(ValueError, match="holds another stream: concentration"):
        write(out, concentration=-CONCENTRATION, resume=True)


def test_parts(tmp_path):
    out = tmp_path / "parts.zarr"
    assert [write(out, part=part, parts=3).finished for part in (0, 2, 1)] == [False, False, True]
    assert_stream(read(out))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dtypes(tmp_path, dtype):
    """In each dtype, a resumed run writes the same bytes as an uninterrupted one."""
    out = tmp_path / "pairs.zarr"
    with jax.enable_x64(dtype == "float64"):
        with pytest.raises(Stop):
            write(out, 300, dtype=dtype, progress=stop_after(2))
        assert write(out, 300, dtype=dtype, resume=True).shape == (300, 2)
    (tmp_path / "alone").mkdir()
    with jax.enable_x64(dtype == "float64"):
        write(tmp_path / "alone" / out.name, 300, dtype=dtype)
    assert contents(out) == contents(tmp_path / "alone" / out.name)


def test_refusals(tmp_path):
    for name, change in (("loc", {"loc": 0.5}), ("concentration", {"concentration": [5.0, 6.0]})):
        parameters = {"loc": LOC, "concentration": CONCENTRATION, **change}
        with pytest.raises(ValueError, match=f"write_samples: {name} has shape .* its last axis must hold phi_{name}"):
            jax_von_mises.write_samples(tmp_path / "a.npy", KEY, **parameters, total=10, distribution=SINE)
    with pytest.raises(ValueError, match="2\\^64 numbers \\(each pair takes 2\\)"):
        batches(100, 100, start=2**63 - 50)

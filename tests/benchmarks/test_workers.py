"""Test that the benchmark of workers prints complete tables and times the records of `write_samples`."""

import pytest

from benchmarks import workers
from benchmarks.streaming.cases import Scratch
from jax_von_mises.streams import writer

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_records(tmp_path, kind):
    recorded, read = workers.records(300, Scratch(tmp_path), kind)
    assert recorded > 0 < read


@pytest.mark.slow
def test_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "QUICK", (10**5, 50, 1))
    monkeypatch.setattr(writer, "BLOCK_ANGLES", 2**15)
    workers.main(["--quick", "--directory", str(tmp_path)])
    output = capsys.readouterr().out
    assert "1e+05 float32 angles, 4 blocks, to Zarr; medians of 1 rounds" in output
    for row in ("one process", "1 worker", "2 workers", "npy", "zarr"):
        assert f"\n  {row} " in output
    assert not list(tmp_path.iterdir())

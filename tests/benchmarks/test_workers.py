"""Test that the benchmark of workers prints complete tables and resumes the runs that it makes."""

import pytest

from benchmarks import workers
from jax_von_mises.streams import writer

pytest.importorskip("zarr", reason="zarr-python is not installed (extra `storage`)")


@pytest.mark.slow
def test_tables(tmp_path, monkeypatch, capsys):
    for module, name, value in (
        *((workers, "QUICK", 10**5), (workers, "BLOCKS", 50), (workers, "ROUNDS", 1), (workers, "RESUMES", 1)),
        (writer, "BLOCK_NUMBERS", 2**15),
    ):
        monkeypatch.setattr(module, name, value)
    workers.main(["--quick", "--directory", str(tmp_path)])
    output = capsys.readouterr().out
    assert "1e+05 float32 angles, 4 blocks, to Zarr; medians of 1 rounds" in output
    assert "a run of 50 blocks (1.6e+06 angles)" in output
    for row in ("one process", "1 worker", "2 workers", "npy", "zarr"):
        assert f"\n  {row} " in output
    assert not list(tmp_path.iterdir())

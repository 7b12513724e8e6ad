"""Test that the workers of any executor write the same bytes, even if tasks are reordered, lost or repeated."""

import multiprocessing
import os
import pickle
import time
from concurrent import futures

import jax
import numpy as np
import pytest

from jax_von_mises.streams import blocks
from jax_von_mises.streams.npy import NpyFile
from tests.streams.test_writer import KINDS, Stop, as_alone, blocks_of, contents, damage, shifted, stop_after, write

ROWS = dict(total=40_000, block_rows=4_096)  # complete pages, as several writers of a .npy file need


class Pickling(futures.ThreadPoolExecutor):
    """An executor that sends pickled tasks to its threads, as others send them to processes, and counts them."""

    def __init__(self, workers=2):
        super().__init__(workers)
        self.sent, self.waiting, self.most = [], 0, 0

    def submit(self, task, /, *arguments):
        """Pickle the task, and submit the bytes."""
        self.sent.append(pickle.dumps((task, arguments)))
        future = super().submit(self.run, self.sent[-1])
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future.add_done_callback(self.ended)
        return future

    def ended(self, _):
        """Count a finished task."""
        self.waiting -= 1

    @staticmethod
    def run(sent):
        """Run a received task."""
        task, arguments = pickle.loads(sent)
        return task(*arguments)


@pytest.fixture
def here():
    blocks.prepare.cache_clear()
    blocks.target_of.cache_clear()
    with Pickling() as executor:
        yield executor


@pytest.mark.parametrize("kind", KINDS)
def test_threads(tmp_path, here, kind):
    """Tasks are small, and resumed and repaired runs use the workers too."""
    out = tmp_path / f"a.{kind}"
    with pytest.raises(Stop):
        write(out, **ROWS, executor=here, progress=stop_after(3))
    assert 3 <= blocks_of(out) < 10
    damage_rows(out)
    assert write(out, **ROWS, resume=True, repair=True, executor=here).finished
    assert max(map(len, here.sent)) < 1_000
    as_alone(out, tmp_path, **ROWS)


def damage_rows(out):
    """Flip a bit of block 0, if it is finished."""
    if out.suffix == ".npy" or (out / "c.0").exists():
        damage(out, 0)


def test_a_window_of_tasks_waits(tmp_path, here, monkeypatch):
    monkeypatch.setattr(blocks, "WINDOW", 3)
    write(tmp_path / "a.zarr", executor=here)
    assert here.most <= 3
    as_alone(tmp_path / "a.zarr", tmp_path)


def test_finished_blocks_are_kept_when_a_task_fails(tmp_path, here, monkeypatch):
    """The error of a task reaches the caller, after the blocks that were finished before it."""
    out, real = tmp_path / "a.npy", NpyFile.put

    def fail(self, block, rows):
        if block == 5:
            raise OSError(28, "No space left on device")
        return real(self, block, rows)

    monkeypatch.setattr(NpyFile, "put", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write(out, **ROWS, executor=here)
    monkeypatch.undo()
    kept = blocks_of(out)
    assert f"{kept} of 10 blocks are finished; continue with `resume`" in raised.value.__notes__
    assert write(out, **ROWS, resume=True)[3:] == (10 - kept, kept, True)
    as_alone(out, tmp_path, **ROWS)


def test_worker_with_other_last_digits_is_refused(tmp_path, here, monkeypatch):
    out = tmp_path / "a.zarr"
    with pytest.raises(Stop):
        write(out, progress=stop_after(2))
    before = contents(out)
    shifted(monkeypatch)
    with pytest.raises(ValueError, match="this machine draws other last digits"):
        write(out, resume=True, executor=here)
    assert contents(out) == before


def test_blocks_that_share_pages(tmp_path, here):
    with pytest.raises(ValueError, match=r"block_rows=1000 splits pages .* Give a multiple of 4096, leave out"):
        write(tmp_path / "a.npy", executor=here)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.more
def test_long_parameters_and_float64(tmp_path, here):
    """A worker draws float64 even though x64 mode is off in its thread, with parameters of any length."""
    loc = np.linspace(-3, 3, 64)
    with jax.enable_x64(True):
        arguments = dict(total=330, loc=loc, dtype="float64", block_rows=64)
        write(tmp_path / "a.zarr", **arguments, executor=here)
        as_alone(tmp_path / "a.zarr", tmp_path, **arguments)


def end(number):
    """End this worker, as if it had run out of memory."""
    time.sleep(number)
    os._exit(1)


@pytest.mark.slow
def test_worker_of_a_pool_dies(tmp_path):
    """A pool does not restart its workers, so the run ends with its error; another pool goes on."""
    out, context = tmp_path / "a.zarr", multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(2, context) as pool:
        with pytest.raises(Stop):
            write(out, executor=pool, progress=stop_after(2))
        pool.submit(end, 0)
        with pytest.raises(futures.BrokenExecutor):
            write(out, resume=True, executor=pool)
    with futures.ProcessPoolExecutor(2, context) as pool:
        assert write(out, resume=True, executor=pool).finished
    as_alone(out, tmp_path)


def write_part(out, part):
    """Write one of three parts. This is the body of a process."""
    write(out, part=part, parts=3)


@pytest.mark.more
def test_three_parts_in_three_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_part, args=(tmp_path / "a.zarr", part)) for part in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    as_alone(tmp_path / "a.zarr", tmp_path)


@pytest.mark.slow
def test_dask_that_loses_two_of_four_workers(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
    out, killed = tmp_path / "a.zarr", []
    options = dict(n_workers=4, threads_per_worker=1, dashboard_address=":0", processes=True)
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        processes = list(client.run(os.getpid).values())

        def progress(done, total):
            if done and not killed:
                killed.extend(processes[:2])
                for process in killed:
                    os.kill(process, 9)

        assert write(out, 100_000, executor=client.get_executor(retries=2), progress=progress).finished
    assert len(killed) == 2
    as_alone(out, tmp_path, total=100_000)


def test_dask(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
    options = dict(n_workers=3, threads_per_worker=1, dashboard_address=":0", processes=False)
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert write(tmp_path / "a.zarr", executor=client.get_executor()).drawn == 10
    as_alone(tmp_path / "a.zarr", tmp_path)

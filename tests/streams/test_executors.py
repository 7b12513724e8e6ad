"""Test that the workers of any executor write the same bytes, even if tasks are reordered, lost or repeated."""

import collections
import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent import futures

import jax
import numpy as np
import pytest

import jax_von_mises
from jax_von_mises import environment
from jax_von_mises.streams import checkpoint, executors, npy, writer, zarr
from tests import children
from tests.streams.test_writer import KEY, KINDS, Stop, contents, read, recorded, stop_after, write

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")


def same_as_alone(out, tmp_path, **arguments):
    """Assert that the target has the bytes that this process alone would write."""
    (tmp_path / "alone").mkdir(exist_ok=True)
    write(tmp_path / "alone" / out.name, **arguments)
    assert contents(out) == contents(tmp_path / "alone" / out.name)


class Here(futures.ThreadPoolExecutor):
    """An executor that pickles tasks, counts their bytes, and runs them in threads."""

    def __init__(self, workers=2):
        super().__init__(workers)
        self.sent = collections.Counter()
        self.submitted, self.serials = [], []

    def submit(self, task, /, *arguments):
        """Pickle the task, as other executors do, and submit the bytes."""
        sent = pickle.dumps((task, arguments))
        self.sent[task.__name__] += len(sent)
        self.submitted.append(task.__name__)
        self.serials.append(arguments[0])
        return super().submit(self.run, sent)

    def run(self, sent):
        """Run a received task."""
        task, arguments = pickle.loads(sent)
        return task(*arguments)


class Jobs(threading.local):
    """A replacement for `executors._assignments` that keeps separate jobs for each thread."""

    def __init__(self):
        self.kept = {}

    def __getattr__(self, name):
        return getattr(self.kept, name)

    def __len__(self):
        return len(self.kept)

    def __iter__(self):
        return iter(self.kept)

    def __setitem__(self, name, value):
        self.kept[name] = value


@pytest.fixture
def here(monkeypatch):
    """Yield an executor with two threads of this process, each of which counts as a worker process."""
    monkeypatch.setattr(executors, "PAUSE", 0.02)
    monkeypatch.setattr(executors, "has_ended", lambda process: False)
    monkeypatch.setattr(executors, "_assignments", Jobs())
    monkeypatch.setattr(
        executors, "this_worker", lambda: executors.Worker("host", threading.get_ident(), "cores", "cards")
    )
    with Here() as executor:
        yield executor


@pytest.fixture(scope="module")
def pool():
    """Yield a pool of two processes, which start in the same way on every system."""
    with futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("kind", KINDS)
def test_process_pool(tmp_path, pool, kind):
    """Two processes write one file or store."""
    out = tmp_path / f"a.{kind}"
    assert write(out, executor=pool)[:6] == (str(out), (10_000,), "float32", 10, 0, True)
    same_as_alone(out, tmp_path)


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dask(tmp_path, monkeypatch, processes):
    """Dask's workers may be threads or processes; a failed task is repeated if Dask is set to retry."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
    options = dict(n_workers=3, threads_per_worker=1, dashboard_address=":0", processes=processes)
    out = tmp_path / "a.zarr"
    real, failures = zarr.ZarrStore.write, [OSError("once"), OSError("and again")]

    def fail(*arguments):
        if failures:
            raise failures.pop()
        real(*arguments)

    if not processes:
        monkeypatch.setattr(zarr.ZarrStore, "write", fail)
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert write(out, executor=client.get_executor(retries=2)).drawn == 10
    assert processes or not failures
    same_as_alone(out, tmp_path)


MPI = """
import pathlib, sys
from mpi4py.futures import MPIPoolExecutor
from tests.streams.test_writer import write

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        write(pathlib.Path(sys.argv[1]), executor=executor)
"""


@pytest.mark.slow
def test_mpi(tmp_path):
    """Two workers started by MPI write the blocks, and a third process records them."""
    pytest.importorskip("mpi4py.futures", reason="mpi4py is not installed")
    where = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    mpiexec = shutil.which("mpiexec", path=where)
    if mpiexec is None:
        pytest.skip("mpiexec is not installed")
    out, program = tmp_path / "a.zarr", tmp_path / "program.py"
    program.write_text(MPI)
    command = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", program, out]
    subprocess.run(command, check=True, timeout=120, env=children.environment(JAX_PLATFORMS="cpu"))
    same_as_alone(out, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_float64(tmp_path, pool, kind):
    """Workers draw float64 even though x64 mode is off in their processes."""
    with jax.enable_x64(True):
        arguments = dict(total=330, loc=np.linspace(-3, 3, 5), dtype="float64", block_rows=100)
        out = tmp_path / f"a.{kind}"
        write(out, **arguments, executor=pool)
        same_as_alone(out, tmp_path, **arguments)


def test_interrupted_and_resumed_by_others(tmp_path, pool, here):
    """Threads, a pool of processes and the test itself can take turns at one run."""
    out = tmp_path / "a.zarr"
    kept = 0
    for executor in (None, here, pool):
        with pytest.raises(Stop) as stopped:
            write(out, 40_000, resume=True, executor=executor, observe=stop_after(2))
        assert kept < len(recorded(out)) < 40
        kept = len(recorded(out))
        assert stopped.value.__notes__ == [f"{kept} of 40 blocks kept; continue with resume=True"]
    assert write(out, 40_000, resume=True).kept == kept
    same_as_alone(out, tmp_path, total=40_000)


def test_repair(tmp_path, here):
    out = tmp_path / "a.npy"
    write(out)
    data = bytearray(out.read_bytes())
    data[4_096 + 3 * 4_000] ^= 1
    out.write_bytes(data)
    assert write(out, resume=True, repair=True, executor=here).drawn == 1
    assert "redraw_block" in here.submitted  # a worker checks that its machine draws the same angles
    same_as_alone(out, tmp_path)


def test_parts_with_workers(tmp_path, here):
    out = tmp_path / "a.zarr"
    assert not write(out, part=1, parts=2, executor=here).finished
    assert write(out, part=0, parts=2, executor=here).finished
    same_as_alone(out, tmp_path)


def test_observed_blocks_are_read_again(tmp_path, here):
    seen, rows = [], []
    out = tmp_path / "a.npy"
    write(out, executor=here, observe=rows.append, progress=lambda *done: seen.append(done))
    assert seen[0] == (0, 10_000)
    assert seen[-1] == (10_000, 10_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.sort(read(out)))


def test_parameters_travel_once_per_worker(tmp_path, here):
    """Parameters are not sent with every block, and few blocks are submitted in advance."""
    loc = np.linspace(-3, 3, 20_000, dtype=np.float32)
    arguments = dict(total=100, loc=loc, block_rows=1)
    queued = []
    out = tmp_path / "a.npy"
    write(out, **arguments, executor=here, progress=lambda *_: queued.append(here._work_queue.qsize()))
    assert here.submitted.count("write_block") >= 100
    assert here.sent["brief"] + here.sent["write_block"] < 5 * loc.nbytes
    assert max(queued) <= 6
    same_as_alone(out, tmp_path, **arguments)


def test_worker_that_joins_later_asks_for_the_job(tmp_path, here, monkeypatch):
    """A worker that was not briefed gets the job when its block is submitted again."""
    monkeypatch.setattr(executors.Crew, "brief", lambda self, job, marks=None: None)
    out = tmp_path / "a.zarr"
    write(out, executor=here)
    assert len(here.submitted) > here.submitted.count("write_block") >= 12
    same_as_alone(out, tmp_path)


def test_compiled_once(tmp_path):
    """A worker reuses its compiled program for later blocks and runs."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    with Here(1) as executor:
        write(tmp_path / "a.npy", executor=executor)
        before = len(compiled)
        write(tmp_path / "b.npy", 30_000, executor=executor)
    assert len(compiled) == before


def test_repeated_block_is_the_same(tmp_path, here):
    """A block stays the same if the executor repeats its task, for example after a lost answer."""
    real = executors.Crew._submit

    def twice(self, about, task, *arguments):
        real(self, about, task, *arguments)
        if task is executors.write_block:
            self.executor.submit(task, next(self._serial), *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors.Crew, "_submit", twice)
        write(tmp_path / "a.zarr", executor=here)
    same_as_alone(tmp_path / "a.zarr", tmp_path)


def test_verified_by_workers(tmp_path, here):
    """Workers read the blocks, and a damaged block is reported."""
    out = tmp_path / "a.zarr"
    write(out)
    assert jax_von_mises.verify_samples(out, executor=here) == jax_von_mises.verify_samples(out)
    path = out / "c" / "7"
    path.write_bytes(path.read_bytes().replace(path.read_bytes()[:4], b"abcd", 1))
    with pytest.raises(writer.Damaged, match=r": block 7 does not match its checksum"):
        jax_von_mises.verify_samples(out, executor=here)
    assert len(set(here.serials)) == len(here.serials)  # Dask may run equal tasks only once


def test_batches_of_workers(here):
    """Batches from workers are NumPy arrays in the order of the stream, and only a few are drawn in advance."""
    expected = np.asarray(jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, 2_500, start=70).__next__())
    batches = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, 100, start=70, executor=here)
    assert len(batches) == 25
    first = next(batches)
    assert isinstance(first, np.ndarray)
    assert here.submitted.count("draw_rows") <= 5
    np.testing.assert_array_equal(np.concatenate([first, *batches]), expected)
    with jax_von_mises.prefetch_to_host(jax_von_mises.sample_batches(KEY, 0.5, 4.0, 10**9, 100, executor=here)) as host:
        assert len(next(host)) == 100
    with pytest.raises(ValueError, match="donate and out_sharding apply only to batches drawn in this process"):
        jax_von_mises.sample_batches(KEY, 0.5, 4.0, 100, 100, donate=True, executor=here)


def batches_by(executor, total=2_500):
    return jax_von_mises.sample_batches(KEY, 0.5, 4.0, total, 100, executor=executor)


def test_consumed_batches_are_freed(here):
    batches = batches_by(here)
    references = [weakref.ref(batch) for batch in batches]
    gc.collect()
    assert len(references) == 25
    assert not any(reference() is not None for reference in references[:-1])


class Interrupted(Here):
    """An executor that raises KeyboardInterrupt at the given submissions, counted from 0."""

    def __init__(self, at):
        super().__init__()
        self.at, self.count = at, itertools.count()

    def submit(self, task, /, *arguments):
        """Submit the task, or raise KeyboardInterrupt if the submission is in `at`."""
        if next(self.count) in self.at:
            raise KeyboardInterrupt
        return super().submit(task, *arguments)


def test_interrupted_batches_continue(here):
    """After an interrupt, even one while the workers are being found, iteration continues with the next batch."""
    expected = np.concatenate(list(batches_by(here)))
    with Interrupted({2, 30}) as executor:
        batches, drawn, interrupts = batches_by(executor), [], 0
        while len(batches):
            try:
                drawn.append(next(batches))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 2
    np.testing.assert_array_equal(np.concatenate(drawn), expected)


def test_threads_share_batches(here):
    """Each batch goes to exactly one of the threads."""
    expected = {batch.tobytes() for batch in batches_by(here)}
    batches = batches_by(here)
    with futures.ThreadPoolExecutor(3) as threads:
        received = list(threads.map(list, [batches] * 3))
    drawn = [batch.tobytes() for each in received for batch in each]
    assert len(drawn) == 25
    assert set(drawn) == expected


def test_batches_do_not_wait_forever(here, monkeypatch):
    """The wait for a worker that hangs times out, and the message names the function that was called."""
    monkeypatch.setattr(executors.Crew.__init__, "__defaults__", (1.0,))
    batches = batches_by(here)
    next(batches)
    held = threading.Event()
    monkeypatch.setattr(here, "run", lambda _: held.wait())
    with pytest.raises(TimeoutError, match=r"a task for 1 s\. .* end it, and call sample_batches again"):
        list(batches)
    held.set()


# Failures


def end(_serial, run, block, job=None):
    """Run `write_block`; from block 4 on, kill this process instead."""
    if block >= 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return executors.write_block(_serial, run, block, job)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_broken_pool(tmp_path, monkeypatch):
    """If a pool loses its only worker, which it does not restart, the run can be resumed without the pool."""
    out = tmp_path / "a.zarr"
    monkeypatch.setattr(executors, "write_block", end)
    with (
        futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        pytest.raises(executors.ExecutorFailed, match=r"lost its workers \(BrokenProcessPool.*resume=True") as failed,
    ):
        write(out, executor=pool)
    monkeypatch.undo()
    (note,) = failed.value.__notes__
    kept = int(note.split()[0])
    assert note == f"{kept} of 10 blocks kept; continue with resume=True"
    assert 1 <= kept <= 4
    assert write(out, resume=True)[:6] == (str(out), (10_000,), "float32", 10 - kept, kept, True)
    same_as_alone(out, tmp_path)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(28, "No space left on device"), OSError, "No space left on device"),
        (futures.CancelledError(), executors.ExecutorFailed, "has lost its workers .* continue with resume=True"),
        (ConnectionResetError("gone"), executors.ExecutorFailed, "has lost its workers"),
        (RuntimeError("out of memory on the device"), executors.ExecutorFailed, "RuntimeError: out of memory on"),
    ],
)
def test_task_that_fails(tmp_path, here, monkeypatch, error, expected, message):
    """If a task fails, the blocks that other workers have finished by then are recorded."""
    out = tmp_path / "a.npy"
    real, calls = npy.NpyFile.write, []

    def fail(self, *arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise error
        real(self, *arguments)

    monkeypatch.setattr(npy.NpyFile, "write", fail)
    with pytest.raises(expected, match=message) as failed:
        write(out, executor=here)
    monkeypatch.setattr(npy.NpyFile, "write", real)
    kept = len(recorded(out))
    assert kept >= 4 - 2 * (expected is not OSError)
    assert failed.value.__notes__ == [f"{kept} of 10 blocks kept; continue with resume=True"]
    assert write(out, resume=True, executor=here).kept == kept
    same_as_alone(out, tmp_path)


def test_worker_that_hangs(tmp_path, here, monkeypatch):
    """If a worker hangs, the run times out; the worker does no harm if it continues later."""
    out = tmp_path / "a.npy"
    real, hang = npy.NpyFile.write, threading.Event()

    def stuck(self, first, rows):
        if first >= 4_000:
            hang.wait(60)
        real(self, first, rows)

    monkeypatch.setattr(npy.NpyFile, "write", stuck)
    with pytest.raises(TimeoutError, match=r"no worker finished a task for 0\.3 s.*a worker that hangs.*resume=True"):
        write(out, executor=here, timeout=0.3)
    monkeypatch.undo()
    kept = len(recorded(out))
    assert kept >= 3
    assert write(out, resume=True).kept == kept
    before = contents(out)
    hang.set()
    here.shutdown()
    assert contents(out) == before
    same_as_alone(out, tmp_path)


def test_late_block_of_another_run_is_not_written(tmp_path, here, monkeypatch):
    """A suspended worker that continues does not write to the file of a new run."""
    monkeypatch.setattr(executors, "LAG", 0.1)
    out = tmp_path / "a.npy"
    jobs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors.Crew, "brief", lambda self, job, marks=None: jobs.append(job))
        with pytest.raises(Stop):
            write(out, executor=here, observe=stop_after(1))
    with Here(1) as one:
        late = lambda: one.submit(executors.write_block, "0", jobs[0].run, 7, jobs[0]).result()  # noqa: E731
        assert isinstance(late(), executors.Done)  # written, but not recorded, since the run has ended
        with pytest.raises(Stop):
            write(out, loc=1.0, force=True, observe=stop_after(2))
        before = contents(out)
        with pytest.raises(checkpoint.ForeignTargetError, match="no longer belongs to this run"):
            late()
    with Here(1) as one:
        assert "does not see the record" in late().trouble  # a new worker refuses before it draws
    assert contents(out) == before
    assert write(out, loc=1.0, resume=True).kept == 2
    same_as_alone(out, tmp_path, loc=1.0)


class Held:
    """A replacement for `write` that holds workers until they are released, as if their processes were suspended."""

    def __init__(self, patch, kind):
        self.reached, self.go = threading.Event(), threading.Event()
        target = {"npy": npy.NpyFile, "zarr": zarr.ZarrStore}[kind]
        self.write_rows = target.write
        patch.setattr(target, "write", lambda target, first, rows: self.write(target, first, rows))

    def write(self, target, first, rows):
        """Write the rows; in a worker, wait for the release first."""
        if threading.current_thread() is not threading.main_thread():
            self.reached.set()
            self.go.wait()
        self.write_rows(target, first, rows)


def test_late_write_of_another_run_has_no_effect(tmp_path, monkeypatch):
    """A worker that is suspended during a write does not change the file of a new run when it continues."""
    out, held = tmp_path / "a.npy", Held(monkeypatch, "npy")
    with futures.ThreadPoolExecutor(1) as old:
        with pytest.raises(TimeoutError):
            write(out, executor=old, timeout=1)
        assert held.reached.is_set()
        with pytest.raises(Stop):
            write(out, loc=1.0, force=True, observe=stop_after(2))
        held.go.set()
    assert write(out, loc=1.0, resume=True).kept == 2
    same_as_alone(out, tmp_path, loc=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_run_without_a_recorded_block_can_be_resumed(tmp_path, monkeypatch, kind):
    """A run that times out before its first block is recorded keeps its files, since its workers may still write."""
    out, held = tmp_path / f"a.{kind}", Held(monkeypatch, kind)
    with futures.ThreadPoolExecutor(1) as old:
        with pytest.raises(TimeoutError) as error:
            write(out, executor=old, timeout=1)
        assert "0 of" in error.value.__notes__[0]
        held.go.set()
    write(out, resume=True)
    same_as_alone(out, tmp_path)


def hide(folder):
    """Hide a directory from this worker by mounting an empty, private file system over it."""
    libc = ctypes.CDLL(None, use_errno=True)
    newns, private = 0x00020000, 0x44000
    if libc.unshare(newns) or libc.mount(None, b"/", None, private, None):
        raise OSError(ctypes.get_errno(), "cannot hide")
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "cannot hide")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_worker_that_does_not_see_the_target(tmp_path, kind):
    """A worker that does not see the target causes an error, and no file is left."""
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context, initializer=hide, initargs=(tmp_path,)) as pool:
        try:
            pool.submit(int).result()
        except futures.BrokenExecutor:
            pytest.skip("this machine does not let users mount file systems")
        with pytest.raises(OSError, match=r"worker \d+ on .* cannot take part: .*All workers must reach") as failed:
            write(tmp_path / f"a.{kind}", executor=pool)
    assert failed.value.__notes__ == ["nothing was kept"]
    assert not contents(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("finished", "options"),
    [(False, dict(force=True)), (True, dict(force=True)), (False, dict(resume=True)), (True, dict(resume=True))],
)
def test_refused_worker_changes_nothing(tmp_path, here, monkeypatch, kind, finished, options):
    """If a worker does not see the target, no byte of it changes, even with `force` or `repair`."""
    monkeypatch.setattr(executors, "SIGHT", 0.1)
    out = tmp_path / f"a.{kind}"
    with contextlib.nullcontext() if finished else pytest.raises(Stop):
        write(out, observe=None if finished else stop_after(4))
    path = {"npy": out if finished else tmp_path / "a.npy.partial", "zarr": out / "c" / "2"}[kind]
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    before, target = contents(out), {"npy": npy.NpyFile, "zarr": zarr.ZarrStore}[kind]
    real = target.marks
    blind = lambda self: iter(()) if threading.current_thread() is not threading.main_thread() else real(self)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(target, "marks", blind)
        with pytest.raises(
            OSError,
            match=r"cannot take part: it does not see the record that the caller wrote\. All workers must reach",
        ):
            write(out, **options, repair="resume" in options, executor=here)
        assert contents(out) == before
    assert write(out, **options, repair="resume" in options, executor=here).finished
    same_as_alone(out, tmp_path)


def test_record_that_a_worker_sees_late(tmp_path, here, monkeypatch):
    """A worker waits for a record that becomes visible late, as on network file systems, which cache old answers."""
    out, real, looks = tmp_path / "a.npy", npy.NpyFile.runs, []
    monkeypatch.setattr(executors, "LAG", 1.5)
    monkeypatch.setattr(
        npy.NpyFile, "runs", lambda self, run: looks.append(run) or (len(looks) > 4 and real(self, run))
    )
    assert write(out, executor=here).finished
    same_as_alone(out, tmp_path)


def test_workers_of_different_kinds(here):
    """Workers with another JAX release or kind of device are refused, since their angles may differ slightly."""
    crew = executors.Crew("write_samples", here, 1.0)
    worker = executors.Worker("a", 1, "", "")
    crew._admit(executors.Briefed(worker, ("0.10.2", "cpu")))
    with pytest.raises(ValueError, match=r"worker 1 on b draws with JAX 0\.10\.2 on NVIDIA H100, but others draw with"):
        crew._admit(executors.Briefed(worker._replace(host="b"), ("0.10.2", "NVIDIA H100")))


def test_file_whose_pages_two_machines_would_share(tmp_path, here, monkeypatch):
    """Blocks of two machines must not share a page, since network file systems write complete pages."""
    names = iter("ab" * 100)
    monkeypatch.setattr(
        executors, "this_worker", lambda: executors.Worker(next(names), threading.get_ident(), "cores", "cards")
    )
    with pytest.raises(ValueError, match=r"block_rows=1000 splits pages of 4096 bytes.*Give a multiple of 1024, or"):
        write(tmp_path / "a.npy", executor=here)
    assert not contents(tmp_path / "a.npy")
    write(tmp_path / "b.npy", 10_240, block_rows=1_024, executor=here)


# Resources shared by the workers of one machine


def job(**sharing):
    return executors.Job("write_samples", "run", None, (), 0, 0, 1, sharing)


@pytest.fixture
def fresh(monkeypatch):
    """Simulate a worker in which JAX has not started; return a record of the cores and the GPU that it is given."""
    settings = {"cores": [], "gpu": None}
    monkeypatch.setattr(executors, "_shared", False)
    monkeypatch.setattr(executors, "has_ended", lambda process: False)
    monkeypatch.setattr(executors, "this_worker", lambda: executors.Worker("host", os.getpid(), "cores", "cards"))
    monkeypatch.setattr(jax.config, "update", lambda name, value: settings.update(gpu=(name, value)))
    if hasattr(os, "sched_setaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: settings["cores"].append(list(cores)))
    return settings


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot restrict a process to cores")
@pytest.mark.parametrize(
    ("others", "cores"),
    [
        ([], None),
        ([1, 2, 3], [6, 7]),
        ([1, 2], [5, 6, 7]),
        (list(range(1, 16)), [7]),
    ],
)
def test_cores_are_divided(fresh, monkeypatch, others, cores):
    """XLA's threads inherit a share of the cores; the task's thread regains all cores once JAX has started."""
    monkeypatch.setattr(executors, "uses_cuda", lambda: False)
    executors.take_share(job(cores=[*others, os.getpid()]))
    assert fresh["cores"] == ([] if cores is None else [cores, list(range(8))])
    executors.take_share(job(cores=[os.getpid(), 1]))
    assert len(fresh["cores"]) == 2 * (cores is not None)  # once per process


def test_place_of_a_later_worker(monkeypatch):
    """A later worker takes the place, and thus the GPU, of one that has ended; each machine counts its own workers."""
    me = os.getpid()
    monkeypatch.setattr(executors, "has_ended", lambda process: process == 2)
    assert executors.place([1, 2, 3, me]) == (1, 3)
    assert executors.place([]) == (0, 1)
    monkeypatch.setattr(executors, "has_ended", lambda process: False)
    assert executors.place([1, 2, 3]) == (3, 4)
    assert executors.place([1, me, 3]) == (1, 3)
    monkeypatch.undo()
    assert not executors.has_ended(os.getpid())
    crew = executors.Crew("write_samples", Here(1), 1.0)
    for process, host in ((1, "a"), (2, "a"), (7, "a"), (8, "b"), (9, "b")):
        crew.workers[host, process] = executors.Worker(host, process, f"{host} cores", f"{host} cards")
    first, second = [1, 2, 7], [8, 9]
    assert crew.sharing() == {"a cores": first, "a cards": first, "b cores": second, "b cards": second}


@pytest.mark.parametrize(
    ("others", "gpus", "chosen"), [([], 4, "0"), ([1, 2, 3], 4, "3"), ([1], 8, "1"), ([1], 0, None)]
)
def test_one_gpu_for_each_worker(fresh, monkeypatch, others, gpus, chosen):
    monkeypatch.setattr(executors, "uses_cuda", lambda: True)
    monkeypatch.setattr(environment, "nvidia_gpus", lambda: gpus)
    executors.take_share(job(cards=[*others, os.getpid()]))
    assert fresh["gpu"] == (chosen and ("jax_cuda_visible_devices", chosen))


def test_more_workers_than_gpus(fresh, monkeypatch):
    """Workers share GPUs only if the user has divided the GPU memory."""
    monkeypatch.setattr(executors, "uses_cuda", lambda: True)
    monkeypatch.setattr(environment, "nvidia_gpus", lambda: 2)
    for name in executors.SHARED:
        monkeypatch.delenv(name, raising=False)
    crowd = job(cards=[1, 2, os.getpid()])
    with pytest.raises(ValueError, match=r"3 workers on host share 2 GPUs\. Start one worker per GPU; or set"):
        executors.take_share(crowd)
    monkeypatch.setattr(executors, "_shared", False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    executors.take_share(crowd)
    assert fresh["gpu"] == ("jax_cuda_visible_devices", "0")


@pytest.mark.parametrize(("shown", "count"), [(None, 3), ("0,1", 2), ("", 0), ("GPU-a", 1), ("0,1,2,3", 3)])
def test_gpus_are_counted_without_jax(tmp_path, monkeypatch, shown, count):
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(environment, "PROC_GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert environment.nvidia_gpus() == count


def cores_of_threads(_):
    """Return the process ID, the cores of this thread, and the number of XLA threads on each set of cores."""
    time.sleep(0.1)
    mine, counts = None, collections.Counter()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as file:
            lines = dict(line.split(":\t", 1) for line in file.read().splitlines())
            if int(task) == threading.get_native_id():
                mine = lines["Cpus_allowed_list"]
            elif "Eigen" in lines["Name"]:
                counts[lines["Cpus_allowed_list"]] += 1
    return os.getpid(), mine, dict(counts)


def test_threads_of_two_workers(tmp_path, pool):
    """The XLA threads of two workers have disjoint cores, and the threads of their tasks may use all cores."""
    if not os.path.exists("/proc/self/task") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs /proc and two cores or more")
    write(tmp_path / "a.npy", executor=pool)
    reports = {pid: rest for pid, *rest in pool.map(cores_of_threads, range(8))}
    assert len(reports) == 2
    (mine, first), (_, second) = reports.values()
    assert mine == cores_of_threads(0)[1]
    assert first
    assert second
    assert not set(first) & set(second)
    assert mine not in first

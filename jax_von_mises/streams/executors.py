"""Draw and write blocks in the workers of an executor.

Any `concurrent.futures.Executor` can schedule the tasks, which are independent and can be repeated. Tasks that write
return only a few bytes. The caller finds the workers (`meet`) and gives each a `Job` (`brief`). Afterwards a task
contains only the name of the run and the number of a block (`write_block`). A worker keeps its latest jobs, with the
compiled program and, from its first block on, the open target. A worker that joins later answers `Unknown`, and its
block is then submitted again with the job.
"""

import collections
import contextlib
import hashlib
import importlib.util
import itertools
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_von_mises import arguments, environment
from jax_von_mises.streams import checkpoint
from jax_von_mises.streams.stream import Description, Spans, Stream, split_evenly
from jax_von_mises.streams.target import Place, Target, checksum, open_target, stored_checksum

# Seconds that `meet` keeps a worker busy, so that the next task goes to another one.
PAUSE = 0.1
# Seconds within which all processes of a pool should have started.
START = 3.0
# Attempts to give a job to all workers.
ROUNDS = 8
# Seconds for which a record may stay invisible on another machine. SIGHT applies when a worker first looks for it. LAG
# applies to a worker that may have looked before, since NFS remembers for a minute that a file did not exist.
SIGHT = 3.0
LAG = 70.0
REACH = "All workers must reach the target under the same name, on a shared file system or in an object store."
OUT_OF_SIGHT = f"it does not see the record that the caller wrote. {REACH}"
# Maximum number of jobs that a worker keeps.
KEPT = 2
# Seconds without a finished task after which a run gives up on its workers, unless the caller sets a limit.
TIMEOUT = 600.0
# Seconds to wait, when a run ends early, for blocks that are still being written, in order to record them.
GRACE = 10.0

# Environment variables that limit the GPUs that a process sees, and those that are set if processes share a GPU.
SHOWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
SHARED = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


class ExecutorFailed(RuntimeError):
    """The executor has lost its workers, or a task failed for a reason other than files, arguments or memory."""


class Worker(NamedTuple):
    """A process that runs tasks. Workers with equal `cores` (or `cards`) share these cores (or GPUs)."""

    host: str
    process: int
    cores: str
    cards: str


class Job(NamedTuple):
    """Everything a worker needs to draw and write blocks of one run."""

    caller: str
    run: str
    """Name of the run, as in the head of its record."""
    stream: Description
    target: Place | None
    """Arguments of `open_target`; None to return the rows to the caller."""
    start: int
    stop: int
    """Rows `start` to ``stop - 1`` of the stream."""
    block_rows: int
    """Number of rows in a block."""
    sharing: dict[str, list[int]]
    """Processes that share cores or GPUs, keyed by `Worker.cores` and `Worker.cards`."""


class Briefed(NamedTuple):
    """Answer of a worker to a job."""

    worker: Worker
    draws_with: tuple[str, str] | None
    """JAX release and kind of device, on which the last digits depend."""
    trouble: str | None = None
    """Why the worker cannot do the job; None if it can."""


class Unknown(NamedTuple):
    """Answer of a worker that does not have the job."""

    worker: Worker


class Done(NamedTuple):
    """A block that has reached the target."""

    worker: Worker
    block: int
    crc: str
    draws_with: tuple[str, str]


# ------------------------------------------------------------------------------------------------ in the worker


def meet(_serial: str) -> Worker:
    """Return the worker in which this task runs, without starting JAX."""
    time.sleep(PAUSE)
    return this_worker()


def this_worker() -> Worker:
    """Return the `Worker` that describes this process, and the cores and GPUs that it may use."""
    host = socket.gethostname()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else ""
    # Batch jobs that share a machine see different GPUs under the same numbers.
    cards = ",".join(os.environ.get(name, "all") for name in (*SHOWN, "SLURM_JOB_ID"))
    short = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (cores, cards))
    return Worker(host, os.getpid(), *(f"{host} {name}" for name in short))


class Assignment:
    """A job in a worker: its stream and, from the first block on, its open target."""

    def __init__(self, job: Job):
        self.job = job
        take_share(job)
        self.stream: Stream = job.stream.stream(job.caller)
        self.draws_with = jax.__version__, jax.local_devices()[0].device_kind
        self.target: Target | None = None
        self.spans = Spans(job.start, job.stop, job.block_rows)
        self.turn = threading.Lock()  # the executor may run several tasks in one process
        self.tasks = 0  # number of tasks that use it now
        self.buffer: jax.Array | None = None

    def open(self) -> str | None:
        """Open the target if it is not open; return why this process cannot write to it, or None."""
        with self.turn:
            if self.target is None:
                self.target = look_for(self.job, lambda target: target.runs(self.job.run), LAG)
        return OUT_OF_SIGHT if self.target is None else None

    def write(self, block: int) -> Done:
        """Draw a block and write it; it has reached the disk when this returns."""
        target = self.target
        assert target is not None
        first, count = self.spans[block]
        with self.turn:
            buffer, self.buffer = self.buffer, None
        drawn = self.stream.rows(first, self.job.block_rows, buffer)
        rows = np.asarray(drawn)[:count]
        crc = checksum(target, rows)
        with self.turn:
            target.join()
            try:
                # This worker may have been stopped for hours, while the target was finished or started again.
                if not target.runs(self.job.run):
                    raise checkpoint.ForeignTargetError(
                        f"{target.path} no longer belongs to this run, since it was finished or started again"
                    )
                target.write(first, rows)
            finally:
                target.leave()
            del rows  # a view of `drawn`, whose memory the next block will reuse
            self.buffer = drawn
        return Done(this_worker(), block, crc, self.draws_with)

    def close(self) -> None:
        """Close the target."""
        with self.turn:
            if self.target is not None:
                self.target.close()


_assignments: dict[str, Assignment] = {}
_taking = threading.RLock()


def assignment(run: str, job: Job | None) -> Assignment | None:
    """Return the assignment of a run, created from `job` if there is none yet; None if there is no job either."""
    with _taking:
        found = _assignments.pop(run, None)
        if found is None and job is not None:
            found = Assignment(job)
            idle = [name for name, other in _assignments.items() if not other.tasks]
            for name in idle[: max(0, len(_assignments) + 1 - KEPT)]:
                _assignments.pop(name).close()
        if found is not None:
            _assignments[run] = found  # moved to the end, where the most recently used one is
        return found


@contextlib.contextmanager
def in_use(run: str, job: Job | None) -> Iterator[Assignment | None]:
    """Keep the `assignment` of a run open within the context."""
    with _taking:
        found = assignment(run, job)
        if found is not None:
            found.tasks += 1
    try:
        yield found
    finally:
        if found is not None:
            with _taking:
                found.tasks -= 1


def look_for(job: Job, sign: Callable[[Target], bool], seconds: float) -> Target | None:
    """Open the target of a job once `sign` holds for it; return None if it does not hold within `seconds`."""
    assert job.target is not None
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            target = stack.enter_context(contextlib.closing(open_target(job.caller, *job.target)))
            if sign(target):
                stack.pop_all()
                return target
        if time.monotonic() > deadline:
            return None
        time.sleep(seconds / 30)


def brief(_serial: str, job: Job, marks: frozenset[str]) -> Briefed:
    """Take a job: check that this worker sees a record with one of these marks, and start JAX."""
    try:
        found = assignment(job.run, job)
        assert found is not None
        visible = look_for(job, lambda target: any(mark in marks for mark in target.marks()), SIGHT) if marks else None
        if visible is not None:
            visible.close()
    except OSError as error:
        return Briefed(this_worker(), None, f"{error}. {REACH}")
    except (ImportError, ValueError, RuntimeError) as error:
        return Briefed(this_worker(), None, str(error))
    time.sleep(PAUSE)
    return Briefed(this_worker(), found.draws_with, OUT_OF_SIGHT if marks and visible is None else None)


def write_block(_serial: str, run: str, block: int, job: Job | None = None) -> Done | Unknown | Briefed:
    """Draw a block and write it."""
    with in_use(run, job) as found:
        if found is None:
            return Unknown(this_worker())
        trouble = found.open()
        return Briefed(this_worker(), None, trouble) if trouble else found.write(block)


def redraw_block(_serial: str, job: Job, block: int) -> str:
    """Draw a block again, and return its checksum."""
    with _taking:
        take_share(job)
    assert job.target is not None
    target = open_target(job.caller, *job.target)
    try:
        first, count = Spans(job.start, job.stop, job.block_rows)[block]
        rows = job.stream.stream(job.caller).rows(first, job.block_rows)
        return checksum(target, np.asarray(rows)[:count])
    finally:
        target.close()


def draw_rows(_serial: str, run: str, block: int, job: Job | None = None) -> np.ndarray | Unknown:
    """Draw a block and return its rows to the caller."""
    with in_use(run, job) as found:
        return Unknown(this_worker()) if found is None else np.asarray(found.stream.rows(*found.spans[block]))


def read_block(_serial: str, caller: str, place: Place, first: int, count: int, whole: bool) -> str:
    """Return the checksum of rows in a target."""
    target = open_target(caller, *place)
    try:
        return stored_checksum(target, first, count, whole)
    finally:
        target.close()


def release(_serial: str, run: str) -> None:
    """Close the assignment of a run that has ended."""
    with _taking:
        if found := _assignments.pop(run, None):
            found.close()


_shared = False


def take_share(job: Job) -> None:
    """Limit JAX in this process, once, to the process's share of the machine; no effect if JAX has already started.

    XLA:CPU starts one thread for each core that the calling thread may use, and the new threads inherit these cores.
    JAX therefore starts here, while the task's thread is limited; afterwards that thread may use all cores again. Each
    process gets one GPU.
    """
    global _shared
    if _shared:
        return
    me = this_worker()
    number, count = place(job.sharing.get(me.cards, []))
    cards = environment.nvidia_gpus() if uses_cuda() else 0
    if cards:
        if count > cards and not any(name in os.environ for name in SHARED):
            raise ValueError(
                f"{job.caller}: {count} workers on {me.host} share {cards} GPU{'s' * (cards != 1)}. Start one worker "
                "per GPU; or set XLA_PYTHON_CLIENT_MEM_FRACTION so that several workers fit on one GPU; or set "
                "JAX_PLATFORMS=cpu."
            )
        jax.config.update("jax_cuda_visible_devices", str(number % cards))
    _shared = True
    number, count = place(job.sharing.get(me.cores, []))
    if count == 1 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    mine = [cores[i] for i in split_evenly(len(cores), count, number)] or [cores[number % len(cores)]]
    os.sched_setaffinity(0, mine)
    try:
        jax.local_devices()
    finally:
        os.sched_setaffinity(0, cores)


def place(processes: list[int]) -> tuple[int, int]:
    """Return the index of this process among those that share cores or GPUs, and their number.

    The `processes` are in the order in which they joined. If processes before this one have ended, it takes the place
    of the last of them.
    """
    everyone = list(dict.fromkeys([*processes, os.getpid()]))
    number = everyone.index(os.getpid())
    ended = [i for i, process in enumerate(everyone[:number]) if has_ended(process)]
    count = len(everyone) - len(ended)
    return min(ended[-1] if ended else number, count - 1), count


def has_ended(process: int) -> bool:
    """Return whether a process of this machine has ended; always False on systems other than POSIX."""
    with contextlib.suppress(PermissionError):
        try:
            if os.name == "posix":
                os.kill(process, 0)
        except ProcessLookupError:
            return True
    return False


def uses_cuda() -> bool:
    """Return whether JAX can use NVIDIA GPUs in this process."""
    platforms = getattr(jax.config, "jax_platforms", None)
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return False
    with contextlib.suppress(ModuleNotFoundError):
        return any(importlib.util.find_spec(name) for name in CUDA_PLUGINS)
    return False


# ------------------------------------------------------------------------------------------------ at the caller


def checked_executor(caller: str, executor: object) -> futures.Executor | None:
    """Return `executor`; raise TypeError unless it is an executor or None."""
    if executor is not None and not isinstance(executor, futures.Executor):
        raise TypeError(
            f"{caller}: executor={arguments.safe_repr(executor)} must be a concurrent.futures.Executor, such as a "
            "ProcessPoolExecutor or dask.distributed.Client(...).get_executor(), or None."
        )
    return executor


class Crew:
    """The workers of an executor during one run.

    Parameters
    ----------
    caller : str
        Name of the public function, for error messages.
    executor : concurrent.futures.Executor
        Executor that runs the tasks.
    timeout : float
        Raise TimeoutError if no task finishes for this many seconds.
    """

    def __init__(self, caller: str, executor: futures.Executor, timeout: float = TIMEOUT):
        self.caller, self.executor, self.timeout = caller, executor, timeout
        self._go_on = "continue with resume=True" if caller == "write_samples" else f"call {caller} again"
        self.workers: dict[tuple[str, int], Worker] = {}
        self.draws_with: tuple[str, str] | None = None
        self.left = False  # whether tasks of a run that ended early may still write
        # Each task has a serial number that earlier runs did not use, since schedulers may run equal tasks only once.
        self._serial = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._answers: queue.SimpleQueue[futures.Future[Any]] = queue.SimpleQueue()
        self._waiting: dict[futures.Future[Any], tuple[int, ...]] = {}  # the block of each task, if it has one

    def meet(self) -> None:
        """Find the workers. Wait for the first one without a limit, since a batch system may have to start it."""
        # The size of a pool, which starts its processes when it gets tasks.
        maximum = getattr(self.executor, "_max_workers", None)
        pool = isinstance(self.executor, futures.ProcessPoolExecutor)
        deadline = None
        while True:
            known = len(self.workers)
            for _ in range(maximum if isinstance(maximum, int) else max(8, 4 * known)):
                self._submit((), meet)
            while self._waiting:
                for _, worker in self._next(self.timeout if self.workers else None):
                    self.workers[worker[:2]] = worker
            # A pool starts its processes at the same time, but they become ready at different times.
            deadline = deadline or time.monotonic() + (START if pool else 0.0)
            if len(self.workers) == maximum or (len(self.workers) == known and time.monotonic() > deadline):
                break

    def brief(self, job: Job, marks: frozenset[str] = frozenset()) -> None:
        """Give every worker the job before anything is drawn; raise ValueError or OSError if one cannot do it.

        If there are `marks`, each worker must see a record of the target with one of them.
        """
        briefed: set[tuple[str, int]] = set()
        for _ in range(ROUNDS):
            for _ in range(len(self.workers) - len(briefed & self.workers.keys())):
                self._submit((), brief, job, marks)
            for _, answer in self._results(self.timeout):
                self._admit(answer)
                briefed.add(answer.worker[:2])
            if briefed >= self.workers.keys():
                break

    def sharing(self) -> dict[str, list[int]]:
        """Return the processes that share cores or GPUs, in the order in which they joined."""
        found: dict[str, list[int]] = {}
        for worker in self.workers.values():
            for name in (worker.cores, worker.cards):
                found.setdefault(name, []).append(worker.process)
        return found

    def job(
        self, stream: Stream, place: Place | None, start: int, stop: int, block_rows: int, run: str | None = None
    ) -> Job:
        """Return the job to draw and write blocks of rows `start` to ``stop - 1``."""
        run = run or secrets.token_hex(8)
        return Job(self.caller, run, stream.description(), place, start, stop, block_rows, self.sharing())

    def draw(self, job: Job, blocks: Iterable[int]) -> Iterator[np.ndarray]:
        """Let the workers draw blocks; yield the rows of each block, in the order of `blocks`."""
        waiting: collections.deque[tuple[int, futures.Future[Any]]] = collections.deque()
        left = iter(blocks)
        while True:
            for block in itertools.islice(left, max(0, len(self.workers) + 2 - len(waiting))):
                waiting.append((block, self._send((), draw_rows, job.run, block)))
            if not waiting:
                return
            block, future = waiting.popleft()
            if not futures.wait([future], self.timeout).done:
                raise self._late()
            with self._failures():
                answer = future.result()
            self._waiting.pop(future, None)
            if isinstance(answer, Unknown):
                self.workers[answer.worker[:2]] = answer.worker
                again = self._send((), draw_rows, job.run, block, job._replace(sharing=self.sharing()))
                waiting.appendleft((block, again))
            else:
                yield answer

    def redraw(self, job: Job, block: int) -> str:
        """Let a worker draw a block again, and return its checksum."""
        self._submit((), redraw_block, job, block)
        crc: str
        ((_, crc),) = self._results(self.timeout)
        return crc

    def write(self, job: Job, blocks: Iterable[int]) -> Iterator[dict[int, str]]:
        """Let the workers draw and write blocks; yield finished ones with their checksums."""
        for answers in self._each(blocks, lambda block: (write_block, job.run, block), job):
            for answer in answers.values():
                self._admit(answer)
            yield {block: answer.crc for block, answer in answers.items()}

    def checksums(self, place: Place, spans: Spans, blocks: Iterable[int], whole: bool) -> dict[int, str]:
        """Return the checksums of blocks in a target, which the workers read."""
        found: dict[int, str] = {}
        for answers in self._each(blocks, lambda block: (read_block, self.caller, place, *spans[block], whole)):
            found |= answers
        return found

    def _each(
        self, blocks: Iterable[int], task: Callable[[int], tuple[Any, ...]], job: Job | None = None
    ) -> Iterator[dict[int, Any]]:
        """Submit the task of each block; yield the answers of finished tasks by block."""
        left = iter(blocks)
        while True:
            # Enough tasks to keep all workers busy, and few enough to cancel them quickly.
            for block in itertools.islice(left, max(0, 2 * len(self.workers) + 2 - len(self._waiting))):
                self._submit((block,), *task(block))
            if not self._waiting:
                return
            answers: dict[int, Any] = {}
            failure = None
            try:
                for (block,), answer in self._next(self.timeout):
                    if isinstance(answer, Unknown) and job is not None:
                        self.workers[answer.worker[:2]] = answer.worker
                        self._submit((block,), *task(block), job._replace(sharing=self.sharing()))
                    else:
                        answers[block] = answer
            except Exception as error:
                failure = error  # raised below, after the answers that arrived before it
            if answers:
                yield answers
            if failure is not None:
                raise failure

    def stop(self, patient: bool) -> dict[int, str]:
        """Cancel tasks that have not started, and return the finished blocks with their checksums.

        If `patient` is true, wait up to `GRACE` seconds for blocks that are in progress.
        """
        begun = [future for future in self._waiting if not future.cancel()]
        done = {}
        ended = futures.wait(begun, GRACE if patient else 0)
        self.left = bool(ended.not_done)
        for future in ended.done:
            answer = None if future.exception() else future.result()
            if isinstance(answer, Done) and answer.draws_with == self.draws_with:
                done[answer.block] = answer.crc
        self._waiting.clear()
        return done

    def dismiss(self, job: Job) -> None:
        """Let the workers close a finished run; a worker that gets no such task closes it during later runs."""
        with contextlib.suppress(OSError, ExecutorFailed):
            for _ in self.workers:
                self._submit((), release, job.run)
            for _ in self._results(GRACE):
                pass

    def _send(self, about: tuple[int, ...], task: Callable[..., Any], *arguments: object) -> futures.Future[Any]:
        """Submit a task and return its future, for which the caller waits."""
        with self._failures():
            future = self.executor.submit(task, next(self._serial), *arguments)
        self._waiting[future] = about
        return future

    def _submit(self, about: tuple[int, ...], task: Callable[..., Any], *arguments: object) -> None:
        """Submit a task whose answer `_next` yields."""
        self._send(about, task, *arguments).add_done_callback(self._answers.put)

    def _results(self, timeout: float | None) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the answers of all submitted tasks."""
        while self._waiting:
            yield from self._next(timeout)

    def _next(self, timeout: float | None) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Wait for an answer; yield it and all others that have arrived."""
        try:
            ready = [self._answers.get(timeout=timeout)]
        except queue.Empty:
            raise self._late() from None
        with contextlib.suppress(queue.Empty):
            while True:
                ready.append(self._answers.get_nowait())
        for future in ready:
            about = self._waiting.pop(future, None)
            if about is not None:
                with self._failures():
                    answer = future.result()
                yield about, answer

    def _late(self) -> TimeoutError:
        return TimeoutError(
            f"{self.caller}: no worker finished a task for {self.timeout:g} s. Look for a worker that hangs, "
            f"end it, and {self._go_on}."
        )

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Pass on a task's errors about files, arguments and memory; convert all others to `ExecutorFailed`."""
        try:
            yield
        except (ConnectionError, futures.CancelledError, futures.BrokenExecutor) as error:
            raise ExecutorFailed(
                f"{self.caller}: the executor has lost its workers ({type(error).__name__}: {error}). Find out why "
                f"they ended (perhaps they ran out of memory), start them again, and {self._go_on}."
            ) from error
        except (OSError, ValueError, TypeError, MemoryError):
            raise
        except Exception as error:
            raise ExecutorFailed(
                f"{self.caller}: a task of the executor failed: {type(error).__name__}: {error}. Fix the cause, and "
                f"{self._go_on}."
            ) from error

    def _admit(self, answer: Briefed | Done) -> None:
        """Refuse a worker that cannot see the target, or whose last digits may differ."""
        worker = answer.worker
        self.workers[worker[:2]] = worker
        if isinstance(answer, Briefed) and answer.trouble:
            raise OSError(f"{self.caller}: worker {worker.process} on {worker.host} cannot take part: {answer.trouble}")
        self.draws_with = self.draws_with or answer.draws_with
        if answer.draws_with != self.draws_with:
            theirs, others = (f"JAX {' on '.join(each or ())}" for each in (answer.draws_with, self.draws_with))
            raise ValueError(
                f"{self.caller}: worker {worker.process} on {worker.host} draws with {theirs}, but others draw with "
                f"{others}, so the last digits may differ. Use workers of one kind."
            )

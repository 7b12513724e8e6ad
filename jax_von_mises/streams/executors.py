"""Blocks that the workers of an executor draw and write, and what the caller and they tell each other.

Any `concurrent.futures.Executor` will do. It schedules; what is here gives it tasks that are independent, can be done
twice, and return a few bytes. The caller meets the workers (`meet`), gives each a `Job` (`brief`), and from then on
sends the number of a block alone (`write_block`). A worker keeps the jobs it was given, with the program compiled and,
from its first block on, the target opened; one that lacks a job, since it joined later, says so and gets the job with
its next block.
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
from jax_von_mises.streams.target import checksum, open_target, stored_checksum

# Seconds that a worker is kept busy as it is met, so that the next task goes to another one.
PAUSE = 0.1
# Seconds that the processes of a pool may start one after the other.
START = 3.0
# Times that a job is handed out to the workers that have not taken it.
ROUNDS = 8
# Seconds for which a record may stay invisible on another machine: SIGHT when a worker is asked whether it sees the
# file system at all, LAG for one that does, and may have looked before: NFS remembers for a minute what was not there.
SIGHT = 3.0
LAG = 70.0
REACH = "All workers must reach the target under the same name, on a shared file system or in an object store."
OUT_OF_SIGHT = f"the caller's record is not there. {REACH}"
# Jobs that a worker keeps.
KEPT = 2
# Seconds that a run which ends early waits for blocks that are being written, to record them too.
GRACE = 10.0

# What shows a process some of the machine's GPUs only, and what tells that several processes share one.
SHOWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
SHARED = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


class ExecutorFailed(RuntimeError):
    """The executor has lost its workers, or a task failed for a reason that is none of the files'."""


class Worker(NamedTuple):
    """A process that runs tasks. Those with an equal name in `cores` (or `cards`) share these cores (or GPUs)."""

    host: str
    process: int
    cores: str
    cards: str


class Job(NamedTuple):
    """What a worker needs to draw and write blocks of one run."""

    caller: str
    run: str
    """Name of the run, which the head of its record has."""
    stream: Description
    target: tuple | None
    """Arguments of `open_target`; None where the rows are for the caller."""
    start: int
    stop: int
    block_rows: int
    """Rows of the stream, and of a block."""
    sharing: dict[str, list[int]]
    """Processes that share cores, or GPUs, by the names that `Worker` has for these."""


class Briefed(NamedTuple):
    """A worker that has a job; or the reason why it cannot do it."""

    worker: Worker
    draws_with: tuple[str, str] | None
    """Release of JAX and kind of device, on which last digits depend."""
    trouble: str | None = None


class Unknown(NamedTuple):
    """A worker that has not got the job yet."""

    worker: Worker


class Done(NamedTuple):
    """A block that has reached the target."""

    worker: Worker
    block: int
    crc: str
    draws_with: tuple[str, str]


# ------------------------------------------------------------------------------------------------ in the worker


def meet(_serial: str) -> Worker:
    """Tell the caller which process this is. JAX does not start."""
    time.sleep(PAUSE)
    return this_worker()


def this_worker() -> Worker:
    """Name the process this runs in, and what it may use of its machine."""
    host = socket.gethostname()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else ""
    cards = ",".join(os.environ.get(name, "all") for name in SHOWN)
    short = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (cores, cards))
    return Worker(host, os.getpid(), *(f"{host} {name}" for name in short))


class Assignment:
    """A job in a worker: the stream, and from the first block on the target."""

    def __init__(self, job: Job):
        self.job = job
        take_share(job)
        self.stream: Stream = job.stream.stream(job.caller)
        self.draws_with = jax.__version__, jax.local_devices()[0].device_kind
        self.target: Any = None
        self.spans = Spans(job.start, job.stop, job.block_rows)
        self.turn = threading.Lock()  # the executor may run several tasks in one process
        self.buffer: jax.Array | None = None

    def open(self) -> str | None:
        """Open the target, unless it is; say why this process cannot write where the caller does, None if it can."""
        with self.turn:
            if self.target is None:
                self.target = look_for(self.job, lambda target: target.runs(self.job.run), LAG)
        return OUT_OF_SIGHT if self.target is None else None

    def write(self, block: int) -> Done:
        """Draw a block and write it; it has reached the disk when this returns."""
        first, count = self.spans[block]
        with self.turn:
            buffer, self.buffer = self.buffer, None
        drawn = self.stream.rows(first, self.job.block_rows, buffer)
        rows = np.asarray(drawn)[:count]
        crc = checksum(self.target, rows)
        with self.turn:
            self.target.join()
            try:
                # Not into what was finished or begun again meanwhile: this worker may have been stopped for hours.
                if not self.target.runs(self.job.run):
                    raise checkpoint.ForeignTargetError(
                        f"{self.target.path} is no longer written by the run of this task"
                    )
                self.target.write(first, rows)
            finally:
                self.target.leave()
            del rows  # or its memory could not be given to the next block
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
    """The assignment of a run, made of `job` if this process has none; None if there is no job either."""
    with _taking:
        found = _assignments.pop(run, None)
        if found is None and job is not None:
            found = Assignment(job)
            while len(_assignments) >= KEPT:
                _assignments.pop(next(iter(_assignments))).close()
        if found is not None:
            _assignments[run] = found  # the one used last stands last
        return found


def look_for(job: Job, sign: Callable[[Any], bool], seconds: float) -> Any:
    """Open the target of a job that shows a sign; None if there is none for so many seconds."""
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
    """Take a job: see that one of the records with these marks is in sight, and start JAX."""
    try:
        found = assignment(job.run, job)
        assert found is not None
        seen = look_for(job, lambda target: any(mark in marks for mark in target.marks()), SIGHT) if marks else None
        if seen is not None:
            seen.close()
    except OSError as error:
        return Briefed(this_worker(), None, f"{error}. {REACH}")
    except (ImportError, ValueError, RuntimeError) as error:
        return Briefed(this_worker(), None, str(error))
    time.sleep(PAUSE)
    return Briefed(this_worker(), found.draws_with, OUT_OF_SIGHT if marks and seen is None else None)


def write_block(_serial: str, run: str, block: int, job: Job | None = None) -> Done | Unknown | Briefed:
    """Draw a block and write it."""
    found = assignment(run, job)
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
    """Draw a block for the caller."""
    found = assignment(run, job)
    return Unknown(this_worker()) if found is None else np.asarray(found.stream.rows(*found.spans[block]))


def read_block(_serial: str, caller: str, place: tuple, first: int, count: int, whole: bool) -> str:
    """The checksum of rows that are in a target."""
    target = open_target(caller, *place)
    try:
        return stored_checksum(target, first, count, whole)
    finally:
        target.close()


def release(_serial: str, run: str) -> None:
    """Let go of a run that has ended."""
    with _taking:
        if found := _assignments.pop(run, None):
            found.close()


_shared = False


def take_share(job: Job) -> None:
    """Start JAX with this process's share of the machine, if it has not started yet.

    The threads of XLA:CPU inherit the cores of the one that starts it, and there are as many; the task's own thread
    has all cores again afterwards. A GPU is one process's.
    """
    global _shared
    if _shared:
        return
    me = this_worker()
    number, count = place(job.sharing.get(me.cards, []))
    cards = environment.nvidia_gpus() if uses_cuda() else 0
    if cards and count > 1:
        if count > cards and not any(name in os.environ for name in SHARED):
            raise ValueError(
                f"{job.caller}: {count} workers on {me.host} share {cards} GPUs. Start one worker per GPU; or set "
                "XLA_PYTHON_CLIENT_MEM_FRACTION so that their memory suffices for several; or JAX_PLATFORMS=cpu."
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
    """The number of this process among those that share something, and their number."""
    if os.getpid() in processes:
        return processes.index(os.getpid()), len(processes)
    # It joined later, in the place of one that has ended, if any has.
    count = max(len(processes), 1)
    free = [number for number, process in enumerate(processes) if has_ended(process)]
    return free[0] if free else os.getpid() % count, count


def has_ended(process: int) -> bool:
    """Whether there is no such process on this machine; other systems than POSIX are not asked."""
    with contextlib.suppress(PermissionError):
        try:
            if os.name == "posix":
                os.kill(process, 0)
        except ProcessLookupError:
            return True
    return False


def uses_cuda() -> bool:
    """Whether JAX may use NVIDIA's GPUs here."""
    asked = getattr(jax.config, "jax_platforms", None)
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        return False
    with contextlib.suppress(ModuleNotFoundError):
        return any(importlib.util.find_spec(name) for name in CUDA_PLUGINS)
    return False


# ------------------------------------------------------------------------------------------------ at the caller


def checked_executor(caller: str, executor: object) -> Any:
    """Return `executor` if it is an executor or None."""
    if executor is not None and not isinstance(executor, futures.Executor):
        raise TypeError(
            f"{caller}: executor={arguments.safe_repr(executor)} must be a concurrent.futures.Executor, such as a "
            "ProcessPoolExecutor or dask.distributed.Client(...).get_executor(), or None."
        )
    return executor


class Crew:
    """The workers of an executor, for one run: they are met, get the job, and draw blocks until all are done.

    Parameters
    ----------
    caller : str
        Name of the function that errors name.
    executor : concurrent.futures.Executor
        Runs the tasks.
    timeout : float or None
        Seconds without any finished task until the workers are given up.
    """

    def __init__(self, caller: str, executor: futures.Executor, timeout: float | None):
        self.caller, self.executor, self.timeout = caller, executor, timeout
        self.workers: dict[tuple[str, int], Worker] = {}
        self._met: dict[str, list[int]] = {}
        self.draws_with: tuple[str, str] | None = None
        self.left = False  # whether tasks of a run that ended early may still write
        # Tasks must differ, also from those of earlier runs: engines may do equal ones once.
        self._serial = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._answers: queue.SimpleQueue[futures.Future] = queue.SimpleQueue()
        self._waiting: dict[futures.Future, tuple] = {}

    def meet(self) -> None:
        """Find out which workers there are. It waits for the first without a limit: a batch system may start it."""
        most = getattr(self.executor, "_max_workers", None)  # of a pool, which starts them with the first tasks
        pool = isinstance(self.executor, futures.ProcessPoolExecutor)
        deadline = None
        while True:
            known = len(self.workers)
            for _ in range(most if isinstance(most, int) else max(8, 4 * known)):
                self._submit((), meet)
            while self._waiting:
                for _, worker in self._next(self.timeout if self.workers else None):
                    self.workers[worker[:2]] = worker
            # The processes of a pool are started together, but one may be ready before another.
            deadline = deadline or time.monotonic() + (START if pool else 0.0)
            if len(self.workers) == most or (len(self.workers) == known and time.monotonic() > deadline):
                break
        self._met = self._groups()

    def brief(self, job: Job, marks: frozenset[str] = frozenset()) -> None:
        """Give every worker the job, before anything is drawn; ValueError or OSError if one cannot do it.

        Each must see one of the records of the target that have these marks, if there are any.
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
        """Processes that share cores, or GPUs: those that were met, and on further machines those that came later."""
        return self._groups() | self._met

    def _groups(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for worker in self.workers.values():
            for name in (worker.cores, worker.cards):
                found.setdefault(name, []).append(worker.process)
        return {name: sorted(processes) for name, processes in found.items()}

    def job(
        self, stream: Stream, place: tuple | None, start: int, stop: int, block_rows: int, run: str | None = None
    ) -> Job:
        """What a worker needs to draw and write blocks of rows `start` to ``stop - 1``."""
        run = run or secrets.token_hex(8)
        return Job(self.caller, run, stream.description(), place, start, stop, block_rows, self.sharing())

    def draw(self, job: Job, blocks: int) -> Iterator[np.ndarray]:
        """Have blocks drawn; yields them in their order."""
        waiting: collections.deque[tuple[int, futures.Future]] = collections.deque()
        left = iter(range(blocks))
        while True:
            for block in itertools.islice(left, max(0, len(self.workers) + 2 - len(waiting))):
                waiting.append((block, self._submit((), draw_rows, job.run, block)))
            if not waiting:
                return
            block, future = waiting.popleft()
            with self._failures():
                answer = future.result()
            self._waiting.pop(future, None)
            if isinstance(answer, Unknown):
                self.workers[answer.worker[:2]] = answer.worker
                again = self._submit((), draw_rows, job.run, block, job._replace(sharing=self.sharing()))
                waiting.appendleft((block, again))
            else:
                yield answer

    def redraw(self, job: Job, block: int) -> str:
        """The checksum of a block that a worker draws again, without writing it."""
        self._submit((), redraw_block, job, block)
        ((_, crc),) = self._results(self.timeout)
        return crc

    def write(self, job: Job, blocks: Iterable[int]) -> Iterator[dict[int, str]]:
        """Have blocks drawn and written; yields those that are done, with their checksums, as they come."""
        for answers in self._each(blocks, lambda block: (write_block, job.run, block), job):
            for answer in answers.values():
                self._admit(answer)
            yield {block: answer.crc for block, answer in answers.items()}

    def checksums(self, place: tuple, spans: Spans, blocks: Iterable[int], whole: bool) -> dict[int, str]:
        """The checksums of blocks that are in a target."""
        found: dict[int, str] = {}
        for answers in self._each(blocks, lambda block: (read_block, self.caller, place, *spans[block], whole)):
            found |= answers
        return found

    def _each(self, blocks: Iterable[int], task: Callable, job: Job | None = None) -> Iterator[dict[int, Any]]:
        """Have a task done for each block; yields the answers by blocks, as they come."""
        left = iter(blocks)
        while True:
            # So many that none waits for work, and few enough to be called back.
            for block in itertools.islice(left, max(0, 2 * len(self.workers) + 2 - len(self._waiting))):
                self._submit((block,), *task(block))
            if not self._waiting:
                return
            answers = {}
            for (block,), answer in self._next(self.timeout):
                if isinstance(answer, Unknown) and job is not None:
                    self.workers[answer.worker[:2]] = answer.worker
                    self._submit((block,), *task(block), job._replace(sharing=self.sharing()))
                else:
                    answers[block] = answer
            if answers:
                yield answers

    def stop(self, patient: bool) -> dict[int, str]:
        """Call back what has not begun; return the blocks that are finished meanwhile, where one is `patient`."""
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
        """Let the workers close what they keep of a run that is finished; those that do not hear it do so later."""
        with contextlib.suppress(OSError, ExecutorFailed):
            for _ in self.workers:
                self._submit((), release, job.run)
            for _ in self._results(GRACE):
                pass

    def _submit(self, about: tuple, task: Callable, *arguments: object) -> futures.Future:
        with self._failures():
            future = self.executor.submit(task, next(self._serial), *arguments)
        self._waiting[future] = about
        future.add_done_callback(self._answers.put)
        return future

    def _results(self, timeout: float | None) -> Iterator[tuple[tuple, Any]]:
        """All answers that are waited for."""
        while self._waiting:
            yield from self._next(timeout)

    def _next(self, timeout: float | None) -> Iterator[tuple[tuple, Any]]:
        """Wait for an answer, and yield it and those that have come with it."""
        try:
            ready = [self._answers.get(timeout=timeout)]
        except queue.Empty:
            raise TimeoutError(
                f"{self.caller}: of {len(self._waiting)} tasks that the workers have, none was finished for "
                f"{timeout:g} s. Look for a worker that hangs and end it, and go on with resume=True."
            ) from None
        with contextlib.suppress(queue.Empty):
            while True:
                ready.append(self._answers.get_nowait())
        for future in ready:
            about = self._waiting.pop(future, None)
            if about is not None:
                with self._failures():
                    answer = future.result()
                yield about, answer

    @contextlib.contextmanager
    def _failures(self):
        """Pass on what the task says of files and arguments, and say of all else that the executor has failed."""
        try:
            yield
        except (ConnectionError, futures.CancelledError, futures.BrokenExecutor) as error:
            raise ExecutorFailed(
                f"{self.caller}: the executor has lost its workers ({type(error).__name__}: {error}). See why they "
                "ended, perhaps for want of memory, start them again, and go on with resume=True."
            ) from error
        except (OSError, ValueError, TypeError, MemoryError):
            raise
        except Exception as error:
            raise ExecutorFailed(
                f"{self.caller}: a task of the executor failed: {type(error).__name__}: {error}. Go on with "
                "resume=True when that is mended."
            ) from error

    def _admit(self, answer: Briefed | Done) -> None:
        """Refuse a worker that does not see the target, or draws other last digits."""
        worker = answer.worker
        self.workers[worker[:2]] = worker
        if isinstance(answer, Briefed) and answer.trouble:
            raise OSError(
                f"{self.caller}: the worker {worker.process} on {worker.host} cannot do its part: {answer.trouble}"
            )
        self.draws_with = self.draws_with or answer.draws_with
        if answer.draws_with != self.draws_with:
            theirs, others = (f"JAX {' on '.join(each or ())}" for each in (answer.draws_with, self.draws_with))
            raise ValueError(
                f"{self.caller}: the worker {worker.process} on {worker.host} draws with {theirs}, and others with "
                f"{others}, which may differ in last digits. Give the executor workers of one kind."
            )

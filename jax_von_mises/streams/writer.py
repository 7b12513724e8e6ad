"""Write streams to disk in blocks that are drawn, written and recorded one by one; an interrupted run can be resumed.

A block is finished when its bytes have reached the disk *and* its checksum is in the record. A process that is killed
at any time therefore loses only the blocks in progress. A resumed run draws the missing blocks at their positions in
the stream, and the result is identical to that of an uninterrupted run, byte for byte. Only the caller records blocks,
even if the workers of an executor draw and write them.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.streams import batches, checkpoint, executors, npy
from jax_von_mises.streams.stream import Spans, Stream, split_evenly
from jax_von_mises.streams.target import Place, Target, checksum, open_target, stored_checksum
from jax_von_mises.version import __version__

CALLER = "write_samples"

# Number of angles per block. A run needs memory for two blocks. Drawing and writing such a block (64 MiB of float32)
# takes far longer than recording it.
BLOCK_ANGLES = 2**24

# Maximum number of blocks that a message lists.
LISTED = 20


class Damaged(ValueError):
    """Blocks do not match their checksums."""


class Times(NamedTuple):
    """Times of a run. Blocks are drawn while earlier ones are written, so the times do not add up to the duration."""

    compiling: float
    """Seconds to trace, lower and compile the sampling programs, or to read them from the cache."""
    first_drawn: float
    """Seconds that the device took to draw the first block, with no other work in progress."""
    first_numbers: int
    """Number of angles, or of components of directions, in the first block."""
    writing: float
    """Seconds to copy blocks to the host, compute their checksums, write them to the disk and record them."""
    bytes_written: int
    """Size of the written blocks in bytes."""


class Written(NamedTuple):
    """Result of `write_samples`."""

    out: str
    """Name of the file or store."""
    shape: tuple[int, ...]
    """Shape of the complete array."""
    dtype: str
    """Dtype in the file or store."""
    drawn: int
    """Number of blocks drawn by this call."""
    kept: int
    """Number of this process's blocks that earlier runs had written."""
    finished: bool
    """Whether the target is complete. With several parts, the last one to finish completes it."""
    times: Times | None = None
    """Times of the run; None if nothing was drawn, or if workers drew the blocks."""


def write_samples(
    out: str | os.PathLike[str],
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    total: int,
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    block_rows: int | None = None,
    resume: bool = False,
    force: bool = False,
    repair: bool = False,
    part: int = 0,
    parts: int = 1,
    executor: futures.Executor | None = None,
    timeout: float = executors.TIMEOUT,
    progress: Callable[[int, int], object] | None = None,
    observe: Callable[[np.ndarray], object] | None = None,
    distribution: str = "von-mises",
) -> Written:
    """Draw a stream of angles, directions or pairs and write it to a file or store, in constant memory.

    Row i of the result is row i of the stream, as `sample_batches` draws it without CUDA kernels. This holds for any
    `block_rows`, `parts` and `executor`, and wherever the run was interrupted. The result appears complete or not at
    all. A JSON record next to the file, or in the store, describes the stream and contains the CRC-32 of each block's
    bytes. Until the result is complete, a ``.npy`` file is named ``*.npy.partial``, and a store has no ``zarr.json``.

    Parameters
    ----------
    out : str or path
        A name that ends in ``.npy``, or in ``.zarr`` for a Zarr v3 store (requires the extra ``storage``). A store can
        also be a URL for TensorStore, such as ``gs://bucket/big.zarr``.
    key, loc, concentration, dtype, method, distribution
        As in `sample_batches`.
    total : int
        Number of rows. This number and the total number of angles or components must both be below 2^60.
    block_rows : int, optional
        Rows per block. By default, a block has about 2^24 angles or components, or more if there would otherwise be
        more than 2^20 blocks. A resumed run keeps its block size.
    resume : bool
        Continue an earlier run of the same stream, or start one if there is none. Recorded blocks are first compared
        with their checksums, even in a finished file. If blocks are missing, one recorded block is drawn again to check
        that this machine draws the same last digits. With several parts, each call compares only its own blocks, or
        none if the store is complete.
    force : bool
        Replace an existing file or store. An unfinished run is removed at once, but a finished file or local store is
        kept until the new one is finished. If the disk has no space for both stores, or nothing can be written next to
        the old one, the old store is removed first, with a RuntimeWarning. In an object store, the old array is always
        removed first, without a warning.
    repair : bool
        With `resume`, redraw the blocks that do not match their checksums. A finished file or store becomes unfinished
        until its repair is complete. If the repair is interrupted, all valid blocks are kept, and the same call
        continues it.
    part, parts : int
        Index of this part, counted from 0, and number of parts into which the blocks are divided. All parts write one
        Zarr store, concurrently or not; more than one part implies `resume`. Each call returns when its own blocks are
        recorded. A call that then finds the blocks of all parts recorded completes the store.
    executor : concurrent.futures.Executor, optional
        Executor whose workers draw and write the blocks; this process records them. The workers must reach `out` under
        the same name. Examples are a `ProcessPoolExecutor` (start method "spawn"),
        ``dask.distributed.Client(...).get_executor()`` and an ``mpi4py.futures.MPIPoolExecutor``. Workers in which JAX
        has not yet started divide the cores of their machine among themselves and use one GPU each. The executor is
        not shut down.
    timeout : float
        Raise TimeoutError if the workers of `executor` finish no task for this many seconds.
    progress, observe : callable, optional
        ``progress(done, total)`` is called before the first block and whenever blocks are recorded; both arguments
        count the rows of this process. ``observe(array)`` is called with the rows of each drawn block; with an
        `executor` they are read from `out`.

    Returns
    -------
    Written
        Name, shape and dtype of the result, the numbers of blocks drawn and kept, whether the result is complete, and
        the times of the run.

    Raises
    ------
    FileExistsError
        Something exists at `out`, and neither `resume` nor `force` was given.
    ValueError, TypeError
        An argument is invalid, or the workers use several JAX releases or kinds of device. With `resume`: `out` holds
        another stream, a block does not match its checksum, or the last digits of a recorded block differ when it is
        drawn again.
    OSError
        The disk is full or cannot be written to, `out` holds files that this package did not write, or a worker cannot
        reach `out`. Recorded blocks are kept, and the run can be resumed. A run that has recorded no block removes what
        it created.
    RuntimeError
        The executor has lost its workers, or a task failed. The run can be resumed, with or without another executor.
    TimeoutError
        The workers have finished no task for `timeout` seconds.

    Examples
    --------
    >>> import jax, numpy, os, tempfile
    >>> out = os.path.join(tempfile.mkdtemp(), "angles.npy")
    >>> write_samples(out, jax.random.key(0), 0.5, 4.0, 10_000).shape
    (10000,)
    >>> numpy.load(out, mmap_mode="r").shape
    (10000,)
    """
    out = arguments.path(CALLER, "out", out)
    stream = Stream.of(CALLER, key, loc, concentration, dtype, method, distribution)
    total = arguments.whole_number(CALLER, "total", total, 0)
    if total * max(stream.width, 1) >= checkpoint.MOST_ANGLES:  # also limits the number of empty rows
        raise ValueError(
            f"{CALLER}: total={total} rows of length {stream.width} are too many. The number of rows and the "
            "total number of values must both be below 2^60."
        )
    if block_rows is not None:
        block_rows = arguments.whole_number(CALLER, "block_rows", block_rows, 1)
    options = WriteOptions(resume, force, repair, part, parts, executor, timeout, progress, observe).checked()
    block_rows = default_block_rows(stream, total, block_rows)
    shape = (total, *stream.row_shape)
    opened = open_target(CALLER, out, shape, stream.dtype, block_rows, options.part, options.parts)
    with contextlib.closing(opened) as target:
        run = WriteRun(target, stream, options)
        with noting_what_is_kept(run):
            missing = run.prepare()
            kept = len(run.own())
            drawn = run.draw() if missing else 0
            finished = run.finish() if missing else True
    return Written(out, target.shape, target.dtype.name, drawn, kept, finished, run.times)


class WriteOptions(NamedTuple):
    """Options of `write_samples`."""

    resume: bool = False
    force: bool = False
    repair: bool = False
    part: int = 0
    parts: int = 1
    executor: futures.Executor | None = None
    timeout: float = 600.0
    progress: Callable[[int, int], object] | None = None
    observe: Callable[[np.ndarray], object] | None = None

    def checked(self) -> "WriteOptions":
        """Check each option and their combination, and return the options as plain values."""
        resume = arguments.flag(CALLER, "resume", self.resume)
        force = arguments.flag(CALLER, "force", self.force)
        repair = arguments.flag(CALLER, "repair", self.repair)
        for name, function in (("progress", self.progress), ("observe", self.observe)):
            if function is not None and not callable(function):
                raise TypeError(f"{CALLER}: {name}={arguments.safe_repr(function)} must be a function, or None.")
        executors.checked_executor(CALLER, self.executor)
        timeout = arguments.seconds(CALLER, "timeout", self.timeout, above=0)
        parts = arguments.whole_number(CALLER, "parts", self.parts, 1)
        part = arguments.whole_number(CALLER, "part", self.part, 0)
        if part >= parts:
            raise ValueError(f"{CALLER}: part={part} must be below parts={parts}; parts are counted from 0.")
        if parts > 1 and force:
            raise ValueError(
                f"{CALLER}: force=True cannot be combined with parts={parts}, since it would remove what other "
                "parts write. Remove the old store first."
            )
        if resume and force:
            raise ValueError(f"{CALLER}: resume=True keeps what force=True would replace. Give only one of them.")
        return self._replace(resume=resume, force=force, repair=repair, part=part, parts=parts, timeout=timeout)


@contextlib.contextmanager
def noting_what_is_kept(run: "WriteRun") -> Iterator[None]:
    """On an error, remove what the run created if no block is finished, and note in the error what is kept."""
    target = run.target
    try:
        yield
    except BaseException as error:
        # The target is kept while a worker may still write to it.
        if target.created and run.blocks and not run.done and not (run.crew and run.crew.left):
            error.add_note(discard(target))
        elif target.begun:
            error.add_note(f"{len(run.done)} of {run.blocks} blocks kept; continue with resume=True")
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = target.path
        raise


def discard(target: Target) -> str:
    """Remove what a run created, and return a note for the error that ended it."""
    try:
        target.discard()
    except OSError as error:  # must not replace the error that ended the run
        return f"nothing was kept, but {error.filename or target.path} could not be removed: {error.strerror}"
    return "nothing was kept"


def block_angles(angles: int) -> int:
    """Return the number of angles in a block when `angles` are drawn in total."""
    block = BLOCK_ANGLES
    while angles > block * checkpoint.MOST_BLOCKS:
        block *= 2
    return block


def default_block_rows(stream: Stream, total: int, block_rows: int | None) -> int:
    """Return the number of rows in a block; by default a block fills complete pages of the disk."""
    if block_rows is None:
        block_rows = max(1, block_angles(total * stream.width) // max(stream.width, 1))
        page = npy.NpyFile.PAGE // stream.dtype.itemsize
        block_rows -= block_rows % page if block_rows > page else 0
    return max(1, min(block_rows, total))


class WriteRun:
    """The work of one process on a target."""

    def __init__(self, target: Target, stream: Stream, options: WriteOptions):
        self.target, self.stream, self.options = target, stream, options
        self.identity = stream.identity()  # computed once, since it may hash long arrays
        self.name = secrets.token_hex(8)  # written to the record, by which workers recognise this run
        executor = options.executor
        self.crew = None if executor is None else executors.Crew(CALLER, executor, options.timeout)
        self.briefed = False  # whether the workers have the job
        self.done: dict[int, str] = {}  # checksums by block, of all processes whose records were read
        self.damaged: dict[int, str] = {}  # expected checksums by block
        self.compiling = 0.0  # seconds
        self.times: Times | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks of the target."""
        return len(self.spans())

    def spans(self) -> Spans:
        """Return the first row and the number of rows of each block."""
        return Spans(0, self.target.shape[0], self.target.block_rows)

    def share(self) -> range:
        """Return the blocks of this process."""
        return split_evenly(self.blocks, self.options.parts, self.options.part)

    def own(self) -> dict[int, str]:
        """Return the finished blocks of this process with their checksums."""
        share = self.share()
        return {i: crc for i, crc in self.done.items() if i in share}

    def rows(self) -> int:
        """Return the number of rows in the blocks of this process."""
        share, size = self.share(), self.target.block_rows
        return min(share.stop * size, self.target.shape[0]) - min(share.start * size, self.target.shape[0])

    def missing_rows(self) -> int:
        """Return the number of rows of this process that are missing."""
        spans = self.spans()
        return self.rows() - sum(spans[i][1] for i in self.own())

    def layout(self) -> dict[str, Any]:
        """Return the settings that all writers of a target must share."""
        target = self.target
        return {"shape": target.shape, "block_rows": target.block_rows, "stored": target.dtype.name}

    def text(self, finished: bool = False) -> str:
        """Return the head of the record: the stream, the versions, and the checksums of finished blocks."""
        mine = self.done if self.options.parts == 1 or len(self.done) == self.blocks else self.own()
        head = {
            "format": checkpoint.RECORD_FORMAT,
            **({} if finished else {"run": self.name}),
            "stream": self.identity,
            **self.layout(),
            "made_with": {
                "jax_von_mises": __version__,
                "jax": jax.__version__,
                "device": self.device(),
            },
            "known": len(self.done),
        }
        if self.target.replaces and not finished:
            head["replaces"] = True
        # Formatted by hand, with one line per block, since there may be a million blocks.
        lines = ",\n".join([f'"{i}": "{mine[i]}"' for i in sorted(mine)])
        return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "crc32": {{\n{lines}\n }}\n}}\n'

    def device(self) -> str:
        """Return JAX's name for the kind of device that draws the blocks."""
        if self.crew and self.crew.draws_with:
            return self.crew.draws_with[1]
        kind: str = jax.local_devices()[0].device_kind
        return kind

    def prepare(self) -> bool:
        """Start, resume or repair the target, as its state and the options require; return False if it is complete."""
        target, options = self.target, self.options
        records, whole = target.records(), target.whole()
        exists = bool(records or whole)
        if exists and not (options.resume or options.parts > 1 or options.force):
            state = "holds an unfinished run" if records else "already exists"
            ways = "give " + "resume=True to continue it, or " * bool(records) + "force=True to replace it"
            raise FileExistsError(f"{target.path}: {state}; choose another name, or {ways}")
        if exists and not options.force:
            return self._go_on(records) if records else self._repair()
        self.check_room(options.force)
        self.meet_workers()
        if exists:
            target.replace(self.missing_bytes())
        target.begin(self.text())
        return True

    def _go_on(self, records: list[dict[str, Any]]) -> bool:
        """Open an unfinished run to write its missing blocks; return False if there are none."""
        for record in records:
            self.adopt(record)
        self.target.replaces = any(record.get("replaces") is True for record in records)
        # If a process was killed in `finish`, the file may be complete while its record still has its partial name.
        whole = self.target.interrupted_at_the_end() and len(self.done) == self.blocks
        self.check_blocks(whole)
        return self._open_missing(whole)

    def _repair(self) -> bool:
        """Open a finished file or store to redraw its damaged blocks; return False if there are none."""
        record = self.target.final_record()
        if record is None:
            raise FileExistsError(f"{self.target.path}: exists without a record of this package; choose another name")
        self.adopt(record)
        if self.options.parts == 1:
            self.target.check_layout()
            self.check_blocks(whole=True)
        return self._open_missing(whole=True)

    def _open_missing(self, whole: bool) -> bool:
        """Open a target (a finished one if `whole`) to write its missing blocks; return False if there are none."""
        target = self.target
        if whole and len(self.done) == self.blocks:
            target.settle()
            return False
        # Make all checks before the first change.
        self.meet_workers()
        self.check_machine()
        self.check_room()
        if whole:
            target.reopen(self.text())
        elif self.done or self.options.parts > 1:
            target.go_on(self.text())
        else:
            target.begin(self.text())
        return True

    def adopt(self, record: dict[str, Any]) -> None:
        """Adopt the blocks in a record of the same stream; refuse the record of another stream."""
        if self.options.parts == 1 and not self.done:
            self.target.block_rows = record["block_rows"]
        mine = {**self.identity, **self.layout()}
        theirs = {**record["stream"], **record}
        different = [name for name in mine if mine[name] != theirs.get(name)]
        if different:
            listed = ", ".join(
                f"{name} {shortened(theirs.get(name))} (now {shortened(mine[name])})" for name in different
            )
            raise ValueError(
                f"{CALLER}: {self.target.path} holds another stream: {listed}. "
                "Give the arguments of the first run, or choose another name."
            )
        self.done |= {i: crc for i, crc in record["crc32"].items() if 0 <= i < self.blocks}

    def check_blocks(self, whole: bool) -> None:
        """Compare the recorded blocks of this process with their checksums."""
        damaged = damaged_blocks(self.target, self.spans(), self.own(), whole)
        if damaged and not self.options.repair:
            first, rows = self.spans()[damaged[0]]
            raise Damaged(
                f"{CALLER}: {self.target.path}: {mismatch(damaged)} ({len(damaged)} of {len(self.done)} blocks; "
                f"{'the first has ' * (len(damaged) > 1)}rows {first} to {first + rows - 1}). Give repair=True to draw "
                "damaged blocks again; nothing was changed."
            )
        self.damaged = {i: self.done.pop(i) for i in damaged}

    def check_machine(self) -> None:
        """Draw one block again, since another machine, backend or JAX release may round the last digits differently."""
        own = self.own() or self.damaged
        if not own:
            return
        i = max(own)
        if self.crew:
            again = self.crew.redraw(self.job(self.crew), i)
        else:
            first, rows = self.spans()[i]
            began = time.perf_counter()
            drawn = self.stream.rows(first, self.target.block_rows)
            self.compiling = time.perf_counter() - began  # the call returns when the program has been started
            again = checksum(self.target, np.asarray(drawn)[:rows])
        if again != own[i]:
            raise ValueError(
                f"{CALLER}: {self.target.path}: block {i} differs in its last digits when it is drawn again. The run "
                "was started on a different kind of machine, or with a different release of JAX (its record "
                "names both). Resume it there, or start again with force=True. Nothing was changed."
            )

    def missing_bytes(self) -> int:
        """Return the size in bytes of this process's missing blocks."""
        return self.missing_rows() * self.stream.width * self.target.dtype.itemsize

    def check_room(self, force: bool = False) -> None:
        """Raise an error if the disk has no space for the missing blocks, or if a record cannot list all blocks."""
        if (disk := self.target.disk) is not None:
            missing = self.missing_bytes()
            need = self.target.bytes_needed(missing, force)
            free = shutil.disk_usage(disk).free
            if need > free:
                more = " more than what it replaces" if force and need < missing else ""
                raise OSError(
                    f"{self.target.path}: needs {checkpoint.readable(need)}{more}, but the disk has "
                    f"{checkpoint.readable(free)} free. Free some space, or choose another disk"
                )
        if self.blocks > checkpoint.MOST_BLOCKS:
            least = -(-self.target.shape[0] // checkpoint.MOST_BLOCKS)
            raise ValueError(
                f"{CALLER}: block_rows={self.target.block_rows} makes {self.blocks} blocks, but a finished record "
                f"can list at most {checkpoint.MOST_BLOCKS}. Give block_rows={least} or more."
            )

    def draw(self) -> int:
        """Draw, write and record the missing blocks of this process; return their number."""
        progress, observe = self.options.progress, self.options.observe
        todo = [i for i in self.share() if i not in self.done]
        spans = self.spans()
        total = self.rows()
        written = total - self.missing_rows()
        if progress is not None:
            progress(written, total)
        if self.crew:
            self.draw_by_workers(self.crew, todo, written)
            return len(todo)
        if not todo:
            return 0
        drawing = batches.SampleBatches(self.stream, [spans[i] for i in todo], self.target.block_rows, donate=True)
        clock, compiling, writing, stored = time.perf_counter, self.compiling, 0.0, 0
        try:
            began = clock()
            first = drawing.start()
            compiling += clock() - began
            began = clock()
            jax.block_until_ready(first)
            first_drawn, first_numbers = clock() - began, first.size
            del first
            for number, i in enumerate(todo):
                began = clock()
                batch = next(drawing)
                if number < 2:  # the second call starts the third block, with the program that reuses memory
                    compiling += clock() - began
                jax.block_until_ready(batch)
                began = clock()
                rows = np.asarray(batch)
                crc = checksum(self.target, rows)
                self.target.write(spans[i][0], rows)
                self.record({i: crc})
                writing += clock() - began
                stored += rows.size * self.target.dtype.itemsize
                if observe is not None:
                    observe(rows)
                written += len(rows)
                if progress is not None:
                    progress(written, total)
                del rows  # a view of `batch`, whose memory the batch after next will reuse
        finally:
            drawing.close()
        self.times = Times(compiling, first_drawn, first_numbers, writing, stored)
        return len(todo)

    def draw_by_workers(self, crew: executors.Crew, todo: list[int], written: int) -> None:
        """Let the workers draw and write the blocks `todo` in any order; record the finished blocks."""
        progress, observe, spans = self.options.progress, self.options.observe, self.spans()
        total = self.rows()
        job = self.job(crew)
        try:
            self.brief_workers(crew)  # unless `meet_workers` found a record and briefed them
            for blocks in crew.write(job, todo):
                self.record(blocks)
                if observe is not None:
                    for i in sorted(blocks):
                        observe(self.target.read(*spans[i]))
                written += sum(spans[i][1] for i in blocks)
                if progress is not None:
                    progress(written, total)
        except BaseException as error:
            # Record blocks that finish now, but do not wait for workers that hang or are lost.
            late = crew.stop(patient=not isinstance(error, TimeoutError | executors.ExecutorFailed))
            with contextlib.suppress(OSError):
                self.record(late)
            raise
        crew.dismiss(job)

    def record(self, blocks: dict[int, str]) -> None:
        """Record blocks that have reached the disk, with their checksums."""
        self.done |= blocks
        lines = checkpoint.lines_of(blocks)
        try:
            self.target.append(lines)
        except OSError:
            for i in blocks:
                del self.done[i]
            raise
        except BaseException:  # an interrupt before or after the lines were written; the blocks are on the disk
            with contextlib.suppress(OSError):
                self.target.append(lines)
            raise

    def meet_workers(self) -> None:
        """Find the workers of the executor, if there is one, and check that they can write the target."""
        if len(self.own()) == len(self.share()):
            self.crew = None  # no block is missing
        if not self.crew:
            return
        self.crew.meet()
        hosts = {worker.host for worker in self.crew.workers.values()}
        target = self.target
        shared = self.blocks > 1 and len(hosts) > 1
        if isinstance(target, npy.NpyFile) and shared and target.block_rows * target.row_bytes % target.PAGE:
            raise ValueError(
                f"{CALLER}: block_rows={target.block_rows} splits pages of {target.PAGE} bytes between blocks, so "
                f"workers on {len(hosts)} machines would overwrite each other's data. Give a multiple of "
                f"{target.PAGE // math.gcd(target.PAGE, target.row_bytes)}, or write a .zarr store."
            )
        self.brief_workers(self.crew)

    def brief_workers(self, crew: executors.Crew) -> None:
        """Give the workers the job once, as soon as a record exists by which they can recognise the target."""
        marks = frozenset(self.target.marks())
        if marks and not self.briefed:
            crew.brief(self.job(crew), marks)
            self.briefed = True

    def job(self, crew: executors.Crew) -> executors.Job:
        """Return the job of the workers."""
        target, options = self.target, self.options
        place = place_of(target, self.stream.dtype, options.part, options.parts)
        return crew.job(self.stream, place, 0, target.shape[0], target.block_rows, self.name)

    def finish(self) -> bool:
        """Complete the target if this and other processes have recorded all blocks; return whether it is complete."""
        if self.options.parts > 1:
            for record in self.target.records():
                self.adopt(record)
            if len(self.done) < self.blocks:
                if self.target.whole():  # another process has just finished it
                    self.target.settle()
                return self.target.whole()
        self.target.finish(self.text(finished=True))
        return True


def verify_samples(out: str | os.PathLike[str], *, executor: futures.Executor | None = None) -> dict[str, Any]:
    """Compare a finished file or store with the checksums in its record.

    Parameters
    ----------
    out : str or path
        A file or store that `write_samples` has finished.
    executor : concurrent.futures.Executor, optional
        Executor whose workers read the blocks, as in `write_samples`.

    Returns
    -------
    dict
        The record: the stream, shape, stored dtype, versions, and the CRC-32 of each block.

    Raises
    ------
    ValueError
        A block does not match its checksum, or the record does not list all blocks.
    FileNotFoundError
        There is no finished file or store of this name, or it has no record.
    OSError
        The header, size or metadata do not match the record, or `out` or its record cannot be read.
    RuntimeError
        The executor has lost its workers, or a task failed.
    TimeoutError
        The workers have finished no task for ten minutes.
    """
    caller = "verify_samples"
    out = arguments.path(caller, "out", out)
    executor = executors.checked_executor(caller, executor)
    target, record = open_finished(caller, out)
    spans = Spans(0, target.shape[0], target.block_rows)
    if len(spans) != len(record["crc32"]):
        raise Damaged(f"{caller}: {out}: its record has {len(record['crc32'])} checksums for {len(spans)} blocks")
    target.check_layout()
    crc = {i: record["crc32"].get(i) for i in range(len(spans))}
    try:
        crew = None if executor is None else executors.Crew(caller, executor)
        if crew:
            crew.meet()
        damaged = damaged_blocks(target, spans, crc, True, crew)
    finally:
        target.close()
    if damaged:
        raise Damaged(
            f"{caller}: {out}: {mismatch(damaged)}. Repeat the run with resume=True and repair=True to draw "
            "damaged blocks again."
        )
    return record


def open_finished(caller: str, out: str) -> tuple[Target, dict[str, Any]]:
    """Return a finished target and its record."""
    target = open_target(caller, out, (0,), np.dtype(np.float32), 1)  # only to read the record, which has the layout
    record = target.final_record() if target.whole() else None
    if record is None:
        raise FileNotFoundError(f"{out}: there is no finished file or store with a record; check the name")
    return open_target(caller, out, record["shape"], np.dtype(record["stored"]), record["block_rows"]), record


def damaged_blocks(
    target: Target, spans: Spans, crc: dict[int, str], whole: bool, crew: executors.Crew | None = None
) -> list[int]:
    """Return the blocks whose checksum differs from that in `crc`; the workers of `crew` or this process read them."""
    if crew is None:
        return [i for i in crc if stored_checksum(target, *spans[i], whole) != crc[i]]
    found = crew.checksums(place_of(target), spans, crc, whole)
    return [i for i in crc if found[i] != crc[i]]


def place_of(target: Target, dtype: np.dtype | None = None, part: int = 0, parts: int = 1) -> Place:
    """Return the arguments of `open_target` for another process; `dtype` is the target's by default."""
    name = os.path.abspath(target.path) if target.directory is not None else target.path
    return name, target.shape, dtype or target.dtype, target.block_rows, part, parts


def shortened(value: object) -> str:
    """Format a value of a record in at most 60 characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def mismatch(damaged: Sequence[int]) -> str:
    """Describe damaged blocks in a message."""
    if len(damaged) == 1:
        return f"block {damaged[0]} does not match its checksum"
    return f"{len(damaged)} blocks do not match their checksums: {first_few(damaged)}"


def first_few(numbers: Sequence[int]) -> str:
    """Format a list of numbers for a message, shortened to the first `LISTED`."""
    text = ", ".join(map(str, numbers[:LISTED]))
    return text if len(numbers) <= LISTED else f"{text} and {len(numbers) - LISTED} more"

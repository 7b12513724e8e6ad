"""Streams to disk: blocks drawn, written and recorded one by one, so that a run can be broken off and resumed.

A block counts as done when its bytes have reached the disk *and* the record has its checksum. A process that is
killed at any instant therefore loses the blocks in flight and no more; a run that resumes draws the missing blocks, at
their positions in the stream, and the result is the same to the last byte. The caller alone records blocks, also where
the workers of an executor draw and write them.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.streams import batches, checkpoint, executors, npy
from jax_von_mises.streams.stream import Spans, Stream, split_evenly
from jax_von_mises.streams.target import checksum, is_npy, open_target, stored_checksum
from jax_von_mises.version import __version__

CALLER = "write_samples"

# Angles in a block. 64 MiB of float32: drawing and writing it takes far longer than recording it, and two of them at a
# time are what a run needs in memory.
BLOCK_ANGLES = 2**24

# Of a list of numbers so many are told in a message.
LISTED = 20


class Damaged(ValueError):
    """Blocks do not match their checksums."""


class Times(NamedTuple):
    """Where the time of a run went. Blocks are drawn while earlier ones are written, so the parts do not add up."""

    compiling: float
    """Seconds in which the programs that draw were traced, lowered, and compiled or read from the cache."""
    first_drawn: float
    """Seconds in which the device drew the first block, with nothing else under way."""
    first_numbers: int
    """Numbers in that block: angles, or components of directions."""
    writing: float
    """Seconds in which blocks were copied to the host, checksummed, written to the disk and recorded."""
    bytes_written: int
    """Bytes of those blocks."""


class Written(NamedTuple):
    """What `write_samples` did."""

    out: str
    """The file or store."""
    shape: tuple[int, ...]
    """Of the whole array."""
    dtype: str
    """As it is stored."""
    drawn: int
    """Blocks drawn by this call."""
    kept: int
    """Blocks of this process that were there before."""
    finished: bool
    """Whether the target is complete. A part of several may leave that to the part that ends last."""
    times: Times | None = None
    """Where the time went; None where nothing was drawn, or workers drew."""


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
    timeout: float = 600.0,
    progress: Callable[..., Any] | None = None,
    observe: Callable[[np.ndarray], object] | None = None,
    distribution: str = "von-mises",
) -> Written:
    """Draw a stream of angles, directions or pairs into a file or a store, in constant memory.

    Row i of the result is row i of the stream, as `sample_batches` draws it without CUDA kernels, whatever
    `block_rows`, `parts` and `executor` are and wherever the run was broken off. The result appears complete or not at
    all; next to it stands a JSON record of what was drawn, with the CRC-32 of each block's bytes. While it is being
    drawn, a ``.npy`` file is named ``*.npy.partial``, and a store has no ``zarr.json``.

    Parameters
    ----------
    out : str or path
        A name that ends in ``.npy``, or in ``.zarr`` for a Zarr v3 store (needs the extra ``storage``), which may also
        be a URL that TensorStore knows, such as ``gs://bucket/big.zarr``.
    key, loc, concentration, dtype, method, distribution
        As in `sample_batches`.
    total : int
        Rows. They, and their angles or components, must be below 2^60.
    block_rows : int, optional
        Rows in a block: by default so many that it has 2^24 numbers, or more where that would make more than 2^20
        blocks. A run that is resumed keeps the size it was begun with.
    resume : bool
        Go on with what an earlier run of the same stream left; begin if there is nothing. What was recorded is
        compared with its checksums first, in a finished file too, and where blocks are missing one is drawn again, in
        case this machine draws other last digits. (A part of several compares its own blocks, and none once the
        store is whole.)
    force : bool
        Replace what is there: an unfinished run at once, a finished file or local store when the new one is finished.
        Where the disk has no space for the old and the new store together, or nothing can be written next to the old
        one, it is removed first, with a RuntimeWarning; in an object store always, without one.
    repair : bool
        With `resume`: draw blocks again that do not match their checksums. A finished file or store is an unfinished
        one meanwhile, and if the repair fails it stays one, with all its valid blocks: the same call goes on.
    part, parts : int
        This process draws share `part` of `parts`, and they all write one Zarr store, at the same time or not; with
        more than one, `resume` is implied. Each returns when its blocks are recorded. The one that then finds all
        blocks recorded makes the store complete; so does any later call.
    executor : concurrent.futures.Executor, optional
        Draws and writes the blocks, in processes that reach `out` under the same name; this process records them. A
        `ProcessPoolExecutor` (start method "spawn"), ``dask.distributed.Client(...).get_executor()``, an
        ``mpi4py.futures.MPIPoolExecutor``. Workers whose JAX has not started divide the cores of their machine, and
        take one GPU each. The executor is not shut down.
    timeout : float
        Seconds without any finished block after which the workers of `executor` are given up.
    progress, observe : callable, optional
        ``progress(done, total)`` is called with the rows of this process, before the first block and after each;
        ``observe(array)`` with the rows of each block that is drawn. With an `executor` they are read from the target.

    Returns
    -------
    Written
        Name, shape and dtype of the result, how many blocks were drawn and kept, whether it is complete, and where
        the time went.

    Raises
    ------
    FileExistsError
        There is something at `out`, and neither `resume` nor `force` was given.
    ValueError, TypeError
        For a bad argument; to `resume`, also where another stream was begun, a block does not match its checksum, or
        this machine, or a worker, does not draw what the other one drew.
    OSError
        The disk is full, or cannot be written, or `out` holds what this package did not write, or a worker does not
        reach it. What was recorded stays, and can be resumed; a run that has recorded nothing removes what it created.
    RuntimeError
        The executor has lost its workers. The run can be resumed, also with another executor or none.
    TimeoutError
        The workers have finished no block for `timeout` seconds.

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
    # CUDA kernels differ in last digits, so a run could not go on without them; next to a disk they are no gain.
    stream = Stream.of(CALLER, key, loc, concentration, dtype, method, distribution, engine="xla")
    total = arguments.whole_number(CALLER, "total", total, 0)
    if total * max(stream.width, 1) >= checkpoint.MOST_ANGLES:  # rows without angles are counted too
        raise ValueError(
            f"{CALLER}: total={total} rows of {stream.width} are more numbers than any disk holds. Both the rows and "
            "their numbers must be below 2^60."
        )
    if block_rows is not None:
        block_rows = arguments.whole_number(CALLER, "block_rows", block_rows, 1)
    options = WriteOptions(resume, force, repair, part, parts, executor, timeout, progress, observe).checked()
    block_rows = default_block_rows(stream, total, block_rows)
    shape = (total, *stream.row_shape)
    opened = open_target(CALLER, out, shape, stream.dtype, block_rows, options.part, options.parts)
    with contextlib.closing(opened) as target:
        run = WriteRun(target, stream, options)
        with telling_what_is_kept(run):
            missing = run.prepare()
            kept = len(run.own())
            drawn = run.draw() if missing else 0
            finished = run.finish() if missing else True
    return Written(out, target.shape, target.dtype.name, drawn, kept, finished, run.times)


class WriteOptions(NamedTuple):
    """How `write_samples` treats what is there, which share is drawn and by whom, and what is called meanwhile."""

    resume: bool = False
    force: bool = False
    repair: bool = False
    part: int = 0
    parts: int = 1
    executor: futures.Executor | None = None
    timeout: float = 600.0
    progress: Callable[[int, int], object] | None = None
    observe: Callable[[np.ndarray], object] | None = None

    def checked(self):
        """The same as plain values, if they are allowed, and together."""
        flags = {name: getattr(self, name) for name in ("resume", "force", "repair")}
        flags = {name: arguments.flag(CALLER, name, value) for name, value in flags.items()}
        for name, function in (("progress", self.progress), ("observe", self.observe)):
            if function is not None and not callable(function):
                raise TypeError(f"{CALLER}: {name}={arguments.safe_repr(function)} must be a function, or None.")
        executors.checked_executor(CALLER, self.executor)
        timeout = arguments.seconds(CALLER, "timeout", self.timeout)
        parts = arguments.whole_number(CALLER, "parts", self.parts, 1)
        part = arguments.whole_number(CALLER, "part", self.part, 0)
        if part >= parts:
            raise ValueError(f"{CALLER}: part={part} must be below parts={parts}; parts are counted from 0.")
        if parts > 1 and flags["force"]:
            raise ValueError(f"{CALLER}: force=True would remove what other parts write. Remove the old store first.")
        if flags["resume"] and flags["force"]:
            raise ValueError(f"{CALLER}: resume=True keeps what force=True would replace. Give one of them.")
        return self._replace(part=part, parts=parts, timeout=timeout, **flags)


@contextlib.contextmanager
def telling_what_is_kept(run):
    """Add to an error what the run leaves behind; one that has drawn no block removes what it created."""
    target = run.target
    try:
        yield
    except BaseException as error:
        # What a worker may still write belongs to the run, which therefore stays.
        if target.created and run.blocks and not run.done and not (run.crew and run.crew.left):
            error.add_note(discarded(target))
        elif target.begun:
            error.add_note(f"{len(run.done)} of {run.blocks} blocks are kept: go on with resume=True")
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = target.path
        raise


def discarded(target):
    """Remove what a run created that has drawn no block; a note on it for the error that ended the run."""
    try:
        target.discard()
    except OSError as error:  # which must not hide the other
        return f"nothing was kept, but {error.filename or target.path} could not be removed: {error.strerror}"
    return "nothing was kept"


def block_angles(angles):
    """Angles in a block, where `angles` are drawn in all."""
    block = BLOCK_ANGLES
    while angles > block * checkpoint.MOST_BLOCKS:
        block *= 2
    return block


def default_block_rows(stream, total, block_rows):
    """Rows in a block: so many bytes that whole pages can be written, where there are that many."""
    if block_rows is None:
        block_rows = max(1, block_angles(total * stream.width) // max(stream.width, 1))
        page = npy.NpyFile.PAGE // stream.dtype.itemsize
        block_rows -= block_rows % page if block_rows > page else 0
    return max(1, min(block_rows, total))


class WriteRun:
    """One process's part in filling a target."""

    def __init__(self, target, stream, options):
        self.target, self.stream, self.options = target, stream, options
        self.identity = stream.identity()  # once: it may be the hash of long arrays, and every record has it
        self.name = secrets.token_hex(8)  # by which workers know that they write what this process records
        self.crew = options.executor and executors.Crew(CALLER, options.executor, options.timeout)
        self.briefed = False  # whether the workers have the job
        self.done: dict[int, str] = {}  # block: checksum; of all processes, as far as they are known
        self.damaged: dict[int, str] = {}  # block: checksum that it should have
        self.compiling = 0.0  # seconds
        self.times: Times | None = None

    @property
    def blocks(self):
        """How many blocks there are."""
        return len(self.spans())

    def spans(self):
        """First row and number of rows of each block."""
        return Spans(0, self.target.shape[0], self.target.block_rows)

    def share(self):
        """The blocks of this process."""
        return split_evenly(self.blocks, self.options.parts, self.options.part)

    def own(self):
        """What is done of this process's blocks."""
        share = self.share()
        return {i: crc for i, crc in self.done.items() if i in share}

    def rows(self):
        """How many rows the blocks of this process have."""
        share, size = self.share(), self.target.block_rows
        return min(share.stop * size, self.target.shape[0]) - min(share.start * size, self.target.shape[0])

    def missing_rows(self):
        """How many of them are not done."""
        spans = self.spans()
        return self.rows() - sum(spans[i][1] for i in self.own())

    def layout(self):
        """What must be the same for all who write one target."""
        target = self.target
        return {"shape": target.shape, "block_rows": target.block_rows, "stored": target.dtype.name}

    def text(self, finished=False):
        """The head of the record: what is drawn, by what, and the checksums of the blocks that are done."""
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
        # Lines by hand: there may be very many.
        lines = ",\n".join([f'"{i}": "{mine[i]}"' for i in sorted(mine)])
        return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "crc32": {{\n{lines}\n }}\n}}\n'

    def device(self):
        """The kind of device that draws, as JAX names it."""
        if self.crew and self.crew.draws_with:
            return self.crew.draws_with[1]
        return jax.local_devices()[0].device_kind

    def prepare(self):
        """Begin, go on or repair, as what is there and the options ask; False if nothing is missing."""
        target, options = self.target, self.options
        records, whole = target.records(), target.whole()
        there = bool(records or whole)
        if there and not (options.resume or options.parts > 1 or options.force):
            state = "an unfinished run is there" if records else "exists"
            ways = "give resume=True to go on with it, or force=True to replace it" if records else "give force=True"
            raise FileExistsError(f"{target.path}: {state}; choose another name, or {ways}")
        if there and not options.force:
            return self._go_on(records) if records else self._repair()
        self.check_room(options.force)
        self.meet_workers()
        if there:
            target.replace(self.missing_bytes())
        target.begin(self.text())
        return True

    def _go_on(self, records):
        """Prepare what is missing of an unfinished run."""
        for record in records:
            self.adopt(record)
        self.target.replaces = any(record.get("replaces") is True for record in records)
        # A process that is killed as it finishes leaves a finished file, whose record has its old name.
        whole = self.target.interrupted_at_the_end() and len(self.done) == self.blocks
        self.check_blocks(whole)
        return self._open_missing(whole)

    def _repair(self):
        """Prepare what is missing of a finished file or store: blocks that turn out to be damaged."""
        record = self.target.final_record()
        if record is None:
            raise FileExistsError(f"{self.target.path}: exists, without a record of this package; choose another name")
        self.adopt(record)
        if self.options.parts == 1:
            self.target.check_layout()
            self.check_blocks(whole=True)
        return self._open_missing(whole=True)

    def _open_missing(self, whole):
        """Open a target, which may be `whole`, for the blocks that are not done; False if there are none."""
        target = self.target
        if whole and len(self.done) == self.blocks:
            target.settle()
            return False
        # All that can be refused is, before anything is touched.
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

    def adopt(self, record):
        """Take over the blocks of a record, if it is of the same stream."""
        if self.options.parts == 1 and not self.done:
            self.target.block_rows = record["block_rows"]
        mine = {**self.identity, **self.layout()}
        theirs = {**record["stream"], **record}
        different = [name for name in mine if mine[name] != theirs.get(name)]
        if different:
            listed = ", ".join(
                f"{name} {in_short(theirs.get(name))} (now {in_short(mine[name])})" for name in different
            )
            raise ValueError(
                f"{CALLER}: {self.target.path} holds another stream: {listed}. "
                "Give the arguments it was begun with, or choose another name."
            )
        self.done |= {i: crc for i, crc in record["crc32"].items() if 0 <= i < self.blocks}

    def check_blocks(self, whole):
        """Compare what was recorded of this process's blocks with what is on the disk."""
        damaged = damaged_blocks(self.target, self.spans(), self.own(), whole)
        if damaged and not self.options.repair:
            first, rows = self.spans()[damaged[0]]
            raise Damaged(
                f"{CALLER}: {self.target.path}: {mismatch(damaged)} ({len(damaged)} of {len(self.done)} blocks; "
                f"{'the first has ' * (len(damaged) > 1)}rows {first} to {first + rows - 1}). Give repair=True to draw "
                "damaged blocks again; nothing was changed."
            )
        self.damaged = {i: self.done.pop(i) for i in damaged}

    def check_machine(self):
        """Draw one block again: another machine, backend or release of JAX may round the last digits otherwise."""
        own = self.own() or self.damaged
        if not own:
            return
        i = max(own)
        if self.crew:
            again = self.crew.redraw(self.job(), i)
        else:
            first, rows = self.spans()[i]
            began = time.perf_counter()
            drawn = self.stream.rows(first, self.target.block_rows)
            self.compiling = time.perf_counter() - began  # the call returns when the program has been started
            again = checksum(self.target, np.asarray(drawn)[:rows])
        if again != own[i]:
            raise ValueError(
                f"{CALLER}: {self.target.path}: block {i} drawn again differs in its last digits. The run was begun on "
                "another kind of machine, or with another release of JAX (its record says which): go on there, or "
                "begin anew with force=True. Nothing was changed."
            )

    def missing_bytes(self):
        """How many bytes of angles are not done."""
        return self.missing_rows() * self.stream.width * self.target.dtype.itemsize

    def check_room(self, force=False):
        """Refuse early what the disk cannot hold, or no record could list."""
        if self.target.directory is not None:
            missing = self.missing_bytes()
            need = self.target.bytes_needed(missing, force)
            free = shutil.disk_usage(self.target.disk).free
            if need > free:
                more = " more than what it replaces" if force and need < missing else ""
                need, free = checkpoint.readable(need), checkpoint.readable(free)
                raise OSError(f"{self.target.path}: needs {need}{more} and the disk has {free} free")
        if self.blocks > checkpoint.MOST_BLOCKS:
            least = -(-self.target.shape[0] // checkpoint.MOST_BLOCKS)
            raise ValueError(
                f"{CALLER}: block_rows={self.target.block_rows} makes {self.blocks} blocks, and the finished record "
                f"lists at most {checkpoint.MOST_BLOCKS}. Give block_rows={least} or more."
            )

    def draw(self):
        """Draw, write and record the missing blocks of this process; give their number."""
        progress, observe = self.options.progress, self.options.observe
        todo = [i for i in self.share() if i not in self.done]
        spans = self.spans()
        total = self.rows()
        written = total - self.missing_rows()
        if progress is not None:
            progress(written, total)
        if self.crew:
            self.draw_by_workers(todo, written)
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
                if number < 2:  # the third block takes the memory of the first, by another program
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
                del rows  # or its memory could not be given to the next batch
        finally:
            drawing.close()
        self.times = Times(compiling, first_drawn, first_numbers, writing, stored)
        return len(todo)

    def draw_by_workers(self, todo, written):
        """The same by the workers of the executor, which write; blocks come in any order, and are recorded here."""
        progress, observe, spans = self.options.progress, self.options.observe, self.spans()
        total = self.rows()
        job = self.job()
        try:
            self.brief_workers()  # if there was nothing that they could have seen before
            for blocks in self.crew.write(job, todo):
                self.record(blocks)
                if observe is not None:
                    for i in sorted(blocks):
                        observe(self.target.read(*spans[i]))
                written += sum(spans[i][1] for i in blocks)
                if progress is not None:
                    progress(written, total)
        except BaseException as error:
            # What is finished meanwhile counts; but nobody waits for workers that hang, or are no more.
            late = self.crew.stop(patient=not isinstance(error, TimeoutError | executors.ExecutorFailed))
            with contextlib.suppress(OSError):
                self.record(late)
            raise
        self.crew.dismiss(job)

    def record(self, blocks):
        """Record blocks, whose bytes have reached the disk, with their checksums."""
        self.done |= blocks
        lines = checkpoint.lines_of(blocks)
        try:
            self.target.append(lines)
        except OSError:
            for i in blocks:
                del self.done[i]
            raise
        except BaseException:  # an interrupt, before or after the lines were written: the blocks are there
            with contextlib.suppress(OSError):
                self.target.append(lines)
            raise

    def meet_workers(self):
        """Find the workers of the executor, if there is one, and see that they can do their part."""
        if len(self.own()) == len(self.share()):
            self.crew = None  # there is nothing for them to do
        if not self.crew:
            return
        self.crew.meet()
        hosts = {worker.host for worker in self.crew.workers.values()}
        target = self.target
        cut = is_npy(target.path) and self.blocks > 1 and target.block_rows * target.row_bytes % target.PAGE
        if cut and len(hosts) > 1:
            raise ValueError(
                f"{CALLER}: block_rows={target.block_rows} cuts pages of {target.PAGE} bytes, which workers on "
                f"{len(hosts)} machines would write over each other. Give a multiple of "
                f"{target.PAGE // math.gcd(target.PAGE, target.row_bytes)}, or write a .zarr store."
            )
        self.brief_workers()

    def brief_workers(self):
        """Give the workers the job, once, when there is a record by which they know the target."""
        marks = frozenset(self.target.marks())
        if marks and not self.briefed:
            self.crew.brief(self.job(), marks)
            self.briefed = True

    def job(self):
        """What a worker needs to draw and write blocks."""
        target, options = self.target, self.options
        place = place_of(target, self.stream.dtype, options.part, options.parts)
        return self.crew.job(self.stream, place, 0, target.shape[0], target.block_rows, self.name)

    def finish(self):
        """Make the target complete, if all blocks are recorded, by this process or by others; whether it is."""
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
        What `write_samples` has written. It is read as its readers do: by its own header or metadata, which must be
        those that the record tells of.
    executor : concurrent.futures.Executor, optional
        Reads the blocks, as in `write_samples`.

    Returns
    -------
    dict
        The record: the stream that was drawn, shape, stored dtype, versions, and the CRC-32 of each block.

    Raises
    ------
    ValueError
        A block does not match, or the record does not fit the file.
    FileNotFoundError
        There is no such file, or no record beside it.
    RuntimeError
        The executor has lost its workers.
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
        crew = executor and executors.Crew(caller, executor, None)
        if crew:
            crew.meet()
        damaged = damaged_blocks(target, spans, crc, True, crew)
    finally:
        target.close()
    if damaged:
        raise Damaged(f"{caller}: {out}: {mismatch(damaged)}")
    return record


def open_finished(caller, out):
    """A finished target, and its record."""
    target = open_target(caller, out, (0,), np.dtype(np.float32), 1)  # whatever it holds: its record tells
    record = target.final_record() if target.whole() else None
    if record is None:
        raise FileNotFoundError(f"{out}: no finished file with a record beside it")
    return open_target(caller, out, record["shape"], np.dtype(record["stored"]), record["block_rows"]), record


def damaged_blocks(target, spans, crc, whole, crew=None):
    """The blocks whose bytes do not have the checksum of `crc`, read here or by a crew that was met."""
    if crew is None:
        return [i for i in crc if stored_checksum(target, *spans[i], whole) != crc[i]]
    found = crew.checksums(place_of(target), spans, crc, whole)
    return [i for i in crc if found[i] != crc[i]]


def place_of(target, dtype=None, part=0, parts=1):
    """Arguments of `open_target` that name a target for another process; its own dtype by default."""
    name = os.path.abspath(target.path) if target.directory is not None else target.path
    return name, target.shape, dtype or target.dtype, target.block_rows, part, parts


def in_short(value):
    """A parameter in an error message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def mismatch(damaged):
    """What is wrong with damaged blocks, in a message."""
    if len(damaged) == 1:
        return f"block {damaged[0]} does not match its checksum"
    return f"{len(damaged)} blocks do not match their checksums: {first_few(damaged)}"


def first_few(numbers):
    """Numbers in an error message: all, or the first of very many."""
    text = ", ".join(map(str, numbers[:LISTED]))
    return text if len(numbers) <= LISTED else f"{text} and {len(numbers) - LISTED} more"

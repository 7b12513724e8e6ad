"""Write streams to files and stores, block by block; a run that was interrupted can be continued."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import Distribution
from jax_von_mises.streams import blocks, disk
from jax_von_mises.streams.batches import SampleBatches
from jax_von_mises.streams.blocks import Found, Plan
from jax_von_mises.streams.npy import PAGE, NpyFile
from jax_von_mises.streams.stream import Stream, split_evenly
from jax_von_mises.streams.zarr import ZarrStore

CALLER = "write_samples"

# Numbers in a block by default: 16 MiB of float32, which take far longer to draw and write than to list.
BLOCK_NUMBERS = 2**22
# By default blocks are larger if there would otherwise be more than the first number of them; the second is the limit.
USUAL_BLOCKS, MOST_BLOCKS = 2**16, 2**20
# Limit on the number of values; no disk holds more.
MOST_NUMBERS = 2**60
# Blocks that `verify_samples` draws again.
REDRAWN = 3
# Maximum number of blocks that a message lists.
LISTED = 20


class Damaged(ValueError):
    """Blocks are missing, or do not match their checksums."""


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
    """Number of this call's blocks that earlier runs had written."""
    finished: bool
    """Whether the array is complete. With several parts, any part that finds all blocks completes it."""


def write_samples(
    out: str | os.PathLike[str],
    key: ArrayLike,
    loc: ArrayLike | None = None,
    concentration: ArrayLike | None = None,
    total: int | None = None,
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
    progress: Callable[[int, int], object] | None = None,
    distribution: Distribution | None = None,
) -> Written:
    """Draw a stream of angles, directions or pairs and write it to a file or store, in constant memory.

    Row i of the result is row i of the stream, as `sample_batches` draws it without CUDA kernels. This holds for any
    `block_rows`, `parts` and `executor`, and wherever the run was interrupted. The result appears complete or not at
    all. Until it is complete, a ``.npy`` file is named ``*.npy.partial``, and a store has no ``zarr.json``.

    Parameters
    ----------
    out : str or path
        A name that ends in ``.npy``, or in ``.zarr`` for a Zarr v3 store (requires the extra ``storage``). A store can
        also be a URL for fsspec, such as ``gs://bucket/big.zarr``.
    key, loc, concentration, dtype, method, distribution
        As in `sample_batches`. bfloat16 is stored, without a change of any value, as float32.
    total : int
        Number of rows. This number and the total number of angles or components must both be below 2^60.
    block_rows : int, optional
        Rows per block. By default, a block has about 2^22 angles or components, or more if there would otherwise be
        more than 2^16 blocks. A resumed run keeps its block size. A store has one key per block, which is one chunk,
        or a shard of several chunks if it is larger than 64 MiB.
    resume : bool
        Draw the blocks that an earlier run of the same stream has not written, or all if there was none. Use `repair`
        or `verify_samples` to compare written blocks with their checksums.
    force : bool
        Replace an existing file or store that this package wrote, as its ``.npy.blocks`` or ``stream.json`` shows. It
        is removed before the first new block is written, so stop its other writers before.
    repair : bool
        With `resume`, also draw the blocks that do not match their checksums.
    part, parts : int
        Index of this part, counted from 0, and number of parts into which the blocks are divided. All parts write one
        Zarr store, concurrently or not; more than one part implies `resume`. A call that finds the blocks of all parts
        completes the store.
    executor : concurrent.futures.Executor, optional
        Executor whose workers draw and write the blocks. The workers must reach `out` under the same name. Examples are
        a `ProcessPoolExecutor` (start method "spawn"), ``dask.distributed.Client(...).get_executor()`` and an
        ``mpi4py.futures.MPIPoolExecutor``. The executor is not shut down.
    progress : callable, optional
        ``progress(done, total)`` is called before the first block and after each block; both arguments count the rows
        of this call.

    Returns
    -------
    Written
        Name, shape and dtype of the result, the numbers of blocks drawn and kept, and whether the result is complete.

    Raises
    ------
    FileExistsError
        Something exists at `out`, and neither `resume` nor `force` was given; or this package did not write it.
    ValueError, TypeError
        An argument is invalid; or `out` holds another stream; or this machine, or a worker, draws other last digits
        than the one that started the run.
    OSError
        The disk is full or cannot be written to, or a worker cannot reach `out`. Finished blocks are kept, and the run
        can be resumed. Errors of an executor, such as `concurrent.futures.BrokenExecutor`, are passed on.

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
    if total * max(stream.width, 1) >= MOST_NUMBERS:  # also limits the number of empty rows
        raise ValueError(
            f"{CALLER}: total={total} rows of length {stream.width} are too many. The number of rows and the "
            "total number of values must both be below 2^60."
        )
    if block_rows is not None:
        block_rows = arguments.whole_number(CALLER, "block_rows", block_rows, 1)
    resume, force, repair = (
        arguments.flag(CALLER, name, value)
        for name, value in (("resume", resume), ("force", force), ("repair", repair))
    )
    if progress is not None and not callable(progress):
        raise TypeError(f"{CALLER}: progress={arguments.safe_repr(progress)} must be a function, or None.")
    executor = checked_executor(CALLER, executor)
    parts = arguments.whole_number(CALLER, "parts", parts, 1)
    part = arguments.whole_number(CALLER, "part", part, 0)
    if part >= parts:
        raise ValueError(f"{CALLER}: part={part} must be below parts={parts}; parts are counted from 0.")
    if parts > 1 and force:
        raise ValueError(
            f"{CALLER}: `force` cannot be combined with parts={parts}, since it would remove what other parts write. "
            "Remove the old store once, and start the parts with `resume`."
        )
    if resume and force:
        raise ValueError(f"{CALLER}: `resume` keeps what `force` would replace. Set only one of them.")

    kind = kind_of(CALLER, out)
    if kind is NpyFile and parts > 1:
        raise ValueError(
            f"{CALLER}: out={arguments.safe_repr(out)} can have only one writer, but parts={parts}. Write a .zarr "
            "store instead."
        )
    found = kind.found(out)
    if found.exists and found.text is None:
        raise FileExistsError(f"{out}: was not written by this package; move it away, or choose another name")
    if found.exists and not (resume or force or parts > 1):
        raise FileExistsError(
            f"{out}: already exists, finished or not; choose another name, set `resume` to continue it, or `force` to "
            "replace it"
        )
    old = None if force or found.text is None else Plan.read(out, found.text)
    plan = Plan.of(stream, total, rows_in_block(stream, total, block_rows, old), old.about["first_rows"] if old else "")
    if old:
        must_be_equal(out, old, plan)
    if plan.blocks > MOST_BLOCKS:
        least = -(-total // MOST_BLOCKS)
        raise ValueError(
            f"{CALLER}: block_rows={plan.block_rows} makes {plan.blocks} blocks, but there can be at most "
            f"{MOST_BLOCKS}. Give block_rows={least} or more."
        )
    if executor and kind is NpyFile and plan.blocks > 1 and NpyFile(out, plan).offset(plan.block_rows) % PAGE:
        raise ValueError(
            f"{CALLER}: block_rows={plan.block_rows} splits pages of {PAGE} bytes between blocks, which workers on "
            "several machines would overwrite. Give a multiple of 4096, leave out the executor, or write a .zarr store."
        )
    run = WriteRun(kind, out, plan, stream, executor, progress, split_evenly(plan.blocks, parts, part))
    return run.write(found, force, repair)


class WriteRun:
    """The work of one call on the blocks `share` of a file or store."""

    def __init__(
        self,
        kind: type[NpyFile | ZarrStore],
        out: str,
        plan: Plan,
        stream: Stream,
        executor: futures.Executor | None,
        progress: Callable[[int, int], object] | None,
        share: range,
    ):
        self.kind, self.out, self.plan, self.stream, self.executor = kind, out, plan, stream, executor
        self.report, self.share = progress, share

    def write(self, found: Found, force: bool, repair: bool) -> Written:
        """Draw the blocks that are missing, and those that are damaged if `repair` is true."""
        target = self.kind(self.out, self.plan)
        before = {} if force else target.done()
        kept = [block for block in self.share if block in before]
        self.check_room([block for block in self.share if block not in before], force)
        if repair:
            with_checksums = [(block, before[block]) for block in kept]
            damaged = dict(blocks.each(self.executor, blocks.check_block, blocks.task_of(target), with_checksums))
            kept = [block for block in kept if not damaged[block]]
        todo = sorted(set(self.share) - set(kept))
        with contextlib.ExitStack() as stack:
            drawing = None
            if todo and self.executor is None:
                spans = [self.plan.span(block) for block in todo]
                drawing = SampleBatches(self.stream, spans, self.plan.block_rows, donate=True)
                stack.callback(drawing.close)
            if todo:
                self.plan = self.plan.with_first_rows(self.first_rows(target, todo, drawing))
                target = self.kind(self.out, self.plan)
            stack.callback(target.close)
            try:
                if todo or not self.plan.blocks or (found.exists and not found.finished):
                    target.begin(found, force and found.exists)
                done, share = self.plan.rows(kept), self.plan.rows(self.share)
                self.progress(done, share)
                for block, crc in self.results(target, todo, drawing):
                    target.record(block, crc)
                    done += self.plan.span(block)[1]
                    self.progress(done, share)
                finished = target.finish()
            except BaseException as error:
                if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                    error.filename = self.out
                with contextlib.suppress(OSError):
                    if finished_blocks := len(target.done()):
                        error.add_note(
                            f"{finished_blocks} of {self.plan.blocks} blocks are finished; continue with `resume`"
                        )
                raise
        return Written(
            self.out, self.plan.shape, self.plan.dtype.name, len(todo), len(self.share) - len(todo), finished
        )

    def progress(self, done: int, total: int) -> None:
        """Report the finished rows."""
        if self.report is not None:
            self.report(done, total)

    def first_rows(self, target: NpyFile | ZarrStore, todo: list[int], drawing: SampleBatches | None) -> str:
        """Return the checksum of the first rows, drawn where the blocks will be drawn."""
        found: str
        if self.executor is not None:
            found = self.executor.submit(blocks.first_rows, blocks.task_of(target)).result()
        elif drawing is not None and todo[0] == 0:
            found = self.plan.first_rows(drawing.start())  # the block is drawn only once
        else:
            found = self.plan.first_rows(self.stream.rows(0, self.plan.block_rows))
        if self.plan.about["first_rows"]:
            blocks.must_draw_the_same(self.out, self.plan, found)
        return found

    def results(
        self, target: NpyFile | ZarrStore, todo: list[int], drawing: SampleBatches | None
    ) -> Iterator[tuple[int, str]]:
        """Draw blocks and put them in their places; yield each with its checksum."""
        if drawing is None:
            yield from blocks.each(self.executor, blocks.write_block, blocks.task_of(target), todo)
            return
        for block, drawn in zip(todo, drawing, strict=True):
            yield block, target.put(block, np.asarray(drawn))
            del drawn  # the block after next reuses its memory

    def check_room(self, missing: list[int], force: bool) -> None:
        """Raise OSError if the directory does not exist, or its disk has no space for the missing blocks."""
        if "://" in self.out:
            return
        folder = os.path.dirname(self.out.rstrip("/")) or os.curdir
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"{self.out}: there is no directory {folder}; create it first")
        need, free = self.plan.rows(missing) * self.plan.row_bytes, shutil.disk_usage(folder).free
        if need > free + (disk.size_of(self.out, f"{self.out}.partial") if force else 0):  # these are removed first
            raise OSError(
                f"{self.out}: needs {disk.readable(need)}, but the disk has {disk.readable(free)} free. Free some "
                "space, or choose another disk"
            )


def rows_in_block(stream: Stream, total: int, block_rows: int | None, old: Plan | None) -> int:
    """Return the number of rows in a block: that of an earlier run, the given one, or the default."""
    if old is not None:
        return old.block_rows
    if block_rows is None:
        numbers = BLOCK_NUMBERS
        while total * stream.width > numbers * USUAL_BLOCKS:
            numbers *= 2
        block_rows = max(1, numbers // max(stream.width, 1))
        row_bytes = stream.width * blocks.stored_dtype(stream).itemsize
        block_rows += -block_rows % (PAGE // math.gcd(PAGE, row_bytes))  # complete pages of the disk
    return max(1, min(block_rows, total))


def must_be_equal(out: str, old: Plan, new: Plan) -> None:
    """Raise ValueError, which lists the differences, if a file or store holds another stream."""
    theirs, ours = (
        plan.about | plan.about["stream"] | plan.about["stream"]["parameters"] | {"stream": None, "parameters": None}
        for plan in (old, new)
    )
    different = [
        f"{name} {shortened(theirs.get(name))} (now {shortened(ours.get(name))})"
        for name in ours | theirs
        if ours.get(name) != theirs.get(name)
    ]
    if different:
        raise ValueError(
            f"{CALLER}: {out} holds another stream: {', '.join(different)}. Give the arguments of the first run, or "
            "choose another name."
        )


def kind_of(caller: str, out: str) -> type[NpyFile | ZarrStore]:
    """Return the class of the file or store that `out` names."""
    if out.lower().endswith(".npy") and "://" not in out:
        return NpyFile
    if not out.lower().rstrip("/").endswith(".zarr"):
        raise ValueError(f"{caller}: out={arguments.safe_repr(out)} must end in .npy, or in .zarr for a Zarr store.")
    arguments.utf8(caller, "out", out, "zarr-python")
    return ZarrStore


def checked_executor(caller: str, executor: object) -> futures.Executor | None:
    """Return `executor`; raise TypeError unless it is an executor or None."""
    if executor is not None and not isinstance(executor, futures.Executor):
        raise TypeError(
            f"{caller}: executor={arguments.safe_repr(executor)} must be a concurrent.futures.Executor, such as a "
            "ProcessPoolExecutor or dask.distributed.Client(...).get_executor(), or None."
        )
    return executor


def verify_samples(out: str | os.PathLike[str], *, executor: futures.Executor | None = None) -> dict[str, Any]:
    """Compare a finished file or store with its checksums, and draw a few of its blocks again.

    Parameters
    ----------
    out : str or path
        A file or store that `write_samples` has finished. A ``.npy`` file needs its ``.npy.blocks``.
    executor : concurrent.futures.Executor, optional
        Executor whose workers read the blocks, as in `write_samples`.

    Returns
    -------
    dict
        ``"stream"`` (distribution, key, parameters, dtype and method), ``"shape"``, ``"dtype"`` and ``"block_rows"`` of
        the array, ``"blocks"``, their number, and ``"redrawn"``, a list of blocks that were drawn again and are equal.
        The list is empty if this machine draws other last digits than the one that wrote the array.

    Raises
    ------
    ValueError
        A block is missing, does not match its checksum, or differs from what is drawn.
    FileNotFoundError
        There is no file or store of this name, or it is not finished, or has no ``.npy.blocks`` or ``stream.json``.
    OSError
        The header, size or metadata are not those of the array, or `out` cannot be read.
    """
    caller = "verify_samples"
    out = arguments.path(caller, "out", out)
    executor = checked_executor(caller, executor)
    target = open_finished(caller, out)
    target.check()
    plan, done = target.plan, target.done()
    checked = blocks.each(executor, blocks.check_block, blocks.task_of(target), done.items())
    bad = plan.missing(done) + [block for block, wrong in checked if wrong]
    if bad:
        raise Damaged(f"{caller}: {out}: {mismatch(sorted(bad))}. Repeat the run with `resume` and `repair`.")
    redrawn = sorted({i * (plan.blocks - 1) // (REDRAWN - 1) for i in range(REDRAWN)}) if plan.blocks else []
    stream = blocks.stream_of(plan)
    for block in redrawn:
        first, count = plan.span(block)
        drawn = np.asarray(stream.rows(first, plan.block_rows))[:count]
        if block == 0 and plan.first_rows(drawn) != plan.about["first_rows"]:
            redrawn = []
            break
        if plan.checksum(drawn) != plan.checksum(target.read(block)):
            raise Damaged(
                f"{caller}: {out}: block {block} is not of this stream; another run may have written it. Repeat the "
                "run with `force`."
            )
    return {name: plan.about[name] for name in ("stream", "shape", "dtype", "block_rows")} | {
        "blocks": plan.blocks,
        "redrawn": redrawn,
    }


def open_finished(caller: str, out: str) -> NpyFile | ZarrStore:
    """Return a finished file or store; raise FileNotFoundError if there is none, or none of this package."""
    kind = kind_of(caller, out)
    found = kind.found(out)
    if not found.exists:
        raise FileNotFoundError(f"{out}: there is no such {'file' if kind is NpyFile else 'store'}")
    if found.text is None:
        if kind is NpyFile:
            raise FileNotFoundError(
                f"{out}: has no {out}.blocks next to it, with its checksums. Each file of this package has one; copy "
                "and move both together"
            )
        raise FileNotFoundError(f"{out}: has no stream.json in it. Each store of this package has one")
    target = kind(out, Plan.read(out, found.text))
    if not found.finished:
        raise FileNotFoundError(
            f"{out}: is not finished: {len(target.done())} of {target.plan.blocks} blocks are. Complete it with "
            "`resume`"
        )
    return target


def read_blocks(out: str) -> Iterator[np.ndarray]:
    """Yield the rows of each block of a finished file or store."""
    target = open_finished(CALLER, out)
    yield from map(target.read, range(target.plan.blocks))


def shortened(value: object) -> str:
    """Format a value of a plan in at most 60 characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def mismatch(damaged: list[int]) -> str:
    """Describe damaged blocks in a message."""
    if len(damaged) == 1:
        return f"block {damaged[0]} is missing or does not match its checksum"
    few = ", ".join(map(str, damaged[:LISTED])) + f" and {len(damaged) - LISTED} more" * (len(damaged) > LISTED)
    return f"{len(damaged)} blocks are missing or do not match their checksums: {few}"

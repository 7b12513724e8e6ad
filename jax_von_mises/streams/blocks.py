"""Describe the blocks of a file or store, and draw and write them in this process or in the workers of an executor.

Block i is a pure function of the plan and i. The set of finished blocks is therefore all that a run has to know: it
draws the missing ones, and drawing a block twice does no harm.
"""

import errno
import functools
import json
import math
import os
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from jax_von_mises.streams.stream import FORMAT, Stream

# The beginning of each identity, in every version of the format.
MARK = f'{{"format": "{FORMAT.rstrip("0123456789")}'

# Rows at the beginning of a stream whose checksum stands in the plan. They show whether a machine draws the same last
# digits as the one that started the run.
FIRST_ROWS = 4096

# Tasks that wait for a worker or run at the same time.
WINDOW = 256

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class OtherFormat(Exception):
    """The format of a plan, which another version of the package wrote."""


class Plan:
    """What a file or store holds: a stream, its first rows, and how they are divided into blocks.

    A plan stands in each file and store as one line of JSON, its identity. Two writers have equal plans if and only if
    they write the same bytes.
    """

    def __init__(self, text: str):
        self.text = text
        about = json.loads(text)
        if about["format"] != FORMAT:
            raise OtherFormat(about["format"])
        self.about: dict[str, Any] = about
        self.shape = tuple(map(int, about["shape"]))
        self.dtype = np.dtype(about["dtype"])
        self.block_rows = int(about["block_rows"])
        self.row_bytes: int = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.blocks = 0 if 0 in self.shape else -(-self.shape[0] // self.block_rows)

    @classmethod
    def of(cls, stream: Stream, total: int, block_rows: int, first_rows: str) -> "Plan":
        """Return the plan to write rows 0 to ``total - 1`` of a stream."""
        return cls(
            json.dumps(
                {
                    "format": FORMAT,
                    "stream": stream.identity(),
                    "shape": (total, *stream.row_shape),
                    "dtype": stored_dtype(stream).name,
                    "block_rows": block_rows,
                    "first_rows": first_rows,
                }
            )
        )

    def with_first_rows(self, checksum: str) -> "Plan":
        """Return the plan with the checksum of the first rows."""
        return Plan(json.dumps(self.about | {"first_rows": checksum}))

    @classmethod
    def read(cls, name: str, text: str) -> "Plan":
        """Return the plan that was found in a file or store."""
        try:
            return cls(text)
        except OtherFormat as error:
            raise FileExistsError(
                f"{name}: has format {error}, but this version of the package reads {FORMAT}. Use the version that "
                "wrote it, or move it away and draw the stream again"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileExistsError(
                f"{name}: holds a damaged description of its stream. Move it away, and draw the stream again"
            ) from error

    def span(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and its number of rows."""
        first = block * self.block_rows
        return first, min(self.block_rows, self.shape[0] - first)

    def rows(self, blocks: Iterable[int]) -> int:
        """Return the number of rows of some blocks."""
        return sum(self.span(block)[1] for block in blocks)

    def missing(self, done: Container[int]) -> list[int]:
        """Return the blocks that are not in `done`."""
        return [block for block in range(self.blocks) if block not in done]

    def stored(self, rows: np.ndarray) -> memoryview:
        """Return rows as the bytes that a file holds, with the least significant byte of a number first."""
        return np.ascontiguousarray(rows, self.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data

    def checksum(self, rows: np.ndarray) -> str:
        """Return the CRC-32 of rows, as eight hexadecimal digits."""
        return f"{zlib.crc32(self.stored(rows)):08x}"

    def first_rows(self, block: Any) -> str:
        """Return the checksum of the first rows, given block 0 as an array that may be longer."""
        return self.checksum(np.asarray(block)[: min(FIRST_ROWS, self.span(0)[1])])


def stored_dtype(stream: Stream) -> np.dtype:
    """Return the dtype of a stream's file or store. Neither format has bfloat16, whose values float32 holds."""
    return np.dtype("float32") if stream.dtype.name == "bfloat16" else stream.dtype


class Found(NamedTuple):
    """What stands at the name of a file or store."""

    exists: bool
    text: str | None
    """The identity; None if nothing exists, or something that this package did not write."""
    finished: bool


class Target(Protocol):
    """A file or store of one plan: a `NpyFile` or a `ZarrStore`."""

    path: str
    plan: Plan

    def put(self, block: int, rows: np.ndarray) -> str:
        """Write a block; it is safe when this returns. Return its checksum, if the target keeps a log of them."""

    def damaged(self, block: int, expected: str) -> bool:
        """Return whether a block differs from its checksum, which is `expected` if it stands in a log."""


class Task(NamedTuple):
    """All that a worker has to know."""

    open: Callable[[str, Plan], Target]
    path: str
    plan: str


def task_of(target: Target) -> Task:
    """Return the task of workers that write or check the blocks of a target."""
    path = target.path if "://" in target.path else os.path.abspath(target.path)
    return Task(type(target), path, target.plan.text)


def stream_of(plan: Plan) -> Stream:
    """Return the stream of a plan."""
    return Stream.from_identity("write_samples", plan.about["stream"])


def first_rows(task: Task) -> str:
    """Return the checksum of the first rows, as this process draws them."""
    plan = Plan(task.plan)
    return plan.first_rows(stream_of(plan).rows(0, plan.block_rows))


@functools.lru_cache(maxsize=4)
def target_of(task: Task) -> Target:
    """Return the file or store of a task."""
    return task.open(task.path, Plan(task.plan))


@functools.lru_cache(maxsize=2)
def prepare(task: Task) -> tuple[Target, Stream]:
    """Return the target and the stream of a task, once this process has drawn the first rows of the stream."""
    target = target_of(task)
    stream = stream_of(target.plan)
    must_draw_the_same(task.path, target.plan, target.plan.first_rows(stream.rows(0, target.plan.block_rows)))
    return target, stream


def of_another_run(path: str) -> FileNotFoundError:
    """Return the error of a writer that does not find the plan of its run."""
    return FileNotFoundError(
        f"{path}: no longer belongs to this run: it was removed or replaced by another stream, or this process does "
        "not see it under that name"
    )


def must_draw_the_same(path: str, plan: Plan, found: str) -> None:
    """Raise ValueError unless the checksum of the first rows that were drawn here is that of the plan."""
    if found != plan.about["first_rows"]:
        raise ValueError(
            f"write_samples: {path}: this machine draws other last digits than the one that started the run, which was "
            "of a different kind or had a different release of JAX. Resume it there, or start again with `force`."
        )


def write_block(task: Task, block: int) -> tuple[int, str]:
    """Draw a block and put it in its place; return it with its checksum."""
    target, stream = prepare(task)
    first, count = target.plan.span(block)
    return block, target.put(block, np.asarray(stream.rows(first, target.plan.block_rows))[:count])


def check_block(task: Task, block: tuple[int, str]) -> tuple[int, bool]:
    """Return a block, which is given with its checksum, and whether it is damaged."""
    try:
        return block[0], target_of(task).damaged(*block)
    except OSError as error:
        if error.errno != errno.EIO:  # a bad sector is a damaged block
            raise
        return block[0], True


def each(
    executor: futures.Executor | None, function: Callable[[Task, Item], Answer], task: Task, items: Iterable[Item]
) -> Iterator[Answer]:
    """Yield ``function(task, item)`` for each item, as the workers of an executor or this process finish it.

    If an item fails, those that were finished before it are yielded first. Items that have not been started are
    cancelled at the end.
    """
    if executor is None:
        yield from (function(task, item) for item in items)
        return
    left = iter(items)
    waiting: set[futures.Future[Answer]] = set()
    try:
        while True:
            for item in left:
                waiting.add(executor.submit(function, task, item))
                if len(waiting) >= WINDOW:
                    break
            if not waiting:
                return
            done, waiting = futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: future.cancelled() or future.exception() is not None):
                yield future.result()
    finally:
        for future in waiting:
            future.cancel()

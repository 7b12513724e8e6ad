"""Write a ``.npy`` file block by block.

======================= =========================================== ================================
file                    during the run                              afterwards
======================= =========================================== ================================
the array               ``big.npy.partial``                         ``big.npy``
its log                 ``big.npy.partial.blocks``                  ``big.npy.blocks``
======================= =========================================== ================================

The log begins with the plan, and has a line with the number and the CRC-32 of each block. A block is on the disk before
its line is. Only the caller writes the log; workers write blocks.
"""

import contextlib
import math
import os
import re
import zlib
from typing import BinaryIO, NamedTuple

import numpy as np

from jax_von_mises.streams import disk
from jax_von_mises.streams.blocks import MARK, Found, Plan

LINE = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{8})")
# Stands in the log of a run that replaces a file.
REPLACES = b"replaces"
# The data start at a page boundary. Workers on several machines must not write to one page.
PAGE = 4096
# Bytes that are read at a time.
PIECE = 2**24


class Log(NamedTuple):
    """The content of a log."""

    text: str
    """The plan; empty if its line is incomplete."""
    blocks: dict[int, str]
    """Finished blocks with their checksums."""
    replaces: bool

    @classmethod
    def read(cls, name: str) -> "Log | None":
        """Return the content of a log, or None if it does not exist."""
        content = disk.read(name)
        if content is None:
            return None
        head, end, lines = content.partition(b"\n")
        mark = MARK.encode()
        if not (head.startswith(mark) or (not end and mark.startswith(head))):
            raise FileExistsError(f"{name}: was not written by this package; move it away, or choose another name")
        # An incomplete line, where a process or machine stopped, does not match.
        matches = [match for match in map(LINE.fullmatch, lines.split(b"\n")) if match]
        blocks = {int(match[1]): match[2].decode() for match in matches}
        return cls(head.decode(errors="replace") if end else "", blocks, REPLACES in lines.split(b"\n", 1)[:1])


def names_of(path: str) -> tuple[str, str, str]:
    """Return the names of the partial file, of the log of the file and of the log of the run."""
    return f"{path}.partial", f"{path}.blocks", f"{path}.partial.blocks"


class NpyFile:
    """One ``.npy`` file.

    Blocks are written by system calls and not through a memory map. When the disk is full, a system call raises an
    error, whereas a store to mapped memory kills the process. The finished file can be memory-mapped.
    """

    def __init__(self, path: str, plan: Plan):
        self.path, self.plan = path, plan
        self.partial, self.log, self.partial_log = names_of(path)
        self.lines: BinaryIO | None = None  # the log, open and locked
        self.held: BinaryIO | None = None  # the log of the file that is replaced, locked

    @classmethod
    def found(cls, path: str) -> Found:
        """Return what stands at `path`."""
        partial, log, partial_log = names_of(path)
        for name in (path, partial, log, partial_log):
            disk.must_not_be_a_link(name)
            if os.path.lexists(name) and not os.path.isfile(name):
                raise FileExistsError(f"{name}: is not a file; move it away, or choose another name")
        exists, of_the_run, of_the_file = os.path.lexists(path), Log.read(partial_log), Log.read(log)
        if of_the_run and of_the_run.text:
            itself = cls(path, Plan.read(partial_log, of_the_run.text))
            return Found(True, of_the_run.text, itself.was_renamed(of_the_run))
        if of_the_run is None and os.path.lexists(partial):
            raise FileExistsError(f"{partial}: was not written by this package; move it away, or choose another name")
        return Found(exists, of_the_file.text or None if exists and of_the_file else None, exists)

    def was_renamed(self, log: Log) -> bool:
        """Return whether a run was stopped after renaming the file and before removing its log."""
        complete = len(log.blocks) == self.plan.blocks and not os.path.lexists(self.partial)
        if not (complete and os.path.lexists(self.path) and self.is_sound()):
            return False
        # Without the partial file, the old file of the same shape may still be there.
        last = self.plan.blocks - 1
        return last < 0 or not log.replaces or not self._differs(self.path, last, log.blocks[last])

    def header(self) -> bytes:
        """Return the ``.npy`` header, padded to a page."""
        plan = self.plan
        fields = {"descr": np.lib.format.dtype_to_descr(plan.dtype), "fortran_order": False, "shape": plan.shape}
        text = repr(fields).encode("ascii")
        magic = np.lib.format.magic(1, 0)
        length = PAGE - len(magic) - 2
        return magic + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"

    def offset(self, row: int) -> int:
        """Return the position of a row in the file, in bytes."""
        return PAGE + row * self.plan.row_bytes

    def is_ours(self) -> bool:
        """Return whether the finished file has the header that the plan implies."""
        return disk.read(self.path, PAGE) == self.header()

    @classmethod
    def must_be_ours(cls, path: str) -> None:
        """Raise FileExistsError if there is a file at `path` that this package did not write, as its logs show."""
        if not os.path.lexists(path):
            return
        _, *logs = names_of(path)
        plans = [Plan.read(name, log.text) for name in logs if (log := Log.read(name)) and log.text]
        if not plans:
            raise FileExistsError(f"{path}: was not written by this package; move it away, or choose another name")
        if not any(cls(path, plan).is_ours() for plan in plans):
            raise FileExistsError(
                f"{path}: is not the file that its .blocks describes; move it away, or choose another name"
            )

    def is_sound(self) -> bool:
        """Return whether the finished file has the header and the size that the plan implies."""
        return self.is_ours() and os.path.getsize(self.path) == self.offset(self.plan.shape[0])

    def place(self) -> tuple[str, str]:
        """Return the names of the array and of its log; raise OSError if there is no log of this plan."""
        head = f"{self.plan.text}\n".encode()
        if disk.read(self.partial_log, len(head)) == head:
            log = Log.read(self.partial_log) if not os.path.lexists(self.partial) else None
            return self.path if log and self.was_renamed(log) else self.partial, self.partial_log
        if disk.read(self.log, len(head)) == head:
            return self.path, self.log
        raise FileNotFoundError(
            f"{self.path}: no longer belongs to this run, since it was removed or replaced by another stream"
        )

    def done(self) -> dict[int, str]:
        """Return the finished blocks with their checksums."""
        try:
            data, name = self.place()
        except FileNotFoundError:
            return {}
        log = Log.read(name)
        known = log.blocks if log and os.path.lexists(data) else {}
        return {block: crc for block, crc in known.items() if block < self.plan.blocks}

    def begin(self, found: Found, replace: bool) -> None:
        """Lock the log, and create the files that do not exist; continue an earlier run unless `replace` is true."""
        if found.finished and not replace:
            self._lock(self.place()[1])
            return
        if os.path.lexists(self.log):
            self._lock(self.log)  # a repair of the finished file
            self.held, self.lines = self.lines, None
        log = self._lock(self.partial_log, os.O_CREAT)
        head, end, _ = log.read().partition(b"\n")
        if end and not replace and head.decode() != self.plan.text:
            raise FileExistsError(f"{self.path}: another run was started at the same time; choose another name")
        fresh = replace or not end or not os.path.lexists(self.partial)
        if fresh:
            before = Log.read(self.partial_log)
            replace = replace or bool(before and before.replaces)
            os.ftruncate(log.fileno(), 0)
            self._append(self.plan.text, *[REPLACES.decode()] * (replace and os.path.lexists(self.path)))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.partial)  # workers of an earlier run may write to it
        else:
            self._append("")  # ends an incomplete line
        descriptor = disk.open_here(self.partial, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(descriptor, self.offset(self.plan.shape[0]))
            disk.write_at(descriptor, 0, self.header())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        disk.sync_directory(os.path.dirname(self.path))

    def _lock(self, name: str, flags: int = 0) -> BinaryIO:
        descriptor = disk.open_here(name, os.O_RDWR | flags)
        self.lines = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        disk.lock(descriptor, self.path)
        # The process that held the lock may have renamed the log between opening and locking.
        if not os.path.exists(name) or not os.path.samestat(os.fstat(descriptor), os.stat(name)):
            raise FileExistsError(f"{self.path}: was finished by another process")
        return self.lines

    def _append(self, *lines: str) -> None:
        assert self.lines is not None
        end = os.lseek(self.lines.fileno(), 0, os.SEEK_END)
        disk.write_at(self.lines.fileno(), end, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(self.lines)

    def put(self, block: int, rows: np.ndarray) -> str:
        """Write a block; it is on the disk when this returns. Return its checksum."""
        data, _ = self.place()
        descriptor = disk.open_here(data, os.O_WRONLY)
        offset = self.offset(self.plan.span(block)[0])
        stored = self.plan.stored(rows)
        try:
            self.place()  # after opening: a run that replaces this one makes a new file
            disk.write_at(descriptor, offset, stored)
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):  # leave the system's cache to other programs
                os.posix_fadvise(descriptor, offset, stored.nbytes, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        # This process may have been suspended, while the run was replaced by that of another stream.
        self.place()
        return f"{zlib.crc32(stored):08x}"

    def record(self, block: int, crc: str) -> None:
        """Add a finished block to the log."""
        self._append(f"{block} {crc}")

    def read(self, block: int) -> np.ndarray:
        """Return the rows of a block, or fewer if the file ends there."""
        first, count = self.plan.span(block)
        shape = self.plan.shape[1:]
        found = np.fromfile(
            self.place()[0], self.plan.dtype.newbyteorder("<"), count * math.prod(shape), offset=self.offset(first)
        )
        return found[: len(found) // max(math.prod(shape), 1) * math.prod(shape)].reshape(-1, *shape)

    def damaged(self, block: int, expected: str) -> bool:
        """Return whether the checksum of a block differs from the `expected` one."""
        return self._differs(self.place()[0], block, expected)

    def _differs(self, name: str, block: int, expected: str) -> bool:
        first, count = self.plan.span(block)
        crc, left = 0, self.offset(first + count) - self.offset(first)
        with open(name, "rb", buffering=0) as file:
            file.seek(self.offset(first))
            while left and (piece := file.read(min(left, PIECE))):  # it may be cut off
                crc, left = zlib.crc32(piece, crc), left - len(piece)
        return left > 0 or f"{crc:08x}" != expected

    def finish(self) -> bool:
        """Give the file its name, which takes effect at once, and put its log next to it; return True."""
        folder = os.path.dirname(self.path)
        ours = self.place()[1] == self.partial_log
        if ours and os.path.lexists(self.partial):
            log = Log.read(self.partial_log)
            if os.path.lexists(self.path) and not (log and log.replaces):
                raise FileExistsError(f"{self.path}: appeared while its angles were drawn; move it away, and resume")
            self.must_be_ours(self.path)  # it may have been replaced since the run began
            os.replace(self.partial, self.path)
            disk.sync_directory(folder)
        # Workers finish blocks in any order; the log of the file lists them by number.
        known = self.done()
        lines = "".join(f"{block} {crc}\n" for block, crc in sorted(known.items()))
        if len(known) == self.plan.blocks and disk.read(self.log) != (content := f"{self.plan.text}\n{lines}".encode()):
            disk.put(self.log, content)
        if ours:
            os.unlink(self.partial_log)
        disk.sync_directory(folder)
        return True

    def check(self) -> None:
        """Raise OSError if the header or the size of the finished file is wrong."""
        if not self.is_sound():
            raise OSError(f"{self.path}: does not have the header and the size that its log implies")

    def close(self) -> None:
        """Release the lock."""
        for log in (self.lines, self.held):
            if log is not None:
                log.close()

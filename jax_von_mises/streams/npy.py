"""Write a ``.npy`` file block by block.

======================= ============================== ==================
file                    during the run                 afterwards
======================= ============================== ==================
the array               ``big.npy.partial``            ``big.npy``
its log                 ``big.npy.blocks``             ``big.npy.blocks``
======================= ============================== ==================

The log begins with the plan, has a line with the number and the CRC-32 of each block, and says "done" once the array
has its name: an unfinished array does not belong to such a log. A block is on the disk before its line is. Only the
caller writes the log, which it locks; workers write blocks. A run that replaces another removes its array before it
changes the log, so a late worker writes to a file without a name, or sees that the plan is another.
"""

import contextlib
import math
import os
import re
import zlib
from typing import BinaryIO, NamedTuple

import numpy as np

from jax_von_mises.streams import disk
from jax_von_mises.streams.blocks import MARK, Found, Plan, of_another_run

DONE = "done"
LINE = re.compile(rb"(?:([0-9]{1,18}) ([0-9a-f]{8})|done)\n")
# The data start at a page boundary. Workers on several machines must not write to one page.
PAGE = 4096
# Bytes that are read at a time.
PIECE = 2**24


class Log(NamedTuple):
    """The content of a log."""

    text: str
    """The plan; empty if there is no log, or if its first line is incomplete."""
    blocks: dict[int, str]
    """Finished blocks with their checksums."""
    done: bool
    """Whether the array has got its name."""
    end: int
    """The length in bytes, up to a line that is incomplete since a process or machine stopped."""

    @classmethod
    def read(cls, name: str) -> "Log":
        """Return the content of a log."""
        content = disk.read(name) or b""
        head, newline, _ = content.partition(b"\n")
        mark = MARK.encode()
        if not head.startswith(mark) and (newline or not mark.startswith(head)):
            raise FileExistsError(f"{name}: was not written by this package; move it away, or choose another name")
        if not newline:
            return cls("", {}, False, 0)
        known, done, end = {}, False, len(head) + 1
        while match := LINE.match(content, end):
            if match[1]:
                known[int(match[1])] = match[2].decode()
            done, end = done or not match[1], match.end()
        return cls(head.decode(errors="replace"), known, done, end)


class NpyFile:
    """One ``.npy`` file.

    Blocks are written by system calls and not through a memory map. When the disk is full, a system call raises an
    error, whereas a store to mapped memory kills the process. The finished file can be memory-mapped.
    """

    def __init__(self, path: str, plan: Plan):
        self.path, self.plan = path, plan
        self.partial, self.log = f"{path}.partial", f"{path}.blocks"
        self.lines: BinaryIO | None = None  # the log, open and locked
        self.known: dict[int, str] = {}  # the lines of the log

    @classmethod
    def found(cls, path: str) -> Found:
        """Return what stands at `path`."""
        partial, log = f"{path}.partial", f"{path}.blocks"
        for name in (path, partial, log):
            disk.must_not_be_a_link(name)
            if os.path.lexists(name) and not os.path.isfile(name):
                raise FileExistsError(f"{name}: is not a file; move it away, or choose another name")
        known, named = Log.read(log), os.path.lexists(path)
        text = known.text
        if os.path.lexists(partial):
            if not text or known.done:
                whose = "does not belong to the .blocks next to it" if text else "was not written by this package"
                raise FileExistsError(f"{partial}: {whose}; move it away, or choose another name")
            if named:
                raise FileExistsError(f"{path}: appeared while its angles were drawn; move it away, and resume")
        elif not named:
            return Found(False, None, False)
        elif text and disk.read(path, PAGE) != cls(path, Plan.read(log, text)).header():
            raise FileExistsError(
                f"{path}: is not the file that its .blocks describes; move it away, or choose another name"
            )
        return Found(True, text or None, named and known.done)

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

    @property
    def array(self) -> str:
        """The name that the array has now."""
        return self.partial if os.path.lexists(self.partial) else self.path

    def done(self) -> dict[int, str]:
        """Return the finished blocks with their checksums."""
        log = Log.read(self.log)
        if log.text != self.plan.text or not os.path.lexists(self.array):
            return {}
        return {block: crc for block, crc in log.blocks.items() if block < self.plan.blocks}

    def begin(self, found: Found, replace: bool) -> None:
        """Lock the log, and create what does not exist; continue an earlier run unless `replace` is true."""
        descriptor = disk.open_here(self.log, os.O_RDWR | os.O_CREAT)
        self.lines = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        disk.lock(descriptor, self.path)
        if self.found(self.path) != found:
            raise FileExistsError(f"{self.path}: another run was started at the same time; repeat this one")
        if replace or found.text is None:
            for name in (self.path, self.partial):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            os.ftruncate(descriptor, 0)
            self._append(self.plan.text)
        else:
            log = Log.read(self.log)
            self.known = log.blocks
            os.ftruncate(descriptor, log.end)
        if not os.path.lexists(self.path):
            array = disk.open_here(self.partial, os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(array, self.offset(self.plan.shape[0]))
                disk.write_at(array, 0, self.header())
                os.fsync(array)
            finally:
                os.close(array)
            disk.sync_directory(os.path.dirname(self.path))

    def _append(self, line: str) -> None:
        assert self.lines is not None
        disk.write_at(self.lines.fileno(), os.lseek(self.lines.fileno(), 0, os.SEEK_END), f"{line}\n".encode())
        os.fsync(self.lines)

    def _must_be_ours(self) -> None:
        """Raise OSError unless the log holds this plan."""
        head = f"{self.plan.text}\n".encode()
        if disk.read(self.log, len(head)) != head:
            raise of_another_run(self.path)

    def put(self, block: int, rows: np.ndarray) -> str:
        """Write a block; it is on the disk when this returns. Return its checksum."""
        offset, stored = self.offset(self.plan.span(block)[0]), self.plan.stored(rows)
        try:
            descriptor = disk.open_here(self.array, os.O_WRONLY)
        except FileNotFoundError:
            raise of_another_run(self.path) from None
        try:
            self._must_be_ours()  # after opening: see the head of this file
            disk.write_at(descriptor, offset, stored)
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):  # leave the system's cache to other programs
                os.posix_fadvise(descriptor, offset, stored.nbytes, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return f"{zlib.crc32(stored):08x}"

    def record(self, block: int, crc: str) -> None:
        """Add a finished block to the log, unless it is there."""
        if self.known.get(block) != crc:
            self._append(f"{block} {crc}")

    def read(self, block: int) -> np.ndarray:
        """Return the rows of a block, or fewer if the file ends there."""
        first, count = self.plan.span(block)
        shape = self.plan.shape[1:]
        found = np.fromfile(
            self.array, self.plan.dtype.newbyteorder("<"), count * math.prod(shape), offset=self.offset(first)
        )
        return found[: len(found) // max(math.prod(shape), 1) * math.prod(shape)].reshape(-1, *shape)

    def damaged(self, block: int, expected: str) -> bool:
        """Return whether the checksum of a block differs from the `expected` one."""
        first, count = self.plan.span(block)
        crc, left = 0, self.offset(first + count) - self.offset(first)
        with open(self.array, "rb", buffering=0) as file:
            file.seek(self.offset(first))
            while left and (piece := file.read(min(left, PIECE))):  # it may be cut off
                crc, left = zlib.crc32(piece, crc), left - len(piece)
        return left > 0 or f"{crc:08x}" != expected

    def finish(self) -> bool:
        """Give the file its name, which takes effect at once; return True."""
        self._must_be_ours()
        if os.path.lexists(self.partial):
            self.found(self.path)  # raises an error if a file of this name appeared
            os.replace(self.partial, self.path)
            disk.sync_directory(os.path.dirname(self.path))
        if not Log.read(self.log).done:
            self._append(DONE)
        return True

    def check(self) -> None:
        """Raise OSError if the size of the finished file is wrong."""
        if os.path.getsize(self.path) != self.offset(self.plan.shape[0]):
            raise OSError(f"{self.path}: does not have the size that its log implies")

    def close(self) -> None:
        """Release the lock."""
        if self.lines is not None:
            self.lines.close()

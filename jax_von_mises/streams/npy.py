"""Write a ``.npy`` file block by block."""

import contextlib
import errno
import math
import mmap
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from jax_von_mises.streams import safe_files
from jax_von_mises.streams.checkpoint import (
    LARGEST_RECORD,
    ForeignTargetError,
    allocated,
    lock,
    mark_of,
    parse_record,
    run_words,
    sync_directory,
)


class NpyFile:
    """One ``.npy`` file, written by one process or by the workers of its executor.

    Blocks are written by system calls and not through a memory map. When the disk is full, a system call raises an
    error, whereas a store to mapped memory kills the process. The finished file can be memory-mapped.
    """

    # The data start at a page boundary, so that complete pages can bypass the system's cache.
    PAGE = 4096
    # Bytes copied at a time to the aligned memory that direct writes require.
    STAGE = 2**21

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype, block_rows: int):
        self.path, self.shape, self.block_rows = path, shape, block_rows
        self.dtype = np.dtype("float32" if dtype.name == "bfloat16" else dtype)  # .npy has no bfloat16
        self.partial, self.record = f"{path}.partial", f"{path}.json"
        self.partial_record = f"{self.partial}.json"
        self.fresh = f"{self.partial}.new"
        self.row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        self.file: BinaryIO | None = None
        self.direct: int | None = None
        self.stage: mmap.mmap | None = None
        self.log: BinaryIO | None = None  # the record of the run, open for more lines
        self.log_end = 0
        self.replaces = False  # whether the user asked to replace a finished file
        self.begun = False  # whether this run has changed anything
        self.created = False  # whether this run created the partial file, which is removed if no block is drawn

    @property
    def directory(self) -> str:
        """The directory of the file."""
        return os.path.dirname(self.path) or os.curdir

    disk = directory

    def whole(self) -> bool:
        """Return whether there is a finished file."""
        return os.path.lexists(self.path)

    def records(self) -> list[dict[str, Any]]:
        """Return a list with the record of the unfinished run, or an empty list if there is none."""
        self.final_record()  # raises an error for a foreign file of that name, which `finish` would overwrite
        if not os.path.lexists(self.partial_record):
            # A run that was killed in `begin` may leave an empty file.
            if os.path.lexists(self.partial) and (not os.path.isfile(self.partial) or os.path.getsize(self.partial)):
                raise ForeignTargetError(f"{self.partial} has no record of this package next to it; move it away")
            return []
        return [parse_record(self.partial_record, safe_files.read_plain(self.partial_record, LARGEST_RECORD))]

    def final_record(self) -> dict[str, Any] | None:
        """Return the record of the finished file, or None."""
        if not os.path.lexists(self.record):
            return None
        if not os.path.isfile(self.record):
            raise ForeignTargetError(f"{self.record} is not a record of this package; move it away")
        return parse_record(self.record, safe_files.read_plain(self.record, LARGEST_RECORD))

    def header(self) -> bytes:
        """Return the ``.npy`` header, padded to a page."""
        fields = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        text = repr(fields).encode("ascii")
        magic = np.lib.format.magic(1, 0)
        length = self.PAGE - len(magic) - 2
        return magic + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"

    def size(self) -> int:
        """Return the size of the finished file in bytes."""
        return self.PAGE + self.shape[0] * self.row_bytes

    def check_layout(self) -> None:
        """Check that the finished file has the header and the size that its record implies."""
        with safe_files.open_plain(self.path) as file:
            header = file.read(self.PAGE)
            size = os.fstat(file.fileno()).st_size
        if size != self.size() or header != self.header():
            raise ForeignTargetError(
                f"{self.path} ({size} bytes) is not the file that {self.record} describes ({self.size()} bytes); "
                "restore it, or move both away"
            )

    @property
    def _opened(self) -> BinaryIO:
        """The partial file, which is open."""
        assert self.file is not None
        return self.file

    def begin(self, text: str) -> None:
        """Start a run that has no blocks yet, with the record `text`; replace any unfinished run."""
        self._open(create=True)
        # The record is replaced first, so that the old run is unchanged if this fails.
        self._start_record(text)
        self._opened.truncate(0)
        write_at(self._opened, self.header(), 0)
        if not self.created:
            self._move_to_another_file()

    def _move_to_another_file(self) -> None:
        """Give the partial file's name to a new file, since workers of an old run may still write to the old file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.fresh)
        descriptor = self._no_link(self.fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        try:
            lock(file, self.fresh)
            write_at(file, self.header(), 0)
            os.replace(self.fresh, self.partial)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                os.unlink(self.fresh)
            raise
        self._close_file()
        self.file = file
        self._open_direct()
        sync_directory(self.directory)

    def go_on(self, text: str) -> None:
        """Open the file of an earlier run, and replace its record with `text`."""
        self._open_partial()
        self._start_record(text)

    def join(self) -> None:
        """Open the file to write blocks into it, while another process records them and finishes the file."""
        self._open_plain()
        self._open_direct()

    def leave(self) -> None:
        """Close the files that `join` opened."""
        self.close()

    def _open_partial(self) -> None:
        if not os.path.lexists(self.partial):
            raise ForeignTargetError(
                f"{self.partial} is missing, although {self.partial_record} lists its blocks; move the record away"
            )
        self._open()
        if self._opened.read(self.PAGE) != self.header():
            raise ForeignTargetError(
                f"{self.partial} does not begin with the header that {self.partial_record} implies; move both away"
            )

    def _open(self, create: bool = False) -> None:
        """Open and lock the partial file; if `create` is true and there is none, create it."""
        if os.path.lexists(self.path) and not self.replaces and not self._has_both_names():
            raise FileExistsError(f"{self.path} appeared after the run was started; move it away, and resume")
        create = create and not os.path.lexists(self.partial)
        self._open_plain(os.O_CREAT | os.O_EXCL if create else 0)
        lock(self._opened, self.partial)
        about = os.fstat(self._opened.fileno())
        # The process that held the lock may have renamed the file between opening and locking.
        if not os.path.exists(self.partial) or not os.path.samestat(about, os.stat(self.partial)):
            raise ForeignTargetError(f"{self.partial} was finished by another process")
        self._must_be_ours_alone(about, self.partial)
        self.begun, self.created = True, create
        self._open_direct()

    def _open_plain(self, flags: int = 0) -> None:
        self.file = open(self._descriptor(os.O_RDWR | flags), "r+b", buffering=0)  # noqa: SIM115
        safe_files.must_be_plain(self.file, self.partial)

    def _open_direct(self) -> None:
        if hasattr(os, "O_DIRECT"):
            # Direct writes save a copy per page and leave the pages of other programs in the system's cache. Some file
            # systems do not support them.
            with contextlib.suppress(OSError):
                self.direct = self._descriptor(os.O_WRONLY | os.O_DIRECT)
                self.stage = mmap.mmap(-1, self.STAGE)
            about = os.fstat(self._opened.fileno())
            if self.direct is not None and not os.path.samestat(about, os.fstat(self.direct)):
                raise ForeignTargetError(f"{self.partial} was replaced while it was opened")

    def _descriptor(self, flags: int) -> int:
        """Open the partial file, and raise an error for a link, which may lead to a file that must be kept."""
        return self._no_link(self.partial, flags)

    @staticmethod
    def _no_link(name: str, flags: int) -> int:
        if os.path.islink(name):  # for systems without O_NOFOLLOW
            raise ForeignTargetError(f"{name} is a symbolic link, which this package does not make; move it away")
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)

    def _must_be_ours_alone(self, about: os.stat_result, name: str) -> None:
        """Raise ForeignTargetError if the file has another name."""
        if about.st_nlink > 1 and not self._has_both_names():
            raise ForeignTargetError(
                f"{name} has another name (a hard link), under which it would change as well; copy it first"
            )

    def _must_be_ready(self, name: str) -> None:
        """Raise an error, before the finished file is renamed, if it cannot be written to."""
        if os.path.islink(name):
            raise ForeignTargetError(
                f"{name} is a symbolic link, to {os.path.realpath(name)}, and would no longer be one after the repair. "
                "Move the file to where the link is, and repair it there; nothing was changed"
            )
        with open(name, "r+b", opener=safe_files.at_once) as file:
            safe_files.must_be_plain(file, name)
            lock(file, name)
            self._must_be_ours_alone(os.fstat(file.fileno()), name)

    def write(self, first: int, rows: np.ndarray) -> None:
        """Write `rows` from row `first` on, and flush them to the disk."""
        if rows.size == 0:
            return
        data = memoryview(np.ascontiguousarray(rows, self.dtype.newbyteorder("<"))).cast("B")
        offset = self.PAGE + first * self.row_bytes
        done = 0
        if self.direct is not None and self.stage is not None and offset % self.PAGE == 0:
            done = self._write_direct(data, offset, self.direct, self.stage)
        write_at(self._opened, data[done:], offset + done)
        os.fsync(self._opened)

    def _write_direct(self, data: memoryview, offset: int, direct: int, stage: mmap.mmap) -> int:
        """Write the complete pages of `data`, bypassing the cache; return how many bytes the system accepted."""
        done, end = 0, len(data) - len(data) % self.PAGE
        while done < end:
            part = data[done : done + min(self.STAGE, end - done)]
            stage[: len(part)] = part
            with memoryview(stage)[: len(part)] as aligned:
                try:
                    written = os.pwrite(direct, aligned, offset + done)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    return done
            done += written
            if written < len(part):
                return done
        return done

    def read(self, first: int, count: int, whole: bool = False) -> np.ndarray:
        """Return `count` rows, or fewer where the file ends, of the partial file, or of the finished one if `whole`."""
        with safe_files.open_plain(self.path if whole else self.partial) as file:
            file.seek(self.PAGE + first * self.row_bytes)
            data = file.read(count * self.row_bytes)
        rows = len(data) // self.row_bytes if self.row_bytes else count
        return np.frombuffer(data[: rows * self.row_bytes], self.dtype).reshape(rows, *self.shape[1:])

    def _start_record(self, text: str) -> None:
        """Replace the record with the head `text`, to which `append` adds lines."""
        self._replace_record(text)
        self.log = open(self.partial_record, "r+b", buffering=0, opener=self._no_link)  # noqa: SIM115
        self.log_end = len(text.encode())
        # Each line is flushed with its block. The name of the file must be on the disk before that.
        sync_directory(self.directory)

    def _replace_record(self, text: str) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
        replace_text(self.partial_record, text)

    def append(self, lines: str) -> None:
        """Add lines to the record, and flush them to the disk.

        Since `log_end` changes last, an interrupted call can be repeated.
        """
        assert self.log is not None
        data = lines.encode()
        self.log.truncate(self.log_end)  # removes what a failed call may have left
        write_at(self.log, data, self.log_end)
        os.fsync(self.log)
        self.log_end += len(data)

    def runs(self, run: str) -> bool:
        """Return whether the record of the unfinished run has the name `run`."""
        with contextlib.suppress(FileNotFoundError), safe_files.open_plain(self.partial_record) as file:
            return run_words(run) in file.read(self.PAGE)
        return False

    def marks(self) -> Iterator[str]:
        """Yield marks of the records, with which other processes check that they see the same records."""
        for name in (self.record, self.partial_record):
            with contextlib.suppress(FileNotFoundError), safe_files.open_plain(name) as file:
                yield mark_of(file.read(self.PAGE))

    def finish(self, text: str) -> None:
        """Complete the file, and rename it to its final name."""
        self._replace_record(text)
        self._opened.truncate(self.size())
        os.fsync(self._opened)
        if os.name != "posix":
            self.close()  # Windows cannot rename open files; elsewhere the lock is kept to the end
        if self.replaces:
            os.replace(self.partial, self.path)
        else:
            self._take_free_name()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.fresh)  # left by a run that was killed in `begin`
        self.settle()
        # The names must reach the disk before the run is reported as done.
        sync_directory(self.directory)

    def _take_free_name(self) -> None:
        """Rename the file to its final name, unless another file has taken this name in the meantime."""
        try:
            safe_files.take_free_name(self.partial, self.path)
        except FileExistsError:
            if not self._has_both_names():
                raise FileExistsError(
                    f"{self.path} appeared while its angles were drawn; move it away, and resume"
                ) from None
            os.unlink(self.partial)

    def settle(self) -> None:
        """Rename the record of the partial file to that of the finished file, unless it was renamed before."""
        if os.path.lexists(self.partial_record):
            os.replace(self.partial_record, self.record)

    def interrupted_at_the_end(self) -> bool:
        """Return whether a run was killed in `finish`, after renaming the file and before renaming its record."""
        return not os.path.lexists(self.partial) and os.path.lexists(self.path)

    def _has_both_names(self) -> bool:
        """Return whether the finished file also has its partial name, because a run was killed in `finish`."""
        return os.path.exists(self.partial) and os.path.exists(self.path) and os.path.samefile(self.partial, self.path)

    def discard(self) -> None:
        """Remove the files that this run created, and close them."""
        for name in (self.partial, self.partial_record, self.fresh):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        self.close()

    def bytes_needed(self, missing: int, force: bool = False) -> int:
        """Return how many bytes of disk space are needed beyond those that the file already occupies."""
        in_place = self.partial if force or os.path.lexists(self.partial) else self.path
        return max(self.size() - allocated(in_place), 0)

    def replace(self, missing: int) -> None:
        """Let `finish` replace the old file, which is kept until then."""
        if os.path.lexists(self.path) and not os.path.isfile(self.path):
            raise ForeignTargetError(f"{self.path} exists and is not a file; choose another name")
        if self.interrupted_at_the_end():
            (record,) = self.records() or (None,)
            blocks = record and -(-record["shape"][0] // record["block_rows"])
            if record and (len(record["crc32"]) == blocks or not os.path.lexists(self.record)):
                self.settle()  # the record belongs to the finished file, which is kept
        self.replaces = True

    def reopen(self, text: str) -> None:
        """Turn the finished file into an unfinished one in which some blocks are missing."""
        self._must_be_ready(self.path)
        self.begun = True
        # The order is the reverse of `finish`, so that a run that is interrupted here can be resumed and repaired.
        if not os.path.lexists(self.partial_record):
            os.replace(self.record, self.partial_record)
        os.replace(self.path, self.partial)
        self.go_on(text)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._close_file()
        if self.log is not None:
            self.log.close()
        self.log = None

    def _close_file(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.direct is not None:
            os.close(self.direct)
        if self.stage is not None:
            self.stage.close()
        self.file = self.direct = self.stage = None


def write_at(file: BinaryIO, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` to an unbuffered file, from `offset` on."""
    data = memoryview(data)
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


def replace_text(path: str, text: str) -> None:
    """Replace the content of a small file atomically."""
    temporary = f"{path}.new"
    try:
        safe_files.write_new(temporary, text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # raise the first error, not this one
            os.unlink(temporary)
        raise

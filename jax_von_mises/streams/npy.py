"""A ``.npy`` file written block by block."""

import contextlib
import errno
import math
import mmap
import os

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
    """One ``.npy`` file on a local disk, written by one process.

    Written in sequence and not through a memory map: when a disk fills up, a write fails with an error that can be
    explained, where a store to mapped memory kills the process. The finished file can be mapped.
    """

    # Data start on a page of the disk, so that whole pages can go there without a copy in the system's cache.
    PAGE = 4096
    # What is copied at a time to memory that is aligned as such writes ask for.
    STAGE = 2**21

    def __init__(self, path, shape, dtype, block_rows):
        self.path, self.shape, self.block_rows = path, shape, block_rows
        self.dtype = np.dtype("float32" if dtype.name == "bfloat16" else dtype)  # .npy has no bfloat16
        self.partial, self.record = f"{path}.partial", f"{path}.json"
        self.partial_record = f"{self.partial}.json"
        self.fresh = f"{self.partial}.new"
        self.row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
        self.file = self.direct = self.stage = None
        self.log = None  # the record of the run, open for more lines
        self.log_end = 0
        self.replaces = False  # whether a file that has the name is to go: only if the user said so
        self.begun = False  # whether this run has changed anything
        self.created = False  # whether the partial file is this run's own, to be removed if nothing comes of it

    @property
    def directory(self):
        """The directory of the file."""
        return os.path.dirname(self.path) or os.curdir

    disk = directory

    def whole(self):
        """Whether a finished file bears the name."""
        return os.path.lexists(self.path)

    def records(self):
        """The record of the run that has not finished, in a list; empty if there is none."""
        self.final_record()  # a file of that name which is not ours would be overwritten in the end
        if not os.path.lexists(self.partial_record):
            # An empty one was made by a run that was killed in `begin`.
            if os.path.lexists(self.partial) and (not os.path.isfile(self.partial) or os.path.getsize(self.partial)):
                raise ForeignTargetError(
                    f"{self.partial} has no record beside it, so it is not known what it is; move it away"
                )
            return []
        return [parse_record(self.partial_record, safe_files.read_plain(self.partial_record, LARGEST_RECORD))]

    def final_record(self):
        """The record of the finished file, or None."""
        if not os.path.lexists(self.record):
            return None
        if not os.path.isfile(self.record):
            raise ForeignTargetError(f"{self.record} is not a record of this package; move it away")
        return parse_record(self.record, safe_files.read_plain(self.record, LARGEST_RECORD))

    def header(self):
        """The ``.npy`` header, filled up to a page."""
        fields = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": self.shape}
        text = repr(fields).encode("ascii")
        magic = np.lib.format.magic(1, 0)
        length = self.PAGE - len(magic) - 2
        return magic + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"

    def size(self):
        """Bytes of the finished file."""
        return self.PAGE + self.shape[0] * self.row_bytes

    def check_layout(self):
        """See that the whole file has the header and the size that its record tells of."""
        with safe_files.open_plain(self.path) as file:
            header = file.read(self.PAGE)
            size = os.fstat(file.fileno()).st_size
        if size != self.size() or header != self.header():
            raise ForeignTargetError(
                f"{self.path} ({size} bytes) is not the file that {self.record} tells of ({self.size()} bytes)"
            )

    def begin(self, text):
        """Start with no blocks, as the record `text` says; what an unfinished run left is overwritten."""
        self._open(create=True)
        # In this order: if the record cannot be replaced, the old run is still there as it was.
        self._start_record(text)
        self.file.truncate(0)
        write_at(self.file, self.header(), 0)
        if not self.created:
            self._move_to_another_file()

    def _move_to_another_file(self):
        """Give the partial file's name to another one: workers of an earlier run may still write to this one."""
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

    def go_on(self, text):
        """Open what an earlier run left, and record it as `text` says."""
        self._open_partial()
        self._start_record(text)

    def join(self):
        """Open, to write blocks, what another process has begun or opened, records and finishes."""
        self._open_plain()
        self._open_direct()

    def leave(self):
        """Close what `join` has opened."""
        self.close()

    def _open_partial(self):
        if not os.path.lexists(self.partial):
            raise ForeignTargetError(
                f"{self.partial} is gone, though {self.partial_record} tells of it; move the record away"
            )
        self._open()
        if self.file.read(self.PAGE) != self.header():
            raise ForeignTargetError(f"{self.partial} does not begin as the file of its record; move both away")

    def _open(self, create=False):
        """Open and lock the partial file; with `create`, make one if there is none."""
        if os.path.lexists(self.path) and not self.replaces and not self._has_both_names():
            raise FileExistsError(f"{self.path} appeared after the run was begun; move it away, and resume")
        create = create and not os.path.lexists(self.partial)
        self._open_plain(os.O_CREAT | os.O_EXCL if create else 0)
        lock(self.file, self.partial)
        about = os.fstat(self.file.fileno())
        # The one who held the lock may have finished and renamed it between these two calls.
        if not os.path.exists(self.partial) or not os.path.samestat(about, os.stat(self.partial)):
            raise ForeignTargetError(f"{self.partial} was finished by another process")
        self._must_be_ours_alone(about, self.partial)
        self.begun, self.created = True, create
        self._open_direct()

    def _open_plain(self, flags=0):
        self.file = open(self._descriptor(os.O_RDWR | flags), "r+b", buffering=0)  # noqa: SIM115
        safe_files.must_be_plain(self.file, self.partial)

    def _open_direct(self):
        if hasattr(os, "O_DIRECT"):
            # Past the system's cache, which costs a copy and a page a time and would drive out of memory what other
            # programs keep there. Some file systems refuse.
            with contextlib.suppress(OSError):
                self.direct = self._descriptor(os.O_WRONLY | os.O_DIRECT)
                self.stage = mmap.mmap(-1, self.STAGE)
            about = os.fstat(self.file.fileno())
            if self.direct is not None and not os.path.samestat(about, os.fstat(self.direct)):
                raise ForeignTargetError(f"{self.partial} was replaced while it was opened")

    def _descriptor(self, flags):
        """The unfinished file, opened, if it is one and no link: that may lead to a file that is to be kept."""
        return self._no_link(self.partial, flags)

    @staticmethod
    def _no_link(name, flags):
        if os.path.islink(name):  # where the system has no such flag
            raise ForeignTargetError(f"{name} is a symbolic link, which this package does not make; move it away")
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)

    def _must_be_ours_alone(self, about, name):
        """Refuse to write to a file that others know by another name."""
        if about.st_nlink > 1 and not self._has_both_names():
            raise ForeignTargetError(
                f"{name} has another name too (a hard link), and would change there as well; copy it first"
            )

    def _must_be_ready(self, name):
        """Refuse a whole file that could not be written to, before it loses its name."""
        if os.path.islink(name):
            raise ForeignTargetError(
                f"{name} is a symbolic link, to {os.path.realpath(name)}, and would no longer be one after the repair. "
                "Move the file to where the link is, and repair it there; nothing was changed"
            )
        with open(name, "r+b", opener=safe_files.at_once) as file:
            safe_files.must_be_plain(file, name)
            lock(file, name)
            self._must_be_ours_alone(os.fstat(file.fileno()), name)

    def write(self, first, rows):
        """Write `rows` from row `first` on, to the disk: they survive whatever comes after."""
        if rows.size == 0:
            return
        data = memoryview(np.ascontiguousarray(rows, self.dtype.newbyteorder("<"))).cast("B")
        offset = self.PAGE + first * self.row_bytes
        done = 0
        if self.direct is not None and offset % self.PAGE == 0:
            done = self._write_direct(data, offset)
        write_at(self.file, data[done:], offset + done)
        os.fsync(self.file)

    def _write_direct(self, data, offset):
        """Write the whole pages of `data` past the cache; give the bytes that the system took so."""
        done, whole = 0, len(data) - len(data) % self.PAGE
        while done < whole:
            part = data[done : done + min(self.STAGE, whole - done)]
            self.stage[: len(part)] = part
            with memoryview(self.stage)[: len(part)] as stage:
                try:
                    written = os.pwrite(self.direct, stage, offset + done)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    return done
            done += written
            if written < len(part):
                return done
        return done

    def read(self, first, count, whole=False):
        """Rows of the partial, or of the whole, file."""
        with safe_files.open_plain(self.path if whole else self.partial) as file:
            file.seek(self.PAGE + first * self.row_bytes)
            data = file.read(count * self.row_bytes)
        rows = len(data) // self.row_bytes if self.row_bytes else count
        return np.frombuffer(data[: rows * self.row_bytes], self.dtype).reshape(rows, *self.shape[1:])

    def _start_record(self, text):
        """Replace the record by a head, to which lines are added."""
        self._replace_record(text)
        self.log = open(self.partial_record, "r+b", buffering=0, opener=self._no_link)  # noqa: SIM115
        self.log_end = len(text.encode())
        # The lines reach the disk with each block, so the name of their file must be there.
        sync_directory(self.directory)

    def _replace_record(self, text):
        if self.log is not None:
            self.log.close()
            self.log = None
        replace_text(self.partial_record, text)

    def append(self, lines):
        """Add lines to the record; they have reached the disk when this returns.

        They have their place: an interrupted call can be repeated.
        """
        data = lines.encode()
        self.log.truncate(self.log_end)  # a call that failed may have left more than these lines
        write_at(self.log, data, self.log_end)
        os.fsync(self.log)
        self.log_end += len(data)

    def runs(self, run):
        """Whether the run of this name is under way here: its record lies where it should."""
        with contextlib.suppress(FileNotFoundError), safe_files.open_plain(self.partial_record) as file:
            return run_words(run) in file.read(self.PAGE)
        return False

    def marks(self):
        """Yield marks of the records that are here, for other processes that should see the same."""
        for name in (self.record, self.partial_record):
            with contextlib.suppress(FileNotFoundError), safe_files.open_plain(name) as file:
                yield mark_of(file.read(self.PAGE))

    def finish(self, text):
        """Make the file whole: give it its name."""
        self._replace_record(text)
        self.file.truncate(self.size())
        os.fsync(self.file)
        if os.name != "posix":
            self.close()  # Windows renames no open file; elsewhere the lock is kept to the end
        if self.replaces:
            os.replace(self.partial, self.path)
        else:
            self._take_free_name()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.fresh)  # of a run that was killed as it began
        self.settle()
        # The names must reach the disk before the run is reported as done.
        sync_directory(self.directory)

    def _take_free_name(self):
        """Take the name, unless something has got it while the file was drawn."""
        try:
            safe_files.take_free_name(self.partial, self.path)
        except FileExistsError:
            if not self._has_both_names():
                raise FileExistsError(
                    f"{self.path} appeared while its angles were drawn; move it away, and resume"
                ) from None
            os.unlink(self.partial)

    def settle(self):
        """Give the record the name of the finished file's, unless it has it."""
        if os.path.lexists(self.partial_record):
            os.replace(self.partial_record, self.record)

    def interrupted_at_the_end(self):
        """Whether a run was killed between the two names it gives in `finish`."""
        return not os.path.lexists(self.partial) and os.path.lexists(self.path)

    def _has_both_names(self):
        """Whether the unfinished file is the finished one: a run was killed before it took the first name away."""
        return os.path.exists(self.partial) and os.path.exists(self.path) and os.path.samefile(self.partial, self.path)

    def discard(self):
        """Remove what this run has created."""
        for name in (self.partial, self.partial_record, self.fresh):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        self.close()

    def bytes_needed(self, missing, force=False):
        """Bytes of free disk space that are needed for all blocks: the file that is written in keeps its own."""
        in_place = self.partial if force or os.path.lexists(self.partial) else self.path
        return max(self.size() - allocated(in_place), 0)

    def replace(self, missing):
        """Let the new file take the name of the old one, which stays until then."""
        if os.path.lexists(self.path) and not os.path.isfile(self.path):
            raise ForeignTargetError(f"{self.path} exists and is not a file; choose another name")
        if self.interrupted_at_the_end():
            (record,) = self.records() or (None,)
            blocks = record and -(-record["shape"][0] // record["block_rows"])
            if record and (len(record["crc32"]) == blocks or not os.path.lexists(self.record)):
                self.settle()  # it is that of the finished file, which may stay
        self.replaces = True

    def reopen(self, text):
        """Make the finished file an unfinished one again, in which some blocks are missing."""
        self._must_be_ready(self.path)
        self.begun = True
        # In the reverse order of `finish`: wherever this is killed, there is one to be resumed and repaired.
        if not os.path.lexists(self.partial_record):
            os.replace(self.record, self.partial_record)
        os.replace(self.path, self.partial)
        self.go_on(text)

    def close(self):
        """Close the file; a second time does nothing."""
        self._close_file()
        if self.log is not None:
            self.log.close()
        self.log = None

    def _close_file(self):
        if self.file is not None:
            self.file.close()
        if self.direct is not None:
            os.close(self.direct)
        if self.stage is not None:
            self.stage.close()
        self.file = self.direct = self.stage = None


def write_at(file, data, offset):
    """Write all of `data` to an unbuffered file, from `offset` on."""
    data = memoryview(data)
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


def replace_text(path, text):
    """Replace a small file whole."""
    temporary = f"{path}.new"
    try:
        safe_files.write_anew(temporary, text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what must be reported
            os.unlink(temporary)
        raise

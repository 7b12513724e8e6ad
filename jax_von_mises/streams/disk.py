"""Read and put small files and blocks on a local disk, in steps that are complete or have not happened."""

import contextlib
import functools
import os
import re
import secrets
import warnings
from collections.abc import Callable

from jax_von_mises.engine.samples import depth_of_caller

try:
    import fcntl
except ImportError:  # no flock on Windows: concurrent writers of one file go undetected there
    fcntl = None  # type: ignore[assignment]


def open_here(name: str, flags: int) -> int:
    """Open a file for a run, and raise OSError for a link, which may lead to a file that must be kept."""
    must_not_be_a_link(name)
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)


def must_not_be_a_link(name: str) -> None:
    """Raise FileExistsError if `name` is a symbolic link."""
    if os.path.islink(name):
        raise FileExistsError(f"{name}: is a symbolic link; give the name of what it leads to, or move it away")


def read(name: str, size: int = -1) -> bytes | None:
    """Return the first `size` bytes of a file, or all of them; None if there is no file."""
    with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
        return file.read(size)
    return None


def temporary(name: str) -> str:
    """Return a new name in the same directory that `is_temporary`."""
    return os.path.join(os.path.dirname(name), f".{secrets.token_hex(8)}.jax_von_mises")


def is_temporary(file: str) -> bool:
    """Return whether a file has a name that `put` gives to unfinished ones."""
    return re.fullmatch(r"\.[0-9a-f]{16}\.jax_von_mises", file) is not None


def put(name: str, data: bytes | memoryview) -> None:
    """Write a file that is on the disk, or does not change, whenever the process or the machine stops."""
    while not _placed(name, data, os.replace):
        pass


def create(name: str, data: bytes) -> None:
    """Write a file as `put` does, unless there is one by now."""
    _placed(name, data, _link)


def _placed(name: str, data: bytes | memoryview, place: Callable[[str, str], None]) -> bool:
    """Write a file and `place` it; return False if `finish` of another writer has removed it as a leftover."""
    unfinished = temporary(name)
    try:
        with open(unfinished, "xb", buffering=0) as file:
            write_at(file.fileno(), 0, data)
            os.fsync(file)
        place(unfinished, name)
    except FileNotFoundError:
        if not os.path.lexists(name):
            raise FileNotFoundError(f"{name}: was removed while it was written") from None
        return False
    except BaseException:
        with contextlib.suppress(OSError):  # raise the first error, not this one
            os.unlink(unfinished)
        raise
    return True


def _link(unfinished: str, name: str) -> None:
    """Give a file the name `name`, unless there is one."""
    try:
        os.link(unfinished, name)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.replace(unfinished, name)
        return
    os.unlink(unfinished)


def write_at(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """Write all of `data` to an open file, from `offset` on."""
    left = memoryview(data)
    os.lseek(descriptor, offset, os.SEEK_SET)
    while len(left):
        left = left[os.write(descriptor, left) :]


def sync_directory(path: str) -> None:
    """Flush the names in a directory to the disk."""
    if os.name == "posix":
        descriptor = os.open(path or os.curdir, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def size_of(*names: str) -> int:
    """Return the size in bytes of files, and of the files in folders; 0 for those that do not exist."""
    found = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found += os.stat(name).st_size
            with os.scandir(name) as entries:
                found += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return found


def lock(descriptor: int, name: str) -> None:
    """Lock an open file until it is closed; raise OSError if another process has locked it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(f"{name}: is being written by another process; wait for it") from None
    except OSError as error:  # a file system without locks, or an error of its lock server
        warn_without_lock(os.path.dirname(os.path.abspath(name)), error.strerror)


@functools.cache
def warn_without_lock(folder: str, reason: str) -> None:
    """Warn, once for each folder, that its files cannot be locked."""
    warnings.warn(
        f"write_samples: files in {folder} cannot be locked ({reason}), so two runs that write one file are not "
        "noticed. Start only one run for each file.",
        RuntimeWarning,
        stacklevel=depth_of_caller(),
    )


def readable(size: float) -> str:
    """Format a number of bytes with a unit."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"

"""Turn on JAX's compilation cache on disk, with safe permissions and for all programs.

Later processes then read compiled programs from disk. By default, JAX has no cache on disk. If given a directory, it
keeps only programs that take at least a second to compile; samplers take less.

A cache is executable code: anyone who can write to it can run programs as you. Its directory is therefore private, and
a directory that others can write to is rejected. A full or read-only disk causes only a warning.
"""

import atexit
import contextlib
import os
import re
import tempfile
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_von_mises import arguments, environment
from jax_von_mises.streams import safe_files

DEFAULT_LIMIT = 2**30

# Names of JAX's files: an entry, and the time of its last use if JAX limits the size. No other files are removed.
ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
TIME = "-atime"
# The modification time of this file is the time of the last check for damaged entries.
STAMP = "checked"

# Minimum entry size in bytes that keeps JAX from writing to a read-only directory.
NEVER = 2**62

ZSTD = b"\x28\xb5\x2f\xfd"


class CacheInfo(NamedTuple):
    """State of the compilation cache, and its hits and misses in this process."""

    path: str | None
    """The directory or URL; None without a cache."""
    enabled: bool
    """Whether JAX uses the cache."""
    writable: bool
    """Whether new programs are kept."""
    entries: int | None
    """Number of programs; None for a bucket."""
    bytes: int | None
    """Size of all programs in bytes; None for a bucket."""
    limit: int | None
    """Limit in bytes, as set by `initialize_compilation_cache`; None without a limit."""
    hits: int
    """Number of programs that this process has read from the cache since it was initialised."""
    misses: int
    """Number of programs that this process compiled because they were not in the cache."""


class _State:
    """Settings of this process's cache, and counts of JAX's events."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.limit: int | None = None
        self.writable = False
        self.listening = False
        self.hits = self.requests = 0

    def count(self, event: str, **_: str | int) -> None:
        """Count an event that JAX reports to its listeners."""
        if event == "/jax/compilation_cache/cache_hits":
            self.hits += 1
        elif event == "/jax/compilation_cache/compile_requests_use_cache":
            self.requests += 1


_state = _State()


def initialize_compilation_cache(
    path: str | os.PathLike[str] | None = None,
    *,
    max_size: int | None = DEFAULT_LIMIT,
    min_compile_time: float = 0.0,
    allow_shared: bool = False,
) -> CacheInfo:
    """Keep compiled programs on disk for later processes, and use those of earlier ones.

    The function can be called at any time, even after JAX has compiled a program, and again with another directory.

    Parameters
    ----------
    path : str or path, optional
        The directory. If missing, it is created for you alone (mode 0700), or with your default permissions if
        `allow_shared` is True. The default is JAX's own setting (``JAX_COMPILATION_CACHE_DIR``), or else
        ``jax_von_mises/compiled`` in your cache directory (``XDG_CACHE_HOME``, ``~/.cache``). A URL such as
        ``gs://bucket/cache`` requires ``allow_shared=True``.
    max_size : int, optional
        Limit in bytes, or None for no limit. The least recently used programs are removed until the rest fits, now and
        when the process ends. Many file systems update the time of use only once a day.
    min_compile_time : float
        Time in seconds. Programs that compile faster are not kept; 0 keeps all.
    allow_shared : bool
        Use the directory even if others can write to it, or if that cannot be determined. Anyone who can write to it
        can run programs as you.

    Returns
    -------
    CacheInfo
        State of the cache, as returned by `cache_info`.

    Raises
    ------
    PermissionError
        `allow_shared` is False, and others can write to the directory or to one above it, one of these or a program in
        the cache belongs to another user, or this cannot be determined.
    NotADirectoryError
        `path` was given, and it or a path above it exists and is not a directory.

    Warns
    -----
    RuntimeWarning
        There is no home directory, or the directory cannot be created, so there is no cache; or the directory cannot be
        written to, so existing programs are used but none are added; or the option ``jax_enable_compilation_cache`` is
        off, so JAX does not use the cache.
    """
    caller = "initialize_compilation_cache"
    limit = max_size if max_size is None else arguments.whole_number(caller, "max_size", max_size, 1)
    min_compile_time = arguments.seconds(caller, "min_compile_time", min_compile_time)
    allow_shared = arguments.flag(caller, "allow_shared", allow_shared)
    given = path is not None
    path = _chosen(caller, path)
    config: Any = jax.config
    with _state.lock:
        writable = None if path is None else _made(caller, path, allow_shared, given)
        if path is None or writable is None:
            return cache_info()
        if not allow_shared and (reason := open_to_others(path)):
            raise PermissionError(
                f"{caller}: {reason}. A cache is executable code: anyone who can write to it can run programs as you. "
                "Give a private directory, or restrict this one (chmod 700) and remove the files of others, or "
                "pass allow_shared=True if you trust them all."
            )
        if writable and "://" not in path:
            _remove_damaged(path)
            _cut_back(path, limit)
        if not _state.listening:
            jax.monitoring.register_event_listener(_state.count)
            atexit.register(_leave)
            _state.listening = True
        _state.hits = _state.requests = 0
        _state.limit, _state.writable = limit, writable
        config.update("jax_compilation_cache_dir", path)
        config.update("jax_persistent_cache_min_compile_time_secs", min_compile_time)
        config.update("jax_persistent_cache_min_entry_size_bytes", 0 if writable else NEVER)
        # JAX chooses its cache at the first compilation; a reset makes it choose again.
        compilation_cache.reset_cache()
        if not config.jax_enable_compilation_cache:
            _warn(
                caller,
                "jax_enable_compilation_cache is off, so JAX does not use the cache; turn it on, or unset "
                "JAX_ENABLE_COMPILATION_CACHE",
            )
        return cache_info()


def cache_info() -> CacheInfo:
    """Return the state of the compilation cache, and its hits and misses in this process.

    Returns
    -------
    CacheInfo
        State of the cache that JAX uses, whether or not this package set it. Hits and misses are counted since
        `initialize_compilation_cache`.
    """
    config: Any = jax.config
    path = config.jax_compilation_cache_dir
    if not path:
        return CacheInfo(None, False, False, 0, 0, None, _state.hits, _state.requests - _state.hits)
    found = None if "://" in path else _entries(path)
    return CacheInfo(
        path=path,
        enabled=bool(config.jax_enable_compilation_cache),
        writable=_state.writable if _state.listening else os.access(path, os.W_OK),
        entries=None if found is None else len(found),
        bytes=None if found is None else sum(entry.size for entry in found),
        limit=_state.limit,
        hits=_state.hits,
        misses=_state.requests - _state.hits,
    )


def clear_cache() -> int:
    """Remove every program from the compilation cache; this process keeps its compiled programs in memory.

    Returns
    -------
    int
        Number of programs removed.

    Raises
    ------
    ValueError
        There is no cache, or it is a bucket.
    """
    config: Any = jax.config
    path = config.jax_compilation_cache_dir
    if not path or "://" in path:
        where = (
            f"the cache is {path}, which this function cannot clear; remove its programs there"
            if path
            else "there is no cache; initialise one first"
        )
        raise ValueError(f"clear_cache: {where}.")
    with _state.lock:
        found = _entries(path)
        for entry in found:
            _remove(entry.path)
        compilation_cache.reset_cache()
        return len(found)


class _Entry(NamedTuple):
    """A program in the cache; the times are in seconds since 1970."""

    path: str
    size: int
    used: float  # time of the last use, as far as the file system records it
    written: float
    owner: int


def _entries(path: str) -> list[_Entry]:
    """Return the programs in a cache."""
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as files:
        for file in files:
            if ENTRY.fullmatch(file.name):
                with contextlib.suppress(OSError):  # removed in the meantime
                    status = file.stat(follow_symlinks=False)
                    used = max(status.st_atime, status.st_mtime)
                    found.append(_Entry(file.path, status.st_size, used, status.st_mtime, status.st_uid))
    return found


def _remove(path: str) -> None:
    """Remove an entry and the file with the time of its last use; ignore errors of the file system."""
    for name in (path, path.removesuffix("-cache") + TIME):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _remove_damaged(path: str) -> None:
    """Remove entries that were truncated on a full disk; JAX would keep them and warn about them in every process."""
    stamp = os.path.join(path, STAMP)
    before = os.stat(stamp).st_mtime if os.path.exists(stamp) else 0.0
    for entry in _entries(path):
        # File times are coarse, so entries written in the second before the last check are checked again.
        if entry.written >= before - 1 and not _complete(entry.path):
            _remove(entry.path)
    with contextlib.suppress(OSError):
        Path(stamp).touch()


def _complete(path: str) -> bool:
    """Return whether a compressed file is complete; True if it cannot be read, or if no decompressor is installed."""
    try:
        with safe_files.open_plain(path) as file:
            before = os.fstat(file.fileno())
            content = file.read()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # this check does not count as a use
        (_zstd() if content.startswith(ZSTD) else zlib.decompress)(content)
    except (OSError, ImportError):
        return True
    except Exception:  # each library raises its own exceptions
        return False
    return True


def _zstd() -> Callable[[bytes], bytes]:
    """Return the decompressor that JAX uses, from Python 3.14 or zstandard; raise ImportError if neither exists."""
    decompress: Callable[[bytes], bytes]
    try:
        from compression import zstd

        decompress = zstd.decompress
    except ImportError:
        import zstandard

        decompress = zstandard.ZstdDecompressor().decompress
    return decompress


def _cut_back(path: str, limit: int | None) -> None:
    """Remove the least recently used programs until the rest is no larger than `limit`.

    JAX's own limit is not used, since it needs another package, and JAX stops writing if it finds an entry that was
    written without the limit. As a consequence, the cache may exceed the limit until the process ends.
    """
    if limit is None:
        return
    found = sorted(_entries(path), key=lambda entry: entry.used)
    total = sum(entry.size for entry in found)
    for entry in found:
        if total <= limit:
            break
        _remove(entry.path)
        total -= entry.size


def _leave() -> None:
    """Enforce the limit at the end of the process."""
    config: Any = jax.config
    path = config.jax_compilation_cache_dir
    if path and "://" not in path and _state.writable:
        _cut_back(path, _state.limit)


def _chosen(caller: str, path: Any) -> str | None:
    """Return the location of the cache, a URL or an absolute path; None if no directory is known."""
    config: Any = jax.config
    if path is None:
        path = config.jax_compilation_cache_dir or _default(caller)
        if path is None:
            return None
    text = arguments.path(caller, "path", path)
    arguments.utf8(caller, "path", text, "JAX")
    if not text:
        raise ValueError(f"{caller}: path={arguments.safe_repr(text)} must be the name of a directory.")
    return text if "://" in text else os.path.realpath(os.path.expanduser(text))


def _default(caller: str) -> Path | None:
    """Return this package's directory in the user's cache directory; None without a home directory."""
    base: Path | None = environment.cache_directory()
    if base is None:
        _warn(caller, "there is no home directory, so there is no cache; give a path")
        return None
    return base / "compiled"


def _made(caller: str, path: str, allow_shared: bool, given: bool) -> bool | None:
    """Create the directory if it is missing; return whether it is writable, or None if it cannot be created."""
    if "://" in path:
        return True
    levels = (path, *map(str, Path(path).parents))
    absent = [name for name in levels if not os.path.isdir(name)]
    file = next(filter(os.path.lexists, absent), None)
    if file is not None and given:
        raise NotADirectoryError(f"{caller}: {file} is not a directory. Give another path.")
    if file is not None:
        _warn(caller, f"{file} is not a directory, so there is no cache; give a path")
        return None
    try:
        environment.make_directories(path, 0o777 if allow_shared else 0o700)
    except OSError as error:
        _warn(caller, f"{path} cannot be created ({error.strerror}), so there is no cache; give another path")
        return None
    try:
        with tempfile.TemporaryFile(dir=path) as trial:  # a full disk accepts an empty file, but no content
            trial.write(bytes(4096))
            trial.flush()
    except OSError as error:
        _warn(
            caller,
            f"{path} cannot be written to ({error.strerror}), so existing programs are used, but new ones are not kept",
        )
        return False
    return True


def open_to_others(path: str) -> str | None:
    """Return, as a clause, why other users can add programs to this cache or have added any; None otherwise."""
    if "://" in path:
        return f"it cannot be determined here who can write to {path}"
    if os.name == "nt":  # Windows has no modes to check
        return None
    reason: str | None = environment.open_to_others(path)
    if reason:
        return reason
    # Someone else may have added a program while others could write to the directory.
    for entry in _entries(path):
        if other := environment.owned_by_other(entry.owner):
            return f"{entry.path} {other}"
    return None


def _warn(caller: str, text: str) -> None:
    warnings.warn(f"{caller}: {text}", RuntimeWarning, stacklevel=3)

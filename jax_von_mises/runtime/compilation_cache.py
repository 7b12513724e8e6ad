"""Turn on JAX's compilation cache on disk safely, in one call.

Later processes read from the disk what one process has compiled. By default JAX keeps no cache, and in a directory it
keeps only programs that took more than a second to compile, which ours do not.

A cache is executable code: anyone who can write to it can run programs as you. It therefore lies in a directory that is
yours alone, and one that others can write to is refused. A disk that is full or read-only costs no more than a warning.
"""

import atexit
import contextlib
import os
import re
import tempfile
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_von_mises import arguments, environment
from jax_von_mises.streams import safe_files

DEFAULT_LIMIT = 2**30

# How JAX names its entries, and the times of their last use where it limits the size itself. Nothing else is touched.
ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
TIME = "-atime"
# Its time says when entries were last looked through.
STAMP = "checked"

# JAX writes no entry that is smaller than this: how to keep it from writing where it cannot.
NEVER = 2**62

ZSTD = b"\x28\xb5\x2f\xfd"


class CacheInfo(NamedTuple):
    """State of the compilation cache, and how often this process found its programs there."""

    path: str | None
    """The directory; None where there is no cache."""
    enabled: bool
    """Whether JAX uses it."""
    writable: bool
    """Whether new programs are kept."""
    entries: int | None
    """Programs in it; None for a bucket."""
    bytes: int | None
    limit: int | None
    """Bytes that it is cut back to; None without limit."""
    hits: int
    """Programs of this process that were read from it, since it was initialised."""
    misses: int
    """Programs of this process that were looked for in vain, and compiled."""


class _State:
    """The cache of this process, and what JAX reports of it."""

    def __init__(self):
        self.lock = threading.RLock()
        self.limit: int | None = None
        self.writable = False
        self.listening = False
        self.hits = self.requests = 0

    def count(self, event, **_):
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
    """Keep compiled programs on disk, for all processes that come after, and use those that are there.

    May be called at any time, also after JAX has compiled something, and again with another directory.

    Parameters
    ----------
    path : str or path, optional
        The directory; made, for you alone (mode 0700), if it is not there. By default the one that JAX is set to
        (``JAX_COMPILATION_CACHE_DIR``), else ``jax_von_mises/compiled`` in your cache directory (``XDG_CACHE_HOME``,
        ``~/.cache``). A URL such as ``gs://bucket/cache`` is possible with ``allow_shared=True``.
    max_size : int, optional
        Bytes. The programs that were used longest ago are removed, now and when the process ends, until the rest is
        no larger: by the times that the file system keeps, which most note once a day. None: no limit.
    min_compile_time : float
        Seconds: what compiles faster is not kept. 0 keeps everything.
    allow_shared : bool
        Take the directory even if others can write to it, or if that cannot be known. Anyone who can write to it can
        run programs as you.

    Returns
    -------
    CacheInfo
        As from `cache_info`.

    Raises
    ------
    PermissionError
        Others can write to the directory, or to one above it, or it belongs to someone else.
    NotADirectoryError
        The path is there and is not a directory.

    Warns
    -----
    RuntimeWarning
        The directory cannot be made or written: then what is there is used, and nothing is added.
    """
    caller = "initialize_compilation_cache"
    limit = max_size if max_size is None else arguments.whole_number(caller, "max_size", max_size, 1)
    min_compile_time = arguments.seconds(caller, "min_compile_time", min_compile_time)
    allow_shared = arguments.flag(caller, "allow_shared", allow_shared)
    given = path is not None
    path = _chosen(caller, path)
    with _state.lock:
        writable = None if path is None else _made(caller, path, allow_shared, given)
        if writable is None:
            return cache_info()
        if not allow_shared and (reason := open_to_others(path)):
            raise PermissionError(
                f"{caller}: {reason}. A cache is executable code: anyone who can write to it can run programs as you. "
                "Give a private directory, or restrict this one (chmod 700) and remove files of others, or "
                "pass allow_shared=True if you trust all of them."
            )
        if writable and path and "://" not in path:
            _remove_damaged(path)
            _cut_back(path, limit)
        if not _state.listening:
            jax.monitoring.register_event_listener(_state.count)
            atexit.register(_leave)
            _state.listening = True
        _state.hits = _state.requests = 0
        _state.limit, _state.writable = limit, writable
        jax.config.update("jax_compilation_cache_dir", path)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", min_compile_time)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0 if writable else NEVER)
        # At its first compilation JAX decides whether there is a cache, and where; this makes it decide again.
        compilation_cache.reset_cache()
        if not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]  # JAX's stubs lack it
            _warn(
                caller,
                "jax_enable_compilation_cache is off, so JAX does not use the cache; turn it on, or unset "
                "JAX_ENABLE_COMPILATION_CACHE",
            )
        return cache_info()


def cache_info() -> CacheInfo:
    """Return what the compilation cache holds, and how often this process found its programs there.

    Returns
    -------
    CacheInfo
        Of any cache that JAX uses; hits and misses are counted from `initialize_compilation_cache` on.
    """
    path = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # JAX's stubs lack it
    if not path:
        return CacheInfo(None, False, False, 0, 0, None, _state.hits, _state.requests - _state.hits)
    found = None if "://" in path else _entries(path)
    return CacheInfo(
        path=path,
        enabled=bool(jax.config.jax_enable_compilation_cache),  # type: ignore[attr-defined]  # JAX's stubs lack it
        writable=_state.writable if _state.listening else os.access(path, os.W_OK),
        entries=None if found is None else len(found),
        bytes=None if found is None else sum(entry.size for entry in found),
        limit=_state.limit,
        hits=_state.hits,
        misses=_state.requests - _state.hits,
    )


def clear_cache() -> int:
    """Remove every program from the compilation cache; what this process has compiled it keeps in memory.

    Returns
    -------
    int
        How many there were.

    Raises
    ------
    ValueError
        There is no cache, or it is a bucket.
    """
    path = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # JAX's stubs lack it
    if not path or "://" in path:
        where = f"the cache is {path}; remove it there" if path else "there is no cache; initialise one first"
        raise ValueError(f"clear_cache: {where}.")
    with _state.lock:
        found = _entries(path)
        for entry in found:
            _remove(entry.path)
        compilation_cache.reset_cache()
        return len(found)


class _Entry(NamedTuple):
    path: str
    size: int
    used: float  # when last, as far as the file system records it
    written: float
    owner: int


def _entries(path):
    """Return the programs in a cache."""
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as files:
        for file in files:
            if ENTRY.fullmatch(file.name):
                with contextlib.suppress(OSError):  # removed meanwhile
                    about = file.stat(follow_symlinks=False)
                    used = max(about.st_atime, about.st_mtime)
                    found.append(_Entry(file.path, about.st_size, used, about.st_mtime, about.st_uid))
    return found


def _remove(path):
    for name in (path, path.removesuffix("-cache") + TIME):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _remove_damaged(path):
    """Remove entries that a full disk has cut short: JAX would keep them, and warn in every process."""
    stamp = os.path.join(path, STAMP)
    before = os.stat(stamp).st_mtime if os.path.exists(stamp) else 0.0
    for entry in _entries(path):
        # Times of files are coarse, so those of the last second are looked at again.
        if entry.written >= before - 1 and not _complete(entry.path):
            _remove(entry.path)
    with contextlib.suppress(OSError):
        Path(stamp).touch()


def _complete(path):
    """Return whether a file holds a complete compressed text, as far as can be said here."""
    try:
        with safe_files.open_plain(path) as file:
            before = os.fstat(file.fileno())
            content = file.read()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # this does not count as a use
        (_zstd() if content.startswith(ZSTD) else zlib.decompress)(content)
    except (OSError, ImportError):
        return True
    except Exception:  # zlib and the others each have their own
        return False
    return True


def _zstd():
    """Return the decompressor of Python 3.14, or of a package, as JAX does; ImportError without either."""
    try:
        from compression import zstd
    except ImportError:
        import zstandard

        return zstandard.ZstdDecompressor().decompress
    return zstd.decompress


def _cut_back(path, limit):
    """Remove what was used longest ago, until the rest is no larger than `limit`.

    JAX's own limit is not used: it needs one more package, and it stops writing for good where it finds an entry that
    was made without it. The price is that a process may exceed the limit until it ends.
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


def _leave():
    """Keep to the limit at the end of the process."""
    path = jax.config.jax_compilation_cache_dir
    if path and "://" not in path and _state.writable:
        _cut_back(path, _state.limit)


def _chosen(caller: str, path: Any) -> str | None:
    """Return the path of the cache as text, absolute if it is no URL; None where there is no place for one."""
    if path is None:
        path = jax.config.jax_compilation_cache_dir or _default(caller)  # type: ignore[attr-defined]
        if path is None:
            return None
    path = arguments.path(caller, "path", path)
    arguments.utf8(caller, "path", path, "JAX")
    if not path:
        raise ValueError(f"{caller}: path={arguments.safe_repr(path)} must be the name of a directory.")
    return path if "://" in path else os.path.realpath(os.path.expanduser(path))


def _default(caller):
    """Return the directory of this package in the user's cache directory; None where there is no home directory."""
    base = environment.cache_directory()
    if base is None:
        _warn(caller, "there is no home directory, so there is no cache; give a path")
        return None
    return base / "compiled"


def _made(caller, path, allow_shared, given):
    """Make the directory if need be; return whether it can be written, or None if there is none."""
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
        _warn(caller, f"{path} cannot be made ({error.strerror}), so there is no cache; give a directory that can")
        return None
    try:
        with tempfile.TemporaryFile(dir=path) as trial:  # a full disk takes the name of a file, and no content
            trial.write(bytes(4096))
            trial.flush()
    except OSError as error:
        _warn(
            caller,
            f"{path} cannot be written ({error.strerror}), so programs that are there are used, and new ones not kept",
        )
        return False
    return True


def open_to_others(path):
    """Return as a clause why someone else can put a program into this cache, at any level; None if nobody can."""
    if "://" in path:
        return f"who can write to {path} cannot be seen from here"
    if environment.pwd is None:
        return None
    if reason := environment.open_to_others(path):
        return reason
    # From a time when the directory was open.
    for entry in _entries(path):
        if reason := environment.owned_by_other(entry.owner):
            return f"{entry.path} {reason}"
    return None


def _warn(caller, text):
    warnings.warn(f"{caller}: {text}", RuntimeWarning, stacklevel=3)

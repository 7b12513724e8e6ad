"""JAX's compilation cache on disk, made safe to turn on in one call.

What is compiled once is read from the disk by every process after. Left to itself JAX keeps no cache, and with a
directory it keeps only programs that took more than a second to compile, which ours do not.

A cache is executable code: whoever can write to it runs programs as you. So it lies in a directory that is yours alone,
and one that others can write to is refused. And it is a convenience: a disk that is full or read-only costs a warning.
"""

import atexit
import contextlib
import os
import re
import stat
import sys
import tempfile
import threading
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_von_mises import arguments
from jax_von_mises.streams import safe_files

try:
    import grp
    import pwd
except ImportError:  # Windows has no modes to look at
    grp = pwd = None  # type: ignore[assignment]

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
    """What the compilation cache is and did."""

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
    """What this process knows of its cache."""

    def __init__(self):
        self.lock = threading.RLock()
        self.limit: int | None = None
        self.writable = False
        self.listening = False
        self.hits = self.requests = 0

    def count(self, event, **_):
        """Take note of what JAX tells its listeners."""
        if event == "/jax/compilation_cache/cache_hits":
            self.hits += 1
        elif event == "/jax/compilation_cache/compile_requests_use_cache":
            self.requests += 1


_state = _State()


def initialize_compilation_cache(path=None, *, max_size=DEFAULT_LIMIT, min_compile_time=0.0, allow_shared=False):
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
        Take the directory even if others can write to it, or if that cannot be known. Whoever can write to it can run
        programs as you.

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
        if path is None:
            return cache_info()
        remote = "://" in path
        if remote and not allow_shared:
            raise PermissionError(
                f"{caller}: who can write to {path} cannot be seen from here, and a cache is executable code. Say "
                "allow_shared=True if you trust them all, or give a directory of this machine."
            )
        writable = remote or _made(caller, path, allow_shared, given)
        if writable is None:
            return cache_info()
        if not remote:
            if not allow_shared and (reason := open_to_others(path)):
                raise PermissionError(
                    f"{caller}: {reason}. A cache is executable code, so whoever can write to it can run programs as "
                    "you. Give a directory of your own, or close this one (chmod 700) and remove what is not yours in "
                    "it, or say allow_shared=True if you trust them all."
                )
            if writable:
                _look_through(path)
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
        # At its first compilation JAX decides whether there is a cache, and where; this makes it decide anew.
        compilation_cache.reset_cache()
        if not jax.config.jax_enable_compilation_cache:
            _warn(
                caller,
                "jax_enable_compilation_cache is off, so JAX does not use the cache; turn it on, or unset "
                "JAX_ENABLE_COMPILATION_CACHE",
            )
        return cache_info()


def cache_info():
    """What the compilation cache holds, and how often this process found its programs there.

    Returns
    -------
    CacheInfo
        Of any cache that JAX uses; hits and misses are counted from `initialize_compilation_cache` on.
    """
    path = jax.config.jax_compilation_cache_dir
    if not path:
        return CacheInfo(None, False, False, 0, 0, None, _state.hits, _state.requests - _state.hits)
    found = None if "://" in path else _entries(path)
    return CacheInfo(
        path=path,
        enabled=bool(jax.config.jax_enable_compilation_cache),
        writable=_state.writable if _state.listening else os.access(path, os.W_OK),
        entries=None if found is None else len(found),
        bytes=None if found is None else sum(entry.size for entry in found),
        limit=_state.limit,
        hits=_state.hits,
        misses=_state.requests - _state.hits,
    )


def clear_cache():
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
    path = jax.config.jax_compilation_cache_dir
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
    used: float  # when last, as far as the file system tells
    written: float


def _entries(path):
    """The programs in a cache."""
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as files:
        for file in files:
            if ENTRY.fullmatch(file.name):
                with contextlib.suppress(OSError):  # removed meanwhile
                    about = file.stat(follow_symlinks=False)
                    used = max(about.st_atime, about.st_mtime)
                    found.append(_Entry(file.path, about.st_size, used, about.st_mtime))
    return found


def _remove(path):
    for name in (path, path.removesuffix("-cache") + TIME):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _look_through(path):
    """Remove entries that were not written whole, as a full disk leaves them: JAX would keep them and always warn."""
    stamp = os.path.join(path, STAMP)
    zstd = _zstd()
    try:
        before = os.stat(stamp).st_mtime
    except OSError:
        before = 0.0
    for entry in _entries(path):
        # Times of files are coarse, so those of the last second are looked at again.
        if entry.written >= before - 1 and not _whole(entry.path, zstd):
            _remove(entry.path)
    with contextlib.suppress(OSError):
        Path(stamp).touch()


def _whole(path, zstd):
    """Whether a file holds a whole compressed text, as far as can be said here."""
    try:
        with safe_files.open_plain(path) as file:
            before = os.fstat(file.fileno())
            content = file.read()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # to look is not to use
    except OSError:
        return True
    try:
        if not content.startswith(ZSTD):
            zlib.decompress(content)
        elif zstd is not None:
            zstd(content)
    except Exception:  # zlib and the others each have their own
        return False
    return True


def _zstd():
    """What reads the compression that JAX takes where it can: of Python 3.14, or of a package."""
    with contextlib.suppress(ImportError):
        from compression import zstd

        return zstd.decompress
    with contextlib.suppress(ImportError):
        import zstandard

        return zstandard.ZstdDecompressor().decompress
    return None


def _cut_back(path, limit):
    """Remove what was used longest ago, until the rest is no larger than `limit`.

    JAX has a limit of its own, which we leave alone: it asks for one more package, and it stops writing for good where
    it finds an entry that was made without it. The price is that a process may go beyond the limit until it ends.
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
    """At the end of the process, keep to the limit."""
    path = jax.config.jax_compilation_cache_dir
    if path and "://" not in path and _state.writable:
        _cut_back(path, _state.limit)


def _chosen(caller, path):
    """The path of the cache as a string, absolute if it is no URL; None where there is no place for one."""
    if path is None:
        path = jax.config.jax_compilation_cache_dir or _default(caller)
        if path is None:
            return None
    path = arguments.path(caller, "path", path)
    arguments.utf8(caller, "path", path, "JAX")
    if not path:
        raise ValueError(f"{caller}: path={arguments.safe_repr(path)} must be the name of a directory.")
    return path if "://" in path else os.path.realpath(os.path.expanduser(path))


def _default(caller):
    """The directory of this package in the user's cache directory."""
    if os.environ.get("XDG_CACHE_HOME", "").startswith("/"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    else:
        try:
            home = Path.home()
        except RuntimeError:
            _warn(caller, "there is no home directory, so there is no cache; give a path")
            return None
        if os.name == "nt":
            base = Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
        else:
            base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "jax_von_mises" / "compiled"


def _made(caller, path, allow_shared, given):
    """Make the directory if need be. Whether it can be written; None if there is none."""
    levels = (path, *map(str, Path(path).parents))
    above = [name for name in levels if not os.path.isdir(name)]
    file = next((name for name in above if os.path.lexists(name)), None)
    if file is not None and not given:
        _warn(caller, f"{file} is not a directory, so there is no cache; give a path")
        return None
    if file is not None:
        raise NotADirectoryError(f"{caller}: {file} is not a directory. Give another path.")
    try:
        for folder in reversed(above):
            with contextlib.suppress(FileExistsError):  # also by another process, just now
                os.mkdir(folder, 0o777 if allow_shared else 0o700)
    except OSError as error:
        _warn(caller, f"{path} cannot be made ({error.strerror}), so there is no cache; give a directory that can")
        return None
    try:
        with tempfile.TemporaryFile(dir=path) as file:  # a full disk takes the name of a file, and no content
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        _warn(
            caller,
            f"{path} cannot be written ({error.strerror}), so programs that are there are used, and new ones not kept",
        )
        return False
    return True


def open_to_others(path):
    """Why someone else can put a program into this cache, at whatever level, as a clause; None if nobody can."""
    if pwd is None:
        return None
    for directory in (path, *(str(parent) for parent in Path(path).parents)):
        try:
            about = os.stat(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{directory} cannot be looked at ({error.strerror})"
        reason = _open_to(about, leaf=directory == path)
        if reason:
            return f"{directory} {reason}"
    # Where others cannot enter, only who made a file says whether they could once.
    closed = 0 if os.path.isdir(path) and os.stat(path).st_mode & 0o011 else 0o022
    for entry in _entries(path):
        with contextlib.suppress(FileNotFoundError):
            about = os.lstat(entry.path)
            reason = _open_to(about, leaf=True, ignored=closed)
            if reason is None and not stat.S_ISREG(about.st_mode):
                reason = "is not a file"
            if reason:
                return f"{entry.path} {reason}"
    return None


def _open_to(about, leaf, ignored=0):
    """Why others can change what is described by `about`, or None; bits of its mode may be `ignored`."""
    mode = about.st_mode & ~ignored
    if about.st_uid not in (os.getuid(), 0) and (leaf or about.st_uid != _unmapped()):
        return f"belongs to {_user(about.st_uid)}"
    if stat.S_ISLNK(about.st_mode):
        return "is a symbolic link"
    # In a directory with the sticky bit, as /tmp, others can add but not replace: enough above the cache, not in it.
    if about.st_mode & stat.S_ISVTX and not leaf:
        return None
    if mode & stat.S_IWOTH:
        return f"can be written by everybody (mode {stat.S_IMODE(about.st_mode):04o})"
    if mode & stat.S_IWGRP and not _private_group(about.st_gid):
        return f"can be written by the group {_group(about.st_gid)} (mode {stat.S_IMODE(about.st_mode):04o})"
    return None


def _unmapped():
    """The owner that is shown, in a container that knows this user alone, of what belongs to the system; else None."""
    with contextlib.suppress(OSError, ValueError):
        inside, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
        if (int(inside), int(count)) != (0, 2**32 - 1):
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def _private_group(number):
    """Whether a group has no member but this user, as where each user has a group of the same name."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user(number):
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"


def _group(number):
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return number


def _warn(caller, text):
    warnings.warn(f"{caller}: {text}", RuntimeWarning, stacklevel=3)

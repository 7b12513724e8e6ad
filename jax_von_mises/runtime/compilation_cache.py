"""Turn on JAX's compilation cache for all programs, in a directory that only this user can write to.

By default, JAX has no cache on disk. If given a directory, it keeps only programs that take at least a second to
compile; samplers take less. A cache is executable code: anyone who can write to it can run programs as you.
"""

import contextlib
import os
import stat
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_von_mises import arguments

# Minimum entry size in bytes that keeps JAX from writing to a read-only directory.
NEVER = 2**62


class CacheInfo(NamedTuple):
    """Place and size of the compilation cache that JAX uses."""

    path: str | None
    """The directory or URL; None without a cache."""
    entries: int | None
    """Number of programs; None for a URL."""
    bytes: int | None
    """Size of all programs in bytes; None for a URL."""


def initialize_compilation_cache(
    path: str | os.PathLike[str] | None = None,
    *,
    max_size: int | None = None,
    allow_shared: bool = False,
) -> CacheInfo:
    """Keep compiled programs on disk for later processes, and use those of earlier ones.

    The function can be called at any time, even after JAX has compiled a program, and again with another directory. If
    the directory is read-only, programs are used but none are added. If the disk is full, JAX warns and continues. The
    environment variable ``JAX_ENABLE_COMPILATION_CACHE=0`` turns the cache off.

    Parameters
    ----------
    path : str or path, optional
        The directory. If missing, it is created for you alone (mode 0700). The default is JAX's own setting
        (``JAX_COMPILATION_CACHE_DIR``), or else ``jax_von_mises/compiled`` in your cache directory
        (``XDG_CACHE_HOME``, ``~/.cache``). A URL such as ``gs://bucket/cache`` requires ``allow_shared=True``.
    max_size : int, optional
        Limit in bytes, by default none. JAX then removes the least recently used programs before it adds one, and reads
        the times of all programs to find them, which takes 0.3 s for 20,000 programs. Needs the package ``filelock``.
        All processes that use the directory must have a limit.
    allow_shared : bool
        Use the directory even if others can write to it, or if that cannot be determined. Anyone who can write to it
        can run programs as you.

    Returns
    -------
    CacheInfo
        Place and size of the cache, as returned by `cache_info`.

    Raises
    ------
    OSError
        `path` was given, and is not a directory or cannot be created.
    PermissionError
        `allow_shared` is False, and the directory belongs to another user, others can write to it, or this cannot be
        determined.
    ImportError
        `max_size` was given, and ``filelock`` is not installed.

    Warns
    -----
    RuntimeWarning
        The default directory cannot be created, so there is no cache.
    """
    caller = "initialize_compilation_cache"
    limit = -1 if max_size is None else arguments.whole_number(caller, "max_size", max_size, 1)
    allow_shared = arguments.flag(caller, "allow_shared", allow_shared)
    config: Any = jax.config
    given = path is not None
    try:
        place = _made(caller, path if given else config.jax_compilation_cache_dir or _default())
    except OSError as error:
        reason = f"{caller}: {error.filename or 'the default directory'} cannot be created ({error.strerror})"
        if given:
            raise type(error)(f"{reason}. Give the path of a directory.") from error
        warnings.warn(f"{reason}, so there is no cache; give a path", RuntimeWarning, stacklevel=2)
        return cache_info()
    if not allow_shared and (problem := open_to_others(place)):
        raise PermissionError(
            f"{caller}: {problem}. A cache is executable code: anyone who can write to it can run programs as you. "
            "Give a private directory, or restrict this one (chmod 700) and remove the files of others, or pass "
            "allow_shared=True if you trust them all."
        )
    writable = "://" in place or os.access(place, os.W_OK)
    if max_size is not None and writable:
        _prepare_limit(caller, place)
    config.update("jax_compilation_cache_dir", place)
    config.update("jax_compilation_cache_max_size", limit if writable else -1)
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0 if writable else NEVER)
    compilation_cache.reset_cache()  # JAX opens a cache once; now it opens this one
    return cache_info()


def cache_info() -> CacheInfo:
    """Return the place and size of the compilation cache.

    Returns
    -------
    CacheInfo
        State of the cache that JAX uses, whether or not this package set it.
    """
    config: Any = jax.config
    path = config.jax_compilation_cache_dir
    if path and "://" in path:
        return CacheInfo(path, None, None)
    sizes = []
    with contextlib.suppress(OSError), os.scandir(path or os.devnull) as files:
        for file in files:
            if file.name.endswith("-cache"):
                with contextlib.suppress(OSError):  # removed in the meantime
                    sizes.append(file.stat().st_size)
    return CacheInfo(path or None, len(sizes), sum(sizes))


def open_to_others(path: str) -> str | None:
    """Return, as a clause, why another user may add programs to this cache; None if only this user and root can."""
    if "://" in path:
        return f"it cannot be determined here who can write to {path}"
    if os.name == "nt" or not os.path.isdir(path):  # Windows has no modes to check
        return None
    about = os.stat(path)
    if about.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to another user (number {about.st_uid})"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {path} (mode {stat.S_IMODE(about.st_mode):04o})"
    return None


def _made(caller: str, path: Any) -> str:
    """Return a directory as an absolute path, and create it if it is missing; return a URL as it is."""
    text = arguments.path(caller, "path", path)
    arguments.utf8(caller, "path", text, "JAX")
    if not text:
        raise ValueError(f"{caller}: path={arguments.safe_repr(text)} must be the name of a directory.")
    if "://" not in text:
        text = os.path.realpath(os.path.expanduser(text))
        os.makedirs(text, 0o700, exist_ok=True)
    return text


def _default() -> Path:
    """Return this package's directory in the user's cache directory; raise OSError without a home directory."""
    if os.environ.get("XDG_CACHE_HOME", "").startswith("/"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    else:
        try:
            home = Path.home()
        except RuntimeError as error:
            raise FileNotFoundError(None, "there is no home directory") from error
        if os.name == "nt":
            base = Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
        else:
            base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "jax_von_mises" / "compiled"


def _prepare_limit(caller: str, place: str) -> None:
    """Check that JAX can limit the size, and give each program the file with the time of its use that JAX expects."""
    try:
        import filelock  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{caller}: max_size needs filelock: pip install filelock.") from error
    # Without these files, which processes without a limit do not write, JAX adds no more programs. An empty file means
    # that the program was used longest ago.
    for program in Path(place).glob("*-cache"):
        program.with_name(f"{program.name.removesuffix('-cache')}-atime").touch()

"""Find what this package keeps for a user between processes, and the machine's driver, without JAX."""

import contextlib
import os
import re
import stat
import sys
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # Windows has no modes to look at
    grp = pwd = None  # type: ignore[assignment]

__all__ = [
    "cache_directory",
    "make_directories",
    "nvidia_driver",
    "nvidia_gpus",
    "open_to_others",
    "owned_by_other",
    "processor",
]

PROC_DRIVER = Path("/proc/driver/nvidia/version")
PROC_GPUS = Path("/proc/driver/nvidia/gpus")
PROC_CPU = Path("/proc/cpuinfo")


def nvidia_driver():
    """Return the version of the loaded NVIDIA driver, as Linux shows it; None without one."""
    with contextlib.suppress(OSError):
        if match := re.search(r"\s(\d+\.\d+(\.\d+)?)\s", PROC_DRIVER.read_text()):
            return match[1]
    return None


def nvidia_gpus():
    """Return how many of NVIDIA's GPUs this process may use, as Linux and ``CUDA_VISIBLE_DEVICES`` show them."""
    count = 0
    with contextlib.suppress(OSError):
        count = len(os.listdir(PROC_GPUS))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if shown is None else min(count, len([name for name in shown.split(",") if name.strip()]))


def processor(field):
    """Return what Linux shows of the first processor, such as its "model name" or its "flags"; "" elsewhere."""
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{field}\s*: (.*)$", PROC_CPU.read_text(), re.MULTILINE):
            return match[1].strip()
    return ""


def cache_directory():
    """Return this package's directory in the user's cache directory; None where there is no home directory."""
    if os.environ.get("XDG_CACHE_HOME", "").startswith("/"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    else:
        try:
            home = Path.home()
        except RuntimeError:
            return None
        if os.name == "nt":
            base = Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local"))
        else:
            base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "jax_von_mises"


def make_directories(path, mode=0o700):
    """Make a directory, and those above it that are missing, for this user alone."""
    for folder in reversed((Path(path), *Path(path).parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # also by another process, just now
                folder.mkdir(mode)


def open_to_others(path):
    """Return as a clause why someone else can change what is in a directory, at any level; None if nobody can."""
    for directory in (Path(path), *Path(path).parents):
        try:
            about = os.stat(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{directory} cannot be looked at ({error.strerror})"
        reason = _open_to(about, leaf=directory == Path(path))
        if reason:
            return f"{directory} {reason}"
    return None


def owned_by_other(number):
    """Return as a clause whose a file is that belongs to user `number`; None for this user and root."""
    return None if number in (os.getuid(), 0) else f"belongs to the user {_name(pwd.getpwuid, number)}"


def _open_to(about, leaf):
    """Return why others can change a directory that is described by `about`, or None."""
    if (reason := owned_by_other(about.st_uid)) and (leaf or about.st_uid != _unmapped()):
        return reason
    # In a directory with the sticky bit, as /tmp, others can add but not replace: enough above the cache, not in it.
    if about.st_mode & stat.S_ISVTX and not leaf:
        return None
    mode = f"(mode {stat.S_IMODE(about.st_mode):04o})"
    if about.st_mode & stat.S_IWOTH:
        return f"can be written by everybody {mode}"
    if about.st_mode & stat.S_IWGRP and not _private_group(about.st_gid):
        return f"can be written by the group {_name(grp.getgrgid, about.st_gid)} {mode}"
    return None


def _unmapped():
    """Return the owner shown for the system's files in a container that knows this user alone; None elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        inside, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
        if (int(inside), int(count)) != (0, 2**32 - 1):
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def _private_group(number):
    """Return whether a group has no member but this user, as where each user has a group of the same name."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _name(database, number):
    """Return the name of a user or a group, or the number where it has none."""
    try:
        return database(number)[0]
    except KeyError:
        return number

"""Find the user's cache directory, check who else can write to it, and describe the machine, without importing JAX."""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import grp
    import pwd
except ImportError:  # Windows has neither these modules nor file modes to check
    grp = pwd = None  # type: ignore[assignment]

__all__ = [
    "CUDA_KERNELS",
    "SWITCH",
    "cache_directory",
    "cuda_kernels",
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
# The environment variable that turns on the CUDA kernels of this package, and its values.
CUDA_KERNELS = "JAX_VON_MISES_CUDA_KERNELS"
SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}


def cuda_kernels() -> bool:
    """Return whether the environment turns on the CUDA kernels of this package."""
    return SWITCH.get(os.environ.get(CUDA_KERNELS, "").strip().lower(), False)


def nvidia_driver() -> str | None:
    """Return the version of the loaded NVIDIA driver, as Linux reports it; None if no driver is loaded."""
    with contextlib.suppress(OSError):
        if match := re.search(r"\s(\d+\.\d+(\.\d+)?)\s", PROC_DRIVER.read_text()):
            return match[1]
    return None


def nvidia_gpus() -> int:
    """Return the number of NVIDIA GPUs that Linux and ``CUDA_VISIBLE_DEVICES`` let this process use."""
    count = 0
    with contextlib.suppress(OSError):
        count = len(os.listdir(PROC_GPUS))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, len([name for name in visible.split(",") if name.strip()]))


def processor(field: str) -> str:
    """Return a field of the first processor as Linux reports it, such as "model name" or "flags"; "" if unavailable."""
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{field}\s*: (.*)$", PROC_CPU.read_text(), re.MULTILINE):
            return match[1].strip()
    return ""


def cache_directory() -> Path | None:
    """Return this package's directory in the user's cache directory; None without a home directory."""
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


def make_directories(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """Create a directory and its missing parents, by default with access for this user only."""
    for folder in reversed((Path(path), *Path(path).parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # another process may have just created it
                folder.mkdir(mode)


def open_to_others(path: str | os.PathLike[str]) -> str | None:
    """Return, as a clause, why another user may change a directory or one of its parents; None if no other user can."""
    for directory in (Path(path), *Path(path).parents):
        try:
            about = os.stat(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{directory} cannot be read ({error.strerror})"
        reason = _open_to(about, leaf=directory == Path(path))
        if reason:
            return f"{directory} {reason}"
    return None


def owned_by_other(number: int) -> str | None:
    """Return a clause that names the user `number` as the owner of a file; None for this user and root."""
    return None if number in (os.getuid(), 0) else f"belongs to user {_name(pwd.getpwuid, number)}"


def _open_to(about: os.stat_result, leaf: bool) -> str | None:
    """Return why other users can change the directory that `about` describes; None if they cannot."""
    if (reason := owned_by_other(about.st_uid)) and (leaf or about.st_uid != _unmapped()):
        return reason
    # With the sticky bit, as in /tmp, others can add files but not replace existing ones. This is safe in a parent, but
    # not in the cache itself.
    if about.st_mode & stat.S_ISVTX and not leaf:
        return None
    mode = f"(mode {stat.S_IMODE(about.st_mode):04o})"
    if about.st_mode & stat.S_IWOTH:
        return f"is writable by everyone {mode}"
    if about.st_mode & stat.S_IWGRP and not _private_group(about.st_gid):
        return f"is writable by the group {_name(grp.getgrgid, about.st_gid)} {mode}"
    return None


def _unmapped() -> int | None:
    """Return the number that stands for unmapped users, such as the host's root, in a container; None elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        inside, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
        if (int(inside), int(count)) != (0, 2**32 - 1):
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def _private_group(number: int) -> bool:
    """Return whether this user is the only member of a group, as on systems that give each user a private group."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _name(database: Callable[[int], Any], number: int) -> str:
    """Return the name of a user or a group, or its number if it has no name."""
    try:
        return str(database(number)[0])
    except KeyError:
        return str(number)

"""Store and read the verdict of the CUDA kernels' trial, for one kind of card, one driver and one set of versions.

The verdict is a small file in the user's cache directory. A file that another user can write to is ignored, since draws
trust the verdict.
"""

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jax_von_mises import environment
from jax_von_mises.sampling import cuda_driver, cuda_launch
from jax_von_mises.version import __version__

__all__ = ["FORMAT", "TRIED_BY", "NotKept", "find", "identity", "keep", "passed", "path_of", "read"]

FORMAT = "jax_von_mises/kernels/1"
TRIED_BY = "jax-von-mises doctor"
# Largest size of a file that is read, in bytes.
LARGEST = 2**14
# The wheels that hold JAX's CUDA backend.
WHEELS = tuple(f"jax-cuda{release}-{part}" for release in (12, 13) for part in ("pjrt", "plugin"))


class NotKept(Exception):
    """The verdict cannot be stored where `read` looks for it."""


def identity(device: jax.Device) -> dict[str, Any]:
    """Return the card, the driver and the versions for which a verdict is valid."""
    return {
        "card": device.device_kind,
        "driver": environment.nvidia_driver(),
        "user-mode driver": cuda_driver.version(),
        "wheels": [f"{name} {version}" for name in WHEELS if (version := _version(name))],
        "cuda": " ".join(device.client.platform_version.split()),
        "jaxlib": metadata.version("jaxlib"),
        "jax": jax.__version__,
        "jax_von_mises": __version__,
        "ptx": hashlib.sha256(cuda_launch.ptx_text().encode()).hexdigest(),
    }


def _version(name: str) -> str | None:
    """Return the version of an installed wheel, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def path_of(about: dict[str, Any]) -> Path | None:
    """Return the file of the verdict for an identity; None if there is no home directory or driver version."""
    base = environment.cache_directory()
    if base is None or about["driver"] is None:
        return None
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return base.resolve() / "kernels" / f"{digest[:32]}.json"


def read(about: dict[str, Any]) -> str | None:
    """Return the verdict for an identity: "" if the kernels passed, otherwise why they failed.

    Return None if there is no valid verdict.
    """
    path = path_of(about)
    if path is None:
        return None
    try:
        if environment.open_to_others(path.parent):
            return None
        # Do not follow links, and do not wait for pipes.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            state = os.fstat(file.fileno())
            others = environment.owned_by_other(state.st_uid) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if others or not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST:
                return None
            found = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"format", "about", "failed"}:
        return None
    valid = (found["format"], found["about"]) == (FORMAT, about) and isinstance(found["failed"], str)
    return str(found["failed"]) if valid else None


def keep(about: dict[str, Any], failed: str) -> Path:
    """Write a verdict (`failed` is "" or why the kernels failed), and return the path of its file.

    Raises
    ------
    NotKept
        There is no home directory or driver version, others can write to the directory of the file, or writing fails.
    """
    path = path_of(about)
    if path is None:
        raise NotKept("there is no home directory" if about["driver"] else "the driver does not report its version")
    try:
        environment.make_directories(path.parent)
        if reason := environment.open_to_others(path.parent):
            raise NotKept(reason)
        handle, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "about": about, "failed": failed}, file)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise NotKept(f"{path.parent}: {error.strerror}") from error
    return path


@functools.cache
def find() -> dict[str, str | None]:
    """Return the verdict for each kind of CUDA device in this process, as it was at the first call."""
    found: dict[str, str | None] = {}
    for device in cuda_launch.devices():
        found[device.device_kind] = None
        with contextlib.suppress(Exception):  # an error must not stop the draw that asks for the verdict
            found[device.device_kind] = read(identity(device))
    return found


def passed() -> bool:
    """Return whether the kernels passed their trial on each kind of CUDA device in this process."""
    return all(failed == "" for failed in find().values())

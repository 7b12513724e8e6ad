"""How much memory a process holds, now and over time, and what the machine and its disks have."""

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

try:
    import psutil
except ImportError:
    psutil = None

__all__ = ["Resident", "Trace", "filesystem", "machine", "resident"]

STATM = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
MOUNTS = Path("/proc/self/mountinfo")


class Resident(NamedTuple):
    """Bytes of a process that are in memory."""

    total: int
    private: int  # without pages of files and libraries, which the system can drop and read again


def resident():
    """What this process holds.

    Raises
    ------
    ImportError
        The system does not tell in ``/proc``, and psutil is missing.
    """
    if psutil is not None:
        found = psutil.Process().memory_info()
        return Resident(found.rss, found.rss - getattr(found, "shared", 0))
    try:
        _, total, shared = map(int, STATM.read_text().split()[:3])
    except OSError as error:
        raise ImportError("this system tells the memory of a process through psutil: pip install psutil") from error
    page = os.sysconf("SC_PAGE_SIZE")
    return Resident(total * page, (total - shared) * page)


def machine():
    """Bytes of memory that the machine has, and those that are free for programs; None where it does not tell."""
    if psutil is not None:
        found = psutil.virtual_memory()
        return {"total": found.total, "available": found.available}
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return {
            name: int(lines[field].split()[0]) * 1024
            for name, field in (("total", "MemTotal"), ("available", "MemAvailable"))
        }
    except (OSError, KeyError):
        return {"total": None, "available": None}


def filesystem(directory):
    """Type of the file system of `directory`, such as ext4, tmpfs or nfs; None where the system does not tell."""
    place = Path(directory).resolve()
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    found = None, -1
    for line in lines:
        # "36 35 98:0 /root /mount/point rw ... - ext4 /dev/sda1 rw": the fields before the dash vary in number.
        left, right = line.split(" - ", 1)
        mount = Path(left.split()[4].replace("\\040", " "))
        # Of two mounts at one place the later one hides the other.
        if place.is_relative_to(mount) and len(mount.parts) >= found[1]:
            found = right.split()[0], len(mount.parts)
    return found[0]


class Trace:
    """Watch the memory of this process from a thread, as a context manager.

    ``points`` are tuples of seconds since the start, `Resident.total` and `Resident.private`; the first is taken before
    anything else happens, the last when all is done.
    """

    def __init__(self, interval=0.05):
        self.interval, self.points = interval, []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory trace", daemon=True)

    def __enter__(self):
        self._start = time.perf_counter()
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self._take()

    def _take(self):
        self.points.append((time.perf_counter() - self._start, *resident()))

    def _watch(self):
        while not self._stop.wait(self.interval):
            self._take()

    def growth(self, private=False):
        """Most bytes at a time beyond those at the start."""
        held = [point[2 if private else 1] for point in self.points]
        return max(held) - held[0]

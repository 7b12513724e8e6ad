"""Measure the memory of this process, now and over time."""

import threading
import time
from typing import NamedTuple

__all__ = ["Resident", "Trace", "resident"]


class Resident(NamedTuple):
    """Resident memory of this process in bytes."""

    total: int
    private: int  # without pages of files and libraries, which the system can drop and read again


def resident():
    """Return the `Resident` memory of this process."""
    import psutil

    found = psutil.Process().memory_info()
    return Resident(found.rss, found.rss - getattr(found, "shared", 0))


class Trace:
    """Context manager that records the memory of this process from a thread.

    ``points`` holds tuples of seconds since the start, `Resident.total` and `Resident.private`. The first tuple is from
    before the body of the ``with`` statement, and the last one from after it.
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
        """Return the largest number of bytes held at any time, minus the number at the start."""
        held = [point[2 if private else 1] for point in self.points]
        return max(held) - held[0]

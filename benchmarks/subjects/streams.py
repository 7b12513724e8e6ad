"""Write long streams to the disk and copy them to the host, and measure the memory that they need."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["cases", "grown"]

PARAMETERS = (0.0, 5.0)
DTYPE = "float32"
ITEM = np.dtype(DTYPE).itemsize
BATCH = 2**22
# Bytes per call of a plain write, as many as in a block of the package.
PIECE = 2**24
# Angles of a stream whose memory is measured: eight blocks.
LONG = 2**25
# Seconds between two readings of the memory.
INTERVAL = 0.05


def on_disk(write):
    """Return a competitor whose calls write to an emptied folder, which is removed with the competitor."""
    home = tempfile.TemporaryDirectory(prefix="jax_von_mises-")

    def fresh(i):
        folder = Path(home.name, "run")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder, i

    return Competitor(write, fresh)


def by_package(name, count, given):
    """Write a stream to a file or store of the package."""
    import jax

    import jax_von_mises as jvm

    folder, i = given
    jvm.write_samples(folder / name, jax.random.key(i), *PARAMETERS, count, DTYPE)


def plainly(count, given):
    """Write as many ready bytes to the disk."""
    data = memoryview(np.random.default_rng(0).bytes(PIECE))
    left = count * ITEM
    with open(given[0] / "plain", "wb", buffering=0) as file:
        while left:
            left -= file.write(data[: min(left, PIECE)])
        os.fsync(file)


def at_once(count, given):
    """Draw all angles in one call and save them with NumPy."""
    import jax

    import jax_von_mises as jvm

    folder, i = given
    with open(folder / "saved.npy", "wb") as file:
        np.save(file, np.asarray(jvm.sample_von_mises(jax.random.key(i), *PARAMETERS, (count,), DTYPE)))
        file.flush()
        os.fsync(file)


def to_host(count):
    """Return ways to bring a stream to the host, which computes the mean direction of each batch."""
    import jax

    import jax_von_mises as jvm

    def use(values):
        return np.cos(values).mean(), np.sin(values).mean()

    def key_of(i):
        return jax.random.key(i)

    def batches(key):
        return jvm.sample_batches(key, *PARAMETERS, count, BATCH, DTYPE)

    def prefetched(key):
        for values in jvm.prefetch_to_host(batches(key), 2):
            use(values)

    def plain(key):
        for values in batches(key):
            use(np.asarray(values))

    def by_hand(key):
        for one in jax.random.split(key, count // BATCH):
            use(np.asarray(jvm.sample_von_mises(one, *PARAMETERS, (BATCH,), DTYPE)))

    return {OURS: prefetched, "sample_batches alone": plain, "a loop by hand": by_hand}, key_of


def memory(kind):
    """Return a competitor that measures the growth of the memory of a new process that draws a stream."""

    def draw(i):
        with tempfile.TemporaryDirectory(prefix="jax_von_mises-") as folder:
            order = json.dumps([kind, folder, LONG])
            command = [sys.executable, "-m", "benchmarks.subjects.streams", order]
            found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        if found.returncode:
            raise RuntimeError(found.stderr.strip().splitlines()[-1])
        return float(found.stdout.splitlines()[-1])

    return lambda count: Competitor(draw, measures=True)


WRITERS = {
    "npy": functools.partial(by_package, "a.npy"),
    "zarr": functools.partial(by_package, "a.zarr"),
    "save": at_once,
}


class Memory:
    """Context manager that watches the memory of this process from a thread."""

    def __init__(self):
        import psutil

        self._process, self._stop = psutil.Process(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._before = self._most = self._process.memory_info().rss
        self._thread.start()
        return self

    def _read(self):
        self._most = max(self._most, self._process.memory_info().rss)

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self._read()

    def _watch(self):
        while not self._stop.wait(INTERVAL):
            self._read()

    def growth(self):
        """Return the largest number of bytes held at any time, minus the number at the start."""
        return self._most - self._before


def grown(kind, folder, count):
    """Return the growth of this process's memory in bytes while it draws a stream, after all programs are compiled."""
    write = WRITERS[kind]
    if kind != "save":
        warm = Path(folder, "warm")
        warm.mkdir()
        write(3 * BATCH, (warm, 0))
    with Memory() as memory:
        write(count, (Path(folder), 1))
    return memory.growth()


def cases():
    """Return the cases."""
    host, key_of = to_host(2**25)

    def writing(name):
        return lambda count: on_disk(functools.partial(by_package, name, count))

    plain = {"a plain write": lambda count: on_disk(functools.partial(plainly, count))}
    saved = {"numpy.save of one draw": lambda count: on_disk(functools.partial(at_once, count))}
    return [
        Case("to `.npy`, fsync included", 2**26, {OURS: writing("a.npy"), **plain, **saved}),
        Case("to Zarr, fsync included", 2**26, {OURS: writing("a.zarr"), **plain}),
        Case(
            "to the host, which computes mean directions",
            2**25,
            {name: lambda count, run=run: Competitor(run, key_of) for name, run in host.items()},
        ),
        Case(
            "memory for $2^{25}$ angles to `.npy`",
            1,
            {OURS: memory("npy"), "numpy.save of one draw": memory("save")},
            "B",
        ),
        Case(
            "memory for $2^{25}$ angles to Zarr",
            1,
            {OURS: memory("zarr"), "numpy.save of one draw": memory("save")},
            "B",
        ),
    ]


if __name__ == "__main__":
    print(grown(*json.loads(sys.argv[1])))

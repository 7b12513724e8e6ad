"""Define the timed runs: hand-written loops and the functions of the package.

A case is a dict of runs that take turns. Each call that draws uses a new key and draws all `total` angles.
"""

import functools
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import psutil

import jax_von_mises as jvm
from benchmarks import timing
from jax_von_mises.streams import zarr
from jax_von_mises.streams.disk import readable
from jax_von_mises.streams.stream import Spans

__all__ = ["ITEM", "Run", "Scratch", "batches", "disk", "draws", "host", "missing_memory", "missing_storage", "on_key"]

# One distribution for all cases, neither nearly uniform nor nearly normal. The rate hardly depends on its shape.
LOC, CONCENTRATION, DTYPE = 0.0, 5.0, "float32"
ITEM = np.dtype(DTYPE).itemsize

# Bytes per call of a plain write, as many as in a block of the package.
PIECE = 2**24

# Drawing all angles in one call takes this many times the memory of the result.
ROOM = 3


class Run(NamedTuple):
    """One way to do the work; `against` names the run that it is compared with."""

    label: str
    competitor: timing.Competitor
    against: str | None = None


class Scratch:
    """A directory that holds one large file at a time."""

    def __init__(self, directory):
        self.directory = Path(directory)

    def fresh(self, name):
        """Empty the directory and return the path of `name` in it."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.directory / name


def missing_storage():
    """Return why Zarr stores cannot be written here, or None."""
    try:
        zarr.import_zarr()
    except ImportError as reason:
        return str(reason)
    return None


def missing_memory(total):
    """Return why `total` angles cannot be drawn in one call here, or None."""
    needed = ROOM * total * ITEM
    if psutil.virtual_memory().available > needed:
        return None
    return f"drawing all angles at once needs {readable(needed)} of memory"


def batches(key, total, batch, **options):
    """Return the stream of `key` from `sample_batches`."""
    return jvm.sample_batches(key, LOC, CONCENTRATION, total, batch, DTYPE, **options)


def by_hand(key, total, batch):
    """Yield NumPy arrays without the package's streams, with one key and one call per batch."""
    sizes = [rows for _, rows in Spans(0, total, batch)]
    for batch_key, rows in zip(jax.random.split(key, len(sizes)), sizes, strict=True):
        yield np.asarray(jvm.sample_von_mises(batch_key, LOC, CONCENTRATION, (rows,), DTYPE))


def draws(total, batch, donate):
    """Return a function of a key that draws a stream and keeps no angles."""

    def run(key):
        for angles in batches(key, total, batch, donate=donate):
            jax.block_until_ready(angles)

    return run


def on_key(run):
    """Return a competitor that calls `run` with a new key each time."""
    return timing.Competitor(run, jax.random.key)


def busy(batch, seconds):
    """Return a function that takes about `seconds` for `batch` angles, and its number of sines per angle."""
    room, angles = np.empty(batch, DTYPE), np.linspace(-3, 3, batch, dtype=DTYPE)
    np.sin(angles, out=room)
    started = time.perf_counter()
    np.sin(angles, out=room)
    sines = seconds / (time.perf_counter() - started)

    def consume(values):
        left = round(sines * len(values))
        while left > 0:
            part = min(left, len(values))
            np.sin(values[:part], out=room[:part])
            left -= part

    return consume, sines


def idle(values):
    """Ignore an array."""


def prefetched(key, total, batch, depth=2, consume=idle):
    """Copy a stream to the host through `prefetch_to_host`."""
    with jvm.prefetch_to_host(batches(key, total, batch), depth) as source:
        for values in source:
            consume(values)


def host(total, batch, work):
    """Return the runs that copy a stream to the host.

    Parameters
    ----------
    total, batch : int
        Numbers of angles in the stream and in one batch.
    work : bool
        Whether the host works on each batch for as long as drawing it takes, or stays idle.

    Returns
    -------
    runs : dict of str to Run
    sines : float
        Number of sines that the host computes per angle.
    """
    consume, sines = idle, 0.0
    if work:
        warm = min(total, 4 * batch)
        draws(warm, batch, False)(jax.random.key(0))
        started = time.perf_counter()
        draws(warm, batch, False)(jax.random.key(1))
        consume, sines = busy(batch, (time.perf_counter() - started) * batch / warm)

    def loop(key):
        for values in by_hand(key, total, batch):
            consume(values)

    def ours(key):
        for angles in batches(key, total, batch):
            consume(np.asarray(angles))

    runs = {
        "loop": Run("loop by hand", on_key(loop)),
        "batches": Run("sample_batches, np.asarray", on_key(ours), "loop"),
    }
    for depth in (1, 2, 4):
        run = functools.partial(prefetched, total=total, batch=batch, depth=depth, consume=consume)
        runs[f"prefetch {depth}"] = Run(f"prefetch_to_host, depth {depth}", on_key(run), "loop")
    if work:
        ready = np.linspace(-3, 3, batch, dtype=DTYPE)

        def alone(key):
            for _, rows in Spans(0, total, batch):
                consume(ready[:rows])

        # Even with perfect overlap, a run takes as long as the slower of these two.
        runs["draw"] = Run("drawing alone", on_key(draws(total, batch, False)), "loop")
        runs["work"] = Run("the host's work alone", on_key(alone), "loop")
    return runs, sines


def write(given, total, block=None):
    """Write a stream with the package; `given` is a tuple of a path and a key."""
    jvm.write_samples(*given, LOC, CONCENTRATION, total, DTYPE, block_rows=block)


def save(given, total):
    """Draw all angles in one call and save them with NumPy; `given` is a tuple of a path and a key."""
    path, key = given
    with open(path, "wb") as file:
        np.save(file, np.asarray(jvm.sample_von_mises(key, LOC, CONCENTRATION, (total,), DTYPE)))
        file.flush()
        os.fsync(file)


def plain_write(path, size, data):
    """Write `size` bytes to a file on the disk, by repeating `data`."""
    with open(path, "wb", buffering=0) as file:
        left = size
        while left:
            left -= file.write(data[: min(left, len(data))])
        os.fsync(file)


def forget_cached(path):
    """Drop a file from the system's cache, if the system allows it."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path, piece=PIECE):
    """Read a file from its start to its end."""
    room = bytearray(piece)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(room):
            pass


def disk(total, batch, scratch):
    """Return the runs that write a stream to the disk; each writer ends with fsync.

    Returns
    -------
    runs : dict of str to Run
    missing : dict of str to str
        The reasons why some runs are impossible here.
    """
    size = total * ITEM
    data = memoryview(np.random.default_rng(0).bytes(min(size, PIECE)))

    def target(name):
        return lambda i: (scratch.fresh(name), jax.random.key(i))

    def plain(given):
        plain_write(given[0], size, data)

    def written(i):
        path = scratch.fresh("plain")
        plain_write(path, size, data)
        forget_cached(path)
        return path

    ours = functools.partial(write, total=total)
    runs = {
        "plain": Run("plain write of ready bytes", timing.Competitor(plain, target("plain"))),
        "npy": Run("write_samples to .npy", timing.Competitor(ours, target("angles.npy")), "plain"),
        "zarr": Run("write_samples to Zarr", timing.Competitor(ours, target("angles.zarr")), "plain"),
        "save": Run(
            "draw all, then numpy.save",
            timing.Competitor(functools.partial(save, total=total), target("saved.npy")),
            "plain",
        ),
        "draw": Run("drawing alone", on_key(draws(total, batch, True)), "plain"),
        "read": Run("plain read, not from the cache", timing.Competitor(plain_read, written), "plain"),
    }
    reasons = {"zarr": missing_storage(), "save": missing_memory(total)}
    missing = {name: reason for name, reason in reasons.items() if reason is not None}
    return {name: run for name, run in runs.items() if name not in missing}, missing

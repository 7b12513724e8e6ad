"""Long work in one process: what users write by hand, and what the package has for it.

A case is a dict of runs that take turns. Each run does all of its work, `count` angles, from a key of its own.
"""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import memory, timing
from jax_von_mises.streams import checkpoint, npy, writer, zarr
from jax_von_mises.streams.stream import Spans, Stream

__all__ = ["Run", "Scratch", "apply", "checksum_rate", "disk", "draw", "host", "record_seconds", "storage"]

# One law for all: neither nearly uniform nor nearly normal. Its shape does not decide the speed.
LOC, CONCENTRATION, DTYPE = 0.0, 5.0, "float32"
ITEM = np.dtype(DTYPE).itemsize

# What a plain write hands to the system at a time: as much as a block of ours.
PIECE = 2**26

# numpy.save takes part where so many times the array is free: the array, and what drawing it at once needs beside it.
ROOM = 3


class Run(NamedTuple):
    """Who takes turns, and with whom its time is compared."""

    label: str
    competitor: timing.Competitor
    against: str | None = None


class Scratch:
    """A directory for large files, of which there is one at a time."""

    def __init__(self, directory):
        self.directory = Path(directory)

    def fresh(self, name):
        """Remove what is there; give a path that is free."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.directory / name


def storage():
    """Why there can be no Zarr store here; None where there can."""
    try:
        zarr.import_tensorstore()
    except ImportError as reason:
        return str(reason)
    return None


def batches(key, total, batch, **options):
    """The stream of `key` by the package."""
    return jvm.sample_batches(key, LOC, CONCENTRATION, total, batch, DTYPE, **options)


def by_hand(key, total, batch):
    """The loop that one writes without the package's streams: a key and a call a batch, one after the other."""
    sizes = [rows for _, rows in Spans(0, total, batch)]
    for one, rows in zip(jax.random.split(key, len(sizes)), sizes, strict=True):
        yield np.asarray(jvm.sample_von_mises(one, LOC, CONCENTRATION, (rows,), DTYPE))


def draws(total, batch, donate):
    """Return a function that draws a stream and does nothing with it."""

    def run(key):
        for angles in batches(key, total, batch, donate=donate):
            jax.block_until_ready(angles)

    return run


def on_key(run):
    """Let `run` have its turns, each with a new key."""
    return timing.Competitor(run, jax.random.key)


def draw(total, sizes):
    """Case: draw, in batches of each of `sizes`, and keep nothing."""
    runs = {}
    for size in sizes:

        def loop(key, size=size):
            for _ in by_hand(key, total, size):
                pass

        naive = f"loop {size}"
        batch = f"batches of {size:,}"
        runs[naive] = Run(f"loop by hand, {batch}", on_key(loop))
        runs[f"kept {size}"] = Run(f"sample_batches, {batch}", on_key(draws(total, size, False)), naive)
        runs[f"donate {size}"] = Run(f"sample_batches, donate, {batch}", on_key(draws(total, size, True)), naive)
    return runs


def busy(batch, seconds):
    """Work for the host on an array, of about `seconds` for a batch: sines, on one core.

    Returns
    -------
    consume : callable
        Takes an array of at most `batch` angles.
    sines : float
        Sines it takes for each angle.
    """
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
    """Do nothing with an array."""


def host(total, batch, work):
    """Case: bring a stream to the host, where something is done with each batch.

    Parameters
    ----------
    total, batch : int
        Angles, and those of a batch.
    work : bool
        Whether the host works on each batch for as long as drawing it takes, or does nothing.

    Returns
    -------
    runs : dict of str to Run
    sines : float
        Sines that the host takes for each angle.
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

    def prefetched(key, depth):
        with jvm.prefetch_to_host(batches(key, total, batch), depth) as source:
            for values in source:
                consume(values)

    runs = {
        "loop": Run("loop by hand", on_key(loop)),
        "batches": Run("sample_batches, np.asarray", on_key(ours), "loop"),
    }
    for depth in (1, 2, 4):
        run = functools.partial(prefetched, depth=depth)
        runs[f"prefetch {depth}"] = Run(f"prefetch_to_host, depth {depth}", on_key(run), "loop")
    if work:
        ready = np.linspace(-3, 3, batch, dtype=DTYPE)

        def alone(key):
            for _, rows in Spans(0, total, batch):
                consume(ready[:rows])

        # No overlap can be faster than the slower of these two.
        runs["draw"] = Run("drawing alone", on_key(draws(total, batch, False)), "loop")
        runs["work"] = Run("the host's work alone", on_key(alone), "loop")
    return runs, sines


def apply(total, batch, scratch):
    """Case: the log density at the angles of a memory-mapped file, which is made here."""
    path = scratch.fresh("angles.npy")
    jvm.write_samples(path, jax.random.key(0), LOC, CONCENTRATION, total, DTYPE)
    angles = np.load(path, mmap_mode="r")

    # One function object: JAX keeps what it compiled by the function's identity.
    @jax.jit
    def log_density(x):
        return jvm.log_prob(x, LOC, CONCENTRATION)

    def ours(_):
        return jvm.batched_apply(log_density, angles, batch)

    def loop(_):
        out = np.empty(total, DTYPE)
        for first, rows in Spans(0, total, batch):
            out[first : first + rows] = np.asarray(log_density(np.asarray(angles[first : first + rows])))
        return out

    def whole(_):
        return np.asarray(log_density(np.asarray(angles)))

    return {
        "loop": Run("loop over slices by hand", timing.Competitor(loop)),
        "batched": Run("batched_apply", timing.Competitor(ours), "loop"),
        "whole": Run("one call with the whole array", timing.Competitor(whole), "loop"),
    }


def plain_write(path, size, data):
    """Write `size` bytes of ready data, piece by piece, to the disk."""
    with open(path, "wb", buffering=0) as file:
        left = size
        while left:
            left -= file.write(data[: min(left, len(data))])
        os.fsync(file)


def forget_cached(path):
    """Have the system drop what it keeps of a file in memory, where it can be told to."""
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
    """Case: a stream to the disk. All who write end with what is written on the disk, not in the system's cache.

    Returns
    -------
    runs : dict of str to Run
    missing : dict of str to str
        The reason for each that cannot run here.
    """
    size = total * ITEM
    data = memoryview(np.random.default_rng(0).bytes(min(size, PIECE)))

    def target(name):
        return lambda i: (scratch.fresh(name), jax.random.key(i))

    def ours(given):
        jvm.write_samples(*given, LOC, CONCENTRATION, total, DTYPE)

    def save(given):
        path, key = given
        with open(path, "wb") as file:
            np.save(file, np.asarray(jvm.sample_von_mises(key, LOC, CONCENTRATION, (total,), DTYPE)))
            file.flush()
            os.fsync(file)

    def written(i):
        path = scratch.fresh("plain")
        plain_write(path, size, data)
        forget_cached(path)
        return path

    runs = {
        "plain": Run(
            "plain write of ready bytes",
            timing.Competitor(lambda given: plain_write(given[0], size, data), target("plain")),
        ),
        "npy": Run("write_samples to .npy", timing.Competitor(ours, target("angles.npy")), "plain"),
    }
    missing = {}
    reason = storage()
    if reason is None:
        runs["zarr"] = Run("write_samples to Zarr", timing.Competitor(ours, target("angles.zarr")), "plain")
    else:
        missing["zarr"] = reason
    free = memory.machine()["available"]
    if free is None or free > ROOM * size:
        runs["save"] = Run("draw all, then numpy.save", timing.Competitor(save, target("saved.npy")), "plain")
    else:
        missing["save"] = f"numpy.save of all would need {checkpoint.readable(ROOM * size)} of memory"
    runs["draw"] = Run("drawing alone", on_key(draws(total, batch, True)), "plain")
    runs["read"] = Run("plain read, not from the cache", timing.Competitor(plain_read, written), "plain")
    return runs, missing


def checksum_rate(size: int, clock: Callable[[], float] = time.perf_counter):
    """Bytes a second of the checksum that is taken of each block before it is written, on one core."""
    data = np.zeros(size // ITEM, DTYPE)
    target = npy.NpyFile("", data.shape, data.dtype, len(data))  # opens nothing
    writer.checksum(target, data)
    seconds = []
    for _ in range(5):
        started = clock()
        writer.checksum(target, data)
        seconds.append(clock() - started)
    return data.nbytes / float(np.median(seconds))


def record_seconds(kind: str, blocks: int, scratch, clock: Callable[[], float] = time.perf_counter):
    """Seconds that the record takes which is made after a block, when so many blocks are done."""
    total = blocks * writer.BLOCK_ANGLES
    stream = Stream.of("record_seconds", jax.random.key(0), LOC, CONCENTRATION, DTYPE, "auto")
    path = os.fspath(scratch.fresh(f"angles.{kind}"))
    make = npy.NpyFile if kind == "npy" else zarr.ZarrStore
    target = make(path, (total,), stream.dtype, writer.BLOCK_ANGLES)
    job = writer.WriteRun(target, stream, writer.WriteOptions())
    job.done = {i: f"{i:08x}" for i in range(blocks)}
    with contextlib.closing(target):
        target.save_record(job.text())  # the first makes what directories it needs
        seconds = []
        for _ in range(3):
            started = clock()
            target.save_record(job.text())
            seconds.append(clock() - started)
    return float(np.median(seconds))

"""Measure the cost of writing a store with workers, and of recording many blocks.

``python -m benchmarks.workers --quick`` takes a minute on two cores and needs 0.5 GB of free disk space. Without
``--quick`` it draws 1e9 angles (4 GB) several times. ``--directory`` selects the disk. The program removes its files at
the end.
"""

import argparse
import multiprocessing
import tempfile
import time
from concurrent import futures
from pathlib import Path

import jax
import numpy as np
import psutil

import jax_von_mises as jvm
from benchmarks import environment
from benchmarks.streaming.cases import CONCENTRATION, DTYPE, LOC, Scratch
from benchmarks.text import environment_text, positive, table, time_text
from jax_von_mises.streams import checkpoint, writer
from jax_von_mises.streams.stream import Stream
from jax_von_mises.streams.target import open_target

__all__ = ["main"]

SIZE, BLOCKS, ROUNDS = 10**9, 60_000, 3
QUICK = 10**8, 6_000, 3


def cpu_seconds():
    """Return the CPU time of this process and of its running child processes, in seconds."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def timed(work):
    """Return the wall time and the CPU time of `work()`, in seconds."""
    began, used = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - began, cpu_seconds() - used


def stores(size, rounds, scratch):
    """Return the wall and CPU times, in seconds, of each way to write a store; the ways take turns."""
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context) as one, futures.ProcessPoolExecutor(2, context) as two:
        ways = {"one process": None, "1 worker": one, "2 workers": two}
        found = {name: [] for name in ways}
        for i in range(-1, rounds):  # round -1 compiles and starts the workers
            for name, executor in ways.items():
                out, total = scratch.fresh("a.zarr"), size if i >= 0 else 4 * writer.BLOCK_ANGLES
                draw = (out, jax.random.key(i % 2**32), LOC, CONCENTRATION, total, DTYPE)
                seconds = timed(lambda draw=draw, executor=executor: jvm.write_samples(*draw, executor=executor))
                if i >= 0:
                    found[name].append(seconds)
    return found


def records(blocks, scratch, kind):
    """Return the seconds to record `blocks` blocks one by one, and to read the record as a resumed run does."""
    out = scratch.fresh(f"a.{kind}")
    stream = Stream.of("benchmark", jax.random.key(0), LOC, CONCENTRATION, DTYPE, "auto")
    target = open_target("benchmark", str(out), (blocks,), np.dtype(DTYPE), 1)
    run = writer.WriteRun(target, stream, writer.WriteOptions())
    target.begin(run.text())
    began = time.perf_counter()
    for block in range(blocks):
        run.record({block: "01234567"})
    recorded = time.perf_counter()
    (record,) = target.records()
    ended = time.perf_counter()
    target.close()
    assert len(record["crc32"]) == blocks
    return recorded - began, ended - recorded


def main(arguments=None):
    """Run the measurements and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    parser.add_argument("--directory", type=Path, help="directory to write to; default: the one for temporary files")
    parser.add_argument("--size", type=positive, help="number of angles in a store")
    options = parser.parse_args(arguments)
    size, blocks, rounds = QUICK if options.quick else (SIZE, BLOCKS, ROUNDS)
    size = options.size or size
    print(environment_text(environment.describe()))
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Scratch(name)
        found = stores(size, rounds, scratch)
        count = -(-size // writer.BLOCK_ANGLES)
        median = {name: np.median(seconds, axis=0) for name, seconds in found.items()}
        alone = median["one process"][1]
        print(f"\n{size:.0e} {DTYPE} angles, {count} blocks, to Zarr; medians of {rounds} rounds")
        rows = [("", "wall time", "CPU time", "extra CPU time per block")]
        for way, (clock, cpu) in median.items():
            extra = "" if way == "one process" else f"{(cpu - alone) / count * 1e3:+.1f} ms"
            rows.append((way, time_text(clock), time_text(cpu), extra))
        print(table(rows))
        print(f"\nRecord of {blocks:,} blocks ({blocks * writer.BLOCK_ANGLES:.1e} angles), written one by one")
        rows = [("", "record all", "per block", "read all")]
        for kind in ("npy", "zarr"):
            recorded, read = records(blocks, scratch, kind)
            rows.append((kind, time_text(recorded), time_text(recorded / blocks), time_text(read)))
        print(table(rows))
        print(f"\nA finished record lists up to {checkpoint.MOST_BLOCKS:,} blocks.")


if __name__ == "__main__":
    main()

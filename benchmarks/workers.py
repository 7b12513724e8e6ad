"""Measure the cost of writing a store with workers, and of resuming a run of many blocks.

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
from benchmarks.streaming.__main__ import angles
from benchmarks.streaming.cases import CONCENTRATION, DTYPE, LOC, Scratch
from benchmarks.text import environment_text, table, time_text
from jax_von_mises.streams import writer
from jax_von_mises.streams.blocks import Found, Plan
from jax_von_mises.streams.stream import Stream

__all__ = ["main"]

SIZE, QUICK, ROUNDS = 10**9, 10**8, 3
RESUMES = 11
BLOCKS = 2_385  # of 1e10 angles


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
                out, total = scratch.fresh("a.zarr"), size if i >= 0 else 4 * writer.BLOCK_NUMBERS
                draw = (out, jax.random.key(i % 2**32), LOC, CONCENTRATION, total, DTYPE)
                seconds = timed(lambda draw=draw, executor=executor: jvm.write_samples(*draw, executor=executor))
                if i >= 0:
                    found[name].append(seconds)
    return found


def unfinished(blocks, scratch, kind):
    """Make a run whose blocks are finished except for the last; return the arguments that resume it.

    The finished blocks are empty, since a resumed run only lists them.
    """
    out, total, size = str(scratch.fresh(f"a.{kind}")), blocks * writer.BLOCK_NUMBERS, writer.BLOCK_NUMBERS
    given = jax.random.key(0), LOC, CONCENTRATION
    stream = Stream.of("benchmark", *given, DTYPE, "auto")
    first_rows = Plan.of(stream, total, size, "").first_rows(stream.rows(0, size))
    target = writer.kind_of("benchmark", out)(out, Plan.of(stream, total, size, first_rows))
    target.begin(Found(False, None, False), False)
    target.close()
    if kind == "npy":
        with open(target.partial_log, "a") as log:
            log.writelines(f"{block} 01234567\n" for block in range(blocks - 1))
    else:
        for block in range(blocks - 1):
            Path(out, target.key(block)).touch()
    return out, *given, total, DTYPE


def resumed(blocks, rounds, scratch, kind):
    """Return the median seconds to resume a run of `blocks` blocks and one of two; both draw one block."""
    seconds = {2: [], blocks: []}
    for _ in range(rounds):
        for number, found in seconds.items():
            given = unfinished(number, scratch, kind)
            began = time.perf_counter()
            written = jvm.write_samples(*given, resume=True)
            found.append(time.perf_counter() - began)
            assert (written.finished, written.drawn, written.kept) == (True, 1, number - 1)
    return np.median(seconds[blocks]), np.median(seconds[2])


def main(arguments=None):
    """Run the measurements and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    parser.add_argument("--directory", type=Path, help="directory to write to; default: the one for temporary files")
    parser.add_argument("--size", type=angles, help="number of angles in a store")
    options = parser.parse_args(arguments)
    size = options.size or (QUICK if options.quick else SIZE)
    print(environment_text(environment.describe()))
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Scratch(name)
        found = stores(size, ROUNDS, scratch)
        count = -(-size // writer.BLOCK_NUMBERS)
        median = {name: np.median(seconds, axis=0) for name, seconds in found.items()}
        alone = median["one process"][1]
        print(f"\n{size:.0e} {DTYPE} angles, {count} blocks, to Zarr; medians of {ROUNDS} rounds")
        rows = [("", "wall time", "CPU time", "extra CPU time per block")]
        for way, (clock, cpu) in median.items():
            extra = "" if way == "one process" else f"{(cpu - alone) / count * 1e3:+.1f} ms"
            rows.append((way, time_text(clock), time_text(cpu), extra))
        print(table(rows))
        total = f"{BLOCKS:,} blocks ({BLOCKS * writer.BLOCK_NUMBERS:.1e} angles)"
        print(f"\nResuming a run of {total} that lacks the last one; medians of {RESUMES} rounds")
        rows = [("", "time", "time for 2 blocks", "extra time", "per block")]
        for kind in ("npy", "zarr"):
            many, two = resumed(BLOCKS, RESUMES, scratch, kind)
            extra = f"{(many - two) * 1e3:+.1f} ms", f"{(many - two) / (BLOCKS - 2) * 1e6:+.1f} us"
            rows.append((kind, time_text(many), time_text(two), *extra))
        print(table(rows))


if __name__ == "__main__":
    main()

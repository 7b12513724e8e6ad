"""Run the commands of the command line: draw into files, verify them, compile ahead of time, and diagnose the machine.

This module turns options into arguments of the library. `streams.writer` writes files and resumes runs, and `summary`
compares a sample with its distribution.
"""

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import jax
import numpy as np

from jax_von_mises import environment, runtime
from jax_von_mises.cli import summary
from jax_von_mises.cli.program import BadArgument, Failure
from jax_von_mises.engine import base
from jax_von_mises.engine.base import Parametric
from jax_von_mises.streams import disk, writer
from jax_von_mises.streams.batches import sample_batches
from jax_von_mises.streams.stream import split_evenly

# Numbers that are compared with the distribution: that takes longer than drawing them.
SUMMARISED = 2**22
# Numbers in the largest .csv file, and in the smallest result whose size is said before it is drawn.
MOST_IN_CSV, LARGE = 2**22, 2**28


def distribution_of(options: argparse.Namespace) -> Parametric:
    """Return the distribution that the options describe; raise BadArgument for values that would give NaN."""
    kinds = {kind.FAMILY.name: kind for kind in base.declared()}
    if options.distribution not in kinds:
        known = "; ".join(f"{name} ({options_of(kinds[name])})" for name in sorted(kinds))
        raise BadArgument(f"--distribution {options.distribution}: choose one of {known}")
    kind, compute = kinds[options.distribution], np.float64 if options.dtype == "float64" else np.float32
    angles = {parameter.name for parameter in kind.PARAMETERS if parameter.values == "angle"}
    if options.degrees and base.of_vectors(kind):
        raise BadArgument(f"--degrees: {options.distribution} has no angles; leave it out")
    locations = [parameter.name for parameter in kind.PARAMETERS if parameter.name.endswith("loc")]
    values = dict.fromkeys(locations, np.float64(0)) | options.parameters
    if values.keys() != {parameter.name for parameter in kind.PARAMETERS}:
        raise BadArgument(f"--distribution {options.distribution} needs the options {options_of(kind)}")
    for parameter in kind.PARAMETERS:
        value = values[parameter.name]
        if parameter.event_rank == 2 and value.ndim == 1 and math.isqrt(value.size) ** 2 == value.size:
            values[parameter.name] = value.reshape(math.isqrt(value.size), -1)
    if options.degrees:
        values |= {name: np.radians(values[name]) for name in angles}
    with jax.enable_x64(options.dtype == "float64"):
        try:
            checked: Any = kind
            checked(**values, validate_args=True)
            return kind(**{name: value.astype(compute) for name, value in values.items()})
        except ValueError as error:
            raise BadArgument(str(error)) from None


def options_of(kind: type[Parametric]) -> str:
    """Return the options for the parameters of a class, as in ``--loc --concentration``."""
    return " ".join(f"--{parameter.name.replace('_', '-')}" for parameter in kind.PARAMETERS)


@contextlib.contextmanager
def open_executor(options: argparse.Namespace) -> Iterator[futures.Executor | None]:
    """Start workers or connect to a cluster, according to the options."""
    if options.workers is not None and options.scheduler is not None:
        raise BadArgument("--workers starts new processes and --scheduler uses existing ones; give only one of the two")
    if options.workers is None and options.scheduler is None:
        yield None
        return
    if options.scheduler is None:
        if options.workers < 1:
            raise BadArgument(f"--workers {options.workers}: give 1 or more")
        context = multiprocessing.get_context("spawn")
        given = context.Value("i", 0), options.workers
        with futures.ProcessPoolExecutor(options.workers, context, start_worker, given) as pool:
            with interrupts_later():
                for _ in range(options.workers):
                    pool.submit(os.getpid)  # starts a worker
            yield pool
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise Failure(
            '--scheduler needs Dask: pip install "jax_von_mises[dask]"; --workers works without it'
        ) from error
    file = {"scheduler_file": options.scheduler} if os.path.isfile(options.scheduler) else {}
    try:
        client = Client(None if file else options.scheduler, **file)
    except Exception as error:  # distributed may raise any exception if a file does not describe a scheduler
        raise Failure(
            f"--scheduler {options.scheduler}: no scheduler answers there ({type(error).__name__}: {error})"
        ) from error
    with client:
        yield client.get_executor()


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Block interrupts. Processes started here inherit that, so that their imports are not interrupted."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def start_worker(started: Any, count: int) -> None:
    """Give a worker its share of the cores and one GPU; let it end with its parent, which handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        share = [cores[i] for i in split_evenly(len(cores), count, number)]
        os.sched_setaffinity(0, share or [cores[number % len(cores)]])
    if cards := environment.nvidia_gpus():
        jax.config.update("jax_cuda_visible_devices", str(number % cards))
        if count > cards:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def end_with_parent() -> None:
    """End this process when its parent has ended, however it ended."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def run_sample(options: argparse.Namespace) -> int:
    """Run the command ``sample``."""
    part, parts = (0, 1) if options.parts is None else (options.part, options.parts)
    if (options.part is None) != (options.parts is None):
        raise BadArgument("--part and --parts go together: give the number of this part and the number of parts")
    if options.repair and not options.resume:
        raise BadArgument("--repair needs --resume")
    if options.cache is not None and (options.workers is not None or options.scheduler is not None):
        raise BadArgument("--cache is for this process; for workers, set JAX_COMPILATION_CACHE_DIR where they start")
    text = options.out.lower().endswith(".csv")
    for name in ("block_rows", "resume", "force", "repair", "parts", "workers", "scheduler") if text else ():
        if getattr(options, name):
            option = name.replace("_", "-")
            raise BadArgument(
                f"--{option} is for .npy files and .zarr stores; {options.out} is written at once, if new"
            )
    if options.workers is not None or options.scheduler is not None:
        # This process needs no device; on a GPU it would take memory from the workers. JAX reads the setting when it
        # starts, which it does for the first array or key.
        jax.config.update("jax_platforms", "cpu")
    distribution = distribution_of(options)
    try:
        key = jax.random.key(options.seed, impl=options.key_impl)
    except ValueError as error:
        raise BadArgument(f"--key-impl {options.key_impl}: {error}") from None
    if options.cache is not None:
        runtime.initialize_compilation_cache(options.cache or None)
    began = time.monotonic()
    numbers = options.size * math.prod(distribution.batch_shape + distribution.event_shape)
    size = disk.readable(numbers * {"float64": 8, "float16": 2}.get(options.dtype, 4))
    progress = Progress(options.quiet, f"{options.out} will have {size}" if numbers >= LARGE else "")
    with open_executor(options) as executor, jax.enable_x64(options.dtype == "float64"):
        try:
            stream: Any = dict(key=key, total=options.size, dtype=options.dtype, distribution=distribution)
            if text:
                rows = write_csv(options.out, stream, numbers, options.degrees)
            else:
                written = writer.write_samples(
                    options.out,
                    **stream,
                    block_rows=options.block_rows,
                    resume=options.resume,
                    force=options.force,
                    repair=options.repair,
                    part=part,
                    parts=parts,
                    executor=executor,
                    progress=progress,
                )
        except writer.Damaged as error:
            raise Failure(str(error)) from error
        except (ValueError, FileExistsError) as error:
            raise BadArgument(str(error)) from error
        except (OSError, MemoryError, ImportError):
            raise
        except Exception as error:  # of a device, of a lost worker, or of the scheduler
            raise Failure(f"{type(error).__name__}: {error}") from error
        finally:
            progress.close()
        if not options.quiet:
            seconds = time.monotonic() - began
            if text:
                lines = drew(options, distribution, len(rows), "", seconds)
                lines += [*summary.compare(distribution, rows, options.degrees), described(options.out, rows)]
            else:
                lines = report(options, written, distribution, progress.drawn, seconds)
            print("\n".join(lines))
    return 0


class Progress:
    """Show the finished rows on stderr, with rate and time left, every few seconds; count those of this run.

    `first` is shown before the first row is drawn.
    """

    def __init__(self, quiet: bool, first: str = "", clock: Callable[[], float] = time.monotonic):
        self.quiet, self.first, self.clock, self.terminal = quiet, first, clock, sys.stderr.isatty()
        self.seconds = 1 if self.terminal else 10  # a line replaces the one before on a terminal, but not in a log
        self.began = self.said = clock()
        self.before: int | None = None
        self.drawn = 0

    def __call__(self, done: int, total: int) -> None:
        """Take note that `done` of `total` rows are finished."""
        now = self.clock()
        if self.before is None:
            self.before, self.began = done, now
            if self.first and not self.quiet:
                print(self.first, file=sys.stderr)
        self.drawn = done - self.before
        if self.quiet or done == total or now - self.said < self.seconds or not self.drawn:
            return
        self.said, rate = now, self.drawn / (now - self.began)
        left = datetime.timedelta(seconds=round((total - done) / rate))
        line = f"{done / total:6.1%} of {total:,} rows, {rate / 1e6:.3g} million a second, {left} left"
        print(f"\r{line:78}" if self.terminal else line, end="" if self.terminal else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self.terminal and self.said > self.began:
            print(f"\r{'':78}\r", end="", file=sys.stderr, flush=True)


def write_csv(out: str, stream: dict[str, Any], numbers: int, degrees: bool) -> np.ndarray:
    """Write the draws of a stream to a new .csv file, one row each, and return them."""
    if numbers > MOST_IN_CSV:
        raise ValueError(f"{out}: {numbers:,} numbers are too many for a .csv file; write a .npy file")
    distribution, kind = stream["distribution"], np.float64 if stream["dtype"] == "float64" else np.float32
    rows = np.zeros((stream["total"], *distribution.batch_shape, *distribution.event_shape), kind)
    for batch in sample_batches(**stream, batch_size=max(len(rows), 1)):
        rows[:] = batch
    shown = np.degrees(rows.astype(np.float64)) if degrees else rows
    try:
        with open(out, "x", encoding="utf-8") as file:
            try:
                np.savetxt(file, shown.reshape(len(rows), -1), "%.17g" if kind is np.float64 else "%.9g", ",")
            except BaseException:
                os.remove(out)
                raise
    except FileExistsError:
        raise FileExistsError(f"{out}: already exists; move it away, or choose another name") from None
    return rows


def report(
    options: argparse.Namespace, written: writer.Written, distribution: Parametric, rows: int, seconds: float
) -> list[str]:
    """Return the lines of the summary: what was drawn, its comparison with the distribution, and what was written."""
    blocks = f"{written.drawn} block{'s' * (written.drawn != 1)}" + f", {written.kept} kept" * (written.kept > 0)
    part = f"part {options.part} of {options.parts}: " if options.parts else ""
    if written.kept and not written.drawn:
        what = f"{written.out} is already complete" if written.finished else "all of its blocks exist"
        lines = [f"{part}{what}; nothing was drawn"]
    else:
        lines = drew(options, distribution, rows, f" ({blocks})", seconds)
        lines[0] = part + lines[0]
    if not written.finished:
        return [*lines, f"{written.out}: not complete yet; the last part to finish completes it"]
    sample = rows_to_compare(written)
    if len(sample) < written.shape[0]:
        lines.append(f"the first {len(sample):,} rows:")
    return [*lines, *summary.compare(distribution, sample, options.degrees), described(written.out, written)]


def drew(options: argparse.Namespace, distribution: Parametric, rows: int, blocks: str, seconds: float) -> list[str]:
    """Return lines that say how many draws were made, and how fast."""
    count = rows * math.prod(distribution.batch_shape)
    noun = type(distribution).FAMILY.noun
    return [
        f"drew {count:,} {noun}s{blocks} in {seconds:.2f} s: {options.dtype}, seed {options.seed}",
        f"{count / seconds / 1e6:.3g} million per second, including compilation and writing",
    ]


def described(out: str, array: Any) -> str:
    """Return a line on the size, shape and dtype of what was written."""
    size = disk.readable(math.prod(array.shape) * np.dtype(array.dtype).itemsize)
    return f"{out}: {size}, shape {array.shape}, {array.dtype}"


def rows_to_compare(written: writer.Written) -> np.ndarray:
    """Return the rows of the first blocks of a file or store, of a large block only the first ones."""
    parts, count = [np.empty((0, *written.shape[1:]), written.dtype)], 0
    most = max(SUMMARISED // max(math.prod(written.shape[1:]), 1), 1)
    for rows in writer.read_blocks(written.out):
        parts.append(rows[:most])
        count += rows.size
        if count >= SUMMARISED:
            break
    return np.concatenate(parts)


def run_verify(options: argparse.Namespace) -> int:
    """Run the command ``verify``."""
    try:
        found = writer.verify_samples(options.file)
    except writer.Damaged as error:
        raise Failure(str(error)) from error
    except ValueError as error:
        raise BadArgument(str(error)) from error
    again = f"; drawn again and equal: {', '.join(map(str, found['redrawn']))}" if found["redrawn"] else ""
    if found["blocks"] and not found["redrawn"]:
        again = "; none drawn again, since this machine draws other last digits"
    count = "the one block matches its checksum" if found["blocks"] == 1 else f"all {found['blocks']:,} blocks match"
    print(f"{options.file}: {count}{again}; shape {tuple(found['shape'])}")
    print(f"stream: {json.dumps(found['stream'])}")
    return 0


def run_warm_up(options: argparse.Namespace) -> int:
    """Run the command ``warm-up``."""
    runtime.initialize_compilation_cache(options.cache)
    dtypes = options.dtype or ["float32"]
    with jax.enable_x64("float64" in dtypes):
        try:
            compiled = runtime.warmup(list(options.shapes), dtypes)
        except ValueError as error:
            raise BadArgument(str(error)) from error
    print("\n".join([*map(str, compiled), str(runtime.cache_info())]))
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    """Run the command ``doctor``."""
    try:
        found = runtime.diagnose(expect=options.expect, timeout=options.timeout)
    except ValueError as error:
        raise BadArgument(str(error)) from error
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # device names may contain any characters
    print(found.as_json() if options.json else found)
    return 0 if found.ok else 1


RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "sample": run_sample,
    "verify": run_verify,
    "warm-up": run_warm_up,
    "doctor": run_doctor,
}

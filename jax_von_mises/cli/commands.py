"""Run the commands of the command line: draw into files, verify them, compile ahead of time, and diagnose the machine.

This module turns options into arguments of the library. `streams.writer` writes files and resumes runs, and `summary`
compares a sample with its distribution.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import re
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
from jax_von_mises.engine import draws
from jax_von_mises.streams import disk, writer
from jax_von_mises.streams.stream import split_evenly


def parameters(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return `loc` and `concentration` for `write_samples`; raise BadArgument for values that would give NaN."""
    pairs, sphere = "bivariate" in options.distribution, options.distribution == "von-mises-fisher"
    for option, wanted in (("loc", not sphere), ("mean_direction", sphere), ("correlation", pairs)):
        if getattr(options, option) is not None and not wanted:
            name = option.replace("_", "-")
            raise BadArgument(f"--distribution {options.distribution} has no --{name}; leave it out")
    if sphere and options.mean_direction is None:
        raise BadArgument("--distribution von-mises-fisher needs --mean-direction, such as 0,0,1")
    zero, one = (np.full(2 if pairs else (), value) for value in (0.0, 1.0))
    loc = options.mean_direction if sphere else zero if options.loc is None else options.loc
    concentration = one if options.concentration is None else options.concentration
    if pairs:
        if loc.size != 2 or concentration.size != 2:
            raise BadArgument("give two numbers for --loc and for --concentration, one for each angle of a pair")
        if options.correlation is not None and options.correlation.size != 1:
            raise BadArgument("give one number for --correlation")
        concentration = np.append(concentration, 0.0 if options.correlation is None else options.correlation)
    if sphere and concentration.ndim:
        raise BadArgument("--distribution von-mises-fisher takes one --concentration")
    compute = np.float64 if options.dtype == "float64" else np.float32
    given = {
        "--mean-direction" if sphere else "--loc": loc,
        "--concentration": concentration[:2] if pairs else concentration,
        "--correlation": concentration[2:] if pairs else zero,
    }
    for option, values in given.items():
        if np.any(np.isfinite(values) & (np.abs(values) > np.finfo(compute).max)):
            raise BadArgument(f"{option}: a number is beyond the range of {compute.__name__}; use --dtype float64")
    loc, concentration = (np.asarray(values, compute) for values in (loc, concentration))
    try:
        summary.check(options.distribution, loc, concentration)
    except ValueError as error:
        text = re.sub(r"^\w+: ", "", str(error))
        raise BadArgument(re.sub(r"(?:^|(?<= and ))(concentration|loc|correlation)(?= )", r"--\1", text)) from None
    return loc, concentration


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
    if options.distribution not in draws.names():
        raise BadArgument(f"--distribution {options.distribution}: choose one of {', '.join(draws.names())}")
    if options.workers is not None or options.scheduler is not None:
        # This process needs no device; on a GPU it would take memory from the workers. JAX reads the setting when it
        # starts, which it does for the first array or key.
        jax.config.update("jax_platforms", "cpu")
    loc, concentration = parameters(options)
    try:
        key = jax.random.key(options.seed, impl=options.key_impl)
    except ValueError as error:
        raise BadArgument(f"--key-impl {options.key_impl}: {error}") from None
    if options.cache is not None:
        runtime.initialize_compilation_cache(options.cache or None)
    progress = Progress(options.quiet)
    began = time.monotonic()
    with open_executor(options) as executor, jax.enable_x64(options.dtype == "float64"):
        try:
            written = writer.write_samples(
                options.out,
                key,
                loc,
                concentration,
                options.size,
                options.dtype,
                block_rows=options.block,
                resume=options.resume,
                force=options.force,
                repair=options.repair,
                part=part,
                parts=parts,
                executor=executor,
                progress=progress,
                distribution=options.distribution,
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
            print("\n".join(report(options, written, loc, concentration, progress.drawn, seconds)))
    return 0


class Progress:
    """Show the finished rows on stderr, with rate and time left, if tqdm is installed; count those of this run."""

    def __init__(self, quiet: bool):
        self.quiet, self.bar = quiet, None
        self.before: int | None = None
        self.drawn = 0

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` rows are finished."""
        if self.before is None:
            self.before = done
            self.bar = self._bar(done, total)
        if self.bar is not None:
            self.bar.update(done - self.before - self.drawn)
        self.drawn = done - self.before

    def _bar(self, done: int, total: int) -> Any:
        try:
            from tqdm import tqdm
        except ImportError:
            return None
        options = {"unit": " rows", "unit_scale": True, "file": sys.stderr, "mininterval": 0.5}
        return tqdm(initial=done, total=total, disable=self.quiet, **options)

    def close(self) -> None:
        """Close the display."""
        if self.bar is not None:
            self.bar.close()


def report(
    options: argparse.Namespace,
    written: writer.Written,
    loc: np.ndarray,
    concentration: np.ndarray,
    rows: int,
    seconds: float,
) -> list[str]:
    """Return the lines of the summary: what was drawn, its comparison with the distribution, and what was written."""
    blocks = f"{written.drawn} block{'s' * (written.drawn != 1)}" + f", {written.kept} kept" * (written.kept > 0)
    part = f"part {options.part} of {options.parts}: " if options.parts else ""
    sums = summary.Summary(options.distribution, loc, concentration)
    if written.kept and not written.drawn:
        what = f"{written.out} is already complete" if written.finished else "all of its blocks exist"
        lines = [f"{part}{what}; nothing was drawn"]
    else:
        draws = rows * sums.columns // sums.components
        lines = [
            f"{part}drew {draws:,} {sums.draws} ({blocks}) in {seconds:.2f} s: {options.dtype}, seed {options.seed}",
            f"{draws / seconds / 1e6:.3g} million per second, including compilation and writing",
        ]
    if not written.finished:
        return [*lines, f"{written.out}: not complete yet; the last part to finish completes it"]
    lines += sums.of_file(written.out)
    size = disk.readable(math.prod(written.shape) * np.dtype(written.dtype).itemsize)
    return [*lines, f"{written.out}: {size}, shape {written.shape}, {written.dtype}"]


def run_verify(options: argparse.Namespace) -> int:
    """Run the command ``verify``."""
    try:
        found = writer.verify_samples(options.file)
    except writer.Damaged as error:
        raise Failure(str(error)) from error
    except ValueError as error:
        raise BadArgument(str(error).replace("out=", "")) from error
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

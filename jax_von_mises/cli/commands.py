"""Run the command line: `sample` draws into a file or a store, `verify` checks it, `doctor` diagnoses the machine.

This module parses the arguments, shows progress and prints each error on one line. `writer` writes files and resumes
runs, and `summary` compares a sample with its distribution.

Exit codes: 0, success; 1, failure, or a problem found by `doctor`; 2, invalid argument; 130, interrupted; 129 or 143,
terminated.
"""

import argparse
import functools
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import jax
import numpy as np

from jax_von_mises import runtime
from jax_von_mises.arguments import DTYPES, LARGEST_COUNT, LARGEST_TIME
from jax_von_mises.cli import summary
from jax_von_mises.numerics.circle import LARGEST_LOC
from jax_von_mises.runtime.doctor import PLATFORMS
from jax_von_mises.sampling import sampler
from jax_von_mises.streams import checkpoint, executors, safe_files, target, writer
from jax_von_mises.version import __version__

__all__ = ["entry", "main"]

PROGRAM_NAME = "jax-von-mises"

# `jax.random.key` keeps 32 bits of a Python integer unless x64 is on, so a larger seed would repeat a smaller one.
SEED_LIMIT = 2**32


NUMBER_OPTIONS = ("--loc", "--mean-direction", "--concentration", "--correlation", "--size", "--seed", "--block")
# Pairs are tested up to this concentration; far beyond it, they can be NaN.
LARGEST_OF_PAIRS = 1e7
# Arguments of `write_samples` as its messages show them, and the options that set them.
IN_OPTIONS = {
    "resume=True": "--resume",
    "force=True": "--force",
    "repair=True": "--repair",
    "block_rows=": "--block ",
    "total=": "--size ",
}


class BadArgument(Exception):
    """Raised for an invalid argument; the exit code is 2."""


class Failure(Exception):
    """Raised for a failure that the arguments did not cause; the exit code is 1."""


class Parser(argparse.ArgumentParser):
    """Parser that prints an error on one line, for batch logs."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, so that the message names the command and its help."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = Parser(
        prog=PROGRAM_NAME,
        description="Draw von Mises random angles, verify files, and diagnose the machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM_NAME} {__version__}, JAX {jax.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    sample = commands.add_parser(
        "sample",
        help="draw angles into a .npy file or a Zarr store",
        description="Draw von Mises angles, in radians in [-pi, pi), into a .npy file or a Zarr store, and compare "
        "them with the distribution. Memory use does not grow with the size, and an interrupted run can be resumed.",
        epilog="Element i does not depend on the size, so a longer run begins with the same angles. "
        "Exit codes: 0 success, 1 failure, 2 invalid argument, 129 or 143 terminated, 130 interrupted.",
        allow_abbrev=False,
    )
    sample.add_argument(
        "--distribution",
        choices=tuple(sampler.FAMILIES),
        default="von-mises",
        help="von-mises-fisher draws directions (unit vectors, along the last axis); the bivariate distributions "
        "draw pairs of dependent angles (default von-mises)",
    )
    several = "a number, or a .npy or .csv file of m numbers for m columns"
    sample.add_argument(
        "--loc", help=f"mean direction in radians: {several}; for pairs, PHI,PSI (default 0; 0,0 for pairs)"
    )
    sample.add_argument(
        "--mean-direction",
        metavar="X,Y,...",
        help="mean direction of von-mises-fisher: two or more numbers, or a .npy or .csv file of them; it is scaled to "
        "unit length",
    )
    sample.add_argument(
        "--concentration",
        help=f"concentration, from 0 (uniform) to inf (all angles at loc): {several}; for pairs, two finite numbers "
        "K1,K2 (default 1; 1,1 for pairs)",
    )
    sample.add_argument(
        "--correlation", help="for pairs only: any finite number; 0 makes the angles independent (default 0)"
    )
    sample.add_argument(
        "--size",
        default="1_000_000",
        help="number of angles or directions, in each column if there are several (default 1_000_000)",
    )
    sample.add_argument("--seed", default="0", help="integer from 0 to 2**32 - 1 (default 0)")
    sample.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of the angles; .npy files have no bfloat16 and store it as float32 (default float32)",
    )
    sample.add_argument("--key-impl", help="a key implementation of JAX, such as philox4x32 (default: JAX's default)")
    sample.add_argument(
        "--out",
        default="samples.npy",
        help=".npy file or .zarr store to write, or the URL of a store such as gs://bucket/big.zarr; "
        "a record with the checksum of each block is written next to it (default samples.npy)",
    )
    sample.add_argument(
        "--block", help="number of rows to draw, write and record at a time (default: enough for 2**24 numbers)"
    )
    sample.add_argument(
        "--resume", action="store_true", help="continue an interrupted run, or start a new one if there is none"
    )
    sample.add_argument("--repair", action="store_true", help="with --resume: draw damaged blocks again")
    sample.add_argument("--force", action="store_true", help="replace an existing file or store")
    sample.add_argument("--quiet", action="store_true", help="show neither progress nor summary")
    job = sample.add_argument_group(
        "several processes, on one machine or many",
        "One command can distribute blocks to workers, which write them to a target that all of them can reach. "
        "Alternatively, each of several commands writes one part of a Zarr store. --resume continues either kind of "
        "run, in either way or in a single process.",
    )
    job.add_argument("--workers", metavar="N", help="draw in N processes on this machine")
    job.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="draw on a Dask cluster: tcp://host:8786, or the name of a scheduler file",
    )
    job.add_argument(
        "--timeout",
        metavar="S",
        default="600",
        help="stop if no worker finishes a block for this many seconds (default 600)",
    )
    job.add_argument("--part", metavar="I", help="write part I of N, counted from 0, as in an array job")
    job.add_argument("--parts", metavar="N", help="number of parts; the last one to finish completes the store")
    sample.set_defaults(run=run_sample)
    check = commands.add_parser(
        "verify",
        help="compare a file or store with its checksums",
        description="Read a file or store that `sample` wrote, and compare each block with its checksum.",
        allow_abbrev=False,
    )
    check.add_argument("file", help="the .npy file or .zarr store")
    check.set_defaults(run=run_verify)
    doctor = commands.add_parser(
        "doctor",
        help="find problems with JAX on this machine",
        description="Check drivers and packages, draw on each device in a separate process, and compare with the CPU "
        "and with known angles.",
        epilog="Exit codes: 0 no problem, 1 at least one problem, 2 invalid argument.",
        allow_abbrev=False,
    )
    doctor.add_argument(
        "--expect", choices=PLATFORMS, help="platform that JAX should use; any other is reported as a problem"
    )
    doctor.add_argument(
        "--timeout",
        metavar="S",
        default="180",
        help="time limit in seconds for the process that draws (default 180)",
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON, for programs")
    doctor.set_defaults(run=run_doctor)
    return parser


def join_numbers(argv: Sequence[str]) -> list[str]:
    """Join ``--loc -1e3`` into ``--loc=-1e3``; argparse would otherwise parse the number as an option."""
    joined: list[str] = []
    for argument in argv:
        numbers = argument.startswith("-") and all(map(is_number, argument.split(",")))
        if joined and joined[-1] in NUMBER_OPTIONS and numbers:
            joined[-1] += "=" + argument
        else:
            joined.append(argument)
    return joined


def is_number(text: str) -> bool:
    """Return whether Python reads `text` as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_integer(option: str, text: str, limit: int | None = None) -> int:
    """Read a non-negative integer; text such as 1e7 is allowed."""
    try:
        value = int(text)
    except ValueError:
        number = float(text) if is_number(text) else math.nan
        if not number.is_integer():
            raise BadArgument(f"{option} {text}: not a whole number; write one such as 10_000_000 or 1e7") from None
        value = int(number)
    if value < 0:
        raise BadArgument(f"{option} {text}: negative; give 0 or more")
    if limit is not None and value >= limit:
        raise BadArgument(f"{option} {text}: too large; give at most {limit - 1}")
    return value


def read_parameter(option: str, text: str) -> np.ndarray:
    """Read a number or a file of numbers as a float64 array with at most one axis."""
    if is_number(text):
        return np.asarray(float(text))
    suffix = os.path.splitext(text)[1].lower()
    if suffix not in (".npy", ".csv"):
        raise BadArgument(f"{option} {text}: neither a number nor the name of a .npy or .csv file")
    if not os.path.isfile(text):
        raise BadArgument(f"{option} {text}: {'not a file' if os.path.exists(text) else 'no such file'}")
    try:
        if suffix == ".npy":
            with safe_files.open_plain(text) as file:
                values = safe_files.read_npy(file)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # NumPy warns of an empty file, which is rejected below
                values = np.loadtxt(text, delimiter=",", encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, MemoryError):
        raise
    except Exception as error:  # `read_npy` and NumPy do not document their exceptions
        if suffix == ".npy":
            advice = "not a .npy file of numbers; write it with numpy.save from a float array (pickles are not read)"
        else:
            reason = str(error).split(";")[0]  # the rest advises callers of loadtxt
            advice = f"not a list of numbers ({reason}); write one number per line, without a header"
        raise BadArgument(f"{option} {text}: {advice}") from None
    if values.dtype.kind not in "fiu":
        raise BadArgument(f"{option} {text}: holds {values.dtype}, not real numbers; save a float array")
    if values.ndim > 1:
        raise BadArgument(f"{option} {text}: has shape {values.shape}; give a one-dimensional array")
    if values.size == 0:
        raise BadArgument(f"{option} {text}: holds no numbers; give at least one")
    return values.astype(np.float64)


def check_values(option: str, text: str, values: np.ndarray, bad: np.ndarray, reason: str) -> None:
    """Raise an error that names the first invalid value of the parameter, if there is one."""
    if np.any(bad):
        where = "" if values.ndim == 0 else f": value {int(np.argmax(bad))} (counted from 0) is {values[bad][0]:g}"
        raise BadArgument(f"{option} {text}{where}: {reason}")


def read_parameters(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Read and check the parameters of the distribution; return `loc` and `concentration` for `write_samples`."""
    compute = np.float64 if options.dtype == "float64" else np.float32
    pairs = "bivariate" in options.distribution
    if options.correlation is not None and not pairs:
        raise BadArgument(f"--correlation is for pairs; --distribution {options.distribution} has none")
    if options.distribution == "von-mises-fisher":
        loc = read_direction(options, compute)
    elif options.mean_direction is not None:
        raise BadArgument("--mean-direction is for --distribution von-mises-fisher; for angles give --loc")
    elif pairs:
        text = "0,0" if options.loc is None else options.loc
        return check_loc(text, read_pair("--loc", text), compute), read_dependence(options, compute)
    else:
        text = "0" if options.loc is None else options.loc
        loc = check_loc(text, read_parameter("--loc", text), compute)
    return loc, read_concentration(options, compute, loc)


def read_list(text: str) -> np.ndarray | None:
    """Read numbers that are separated by commas; return None for other text."""
    parts = text.split(",")
    return np.array([float(part) for part in parts]) if all(map(is_number, parts)) else None


def read_pair(option: str, text: str) -> np.ndarray:
    """Read two numbers, one for each angle of a pair."""
    values = read_list(text)
    if values is None or values.size != 2:
        raise BadArgument(f"{option} {text}: give two numbers separated by a comma, one for each angle of a pair")
    return values


def check_loc(text: str, loc: np.ndarray, compute: type) -> np.ndarray:
    """Check the mean directions of the angles, and convert them to the dtype `compute`."""
    check_values("--loc", text, loc, ~np.isfinite(loc), "not finite; give a finite number of radians")
    limit = LARGEST_LOC[compute.__name__]
    wider = ", or use --dtype float64" if compute is np.float32 else ""
    coarse = (
        f"neighbouring {compute.__name__} numbers are more than a radian apart there; give at most {limit:.0f}{wider}"
    )
    check_values("--loc", text, loc, np.abs(loc) > limit, coarse)
    return np.asarray(loc, compute)


def read_direction(options: argparse.Namespace, compute: type) -> np.ndarray:
    """Read and check the mean direction of the von Mises-Fisher distribution."""
    if options.loc is not None:
        raise BadArgument("--loc is for angles; --distribution von-mises-fisher takes --mean-direction X,Y,...")
    text, option = options.mean_direction, "--mean-direction"
    if text is None:
        raise BadArgument("--distribution von-mises-fisher needs --mean-direction, such as 0,0,1")
    values = read_list(text)
    if values is None:
        values = read_parameter(option, text)
    if values.size < 2:
        raise BadArgument(f"{option} {text}: {values.size} number; give two or more, separated by commas")
    with np.errstate(over="ignore"):
        direction: np.ndarray = values.reshape(-1).astype(compute)
    check_values(
        option, text, values, ~np.isfinite(direction), f"not finite in {compute.__name__}; give finite numbers"
    )
    if not np.any(direction):
        raise BadArgument(f"{option} {text}: the zero vector has no direction; give another vector")
    return direction


def read_dependence(options: argparse.Namespace, compute: type) -> np.ndarray:
    """Read and check the two concentrations and the correlation of pairs."""
    text = "1,1" if options.concentration is None else options.concentration
    concentration = read_pair("--concentration", text)
    bad = ~((concentration >= 0) & (concentration <= LARGEST_OF_PAIRS))
    allowed = f"give numbers from 0 to {LARGEST_OF_PAIRS:.0e}, the largest concentration of pairs"
    check_values("--concentration", text, concentration, bad, f"out of range; {allowed}")
    text = "0" if options.correlation is None else options.correlation
    if not is_number(text) or not abs(float(text)) <= np.finfo(compute).max:
        raise BadArgument(f"--correlation {text}: not a finite {compute.__name__} number; give one, such as 0.5")
    return np.array([*concentration, float(text)], compute)


def read_concentration(options: argparse.Namespace, compute: type, loc: np.ndarray) -> np.ndarray:
    """Read the concentration, and check it together with `loc`."""
    text = "1" if options.concentration is None else options.concentration
    concentration = read_parameter("--concentration", text)
    largest = np.finfo(compute).max
    allowed = "give a number from 0 (uniform) to inf (a point mass)"
    name = ("--concentration", text, concentration)
    check_values(*name, np.isnan(concentration), f"not a number; {allowed}")
    check_values(*name, concentration < 0, f"negative; {allowed}")
    overflow = np.isfinite(concentration) & (concentration > largest)
    check_values(
        *name, overflow, f"beyond the range of {compute.__name__}; use --dtype float64, or inf for a point mass"
    )
    if options.distribution == "von-mises-fisher":
        if concentration.ndim:
            raise BadArgument(f"--concentration {text}: von-mises-fisher takes one number, not a file")
    elif loc.ndim and concentration.ndim and loc.shape != concentration.shape:
        raise BadArgument(
            f"--loc {options.loc} holds {loc.size} numbers and --concentration {text} holds {concentration.size}; give "
            "files of the same length, or a single number for one of them"
        )
    return np.asarray(concentration, compute)


class PlainProgress:
    """Progress printed as lines of text, for use without tqdm."""

    INTERVAL = 2.0  # seconds between lines

    def __init__(self, initial: int, total: int, unit: str):
        self.initial, self.n, self.total, self.unit = initial, initial, total, unit
        self.started = self.printed = time.monotonic()

    def update(self, count: int) -> None:
        """Add `count`; print a line if the last one is `INTERVAL` seconds old, or at the end if any was printed."""
        self.n += count
        now = time.monotonic()
        if now - self.printed >= self.INTERVAL or (self.n >= self.total and self.printed > self.started):
            rate = (self.n - self.initial) / max(now - self.started, 1e-9)
            left = (self.total - self.n) / max(rate, 1e-9)
            share = self.n / max(self.total, 1)
            print(f"{self.n} {self.unit}, {share:.0%}, {rate:.3g} per second, {left:.0f} s left", file=sys.stderr)
            self.printed = now

    def close(self) -> None:
        """Do nothing; each line is already complete."""


def make_progress(initial: int, total: int, unit: str) -> Any:
    """Return a progress display on stderr, with rate and time left: tqdm if it is installed, else plain lines."""
    try:
        from tqdm import tqdm
    except ImportError:
        return PlainProgress(initial, total, unit)
    # In a log, each redraw adds a line, so redraw no more often than `PlainProgress` prints.
    interval = 0.1 if sys.stderr.isatty() else PlainProgress.INTERVAL
    return tqdm(initial=initial, total=total, unit=f" {unit}", unit_scale=True, file=sys.stderr, mininterval=interval)


class Watch:
    """Show progress, and add the first blocks to the summary."""

    # Summarise at most about this many numbers, since that takes longer than drawing them.
    SUMMARISED = 2**25

    def __init__(self, sums: summary.Summary, quiet: bool):
        self.sums, self.columns, self.quiet = sums, sums.columns, quiet
        self.bar: Any = None
        self.before: int | None = None
        self.drawn = 0  # rows

    def progress(self, done: int, total: int) -> None:
        """Show that `done` of `total` rows have been written; raise an exception if a signal has arrived."""
        stop_if_asked()
        self.before = done if self.before is None else self.before
        self.drawn = done - self.before
        if self.quiet:
            return
        if self.bar is None:
            self.bar = make_progress(done * self.columns, total * self.columns, self.sums.numbers)
        self.bar.update(done * self.columns - self.bar.n)

    def observe(self, rows: np.ndarray) -> None:
        """Add a block to the summary."""
        if not self.quiet and self.sums.count * self.sums.components < self.SUMMARISED:
            step = max(1, 2**20 // self.columns)  # limits the size of temporary arrays
            for first in range(0, len(rows), step):
                self.sums.add(rows[first : first + step])

    def close(self) -> None:
        """Close the progress bar."""
        if self.bar is not None:
            self.bar.close()


def write_or_draw(
    options: argparse.Namespace,
    executor: futures.Executor | None,
    size: int,
    seed: int,
    loc: np.ndarray,
    concentration: np.ndarray,
) -> list[str]:
    """Draw the angles, write them to the file or store, and return the lines of the summary."""
    try:
        key = jax.random.key(seed, impl=options.key_impl)
    except ValueError as error:
        raise BadArgument(f"--key-impl {options.key_impl}: {error}") from None
    watch = Watch(summary.Summary(options.distribution, loc, concentration), options.quiet)
    began = time.monotonic()
    try:
        written = writer.write_samples(
            options.out,
            key,
            loc,
            concentration,
            size,
            options.dtype,
            block_rows=options.block,
            resume=options.resume,
            force=options.force,
            repair=options.repair,
            part=options.part,
            parts=options.parts,
            executor=executor,
            timeout=options.timeout,
            progress=watch.progress,
            observe=None if executor else watch.observe,
            distribution=options.distribution,
        )
    except (writer.Damaged, executors.ExecutorFailed) as error:
        raise Failure(str(error)) from error
    except (ValueError, FileExistsError) as error:
        raise BadArgument(str(error)) from error
    finally:
        watch.close()
    if options.quiet:
        return []
    return print_report(options, written, watch, time.monotonic() - began, key)


def in_options(text: str) -> str:
    """Return a message of the library, with names of arguments replaced by command-line options."""
    text = text.removeprefix("write_samples: ").removeprefix("verify_samples: ")
    for argument, option in IN_OPTIONS.items():
        text = text.replace(argument, option)
    return text


def significant(value: float) -> str:
    """Format a positive number with three significant digits, or as a whole number if it is 100 or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_line(written: writer.Written, drawn: int, seconds: float, components: int) -> str:
    """Return a line with the rates of this process, or with the combined rate of the workers."""
    times = written.times
    if times is None:
        rate = significant(drawn / seconds / 1e6)
        return f"drew and wrote at {rate} M/s, including compilation and the start of the workers"
    rate = significant(times.first_numbers / components / max(times.first_drawn, 1e-9) / 1e6)
    wrote = f"wrote at {significant(times.bytes_written / max(times.writing, 1e-9) / 1e6)} MB/s"
    compiled = f"compiled in {times.compiling:.2f} s"
    if written.drawn == 1:
        return f"{compiled}, drew at {rate} M/s, {wrote}"
    return f"{compiled}, drew at {rate} M/s (first block), {wrote} while drawing the next block"


def print_report(
    options: argparse.Namespace, written: writer.Written, watch: Watch, seconds: float, key: jax.Array
) -> list[str]:
    """Return the lines of the summary: what was drawn, its comparison with the distribution, and what was written."""
    sums = watch.sums
    total = math.prod(written.shape) // sums.components
    if options.workers is not None:
        where = f"by {options.workers} worker{'s' * (options.workers != 1)}"
    elif options.scheduler is not None:
        where = f"by the workers of {options.scheduler}"
    else:
        where = f"on {jax.local_devices()[0].device_kind}"
    what = f"{options.dtype}, seed {options.seed}, {jax.random.key_impl(key)}"
    drawn = watch.drawn * sums.columns // sums.components
    drew = f"{total:,}" if drawn == total else f"{drawn:,} of {total:,}"
    blocks = f"{written.drawn} block{'s' * (written.drawn != 1)}"
    if written.kept:
        blocks += f", {written.kept} kept"
    part = f"part {options.part} of {options.parts}" if options.parts > 1 else ""
    if written.kept and not written.drawn:
        lines = [f"{part or written.out} is already complete; nothing was drawn"]
    else:
        lines = [f"{part} drew {drew} {sums.draws} ({blocks}) in {seconds:.2f} s {where}: {what}".lstrip()]
        if drawn:
            lines.append(time_line(written, drawn, seconds, sums.components))
    if sums.count:
        lines += [f"the first {sums.count:,} {sums.draws}:"] * (sums.count < drawn) + sums.report()
    if not written.finished:
        return [
            *lines,
            f"{written.out}: not complete yet; the last part to finish completes it, as does a run with --resume",
        ]
    size = checkpoint.readable(math.prod(written.shape) * np.dtype(written.dtype).itemsize)
    lines.append(f"{written.out}: {size}, shape {written.shape}, {written.dtype}; checksums next to it")
    if written.dtype != options.dtype:
        lines.append("note: .npy files do not support bfloat16, so the values are stored, unchanged, as float32")
    return lines


def read_part(options: argparse.Namespace) -> tuple[int, int]:
    """Read ``--part`` and ``--parts``; reject contradictory options."""
    if options.workers is not None and options.scheduler is not None:
        raise BadArgument("--workers starts new processes and --scheduler uses existing ones; give only one of the two")
    if (options.part is None) != (options.parts is None):
        raise BadArgument("--part and --parts go together: give the number of this part and the number of parts")
    if options.part is None:
        return 0, 1
    parts = read_integer("--parts", options.parts)
    if parts == 0:
        raise BadArgument("--parts 0: give 1 or more")
    if target.is_npy(options.out):
        raise BadArgument(f"--out {options.out}: a .npy file has one writer; with --parts give a .zarr store")
    if options.force:
        raise BadArgument(
            "--force cannot be combined with --parts, since it would remove what other parts write; "
            "remove the old store first"
        )
    return read_integer("--part", options.part, parts), parts


@contextmanager
def open_executor(options: argparse.Namespace) -> Iterator[futures.Executor | None]:
    """Start workers or connect to a cluster, according to the options."""
    if options.workers is not None:
        options.workers = read_integer("--workers", options.workers)
        if options.workers == 0:
            raise BadArgument("--workers 0: give 1 or more")
        # This process needs no device; on a GPU it would take memory from the workers.
        jax.config.update("jax_platforms", "cpu")
        with local_workers(options.workers) as executor:
            yield executor
    elif options.scheduler is not None:
        try:
            from distributed import Client
        except ImportError as error:
            raise Failure(
                '--scheduler needs Dask: pip install "jax_von_mises[dask]"; --workers N works without Dask'
            ) from error
        file = {"scheduler_file": options.scheduler} if os.path.isfile(options.scheduler) else {}
        if not file and ":" not in options.scheduler:
            raise BadArgument(
                f"--scheduler {options.scheduler}: neither a file nor an address; give a scheduler file, or an "
                "address with a port, such as tcp://host:8786"
            )
        try:
            client = Client(None if file else options.scheduler, **file)
        except Exception as error:  # distributed may raise any exception if a file does not describe a scheduler
            raise Failure(
                f"--scheduler {options.scheduler}: no scheduler answers there ({error}); start it, or correct the "
                "address"
            ) from error
        jax.config.update("jax_platforms", "cpu")
        with client:
            if not options.quiet and not client.nthreads():
                print(f"{PROGRAM_NAME} sample: {options.scheduler} has no worker yet; waiting for one", file=sys.stderr)
            yield client.get_executor()
    else:
        yield None


@contextmanager
def local_workers(count: int) -> Iterator[futures.Executor]:
    """Start worker processes that end when this process ends, however it ends."""
    executor = futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=prepare_worker)
    try:
        # Workers inherit the blocked signal, so an interrupt during their imports does not print a traceback.
        with interrupts_later():
            for _ in range(count):
                executor.submit(int)
        yield executor
        executor.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():  # hung workers too, since `shutdown` would wait for them
            process.kill()
        executor.shutdown(cancel_futures=True)
        raise


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay interrupts from the terminal, where the system supports it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def prepare_worker() -> None:
    """Leave interrupts from the terminal to the parent, and exit when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def read_seconds(option: str, text: str) -> float:
    """Read a positive time in seconds."""
    value = float(text) if is_number(text) else math.nan
    if not 0 < value < LARGEST_TIME:
        raise BadArgument(f"{option} {text}: give a positive number of seconds below {LARGEST_TIME:g}")
    return value


def run_sample(options: argparse.Namespace) -> int:
    """Run the command ``sample``."""
    options.resume |= options.part is not None  # the same command starts and resumes a part
    options.part, options.parts = read_part(options)
    options.timeout = read_seconds("--timeout", options.timeout)
    size = read_integer("--size", options.size, LARGEST_COUNT)
    seed = read_integer("--seed", options.seed, SEED_LIMIT)
    if options.block is not None:
        options.block = read_integer("--block", options.block, LARGEST_COUNT)
        if options.block == 0:
            raise BadArgument("--block 0: give 1 or more rows")
    loc, concentration = read_parameters(options)
    check_name(options.out, "--out ")
    with open_executor(options) as executor:
        try:
            jax.local_devices()
        except RuntimeError as error:
            raise Failure(f"JAX found no device: {error}; set JAX_PLATFORMS=cpu to run on the CPU") from error
        try:
            with jax.enable_x64(options.dtype == "float64"):
                lines = write_or_draw(options, executor, size, seed, loc, concentration)
        except jax.errors.JaxRuntimeError as error:
            raise Failure(f"the device failed: {error}") from error
    print("\n".join(lines), end="\n" if lines else "")
    return 0


def check_name(out: str, option: str = "") -> None:
    """Reject a target of an unknown kind before JAX starts."""
    if not (target.is_npy(out) or target.is_zarr(out)):
        raise BadArgument(f"{option}{out}: the name must end in .npy (a NumPy file) or .zarr (a Zarr store)")


def run_verify(options: argparse.Namespace) -> int:
    """Run the command ``verify``."""
    check_name(options.file)
    try:
        record = writer.verify_samples(options.file)
    except ValueError as error:
        raise Failure(in_options(str(error))) from error
    count = len(record["crc32"])
    if count == 0:
        found = "holds no numbers, so there is no checksum to compare"
    else:
        found = "the one block matches its checksum" if count == 1 else f"all {count:,} blocks match their checksums"
    print(f"{options.file}: {found}; shape {tuple(record['shape'])}")
    print(json.dumps(record["stream"]))
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    """Run the command ``doctor``."""
    found = runtime.diagnose(expect=options.expect, timeout=read_seconds("--timeout", options.timeout))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # device names may contain any characters
    print(found.as_json() if options.json else found)
    return 0 if found.ok else 1


class Terminated(BaseException):
    """Raised when the process receives a terminating signal; the argument is the signal number."""


# Batch systems end a job with SIGTERM. A terminal that closes sends SIGHUP, which Windows does not have.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

# Received signals. Python ignores an exception that a handler raises in a destructor or in a garbage-collector callback
# such as JAX's, so `stop_if_asked` raises it again.
asked: list[int] = []


def stop_if_asked() -> None:
    """Raise the exception of a received signal, even if Python ignored it before."""
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else Terminated(asked[0])


@contextmanager
def terminate_by_exception() -> Iterator[None]:
    """Turn signals that end a process into exceptions, so that the run can clean up and report what was kept."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        stop_if_asked()

    def lost(unraisable: Any) -> None:
        if not asked or not isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated):
            print_lost(unraisable)

    # Leave ignored signals ignored, as `nohup` and the background jobs of shells require.
    heard = [number for number in (signal.SIGINT, *ENDING) if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, stop) for number in heard}
    print_lost, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = print_lost
        asked.clear()
        for number, handler in former.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program name; by default, those of the process.

    Returns
    -------
    int
        The exit code. A usage error raises SystemExit(2), as in argparse.
    """
    options = make_parser().parse_args(join_numbers(sys.argv[1:] if argv is None else argv))
    prefix = f"{PROGRAM_NAME} {options.command}"
    try:
        with terminate_by_exception(), warnings.catch_warnings():
            warnings.showwarning = functools.partial(show_warning, prefix)
            code: int = options.run(options)
            return code
    except BadArgument as error:
        return fail(2, prefix, error)
    except OSError as error:
        return fail(1, prefix, f"{error.filename or ''}: {error.strerror}" if error.strerror else error, error)
    except ImportError as error:
        return fail(1, prefix, error)
    except Failure as error:
        return fail(1, prefix, error, error.__cause__)
    except MemoryError as error:
        return fail(1, prefix, f"out of memory: {error}", error)
    except KeyboardInterrupt as error:
        return fail(130, prefix, "interrupted", error)
    except Terminated as ended:
        return fail(128 + ended.args[0], prefix, "terminated", ended)


def entry() -> int:
    """Run the command line as a program; exit at once after a signal.

    After an interrupted call, XLA may still be computing an array, and no function can wait for it. A normal exit of
    Python frees the array's memory before XLA has finished, which caused a segmentation fault in one run in three.
    """
    code = main()
    if code > 128:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def show_warning(prefix: str, message: Warning | str, *_: object) -> None:
    """Print a warning on one line of stderr, without the source line that `warnings` adds."""
    print(f"{prefix}: warning: {in_options(str(message))}", file=sys.stderr)


def fail(code: int, prefix: str, reason: object, error: BaseException | None = None) -> int:
    """Print why a command failed and what was kept, on one line of stderr; return the exit code."""
    text = in_options("; ".join([str(reason).rstrip("."), *getattr(error, "__notes__", [])]))
    print(f"{prefix}: error: {' '.join(text.split())}", file=sys.stderr)
    return code

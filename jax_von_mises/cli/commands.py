"""Run the command line: draw into files, verify them, compile ahead of time, and diagnose the machine.

This module turns options into arguments of the library, and the library's messages back into options. `streams.writer`
writes files and resumes runs, and `summary` compares a sample with its distribution.

Exit codes: 0, success; 1, failure, or a problem found by `doctor`; 2, invalid argument; 130, interrupted.
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
import warnings
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, NoReturn

import jax
import numpy as np

from jax_von_mises import environment, runtime
from jax_von_mises.arguments import DTYPES
from jax_von_mises.cli import summary
from jax_von_mises.runtime.doctor import PLATFORMS
from jax_von_mises.sampling import sampler
from jax_von_mises.streams import disk, writer
from jax_von_mises.streams.stream import split_evenly
from jax_von_mises.version import __version__

__all__ = ["entry", "main"]

PROGRAM_NAME = "jax-von-mises"

# Arguments of the library as its messages show them, and the options that set them.
IN_OPTIONS = {
    "resume=True": "--resume",
    "force=True": "--force",
    "repair=True": "--repair",
    "block_rows=": "--block ",
    "total=": "--size ",
    "parts=": "--parts ",
    "part=": "--part ",
    "out=": "--out ",
    "timeout=": "--timeout ",
    "phi_concentration": "first --concentration",
    "psi_concentration": "second --concentration",
    "phi_loc": "first --loc",
    "psi_loc": "second --loc",
    "mean_direction": "--mean-direction",
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
        "Exit codes: 0 success, 1 failure, 2 invalid argument, 130 interrupted.",
        allow_abbrev=False,
    )
    add = sample.add_argument
    add("--size", type=whole, required=True, help="number of draws, in each column if there are several, such as 1e6")
    add(
        "--out",
        required=True,
        help=".npy file or .zarr store to write, or the URL of a store such as gs://bucket/big.zarr",
    )
    add(
        "--distribution",
        choices=sampler.names(),
        default="von-mises",
        help="von-mises-fisher draws directions (unit vectors, along the last axis); the bivariate distributions "
        "draw pairs of dependent angles (default von-mises)",
    )
    several = "a number, numbers separated by commas, or a .npy or .csv file of them, for one column each"
    add("--loc", type=numbers, help=f"mean direction in radians: {several}; for pairs, PHI,PSI (default 0)")
    add(
        "--mean-direction",
        metavar="X,Y,...",
        type=numbers,
        help="mean direction of von-mises-fisher: two or more numbers, or a file of them; it is scaled to unit length",
    )
    add(
        "--concentration",
        type=numbers,
        help=f"concentration, from 0 (uniform) to inf (all angles at loc): {several}; for pairs, two finite numbers "
        "K1,K2 (default 1)",
    )
    add(
        "--correlation",
        type=numbers,
        help="for pairs only: any finite number; 0 makes the angles independent (default 0)",
    )
    add("--seed", type=seed, default=0, help="integer from 0 to 2**32 - 1 (default 0)")
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of the angles; bfloat16 is stored as float32 (default float32)",
    )
    add("--key-impl", help="a key implementation of JAX, such as philox4x32 (default: JAX's default)")
    add("--block", type=whole, help="number of rows to draw and write at a time (default: enough for 2**22 numbers)")
    add("--resume", action="store_true", help="continue an interrupted run, or start a new one if there is none")
    add("--repair", action="store_true", help="with --resume: draw damaged blocks again")
    add("--force", action="store_true", help="replace an existing file or store")
    add("--quiet", action="store_true", help="show neither progress nor summary")
    add(
        "--cache",
        nargs="?",
        const="",
        metavar="DIR",
        help="keep the compiled program in DIR, so that later runs start faster (default: a directory of yours)",
    )
    job = sample.add_argument_group(
        "several processes, on one machine or many",
        "One command can distribute blocks to workers, which write them to a target that all of them can reach. "
        "Alternatively, each of several commands writes one part of a Zarr store. --resume continues either kind of "
        "run, in either way or in a single process.",
    )
    job.add_argument("--workers", type=whole, metavar="N", help="draw in N processes on this machine")
    job.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="draw on a Dask cluster: tcp://host:8786, or the name of a scheduler file",
    )
    job.add_argument("--part", type=whole, metavar="I", help="write part I of N, counted from 0, as in an array job")
    job.add_argument("--parts", type=whole, metavar="N", help="number of parts; any that finds all blocks ends the run")
    sample.set_defaults(run=run_sample)
    check = commands.add_parser(
        "verify",
        help="compare a file or store with its checksums",
        description="Read a file or store that `sample` wrote, compare each block with its checksum, and draw a few "
        "blocks again.",
        allow_abbrev=False,
    )
    check.add_argument("file", help="the .npy file or .zarr store")
    check.set_defaults(run=run_verify)
    warm = commands.add_parser(
        "warm-up",
        help="compile the sampler into a cache for later programs",
        description="Compile `sample_von_mises` for each shape and dtype, and keep the programs on disk for programs "
        "that call initialize_compilation_cache().",
        allow_abbrev=False,
    )
    warm.add_argument("shapes", nargs="+", type=shape, metavar="SHAPE", help="shapes, such as 1000 or 128,3")
    warm.add_argument("--dtype", choices=DTYPES, action="append", help="dtype; can be repeated (default float32)")
    warm.add_argument("--cache", help="directory of the cache (default: that of initialize_compilation_cache)")
    warm.set_defaults(run=run_warm_up)
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
        type=float,
        default=180.0,
        help="time limit in seconds for the process that draws (default 180)",
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON, for programs")
    doctor.set_defaults(run=run_doctor)
    return parser


def whole(text: str) -> int:
    """Read a whole number; text such as 1e7 is allowed."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise argparse.ArgumentTypeError(f"{text}: not a whole number; write one such as 10_000_000 or 1e7")


def seed(text: str) -> int:
    """Read a seed. `jax.random.key` keeps 32 bits unless x64 is on, so a larger one would repeat a smaller one."""
    value = whole(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 0 to {2**32 - 1}")
    return value


def shape(text: str) -> tuple[int, ...]:
    """Read a shape, such as 128,3."""
    return tuple(map(whole, text.split(",")))


def numbers(text: str) -> np.ndarray:
    """Read a number, numbers separated by commas, or a file of numbers, as a float64 array with at most one axis."""
    with contextlib.suppress(ValueError):
        values = np.array([float(part) for part in text.split(",")])
        return values if "," in text else values.reshape(())
    refuse = argparse.ArgumentTypeError
    if not text.lower().endswith((".npy", ".csv")):
        raise refuse(f"{text}: neither a number nor the name of a .npy or .csv file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy warns of an empty file, which is refused below
            if text.lower().endswith(".npy"):
                values = np.load(text, allow_pickle=False)
            else:
                values = np.loadtxt(text, delimiter=",", encoding="utf-8-sig")  # spreadsheets write a byte order mark
        values = values.astype(np.float64, casting="same_kind") if values.dtype.kind in "fiu" else values
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "not a .npy file of numbers"
        if text.lower().endswith(".csv") and isinstance(error, ValueError):
            reason = str(error).split(";")[0]  # the rest advises callers of NumPy
        raise refuse(f"{text}: {reason}; give one number per line without a header, or a .npy file of floats") from None
    if values.dtype != np.float64 or values.ndim > 1 or values.size == 0:
        raise refuse(f"{text}: holds {values.dtype} of shape {values.shape}; give a list of one or more real numbers")
    return np.asarray(values)


def join_numbers(argv: Sequence[str]) -> list[str]:
    """Join ``--loc -1e3`` into ``--loc=-1e3``; argparse would otherwise parse the number as an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and re.fullmatch(r"--[a-z-]+", joined[-1]) and re.match(r"-(\.?\d|inf)", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


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
    # This process needs no device; on a GPU it would take memory from the workers.
    jax.config.update("jax_platforms", "cpu")
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
    print(json.dumps(found["stream"]))
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
        code: int = options.run(options)
        return code
    except BadArgument as error:
        return fail(2, prefix, error, error.__cause__)
    except OSError as error:
        return fail(1, prefix, ": ".join(filter(None, (error.filename, error.strerror))) or error, error)
    except MemoryError as error:
        return fail(1, prefix, f"out of memory: {error}".rstrip(": "), error)
    except ImportError as error:
        return fail(1, prefix, error, error)
    except Failure as error:
        return fail(1, prefix, error, error.__cause__)
    except KeyboardInterrupt as error:
        return fail(130, prefix, "interrupted", error)


def entry() -> int:
    """Run the command line as a program; exit at once after an interrupt.

    After an interrupted call, XLA may still be computing an array, and no function can wait for it. A normal exit of
    Python frees the array's memory before XLA has finished, which caused a segmentation fault in one run in three.
    """
    code = main()
    if code == 130:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def fail(code: int, prefix: str, reason: object, error: BaseException | None = None) -> int:
    """Print why a command failed and what was kept, on one line of stderr; return the exit code."""
    text = "; ".join([str(reason).rstrip("."), *getattr(error, "__notes__", [])])
    text = re.sub(r"^(write_samples|verify_samples|warmup|diagnose): ", "", text)
    for argument, option in IN_OPTIONS.items():
        text = re.sub(rf"(?<![\w-]){argument}", option, text)
    print(f"{prefix}: error: {' '.join(text.split())}", file=sys.stderr)
    return code

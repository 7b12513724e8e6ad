"""Command line: ``jax-von-mises sample`` draws angles into a ``.npy`` file.

The file appears under its name only when it is whole: blocks go to a hidden file beside it, which is renamed at the
end and removed on any failure. Then a summary compares the angles with the law.

Exit codes: 0, done; 1, reading or writing failed; 2, an argument is wrong; 130, interrupted (129, 143: terminated).
"""

import argparse
import math
import os
import secrets
import shutil
import signal
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import jax
import numpy as np

from jax_von_mises import __version__, kernel, sampler, summary

__all__ = ["main"]

PROGRAM = "jax-von-mises"
DTYPES = ("float32", "float64", "bfloat16", "float16")

# Angles a block. Two blocks are alive at a time, one being drawn while the other is written: 32 MiB of float32. At a
# quarter of this the cost of starting a block begins to show on a CPU; far above it, progress comes in jumps.
BLOCK = 2**22

# `jax.random.key` keeps 32 bits of a Python integer unless x64 is on, so larger seeds would repeat smaller ones.
SEED_LIMIT = 2**32

NUMBER_OPTIONS = ("--loc", "--concentration", "--size", "--seed")


class BadArgument(Exception):
    """An argument that cannot be served: exit code 2."""


class Failure(Exception):
    """Something other than the arguments stands in the way: exit code 1."""


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, so that they can be read in a batch log."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = Parser(prog=PROGRAM, description="Von Mises random angles.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}, JAX {jax.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    sample = commands.add_parser(
        "sample",
        help="draw angles into a .npy file",
        description="Draw von Mises angles, in radians in [-pi, pi), into a .npy file, and compare them with the law.",
        epilog="Element i depends on seed and i alone: a longer run begins with the same angles. "
        "Exit codes: 0 done, 1 reading or writing failed, 2 an argument is wrong, 130 interrupted.",
        allow_abbrev=False,
    )
    several = "a number, or a .npy or .csv file of m numbers, which gives m columns"
    sample.add_argument("--loc", default="0", help=f"mean direction in radians: {several} (default 0)")
    sample.add_argument(
        "--concentration",
        default="1",
        help=f"concentration, from 0 (uniform) to inf (all angles at loc): {several} (default 1)",
    )
    sample.add_argument(
        "--size", default="1_000_000", help="angles, for each column where there are several (default 1_000_000)"
    )
    sample.add_argument("--seed", default="0", help="integer from 0 to 2**32 - 1 (default 0)")
    sample.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="type of the angles; .npy has no bfloat16, such angles are stored as float32 (default float32)",
    )
    sample.add_argument("--key-impl", help="generator: any that JAX knows, such as philox4x32 (default JAX's own)")
    sample.add_argument("--out", default="samples.npy", help="file to write (default samples.npy)")
    sample.add_argument("--force", action="store_true", help="replace the file if it exists")
    sample.add_argument("--quiet", action="store_true", help="no progress and no summary")
    return parser


def join_numbers(argv: Sequence[str]) -> list[str]:
    """Write ``--loc -1e3`` as ``--loc=-1e3``, which argparse would otherwise take for an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] in NUMBER_OPTIONS and argument.startswith("-") and is_number(argument):
            joined[-1] += "=" + argument
        else:
            joined.append(argument)
    return joined


def is_number(text: str) -> bool:
    """Say whether Python reads `text` as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_integer(option: str, text: str, limit: int | None = None) -> int:
    """Read a whole number that is not negative, exactly, also when written as 1e7."""
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
    """Read a parameter, a number or a file of numbers, as float64 of no or one axis."""
    if is_number(text):
        return np.asarray(float(text))
    suffix = os.path.splitext(text)[1].lower()
    if suffix not in (".npy", ".csv"):
        raise BadArgument(f"{option} {text}: neither a number nor the name of a .npy or .csv file")
    if not os.path.isfile(text):
        raise BadArgument(f"{option} {text}: {'not a file' if os.path.exists(text) else 'no such file'}")
    try:
        if suffix == ".npy":
            values = np.load(text, allow_pickle=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an empty file is refused below, in our words
                values = np.loadtxt(text, delimiter=",", encoding="utf-8-sig")  # spreadsheets write the mark
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if suffix == ".npy":
            advice = "not a .npy file of numbers; write it by numpy.save from an array of floats (pickles are not read)"
        else:
            reason = str(error).split(";")[0]  # the rest advises the callers of loadtxt
            advice = f"not a list of numbers ({reason}); write one number a line, without a header"
        raise BadArgument(f"{option} {text}: {advice}") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        kind = values.dtype if isinstance(values, np.ndarray) else "an archive"
        raise BadArgument(f"{option} {text}: holds {kind}, not real numbers; save a float array")
    if values.ndim > 1:
        raise BadArgument(f"{option} {text}: has shape {values.shape}; give one axis of numbers")
    if values.size == 0:
        raise BadArgument(f"{option} {text}: holds no numbers")
    return values.astype(np.float64)


def check_values(option: str, text: str, values: np.ndarray, bad: np.ndarray, reason: str) -> None:
    """Refuse the parameter if any of its values is bad, naming the first such value."""
    if np.any(bad):
        where = "" if values.ndim == 0 else f": value {int(np.argmax(bad))} (counted from 0) is {values[bad][0]:g}"
        raise BadArgument(f"{option} {text}{where}: {reason}")


def read_parameters(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Read, check and broadcast loc and concentration, in the float type they are computed in."""
    compute = np.float64 if options.dtype == "float64" else np.float32
    loc = read_parameter("--loc", options.loc)
    concentration = read_parameter("--concentration", options.concentration)
    largest = np.finfo(compute).max
    check_values("--loc", options.loc, loc, ~np.isfinite(loc), "not finite; give radians, any finite number")
    limit = kernel.LARGEST_LOC[compute.__name__]
    wider = ", or use --dtype float64" if compute is np.float32 else ""
    coarse = f"its neighbours in {compute.__name__} are a radian away; give at most {limit:.3g}{wider}"
    check_values("--loc", options.loc, loc, np.abs(loc) > limit, coarse)
    allowed = "give a number from 0 (uniform) to inf (a point mass)"
    name = ("--concentration", options.concentration, concentration)
    check_values(*name, np.isnan(concentration), f"not a number; {allowed}")
    check_values(*name, concentration < 0, f"negative; {allowed}")
    overflow = np.isfinite(concentration) & (concentration > largest)
    check_values(*name, overflow, f"beyond {compute.__name__}; use --dtype float64, or inf for a point mass")
    if loc.ndim and concentration.ndim and loc.shape != concentration.shape:
        raise BadArgument(
            f"--loc {options.loc} holds {loc.size} numbers and --concentration {options.concentration} holds "
            f"{concentration.size}; give files of one length, or a number for one of the two"
        )
    return np.asarray(loc, compute), np.asarray(concentration, compute)


def check_target(path: str, force: bool) -> None:
    """Refuse a target that is not a new (or, with `force`, an old) ``.npy`` file in a directory that exists."""
    if not path.lower().endswith(".npy"):
        raise BadArgument(f"--out {path}: the result is a NumPy file; end its name in .npy")
    if not os.path.isdir(directory_of(path)):
        raise BadArgument(f"--out {path}: there is no directory {directory_of(path)}; create it first")
    if os.path.lexists(path):
        if not os.path.isfile(path):
            raise BadArgument(f"--out {path}: exists and is not a file; choose another name")
        if not force:
            raise BadArgument(f"--out {path}: exists; choose another name, or add --force to replace it")


def directory_of(path: str) -> str:
    """Name the directory that `path` lies in."""
    return os.path.dirname(path) or os.curdir


@contextmanager
def whole_file(path: str, size: int) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name `path` when the block ends well, and vanishes otherwise.

    Written in sequence and not through a memory map: when a disk fills up, a write fails with an error that can be
    explained, where a store to mapped memory kills the process and leaves the partial file behind.
    """
    directory = directory_of(path)
    free = shutil.disk_usage(directory).free
    if size > free:
        raise Failure(f"--out {path}: needs {readable(size)} and the disk has {readable(free)} free; draw fewer angles")
    partial = os.path.join(directory, f".{os.path.basename(path)}.{secrets.token_hex(4)}.partial")
    try:
        file = open(partial, "xb")  # noqa: SIM115
    except OSError as error:
        raise Failure(f"--out {path}: cannot write in {directory}: {error.strerror}") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with suppress(OSError):  # what went wrong first is what must be reported
            os.unlink(partial)
        if isinstance(error, OSError):
            raise Failure(f"--out {path}: writing failed: {error.strerror or error}; nothing was kept") from error
        raise
    # The new name itself must reach the disk before the run is reported as done.
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def readable(size: int) -> str:
    """Write a number of bytes with a unit."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


class PlainProgress:
    """Progress as lines of text, for where tqdm is not installed."""

    INTERVAL = 2.0  # seconds between lines

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.started = self.printed = time.monotonic()

    def update(self, count: int) -> None:
        """Add `count` angles, and print a line if the last is old."""
        self.done += count
        now = time.monotonic()
        if self.done >= self.total or now - self.printed >= self.INTERVAL:
            rate = self.done / max(now - self.started, 1e-9)
            left = (self.total - self.done) / max(rate, 1e-9)
            share = self.done / max(self.total, 1)
            print(f"{self.done} angles, {share:.0%}, {rate:.3g} a second, {left:.0f} s left", file=sys.stderr)
            self.printed = now

    def close(self) -> None:
        """Nothing to clean up: each line is whole."""


def make_progress(total: int, quiet: bool) -> Any:
    """Progress bar on stderr, with rate and time left: by tqdm where installed, else plain lines."""
    try:
        from tqdm import tqdm
    except ImportError:
        if not quiet:
            return PlainProgress(total)
        return None
    # In a log every redraw is a line, so there they come as seldom as the plain ones.
    interval = 0.1 if sys.stderr.isatty() else PlainProgress.INTERVAL
    return tqdm(total=total, unit=" angles", unit_scale=True, file=sys.stderr, mininterval=interval, disable=quiet)


def draw(options: argparse.Namespace, size: int, seed: int, loc: np.ndarray, concentration: np.ndarray) -> list[str]:
    """Draw the angles into the file, and return the summary."""
    columns = max(loc.size, concentration.size)
    shape = (size, columns) if loc.ndim or concentration.ndim else (size,)
    stored = np.dtype("float32" if options.dtype == "bfloat16" else options.dtype)
    header = {"descr": np.lib.format.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
    try:
        key = jax.random.key(seed, impl=options.key_impl)
    except ValueError as error:
        raise BadArgument(f"--key-impl {options.key_impl}: {error}") from None

    # One method for every block, since `auto` goes by the shape: the file must not change where the blocks are cut.
    method = "direct" if len(shape) == 2 else "table"
    rows = min(size, max(1, BLOCK // columns))
    # The last block is drawn whole, over the end of the one before it, so that one shape is compiled and not two.
    starts = (min(start, size - rows) for start in range(0, size, max(rows, 1)))

    def start_block() -> tuple[int, Any]:
        """Set the device to work on the next block, and give its first row; no block at the end."""
        first = next(starts, None)
        if first is None:
            return 0, None
        block = (rows, *shape[1:])
        return first, sampler.sample_block(
            key, loc, concentration, first * columns, block, options.dtype, method=method
        )

    moments = summary.Moments(loc, columns)
    progress = None
    total = size * columns
    compiling = began = time.monotonic()
    current = following = None
    try:
        with whole_file(options.out, total * stored.itemsize + 128) as file:
            np.lib.format.write_array_header_1_0(file, header)
            compiling = time.monotonic()
            first, current = start_block()
            # From here on, so that compiling does not spoil the estimate of the time left.
            progress = make_progress(total, options.quiet)
            began = time.monotonic()
            written = 0
            while current is not None:
                following = start_block()
                angles = np.asarray(current)[written - first :].astype(stored, copy=False)
                file.write(np.ascontiguousarray(angles).data)
                if not options.quiet:
                    moments.add(angles)
                written += len(angles)
                if progress is not None:
                    progress.update(angles.size)
                first, current = following
            check_target(options.out, options.force)
    finally:
        # The interpreter must not end below the threads that draw the next block.
        jax.block_until_ready((current, following))
        if progress is not None:
            progress.close()
    seconds = time.monotonic() - began
    if options.quiet:
        return []
    device = jax.devices()[0]
    lines = [
        f"drew {total:,} angles in {seconds:.2f} s on {device.device_kind}, after {began - compiling:.2f} s of "
        f"compiling: {options.dtype}, seed {seed}, {jax.random.key_impl(key)}, method {method!r}",
        *summary.summarise(moments, loc, concentration, options.dtype),
        f"wrote {options.out}: {readable(os.path.getsize(options.out))}, shape {shape}, {stored}",
    ]
    if options.dtype == "bfloat16":
        lines.append("note: .npy has no bfloat16, so each value is stored as the float32 that equals it")
    return lines


def sample(options: argparse.Namespace) -> int:
    """Run the sub-command ``sample``."""
    size = read_integer("--size", options.size)
    seed = read_integer("--seed", options.seed, SEED_LIMIT)
    loc, concentration = read_parameters(options)
    check_target(options.out, options.force)

    try:
        jax.devices()
    except RuntimeError as error:
        raise Failure(f"JAX finds no device: {error}; JAX_PLATFORMS=cpu runs without a GPU") from error
    try:
        with jax.enable_x64(options.dtype == "float64"):
            lines = draw(options, size, seed, loc, concentration)
    except jax.errors.JaxRuntimeError as error:
        raise Failure(f"the device failed: {error}") from error
    print("\n".join(lines), end="\n" if lines else "")
    return 0


class Terminated(BaseException):
    """The process was asked to end, by the signal of this number."""


# With the first batch systems end a job, with the second a terminal that closes. Windows knows the first alone.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def terminate_by_exception() -> Iterator[None]:
    """Turn the signals that end a process into an exception, so that the partial file is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def raise_terminated(number, _frame):
        raise Terminated(number)

    former = {number: signal.signal(number, raise_terminated) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        The exit code. Wrong usage raises SystemExit(2), as argparse does.
    """
    options = make_parser().parse_args(join_numbers(sys.argv[1:] if argv is None else argv))
    prefix = f"{PROGRAM} {options.command}"
    try:
        with terminate_by_exception():
            return sample(options)
    except BadArgument as error:
        return fail(2, prefix, error)
    except (Failure, OSError) as error:
        return fail(1, prefix, error)
    except MemoryError as error:
        return fail(1, prefix, f"out of memory: {error}")
    except KeyboardInterrupt:
        return fail(130, prefix, "interrupted; nothing was written")
    except Terminated as ended:
        return fail(128 + ended.args[0], prefix, "terminated; nothing was written")


def fail(code: int, prefix: str, reason: object) -> int:
    """Explain a failure in one line on stderr, and return the exit code."""
    print(f"{prefix}: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return code

"""Read the command line, run its command, and turn errors into one line and an exit code.

JAX takes most of a second to import, so this module does not import it: `commands` does, when a command is run.

Exit codes: 0, success; 1, failure, or a problem found by `doctor`; 2, invalid argument; 130, interrupted.
"""

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jax_von_mises.environment import DTYPES, PLATFORMS
from jax_von_mises.version import __version__

if TYPE_CHECKING:
    import numpy as np

__all__ = ["entry", "main"]

PROGRAM_NAME = "jax-von-mises"


class BadArgument(Exception):
    """Raised for an invalid argument; the exit code is 2."""


class Failure(Exception):
    """Raised for a failure that the arguments did not cause; the exit code is 1."""


class Parser(argparse.ArgumentParser):
    """Parser that prints an error on one line, for batch logs.

    With `parameters`, options that it does not know are parameters of a distribution, which its class will check.
    """

    def __init__(self, *args: Any, parameters: bool = False, **options: Any):
        super().__init__(*args, **options)
        self.parameters = parameters

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, so that the message names the command and its help."""
        found, rest = super().parse_known_args(args, namespace)
        if self.parameters:
            found.parameters = {}
            while rest and (given := re.fullmatch("--([a-z][a-z-]*)(?:=(.*))?", rest[0])):
                option, text = given.groups()
                if text is None and len(rest) == 1:
                    self.error(f"argument --{option}: expected a value")
                text, rest = (rest[1], rest[2:]) if text is None else (text, rest[1:])
                try:
                    found.parameters[option.replace("-", "_")] = numbers(text)
                except argparse.ArgumentTypeError as error:
                    self.error(f"argument --{option}: {error}")
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


class Version(argparse.Action):
    """Print the versions of the package and of the installed JAX, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib import metadata

        print(f"{PROGRAM_NAME} {__version__}, JAX {metadata.version('jax')}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = Parser(
        prog=PROGRAM_NAME,
        description="Draw random angles and directions, verify files, and diagnose the machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="show the versions of the package and of JAX")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    sample = commands.add_parser(
        "sample",
        help="draw angles or directions into a .npy file, a Zarr store or a .csv file",
        parameters=True,
        usage="%(prog)s --size N --out FILE [--distribution NAME] [--PARAMETER VALUE ...] [options]",
        description="Draw from a distribution into a .npy file, a Zarr store or a .csv file, and compare the draws "
        "with the distribution. Files and stores can be larger than the memory, and an interrupted run can be resumed. "
        "Each PARAMETER of the distribution is an option of its name, such as --loc 0.5 --concentration 4, or "
        "--mean-direction 0,0,1 --concentration 50 for von-mises-fisher. Its VALUE is a number, numbers separated by "
        "commas, or a .npy or .csv file of them: a vector, a matrix row by row, or one number for each column of the "
        "result. Locations are 0 if left out.",
        epilog="Element i does not depend on the size, so a longer run begins with the same angles. "
        "Exit codes: 0 success, 1 failure, 2 invalid argument, 130 interrupted.",
        allow_abbrev=False,
    )
    add = sample.add_argument
    add("--size", type=whole, required=True, help="number of draws, in each column if there are several, such as 1e6")
    add(
        "--out",
        required=True,
        help=".npy file or .zarr store to write, the URL of a store such as gs://bucket/big.zarr (several processes "
        "need a store), or a .csv file for a small sample",
    )
    add(
        "--distribution",
        metavar="NAME",
        default="von-mises",
        help="von-mises (the default), or the name of another class of the library with hyphens, such as "
        "von-mises-fisher, wrapped-cauchy or sine-bivariate-von-mises; any other name lists them with their parameters",
    )
    add(
        "--degrees",
        action="store_true",
        help="read parameters that are angles, print the summary, and write .csv files in degrees; .npy files and "
        "stores always hold radians, in [-pi, pi)",
    )
    add("--seed", type=seed, default=0, help="integer from 0 to 2**32 - 1 (default 0)")
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="dtype of the angles; bfloat16 is stored as float32 (default float32)",
    )
    add("--key-impl", help="a key implementation of JAX, such as philox4x32 (default: JAX's default)")
    add(
        "--block-rows",
        type=whole,
        help="number of rows to draw and write at a time (default: enough for 2**22 numbers)",
    )
    add("--resume", action="store_true", help="continue an interrupted run, or start a new one if there is none")
    add("--repair", action="store_true", help="with --resume: draw damaged blocks again")
    add("--force", action="store_true", help="replace an existing file or store that this command wrote")
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
    check = commands.add_parser(
        "verify",
        help="compare a file or store with its checksums",
        description="Read a file or store that `sample` wrote, compare each block with its checksum, draw a few blocks "
        "again, and print what the stream is: distribution, key, parameters, dtype and method, as JSON.",
        allow_abbrev=False,
    )
    check.add_argument("file", help="the .npy file or .zarr store")
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
    return parser


def whole(text: str) -> int:
    """Read a whole number from 0; text such as 1e7 is allowed."""
    with contextlib.suppress(ValueError):
        value = float(text)
        if value.is_integer() and value >= 0:
            return int(text) if text.strip("+").replace("_", "").isdecimal() else int(value)
    raise argparse.ArgumentTypeError(f"{text}: not a whole number from 0; write one such as 10_000_000 or 1e7")


def seed(text: str) -> int:
    """Read a seed. `jax.random.key` keeps 32 bits unless x64 is on, so a larger one would repeat a smaller one."""
    value = whole(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 0 to {2**32 - 1}")
    return value


def shape(text: str) -> tuple[int, ...]:
    """Read a shape, such as 128,3."""
    return tuple(map(whole, text.split(",")))


def numbers(text: str) -> "np.ndarray":
    """Read a number, numbers separated by commas, or a file of numbers, as a float64 array."""
    import numpy as np

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
    if values.dtype != np.float64 or values.size == 0:
        raise refuse(f"{text}: holds {values.dtype} of shape {values.shape}; give one or more real numbers")
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
        from jax_von_mises.cli import commands

        return commands.RUN[options.command](options)
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
    print(f"{prefix}: error: {' '.join(text.split())}", file=sys.stderr)
    return code

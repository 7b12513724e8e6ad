"""Format the numbers and tables of all benchmarks, and parse and check what their commands need.

A measurement returns rows: dicts from fields to values. `FIELDS` has the heading and the format of each field.
"""

import argparse
import contextlib
import importlib.util
import os
import shlex
import sys
import tempfile
from pathlib import Path

__all__ = [
    *("FIELDS", "atomic_file", "bytes_text", "cells", "interval_text", "need", "new_file", "number", "positive"),
    *("table", "time_text"),
]


def positive(text):
    """Parse a number above 0, such as 1e9 or 0.5."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def new_file(text):
    """Parse the path of an output file; reject a missing folder now rather than after the measurement."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


def need(*modules, extra="bench"):
    """Exit with one sentence if a module is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        clone = Path(__file__).resolve().parent.parent
        command = shlex.join([sys.executable, "-m", "pip", "install", "-e", f"{clone}[{extra}]"])
        raise SystemExit(f"This program needs {', '.join(missing)}: {command}")


@contextlib.contextmanager
def atomic_file(path, mode="w", **options):
    """Open a temporary file that replaces `path` once it is complete."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def number(value, digits=3):
    """Format a value with some significant digits, or as an integer if it has more digits before its point."""
    if 0 < abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    value = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def interval_text(middle, low, high):
    """Format a ratio with its interval."""
    middle, low, high = (number(value, 2) for value in (middle, low, high))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def time_text(seconds):
    """Return a time as text, in the unit that keeps the number short."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_text(size):
    """Return a number of bytes as text, or "unknown" for None."""
    from jax_von_mises.streams.disk import readable

    return "unknown" if size is None else readable(size)


def million(rate):
    """Return a rate in millions per second as text."""
    return number(rate / 1e6)


def whole(value):
    """Return an integer as text."""
    return f"{value:,}"


FIELDS = {
    "line": ("", str),
    "count": ("per call", whole),
    "value": ("result", str),
    "rate": ("million per second", million),
    "own": ("sample_von_mises, million per second", million),
    "normal": ("jax.random.normal, million per second", million),
    "ratio": ("relative rate", lambda value: interval_text(*value)),
    "ours": ("ours relative to it", lambda value: interval_text(*value)),
    "seconds": ("time", time_text),
    "span": ("span", lambda value: " to ".join(map(time_text, value))),
    "dispatch": ("until it returns", time_text),
    "compute": ("until it is ready", time_text),
    "copy": ("copy to the host", time_text),
    "bytes": ("memory", bytes_text),
    "result": ("result", bytes_text),
    "temporary": ("temporary", bytes_text),
    "counted": ("counted by the device", bytes_text),
    "compiled": ("compiled programs", whole),
    "distinct": ("distinct values", whole),
    "rounds": ("rounds", whole),
    "note": ("", str),
}
"""For each field of a row, the heading of its column, and a function from its value to text."""


def cells(rows, fields):
    """Return the headings and the rows of a table as texts, without the columns that are empty in all rows."""
    fields = [field for field in fields if any(row.get(field) is not None for row in rows)]
    texts = [[FIELDS[field][0] for field in fields]]
    for row in rows:
        texts.append(["" if row.get(field) is None else FIELDS[field][1](row[field]) for field in fields])
        if "failed" in row:
            texts[-1][1:] = [row["failed"], *[""] * (len(fields) - 2)]
    return texts


def table(texts):
    """Return rows of texts as lines, with the first column aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = (
        " ".join([row[0].ljust(widths[0]), *map(" {}".format, map(str.rjust, row[1:], widths[1:]))]) for row in texts
    )
    return "\n".join(f"  {line}".rstrip() for line in lines)

"""How the benchmarks read their command lines and lay out what they print."""

import argparse
import shlex
import sys
from pathlib import Path

from benchmarks.timing import WIDE_SPREAD

__all__ = ["NOISE", "environment_text", "install_command", "positive", "table", "time_text", "wide_text"]

# In place of a number whose rounds disagree.
NOISE = "noise"


def positive(text):
    """Read a count of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def install_command(extra):
    """Return the command that installs an extra of this clone for the Python that runs, to paste into a shell."""
    clone = Path(__file__).resolve().parent.parent
    return shlex.join([sys.executable, "-m", "pip", "install", "-e", f"{clone}[{extra}]"])


def table(rows):
    """Align columns: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def time_text(seconds):
    """Seconds in the unit that keeps the number short."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def wide_text(label, spread):
    """Warn of a number whose rounds disagree, or are too few for that."""
    if spread <= WIDE_SPREAD:
        return f"  noise: {label}: too few rounds to tell how far a number could be believed"
    return f"  noise: {label}: the middle half of the rounds spans {spread:.0%} of the median"


def environment_text(found):
    """Lay out the environment in a few lines."""
    load = "" if found["load_average"] is None else f", load average {found['load_average']:.1f}"
    lines = [
        f"{found['device_count']} x {found['device']} ({found['platform']})",
        f"CPU {found['cpu']}, {found['cores']} cores{load}",
        f"{found['system']}, Python {found['python']}, x64 {'on' if found['x64'] else 'off'}",
        ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        *(f"{name}={value}" for name, value in found["variables"].items()),
    ]
    return "\n".join("  " + line for line in lines)

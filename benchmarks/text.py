"""Format the text tables of the benchmarks, and parse their command-line arguments."""

import argparse
import contextlib
import shlex
import sys
import time
from pathlib import Path

from benchmarks.cases import TASKS
from benchmarks.peers import LABELS, OURS

__all__ = [
    "MARKED",
    "NOISE",
    "case_table",
    "environment_text",
    "install_command",
    "marked",
    "missing_text",
    "number",
    "positive",
    "progress",
    "table",
    "time_text",
]

# This text replaces a number whose rounds disagree.
NOISE = "noise"
MARKED = "  ~: the rounds disagree or the machine is busy; draw no conclusions from this number"
# Seconds between the dots of `progress`.
TICK = 2.0


@contextlib.contextmanager
def progress():
    """Yield a function to call often; it prints a dot to standard error at most every `TICK` seconds."""
    last, dots = time.monotonic(), 0

    def tick():
        nonlocal last, dots
        if time.monotonic() - last > TICK:
            last, dots = time.monotonic(), dots + 1
            print(".", end="", file=sys.stderr, flush=True)

    yield tick
    if dots:
        print(file=sys.stderr)


def positive(text):
    """Parse a count of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def install_command(extra):
    """Return the shell command that installs an extra of this clone for the running Python."""
    clone = Path(__file__).resolve().parent.parent
    return shlex.join([sys.executable, "-m", "pip", "install", "-e", f"{clone}[{extra}]"])


def table(rows):
    """Return rows as text, with the first column aligned to the left and the others to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value):
    """Format a value with three significant digits, or as an integer if it is at least 1000."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def time_text(seconds):
    """Return a time as text, in the unit that keeps the number short."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def marked(text, doubtful):
    """Return the text of a number, with ``~`` in front if the number is doubtful."""
    return f"~{text}" if doubtful else text


def environment_text(machine):
    """Return the environment in a few lines of text."""
    lines = [
        f"{machine['device_count']} x {machine['device']} ({machine['platform']})",
        f"CPU {machine['cpu']}, {machine['cores']} cores",
        f"{machine['system']}, Python {machine['python']}, x64 {'on' if machine['x64'] else 'off'}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
        *(f"{name}={value}" for name, value in machine["variables"].items()),
    ]
    return "\n".join("  " + line for line in lines)


def case_table(entry, busy=False):
    """Return the table of one case of `performance_benchmark`; on a busy machine every rate is marked."""
    task = TASKS[entry["task"]]
    lines = [("", task.unit, "spread", "one call", "first call", task.noun, "ours / it")]
    wide = {name: busy or result["wide"] for name, result in entry["results"].items()}
    dtypes = {}
    for name, result in entry["results"].items():
        if result["dtype"] not in (entry["dtype"], None):
            dtypes.setdefault(result["dtype"], []).append(LABELS[name])
        ratio = ""
        if name != OURS:
            ratio = marked(f"{result['ratio']:.2f}", wide[name] or wide[OURS]) if "ratio" in result else "-"
        lines.append(
            (
                LABELS[name] + ("" if result["device"] == "cpu" else f" [{result['device']}]"),
                marked(f"{result['rate'] / task.scale:.4g}", wide[name]),
                f"{result['spread']:.0%}",
                marked(time_text(result["count"] / result["rate"]), wide[name]),
                time_text(result["first_call_seconds"]),
                f"{result['count']:,}",
                ratio,
            )
        )
    notes = [f"  result in {dtype}: {', '.join(names)}" for dtype, names in dtypes.items()]
    return "\n".join([table(lines), *notes, *([MARKED] if any(wide.values()) else [])])


def missing_text(missing, labels):
    """Return the missing names as text, with one line for each reason."""
    names = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(labels[name])
    return "\n".join(f"  left out: {', '.join(who)} ({reason})" for reason, who in names.items())

"""Keep measurements in a CSV file, one for each machine, and show them as tables.

The first lines of a file, which begin with ``#``, name the code, the machine and the libraries. Each row has the
measurement of one peer in one case, or the reason why there is none. In a row with the unit ``s`` or another unit of
which less is better, `value` is the measured number. In all others, it is the number of elements per second. It is
computed from the lower quartile of the rounds, `low` from the upper quartile, and `high` from the fastest round.
`ratio` is the median over the rounds of the quotient of both times: above 1, the package is faster than the peer.
"""

import csv
import io
from typing import NamedTuple

from benchmarks.text import bytes_text, interval_text, number, time_text

__all__ = [
    *("LESS", "OURS", "Results", "Row", "head_of", "head_text", "of", "parse", "ratio_text", "split", "table"),
    "value_text",
]

OURS = "jax_von_mises"
LESS = {"s": time_text, "B": bytes_text, "error": lambda value: f"{value:.1e}", "draws per value": number}
"""Units of which less is better, each with the function that formats its numbers."""
MISSING = "–"
FEWER = "†"
HEADING = "#"


class Row(NamedTuple):
    """The measurement of one peer in one case; if there is none, `note` has the reason."""

    group: str
    case: str
    peer: str
    count: int
    unit: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: int = 0
    note: str = ""

    @property
    def clear(self):
        """Whether the interval of the ratio is on one side of 1."""
        return self.ratio is not None and not self.ratio_low <= 1 <= self.ratio_high

    @property
    def ahead(self):
        """Whether the peer is faster than the package beyond doubt."""
        return self.clear and self.ratio < 1

    def compared(self, ratio):
        """Return the row with a ratio and the ends of its interval."""
        middle, low, high = ratio
        return self._replace(ratio=middle, ratio_low=low, ratio_high=high)


NUMBERS = ("value", "low", "high", "ratio", "ratio_low", "ratio_high")


class Results(NamedTuple):
    """The content of a file."""

    head: dict[str, str]
    rows: list[Row]

    def text(self):
        """Return the content of the file."""
        out = io.StringIO()
        out.write(head_text(self.head))
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in self.rows:
            cells = row._asdict() | {
                name: "" if getattr(row, name) is None else f"{getattr(row, name):.4g}" for name in NUMBERS
            }
            writer.writerow(cells.values())
        return out.getvalue()


def head_text(head):
    """Return the first lines of a file."""
    return "".join(f"{HEADING} {name}: {value}\n" for name, value in head.items())


def head_of(text):
    """Return the head in the text of a file."""
    lines = (line for line in text.splitlines() if line.startswith(HEADING))
    return dict(line[len(HEADING) :].strip().split(": ", 1) for line in lines)


def split(text, columns):
    """Return the head and the rows of cells in the text of a file; raise ValueError if it has other `columns`."""
    lines, head = text.splitlines(), head_of(text)
    names, *rows = csv.reader(line for line in lines if not line.startswith(HEADING))
    if tuple(names) != tuple(columns):
        raise ValueError(f"the columns are {', '.join(names)}, not {', '.join(columns)}")
    return head, rows


def parse(text):
    """Return the `Results` in the text of a file; raise ValueError if it is not one."""
    head, rows = split(text, Row._fields)
    found = []
    for cells in rows:
        values = dict(zip(Row._fields, cells, strict=True))
        values |= {name: float(values[name]) if values[name] else None for name in NUMBERS}
        found.append(Row(**values | {name: int(values[name]) for name in ("count", "rounds")}))
    return Results(head, found)


def of(path):
    """Return the `Results` in a file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} has no results of performance_benchmark: {error}") from error


def rate_text(row):
    """Format a rate."""
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if row.value >= scale:
            return f"{number(row.value / scale)} {prefix}/s"
    return f"{number(row.value)} /s"


def value_text(row):
    """Format the value of a row with its unit."""
    if row is None or row.value is None:
        return MISSING
    if row.value == float("inf"):
        return "not finite"
    return LESS[row.unit](row.value) if row.unit in LESS else rate_text(row)


def ratio_text(row):
    """Format the ratio of a row with its interval."""
    if row is None or row.ratio is None:
        return MISSING
    if row.ratio == float("inf"):
        return "not finite"
    return interval_text(row.ratio, row.ratio_low, row.ratio_high)


def power(count):
    """Format a number of elements; powers of two from 2^10 are typeset as powers."""
    exponent = count.bit_length() - 1
    return f"$2^{{{exponent}}}$" if count == 2**exponent and exponent >= 10 else f"{count:,}"


def table(head, rows):
    """Return a Markdown table whose first column is text and whose other columns are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])

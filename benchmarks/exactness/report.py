"""Write the verdicts of a run to a CSV file, one line for each distribution, and show such a file on a page."""

import csv

from benchmarks import results
from benchmarks.text import atomic_file

__all__ = ["COLUMNS", "markdown", "read", "row", "write"]

COLUMNS = ("distribution", "angles", "tests", "least likely", "p at most", "largest error / bound")


def row(name, angles, tests, share):
    """Return the line of a distribution; `share` is None for dtypes whose single angles are not checked."""
    least = min(tests, key=lambda test: test.p)
    return name, str(angles), str(len(tests)), least.test, f"{least.p:.2g}", "-" if share is None else f"{share:.2f}"


def write(path, head, rows):
    """Write the head and the rows."""
    with atomic_file(path, encoding="utf-8", newline="") as file:
        file.write(results.head_text(head))
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def read(path):
    """Return the head and the rows of a file."""
    head, rows = results.split(path.read_text(encoding="utf-8"), COLUMNS)
    return head, [tuple(row) for row in rows]


def markdown(path):
    """Return a file as Markdown: the machine, a table and the outcome."""
    head, rows = read(path)
    device = head["processor"] if head["platform"] == "cpu" else f"{head['device']}; {head['processor']}"
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---:|---:|---|---:|---:|"]
    lines += [f"| {name} | {int(angles):,} | {' | '.join(others)} |" for name, angles, *others in rows]
    machine = f"*{device}; {head['versions']}; package tree {head['tree'][:12]}; {head['date']}.*"
    return "\n".join([machine, "", *lines, "", f"{head['outcome']}."])

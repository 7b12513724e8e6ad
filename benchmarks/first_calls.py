"""Time the first call of every method of every class, each in a new process, slowest first.

``python -m benchmarks.first_calls --out FILE.csv`` takes twenty minutes on two cores. A first call traces and
compiles. It is compared with the first call of ``jax.random.normal(key, (1000,))`` in the same process.
"""

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path

from benchmarks import environment, results
from benchmarks.subjects import classes

__all__ = ["FIELDS", "read"]

FIELDS = ("class", "method", "seconds", "multiple")


def measured(names, rounds):
    """Yield a row for each method of the classes of these names: the medians of some rounds."""
    for name in names:
        for method in classes.elsewhere(name):  # those that can be called
            if method == classes.BASE:
                continue
            found = [classes.elsewhere(name, method) for _ in range(rounds)]
            seconds = statistics.median(each[method] for each in found)
            multiple = statistics.median(each[method] / each[classes.BASE] for each in found)
            yield name, method, f"{seconds:.3g}", f"{multiple:.1f}"


def read(path):
    """Return the head of a file, and its rows, slowest first."""
    return results.split(Path(path).read_text(encoding="utf-8"), FIELDS)


def main(arguments=None):
    """Time the first calls, print them, and write a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_calls", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a CSV file")
    parser.add_argument("--rounds", type=int, default=1, help="processes for each method (default 1)")
    parser.add_argument("classes", nargs="*", help="names of classes; all by default")
    given = parser.parse_args(arguments)
    known = classes.made()
    if unknown := set(given.classes) - set(known):
        parser.error(f"there is no class {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    rows = []
    for row in measured(given.classes or known, given.rounds):
        print("{}.{}: {} s, {} x normal".format(*row), flush=True)
        rows.append(row)
    if given.out:
        head = {"date": time.strftime("%Y-%m-%d")} | environment.describe() | {"rounds": str(given.rounds)}
        with given.out.open("w", newline="", encoding="utf-8") as file:
            file.write(results.head_text(head))
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows(sorted(rows, key=lambda row: -float(row[3])))
    return 0


if __name__ == "__main__":
    sys.exit(main())

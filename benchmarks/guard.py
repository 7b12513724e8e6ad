"""Check that the committed results are those of the current package, or compare two files of results.

``python -m benchmarks.guard`` compares the code that the results of the pages name with the package's folder in the
last commit. A difference is reported, and with ``--strict`` it is an error. ``python -m benchmarks.guard OLD NEW``
lists the cases in which the package became slower or faster: those whose intervals of a ratio do not overlap.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import environment, results
from benchmarks.results import OURS, ratio_text
from benchmarks.text import number, table

__all__ = ["changes", "main"]

FILE = Path(__file__).parent / "results" / "cpu-2-cores.csv"


def changes(old, new):
    """Return the rows of `new` with a ratio below and above that of `old`, each with the row of `old`."""
    before = {row[:3]: row for row in old.rows if row.ratio is not None and row.peer != OURS}
    pairs = [(before[row[:3]], row) for row in new.rows if row[:3] in before and row.ratio is not None]
    slower = [(was, now) for was, now in pairs if now.ratio_high < was.ratio_low]
    faster = [(was, now) for was, now in pairs if now.ratio_low > was.ratio_high]
    return slower, faster


def lines(pairs):
    """Return a table of changes, with the largest first."""
    pairs = sorted(pairs, key=lambda pair: pair[1].ratio / pair[0].ratio)
    rows = [("case", "against", "before", "now", "change")]
    for was, now in pairs:
        change = f"{number(now.ratio / was.ratio)}x"
        rows.append((f"{now.group}, {now.case}", now.peer, ratio_text(was), ratio_text(now), change))
    return table(rows)


def compare(old, new):
    """Print the changes between two files; return 1 if a case became slower."""
    slower, faster = changes(results.of(old), results.of(new))
    for title, pairs in (("slower", slower), ("faster", faster)):
        print(f"{len(pairs)} ratios are {title}" + (f":\n{lines(pairs)}" if pairs else ""))
    return 1 if slower else 0


def check(path, strict):
    """Print whether the results are those of the current package; return 1 if they are not and `strict` is set."""
    current = environment.tree()
    if current is None:
        print("skipped: without git and a clone, the code of the results cannot be compared with the package's")
        return 0
    measured = results.of(path).head["tree"]
    if measured == current:
        print(f"the results in {path.name} are those of this package")
        return 0
    print(f"the results in {path.name} are those of tree {measured[:12]}, not of the package's tree {current[:12]}")
    print("measure again with python -m benchmarks.performance_benchmark --out FILE, then run make pages")
    return 1 if strict else 0


def main(arguments=None):
    """Run the guard; return the exit code, which is 2 if a file has no results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="the old and the new results to compare")
    parser.add_argument("--strict", action="store_true", help="fail if the results are not those of this package")
    options = parser.parse_args(arguments)
    if len(options.files) not in (0, 2):
        parser.error("give two files, the old one first, or none")
    try:
        return compare(*options.files) if options.files else check(FILE, options.strict)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

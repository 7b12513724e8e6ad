"""Check that the committed results are those of this release, or compare two files of results.

``python -m benchmarks.guard`` compares the version of the package with the version that each committed file names. With
``--strict``, it is an error if the results of the README are those of another version. ``python -m benchmarks.guard OLD
NEW`` lists the cases in which the package became slower or faster: those whose intervals of a ratio do not overlap.
"""

import argparse
import re
import sys
from pathlib import Path

from benchmarks import environment, results
from benchmarks.results import OURS, ratio_text
from benchmarks.text import number, table
from jax_von_mises.version import __version__

__all__ = ["changes", "main", "version_of"]

FOLDER = Path(__file__).parent / "results"
# The results of the README, which a release needs. Those of GPUs are reported.
NEEDED = "cpu-2-cores.csv"


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


def version_of(head):
    """Return the version that the head of a file names, or else that of the code it names, if git has it; or None."""
    if "version" in head or "tree" not in head:
        return head.get("version")
    found = re.search(r'__version__ = "(.+)"', environment.git("show", f"{head['tree']}:version.py") or "")
    return found and found[1]


def check(strict):
    """Print the versions of the committed results; return 1 if `strict` is set and those of the README are old."""
    old = False
    for path in sorted(FOLDER.glob("*.csv")):
        head = results.head_of(path.read_text(encoding="utf-8"))
        version = version_of(head)
        named = f"version {version}" if version else "names no version"
        if version and version != __version__:
            named += f", not {__version__}"
        elif version and head.get("tree") != environment.tree():
            named += ", of an earlier state of its code"
        print(f"{path.name}: {named} ({head['date']})")
        old |= path.name == NEEDED and version != __version__
    if old:
        print(f"measure {NEEDED} again with python -m benchmarks.performance_benchmark --out FILE, then run make pages")
    return 1 if old and strict else 0


def main(arguments=None):
    """Run the guard; return the exit code, which is 2 if a file has no results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="the old and the new results to compare")
    text = f"fail if {NEEDED} has the results of another version"
    parser.add_argument("--strict", action="store_true", help=text)
    options = parser.parse_args(arguments)
    if len(options.files) not in (0, 2):
        parser.error("give two files, the old one first, or none")
    try:
        return compare(*options.files) if options.files else check(options.strict)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

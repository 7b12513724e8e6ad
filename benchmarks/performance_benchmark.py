"""Compare the speed and accuracy of the package with other libraries, in turns and with an interval for each ratio.

``python -m benchmarks.performance_benchmark`` measures all groups, at most 90 minutes on two cores, and prints each
case when it is done; names of groups measure only these. ``--out benchmarks/results/MACHINE.csv`` writes a file, and
needs a clone without changes; the pages and the README are made from a file with all groups. A run that was
interrupted continues after its finished cases.
"""

import argparse
import os
import sys

from benchmarks import environment, runner, subjects
from benchmarks.text import need, new_file, positive

__all__ = ["main"]

MINUTES = 90.0


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance_benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"from {', '.join(subjects.GROUPS)}; default: all")
    parser.add_argument("--out", type=new_file, metavar="FILE", help="write the results")
    parser.add_argument(
        "--minutes", type=positive, default=MINUTES, help="time to divide among the cases; default: %(default)g"
    )
    return parser


def main(arguments=None):
    """Run the benchmark; return the exit code, which is 2 if the request is refused and 130 after Ctrl-C."""
    command = parser()
    options = command.parse_args(arguments)
    names = options.groups or subjects.GROUPS
    if unknown := [name for name in names if name not in subjects.GROUPS]:
        command.error(f"there is no group {', '.join(unknown)}; the groups are {', '.join(subjects.GROUPS)}")
    if options.out:
        if environment.tree() is None:
            command.error("--out needs git and a clone, to name the code that was measured")
        if changed := environment.dirty():
            command.error(f"--out needs a clone without changes; commit or undo those of {', '.join(changed)}")
    need("numpyro", "psutil")
    # By default, JAX reserves three quarters of a GPU's memory, but the other libraries need memory, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        with environment.without_cache():
            runner.run(subjects.cases(names), options.minutes, options.out)
    except KeyboardInterrupt:
        kept = "the same command continues after the finished cases" if options.out else "nothing is kept without --out"
        print(f"\ninterrupted; {kept}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure section by section, and write the page after each of them."""

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks import environment
from benchmarks.measuring import failure
from benchmarks.profile_gpu import page
from benchmarks.profile_gpu.sections import SECTIONS, make_plan
from benchmarks.text import atomic_file, need, new_file

__all__ = ["main"]


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_gpu",
        description="Profile time and memory on this machine: one HTML page with tables and pictures.",
    )
    parser.add_argument("--quick", action="store_true", help="use smaller sizes and fewer rounds; about a minute")
    out = Path("profile.html")
    parser.add_argument("--out", type=new_file, default=out, metavar="FILE.html", help="default: %(default)s")
    names = tuple(SECTIONS)
    detail = f"measure only these sections: {', '.join(names)}"
    parser.add_argument("--sections", nargs="+", choices=names, default=names, metavar="NAME", help=detail)
    return parser


def run(names, out, machine, plan):
    """Measure the named sections and write the page after each; return the exit code.

    A failing section gives its error and does not stop the others.
    """
    done, begun = {}, time.perf_counter()
    try:
        for name in names:
            print(f"  {name} ... ", end="", flush=True)
            start, rows, error = time.perf_counter(), [], None
            try:
                rows = SECTIONS[name].measure(plan)
            except Exception as problem:
                error = failure(problem)
            done[name] = page.section(name, rows, error)
            seconds = time.perf_counter() - begun
            with atomic_file(out, encoding="utf-8") as file:
                file.write(page.page(done, [name for name in names if name not in done], machine, seconds))
            state = f"FAILED, {error}, " if error else ""
            print(f"{state}{time.perf_counter() - start:.1f} s", flush=True)
    except KeyboardInterrupt:
        count = f"{out} has {len(done)} of {len(names)} sections" if done else "nothing was written"
        print(f"\ninterrupted; {count}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"\ncannot write the page: {error}", file=sys.stderr)
        return 1
    print(f"{time.perf_counter() - begun:.0f} s; written to {out}")
    return 0


def main(arguments=None, plan=None):
    """Profile this machine and write the page; return the exit code, which is 0 even if a section failed."""
    options = parser().parse_args(arguments)
    need("matplotlib")
    # By default, JAX reserves three quarters of a GPU's memory, which other programs may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with environment.without_cache():
        machine = environment.describe()
        print(environment.text(machine), flush=True)
        names = [name for name in SECTIONS if name in options.sections]
        return run(names, options.out, machine, plan or make_plan(options.quick, machine["platform"]))


if __name__ == "__main__":
    sys.exit(main())

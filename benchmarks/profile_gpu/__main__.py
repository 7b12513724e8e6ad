"""Measure section by section, and write the files of the report completely or not at all."""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environment, quiet
from benchmarks.files import rounded, write_json
from benchmarks.profile_gpu import pictures, report
from benchmarks.profile_gpu.measuring import failure, make_plan
from benchmarks.profile_gpu.sections import SECTIONS
from benchmarks.text import environment_text, positive

__all__ = ["main"]

FORMAT = 2  # of the result file
REPORT = "report.html"
# What the measurements and the report import in addition to the package's dependencies.
NEEDED = ("jinja2", "matplotlib", "psutil")
# This file lists the files of a report, the only ones that a new report removes.
LIST = "files.json"


class Dots:
    """Show progress within a section: a dot at most every second."""

    def __init__(self):
        self.last = time.monotonic()

    def __call__(self):
        if time.monotonic() - self.last > 1:
            print(".", end="", flush=True)
            self.last = time.monotonic()


def measure(plan, names):
    """Return the data of each section, and whether Ctrl-C ended the run before the last one.

    A failing section gives its error and does not stop the others. An interrupted one is left out.
    """
    found = {}
    for name in [name for name in SECTIONS if name in names]:
        print(f"  {SECTIONS[name].title} ", end="", flush=True)
        start = time.perf_counter()
        try:
            found[name], state = SECTIONS[name].measure(plan, Dots()), "done"
        except KeyboardInterrupt:
            print(" interrupted", flush=True)
            return found, True
        except Exception as error:
            found[name] = {"error": failure(error)}
            state = f"FAILED, {found[name]['error']}"
        print(f" {state}, {time.perf_counter() - start:.1f} s", flush=True)
    return found, False


def run(options, folder, plan=None):
    """Measure the requested sections, write the page and the pictures to `folder`, and return the result.

    An interrupted run gives the sections that it finished; KeyboardInterrupt is raised if there are none.
    """
    start = time.perf_counter()
    machine = environment.describe()
    state = quiet.check()
    print(f"{environment_text(machine)}\n  {state.text()}", flush=True)
    plan = plan or make_plan(options.quick, machine["platform"], folder)
    plan = plan._replace(folder=folder, rounds=options.rounds or plan.rounds)
    with environment.without_cache():
        sections, interrupted = measure(plan, options.sections)
    if not sections:
        raise KeyboardInterrupt
    if interrupted and "trace" not in sections:
        shutil.rmtree(folder / "trace", ignore_errors=True)
    if state.quiet:  # another program may have started meanwhile
        state = quiet.check()
    settings = {name: value for name, value in plan._asdict().items() if name != "folder"}
    result = {"format": FORMAT, "program": "profile_gpu", "environment": machine, "machine_state": state.as_dict()}
    result |= {"options": settings, "seconds": time.perf_counter() - start, "sections": sections}
    result["interrupted"] = interrupted
    drawn = pictures.draw(result)
    for name, (_, png) in drawn.items():
        (folder / f"{name}.png").write_bytes(png)
    text = report.page(result, {name: svg for name, (svg, _) in drawn.items()})
    (folder / REPORT).write_text(text, encoding="utf-8")
    return result


def listed(out):
    """Return the names of the files of an earlier report in `out`, or None if there is no report."""
    try:
        return [str(name) for name in json.loads((out / LIST).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return None


def publish(work, out):
    """Move a finished report from `work` to `out`, and remove the rest of the previous report there."""
    before = listed(out) or []
    names = sorted(path.name for path in work.iterdir())
    (work / LIST).write_text(json.dumps(names), encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    for name in {Path(name).name for name in before} - {REPORT}:
        path = out / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    # Replace the page last, so that the previous one stays until then.
    for name in sorted([*names, LIST], key=lambda name: name == REPORT):
        os.replace(work / name, out / name)


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_gpu",
        description="Profile time and memory on this machine: one HTML page with tables and pictures.",
    )
    parser.add_argument("--quick", action="store_true", help="use smaller sizes and fewer rounds; about two minutes")
    parser.add_argument("--out", type=Path, default=Path("profile"), help="folder of the report; default: %(default)s")
    names = tuple(SECTIONS)
    detail = f"measure only these sections: {', '.join(names)}"
    parser.add_argument("--sections", nargs="+", choices=names, default=names, metavar="NAME", help=detail)
    parser.add_argument("--rounds", type=positive, help="number of rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all measurements, with the environment")
    return parser


def refusal(options, out):
    """Return why the paths in `options` cannot be written, or None."""
    if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
        return f"--json {options.json}: name a file in a folder that exists"
    if out.exists() and not out.is_dir():
        return f"--out {options.out} is a file; name a folder"
    if out.is_dir() and any(out.iterdir()) and listed(out) is None:
        return f"--out {options.out} contains files but no report; name another folder"
    return None


def main(arguments=None, plan=None):
    """Profile this machine and write the report; return the exit code, which is 0 even if a section failed."""
    options = parser().parse_args(arguments)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"the profile needs {', '.join(missing)}: pip install -e '.[bench]'", file=sys.stderr)
        return 2
    out = options.out.resolve()
    if reason := refusal(options, out):
        print(reason, file=sys.stderr)
        return 2
    # By default, JAX reserves three quarters of a GPU's memory, which other programs may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as work:
            result = run(options, Path(work), plan)
            publish(Path(work), out)
        if options.json is not None:
            write_json(options.json, rounded(result))
    except KeyboardInterrupt:
        print("\ninterrupted; no report was written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"\n{error}; `pip install -e '.[bench]'` installs what the profile needs", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"\ncannot write the report: {error}", file=sys.stderr)
        return 1
    text = f"{result['seconds']:.0f} s; written to {options.out / REPORT}"
    if result["interrupted"]:
        count = len(result["sections"])
        print(f"\ninterrupted: only {count} of {len(set(options.sections))} sections; {text}", file=sys.stderr)
        return 130
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure section by section, and write the files of the report completely or not at all."""

import argparse
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
# Lists the files of a report, in its folder. A new report removes only these.
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
    """Return the data of each section; a failing section gives its error and does not stop the others."""
    found = {}
    for name in [name for name in SECTIONS if name in names]:
        print(f"  {SECTIONS[name].title} ", end="", flush=True)
        start = time.perf_counter()
        try:
            found[name], state = SECTIONS[name].measure(plan, Dots()), "done"
        except Exception as error:
            found[name] = {"error": failure(error)}
            state = f"FAILED, {found[name]['error']}"
        print(f" {state}, {time.perf_counter() - start:.1f} s", flush=True)
    return found


def run(given, folder, plan=None):
    """Measure the requested sections, write the page and the pictures to `folder`, and return the result."""
    start = time.perf_counter()
    about = environment.describe()
    state = quiet.check()
    print(f"{environment_text(about)}\n  {state.text()}", flush=True)
    plan = plan or make_plan(given.quick, about["platform"], folder)
    plan = plan._replace(folder=folder, rounds=given.rounds or plan.rounds)
    with environment.without_cache():
        sections = measure(plan, given.sections)
    if state.quiet:  # another program may have started meanwhile
        state = quiet.check()
    options = {name: value for name, value in plan._asdict().items() if name != "folder"}
    result = {"format": FORMAT, "program": "profile_gpu", "environment": about, "machine_state": state.as_dict()}
    result |= {"options": options, "seconds": time.perf_counter() - start, "sections": sections}
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
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_gpu",
        description="Profile time and memory on this machine: one HTML page with tables and pictures.",
    )
    made.add_argument("--quick", action="store_true", help="use smaller sizes and fewer turns: about two minutes")
    made.add_argument("--out", type=Path, default=Path("profile"), help="folder of the report; default: %(default)s")
    names = tuple(SECTIONS)
    made.add_argument("--sections", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument("--rounds", type=positive, help="number of turns of each competitor")
    made.add_argument("--json", metavar="FILE", type=Path, help="also write all measurements, with the environment")
    return made


def refusal(given, out):
    """Return why the given paths cannot be written, or None."""
    if given.json is not None and (given.json.is_dir() or not given.json.parent.is_dir()):
        return f"--json {given.json}: name a file in a folder that exists"
    if out.exists() and not out.is_dir():
        return f"--out {given.out} is a file; name a folder"
    if out.is_dir() and any(out.iterdir()) and listed(out) is None:
        return f"--out {given.out} holds files that are not a report; name another folder"
    return None


def main(arguments=None, plan=None):
    """Profile and write the report; return the exit code, 0 even if a section failed, which the page states."""
    given = parser().parse_args(arguments)
    out = given.out.resolve()
    if reason := refusal(given, out):
        print(reason, file=sys.stderr)
        return 2
    # By default JAX reserves three quarters of a GPU, which would hide the memory of single calls.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as work:
            result = run(given, Path(work), plan)
            publish(Path(work), out)
        if given.json is not None:
            write_json(given.json, rounded(result))
    except KeyboardInterrupt:
        print("\ninterrupted; no report was written", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"\n{error}; `pip install -e '.[bench]'` installs what the profile needs", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"\ncannot write the report: {error}", file=sys.stderr)
        return 1
    print(f"{result['seconds']:.0f} s; written to {given.out / REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

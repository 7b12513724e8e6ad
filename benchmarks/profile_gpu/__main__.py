"""The command line: what is measured, in which order, and files that appear whole or not at all."""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks import environment
from benchmarks.files import rounded, write_json
from benchmarks.profile_gpu import plan as planning
from benchmarks.text import environment_text, install_command, positive

__all__ = ["main"]

FORMAT = 1  # of the result file
REPORT = "report.html"
# Libraries of the extra `bench`, and what the report has without them.
NEEDS = {"matplotlib": "no pictures", "numpyro": "no comparison with NumPyro"}
# Names what a report is made of, in its folder: nothing else there is touched, and nothing of an older one is left.
LIST = "files.json"


def measures():
    """Map the sections to what measures them; JAX is imported here and not before its variables are set."""
    from benchmarks.profile_gpu import exactness, programs, roofline, sizes, variants

    return {
        "compile": programs.compiling,
        "roofline": roofline.measure,
        "batch": sizes.batch,
        "memory": sizes.memory,
        "donation": sizes.donation,
        "prefetch": sizes.prefetch,
        "transfer": sizes.transfer,
        "precision": variants.precision,
        "keys": variants.key_implementations,
        "devices": variants.devices,
        "trace": programs.trace,
        "log": programs.compile_log,
        "accuracy": exactness.measure,
    }


def measure(plan, sections, say=print):
    """Data of each section; a section that fails says how, and the others are measured all the same."""
    from benchmarks.profile_gpu import measuring

    table, found = measures(), {}
    # Memory first: devices tell the most they ever held, and later sections hold more.
    for name in sorted(planning.SECTIONS, key=lambda name: name != "memory"):
        if name not in sections:
            continue
        say(f"{name}: {planning.SECTIONS[name]}", end=" ", flush=True)
        start = time.perf_counter()
        try:
            found[name] = table[name](plan)
        except Exception as error:
            told = "".join(traceback.format_exception(error)[-3:])
            found[name] = {"error": measuring.failure(error), "told": told[-2000:]}
        found[name]["seconds_taken"] = time.perf_counter() - start
        failed = f"FAILED, {found[name]['error']}" if "error" in found[name] else "done"
        say(f"- {failed}, {found[name]['seconds_taken']:.1f} s", flush=True)
    return {name: found[name] for name in planning.SECTIONS if name in found}


def written(out):
    """Names of what an earlier report has in the folder `out`; None if there is none of ours."""
    try:
        return [str(name) for name in json.loads((out / LIST).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return None


def publish(work, out):
    """Move what lies in `work` to the folder `out`, and then remove what is left of the report before."""
    before = written(out) or []
    names = sorted(path.name for path in work.iterdir())
    (work / LIST).write_text(json.dumps(names), encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".old", dir=out.parent) as old:
        # The page last: until it is there, the one before is.
        for name in [*(name for name in names if name != REPORT), LIST, *(name for name in names if name == REPORT)]:
            if (out / name).is_dir():  # folders cannot be replaced at once
                os.rename(out / name, Path(old) / name)
            os.replace(work / name, out / name)
        for name in set(before) - set(names):
            path = out / Path(name).name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def work_folder(out):
    """A folder beside `out`, on the same disk, that is removed however this ends."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(result, work):
    """Write the pictures and the page of a result to `work`; returns why there are no pictures, if so."""
    from benchmarks.profile_gpu import pictures, report

    try:
        drawn, reason = pictures.draw(result), None
    except ImportError as error:
        drawn, reason = [], str(error)
    for picture in drawn:
        if picture.png is not None:
            (work / f"{picture.name}.png").write_bytes(picture.png)
    (work / REPORT).write_text(report.page(result, drawn, reason), encoding="utf-8")
    return reason


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_gpu",
        description="Where time and memory go on this machine, with pictures: one HTML report.",
    )
    made.add_argument("--quick", action="store_true", help="about two minutes on two cores, else about ten")
    made.add_argument("--out", type=Path, default=Path("profile"), help="folder of the report; %(default)s")
    names = tuple(planning.SECTIONS)
    made.add_argument("--sections", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    made.add_argument("--rounds", type=positive, help="turns of each competitor")
    made.add_argument("--json", metavar="FILE", type=Path, help="write all that was measured, with the environment")
    made.add_argument("--child", help=argparse.SUPPRESS)
    return made


def child(order):
    """Measure on the devices of this process, and print the result as one line."""
    import jax

    from benchmarks.profile_gpu import variants

    given = json.loads(order)
    print(json.dumps(variants.sharded(planning.Plan(**given), jax.local_devices())))
    return 0


def say_what_is_missing(sections):
    """Print what the report will lack because a library is not installed, and the command that installs it."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if "accuracy" not in sections:
        missing = [name for name in missing if name != "numpyro"]
    for name in missing:
        print(f"{name} is not installed: {NEEDS[name]}", file=sys.stderr)
    if missing:
        print(f"install what is missing: {install_command('bench')}", file=sys.stderr)


def run(given, work, plan=None):
    """Measure what was asked for, and write the report to `work`; returns the result."""
    start = time.perf_counter()
    found = environment.describe()
    plan = plan or planning.make(given.quick, found["platform"], work)
    plan = plan._replace(folder=work, rounds=given.rounds or plan.rounds)
    print(environment_text(found))
    if not plan.on_gpu:
        print("  No GPU: this profiles a CPU, and what it finds says little about a GPU.")
    say_what_is_missing(given.sections)
    with environment.without_cache():
        sections = measure(plan, given.sections)
    options = {name: value for name, value in plan._asdict().items() if name != "folder"}
    result = {"format": FORMAT, "program": "profile_gpu", "environment": found, "options": options}
    result |= {"seconds": time.perf_counter() - start, "sections": sections}
    reason = write(result, work)
    if reason:
        print(f"no pictures: {reason}", file=sys.stderr)
    return result


def main(arguments=None, plan=None):
    """Profile and write the report; returns the exit code, 0 also where a section failed and the report says so."""
    given = parser().parse_args(arguments)
    # JAX takes three quarters of a GPU at start otherwise, and the other libraries need room beside it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if given.child is not None:
        return child(given.child)
    if given.json is not None and (given.json.is_dir() or not given.json.parent.is_dir()):
        what = "is a folder" if given.json.is_dir() else f"there is no folder {given.json.parent}"
        print(f"--json {given.json}: {what}; name a file in a folder that is there", file=sys.stderr)
        return 2
    out = given.out.resolve()
    if out.exists() and not out.is_dir():
        print(f"--out {given.out} is a file; name a folder", file=sys.stderr)
        return 2
    if out.is_dir() and any(out.iterdir()) and written(out) is None:
        print(f"--out {given.out} holds files that are no report; name another folder", file=sys.stderr)
        return 2
    state = "nothing was written, an older report is as it was"
    try:
        with work_folder(out) as work:
            result = run(given, work, plan)
            state = f"{given.out} may hold parts of two reports: run it again"
            publish(work, out)
        state = f"the report is in {given.out}, and --json was not written"
        if given.json is not None:
            write_json(given.json, rounded(result))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {state}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"\ncannot write the report: {error}", file=sys.stderr)
        return 1
    print(f"{result['seconds']:.0f} s in all; written to {given.out / REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

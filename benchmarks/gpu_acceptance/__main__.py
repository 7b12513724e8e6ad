"""Run the checks and the timings, and compare the rates with the goals."""

import argparse
import functools
import json
import sys
import time

from benchmarks import environment
from benchmarks.files import new_file, read_json, rounded, write_json
from benchmarks.gpu_acceptance.plan import FULL, QUICK, TINY
from benchmarks.text import environment_text, install_command, table, time_text

__all__ = ["main"]

FORMAT = 1
# The names of `checks.CHECKS`, and the timings as "speed"; the longest parts come last.
PARTS = (
    *("kernels", "words", "angles", "arrays", "parameters", "dtypes", "sizes", "huge", "gradients", "transformations"),
    *("speed", "outside", "distributions"),
)


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_acceptance",
        description="Check the accuracy and the speed of the sampler on a GPU.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="test each distribution with a hundredth of the angles; use fewer rounds"
    )
    parser.add_argument(
        "--every-size", action="store_true", help="check all sizes from 1 to 4099; each compiles a program"
    )
    detail = f"run only these parts, even if FILE has them: checks (all parts but speed), {', '.join(PARTS)}"
    parser.add_argument("--only", nargs="+", choices=("checks", *PARTS), metavar="PART", default=[], help=detail)
    detail = "write the result after each part; continue from an existing file"
    parser.add_argument("--json", metavar="FILE", type=new_file, help=detail)
    parser.add_argument("--picture", metavar="FILE", type=new_file, help="draw the rates (.svg, .png)")
    # For the tests: run every line of the program on any device.
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return parser


def plan_of(options):
    """Return the plan that the options select."""
    plan = TINY if options.tiny else QUICK if options.quick else FULL
    return plan._replace(sizes=tuple(range(1, 4100))) if options.every_size else plan


def speed_text(rows, missing):
    """Return the table of rates."""
    lines = [("", "numbers", "time", "G/s", "GB/s", "of memory rate", "")]
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["rate"]):
        rates = f"{row['rate'] / 1e9:.3g}", f"{row['bytes_per_second'] / 1e9:.3g}", f"{row['share_of_memory']:.0%}"
        lines.append((name, f"{row['count']:,}", time_text(row["seconds"]), *rates, "noisy" if row["noisy"] else ""))
    return "\n".join([table(lines), *(f"  {name}: {why}" for name, why in missing.items())])


def verdict_text(verdicts):
    """Yield a line for each goal."""
    for found in verdicts:
        unit = " in bytes per second" if found["of_bytes"] else ""
        reached = found["why"] if found["ratio"] is None else f"{found['ratio']:.3g}"
        goal = f"{found['name']}: at least {found['at_least']:g} x {found['peer']}{unit}"
        yield f"  {found['state']}: {goal}: {reached}"


def identity(result):
    """Return the fields that must agree between a file and this run, so that the run can continue from the file."""
    machine = result["environment"]
    fields = {name: result[name] for name in ("format", "program", "plan")}
    return fields | {name: machine[name] for name in ("device", "commit", "versions")}


def begun(path, result):
    """Return the result in the file, or `result` if there is none; raise ValueError if another run wrote the file."""
    if path is None:
        return result
    if not path.exists():
        left = [file.name for file in path.parent.iterdir() if file.name.startswith(f"{path.stem}.distributions.")]
        if left:
            raise ValueError(f"found counts from another run in {', '.join(left)}; remove them, or name another file.")
        return result
    try:
        before = read_json(path)
        differs = [name for name, value in identity(before).items() if value != identity(result)[name]]
        rows = [(row["part"], row["ok"], row["check"], row["detail"]) for row in before["checks"]]
        seconds = float(before["seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a result of this program: {error}. Name another file.") from error
    if differs:
        raise ValueError(f"{path} is from another run (different {', '.join(differs)}). Name another file.")
    print(f"continuing from {path}: {len(rows)} checks, {seconds:.0f} s so far")
    return before


def to_make(options, result):
    """Return the requested parts, by default those that the result lacks or that have checks that could not be run."""
    if options.only:
        requested = {part for part in PARTS if part != "speed"} if "checks" in options.only else set()
        return [part for part in PARTS if part in requested.union(options.only)]
    done = {row["part"]: True for row in result["checks"]} | {"speed": "speed" in result}
    done |= {row["part"]: False for row in result["checks"] if row["ok"] is None}
    return [part for part in PARTS if not done.get(part)]


def make(part, plan, result, state):
    """Run a part and store its outcome in the result."""
    from benchmarks.gpu_acceptance import checks, speed

    print(f"\n{part}", flush=True)
    if part == "speed":
        rows, missing = speed.measure(plan)
        verdicts = speed.judge(rows, missing)
        result |= {"speed": rows, "missing": missing, "verdicts": verdicts}
        print(speed_text(rows, missing))
        print("\ngoals\n" + "\n".join(verdict_text(verdicts)), flush=True)
        return
    check = checks.CHECKS[part]
    found = checks.run(functools.partial(check, state=state) if part == "distributions" else check, plan)
    kept = [row for row in result["checks"] if row["part"] != part]
    result["checks"] = kept + [{"part": part, **each._asdict()} for each in found]


def main(arguments=None):
    """Run the program; return 0 if all checks pass and no goal is missed, 1 if not, and 2 if it cannot run here."""
    options = parser().parse_args(arguments)
    start = time.perf_counter()
    machine = environment.describe()
    if not options.tiny and (reason := unfit(machine)):
        print(f"gpu_acceptance: {reason} Nothing was done.", file=sys.stderr)
        return 2
    print(environment_text(machine))
    from benchmarks.gpu_acceptance import checks
    from jax_von_mises.sampling import cuda

    plan = plan_of(options)
    result = {"format": FORMAT, "program": "gpu_acceptance", "environment": machine, "plan": plan._asdict()}
    # Convert the result to the form that `begun` reads from a file.
    result = json.loads(json.dumps(rounded(result | {"checks": [], "seconds": 0.0})))
    try:
        result = begun(options.json, result)
    except ValueError as error:
        print(f"gpu_acceptance: {error} Nothing was done.", file=sys.stderr)
        return 2
    before = result["seconds"]

    def keep():
        result["seconds"] = before + time.perf_counter() - start
        if options.json is not None:
            write_json(options.json, rounded(result))

    keep()
    state = None if options.json is None else options.json.with_suffix(".distributions")
    # Turn the kernels on, even if this machine has not tried them or the environment turns them off.
    with environment.without_cache(), checks.switched("1"):
        for part in to_make(options, result):
            make(part, plan, result, state)
            result["drawn by"] = cuda.kernel_report()
            keep()
        print(f"\ndrawn by {cuda.kernel_report() or 'the plain path'}")
    lacking = [part for part in PARTS if part not in {row["part"] for row in result["checks"]} | result.keys()]
    wrong = [row["check"] for row in result["checks"] if row["ok"] is False]
    missed = [each["name"] for each in result.get("verdicts", []) if each["state"] == "MISSED"]
    print(f"{len(result['checks'])} checks, wrong: {', '.join(wrong) or 'none'}")
    print(f"goals missed: {', '.join(missed) or 'none'}; not run so far: {', '.join(lacking) or 'nothing'}")
    if options.picture is not None and "speed" in result:
        draw_picture(options.picture, result)
    written = f", written to {options.json}" if options.json is not None else ""
    print(f"\n{result['seconds']:.0f} s in total{written}")
    return 1 if wrong or missed else 0


def unfit(machine):
    """Return why the program cannot run here, or None."""
    if machine["platform"] != "gpu" or not has("cuda"):
        detail = f"JAX runs on {machine['platform']} here, but this program needs a CUDA device."
        return f"{detail} `jax-von-mises doctor --expect cuda` shows why JAX does not use one."
    if not has("cpu"):
        return "JAX has no CPU device to compare with; keep cpu in JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
    if machine["device_count"] > 1:
        return "there are several devices, but the program measures only one; set CUDA_VISIBLE_DEVICES=0."
    return None


def has(platform):
    """Return whether JAX has a device of the platform."""
    import jax

    try:
        return bool(jax.local_devices(backend=platform))
    except RuntimeError:
        return False


def draw_picture(path, result):
    """Write the picture, or print why there is none."""
    from benchmarks.gpu_acceptance import pictures

    figure = pictures.picture(result)
    if figure is None:
        print(f"no picture, because matplotlib is not installed; install it with {install_command('plots')}")
    else:
        figure.savefig(path)
        print(f"picture written to {path}")


if __name__ == "__main__":
    sys.exit(main())

"""The command line: checks, then times, then verdicts."""

import argparse
import os
import sys
import time

from benchmarks import environment
from benchmarks.files import finish, new_file, rounded
from benchmarks.gpu_acceptance.plan import FULL, QUICK, TINY
from benchmarks.text import environment_text, table, time_text

__all__ = ["main"]

FORMAT = 1


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_acceptance", description="Whether the sampler is right and fast on a GPU."
    )
    made.add_argument("--quick", action="store_true", help="a hundredth of the angles, and fewer sizes and rounds")
    made.add_argument("--every-size", action="store_true", help="all sizes from 1 to 4099, each a program to compile")
    made.add_argument("--only", choices=("checks", "speed"), help="one of the two parts")
    made.add_argument("--json", metavar="FILE", type=new_file, help="write everything that was found")
    made.add_argument("--picture", metavar="FILE", type=new_file, help="draw the rates (.svg, .png)")
    # All lines of the program on whatever there is, for its tests.
    made.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return made


def plan_of(given):
    """How much is done."""
    plan = TINY if given.tiny else QUICK if given.quick else FULL
    return plan._replace(sizes=tuple(range(1, 4100))) if given.every_size else plan


def speed_text(rows, missing):
    """The table of rates."""
    lines = [("", "numbers", "a call", "G/s", "GB/s", "of memory", "")]
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["rate"]):
        rates = f"{row['rate'] / 1e9:.3g}", f"{row['bytes_per_second'] / 1e9:.3g}", f"{row['share_of_memory']:.0%}"
        lines.append((name, f"{row['count']:,}", time_text(row["seconds"]), *rates, "noisy" if row["noisy"] else ""))
    return "\n".join([table(lines), *(f"  {name}: {why}" for name, why in missing.items())])


def verdict_text(verdicts):
    """The goals, one a line."""
    for found in verdicts:
        unit = " of its bytes a second" if found["of_bytes"] else ""
        reached = found["why"] if found["ratio"] is None else f"{found['ratio']:.3g}"
        goal = f"{found['name']}: at least {found['at_least']:g} x {found['beside']}{unit}"
        yield f"  {found['state']}: {goal}: {reached}"


def main(arguments=None):
    """Run; 0 if all is right and no goal is missed, 1 if not, 2 where it cannot be run."""
    given = parser().parse_args(arguments)
    start = time.perf_counter()
    found = environment.describe()
    if not given.tiny and (reason := unfit(found)):
        print(f"gpu_acceptance: {reason} Nothing was done.", file=sys.stderr)
        return 2
    print(environment_text(found))
    from benchmarks.gpu_acceptance import checks, speed
    from jax_von_mises import cuda

    # On a card that is not accepted yet they are off by themselves.
    os.environ.setdefault(cuda.VARIABLE, "1")
    plan = plan_of(given)
    result = {"format": FORMAT, "program": "gpu_acceptance", "environment": found, "plan": plan._asdict()}
    checked, verdicts = [], []
    with environment.without_cache():
        if given.only != "speed":
            print("\nwhat must hold", flush=True)
            checked = checks.run(plan)
            result["checks"] = [check._asdict() for check in checked]
        if given.only != "checks":
            print("\nspeed", flush=True)
            rows, missing = speed.measure(plan)
            verdicts = speed.judge(rows, missing)
            result |= {"speed": rows, "missing": missing, "verdicts": verdicts}
            print(speed_text(rows, missing))
            print("\ngoals\n" + "\n".join(verdict_text(verdicts)))
    result["drawn by"] = cuda.report()
    print(f"\ndrawn by {cuda.report() or 'the plain path'}")
    wrong = [check.check for check in checked if check.ok is False]
    missed = [each["name"] for each in verdicts if each["state"] == "MISSED"]
    print(f"{len(checked)} checks, wrong: {', '.join(wrong) or 'none'}; goals missed: {', '.join(missed) or 'none'}")
    if given.picture is not None and verdicts:
        draw_picture(given.picture, result)
    finish(start, given.json, rounded(result))
    return 1 if wrong or missed else 0


def unfit(found):
    """Why this cannot be run here, or None."""
    if found["platform"] != "gpu" or not has("cuda"):
        told = f"JAX runs on {found['platform']} here, and this is about a CUDA device."
        return f"{told} `jax-von-mises doctor --expect cuda` says what keeps JAX from one."
    if not has("cpu"):
        return "JAX has no CPU to compare with here; leave it in JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
    if found["device_count"] > 1:
        return "there are several devices, and one is measured at a time; set CUDA_VISIBLE_DEVICES=0."
    return None


def has(platform):
    """Whether JAX has devices of a platform."""
    import jax

    try:
        return bool(jax.local_devices(backend=platform))
    except RuntimeError:
        return False


def draw_picture(path, result):
    """Write the picture, or say why there is none."""
    from benchmarks.gpu_acceptance import pictures

    figure = pictures.picture(result)
    if figure is None:
        print("no picture: matplotlib is not installed")
    else:
        figure.savefig(path)
        print(f"drawn in {path}")


if __name__ == "__main__":
    sys.exit(main())

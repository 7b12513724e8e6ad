"""Measure rates and memory of long streams to the host and the disk.

``python -m benchmarks.streaming --quick`` takes two minutes on two cores and needs 0.5 GB of free disk space. Without
``--quick`` it draws 1e9 angles (4 GB) many times. ``--directory`` selects the disk. The program removes its files at
the end, even after Ctrl-C. ``--json FILE`` saves all results for ``benchmarks.streaming.pictures``.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks import environment, quiet, timing
from benchmarks.files import finish, new_file
from benchmarks.streaming import cases, process
from benchmarks.text import NOISE, environment_text, positive, table, time_text
from jax_von_mises.streams import writer
from jax_von_mises.streams.disk import readable

__all__ = ["main"]

FORMAT = 1  # of the result file; increase it if readers of the old format would misread the new one
ROUNDS = {"quick": 3, "full": 7}
SIZE = {"quick": 10**8, "full": 10**9}

# Length and batch size of the streams to the host, whose angles are not kept.
SHORT = 2**27
HOST_BATCH = 2**22
# A stream has at least this many batches, so that work can overlap.
PARTS = 8

# Required free space relative to the size of the largest file, with room for its log and the file system's overhead.
SLACK = 1.05
MEMORY_FILES = ("tmpfs", "ramfs")

# The goals: the lowest rate relative to a plain write, and the largest number of batches in memory at a time.
WRITE_SHARE = 0.8
MOST_BATCHES = 4
BOUNDED = ("npy", "zarr", "prefetch")


class Plan(NamedTuple):
    """The sizes of the measurement."""

    size: int
    rounds: int
    mode: str

    @property
    def short(self):
        """Number of angles in a stream to the host."""
        return min(self.size, SHORT)

    @property
    def block(self):
        """Number of angles in a block on the disk."""
        return min(writer.BLOCK_NUMBERS, self.size // PARTS)

    @property
    def bytes(self):
        """Free space in bytes that the largest file needs."""
        return int(SLACK * self.size * cases.ITEM) + 2**22


def compare(runs, count, rounds, clock=time.perf_counter):
    """Time runs of `count` angles that take turns; return their entries in the result file."""
    first = {name: timing.first_call(run.competitor, clock) for name, run in runs.items()}
    seconds = timing.take_turns({name: run.competitor for name, run in runs.items()}, rounds, clock)
    results = {}
    for name, run in runs.items():
        measured = timing.Timing(first[name], tuple(seconds[name]))
        fast, slow = measured.quartiles
        results[name] = {
            "label": run.label,
            "first_call_seconds": measured.first,
            "seconds": seconds[name],
            "rate": count / measured.median,
            "rate_quartiles": [count / slow, count / fast],
            "spread": measured.spread,
            "wide": measured.wide,
            "against": run.against,
        }
        if run.against is not None:
            # Divide round by round, since a machine that is slow for minutes slows both runs.
            ratios = np.divide(seconds[run.against], seconds[name])
            results[name] |= {
                "ratio": float(np.median(ratios)),
                "ratio_quartiles": [float(q) for q in np.quantile(ratios, (0.25, 0.75))],
            }
    return results


def case(title, count, runs, plan, missing=None):
    """Time one case; return its part of the result file."""
    return {"title": title, "count": count, "results": compare(runs, count, plan.rounds), "missing": missing or {}}


def host_case(plan, scratch):
    """Measure streams to an idle host, and to a host that works on each batch."""
    batch = min(HOST_BATCH, plan.short // PARTS)
    found = {}
    for name, work in (("host idle", False), ("host busy", True)):
        runs, sines = cases.host(plan.short, batch, work)
        what = (
            f"which computes {sines:.2g} sines for each angle on one core" if work else "which does nothing with them"
        )
        title = f"{plan.short:,} angles in batches of {batch:,} to the host, {what}"
        found[name] = case(title, plan.short, runs, plan) | {"batch": batch, "sines": sines}
    return found


def disk_case(plan, scratch):
    """Measure the rates of writing files and stores."""
    runs, missing = cases.disk(plan.size, plan.block, scratch)
    title = f"{plan.size:,} angles, {readable(plan.size * cases.ITEM)}, to the disk, fsync included"
    return {"disk": case(title, plan.size, runs, plan, missing)}


def memory_case(plan, scratch):
    """Record the memory of a separate process for each way to draw a long stream."""
    reasons = {"zarr": cases.missing_storage(), "save": cases.missing_memory(plan.size)}
    missing = {kind: reason for kind, reason in reasons.items() if reason is not None}
    runs = {}
    for kind, label in process.KINDS.items():
        if kind not in missing:
            report = process.run(kind, scratch.fresh(f"angles.{kind}"), plan.size, plan.block)
            trace = [[round(at, 3), total] for at, total, _ in report["trace"]]
            runs[kind] = {"label": label, "growth_bytes": report["growth"], "trace": trace}
    sizes = {"block_bytes": plan.block * cases.ITEM, "whole_bytes": plan.size * cases.ITEM}
    return {"memory": {"count": plan.size, **sizes, "results": runs, "missing": missing}}


SECTIONS = {"host": host_case, "disk": disk_case, "memory": memory_case}


def case_text(found):
    """Return one timed case as text."""
    results = found["results"]
    (against,) = {result["against"] for result in results.values()} - {None}
    rows = [("", "M angles/s", "quartiles", "GB/s", "ratio", "quartiles")]
    notes = [f"  ratio: median over the rounds of the rate divided by the rate of {results[against]['label']}"]
    if any(result["wide"] for result in results.values()):
        notes.append(f"  {NOISE}: the quartiles are too far apart, or the rounds too few, for a meaningful median")
    for result in results.values():
        low, high = (rate / 1e6 for rate in result["rate_quartiles"])
        rate, ratio = (NOISE, NOISE), ("", "")
        if not result["wide"]:
            rate = f"{result['rate'] / 1e6:.4g}", f"{result['rate'] * cases.ITEM / 1e9:.3g}"
        if "ratio" in result:
            noisy = result["wide"] or results[against]["wide"]
            ratio = NOISE if noisy else f"{result['ratio']:.2f}", "{:.2f} to {:.2f}".format(*result["ratio_quartiles"])
        rows.append((result["label"], rate[0], f"{low:.4g} to {high:.4g}", rate[1], *ratio))
    return "\n".join([found["title"], table(rows), *notes])


def memory_text(found):
    """Return the memory section as text."""
    block = found["block_bytes"]
    rows = [("", "at the start", "maximum", "growth", f"growth in batches of {readable(block)}", "time")]
    for result in found["results"].values():
        held = [total for _, total in result["trace"]]
        growth = result["growth_bytes"]
        sizes = (readable(size) for size in (held[0], max(held), growth))
        rows.append((result["label"], *sizes, f"{growth / block:.2f}", time_text(result["trace"][-1][0])))
    title = f"Memory of a process while it draws {found['count']:,} angles"
    return f"{title}\n{table(rows)}\n  the complete result takes {readable(found['whole_bytes'])}"


def section_text(name, found):
    """Return one section of the result as text."""
    text = memory_text(found) if name == "memory" else case_text(found)
    return "\n".join([text, *(f"  left out: {reason}" for reason in found["missing"].values())])


def judge(sections):
    """Compare the measurements with the goals; return a list of dicts, one for each goal."""
    found = []
    if "disk" in sections:
        ours, plain = (sections["disk"]["results"][name] for name in ("npy", "plain"))
        low, high = ours["ratio_quartiles"]
        state = "met" if low >= WRITE_SHARE else "MISSED" if high < WRITE_SHARE else "too close to tell"
        state = "too noisy" if ours["wide"] or plain["wide"] else state
        goal = f"a .npy file reaches {WRITE_SHARE:g} of the rate of a plain write"
        found.append({"goal": goal, "found": ours["ratio"], "state": state})
    if "memory" in sections:
        for kind in BOUNDED:
            if (result := sections["memory"]["results"].get(kind)) is not None:
                held = result["growth_bytes"] / sections["memory"]["block_bytes"]
                goal = f"{result['label']} holds at most {MOST_BATCHES} batches"
                found.append({"goal": goal, "found": held, "state": "met" if held <= MOST_BATCHES else "MISSED"})
    return found


def goals_text(found):
    """Return the goals as text."""
    return table([("", "measured", ""), *((each["goal"], f"{each['found']:.2f}", each["state"]) for each in found)])


def angles(text):
    """Parse a number of angles, such as 1e9."""
    value = float(text)
    if not (value.is_integer() and PARTS <= value <= 2**53):
        raise argparse.ArgumentTypeError(f"must be an integer from {PARTS} to 2^53, not {text}")
    return int(value)


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="measure fewer angles in fewer rounds")
    parser.add_argument(
        "--size",
        type=angles,
        help="number of angles written to the disk; {quick:.0e} with --quick, else {full:.0e}".format(**SIZE),
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        help="number of rounds; {quick} with --quick, else {full}".format(**ROUNDS),
    )
    parser.add_argument("--json", metavar="FILE", type=new_file, help="write all timings, traces and the environment")
    parser.add_argument("--directory", type=Path, help="directory to write to; default: the one for temporary files")
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=list(SECTIONS),
        metavar="SECTION",
        help=f"measure only these sections: {', '.join(SECTIONS)}",
    )
    return parser


def refused(plan, directory):
    """Return why the benchmark cannot write to `directory`, or None."""
    if not directory.is_dir():
        return f"--directory {directory} is not a directory; give an existing one"
    free = shutil.disk_usage(directory).free
    if free < plan.bytes:
        return (
            f"{directory} has {readable(free)} free, but {plan.size:,} angles need "
            f"{readable(plan.bytes)}; give a smaller --size or another --directory"
        )
    return None


def filesystem(directory):
    """Return the type of the file system of `directory`, such as ext4, tmpfs or nfs; None if unknown."""
    mounts = ((Path(each.mountpoint), each.fstype) for each in psutil.disk_partitions(all=True))
    containing = [(len(mount.parts), kind) for mount, kind in mounts if directory.is_relative_to(mount)]
    # Of two mounts at the same path, the later one hides the earlier one.
    return max(reversed(containing), key=lambda found: found[0], default=(0, None))[1]


def measure(plan, requested, directory):
    """Run the sections in `requested` and print their results; return the results for the result file."""
    sections = {}
    # The context removes the files even after an error.
    with tempfile.TemporaryDirectory(prefix="jax_von_mises-", dir=directory) as name:
        scratch = cases.Scratch(name)
        for section, run in SECTIONS.items():
            if section in requested:
                for part, found in run(plan, scratch).items():
                    sections[part] = found
                    print(f"\n{section_text(part, found)}", flush=True)
    return sections


def main(arguments=None):
    """Run the benchmark; return the exit code, which is 0 even if goals are missed."""
    options = parser().parse_args(arguments)
    mode = "quick" if options.quick else "full"
    plan = Plan(options.size or SIZE[mode], options.rounds or ROUNDS[mode], mode)
    directory = (options.directory or Path(tempfile.gettempdir())).resolve()  # child processes run in another directory
    reason = refused(plan, directory)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    # By default, JAX reserves three quarters of a GPU's memory, but the child processes need memory, too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    start = time.perf_counter()
    state = quiet.check()
    machine = environment.describe()
    disk = {"filesystem": filesystem(directory), "free_bytes": shutil.disk_usage(directory).free}
    memory = psutil.virtual_memory()
    print(environment_text(machine))
    print(
        f"  file system {disk['filesystem'] or 'unknown'}, {readable(disk['free_bytes'])} free; "
        f"{readable(memory.available)} of memory free"
    )
    print(f"  {state.text()}")
    if disk["filesystem"] in MEMORY_FILES:
        print("  warning: this file system is in memory; give a directory on a disk with --directory")
    print(f"  Medians of {plan.rounds} rounds, in which the runs take turns in random order, without first calls.")
    try:
        sections = measure(plan, options.sections, directory)
    except KeyboardInterrupt:
        print("\ninterrupted; all files of this run have been removed", file=sys.stderr)
        return 130
    except (OSError, process.Failed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    judged = []
    if not state.quiet:
        print(f"\n{quiet.BUSY}")
    elif plan.size < SIZE["quick"]:
        print(f"\nNo goals are judged, since a disk is measured reliably only with {SIZE['quick']:,} angles or more")
    elif judged := judge(sections):
        print(f"\nGoals\n{goals_text(judged)}")
    finish(
        start,
        options.json,
        {
            "format": FORMAT,
            "program": "streaming",
            "environment": machine,
            "machine_state": state.as_dict(),
            "disk": disk,
            "memory": {"total": memory.total, "available": memory.available},
            "options": {"mode": mode, "size": plan.size, "rounds": plan.rounds, "block": plan.block},
            "sections": sections,
            "goals": judged,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

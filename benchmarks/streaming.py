"""Long streams: drawing, copies to the host, files and stores, processes and memory, beside what users write by hand.

``python -m benchmarks.streaming --quick`` takes a few minutes on two cores and needs 0.5 GB of free disk; without
``--quick`` 1e9 angles, 4 GB, are drawn many times. ``--directory`` says which disk is measured: everything that is
written there is removed at the end, also after Ctrl-C. Prints a table for each case and a verdict; ``--json FILE``
keeps all of it for ``python -m benchmarks.streaming_plots FILE`` and ``python -m benchmarks.scaling --from FILE``.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import environment, goals, memory, stream_cases, stream_process, timing
from benchmarks.files import finish, new_file
from benchmarks.text import NOISE, environment_text, positive, table, time_text, wide_text
from jax_von_mises.streams import checkpoint, writer

__all__ = ["main"]

FORMAT = 1  # of the result file; grows when a reader of old files would misread a new one
ROUNDS = {"quick": 3, "full": 7}
SIZE = {"quick": 10**8, "full": 10**9}

# What keeps nothing shows its speed with fewer angles; enough for eight of the largest batches.
SHORT = 2**27
BATCHES = (2**20, 2**22, 2**24)
HOST_BATCH = 2**22
# A batch is at most this share of the stream, so that there is something to overlap.
PARTS = 8

# Numbers of blocks at which the record is timed: its text grows with them.
RECORDED = {"quick": (1_000, 10_000), "full": (1_000, 100_000)}

# Beyond the largest file: the record, and what the file system keeps for itself.
SLACK = 1.05
MEMORY_FILES = ("tmpfs", "ramfs")

SECTIONS = ("draw", "host", "apply", "disk", "record", "processes", "memory")
PROCESSES = (1, 2)
TRACED = ("npy", "zarr", "prefetch")
LABELS = {"npy": "write_samples to .npy", "zarr": "write_samples to Zarr", "prefetch": "prefetch_to_host"}

# The goals: a share of the rate of a plain write, and batches that are in memory at a time.
WRITE_SHARE = 0.8
MOST_BATCHES = 4


class Plan(NamedTuple):
    """What is measured, and how large."""

    size: int
    rounds: int
    mode: str
    sections: tuple[str, ...]

    @property
    def short(self):
        """Angles of the cases that keep nothing."""
        return min(self.size, SHORT)

    def batch(self, size, total):
        """`size`, or less for a stream that is short."""
        return min(size, max(1, total // PARTS))

    @property
    def block(self):
        """Angles of a block on the disk."""
        return self.batch(writer.BLOCK_ANGLES, self.size)

    @property
    def bytes(self):
        """Bytes of the largest file."""
        return int(SLACK * self.size * stream_cases.ITEM) + 2**22


def compare(runs, count, rounds, clock=time.perf_counter):
    """Time runs of `count` angles in turns; returns their entries of the result file."""
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
            # Round by round: what slows the machine for minutes slows both.
            ratios = np.divide(seconds[run.against], seconds[name])
            results[name] |= {
                "ratio": float(np.median(ratios)),
                "ratio_quartiles": [float(q) for q in np.quantile(ratios, (0.25, 0.75))],
            }
    return results


def case(title, count, runs, plan, missing=None):
    """Time one case; returns its part of the result file."""
    return {
        "title": title,
        "count": count,
        "results": compare(runs, count, plan.rounds),
        "missing": missing or {},
    }


def draw_case(plan, scratch):
    """Drawing alone."""
    sizes = sorted({plan.batch(size, plan.short) for size in BATCHES})
    title = f"Drawing {plan.short:,} angles in batches, nothing kept"
    return {"draw": case(title, plan.short, stream_cases.draw(plan.short, sizes), plan)}


def host_case(plan, scratch):
    """Streams to the host."""
    batch = plan.batch(HOST_BATCH, plan.short)
    found = {}
    for name, work in (("host idle", False), ("host busy", True)):
        runs, sines = stream_cases.host(plan.short, batch, work)
        what = f"which takes {sines:.2g} sines an angle on one core" if work else "which does nothing with them"
        title = f"{plan.short:,} angles in batches of {batch:,} to the host, {what}"
        found[name] = case(title, plan.short, runs, plan) | {"batch": batch, "sines": sines}
    return found


def apply_case(plan, scratch):
    """A function over a long array."""
    batch = plan.batch(HOST_BATCH, plan.short)
    runs = stream_cases.apply(plan.short, batch, scratch)
    title = f"log_prob at the {plan.short:,} angles of a memory-mapped file, in batches of {batch:,}"
    found = case(title, plan.short, runs, plan) | {"batch": batch}
    for name, run in runs.items():
        # Apart from the timing, which a thread that looks so often would disturb. Pages of the mapped file do not
        # count: the system may drop them at any time.
        try:
            with memory.Trace(0.002) as trace:
                run.competitor.draw(None)
            found["results"][name]["peak_bytes"] = trace.growth(private=True)
        except ImportError as reason:
            found["missing"]["peak memory"] = str(reason)
    return {"apply": found}


def disk_case(plan, scratch):
    """Files and stores."""
    runs, missing = stream_cases.disk(plan.size, plan.block, scratch)
    title = f"{plan.size:,} angles, {checkpoint.readable(plan.size * stream_cases.ITEM)}, to the disk, fsync included"
    return {"disk": case(title, plan.size, runs, plan, missing)}


def record_case(plan, scratch):
    """What it costs to check and to record a block, once many are recorded."""
    costs = {}
    for kind in ("npy", "zarr") if stream_cases.storage() is None else ("npy",):
        few, many = RECORDED[plan.mode]
        low, high = (stream_cases.record_seconds(kind, blocks, scratch) for blocks in (few, many))
        slope = max((high - low) / (many - few), 0.0)
        costs[kind] = {
            "blocks": [few, many],
            "seconds": [low, high],
            "seconds_each": max(low - slope * few, 0.0),
            "seconds_each_per_block_done": slope,
        }
    return {"record": {"checksum_rate": stream_cases.checksum_rate(writer.BLOCK_ANGLES), "results": costs}}


def processes_case(plan, scratch):
    """One and two processes that fill one store together."""
    reason = stream_cases.storage()
    if reason is not None:
        return {"processes": {"count": plan.size, "results": {}, "missing": {"zarr": reason}}}
    reports = {parts: [] for parts in PROCESSES}
    order = random.Random(0)
    for number in range(plan.rounds):
        for parts in order.sample(PROCESSES, len(PROCESSES)):
            common = {
                "kind": "zarr",
                "path": os.fspath(scratch.fresh("together.zarr")),
                "total": plan.size,
                "block": plan.block,
                "parts": parts,
                "seed": number,
                "trace": False,
            }
            reports[parts].append(stream_process.run([common | {"part": part} for part in range(parts)]))
    results = {}
    for parts, rounds in reports.items():
        # A phase lasts until the last process is through.
        phases = {
            "start_up": [max(found["imported"] for found in each) for each in rounds],
            "compile": [max(found["compiled"] - found["imported"] for found in each) for each in rounds],
            "steady": [max(found["written"] for found in each) for each in rounds],
            "finish": [max(f["finished"] for f in each) - max(f["written"] for f in each) for each in rounds],
        }
        fast, slow = np.quantile(phases["steady"], (0.25, 0.75))
        results[str(parts)] = {
            "seconds": phases,
            "rate": plan.size / float(np.median(phases["steady"])),
            "rate_quartiles": [float(plan.size / slow), float(plan.size / fast)],
        }
    return {"processes": {"count": plan.size, "block": plan.block, "results": results, "missing": {}}}


def memory_case(plan, scratch):
    """What a process holds while it draws a long stream."""
    runs, missing = {}, {}
    for kind in TRACED:
        reason = stream_cases.storage() if kind == "zarr" else None
        if reason is None:
            try:
                memory.resident()
            except ImportError as error:
                reason = str(error)
        if reason is not None:
            missing[kind] = reason
            continue
        order = {
            "kind": kind,
            "path": os.fspath(scratch.fresh(f"angles.{kind}")),
            "total": plan.size,
            "block": plan.block,
            "part": 0,
            "parts": 1,
            "seed": 0,
            "trace": True,
        }
        (report,) = stream_process.run([order])
        runs[kind] = {
            "label": LABELS[kind],
            "growth_bytes": report["growth"],
            "trace": [[round(at, 3), total] for at, total, _ in report["trace"]],
        }
    return {
        "memory": {
            "count": plan.size,
            "block_bytes": plan.block * stream_cases.ITEM,
            "whole_bytes": plan.size * stream_cases.ITEM,
            "interval": stream_process.INTERVAL,
            "results": runs,
            "missing": missing,
        }
    }


MEASURE = dict(
    zip(
        SECTIONS,
        (draw_case, host_case, apply_case, disk_case, record_case, processes_case, memory_case),
        strict=True,
    )
)


def case_text(found):
    """Lay out one case as text."""
    peaks = any("peak_bytes" in result for result in found["results"].values())
    rows = [("", "M angles/s", "quartiles", "GB/s", "time", "first", "faster by", "quartiles")]
    if peaks:
        rows[0] += ("peak memory",)
    labels = {name: result["label"] for name, result in found["results"].items()}
    notes = [f"  left out: {reason}" for reason in found["missing"].values()]
    against = {labels[result["against"]] for result in found["results"].values() if result["against"] is not None}
    for name, result in found["results"].items():
        low, high = (rate / 1e6 for rate in result["rate_quartiles"])
        ratio = ("", "")
        if "ratio" in result:
            noisy = result["wide"] or found["results"][result["against"]]["wide"]
            ratio = (
                NOISE if noisy else f"{result['ratio']:.2f}",
                "{:.2f} to {:.2f}".format(*result["ratio_quartiles"]),
            )
        row = (
            labels[name],
            NOISE if result["wide"] else f"{result['rate'] / 1e6:.4g}",
            f"{low:.4g} to {high:.4g}",
            NOISE if result["wide"] else f"{result['rate'] * stream_cases.ITEM / 1e9:.3g}",
            NOISE if result["wide"] else time_text(found["count"] / result["rate"]),
            time_text(result["first_call_seconds"]),
            *ratio,
        )
        if peaks:
            row += (checkpoint.readable(result["peak_bytes"]),)
        rows.append(row)
        if result["wide"]:
            notes.append(wide_text(labels[name], result["spread"]))
    whom = against.pop() if len(against) == 1 else "the loop by hand with batches of that size"
    return "\n".join([table(rows), f"  faster by: than {whom}, median of the rounds", *notes])


def record_text(found):
    """Lay out the cost of the records as text."""
    rows = [("", "one record", "and for each block that is done", "measured")]
    for kind, cost in found["results"].items():
        measured = ", ".join(
            f"{time_text(seconds)} at {blocks:,}"
            for seconds, blocks in zip(cost["seconds"], cost["blocks"], strict=True)
        )
        each = time_text(cost["seconds_each_per_block_done"])
        rows.append((kind, time_text(cost["seconds_each"]), each, measured))
    return f"{table(rows)}\n  checksum before a block is written: {found['checksum_rate'] / 1e9:.3g} GB/s, on one core"


def processes_text(found):
    """Lay out the processes as text."""
    rows = [("processes", "start-up", "compiling", "to the last block", "finishing", "M angles/s", "quartiles")]
    for parts, result in found["results"].items():
        low, high = (rate / 1e6 for rate in result["rate_quartiles"])
        phases = [time_text(max(float(np.median(seconds)), 0.0)) for seconds in result["seconds"].values()]
        rows.append((parts, *phases, f"{result['rate'] / 1e6:.4g}", f"{low:.4g} to {high:.4g}"))
    return "\n".join([table(rows), *(f"  left out: {reason}" for reason in found["missing"].values())])


def memory_text(found):
    """Lay out the memory as text."""
    block, whole = found["block_bytes"], found["whole_bytes"]
    rows = [("", "at the start", "most", "growth", f"in batches of {checkpoint.readable(block)}", "time")]
    for result in found["results"].values():
        held = [total for _, total in result["trace"]]
        growth = result["growth_bytes"]
        sizes = (checkpoint.readable(size) for size in (held[0], max(held), growth))
        rows.append((result["label"], *sizes, f"{growth / block:.2f}", time_text(result["trace"][-1][0])))
    notes = [f"  the whole result in memory would take {checkpoint.readable(whole)}"]
    return "\n".join([table(rows), *notes, *(f"  left out: {reason}" for reason in found["missing"].values())])


TEXTS = {
    "record": ("What the checksum of a block and the record after it cost", record_text),
    "processes": ("Processes that fill one Zarr store together", processes_text),
    "memory": ("Memory of a process while it draws", memory_text),
}


def section_text(name, found, plan):
    """Lay out one section of the result as text."""
    if name not in TEXTS:
        return f"{found['title']}\n{case_text(found)}"
    title, text = TEXTS[name]
    return f"{title}, {plan.size:,} angles\n{text(found)}" if name != "record" else f"{title}\n{text(found)}"


def verdicts(sections):
    """Compare what was measured with the goals; list of `goals.Verdict`."""
    found = []
    disk = sections.get("disk")
    if disk is not None:
        ours, plain = disk["results"]["npy"], disk["results"]["plain"]
        noisy = ours["wide"] or plain["wide"]
        low, high = ours["ratio_quartiles"]
        noise = (high - low) / ours["ratio"]
        found.append(goals.Verdict("rate of .npy", "a plain write", WRITE_SHARE, ours["ratio"], noisy, noise))
    held = sections.get("memory")
    if held is not None:
        allowed = MOST_BATCHES * held["block_bytes"]
        for kind in TRACED:
            result = held["results"].get(kind)
            ratio = None if result is None else allowed / max(result["growth_bytes"], 1)
            found.append(goals.Verdict(f"{MOST_BATCHES} batches", f"the growth of memory: {kind}", 1, ratio, False))
    return found


def verdict_text(found):
    """Lay out the verdicts as text."""
    rows = [("", "against", "goal", "found", "")]
    for verdict in found:
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        rows.append((verdict.case, verdict.peer, f"{verdict.at_least:g}", ratio, verdict.state))
    return table(rows)


def summary(sections):
    """Tell in a few lines what the numbers mean."""
    lines = []
    if "disk" in sections:
        results = sections["disk"]["results"]
        draw, plain = results["draw"]["rate"], results["plain"]["rate"]
        slower = "drawing" if draw < plain else "the disk"
        bound = min(draw, plain)
        for name in ("npy", "zarr"):
            if name in results:
                share = results[name]["rate"] / bound
                lines.append(f"{results[name]['label']} reaches {share:.0%} of its bound, which is {slower} here.")
        again = draw / results["read"]["rate"]
        cheaper = "Drawing again is faster than reading" if again > 1 else "Reading is faster than drawing again"
        lines.append(f"{cheaper}: drawing has {again:.2f} times the rate of a plain read.")
    if "host busy" in sections:
        results = sections["host busy"]["results"]
        best = max((name for name in results if name.startswith("prefetch")), key=lambda name: results[name]["rate"])
        lines.append(
            f"With a busy host, {results[best]['label']} is {results[best]['ratio']:.2f} times as fast as the loop; no "
            f"overlap could be more than {min(results[n]['ratio'] for n in ('draw', 'work')):.2f} times as fast."
        )
    if "processes" in sections and sections["processes"]["results"]:
        one, two = (sections["processes"]["results"][str(parts)]["rate"] for parts in PROCESSES)
        lines.append(f"Two processes on this machine fill a store {two / one:.2f} times as fast as one.")
    return "\n".join("  " + line for line in lines)


def angles(text):
    """Read a number of angles, such as 1e9."""
    value = float(text)
    if not (value.is_integer() and PARTS <= value <= 2**53):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {PARTS} to 2^53")
    return int(value)


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="fewer angles and rounds")
    made.add_argument(
        "--size", type=angles, help="angles to the disk; {quick:.0e} quick, {full:.0e} else".format(**SIZE)
    )
    made.add_argument("--rounds", type=positive, help="turns of each; {quick} quick, {full} else".format(**ROUNDS))
    made.add_argument("--json", metavar="FILE", type=new_file, help="write all timings, traces and the environment")
    made.add_argument("--directory", type=Path, help="where to write; the system's directory for temporary files")
    made.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help=", ".join(SECTIONS))
    return made


def refused(given, plan, directory):
    """Why the benchmark cannot run as it was asked for; None if it can."""
    if not directory.is_dir():
        return f"--directory {directory}: there is no such folder"
    if not os.access(directory, os.W_OK):
        return f"--directory {directory} cannot be written"
    free = shutil.disk_usage(directory).free
    if free < plan.bytes:
        return (
            f"{directory} has {checkpoint.readable(free)} free and {plan.size:,} angles need "
            f"{checkpoint.readable(plan.bytes)}: give a smaller --size, or another --directory"
        )
    return None


def measure(plan, directory):
    """Run the sections of `plan`, print each, and give them for the result file."""
    sections = {}
    # Removed however this ends.
    with tempfile.TemporaryDirectory(prefix="jax_von_mises-", dir=directory) as name:
        scratch = stream_cases.Scratch(name)
        for section in plan.sections:
            for part, found in MEASURE[section](plan, scratch).items():
                sections[part] = found
                print(f"\n{section_text(part, found, plan)}", flush=True)
    return sections


def main(arguments=None):
    """Run the benchmark; returns the exit code, 0 also where goals are missed."""
    given = parser().parse_args(arguments)
    mode = "quick" if given.quick else "full"
    asked = tuple(section for section in SECTIONS if section in given.sections)
    plan = Plan(given.size or SIZE[mode], given.rounds or ROUNDS[mode], mode, asked)
    directory = (given.directory or Path(tempfile.gettempdir())).resolve()  # the processes run elsewhere
    reason = refused(given, plan, directory)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    # JAX takes three quarters of a GPU at start otherwise, and the processes need room beside it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    start = time.perf_counter()
    found = environment.describe()
    disk = {"filesystem": memory.filesystem(directory), "free_bytes": shutil.disk_usage(directory).free}
    held = memory.machine()
    print(environment_text(found))
    print(f"  file system {disk['filesystem'] or 'unknown'}, {checkpoint.readable(disk['free_bytes'])} free", end="")
    print("" if held["available"] is None else f"; {checkpoint.readable(held['available'])} of memory free")
    if disk["filesystem"] in MEMORY_FILES:
        print("  warning: that is memory and not a disk, so the shares of a plain write say little: --directory")
    print(f"  Median of {plan.rounds} rounds, in which all take turns in random order; the first call apart.")
    try:
        sections = measure(plan, directory)
    except KeyboardInterrupt:
        print("\ninterrupted; what was written has been removed", file=sys.stderr)
        return 130
    except (OSError, stream_process.Failed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    found_goals = verdicts(sections)
    if found_goals:
        print(f"\nGoals\n{verdict_text(found_goals)}")
    text = summary(sections)
    if plan.size < SIZE["quick"]:
        print(
            f"\nFewer than {SIZE['quick']:,} angles are there in no time: such numbers try the program, not the disk."
        )
    if text:
        print(f"\nVerdict\n{text}")
    finish(
        start,
        given.json,
        {
            "format": FORMAT,
            "program": "streaming",
            "environment": found,
            "disk": disk,
            "memory": held,
            "options": {"mode": mode, "size": plan.size, "rounds": plan.rounds, "block": plan.block},
            "sections": sections,
            "goals": [{**verdict._asdict(), "state": verdict.state} for verdict in found_goals],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

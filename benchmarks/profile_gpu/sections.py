"""Define the sections of the page, with their measurements, tables, pictures and findings."""

import functools
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.profile_gpu.measuring import Sample, draw, keys, race
from benchmarks.profile_gpu.pictures import Picture
from benchmarks.profile_gpu.roofline import roofline
from benchmarks.text import bytes_text, interval_text

__all__ = ["SECTIONS", "Section"]

ROUTES = ("table", "direct")
IMPLEMENTATIONS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg", "unsafe_rbg")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LONGEST = 8
TRACED_CALLS = 5
RATES = Picture("rate", "million angles per second", 1e-6)

SECTIONS = {}
"""The sections by name, in the order of the page."""


class Section(NamedTuple):
    """A section: its text, measurement, fields of the table, picture, and a function from the rows to findings.

    `page.FIELDS` has the heading and the format of each field.
    """

    text: str
    measure: Callable
    fields: tuple[str, ...]
    picture: Picture | None
    findings: Callable


def section(name, fields, picture=None, findings=lambda rows: ()):
    """Return a decorator that adds a measurement as a section, with its docstring as the text."""

    def add(measure):
        text = " ".join(measure.__doc__.split())
        SECTIONS[name] = Section(text, measure, tuple(fields.split()), picture, findings)
        return measure

    return add


def fastest(rows):
    """Name the fastest row if it is surely faster than the first one."""
    rows = [row for row in rows if "failed" not in row]
    best = max(rows, key=lambda row: row["rate"], default=None)
    if best is not None and "ratio" in best and best["ratio"].low > 1:
        yield f"The rate of {best['line']} is {interval_text(*best['ratio'])} times that of {rows[0]['line']}."


def taken(call):
    """Return the largest number of additional bytes in use while `call` ran; None if unknown.

    A device reports only its highest peak so far, so the result is None if the call stays below an earlier peak.
    """
    device = jax.local_devices()[0]
    before = device.memory_stats() or {}
    call()
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    return peak - before["bytes_in_use"] if peak > before.get("peak_bytes_in_use", 0) else None


def memory_findings(rows):
    """State how much memory the largest draw needs in addition to its result."""
    rows = [row for row in rows if row["count"] == max(row["count"] for row in rows)]
    needs = " and ".join(f"{bytes_text(row['temporary'])} ({row['line']})" for row in rows)
    result, count = bytes_text(rows[0]["result"]), rows[0]["count"]
    yield f"In addition to its result of {result}, a draw of {count:,} angles needs {needs}."


# First, since a device reports only its highest peak so far, and later sections use more.
@section(
    "memory",
    "line count result temporary seen",
    Picture("total", "result and temporary memory, MiB", 2.0**-20, by_size=True, log=True),
    memory_findings,
)
def memory(plan):
    """Memory of one call: its result, the temporary memory of the compiled program, and what the device counted.

    A CPU counts nothing, and a GPU only what exceeds all earlier calls.
    """
    rows = []
    for count in plan.sizes:  # ascending, since `taken` sees only new peaks
        for route in ROUTES:
            (found,) = jvm.runtime.warmup((count,), method=route, loc=np.float32(0), concentration=np.float32(1))
            run = draw(plan, count, route).draw
            kept = jax.block_until_ready(run(keys(0)))  # so that the next result cannot reuse its memory
            seen = taken(lambda run=run: jax.block_until_ready(run(keys(1))))
            del kept
            row = {"line": f"{route} route", "count": count, "result": found.output_bytes, "seen": seen}
            total = None if found.temporary_bytes is None else found.output_bytes + found.temporary_bytes
            rows.append(row | {"temporary": found.temporary_bytes, "total": total})
    return rows


def compiling_findings(rows):
    """List the arguments for which JAX needlessly compiles again."""
    counts = {row["line"]: row["compiled"] for row in rows if "compiled" in row}
    again = [step for step in ("same call", "another key", "another concentration") if counts[step]]
    if not counts["first call"]:
        yield "JAX reports no compiled program. Its events have changed, so recompilations are unknown."
    elif again:
        yield f"JAX compiles again for: {', '.join(again)}. Look for a changing dtype or Python number."


@section("compile", "line seconds compiled", Picture("seconds", "milliseconds", 1e3), compiling_findings)
def compiling(plan):
    """The median stages of first calls, after all compiled programs have been discarded.

    Below, the number of programs that JAX compiles for a first draw, and then for draws with one argument changed.
    """
    firsts, names = [], ("trace", "lower", "compile", "first call after warmup")
    for _ in range(plan.firsts):
        jax.clear_caches()
        arguments = dict(concentration=np.float32(plan.concentration), loc=np.float32(0))
        (found,) = jvm.runtime.warmup((plan.count,), **arguments)
        again = timing.first_call(draw(plan, plan.count))
        firsts.append((found.trace_seconds, found.lower_seconds, found.compile_seconds, again))
    medians = np.median(firsts, axis=0).tolist()
    rows = [{"line": name, "seconds": seconds} for name, seconds in zip(names, medians, strict=True)]
    return rows + [{"line": step, "compiled": count} for step, count in compiled(plan).items()]


@functools.cache
def programs():
    """Return a list that gets an item for each program that JAX compiles from now on."""
    found = []

    def note(event, *_, **_more):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return found


def compiled(plan):
    """Count the programs that JAX compiles for a first draw, and for draws with one argument changed."""
    count, other = plan.sizes[0], plan._replace(concentration=plan.concentration + 1)
    steps = {
        "first call": (plan, count, 0),
        "same call": (plan, count, 0),
        "another key": (plan, count, 1),
        "another concentration": (other, count, 1),
        "another size": (plan, count + 1, 1),
    }
    jax.clear_caches()
    jax.block_until_ready((keys(0), keys(1)))  # making a key also compiles programs
    found = {}
    for step, (plan, count, key) in steps.items():
        before = len(programs())
        jax.block_until_ready(draw(plan, count).draw(keys(key)))
        found[step] = len(programs()) - before
    return found


@section("sizes", "line count seconds span rate ratio", RATES._replace(by_size=True))
def sizes(plan):
    """Small calls are mostly overhead. Beyond a certain size, larger calls need more memory and are not faster.

    Rates are relative to those of jax.random.normal with the same number of draws.
    """
    rows = []
    for count in plan.sizes:
        normal = functools.partial(jax.random.normal, shape=(count,))
        samples = [Sample({"line": "jax.random.normal"}, count, timing.Competitor(normal, keys, jax.block_until_ready))]
        samples += [Sample({"line": f"{route} route"}, count, draw(plan, count, route)) for route in ROUTES]
        rows += race(samples, plan)
    return rows


section(
    "roofline",
    "line share bound_by rate seconds span operations bytes",
    Picture("share", "share of the bound", form="{:.0%}"),
)(roofline)


@section("transfer", "line count seconds", Picture("seconds", "microseconds", 1e6, by_size=True, log=True))
def transfer(plan):
    """The three stages of a call: until it returns, until the angles are ready, and until the host has them.

    If device and host share one memory, nothing is copied.
    """
    rows = []
    for count in plan.sizes:
        competitor = draw(plan, count)
        timing.first_call(competitor)
        found = timing.stages(competitor, np.asarray, plan.rounds)
        names = "dispatch", "compute", "to host"
        rows += [{"line": name, "count": count, "seconds": each} for name, each in zip(names, found, strict=True)]
    return rows


@section("streams", "line rate ratio", RATES, fastest)
def streams(plan):
    """A stream of batches; the host computes the mean direction of each batch.

    With donate=True, a batch reuses the memory of an earlier one; with prefetch_to_host, the copy to the host runs in
    the background.
    """
    total = plan.batches * plan.count

    def mean_direction(angles):
        angles = np.asarray(angles)
        return np.arctan2(np.sin(angles).mean(), np.cos(angles).mean())

    def consume(key, depth=None, **more):
        angles = jvm.sample_batches(key, np.float32(0), np.float32(plan.concentration), total, plan.count, **more)
        if depth is None:
            return [mean_direction(batch) for batch in angles]
        return [mean_direction(batch) for batch in jvm.prefetch_to_host(angles, depth=depth)]

    ways = {"sample_batches": {}, "donate=True": {"donate": True}}
    ways |= {f"prefetch_to_host, depth={depth}": {"depth": depth} for depth in (1, 2, 4)}
    samples = [
        Sample({"line": name}, total, timing.Competitor(lambda key, given=given: consume(key, **given), keys))
        for name, given in ways.items()
    ]
    return race(samples, plan)


@section("dtypes", "line rate ratio count distinct", RATES, fastest)
def dtypes(plan):
    """Angles in bfloat16 and float16 are computed in float32 and rounded once, which leaves fewer distinct values.

    float64 needs JAX_ENABLE_X64=1.
    """
    names = [name for name in DTYPES if name != "float64" or jax.config.jax_enable_x64]
    rows = race([Sample({"line": name}, plan.count, draw(plan, plan.count, dtype=name)) for name in names], plan)
    for row in rows:
        if "failed" not in row:
            angles = draw(plan, plan.count, dtype=row["line"]).draw(keys(0))
            # NumPy does not sort bfloat16; float64 holds every value of the smaller dtypes.
            row["distinct"] = len(np.unique(np.asarray(angles).astype(np.float64)))
    return rows


@section("keys", "line rate ratio", RATES, fastest)
def implementations(plan):
    """The key implementation makes the random words, which take most of the operations for a single concentration."""
    drawing = draw(plan, plan.count)
    makers = {name: functools.partial(keys, implementation=name) for name in IMPLEMENTATIONS}
    return race(
        [Sample({"line": name}, plan.count, drawing._replace(fresh=make)) for name, make in makers.items()], plan
    )


@section("devices", "line count rate ratio", RATES)
def devices(plan):
    """One draw over the first 1, 2, 4, ... devices, with the same number of angles on each."""
    found = jax.local_devices()
    samples = []
    for number in (n for n in range(1, len(found) + 1) if n == len(found) or n & (n - 1) == 0):
        sharding = NamedSharding(Mesh(np.array(found[:number]), ("devices",)), PartitionSpec("devices"))
        count = plan.count * number
        samples.append(Sample({"line": str(number)}, count, draw(plan, count, out_sharding=sharding)))
    return race(samples, plan)


@section("trace", "line calls seconds")
def trace(plan):
    """The longest operations of five draws.

    To see when each of them runs, record a trace of your own program with jax.profiler.trace; docs/gpu.md shows how.
    """
    competitor = draw(plan, plan.count)
    timing.first_call(competitor)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for i in range(TRACED_CALLS):
                jax.block_until_ready(competitor.draw(keys(i)))
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    seconds, calls = Counter(), Counter()
    for event in events:
        operation = (event.get("args") or {}).get("hlo_op")
        if event.get("ph") == "X" and operation:
            seconds[operation] += event.get("dur", 0) * 1e-6
            calls[operation] += 1
    return [{"line": name, "calls": calls[name], "seconds": total} for name, total in seconds.most_common(LONGEST)]

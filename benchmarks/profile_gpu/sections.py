"""Define the sections of the page, with their measurements, tables, pictures and findings."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.measuring import CONCENTRATION, Sample, draw, keys, normal, race
from benchmarks.profile_gpu.pictures import Picture
from benchmarks.text import bytes_text, interval_text, million, time_text

__all__ = ["SECTIONS", "Plan", "Section", "make_plan"]

ONE, EACH, NORMAL = "one concentration", "a concentration each", "jax.random.normal"
IMPLEMENTATIONS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg", "unsafe_rbg")
DTYPES = ("float32", "bfloat16", "float16", "float64")
# Of the best rate, from which on a call is large enough.
ENOUGH = 0.9
# A smaller difference is no finding, even beyond doubt.
WORTH = 1.05
RATES = Picture("rate", "million angles per second", 1e-6)

SECTIONS = {}
"""The sections by name, in the order of the page."""


class Plan(NamedTuple):
    """Sizes of the measurements, in angles unless stated otherwise."""

    rounds: int  # at most, in which the rows of a table take turns
    seconds: float  # after which no round starts, unless there were too few
    count: int  # angles per call, except in the sections that vary the size
    sizes: tuple[int, ...]  # angles per call for the sections that vary the size
    firsts: int  # first calls, each after all compiled programs have been discarded
    batches: int  # of `count` angles in a stream


def make_plan(quick, platform):
    """Return the plan of a quick or a full run."""
    more = 0 if platform == "cpu" else 4  # a GPU draws 2^24 angles in the time of a few kernel launches
    sizes = range(10, 23 + more, 4) if quick else range(8, 25 + more, 2)
    return Plan(
        rounds=9 if quick else timing.MOST_ROUNDS,
        seconds=5 if quick else 30,
        count=2 ** ((20 if quick else 22) + more),
        sizes=tuple(2**n for n in sizes),
        firsts=3 if quick else 7,
        batches=4 if quick else 16,
    )


class Section(NamedTuple):
    """A section: its text, measurement, fields of the table, picture, and a function from the rows to findings.

    A measurement without rows has nothing to show on this machine. `text.FIELDS` has the headings and formats.
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


def differs(row, way):
    """Return whether a row is faster (1) or slower (-1) than its reference, beyond doubt and by more than a little."""
    return (
        "ratio" in row
        and min(row["ratio"].low ** way, row["ratio"].high ** way) > 1
        and row["ratio"].middle ** way > WORTH
    )


def listed(rows):
    """Return the names of rows with their relative rates."""
    return ", ".join(f"{row['line']} {interval_text(*row['ratio'])}" for row in rows)


def compared(what, faster, slower):
    """Return a function that names the rows faster and slower than the first one, and says what to do about them."""

    def findings(rows):
        first = next((row["line"] for row in rows if "rate" in row), None)
        above, below = ([row for row in rows if differs(row, way)] for way in (1, -1))
        if above:
            yield f"{what}: faster than {first}: {listed(above)}. {faster}"
        if below:
            yield f"{what}: slower than {first}: {listed(below)}. {slower}"
        if not above and not below and any("ratio" in row for row in rows):
            yield f"{what}: none is clearly faster or slower than {first}."

    return findings


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
    """State for each way to draw where it needs most temporary memory."""
    rows = [row for row in rows if row["temporary"] is not None]
    for line in dict.fromkeys(row["line"] for row in rows):
        most = max((row for row in rows if row["line"] == line), key=lambda row: row["temporary"])
        needed, result = bytes_text(most["temporary"]), bytes_text(most["result"])
        if most["temporary"] < most["result"] / 100:
            yield f"Memory, {line}: a call needs no more than its result and {needed}."
        else:
            yield (
                f"Memory, {line}: a call needs at most {needed} in addition to its result, namely for "
                f"{most['count']:,} angles, whose result has {result}. If this does not fit, draw in batches "
                "(sample_batches)."
            )


# First, since a device reports only its highest peak so far, and later sections use more.
@section(
    "memory",
    "line count result temporary counted",
    Picture("total", "result and temporary memory, MiB", 2.0**-20, by_size=True, log=True),
    memory_findings,
)
def memory(plan):
    """Memory of one call: its result, and the temporary memory of the compiled program.

    A GPU also counts the memory in use, but shows only what exceeds all earlier calls.
    """
    rows = []
    for count in plan.sizes:  # ascending, since `taken` sees only new peaks
        for line, k in ((ONE, CONCENTRATION), (EACH, np.full(count, CONCENTRATION))):
            (found,) = jvm.runtime.warmup((count,), loc=np.float32(0), concentration=k)
            run = draw(count, concentration=jax.numpy.asarray(k)).draw
            kept = jax.block_until_ready(run(keys(0)))  # so that the next result cannot reuse its memory
            counted = taken(lambda run=run: jax.block_until_ready(run(keys(1))))
            del kept
            row = {"line": line, "count": count, "result": found.output_bytes, "counted": counted}
            total = None if found.temporary_bytes is None else found.output_bytes + found.temporary_bytes
            rows.append(row | {"temporary": found.temporary_bytes, "total": total})
    return rows


def compiling_findings(rows):
    """State what a first call costs, and what avoids it."""
    total = sum(row["seconds"] for row in rows[:3])
    yield (
        f"Compile: the first call takes {time_text(total)} more than the next ones. runtime.warmup() spends them "
        f"before the first request, and initialize_compilation_cache() saves most of {rows[2]['line']}, "
        f"{time_text(rows[2]['seconds'])}, in later processes."
    )


@section("compile", "line seconds", Picture("seconds", "milliseconds", 1e3), compiling_findings)
def compiling(plan):
    """The median stages of first calls, after all compiled programs have been discarded."""
    firsts, names = [], ("trace", "lower", "compile", "first call after warmup")
    for _ in range(plan.firsts):
        jax.clear_caches()
        (found,) = jvm.runtime.warmup((plan.count,), concentration=CONCENTRATION, loc=np.float32(0))
        again = timing.first_call(draw(plan.count))
        firsts.append((found.trace_seconds, found.lower_seconds, found.compile_seconds, again))
    medians = np.median(firsts, axis=0).tolist()
    return [{"line": name, "seconds": seconds} for name, seconds in zip(names, medians, strict=True)]


@functools.cache
def programs():
    """Return a list that gets an item for each program that JAX compiles from now on."""
    found = []

    def note(event, *_, **_more):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    return found


def recompiling_findings(rows):
    """List the arguments for which JAX needlessly compiles again."""
    counts = {row["line"]: row["compiled"] for row in rows}
    again = [step for step in ("same call", "another key", "another concentration") if counts[step]]
    if not counts["first call"]:
        yield "Recompile: JAX reports no compiled program. Its events have changed, so recompilations are unknown."
    elif again:
        yield f"Recompile: JAX compiles again for: {', '.join(again)}. Look for a changing dtype or Python number."
    elif counts["another size"]:
        yield "Recompile: only another size compiles again. Draw few sizes, and slice the result."


@section("recompile", "line compiled", None, recompiling_findings)
def recompiling(plan):
    """The number of programs that JAX compiles for a first draw, and then for draws with one argument changed."""
    count, k = plan.sizes[0], CONCENTRATION
    steps = {
        "first call": (count, k, 0),
        "same call": (count, k, 0),
        "another key": (count, k, 1),
        "another concentration": (count, k + 1, 1),
        "another size": (count + 1, k, 1),
    }
    jax.clear_caches()
    jax.block_until_ready((keys(0), keys(1)))  # making a key also compiles programs
    rows = []
    for step, (count, k, key) in steps.items():
        before = len(programs())
        jax.block_until_ready(draw(count, concentration=k).draw(keys(key)))
        rows.append({"line": step, "compiled": len(programs()) - before})
    return rows


def size_findings(rows):
    """State for each way to draw at which sizes it is slower and faster than normal draws, and which size is enough."""
    rows = [row for row in rows if "rate" in row]
    for line in (ONE, EACH):
        mine = [row for row in rows if row["line"] == line]
        for word, way in (("slower than", -1), ("faster than", 1)):
            chosen = [row for row in mine if differs(row, way)]
            at = ", ".join(f"{row['count']:,} angles {interval_text(*row['ratio'])}" for row in chosen)
            do = "If such calls count, draw more angles per call." if word == "slower than" else ""
            if chosen:
                yield f"Sizes, {line}: {word} {NORMAL} at {at}. {do}".rstrip()
        if mine:
            best = max(mine, key=lambda row: row["rate"])
            least = min(row["count"] for row in mine if row["rate"] >= ENOUGH * best["rate"])
            yield (
                f"Sizes, {line}: calls of {least:,} angles are the first to reach {ENOUGH:.0%} of the best rate, "
                f"{million(best['rate'])} million per second."
            )


@section("sizes", "line count seconds span rate ratio", RATES._replace(by_size=True), size_findings)
def sizes(plan):
    """Small calls are mostly overhead. Beyond a certain size, larger calls need more memory and are not faster.

    Rates are relative to those of jax.random.normal with the same number of draws.
    """
    rows = []
    for count in plan.sizes:
        each = jax.numpy.full(count, CONCENTRATION)
        samples = {NORMAL: normal(count), ONE: draw(count), EACH: draw(count, concentration=each)}
        samples = [Sample(line, count, competitor) for line, competitor in samples.items()]
        rows += race(samples, plan.rounds, plan.seconds)
    return rows


def transfer_findings(rows):
    """State the fixed cost of a small call, and the share of the copy in a large one."""
    least, most = (end(row["count"] for row in rows) for end in (min, max))
    small, large = ({row["line"]: row["seconds"] for row in rows if row["count"] == count} for count in (least, most))
    yield (
        f"Transfer: a call of {least:,} angles takes {time_text(small['dispatch'])} until it returns and "
        f"{time_text(small['compute'])} more until it is ready. Put many small draws into one jitted function."
    )
    if "copy" in large and large["copy"] > large["compute"]:
        yield (
            f"Transfer: copying {most:,} angles to the host takes {time_text(large['copy'])}, longer than drawing "
            f"them, {time_text(large['compute'])}. Use them on the device, or copy in the background "
            "(prefetch_to_host)."
        )


@section(
    "transfer", "line count seconds", Picture("seconds", "microseconds", 1e6, by_size=True, log=True), transfer_findings
)
def transfer(plan):
    """The stages of a call: dispatch until it returns, compute until the angles are ready, and copy to the host.

    On a CPU nothing is copied, so there is no third stage.
    """
    rows, names = [], ("dispatch", "compute", *(() if jax.default_backend() == "cpu" else ("copy",)))
    for count in plan.sizes:
        competitor = draw(count)
        timing.first_call(competitor)
        found = timing.stages(competitor, np.asarray, plan.rounds)
        rows += [{"line": name, "count": count, "seconds": each} for name, each in zip(names, found, strict=False)]
    return rows


@section(
    "streams",
    "line rate ratio",
    RATES,
    compared("Streams", "Use the fastest.", "Leave these out on this machine."),
)
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
        angles = jvm.sample_batches(key, np.float32(0), CONCENTRATION, total, plan.count, **more)
        if depth is None:
            return [mean_direction(batch) for batch in angles]
        return [mean_direction(batch) for batch in jvm.prefetch_to_host(angles, depth=depth)]

    ways = {"sample_batches": {}, "donate=True": {"donate": True}}
    ways |= {f"prefetch_to_host, depth={depth}": {"depth": depth} for depth in (1, 2, 4)}
    samples = [
        Sample(name, total, timing.Competitor(functools.partial(consume, **given), keys))
        for name, given in ways.items()
    ]
    return race(samples, plan.rounds, plan.seconds)


@section(
    "dtypes",
    "line rate ratio distinct",
    RATES,
    compared(
        "Dtypes",
        "The last column of the table shows how many distinct values remain.",
        "Draw float32, unless you need the memory or the digits.",
    ),
)
def dtypes(plan):
    """Angles in bfloat16 and float16 are computed in float32 and rounded once, which leaves fewer distinct values.

    float64 needs JAX_ENABLE_X64=1.
    """
    names = [name for name in DTYPES if name != "float64" or jax.config.jax_enable_x64]
    samples = [Sample(name, plan.count, draw(plan.count, name)) for name in names]
    rows = race(samples, plan.rounds, plan.seconds)
    for row in rows:
        if "failed" not in row:
            angles = draw(plan.count, row["line"]).draw(keys(0))
            # NumPy does not sort bfloat16; float64 holds every value of the smaller dtypes.
            row["distinct"] = len(np.unique(np.asarray(angles).astype(np.float64)))
    return rows


@section(
    "keys",
    "line rate ratio",
    RATES,
    compared(
        "Keys",
        "jax.random.key(seed, impl=NAME) makes such a key, which draws other angles.",
        "Avoid these for speed.",
    ),
)
def implementations(plan):
    """The key implementation makes the random words, which take most of the operations for a single concentration."""
    drawing = draw(plan.count)
    makers = {name: functools.partial(keys, implementation=name) for name in IMPLEMENTATIONS}
    samples = [Sample(name, plan.count, drawing._replace(fresh=make)) for name, make in makers.items()]
    return race(samples, plan.rounds, plan.seconds)


@section(
    "devices",
    "line count rate ratio",
    RATES,
    compared("Devices", "Draw over all of them with out_sharding.", "Draw on one device, or more angles on each."),
)
def devices(plan):
    """One draw over the first 1, 2, 4, ... devices, with the same number of angles on each."""
    found = jax.local_devices()
    samples = []
    for number in (n for n in range(1, len(found) + 1) if n == len(found) or n & (n - 1) == 0):
        sharding = NamedSharding(Mesh(np.array(found[:number]), ("devices",)), PartitionSpec("devices"))
        count = plan.count * number
        line = f"{number} device{'s' * (number > 1)}"
        samples.append(Sample(line, count, draw(count, out_sharding=sharding)))
    return race(samples, plan.rounds, plan.seconds) if len(samples) > 1 else []

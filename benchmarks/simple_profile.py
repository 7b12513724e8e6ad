"""Is all well, in half a minute: the device, the first call, the rate, small calls, memory, copies to the host.

``python -m benchmarks.simple_profile`` needs nothing but the package, writes no files, and compares with
``jax.random.normal`` in the same run. It ends by saying what the numbers mean. Where something is wrong,
``jax-von-mises doctor`` looks further; where other libraries are to be compared, ``benchmarks.performance_benchmark``.
"""

import argparse
import math
import os
import sys
import time
from typing import NamedTuple

from benchmarks import compare, environment, timing
from benchmarks.cases import Case
from benchmarks.peers import OURS, PEERS
from benchmarks.text import NOISE, environment_text, table, time_text, wide_text

__all__ = ["Device", "Memory", "Profile", "advice", "main", "measure", "text"]

CONCENTRATION = 5.0
SMALL, LARGE = 2**10, {"cpu": 2**24, "gpu": 2**28}
MIDDLE = 2**20
ROUNDS = 15

NORMAL = "normal"
LABELS = {peer.name: peer.label for peer in PEERS if peer.name in (OURS, NORMAL)}

# Below this share of the best rate a call is about its overhead.
SLOW_SHARE = 0.5
# So many times the time of drawing is a long copy to the host.
LONG_COPY = 2.0
# A first call of so many seconds is worth a compilation cache.
LONG_COMPILE = 0.2
# Arrays of the size of the draws that there is to be room for: we need one, `jax.random.normal` four.
ROOM = 8


class Device(NamedTuple):
    """Where JAX runs, and what else there is."""

    platform: str
    kind: str
    asked: str | None
    """What ``JAX_PLATFORMS`` asks for."""
    gpus: tuple[str, ...]
    """Names of the GPUs that the system knows of."""
    trouble: str | None
    """What stands in the way of asking for them."""


class Memory(NamedTuple):
    """Bytes of the device, and of the program for the largest size; None where nobody tells."""

    output: int | None
    temporary: int | None
    in_use: int | None
    free: int | None
    limit: int | None
    batch: int | None
    """Angles of the largest batch of which two fit, None where not even one does."""


class Profile(NamedTuple):
    """What was measured.

    `compile` maps the parts of the first call to seconds; `rates` maps each number of draws to a `Timing` for us and
    for ``jax.random.normal``; `stages` maps each to our `Stages` turn by turn.
    """

    device: Device
    compile: dict[str, float]
    cache: str | None
    rates: dict[int, dict[str, timing.Timing]]
    stages: dict[int, list[timing.Stages]]
    memory: Memory
    left_out: str | None
    """Why the largest size is less than it is meant to be."""


def look():
    """Find the device."""
    import jax

    from jax_von_mises.runtime import hardware

    device = jax.devices()[0]
    names, trouble = [], None
    for found in hardware.accelerators():
        names += [card.name for card in found.cards] or [f"{found.vendor} GPU"]
        trouble = trouble or found.trouble
    return Device(device.platform, device.device_kind, jax.config.jax_platforms or None, tuple(names), trouble)


def sizes(platform, free, item=4):
    """Numbers of draws to time, and why the largest is not what it is meant to be."""
    largest = LARGE["cpu" if platform == "cpu" else "gpu"]
    if free is None or ROOM * item * largest <= free:
        return (SMALL, MIDDLE, largest), None
    fits = 2 ** int(math.log2(max(free / (ROOM * item), SMALL)))
    reason = f"{free / 2**30:.2g} GiB of memory are free, too little for {largest:,} draws with some room"
    return tuple(sorted({SMALL, min(MIDDLE, fits), fits})), reason


def measure(rounds=ROUNDS, clock=time.perf_counter):
    """Measure all there is to say."""
    import jax

    from jax_von_mises import runtime

    device = look()
    cache = runtime.cache_info()
    held = runtime.memory_report()[0]
    counts, left_out = sizes(device.platform, held.free)
    (compiled,) = runtime.warmup((counts[-1],), concentration=CONCENTRATION)
    rates, stages = {}, {}
    for count in counts:
        case = Case(f"{count} draws", "profile", count, CONCENTRATION)
        ready = {peer.name: peer.prepare(case) for peer in PEERS if peer.name in LABELS}
        competitors = {name: found.competitor for name, found in ready.items()}
        first = {name: timing.first_call(competitor, clock) for name, competitor in competitors.items()}
        seconds = timing.interleave(competitors, rounds, clock)
        rates[count] = {name: timing.Timing(first[name], tuple(found)) for name, found in seconds.items()}
        stages[count] = timing.stages({OURS: competitors[OURS]}, jax.device_get, rounds, clock)[OURS]
    try:
        batch = runtime.suggest_batch_size(concentration=CONCENTRATION)
    except MemoryError:
        batch = None
    held = runtime.memory_report()[0]
    return Profile(
        device,
        {"trace": compiled.trace_seconds, "lower": compiled.lower_seconds, "compile": compiled.compile_seconds},
        cache.path if cache.enabled else None,
        rates,
        stages,
        Memory(compiled.output_bytes, compiled.temporary_bytes, held.in_use, held.free, held.limit, batch),
        left_out,
    )


def device_text(device):
    """Say what is used, and why that may not be what was wanted."""
    if device.platform != "cpu":
        return f"JAX uses the {device.platform}: {device.kind}."
    if device.gpus:
        names = ", ".join(dict.fromkeys(device.gpus))
        if device.asked is not None and "cpu" in device.asked:
            why = f"JAX_PLATFORMS={device.asked} asks for that"
        else:
            why = "its plugin for them is missing, or finds no device that it can use"
        return f"JAX uses the CPU, though this machine has {len(device.gpus)} x {names}: {why}."
    return "JAX uses the CPU. " + (f"GPUs: {device.trouble}." if device.trouble else "The system knows of no GPU.")


def bytes_text(size):
    """A number of bytes, or that it is not known."""
    from jax_von_mises.streams.checkpoint import readable

    return "unknown" if size is None else readable(size)


def believed(profile, count):
    """Whether the timings of both at this size agree with each other."""
    return not any(measured.wide for measured in profile.rates[count].values())


def ratio(profile, count):
    """How many times as fast as ``jax.random.normal`` we are."""
    return profile.rates[count][NORMAL].median / profile.rates[count][OURS].median


def close(profile, count):
    """Whether the two are closer than the rounds of both let tell."""
    noise = compare.noise_of([{"spread": measured.spread} for measured in profile.rates[count].values()])
    return abs(math.log(ratio(profile, count))) <= math.log1p(noise)


def stage_medians(profile, count):
    """Our median stages at this size."""
    turns = profile.stages[count]
    return timing.Stages(*(timing.Timing(0.0, seconds).median for seconds in zip(*turns, strict=True)))


def stages_wide(profile, count):
    """Whether our calls disagree, all stages together or any by itself."""
    turns = profile.stages[count]
    whole = timing.Timing(0.0, tuple(map(sum, turns)))
    return whole.wide or timing.unsteady([timing.Timing(0.0, each) for each in zip(*turns, strict=True)], whole)


def text(profile):
    """Lay out what was measured."""
    lines = [device_text(profile.device), "", "The first call, timed once"]
    total = sum(profile.compile.values())
    parts = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in profile.compile.items())
    where = "no compilation cache" if profile.cache is None else f"with the compilation cache {profile.cache}"
    lines.append(f"  {time_text(total)} before anything is drawn ({parts}); {where}")
    smallest = min(profile.rates)
    ours, normal = (time_text(profile.rates[smallest][name].first) for name in (OURS, NORMAL))
    lines.append(f"  with {smallest:,} draws, inside another program: {ours}; {LABELS[NORMAL]} {normal}")

    lines += ["", f"Rates: float32, concentration {CONCENTRATION:g}, compiled and warm, medians"]
    found = [("draws", "ours, M/s", "quartiles", "one call", f"{LABELS[NORMAL]}, M/s", "ours is faster by")]
    notes = []
    for count, timings in profile.rates.items():
        ours, normal = timings[OURS], timings[NORMAL]
        fast, slow = ours.quartiles
        found.append(
            (
                f"{count:,}",
                NOISE if ours.wide else f"{count / ours.median / 1e6:.4g}",
                f"{count / slow / 1e6:.4g} to {count / fast / 1e6:.4g}",
                NOISE if ours.wide else time_text(ours.median),
                NOISE if normal.wide else f"{count / normal.median / 1e6:.4g}",
                f"{ratio(profile, count):.2f}" if believed(profile, count) else NOISE,
            )
        )
        notes += [
            wide_text(f"{LABELS[name]}, {count:,} draws", measured.spread)
            for name, measured in timings.items()
            if measured.wide
        ]
    lines += [table(found), *notes]
    if profile.left_out:
        lines.append(f"  {profile.left_out}")

    lines += ["", "Our call, stage by stage"]
    found = [("draws", "until it returns", "until it is done", "until the host has it")]
    for count in profile.stages:
        stages = stage_medians(profile, count)
        wide = stages_wide(profile, count)
        found.append((f"{count:,}", *(NOISE if wide else time_text(seconds) for seconds in stages)))
    lines.append(table(found))
    if profile.device.platform == "cpu":
        lines.append("  The host has it at once: NumPy shares the memory of a CPU's array.")

    held = profile.memory
    fits = "not even one angle" if held.batch is None else f"batches of {held.batch:,} angles, three at a time"
    lines += [
        "",
        "Memory",
        f"  {max(profile.rates):,} draws: the result {bytes_text(held.output)}, "
        f"on the way {bytes_text(held.temporary)}",
        f"  device: {bytes_text(held.in_use)} in use, {bytes_text(held.free)} free of {bytes_text(held.limit)}",
        f"  room for {fits}",
    ]
    return "\n".join(lines)


def advice(profile):
    """Two or three sentences on what the numbers mean and what to do."""
    largest, smallest = max(profile.rates), min(profile.rates)
    return [
        *device_advice(profile.device),
        speed_advice(profile, largest),
        next(
            filter(None, (copy_advice(profile, largest), small_advice(profile, smallest), compile_advice(profile))), ""
        )
        or "Nothing here asks for more.",
    ]


def device_advice(device):
    """What to do about a GPU that is not used."""
    if device.platform == "cpu" and device.gpus and "cpu" not in (device.asked or ""):
        yield "The GPU is not used: run jax-von-mises doctor, which says why, and ./install_gpu.sh, which mends it."


def speed_advice(profile, count):
    """What the rate is, if that can be told."""
    if not believed(profile, count):
        return (
            "The rounds disagree too much to name a rate or a ratio: something else runs on this machine. Run this "
            "again when it is quiet."
        )
    rate, times = count / profile.rates[count][OURS].median, ratio(profile, count)
    if close(profile, count):
        return (
            f"The sampler draws {rate / 1e6:.3g} million angles a second, as many as jax.random.normal: {times:.2f} "
            "times, too close to tell apart."
        )
    if times >= 1:
        return (
            f"The sampler draws {rate / 1e6:.3g} million angles a second, {times:.2f} times jax.random.normal, as it "
            "should."
        )
    return (
        f"The sampler draws {rate / 1e6:.3g} million angles a second, only {times:.2f} times jax.random.normal: it "
        "should be the faster one on large arrays, so see whether jax-von-mises doctor finds something."
    )


def copy_advice(profile, count):
    """Whether the copy to the host takes most of the time."""
    stages = stage_medians(profile, count)
    drawn = stages.dispatch + stages.compute
    if stages_wide(profile, count) or stages.transfer < LONG_COPY * drawn:
        return None
    return (
        f"A copy to the host takes {stages.transfer / drawn:.1f} times as long as drawing: use the angles on the "
        "device, or overlap the two by prefetch_to_host."
    )


def small_advice(profile, count):
    """From which size on the overhead of a call does not matter."""
    largest = max(profile.rates)
    if count == largest or not (believed(profile, count) and believed(profile, largest)):
        return None
    call = profile.rates[count][OURS].median
    best = largest / profile.rates[largest][OURS].median
    if count / call >= SLOW_SHARE * best:
        return None
    enough = 2 ** math.ceil(math.log2(best * call))
    return (
        f"A call for {count:,} angles takes {time_text(call)}, most of it overhead: draw {enough:,} or more at a "
        "time, or put the loop around small calls under jax.jit."
    )


def compile_advice(profile):
    """Whether the first call is worth keeping."""
    total = sum(profile.compile.values())
    if profile.cache is not None or total < LONG_COMPILE:
        return None
    return (
        f"The first call costs {time_text(total)}: initialize_compilation_cache() keeps the program for later "
        "processes, and python -m benchmarks.startup says what that gains."
    )


def main(arguments=None):
    """Run the profile; returns the exit code."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.simple_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.parse_args(arguments)
    # The memory that is free is to be told, not what JAX has set aside.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    start = time.perf_counter()
    print(environment_text(environment.describe()), flush=True)
    profile = measure()
    print(f"\n{text(profile)}\n\nWhat that means")
    for sentence in advice(profile):
        print(f"  {sentence}")
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())

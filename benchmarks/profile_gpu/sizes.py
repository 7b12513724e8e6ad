"""What depends on how many angles are drawn at a time: rate, memory, buffers, copies."""

import functools
import time

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import memory as resident
from benchmarks import timing
from benchmarks.profile_gpu import measuring
from benchmarks.profile_gpu.roofline import keys
from benchmarks.streaming import cases as stream_cases
from jax_von_mises.sampling.request import QUANTILE_TABLE_MIN_SIZE

__all__ = ["batch", "donation", "memory", "prefetch", "recommended", "transfer"]

METHODS = ("table", "direct")
# A size is enough from where it reaches this share of the best rate: beyond, only memory grows.
ENOUGH = 0.9
LOOK = 1e-3  # seconds between two looks at the memory
# A loop over batches has the last one, the next one, and the one after it.
IN_FLIGHT = 3


def sampler(plan, count, method="auto", dtype="float32"):
    """Draw `count` angles, as a user calls it."""
    law = np.float32(0), np.float32(plan.concentration)
    return lambda key: jvm.sample_von_mises(key, *law, (count,), dtype, method=method)


def recommended(sizes, results):
    """The smallest of `sizes` whose result surely reaches `ENOUGH` of the best rate; None where noise may hide that."""
    best = max(map(measuring.reach, results))
    enough = (
        size
        for size, result in zip(sizes, results, strict=True)
        if measuring.usable(result) and result["rate"] >= ENOUGH * best
    )
    return min(enough, default=None)


def batch(plan):
    """The rate against the angles in one call, by both routes, with a recommendation for each."""
    entries = {
        f"{method} {count}": measuring.Entry(
            f"{method}, {count:,}",
            count,
            timing.Competitor(sampler(plan, count, method), keys, jax.block_until_ready),
        )
        for method in METHODS
        for count in plan.sweep
    }
    results = measuring.race(entries, plan.rounds)
    lines = {method: [results[f"{method} {count}"] for count in plan.sweep] for method in METHODS}
    return {
        "sizes": list(plan.sweep),
        "lines": lines,
        "recommended": {method: recommended(plan.sweep, line) for method, line in lines.items()},
        "table_from": QUANTILE_TABLE_MIN_SIZE["float32"],
    }


def peak_of(call):
    """Bytes that were taken beyond those before, while `call` ran.

    By the device's allocator where it tells, else by the process's memory. The allocator tells the most there ever was,
    so None where that did not grow. A process keeps what was freed, so it may tell too little.
    """
    device = jax.local_devices()[0]
    before = device.memory_stats() or {}
    if "peak_bytes_in_use" in before:
        call()
        peak = device.memory_stats()["peak_bytes_in_use"]
        return peak - before["bytes_in_use"] if peak > before["peak_bytes_in_use"] else None
    with resident.Trace(LOOK) as watch:
        call()
    return watch.growth()


def memory(plan):
    """Memory of one call by the compiled program's own account, and as seen while it runs."""
    rows = []
    for count in plan.memory:  # ascending: the most that a device ever held never falls
        for method in METHODS:
            (found,) = jvm.runtime.warmup((count,), method=method, loc=np.float32(0), concentration=np.float32(1))
            call = sampler(plan, count, method)
            warm = jax.block_until_ready(call(keys(0)))  # kept, so that the next result cannot take its place
            rows.append(
                {
                    "count": count,
                    "method": method,
                    "output_bytes": found.output_bytes,
                    "temporary_bytes": found.temporary_bytes,
                    "seen_bytes": peak_of(lambda call=call: jax.block_until_ready(call(keys(1)))),
                }
            )
            del warm
    report = jvm.runtime.memory_report()[0]
    try:
        suggest = functools.partial(jvm.runtime.suggest_batch_size, plan.concentration, in_flight=IN_FLIGHT)
        fits = {method: suggest(method=method) for method in METHODS}
    except MemoryError as error:
        fits = {"failed": measuring.failure(error)}
    return {"rows": rows, "device": report._asdict(), "fits": fits, "in_flight": IN_FLIGHT}


def buffers_of(plan, donate):
    """How many places in memory the batches of one stream took."""
    places = set()
    for angles in stream_cases.batches(keys(0), plan.batch * plan.batches, plan.batch, donate=donate):
        jax.block_until_ready(angles)
        places.add(angles.unsafe_buffer_pointer())
    return len(places)


def donation(plan):
    """A stream whose batches give their memory to the next, and one whose batches do not."""
    total = plan.batch * plan.batches
    kinds = {"kept": False, "donated": True}
    entries = {
        name: measuring.Entry(
            f"donate={donate}", total, stream_cases.on_key(stream_cases.draws(total, plan.batch, donate))
        )
        for name, donate in kinds.items()
    }
    results = measuring.race(entries, plan.rounds)
    for name, donate in kinds.items():
        results[name]["buffers"] = buffers_of(plan, donate)
        results[name]["seen_bytes"] = peak_of(
            functools.partial(stream_cases.draws(total, plan.batch, donate), jax.random.key(9))
        )
    return {
        "batch": plan.batch,
        "batches": plan.batches,
        "batch_bytes": plan.batch * stream_cases.ITEM,
        "results": results,
        "compare": measuring.against(results["donated"], results["kept"]),
    }


def prefetch(plan):
    """A host that works on each batch as long as drawing it takes: one after the other, and at the same time."""
    total = plan.batch * plan.batches
    runs, sines = stream_cases.host(total, plan.batch, True)
    results = measuring.race(
        {name: measuring.Entry(run.label, total, run.competitor) for name, run in runs.items()}, plan.rounds
    )
    ahead = {name: result for name, result in results.items() if name.startswith("prefetch")}
    best = measuring.leader(ahead)
    # Of those that cannot be told from the best, the one that keeps least.
    alike = (name for name in ahead if best and measuring.against(ahead[name], ahead[best])["state"] == "same")
    best = next(alike, best)
    slower = [results[name] for name in ("draw", "work")]
    bound = None if any(not measuring.usable(each) for each in slower) else min(each["rate"] for each in slower)
    return {
        "batch": plan.batch,
        "batches": plan.batches,
        "sines": sines,
        "results": results,
        "best": best,
        "compare": measuring.against(results.get(best), results["batches"]) if best else None,
        "bound": bound,
    }


def moved(plan, count, clock=time.perf_counter):
    """Seconds of each part of one call: until it returns, until the angles are there, until the host has them."""
    call = sampler(plan, count)
    parts = measuring.laps(
        keys, {"dispatch": call, "compute": jax.block_until_ready, "to_host": np.asarray}, plan.laps, clock
    )
    ready = np.random.default_rng(0).random(count, np.float32)
    parts |= measuring.laps(
        lambda i: ready + np.float32(i),
        {"to_device": lambda values: jax.block_until_ready(jax.device_put(values))},
        plan.laps,
        clock,
    )
    return {name: measuring.of_seconds(seconds, count=count) for name, seconds in parts.items()}


def transfer(plan):
    """Dispatch, compute and copies in both directions, for each size."""
    device = jax.local_devices()[0]
    return {
        "sizes": list(plan.moved),
        "rows": [moved(plan, count) for count in plan.moved],
        # Where both are one memory, a result is handed over and not copied.
        "shared": device.platform == "cpu",
        "item": stream_cases.ITEM,
    }

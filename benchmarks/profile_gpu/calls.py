"""Measure typical calls: sizes, memory, transfers, streams, dtypes, keys and devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from benchmarks import memory as resident
from benchmarks import timing
from benchmarks.profile_gpu.measuring import Sample, draw, failure, keys, race, summary

__all__ = ["devices", "dtypes", "implementations", "memory", "sizes", "streams", "transfer"]

ROUTES = ("table", "direct")
NORMAL = "jax.random.normal"
IMPLEMENTATIONS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg", "unsafe_rbg")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def sizes(plan, tick):
    """Time both routes and `jax.random.normal` for each number of angles per call."""

    def normal(count):
        return timing.Competitor(lambda key: jax.random.normal(key, (count,)), keys, jax.block_until_ready)

    samples = [Sample({"line": NORMAL}, count, normal(count)) for count in plan.sizes]
    for route in ROUTES:
        samples += [Sample({"line": f"{route} route"}, count, draw(plan, count, route)) for count in plan.sizes]
    return {"rows": race(samples, plan.rounds, tick)}


def taken(call):
    """Return the largest number of additional bytes in use while `call` ran; None if unknown.

    If the device's allocator has counters, it reports its highest peak so far, so the result is None if the call stays
    below an earlier peak. On a CPU the result is the growth of the process, which misses memory that is reused.
    """
    device = jax.local_devices()[0]
    before = device.memory_stats() or {}
    if "peak_bytes_in_use" in before:
        call()
        peak = device.memory_stats()["peak_bytes_in_use"]
        return peak - before["bytes_in_use"] if peak > before["peak_bytes_in_use"] else None
    with resident.Trace(1e-3) as trace:
        call()
    return trace.growth()


def memory(plan, tick):
    """Measure the memory of one call, as stated by the compiled program and as observed while it runs."""
    rows = []
    for count in plan.sizes:  # ascending, since `taken` sees only new peaks
        for route in ROUTES:
            tick()
            (found,) = jvm.runtime.warmup((count,), method=route, loc=np.float32(0), concentration=np.float32(1))
            competitor = draw(plan, count, route)
            kept = jax.block_until_ready(competitor.draw(keys(0)))  # so that the next result cannot reuse its memory
            rows.append(
                {
                    "line": f"{route} route",
                    "count": count,
                    "result": found.output_bytes,
                    "temporary": found.temporary_bytes,
                    "seen": taken(lambda run=competitor: jax.block_until_ready(run.draw(keys(1)))),
                }
            )
            del kept
    return {"rows": rows}


def transfer(plan, tick):
    """Time the three stages of a call for each size: the dispatch, the computation and the copy to the host.

    The copy takes no time if device and host share one memory.
    """
    rows = []
    for count in plan.sizes:
        tick()
        competitors = {"": draw(plan, count)}
        timing.first_call(competitors[""])
        turns = timing.stages(competitors, np.asarray, plan.rounds)[""]
        stages = zip(("dispatch", "compute", "to_host"), zip(*turns, strict=True), strict=True)
        rows += [{"line": stage, "count": count, **summary(seconds)} for stage, seconds in stages]
    return {"rows": rows}


def mean_direction(angles):
    """Return the mean direction of a batch, computed on the host while the device works."""
    angles = np.asarray(angles)
    return np.arctan2(np.sin(angles).mean(), np.cos(angles).mean())


def streams(plan, tick):
    """Time a stream whose batches the host processes, in each way that the package offers."""
    total = plan.batches * plan.count

    def consume(key, depth=None, **more):
        angles = jvm.sample_batches(key, np.float32(0), np.float32(plan.concentration), total, plan.count, **more)
        if depth is None:
            return [mean_direction(batch) for batch in angles]
        with jvm.prefetch_to_host(angles, depth=depth) as ahead:
            return [mean_direction(batch) for batch in ahead]

    ways = {"sample_batches": {}, "donate=True": {"donate": True}}
    ways |= {f"prefetch_to_host, depth={depth}": {"depth": depth} for depth in (1, 2, 4)}
    samples = [
        Sample({"line": name}, total, timing.Competitor(lambda key, given=given: consume(key, **given), keys))
        for name, given in ways.items()
    ]
    return {"rows": race(samples, plan.rounds, tick), "batch": plan.count, "batches": plan.batches}


def dtypes(plan, tick):
    """Time each dtype, and count the distinct values of its draws."""
    names = [name for name in DTYPES if name != "float64" or jax.config.jax_enable_x64]
    samples = [Sample({"line": name}, plan.count, draw(plan, plan.count, dtype=name)) for name in names]
    rows = race(samples, plan.rounds, tick)
    for row in rows:
        angles = draw(plan, plan.count, dtype=row["line"]).draw(keys(0))
        # NumPy does not sort bfloat16; float64 holds every value of the smaller dtypes.
        row["distinct"] = len(np.unique(np.asarray(angles).astype(np.float64)))
    return {"rows": rows}


def implementations(plan, tick):
    """Time draws with each key implementation; for one concentration, the words are most of the operations."""
    samples, missing = [], []
    for name in IMPLEMENTATIONS:
        try:
            root = jax.random.key(1, impl=name)
        except (ValueError, TypeError) as error:
            missing.append({"line": name, "count": plan.count, "failed": failure(error)})
            continue
        ready = [jax.block_until_ready(jax.random.fold_in(root, i)) for i in range(8)]
        competitor = draw(plan, plan.count)._replace(fresh=lambda i, ready=ready: ready[i % len(ready)])
        samples.append(Sample({"line": name}, plan.count, competitor))
    return {"rows": race(samples, plan.rounds, tick) + missing}


def devices(plan, tick):
    """Time one draw over the first 1, 2, 4, ... devices."""
    found = jax.local_devices()
    numbers = [n for n in range(1, len(found) + 1) if n == len(found) or n & (n - 1) == 0]
    samples = []
    for number in numbers:
        sharding = NamedSharding(Mesh(np.array(found[:number]), ("devices",)), PartitionSpec("devices"))
        count = plan.count * number
        samples.append(Sample({"line": str(number)}, count, draw(plan, count, out_sharding=sharding)))
    return {"rows": race(samples, plan.rounds, tick)}

"""Compare each stage of a draw with the limits of this device."""

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.competitors import cycling
from benchmarks.profile_gpu.measuring import Sample, keys, race
from jax_von_mises.engine import counter
from jax_von_mises.numerics import circle
from jax_von_mises.von_mises import transform

__all__ = ["roofline"]

# Independent chains per element. With one, the processor waits for the previous result; with many, it runs out of
# registers. The best number depends on the device.
CHAINS = (1, 4, 8)
STEPS = 256
ROTATIONS = (13, 15, 26, 6)


def multiply_adds(chains):
    """Return a program of `STEPS` multiply-adds per element."""

    def run(x):
        values = [x + np.float32(i) for i in range(chains)]
        for _ in range(STEPS // chains):
            values = [value * np.float32(0.999) + np.float32(0.5) for value in values]
        return sum(values[1:], values[0])

    return run


def rounds(chains):
    """Return a program of additions, rotations and exclusive ors, five operations per round, as in Threefry."""

    def run(x):
        pairs = [(x + np.uint32(i), x ^ np.uint32(0x9E3779B9)) for i in range(chains)]
        for step in range(max(1, STEPS // (5 * chains))):
            turn = ROTATIONS[step % len(ROTATIONS)]
            pairs = [(a + b, counter.rotate_left(b, turn) ^ (a + b)) for a, b in pairs]
        total = pairs[0][0]
        for a, b in pairs:
            total = total ^ a ^ b
        return total

    return run


def inputs(dtype, count):
    """Return a function that maps the index of a call to one of a few random arrays."""

    def make(generator):
        words = generator.integers(0, 2**32, count, np.uint32)
        return words if dtype == np.uint32 else words.astype(np.float32) * np.float32(2.0**-32)

    return cycling(make, lambda x: jax.block_until_ready(jnp.asarray(x)))


def stages(count, k):
    """Return stages and related functions as tuples (name, function of the input and `k`, kind of input)."""
    loc = np.float32(0)

    def angles(route):
        return lambda words, k: transform.angles_about_zero((words,), k, route, None)

    def sample(route):
        return lambda key, k: jvm.sample_von_mises(key, loc, k, (count,), method=route)

    return [
        ("words of the key", lambda key, k: counter.words(key, (count,), 1)[0], "key"),
        ("word to angle, table", angles("table"), "words"),
        ("word to angle, direct", angles("direct"), "words"),
        ("location and wrap", lambda x, k: circle.wrap(x, np.float32(0.5)), "floats"),
        ("sampler, table", sample("table"), "key"),
        ("sampler, direct", sample("direct"), "key"),
        ("log_prob", lambda x, k: jvm.log_prob(x, loc, k), "floats"),
        ("cdf", lambda x, k: jvm.cdf(x, loc, k), "floats"),
        ("icdf", lambda q, k: jvm.icdf(q, loc, k), "floats"),
        ("gradient in the concentration", lambda key, k: jax.grad(lambda k: sample("table")(key, k).sum())(k), "key"),
    ]


def compiled_sample(name, kind, count, function, fresh, *more):
    """Compile ``function(fresh(i), *more)``; return the timed call, with XLA's count of its operations and bytes."""
    program = jax.jit(function).lower(fresh(0), *more).compile()
    cost, used = program.cost_analysis() or {}, program.memory_analysis()
    # Temporaries are both written and read.
    moved = used and used.argument_size_in_bytes + used.output_size_in_bytes + 2 * used.temp_size_in_bytes
    operations = (cost.get("flops") or 0) + (cost.get("transcendentals") or 0)
    row = {"line": name, "kind": kind, "operations": operations, "bytes": moved or 0}
    return Sample(row, count, timing.Competitor(lambda x: program(x, *more), fresh, jax.block_until_ready))


def roofline(plan):
    """The ceilings of this device, and how close each stage of a draw comes to them.

    The bound of a stage is the longer of the times that its memory traffic and its operations would take at the
    ceilings; its share is the bound divided by the measured time. Shares are approximate, because XLA does not
    distinguish integer from floating-point operations and does not count table look-ups. If the share is near 100%,
    only less work can make the stage faster; if it is far below, another limit applies.
    """
    count, k = plan.count, np.float32(plan.concentration)
    fresh = {"key": keys, "words": inputs(np.uint32, count), "floats": inputs(np.float32, count)}
    few_words, few_floats = inputs(np.uint32, plan.chain), inputs(np.float32, plan.chain)
    samples = [
        compiled_sample("copy", "bytes", count, lambda x: -x, fresh["floats"]),
        compiled_sample("fill", "bytes", count, lambda x: jnp.full(count, x[0]), few_floats),
    ]
    samples[1].row["bytes"] = 4 * count  # a fill reads one number of its argument
    for n in CHAINS:
        kind, chains = "operations", f"{n} chain{'s' * (n > 1)}"
        samples.append(compiled_sample(f"multiply-adds, {chains}", kind, plan.chain, multiply_adds(n), few_floats))
        samples.append(compiled_sample(f"cipher rounds, {chains}", kind, plan.chain, rounds(n), few_words))
    for name, function, kind in stages(count, k):
        samples.append(compiled_sample(name, "stage", count, function, fresh[kind], k))
    rows = race(samples, plan)
    ceilings = {kind: ceiling(rows, kind) for kind in ("bytes", "operations")}
    return [row | share(row, ceilings) for row in rows]


def ceiling(rows, kind):
    """Return the highest rate of the programs of one kind, per second; None if all of them failed."""
    return max(
        (row[kind] / row["seconds"] for row in rows if row["kind"] == kind and "failed" not in row), default=None
    )


def share(row, ceilings):
    """Return the share of its bound that a stage reaches, and the ceiling that sets the bound."""
    if row["kind"] != "stage" or "failed" in row or None in ceilings.values():
        return {}
    least = {kind: row[kind] / rate for kind, rate in ceilings.items()}
    by = max(least, key=least.get)
    return {"share": least[by] / row["seconds"], "bound_by": by}

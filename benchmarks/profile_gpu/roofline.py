"""How near each stage comes to what this device can do.

The ceilings are measured in the same run, in the same program that JAX would make: a copy and a fill for memory, chains
of multiply-adds for floats, rounds like those of the ciphers for integers. The operations of the stages and of the
chains are counted by the same rule (see `operations`), so their ratio means something although the rule is simple.

A stage must at least move its arguments, its results and, twice, its temporaries; and do its operations. The longest of
these times at the ceilings is its bound: no program that does the same operations is faster.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.profile_gpu import measuring, operations
from jax_von_mises.numerics import circle
from jax_von_mises.sampling import counter, transform

__all__ = ["bound", "measure", "stages"]

# Independent chains in one element: with few a processor waits for the result before, with many it runs out of
# registers. Where the best lies depends on the device, so the best of these is the ceiling.
CHAINS = (1, 4, 8)
ARRAYS = 4  # that calls take turns with
ROTATIONS = (13, 15, 26, 6)


def multiply_adds(chains, steps):
    """A program of `chains` times `steps` multiply-adds on each element."""

    def run(x, scale):
        values = [x + np.float32(i) for i in range(chains)]
        for _ in range(steps // chains):
            values = [value * scale + np.float32(0.5) for value in values]
        return sum(values[1:], values[0])

    return run


def rounds(chains, steps):
    """A program of additions, rotations and exclusive ors on each element, as in Threefry: five operations a round."""

    def run(x, key):
        pairs = [(x + np.uint32(i), x ^ key) for i in range(chains)]
        for step in range(max(1, steps // (5 * chains))):
            turn = ROTATIONS[step % len(ROTATIONS)]
            pairs = [(a + b, counter.rotate_left(b, turn) ^ (a + b)) for a, b in pairs]
        total = pairs[0][0]
        for a, b in pairs:
            total = total ^ a ^ b
        return total

    return run


def array(dtype, count, i):
    """Input `i` of those that take turns."""
    generator = np.random.default_rng((2, i))
    if np.dtype(dtype) == np.uint32:
        values = generator.integers(0, 2**32, count, np.uint32)
    else:
        values = generator.random(count, np.float32)
    return jax.block_until_ready(jnp.asarray(values))


def rotating(make):
    """A `fresh` of `timing.Competitor`: a few inputs take turns."""
    inputs = [make(i) for i in range(ARRAYS)]
    return lambda i: inputs[i % ARRAYS]


def keys(i):
    """Key `i`."""
    return jax.block_until_ready(jax.random.fold_in(jax.random.key(1), i))


def compiled_entry(label, count, function, fresh, *more):
    """Compile ``function(fresh(i), *more)``; the entry that runs it, and its account of operations and bytes."""
    compiled = jax.jit(function).lower(fresh(0), *more).compile()
    entry = measuring.Entry(
        label, count, timing.Competitor(lambda value: compiled(value, *more), fresh, jax.block_until_ready)
    )
    return entry, account(compiled)


def account(compiled):
    """Operations and bytes of one run of a compiled program; None where the backend does not tell."""
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    found = operations.count(compiled.as_text() or "")._asdict()
    if memory is not None:
        found["argument_bytes"] = memory.argument_size_in_bytes
        found["output_bytes"] = memory.output_size_in_bytes
        found["temporary_bytes"] = memory.temp_size_in_bytes
        # What is written to memory on the way is read again.
        found["bytes"] = sum((found["argument_bytes"], found["output_bytes"], 2 * found["temporary_bytes"]))
    return found | {"xla_flops": costs.get("flops"), "xla_bytes": costs.get("bytes accessed")}


def ceiling_entries(plan):
    """What measures the ceilings; and the account of each."""
    count, chain = plan.count, plan.chain
    floats = rotating(lambda i: array(np.float32, count, i))
    few_floats = rotating(lambda i: array(np.float32, chain, i))
    few_words = rotating(lambda i: array(np.uint32, chain, i))
    made = {
        "copy": compiled_entry("copy: read and write", count, lambda x: -x, floats),
        "fill": compiled_entry("fill: write", count, lambda x: jnp.full(count, x[0]), few_floats),
    }
    for chains in CHAINS:
        label = f"{chains} chain" + ("s" if chains > 1 else "")
        made[f"floats {chains}"] = compiled_entry(
            f"multiply-adds, {label}", chain, multiply_adds(chains, plan.steps), few_floats, np.float32(0.999)
        )
        made[f"integers {chains}"] = compiled_entry(
            f"rounds of a cipher, {label}", chain, rounds(chains, plan.steps), few_words, np.uint32(0x9E3779B9)
        )
    # A fill reads one number of its argument, whatever the argument's size.
    made["fill"][1]["bytes"] = 4 * count
    return made


def stages(count, k):
    """Stages of the package: label, function, and the kind of its input, "key", "words", "tail" or "unit"."""
    words = lambda key: counter.words(key, (count,), 1)[0]  # noqa: E731
    law = (np.float32(0.0), np.float32(k))

    def route(method):
        def run(words, kappa):
            t, c, _ = transform.tail((words,))
            spread = jnp.broadcast_to(kappa, t.shape) if method == "direct" else kappa
            return transform.abs_angle(t, c, spread, method, None)

        return run

    def sample(method):
        return lambda key, kappa: jvm.sample_von_mises(key, law[0], kappa, (count,), method=method)

    def gradient(key, kappa):
        return jax.grad(lambda k: sample("table")(key, k).sum())(kappa)

    return {
        "words": ("words of the key", lambda key, kappa: words(key), "key"),
        "table": ("word to size of the angle, table", route("table"), "words"),
        "direct": ("word to size of the angle, direct", route("direct"), "words"),
        "wrap": ("location and wrap", lambda x, kappa: circle.wrap(x, np.float32(0.5)), "unit"),
        "sample table": ("whole sampler, table", sample("table"), "key"),
        "sample direct": ("whole sampler, direct", sample("direct"), "key"),
        "log_prob": ("log_prob", lambda x, kappa: jvm.log_prob(x, law[0], kappa), "unit"),
        "cdf": ("cdf", lambda x, kappa: jvm.cdf(x, law[0], kappa), "unit"),
        "icdf": ("icdf", lambda q, kappa: jvm.icdf(q, law[0], kappa), "unit"),
        "gradient": ("gradient in the concentration", gradient, "key"),
    }


def stage_entries(plan):
    """Entries and accounts of the stages of the plan."""
    kinds = {
        "key": keys,
        "words": rotating(lambda i: array(np.uint32, plan.count, i)),
        "unit": rotating(lambda i: array(np.float32, plan.count, i)),
    }
    chosen = stages(plan.count, plan.concentration)
    made = {}
    for name in plan.stages or chosen:
        label, function, kind = chosen[name]
        made[name] = compiled_entry(label, plan.count, function, kinds[kind], np.float32(plan.concentration))
    return made


PROBES = {"bytes": ("copy", "fill"), "floats": ("floats",), "integers": ("integers",)}


def ceilings(results):
    """The most that was reached of each kind, per second, in the fastest quarter of the turns; None if all failed.

    The median would be no ceiling: what slows some turns, another program in the cache of the machine, does not slow
    what it can do. So noise hides no ceiling; it can only make the share of a stage look smaller than it is.
    """
    found = {}
    for field, kinds in PROBES.items():
        ran = [result for name, result in results.items() if name.split()[0] in kinds and "failed" not in result]
        found[field] = max((result[field] / result["quartiles"][0] for result in ran), default=None)
    return found


def bound(account, found):
    """The least seconds that the ceilings allow a program, and what sets them; None where a ceiling is not known.

    Transcendental functions have no ceiling of their own: they are counted as one operation on floats, so the bound
    stays one.
    """
    if None in found.values():
        return {"bound": None, "bound_by": None}
    work = {
        "bytes": account.get("bytes", 0),
        "floats": account["floats"] + account["transcendentals"],
        "integers": account["integers"],
    }
    seconds = {name: amount / found[name] for name, amount in work.items()}
    by = max(seconds, key=seconds.get)
    return {"bound": seconds[by], "bound_by": by}


def measure(plan):
    """Ceilings of the device, and each stage beside them."""
    made = ceiling_entries(plan), stage_entries(plan)
    # All in one race: what slows the machine for a while slows ceilings and stages.
    both = {**made[0], **made[1]}
    results = measuring.race({name: entry for name, (entry, _) in both.items()}, plan.rounds)
    for name, (_, counted) in both.items():
        results[name] |= counted
    probes = {name: results[name] for name in made[0]}
    found = ceilings(probes)
    for name in made[1]:
        result = results[name]
        result |= bound(result, found)
        result["share"] = result["bound"] / result["median"] if measuring.usable(result) and result["bound"] else None
    return {
        "count": plan.count,
        "ceilings": found,
        "probes": probes,
        "stages": {name: results[name] for name in made[1]},
    }

"""Profile a machine in half a minute: show its device, first call, rates, small calls, memory and copies to the host.

``python -m benchmarks.simple_profile`` needs only the package, and writes no files. It compares the sampler with
``jax.random.normal`` in the same run. To diagnose a problem, run ``jax-von-mises doctor``. To compare with other
libraries, run ``python -m benchmarks.performance_benchmark``.
"""

import argparse
import os
import sys
import time

from benchmarks import competitors, environment, timing
from benchmarks.text import bytes_text, interval_text, number, table, time_text

__all__ = ["advice", "main"]

CONCENTRATION = 5.0
SIZES = {"cpu": (2**10, 2**20, 2**24), "gpu": (2**10, 2**20, 2**28)}
SECONDS = 5  # for the rounds of each size
# Free bytes needed per draw: twice the four float32 arrays of `jax.random.normal`, to leave memory for other programs.
ROOM = 32
OURS, NORMAL = "sample_von_mises", "jax.random.normal"
# Seconds; a compilation cache is worthwhile if a first call takes longer.
LONG_COMPILE = 0.2


def unused_gpu():
    """Return the name of a GPU that JAX leaves unused although no setting selects the CPU; None if there is none."""
    import jax

    from jax_von_mises.runtime import doctor

    if jax.default_backend() != "cpu" or "cpu" in (jax.config.jax_platforms or ""):
        return None
    driver, cards, _ = doctor.nvidia()
    names = [*(card.name for card in cards), *doctor.rocm()[0], *(["NVIDIA GPU"] if driver else [])]
    return next(iter(names), None)


def fitting(sizes, free):
    """Return the sizes that fit into `free` bytes, but at least the smallest one."""
    return tuple(size for size in sizes if free is None or ROOM * size <= free) or sizes[:1]


def first_call(count):
    """Compile the sampler and print the time of each stage; return the seconds a cache would save, and the program."""
    from jax_von_mises import runtime

    (compiled,) = runtime.warmup((count,), concentration=CONCENTRATION)
    parts = {"trace": compiled.trace_seconds, "lower": compiled.lower_seconds, "compile": compiled.compile_seconds}
    total = sum(parts.values())
    cache = runtime.cache_info().path
    where = f"with the compilation cache {cache}" if cache else "without a compilation cache"
    print(f"\nFirst call for {count:,} draws, {where}")
    print(table([(name, time_text(seconds)) for name, seconds in (parts | {"total": total}).items()]), flush=True)
    return 0.0 if cache else total, compiled


def measure(count):
    """Time both samplers; return their timings by name, and the seconds of the stages of our call."""
    import jax

    import jax_von_mises as jvm

    ours = competitors.of_keys(lambda key, k: jvm.sample_von_mises(key, 0.0, k, (count,)), CONCENTRATION)
    players = {OURS: ours, NORMAL: competitors.of_keys(lambda key: jax.random.normal(key, (count,)))}
    for player in players.values():
        timing.first_call(player)
    return timing.rounds(players, seconds=SECONDS), timing.stages(ours, jax.device_get)


def memory(count, compiled):
    """Return the memory of the largest call and of the device as text."""
    from jax_von_mises import runtime

    held = runtime.memory_report()[0]
    try:
        batch = f"{runtime.suggest_batch_size(concentration=CONCENTRATION):,} angles"
    except MemoryError:
        batch = "none fits"
    sizes = {f"result of {count:,} draws": compiled.output_bytes, "temporary memory": compiled.temporary_bytes}
    sizes |= {"device memory in use": held.in_use, "device memory free": held.free}
    return table([*((name, bytes_text(size)) for name, size in sizes.items()), ("suggested batch of a stream", batch)])


def advice(gpu, ratio, compiling):
    """Return recommendations from the name of an unused GPU or None, our relative rate, and the seconds to compile."""
    lines = []
    if gpu is not None:
        lines.append(f"JAX does not use the {gpu}; run jax-von-mises doctor to find the reason.")
    if ratio.high < 1:
        lines.append("The sampler is slower than jax.random.normal for a large array; run jax-von-mises doctor.")
    if compiling > LONG_COMPILE:
        lines.append("To shorten the first call of later processes, call initialize_compilation_cache().")
    return lines


def main(arguments=None):
    """Run the profile; return the exit code."""
    description = __doc__.splitlines()[0]
    argparse.ArgumentParser("python -m benchmarks.simple_profile", description=description).parse_args(arguments)
    # By default, JAX reserves three quarters of a GPU's memory, which other programs may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jax_von_mises import runtime

    start = time.perf_counter()
    machine, gpu = environment.describe(), unused_gpu()
    print(environment.text(machine) + (f"\n  {gpu}: not used by JAX" if gpu else ""))
    sizes = fitting(SIZES["cpu" if machine["platform"] == "cpu" else "gpu"], runtime.memory_report()[0].free)
    compiling, compiled = first_call(sizes[-1])
    rates = [("draws", OURS, NORMAL, "relative rate")]
    stages = [("draws", "until it returns", "until it is ready", "copy to the host")]
    for count in sizes:
        found, parts = measure(count)
        ratio = found[NORMAL].ratio
        each = (number(count / found[name].typical / 1e6) for name in (OURS, NORMAL))
        rates.append((f"{count:,}", *each, interval_text(*ratio)))
        stages.append((f"{count:,}", *map(time_text, parts)))
    print(f"\nMillion draws per second, and our rate relative to {NORMAL}\n{table(rates)}")
    print(f"\nStages of our call\n{table(stages)}", flush=True)
    print(f"\nMemory\n{memory(sizes[-1], compiled)}\n")
    print("\n".join([*advice(gpu, ratio, compiling), f"{time.perf_counter() - start:.0f} s in total"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

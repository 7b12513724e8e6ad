"""Profile a machine in half a minute: show its device, first call, rate, small calls, memory and copies to the host.

``python -m benchmarks.simple_profile`` needs only the package and psutil, and writes no files. It compares the sampler
with ``jax.random.normal`` in the same run. To diagnose a problem, run ``jax-von-mises doctor``. To compare with other
libraries, run ``python -m benchmarks.performance_benchmark``.
"""

import argparse
import os
import statistics
import sys
import time

from benchmarks import environment, quiet, timing
from benchmarks.cases import Case
from benchmarks.peers import OURS, PEERS
from benchmarks.performance_benchmark import run_case
from benchmarks.text import case_table, environment_text, marked, table, time_text

__all__ = ["advice", "main"]

CONCENTRATION = 5.0
SIZES = {"cpu": (2**10, 2**20, 2**24), "gpu": (2**10, 2**20, 2**28)}
ROUNDS = 9
# Free bytes needed per draw: twice the four float32 arrays of `jax.random.normal`, to leave memory for other programs.
ROOM = 32

NORMAL = "normal"
COMPARED = [peer for peer in PEERS if peer.name in (OURS, NORMAL)]

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


def bytes_text(size):
    """Return a number of bytes as text, or "unknown" for None."""
    from jax_von_mises.streams.disk import readable

    return "unknown" if size is None else readable(size)


def print_first_call(count):
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


def stage_row(case, busy):
    """Time the stages of our call, and return their table row."""
    import jax

    competitor = COMPARED[0].prepare(case).competitor
    competitor.wait(competitor.draw(competitor.fresh(0)))
    turns = timing.stages({OURS: competitor}, jax.device_get, ROUNDS)[OURS]
    total = timing.Timing(0.0, tuple(map(sum, turns)))
    times = (statistics.median(each) for each in zip(*turns, strict=True))
    doubtful = busy or total.wide
    return f"{case.count:,}", *(marked(time_text(seconds), doubtful) for seconds in times), f"{total.spread:.0%}"


def fitting(sizes, free):
    """Return the sizes that fit into `free` bytes, but at least the smallest one."""
    return tuple(size for size in sizes if free is None or ROOM * size <= free) or sizes[:1]


def print_memory(count, compiled):
    """Print the memory of the largest call and of the device."""
    from jax_von_mises import runtime

    held = runtime.memory_report()[0]
    try:
        batch = f"{runtime.suggest_batch_size(concentration=CONCENTRATION):,} angles"
    except MemoryError:
        batch = "none fits"
    rows = [
        (f"result of {count:,} draws", bytes_text(compiled.output_bytes)),
        ("temporary memory of that call", bytes_text(compiled.temporary_bytes)),
        ("device memory in use", bytes_text(held.in_use)),
        ("device memory free", bytes_text(held.free)),
        ("suggested batch of a stream", batch),
    ]
    print(f"\nMemory\n{table(rows)}", flush=True)


def advice(gpu, busy, entry, compiling):
    """Return recommendations, one sentence each; none of them is based on noisy rates.

    Parameters
    ----------
    gpu : str or None
        A GPU that JAX does not use.
    busy : bool
        Whether the machine was busy.
    entry : dict
        The result of `run_case` for the largest case.
    compiling : float
        Seconds of a first call that a compilation cache would save.
    """
    lines = []
    if gpu is not None:
        lines.append(f"JAX does not use the {gpu}; run jax-von-mises doctor to find the reason.")
    found = entry["results"]
    if busy:
        lines.append("Other work slowed this program down; run it again when the machine is quiet.")
    elif any(result["wide"] for result in found.values()):
        lines.append("The rounds disagree for the largest arrays; run this program again when the machine is quiet.")
    elif found[NORMAL]["ratio"] * (1 + timing.noise_of(result["spread"] for result in found.values())) < 1:
        lines.append("The sampler is slower than jax.random.normal for a large array; run jax-von-mises doctor.")
    if compiling > LONG_COMPILE:
        lines.append("To shorten the first call of later processes, call initialize_compilation_cache().")
    return lines


def main(arguments=None):
    """Run the profile; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simple_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    # By default, JAX reserves three quarters of a GPU's memory, which other programs may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jax_von_mises import runtime

    start = time.perf_counter()
    machine = environment.describe()
    state = quiet.check()
    busy, gpu = not state.quiet, unused_gpu()
    print(environment_text(machine) + (f"\n  {gpu}: not used by JAX" if gpu else "") + f"\n  {state.text()}")
    sizes = SIZES["cpu" if machine["platform"] == "cpu" else "gpu"]
    sizes = fitting(sizes, runtime.memory_report()[0].free)
    compiling, compiled = print_first_call(sizes[-1])
    stages = [("draws", "until it returns", "until it is ready", "copy to the host", "spread")]
    for count in sizes:
        case = Case(f"{count} draws", "profile", count, CONCENTRATION)
        print(f"\n{case.describe()}", flush=True)
        entry = run_case(case, COMPARED, ROUNDS, capped=False)
        print(case_table(entry, busy), flush=True)
        stages.append(stage_row(case, busy))
    print(f"\nStages of our call\n{table(stages)}", flush=True)
    print_memory(sizes[-1], compiled)
    lines = advice(gpu, busy, entry, compiling)
    print("\n" + "\n".join([*lines, f"{time.perf_counter() - start:.0f} s in total"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

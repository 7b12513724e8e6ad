"""Profile a machine in half a minute: show its device, first call, rates, small calls, memory and copies to the host.

``python -m benchmarks.simple_profile`` needs only the package, and writes no files. It compares the sampler with
``jax.random.normal`` in the same run. To diagnose a problem, run ``jax-von-mises doctor``. To compare with other
libraries, run ``python -m benchmarks.performance_benchmark``.
"""

import argparse
import os
import sys
import time

import jax

from benchmarks import environment, timing
from benchmarks.measuring import CONCENTRATION, Sample, draw, normal, race
from benchmarks.text import cells, table
from jax_von_mises import runtime
from jax_von_mises.runtime import doctor

__all__ = ["advice", "main"]

SIZES = {"cpu": (2**10, 2**20, 2**24), "gpu": (2**10, 2**20, 2**28)}
SECONDS, MOST = 5, 25  # for the rounds of each size, and rounds at most
# Free bytes needed per draw: twice the four float32 arrays of `jax.random.normal`, to leave memory for other programs.
ROOM = 32
# Seconds; a compilation cache is worthwhile if a first call takes longer.
LONG_COMPILE = 0.2


def unused_gpu():
    """Return the name of a GPU that JAX leaves unused although no setting selects the CPU; None if there is none."""
    if jax.default_backend() != "cpu" or "cpu" in (jax.config.jax_platforms or ""):
        return None
    driver, cards, _ = doctor.nvidia()
    names = [*(card.name for card in cards), *doctor.rocm()[0], *(["NVIDIA GPU"] if driver else [])]
    return next(iter(names), None)


def fitting(sizes, free):
    """Return the sizes that fit into `free` bytes, but at least the smallest one."""
    return tuple(size for size in sizes if free is None or ROOM * size <= free) or sizes[:1]


def show(title, rows, *fields):
    """Print a table with its title."""
    print(f"\n{title}\n{table(cells(rows, fields))}", flush=True)


def first_call(count):
    """Compile the sampler and print the time of each stage; return the seconds a cache would save, and the program."""
    (compiled,) = runtime.warmup((count,), concentration=CONCENTRATION)
    parts = {"trace": compiled.trace_seconds, "lower": compiled.lower_seconds, "compile": compiled.compile_seconds}
    total = sum(parts.values())
    cache = runtime.cache_info().path
    where = f"with the compilation cache {cache}" if cache else "without a compilation cache"
    rows = [{"line": name, "seconds": seconds} for name, seconds in (parts | {"total": total}).items()]
    show(f"First call for {count:,} draws, {where}", rows, "line", "seconds")
    return 0.0 if cache else total, compiled


def measure(count, on_cpu):
    """Time both samplers and the stages of our call; return a row of each table."""
    ours = draw(count)
    first, second = race([Sample("normal", count, normal(count)), Sample("ours", count, ours)], MOST, SECONDS)
    rates = {"line": f"{count:,} draws", "own": second["rate"], "normal": first["rate"], "ratio": second["ratio"]}
    dispatch, compute, copy = timing.stages(ours, jax.device_get)
    stages = {"line": rates["line"], "dispatch": dispatch, "compute": compute}
    return rates, stages if on_cpu else stages | {"copy": copy}


def memory(count, compiled, on_cpu):
    """Return the memory of the largest call and of the device as rows, and the size of a batch of a stream."""
    held = runtime.memory_report()[0]
    try:
        batch = f"{runtime.suggest_batch_size(concentration=CONCENTRATION):,} angles"
    except MemoryError:
        batch = "none fits"
    whose = (
        ("used by this process, JAX included", "free on this machine") if on_cpu else ("used by JAX", "free for JAX")
    )
    sizes = {f"result of {count:,} draws": compiled.output_bytes, "temporary memory": compiled.temporary_bytes}
    sizes |= dict(zip(whose, (held.in_use, held.free), strict=True))
    return [{"line": name, "bytes": size} for name, size in sizes.items()], batch


def advice(gpu, rates, compiling):
    """Return recommendations from the name of an unused GPU or None, the rates, and the seconds to compile."""
    lines = []
    if gpu is not None:
        lines.append(f"JAX does not use the {gpu}; run jax-von-mises doctor to find the reason.")
    *small, large = rates
    if slow := [row["line"] for row in small if row["ratio"].high < 1]:
        lines.append(
            f"Slower than jax.random.normal at {', '.join(slow)}: draw more per call, or in a jitted function."
        )
    if large["ratio"].high < 1:
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
    start = time.perf_counter()
    machine, gpu = environment.describe(), unused_gpu()
    on_cpu = machine["platform"] == "cpu"
    print(environment.text(machine) + (f"\n  {gpu}: not used by JAX" if gpu else ""))
    if on_cpu:
        print(
            "\nThis is a CPU: rates, first calls and memory are those of this processor, and say nothing about a GPU."
        )
    sizes = fitting(SIZES["cpu" if on_cpu else "gpu"], runtime.memory_report()[0].free)
    compiling, compiled = first_call(sizes[-1])
    rates, stages = zip(*(measure(count, on_cpu) for count in sizes), strict=True)
    show("Rates of calls outside jit, and ours relative to jax.random.normal", rates, "line", "own", "normal", "ratio")
    where = ", on a CPU, where nothing is copied to the host" if on_cpu else ""
    show(f"Stages of our call{where}", stages, "line", "dispatch", "compute", "copy")
    rows, batch = memory(sizes[-1], compiled, on_cpu)
    show("Memory", rows, "line", "bytes")
    lines = advice(gpu, rates, compiling)
    print("\n" + "\n".join([f"Suggested batch of a stream: {batch}.", *lines]))
    print(f"{time.perf_counter() - start:.0f} s in total")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure programs: compile times, recompilations, and a trace of operations."""

import contextlib
import gzip
import json
import logging
import re
from collections import Counter, defaultdict

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.profile_gpu.measuring import draw, keys, summary

__all__ = ["compiling", "trace"]

COMPILED = re.compile(r"Finished XLA compilation of (\S+) in ")
LONGEST = 8
TRACED_CALLS = 5


def compiling(plan, tick):
    """Time the stages of first calls, discarding all compiled programs before each; list what later calls compile."""
    stages = defaultdict(list)
    for _ in range(plan.firsts):
        tick()
        jax.clear_caches()
        arguments = dict(concentration=np.float32(plan.concentration), loc=np.float32(0))
        (found,) = jvm.runtime.warmup((plan.count,), **arguments)
        for stage in ("trace", "lower", "compile"):
            stages[stage].append(getattr(found, f"{stage}_seconds"))
        stages["first call after warmup"].append(timing.first_call(draw(plan, plan.count)))
    rows = [{"line": stage, "count": plan.count, **summary(seconds)} for stage, seconds in stages.items()]
    return {"rows": rows, "compiled": compiled_again(plan)}


class Kept(logging.Handler):
    """Keep the names of the programs that JAX reports as compiled."""

    def __init__(self):
        super().__init__()
        self.programs = []

    def emit(self, record):
        """Keep the program named in a log line."""
        self.programs += COMPILED.findall(record.getMessage())


@contextlib.contextmanager
def compilations():
    """Yield a list that collects the programs that JAX compiles; JAX's messages are not printed."""
    logger, kept = logging.getLogger("jax"), Kept()
    before = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [kept]
    try:
        with jax.log_compiles():
            yield kept.programs
    finally:
        logger.propagate, logger.handlers = before


def compiled_again(plan):
    """Return the programs that JAX compiles for a first draw, and for draws with one argument changed."""
    count = plan.sizes[0]
    other = plan._replace(concentration=plan.concentration + 1)
    steps = {
        "first call": lambda: draw(plan, count).draw(keys(0)),
        "same call": lambda: draw(plan, count).draw(keys(0)),
        "another key": lambda: draw(plan, count).draw(keys(1)),
        "another concentration": lambda: draw(other, count).draw(keys(1)),
        "another size": lambda: draw(plan, count + 1).draw(keys(1)),
    }
    jax.clear_caches()
    jax.block_until_ready((keys(0), keys(1)))  # making a key also compiles programs
    found = {}
    for step, call in steps.items():
        with compilations() as programs:
            jax.block_until_ready(call())
        found[step] = programs
    return found


def trace(plan, tick):
    """Record a trace of a few draws for TensorBoard and Perfetto, and sum up its operations."""
    competitor, folder = draw(plan, plan.count), plan.folder / "trace"
    timing.first_call(competitor)
    tick()
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        for i in range(TRACED_CALLS):
            jax.block_until_ready(competitor.draw(keys(i)))
    (path,) = folder.rglob("perfetto_trace.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    seconds, calls = Counter(), Counter()
    for event in events:
        operation = (event.get("args") or {}).get("hlo_op")
        if event.get("ph") == "X" and operation:
            seconds[operation] += event.get("dur", 0) * 1e-6
            calls[operation] += 1
    rows = [{"line": name, "calls": calls[name], "total": total} for name, total in seconds.most_common(LONGEST)]
    return {"rows": rows, "calls": TRACED_CALLS, "count": plan.count}

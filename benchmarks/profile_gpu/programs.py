"""What it costs to have a program at all: compiling, what JAX compiled and when, and a trace of what runs."""

import contextlib
import gzip
import json
import logging
import re
import shutil
import time
from collections import defaultdict

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.profile_gpu import measuring

__all__ = ["COMPILE_LOG", "TRACE", "compile_log", "compiling", "trace"]

COMPILE_LOG = "compile.log"
TRACE = "trace"
PERFETTO = "perfetto_trace.json.gz"
TRACED_CALLS = 5
LONGEST = 8  # operations of the trace that are told


def draw(plan, count, i=0, **options):
    """Draw once, with a key of its own."""
    key = jax.random.fold_in(jax.random.key(3), i)
    return jax.block_until_ready(
        jvm.sample_von_mises(key, np.float32(0), np.float32(plan.concentration), (count,), **options)
    )


def competitor(plan, count, without=False):
    """Draw `count` angles a call; `without` jit, operation by operation."""
    keys = jax.random.split(jax.random.key(4), 8)
    keys = [jax.block_until_ready(keys[i]) for i in range(8)]
    law = np.float32(0), np.float32(plan.concentration)

    def run(key):
        with jax.disable_jit() if without else contextlib.nullcontext():
            return jvm.sample_von_mises(key, *law, (count,))

    return timing.Competitor(run, lambda i: keys[i % len(keys)], jax.block_until_ready)


def first_calls(plan, count, with_jit, without):
    """First calls, one after the other, each as in a process that has compiled nothing of theirs.

    Returns
    -------
    dict of str to list of float
        Seconds of the stages of compiling (``trace``, ``lower``, ``compile``), of all of them, of the whole first call
        with jit, and of the one without.
    method : str
        The route.
    """
    found = {name: [] for name in ("trace", "lower", "compile", "compiling", "jit", "plain")}
    for _ in range(plan.firsts):
        jax.clear_caches()
        (stages,) = jvm.runtime.warmup((count,), concentration=np.float32(plan.concentration), loc=np.float32(0))
        parts = {name: getattr(stages, f"{name}_seconds") for name in ("trace", "lower", "compile")}
        compiling = sum(parts.values())
        called = timing.first_call(with_jit)
        jax.clear_caches()
        plain = timing.first_call(without)
        for name, seconds in (parts | {"compiling": compiling, "jit": compiling + called, "plain": plain}).items():
            found[name].append(seconds)
    return found, stages.method


def cold(plan, count):
    """First calls with and without jit, several of each; then both in turns."""
    with_jit, without = competitor(plan, count), competitor(plan, count, without=True)
    each, method = first_calls(plan, count, with_jit, without)
    firsts = {name: measuring.of_seconds(seconds) for name, seconds in each.items()}
    # The caches are empty again: what the turns need is compiled before them.
    timing.first_call(with_jit)
    seconds = timing.interleave({"jit": with_jit, "plain": without}, plan.rounds)
    jit, plain = (measuring.of_seconds(seconds[name], count=count) for name in ("jit", "plain"))
    return {"count": count, "method": method, "firsts": firsts, "jit": jit, "plain": plain} | paying(firsts, jit, plain)


def paying(firsts, jit, plain):
    """When compiling has paid, where all that this rests on can be believed."""
    noisy = not all(map(measuring.usable, (firsts["compiling"], firsts["jit"], firsts["plain"], jit, plain)))
    if noisy or measuring.against(jit, plain)["state"] == "same":
        return {"noisy": True, "pays_from": None, "calls_of_compiling": None}
    first, plain_first = firsts["jit"]["median"], firsts["plain"]["median"]
    if measuring.against(firsts["jit"], firsts["plain"])["state"] == "same":
        plain_first = first  # no difference that could be told
    return {
        "noisy": False,
        "pays_from": measuring.pays_from(first, jit["median"], plain_first, plain["median"]),
        # So many calls take as long as compiling did.
        "calls_of_compiling": firsts["compiling"]["median"] / jit["median"],
    }


def compiling(plan):
    """Compiling against running, with jit and without, for each size."""
    rows = [cold(plan, count) for count in plan.compiled]
    jax.clear_caches()
    return {"rows": rows}


class Kept(logging.Handler):
    """Keeps lines, each with the step that was under way."""

    def __init__(self):
        super().__init__()
        self.step, self.lines = "", []

    def emit(self, record):
        """Keep one."""
        self.lines.append((self.step, record.created, record.getMessage()))


@contextlib.contextmanager
def listening():
    """JAX's log of what it compiles, into a list and not to the screen."""
    logger, kept = logging.getLogger("jax"), Kept()
    propagate, handlers = logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [kept], False
    try:
        with jax.log_compiles():
            yield kept
    finally:
        logger.handlers, logger.propagate = handlers, propagate


COMPILED = re.compile(r"Finished XLA compilation of (\S+) in ([\d.e+-]+) sec")


def compile_log(plan):
    """What JAX compiles in a first call, the same again, another key, another concentration, another size."""
    count = plan.compiled[0]
    steps = {
        "first call": lambda: draw(plan, count),
        "the same again": lambda: draw(plan, count),
        "another key": lambda: draw(plan, count, 1),
        "another concentration": lambda: draw(plan._replace(concentration=plan.concentration + 1), count),
        "another size": lambda: draw(plan, count + 1),
    }
    # What is made beside the draws, keys above all, is compiled before anyone listens.
    jax.clear_caches()
    jax.block_until_ready(jax.random.fold_in(jax.random.key(3), 0))
    with listening() as kept:
        for kept.step, step in steps.items():
            step()
    programs = {name: [] for name in steps}
    for step, _, line in kept.lines:
        if found := COMPILED.search(line):
            programs[step].append({"program": found[1], "seconds": float(found[2])})
    text = "".join(
        f"{time.strftime('%H:%M:%S', time.localtime(at))} [{step}] {line}\n" for step, at, line in kept.lines
    )
    (plan.folder / COMPILE_LOG).write_text(text, encoding="utf-8")
    return {"file": COMPILE_LOG, "lines": len(kept.lines), "programs": programs}


def operations_of(path):
    """Seconds and calls of each operation of XLA in a Perfetto trace, by its name."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    found = defaultdict(lambda: [0.0, 0])
    for event in events:
        given = event.get("args") or {}
        if event.get("ph") == "X" and "hlo_op" in given:
            each = found[str(given.get("hlo_module", "")), str(given["hlo_op"])]
            each[0] += event.get("dur", 0) * 1e-6
            each[1] += 1
    return [
        {"program": module, "operation": name, "seconds": seconds, "calls": calls}
        for (module, name), (seconds, calls) in sorted(found.items(), key=lambda item: -item[1][0])
    ]


def trace(plan):
    """A trace of a few draws, for TensorBoard and Perfetto, and the operations that take the time."""
    target = plan.folder / TRACE
    draw(plan, plan.count)
    start = time.perf_counter()
    with jax.profiler.trace(target, create_perfetto_trace=True):
        for i in range(TRACED_CALLS):
            draw(plan, plan.count, i + 1)
    seconds = time.perf_counter() - start
    files = sorted(path for path in target.rglob("*") if path.is_file())
    perfetto = next((path for path in files if path.name == PERFETTO), None)
    found = operations_of(perfetto) if perfetto else []
    if perfetto:
        # Where it lies carries a date and the machine's name; this one has an address that can be written down.
        shutil.copyfile(perfetto, target / PERFETTO)
    return {
        "folder": TRACE,
        "perfetto": f"{TRACE}/{PERFETTO}" if perfetto else None,
        "files": [{"name": str(path.relative_to(target)), "bytes": path.stat().st_size} for path in files],
        "calls": TRACED_CALLS,
        "count": plan.count,
        "seconds": seconds,
        "operations": len(found),
        "traced_seconds": sum(each["seconds"] for each in found),
        "longest": found[:LONGEST],
    }

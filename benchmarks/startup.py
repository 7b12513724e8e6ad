"""How long the first angles take in a fresh process: compiled, from the compilation cache, or from a file.

``python -m benchmarks.startup`` starts a process for each way to begin, in turns and in random order, several rounds.
Each imports JAX, starts it, makes itself ready (turns the cache on, loads the file), draws, and draws again. What
counts is the time to be ready and for the first draw. To import a library is told beside it; to make keys and
parameters, which JAX compiles programs for too, is the same for all.
"""

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import environment, goals, timing
from benchmarks.cases import Case, LogUniform
from benchmarks.files import finish, new_file
from benchmarks.peers import OURS, PEERS, Unavailable
from benchmarks.text import NOISE, environment_text, positive, table, time_text

__all__ = ["TASKS", "WAYS", "main"]

FORMAT = 2
ROOT = Path(__file__).parents[1]
ROUNDS = {"quick": 3, "full": 7}

# Parts of the life of a process, in order.
PARTS = ("import_jax", "import_package", "start", "ready", "first", "second")


class Way(NamedTuple):
    """A way to come to the first angles."""

    name: str
    label: str
    cache: str | None = None
    """None, ``"empty"`` or ``"full"``."""
    file: bool = False
    peer: str = OURS
    module: str = "jax_von_mises"
    """What is imported for it, apart from JAX."""


WAYS = (
    Way("compile", "compile"),
    Way("keep", "compile, keep in the cache", cache="empty"),
    Way("cache", "from the cache", cache="full"),
    Way("file", "load the file, compile", file=True),
    Way("file-cache", "load the file, from the cache", cache="full", file=True),
    Way("normal", "jax.random.normal", peer="normal", module="jax"),
    Way("normal-cache", "jax.random.normal, from the cache", cache="full", peer="normal", module="jax"),
    Way("numpyro", "NumPyro", peer="numpyro", module="numpyro.distributions"),
    Way("numpyro-cache", "NumPyro, from the cache", cache="full", peer="numpyro", module="numpyro.distributions"),
    Way("tfp", "TensorFlow Probability", peer="tfp", module="tensorflow_probability.substrates.jax"),
    Way(
        "tfp-cache",
        "TensorFlow Probability, from the cache",
        cache="full",
        peer="tfp",
        module="tensorflow_probability.substrates.jax",
    ),
    Way("torch", "PyTorch", peer="torch", module="torch"),
)

# What is drawn first.
TASKS = {
    "one": Case("one concentration, 2^20 float32", "one", 2**20, 4.0),
    "array": Case("a concentration for each of 1000", "array", 1000, LogUniform(1.0, 9.0)),
}

# Of the design: seconds of the first call.
GOALS = {"compile": 1.0, "cache": 0.2}


def live(order):
    """Body of a process: come to the first angles in one way, and tell the seconds of each part, or what is missing."""
    way = next(way for way in WAYS if way.name == order["way"])
    case = TASKS[order["task"]]
    times = [time.perf_counter()]

    def done():
        times.append(time.perf_counter())

    import jax

    done()
    try:
        importlib.import_module(way.module)
        done()
        ready = next(peer for peer in PEERS if peer.name == way.peer).prepare(case)
    except (ImportError, Unavailable) as reason:
        return {"missing": str(reason)}
    draw, fresh, wait = ready.competitor
    values = [fresh(i) for i in range(2)]
    from jax_von_mises import initialize_compilation_cache, runtime

    concentration = jax.block_until_ready(jax.numpy.asarray(case.concentrations))
    done()
    if order["cache"]:
        initialize_compilation_cache(order["cache"])
    if way.file:
        sampler = jax.jit(runtime.load_sampler(order["file"]))
        draw = lambda key: sampler(key, 0.0, concentration)  # noqa: E731
    done()
    for value in values:
        wait(draw(value))
        done()
    return dict(zip(PARTS, np.diff(times).tolist(), strict=True))


def ask(order):
    """Run such a process, and read what it tells."""
    command = [sys.executable, "-m", "benchmarks.startup", "--order", json.dumps(order)]
    # A cache that the user has would be found by all.
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"a process failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def measure(ways, tasks, rounds, folder):
    """Seconds of each part, for each task, way and round; and the reason for each way that does not run here."""
    from jax_von_mises import runtime

    found = {name: {way.name: [] for way in ways} for name in tasks}
    orders, missing = {}, {}
    for name in tasks:
        case = TASKS[name]
        path = f"{folder}/{name}.sampler"
        runtime.export_sampler(path, (case.count,), concentration=case.concentrations)
        for way in ways:
            orders[name, way.name] = asked = {
                "way": way.name,
                "task": name,
                "cache": way.cache and f"{folder}/{name}-{way.name}",
                "file": path,
            }
            # This once does not count: it fills the cache, and brings the libraries into the memory of the system.
            if (way.cache == "full" or way.peer != OURS) and way.name not in missing:
                told = ask(asked)
                if "missing" in told:
                    missing[way.name] = told["missing"]
                    for each in found.values():
                        del each[way.name]
    order = random.Random(0)
    for number in range(rounds):
        turns = [(name, way) for name in tasks for way in ways if way.name not in missing]
        for name, way in order.sample(turns, len(turns)):
            asked = orders[name, way.name]
            if way.cache == "empty":
                asked = asked | {"cache": f"{folder}/{name}-{way.name}-{number}"}
            found[name][way.name].append(ask(asked))
    return found, missing


def summarise(found):
    """Medians, and whether they can be believed."""
    summary = {}
    for name, ways in found.items():
        summary[name] = {}
        for way, rounds in ways.items():
            first = [part["ready"] + part["first"] for part in rounds]
            low, median, high = np.quantile(first, (0.25, 0.5, 0.75))
            summary[name][way] = {
                "seconds": float(median),
                "quartiles": [float(low), float(high)],
                "wide": timing.Timing(0.0, tuple(first)).wide,
                "parts": {part: float(np.median([found[part] for found in rounds])) for part in PARTS},
            }
    return summary


def summary_text(name, summary):
    """Lay out one task as a table."""
    rows = [("", "import", "ready", "first call", "both", "of compiling", "second call")]
    base = summary.get("compile")
    labels = {way.name: way.label for way in WAYS}
    for way, found in summary.items():
        parts = found["parts"]
        if found["wide"]:
            rows.append((labels[way], *[NOISE] * 6))
            continue
        told = base is not None and not base["wide"]
        share = f"{found['seconds'] / base['seconds']:.0%}" if told else "-"
        seconds = (parts["import_package"], parts["ready"], parts["first"], found["seconds"])
        times = (time_text(second) for second in seconds)
        rows.append((labels[way], *times, share, time_text(parts["second"])))
    first = next(iter(summary.values()))["parts"]
    before = f"to import jax {time_text(first['import_jax'])}, to start it and make a key {time_text(first['start'])}"
    return f"{TASKS[name].name}\n{table(rows)}\n  before all of it: {before}"


def missing_text(missing):
    """Say why ways are missing."""
    return "\n".join(f"  {way.label}: {missing[way.name]}" for way in WAYS if way.name in missing)


def goal_text(summary):
    """Say which of the design's goals were reached."""
    lines = []
    for name, ways in summary.items():
        for way, most in GOALS.items():
            if way in ways:
                seconds, (low, high) = ways[way]["seconds"], ways[way]["quartiles"]
                verdict = goals.Verdict(name, way, 1, most / seconds, ways[way]["wide"], (high - low) / seconds)
                told = NOISE if verdict.noisy else f"{seconds:.2f} s"
                lines.append((f"{name}, {way}", told, f"at most {most:g} s", verdict.state))
    return table(lines) if lines else ""


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="fewer rounds")
    made.add_argument("--rounds", type=positive, help="turns of each; {quick} quick, {full} else".format(**ROUNDS))
    made.add_argument("--tasks", nargs="+", choices=TASKS, default=tuple(TASKS), help=", ".join(TASKS))
    names = [way.name for way in WAYS]
    made.add_argument("--ways", nargs="+", choices=names, default=names, metavar="WAY", help=", ".join(names))
    made.add_argument("--json", metavar="FILE", type=new_file, help="write all times and the environment")
    made.add_argument("--order", help=argparse.SUPPRESS)
    return made


def main(arguments=None):
    """Run the benchmark; returns the exit code, 0 also where goals are missed."""
    given = parser().parse_args(arguments)
    if given.order is not None:
        print(json.dumps(live(json.loads(given.order))))
        return 0
    mode = "quick" if given.quick else "full"
    rounds = given.rounds or ROUNDS[mode]
    ways = [way for way in WAYS if way.name in given.ways]
    began = time.perf_counter()
    about = environment.describe()
    print(environment_text(about))
    print(f"  Median of {rounds} rounds, in which all take turns in random order, each in a process of its own.")
    try:
        with tempfile.TemporaryDirectory(prefix="jax_von_mises-") as folder:
            found, missing = measure(ways, given.tasks, rounds, folder)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (RuntimeError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    summary = summarise(found)
    for name, ways_found in summary.items():
        print(f"\n{summary_text(name, ways_found)}")
    if missing:
        print(f"\nMissing\n{missing_text(missing)}")
    if text := goal_text(summary):
        print(f"\nGoals: ready and first call\n{text}")
    finish(
        began,
        given.json,
        {
            "format": FORMAT,
            "program": "startup",
            "environment": about,
            "options": {"mode": mode, "rounds": rounds},
            "tasks": {name: {"label": TASKS[name].name, "ways": summary[name]} for name in summary},
            "missing": missing,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

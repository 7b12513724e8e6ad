"""How long the first angles take in a fresh process: compiled, from the compilation cache, or from a file.

``python -m benchmarks.startup`` starts a process for each way to begin, in turns and in random order, several rounds.
Each imports JAX, starts it, makes itself ready (turns the cache on, loads the file), draws, and draws again. What
counts is the time to be ready and for the first draw: everything else is the same for all, and told beside it.
"""

import argparse
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
from benchmarks.files import finish, new_file
from benchmarks.text import NOISE, environment_text, positive, table, time_text

__all__ = ["TASKS", "WAYS", "main"]

FORMAT = 1
ROOT = Path(__file__).parents[1]
ROUNDS = {"quick": 3, "full": 9}

# Parts of the life of a process, in order.
PARTS = ("import_jax", "import_package", "start", "ready", "first", "second")


class Way(NamedTuple):
    """A way to come to the first angles."""

    name: str
    label: str
    cache: str | None = None
    """None, ``"empty"`` or ``"full"``."""
    file: bool = False
    peer: bool = False


WAYS = (
    Way("compile", "compile"),
    Way("keep", "compile, keep in the cache", cache="empty"),
    Way("cache", "from the cache", cache="full"),
    Way("file", "load the file, compile", file=True),
    Way("file-cache", "load the file, from the cache", cache="full", file=True),
    Way("normal", "jax.random.normal", peer=True),
    Way("normal-cache", "jax.random.normal, from the cache", cache="full", peer=True),
)


class Task(NamedTuple):
    """What is drawn first."""

    label: str
    shape: tuple[int, ...]
    columns: int


TASKS = {
    "one": Task("one concentration, 2^20 float32", (2**20,), 1),
    "array": Task("a concentration for each of 1000", (1000,), 1000),
}

# Of the design: seconds of the first call.
GOALS = {"compile": 1.0, "cache": 0.2}


def live(order):
    """Body of a process: come to the first angles in one way, and tell the seconds of each part."""
    times = [time.perf_counter()]

    def done():
        times.append(time.perf_counter())

    import jax

    done()
    from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises

    done()
    key = jax.random.key(0)
    if order["cache"]:
        # Keys are made by a program too, and the time to make one is not ours.
        jax.block_until_ready(jax.random.key(1))
    done()
    if order["cache"]:
        initialize_compilation_cache(order["cache"])
    task = Task(*order["task"])
    concentration = 4.0 if task.columns == 1 else np.linspace(1, 9, task.columns, dtype=np.float32)
    if order["peer"]:
        draw = jax.jit(lambda key, _: jax.random.normal(key, task.shape))
    elif order["file"]:
        sampler = jax.jit(runtime.load_sampler(order["file"]))
        draw = lambda key, concentration: sampler(key, 0.3, concentration)  # noqa: E731
    else:
        draw = lambda key, concentration: sample_von_mises(key, 0.3, concentration, task.shape)  # noqa: E731
    done()
    jax.block_until_ready(draw(key, concentration))
    done()
    jax.block_until_ready(draw(key, concentration))
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
    """Seconds of each part, for each task, way and round."""
    from jax_von_mises import runtime

    found = {name: {way.name: [] for way in ways} for name in tasks}
    orders = {}
    for name in tasks:
        task = TASKS[name]
        path = f"{folder}/{name}.sampler"
        concentration = 4.0 if task.columns == 1 else np.ones(task.columns, np.float32)
        runtime.export_sampler(path, task.shape, concentration=concentration)
        for way in ways:
            cache = way.cache and f"{folder}/{name}-{way.name}"
            orders[name, way.name] = {
                "task": task,
                "cache": cache,
                "file": path if way.file else None,
                "peer": way.peer,
            }
            if way.cache == "full":
                ask(orders[name, way.name])
    order = random.Random(0)
    for number in range(rounds):
        turns = [(name, way) for name in tasks for way in ways]
        for name, way in order.sample(turns, len(turns)):
            asked = orders[name, way.name]
            if way.cache == "empty":
                asked = asked | {"cache": f"{folder}/{name}-{way.name}-{number}"}
            found[name][way.name].append(ask(asked))
    return found


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
    rows = [("", "ready", "first call", "both", "of compiling", "second call")]
    base = summary.get("compile")
    labels = {way.name: way.label for way in WAYS}
    for way, found in summary.items():
        parts = found["parts"]
        if found["wide"]:
            rows.append((labels[way], *[NOISE] * 5))
            continue
        told = base is not None and not base["wide"]
        share = f"{found['seconds'] / base['seconds']:.0%}" if told else "-"
        times = (time_text(seconds) for seconds in (parts["ready"], parts["first"], found["seconds"]))
        rows.append((labels[way], *times, share, time_text(parts["second"])))
    first = next(iter(summary.values()))["parts"]
    before = ", ".join(f"{part.replace('_', ' ')} {time_text(first[part])}" for part in PARTS[:3])
    return f"{TASKS[name].label}\n{table(rows)}\n  before all of it: {before}"


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
            found = measure(ways, given.tasks, rounds, folder)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (RuntimeError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    summary = summarise(found)
    for name, ways_found in summary.items():
        print(f"\n{summary_text(name, ways_found)}")
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
            "tasks": {name: {**TASKS[name]._asdict(), "ways": summary[name]} for name in summary},
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

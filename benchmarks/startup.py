"""Measure the time to the first angles of a new process, with and without a compilation cache.

``python -m benchmarks.startup`` runs several rounds. Each round starts a new process for every way to the first angles,
in random order. A process imports JAX, starts it, gets ready (enables the cache), and draws twice. The compared time is
that of getting ready and of the first draw. It excludes imports and the creation of keys and parameters, for which JAX
also compiles programs.
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

from benchmarks import environment, goals, quiet, timing
from benchmarks.cases import Case, LogUniform
from benchmarks.files import finish, new_file
from benchmarks.peers import OURS, PEERS, Unavailable
from benchmarks.text import MARKED, environment_text, marked, missing_text, positive, progress, table, time_text

__all__ = ["TASKS", "WAYS", "main"]

FORMAT = 2
ROOT = Path(__file__).parents[1]
ROUNDS = {"quick": 3, "full": 7}

# Stages of each process, in order.
PARTS = ("import_jax", "import_package", "start", "ready", "first", "second")


class Way(NamedTuple):
    """A way to the first angles."""

    name: str
    label: str
    cache: str | None = None
    """State of the compilation cache before the process, ``"empty"`` or ``"full"``; None if it is not used."""
    peer: str = OURS
    module: str = "jax_von_mises"
    """The module to import in addition to JAX."""


def peer_ways(peer, label, module):
    """Return the ways for another library, without a cache and with a full one."""
    return (
        Way(peer, label, peer=peer, module=module),
        Way(f"{peer}-cache", f"{label}, from the cache", cache="full", peer=peer, module=module),
    )


WAYS = (
    Way("compile", "compile"),
    Way("keep", "compile, keep in the cache", cache="empty"),
    Way("cache", "from the cache", cache="full"),
    *peer_ways("normal", "jax.random.normal", "jax"),
    *peer_ways("numpyro", "NumPyro", "numpyro.distributions"),
    *peer_ways("tfp", "TensorFlow Probability", "tensorflow_probability.substrates.jax"),
    Way("torch", "PyTorch", peer="torch", module="torch"),
)

LABELS = {way.name: way.label for way in WAYS}

TASKS = {
    "one": Case("one concentration, 2^20 float32", "one", 2**20, 4.0),
    "array": Case("a concentration for each of 1000", "array", 1000, LogUniform(1.0, 9.0)),
}

# Upper limits, in seconds, for the time to get ready plus the time of the first draw.
GOALS = {"compile": 1.0, "cache": 0.2}


def live(order):
    """Draw the first angles in this process; return the seconds of each stage, or the reason why none can be drawn."""
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
    from jax_von_mises import initialize_compilation_cache

    jax.block_until_ready(values)
    done()
    if order["cache"]:
        initialize_compilation_cache(order["cache"])
    done()
    for value in values:
        wait(draw(value))
        done()
    return dict(zip(PARTS, np.diff(times).tolist(), strict=True))


def ask(order):
    """Run `live` in a new process and return its result."""
    command = [sys.executable, "-m", "benchmarks.startup", "--order", json.dumps(order)]
    # Hide the user's own cache.
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"a process failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def measure(ways, tasks, rounds, folder):
    """Return the seconds of each stage for each task, way and round, and the reason for each way that cannot run."""
    found = {name: {way.name: [] for way in ways} for name in tasks}
    orders, missing = {}, {}
    with progress() as tick:
        for name in tasks:
            for way in ways:
                cache = way.cache and f"{folder}/{name}-{way.name}"
                orders[name, way.name] = order = {"way": way.name, "task": name, "cache": cache}
                # This untimed run fills the compilation cache and loads the libraries into the system's file cache.
                if (way.cache == "full" or way.peer != OURS) and way.name not in missing:
                    tick()
                    answer = ask(order)
                    if "missing" in answer:
                        missing[way.name] = answer["missing"]
                        for each in found.values():
                            del each[way.name]
        shuffle = random.Random(0)
        for number in range(rounds):
            turns = [(name, way) for name in tasks for way in ways if way.name not in missing]
            for name, way in shuffle.sample(turns, len(turns)):
                tick()
                order = orders[name, way.name]
                if way.cache == "empty":
                    order = order | {"cache": f"{folder}/{name}-{way.name}-{number}"}
                found[name][way.name].append(ask(order))
    return found, missing


def summarise(found):
    """Return the medians and quartiles of the time to the first angles, and the medians of all stages."""
    summary = {}
    for name, ways in found.items():
        summary[name] = {}
        for way, rounds in ways.items():
            measured = timing.Timing(0.0, tuple(part["ready"] + part["first"] for part in rounds))
            summary[name][way] = {
                "seconds": measured.median,
                "quartiles": list(measured.quartiles),
                "spread": measured.spread,
                "wide": measured.wide,
                "parts": {part: float(np.median([found[part] for found in rounds])) for part in PARTS},
            }
    return summary


def summary_text(name, summary, busy=False):
    """Return one task as a table."""
    rows = [("", "import", "get ready", "first call", "sum", "spread", "second call")]
    doubtful = False
    for way, found in summary.items():
        doubt = busy or found["wide"]
        doubtful |= doubt
        seconds = {**found["parts"], "both": found["seconds"]}
        import_, ready, first, both, second = (
            marked(time_text(seconds[part]), doubt) for part in ("import_package", "ready", "first", "both", "second")
        )
        rows.append((LABELS[way], import_, ready, first, both, f"{found['spread']:.0%}", second))
    parts = next(iter(summary.values()))["parts"]
    before = f"  before: importing jax takes {time_text(parts['import_jax'])}, starting it {time_text(parts['start'])}"
    return "\n".join([TASKS[name].name, table(rows), before, *([MARKED] if doubtful else [])])


def goal_text(summary, busy=False):
    """Return the verdicts on `GOALS` as a table."""
    verdicts = []
    for name, ways in summary.items():
        for way, limit in GOALS.items():
            if way in ways:
                found, noise = ways[way], timing.noise_of([ways[way]["spread"]])
                case, ratio = f"{name}: at most {limit:g} s", limit / ways[way]["seconds"]
                verdicts.append(goals.Verdict(case, way, 1, ratio, found["wide"], noise, busy))
    return goals.verdict_table(verdicts, LABELS) if verdicts else ""


def parser():
    """Build the argument parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="measure fewer rounds")
    parser.add_argument(
        "--rounds", type=positive, help="number of rounds; {quick} with --quick, else {full}".format(**ROUNDS)
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=tuple(TASKS), help=f"measure only these tasks: {', '.join(TASKS)}"
    )
    names = [way.name for way in WAYS]
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=names,
        default=names,
        metavar="WAY",
        help=f"measure only these ways: {', '.join(names)}",
    )
    parser.add_argument("--json", metavar="FILE", type=new_file, help="write all times and the environment")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    return parser


def main(arguments=None):
    """Run the benchmark; return the exit code, which is 0 even if goals are missed."""
    options = parser().parse_args(arguments)
    if options.order is not None:
        print(json.dumps(live(json.loads(options.order))))
        return 0
    mode = "quick" if options.quick else "full"
    rounds = options.rounds or ROUNDS[mode]
    ways = [way for way in WAYS if way.name in options.ways]
    began = time.perf_counter()
    machine = environment.describe()
    state = quiet.check()
    busy = not state.quiet
    print(f"{environment_text(machine)}\n  {state.text()}")
    print(f"  Medians of {rounds} rounds, with a new process for each way, in random order.", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="jax_von_mises-") as folder:
            found, missing = measure(ways, options.tasks, rounds, folder)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (RuntimeError, ImportError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    summary = summarise(found)
    for name, ways_found in summary.items():
        print(f"\n{summary_text(name, ways_found, busy)}")
    if missing:
        print(f"\n{missing_text(missing, LABELS)}")
    if text := goal_text(summary, busy):
        print(f"\nGoals: allowed time as a multiple of the measured time\n{text}")
    finish(
        began,
        options.json,
        {
            "format": FORMAT,
            "program": "startup",
            "environment": machine,
            "machine_state": state.as_dict(),
            "options": {"mode": mode, "rounds": rounds},
            "tasks": {name: {"label": TASKS[name].name, "ways": summary[name]} for name in summary},
            "missing": missing,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

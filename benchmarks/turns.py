"""Time competitors that take turns on each case, for the benchmarks `circular`, `sphere` and `torus`.

Each of them defines `CASES`, a function `competitors` that returns the competitors of a case and their numbers of draws
per call, and a function `summary` that returns all records as rows of a table.
"""

import argparse
import time

from benchmarks import environment
from benchmarks.files import finish, new_file
from benchmarks.text import environment_text, positive, table
from benchmarks.timing import Competitor, Timing, first_call, interleave

__all__ = ["SEED", "main", "of_keys"]

FORMAT = 1
SEED = 20261123
ROUNDS = {"quick": 5, "full": 21}


def of_keys(function, *parameters):
    """Compile ``function(key, *parameters)`` and give every call a new key."""
    import jax

    compiled, key = jax.jit(function), jax.random.key(SEED)
    fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
    return Competitor(lambda key: compiled(key, *parameters), fresh, jax.block_until_ready)


def run(case, competitors, rounds):
    """Time the competitors on a case; return its record."""
    first = {name: first_call(competitor) for name, (competitor, _) in competitors.items()}
    turns = interleave({name: competitor for name, (competitor, _) in competitors.items()}, rounds)
    results = {}
    for name, (_, count) in competitors.items():
        timing = Timing(first[name], tuple(turns[name]))
        results[name] = {
            "seconds": timing.median,
            "rate": count / timing.median,
            "first": timing.first,
            "spread": timing.spread,
            "wide": timing.wide,
        }
    return {**case._asdict(), "name": case.name, "results": results}


def parser(program, description):
    """Build the argument parser."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run {quick} rounds instead of {full}".format(**ROUNDS))
    parser.add_argument("--rounds", type=positive, metavar="N", help="number of rounds")
    parser.add_argument("--json", metavar="FILE", type=new_file, help="write the times and the environment")
    return parser


def main(program, description, cases, competitors, summary, arguments):
    """Time all cases of the benchmark `program`, print a table, and return 0; `description` is its docstring."""
    options = parser(program, description).parse_args(arguments)
    mode = "quick" if options.quick else "full"
    rounds = options.rounds or ROUNDS[mode]
    start, machine = time.perf_counter(), environment.describe()
    print(environment_text(machine))
    records = []
    for case in cases:
        records.append(run(case, competitors(case), rounds))
        print(case.name, flush=True)
    print(f"\n{table(summary(records))}")
    settings = {"mode": mode, "rounds": rounds, "seed": SEED}
    result = {"format": FORMAT, "program": program, "environment": machine, "options": settings, "cases": records}
    finish(start, options.json, result)
    return 0

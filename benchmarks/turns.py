"""Time competitors in turns on each case, with one command line for the benchmarks of a distribution.

Such a program has `CASES`, a function `competitors` that maps names to a competitor and its number of draws per call,
and a function `summary` that returns all records as rows of a table.
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


def run(case, made, rounds):
    """Time the competitors on a case; return its record."""
    first = {name: first_call(competitor) for name, (competitor, _) in made.items()}
    turns = interleave({name: competitor for name, (competitor, _) in made.items()}, rounds)
    results = {}
    for name, (_, count) in made.items():
        timing = Timing(first[name], tuple(turns[name]))
        results[name] = {
            "seconds": timing.median,
            "rate": count / timing.median,
            "first": timing.first,
            "spread": timing.spread,
            "wide": timing.wide,
        }
    return {**case._asdict(), "name": case.name, "results": results}


def parser(program, about):
    """Build the argument parser."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=about.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="measure {quick} rounds, not {full}".format(**ROUNDS))
    made.add_argument("--rounds", type=positive, metavar="N", help="number of turns of each competitor")
    made.add_argument("--json", metavar="FILE", type=new_file, help="write the times and the environment")
    return made


def main(program, about, cases, competitors, summary, arguments):
    """Time all cases of the program with this name and docstring, print a table, and return 0."""
    given = parser(program, about).parse_args(arguments)
    mode = "quick" if given.quick else "full"
    rounds = given.rounds or ROUNDS[mode]
    start, found = time.perf_counter(), environment.describe()
    print(environment_text(found))
    records = []
    for case in cases:
        records.append(run(case, competitors(case), rounds))
        print(case.name, flush=True)
    print(f"\n{table(summary(records))}")
    options = {"mode": mode, "rounds": rounds, "seed": SEED}
    result = {"format": FORMAT, "program": program, "environment": found, "options": options, "cases": records}
    finish(start, given.json, result)
    return 0

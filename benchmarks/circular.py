"""Speed of `CircularDistribution`: making its table, and drawing from it next to `sample_von_mises`.

``python -m benchmarks.circular`` times densities with one mode and with several in turns with `sample_von_mises`, of as
many angles in the same run. ``--json FILE`` keeps everything.
"""

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np

from benchmarks import environment
from benchmarks.files import finish, new_file
from benchmarks.text import environment_text, positive, table
from benchmarks.timing import Competitor, Timing, first_call, interleave

__all__ = ["CASES", "Case", "competitors", "main", "summary"]

FORMAT = 1
SEED = 20261123
ROUNDS = {"quick": 5, "full": 21}
COUNT = 2**22


class Case(NamedTuple):
    """Drawing `count` angles, from a density by name; 0 for the table alone."""

    density: str
    count: int

    @property
    def name(self):
        """A line for a reader."""
        return f"{self.density}, {f'{self.count} angles' if self.count else 'table'}"


DENSITIES = ("von Mises", "wrapped Cauchy", "three modes")
CASES = tuple(Case(density, count) for density in DENSITIES for count in (0, COUNT))


def log_density(name):
    """A log density of an angle and one parameter, and the parameter."""
    import jax.numpy as jnp

    def three_modes(x, kappa):
        return jnp.log(sum(jnp.exp(kappa * (jnp.cos(x - centre) - 1)) for centre in (-2.0, 0.2, 2.0)))

    return {
        "von Mises": (lambda x, kappa: kappa * jnp.cos(x), 5.0),
        "wrapped Cauchy": (lambda x, rho: -jnp.log(1 + rho**2 - 2 * rho * jnp.cos(x)), 0.9),
        "three modes": (three_modes, 30.0),
    }[name]


def competitors(case):
    """Return by name what is timed for a case, each with the number of angles in a call."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises import CircularDistribution, sample_von_mises
    from jax_von_mises.distributions import circular
    from jax_von_mises.numerics.circular import quantiles

    density, parameter = log_density(case.density)
    key, value = jax.random.key(SEED), jnp.float32(parameter)

    def of_keys(function):
        compiled = jax.jit(function)
        fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
        return Competitor(lambda key: compiled(key, value), fresh, jax.block_until_ready)

    if not case.count:

        def make(key, value):
            return quantiles.of_panels(circular.divide(CircularDistribution(density, value), np.dtype(np.float32)))

        return {"jax_von_mises": (of_keys(make), 1)}

    def draw(key, value):
        return CircularDistribution(density, value).sample(key, (case.count,))

    peer = of_keys(lambda key, value: sample_von_mises(key, 0.0, 5.0, (case.count,)))
    return {"jax_von_mises": (of_keys(draw), case.count), "sample_von_mises": (peer, case.count)}


def run(case, rounds):
    """Time a case; return its record."""
    made = competitors(case)
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


def summary(records):
    """Lay out all records as a table: milliseconds, rates, and the rate relative to `sample_von_mises`."""
    lines = [("density", "ms", "million a second", "of sample_von_mises", "first call")]
    for record in records:
        own, peer = record["results"]["jax_von_mises"], record["results"].get("sample_von_mises")
        rate = f"{own['rate'] / 1e6:.3g}" if peer else ""
        ratio = f"{own['rate'] / peer['rate']:.2f}" if peer else ""
        lines.append((record["name"], f"{own['seconds'] * 1e3:.3g}", rate, ratio, f"{own['first']:.1f} s"))
    return lines


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.circular", description=__doc__.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="{quick} rounds, not {full}".format(**ROUNDS))
    made.add_argument("--rounds", type=positive, metavar="N", help="turns of each competitor")
    made.add_argument("--json", metavar="FILE", type=new_file, help="write the times and the environment")
    return made


def main(arguments=None, cases=CASES):
    """Time all cases, print a table, and return 0."""
    given = parser().parse_args(arguments)
    mode = "quick" if given.quick else "full"
    rounds = given.rounds or ROUNDS[mode]
    start, about = time.perf_counter(), environment.describe()
    print(environment_text(about))
    records = []
    for case in cases:
        records.append(run(case, rounds))
        print(case.name, flush=True)
    print(f"\n{table(summary(records))}")
    options = {"mode": mode, "rounds": rounds, "seed": SEED}
    result = {"format": FORMAT, "program": "circular", "environment": about, "options": options, "cases": records}
    finish(start, given.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Speed of directions on the sphere, compared in turns with `jax.random.normal`, SciPy and TensorFlow Probability.

``python -m benchmarks.sphere`` draws directions in several dimensions, with one concentration for all and one for each,
the cosines alone, and the derivative in the concentration. `jax.random.normal` makes as many components, so its ratio
says what a direction costs over the cheapest array of that size. ``--json FILE`` keeps everything.
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
# Elements that slow peers get, and are scaled from.
FEW = 2**14


class Case(NamedTuple):
    """`count` draws of `kind` in `dimension` dimensions: directions, cosines alone, or the derivative of their sum."""

    kind: str
    dimension: int
    count: int
    each: bool = False
    """Whether every draw has its own concentration, log-uniform between 0.01 and 10^4; all have 5 otherwise."""

    @property
    def name(self):
        """A line for a reader."""
        return f"{self.kind}, d = {self.dimension}, {'a concentration each' if self.each else 'one concentration'}"


CASES = (
    *(Case("directions", d, count) for d, count in ((2, 2**20), (3, 2**20), (5, 2**18), (100, 2**15))),
    *(Case("directions", d, count, True) for d, count in ((3, 2**20), (5, 2**18), (100, 2**15))),
    *(Case("cosines", d, 2**20, True) for d in (3, 5, 100, 1024)),
    *(Case("gradient", d, count) for d, count in ((3, 2**20), (5, 2**18), (100, 2**15))),
)


def competitors(case, peers=True):
    """Return by name what is timed for a case, each with the number of draws in a call."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises import sample_von_mises_fisher
    from jax_von_mises.sampling import counter, sphere

    d, n = case.dimension, case.count
    mean = np.random.default_rng(d).normal(size=d).astype(np.float32)
    mean /= np.linalg.norm(mean)
    spread = np.random.default_rng(SEED).uniform(np.log(0.01), np.log(1e4), n)
    kappa = jnp.asarray(np.exp(spread) if case.each else 5.0, jnp.float32)
    key = jax.random.key(SEED)

    def of_keys(function):
        compiled = jax.jit(function)
        fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
        return Competitor(lambda key: compiled(key, mean, kappa), fresh, jax.block_until_ready)

    def draw(key, mean, kappa):
        return sample_von_mises_fisher(key, mean, kappa, (n,))

    def cosines(key, mean, kappa):
        return sphere.drawn_share(counter.words(key, (n,), 1), kappa, d, "direct", None)

    def gradient(key, mean, kappa):
        return jax.grad(lambda kappa: draw(key, mean, kappa).sum())(kappa)

    shape = (n,) if case.kind == "cosines" else (n, d)
    normal = of_keys(lambda key, mean, kappa: jax.random.normal(key, shape))
    found = {"jax.random.normal": (normal, n)}
    if case.kind == "gradient":
        return {"jax_von_mises": (of_keys(gradient), n), "the draw alone": (of_keys(draw), n), **found}
    found = {"jax_von_mises": (of_keys(cosines if case.kind == "cosines" else draw), n), **found}
    if peers and case.kind == "directions" and not case.each:
        from scipy import stats

        few = min(n, FEW)
        theirs = stats.vonmises_fisher(mean.astype(float) / np.linalg.norm(mean.astype(float)), 5.0)
        found["SciPy"] = Competitor(lambda i: theirs.rvs(few, random_state=i)), few
        found |= tfp(of_keys, n, d)
    return found


def tfp(of_keys, n, d):
    """TensorFlow Probability's sampler, where it is installed; it takes up to five dimensions."""
    try:
        from tensorflow_probability.substrates.jax import distributions
    except ImportError:
        return {}
    if d > 5:
        return {}
    draw = lambda key, mean, kappa: distributions.VonMisesFisher(mean, kappa).sample(n, seed=key)  # noqa: E731
    return {"TFP": (of_keys(draw), n)}


def run(case, rounds, peers=True):
    """Time a case; return its record."""
    made = competitors(case, peers)
    first = {name: first_call(competitor) for name, (competitor, _) in made.items()}
    turns = interleave({name: competitor for name, (competitor, _) in made.items()}, rounds)
    results = {}
    for name, (_, count) in made.items():
        timing = Timing(first[name], tuple(turns[name]))
        per_draw = timing.median / count
        results[name] = {"rate": 1 / per_draw, "first": timing.first, "spread": timing.spread, "wide": timing.wide}
    return {**case._asdict(), "name": case.name, "results": results}


def summary(records):
    """Lay out all records as a table: rates, and times relative to `jax.random.normal` of as many components."""
    names = list(dict.fromkeys(name for record in records for name in record["results"]))
    lines = [("million per second", *names, "time / normal", "first call")]
    for record in records:
        found = record["results"]
        cells = [f"{found[name]['rate'] / 1e6:.3g}" if name in found else "" for name in names]
        ratio = found["jax.random.normal"]["rate"] / found["jax_von_mises"]["rate"]
        lines.append((record["name"], *cells, f"{ratio:.2f}", f"{found['jax_von_mises']['first']:.1f} s"))
    return lines


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.sphere", description=__doc__.splitlines()[0])
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
    result = {"format": FORMAT, "program": "sphere", "environment": about, "options": options, "cases": records}
    finish(start, given.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

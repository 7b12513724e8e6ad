"""Speed of pairs of angles, compared in turns with `sample_von_mises` and NumPyro's bivariate class.

``python -m benchmarks.torus`` draws pairs of one distribution and of one for each, with and without derivatives, and
computes the log density and its gradient for many distributions. `sample_von_mises` with an array of concentrations
draws as many angles as there are pairs, the part of the work that cannot be saved. ``--json FILE`` keeps everything.
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
# Pairs and distributions that NumPyro gets, and is scaled from: it draws some ten thousand pairs a second.
FEW_PAIRS, FEW_DISTRIBUTIONS = 2**10, 8


class Case(NamedTuple):
    """`count` draws or log densities of a `model` with concentrations 5 and 6 and a `correlation`, or random ones."""

    kind: str
    """ "pairs", "gradient" (of their sum, in the correlation) or "log_prob" (and its gradient)."""
    model: str
    count: int
    correlation: float = 3.0
    each: bool = False
    """Whether every draw has its own parameters, with log-uniform concentrations between 0.01 and 10^4."""

    @property
    def name(self):
        """A line for a reader."""
        of = "a distribution each" if self.each else f"correlation {self.correlation:g}"
        return f"{self.kind}, {self.model} model, {of}"


CASES = (
    Case("pairs", "sine", 2**21),
    Case("pairs", "sine", 2**21, -7.0),
    Case("pairs", "cosine", 2**21),
    Case("pairs", "sine", 2**17, each=True),
    Case("pairs", "cosine", 2**17, each=True),
    Case("gradient", "sine", 2**17),
    Case("log_prob", "sine", 1000, each=True),
    Case("log_prob", "cosine", 1000, each=True),
)


def competitors(case, peers=True):
    """Return by name what is timed for a case, each with the number of draws or densities in a call."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises import CosineBivariateVonMises, SineBivariateVonMises, sample_von_mises

    cls = {"sine": SineBivariateVonMises, "cosine": CosineBivariateVonMises}[case.model]
    n, key = case.count, jax.random.key(SEED)
    random = np.random.default_rng(SEED)
    spread = np.exp(random.uniform(np.log(0.01), np.log(1e4), (2, n)))
    share = random.uniform(-1.5, 1.5, n)
    parameters = (*spread, share * np.sqrt(spread[0] * spread[1])) if case.each else (5.0, 6.0, case.correlation)
    parameters = tuple(jnp.asarray(x, jnp.float32) for x in parameters)
    points = jnp.asarray(random.uniform(-np.pi, np.pi, (n, 2)), jnp.float32)

    def of_keys(function, parameters=parameters):
        compiled = jax.jit(function)
        fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
        return Competitor(lambda key: compiled(key, *parameters), fresh, jax.block_until_ready)

    def draw(key, k1, k2, r):
        return cls(0.0, 0.0, k1, k2, r).sample(key, () if case.each else (n,))

    def gradient(key, k1, k2, r):
        return jax.grad(lambda r: draw(key, k1, k2, r).sum())(r)

    def log_prob(key, k1, k2, r):
        """Moved points, so that no call has the values of another."""
        moved = points + jax.random.uniform(key)
        return jax.value_and_grad(lambda k: cls(0.0, 0.0, *k).log_prob(moved).sum())((k1, k2, r))

    def angles(key, k1, k2, r):
        return sample_von_mises(key, 0.0, jnp.broadcast_to(k2, (n,)))

    ours = {"pairs": draw, "gradient": gradient, "log_prob": log_prob}[case.kind]
    found = {"jax_von_mises": (of_keys(ours), n)}
    if case.kind != "log_prob":
        found["sample_von_mises"] = of_keys(angles), n
    if case.kind == "gradient":
        found["the draw alone"] = of_keys(draw), n
    # Two modes are refused there, and so are derivatives of draws and the cosine model.
    if (
        peers
        and case.model == "sine"
        and case.correlation == 3.0
        and case.kind != "gradient"
        and not (case.each and case.kind == "pairs")
    ):
        found |= numpyro(of_keys, case, parameters, points)
    return found


def numpyro(of_keys, case, parameters, points):
    """NumPyro's class, where it is installed."""
    try:
        from numpyro.distributions import SineBivariateVonMises
    except ImportError:
        return {}
    import jax

    def make(k1, k2, r):
        return SineBivariateVonMises(0.0, 0.0, k1, k2, r, validate_args=False)

    if case.kind == "pairs":
        return {"NumPyro": (of_keys(lambda key, *k: make(*k).sample(key, (FEW_PAIRS,))), FEW_PAIRS)}
    few = tuple(x[:FEW_DISTRIBUTIONS] for x in parameters)

    def log_prob(key, *k):
        moved = points[:FEW_DISTRIBUTIONS] + jax.random.uniform(key)
        return jax.value_and_grad(lambda k: make(*k).log_prob(moved).sum())(k)

    return {"NumPyro": (of_keys(log_prob, few), FEW_DISTRIBUTIONS)}


def run(case, rounds, peers=True):
    """Time a case; return its record."""
    made = competitors(case, peers)
    first = {name: first_call(competitor) for name, (competitor, _) in made.items()}
    turns = interleave({name: competitor for name, (competitor, _) in made.items()}, rounds)
    results = {}
    for name, (_, count) in made.items():
        timing = Timing(first[name], tuple(turns[name]))
        results[name] = {
            **{"rate": count / timing.median, "seconds": timing.median, "first": timing.first},
            **{"spread": timing.spread, "wide": timing.wide},
        }
    return {**case._asdict(), "name": case.name, "results": results}


def summary(records):
    """Lay out all records as a table: rates, and the time of one call of ours."""
    names = list(dict.fromkeys(name for record in records for name in record["results"]))
    lines = [("million a second", *names, "one call", "first call")]
    for record in records:
        found = record["results"]
        cells = [f"{found[name]['rate'] / 1e6:.3g}" if name in found else "" for name in names]
        ours = found["jax_von_mises"]
        lines.append((record["name"], *cells, f"{1e3 * ours['seconds']:.3g} ms", f"{ours['first']:.1f} s"))
    return lines


def parser():
    """Make the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.torus", description=__doc__.splitlines()[0])
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
    result = {"format": FORMAT, "program": "torus", "environment": about, "options": options, "cases": records}
    finish(start, given.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

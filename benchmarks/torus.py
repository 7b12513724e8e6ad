"""Time the bivariate distributions, and compare them with `sample_von_mises` and NumPyro's bivariate class.

``python -m benchmarks.torus`` times draws of pairs, from a common distribution and from a separate one for each pair,
and the derivative of draws with respect to the correlation. It also times the log density and its gradient for many
distributions. The competitors take turns. `sample_von_mises` with an array of concentrations draws one angle per pair,
which is a lower bound on the work.
``--json FILE`` saves all results.
"""

import sys
from typing import NamedTuple

import numpy as np

from benchmarks import turns

__all__ = ["CASES", "Case", "competitors", "main", "summary"]

# NumPyro, which draws about 1e4 pairs per second, gets only this many pairs and distributions.
FEW_PAIRS, FEW_DISTRIBUTIONS = 2**10, 8


class Case(NamedTuple):
    """`count` draws or log densities of a `model`; the concentrations are 5 and 6 unless `each` is set."""

    kind: str
    """ "pairs", "gradient" (of the sum of pairs, with respect to the correlation) or "log_prob" (with its gradient)."""
    model: str
    count: int
    correlation: float = 3.0
    each: bool = False
    """Whether every pair has its own random parameters, with log-uniform concentrations between 0.01 and 10^4."""

    @property
    def name(self):
        """Label of the case in tables."""
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


def competitors(case):
    """Return the competitors of a case by name, each with its number of draws or densities per call."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises import CosineBivariateVonMises, SineBivariateVonMises, sample_von_mises

    cls = {"sine": SineBivariateVonMises, "cosine": CosineBivariateVonMises}[case.model]
    n = case.count
    random = np.random.default_rng(turns.SEED)
    spread = np.exp(random.uniform(np.log(0.01), np.log(1e4), (2, n)))
    ratio = random.uniform(-1.5, 1.5, n)
    parameters = (*spread, ratio * np.sqrt(spread[0] * spread[1])) if case.each else (5.0, 6.0, case.correlation)
    parameters = tuple(jnp.asarray(x, jnp.float32) for x in parameters)
    points = jnp.asarray(random.uniform(-np.pi, np.pi, (n, 2)), jnp.float32)

    def of_keys(function, parameters=parameters):
        return turns.of_keys(function, *parameters)

    def draw(key, k1, k2, r):
        return cls(0.0, 0.0, k1, k2, r).sample(key, () if case.each else (n,))

    def gradient(key, k1, k2, r):
        return jax.grad(lambda r: draw(key, k1, k2, r).sum())(r)

    def log_prob(key, k1, k2, r):
        """Compute the log density and its gradient at points that are shifted randomly in each call."""
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
    # NumPyro does not support bimodal distributions, derivatives of draws, or the cosine model.
    supported = case.kind == "log_prob" or (case.kind == "pairs" and not case.each)
    if supported and case.model == "sine" and case.correlation == 3.0:
        found |= numpyro(of_keys, case, parameters, points)
    return found


def numpyro(of_keys, case, parameters, points):
    """Return NumPyro's class as a competitor if it is installed."""
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


def summary(records):
    """Return the rows of a table: rates, and the times of one call and of the first call to our function."""
    names = list(dict.fromkeys(name for record in records for name in record["results"]))
    lines = [("million per second", *names, "one call", "first call")]
    for record in records:
        found = record["results"]
        cells = [f"{found[name]['rate'] / 1e6:.3g}" if name in found else "" for name in names]
        ours = found["jax_von_mises"]
        lines.append((record["name"], *cells, f"{1e3 * ours['seconds']:.3g} ms", f"{ours['first']:.1f} s"))
    return lines


def main(arguments=None, cases=CASES):
    """Time all cases, print a table, and return 0."""
    return turns.main("torus", __doc__, cases, competitors, summary, arguments)


if __name__ == "__main__":
    sys.exit(main())

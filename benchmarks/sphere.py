"""Time draws of directions on the sphere, and compare them with those of other libraries.

``python -m benchmarks.sphere`` times draws of directions in several dimensions, with one concentration for all draws
and with a separate one for each. It also times draws of the cosines alone, and derivatives with respect to the
concentration. The competitors take turns: the package, SciPy, TensorFlow Probability, and `jax.random.normal` with
the same number of components. ``--json FILE`` saves all results.
"""

import sys
from typing import NamedTuple

import numpy as np

from benchmarks import turns
from benchmarks.timing import Competitor

__all__ = ["CASES", "Case", "competitors", "main", "summary"]

# SciPy, which is slow, draws at most this many directions per call.
FEW = 2**14


class Case(NamedTuple):
    """`count` draws in `dimension` dimensions: directions, cosines, or the derivative of the sum of all components."""

    kind: str
    dimension: int
    count: int
    each: bool = False
    """Whether every draw has its own concentration, log-uniform between 0.01 and 10^4, instead of 5 for all."""

    @property
    def name(self):
        """Label of the case in tables."""
        return f"{self.kind}, d = {self.dimension}, {'a concentration each' if self.each else 'one concentration'}"


CASES = (
    *(Case("directions", d, count) for d, count in ((2, 2**20), (3, 2**20), (5, 2**18), (100, 2**15))),
    *(Case("directions", d, count, True) for d, count in ((3, 2**20), (5, 2**18), (100, 2**15))),
    *(Case("cosines", d, 2**20, True) for d in (3, 5, 100, 1024)),
    *(Case("gradient", d, count) for d, count in ((3, 2**20), (5, 2**18), (100, 2**15))),
)


def competitors(case):
    """Return the competitors of a case by name, each with its number of draws per call."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises import sample_von_mises_fisher
    from jax_von_mises.sampling import counter, sphere

    d, n = case.dimension, case.count
    mean = np.random.default_rng(d).normal(size=d).astype(np.float32)
    mean /= np.linalg.norm(mean)
    spread = np.random.default_rng(turns.SEED).uniform(np.log(0.01), np.log(1e4), n)
    kappa = jnp.asarray(np.exp(spread) if case.each else 5.0, jnp.float32)

    def of_keys(function):
        return turns.of_keys(function, mean, kappa)

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
    if case.kind == "directions" and not case.each:
        from scipy import stats

        few = min(n, FEW)
        distribution = stats.vonmises_fisher(mean.astype(float) / np.linalg.norm(mean.astype(float)), 5.0)
        found["SciPy"] = Competitor(lambda i: distribution.rvs(few, random_state=i)), few
        found |= tfp(of_keys, n, d)
    return found


def tfp(of_keys, n, d):
    """Return TensorFlow Probability's sampler, which supports up to five dimensions, if the library is installed."""
    try:
        from tensorflow_probability.substrates.jax import distributions
    except ImportError:
        return {}
    if d > 5:
        return {}
    draw = lambda key, mean, kappa: distributions.VonMisesFisher(mean, kappa).sample(n, seed=key)  # noqa: E731
    return {"TFP": (of_keys(draw), n)}


def summary(records):
    """Return the rows of a table: rates, our time relative to that of `jax.random.normal`, and our first call."""
    names = list(dict.fromkeys(name for record in records for name in record["results"]))
    lines = [("million per second", *names, "time / normal", "first call")]
    for record in records:
        found = record["results"]
        cells = [f"{found[name]['rate'] / 1e6:.3g}" if name in found else "" for name in names]
        ratio = found["jax.random.normal"]["rate"] / found["jax_von_mises"]["rate"]
        lines.append((record["name"], *cells, f"{ratio:.2f}", f"{found['jax_von_mises']['first']:.1f} s"))
    return lines


def main(arguments=None, cases=CASES):
    """Time all cases, print a table, and return 0."""
    return turns.main("sphere", __doc__, cases, competitors, summary, arguments)


if __name__ == "__main__":
    sys.exit(main())

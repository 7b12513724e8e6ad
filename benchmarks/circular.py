"""Time tables and draws of `CircularDistribution`, and compare the draws with `sample_von_mises`.

``python -m benchmarks.circular`` times densities with one mode and with several. The competitors in a case of draws
take turns and draw the same number of angles. ``--json FILE`` saves all results.
"""

import sys
from typing import NamedTuple

import numpy as np

from benchmarks import turns

__all__ = ["CASES", "Case", "competitors", "main", "summary"]

COUNT = 2**22


class Case(NamedTuple):
    """`count` draws from the distribution named `density`, or only the computation of its table if `count` is 0."""

    density: str
    count: int

    @property
    def name(self):
        """Label of the case in tables."""
        return f"{self.density}, {f'{self.count} angles' if self.count else 'table'}"


DENSITIES = ("von Mises", "wrapped Cauchy", "three modes")
CASES = tuple(Case(density, count) for density in DENSITIES for count in (0, COUNT))


def log_density(name):
    """Return a log density as a function of the angle and one parameter, and the value of that parameter."""
    import jax.numpy as jnp

    def three_modes(x, kappa):
        return jnp.log(sum(jnp.exp(kappa * (jnp.cos(x - centre) - 1)) for centre in (-2.0, 0.2, 2.0)))

    return {
        "von Mises": (lambda x, kappa: kappa * jnp.cos(x), 5.0),
        "wrapped Cauchy": (lambda x, rho: -jnp.log(1 + rho**2 - 2 * rho * jnp.cos(x)), 0.9),
        "three modes": (three_modes, 30.0),
    }[name]


def competitors(case):
    """Return the competitors of a case by name, each with its number of angles per call (1 for a table)."""
    import jax.numpy as jnp

    from jax_von_mises import CircularDistribution, sample_von_mises
    from jax_von_mises.distributions import any_density
    from jax_von_mises.numerics.any_density import quantiles

    density, parameter = log_density(case.density)
    value = jnp.float32(parameter)

    def of_keys(function):
        return turns.of_keys(function, value)

    if not case.count:

        def make(key, value):
            return quantiles.of_panels(any_density.divide(CircularDistribution(density, value), np.dtype(np.float32)))

        return {"jax_von_mises": (of_keys(make), 1)}

    def draw(key, value):
        return CircularDistribution(density, value).sample(key, (case.count,))

    peer = of_keys(lambda key, value: sample_von_mises(key, 0.0, 5.0, (case.count,)))
    return {"jax_von_mises": (of_keys(draw), case.count), "sample_von_mises": (peer, case.count)}


def summary(records):
    """Return the rows of a table: times, rates, rates relative to `sample_von_mises`, and times of the first call."""
    lines = [("density", "ms", "million per second", "rate / sample_von_mises", "first call")]
    for record in records:
        own, peer = record["results"]["jax_von_mises"], record["results"].get("sample_von_mises")
        rate = f"{own['rate'] / 1e6:.3g}" if peer else ""
        ratio = f"{own['rate'] / peer['rate']:.2f}" if peer else ""
        lines.append((record["name"], f"{own['seconds'] * 1e3:.3g}", rate, ratio, f"{own['first']:.1f} s"))
    return lines


def main(arguments=None, cases=CASES):
    """Time all cases, print a table, and return 0."""
    return turns.main("circular", __doc__, cases, competitors, summary, arguments)


if __name__ == "__main__":
    sys.exit(main())

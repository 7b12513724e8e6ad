"""Compute the probabilities that the tests expect of correctly rounded angles, and the effect of the guaranteed error.

A sampler rounds its angles, so a bin is a set of floats. Its probability is that of all real numbers that round to
these floats. It is the integral of the density between midpoints of neighbouring floats, computed by quadrature in
float64. Rounding therefore causes no false alarm.

The sampler may also have its guaranteed error: 2e-6 of the tail probability of every angle (1e-12 in float64), or
4 units in the last place of the angle. The *slack* of a bin is the effect of this error at its two ends.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks import reference

__all__ = ["ALLOWED", "LATTICE", "NO_TAILS", "OCTAVES", "ULP", "Bins", "Tails", "bins", "moments", "slack_at", "tails"]

ALLOWED = {"float32": 2e-6, "float64": 1e-12}
ULP = 4
# Tail probabilities of float32 angles are (m + 1/2) / LATTICE for integers m from 0 to LATTICE / 2 - 1.
LATTICE = 2.0**32
OCTAVES = 32
REACH = 12.0  # half the range of integration for the moments, in standard deviations


class Bins(NamedTuple):
    """Bins of one distribution in one dtype, in ascending order."""

    edges: np.ndarray
    """The smallest float of each bin except the first, as float64."""
    mass: np.ndarray
    """Probability of each bin."""
    slack: np.ndarray
    """The guaranteed error of that probability."""
    even: bool
    """Whether all bins have nearly the same probability; floats can be too coarse for that."""


class Tails(NamedTuple):
    """Ascending thresholds of |x|, and the probabilities of angles beyond them, on both sides together."""

    places: np.ndarray
    mass: np.ndarray
    least: np.ndarray
    """The smallest probability within the guarantee."""
    most: np.ndarray
    """The largest probability within the guarantee."""


NO_TAILS = Tails(*[np.zeros(0)] * 4)


def below(places, dtype):
    """Return the midpoints between `places` and the next smaller values of `dtype`; `places` are values of `dtype`."""
    values = np.asarray(places).astype(jnp.dtype(dtype))
    smaller = np.nextafter(values, np.asarray(-np.inf, values.dtype))
    return (values.astype(np.float64) + smaller.astype(np.float64)) / 2


def slack_at(places, mass_below, k, dtype):
    """Return the guaranteed error of the probability below each of `places`."""
    compute = "float64" if dtype == "float64" else "float32"
    tail = np.minimum(mass_below, 1 - mass_below)
    spacing = np.spacing(np.abs(places).astype(compute)).astype(np.float64)
    density = np.exp(reference.log_prob(places, k))
    return np.maximum(ALLOWED[compute] * tail, ULP * spacing * density)


def bins(k, dtype, number):
    """Return `number` bins of nearly equal probability, fewer where floats are too coarse for that."""
    # The edges may come from the package's quantiles, since the reference gives their probabilities.
    guess = jvm.icdf(jnp.arange(1, number, dtype=jnp.float32) / number, jnp.float32(0), jnp.float32(k))
    edges = np.unique(np.asarray(guess).astype(jnp.dtype(dtype)).astype(np.float64))
    ends = reference.cdf(below(edges, dtype), k)
    slack = np.concatenate([[0.0], slack_at(edges, ends, k, dtype), [0.0]])
    mass = np.diff(np.concatenate([[0.0], ends, [1.0]]))
    return Bins(edges, mass, slack[:-1] + slack[1:], len(mass) == number)


def lattice(tail):
    """Return the one-sided probability of float32 draws beyond an angle whose exact tail probability is `tail`."""
    return np.floor(tail * LATTICE + 0.5) / LATTICE


def tails(k):
    """Return the `Tails` of float32 draws for tail probabilities of 1/4, 1/8, ..., 2^-32 on each side."""
    levels = 2.0 ** -np.arange(2.0, OCTAVES + 1)
    # Angles lie in [-pi, pi). The smallest tails may share the last float before pi.
    last = np.nextafter(np.float32(np.pi), np.float32(0))
    places = np.unique(np.minimum(-reference.icdf(levels, k).astype(np.float32), last)).astype(np.float64)
    # At midpoints between floats, rounding does not decide on which side an angle lies.
    ends = below(places, "float32")
    tail = reference.cdf(-ends, k)
    slack = slack_at(ends, tail, k, "float32")
    return Tails(places, *(2 * lattice(np.maximum(each, 0)) for each in (tail, tail - slack, tail + slack)))


def moments(k, orders, dtype, points=2**18):
    """Compute means and variances of 1 - cos(j x) and of sin(j x) for each j, and the slack of the means.

    Returns
    -------
    dict
        Two arrays of shape (3, len(orders)), ``versine`` and ``sine``, with the rows mean, variance and slack.
    """
    # The density is smooth, and periodic or negligible at the ends, so sums over an
    # even grid equal the integrals up to rounding errors.
    width = min(np.pi, REACH / np.sqrt(max(k, 1e-9)))
    x = np.linspace(-width, width, points, endpoint=False)
    weight = np.exp(reference.log_prob(x, k)) * 2 * width / points
    # A cdf error of at most d(x) moves the mean of f by at most the integral of |f'| d.
    some = x[::64]
    allowed = slack_at(some, reference.cdf(some, k), k, dtype) * 64 * 2 * width / points
    found = {"versine": [], "sine": []}
    for j in orders:
        # 2 sin^2(x/2) is 1 - cos(x) without cancellation.
        for name, values, slope in (
            ("versine", 2 * np.sin(j * x / 2) ** 2, j * np.sin(j * some)),
            ("sine", np.sin(j * x), j * np.cos(j * some)),
        ):
            mean = np.sum(values * weight)
            found[name].append((mean, np.sum((values - mean) ** 2 * weight), np.sum(np.abs(slope) * allowed)))
    return {name: np.array(rows).T for name, rows in found.items()}

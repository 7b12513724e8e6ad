"""What the tests expect: the probability of every bin, exactly as the floats of a dtype can have it.

A sampler rounds. A bin is therefore a set of floats, and its probability that of all real numbers that round to them:
the law between the points halfway to the neighbouring floats, by quadrature in float64. So rounding is no false alarm.

What remains is the error that the sampler is allowed: of the tail probability t of every angle 2e-6 t (1e-12 t in
float64), or 4 units in the last place of the angle. A bin may be off by what its two ends may be off by, and no more.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks import reference

__all__ = [
    "ALLOWED",
    "NO_TAILS",
    "ULP",
    "Expected",
    "Tails",
    "expect",
    "halfway",
    "lattice",
    "moments",
    "slack_at",
    "thresholds",
]

ALLOWED = {"float32": 2e-6, "float64": 1e-12}
ULP = 4
# Tail probabilities of float32 are (m + 1/2) / LATTICE for integers m from 0 to LATTICE / 2 - 1.
LATTICE = 2.0**32
OCTAVES = 32
REACH = 12.0  # standard deviations, beyond which nothing counts


class Expected(NamedTuple):
    """Bins of one law in one dtype, in ascending order."""

    edges: np.ndarray
    """The smallest float of each bin but the first, of the dtype's values as float64."""
    mass: np.ndarray
    """Probability of each bin."""
    slack: np.ndarray
    """How far the probability of each bin may be off."""
    even: bool
    """Whether all bins are of nearly equal probability: floats can be too coarse for that."""


class Tails(NamedTuple):
    """Thresholds of the angles' sizes, ascending, and the probability of all angles beyond, to both sides."""

    places: np.ndarray
    mass: np.ndarray
    least: np.ndarray
    """The probability may be as small as this,"""
    most: np.ndarray
    """and as large as this, of a sampler that keeps its promise."""


NO_TAILS = Tails(*[np.zeros(0)] * 4)


def halfway(places, dtype):
    """The points halfway from `places`, numbers of `dtype` held as float64, to the next smaller numbers of it."""
    values = np.asarray(places, np.float64).astype(jnp.dtype(dtype))
    below = (
        np.nextafter(values, np.asarray(-np.inf, values.dtype)) if dtype in ("float32", "float64") else before(values)
    )
    return (values.astype(np.float64) + below.astype(np.float64)) / 2


def before(values):
    """The next smaller number of each of 16-bit floats, through their bits: NumPy's own does not know bfloat16."""
    bits = values.view(np.uint16).astype(np.int32)
    order = np.where(bits & 0x8000, 0x8000 - bits, bits) - 1
    back = np.where(order < 0, 0x8000 - order, order).astype(np.uint16)
    return back.view(values.dtype)


def slack_at(places, mass_below, k, dtype):
    """How far the probability below each of `places` may be off, for a sampler that keeps its promise."""
    compute = "float64" if dtype == "float64" else "float32"
    tail = np.minimum(mass_below, 1 - mass_below)
    spacing = np.spacing(np.abs(places).astype(compute)).astype(np.float64)
    density = np.exp(reference.log_prob(places, k))
    return np.maximum(ALLOWED[compute] * tail, ULP * spacing * density)


def expect(k, dtype, bins):
    """`bins` bins of nearly equal probability, fewer where floats are too coarse for so many."""
    # Where the edges lie does not matter, only that their probabilities are known: ours are at hand.
    q = np.arange(1, bins) / bins
    guess = np.asarray(jvm.icdf(jnp.asarray(q, jnp.float32), jnp.float32(0), jnp.float32(k)))
    edges = np.unique(guess.astype(jnp.dtype(dtype)).astype(np.float64))
    below = reference.cdf(halfway(edges, dtype), k)
    slack = np.concatenate([[0.0], slack_at(edges, below, k, dtype), [0.0]])
    mass = np.diff(np.concatenate([[0.0], below, [1.0]]))
    return Expected(edges, mass, slack[:-1] + slack[1:], len(mass) == bins)


def lattice(tail):
    """The probability of a tail of float32 draws, to one side, where the law has `tail`."""
    return np.floor(tail * LATTICE + 0.5) / LATTICE


def thresholds(k):
    """Angles beyond which tails of 1/4, 1/8, ... 2^-32 lie to each side, of float32 draws, as `Tails`."""
    levels = 2.0 ** -np.arange(2.0, OCTAVES + 1)
    # No angle lies outside of [-pi, pi), so the last float before pi has all that is beyond; levels may share it.
    last = np.nextafter(np.float32(np.pi), np.float32(0))
    places = np.unique(np.minimum(-reference.icdf(levels, k).astype(np.float32), last)).astype(np.float64)
    # Between two floats, and between two values of t, so that neither rounding decides.
    ends = halfway(places, "float32")
    tail = reference.cdf(-ends, k)
    slack = slack_at(ends, tail, k, "float32")
    return Tails(places, *(2 * lattice(np.maximum(each, 0)) for each in (tail, tail - slack, tail + slack)))


def grid(k, points=2**18):
    """Angles that reach as far as the law does, their weights, and the density at them.

    The density is periodic, or gone before the grid ends, and smooth: a sum over evenly spaced points is its integral
    to rounding.
    """
    width = min(np.pi, REACH / np.sqrt(max(k, 1e-9)))
    x = np.linspace(-width, width, points, endpoint=False)
    return x, 2 * width / points, np.exp(reference.log_prob(x, k))


def odd_and_even(x, order):
    """sin(order x), and 1 - cos(order x), which keeps its digits where x is small."""
    return np.sin(order * x), 2 * np.sin(order * x / 2) ** 2


def moments(k, orders, dtype):
    """Means and variances of 1 - cos(j x) and of sin(j x), and how far the means may be off, for each j.

    Returns
    -------
    dict
        ``versine`` and ``sine``: arrays (3, orders) of mean, variance and slack.
    """
    x, step, density = grid(k)
    # F off by at most d(x) moves the mean of f by at most the integral of |f'| d.
    coarse = slice(None, None, 2**6)
    places = x[coarse]
    allowed = slack_at(places, reference.cdf(places, k), k, dtype)
    found = {"versine": [], "sine": []}
    for order in orders:
        slope = order * np.abs(np.sin(order * places)), order * np.abs(np.cos(order * places))
        for name, values, steep in zip(("sine", "versine"), odd_and_even(x, order), reversed(slope), strict=True):
            mean = np.sum(values * density) * step
            variance = np.sum((values - mean) ** 2 * density) * step
            found[name].append((mean, variance, np.sum(steep * allowed) * step * 2**6))
    return {name: np.array(rows).T for name, rows in found.items()}

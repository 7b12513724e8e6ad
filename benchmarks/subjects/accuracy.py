"""Measure the largest errors of float32 functions, and count how many different values the samplers return.

The arguments are taken as exact, and the reference is quadrature in float64 (`benchmarks.reference`). A float32 sampler
that takes ``arccos`` of a cosine near 1 returns few different angles, because float32 has few values near 1.
"""

import functools

import numpy as np

from benchmarks import reference
from benchmarks.peers import CUPY, MKL, functions, samplers
from benchmarks.runner import Case
from benchmarks.subjects.functions import quantiles
from benchmarks.timing import Competitor

__all__ = ["cases", "distinct", "largest_error"]

DRAWS = 2**20
POINTS, PROBABILITIES = 10_001, 201  # SciPy takes a millisecond per quantile
WIDTH = 10.0  # standard deviations on each side; tail probabilities reach 1e-23, which float32 can represent


def distinct(angles):
    """Return the number of draws per different finite value of ``|x|``, in float32."""
    sizes = np.abs(np.asarray(angles, np.float32).ravel())
    return sizes.size / max(1, np.unique(sizes[np.isfinite(sizes)]).size)


def arguments(task, k, count, dtype):
    """Return a function that makes float32 arguments that reach far into both tails, as `peers.angles` does."""
    return lambda generator: reaching(task, k)


def reaching(task, k):
    """Return float32 arguments that reach far into both tails."""
    if task == "icdf":
        small = np.geomspace(1e-9, 0.5, PROBABILITIES)
        return np.unique(np.concatenate([small, 1 - small]).clip(max=1 - 2**-24).astype(np.float32))
    width = min(3.14, WIDTH / np.sqrt(k))
    return np.linspace(-width, width, POINTS).astype(np.float32)


def largest_error(task, k, x, values):
    """Return the largest error of `values` at `x`; infinite if one is not finite.

    Errors of `log_prob` are relative to max(1, |log_prob|), those of `cdf` to the probability where it is below 1/2,
    and those of `icdf` in units of 1 / sqrt(1 + k).
    """
    x, values = x.astype(np.float64), np.asarray(values, np.float64)
    right = getattr(reference, task)(x, k)
    error = np.abs(values - right)
    if task == "icdf":
        error = error * np.sqrt(1 + k)
    elif task == "log_prob":
        error = error / np.maximum(1, np.abs(right))
    else:
        error = (error / right)[x < 0]
    worst = float(np.max(error))
    return worst if np.isfinite(worst) else float("inf")


def to_numpy(value):
    """Return an array of any library as a NumPy array."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def measured(make, judge):
    """Return a function that makes a competitor whose calls return ``judge(x, result)`` of one call."""

    def measuring(count):
        competitor = make(count)
        x = competitor.fresh(0)
        result = competitor.draw(x)
        competitor.wait(result)
        value = judge(x, to_numpy(result))
        return Competitor(lambda i: value, count=competitor.count, measures=True)

    return measuring


def cases():
    """Return the cases."""
    found = []
    for k in (1e3, 1e5, 1e7):
        libraries = {name: make for name, make in samplers(k).items() if name not in (MKL, CUPY)}
        judged = {name: measured(make, lambda x, angles: distinct(angles)) for name, make in libraries.items()}
        found.append(Case(f"draws per different value, κ = {k:g}", DRAWS, judged, "draws per value"))
    for task, title in TITLES.items():
        for k in (0.1, 5.0, 100.0, 1e4, 1e7):
            points = functools.partial(arguments, task, float(np.float32(k)))
            libraries = quantiles(k, points=points) if task == "icdf" else functions(task, k, points=points)
            judge = functools.partial(judged_error, task, float(np.float32(k)))
            judged = {name: measured(make, judge) for name, make in libraries.items()}
            found.append(Case(f"{title}, κ = {k:g}", 1, judged, "error"))
    return found


def judged_error(task, k, x, values):
    """Return `largest_error` for the arguments and the result of any library."""
    return largest_error(task, k, to_numpy(x), values)


TITLES = {
    "log_prob": "`log_prob`, relative, absolute below 1",
    "cdf": "`cdf` below 1/2, relative",
    "icdf": "`icdf`, in units of 1 / √(1 + κ)",
}

"""Draw angles through the public functions in calls that take turns, for both profiles."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing

__all__ = ["CONCENTRATION", "Sample", "draw", "failure", "keys", "normal", "race"]

CONCENTRATION = np.float32(5)


class Sample(NamedTuple):
    """A timed call: what its row is called, its number of angles, and the competitor."""

    line: str
    count: int
    competitor: timing.Competitor


def failure(error):
    """Return an exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def race(samples, rounds, seconds):
    """Time samples in rounds, for so many seconds; return a row for each, with the reason if its first call fails.

    A row has the fields ``line``, ``count``, ``seconds``, ``span``, and ``rate`` in angles per second. ``ratio`` is the
    interval of its rate relative to that of the first row that did not fail.
    """
    rows, running = [], {}
    for i, sample in enumerate(samples):
        rows.append({"line": sample.line, "count": sample.count})
        try:
            timing.first_call(sample.competitor)
            running[i] = sample.competitor
        except Exception as error:
            rows[i]["failed"] = failure(error)
    found = timing.rounds(running, rounds, seconds) if running else {}
    for i, measured in found.items():
        rate = samples[i].count / measured.typical
        rows[i] |= {"seconds": measured.typical, "span": measured.span, "rate": rate}
        if measured.ratio is not None:
            more = samples[i].count / samples[min(running)].count
            middle, low, high = measured.ratio
            rows[i]["ratio"] = timing.Interval(more / middle, more / high, more / low)
    return rows


@functools.cache
def keys(i, implementation=None):
    """Return key `i`."""
    return jax.block_until_ready(jax.random.fold_in(jax.random.key(1, impl=implementation), i))


def draw(count, dtype="float32", concentration=CONCENTRATION, **more):
    """Return the competitor that draws `count` angles through the public function, with a new key for each call."""

    def run(key):
        return jvm.sample_von_mises(key, np.float32(0), concentration, (count,), dtype, **more)

    return timing.Competitor(run, keys, jax.block_until_ready)


def normal(count):
    """Return the competitor that draws as many normal numbers."""
    return timing.Competitor(functools.partial(jax.random.normal, shape=(count,)), keys, jax.block_until_ready)

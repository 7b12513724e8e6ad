"""Define the amount of work of the profile, and time calls that take turns."""

import functools
from typing import NamedTuple

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing

__all__ = ["Plan", "Sample", "draw", "failure", "keys", "make_plan", "race"]


class Plan(NamedTuple):
    """Sizes of the measurements, in angles unless stated otherwise."""

    rounds: int  # at most, in which the rows of a table take turns
    seconds: float  # after which no round starts, unless there were too few
    count: int  # angles per call, except in the sections that vary the size
    sizes: tuple[int, ...]  # angles per call for the sections that vary the size
    firsts: int  # first calls, each after all compiled programs have been discarded
    batches: int  # of `count` angles in a stream
    chain: int  # elements in the arithmetic programs that measure a ceiling
    concentration: float = 5.0


def make_plan(quick, platform):
    """Return the plan of a quick or a full run."""
    more = 0 if platform == "cpu" else 4  # a GPU draws 2^24 angles in the time of a few kernel launches
    sizes = range(10, 23 + more, 4) if quick else range(8, 25 + more, 2)
    return Plan(
        rounds=9 if quick else timing.MOST_ROUNDS,
        seconds=5 if quick else 30,
        count=2 ** ((20 if quick else 22) + more),
        sizes=tuple(2**n for n in sizes),
        firsts=3 if quick else 7,
        batches=4 if quick else 16,
        chain=2 ** (18 + 2 * more),
    )


class Sample(NamedTuple):
    """A timed call: the fields of its row, its number of angles, and the competitor."""

    row: dict
    count: int
    competitor: timing.Competitor


def failure(error):
    """Return an exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def race(samples, plan):
    """Time samples that take turns; return a row for each, with the reason if its first call fails.

    A row has the fields of its sample, ``count``, ``seconds``, ``span``, and ``rate`` in angles per second. ``ratio``
    is the interval of its rate relative to that of the first row.
    """
    rows, running = [], {}
    for i, sample in enumerate(samples):
        rows.append({**sample.row, "count": sample.count})
        try:
            timing.first_call(sample.competitor)
            running[i] = sample.competitor
        except Exception as error:
            rows[i]["failed"] = failure(error)
    found = timing.rounds(running, plan.rounds, plan.seconds) if running else {}
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


def draw(plan, count, method="auto", dtype="float32", **more):
    """Return the competitor that draws `count` angles through the public function, with a new key for each call."""
    loc, concentration = np.float32(0), np.float32(plan.concentration)

    def run(key):
        return jvm.sample_von_mises(key, loc, concentration, (count,), dtype, method=method, **more)

    return timing.Competitor(run, keys, jax.block_until_ready)

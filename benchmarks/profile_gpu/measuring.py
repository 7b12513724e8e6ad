"""Define the amount of work of the profile, and time calls by the rules of `benchmarks.timing`."""

import functools
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import jax_von_mises as jvm
from benchmarks import timing

__all__ = ["Plan", "Sample", "draw", "failure", "keys", "make_plan", "race", "summary"]


class Plan(NamedTuple):
    """Sizes of the measurements, in angles unless stated otherwise."""

    mode: str
    platform: str
    rounds: int
    """Number of rounds, in which the competitors take turns."""
    folder: Path
    """Folder of the trace."""
    count: int
    """Angles per call, except in the sections that vary the size."""
    sizes: tuple[int, ...]
    """Angles per call for the sections that vary the size."""
    firsts: int
    """Number of first calls, each after all compiled programs have been discarded."""
    batches: int
    """Number of batches of `count` angles in a stream."""
    chain: int
    """Number of elements in the arithmetic programs that measure a ceiling."""
    tail_points: int
    """Number of tail probabilities at which the accuracy is checked."""
    concentration: float = 5.0


def make_plan(quick, platform, folder):
    """Return the plan of a quick or a full run."""
    more = 0 if platform == "cpu" else 4  # a GPU draws 2^24 angles in the time of a few kernel launches
    sizes = range(10, 23 + more, 4) if quick else range(8, 25 + more, 2)
    return Plan(
        mode="quick" if quick else "full",
        platform=platform,
        rounds=5 if quick else 25,
        folder=Path(folder),
        count=2 ** ((20 if quick else 22) + more),
        sizes=tuple(2**n for n in sizes),
        firsts=3 if quick else 7,
        batches=4 if quick else 16,
        chain=2 ** (18 + 2 * more),
        tail_points=60 if quick else 200,
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


def summary(seconds, count=None):
    """Return the statistics of the turns of one competitor, ready for JSON.

    Parameters
    ----------
    seconds : sequence of float
        Seconds per call in each turn.
    count : int, optional
        Angles per call, for the rate.

    Returns
    -------
    dict
        ``seconds`` (median), ``fastest`` (first quartile), ``spread`` (interquartile range over median), ``steady``
        (whether the spread is small enough for conclusions) and ``rate`` in angles per second.
    """
    found = timing.Timing(0.0, tuple(seconds))
    result = {
        "seconds": found.median,
        "fastest": found.quartiles[0],
        "spread": found.spread if found.median > 0 else 1.0,
        "steady": found.median > 0 and not found.wide,
    }
    return result if count is None else result | {"rate": count / max(found.median, 1e-9)}


def race(samples, rounds, tick=lambda: None, clock=time.perf_counter):
    """Time competitors that take turns; return a row for each, with the reason if its first call fails.

    Parameters
    ----------
    samples : sequence of Sample
    rounds : int
    tick : callable
        Called before each turn, to show progress.
    clock : callable
        Returns seconds; tests replace it.
    """
    rows, running = [], {}
    for i, sample in enumerate(samples):
        rows.append({**sample.row, "count": sample.count})
        tick()
        try:
            timing.first_call(sample.competitor, clock)
            running[i] = sample.competitor
        except Exception as error:
            rows[i]["failed"] = failure(error)

    def timed(*turn):
        tick()
        return timing.timed(*turn)

    for i, seconds in timing.interleave(running, rounds, clock, timed).items():
        rows[i] |= summary(seconds, samples[i].count)
    return rows


@functools.cache
def keys(i):
    """Return key `i`."""
    return jax.block_until_ready(jax.random.fold_in(jax.random.key(1), i))


def draw(plan, count, method="auto", dtype="float32", **more):
    """Return the competitor that draws `count` angles through the public function, with a new key for each call."""
    loc, concentration = np.float32(0), np.float32(plan.concentration)

    def run(key):
        return jvm.sample_von_mises(key, loc, concentration, (count,), dtype, method=method, **more)

    return timing.Competitor(run, keys, jax.block_until_ready)

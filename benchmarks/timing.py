"""Time calls of competitors that take turns.

- A call lasts until its result is ready, since JAX and the GPU libraries return before they have finished.
- The first call, which traces and compiles, is timed separately.
- Competitors take turns, so that a machine that slows down during the run slows all of them.
- No call gets the input of the previous call. Inputs are made outside the timed span.
- A time is the median of many rounds. If its quartiles are too far apart, it is marked and supports no conclusion.
- `stages` splits a call into three stages: until it returns, until its result is ready, and until the host has it.
"""

import functools
import math
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Competitor", "Stages", "Timing", "first_call", "interleave", "noise_of", "stages", "take_turns", "timed"]

# Seconds. Shorter calls are repeated within a turn, since one interrupt can spoil a single call. Such a turn starts
# with an untimed call, because threads of the previous competitor may still be spinning.
SHORTEST_TURN = 0.1
MOST_CALLS = 2000

# Seconds. Longer calls have a turn only in every third round. A long call averages over disturbances, and more turns
# would take most of the run.
LONG_CALL = 1.0
LONG_CALL_ROUNDS = 3

# Quartiles further apart than this fraction of the median describe the machine rather than the code.
WIDE_SPREAD = 0.2
# Fewer turns give no meaningful quartiles.
FEWEST_TURNS = 3
# Least relative uncertainty of a time, however well its rounds agree.
LEAST_NOISE = 0.01


def as_is(value):
    """Return `value`."""
    return value


class Competitor(NamedTuple):
    """A call to time: ``wait(draw(fresh(i)))``, without the time of `fresh`.

    ``fresh(i)`` makes the input of call ``i``, and `wait` returns when the result of `draw` is ready.
    """

    draw: Callable[[Any], Any]
    fresh: Callable[[int], Any] = as_is
    wait: Callable[[Any], Any] = as_is


class Timing(NamedTuple):
    """Seconds of the first call, and seconds per call in each turn."""

    first: float
    seconds: tuple[float, ...]

    @property
    def median(self):
        """Median seconds per call."""
        return float(np.median(self.seconds))

    @property
    def quartiles(self):
        """First and third quartile of the seconds per call."""
        return tuple(float(q) for q in np.quantile(self.seconds, (0.25, 0.75)))

    @property
    def spread(self):
        """Interquartile range divided by the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def wide(self):
        """Whether the turns are too few, or disagree too much, for any conclusion."""
        return self.spread > WIDE_SPREAD or len(self.seconds) < FEWEST_TURNS


def noise_of(spreads):
    """Return the relative uncertainty of a product or ratio of times with these spreads.

    Independent errors add in quadrature.
    """
    return max(LEAST_NOISE, math.sqrt(sum(spread**2 for spread in spreads)))


class Stages(NamedTuple):
    """Seconds of each stage of a call."""

    dispatch: float
    """Until the call returns."""
    compute: float
    """From there until the result is ready."""
    transfer: float
    """From there until the host has it."""


def timed(competitor, inputs, clock):
    """Return the seconds per call, averaged over one call with each of `inputs`."""
    start = clock()
    for value in inputs:
        competitor.wait(competitor.draw(value))
    return (clock() - start) / len(inputs)


def staged(competitor, inputs, clock, fetch):
    """Return the `Stages` of a call, averaged over one call with each of `inputs`."""
    totals = np.zeros(3)
    for value in inputs:
        start = clock()
        result = competitor.draw(value)
        returned = clock()
        competitor.wait(result)
        done = clock()
        fetch(result)
        totals += returned - start, done - returned, clock() - done
    return Stages(*(totals / len(inputs)).tolist())


def first_call(competitor, clock=time.perf_counter):
    """Return the seconds of the first call: tracing, compiling and one run."""
    return timed(competitor, [competitor.fresh(0)], clock)


def interleave(competitors, rounds, clock=time.perf_counter, measure=timed, total=as_is):
    """Time competitors that take turns.

    Parameters
    ----------
    competitors : dict of str to Competitor
        Competitors by name; each has been called before, with input 0.
    rounds : int
        Number of rounds. The order changes from round to round, so that no competitor always follows the same one and
        inherits its warm cache or hot core.
    clock : callable
        Returns seconds.
    measure : callable
        Takes a competitor, inputs and the clock; returns the record of a turn.
    total : callable
        Takes the record of a turn; returns the seconds per call.

    Returns
    -------
    dict of str to list
        The records of all turns, by default seconds per call. Competitors with calls longer than `LONG_CALL` have fewer
        turns than rounds.
    """
    used = dict.fromkeys(competitors, 1)

    def turn(name, calls):
        inputs = [competitors[name].fresh(used[name] + call) for call in range(calls)]
        used[name] += calls
        return measure(competitors[name], inputs, clock)

    first = {name: turn(name, 1) for name in competitors}
    warm = {name: total(found) for name, found in first.items()}
    calls = {name: min(MOST_CALLS, max(1, math.ceil(SHORTEST_TURN / max(s, 1e-9)))) for name, s in warm.items()}
    # Warming up hardly changes a long call, so its first turn counts.
    seconds = {name: [first[name]] if warm[name] > LONG_CALL else [] for name in competitors}
    order = random.Random(0)
    for number in range(1, rounds + 1):
        for name in order.sample(list(competitors), len(competitors)):
            if calls[name] > 1:
                turn(name, 1)
            if warm[name] <= LONG_CALL or number % LONG_CALL_ROUNDS == 0:
                seconds[name].append(turn(name, calls[name]))
    return seconds


def stages(competitors, fetch, rounds, clock=time.perf_counter):
    """Time the `Stages` of calls, as `interleave` does; ``fetch(result)`` returns when the host has the result."""
    return interleave(competitors, rounds, clock, functools.partial(staged, fetch=fetch), sum)


def take_turns(competitors, rounds, clock=time.perf_counter):
    """Time competitors with long calls, one call of each per round; the arguments are those of `interleave`.

    The result maps each name to its seconds in every round. They can be compared round by round, which matters if the
    speed of the machine drifts, as that of a disk does.
    """
    seconds = {name: [] for name in competitors}
    order = random.Random(0)
    for number in range(1, rounds + 1):
        for name in order.sample(list(competitors), len(competitors)):
            seconds[name].append(timed(competitors[name], [competitors[name].fresh(number)], clock))
    return seconds

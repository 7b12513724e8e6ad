"""Time calls of competitors that take turns, until their ratios are known.

- A call lasts until its result is ready, since JAX and the GPU libraries return before they have finished.
- The first call, which traces and compiles, is not counted.
- In every round, all competitors have one turn each, in random order, so that a machine that slows down during the run
  slows all of them. Ratios are formed within a round.
- No call gets the input of the previous call. Inputs are made outside the timed span.
- A competitor leaves the rounds when the interval of its ratio is narrow enough.
"""

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

__all__ = ["Competitor", "Interval", "Timing", "first_call", "interval", "rounds", "stages", "timed"]

# Seconds. Shorter calls are repeated within a turn, since one interrupt can spoil a single call. Such a turn starts
# with an untimed call, because threads of the previous competitor may still be spinning.
SHORTEST_TURN = 0.05
MOST_CALLS = 1000

LEVEL = 0.9
"""Probability that an interval contains the median ratio."""
WIDTH = 0.1
"""Rounds end when each end of the interval is within this fraction of the median."""
FEWEST_ROUNDS, MOST_ROUNDS = 5, 25


def as_is(value):
    """Return `value`."""
    return value


class Competitor(NamedTuple):
    """A call to time: ``wait(draw(fresh(i)))``, without the time of `fresh`.

    ``fresh(i)`` makes the input of call ``i``, and `wait` returns when the result of `draw` is ready. `count` is the
    number of elements of a call if it is smaller than was asked for. If `measures` is set, `draw` returns the number
    that is compared, seconds or another one of which less is better. `note` says in the results what was measured.
    """

    draw: Callable[[Any], Any]
    fresh: Callable[[int], Any] = as_is
    wait: Callable[[Any], Any] = as_is
    count: int | None = None
    measures: bool = False
    note: str = ""


class Interval(NamedTuple):
    """A median and an interval that contains the median of the population with probability `LEVEL`.

    This holds for a given number of values. For the number of rounds that `rounds` chooses, it is at most 2 % lower.
    """

    middle: float
    low: float
    high: float

    @property
    def narrow(self):
        """Whether both ends are within `WIDTH` of the middle."""
        return self.low == self.high or max(self.high / self.middle, self.middle / self.low) <= 1 + WIDTH


class Timing(NamedTuple):
    """Seconds per element of one competitor in its rounds, and their ratio to those of the first competitor.

    `ratio` is above 1 if the first competitor is faster, and None for that competitor itself.
    """

    seconds: tuple[float, ...]
    ratio: Interval | None

    @property
    def typical(self):
        """Lower quartile of the seconds, since disturbances only add time."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def span(self):
        """The shortest time and the upper quartile."""
        return min(self.seconds), float(np.quantile(self.seconds, 0.75))


def interval(values):
    """Return the median of independent `values` with its interval, whatever their distribution is.

    The number of values below the median has a binomial distribution, so order statistics bound the median. With fewer
    than five values, the interval is the range of the values and holds with a lower probability.
    """
    ordered, count = sorted(values), len(values)
    skipped = max(0, int(stats.binom.ppf((1 - LEVEL) / 2, count, 0.5)) - 1)
    return Interval(statistics.median(ordered), ordered[skipped], ordered[-1 - skipped])


def timed(competitor, inputs, clock=time.perf_counter):
    """Return the seconds per call, averaged over one call with each of `inputs`."""
    if competitor.measures:
        return statistics.fmean(competitor.draw(value) for value in inputs)
    start = clock()
    for value in inputs:
        competitor.wait(competitor.draw(value))
    return (clock() - start) / len(inputs)


def first_call(competitor, clock=time.perf_counter):
    """Return the seconds of the first call: tracing, compiling and one run."""
    return timed(competitor, [competitor.fresh(0)], clock)


def calls_of(seconds):
    """Return the number of calls in a turn, if one takes so many seconds."""
    return min(MOST_CALLS, max(1, math.ceil(SHORTEST_TURN / max(seconds, 1e-9))))


class Player:
    """A competitor with the number of its calls so far, so that each call gets a new input."""

    def __init__(self, competitor, clock, measure=timed):
        self.competitor, self.clock, self.measure, self.used = competitor, clock, measure, 1

    def turn(self, calls):
        """Return the record of a turn of so many calls."""
        inputs = [self.competitor.fresh(self.used + call) for call in range(calls)]
        self.used += calls
        return self.measure(self.competitor, inputs, self.clock)


def rounds(competitors, most=MOST_ROUNDS, seconds=math.inf, clock=time.perf_counter):
    """Time competitors that take turns.

    Parameters
    ----------
    competitors : dict of str to Competitor
        Competitors by name; each has been called before, with input 0. The others are compared with the first one. The
        seconds of those with a `count` are divided by it, but not what a competitor measures itself.
    most : int
        Largest number of rounds.
    seconds : float
        No round starts after this time, unless there were fewer than `FEWEST_ROUNDS`.
    clock : callable
        Returns seconds.

    Returns
    -------
    dict of str to Timing
    """
    begun = clock()
    players = {name: Player(competitor, clock) for name, competitor in competitors.items()}
    first, *others = players
    elements = {name: 1 if each.measures else each.count or 1 for name, each in competitors.items()}
    calls = {name: 1 if each.measures else calls_of(players[name].turn(1)) for name, each in competitors.items()}
    found, ratios = {name: [] for name in players}, {name: [] for name in others}
    open_, order = list(others), random.Random(0)
    for number in range(most):
        if number >= min(FEWEST_ROUNDS, most) and ((others and not open_) or clock() - begun > seconds):
            break
        playing = [first, *open_]
        for name in order.sample(playing, len(playing)):
            if calls[name] > 1:
                players[name].turn(1)
            found[name].append(players[name].turn(calls[name]) / elements[name])
        for name in open_:
            ratios[name].append(found[name][-1] / found[first][-1])
        if number + 1 >= FEWEST_ROUNDS:
            open_ = [name for name in open_ if not interval(ratios[name]).narrow]
    return {
        name: Timing(tuple(times), interval(ratios[name]) if name in ratios else None) for name, times in found.items()
    }


def staged(competitor, inputs, clock, fetch):
    """Return the seconds until a call returns, from there until its result is ready, and until the host has it."""
    totals = np.zeros(3)
    for value in inputs:
        start = clock()
        result = competitor.draw(value)
        returned = clock()
        competitor.wait(result)
        done = clock()
        fetch(result)
        totals += returned - start, done - returned, clock() - done
    return totals / len(inputs)


def stages(competitor, fetch, number=9, clock=time.perf_counter):
    """Return the median seconds of the three stages of a call; ``fetch(result)`` returns when the host has the result.

    The stages are: until the call returns, until its result is ready, and until the host has it.
    """
    player = Player(competitor, clock, lambda *arguments: staged(*arguments, fetch))
    calls = calls_of(sum(player.turn(1)))
    return tuple(np.median([player.turn(calls) for _ in range(number)], axis=0).tolist())

"""How a call is timed.

- A call counts until its result is there: JAX and the GPU libraries return before they have finished.
- The first call, which traces and compiles, is timed apart.
- Competitors take turns: a machine that slows down during the run slows all of them.
- Every call gets a fresh input, made outside the timed span.
- One number is the median of many rounds, with the quartiles beside it. Where they are too far apart it is marked, and
  nothing is concluded from it.
- Where it is asked for, a call is timed in three stages: until it returns, until its result is there, and until that is
  on the host.
"""

import functools
import math
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Competitor", "Stages", "Timing", "first_call", "interleave", "stages", "take_turns", "unsteady"]

# Calls shorter than this are repeated within a turn: a lone call is at the mercy of one interrupt. They also start the
# turn with a call that does not count: threads of the competitor before it may still be spinning, in its caches.
SHORTEST_TURN = 0.1
MOST_CALLS = 2000

# Calls longer than this, in seconds, have a turn in every third round: they average over what disturbs the machine by
# themselves, and would take most of the run.
LONG_CALL = 1.0
LONG_CALL_ROUNDS = 3

# Quartiles further apart than this share of the median say more about the machine than about the code.
WIDE_SPREAD = 0.2
# Fewer turns have no quartiles worth the name.
FEWEST_TURNS = 3


def as_is(value):
    """Return `value`."""
    return value


class Competitor(NamedTuple):
    """What is timed: ``wait(draw(fresh(i)))``, without the time of `fresh`.

    ``fresh(i)`` makes the input of call ``i``; `wait` returns when the result of `draw` is there, and what it returns
    does not matter.
    """

    draw: Callable[[Any], Any]
    fresh: Callable[[int], Any] = as_is
    wait: Callable[[Any], Any] = as_is


class Timing(NamedTuple):
    """Seconds for one call, turn by turn, and for the first call of all."""

    first: float
    seconds: tuple[float, ...]

    @property
    def median(self):
        """Median seconds for one call."""
        return float(np.median(self.seconds))

    @property
    def quartiles(self):
        """First and third quartile of the seconds for one call."""
        return tuple(float(q) for q in np.quantile(self.seconds, (0.25, 0.75)))

    @property
    def spread(self):
        """Interquartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def wide(self):
        """Whether the turns disagree too much to be believed, or are too few to tell."""
        return self.spread > WIDE_SPREAD or len(self.seconds) < FEWEST_TURNS


def unsteady(parts, whole):
    """Whether any part of a call varies by more than `WIDE_SPREAD` of the whole, though the sum may be steady."""
    return any(high - low > WIDE_SPREAD * whole.median for low, high in (part.quartiles for part in parts))


class Stages(NamedTuple):
    """Seconds of one call, stage by stage."""

    dispatch: float
    """Until the call returns."""
    compute: float
    """From there until the result is there."""
    transfer: float
    """From there until the host has it."""


def timed(competitor, inputs, clock):
    """Seconds for one call, averaged over a call with each of `inputs`."""
    start = clock()
    for value in inputs:
        competitor.wait(competitor.draw(value))
    return (clock() - start) / len(inputs)


def staged(competitor, inputs, clock, fetch):
    """The `Stages` of one call, averaged over a call with each of `inputs`."""
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
    """Seconds that the first call takes: tracing, compiling and one run."""
    return timed(competitor, [competitor.fresh(0)], clock)


def interleave(competitors, rounds, clock=time.perf_counter, measure=timed, total=as_is):
    """Time competitors in turns.

    Parameters
    ----------
    competitors : dict of str to Competitor
        Each has been called before, with input 0.
    rounds : int
        Times that each has its turn. Every round has an order of its own, so that nobody always follows the same
        competitor and inherits its warm cache or hot core.
    clock : callable
        Seconds as a float; a fake one in the tests.
    measure : callable
        Takes a competitor, inputs and the clock, and gives what a turn is to be remembered by.
    total : callable
        Takes that, and gives the seconds of one call.

    Returns
    -------
    dict of str to list
        What `measure` gave in every turn, seconds for one call by default; fewer turns than rounds for calls above
        `LONG_CALL`.
    """
    used = dict.fromkeys(competitors, 1)

    def turn(name, calls):
        inputs = [competitors[name].fresh(used[name] + call) for call in range(calls)]
        used[name] += calls
        return measure(competitors[name], inputs, clock)

    first = {name: turn(name, 1) for name in competitors}
    warm = {name: total(found) for name, found in first.items()}
    calls = {name: min(MOST_CALLS, max(1, math.ceil(SHORTEST_TURN / max(s, 1e-9)))) for name, s in warm.items()}
    # What warms up a long call is nothing beside the call itself, so that call counts as a turn.
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
    """Time the stages of calls, in turns as `interleave` does.

    Parameters
    ----------
    competitors : dict of str to Competitor
        As for `interleave`.
    fetch : callable
        Takes a result that is there, and returns when the host has it.
    rounds, clock
        As for `interleave`.

    Returns
    -------
    dict of str to list of Stages
        One in every turn.
    """
    return interleave(competitors, rounds, clock, functools.partial(staged, fetch=fetch), sum)


def take_turns(competitors, rounds, clock=time.perf_counter):
    """Time competitors whose one call is long: each has one call in every round.

    So their seconds can be compared round by round, which matters where the machine drifts, as disks do.

    Parameters
    ----------
    competitors : dict of str to Competitor
        Each has been called before, with input 0.
    rounds : int
        Every round has an order of its own.
    clock : callable
        Seconds as a float; a fake one in the tests.

    Returns
    -------
    dict of str to list of float
        Seconds in each round.
    """
    seconds = {name: [] for name in competitors}
    order = random.Random(0)
    for number in range(1, rounds + 1):
        for name in order.sample(list(competitors), len(competitors)):
            seconds[name].append(timed(competitors[name], [competitors[name].fresh(number)], clock))
    return seconds

"""How the profile times: on `benchmarks.timing`, whose rules hold here too.

`race` lets competitors take turns, `laps` times the parts of one call after each other, `against` compares two results
and refuses where one of them is too noisy, `leader` names the best and refuses where noise may hide a better one,
`pays_from` tells from which call on compiling was worth its time.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import timing

__all__ = ["Entry", "against", "failure", "laps", "leader", "of_seconds", "pays_from", "race", "reach", "usable"]

# Medians closer than this are called the same: what is left after the machine's own ups and downs.
SAME = 1.05

# As `timing.SHORTEST_TURN` and `timing.MOST_CALLS`, for calls whose parts are timed one by one.
SHORTEST_LAP = 0.01
MOST_LAPS = 100


class Entry(NamedTuple):
    """Who is timed: a label, the elements of one call, and the competitor."""

    label: str
    count: int
    competitor: timing.Competitor


def failure(error):
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def of_seconds(seconds, **more):
    """What is kept of the turns of one competitor, ready for JSON."""
    measured = timing.Timing(0.0, tuple(seconds))
    return {
        **more,
        "seconds": [float(second) for second in seconds],
        "median": measured.median,
        "quartiles": list(measured.quartiles),
        # A clock too coarse to see the call at all says nothing either.
        "wide": measured.median <= 0 or measured.wide,
    }


def race(entries, rounds, clock=time.perf_counter):
    """Time competitors in turns; who fails at its first call is left out, with the reason.

    Parameters
    ----------
    entries : dict of str to Entry
    rounds : int
        Turns of each.
    clock : callable
        Seconds as a float; a fake one in the tests.

    Returns
    -------
    dict of str to dict
        ``label`` and ``count``, then ``failed``, or ``first`` (seconds of the first call) and what `of_seconds` keeps.
    """
    found, running = {}, {}
    for name, entry in entries.items():
        found[name] = {"label": entry.label, "count": entry.count}
        try:
            found[name]["first"] = timing.first_call(entry.competitor, clock)
            running[name] = entry.competitor
        except Exception as error:
            found[name]["failed"] = failure(error)
    for name, seconds in timing.interleave(running, rounds, clock).items():
        found[name] |= of_seconds(seconds)
        found[name]["rate"] = None if found[name]["wide"] else found[name]["count"] / found[name]["median"]
    return found


def laps(fresh: Callable[[int], Any], steps, rounds, clock=time.perf_counter):
    """Time the parts of a call one after the other.

    Parameters
    ----------
    fresh : callable
        Makes the input of call ``i``, which is not timed.
    steps : dict of str to callable
        Each takes what the one before returned, the first what `fresh` made.
    rounds : int
        Numbers for each part, after a call that does not count. Each is the mean of as many calls as `SHORTEST_LAP`
        takes: a lone short one is at the mercy of an interrupt.
    clock : callable
        Seconds as a float.

    Returns
    -------
    dict of str to list of float
        Seconds of each part of one call, in each round.
    """
    inputs = itertools.count()

    def lap(calls):
        totals = dict.fromkeys(steps, 0.0)
        for _ in range(calls):
            value = fresh(next(inputs))
            for name, step in steps.items():
                start = clock()
                value = step(value)
                totals[name] += clock() - start
        return {name: total / calls for name, total in totals.items()}

    lap(1)  # compiles
    once = sum(lap(1).values())
    calls = min(MOST_LAPS, max(1, math.ceil(SHORTEST_LAP / max(once, 1e-9))))
    found = [lap(calls) for _ in range(rounds)]
    return {name: [each[name] for each in found] for name in steps}


def usable(result):
    """Whether a result is there and can be believed."""
    return result is not None and "failed" not in result and not result["wide"]


def reach(result, amount=None):
    """The highest rate that a result may stand for, of its elements or `amount`; of noise that of its fast quartile."""
    if "failed" in result:
        return 0.0
    seconds = result["quartiles"][0] if result["wide"] else result["median"]
    return math.inf if seconds <= 0 else (result["count"] if amount is None else amount) / seconds


def leader(results, amounts=None):
    """The name of the result with the highest rate; None where one that is too noisy may be above it.

    Parameters
    ----------
    results : dict of str to dict
        As `race` gives them.
    amounts : dict of str to float, optional
        What is counted in place of the elements.
    """
    rates = {name: reach(result, amounts and amounts[name]) for name, result in results.items()}
    best = max(rates, key=rates.get, default=None)
    return best if best is not None and usable(results[best]) else None


def against(one, other):
    """How `one` compares with `other`, for the same work or by the elements of each.

    Returns
    -------
    dict
        ``state``: "faster" or "slower" where the medians differ and the middle halves of the turns do not overlap, else
        "same"; "noisy" where a spread is too wide; "missing" where one did not run. ``ratio``: the rate of `one` over
        that of `other`, None if noisy or missing.
    """
    if one is None or other is None or "failed" in one or "failed" in other:
        return {"state": "missing", "ratio": None}
    if not (usable(one) and usable(other)):
        return {"state": "noisy", "ratio": None}
    each = [np.asarray([result["median"], *result["quartiles"]]) / result.get("count", 1) for result in (one, other)]
    (mine, low, high), (theirs, other_low, other_high) = each
    ratio = float(theirs / mine)
    state = "same"
    if ratio > SAME and high < other_low:
        state = "faster"
    elif ratio < 1 / SAME and low > other_high:
        state = "slower"
    return {"state": state, "ratio": ratio}


def pays_from(compiled_first, compiled, plain_first, plain):
    """From which call on a program that is compiled first has taken less time in all than one that is not.

    After n calls it has taken ``first + (n - 1) * later`` seconds. None if it never does: where a later call
    is not faster.
    """
    if compiled_first <= plain_first:
        return 1 if compiled <= plain else None
    if compiled >= plain:
        return None
    # At equality too: from there on it is ahead.
    return 1 + math.ceil((compiled_first - plain_first) / (plain - compiled))

"""Judge a few cases against reduced goals, and give one verdict on all of them.

The goals are reduced so that any machine can meet them. A noisy case is measured up to three times. Goals that are
still too noisy to judge make the verdict TOO NOISY unless another goal is missed.
"""

from benchmarks import goals
from benchmarks.peers import OURS

__all__ = ["CASES", "EXIT_CODES", "PEERS", "attempt", "bounds", "overall"]

# Fractions of the goals. Small calls measure the overhead of Python and of the system, which varies more.
SHARE, SMALL_SHARE = 0.4, 0.25
CASES = ("k=0.1", "k=1e4", "array", "small", "cdf", "fit")
PEERS = (OURS, "normal", "numpy", "scipy", "numpyro")
ROUNDS = 7
ATTEMPTS = 3

PASS, FAIL, TOO_NOISY, NOTHING = "PASS", "FAIL", "TOO NOISY", "NOTHING TO JUDGE"
EXIT_CODES = {PASS: 0, FAIL: 1, TOO_NOISY: 0, NOTHING: 2}
# States that another attempt may settle.
OPEN = (goals.TOO_NOISY, goals.TOO_CLOSE)


def bounds():
    """Return the reduced goals."""
    return tuple(
        goal._replace(at_least=(SMALL_SHARE if goal.group == "small" else SHARE) * goal.at_least)
        for goal in goals.GOALS
    )


def attempt(measure, platform, required, attempts=ATTEMPTS):
    """Measure a case until each of its verdicts is settled, at most `attempts` times.

    Parameters
    ----------
    measure : callable
        Function that measures the case and returns its entry in the result file.
    platform : str
        Platform on which JAX runs.
    required : sequence of Goal
        The goals to judge.
    attempts : int
        Largest number of measurements.

    Returns
    -------
    entry : dict
        The entry of the last measurement.
    verdicts : list of Verdict
        Each verdict is from the first attempt that settled it, since a choice among attempts would be biased.
    """
    settled = {}
    for _ in range(attempts):
        entry = measure()
        for verdict in goals.verdicts(platform, [entry], required):
            if verdict.peer not in settled or settled[verdict.peer].state in OPEN:
                settled[verdict.peer] = verdict
        if not any(verdict.state in OPEN for verdict in settled.values()):
            break
    return entry, list(settled.values())


def overall(verdicts):
    """Return FAIL if a goal is missed, else TOO NOISY if a verdict is open, else PASS.

    Return NOTHING TO JUDGE if no goal was measured.
    """
    states = {verdict.state for verdict in verdicts} - {goals.NOT_MEASURED}
    if goals.MISSED in states:
        return FAIL
    if states & set(OPEN):
        return TOO_NOISY
    return PASS if states else NOTHING

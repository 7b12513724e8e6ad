"""Define goals for the speed of the sampler and the other functions, and judge results.

A goal is the smallest allowed ratio of our rate to that of a peer in the same run. Rates do not carry over to other
machines, but such ratios do.
"""

import math
from typing import NamedTuple

from benchmarks.peers import OURS
from benchmarks.quiet import BUSY
from benchmarks.text import marked, table
from benchmarks.timing import noise_of

__all__ = ["GOALS", "Goal", "Verdict", "verdict_table", "verdicts"]

MET = "met"
MISSED = "MISSED"
NOT_MEASURED = "not measured"
TOO_NOISY = "too noisy"
TOO_CLOSE = "too close to tell"
STATES = (MET, MISSED, TOO_CLOSE, TOO_NOISY, BUSY, NOT_MEASURED)


class Goal(NamedTuple):
    """Require `at_least` times the rate of `peer` for `group` on `platform`, for concentrations of `above` or more."""

    platform: str
    group: str
    peer: str
    at_least: float
    above: float = 0.0

    def covers(self, platform, case):
        """Return whether the goal applies to `case`, an entry of a result file."""
        if (platform, case["group"]) != (self.platform, self.group):
            return False
        return self.above == 0 or (not isinstance(case["concentration"], dict) and case["concentration"] >= self.above)


GOALS = (
    Goal("cpu", "one", "normal", 5),
    Goal("cpu", "one", "numpy", 25),
    Goal("cpu", "one", "numpyro", 30),
    Goal("cpu", "one", "numpyro", 60, above=1.0),
    Goal("cpu", "one", "numpyro", 100, above=5.0),
    Goal("cpu", "keys", "normal", 1.1),
    Goal("cpu", "array", "normal", 2),
    Goal("cpu", "array", "numpy", 5),
    Goal("cpu", "array", "numpyro", 25),
    Goal("cpu", "small", "normal", 1),
    Goal("cpu", "icdf", "scipy", 1000),
    Goal("cpu", "cdf", "scipy", 100),
    # This goal is for the fastest peer, since SciPy is slow.
    Goal("cpu", "cdf", "tfp", 20),
    Goal("cpu", "cdf64", "scipy", 5),
    # The peer draws from a truncated normal distribution, whose quantile is simpler. On two cores, the goal amounts to
    # 4e7 draws per second.
    Goal("cpu", "truncated", "normal", 0.2),
    Goal("cpu", "mixture", "tfp", 1.5),
    Goal("cpu", "log_prob", "tfp", 1.5),
    Goal("cpu", "log_prob", "torch", 1),
    Goal("cpu", "fit", "scipy", 100),
    Goal("cpu", "gradient", "tfp", 5),
    Goal("gpu", "one", "normal", 1.2),
    Goal("gpu", "array", "normal", 0.5),
    Goal("gpu", "array", "numpyro", 20),
    Goal("gpu", "array", "cupy", 20),
    Goal("gpu", "small", "normal", 1),
)


class Verdict(NamedTuple):
    """The outcome of one case for one goal; `ratio` is None if the package or the peer did not run.

    `noisy` means that the rounds of one of them disagree, and `busy` that the machine was not quiet. `noise` is the
    relative uncertainty of the ratio.
    """

    case: str
    peer: str
    at_least: float
    ratio: float | None
    noisy: bool
    noise: float = 0.0
    busy: bool = False

    @property
    def state(self):
        """State of the verdict, one of `STATES`."""
        if self.ratio is None:
            return NOT_MEASURED
        if self.busy:
            return BUSY
        if self.noisy:
            return TOO_NOISY
        if abs(math.log(self.ratio / self.at_least)) < math.log1p(self.noise):
            return TOO_CLOSE
        return MET if self.ratio >= self.at_least else MISSED


def verdicts(platform, cases, goals=GOALS, busy=False):
    """Compare measured cases with the goals.

    Parameters
    ----------
    platform : str
        Where JAX ran: ``"cpu"`` or ``"gpu"``. Other platforms have no goals.
    cases : list of dict
        The ``"cases"`` of a result file.
    goals : sequence of Goal
        Of two goals for the same peer and case, the higher one counts.
    busy : bool
        Whether the machine was not quiet.

    Returns
    -------
    list of Verdict
        In the order of the cases.
    """
    found = []
    for case in cases:
        highest = {}
        for goal in goals:
            if goal.covers(platform, case):
                highest[goal.peer] = max(goal.at_least, highest.get(goal.peer, 0.0))
        for peer, at_least in highest.items():
            both = [case["results"][name] for name in (OURS, peer) if name in case["results"]]
            ratio = both[1].get("ratio") if len(both) == 2 else None
            noisy = any(result["wide"] for result in both)
            noise = noise_of(result["spread"] for result in both)
            found.append(Verdict(case["name"], peer, at_least, ratio, noisy, noise, busy))
    return found


def verdict_table(found, labels):
    """Return verdicts as text, with the count of each state at the end."""
    lines = [("case", "against", "at least", "measured", "")]
    for verdict in found:
        ratio = "-" if verdict.ratio is None else marked(f"{verdict.ratio:.2f}", verdict.noisy or verdict.busy)
        lines.append((verdict.case, labels[verdict.peer], f"{verdict.at_least:g}", ratio, verdict.state))
    states = [verdict.state for verdict in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    return f"{table(lines)}\n  {counts}"

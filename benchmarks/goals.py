"""How fast the sampler and the other functions are meant to be, and whether a result reaches it.

All goals are ratios to a competitor timed in the same run, since only those carry over from one machine to the next.
"""

import math
from typing import NamedTuple

from benchmarks.compare import noise_of
from benchmarks.peers import OURS

__all__ = ["GOALS", "Goal", "Verdict", "verdicts"]

MET = "met"
MISSED = "MISSED"
NOT_MEASURED = "not measured"
TOO_NOISY = "too noisy"
TOO_CLOSE = "too close to tell"
STATES = (MET, MISSED, TOO_CLOSE, TOO_NOISY, NOT_MEASURED)


class Goal(NamedTuple):
    """`at_least` times the rate of `peer`, in every case of `group` on `platform` from concentration `above` on."""

    platform: str
    group: str
    peer: str
    at_least: float
    above: float = 0.0

    def covers(self, platform, case):
        """Whether `case`, a dict of a result file, is one the goal speaks of."""
        if (platform, case["group"]) != (self.platform, self.group):
            return False
        return self.above == 0 or (not isinstance(case["concentration"], dict) and case["concentration"] >= self.above)


GOALS = (
    Goal("cpu", "one", "normal", 2.5),
    Goal("cpu", "one", "numpy", 15),
    Goal("cpu", "one", "numpyro", 20),
    Goal("cpu", "one", "numpyro", 50, above=1.0),
    Goal("cpu", "array", "normal", 1),
    Goal("cpu", "array", "numpy", 5),
    Goal("cpu", "array", "numpyro", 25),
    Goal("cpu", "small", "normal", 1),
    Goal("cpu", "icdf", "scipy", 1000),
    Goal("cpu", "cdf", "scipy", 100),
    # The best of the peers, compiled and warm: what SciPy takes says little.
    Goal("cpu", "cdf", "tfp", 20),
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
    """Whether one case reached one goal; `ratio` is None where one of the two did not run.

    `noisy` where the rounds of one of the two disagree: such a ratio decides nothing. Else `noise` is the share by
    which the ratio may be wrong.
    """

    case: str
    peer: str
    at_least: float
    ratio: float | None
    noisy: bool
    noise: float = 0.0

    @property
    def state(self):
        """One of ``met``, ``MISSED``, ``too close to tell``, ``too noisy``, ``not measured``."""
        if self.ratio is None:
            return NOT_MEASURED
        if self.noisy:
            return TOO_NOISY
        if abs(math.log(self.ratio / self.at_least)) < math.log1p(self.noise):
            return TOO_CLOSE
        return MET if self.ratio >= self.at_least else MISSED


def verdicts(platform, cases, goals=GOALS):
    """Compare measured cases with the goals.

    Parameters
    ----------
    platform : str
        Where JAX ran: ``"cpu"`` or ``"gpu"``. Others have no goals.
    cases : list of dict
        The ``"cases"`` of a result file.
    goals : sequence of Goal
        Of two goals for the same peer and case the higher one counts.

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
            found.append(Verdict(case["name"], peer, at_least, ratio, noisy, noise_of(both)))
    return found

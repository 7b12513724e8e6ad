"""How fast the sampler and the other functions are meant to be, and whether a result reaches it.

All goals are ratios to a competitor timed in the same run, since only those carry over from one machine to the next.
"""

from typing import NamedTuple

__all__ = ["GOALS", "Goal", "Verdict", "verdicts"]

MET = "met"
MISSED = "MISSED"
NOT_MEASURED = "not measured"
TOO_NOISY = "too noisy"
STATES = (MET, MISSED, TOO_NOISY, NOT_MEASURED)


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

    `noisy` where the rounds of one of the two disagree: such a ratio decides nothing.
    """

    case: str
    peer: str
    at_least: float
    ratio: float | None
    noisy: bool

    @property
    def state(self):
        """One of ``met``, ``MISSED``, ``not measured``, ``too noisy``."""
        if self.ratio is None:
            return NOT_MEASURED
        if self.noisy:
            return TOO_NOISY
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
            result = case["results"].get(peer, {})
            noisy = any(case["results"].get(name, {}).get("wide", False) for name in ("ours", peer))
            found.append(Verdict(case["name"], peer, at_least, result.get("ratio"), noisy))
    return found

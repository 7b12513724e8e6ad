"""Provide a fake clock and made-up benchmark results."""

import numpy as np

from benchmarks import timing
from benchmarks.cases import Case
from benchmarks.peers import OURS


class FakeClock:
    """A clock that advances only when a test adds seconds, with a log of events."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        """Return the time."""
        return self.now

    def competitor(self, name, *durations, making=0.0):
        """Return a competitor whose call ``i`` takes the i-th duration; further calls take the last one."""

        def fresh(i):
            self.now += making
            return i

        def draw(i):
            self.log.append((name, i))
            return durations[min(i, len(durations) - 1)]

        def wait(seconds):
            self.now += seconds

        return timing.Competitor(draw, fresh, wait)


class Pending:
    """A result that is not ready yet, like those that JAX returns."""

    def __init__(self):
        self.waited = False

    def block_until_ready(self):
        """Become ready."""
        self.waited = True
        return self


def waits(wait):
    """Return whether `wait` waits for every part of a result."""
    parts = Pending(), Pending()
    wait(parts)
    return all(part.waited for part in parts)


def timed(seconds, count):
    """Return the entry of a result file for one peer."""
    measured = timing.Timing(1.0, tuple(seconds))
    fast, slow = measured.quartiles
    return {
        "count": count,
        "device": "cpu",
        "dtype": "float32",
        "first_call_seconds": measured.first,
        "seconds": list(seconds),
        "rate": count / measured.median,
        "rate_quartiles": [count / slow, count / fast],
        "spread": measured.spread,
        "wide": measured.wide,
    }


def timed_case(name="k=1", group="one", *, missing=None, **seconds):
    """Return a case of a result file from the seconds of each peer's rounds; a number stands for five equal rounds."""
    case = Case(name, group, count=1000, concentration=1.0)
    results = {}
    for peer, rounds in seconds.items():
        results[peer] = timed(np.broadcast_to(rounds, 5).tolist() if np.isscalar(rounds) else rounds, case.count)
    for result in results.values():
        result["ratio"] = results[OURS]["rate"] / result["rate"]
    return {**case._asdict(), "results": results, "missing": missing or {}}


def result_file(*cases, **environment):
    """Return a result file with these cases."""
    defaults = {
        "platform": "cpu",
        "device": "cpu",
        "device_count": 1,
        "cpu": "a CPU",
        "cores": 2,
        "load_average": 0.1,
        "system": "Linux",
        "python": "3.11.7",
        "x64": False,
        "versions": {"jax": "0.10.2", "numpy": "2.4.6"},
        "variables": {},
        "commit": "0123456789ab",
    }
    return {
        "format": 2,
        "environment": defaults | environment,
        "options": {"mode": "quick", "rounds": 5},
        "seconds": 1.0,
        "cases": list(cases),
        "accuracy": [],
        "errors": [],
        "goals": [],
    }


def entry(name, group, concentration, **ratios):
    """Return the part of a case that the goals use, given our ratio to each peer."""
    results = {peer: {"ratio": ratio, "wide": False, "spread": 0.0} for peer, ratio in ratios.items()}
    results[OURS] = {"wide": False, "spread": 0.0}
    return {"name": name, "group": group, "concentration": concentration, "results": results}

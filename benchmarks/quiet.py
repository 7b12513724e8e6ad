"""Check whether the machine is quiet enough for timings.

`check` takes about a second. Programs that draw conclusions from times call it first, print the state and store it in
the result. On a busy machine a program still reports its timings with their spread, but draws no conclusions.
"""

import threading
import time
from typing import NamedTuple

import numpy as np

from benchmarks.environment import cores

__all__ = ["BUSY", "Quiet", "check", "decide"]

# On a busy machine, this text replaces a verdict.
BUSY = "machine busy: nothing concluded"

# Measured on two cores of a virtual machine: the spread was 0.02 to 0.13 while nothing else ran, and 0.26 to 1.4 while
# other processes used more than half of the CPU time.
MOST_SPREAD = 0.2
# Fraction of the CPU time that the hypervisor may give to other virtual machines during the calibration.
MOST_STEAL = 0.02
# Load average per core. It covers a minute, so the previous program may contribute one per core.
MOST_LOAD = 1.5
# Fewer repetitions on a core give no meaningful quartiles.
FEWEST_REPETITIONS = 8

# One repetition takes a few milliseconds, long enough for another process on the core to interrupt it.
SINES, SIZE = 16, 2**15


class Quiet(NamedTuple):
    """State of the machine, as `decide` judges it."""

    quiet: bool
    load: float
    """Load average of the last minute."""
    steal: float
    """Fraction of the CPU time that the hypervisor took away."""
    spread: float
    """Interquartile range of the repetitions of a fixed calculation, divided by their median, on the worst core."""
    reason: str
    """Why the machine is busy; empty if it is quiet."""

    def as_dict(self):
        """Return the fields as a dict, ready for JSON."""
        return self._asdict()

    def text(self):
        """Return a description in one line."""
        state = "quiet" if self.quiet else f"BUSY ({self.reason})"
        return f"machine {state}: load {self.load:.1f}, steal {self.steal:.1%}, spread {self.spread:.1%}"


def decide(load, cores, steal, spread):
    """Return the `Quiet` state for these measurements; a spread of None stands for too few repetitions."""
    reasons = []
    if load > MOST_LOAD * cores:
        reasons.append(f"load average {load:.1f} on {cores} cores")
    if steal > MOST_STEAL:
        reasons.append(f"{steal:.0%} of the CPU time went to other virtual machines")
    if spread is None:
        reasons.append("the calibration got too little CPU time")
    elif spread > MOST_SPREAD:
        reasons.append(f"a fixed calculation varies by {spread:.0%}")
    return Quiet(not reasons, load, steal, 1.0 if spread is None else spread, "; ".join(reasons))


def worst_spread(repetitions):
    """Return the largest spread of any core; None if a core has too few repetitions."""
    if min(map(len, repetitions)) < FEWEST_REPETITIONS:
        return None
    quartiles = [np.quantile(seconds, (0.25, 0.5, 0.75)) for seconds in repetitions]
    return float(max((high - low) / median for low, median, high in quartiles))


def repeat(until, seconds):
    """Repeat a fixed calculation until the time `until`, and append the duration of each repetition to `seconds`."""
    angles = np.linspace(0.0, 1.0, SIZE)
    result = np.empty_like(angles)
    while (start := time.perf_counter()) < until:
        for _ in range(SINES):
            np.sin(angles, out=result)  # releases the GIL, so the threads run in parallel
        seconds.append(time.perf_counter() - start)


def check(seconds=1.0):
    """Measure the state of the machine, with one thread on each core that this process may use."""
    import psutil

    count = cores()
    before = psutil.cpu_times()
    repetitions = [[] for _ in range(count)]
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=repeat, args=(until, each)) for each in repetitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = psutil.cpu_times()
    # Only Linux reports steal.
    steal = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    # Leave out the first repetition, during which the system provides the memory.
    spread = worst_spread([each[1:] for each in repetitions])
    return decide(psutil.getloadavg()[0], count, steal / max(sum(after) - sum(before), 1e-9), spread)

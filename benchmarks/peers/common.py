"""Define the base class and the helpers of the peers."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.cases import SEED
from benchmarks.timing import Competitor

__all__ = ["BENCH", "NO_DERIVATIVE", "OURS", "SEED", "Peer", "Ready", "Unavailable", "lacks", "rotating"]

OURS = "ours"
BENCH = 'pip install -e ".[bench]" in the clone'
NO_DERIVATIVE = "samples are not differentiable with respect to the concentration"

# Calls cycle through this many arrays.
ARRAYS = 4


class Unavailable(Exception):
    """The peer cannot run here or does not support the task; the message gives the reason."""


class Ready(NamedTuple):
    """A function prepared for one case.

    `competitor` is timed. `give` converts a NumPy array to the input of the function, if it takes an array, and `read`
    converts its result to a NumPy array.
    """

    competitor: Competitor
    read: Callable[[Any], np.ndarray] = np.asarray
    give: Callable[[np.ndarray], Any] = np.asarray
    device: str = "cpu"


class Peer:
    """A library that is timed.

    For each task, a peer has a method that returns the `Ready` function for a case, or gives the reason in `lacks`. The
    method imports the library, and raises `Unavailable` if it is missing. All distributions are centred at 0.

    On the CPU a peer gets at most ``most[task]`` elements in a quick run, in the guard or when JAX runs on a GPU, and
    at most ``most_ever[task]`` in any run. More would take too long, or so much memory that the system kills the
    process.
    """

    name: str
    label: str
    lacks: ClassVar[dict[str, str]] = {}
    most: ClassVar[dict[str, int]] = {}
    most_ever: ClassVar[dict[str, int]] = {}

    def prepare(self, case):
        """Return the `Ready` function for `case`."""
        if case.task in self.lacks:
            raise Unavailable(self.lacks[case.task])
        return getattr(self, case.task)(case)

    def limit(self, task, capped):
        """Return the largest number of elements per call on the CPU, or None if there is no limit."""
        limits = (self.most.get(task) if capped else None, self.most_ever.get(task))
        return min((limit for limit in limits if limit is not None), default=None)


def lacks(reason, *tasks):
    """Map each of the tasks to the same reason."""
    return dict.fromkeys(tasks, reason)


def rotating(case, give):
    """Return a function for `Competitor.fresh` that cycles through a few arrays, which are made in advance."""
    arrays = [give(case.inputs(i)) for i in range(ARRAYS)]
    return lambda i: arrays[i % ARRAYS]

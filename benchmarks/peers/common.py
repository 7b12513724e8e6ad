"""What every peer is made of."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.cases import SEED
from benchmarks.timing import Competitor

__all__ = ["BENCH", "NO_DERIVATIVE", "OURS", "SEED", "Peer", "Ready", "Unavailable", "lacks", "rotating"]

OURS = "ours"
BENCH = 'pip install -e ".[bench]" in the clone'
NO_DERIVATIVE = "samples have no derivative in the concentration"

# Arrays that the calls take turns with, so that none meets the input of the call before it.
ARRAYS = 4


class Unavailable(Exception):
    """A peer that cannot run here, or cannot do what is asked for; the message says why."""


def unknown():
    """What is not known."""
    return None


class Ready(NamedTuple):
    """A function ready for one case.

    `competitor` is what is timed. `give` makes its input from a NumPy array, where its input is one, and `read` makes
    its result a NumPy array. `fetch` brings the result to the host as it is, where a call has stages: see
    `timing.stages`. `need` tells the bytes that a call takes, None where that is not known.
    """

    competitor: Competitor
    read: Callable[[Any], np.ndarray] = np.asarray
    give: Callable[[np.ndarray], Any] = np.asarray
    device: str = "cpu"
    fetch: Callable[[Any], Any] | None = None
    need: Callable[[], int | None] = unknown


class Peer:
    """A competitor: for each task a method from a case to what is `Ready` for it, or the reason in `lacks`.

    A method imports its library itself and raises `Unavailable` where there is none. On the CPU a peer gets no more
    than ``most[task]`` elements in a quick run, or beside a GPU, and never more than ``most_ever[task]``.
    """

    name: str
    label: str
    lacks: ClassVar[dict[str, str]] = {}
    most: ClassVar[dict[str, int]] = {}
    most_ever: ClassVar[dict[str, int]] = {}

    def prepare(self, case):
        """The `Ready` function for `case`."""
        if case.task in self.lacks:
            raise Unavailable(self.lacks[case.task])
        return getattr(self, case.task)(case)

    def limit(self, task, capped):
        """The number of elements that a call on the CPU gets at most, None without a limit."""
        limits = (self.most.get(task) if capped else None, self.most_ever.get(task))
        return min((limit for limit in limits if limit is not None), default=None)


def lacks(reason, *tasks):
    """The same reason for several tasks."""
    return dict.fromkeys(tasks, reason)


def rotating(case, give):
    """A `fresh` for `Competitor`: input ``i`` is one of a few arrays, all made now."""
    arrays = [give(case.inputs(i)) for i in range(ARRAYS)]
    return lambda i: arrays[i % ARRAYS]

"""Draw float64 angles and compute functions in float64."""

import functools

from benchmarks import peers
from benchmarks.runner import Case
from benchmarks.subjects import functions
from benchmarks.subjects.arrays import BROAD

__all__ = ["cases"]

F64 = "float64"


def cases():
    """Return the cases."""
    make = functools.partial(Case, dtype=F64)
    return [
        make("κ from 0.01 to 10,000", 2**19, peers.samplers(BROAD, F64), gpu=2**4),
        make("κ = 5, 10,000 draws", 10_000, peers.samplers(5.0, F64)),
        make("κ = 5", 2**20, peers.samplers(5.0, F64), gpu=2**4),
        make("gradient, κ from 0.01 to 10,000", 2**19, peers.gradients(BROAD, F64), gpu=2**4),
        make("`cdf`, κ = 5", 2**18, peers.functions("cdf", 5.0, F64), "points", gpu=2**4),
        make("`cdf`, κ from 0.01 to 10,000", 2**18, peers.functions("cdf", BROAD, F64), "points", gpu=2**4),
        make("`icdf`, κ = 5", 2**18, functions.quantiles(5.0, F64), "points", gpu=2**4),
        make("`log_prob`, κ = 5", 2**20, peers.functions("log_prob", 5.0, F64), "points", gpu=2**4),
    ]

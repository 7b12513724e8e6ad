"""Draw angles: with one concentration (``circle``), with a concentration each (``arrays``), and in float64."""

import functools

from benchmarks import peers
from benchmarks.peers import BROAD, NARROW, NORMAL, samplers
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.subjects import functions

__all__ = ["arrays", "circle", "float64"]

# Some releases of JAX lack some of these generators.
KEYS = ("threefry4x32", "philox4x32", "rbg")


def circle():
    """Return the cases with one concentration, also with other dtypes and keys."""
    sizes = {f"κ = {k:g}": (k, 2**20) for k in (0.1, 5.0, 100.0, 1e4, 1e7)}
    found = [Case(name, count, samplers(k), gpu=2**6) for name, (k, count) in sizes.items()]
    found += [Case(f"κ = 5, {name}", count, samplers(5.0)) for name, count in (("small", 1000), ("large", 2**24))]
    found += [Case(f"κ = 5, {dtype}", 2**20, samplers(5.0, dtype), gpu=2**6) for dtype in ("bfloat16", "float16")]
    for name in KEYS:
        drawn = samplers(5.0, implementation=name)
        found.append(Case(f"κ = 5, {name} key", 2**20, {peer: drawn[peer] for peer in (OURS, NORMAL)}, gpu=2**6))
    return found


def arrays():
    """Return the cases with a concentration each."""
    ranges = {"0.5 to 50": NARROW, "0.01 to 10,000": BROAD}
    return [
        *(Case(f"κ from 0.01 to 10,000, {n:,}", n, samplers(BROAD)) for n in (100, 1000)),
        *(Case(f"κ from {name}", 2**19, samplers(k), gpu=2**6) for name, k in ranges.items()),
        Case("κ from 0.01 to 10,000, many", 2**22, samplers(BROAD), gpu=2**4),
    ]


def float64():
    """Return the cases in float64, of draws and functions."""
    dtype = "float64"
    make = functools.partial(Case, dtype=dtype)
    return [
        make("κ from 0.01 to 10,000", 2**19, samplers(BROAD, dtype), gpu=2**4),
        make("κ = 5, 10,000 draws", 10_000, samplers(5.0, dtype)),
        make("κ = 5", 2**20, samplers(5.0, dtype), gpu=2**4),
        make("gradient, κ from 0.01 to 10,000", 2**19, peers.gradients(BROAD, dtype), gpu=2**4),
        make("`cdf`, κ = 5", 2**18, peers.functions("cdf", 5.0, dtype), "points", gpu=2**4),
        make("`cdf`, κ from 0.01 to 10,000", 2**18, peers.functions("cdf", BROAD, dtype), "points", gpu=2**4),
        make("`icdf`, κ = 5", 2**18, functions.quantiles(5.0, dtype), "points", gpu=2**4),
        make("`log_prob`, κ = 5", 2**20, peers.functions("log_prob", 5.0, dtype), "points", gpu=2**4),
    ]

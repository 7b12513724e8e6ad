"""Draw float32 angles with a concentration for each."""

from benchmarks.peers import Spread, samplers
from benchmarks.runner import Case

__all__ = ["BROAD", "NARROW", "cases"]

BROAD, NARROW = Spread(1e-2, 1e4), Spread(0.5, 50.0)
RANGES = {"0.5 to 50": NARROW, "0.01 to 10,000": BROAD}


def cases():
    """Return the cases."""
    sizes = [Case(f"κ from 0.01 to 10,000, {n:,}", n, samplers(BROAD)) for n in (100, 1000)]
    large = [Case(f"κ from {name}", 2**19, samplers(k), gpu=2**6) for name, k in RANGES.items()]
    return [*sizes, *large, Case("κ from 0.01 to 10,000, many", 2**22, samplers(BROAD), gpu=2**4)]

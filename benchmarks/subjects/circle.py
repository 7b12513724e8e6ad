"""Draw angles with one concentration for all of them, and with all kinds of keys."""

from benchmarks.peers import NORMAL, samplers
from benchmarks.results import OURS
from benchmarks.runner import Case

__all__ = ["cases"]

# Some releases of JAX lack some of these generators.
KEYS = ("threefry4x32", "philox4x32", "rbg")


def cases():
    """Return the cases."""
    one = [Case(f"κ = {k:g}", 2**20, samplers(k), gpu=2**6) for k in (0.1, 5.0, 100.0, 1e4, 1e7)]
    sizes = [Case(f"κ = 5, {name}", count, samplers(5.0)) for name, count in (("small", 1000), ("large", 2**24))]
    dtypes = [Case(f"κ = 5, {dtype}", 2**20, samplers(5.0, dtype), gpu=2**6) for dtype in ("bfloat16", "float16")]
    keys = []
    for name in KEYS:
        found = samplers(5.0, implementation=name)
        keys.append(Case(f"κ = 5, {name} key", 2**20, {peer: found[peer] for peer in (OURS, NORMAL)}, gpu=2**6))
    return [*one, *sizes, *dtypes, *keys]

"""Make random words with the package's ciphers, and with JAX's."""

from benchmarks.competitors import of_keys
from benchmarks.results import OURS
from benchmarks.runner import Case

__all__ = ["cases"]


def words(implementation):
    """Return words of the package, and of JAX with the same key."""
    import jax

    from jax_von_mises.engine import counter

    def ours(count):
        return of_keys(lambda key: counter.words(key, (count,), 1)[0], implementation=implementation)

    def bits(count):
        return of_keys(lambda key: jax.random.bits(key, (count,)), implementation=implementation)

    return {OURS: ours, "jax.random.bits": bits}


def cases():
    """Return the cases."""
    return [
        Case(f"{name} key", 2**20, words(name), "words", gpu=2**6) for name in ("threefry2x32", "philox4x32", "rbg")
    ]

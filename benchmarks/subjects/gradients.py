"""Differentiate draws with respect to their concentrations."""

from benchmarks.competitors import of_keys
from benchmarks.peers import BROAD, NARROW, NORMAL, gradients, values
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.subjects import pairs, sphere

__all__ = ["cases"]


def mapped(k):
    """Return the derivative of each draw by ``vmap(grad)``, for a key and a concentration each."""
    import jax

    import jax_von_mises as jvm

    def ours(count):
        def program(key, k):
            keys = jax.random.split(key, count)
            return jax.vmap(jax.grad(lambda k, key: jvm.sample_von_mises(key, 0.0, k)))(k, keys)

        return of_keys(program, values(k, count).astype("float32"))

    def normal(count):
        def program(key, k):
            return jax.vmap(jax.grad(lambda k, key: k * jax.random.normal(key)))(k, jax.random.split(key, count))

        return of_keys(program, values(k, count).astype("float32"))

    return {OURS: ours, NORMAL: normal}


def cases():
    """Return the cases."""
    return [
        Case("κ from 0.01 to 10,000", 2**19, gradients(BROAD), gpu=2**6),
        Case("κ = 5", 2**20, gradients(5.0), gpu=2**6),
        Case("`vmap(grad)`, a key each", 2**14, mapped(NARROW), gpu=2**6),
        *(Case(f"directions, d = {d}", sphere.size(d), sphere.gradients(d), gpu=2**4) for d in (2, 3, 4, 10, 768)),
        Case("pairs, in their correlation", 2**15, pairs.gradients(), gpu=2**4),
    ]

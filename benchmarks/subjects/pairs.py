"""Draw pairs of dependent angles, and compute their log density."""

import numpy as np

from benchmarks import peers
from benchmarks.competitors import SEED, of_keys
from benchmarks.peers import ALONE, NUMPYRO, at_most
from benchmarks.results import OURS
from benchmarks.runner import Case

__all__ = ["cases", "gradients"]

COMMON = (5.0, 6.0, 3.0)
ANGLES = "sample_von_mises"


def parameters(count, each):
    """Return both concentrations and the correlation: common ones, or random ones for each pair."""
    if not each:
        return COMMON
    random = np.random.default_rng(SEED)
    first, second = np.exp(random.uniform(np.log(0.01), np.log(1e4), (2, count)))
    return tuple(
        x.astype(np.float32) for x in (first, second, random.uniform(-1.5, 1.5, count) * np.sqrt(first * second))
    )


def pairs(each=False):
    """Return draws of pairs, and as a lower bound of the work one angle for each pair."""
    import jax.numpy as jnp

    import jax_von_mises as jvm

    def ours(count):
        shape = () if each else (count,)
        return of_keys(
            lambda key, *k: jvm.SineBivariateVonMises(0.0, 0.0, *k).sample(key, shape), *parameters(count, each)
        )

    def angles(count):
        k = jnp.broadcast_to(jnp.asarray(parameters(count, each)[1], jnp.float32), (count,))
        return of_keys(lambda key, k: jvm.sample_von_mises(key, 0.0, k), k)

    def with_numpyro(count):
        distribution = peers.numpyro().SineBivariateVonMises
        return of_keys(
            lambda key, *k: distribution(0.0, 0.0, *k, validate_args=False).sample(key, (count,)),
            *parameters(count, each),
        )

    return {OURS: ours, ANGLES: angles} | ({} if each else {NUMPYRO: at_most(2**10, with_numpyro)})


def gradients():
    """Return the derivative of the sum of all angles with respect to the common correlation."""
    import jax

    import jax_von_mises as jvm

    def ours(count):
        def total(key, k1, k2, r):
            return jvm.SineBivariateVonMises(0.0, 0.0, k1, k2, r).sample(key, (count,)).sum()

        return of_keys(jax.grad(total, 3), *COMMON)

    return {OURS: ours, ALONE: pairs()[OURS]}


def log_prob():
    """Return the log density of pairs with random parameters, with its gradient in them."""
    import jax

    import jax_von_mises as jvm

    def of(distribution, count):
        points = np.random.default_rng(SEED).uniform(-np.pi, np.pi, (count, 2)).astype(np.float32)

        def program(key, points, *k):
            moved = points + jax.random.uniform(key)
            return jax.value_and_grad(lambda k: distribution(0.0, 0.0, *k).log_prob(moved).sum())(k)

        return of_keys(program, points, *parameters(count, True))

    def with_numpyro(count):
        distribution = peers.numpyro().SineBivariateVonMises
        return of(lambda *k: distribution(*k, validate_args=False), count)

    return {OURS: lambda count: of(jvm.SineBivariateVonMises, count), NUMPYRO: at_most(8, with_numpyro)}


def cases():
    """Return the cases of the sine model; the cosine model has rows in the group ``classes``."""
    return [
        Case("sine, common parameters", 2**18, pairs(), "pairs", gpu=2**4),
        Case("sine, own parameters", 2**13, pairs(True), "pairs", gpu=2**4),
        Case("sine, `log_prob` and its gradient", 256, log_prob(), "pairs"),
    ]

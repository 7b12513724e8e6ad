"""Compute float32 densities, probabilities and quantiles, and draw from an arc and from densities of mixtures."""

import numpy as np

from benchmarks import peers
from benchmarks.competitors import cycling, of_arrays, of_keys
from benchmarks.peers import BROAD, NUMPYRO, SCIPY, TFP, at_most, functions, values
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["cases", "quantiles"]

ARC = (-1.0, 2.0)
WEIGHTS, LOCS = (0.3, 0.7), (-1.0, 2.0)


def probabilities(count, dtype):
    """Return a function that makes probabilities."""
    return lambda generator: generator.random(count).astype(dtype)


def quantiles(k, dtype="float32", points=probabilities):
    """Return ``icdf`` of all libraries that have it; for the arguments, see `peers.functions`."""
    import jax_von_mises as jvm

    def ours(count):
        return of_arrays(lambda x, k: jvm.icdf(x, 0.0, k), points(count, dtype), dtype, values(k, count))

    def with_scipy(count):
        from scipy import stats

        concentration = values(k, count)
        return Competitor(lambda q: stats.vonmises.ppf(q, concentration), cycling(points(count, dtype)))

    return {OURS: ours, SCIPY: at_most(64, with_scipy)}  # a root search for each point


def truncated():
    """Return draws from an arc, and those of JAX's truncated normal distribution between the same bounds."""
    import jax

    import jax_von_mises as jvm

    def ours(count):
        return of_keys(lambda key, k: jvm.sample_truncated(key, 0.0, k, *ARC, (count,)), 5.0)

    def normal(count):
        def draw(key, k):
            low, high = (x * jax.numpy.sqrt(k) for x in ARC)
            return jax.random.truncated_normal(key, low, high, (count,))

        return of_keys(draw, 5.0)

    return {OURS: ours, "jax.random.truncated_normal": normal}


def mixtures(k):
    """Return log densities of a mixture of two components."""
    import jax.numpy as jnp

    import jax_von_mises as jvm

    def of(function, count):
        return of_arrays(function, peers.angles(count, "float32"), "float32", values(k, count))

    def ours(count):
        def log_prob(x, k):
            components = jvm.VonMises(np.array(LOCS, "float32"), jnp.broadcast_to(k[..., None], (*k.shape, 2)))
            return jvm.Mixture(probs=np.array(WEIGHTS, "float32"), components=components).log_prob(x)

        return of(log_prob, count)

    def with_classes(library):
        def make(count):
            module = library()

            def log_prob(x, k):
                parts = module.VonMises(np.array(LOCS, "float32"), jnp.broadcast_to(k[..., None], (*k.shape, 2)))
                weights = module.Categorical(probs=np.array(WEIGHTS, "float32"))
                return module.MixtureSameFamily(weights, parts).log_prob(x)

            return of(log_prob, count)

        return make

    return {OURS: ours, NUMPYRO: with_classes(peers.numpyro), TFP: with_classes(peers.tfp)}


def cases():
    """Return the cases."""

    def points(name, found):
        return Case(name, 2**20, found, "points", gpu=2**4)

    return [
        points("`log_prob`, κ = 5", functions("log_prob", 5.0)),
        points("`log_prob`, κ from 0.01 to 10,000", functions("log_prob", BROAD)),
        points("gradient of `log_prob` in κ, κ from 0.01 to 10,000", functions("log_prob", BROAD, gradient=True)),
        points("`cdf`, κ = 5", functions("cdf", 5.0)),
        points("`cdf`, κ from 0.01 to 10,000", functions("cdf", BROAD)),
        points("`icdf`, κ = 5", quantiles(5.0)),
        points("`log_prob` of a mixture of two, κ = 5", mixtures(5.0)),
        Case("`sample_truncated`, κ = 5", 2**20, truncated(), gpu=2**4),
    ]

"""Draw directions on the sphere, with a concentration each."""

import numpy as np

from benchmarks.competitors import of_arrays, of_keys
from benchmarks.peers import ALONE, BROAD, NORMAL, NORMAL_ALONE, SCIPY, TFP, at_most, shape, tfp, values
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["cases", "gradients", "size", "unit_vectors"]


def size(d):
    """Return the number of directions in d dimensions with about 2^18 components; powers of two suit all libraries."""
    return 2 ** (18 - d.bit_length())


def mean(d):
    """Return a fixed unit vector in d dimensions."""
    direction = np.random.default_rng(d).normal(size=d)
    return (direction / np.linalg.norm(direction)).astype(np.float32)


def unit_vectors(count, d):
    """Return a function that makes uniform directions in d dimensions from a generator."""

    def make(generator):
        x = generator.normal(size=(count, d))
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    return make


def directions(d, k, dtype="float32"):
    """Return draws of directions, and those of as many normal components."""
    import jax

    import jax_von_mises as jvm

    def of(draw, count):
        return of_keys(draw, mean(d).astype(dtype), values(k, count).astype(dtype))

    def ours(count):
        return of(lambda key, mean, k: jvm.sample_von_mises_fisher(key, mean, k, (count,), dtype), count)

    def normal(count):
        return of(lambda key, mean, k: jax.random.normal(key, (count, d), dtype), count)

    def circle(count):
        return of(lambda key, mean, k: jvm.sample_von_mises(key, 0.0, k, (count,), dtype), count)

    def with_scipy(count):
        from scipy import stats

        distribution = stats.vonmises_fisher(mean(d).astype(float) / np.linalg.norm(mean(d).astype(float)), float(k))
        return Competitor(lambda i: distribution.rvs(count, random_state=i))

    def with_tfp(count):
        distribution, size = tfp().VonMisesFisher, shape(k, count)
        return of(lambda key, mean, k: distribution(mean, k).sample(size, seed=jax.random.key_data(key)), count)

    found = {OURS: ours, NORMAL: normal}
    if d == 2:
        found["sample_von_mises"] = circle
    if k is not BROAD:
        found[SCIPY] = at_most(2**14, with_scipy)
    if d <= 5:  # the library has no more dimensions
        found[TFP] = with_tfp
    return found


def gradients(d):
    """Return the derivatives of the sum of all components with respect to the concentrations."""
    import jax

    import jax_von_mises as jvm

    def total(key, mean, k):
        return jvm.sample_von_mises_fisher(key, mean, k, k.shape).sum()

    def ours(count):
        return of_keys(jax.grad(total, 2), mean(d), BROAD.values(count).astype(np.float32))

    found = directions(d, BROAD)
    return {OURS: ours, ALONE: found[OURS], NORMAL_ALONE: found[NORMAL]}


def log_prob(d):
    """Return log densities of directions with a concentration each."""
    import jax_von_mises as jvm

    def of(distribution, count):
        k = values(BROAD, count)
        points = unit_vectors(count, d)
        return of_arrays(lambda x, mean, k: distribution(mean, k).log_prob(x), points, "float32", mean(d), k)

    found = {OURS: lambda count: of(jvm.VonMisesFisher, count)}
    if d <= 5:
        found[TFP] = lambda count: of(tfp().VonMisesFisher, count)
    return found


def mixture(name, parts=20, d=3):
    """Return draws from a mixture of von Mises-Fisher distributions, or its log densities."""
    import jax
    import jax.numpy as jnp

    import jax_von_mises as jvm

    generator = np.random.default_rng(0)
    means = unit_vectors(parts, d)(generator).astype(np.float32)
    given = generator.normal(size=parts).astype(np.float32), means, np.geomspace(5, 100, parts, dtype=np.float32)

    def ours(logits, means, k):
        return jvm.Mixture(logits=logits, components=jvm.VonMisesFisher(means, k))

    def with_tfp(logits, means, k):
        return tfp().MixtureSameFamily(tfp().Categorical(logits), tfp().VonMisesFisher(means, k))

    def of(distribution, count):
        if name == "log_prob":
            points = unit_vectors(count, d)
            return of_arrays(lambda x, *given: distribution(*given).log_prob(x), points, "float32", *given)
        seed = {ours: lambda key: key, with_tfp: jax.random.key_data}[distribution]
        return of_keys(lambda key, *given: distribution(*given).sample(sample_shape=(count,), seed=seed(key)), *given)

    def normal(count):
        return of_keys(lambda key: jax.random.normal(key, (count, d), jnp.float32))

    found = {OURS: lambda count: of(ours, count), TFP: lambda count: of(with_tfp, count)}
    return found if name == "log_prob" else {**found, NORMAL: normal}


def cases():
    """Return the cases."""
    each = [
        Case(f"d = {d}, a concentration each", size(d), directions(d, BROAD), gpu=2**4)
        for d in (2, 3, 4, 5, 10, 100, 768)
    ]
    each64 = [
        Case(f"d = {d}, float64", size(d), directions(d, BROAD, "float64"), dtype="float64", gpu=2**4)
        for d in (2, 3, 10)
    ]
    return [
        *each,
        *each64,
        Case("d = 3, one concentration", 2**18, directions(3, 5.0), gpu=2**4),
        *(Case(f"`log_prob`, d = {d}", size(d), log_prob(d), "points", gpu=2**4) for d in (3, 768)),
        Case("d = 3, a mixture of 20", size(3), mixture("sample"), gpu=2**4),
        Case("`log_prob`, d = 3, a mixture of 20", size(3), mixture("log_prob"), "points", gpu=2**4),
    ]

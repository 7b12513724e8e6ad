"""Estimate parameters from data."""

import numpy as np

from benchmarks.competitors import SEED, cycling
from benchmarks.peers import SCIPY, at_most
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["cases"]


def angles(generator, shape):
    """Return angles around two directions."""
    place = np.where(generator.random(shape) < 0.4, -1.0, 2.0)
    return generator.vonmises(place, 4.0).astype(np.float32)


def pairs(generator, count):
    """Return pairs of dependent angles around two places."""
    place = generator.integers(0, 2, (count, 1)) * np.array([2.5, -1.5])
    noise = generator.normal(size=(count, 2)) @ np.array([[0.5, 0.2], [0.0, 0.3]])
    return ((place + noise + np.pi) % (2 * np.pi) - np.pi).astype(np.float32)


def clusters(generator, count, dimension, number):
    """Return directions around several others, with a mean cosine of 0.6."""
    centres = generator.normal(size=(number, dimension))
    centres = 0.75 * centres / np.linalg.norm(centres, axis=1, keepdims=True)
    x = centres[generator.integers(0, number, count)]
    x = x + generator.normal(size=x.shape) / np.sqrt(dimension)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def of(fit, make):
    """Return a competitor that waits for the result of a fit."""
    import jax

    return Competitor(fit, cycling(make, jax.numpy.asarray), jax.block_until_ready)


def cases():
    """Return the cases; a fit of a mixture or of pairs runs outside `jit`."""
    import jax

    import jax_von_mises as jvm

    def sets(count):
        return lambda generator: generator.vonmises(0.0, 5.0, (count, 1000)).astype(np.float32)

    def ours(count):
        return of(jax.jit(lambda x: jvm.fit(x, axis=1)), sets(count))

    def with_scipy(count):
        from scipy import stats

        return Competitor(lambda x: [stats.vonmises.fit(row, fscale=1) for row in x], cycling(sets(count)))

    def directions(count):
        def make(generator):
            x = generator.normal((0.0, 0.0, 2.0), size=(count, 1000, 3))
            return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)

        return of(jax.jit(lambda x: jvm.VonMisesFisher.fit(x, axis=1)), make)

    def mixture(kind, make, **options):
        key = jax.random.key(SEED)
        return lambda count: of(lambda x: jvm.Mixture.fit(x, kind, key=key, **options), make)

    return [
        Case("`fit`, sets of 1,000 angles", 1000, {OURS: ours, SCIPY: at_most(16, with_scipy)}, "sets"),
        Case("`VonMisesFisher.fit`, sets of 1,000", 256, {OURS: directions}, "sets"),
        Case(
            "`SineBivariateVonMises.fit`, 1,000 pairs",
            1,
            {OURS: lambda count: of(jvm.SineBivariateVonMises.fit, lambda generator: pairs(generator, 1000))},
            "s",
        ),
        Case(
            "`Mixture.fit`, 1,000 angles, three components",
            1,
            {OURS: mixture(jvm.VonMises, lambda generator: angles(generator, 1000), number=3)},
            "s",
        ),
        Case(
            "`Mixture.fit`, 1,000 pairs, two components",
            1,
            {OURS: mixture(jvm.SineBivariateVonMises, lambda generator: pairs(generator, 1000), number=2)},
            "s",
        ),
        Case(
            "`Mixture.fit`, 100,000 directions, d = 384, 20 components",
            1,
            {OURS: mixture(jvm.VonMisesFisher, lambda generator: clusters(generator, 100_000, 384, 20), number=20)},
            "s",
        ),
    ]

"""Test the words of distributions that are made of others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import special

import jax_von_mises as jvm
from jax_von_mises import Mixture, SineSkewed, VonMises
from jax_von_mises.engine import counter
from jax_von_mises.mixture import draw as mixture
from tests.marks import more


def test_refusals(key):
    mixed = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 2.0], [5.0, 20.0]))
    with pytest.raises(ValueError, match=r"Mixture\.sample: method='table' is not one of 'auto', 'direct'\."):
        mixed.sample(key, method="table")
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="over which angles cannot be sharded"):
        mixed.sample(key, (4,), out_sharding=NamedSharding(mesh, PartitionSpec("x")))
    with pytest.raises(TypeError, match="give the parameters once"):
        jvm.sample_batches(key, 0.0, 1.0, 10, 5, distribution=mixed)
    with pytest.raises(ValueError, match=r"stream's 2\^64 numbers \(each angle takes 2\)"):
        mixed.sample(key, (4,), start=2**63)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_words_choose_components_exactly(count):
    """The words are shared out as the weights say, to one in 2^32; a weight of 0 has no word."""
    weights = np.random.default_rng(count).dirichlet(np.full(count, 0.4)).astype(np.float32)
    weights[-1] = 0 if count > 1 else 1
    weights /= weights.sum()
    largest = int(weights.argmax())
    shares = np.floor(np.where(np.arange(count) == largest, 0, weights).astype(np.float64) * 2**32)
    ends = np.cumsum(shares).astype(np.int64)
    # The words at each end of a component's share, which follow those of the components before it.
    words = np.unique(np.concatenate([[0, 2**32 - 1], ends, ends - 1]).clip(0, 2**32 - 1))
    expected = np.searchsorted(ends, words, side="right")
    expected = np.where(expected == count, largest, expected)
    found = mixture.chosen(jnp.asarray(words.astype(np.uint32)), jnp.asarray(weights))
    np.testing.assert_array_equal(found, expected)
    assert not (weights[np.asarray(found)] == 0).any()


def test_mixture_layout(key):
    """A draw of a mixture of angles takes two words: the first chooses, and the second is that of the angle."""
    distribution = Mixture(probs=[0.25, 0.75], components=VonMises([-1.0, 2.0], [5.0, 20.0]))
    words = np.asarray(counter.words(key, (400,), 1)[0]).reshape(200, 2)
    angles = np.asarray([VonMises(loc, k).sample(key, (400,)) for loc, k in ((-1.0, 5.0), (2.0, 20.0))])[:, 1::2]
    expected = np.where(words[:, 0] < 2**30, angles[0], angles[1])
    np.testing.assert_array_equal(distribution.sample(key, (200,)), expected)


@pytest.mark.more
def test_angles_before_the_reflection(key):
    """Those of a skewed mixture are the mixture's, whose draws take two numbers each."""
    mixed = Mixture(probs=[0.5, 0.5], components=VonMises([-1.0, 1.5], [40.0, 4.0]))
    x, centre = np.asarray(mixed.sample(key, (500,))), float(mixed.mean())
    skewed = np.asarray(SineSkewed(mixed, 0.5).sample(key, (500,)))
    away = np.abs(np.angle(np.exp(1j * (x - centre))))
    np.testing.assert_allclose(np.abs(np.angle(np.exp(1j * (skewed - centre)))), away, atol=2e-6)


@pytest.mark.parametrize(("count", "dtype"), [(30, np.float32), *more((2, np.float64), (1000, np.float32))])
def test_probabilities_of_components(count, dtype):
    """They differ from the weights, computed in float64, by no more than the page of guarantees says."""
    logits = np.random.default_rng(count).normal(size=(8, count)) * np.array([[0.3], [1], [4], [8]] * 2) + 300
    logits = logits.astype(dtype)
    exact = special.softmax(logits.astype(np.float64), -1)
    rows, largest = np.arange(8), exact.argmax(-1)

    @jax.jit
    def rank(word, weights):
        """Return the position of the component that each word chooses, where the most likely one comes last."""
        found = jax.vmap(mixture.chosen)(word, weights)
        return jnp.where(found == largest[:, None].astype(np.int32), count, found)

    with jax.enable_x64(dtype == np.float64):
        weights = jax.jit(mixture.weights_of)(logits)
        # Find the first word of a later component by bisection.
        first, last = np.zeros((8, count), np.int64), np.full((8, count), 2**32)
        while (first < last).any():
            middle = np.minimum((first + last) // 2, 2**32 - 1)
            later = np.asarray(rank(middle.astype(np.uint32), weights)) > np.arange(count)
            first, last = np.where(later, first, np.minimum(middle + 1, last)), np.where(later, middle, last)
    found = np.diff(first, prepend=0) / 2**32
    found[rows, largest] = 1 - first[:, -1] / 2**32
    limit = np.full_like(exact, 2.0**-32)
    limit[rows, largest] *= count
    assert (np.abs(found - exact) <= limit + (5e-7 if dtype == np.float32 else 1e-14)).all()

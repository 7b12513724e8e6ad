"""Test what all distributions share: indexing, the common methods, and the message where one has no meaning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import jax_von_mises as jvm
from jax_von_mises import (
    CircularDistribution,
    CosineBivariateVonMises,
    Mixture,
    SineBivariateVonMises,
    SineSkewed,
    Torus,
    VonMises,
    VonMisesFisher,
)

BATCH = np.float32([[0.5, 1.0, 2.0], [4.0, 8.0, 9.0]])
BATCHES = {
    "VonMises": VonMises(np.float32([0.1, 0.2, 0.3]), BATCH),
    "VonMisesFisher": VonMisesFisher(np.eye(3, 4, dtype=np.float32), BATCH),
    "SineBivariateVonMises": SineBivariateVonMises(0.0, 1.0, 5.0, BATCH, np.float32([[1.0], [2.0]])),
    "CosineBivariateVonMises": CosineBivariateVonMises(0.0, 1.0, 5.0, BATCH, correlation=0.5),
    "Torus": Torus(VonMises(np.zeros((2, 3, 1), np.float32), np.float32([3.0, 4.0]))),
    "Mixture": Mixture(
        logits=np.zeros((3, 2), np.float32), components=VonMises(np.float32([0, 1]), BATCH[..., None] * np.ones(2))
    ),
}
ONE = {
    **{name: batch[1, 2] for name, batch in BATCHES.items()},
    "CircularDistribution": CircularDistribution(lambda x, k: k * jnp.cos(x), 2.0),
    "SineSkewed": SineSkewed(VonMises(0.5, 4.0), 0.3),
}


@pytest.mark.parametrize("index", [0, (1, 2), (slice(None), 1), (..., 0), (None, 1), np.array([1, 0, 1]), BATCH > 1])
@pytest.mark.parametrize("name", BATCHES)
def test_elements_of_the_batch(name, index):
    """An index selects along the axes of the batch, never along those of an event or of components."""
    batch = BATCHES[name]
    part = batch[index]
    assert type(part) is type(batch)
    assert part.batch_shape == np.empty(batch.batch_shape)[index].shape
    assert (part.event_shape, part.dtype) == (batch.event_shape, batch.dtype)
    mean = np.asarray(batch.mean())
    whole = index if isinstance(index, tuple) else (index,)
    if not any(each is ... for each in whole):
        whole += (...,)
    np.testing.assert_allclose(part.mean(), mean[(*whole, *[slice(None)] * (mean.ndim - 2))], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", BATCHES)
def test_an_index_beyond_the_batch(name):
    with pytest.raises(IndexError):
        BATCHES[name][0, 0, 0]
    with pytest.raises(IndexError, match=f"{name}: a distribution of batch_shape"):
        ONE[name][0]


def test_a_traced_index():
    found = jax.jit(lambda batch, i: batch[0, i].concentration)(BATCHES["VonMises"], 2)
    assert float(found) == BATCH[0, 2]


@pytest.mark.parametrize("name", ONE)
def test_draws_with_their_densities(name, key):
    one = ONE[name]
    x, log_prob = one.sample_and_log_prob(seed=key, sample_shape=5)
    assert x.shape == (5, *one.event_shape)
    np.testing.assert_array_equal(x, one.sample(key, 5))
    np.testing.assert_allclose(log_prob, one.log_prob(x), rtol=1e-6)
    np.testing.assert_allclose(one.prob(x), np.exp(log_prob), rtol=1e-5)


def test_a_missing_method_has_a_reason():
    with pytest.raises(AttributeError, match=r"VonMisesFisher has no cdf: points .* have no order\. Use log_prob\."):
        ONE["VonMisesFisher"].cdf(0.5)
    with pytest.raises(AttributeError, match="SineBivariateVonMises has no mode: it has no formula here"):
        ONE["SineBivariateVonMises"].mode()
    with pytest.raises(AttributeError, match=r"^SineSkewed has no pdf\.$"):
        ONE["SineSkewed"].pdf(0.5)
    with pytest.raises(AttributeError, match="VonMises has no scale"):
        _ = ONE["VonMises"].scale
    assert not hasattr(ONE["Torus"], "icdf")


@pytest.mark.parametrize("mass", [0.0, 1e-3, 0.5, 0.95, 1.0])
def test_shortest_arcs(mass):
    """The arc is centred on the mean direction, and has the probability `mass`."""
    one = VonMises(np.float32([3.0, -1.0]), np.float32([0.5, 100.0]))
    low, high = one.interval(mass)
    np.testing.assert_allclose((low + high) / 2, one.loc, atol=1e-6)
    np.testing.assert_allclose(one.cdf(high) - one.cdf(low), mass, atol=2e-6)
    assert np.isnan(one.interval(1.5)[0]).all()


def test_trigonometric_moments():
    """Those of the von Mises distribution are ratios of Bessel functions."""
    k = np.float32([0.0, 0.3, 4.0, 100.0, 1e5])
    for order in (0, 1, 2, 5, 20):
        exact = special.ive(order, k.astype(float)) / special.ive(0, k.astype(float)) * np.exp(0.3j * order)
        np.testing.assert_allclose(VonMises(0.3, k).moment(order), exact, rtol=2e-5, atol=1e-37)
    np.testing.assert_allclose(VonMises(0.3, np.inf).moment(3), np.exp(0.9j), rtol=1e-6)


def test_divergence_from_another_class():
    """It is the mean of the difference of the log densities."""
    p, q = VonMises(0.5, 2.0), jvm.WrappedCauchy(1.0, 0.3)
    x = np.linspace(-np.pi, np.pi, 20_001).astype(np.float32)
    for one, other in ((p, q), (q, p)):
        gain = np.trapezoid(np.asarray(one.prob(x)) * np.asarray(one.log_prob(x) - other.log_prob(x)), x)
        np.testing.assert_allclose(one.kl_divergence(other), gain, atol=1e-5)


def test_lengths_of_means(key):
    """They are those of many draws; 1 minus the length is accurate even for a narrow density."""
    one = VonMises(0.5, np.float32([0.0, 1.0, 1e6]))
    x = np.asarray(one.sample(key, 100_000), float)
    np.testing.assert_allclose(one.mean_resultant_length(), np.abs(np.exp(1j * x).mean(0)), atol=0.01)
    density = CircularDistribution(lambda x, k: k * jnp.cos(x), np.float32(1e6))
    assert float(density.variance()) == pytest.approx(float(one.variance()[2]), rel=1e-5)
    assert float(density.stddev()) == pytest.approx(1e-3, rel=1e-4)

"""Test mixtures of von Mises-Fisher distributions: draws, densities, moments and fits, against NumPy and movMF."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from jax_von_mises import Mixture, VonMises, VonMisesFisher
from tests import children, sphere_reference

MEANS = np.float32([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, -1.0]])
TRUTH = Mixture(probs=[0.3, 0.5, 0.2], components=VonMisesFisher(MEANS, np.float32([20.0, 60.0, 4.0])))


# Expenses of 40 persons for housing, food and service.
HOUSEHOLD = children.ROOT / "docs" / "examples" / "household.csv"


def log_density(x, mean, k):
    """Return the log densities of directions (n, d) for each component, in float64."""
    d = mean.shape[-1]
    norm = special.ive(d / 2 - 1, k)
    return k * (x @ mean.T - 1) - np.log(norm) + (d / 2 - 1) * np.log(k) - d / 2 * np.log(2 * np.pi)


def concentration(length, d):
    """Return the concentration with a mean resultant length."""
    ratio = lambda k: special.ive(d / 2, k) / special.ive(d / 2 - 1, k) - length  # noqa: E731
    return optimize.brentq(ratio, 1e-9, 1e6, xtol=1e-12)


def reference_fit(x, share, mean, k, weights, steps, tied):
    """Fit a mixture by textbook expectation maximisation, and return it with its mean log likelihood before."""
    d = x.shape[1]
    for _ in range(steps):
        joint = np.log(weights) + log_density(x, mean, k)
        value = share @ special.logsumexp(joint, axis=1)
        each = np.exp(joint - special.logsumexp(joint, axis=1, keepdims=True)) * share[:, None]
        weights = each.sum(0)
        vectors = each.T @ x
        lengths = np.linalg.norm(vectors, axis=1)
        mean = vectors / lengths[:, None]
        if tied:
            k = np.full(len(mean), concentration(lengths.sum(), d))
        else:
            k = np.array([concentration(length / weight, d) for length, weight in zip(lengths, weights, strict=True)])
    return mean, k, weights, value


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("d", [2, 3, 5, 40])
def test_against_reference(d, tied, key):
    """From the same start, 30 steps of the float64 reference give the same mixture; the samples have weights."""
    generator = np.random.default_rng(d)
    truth = Mixture(
        probs=[0.2, 0.3, 0.5],
        components=VonMisesFisher(generator.normal(size=(3, d)).astype(np.float32), np.float32([3, 6, 9]) * d),
    )
    x = np.asarray(truth.sample(key, (700,)))
    share = generator.uniform(0, 2, 700).astype(np.float32)
    start = generator.normal(size=(3, d)).astype(np.float32)
    start = Mixture(probs=[0.3, 0.3, 0.4], components=VonMisesFisher(start, np.full(3, d, np.float32)))
    found = Mixture.fit(3 * x, start, share, steps=30, tolerance=-1.0, tied=tied)
    unit, ones = np.asarray(start.components.mode(), float), np.full(3, float(d))
    mean, k, weights, _ = reference_fit(
        x.astype(float), share / share.sum(dtype=float), unit, ones, np.float64([0.3, 0.3, 0.4]), 30, tied
    )
    np.testing.assert_allclose(found.components.mean_direction, mean, atol=1e-3)
    np.testing.assert_allclose(found.components.concentration, k, rtol=1e-3)
    np.testing.assert_allclose(found.probs, weights, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_likelihood_never_falls(tied, key):
    x = TRUTH.sample(key, (500,))
    found, values = Mixture.fit(x, VonMisesFisher, number=4, starts=1, steps=1, tied=tied), []
    for _ in range(25):
        found = Mixture.fit(x, found, steps=1, tolerance=-1.0, tied=tied)
        values.append(float(found.log_prob(x).mean()))
    assert np.diff(values).min() > -2e-6
    if tied:
        assert np.ptp(found.components.concentration) == 0


def test_finds_the_truth(key):
    x = TRUTH.sample(key, (20_000,))
    found = Mixture.fit(x, VonMisesFisher, number=3)
    order = np.argmax(np.asarray(found.components.mean_direction) @ MEANS.T, 0)
    np.testing.assert_allclose(found.probs[order], TRUTH.probs, atol=0.02)
    np.testing.assert_allclose(found.components[order].mode(), MEANS, atol=0.05)
    np.testing.assert_allclose(found.components[order].concentration, TRUTH.components.concentration, rtol=0.1)
    assert float(found.log_prob(x).mean()) > float(TRUTH.log_prob(x).mean())


def test_many_samples_in_many_dimensions(key):
    """Starts are compared on some of the samples; the fit uses all."""
    d, number = 100, 6
    means = np.random.default_rng(0).normal(size=(number, d)).astype(np.float32)
    truth = Mixture(logits=np.zeros(number, np.float32), components=VonMisesFisher(means, np.full(number, 300.0, "f")))
    x = truth.sample(key, (70_000,))
    found = Mixture.fit(x, VonMisesFisher, number=number, starts=3)
    cosine = np.asarray(found.components.mode()) @ np.asarray(truth.components.mode()).T
    assert cosine.max(0).min() > 0.998
    np.testing.assert_allclose(found.components.concentration, 300.0, rtol=0.01)
    np.testing.assert_allclose(found.probs, 1 / number, atol=0.01)


def test_in_two_dimensions_it_is_the_mixture_of_angles(key):
    angles = Mixture(probs=[0.4, 0.6], components=VonMises([-1.0, 1.5], [8.0, 3.0]))
    x = np.asarray(angles.sample(key, (2000,)))
    circle = Mixture.fit(x, angles, steps=20, tolerance=-1.0)
    start = VonMisesFisher(np.stack([np.cos([-1.0, 1.5]), np.sin([-1.0, 1.5])], -1), [8.0, 3.0])
    vectors = np.stack([np.cos(x), np.sin(x)], -1)
    found = Mixture.fit(vectors, Mixture(probs=[0.4, 0.6], components=start), steps=20, tolerance=-1.0)
    np.testing.assert_allclose(found.components.concentration, circle.components.concentration, rtol=1e-3)
    np.testing.assert_allclose(np.arctan2(*found.components.mean_direction.T[::-1]), circle.components.loc, atol=1e-3)
    np.testing.assert_allclose(found.log_prob(vectors[:5]), circle.log_prob(x[:5]), atol=1e-3)


def test_weights_batches_and_samples_that_cannot_be_fitted(key):
    x = np.asarray(TRUTH.sample(key, (2, 400)))
    both = Mixture.fit(x, TRUTH, axis=1, steps=5, tolerance=-1.0)
    assert both.batch_shape == (2,)
    one = Mixture.fit(x[1], TRUTH, steps=5, tolerance=-1.0)
    np.testing.assert_allclose(both[1].components.concentration, one.components.concentration, rtol=1e-5)
    padded = np.concatenate([x[1], np.zeros((7, 3), np.float32)])
    ignored = Mixture.fit(padded, TRUTH, np.float32(np.arange(407) < 400), steps=5, tolerance=-1.0)
    np.testing.assert_allclose(ignored.components.concentration, one.components.concentration, rtol=1e-5)
    bad = np.stack([x[0], x[0], x[0], x[0]])
    bad[1, 3], bad[2, 5, 1] = 0, np.nan
    with pytest.raises(
        ValueError, match=r"2 of 1600 samples .* zero vector.* indices \[1, 3\], \[2, 5\]; the first is"
    ):
        Mixture.fit(bad, VonMisesFisher, number=2, axis=1, starts=1)
    capped = Mixture.fit(np.eye(3, dtype=np.float32), VonMisesFisher, number=3, largest_concentration=123.0)
    np.testing.assert_allclose(capped.components.concentration, 123.0)


@pytest.mark.parametrize("tied", [False, True])
def test_largest_concentration(tied, key):
    """No component exceeds it, in many dimensions not the default either; a start above it is fitted."""
    x = TRUTH.sample(key, (300,))
    start = Mixture(probs=[0.1, 0.1, 0.8], components=TRUTH.components)
    for found in (
        Mixture.fit(x, VonMisesFisher, number=3, starts=2, steps=20, largest_concentration=3.0, tied=tied),
        Mixture.fit(x, start, steps=20, largest_concentration=3.0, tied=tied),
    ):
        assert np.max(found.components.concentration) <= 3
        assert np.abs(np.asarray(found.probs) - np.asarray(start.probs)).max() > 0.01
    many = Mixture.fit(np.eye(400, dtype=np.float32)[:5], VonMisesFisher, number=5, starts=1, steps=3, tied=tied)
    assert np.max(many.components.concentration) <= 1e4


@pytest.mark.parametrize("number", [3, 20])
def test_a_component_of_weight_zero_may_be_nan(number):
    """It changes neither densities, moments nor their derivatives."""
    x, rest = jnp.float32([0.6, 0.0, 0.8]), number - 3
    means = np.concatenate([MEANS, np.full((rest + 1, 3), np.nan)]).astype(np.float32)
    k = np.r_[20, 60, 4, np.full(rest + 1, np.nan)].astype(np.float32)
    mixture = Mixture(probs=np.r_[0.3, 0.5, 0.2, np.zeros(rest + 1)], components=VonMisesFisher(means, k))
    for name in ("log_prob", "prob") if number == 3 else ("log_prob",):
        value, slope = jax.value_and_grad(getattr(mixture, name))(x)
        expected, slope_expected = jax.value_and_grad(getattr(TRUTH, name))(x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(slope, slope_expected, rtol=1e-4, atol=1e-5)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(getattr(mixture, name)(), getattr(TRUTH, name)(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mixture.responsibilities(x)[:3], TRUTH.responsibilities(x), rtol=1e-5)


def test_draws_and_densities(key):
    x = TRUTH.sample(key, (50_000,))
    assert x.shape == (50_000, 3)
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=-1), 1, atol=1e-6)
    np.testing.assert_allclose(TRUTH.mean(), x.mean(0), atol=0.01)
    np.testing.assert_allclose(TRUTH.mean_resultant_length(), jnp.linalg.norm(x.mean(0)), atol=0.01)
    np.testing.assert_allclose(TRUTH.variance(), 1 - TRUTH.mean_resultant_length(), atol=1e-6)
    parts = log_density(np.asarray(x[:100], float), MEANS.astype(float), np.float64([20, 60, 4]))
    exact = special.logsumexp(parts + np.log([0.3, 0.5, 0.2]), axis=1)
    np.testing.assert_allclose(TRUTH.log_prob(x[:100]), exact, atol=2e-5)
    np.testing.assert_allclose(TRUTH.prob(x[:100]), np.exp(exact), rtol=3e-5)
    joint = np.exp(parts + np.log([0.3, 0.5, 0.2]) - exact[:, None])
    np.testing.assert_allclose(TRUTH.responsibilities(x[:100]), joint, atol=1e-5)
    # Slices of the stream, a batch, and 20 components, for which the density is computed in another way.
    np.testing.assert_array_equal(TRUTH.sample(key, (100,), start=40_000), x[40_000:40_100])
    many = Mixture(logits=np.zeros((2, 20), np.float32), components=VonMisesFisher(np.tile(MEANS[0], (20, 1)), 7.0))
    assert many.sample(key, (5,)).shape == (5, 2, 3)
    np.testing.assert_allclose(many.log_prob(x[0]), np.full(2, VonMisesFisher(MEANS[0], 7.0).log_prob(x[0])), rtol=1e-5)


def test_the_distribution_of_the_cosine(key):
    """Within a component, the cosine to its mean direction has its distribution."""
    far = Mixture(probs=[0.5, 0.5], components=VonMisesFisher(np.float32([[0, 0, 1], [0, 0, -1]]), [200.0, 90.0]))
    x = np.asarray(far.sample(key, (40_000,)), float)
    for side, k in ((1, 200.0), (-1, 90.0)):
        w = side * x[side * x[:, 2] > 0, 2]
        assert abs(len(w) - 20_000) < 600
        tail = np.exp(sphere_reference.log_tail((1 - w) / 2, True, True, 3, k))
        assert abs(tail.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(w))


def test_derivatives(key):
    """Those of the log density are exact; draws have derivatives with respect to the components."""
    x = TRUTH.sample(key, (50,))

    def mean_log_prob(logits, components):
        return Mixture(logits=logits, components=components).log_prob(x).mean()

    logits = jnp.log(jnp.array([0.3, 0.5, 0.2]))
    slope = jax.grad(mean_log_prob, (0, 1))(logits, TRUTH.components)
    np.testing.assert_allclose(slope[0], TRUTH.responsibilities(x).mean(0) - TRUTH.probs, atol=1e-6)
    expected = (x @ MEANS.T) - TRUTH.components.mean_resultant_length()[None]
    expected = (TRUTH.responsibilities(x) * expected).mean(0)
    np.testing.assert_allclose(slope[1].concentration, expected, atol=1e-6)
    of_draws = jax.jacobian(lambda c: Mixture(logits=logits, components=c).sample(key, (9,)))(TRUTH.components)
    assert np.isfinite(of_draws.concentration).all()
    assert np.isfinite(of_draws.mean_direction).all()


def test_refusals(key):
    x = TRUTH.sample(key, (10,))
    for samples, message in ((np.float32(1.0), r"samples has shape \(\)"), (np.ones((3, 1)), r"must be 2 or more")):
        with pytest.raises(ValueError, match=message):
            Mixture.fit(samples, VonMisesFisher, number=2)
    with pytest.raises(ValueError, match=r"samples has shape \(10, 2\), but .* have 3 components"):
        Mixture.fit(x[:, :2], TRUTH)
    with pytest.raises(AttributeError, match=r"Mixture has no cdf: points of several dimensions have no order"):
        TRUTH.cdf(0.5)
    with pytest.raises(TypeError, match=r"tied=1 must be"):
        Mixture.fit(x, TRUTH, tied=1)


@pytest.mark.parametrize(("number", "value"), [(1, 90.24785164), (2, 113.07926763), (3, 126.06333539)])
def test_against_movmf(number, value):
    """The published example of K. Hornik and B. Gruen, "movMF", J. Stat. Softw. 58, 2014, table 1.

    The table has two digits; the log likelihoods agree with its values of the BIC, and with those of an implementation
    in float64 NumPy. movMF's densities are per share of the sphere.
    """
    x = np.loadtxt(HOUSEHOLD, np.float32, delimiter=",", skiprows=1, usecols=(0, 1, 2))
    found = Mixture.fit(x, VonMisesFisher, number=number, tolerance=1e-9)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    total = float(found.log_prob(unit).sum()) + 40 * np.log(4 * np.pi)
    assert abs(total - value) < 2e-3
    bic = {1: -169.4291, 2: -200.3364, 3: -211.5490}[number]
    assert abs(-2 * total + (4 * number - 1) * np.log(40) - bic) < 4e-3
    if number == 3:
        order = np.argsort(found.probs)[::-1]
        np.testing.assert_allclose(found.probs[order], [0.52, 0.35, 0.13], atol=0.006)
        np.testing.assert_allclose(found.components[order].concentration, [83.26, 62.91, 181.21], rtol=2e-3)
        means = [[0.95, 0.15, 0.27], [0.59, 0.76, 0.28], [0.67, 0.31, 0.68]]
        np.testing.assert_allclose(found.components[order].mean_direction, means, atol=0.006)

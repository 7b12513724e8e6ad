"""Test mixtures of von Mises-Fisher distributions: draws, densities, moments and fits, against NumPy and movMF."""

import jax
import numpy as np
import pytest
from scipy import optimize, special, stats

from jax_von_mises import Mixture, VonMises, VonMisesFisher
from tests import children

more = pytest.mark.more
# Some of these fits stop at a limit, which tests of fits on the circle cover.
pytestmark = pytest.mark.filterwarnings("ignore:Mixture.fit. the(re are fewer| concentration of)")
MEANS = np.float32([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, -1.0]])
TRUTH = Mixture(probs=[0.3, 0.5, 0.2], components=VonMisesFisher(MEANS, np.float32([20.0, 60.0, 4.0])))


# Expenses of 40 persons for housing, food and service.
HOUSEHOLD = children.ROOT / "docs" / "examples" / "household.csv"


def clusters(means, concentrations, sizes):
    """Return directions around means, as float32; NumPy and SciPy compile nothing."""
    rng = np.random.default_rng(len(means[0]))
    each = [
        stats.vonmises_fisher(mean / np.linalg.norm(mean), k).rvs(size, random_state=rng)
        for mean, k, size in zip(np.asarray(means, float), concentrations, sizes, strict=True)
    ]
    return np.concatenate(each).astype(np.float32)


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


CASES = [
    (3, False),
    (5, True),
    *(pytest.param(d, tied, marks=more) for d, tied in ((2, False), (2, True), (40, False))),
]


@pytest.mark.parametrize(("d", "tied"), CASES)
def test_against_reference(d, tied):
    """From the same start, 30 steps of the float64 reference give the same mixture; the samples have weights."""
    generator = np.random.default_rng(d)
    x = clusters(generator.normal(size=(3, d)), [3 * d, 6 * d, 9 * d], [140, 210, 350])
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


@more
@pytest.mark.parametrize("tied", [False, True])
def test_likelihood_never_falls(tied):
    x = clusters(MEANS, [20, 60, 4], [150, 250, 100])
    found, values = Mixture.fit(x, VonMisesFisher, number=4, starts=1, steps=1, tied=tied), []
    for _ in range(25):
        found = Mixture.fit(x, found, steps=1, tolerance=-1.0, tied=tied)
        values.append(float(found.log_prob(x).mean()))
    assert np.diff(values).min() > -2e-6
    if tied:
        assert np.ptp(found.components.concentration) == 0


@more
def test_finds_the_truth(key):
    x = TRUTH.sample(key, (20_000,))
    found = Mixture.fit(x, VonMisesFisher, number=3)
    order = np.argmax(np.asarray(found.components.mean_direction) @ MEANS.T, 0)
    np.testing.assert_allclose(found.probs[order], TRUTH.probs, atol=0.02)
    np.testing.assert_allclose(found.components[order].mode(), MEANS, atol=0.05)
    np.testing.assert_allclose(found.components[order].concentration, TRUTH.components.concentration, rtol=0.1)
    assert float(found.log_prob(x).mean()) > float(TRUTH.log_prob(x).mean())


@pytest.mark.slow
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


@more
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


@more
def test_weights_batches_and_samples_that_cannot_be_fitted():
    x = np.random.default_rng(0).permutation(clusters(MEANS, [20, 60, 4], [240, 400, 160])).reshape(2, 400, 3)
    both = Mixture.fit(x, TRUTH, axis=1, steps=5, tolerance=-1.0)
    assert both.batch_shape == (2,)
    one = Mixture.fit(x[1], TRUTH, steps=5, tolerance=-1.0)
    np.testing.assert_allclose(both[1].components.concentration, one.components.concentration, rtol=1e-5)
    padded = np.concatenate([x[1], np.zeros((7, 3), np.float32)])
    ignored = Mixture.fit(padded, TRUTH, np.float32(np.arange(407) < 400), steps=5, tolerance=-1.0)
    np.testing.assert_allclose(ignored.components.concentration, one.components.concentration, rtol=1e-5)
    capped = Mixture.fit(np.eye(3, dtype=np.float32), VonMisesFisher, number=3, largest_concentration=123.0)
    np.testing.assert_allclose(capped.components.concentration, 123.0)


@more
@pytest.mark.parametrize("tied", [False, True])
def test_largest_concentration(tied):
    """No component exceeds it, in many dimensions not the default either; a start above it is fitted."""
    x = clusters(MEANS, [20, 60, 4], [90, 150, 60])
    start = Mixture(probs=[0.1, 0.1, 0.8], components=TRUTH.components)
    for found in (
        Mixture.fit(x, VonMisesFisher, number=3, starts=2, steps=20, largest_concentration=3.0, tied=tied),
        Mixture.fit(x, start, steps=20, largest_concentration=3.0, tied=tied),
    ):
        assert np.max(found.components.concentration) <= 3
        assert np.abs(np.asarray(found.probs) - np.asarray(start.probs)).max() > 0.01
    many = Mixture.fit(np.eye(400, dtype=np.float32)[:5], VonMisesFisher, number=5, starts=1, steps=3, tied=tied)
    assert np.max(many.components.concentration) <= 1e4


@jax.jit
def evaluated(mixture, x):
    """Return log densities and shares at directions, and the slopes of the first density."""
    slopes = jax.grad(lambda mixture: mixture.log_prob(x[0]))(mixture)
    return mixture.log_prob(x), mixture.responsibilities(x), slopes


def test_densities_and_shares():
    """Those of TRUTH are sums over the components in float64, and so is the gradient of the log density."""
    x = clusters(MEANS, [20, 60, 4], [3, 3, 2])
    log_prob, shares, slope = jax.tree.map(np.asarray, evaluated(TRUTH, x))
    k, weights = np.array([20.0, 60.0, 4.0]), np.array([0.3, 0.5, 0.2])
    joint = np.log(weights) + log_density(x.astype(float), MEANS.astype(float), k)
    exact = special.logsumexp(joint, axis=1)
    np.testing.assert_allclose(log_prob, exact, atol=2e-5)
    expected = np.exp(joint - exact[:, None])
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    lengths = special.ive(1.5, k) / special.ive(0.5, k)
    np.testing.assert_allclose(slope.logits, expected[0] - weights, atol=1e-5)
    np.testing.assert_allclose(slope.components.concentration, expected[0] * (MEANS @ x[0] - lengths), atol=1e-5)


density_at = jax.jit(jax.value_and_grad(lambda x, mixture: mixture.log_prob(x)))


@pytest.mark.parametrize("number", [pytest.param(3, marks=more), 20])
def test_a_component_of_weight_zero_may_be_nan(number):
    """It changes neither densities, moments nor their derivatives, also where 20 densities are one product."""
    x, rest = np.float32([0.6, 0.0, 0.8]), number - 3
    means = np.concatenate([MEANS, np.full((rest + 1, 3), np.nan)]).astype(np.float32)
    k = np.r_[20, 60, 4, np.full(rest + 1, np.nan)].astype(np.float32)
    mixture = Mixture(probs=np.r_[0.3, 0.5, 0.2, np.zeros(rest + 1)], components=VonMisesFisher(means, k))
    (value, slope), (value_wanted, slope_wanted) = density_at(x, mixture), density_at(x, TRUTH)
    np.testing.assert_allclose(value, value_wanted, rtol=1e-5)
    np.testing.assert_allclose(slope, slope_wanted, rtol=1e-4, atol=1e-5)
    if number == 3:
        np.testing.assert_allclose(mixture.responsibilities(x)[:3], TRUTH.responsibilities(x), rtol=1e-5)
        for name in ("mean", "mean_resultant_length", "variance"):
            np.testing.assert_allclose(getattr(mixture, name)(), getattr(TRUTH, name)(), rtol=1e-5, atol=1e-6)


def test_refusals():
    x = np.ones((10, 3), np.float32)
    bad = np.ones((4, 400, 3), np.float32)
    bad[1, 3], bad[2, 5, 1] = 0, np.nan
    with pytest.raises(
        ValueError, match=r"2 of 1600 samples .* zero vector.* indices \[1, 3\], \[2, 5\]; the first is"
    ):
        Mixture.fit(bad, VonMisesFisher, number=2, axis=1, starts=1)
    for samples, message in ((np.float32(1.0), r"samples has shape \(\)"), (np.ones((3, 1)), r"must be 2 or more")):
        with pytest.raises(ValueError, match=message):
            Mixture.fit(samples, VonMisesFisher, number=2)
    with pytest.raises(ValueError, match=r"samples has shape \(10, 2\), but .* have 3 components"):
        Mixture.fit(x[:, :2], TRUTH)
    with pytest.raises(AttributeError, match=r"Mixture has no cdf: points of several dimensions have no order"):
        TRUTH.cdf(0.5)
    with pytest.raises(TypeError, match=r"tied=1 must be"):
        Mixture.fit(x, TRUTH, tied=1)


@pytest.mark.parametrize(
    ("number", "value"),
    [pytest.param(1, 90.24785164, marks=more), pytest.param(2, 113.07926763, marks=more), (3, 126.06333539)],
)
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

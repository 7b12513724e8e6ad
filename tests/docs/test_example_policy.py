"""Test the claims of the angle policy example on less data than its page uses."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import integrate, special, stats

pytestmark = pytest.mark.slow

# The probability that a correct estimator fails any of the comparisons of a test. Keys are fixed, so repeated runs
# agree, and such a failure can appear only if the stream changes.
FALSE_ALARM = 1e-6

ESTIMATORS = ("pathwise", "score function, baseline", "score function")


def standard_errors(comparisons):
    """Return the largest allowed deviation, in standard errors, of each of `comparisons` means."""
    return stats.norm.isf(FALSE_ALARM / (2 * comparisons))


@pytest.fixture(scope="module")
def angle_policy():
    """Return the example's script as a module."""
    pytest.importorskip("optax", reason="optax is not installed (extra `examples`)")
    return importlib.import_module("docs.examples.angle_policy")


@pytest.fixture(scope="module")
def weights(angle_policy):
    """Return a network whose distributions differ between states, from wide to narrow."""
    params = angle_policy.init(random.key(11))
    weight, bias = params[-1]
    return [*params[:-1], (weight, bias + jnp.array([0.0, 0.0, 1.5]))]


def test_angle_policy_s_optimum_is_the_normaliser(angle_policy):
    """The best density is exp(reward / temperature) / Z, and the optimum is the temperature times log Z."""
    state = jnp.array([0.7, -1.9])
    temperature = angle_policy.TEMPERATURE
    heading = np.linspace(-np.pi, np.pi, 2001)
    exponent = (np.cos(heading - 0.7) + angle_policy.WIND * np.cos(heading + 1.9)) / temperature
    log_normaliser = exponent.max() + np.log(integrate.trapezoid(np.exp(exponent - exponent.max()), heading))
    distribution = angle_policy.best_distribution(state)
    # The log-density falls to -90, which float32 resolves to 4e-6.
    density = distribution.prob(jnp.asarray(heading, jnp.float32))
    np.testing.assert_allclose(density, np.exp(exponent - log_normaliser), rtol=5e-5, atol=1e-30)
    assert float(angle_policy.objective(distribution, state)) == pytest.approx(temperature * log_normaliser, rel=1e-6)


def test_angle_policy_s_gap_is_the_distance_from_the_optimum(angle_policy, weights):
    states = angle_policy.grid_states(8)

    @jax.jit
    def both_ways(weights):
        distribution = angle_policy.policies(weights, states)
        optimum = angle_policy.objective(angle_policy.best_distribution(states), states)
        return angle_policy.gap(distribution, states), optimum - angle_policy.objective(distribution, states)

    gap, difference = both_ways(weights)
    assert float(gap) == pytest.approx(float(difference), rel=1e-5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_angle_policy_s_derivatives_are_unbiased(angle_policy, key, name):
    """Derivatives of the mean reward with respect to loc and concentration have the mean of the closed form."""
    concentrations, size = (0.3, 4.0, 60.0), 2**17
    allowed = standard_errors(2 * len(ESTIMATORS) * len(concentrations))
    height, offset = 1 + angle_policy.WIND, 0.5
    for k in concentrations:
        derivatives = angle_policy.one_draw_derivatives(
            key, jnp.float32(k), jnp.float32(offset), angle_policy.ESTIMATORS[name], size
        )
        ratio = special.ive(1, k) / special.ive(0, k)
        exact = -height * ratio * np.sin(offset), height * (1 - ratio**2 - ratio / k) * np.cos(offset)
        for draws, expected in zip(derivatives, exact, strict=True):
            draws = np.asarray(draws, np.float64)
            assert abs(draws.mean() - expected) <= allowed * draws.std() / np.sqrt(size)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_angle_policy_s_gradient_is_unbiased(angle_policy, weights, key, name):
    """The gradient with respect to the weights is unbiased, along the exact gradient and a random direction."""
    states = angle_policy.random_states(random.key(12), 32)
    exact = np.asarray(angle_policy.exact_gradient(weights, states), np.float64)
    sampled = angle_policy.gradients(key, weights, states, angle_policy.ESTIMATORS[name], 512)
    sampled = np.asarray(sampled, np.float64)
    for direction in (exact, np.random.default_rng(13).normal(size=exact.size)):
        lengths = sampled @ direction
        error = lengths.std(ddof=1) / np.sqrt(len(lengths))
        assert abs(lengths.mean() - exact @ direction) <= standard_errors(2 * len(ESTIMATORS)) * error


def test_angle_policy_s_pathwise_gradient_varies_least(angle_policy, weights, key):
    """The pathwise gradient has the smallest variance at these weights, even compared with the best baseline."""
    states = angle_policy.random_states(random.key(12), 32)
    pathwise, baseline, plain = (
        angle_policy.total_variance(angle_policy.gradients(key, weights, states, angle_policy.ESTIMATORS[name], 512))
        for name in ESTIMATORS
    )
    assert pathwise < baseline / 2 < plain / 4


def test_angle_policy_s_variances_follow_the_distribution(angle_policy, key):
    """Variances of derivatives with respect to loc equal integrals; their order reverses near concentration 1."""
    concentrations = np.array([0.5, 8.0, 128.0])
    height = 1 + angle_policy.WIND
    x = np.linspace(-np.pi, np.pi, 4096, endpoint=False)
    variances = {}
    for name in ESTIMATORS:
        variances[name] = angle_policy.variances(key, angle_policy.ESTIMATORS[name], concentrations)
        for offset, row in zip(angle_policy.OFFSETS, variances[name], strict=True):
            for k, variance in zip(concentrations, row, strict=True):
                density = np.exp(k * (np.cos(x) - 1))
                density /= density.sum()
                rewards = height * np.cos(x + offset)
                baseline = density @ rewards if name.endswith("baseline") else 0.0
                value = k * np.sin(x) * (rewards - baseline)
                if name == "pathwise":
                    value = -height * np.sin(x + offset)
                # With 2^17 draws, the standard error of a variance is 0.4% for normal values, and 2.3% for values
                # proportional to x^3 - x with a normal x, as with the baseline at offset 0.
                assert variance == pytest.approx(density @ value**2 - (density @ value) ** 2, rel=0.06)
    assert (variances["pathwise"][:, 0] > variances["score function"][:, 0]).all()
    assert (variances["pathwise"][:, 1:] < variances["score function, baseline"][:, 1:]).all()
    assert variances["score function, baseline"][0, 2] / variances["pathwise"][0, 2] > 50


def test_angle_policy_learns(angle_policy):
    """Sixty steps with pathwise gradients close nine tenths of the gap."""
    # optax itself relies on implicit promotion.
    with jax.numpy_dtype_promotion("standard"):
        history = angle_policy.train(random.key(14), angle_policy.pathwise, 0.01, steps=60, every=30)
    first, second, last = np.asarray(angle_policy.gaps(history))
    assert last < second < first
    assert last < 0.1 * first

"""The claims of the example of a policy, on less data than its page shows."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import integrate, special, stats

pytestmark = pytest.mark.slow

# A correct estimator fails a test of its mean this rarely, all comparisons of that test together. Keys are fixed, so a
# run never differs from the last; the rate tells what a change of the stream would risk.
FALSE_ALARM = 1e-6

ESTIMATORS = ("pathwise", "score function, baseline", "score function")


def standard_errors(comparisons):
    """How far from its expectation the largest of so many normal numbers may be."""
    return stats.norm.isf(FALSE_ALARM / (2 * comparisons))


@pytest.fixture(scope="module")
def angle_policy():
    """The script as a module; it is no part of the package and needs optax."""
    pytest.importorskip("optax", reason="the example of a policy trains with optax")
    return importlib.import_module("docs.examples.angle_policy")


@pytest.fixture(scope="module")
def weights(angle_policy):
    """A network whose distributions differ from state to state, from spread out to narrow."""
    params = angle_policy.init(random.key(11))
    weight, bias = params[-1]
    return [*params[:-1], (weight, bias + jnp.array([0.0, 0.0, 1.5]))]


def test_angle_policy_s_optimum_is_the_normaliser(angle_policy):
    """The best density is exp(reward / temperature) over its integral; the optimum is the temperature times its log."""
    state = jnp.array([0.7, -1.9])
    temperature = angle_policy.TEMPERATURE
    heading = np.linspace(-np.pi, np.pi, 2001)
    exponent = (np.cos(heading - 0.7) + angle_policy.WIND * np.cos(heading + 1.9)) / temperature
    log_normaliser = exponent.max() + np.log(integrate.trapezoid(np.exp(exponent - exponent.max()), heading))
    distribution = angle_policy.best_distribution(state)
    # The exponent falls to -90, where float32 leaves 4e-6 of it.
    density = distribution.prob(jnp.asarray(heading, jnp.float32))
    np.testing.assert_allclose(density, np.exp(exponent - log_normaliser), rtol=5e-5, atol=1e-30)
    assert float(angle_policy.objective(distribution, state)) == pytest.approx(temperature * log_normaliser, rel=1e-6)


def test_angle_policy_s_gap_is_what_the_optimum_lacks(angle_policy, weights):
    states = angle_policy.grid_states(8)

    @jax.jit
    def both_ways(weights):
        distribution = angle_policy.policies(weights, states)
        optimum = angle_policy.objective(angle_policy.best_distribution(states), states)
        return angle_policy.gap(distribution, states), optimum - angle_policy.objective(distribution, states)

    gap, lacking = both_ways(weights)
    assert float(gap) == pytest.approx(float(lacking), rel=1e-5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_angle_policy_s_derivatives_are_unbiased(angle_policy, key, name):
    """In loc and concentration of one distribution, against the closed form of the mean reward."""
    concentrations, size = (0.3, 4.0, 60.0), 2**17
    allowed = standard_errors(2 * len(ESTIMATORS) * len(concentrations))
    height, offset = 1 + angle_policy.WIND, 0.5
    for k in concentrations:
        found = angle_policy.one_draw_derivatives(
            key, jnp.float32(k), jnp.float32(offset), angle_policy.ESTIMATORS[name], size
        )
        ratio = special.ive(1, k) / special.ive(0, k)
        exact = -height * ratio * np.sin(offset), height * (1 - ratio**2 - ratio / k) * np.cos(offset)
        for draws, expected in zip(found, exact, strict=True):
            draws = np.asarray(draws, np.float64)
            assert abs(draws.mean() - expected) <= allowed * draws.std() / np.sqrt(size)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_angle_policy_s_gradient_is_unbiased(angle_policy, weights, key, name):
    """Of the network's weights: along the exact gradient, and along a direction that has nothing to do with it."""
    states = angle_policy.random_states(random.key(12), 32)
    exact = np.asarray(angle_policy.exact_gradient(weights, states), np.float64)
    found = angle_policy.gradients(key, weights, states, angle_policy.ESTIMATORS[name], 512)
    found = np.asarray(found, np.float64)
    for direction in (exact, np.random.default_rng(13).normal(size=exact.size)):
        lengths = found @ direction
        error = lengths.std(ddof=1) / np.sqrt(len(lengths))
        assert abs(lengths.mean() - exact @ direction) <= standard_errors(2 * len(ESTIMATORS)) * error


def test_angle_policy_s_pathwise_gradient_varies_least(angle_policy, weights, key):
    """At the network's weights, even against the best baseline there is."""
    states = angle_policy.random_states(random.key(12), 32)
    pathwise, baseline, plain = (
        angle_policy.total_variance(angle_policy.gradients(key, weights, states, angle_policy.ESTIMATORS[name], 512))
        for name in ESTIMATORS
    )
    assert pathwise < baseline / 2 < plain / 4


def test_angle_policy_s_variances_follow_the_distribution(angle_policy, key):
    """Of the derivative in loc, against integrals over the circle; their order turns round near concentration 1."""
    concentrations = np.array([0.5, 8.0, 128.0])
    height = 1 + angle_policy.WIND
    x = np.linspace(-np.pi, np.pi, 4096, endpoint=False)
    found = {}
    for name in ESTIMATORS:
        found[name] = angle_policy.variances(key, angle_policy.ESTIMATORS[name], concentrations)
        for offset, row in zip(angle_policy.OFFSETS, found[name], strict=True):
            for k, variance in zip(concentrations, row, strict=True):
                density = np.exp(k * (np.cos(x) - 1))
                density /= density.sum()
                rewards = height * np.cos(x + offset)
                baseline = density @ rewards if name.endswith("baseline") else 0.0
                value = k * np.sin(x) * (rewards - baseline)
                if name == "pathwise":
                    value = -height * np.sin(x + offset)
                # 2^17 draws: the standard error is 0.3 % for a normal value, 1 % for one with a sixth power in it.
                assert variance == pytest.approx(density @ value**2 - (density @ value) ** 2, rel=0.06)
    assert (found["pathwise"][:, 0] > found["score function"][:, 0]).all()
    assert (found["pathwise"][:, 1:] < found["score function, baseline"][:, 1:]).all()
    assert found["score function, baseline"][0, 2] / found["pathwise"][0, 2] > 50


def test_angle_policy_learns(angle_policy):
    """Sixty steps through the samples close nine tenths of the gap."""
    # optax itself relies on implicit promotion.
    with jax.numpy_dtype_promotion("standard"):
        history = angle_policy.train(random.key(14), angle_policy.pathwise, 0.01, steps=60, every=30)
    first, second, last = np.asarray(angle_policy.gaps(history))
    assert last < second < first
    assert last < 0.1 * first

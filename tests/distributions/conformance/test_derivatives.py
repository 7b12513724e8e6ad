"""Test the derivatives of densities, draws, probabilities and quantiles against differences, in 64-bit mode."""

import functools

import jax
import numpy as np
import pytest

from jax_von_mises.engine.base import of_one_angle
from tests.distributions.conformance.cases import LIGHT, Case, marked
from tests.distributions.conformance.examples import EXAMPLES

STEP = 1e-5
# The others need seconds of compilation more than these.
QUICK = {"VonMises", "VonMisesFisher", "WrappedCauchy", "Cardioid", "WrappedNormal"}
MORE = {"WrappedCauchy", "Cardioid", "CircularDistribution", "IsotropicGaussianSO3"}
KEY = 7


def density_and_draws(one, x, q):
    return {"log_prob": one.log_prob(x), "sample": one.sample(jax.random.key(KEY), (8,))}


def others(one, x, q):
    found = {"entropy": one.entropy()} if hasattr(one, "entropy") else {}
    return found | ({"cdf": one.cdf(x), "icdf": one.icdf(q)} if of_one_angle(one) else {})


@functools.partial(jax.jit, static_argnums=(0, 1))
def derivatives(function, example, arrays, tangents):
    """Return the values of a function, and their derivatives along tangents."""
    return jax.jvp(lambda given, *values: function(example.make(**given), *values), arrays, tangents)


@pytest.mark.parametrize("name", marked(QUICK, LIGHT - {"CircularDistribution"}))
def test_densities_and_draws(name):
    assert_derivatives(name, density_and_draws)


@pytest.mark.parametrize("name", marked((), MORE))
def test_probabilities(name):
    assert_derivatives(name, others)


def assert_derivatives(name, function):
    """Assert that derivatives are those of differences, and can be transposed for reverse mode."""
    example, rng = EXAMPLES[name], np.random.default_rng(0)
    with jax.enable_x64(True):
        case = Case(example, np.float64)
        given = example.parameters(np.float64) if example.batched else example.one(np.float64)
        batch = (3,) if example.batched else ()
        x = case.space.point(rng.uniform(size=(8 * 3, case.space.axes)))[: 8 * (3 if batch else 1)]
        arrays = given, x.reshape(8, *batch, *case.one.event_shape), rng.uniform(0.02, 0.98, (8, *batch))
        tangents = jax.tree.map(lambda leaf: np.asarray(rng.normal(size=np.shape(leaf))), arrays)
        if example.of_vectors:
            tangents[1][...] -= np.sum(tangents[1] * arrays[1], -1, keepdims=True) * arrays[1]
        program = functools.partial(derivatives, function, example)
        _, slopes = jax.tree.map(np.asarray, program(arrays, tangents))
        up, down = (
            jax.tree.map(
                np.asarray, program(jax.tree.map(lambda a, t, s=s: a + s * STEP * t, arrays, tangents), tangents)
            )
            for s in (1, -1)
        )
        backwards = jax.eval_shape(
            lambda given: jax.vjp(lambda given: function(example.make(**given), *arrays[1:]), given)[1](slopes), given
        )
    assert jax.tree.structure(backwards) == jax.tree.structure((given,))
    for result, slope in slopes.items():
        if result == "sample" and name.startswith("SineSkewed"):  # a reflection has no derivative
            assert np.isnan(slope).all()
            continue
        # Right in the mean; see test_natural.py, test_bingham.py and test_matrix_fisher.py.
        if result == "sample" and (name.endswith("from_natural") or "matrix" in example.rules.values()):
            continue
        above, below = up[0][result], down[0][result]
        apart = np.where(above == below, 0, above - np.where(above == below, 0, below))  # also outside of an arc
        if result == "sample" and not example.of_vectors:
            apart = np.remainder(apart + np.pi, 2 * np.pi) - np.pi
        size = 1 + np.abs(slope)
        np.testing.assert_allclose(slope / size, apart / (2 * STEP) / size, atol=1e-6, err_msg=result)

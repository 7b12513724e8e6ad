"""Test sums over the nodes of a rule, and the step to the place where a tail has a given mass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises.numerics import quadrature


def test_long_sums_are_loops_in_float64():
    """Long sums are loops in float64, where copies of the term would compile slowly."""

    def equations(dtype):
        nodes = np.linspace(0.0, 1.0, 32)
        total = lambda x: quadrature.add_terms(lambda node, weight: (weight * jnp.sin(node * x),), nodes, nodes, x)  # noqa: E731
        return str(jax.make_jaxpr(total)(np.ones(3, dtype))).count("sin")

    with jax.enable_x64(True):
        assert equations("float64") == 2
    assert equations("float32") == 32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [quadrature.AT_ONCE, quadrature.AT_ONCE + 1])
@pytest.mark.parametrize("count", [15, 21])
def test_sums_are_the_same_in_a_loop(dtype, size, count):
    """Few elements at once, more in a loop, and one sum: the sums of an odd number of terms are the same.

    In float64, more than 16 terms are always summed in a loop.
    """
    nodes, weights = np.linspace(0.1, 1.3, count).tolist(), np.linspace(2.0, 3.0, count).tolist()
    with jax.enable_x64(True):
        like = jnp.linspace(0.0, 1.0, size, dtype=dtype)
        sums = jax.jit(
            lambda like, loop: quadrature.add_terms(
                lambda node, weight: (weight * jnp.exp(node * like), node + like), nodes, weights, like, loop
            ),
            static_argnums=1,
        )
        x = np.asarray(like, float)[:, None]
        exponentials = np.sum(weights * np.exp(np.multiply(nodes, x)), 1)
        for found in sums(like, True), sums(like, False):
            assert [each.dtype for each in found] == [dtype, dtype]
            np.testing.assert_allclose(found[0], exponentials, rtol=20 * np.finfo(dtype).eps)
            np.testing.assert_allclose(found[1], np.sum(nodes + x, 1), rtol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("bend", [-0.5, 1e-9, 0.5, 1.0])
def test_step_is_exact_for_generalised_pareto_tails(bend):
    """A tail whose mass falls like (1 - bend x)^(1 / bend) begins, with the mass e^-0.3 times that beyond 0, at x."""
    x = (1 - np.exp(-0.3 * bend)) / bend
    step = quadrature.tail_step(jnp.float32(1.0), jnp.float32(0.3), jnp.float32(bend))
    np.testing.assert_allclose(step, x, rtol=1e-3 if bend == 1e-9 else 1e-6)

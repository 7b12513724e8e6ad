"""Test shapes, dtypes and transformations of every method by tracing alone, and that objects behave like values."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises.engine.base import of_one_angle
from tests.distributions.conformance.cases import LIGHT, PLAIN, marked
from tests.distributions.conformance.examples import EXAMPLES, OF_NUMBERS, OF_POINTS, called, methods

# Those whose results have further axes.
SEVERAL = {"responsibilities", "probs", "log_weights", "natural"}


def traced(example, given, name, shape):
    """Return the shapes and dtypes of a method's result."""
    return jax.tree.leaves(jax.eval_shape(lambda given: called(example.make(**given), name, shape), given))


def assert_results(example, given, batch, shape, dtype):
    """Assert that results have the shape of the values and the batch, and the dtype of the parameters."""
    given = {name: jnp.asarray(leaf, dtype) for name, leaf in given.items()}
    one = example.make(**given)
    assert (one.batch_shape, one.dtype) == (batch, dtype)
    for method in methods(one):
        wanted = batch
        if method.startswith("sample"):
            wanted = shape + batch
        elif method in OF_POINTS | OF_NUMBERS:
            wanted = np.broadcast_shapes(shape, batch)
        for leaf in traced(example, given, method, shape):
            assert leaf.shape[: len(wanted)] == wanted, (method, batch, shape)
            exact = of_one_angle(one) or method in OF_POINTS - {"score", "responsibilities"}
            assert leaf.shape == wanted or not exact or method in SEVERAL, (method, leaf.shape)
            dtype = np.promote_types(one.dtype, np.float32) if leaf.dtype.kind == "c" else one.dtype
            assert jnp.zeros((), leaf.dtype).real.dtype == dtype, (method, dtype)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_shapes_and_dtypes(name):
    """Each parameter adds an axis of its own; 64-bit mode does not make results wider."""
    example = EXAMPLES[name]
    given, batch = example.one(), ()
    if example.batched:
        batch = tuple(range(2, 2 + len(given)))
        for i, (parameter, leaf) in enumerate(given.items()):
            lead = tuple(size if i == j else 1 for j, size in enumerate(batch))
            given[parameter] = np.broadcast_to(leaf, lead + leaf.shape)
    with jax.enable_x64(True):
        assert_results(example, given, batch, (2, *[1] * len(batch)), jnp.bfloat16)


@pytest.mark.parametrize("name", marked((), PLAIN & LIGHT - {"WrappedCauchy", "Cardioid"}))
def test_further_shapes_and_dtypes(name):
    """The same for other dtypes, without a batch, with one along a single axis, and with an empty one."""
    example, whole = EXAMPLES[name], EXAMPLES[name].parameters()
    for i, (dtype, x64) in enumerate(((np.float32, True), (jnp.float16, False), (np.float64, True))):
        with jax.enable_x64(x64):
            if not example.batched or i == 0:
                assert_results(example, {each: leaf[0] for each, leaf in whole.items()}, (), (), dtype)
            elif i == 1:
                assert_results(example, whole, (3,), (2, 1), dtype)
            else:
                assert_results(example, {each: leaf[:0] for each, leaf in whole.items()}, (0,), (2, 1), dtype)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_as_values(name):
    """Distributions are pytrees that compare by value and can be pickled, mapped, carried, and made by programs."""
    example = EXAMPLES[name]
    given = example.one()
    one = example.make(**given)
    assert one == example.make(**given)
    for parameter, leaf in given.items():
        assert one != example.make(**given | {parameter: leaf + np.float32(0.01)}), parameter
    assert jax.tree.map(lambda leaf: leaf, one) == one
    if example.batched:
        assert pickle.loads(pickle.dumps(one)) == one
    assert jax.jit(lambda one: one)(one) == jax.tree.map(jnp.asarray, one)
    made = jax.jit(jax.vmap(lambda given: example.make(**given)))(example.parameters())
    if example.batched:
        assert made.batch_shape == (3,)
        whole = example.make(**example.parameters())
        for leaf, wanted in zip(jax.tree.leaves(made[0]), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(leaf, wanted)
        for leaf, wanted in zip(jax.tree.leaves(made), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(leaf, wanted)
    carried, log_probs = jax.eval_shape(
        lambda one, x: jax.lax.scan(lambda one, x: (one, one.log_prob(x)), jax.tree.map(jnp.asarray, one), x),
        one,
        jnp.zeros((8, *one.event_shape), jnp.float32),
    )
    assert jax.tree.structure(carried) == jax.tree.structure(one)
    assert log_probs.shape == (8,)
    mapped = jax.eval_shape(
        jax.vmap(lambda given, key: example.make(**given).sample(key, (4,))),
        example.parameters(),
        jax.random.split(jax.random.key(0), 3),
    )
    assert mapped.shape == (3, 4, *one.event_shape)

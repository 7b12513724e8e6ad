"""Test shapes, dtypes and transformations of every method by tracing alone, and that objects behave like values."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises.distributions.base import Parametric, of_one_angle
from tests.distributions.conformance.cases import PLAIN, marked
from tests.distributions.conformance.examples import EXAMPLES

# Methods of a value of the event's shape, and of a number.
OF_POINTS = {"log_prob", "prob", "responsibilities", "score"}
OF_NUMBERS = {"cdf", "sf", "log_cdf", "log_sf", "survival_function", "log_survival_function", "icdf", "isf", "quantile"}
OF_NUMBERS |= {"interval", "standard_errors", "cosine_cdf", "cosine_icdf", "conditional", "marginal_log_prob"}
OF_ANOTHER = {"kl_divergence", "cross_entropy", "multiply", "convolve"}
# Those that make distributions, or that return no array.
OTHERS = {"fit", "from_natural", "broadcast", "marginal", "tabulate"}


def methods(one):
    """Return the names of the public methods."""
    kind = type(one)
    public = (name for name in dir(kind) if not name.startswith("_") and name not in OTHERS and not name.isupper())
    return [name for name in public if callable(getattr(kind, name)) and hasattr(one, name)]


def called(one, name, shape):
    """Return what a method returns, as arrays, for values of a shape."""
    method = getattr(one, name)
    if name in ("sample", "sample_and_log_prob"):
        found = method(jax.random.key(0), shape)
    elif name in OF_POINTS:
        found = method(jnp.full(shape + one.event_shape, 0.3, one.dtype))
    elif name in OF_NUMBERS:
        found = method(jnp.full(shape, 0.3, one.dtype))
    elif name in OF_ANOTHER:
        found = method(one)
    else:
        found = method(2) if name == "moment" else method()
    return jnp.zeros(found.batch_shape, found.dtype) if isinstance(found, Parametric) else found


def traced(example, given, name, shape):
    """Return the shapes and dtypes of a method's result."""
    return jax.tree.leaves(jax.eval_shape(lambda given: called(example.make(**given), name, shape), given))


def assert_shapes(example, given, batch, shape):
    one = example.make(**given)
    assert one.batch_shape == batch
    for method in methods(one):
        wanted = batch
        if method.startswith("sample"):
            wanted = shape + batch
        elif method in OF_POINTS | OF_NUMBERS:
            wanted = np.broadcast_shapes(shape, batch)
        for leaf in traced(example, given, method, shape):
            assert leaf.shape[: len(wanted)] == wanted, (method, batch, shape)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_shapes(name):
    """A result has the shape of the values and the batch, to which each parameter adds an axis of its own."""
    example = EXAMPLES[name]
    given, batch = example.one(), ()
    if example.batched:
        batch = tuple(range(2, 2 + len(given)))
        for i, (parameter, leaf) in enumerate(given.items()):
            lead = tuple(size if i == j else 1 for j, size in enumerate(batch))
            given[parameter] = np.broadcast_to(leaf, lead + leaf.shape)
    assert_shapes(example, given, batch, (2, *[1] * len(batch)))


@pytest.mark.parametrize("name", marked((), PLAIN))
def test_shapes_of_batches(name):
    """The same without a batch, with one along a single axis, and with an empty one."""
    example, whole = EXAMPLES[name], EXAMPLES[name].parameters()
    assert_shapes(example, example.one(), (), ())
    if example.batched:
        assert_shapes(example, whole, (3,), (2, 1))
        assert_shapes(example, {each: leaf[:0] for each, leaf in whole.items()}, (0,), (2, 1))


def assert_dtypes(example, dtype, x64):
    with jax.enable_x64(x64):
        given = {each: jnp.asarray(leaf, dtype) for each, leaf in example.one().items()}
        for method in methods(example.make(**given)):
            for leaf in traced(example, given, method, ()):
                wide = np.promote_types(dtype, np.float32) if leaf.dtype.kind == "c" else dtype
                assert jnp.zeros((), leaf.dtype).real.dtype == wide, (method, dtype, x64)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_dtypes(name):
    """Results have the dtype of the parameters in 64-bit mode."""
    assert_dtypes(EXAMPLES[name], np.float32, True)


@pytest.mark.parametrize("name", marked((), PLAIN))
def test_further_dtypes(name):
    for dtype, x64 in ((jnp.float16, False), (jnp.bfloat16, True), (np.float64, True)):
        assert_dtypes(EXAMPLES[name], dtype, x64)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_as_values(name):
    """Distributions are pytrees that compare by value and can be pickled, mapped, carried, and made by programs."""
    example = EXAMPLES[name]
    given = example.one()
    one = example.make(**given)
    assert one == example.make(**given)
    assert one != example.make(**{each: leaf + np.float32(0.01) for each, leaf in given.items()})
    assert jax.tree.map(lambda leaf: leaf, one) == one
    if example.batched:
        assert pickle.loads(pickle.dumps(one)) == one
    assert jax.jit(lambda one: one)(one) == jax.tree.map(jnp.asarray, one)
    made = jax.jit(jax.vmap(lambda given: example.make(**given)))(example.parameters())
    if example.batched:
        assert made.batch_shape == (3,)
        assert made[0] == jax.tree.map(jnp.asarray, made[0])
        whole = example.make(**example.parameters())
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


@pytest.mark.parametrize("name", marked(PLAIN))
def test_methods_without_a_meaning(name):
    """Only distributions of one angle have probabilities below a value."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    for method in ("cdf", "log_sf", "icdf", "quantile", "interval", "stddev"):
        assert hasattr(one, method) == of_one_angle(one)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_refusals(name):
    """Wrong types, shapes and names raise, and so do invalid values if they are to be checked."""
    example = EXAMPLES[name]
    one = example.make(**example.one())
    for wrong, error in (
        (lambda: one.sample(3), TypeError),
        (lambda: one.sample(jax.random.key(0), (-1,)), ValueError),
        (lambda: one.sample(jax.random.key(0), method="fast"), ValueError),
        (lambda: one.sample(jax.random.key(0), size=3), TypeError),
        (lambda: one.log_prob("a"), TypeError),
        (lambda: one.log_prob(np.zeros(one.event_shape, np.int32) + 1j), TypeError),
    ):
        with pytest.raises(error):
            wrong()
    if one.event_shape:
        with pytest.raises(ValueError, match="log_prob"):
            one.log_prob(np.ones(one.event_shape[0] + 1, np.float32))
    for parameter in example.rules:
        for value in ("a", np.complex64(1)):
            with pytest.raises(TypeError, match=parameter if example.batched else "parameter"):
                example.make(**example.one() | {parameter: value})


@pytest.mark.parametrize("name", marked(PLAIN))
def test_invalid_values_are_refused_if_checked(name):
    example = EXAMPLES[name]
    if not isinstance(example.make, type) and not name.endswith("from_natural"):
        pytest.skip("made of others, which are checked")
    for parameter in example.rules:
        with pytest.raises(ValueError, match=parameter):
            example.make(**example.invalid(parameter), validate_args=True)

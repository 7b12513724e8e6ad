"""`VonMises` as a pytree, under transformations, and under the method names of other libraries."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises as jvm
from jax_von_mises import VonMises


def test_is_a_frozen_pytree():
    law = VonMises(0.5, jnp.array([1.0, 4.0]))
    leaves, structure = jax.tree.flatten(law)
    assert len(leaves) == 2
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, VonMises)
    assert (again.loc, again.concentration.shape) == (0.5, (2,))
    with pytest.raises(AttributeError):
        law.loc = 1.0
    # JAX puts anything in the place of the leaves while it works on the structure.
    assert jax.tree.map(lambda leaf: None, law).loc is None


def test_argument_and_result_of_transformations():
    law = VonMises(jnp.array([0.1, 0.2]), jnp.array([1.0, 4.0]))
    moved = jax.jit(lambda d: VonMises(d.loc + 1, d.concentration))(law)
    np.testing.assert_allclose(moved.loc, [1.1, 1.2], rtol=1e-6)
    entropies = jax.vmap(lambda d: d.entropy())(law)
    np.testing.assert_allclose(entropies, law.entropy(), rtol=1e-6)

    def step(d, x):
        d = VonMises(d.loc + x, d.concentration)
        return d, d.log_prob(0.0)

    last, steps = jax.lax.scan(step, law, jnp.ones(3))
    np.testing.assert_allclose(last.loc, [3.1, 3.2], rtol=1e-6)
    assert steps.shape == (3, 2)
    slope = jax.grad(lambda d: jnp.sum(d.log_prob(0.3)))(law)
    assert isinstance(slope, VonMises)
    np.testing.assert_allclose(slope.loc, law.concentration * np.sin(0.3 - np.asarray(law.loc)), rtol=1e-5)


@pytest.mark.parametrize(
    ("loc", "concentration", "shape"), [(0.0, 1.0, ()), ([0.0, 1.0], 2.0, (2,)), (0, [[1], [2]], (2, 1))]
)
def test_shapes(loc, concentration, shape, key):
    law = VonMises(loc, concentration)
    assert (law.batch_shape, law.event_shape, law.dtype) == (shape, (), np.float32)
    for value in (law.mean(), law.mode(), law.variance(), law.stddev(), law.entropy(), law.kl_divergence(law)):
        assert (value.shape, value.dtype) == (shape, np.float32)
    for sample_shape in ((), 3, (2, 5)):
        assert law.sample(key, sample_shape).shape == tuple(np.atleast_1d(np.array(sample_shape, int))) + shape
    assert law.log_prob(jnp.zeros((4, *(1,) * len(shape)))).shape == (4, *shape)


def test_methods_are_the_functions(key):
    """Under all names, of SciPy, NumPyro, TFP and distrax."""
    loc, k = 0.4, jnp.array([0.5, 3.0])
    law, other = VonMises(loc, k), VonMises(0.1, 2.0)
    for names, function in {
        ("log_prob",): jvm.log_prob,
        ("prob",): jvm.prob,
        ("cdf",): jvm.cdf,
        ("log_cdf",): jvm.log_cdf,
        ("sf", "survival_function"): jvm.sf,
        ("log_sf", "log_survival_function"): jvm.log_sf,
        ("icdf", "quantile"): jvm.icdf,
        ("isf",): jvm.isf,
    }.items():
        for name in names:
            np.testing.assert_array_equal(getattr(law, name)(0.7), function(0.7, loc, k), err_msg=name)
    np.testing.assert_array_equal(law.kl_divergence(other), jvm.kl_divergence(loc, k, 0.1, 2.0))
    np.testing.assert_allclose(law.cross_entropy(other), law.entropy() + law.kl_divergence(other))
    x = law.sample(seed=key, sample_shape=(5,))
    np.testing.assert_array_equal(x, law.sample(key, (5,)))
    np.testing.assert_array_equal(x, jvm.sample_von_mises(key, loc, k, (5, 2)))
    drawn, logs = law.sample_and_log_prob(seed=key, sample_shape=(5,))
    np.testing.assert_array_equal(drawn, x)
    np.testing.assert_array_equal(logs, law.log_prob(x))


def test_pathwise_gradient_of_samples(key):
    def mean_cosine(law):
        return jnp.mean(jnp.cos(law.sample(key, (100_000,))))

    slope = jax.grad(mean_cosine)(VonMises(0.0, 2.0))
    variance = jax.grad(lambda k: -jvm.variance(k))(2.0)  # A'
    assert float(slope.concentration) == pytest.approx(float(variance), rel=0.03)
    assert float(slope.loc) == pytest.approx(0.0, abs=0.01)


def test_lists_and_tuples_are_arrays():
    for kind in (list, tuple):
        law = VonMises(kind((0.0, 1.0)), kind((1.0, 2.0)))
        assert len(jax.tree.leaves(law)) == 2
        np.testing.assert_array_equal(jax.jit(lambda d: d.entropy())(law), law.entropy())


def test_dtypes(key):
    half = VonMises(jnp.bfloat16(0.5), jnp.bfloat16(2))
    assert half.dtype == jnp.bfloat16
    assert half.sample(key, (3,)).dtype == jnp.bfloat16
    assert half.log_prob(jnp.bfloat16(0.1)).dtype == jnp.bfloat16
    with jax.enable_x64(True):
        wide = VonMises(np.float64(0.5), 2.0)
        assert wide.sample(key, (3,)).dtype == np.float64
        assert wide.variance().dtype == np.float64


def test_validation():
    assert VonMises(0.0, [0.0, np.inf], validate_args=True).batch_shape == (2,)
    for arguments, message in {
        (0.0, -1.0): r"VonMises: concentration is -1, but must be at least 0",
        (0.0, (1.0, np.nan)): r"VonMises: concentration is nan at index \(1,\), but must be",
        (np.inf, 1.0): r"VonMises: loc is inf, but must be finite",
    }.items():
        arguments = [np.asarray(a) for a in arguments]
        with pytest.raises(ValueError, match=message):
            VonMises(*arguments, validate_args=True)
        assert np.isnan(VonMises(*arguments).entropy() + VonMises(*arguments).mean()).any()
    with pytest.raises(ValueError, match=r"VonMises: loc of shape .* do not broadcast"):
        VonMises(np.zeros(2), np.ones(3), validate_args=True)
    with pytest.raises(TypeError, match=r"VonMises: loc must be a real number"):
        VonMises("a", 1.0, validate_args=True)
    # Traced values are not known.
    assert np.isnan(jax.jit(lambda k: VonMises(0.0, k, validate_args=True).entropy())(-1.0))


def test_bad_calls(key):
    law = VonMises(0.0, 1.0)
    for arguments in ({}, {"key": key, "seed": key}):
        with pytest.raises(TypeError, match=r"VonMises.sample: give one random key"):
            law.sample(**arguments)
    with pytest.raises(ValueError, match=r"VonMises.sample: sample_shape=\(-1,\) has a negative size"):
        law.sample(key, -1)


def look_alike(cls):
    """Another class with the fields of `cls`, as a user may register one."""
    names = [field.name for field in dataclasses.fields(cls)]
    made = dataclasses.make_dataclass(cls.__name__, names, frozen=True, eq=False)
    return jax.tree_util.register_dataclass(made, data_fields=tuple(names), meta_fields=())


@pytest.mark.parametrize("cls", [jvm.VonMises, jvm.Torus, jvm.Mixture])
def test_no_other_class_is_taken_for_a_law(cls):
    """JAX looks compiled programs up by the structure of their arguments."""
    other = look_alike(cls)
    children = [1.0] * len(dataclasses.fields(cls))
    mine, theirs = jax.tree.structure(cls(*children)), jax.tree.structure(other(*children))
    assert mine != theirs
    assert jax.tree.structure(jax.tree.unflatten(mine, children)) == mine
    keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(cls(*children))[0]]
    assert [str(key) for (key,) in keys] == [f".{field.name}" for field in dataclasses.fields(cls)]

"""Test `VonMises` as a pytree, under transformations, and with the method names of other libraries."""

import copy
import dataclasses
import functools
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jax_von_mises as jvm
from jax_von_mises import VonMises


def one_of_each():
    components = VonMises(jnp.float32([0.5, 1.0]), np.float32([4.0, 9.0]))
    return [components, jvm.Torus(components), jvm.Mixture(logits=jnp.zeros(2), components=components)]


@pytest.mark.parametrize("distribution", one_of_each(), ids=lambda distribution: type(distribution).__name__)
def test_any_object_can_replace_an_array(distribution):
    leaves, structure = jax.tree.flatten(distribution)
    for function in (
        lambda leaf: leaf.shape,
        lambda leaf: (leaf.shape, leaf.dtype),
        lambda leaf: [leaf],
        lambda leaf: None,
        lambda leaf: "text",
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        lambda leaf: PartitionSpec("data"),
    ):
        tree = jax.tree.map(function, distribution)
        assert type(tree) is type(distribution)
        replaced = structure.flatten_up_to(tree)
        assert [type(leaf) for leaf in replaced] == [type(function(leaf)) for leaf in leaves]
        assert replaced == [function(leaf) for leaf in leaves]
    # Traced arrays and the axes to map over can replace arrays, too.
    pairs = jax.jit(lambda distribution: jax.tree.map(lambda leaf: (leaf, 2 * leaf), distribution))(distribution)
    np.testing.assert_array_equal(jax.tree.leaves(pairs)[1], 2 * leaves[0])
    axes = jax.tree.map(lambda leaf: 0, distribution)
    assert jax.vmap(lambda distribution: jax.tree.leaves(distribution)[0], in_axes=(axes,))(distribution).shape == (2,)
    assert jax.tree.structure(axes) == structure
    for again in (
        copy.copy(distribution),
        copy.deepcopy(distribution),
        pickle.loads(pickle.dumps(distribution)),
        dataclasses.replace(distribution),
    ):
        assert type(again) is type(distribution)
        assert jax.tree.structure(again) == structure
        assert all(map(np.array_equal, jax.tree.leaves(again), leaves))


FUNCTIONS = {
    "log_prob": jvm.log_prob,
    "prob": jvm.prob,
    "cdf": jvm.cdf,
    "log_cdf": jvm.log_cdf,
    "sf": jvm.sf,
    "survival_function": jvm.sf,
    "log_sf": jvm.log_sf,
    "log_survival_function": jvm.log_sf,
    "icdf": jvm.icdf,
    "quantile": jvm.icdf,
    "isf": jvm.isf,
}
QUICK = {"log_prob", "survival_function", "log_survival_function", "quantile"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.more) for name in FUNCTIONS]
)
def test_methods_are_the_functions(name):
    """Methods agree with the functions, also under the names of SciPy, NumPyro, TFP and distrax."""
    # Inside one program, equal expressions are computed once.
    both = jax.jit(lambda loc, k: (getattr(VonMises(loc, k), name)(0.7), FUNCTIONS[name](0.7, loc, k)))
    np.testing.assert_array_equal(*both(np.float32(0.4), np.float32([0.5, 3.0])))


def test_draws_and_divergences_are_the_functions(key):
    @jax.jit
    def both(loc, k):
        distribution, other = VonMises(loc, k), VonMises(0.1, 2.0)
        x = distribution.sample(seed=key, sample_shape=(5,))
        drawn, logs = distribution.sample_and_log_prob(seed=key, sample_shape=(5,))
        divergence = distribution.kl_divergence(other)
        return {
            "kl_divergence": (divergence, jvm.kl_divergence(loc, k, 0.1, 2.0)),
            "cross_entropy": (distribution.cross_entropy(other), distribution.entropy() + divergence),
            "seed": (x, distribution.sample(key, (5,))),
            "sample": (x, jvm.sample_von_mises(key, loc, k, (5, 2))),
            "drawn": (x, drawn),
            "logs": (logs, distribution.log_prob(x)),
            "standard_errors": tuple(map(jnp.stack, (distribution.standard_errors(500), jvm.standard_errors(k, 500)))),
        }

    for name, (found, expected) in both(np.float32(0.4), np.float32([0.5, 3.0])).items():
        np.testing.assert_allclose(found, expected, rtol=1e-7 if name == "cross_entropy" else 0, err_msg=name)


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
    with pytest.raises(ValueError, match=r"VonMises: loc of shape .* do not broadcast"):
        VonMises(np.zeros(2), np.ones(3), validate_args=True)
    with pytest.raises(TypeError, match=r"VonMises: loc must be a real number"):
        VonMises("a", 1.0, validate_args=True)
    # Traced values cannot be checked.
    assert np.isnan(jax.jit(lambda k: VonMises(0.0, k, validate_args=True).entropy())(-1.0))


def test_validate_args_is_no_attribute():
    """It is not stored, so it must not read back as False."""
    distribution = VonMises(np.float32([0.0, 1.0]), 1.0, validate_args=True)
    assert not hasattr(distribution, "validate_args")
    assert dataclasses.replace(distribution, loc=np.float32([0.0, 1.0])) == distribution


def test_a_distribution_in_place_of_a_number():
    """The message names the parameter and the method to use instead."""
    message = r"standard_errors: concentration .* got a VonMises. Give its `concentration`, or call VonMises.stand"
    with pytest.raises(TypeError, match=message):
        jvm.standard_errors(VonMises(0.0, 1.0), 10)
    message = r"got a SineBivariateVonMises. Call SineBivariateVonMises.standard_errors"
    with pytest.raises(TypeError, match=message):
        jvm.standard_errors(jvm.SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.0), 10)


def test_invalid_calls(key):
    distribution = VonMises(0.0, 1.0)
    with pytest.raises(AttributeError):
        distribution.loc = 1.0
    for shape in (7, (7,), [7]):
        with pytest.raises(TypeError, match=r"VonMises.sample: .*7.* was taken for `key`.*sample_shape=.*7"):
            distribution.sample(shape, seed=key)
    with pytest.raises(ValueError, match=r"VonMises.sample: sample_shape=\(-1,\) has a negative size"):
        distribution.sample(key, -1)


# ---------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("distribution", one_of_each(), ids=lambda distribution: type(distribution).__name__)
def test_equal_by_value(distribution):
    again = jax.tree.map(lambda leaf: leaf + 0, distribution)
    other = jax.tree.map(lambda leaf: leaf + 1, distribution)
    assert distribution == again
    assert hash(distribution) == hash(again)
    assert distribution != other
    assert {distribution: 1}[again] == 1
    assert other not in [again]
    assert distribution != jax.tree.leaves(distribution)
    # The same numbers with another dtype or shape give other samples.
    assert distribution != jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), distribution)
    assert distribution != jax.tree.map(lambda leaf: leaf[None], distribution)


def test_equal_parameters():
    assert VonMises(0, 1) == VonMises(0.0, 1.0)
    assert VonMises(-0.0, jnp.zeros(1)) == VonMises(0.0, -jnp.zeros(1))
    assert hash(VonMises(-0.0, jnp.zeros(1))) == hash(VonMises(0.0, -jnp.zeros(1)))
    assert VonMises(0.0, 1.0) != VonMises(0.0, 2.0)
    assert VonMises(0.0, 1.0) != VonMises(0.0, np.float32(1))
    assert VonMises(0.0, jnp.asarray(1.0)) != VonMises(0.0, jnp.float32(1)), "of weak type"
    assert VonMises(0.0, [1.0]) == VonMises(0.0, np.array([1.0]))
    assert VonMises(0.0, 1.0) != jvm.Torus(VonMises(0.0, 1.0))
    # NaN differs from every number, itself included, but a distribution equals itself.
    distribution = VonMises(0.0, np.array([1.0, np.nan]))
    assert distribution == distribution
    assert distribution != VonMises(0.0, np.array([1.0, np.nan]))
    # In a pytree, other objects may stand for arrays.
    assert VonMises(None, 0) == VonMises(None, 0) != VonMises(0, None)
    assert VonMises(PartitionSpec("a"), None) == VonMises(PartitionSpec("a"), None) != VonMises(PartitionSpec(), None)
    assert len({VonMises(None, 0), VonMises(None, 0), VonMises(0, 0)}) == 2


def test_equality_under_transformations():
    distribution, other = VonMises(0.0, jnp.ones(2)), VonMises(0.0, jnp.zeros(2))
    equal = jax.jit(lambda one, two: one == two)
    assert equal(distribution, distribution)
    assert not equal(distribution, other)
    assert not equal(distribution, VonMises(0.0, jnp.ones(3)))
    assert jax.jit(lambda one, two: one != two)(distribution, other)
    assert (distribution != other) is True
    assert (distribution != distribution) is False
    assert jax.vmap(lambda k: VonMises(0.0, k) == VonMises(0.0, 1.0 + k - k))(jnp.ones(2)).all()
    # Comparisons of concrete values give concrete results while others are traced, and so do those that no traced value
    # could satisfy.
    assert (
        jax.jit(
            lambda x: 1.0 if distribution == VonMises(0.0, np.ones(2, np.float32)) and distribution != other else x
        )(3.0)
        == 1
    )
    assert jax.jit(lambda x: 1.0 if distribution == VonMises(x, 1.0) else x)(3.0) == 3
    assert jax.jit(lambda distribution: 1.0 if distribution == distribution else 0.0)(distribution) == 1
    with pytest.raises(TypeError, match="traced parameters has no hash"):
        jax.jit(hash)(distribution)


def test_programs_and_equality():
    """A static argument with an equal value reuses the program; one with another dtype does not."""
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def static(distribution, x):
        traced.append(distribution)
        return distribution.log_prob(x)

    half = jnp.bfloat16(0.5)
    for concentration in (2.0, jnp.float32(2), jnp.bfloat16(2)):
        first, again = (static(VonMises(0.0, concentration + 0), half) for _ in range(2))
        assert first == again
        np.testing.assert_array_equal(first, VonMises(0.0, concentration).log_prob(half))
    assert len(traced) == 3


# ------------------------------------------------------------------------------------ shapes of parameters


@pytest.mark.parametrize("kind", [list, tuple, np.asarray])
def test_parameters_broadcast(kind):
    with pytest.raises(ValueError, match=r"VonMises: loc of shape \(2,\) and concentration of shape \(3,\) do not"):
        VonMises(kind([0, 1]), kind([1, 2, 3]))
    with pytest.raises(ValueError, match="do not broadcast"):
        jax.jit(lambda loc: VonMises(loc, kind([1, 2, 3])))(jnp.zeros(2))
    distribution = VonMises(kind([[0], [1]]), kind([1, 2, 3]))
    assert distribution.batch_shape == (2, 3)
    assert len(jax.tree.leaves(distribution)) == 2


def test_placeholders_are_no_parameters():
    spec = PartitionSpec("data")
    for loc in (None, spec, jax.ShapeDtypeStruct((2,), np.float32), object(), {"a": np.zeros(2)}):
        for concentration in (np.ones(3), None, spec, jax.ShapeDtypeStruct((3,), np.float32)):
            assert VonMises(loc, concentration).loc is loc
    assert VonMises(0, None).loc == 0
    assert VonMises(0, 0) == VonMises(0, 0)


def test_broadcast_for_vmap():
    distribution = VonMises(0.0, jnp.ones(3, jnp.bfloat16))
    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(lambda distribution: distribution.log_prob(0.2))(distribution)
    assert distribution.broadcast().loc.tolist() == [0.0, 0.0, 0.0]
    each = jax.eval_shape(jax.vmap(lambda distribution: distribution.log_prob(0.2)), distribution.broadcast())
    assert (each.shape, each.dtype) == ((3,), jnp.bfloat16)
    assert distribution.broadcast().broadcast() == distribution.broadcast()
    axes = (VonMises(None, 0),)
    mapped = jax.eval_shape(jax.vmap(lambda distribution: distribution.log_prob(0.2), axes), distribution)
    assert (mapped.shape, mapped.dtype) == ((3, 1), jnp.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VonMises(jnp.zeros(2), 1e300).broadcast().concentration.tolist() == [np.inf] * 2


def test_tuples_that_are_no_numbers_stay():
    assert VonMises((), ()).loc == ()
    ragged = (1, (2, 3))
    assert VonMises(ragged, 1.0).loc is ragged
    assert jax.jit(lambda x, y: VonMises((x, y), 1.0).loc)(0.0, 1.0) == (0.0, 1.0)

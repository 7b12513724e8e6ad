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


def test_is_a_frozen_pytree():
    distribution = VonMises(0.5, jnp.array([1.0, 4.0]))
    leaves, structure = jax.tree.flatten(distribution)
    assert len(leaves) == 2
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, VonMises)
    assert (again.loc, again.concentration.shape) == (0.5, (2,))
    with pytest.raises(AttributeError):
        distribution.loc = 1.0
    # JAX puts other objects in place of the leaves while it works on the structure.
    assert jax.tree.map(lambda leaf: None, distribution).loc is None


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


def test_argument_and_result_of_transformations():
    distribution = VonMises(jnp.array([0.1, 0.2]), jnp.array([1.0, 4.0]))
    moved = jax.jit(lambda d: VonMises(d.loc + 1, d.concentration))(distribution)
    np.testing.assert_allclose(moved.loc, [1.1, 1.2], rtol=1e-6)
    entropies = jax.vmap(lambda d: d.entropy())(distribution)
    np.testing.assert_allclose(entropies, distribution.entropy(), rtol=1e-6)

    def step(d, x):
        d = VonMises(d.loc + x, d.concentration)
        return d, d.log_prob(0.0)

    last, steps = jax.lax.scan(step, distribution, jnp.ones(3))
    np.testing.assert_allclose(last.loc, [3.1, 3.2], rtol=1e-6)
    assert steps.shape == (3, 2)
    slope = jax.grad(lambda d: jnp.sum(d.log_prob(0.3)))(distribution)
    assert isinstance(slope, VonMises)
    np.testing.assert_allclose(
        slope.loc, distribution.concentration * np.sin(0.3 - np.asarray(distribution.loc)), rtol=1e-5
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("loc", "concentration", "shape"), [(0.0, 1.0, ()), ([0.0, 1.0], 2.0, (2,)), (0, [[1], [2]], (2, 1))]
)
def test_shapes(loc, concentration, shape, key):
    distribution = VonMises(loc, concentration)
    assert (distribution.batch_shape, distribution.event_shape, distribution.dtype) == (shape, (), np.float32)
    methods = (
        distribution.mean,
        distribution.mode,
        distribution.variance,
        distribution.stddev,
        distribution.entropy,
        lambda: distribution.kl_divergence(distribution),
    )
    for value in (jax.eval_shape(method) for method in methods):
        assert (value.shape, value.dtype) == (shape, np.float32)
    for sample_shape in ((), 3, (2, 5)):
        drawn = jax.eval_shape(lambda sample_shape=sample_shape: distribution.sample(key, sample_shape))
        assert drawn.shape == tuple(np.atleast_1d(np.array(sample_shape, int))) + shape
    assert jax.eval_shape(distribution.log_prob, np.zeros((4, *(1,) * len(shape)))).shape == (4, *shape)


def test_methods_are_the_functions(key):
    """Methods agree with the functions, also under the names of SciPy, NumPyro, TFP and distrax."""
    loc, k = 0.4, jnp.array([0.5, 3.0])
    distribution, other = VonMises(loc, k), VonMises(0.1, 2.0)
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
            np.testing.assert_array_equal(getattr(distribution, name)(0.7), function(0.7, loc, k), err_msg=name)
    np.testing.assert_array_equal(distribution.kl_divergence(other), jvm.kl_divergence(loc, k, 0.1, 2.0))
    np.testing.assert_allclose(
        distribution.cross_entropy(other), distribution.entropy() + distribution.kl_divergence(other)
    )
    x = distribution.sample(seed=key, sample_shape=(5,))
    np.testing.assert_array_equal(x, distribution.sample(key, (5,)))
    np.testing.assert_array_equal(x, jvm.sample_von_mises(key, loc, k, (5, 2)))
    drawn, logs = distribution.sample_and_log_prob(seed=key, sample_shape=(5,))
    np.testing.assert_array_equal(drawn, x)
    np.testing.assert_array_equal(logs, distribution.log_prob(x))


@pytest.mark.slow
def test_pathwise_gradient_of_samples(key):
    def mean_cosine(distribution):
        return jnp.mean(jnp.cos(distribution.sample(key, (100_000,))))

    slope = jax.grad(mean_cosine)(VonMises(0.0, 2.0))
    variance = jax.grad(lambda k: -jvm.variance(k))(2.0)  # A'
    assert float(slope.concentration) == pytest.approx(float(variance), rel=0.03)
    assert float(slope.loc) == pytest.approx(0.0, abs=0.01)


def test_lists_and_tuples_are_arrays():
    for kind in (list, tuple):
        distribution = VonMises(kind((0.0, 1.0)), kind((1.0, 2.0)))
        assert len(jax.tree.leaves(distribution)) == 2
        np.testing.assert_array_equal(jax.jit(lambda d: d.entropy())(distribution), distribution.entropy())


def test_dtypes(key):
    half = VonMises(jnp.bfloat16(0.5), jnp.bfloat16(2))
    assert half.dtype == jnp.bfloat16
    assert jax.eval_shape(lambda: half.sample(key, (3,))).dtype == jnp.bfloat16
    assert jax.eval_shape(half.log_prob, jnp.bfloat16(0.1)).dtype == jnp.bfloat16
    with jax.enable_x64(True):
        wide = VonMises(np.float64(0.5), 2.0)
        assert jax.eval_shape(lambda: wide.sample(key, (3,))).dtype == np.float64
        assert jax.eval_shape(wide.variance).dtype == np.float64


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
    # Traced values cannot be checked.
    assert np.isnan(jax.jit(lambda k: VonMises(0.0, k, validate_args=True).entropy())(-1.0))


@pytest.mark.parametrize("cls", [jvm.VonMises, jvm.VonMisesFisher, jvm.SineBivariateVonMises, jvm.SineSkewed])
def test_validate_args_is_no_attribute(cls):
    """It is not stored, so it must not read back as False."""
    parameters = {
        jvm.SineBivariateVonMises: [0.0, 0.0, 1.0, 1.0, 0.0],
        jvm.SineSkewed: [VonMises(0.0, 1.0), 0.5],
    }.get(cls, [np.float32([0.0, 1.0]), 1.0])
    distribution = cls(*parameters, validate_args=True)
    assert not hasattr(distribution, "validate_args")
    assert not hasattr(jax.tree.map(lambda leaf: leaf, distribution), "validate_args")
    first = dataclasses.fields(cls)[0].name
    assert dataclasses.replace(distribution, **{first: parameters[0]}) == distribution


@pytest.mark.parametrize("bad", ["a", b"a", 1j, np.array(["a"]), np.array([1j]), np.ma.masked_array([1.0], [True])])
def test_types_are_checked_at_construction(bad):
    for make, name in {
        lambda bad: VonMises(0.0, bad): "VonMises: concentration",
        lambda bad: VonMises(bad, np.ones(1)): "VonMises: loc",
        lambda bad: jvm.VonMisesFisher(bad, 1.0): "VonMisesFisher: mean_direction",
        lambda bad: jvm.SineBivariateVonMises(0.0, 0.0, 1.0, bad, 0.0): "SineBivariateVonMises: psi_concentration",
    }.items():
        with pytest.raises(TypeError, match=f"^{name} (must be a real number|is a masked array)"):
            make(bad)


def test_a_distribution_in_place_of_a_number():
    """The message names the parameter and the method to use instead."""
    message = r"standard_errors: concentration .* got a VonMises. Give its `concentration`, or call VonMises.stand"
    with pytest.raises(TypeError, match=message):
        jvm.standard_errors(VonMises(0.0, 1.0), 10)
    message = r"got a SineBivariateVonMises. Call SineBivariateVonMises.standard_errors"
    with pytest.raises(TypeError, match=message):
        jvm.standard_errors(jvm.SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.0), 10)


def test_standard_errors():
    distribution = VonMises(0.5, [1.0, 4.0])
    for ours, theirs in zip(
        distribution.standard_errors(500), jvm.standard_errors(distribution.concentration, 500), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_invalid_calls(key):
    distribution = VonMises(0.0, 1.0)
    for shape in (7, (7,), [7]):
        with pytest.raises(TypeError, match=r"VonMises.sample: .*7.* was taken for `key`.*sample_shape=.*7"):
            distribution.sample(shape, seed=key)
    for arguments in ({}, {"key": key, "seed": key}):
        with pytest.raises(TypeError, match=r"VonMises.sample: give one random key"):
            distribution.sample(**arguments)
    with pytest.raises(ValueError, match=r"VonMises.sample: sample_shape=\(-1,\) has a negative size"):
        distribution.sample(key, -1)


def look_alike(cls):
    """Return another class with the fields of `cls`, such as users may register."""
    names = [field.name for field in dataclasses.fields(cls)]
    look_alike_class = dataclasses.make_dataclass(cls.__name__, names, frozen=True, eq=False)
    return jax.tree_util.register_dataclass(look_alike_class, data_fields=tuple(names), meta_fields=())


@pytest.mark.parametrize("cls", [jvm.VonMises, jvm.Torus, jvm.Mixture])
def test_other_classes_do_not_share_programs(cls):
    """A class with the same fields has another tree structure, by which JAX finds compiled programs."""
    other = look_alike(cls)
    children = {field.name: 1.0 for field in dataclasses.fields(cls)}
    mine, theirs = jax.tree.structure(cls(**children)), jax.tree.structure(other(**children))
    assert mine != theirs
    assert jax.tree.structure(jax.tree.unflatten(mine, children.values())) == mine
    keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(cls(**children))[0]]
    assert [str(key) for (key,) in keys] == [f".{field.name}" for field in dataclasses.fields(cls)]


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

    @jax.jit
    def dynamic(distribution):
        traced.append(distribution)
        return distribution.loc

    traced.clear()
    for loc in (0.0, 0.0, 1.0):
        assert dynamic(VonMises(loc, 2.0)) == loc
    assert len(traced) == 1


# ------------------------------------------------------------------------------------ shapes of parameters


@pytest.mark.parametrize("kind", [list, tuple, np.asarray, jnp.asarray])
def test_parameters_broadcast(kind):
    with pytest.raises(ValueError, match=r"VonMises: loc of shape \(2,\) and concentration of shape \(3,\) do not"):
        VonMises(kind([0, 1]), kind([1, 2, 3]))
    with pytest.raises(ValueError, match="do not broadcast"):
        jax.jit(lambda loc: VonMises(loc, kind([1, 2, 3])))(jnp.zeros(2))
    assert VonMises(kind([[0], [1]]), kind([1, 2, 3])).batch_shape == (2, 3)


def test_placeholders_are_no_parameters():
    spec = PartitionSpec("data")
    for loc in (None, spec, jax.ShapeDtypeStruct((2,), np.float32), object(), {"a": np.zeros(2)}):
        for concentration in (np.ones(3), None, spec, jax.ShapeDtypeStruct((3,), np.float32)):
            assert VonMises(loc, concentration).loc is loc
    assert VonMises(0, None).loc == 0
    assert VonMises(0, 0) == VonMises(0, 0)


@pytest.mark.parametrize("half", [jnp.ones(3, jnp.bfloat16), np.ones(3, np.float16)])
def test_broadcast_for_vmap(half):
    distribution = VonMises(0.0, half)
    with pytest.raises(ValueError, match="vmap"):
        jax.vmap(lambda distribution: distribution.log_prob(0.2))(distribution)
    mapped = jax.vmap(lambda distribution: distribution.log_prob(0.2))(distribution.broadcast())
    assert mapped.dtype == half.dtype
    np.testing.assert_array_equal(mapped, distribution.log_prob(0.2))
    axes = (VonMises(None, 0),)
    np.testing.assert_array_equal(
        jax.vmap(lambda distribution: distribution.log_prob(0.2), axes)(distribution)[:, 0], mapped
    )
    assert distribution.broadcast().broadcast() == distribution.broadcast()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VonMises(jnp.zeros(2), 1e300).broadcast().concentration.tolist() == [np.inf] * 2


def test_unequal_under_transformations():
    one, other = VonMises(jnp.zeros(3), jnp.ones(3)), VonMises(jnp.zeros(3), jnp.full(3, 2.0))
    assert jax.jit(lambda x, y: x != y)(one, other)
    assert not jax.jit(lambda x, y: x != y)(one, one)
    assert (one != other) is True
    assert (one != one) is False


def test_tuples_that_are_no_numbers_stay():
    assert VonMises((), ()).loc == ()
    ragged = (1, (2, 3))
    assert VonMises(ragged, 1.0).loc is ragged
    assert jax.jit(lambda x, y: VonMises((x, y), 1.0).loc)(0.0, 1.0) == (0.0, 1.0)

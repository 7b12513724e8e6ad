"""Test what all distributions share: indexing, the common methods, and the message where one has no meaning."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.spatial.transform import Rotation

import jax_von_mises as jvm
from jax_von_mises import (
    CircularDistribution,
    CosineBivariateVonMises,
    Mixture,
    SineBivariateVonMises,
    SineSkewed,
    Torus,
    VonMises,
    VonMisesFisher,
)
from jax_von_mises.rotations import IsotropicGaussianSO3, MatrixFisher

BATCH = np.float32([[0.5, 1.0, 2.0], [4.0, 8.0, 9.0]])
BATCHES = {
    "VonMises": VonMises(np.float32([0.1, 0.2, 0.3]), BATCH),
    "VonMisesFisher": VonMisesFisher(np.eye(3, 4, dtype=np.float32), BATCH),
    "SineBivariateVonMises": SineBivariateVonMises(0.0, 1.0, 5.0, BATCH, np.float32([[1.0], [2.0]])),
    "CosineBivariateVonMises": CosineBivariateVonMises(0.0, 1.0, 5.0, BATCH, correlation=0.5),
    "Torus": Torus(VonMises(np.zeros((2, 3, 1), np.float32), np.float32([3.0, 4.0]))),
    "Mixture": Mixture(
        logits=np.zeros((3, 2), np.float32), components=VonMises(np.float32([0, 1]), BATCH[..., None] * np.ones(2))
    ),
}
ONE = {
    **{name: batch[1, 2] for name, batch in BATCHES.items()},
    "CircularDistribution": CircularDistribution(lambda x, k: k * jnp.cos(x), 2.0),
    "SineSkewed": SineSkewed(VonMises(0.5, 4.0), 0.3),
}


@pytest.mark.parametrize("index", [0, (1, 2), (slice(None), 1), (..., 0), (None, 1), np.array([1, 0, 1]), BATCH > 1])
@pytest.mark.parametrize("name", BATCHES)
def test_elements_of_the_batch(name, index):
    """An index selects along the axes of the batch, never along those of an event or of components."""
    batch = BATCHES[name]
    part = batch[index]
    assert type(part) is type(batch)
    assert part.batch_shape == np.empty(batch.batch_shape)[index].shape
    assert (part.event_shape, part.dtype) == (batch.event_shape, batch.dtype)
    whole = index if isinstance(index, tuple) else (index,)
    if not any(each is ... for each in whole):
        whole += (...,)
    for leaf, of_all in zip(jax.tree.leaves(part), jax.tree.leaves(batch.broadcast()), strict=True):
        np.testing.assert_array_equal(leaf, np.asarray(of_all)[(*whole, *[slice(None)] * (of_all.ndim - 2))])


@pytest.mark.parametrize("name", BATCHES)
def test_an_index_beyond_the_batch(name):
    with pytest.raises(IndexError):
        BATCHES[name][0, 0, 0]
    with pytest.raises(IndexError, match=f"{name}: a distribution of batch_shape"):
        ONE[name][0]


def test_a_traced_index():
    found = jax.jit(lambda batch, i: batch[0, i].concentration)(BATCHES["VonMises"], 2)
    assert float(found) == BATCH[0, 2]


@pytest.mark.parametrize("name", ["VonMisesFisher", "SineSkewed"])
def test_draws_with_their_densities(name, key):
    one = ONE[name]
    x, log_prob = one.sample_and_log_prob(seed=key, sample_shape=5)
    assert x.shape == (5, *one.event_shape)
    np.testing.assert_array_equal(x, one.sample(key, 5))
    np.testing.assert_allclose(log_prob, one.log_prob(x), rtol=1e-6)
    np.testing.assert_allclose(one.prob(x), np.exp(log_prob), rtol=1e-5)


def test_a_missing_method_has_a_reason():
    with pytest.raises(AttributeError, match=r"VonMisesFisher has no cdf: points .* have no order\. Use log_prob\."):
        ONE["VonMisesFisher"].cdf(0.5)
    with pytest.raises(AttributeError, match="SineBivariateVonMises has no mode: it has no formula here"):
        ONE["SineBivariateVonMises"].mode()
    with pytest.raises(AttributeError, match=r"^SineSkewed has no pdf\. Use prob\.$"):
        ONE["SineSkewed"].pdf(0.5)
    with pytest.raises(AttributeError, match="VonMises has no scale"):
        _ = ONE["VonMises"].scale
    assert not hasattr(ONE["Torus"], "icdf")


def test_an_error_inside_a_property_is_not_hidden():
    class Faulty(VonMises):
        @property
        def event_shape(self):
            return self.concentration.no_such_attribute

    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = Faulty(0.0, np.ones(2)).event_shape


def test_methods_of_one_angle_belong_to_distributions_of_one_angle():
    """What a distribution is follows from the shape of its draws."""
    angles = Mixture(probs=[0.4, 0.6], components=VonMises([0.0, 1.0], 3.0))
    for points in (
        Mixture(probs=[0.4, 0.6], components=VonMisesFisher(np.eye(2, 3), 3.0)),
        Mixture(probs=[0.4, 0.6], components=Torus(VonMises(np.eye(2), 3.0))),
    ):
        for name in ("cdf", "log_sf", "quantile", "interval", "stddev", "entropy", "mode", "moment", "kl_divergence"):
            assert hasattr(angles, name)
            assert not hasattr(points, name), name
        with pytest.raises(TypeError, match=r"(?s)^SineSkewed: distribution=.* must be a distribution of one angle"):
            SineSkewed(points, 0.3)
        with pytest.raises(TypeError, match=r"(?s)^VonMises\.kl_divergence: .* a distribution of one angle"):
            VonMises(0.0, 1.0).kl_divergence(points)
    with pytest.raises(TypeError, match="which is not symmetric"):
        SineSkewed(SineSkewed(angles, 0.3), 0.2)


def test_wrong_arguments_are_told_the_right_ones(key):
    with pytest.raises(TypeError, match=r"^VonMises: .* The arguments are loc, concentration; by name: validate_args"):
        VonMises(mu=0.0, kappa=1.0)
    with pytest.raises(TypeError, match=r"^VonMises: too many positional .*; by name: validate_args"):
        VonMises(0.0, 1.0, True)
    with pytest.raises(TypeError, match=r"^Mixture: too many positional .* are by name: logits, probs, components"):
        Mixture([0.5, 0.5], VonMises([0.0, 1.0], 2.0))
    with pytest.raises(TypeError, match=r"^VonMises\.sample: .* 'size'\. The arguments are key, sample_shape; by name"):
        VonMises(0.0, 1.0).sample(key, size=10)
    with pytest.raises(ValueError, match=r"VonMisesFisher: mean_direction has shape \(\)"):
        VonMisesFisher(1.0, 2.0)
    jax.vmap(lambda one: one.entropy(), in_axes=(VonMisesFisher(0, None),))(VonMisesFisher(np.eye(3), 2.0))
    with pytest.raises(TypeError, match="as_quat"):
        IsotropicGaussianSO3(Rotation.identity(), 0.5)
    assert VonMises(0.0, 1.0).sample_and_log_prob(key, (2,))[1].shape == (2,)


class Quantity(np.ndarray):
    """An array with a unit, as in astropy."""

    unit = "deg"


class Measured:
    """A number with a unit that is no array, as in pint."""

    units = "degree"
    __float__ = __array__ = lambda self, *_: np.array(90.0)


@pytest.mark.parametrize(
    "value", [np.ones(3).view(Quantity), Measured(), [[0.1, Measured()]]], ids=["array", "object", "list"]
)
def test_units_are_refused(value):
    """They would be dropped, and degrees read as radians."""
    for call in (
        lambda: VonMises(value, 1.0),
        lambda: SineSkewed(VonMises(0.0, 1.0), value),
        lambda: Mixture(logits=value, components=VonMises([0.0, 1.0], 1.0)),
        lambda: VonMises.from_natural(value),
        lambda: CircularDistribution(lambda x, k: k * jnp.cos(x), value),
        lambda: VonMises(0.0, 1.0).cdf(value),
        lambda: jvm.log_prob(value, 0.0, 1.0),
        lambda: jvm.fit(value),
        lambda: jvm.sample_von_mises(jax.random.key(0), value, 1.0),
        lambda: jvm.sample_truncated(jax.random.key(0), 0.0, 1.0, -1.0, value),
    ):
        with pytest.raises(TypeError, match=r"has the unit deg.*to_value\(\"rad\"\)"):
            call()


# Each makes a batch of three from one number that differs between members.
MADE_IN_VMAP = {
    "VonMises": lambda x: VonMises(x + jnp.arange(3.0), x),
    "number": lambda x: VonMises(x + jnp.arange(3.0), 2.0),
    "VonMisesFisher": lambda x: VonMisesFisher(jnp.stack([x, x, 1 - x]), x + jnp.arange(3.0)),
    "SineBivariateVonMises": lambda x: SineBivariateVonMises(0.0, x, 5.0, x + jnp.arange(3.0), 1.0),
    "WrappedCauchy": lambda x: jvm.WrappedCauchy(x + jnp.arange(3.0), 0.1 * x),
    "IsotropicGaussianSO3": lambda x: IsotropicGaussianSO3(jnp.stack([x, x, x, 1 - x]), x + jnp.arange(3.0)),
    "MatrixFisher": lambda x: MatrixFisher(x * jnp.arange(27.0).reshape(3, 3, 3)),
    "Torus": lambda x: Torus(VonMises(x + jnp.arange(6.0).reshape(3, 2), x)),
    "Mixture": lambda x: Mixture(logits=jnp.stack([x, -x]), components=VonMises(jnp.arange(6.0).reshape(3, 2), x)),
    "weights": lambda x: Mixture(logits=x * jnp.ones((3, 2)), components=VonMises(jnp.stack([x, -x]), 3.0)),
    "SineSkewed": lambda x: SineSkewed(VonMises(x + jnp.arange(3.0), x), 0.1 * x),
    "skewness": lambda x: SineSkewed(VonMises(x, 2.0), 0.1 * x * jnp.ones(3)),
}


@pytest.mark.parametrize("name", MADE_IN_VMAP)
def test_distributions_that_vmap_returns(name):
    """Each member keeps its own parameters, whatever their ranks."""
    make, values = MADE_IN_VMAP[name], jnp.float32([0.5, 1.0, 2.0])
    made = jax.vmap(make)(values)
    assert made.batch_shape == (3, 3)
    each = [make(value).broadcast() for value in values]
    for leaf, *leaves in zip(*map(jax.tree.leaves, (made.broadcast(), *each)), strict=True):
        np.testing.assert_array_equal(leaf, np.stack(leaves))


# Distributions of one angle, with and without a `loc`.
OF_ONE_ANGLE = {
    "VonMises": (VonMises(2.0, 3.0), 2 - np.pi),
    "natural": (VonMises.from_natural([1.0, 2.0]), np.arctan2(2, 1) - np.pi),
    "WrappedCauchy": (jvm.WrappedCauchy(2.0, 0.5), 2 - np.pi),
    "Cardioid": (jvm.Cardioid(2.0, 0.3), 2 - np.pi),
    "WrappedNormal": (jvm.WrappedNormal(2.0, 0.8), 2 - np.pi),
    "Mixture": (Mixture(probs=[0.3, 0.7], components=VonMises([2.0, -1.0], [3.0, 5.0])), -np.pi),
    "SineSkewed": (SineSkewed(VonMises(2.0, 3.0), 0.5), -np.pi),
    "CircularDistribution": (CircularDistribution(lambda x, k: k * jnp.cos(x - 2), 3.0), -np.pi),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "Cardioid" else pytest.mark.slow) for name in OF_ONE_ANGLE],
)
def test_where_probabilities_are_counted_from(name):
    """They are integrals of the density from `start`, over all turns, and quantiles are their inverses."""
    one, default = OF_ONE_ANGLE[name]
    grid = np.linspace(-25, 25, 500_001)
    density = np.asarray(one.prob(grid.astype(np.float32)), float)
    integral = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(grid))])
    x, q = np.linspace(-9, 9, 37, dtype=np.float32), np.float32([0, 0.001, 0.2, 0.5, 0.9, 0.999, 1])

    @jax.jit
    def evaluated(x, q, inside, **start):
        found = one.cdf(x, **start), one.sf(x, **start), one.icdf(q, **start), one.isf(q, **start)
        return (*found, one.icdf(one.cdf(inside, **start), **start))

    for start in (None, -np.pi, 1.0, 7.5, -9.0):
        origin, options = (default, {}) if start is None else (start, {"start": np.float32(start)})
        inside = origin + np.linspace(0.5, 5.5, 9)
        lower, upper, below, above, back = map(np.asarray, evaluated(x, q, inside.astype(np.float32), **options))

        def exact(x, origin=origin):
            return np.interp(x, grid, integral) - np.interp(origin, grid, integral)

        np.testing.assert_allclose(lower, exact(x), atol=3e-6)
        np.testing.assert_allclose(upper, 1 - exact(x), atol=3e-6)
        np.testing.assert_allclose(exact(below), q, atol=3e-6)
        np.testing.assert_allclose(exact(above), 1 - q, atol=3e-6)
        assert (float(above[-1]), float(below[0])) == (float(below[0]), float(above[-1]))
        for found in (below, above):
            assert ((found >= origin - 1e-6) & (found <= origin + 2 * np.pi + 2e-6)).all()
        np.testing.assert_allclose(back, inside, atol=3e-4)


@pytest.mark.slow
def test_divergences_of_batches():
    p = VonMises(np.float32([0.0, 1.0]), 2.0)
    q = jvm.WrappedNormal(0.5, np.float32([[0.5], [1.0], [2.0]]))
    found = p.kl_divergence(q)
    assert found.shape == (3, 2)
    np.testing.assert_allclose(found[2, 1], VonMises(1.0, 2.0).kl_divergence(jvm.WrappedNormal(0.5, 2.0)), rtol=1e-5)


def test_replaced_parameters():
    """A distribution with a natural parameter has the fields of its class."""
    one = VonMises.from_natural([3.0, 4.0])
    assert type(dataclasses.replace(one, loc=1.0)) is VonMises
    assert dataclasses.replace(one, loc=1.0).concentration == 5.0
    assert dataclasses.replace(VonMises(0.0, 1.0), loc=1.0) == VonMises(1.0, 1.0)


@pytest.mark.parametrize("mass", [0.0, 1e-3, 0.5, 0.95, 1.0])
def test_shortest_arcs(mass):
    """The arc is centred on the mean direction, and has the probability `mass`."""
    one = VonMises(np.float32([3.0, -1.0]), np.float32([0.5, 100.0]))
    low, high = one.interval(mass)
    np.testing.assert_allclose((low + high) / 2, one.loc, atol=1e-6)
    np.testing.assert_allclose(one.cdf(high) - one.cdf(low), mass, atol=2e-6)
    assert np.isnan(one.interval(1.5)[0]).all()


def test_trigonometric_moments():
    """Those of the von Mises distribution are ratios of Bessel functions."""
    k = np.float32([0.0, 0.3, 4.0, 100.0, 1e5])
    for order in (0, 1, 2, 5, 20):
        exact = special.ive(order, k.astype(float)) / special.ive(0, k.astype(float)) * np.exp(0.3j * order)
        np.testing.assert_allclose(VonMises(0.3, k).moment(order), exact, rtol=2e-5, atol=1e-37)
    np.testing.assert_allclose(VonMises(0.3, np.inf).moment(3), np.exp(0.9j), rtol=1e-6)


@pytest.mark.slow
def test_divergence_from_another_class():
    """It is the mean of the difference of the log densities."""
    p, q = VonMises(0.5, 2.0), jvm.WrappedCauchy(1.0, 0.3)
    x = np.linspace(-np.pi, np.pi, 20_001).astype(np.float32)
    for one, other in ((p, q), (q, p)):
        gain = np.trapezoid(np.asarray(one.prob(x)) * np.asarray(one.log_prob(x) - other.log_prob(x)), x)
        np.testing.assert_allclose(one.kl_divergence(other), gain, atol=1e-5)


@pytest.mark.more
def test_lengths_of_means(key):
    """They are those of many draws; 1 minus the length is accurate even for a narrow density."""
    one = VonMises(0.5, np.float32([0.0, 1.0, 1e6]))
    x = np.asarray(one.sample(key, 100_000), float)
    np.testing.assert_allclose(one.mean_resultant_length(), np.abs(np.exp(1j * x).mean(0)), atol=0.01)
    density = CircularDistribution(lambda x, k: k * jnp.cos(x), np.float32(1e6))
    assert float(density.variance()) == pytest.approx(float(one.variance()[2]), rel=1e-5)
    assert float(density.stddev()) == pytest.approx(1e-3, rel=1e-4)

"""Test the NumPyro distributions against the classes of the package, and in inference with a known answer."""

import functools
import inspect
import itertools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import special, stats
from scipy.spatial.transform import Rotation

numpyro = pytest.importorskip("numpyro", reason="NumPyro is not installed")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.diagnostics import effective_sample_size  # noqa: E402
from numpyro.distributions import constraints, kl_divergence  # noqa: E402
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over  # noqa: E402
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO  # noqa: E402
from numpyro.infer.autoguide import AutoNormal  # noqa: E402
from numpyro.infer.reparam import CircularReparam  # noqa: E402
from numpyro.infer.util import log_density as log_density_of  # noqa: E402

import jax_von_mises as jvm  # noqa: E402
from jax_von_mises import (  # noqa: E402
    Bingham,
    CircularDistribution,
    Kent,
    Mixture,
    ProjectedNormal,
    SineSkewed,
    Torus,
    rotations,
)
from jax_von_mises import numpyro as module  # noqa: E402
from jax_von_mises.engine import base  # noqa: E402
from jax_von_mises.numpyro import (  # noqa: E402
    OfDistribution,
    SineBivariateVonMises,
    VonMises,
    VonMisesFisher,
    WrappedNormal,
)
from tests import reference  # noqa: E402
from tests.distributions.conformance.examples import EXAMPLES, VALUES, public_classes  # noqa: E402

more, slow = pytest.mark.more, pytest.mark.slow
# Locations on both sides of 0, near and at the end of the support, and full turns away.
LOCS = np.float32([0.0, 0.5, -3.1, math.pi, 7.0, -100.0])[:, None]
CONCENTRATIONS = np.float32([0.0, 0.3, 2.0, 50.0])
# Error of a float32 probability: that of the angle, 2^-21 for sums near 2 pi, times the largest density here, 2.8.
PROBABILITY_ERROR = 1.5e-6
CLASSES = [*module.MADE.values()]
OF_ONE_ANGLE = [cls for cls in CLASSES if cls.support is constraints.circular and hasattr(cls.OF, "kl_divergence")]
MARKS = {VonMises: (), VonMisesFisher: ()} | dict.fromkeys(OF_ONE_ANGLE[:1], more)
each_class = pytest.mark.parametrize("cls", [pytest.param(cls, marks=MARKS.get(cls, slow)) for cls in CLASSES])


def parameters(cls, *elements):
    """Return the parameters of the elements of the batch of the class's example, with vectors of length 1."""
    example, found = EXAMPLES[cls.__name__], {}
    for name, x in example.parameters().items():
        length = np.linalg.norm(x, axis=-1, keepdims=True) if x.ndim > 1 else np.float32(1)
        found[name] = (x / length)[elements[0] if len(elements) == 1 else list(elements)]
    return found


def circle(count=4096):
    """Return angles for the trapezoidal rule, which is exact to rounding for smooth functions on the circle."""
    return np.linspace(-np.pi, np.pi, count, endpoint=False)


def tilted(x, a):
    return a * jnp.cos(x)


def log_density(x, loc, k):
    return k * (np.cos(x - loc) - 1) - np.log(2 * np.pi * special.i0e(k))


def probability(x, loc, k):
    """Return P(-pi < X < x) in float64, from the reference's tails; `x` and `loc` may be any angles."""

    def counted(difference):
        turns = np.round(difference / (2 * np.pi))
        difference = difference - 2 * np.pi * turns
        tail = reference.sf(np.abs(difference), k)
        return turns + np.where(difference > 0, 1 - tail, tail)

    return counted(np.asarray(x, float) - loc) - counted(-np.pi - loc)


# ------------------------------------------------------------------------------------------------- interface


def test_declarations():
    distribution = VonMises(0.0, 1.0)
    assert distribution.support is constraints.circular
    assert distribution.arg_constraints.keys() == {"loc", "concentration"}
    assert not distribution.is_discrete
    assert distribution.event_shape == ()
    assert VonMises.infer_shapes((2, 1), (3,)) == ((2, 3), ())


def test_each_class_has_one():
    assert set(module.MADE) == {of.__name__ for of in public_classes()} == {cls.OF.__name__ for cls in CLASSES}
    assert set(module.__all__) == {"OfDistribution", *module.MADE}
    # A new rule for parameters needs NumPyro's name for it.
    assert module.CONSTRAINTS.keys() == base.RULES.keys()


@pytest.mark.parametrize("cls", CLASSES)
def test_class(cls):
    """Constructor, docstring, members and support follow from the class of the package, and instances are pickled."""
    ours, theirs = (inspect.signature(each).parameters for each in (cls, cls.OF))
    assert list(ours) == list(theirs)
    for one, other in zip(ours.values(), theirs.values(), strict=True):
        assert one.kind is other.kind
        assert one.default is (None if one.name == "validate_args" or other.default is ... else other.default)
    for text in (*ours, cls.OF.__doc__.splitlines()[0], "NumPyro"):
        assert text in cls.__doc__
    assert cls.__doc__.count("Parameters\n-----") == cls.__doc__.count("validate_args :") == 1
    for name in ("mean", "mode", "variance", "entropy", "cdf", "icdf"):
        assert (name in vars(cls)) == hasattr(cls.OF, name)
    distribution = cls(**parameters(cls, 0), validate_args=True)
    assert isinstance(distribution, dist.Distribution)
    assert distribution.support.event_dim == len(distribution.event_shape)
    assert cls(*parameters(cls, 0).values()).batch_shape == ()
    copied = pickle.loads(pickle.dumps(distribution))
    assert type(copied) is cls
    assert jax.tree.structure(copied) == jax.tree.structure(distribution)
    batch = jax.vmap(lambda given: cls(**given))(parameters(cls, 0, 1))
    assert promote_batch_shape(batch).batch_shape == (2,)
    axes = vmap_over(batch, **dict.fromkeys(cls.arg_constraints, 0))
    draw = jax.vmap(lambda one: one.sample(random.key(0)), (axes,))
    assert jax.eval_shape(draw, batch).shape == (2, *distribution.event_shape)
    with pytest.raises(TypeError, match=f"{cls.__name__}: missing a required argument: .* The arguments are "):
        cls()
    if not hasattr(cls.OF, "kl_divergence"):
        with pytest.raises(NotImplementedError):
            kl_divergence(distribution, distribution)


@each_class
def test_results_are_those_of_the_package(cls, key):
    """Draws, densities and summaries of a batch, and shapes and values of larger ones."""
    # The last parameter alone has a batch.
    last = list(parameters(cls, 0))[-1]
    given = parameters(cls, 0) | {last: parameters(cls, 0, 1)[last]}
    one, other = cls(**given), cls.OF(**given)
    second = parameters(cls, 1)
    event = other.event_shape
    assert (one.batch_shape, one.event_shape) == ((2,), event)
    assert len(jax.tree.leaves(one)) == len(given)
    assert one.has_rsample
    assert one.reparametrized_params == list(one.arg_constraints)

    @jax.jit
    def evaluated(one, other):
        found, wanted = (
            {"draws": x, "log_prob": each.log_prob(x)}
            for each, x in ((one, one.sample(key, (8,))), (other, other.sample(key, (8,))))
        )
        for name in ("mean", "mode", "variance", "entropy"):
            if hasattr(other, name):
                result = getattr(one, name)
                found[name], wanted[name] = result() if callable(result) else result, getattr(other, name)()
        if hasattr(other, "kl_divergence") and event:  # for one angle, see test_kl_divergence_of_other_angles
            found["kl"], wanted["kl"] = kl_divergence(one, cls(**second)), other.kl_divergence(cls.OF(**second))
        wide = one.expand((3, 2))
        return found, wanted, wide.sample(key, (8,)), wide.log_prob(found["draws"][:, None])

    found, wanted, wide, log_prob = evaluated(one, other)
    for name, value in found.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, wanted[name], err_msg=name)
    assert one.support(found["draws"]).all()
    assert wide.shape == (8, 3, 2, *event)
    assert len(np.unique(wide)) == wide.size
    np.testing.assert_allclose(log_prob, np.repeat(wanted["log_prob"][:, None], 3, 1), rtol=1e-6, atol=1e-6)


def test_expand():
    distribution = VonMises(np.float32([0.0, 1.0]), 2.0)
    assert kl_divergence(distribution.expand((3, 2)), VonMises(0.0, 1.0)).shape == (3, 2)
    assert distribution.expand((3, 2)).mean.shape == (3, 2)
    assert distribution.expand_by((5,)).batch_shape == (5, 2)
    assert distribution.to_event(1).event_shape == (2,)
    assert distribution.to_event(1).log_prob(np.zeros((4, 3, 2), np.float32)).shape == (4, 3)


@pytest.mark.parametrize(
    "kind", [SineBivariateVonMises.OF, pytest.param(dist.SineBivariateVonMises, marks=more)], ids=["ours", "theirs"]
)
def test_pairs_with_a_weighted_correlation(kind):
    pair = SineBivariateVonMises(0.5, -1.0, 5.0, 6.0, weighted_correlation=0.5)
    x = np.float32([[0.5, -1.0], [2.0, 3.0], [-3.0, 0.1]])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        other = kind(0.5, -1.0, 5.0, 6.0, weighted_correlation=0.5)
        found, expected = jax.jit(lambda: (pair.log_prob(x), other.log_prob(x)))()
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert jax.eval_shape(lambda: pair.sample(random.key(0), (8,))).shape == (8, 2)


@more
def test_vmap(key):
    """Parameters, distributions and keys can be mapped over."""
    locs, ks = np.float32([0.0, 1.0, -2.0]), np.float32([0.5, 2.0, 9.0])
    x = VonMises(locs, ks).sample(key)
    expected = VonMises(locs, ks).log_prob(x)
    np.testing.assert_array_equal(jax.vmap(lambda loc, k, x: VonMises(loc, k).log_prob(x))(locs, ks, x), expected)
    distributions = jax.vmap(VonMises)(locs, ks)
    assert promote_batch_shape(distributions).batch_shape == (3,)
    np.testing.assert_array_equal(
        jax.vmap(lambda distribution, x: distribution.log_prob(x))(distributions, x), expected
    )
    distribution = VonMises(locs, ks)
    axes = vmap_over(distribution, loc=0, concentration=0)
    np.testing.assert_array_equal(
        jax.vmap(lambda distribution, x: distribution.log_prob(x), (axes, 0))(distribution, x), expected
    )
    np.testing.assert_array_equal(jax.vmap(lambda distribution: distribution.mean, (axes,))(distribution), locs)
    keys = random.split(key, 3)
    drawn = jax.jit(jax.vmap(lambda key, distribution: distribution.sample(key, (5,))))(keys, distributions)
    for i in range(3):
        np.testing.assert_array_equal(drawn[i], VonMises(locs[i], ks[i]).sample(keys[i], (5,)))


@pytest.mark.parametrize("cls", CLASSES)
def test_validation_of_parameters(cls):
    """Ours raise, also inside jit if a parameter is known, and not if it is traced, as NumPyro's own classes do."""
    good = parameters(cls, 0)
    invalid = {name: VALUES[rule][1][-1] + 0 * good[name] for name, rule in EXAMPLES[cls.__name__].rules.items()}
    # NumPyro's constraints are narrower than the rules.
    narrower = {"psi_loc": np.float32(4), "mean_direction": 2 * good.get("mean_direction", 0)}
    for name, value in [*invalid.items(), *narrower.items()]:
        if name not in good:
            continue
        bad = good | {name: value}
        message = f"{cls.__name__} distribution got invalid {name} parameter"
        with pytest.raises(ValueError, match=message):
            cls(**bad, validate_args=True)
        with pytest.raises(ValueError, match=message):
            jax.jit(lambda bad=bad: cls(**bad, validate_args=True).sample(random.key(0)))()
        draw = lambda bad, checked: cls(**bad, validate_args=checked).sample(random.key(0))  # noqa: E731
        assert jax.eval_shape(functools.partial(draw, checked=True), bad) is not None
        assert jax.eval_shape(functools.partial(draw, bad, False)) is not None


def test_validation_of_values():
    distribution = VonMises(0.0, 1.0, validate_args=True)
    with pytest.warns(UserWarning, match="Out-of-support"):
        assert distribution.log_prob(4.0) == -np.inf
    # Both ends belong to the support.
    assert np.all(np.isfinite(distribution.log_prob(np.float32([-np.pi, np.pi]))))
    assert np.isfinite(VonMises(0.0, 1.0, validate_args=False).log_prob(4.0))


# ------------------------------------------------------------------------------------------------- the distribution


def test_log_prob():
    k, loc, x = CONCENTRATIONS[1:], 0.5, np.float32(circle(64))[:, None]
    found = VonMises(loc, k).log_prob(x)
    exact = stats.vonmises.logpdf(x.astype(float), k.astype(float), loc)
    np.testing.assert_allclose(found, exact, atol=1e-5)
    with jax.numpy_rank_promotion("allow"):
        np.testing.assert_allclose(found, dist.VonMises(loc, k).log_prob(x), atol=2e-5)


def test_derivatives_of_samples(key):
    """Samples have derivative 1 with respect to `loc`, and the quantile's with respect to the concentration."""
    loc, k = np.float32(3.0), np.float32(2.0)

    @jax.jit
    def derivatives(loc, k):
        def draw(loc, k):
            x = VonMises(loc, k).sample(key, (512,))
            return x, x

        return jax.jacfwd(draw, (0, 1), has_aux=True)(loc, k)

    (along_loc, along_k), x = derivatives(loc, k)
    np.testing.assert_array_equal(along_loc, 1)
    centred = np.remainder(np.asarray(x, float) - loc + np.pi, 2 * np.pi) - np.pi
    expected = np.sign(centred) * reference.dquantile_dk(np.abs(centred), k)
    np.testing.assert_allclose(along_k, expected, atol=2e-6)


@functools.partial(jax.jit, static_argnames="method")
def called(method, loc, k, value):
    return getattr(VonMises(loc, k, validate_args=False), method)(value)


def test_cdf():
    x = np.linspace(-np.pi, np.pi, 41).astype(np.float32)[:, None, None]
    cdf = np.asarray(called("cdf", LOCS, CONCENTRATIONS, x))
    # For locations outside the support, the rounding of turns is part of the error.
    for i, loc in enumerate(LOCS[:, 0].astype(float)):
        for j, k in enumerate(CONCENTRATIONS):
            np.testing.assert_allclose(cdf[:, i, j], probability(x[:, 0, 0], loc, k), atol=PROBABILITY_ERROR, rtol=0)
    assert np.all(cdf[0] == 0)
    np.testing.assert_allclose(cdf[-1], 1, atol=PROBABILITY_ERROR)
    assert np.all(np.diff(cdf, axis=0) >= 0)
    assert np.all(cdf <= 1)
    outside = np.resize(np.float32([-4.0, 4.0, -np.inf, np.inf, np.nan]), 41)[:, None, None]
    expected = np.array([0, 1, 0, 1, np.nan])[:, None, None]
    np.testing.assert_array_equal(called("cdf", LOCS, CONCENTRATIONS, outside)[:5], np.tile(expected, (1, 6, 4)))
    for loc, k in ((0.5, -1.0), (np.inf, 1.0)):
        assert np.isnan(called("cdf", np.full_like(LOCS, loc), np.full_like(CONCENTRATIONS, k), outside)).all()


def test_icdf():
    q = np.linspace(0, 1, 33).astype(np.float32)[:, None, None]
    x = np.asarray(called("icdf", LOCS, CONCENTRATIONS, q))
    assert np.all(x[0] == np.float32(-np.pi))
    assert np.all(x[-1] == np.float32(np.pi))
    assert np.all(np.diff(x, axis=0) > 0)
    for i, loc in enumerate(LOCS[:, 0].astype(float)):
        for j, k in enumerate(CONCENTRATIONS):
            below = np.clip(probability(x[:, i, j], loc, k), 0, 1)
            np.testing.assert_allclose(below, q[:, 0, 0], atol=PROBABILITY_ERROR, rtol=0)
    outside = np.resize(np.float32([-0.1, 1.1, np.nan]), 33)[:, None, None]
    assert np.isnan(called("icdf", LOCS, CONCENTRATIONS, outside)).all()
    for loc, k in ((0.5, -1.0), (np.inf, 1.0)):
        assert np.isnan(called("icdf", np.full_like(LOCS, loc), np.full_like(CONCENTRATIONS, k), q)).all()


@more
def test_cdf_against_mpmath():
    """Small probabilities keep their relative accuracy if the cut is in the upper half of the distribution."""
    loc, k = 0.5, 20.0
    for x in (-2.0, -1.0, 0.25):
        # The upper tail extends beyond pi, so some of its mass lies between -pi and 1/2 - pi.
        tail = float(reference.mp_tail(0.5 - x, k) + reference.mp_tail(math.pi - 0.5, k))
        assert VonMises(loc, k).cdf(x) == pytest.approx(tail, rel=5e-6)
        assert VonMises(loc, k).icdf(np.float32(tail)) == pytest.approx(x, abs=2e-6)


@more
def test_cdf_in_float64():
    with jax.enable_x64(True):
        x = np.linspace(-3, 3, 7)
        np.testing.assert_allclose(VonMises(np.float64(0.5), 2.0).cdf(x), probability(x, 0.5, 2.0), atol=4e-15)


@more
def test_cdf_of_concentrated_distributions(key):
    """The distribution is cut at pi and not at the float next to it, even for locations full turns away."""
    loc, k = np.float32([math.pi, -3.14, 1e4]), np.float32([1e7, 1e6, 1e5])
    x, cdf = map(np.asarray, jax.jit(lambda one: (x := one.sample(key, (200,)), one.cdf(x)))(VonMises(loc, k)))
    centred = np.float64(loc) - 2 * np.pi * np.rint(np.float64(loc) / (2 * np.pi))
    turns = 2 * np.pi * np.arange(-1, 2)[:, None, None]
    # The cdf of the normal distribution with standard deviation 1 / sqrt(k) has an absolute error of about 1 / k.
    masses = special.ndtr((x + turns - centred) * np.sqrt(np.float64(k)))
    below = special.ndtr((-np.pi + turns - centred) * np.sqrt(np.float64(k)))
    error = np.abs(cdf - np.sum(masses - below, axis=0))
    assert np.all(error <= PROBABILITY_ERROR + 1 / k)


@functools.partial(jax.jit, static_argnames="method")
def slopes(method, values, loc, k):
    """Return the derivatives of a method with respect to its argument and both parameters, at all `values`."""
    function = jax.jacfwd(lambda value, loc, k: getattr(VonMises(loc, k), method)(value), argnums=(0, 1, 2))
    return jax.vmap(function, (0, None, None))(values, loc, k)


@pytest.mark.slow
@pytest.mark.parametrize("loc", [0.5, -3.0, math.pi])
def test_derivatives_of_cdf_and_icdf(loc):
    """The derivative of the cdf is the density, also at the ends; all other derivatives agree with differences."""
    k, step = 2.0, 1e-5
    x = np.float32([-math.pi, -3.0, -1.0, 0.4, 2.0, math.pi])
    loc = np.float64(np.float32(loc))

    def difference(function):
        return (function(step) - function(-step)) / (2 * step)

    density = np.exp(log_density(x.astype(float), loc, k))
    along_loc = difference(lambda h: probability(x, loc + h, k))
    along_k = difference(lambda h: probability(x, loc, k + h))
    derivatives = slopes("cdf", x, np.float32(loc), np.float32(k))
    np.testing.assert_allclose(derivatives, [density, along_loc, along_k], atol=2e-6)

    inside = slice(1, -1)
    q = probability(x[inside], loc, k).astype(np.float32)
    expected = np.stack([np.ones(len(q)), -along_loc[inside], -along_k[inside]]) / density[inside]
    derivatives = slopes("icdf", q, np.float32(loc), np.float32(k))
    np.testing.assert_allclose(derivatives, expected, rtol=2e-5, atol=2e-5)


def test_moments_of_both_libraries():
    loc, k = np.float32([-2.0, 7.0]), np.float32([0.7, 40.0])
    distribution, theirs = VonMises(loc, k), dist.VonMises(loc, k)
    np.testing.assert_allclose(distribution.mean, theirs.mean, atol=1e-5)
    np.testing.assert_allclose(distribution.variance, theirs.variance, atol=1e-6)
    np.testing.assert_array_equal(distribution.mode, distribution.mean)


@pytest.mark.parametrize("classes", [(VonMises, VonMises), (VonMises, dist.VonMises), (dist.VonMises, VonMises)])
def test_kl_divergence(classes):
    first, other = (np.float32([0.5, -3.0]), np.float32([2.0, 10.0])), (3.0, np.float32([[0.1], [4.0]]))
    p, q = classes[0](*first), classes[1](*other)
    x = circle()
    (loc, k), (other_loc, other_k) = ([np.float64(v)[..., None] for v in pair] for pair in (first, other))
    log_p, log_q = log_density(x, loc, k), log_density(x, other_loc, other_k)
    expected = np.mean(2 * np.pi * np.exp(log_p) * (log_p - log_q), axis=-1)
    divergence = kl_divergence(p, q)
    assert divergence.shape == (2, 2)
    np.testing.assert_allclose(divergence, expected, rtol=2e-6)
    independent = kl_divergence(p.to_event(1), q.expand((2, 2)).to_event(1))
    np.testing.assert_allclose(independent, expected.sum(-1), rtol=2e-6)


@slow
def test_kl_divergence_of_other_angles():
    """It is registered between all distributions of one angle, and broadcasts their batches."""
    x = np.float32(circle())
    first = [cls(**parameters(cls, 0)) for cls in OF_ONE_ANGLE]
    second = [cls(**parameters(cls, 1)) for cls in OF_ONE_ANGLE] + [dist.VonMises(1.0, 2.0)]
    for p, q in [*itertools.product(first, second), *itertools.product(second[-1:], first)]:
        log_p, log_q = (np.float64(each.log_prob(x)) for each in (p, q))
        expected = np.mean(2 * np.pi * np.exp(log_p) * (log_p - log_q))
        np.testing.assert_allclose(kl_divergence(p, q), expected, rtol=1e-5, atol=1e-6)
    p = WrappedNormal(np.float32([0.0, 1.0]), 0.5)
    found = kl_divergence(p, VonMises(np.float32([[0.5], [1.0], [2.0]]), 0.5))
    assert found.shape == (3, 2)
    np.testing.assert_allclose(found[2, 1], kl_divergence(WrappedNormal(1.0, 0.5), VonMises(2.0, 0.5)), rtol=1e-5)


# ------------------------------------------------------------------------------------------------- inference


@pytest.fixture
def implicit_promotion():
    """Allow implicit promotion, since NumPyro's own inference divides floats by integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_sample_statement_and_predictive(key):
    def model(count):
        loc = numpyro.sample("loc", VonMises(0.0, 0.0))
        with numpyro.plate("groups", 3, dim=-2), numpyro.plate("angles", count, dim=-1):
            numpyro.sample("x", VonMises(loc, 5.0))

    trace = handlers.trace(handlers.seed(model, key)).get_trace(4)
    assert trace["x"]["value"].shape == (3, 4)
    assert trace["x"]["fn"].batch_shape == (3, 4)
    posterior = Predictive(model, {"loc": np.float32([0.0, 2.0])})(key, 1000)["x"]
    np.testing.assert_allclose(np.angle(np.mean(np.exp(1j * np.asarray(posterior)), axis=(1, 2))), [0, 2], atol=0.05)


PRIOR = (2.0, 1.5)
OBSERVATION = 0.7  # concentration of each observed angle
# The data lie on both sides of the cut, and so does the posterior.
DATA = np.float32([2.8, -2.9, 1.9, 3.0, -2.2, -3.1, 2.5, 0.4, 2.9, -1.7])


def conjugate_model(data):
    loc = numpyro.sample("loc", VonMises(*PRIOR))
    with numpyro.plate("data", len(data)):
        numpyro.sample("x", VonMises(loc, OBSERVATION), obs=data)


def conjugate_posterior():
    """Return the posterior's direction and concentration, from prior and data vectors, and the log evidence."""
    data = DATA.astype(float)
    total = PRIOR[1] * np.exp(1j * PRIOR[0]) + OBSERVATION * np.exp(1j * data).sum()
    loc, k = np.angle(total), np.abs(total)
    x = circle()
    joint = log_density(x, *PRIOR) + log_density(data[:, None], x, OBSERVATION).sum(0)
    log_evidence = special.logsumexp(joint) + np.log(2 * np.pi / len(x))
    np.testing.assert_allclose(joint - log_evidence, log_density(x, loc, k), atol=1e-12)
    return loc, k, log_evidence


@slow
@pytest.mark.usefixtures("implicit_promotion")
def test_nuts_finds_the_conjugate_posterior():
    model = handlers.reparam(conjugate_model, config={"loc": CircularReparam()})
    mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=2000, progress_bar=False)
    mcmc.run(random.key(1), DATA)
    loc, k, _ = conjugate_posterior()
    draws = np.asarray(mcmc.get_samples()["loc"], float)
    # The mean vector is A(k) along the posterior direction, and 0 orthogonal to it.
    for values, expected in ((np.cos(draws - loc), reference.ratio(k)), (np.sin(draws - loc), 0.0)):
        error = np.std(values) / np.sqrt(effective_sample_size(values[None]))
        assert error < 0.025
        assert abs(np.mean(values) - expected) < 4 * error


def guide(data):
    del data
    loc = numpyro.param("loc_q", 0.0)
    concentration = numpyro.param("concentration_q", 1.0, constraint=constraints.positive)
    numpyro.sample("loc", VonMises(loc, concentration))


@slow
@pytest.mark.usefixtures("implicit_promotion")
@pytest.mark.parametrize("objective", [Trace_ELBO, TraceMeanField_ELBO])
def test_svi_finds_the_conjugate_posterior(objective):
    """SVI finds the posterior, which is in the guide's family; the bound then equals the log evidence."""
    steps = 800
    adam = numpyro.optim.Adam(lambda step: 0.1 * 0.995**step)
    svi = SVI(conjugate_model, guide, adam, loss=objective(num_particles=16))
    result = svi.run(random.key(2), steps, DATA, progress_bar=False)
    loc, k, log_evidence = conjugate_posterior()
    error = result.params["loc_q"] - loc
    assert abs(np.remainder(error + np.pi, 2 * np.pi) - np.pi) < 0.02
    assert result.params["concentration_q"] == pytest.approx(k, rel=0.05)
    losses = np.asarray(result.losses[-50:], float)
    assert np.mean(losses) == pytest.approx(-log_evidence, abs=0.002 + 5 * np.std(losses) / np.sqrt(len(losses)))


@more
def test_bound_at_the_posterior_is_the_evidence(key):
    """At the posterior the log densities differ by the log evidence, so every single draw gives it."""
    loc, k, log_evidence = conjugate_posterior()
    exact = {"loc_q": jnp.float32(loc), "concentration_q": jnp.float32(k)}
    for i in range(3):
        loss = Trace_ELBO().loss(random.fold_in(key, i), exact, conjugate_model, guide, DATA)
        assert loss == pytest.approx(-log_evidence, abs=2e-5)


# ------------------------------------------------------------------------------- distributions made of others

OTHERS = {
    "sine-skewed": (SineSkewed(jvm.VonMises(0.5, 4.0), 0.7), constraints.circular),
    "any density": (CircularDistribution(tilted, 2.0), constraints.circular),
    "mixture": (Mixture(probs=[0.3, 0.7], components=jvm.VonMises([0.0, 1.0], [2.0, 3.0])), constraints.circular),
    "torus": (Torus(jvm.VonMises([0.0, 1.0], [2.0, 3.0])), constraints.independent(constraints.circular, 1)),
    "mixture of points": (
        Mixture(probs=[0.3, 0.7], components=Torus(jvm.VonMises([[0.0, 1.0], [2.0, 1.0]], 3.0))),
        constraints.independent(constraints.circular, 1),
    ),
    "mixture of rotations": (
        Mixture(probs=[0.3, 0.7], components=rotations.MatrixFisher(np.ones((2, 3, 3), np.float32))),
        constraints.sphere,
    ),
    "directions": (ProjectedNormal(np.ones(3, np.float32)), constraints.sphere),
}


@pytest.mark.usefixtures("implicit_promotion")
@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each == "sine-skewed" else more) for each in OTHERS])
def test_distributions_made_of_others(name, key):
    own, support = OTHERS[name]
    made = OfDistribution(own, validate_args=True)
    assert (made.batch_shape, made.event_shape, made.support) == (own.batch_shape, own.event_shape, support)
    assert made.has_rsample == (name in ("any density", "torus", "directions"))
    x = made.sample(key, (3,))
    np.testing.assert_array_equal(x, own.sample(key, (3,)))
    np.testing.assert_allclose(jax.jit(lambda each: each.log_prob(x))(made), own.log_prob(x), atol=2e-6)
    wide = made.expand((2,))
    assert wide.log_prob(wide.sample(key)).shape == (2,)
    if name in ("any density", "mixture"):
        np.testing.assert_allclose(made.mean, own.mean())
        np.testing.assert_allclose(made.icdf(made.cdf(x)), x, atol=1e-5)
        np.testing.assert_allclose(made.cdf(np.float32([-np.pi, 4])), [0, 1], atol=2e-7)


def test_what_is_no_distribution_is_refused():
    for bad in (dist.Normal(), jvm.VonMises, 3.0):
        with pytest.raises(TypeError, match=r"OfDistribution: distribution=.* must be a distribution of jax_von_mises"):
            OfDistribution(bad)


@pytest.mark.usefixtures("implicit_promotion")
def test_divergence_of_the_uniform_distribution():
    skewed = OfDistribution(SineSkewed(jvm.VonMises(0.5, 4.0), 0.7))
    for made in (VonMises(0.5, 2.0), WrappedNormal(0.0, 0.5), skewed):
        wanted = np.log(2 * np.pi) - float(made.entropy())
        assert kl_divergence(made, dist.Uniform(-np.pi, np.pi)) == pytest.approx(wanted, abs=1e-6)
        assert kl_divergence(made, dist.Uniform(-4.0, 4.0)) == pytest.approx(wanted + np.log(4 / np.pi), abs=1e-6)
        assert kl_divergence(made, dist.Uniform(0.0, 2 * np.pi)) == np.inf


def test_divergence_of_any_distributions():
    p, q = jvm.VonMises(0.5, 4.0), jvm.VonMises(0.3, 2.0)
    assert kl_divergence(OfDistribution(p), OfDistribution(q)) == p.kl_divergence(q)


# ----------------------------------------------------------------------------------- quadratic log densities

POSE = np.float32([[9.0, -1.0, 0.0], [2.0, 6.0, 1.0], [0.0, 0.0, 3.0]])
FABRIC = np.float32([[-10.0, 3.0, 0.0], [3.0, -2.0, 0.0], [0.0, 0.0, 0.0]])


def pose_model(data):
    parameter = numpyro.sample("parameter", dist.Normal(0, 100).expand([3, 3]).to_event(2))
    with numpyro.plate("data", len(data)):
        numpyro.sample("x", module.MatrixFisher(parameter), obs=data)


def bed_model(data):
    """A mean direction near the third axis, a major axis near the first, and concentrations."""
    tilt = numpyro.sample("tilt", dist.Normal(0, 1).expand([2]).to_event(1))
    turn = numpyro.sample("turn", dist.Normal(0, 1))
    concentration = numpyro.sample("concentration", dist.LogNormal(3, 2))
    share = numpyro.sample("share", dist.Uniform(0, 0.5))
    mean = jnp.append(tilt, 1.0)
    axis = jnp.stack([jnp.cos(turn), jnp.sin(turn), 0.0])
    with numpyro.plate("data", len(data)):
        unit = mean / jnp.linalg.norm(mean)
        numpyro.sample("x", module.Kent(unit, axis, concentration, share * concentration), obs=data)


def of_trace_zero(a):
    return jnp.array([[a[0], a[2], a[3]], [a[2], a[1], a[4]], [a[3], a[4], -a[0] - a[1]]])


def fabric_model(data):
    elements = numpyro.sample("elements", dist.Normal(0, 100).expand([5]).to_event(1))
    with numpyro.plate("data", len(data)):
        numpyro.sample("x", module.Bingham(of_trace_zero(elements)), obs=data)


def posterior(model, data):
    """Return draws from the posterior, by NUTS."""
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=600, progress_bar=False)
    mcmc.run(random.key(1), data)
    draws = {name: np.asarray(values, float) for name, values in mcmc.get_samples().items()}
    assert all(np.all(np.isfinite(values)) for values in draws.values())
    assert np.sum(mcmc.get_extra_fields()["diverging"]) < 6
    return draws


@pytest.mark.usefixtures("implicit_promotion")
def test_slope_of_a_model_of_rotations():
    """The derivative of the log density is the sum of the data minus their expectation, and that of the prior."""
    data = np.random.default_rng(0).normal(size=(64, 4))
    data = np.float32(data / np.linalg.norm(data, axis=1, keepdims=True))
    slope = jax.jit(jax.grad(lambda parameter: log_density_of(pose_model, (data,), {}, {"parameter": parameter})[0]))
    total = np.sum(Rotation.from_quat(data, scalar_first=True).as_matrix(), 0)
    expected = total - 64 * np.asarray(rotations.MatrixFisher(POSE).mean(), float) - POSE / 100**2
    np.testing.assert_allclose(slope(POSE), expected, atol=64 * 1e-5)


@more
@pytest.mark.usefixtures("implicit_promotion")
def test_nuts_over_the_parameter_of_rotations(key):
    """The posterior has the mean and the standard deviations of the estimate, up to its skewness."""
    data = rotations.MatrixFisher(POSE).sample(key, (400,))
    draws = posterior(pose_model, data)["parameter"]
    fitted = rotations.MatrixFisher.fit(data)
    errors = np.asarray(fitted.standard_errors(400), float)
    np.testing.assert_array_less(np.abs(draws.mean(0) - fitted.parameter), 0.7 * errors)
    np.testing.assert_allclose(draws.std(0), errors, rtol=0.25)


@more
@pytest.mark.usefixtures("implicit_promotion")
def test_nuts_over_the_parameters_of_beds(key):
    data = Kent([0.0, 0.0, 1.0], [1.0, 0.0, 0.0], 40.0, 12.0).sample(key, (400,))
    draws = posterior(bed_model, data)
    fitted = Kent.fit(data)
    tilt = np.asarray(fitted.mean_direction[:2] / fitted.mean_direction[2])
    found = {"tilt": tilt, "concentration": fitted.concentration, "share": fitted.ovalness / fitted.concentration}
    for name, value in found.items():
        deviation = draws[name].std(0)
        np.testing.assert_array_less(np.abs(draws[name].mean(0) - value), 0.7 * deviation)
    # The variance of the concentration is about that of a gamma distribution of 2 n half squares.
    assert draws["concentration"].std() == pytest.approx(float(fitted.concentration) / 20, rel=0.35)


@more
@pytest.mark.usefixtures("implicit_promotion")
def test_svi_over_the_parameter_of_axes(key):
    """A normal guide finds the maximum likelihood estimate, up to a fraction of its standard errors."""
    data = Bingham(FABRIC).sample(key, (400,))
    adam = numpyro.optim.Adam(lambda step: 0.3 * 0.995**step)
    svi = SVI(fabric_model, AutoNormal(fabric_model), adam, loss=Trace_ELBO(num_particles=4))
    result = svi.run(random.key(2), 1000, data, progress_bar=False)
    assert np.all(np.isfinite(result.losses))
    found = of_trace_zero(result.params["elements_auto_loc"])
    fitted = np.asarray(Bingham.fit(data).parameter)
    np.testing.assert_allclose(found, fitted - np.trace(fitted) / 3 * np.eye(3), atol=0.15)

"""Test the NumPyro distribution `VonMises` as NumPyro's own tests do, and in inference with a known answer."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import special, stats

numpyro = pytest.importorskip("numpyro", reason="NumPyro is not installed")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.diagnostics import effective_sample_size  # noqa: E402
from numpyro.distributions import constraints, kl_divergence  # noqa: E402
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over  # noqa: E402
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO  # noqa: E402
from numpyro.infer.reparam import CircularReparam  # noqa: E402

from jax_von_mises.numpyro import (  # noqa: E402
    Cardioid,
    CosineBivariateVonMises,
    SineBivariateVonMises,
    VonMises,
    VonMisesFisher,
    WrappedCauchy,
    WrappedNormal,
)
from tests import reference  # noqa: E402

# Locations on both sides of 0, near and at the end of the support, and full turns away.
LOCS = (0.0, 0.5, -3.1, math.pi, 7.0, -100.0)
CONCENTRATIONS = (0.0, 0.3, 2.0, 50.0)
PARAMETERS = [(0.5, 2.0), (np.float32([-3.0, 0.0, 2.0]), 4.0), (np.float32([[0.1], [3.0]]), np.float32([0.0, 1, 30]))]
# Error of a float32 probability: that of the angle, 2^-21 for sums near 2 pi, times the largest density here, 2.8.
PROBABILITY_ERROR = 1.5e-6


@pytest.fixture(params=PARAMETERS, ids=["scalar", "vector", "broadcast"])
def distribution(request):
    return VonMises(*request.param)


def circle(count=4096):
    """Return angles for the trapezoidal rule, which is exact to rounding for smooth functions on the circle."""
    return np.linspace(-np.pi, np.pi, count, endpoint=False)


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


def rounded(x):
    """Return the float64 value of a number rounded to float32."""
    return np.asarray(x, np.float32).astype(np.float64)


# ------------------------------------------------------------------------------------------------- interface


def test_declarations():
    distribution = VonMises(0.0, 1.0)
    assert distribution.support is constraints.circular
    assert distribution.has_rsample
    assert distribution.arg_constraints.keys() == {"loc", "concentration"}
    assert not distribution.is_discrete
    assert distribution.event_shape == ()
    assert VonMises.infer_shapes((2, 1), (3,)) == ((2, 3), ())


@pytest.mark.few(1)
def test_shapes_and_dtypes(key, distribution):
    batch = np.broadcast_shapes(np.shape(distribution.loc), np.shape(distribution.concentration))
    assert distribution.batch_shape == batch

    def values(sample_shape):
        x = distribution.sample(key, sample_shape)
        return x, distribution.log_prob(x), distribution.cdf(x)

    for sample_shape in ((), (2, 3)):
        results = jax.eval_shape(lambda sample_shape=sample_shape: values(sample_shape))
        assert {value.shape for value in results} == {sample_shape + batch} == {distribution.shape(sample_shape)}
        assert {value.dtype for value in results} == {np.dtype(np.float32)}
    for value in jax.eval_shape(
        lambda: (distribution.mean, distribution.mode, distribution.variance, distribution.entropy())
    ):
        assert value.shape == batch


def test_float64():
    with jax.enable_x64(True):
        distribution = VonMises(np.float64(0.5), np.float64(2.0))
        x = np.linspace(-3, 3, 7)
        assert jax.eval_shape(lambda: distribution.sample(random.key(0), (7,))).dtype == np.float64
        np.testing.assert_allclose(distribution.cdf(x), probability(x, 0.5, 2.0), atol=4e-15)


def test_expand(key):
    distribution = VonMises(np.float32([0.0, 1.0]), 2.0)
    wide = distribution.expand((3, 2))
    assert wide.batch_shape == (3, 2)
    x = wide.sample(key, (4,))
    assert x.shape == (4, 3, 2)
    assert len(np.unique(x)) == x.size
    np.testing.assert_array_equal(wide.log_prob(x), distribution.log_prob(x))
    np.testing.assert_array_equal(wide.mean, np.broadcast_to(distribution.mean, (3, 2)))
    np.testing.assert_array_equal(kl_divergence(wide, VonMises(0.0, 1.0)).shape, (3, 2))
    assert distribution.expand_by((5,)).batch_shape == (5, 2)
    assert distribution.to_event(1).event_shape == (2,)
    assert distribution.to_event(1).log_prob(x).shape == (4, 3)


def test_pytree(distribution):
    leaves, structure = jax.tree.flatten(distribution)
    assert len(leaves) == 2
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, VonMises)
    assert again.batch_shape == distribution.batch_shape
    x = np.float32(0.3)
    np.testing.assert_array_equal(again.log_prob(x), distribution.log_prob(x))
    np.testing.assert_array_equal(
        jax.jit(lambda distribution, x: distribution.log_prob(x))(distribution, x), distribution.log_prob(x)
    )


@pytest.mark.slow
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
    keys = random.split(key, 3)
    drawn = jax.jit(jax.vmap(lambda key, distribution: distribution.sample(key, (5,))))(keys, distributions)
    for i in range(3):
        np.testing.assert_array_equal(drawn[i], VonMises(locs[i], ks[i]).sample(keys[i], (5,)))


@pytest.mark.parametrize(
    ("loc", "concentration", "name"),
    [(0.0, -1.0, "concentration"), (0.0, np.nan, "concentration"), (np.inf, 1.0, "loc"), (np.nan, 1.0, "loc")],
)
def test_validation_of_parameters(loc, concentration, name):
    with pytest.raises(ValueError, match=f"VonMises distribution got invalid {name} parameter"):
        VonMises(loc, concentration, validate_args=True)
    assert np.isnan(VonMises(loc, concentration, validate_args=False).log_prob(0.0))


def test_validation_passes_the_uniform_distribution_and_traced_values():
    x = np.float32(1.0)
    assert VonMises(0.0, 0.0, validate_args=True).log_prob(x) == pytest.approx(-np.log(2 * np.pi))
    assert np.isnan(jax.jit(lambda k: VonMises(0.0, k, validate_args=True).log_prob(x))(-1.0))


@pytest.mark.parametrize(
    ("cls", "parameters", "name"),
    [
        (VonMises, (np.zeros(3), -1.0), "concentration"),
        (VonMises, (np.inf, np.ones(3)), "loc"),
        (VonMisesFisher, (np.float32([1, 0, 0]), -1.0), "concentration"),
        (VonMisesFisher, (np.float32([2, 0, 0]), np.ones(2)), "mean_direction"),
        (SineBivariateVonMises, (0.0, 0.0, np.float32(-1), 1.0, 0.0), "phi_concentration"),
        (CosineBivariateVonMises, (0.0, 4.0, np.ones(2), 1.0, 0.0), "psi_loc"),
    ],
)
def test_known_parameters_are_validated_under_jit(cls, parameters, name):
    """As NumPyro's classes, ours raise inside jit if a parameter is known, and not if it is traced."""
    with pytest.raises(ValueError, match=f"{cls.__name__} distribution got invalid {name} parameter"):
        jax.jit(lambda: cls(*parameters, validate_args=True).mean)()
    good = [np.zeros(()) if np.ndim(x) == 0 else x for x in parameters]
    assert jax.eval_shape(lambda good: cls(*good, validate_args=True).mean, good) is not None
    assert jax.eval_shape(lambda: cls(*parameters, validate_args=False).mean) is not None


def test_validation_of_values():
    distribution = VonMises(0.0, 1.0, validate_args=True)
    with pytest.warns(UserWarning, match="Out-of-support"):
        assert distribution.log_prob(4.0) == -np.inf
    # Both ends belong to the support.
    assert np.all(np.isfinite(distribution.log_prob(np.float32([-np.pi, np.pi]))))
    assert np.isfinite(VonMises(0.0, 1.0, validate_args=False).log_prob(4.0))


# ------------------------------------------------------------------------------------------------- the distribution


@pytest.mark.parametrize("k", [0.3, 2.0, 50.0])
def test_log_prob(k):
    x, loc = circle(64), 0.5
    np.testing.assert_allclose(VonMises(loc, k).log_prob(np.float32(x)), stats.vonmises.logpdf(x, k, loc), atol=1e-5)
    np.testing.assert_allclose(VonMises(loc, k).log_prob(np.float32(x)), dist.VonMises(loc, k).log_prob(x), atol=2e-5)


def test_gradients_of_log_prob():
    x, loc, k = np.float32(2.0), 0.5, 3.0
    slopes = jax.grad(lambda x, loc, k: VonMises(loc, k).log_prob(x), argnums=(0, 1, 2))(x, loc, k)
    bend = k * np.sin(2.0 - loc)
    np.testing.assert_allclose(slopes, [-bend, bend, np.cos(2.0 - loc) - reference.ratio(k)], rtol=1e-6)


def test_gradients_of_samples(key):
    """Samples have derivative 1 with respect to `loc`, and the quantile's with respect to the concentration."""
    loc, k, shape = 3.0, 2.0, (500,)

    def draw(loc, k):
        return VonMises(loc, k).sample(key, shape)

    one = np.float32(1)
    np.testing.assert_array_equal(jax.jvp(lambda loc: draw(loc, k), (np.float32(loc),), (one,))[1], 1)
    x, slope = jax.jvp(lambda k: draw(loc, k), (np.float32(k),), (one,))
    centred = np.remainder(np.asarray(x, float) - loc + np.pi, 2 * np.pi) - np.pi
    expected = np.sign(centred) * reference.dquantile_dk(np.abs(centred), k)
    np.testing.assert_allclose(slope, expected, atol=2e-6)


@pytest.mark.parametrize("k", CONCENTRATIONS)
@pytest.mark.parametrize("loc", LOCS)
def test_cdf(loc, k):
    x = np.linspace(-np.pi, np.pi, 41).astype(np.float32)
    cdf = np.asarray(VonMises(loc, k).cdf(x))
    # For locations outside the support, the rounding of turns is part of the error.
    np.testing.assert_allclose(cdf, probability(x, rounded(loc), k), atol=PROBABILITY_ERROR, rtol=0)
    assert cdf[0] == 0
    assert cdf[-1] == pytest.approx(1, abs=PROBABILITY_ERROR)
    assert np.all(np.diff(cdf) >= 0)
    assert np.all(cdf <= 1)


@pytest.mark.slow
@pytest.mark.parametrize("k", CONCENTRATIONS)
@pytest.mark.parametrize("loc", LOCS)
def test_icdf(loc, k):
    distribution = VonMises(loc, k)
    q = np.linspace(0, 1, 33).astype(np.float32)
    x = np.asarray(distribution.icdf(q))
    assert x[0] == np.float32(-np.pi)
    assert x[-1] == np.float32(np.pi)
    assert np.all(np.diff(x) > 0)
    np.testing.assert_allclose(np.clip(probability(x, rounded(loc), k), 0, 1), q, atol=PROBABILITY_ERROR, rtol=0)
    np.testing.assert_allclose(distribution.cdf(x), q, atol=2 * PROBABILITY_ERROR, rtol=0)


@pytest.mark.slow
def test_cdf_against_mpmath():
    """Small probabilities keep their relative accuracy if the cut is in the upper half of the distribution."""
    loc, k = 0.5, 20.0
    for x in (-2.0, -1.0, 0.25):
        # The upper tail extends beyond pi, so some of its mass lies between -pi and 1/2 - pi.
        tail = float(reference.mp_tail(0.5 - x, k) + reference.mp_tail(math.pi - 0.5, k))
        assert VonMises(loc, k).cdf(x) == pytest.approx(tail, rel=5e-6)
        assert VonMises(loc, k).icdf(np.float32(tail)) == pytest.approx(x, abs=2e-6)


@pytest.mark.parametrize(("loc", "k"), [(math.pi, 1e7), (-3.14, 1e6), (1e4, 1e5)])
def test_cdf_of_a_concentrated_distribution(loc, k, key):
    """The distribution is cut at pi and not at the float next to it, even for locations full turns away."""
    loc, k = np.float32(loc), np.float32(k)
    x = np.asarray(VonMises(loc, k).sample(key, (200,)))
    centred = np.float64(loc) - 2 * np.pi * np.rint(np.float64(loc) / (2 * np.pi))
    turns = 2 * np.pi * np.arange(-1, 2)[:, None]
    # The cdf of the normal distribution with standard deviation 1 / sqrt(k) has an absolute error of about 1 / k.
    masses = special.ndtr((x + turns - centred) * np.sqrt(np.float64(k)))
    below = special.ndtr((-np.pi + turns - centred) * np.sqrt(np.float64(k)))
    expected = np.sum(masses - below, axis=0)
    np.testing.assert_allclose(VonMises(loc, k).cdf(x), expected, atol=PROBABILITY_ERROR + 1 / k, rtol=0)


def test_cdf_outside_the_support():
    distribution = VonMises(0.5, 2.0)
    # Use the shapes of the tests above, to reuse their programs.
    values = np.resize(np.float32([-4.0, 4.0, -np.inf, np.inf, np.nan]), 41)
    np.testing.assert_array_equal(distribution.cdf(values)[:5], [0, 1, 0, 1, np.nan])
    assert np.all(np.isnan(distribution.icdf(np.resize(np.float32([-0.1, 1.1, np.nan]), 33))))
    assert np.isnan(VonMises(0.5, -1.0, validate_args=False).cdf(4.0))
    assert np.isnan(VonMises(np.inf, 1.0, validate_args=False).icdf(0.0))


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
    loc = rounded(loc)

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


@pytest.mark.parametrize(("loc", "k"), [(0.5, 0.0), (-2.0, 0.7), (7.0, 40.0)])
def test_moments_and_entropy(loc, k):
    x = circle()
    density = np.exp(log_density(x, loc, k))
    moment = np.mean(2 * np.pi * density * np.exp(1j * x))
    distribution = VonMises(loc, k)
    assert distribution.variance == pytest.approx(1 - np.abs(moment), rel=1e-6)
    assert distribution.entropy() == pytest.approx(-np.mean(2 * np.pi * density * log_density(x, loc, k)), rel=1e-6)
    direction = np.remainder(loc + np.pi, 2 * np.pi) - np.pi
    assert distribution.mean == pytest.approx(direction, abs=1e-6)
    assert distribution.mode == distribution.mean
    if k > 0:
        assert distribution.mean == pytest.approx(np.angle(moment), abs=1e-6)
        theirs = dist.VonMises(loc, k)
        assert distribution.mean == pytest.approx(float(theirs.mean), abs=1e-5)
        assert distribution.variance == pytest.approx(float(theirs.variance), abs=1e-6)


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


@pytest.mark.slow
def test_kl_divergence_of_other_angles():
    """It is registered between all distributions of one angle, and broadcasts their batches."""
    x = np.float32(circle())
    distributions = VonMises(0.3, 2.0), WrappedCauchy(2.5, 0.6), Cardioid(-3.0, 0.4), WrappedNormal(1.0, 0.8)
    for p, q in itertools.product(distributions, repeat=2):
        log_p, log_q = (np.float64(each.log_prob(x)) for each in (p, q))
        expected = np.mean(2 * np.pi * np.exp(log_p) * (log_p - log_q))
        np.testing.assert_allclose(kl_divergence(p, q), expected, rtol=1e-5, atol=1e-6)
    p = WrappedNormal(np.float32([0.0, 1.0]), 0.5)
    found = kl_divergence(p, WrappedCauchy(np.float32([[0.5], [1.0], [2.0]]), 0.5))
    assert found.shape == (3, 2)
    np.testing.assert_allclose(found[2, 1], kl_divergence(WrappedNormal(1.0, 0.5), WrappedCauchy(2.0, 0.5)), rtol=1e-5)


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
    drawn = Predictive(model, num_samples=6)(key, 4)
    assert drawn["loc"].shape == (6,)
    assert drawn["x"].shape == (6, 3, 4)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_bound_at_the_posterior_is_the_evidence(key):
    """At the posterior the log densities differ by the log evidence, so every single draw gives it."""
    loc, k, log_evidence = conjugate_posterior()
    exact = {"loc_q": jnp.float32(loc), "concentration_q": jnp.float32(k)}
    for i in range(3):
        loss = Trace_ELBO().loss(random.fold_in(key, i), exact, conjugate_model, guide, DATA)
        assert loss == pytest.approx(-log_evidence, abs=2e-5)

"""Compare mixtures and tori with float64 sums over the components, and test what only these classes do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from jax_von_mises import (
    Cardioid,
    CircularDistribution,
    Mixture,
    SineBivariateVonMises,
    SineSkewed,
    Torus,
    VonMises,
    WrappedCauchy,
    WrappedNormal,
)
from jax_von_mises.engine import counter
from jax_von_mises.rotations import IsotropicGaussianSO3
from tests import reference

WEIGHTS = np.array([0.2, 0.5, 0.3])
LOCS, CONCENTRATIONS = np.array([-2.0, 0.5, 3.0]), np.array([4.0, 0.7, 30.0])
GRID = np.linspace(-np.pi, np.pi, 512, endpoint=False)
CELL = GRID[1] - GRID[0]
# Among them the largest float32 below pi, which is not pi.
ANGLES = np.float32([-3.0, -2.0, 0.0, 0.5, 2.9, 3.1, 3.1415925, -np.pi])


def three(dtype=np.float32):
    return Mixture(
        logits=jnp.asarray(np.log(WEIGHTS), dtype),
        components=VonMises(jnp.asarray(LOCS, dtype), jnp.asarray(CONCENTRATIONS, dtype)),
    )


def tori():
    """Return a mixture of two tori of two angles each."""
    components = VonMises(jnp.array([[-1.0, 2.0], [1.5, -0.5]]), jnp.array([[3.0, 8.0], [6.0, 1.0]]))
    return Mixture(logits=jnp.array([0.0, 0.7]), components=Torus(components))


def terms(x):
    """Return the weighted densities of the components at `x`, along the last axis."""
    each = [reference.pdf(np.asarray(x, float) - m, k) for m, k in zip(LOCS, CONCENTRATIONS, strict=True)]
    return WEIGHTS * np.stack(each, -1)


def density(x):
    return terms(x).sum(-1)


def probabilities(x):
    """Return the probabilities between -pi and `x`, by a sum over a fine grid."""
    fine = np.linspace(-np.pi, np.pi, 2**14 + 1)
    middle = (density(fine[1:]) + density(fine[:-1])) / 2
    return np.interp(x, fine, np.r_[0, np.cumsum(middle)] * (fine[1] - fine[0]))


# ------------------------------------------------------------------------------------------ mixtures of angles


@jax.jit
def evaluated(mixture, grid, x):
    """Return densities on a grid, probabilities below angles, and summaries."""
    found = {name: getattr(mixture, name)(grid) for name in ("prob", "log_prob", "responsibilities")}
    found |= {name: getattr(mixture, name)(x) for name in ("cdf", "sf")}
    summaries = ("mean", "mean_resultant_length", "variance", "stddev")
    return found | {name: getattr(mixture, name)() for name in summaries}


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.more)])
def test_against_sums(dtype):
    """Densities, probabilities and moments are sums over the components, by float64 formulas and a fine grid."""
    with jax.enable_x64(dtype == np.float64):
        x = np.concatenate([ANGLES, ANGLES + np.float32(4 * np.pi)]).astype(dtype)
        found = jax.tree.map(np.asarray, evaluated(three(dtype), GRID.astype(dtype), x))
    each = terms(GRID.astype(dtype))
    exact, rtol = each.sum(-1), 3e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found["prob"], exact, rtol=rtol)
    np.testing.assert_allclose(found["log_prob"], np.log(exact), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["responsibilities"], each / exact[:, None], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["responsibilities"].sum(-1), 1, rtol=1e-6)
    below = probabilities(ANGLES)
    np.testing.assert_allclose(found["cdf"][:8], below, atol=1e-6)
    np.testing.assert_allclose(found["cdf"][8:] - 2, below, atol=3e-6)
    np.testing.assert_allclose(found["cdf"][:8] + found["sf"][:8], 1, atol=1e-6)
    moment = CELL * np.sum(density(GRID) * np.exp(1j * GRID))
    assert float(found["mean"]) == pytest.approx(np.angle(moment), abs=1e-6)
    assert float(found["mean_resultant_length"]) == pytest.approx(abs(moment), abs=1e-6)
    assert float(found["variance"]) == pytest.approx(1 - abs(moment), abs=1e-6)
    assert float(found["stddev"]) == pytest.approx(np.sqrt(-2 * np.log(abs(moment))), abs=1e-5)
    np.testing.assert_allclose(three().probs, WEIGHTS, rtol=1e-6)


def test_logarithms_of_probabilities():
    x = ANGLES[:6]
    log_cdf, log_sf = jax.jit(lambda mixture: (mixture.log_cdf(x), mixture.log_sf(x)))(three())
    np.testing.assert_allclose(log_cdf, np.log(probabilities(x)), rtol=1e-5)
    np.testing.assert_allclose(log_sf[:4], np.log1p(-probabilities(x[:4])), rtol=1e-5)


quantiles = jax.jit(lambda mixture, q: mixture.icdf(q))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.more)])
def test_quantiles(dtype):
    """The probability below the quantile is `q`, by independent integrals, also between distant narrow modes."""
    eps = float(np.finfo(dtype).eps)
    q = np.r_[np.linspace(0, 1, 101), 1e-5, 1 - 1e-5].astype(dtype)
    given = np.r_[q, np.array([-0.1, 1.1, np.nan], dtype)]

    def of_component(x, m, k):
        turns = np.round((x - m) / (2 * np.pi))
        away = x - m - 2 * np.pi * turns
        half = np.full_like(away, 0.5) if np.isinf(k) else reference.central(np.abs(away), k)
        return turns + np.sign(away) * half

    def probability(x, locs, ks):
        start = np.full_like(x, -np.pi)
        return sum(
            w * (of_component(x, m, k) - of_component(start, m, k))
            for w, m, k in zip(np.array(WEIGHTS, dtype).astype(float), locs, ks, strict=True)
        )

    sets = [CONCENTRATIONS, [1e6, 3e4, 1e3], [0.0, 1e9, 2.0], [50.0, 50.0, 50.0], [np.inf, 0.7, 30.0]]
    for concentrations in sets:
        with jax.enable_x64(dtype == "float64"):
            locs, ks = np.array(LOCS, dtype), np.array(concentrations, dtype)
            found = quantiles(Mixture(probs=np.array(WEIGHTS, dtype), components=VonMises(locs, ks)), given)
        x = np.asarray(found, float)
        assert np.isnan(x[-3:]).all()
        x = x[:-3]
        assert (np.abs(x) <= np.pi).all()
        assert (np.diff(x[:101]) >= 0).all()
        slack = 4 * eps * np.maximum(np.abs(x), 1)
        below, above = (
            probability(np.clip(x + sign * slack, -np.pi, np.pi), locs.astype(float), ks.astype(float))
            for sign in (-1, 1)
        )
        assert (below - 6 * eps <= q).all()
        assert (q <= above + 6 * eps).all()
    for logit, loc, k in ((0, np.nan, 1), (0, 0, -1), (np.nan, 0, 1)):
        with jax.enable_x64(dtype == "float64"):
            components = VonMises(np.array([loc, 2, 1], dtype), np.array([k, 1, 1], dtype))
            mixture = Mixture(logits=np.array([logit, 0, 0], dtype), components=components)
            assert np.isnan(quantiles(mixture, given)).all()


@pytest.mark.more
def test_quantiles_in_bfloat16():
    narrow = Mixture(probs=jnp.bfloat16([0.5, 0.5]), components=VonMises(jnp.bfloat16([0, 1]), jnp.bfloat16([4, 4])))
    assert narrow.icdf(0.5).dtype == jnp.bfloat16
    assert float(narrow.icdf(0.5)) == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_derivatives_of_the_mode():
    """They are differences of the modes found on a fine grid, and an interval without mass is the mode."""
    with jax.enable_x64(True):
        mixture = three(np.float64)
        leaves, _ = jax.tree.flatten(mixture)
        mode, slopes = jax.value_and_grad(lambda mixture: mixture.mode())(mixture)
        np.testing.assert_allclose(mixture.interval(0.0), mode, rtol=1e-12)

    def density_of(leaves):
        logits, locs, ks = (np.asarray(leaf) for leaf in leaves)
        weights = special.softmax(logits)
        return lambda x: sum(w * reference.pdf(x - m, k) for w, m, k in zip(weights, locs, ks, strict=True))

    def best(leaves):
        density = density_of(leaves)
        return optimize.brentq(lambda x: density(x + 1e-4) - density(x - 1e-4), 2.8, 3.1, xtol=1e-13)

    leaves = [np.asarray(leaf) for leaf in leaves]
    assert float(mode) == pytest.approx(best(leaves), abs=1e-6)
    for i, leaf in enumerate(leaves):
        for j, step in enumerate(1e-3 * np.eye(3)):
            moved = [best([*leaves[:i], leaf + h, *leaves[i + 1 :]]) for h in (step, -step)]
            found = float(jax.tree.leaves(slopes)[i][j])
            assert found == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_divergence_from_itself():
    """It is not negative, and its derivatives stay those of the divergence."""
    mixture = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 2.0], [5.0, 20.0]))
    assert 0 <= mixture.kl_divergence(mixture) < 1e-6

    def divergence(shift):
        moved = VonMises(mixture.components.loc + shift, mixture.components.concentration)
        return mixture.kl_divergence(Mixture(logits=mixture.logits, components=moved))

    # The second derivative is the information about a shift, the mean square of the slope of the log density.
    x = np.float32(np.linspace(-np.pi, np.pi, 4096, endpoint=False))
    slope = jax.vmap(jax.grad(mixture.log_prob))(x)
    information = np.sum(np.asarray(mixture.prob(x) * slope**2, float)) * 2 * np.pi / 4096
    np.testing.assert_allclose(jax.grad(jax.grad(divergence))(0.0), information, rtol=1e-4)


def test_variance_of_narrow_components():
    """It has no cancellation."""
    k = np.array([1e6, 1e8, np.inf])
    locs = np.linspace(-3, 3, 50, dtype=np.float32)[:, None, None] * np.ones(2, np.float32)
    mixture = Mixture(probs=np.float32([0.3, 0.7]), components=VonMises(locs, np.float32(k)[:, None]))
    variance, stddev = jax.jit(lambda mixture: (mixture.variance(), mixture.stddev()))(mixture)
    np.testing.assert_allclose(variance, np.broadcast_to(0.5 / k, (50, 3)), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(stddev, np.broadcast_to(k**-0.5, (50, 3)), rtol=1e-5, atol=1e-6)


def test_shapes_and_dtypes(key):
    """Logits and components that vary along different axes give a batch of 3 x 4 mixtures; arrays widen dtypes."""
    mixture = Mixture(logits=jnp.zeros((3, 1, 2)), components=VonMises(jnp.zeros((4, 1)), jnp.array([1.0, 5.0])))
    assert (mixture.batch_shape, mixture.event_shape) == ((3, 4), ())

    def values(mixture):
        x = mixture.sample(key, (7,))
        draws = x, mixture.log_prob(x), mixture.prob(x), mixture.cdf(x)
        return draws, mixture.responsibilities(x), (mixture.mean(), mixture.log_prob(0.0), mixture.sample(seed=key))

    draws, shares, singles = jax.eval_shape(values, mixture)
    assert {value.shape for value in draws} == {(7, 3, 4)}
    assert shares.shape == (7, 3, 4, 2)
    assert {value.shape for value in singles} == {(3, 4)}
    with jax.enable_x64(True):
        # Float32 parameters with float64 values give float64.
        assert jax.eval_shape(three().log_prob, jnp.zeros(4, jnp.float64)).dtype == jnp.float64


def test_broadcast_for_vmap():
    """`broadcast` repeats parameters along the first axis of the batch where they lack it."""
    components = Torus(VonMises(jnp.zeros((3, 4, 1)), jnp.array([1.0, 5.0])))
    distribution, value = Mixture(logits=jnp.zeros(4), components=components), jnp.full(2, 0.3)
    repeated = distribution.broadcast()
    assert [leaf.shape[0] for leaf in jax.tree.leaves(repeated)] == [3, 3, 3]
    mapped = jax.vmap(lambda distribution: distribution.log_prob(value))
    assert jax.eval_shape(mapped, repeated).shape == (3,)


# ------------------------------------------------------------------------------------------ extremes and derivatives


@jax.jit
def evaluated_at(mixture, x):
    log_prob, slopes = jax.value_and_grad(lambda mixture: mixture.log_prob(x))(mixture)
    return log_prob, mixture.prob(x), mixture.responsibilities(x), slopes


def at_one_angle(x, logits, locs, concentrations):
    """Return densities, shares and slopes of a mixture of three, by the same program."""
    mixture = Mixture(logits=np.float32(logits), components=VonMises(np.float32(locs), np.float32(concentrations)))
    return evaluated_at(mixture, np.float32(x))


def test_weights_of_zero_point_masses_and_underflow():
    for value in (0.0, 1.0, np.pi):
        # The same component twice is one of twice the weight.
        expected = float(at_one_angle(value, [0, 1, 1], [0, 2, 2], [2, 1e3, 1e3])[0])
        # A component of weight 0, even a point mass, does not affect the density; at finite k, its gradient is 0.
        for k in (1.0, 1e6, np.inf):
            found = at_one_angle(value, [0, -np.inf, 1 + np.log(2)], [0, 1, 2], [2, k, 1e3])
            log_prob, prob, shares, slopes = found
            assert float(log_prob) == pytest.approx(expected, rel=1e-6)
            assert float(prob) == pytest.approx(np.exp(expected), rel=1e-6)
            assert shares[1] == 0
            if np.isfinite(k):
                assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
                assert slopes.logits[1] == slopes.components.loc[1] == slopes.components.concentration[1] == 0
    # A point mass takes the responsibility.
    for value, shares in ((0.0, [0.5, 0.0, 0.5]), (0.5, [0.0, 1.0, 0.0])):
        found = at_one_angle(value, [0, 0, 0], [0, 1, 0], [np.inf, 2, np.inf])
        np.testing.assert_array_equal(found[2], shares)
    # Where densities underflow (e^-4597), the nearest component determines the log density.
    log_prob, _, _, slopes = at_one_angle(2.0, [0, -np.inf, 0], [0, 0.5, 1], [1e4, 1e4, 1e4])
    assert float(log_prob) == pytest.approx(float(reference.log_pdf(1.0, 1e4)) + np.log(0.5), rel=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_gradients():
    """Those of the log density at an angle are those of the component densities times its shares."""
    x, ratio = np.float32(0.3), np.array([reference.ratio(k) for k in CONCENTRATIONS])
    shares = terms(x) / density(x)
    slopes = at_one_angle(x, np.log(WEIGHTS), LOCS, CONCENTRATIONS)[3]
    away = float(x) - LOCS
    np.testing.assert_allclose(slopes.logits, shares - WEIGHTS, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes.components.loc, shares * CONCENTRATIONS * np.sin(away), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes.components.concentration, shares * (np.cos(away) - ratio), rtol=1e-5, atol=1e-6)


def test_gradients_in_probabilities():
    def value(probs):
        return Mixture(probs=probs, components=VonMises([-1.0, 2.0], [5.0, 2.0])).log_prob(0.5)

    densities = reference.pdf(np.array([1.5, -1.5]), np.array([5.0, 2.0]))
    total = 0.3 * densities[0] + 0.7 * densities[1]
    slope = jax.jit(jax.grad(value))
    np.testing.assert_allclose(slope(jnp.array([0.3, 0.7])), densities / total - 1, rtol=1e-5)
    assert np.isfinite(slope(jnp.array([0.0, 1.0]))).all()


def test_samples_have_derivatives(key):
    """The derivative of a sample is 1 with respect to the location of the chosen component and 0 for the others."""
    mixture = three()

    def angles(loc):
        components = VonMises(loc, mixture.components.concentration)
        return Mixture(logits=mixture.logits, components=components).sample(key, (50,))

    slopes = np.asarray(jax.jit(jax.jacfwd(angles))(mixture.components.loc))
    assert (np.sort(slopes, -1) == [0, 0, 1]).all()


# ------------------------------------------------------------------------------------------ other components

OTHERS = {
    "WrappedCauchy": WrappedCauchy([-1.0, 2.0], [0.3, 0.9]),
    "Cardioid": Cardioid([-1.0, 2.0], [0.3, 0.1]),
    "WrappedNormal": WrappedNormal([-1.0, 2.0], [0.3, 1.2]),
    "SineSkewed": SineSkewed(VonMises([-1.0, 2.0], [5.0, 2.0]), [0.5, -0.4]),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks={"WrappedCauchy": (), "Cardioid": pytest.mark.more}.get(name, pytest.mark.slow))
        for name in OTHERS
    ],
)
def test_mixtures_of_other_angles(name, key):
    """Densities and means are sums over the components, and quantiles are the inverses of probabilities."""
    components, weights, grid = OTHERS[name], np.float32([0.25, 0.75]), GRID.astype(np.float32)

    @jax.jit
    def evaluated(mixture):
        found = mixture.prob(grid), mixture.log_prob(grid), mixture.responsibilities(grid), mixture.cdf(grid)
        x = grid[3::50]
        means = mixture.mean(), mixture.mean_resultant_length(), mixture.variance(), mixture.entropy()
        return found, mixture.icdf(mixture.cdf(x)) - x, mixture.cdf(x) + mixture.sf(x), means

    found, change, sums, means = evaluated(Mixture(probs=weights, components=components))
    each = weights * np.asarray(components.prob(grid[:, None]), float)
    exact = each.sum(-1)
    below = np.cumsum(exact + np.roll(exact, 1)) * CELL / 2
    wanted = exact, np.log(exact), each / exact[:, None], below - below[0]
    for actual, expected, atol in zip(found, wanted, (1e-6, 2e-6, 1e-5, 1e-3), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=atol)
    np.testing.assert_allclose(change, 0, atol=2e-5)
    np.testing.assert_allclose(sums, 1, atol=1e-6)
    moment, entropy = CELL * np.sum(exact * np.exp(1j * GRID)), -CELL * np.sum(exact * np.log(exact))
    np.testing.assert_allclose(means, [np.angle(moment), abs(moment), 1 - abs(moment), entropy], atol=2e-5)


@pytest.mark.parametrize("name", ["WrappedCauchy", pytest.param("Cardioid", marks=pytest.mark.more), "WrappedNormal"])
def test_draws_of_other_angles(name, key):
    """The first of two words chooses, and the second is that of an angle of the chosen component."""
    words = np.asarray(counter.words(key, (400,), 1)[0])[::2]
    expected = np.where(words < 2**30, *(OTHERS[name][i].sample(key, 400)[1::2] for i in range(2)))
    np.testing.assert_array_equal(Mixture(probs=[0.25, 0.75], components=OTHERS[name]).sample(key, 200), expected)


def test_mixtures_of_rotations(key):
    """Densities are sums, draws are near the means for small scales, and a component of weight 0 has no effect."""
    components = IsotropicGaussianSO3(np.float32([[1, 0, 0, 0], [0, 0.6, 0.8, 0]]), np.float32([0.01, 0.02]))
    mixture = Mixture(probs=[0.25, 0.75], components=components)
    x = np.asarray(mixture.sample(key, (400,)))
    logs, shares, each = jax.jit(
        lambda mixture: (mixture.log_prob(x), mixture.responsibilities(x), mixture.components.log_prob(x[:, None]))
    )(mixture)
    near = np.abs(x @ components.mean_rotation.T) > 0.99
    assert (near.sum(-1) == 1).all()
    assert near.mean(0)[0] == pytest.approx(0.25, abs=0.1)
    np.testing.assert_array_equal(shares > 0.5, near)
    np.testing.assert_allclose(logs, np.logaddexp(*(np.asarray(each, float) + np.log([0.25, 0.75])).T), rtol=1e-5)
    alone = Mixture(probs=[0.0, 1.0], components=components)
    assert np.isfinite(jax.jit(jax.grad(alone.log_prob))(x[0])).all()
    for name in ("mean", "variance", "cdf", "entropy"):
        with pytest.raises(AttributeError, match=f"Mixture has no {name}"):
            getattr(mixture, name)


# ------------------------------------------------------------------------------------------ several angles


@pytest.mark.more
def test_a_torus_is_a_product(key):
    torus = Torus(VonMises(jnp.zeros((3, 2)), jnp.array([1.0, 5.0])))
    assert (torus.batch_shape, torus.event_shape) == ((3,), (2,))

    @jax.jit
    def both(torus):
        x = torus.sample(key, (8,))
        return x, torus.components.sample(key, (8,)), torus.log_prob(x), torus.components.log_prob(x)

    x, angles, log_prob, each = both(torus)
    np.testing.assert_array_equal(x, angles)
    np.testing.assert_allclose(log_prob, np.sum(each, -1))


def pairs():
    """Return a mixture of two distributions of dependent angles."""
    components = SineBivariateVonMises([-1.0, 1.5], [2.0, -0.5], [8.0, 6.0], 7.0, [6.0, -4.0])
    return Mixture(logits=jnp.array([0.0, 0.7]), components=components)


@pytest.mark.parametrize("make", [tori, pytest.param(pairs, marks=pytest.mark.slow)])
def test_mixtures_of_several_angles(make):
    """Densities, responsibilities and means are those of the components."""
    mixture = make()
    assert (mixture.batch_shape, mixture.event_shape) == ((), (2,))
    axis = np.float32(GRID[::16])
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    prob, log_prob, shares, mean, parts = jax.jit(
        lambda mixture: (
            mixture.prob(x),
            mixture.log_prob(x),
            mixture.responsibilities(x),
            mixture.mean(),
            mixture.components.prob(x[..., None, :]),
        )
    )(mixture)
    each = np.asarray(parts, float) * np.asarray(mixture.probs, float)
    np.testing.assert_allclose(prob, each.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(log_prob, np.log(each.sum(-1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shares, each / each.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    moment = np.sum(each.sum(-1)[..., None] * np.exp(1j * np.asarray(x, float)), (0, 1))
    np.testing.assert_allclose(mean, np.angle(moment), atol=1e-5)


# ------------------------------------------------------------------------------------------ weights and refusals


def test_weights():
    """Weights may be given as logits, or as probabilities up to a common factor; a weight may be 0."""
    components = VonMises([-1.0, 2.0, 0.0], [5.0, 20.0, 1.0])
    log_weights = jax.jit(lambda mixture: mixture.log_weights())
    for probs in ([0.3, 0.7, 0.0], np.array([3.0, 7.0, 0.0]), jnp.array([0.6, 1.4, 0.0])):
        mixture = Mixture(probs=probs, components=components, validate_args=True)
        np.testing.assert_allclose(np.exp(log_weights(mixture)), [0.3, 0.7, 0.0], rtol=1e-6)
    # NumPyro's Categorical accepts None for the argument that is not used, so callers may pass both arguments.
    assert Mixture(logits=None, probs=[0.5, 0.5], components=components).logits.shape == (2,)
    assert Mixture(logits=[0.0, 0.0], probs=None, components=components).logits.shape == (2,)
    assert Mixture(logits=None, components=0).logits is None
    for probs in ([0.3, -0.7, 1.0], [0.3, np.nan, 1.0], [0.3, np.inf, 1.0], [0.0, 0.0, 0.0]):
        assert np.isnan(log_weights(Mixture(probs=probs, components=components))).any()
        with pytest.raises(ValueError, match=r"Mixture: probs (contains|gives all)"):
            Mixture(probs=probs, components=components, validate_args=True)
    for logits in ([0.3, np.nan, 1.0], [0.3, np.inf, 1.0], [-np.inf] * 3):
        with pytest.raises(ValueError, match=r"Mixture: logits (contains|gives all)"):
            Mixture(logits=logits, components=components, validate_args=True)
    Mixture(logits=[-np.inf, 0.0, 5.0], components=components, validate_args=True)
    traced = jax.jit(lambda probs: Mixture(probs=probs, components=components, validate_args=True).logits)
    assert np.isnan(traced(jnp.array([-1.0, 1.0, 1.0])))[0]


DENSITY = CircularDistribution(jnp.cos)
ONE, TWO = VonMises(0.0, 1.0), VonMises([-1.0, 2.0], [5.0, 20.0])
REFUSED = [
    ({"components": [ONE, ONE]}, TypeError, r"components=\[.* must be one distribution .* Write VonMises\(\["),
    ({"components": (ONE, ONE)}, TypeError, r"components=\(.* must be one distribution .* Write VonMises\(\["),
    ({"components": VonMises}, TypeError, r"components=<class .* must be a distribution"),
    ({"components": "VonMises"}, TypeError, r"components='VonMises' must be a distribution"),
    ({"components": DENSITY}, TypeError, r"components are a jax_von_mises.*, .* not supported: .* has no batch"),
    ({"components": SineSkewed(DENSITY, [0.1, 0.2])}, TypeError, r"components are .*: a CircularDist.* has no batch"),
    ({"components": Mixture(probs=[0.5, 0.5], components=TWO)}, TypeError, r"components are .*give all components"),
    ({"logits": "a", "components": ONE}, TypeError, r"logits must be a real number"),
    ({"probs": ["a"], "components": TWO}, TypeError, r"probs must be a real number or an array"),
    ({"logits": [0.0, 1.0], "probs": [0.5, 0.5], "components": TWO}, TypeError, r"give the weights once, as `logits`"),
    ({"logits": np.zeros(3), "components": TWO}, ValueError, r"logits has shape \(3,\) for components of batch_shape="),
    ({"logits": np.zeros(1), "components": ONE}, ValueError, r"the components have batch_shape=\(\)"),
    ({"logits": np.zeros((3, 2)), "components": VonMises(np.zeros((4, 2)), 1.0)}, ValueError, r".*do not broadcast"),
]


def test_refusals(key):
    for given, error, message in REFUSED:
        weights = {} if given.keys() & {"logits", "probs"} else {"probs": np.ones(3)}
        with pytest.raises(error, match=f"Mixture: {message}"):
            Mixture(**weights, **given).sample(key)
    for weights in ({}, {"probs": None}):
        with pytest.raises(TypeError, match="Mixture: give the weights once, as `logits` or as `probs`"):
            Mixture(components=TWO, **weights)
    with pytest.raises(TypeError, match="Mixture: give `components`"):
        Mixture(probs=[0.5, 0.5])
    with pytest.raises(TypeError, match="positional"):
        Mixture([0.5, 0.5], TWO)
    with pytest.raises(ValueError, match=r"Torus: the components have batch_shape=\(\)"):
        Torus(ONE).log_prob(0.0)
    with pytest.raises(ValueError, match=r"has 2 angles and `other` 3"):
        Torus(VonMises(jnp.zeros(2), 1.0)).kl_divergence(Torus(VonMises(jnp.zeros(3), 1.0)))
    for method in ("cdf", "sf", "icdf"):
        with pytest.raises(AttributeError, match=f"Mixture has no {method}: points of several dimensions have no ord"):
            getattr(tori(), method)(0.5)
    for distribution in (three(), tori(), Torus(TWO)):
        for given in ({}, {"key": key, "seed": key}):
            with pytest.raises(TypeError, match="give one random key"):
                distribution.sample(**given)

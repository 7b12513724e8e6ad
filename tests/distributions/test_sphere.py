"""Compare `VonMisesFisher` with SciPy and mpmath."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import optimize, special, stats

from jax_von_mises import VonMisesFisher, sample_von_mises_fisher
from tests import sphere_reference as reference
from tests.sphere_reference import direction

more = pytest.mark.more


@jax.jit
def log_probs(mean_direction, concentration, x):
    return VonMisesFisher(mean_direction, concentration).log_prob(x)


def exact_log_prob(x, mu, k):
    """Return the log density of the normalised vectors, computed with 30 digits."""
    with mp.workdps(30):
        d = len(mu)
        norm = reference.moments(d, k)[2]
        x, mu = ([mp.mpf(float(c)) for c in v] for v in (x, mu))
        cosine = mp.fdot(x, mu) / mp.sqrt(mp.fdot(x, x) * mp.fdot(mu, mu))
        return float(mp.mpf(float(k)) * (cosine - 1) - norm)


@pytest.mark.parametrize("d", [3, *(pytest.param(d, marks=more) for d in (2, 100, 1024))])
def test_log_prob(d, key):
    """The error is below 1e-6 max(1, |log_prob|) near the mean direction, near its opposite, and elsewhere."""
    mu = direction(d)
    draws = jax.jit(lambda k: sample_von_mises_fisher(key, mu, k, (6,)))
    for k in (0.0, 0.5, 30.0, 1e4, 1e7):
        near = draws(np.float32(k))
        x = np.concatenate([near, -near, draws(np.float32(0)), mu[None]])
        exact = np.array([exact_log_prob(each, mu, k) for each in x])
        error = np.abs(np.asarray(log_probs(mu, np.float32(k), x), float) - exact)
        assert (error <= 1e-6 * np.maximum(1, np.abs(exact))).all()


@pytest.mark.parametrize("d", [3, pytest.param(10, marks=more)])
def test_against_scipy(d):
    mu = direction(d).astype(float)
    mu /= np.linalg.norm(mu)
    for k in (0.5, 20.0):
        distribution, theirs = VonMisesFisher(mu.astype(np.float32), k), stats.vonmises_fisher(mu, k)
        x = theirs.rvs(2000, random_state=np.random.default_rng(d))
        np.testing.assert_allclose(
            log_probs(mu.astype(np.float32), k, x.astype(np.float32)), theirs.logpdf(x), atol=2e-5
        )
        assert float(distribution.entropy()) == pytest.approx(theirs.entropy(), abs=2e-6)
        fitted, (their_mu, their_k) = VonMisesFisher.fit(x.astype(np.float32)), stats.vonmises_fisher.fit(x)
        np.testing.assert_allclose(fitted.mean_direction, their_mu, atol=1e-5)
        assert float(fitted.concentration) == pytest.approx(their_k, rel=1e-5)


def test_value_of_any_length():
    """Only the direction of a value counts; the error is that of rounding the components of a unit vector."""
    mu, mean_direction = direction(5), direction(6)[:5]
    each = np.stack([mu, -mu, direction(7)[:5], mean_direction + 0.01 * mu])
    for length in (2e-30, 1e-20, 1e-3, 0.97, 30.0, 1e4, 1e10, 2e19, 1e30, 2e38):
        x = (length * each / np.abs(each).max(1, keepdims=True)).astype(np.float32)
        for k in (0.0, 5.0, 1e4):
            exact = np.array([exact_log_prob(one, mean_direction, k) for one in x])
            error = np.abs(np.asarray(log_probs(mean_direction, k, x), float) - exact)
            assert (error <= 1e-6 * np.maximum(1, np.abs(exact)) + 1e-7 * np.sqrt(k)).all(), (length, k)


def test_derivatives_at_any_length():
    """The gradients are those at the unit vectors, divided by the length."""
    mu, x = jnp.asarray(direction(4)), jnp.eye(4)[1]
    gradient = jax.jit(jax.grad(lambda x, mu: VonMisesFisher(mu, 20.0).log_prob(x), (0, 1)))
    expected = gradient(x, mu)
    for length in (1e-15, 3.0, 1e15):
        for found, unit in zip(gradient(length * x, length * mu), expected, strict=True):
            np.testing.assert_allclose(length * found, unit, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "hessian",
    [
        lambda f: jax.jit(jax.hessian(f)),
        pytest.param(jax.hessian, marks=more),
        pytest.param(lambda f: jax.jacrev(jax.jacrev(f)), marks=more),
    ],
    ids=["compiled", "forward", "reverse"],
)
def test_second_derivatives(hessian):
    """Second derivatives with respect to the value are exact."""
    u, x = jnp.eye(3)[2], jnp.array([0.6, 0.0, 0.8])
    # -H / 5 of 5 u.x / |x| is (u x' + x u' + w (1 - 3 x x')) / |x|^2.
    exact = -5 * (np.outer(u, x) + np.outer(x, u) + 0.8 * (np.eye(3) - 3 * np.outer(x, x)))
    second = hessian(lambda x: VonMisesFisher(u, 5.0).log_prob(x))
    for length in (1e-14, 1.0, 1e14):
        np.testing.assert_allclose(second(length * x) * length * length, exact, atol=2e-5)


@more
def test_second_derivatives_of_the_divergence():
    """At equal directions they are the information."""
    u = jnp.eye(3)[2]
    found = jax.hessian(lambda m: VonMisesFisher(u, 5.0).kl_divergence(VonMisesFisher(m, 5.0)))(u)
    information = 5.0 * float(reference.moments(3, 5.0)[0])
    np.testing.assert_allclose(found, np.diag([information, information, 0]), atol=1e-4)


EXTREME = [(3e38, -1e38, 1e-40), (1e-38, 2e-38, 0)]
MORE_EXTREME = [(2.0**127, 0, 0), (0, -1e-40, 1e-40), (1e-45, 0, 0)]


@pytest.mark.parametrize("mean_direction", [*EXTREME, *(pytest.param(x, marks=more) for x in MORE_EXTREME)])
def test_mean_direction_of_any_length(mean_direction, key):
    """Very long vectors and vectors with subnormal components, which XLA:CPU would take for zero, have a direction."""
    mean_direction = np.array(mean_direction, np.float32)
    unit = mean_direction.astype(float) / np.linalg.norm(mean_direction.astype(float))
    np.testing.assert_allclose(VonMisesFisher(mean_direction, 3.0).mode(), unit, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(
        jax.jit(lambda: VonMisesFisher(mean_direction, 3.0).mode())(), unit, rtol=1e-6, atol=1e-30
    )
    near = VonMisesFisher(mean_direction, 1e12).sample(key)
    np.testing.assert_allclose(near, unit, atol=1e-5)
    at_mode = VonMisesFisher(mean_direction, 3.0).log_prob(unit.astype(np.float32))
    np.testing.assert_allclose(at_mode, VonMisesFisher(jnp.eye(3)[0], 3.0).log_prob(jnp.eye(3)[0]), rtol=1e-6)


@more
def test_extreme_lengths_in_float64():
    with jax.enable_x64(True):
        for x in ([1.7e308, 1e308, 0], [2.0**1023, 0, 0], [1e-308, 2e-308, 0], [5e-324, -5e-324, 0]):
            unit = np.ldexp(x, 1000 if max(x) < 1 else -1000)
            unit /= np.linalg.norm(unit)
            np.testing.assert_allclose(VonMisesFisher(np.array(x), 3.0).mode(), unit, rtol=1e-14)
            distribution = VonMisesFisher(np.array([0.0, 0.6, 0.8]), 3.0)
            # Values this short give NaN.
            exact = np.nan if max(x) < 1 else distribution.log_prob(unit)
            np.testing.assert_allclose(distribution.log_prob(np.array(x)), exact, rtol=1e-14)


def test_divergence():
    """It has no cancellation between close or concentrated distributions."""
    divergence = jax.jit(lambda mu, k, ratio: VonMisesFisher(mu, k).kl_divergence(VonMisesFisher(mu, ratio * k)))
    d = 5
    # At large concentrations, it only depends on the ratio, as for normal distributions.
    k = np.float32([1e15, 1e19, 1e30])
    found = divergence(direction(d), k, np.full(3, np.float32(1.5)))
    np.testing.assert_allclose(found, (d - 1) / 2 * (0.5 - np.log(1.5)), rtol=1e-5)
    # For close distributions, it is half the Fisher information times the squared difference.
    close = np.float32([1, 1 + 1e-4, 1 - 1e-4])
    information = float(reference.moments(d, 3.0)[1])
    differences = 3 * (close.astype(float) - 1)
    expected = 0.5 * information * differences**2
    np.testing.assert_allclose(divergence(direction(d), np.full(3, np.float32(3)), close), expected, rtol=2e-3)


@pytest.mark.parametrize("k", [30.0, *(pytest.param(k, marks=more) for k in (0.5, 1e5))])
def test_fit(k, key):
    """Batched fits are within four standard errors of the truth."""
    mu = direction(3)
    distribution = VonMisesFisher(mu, k)
    x = distribution.sample(key, (3, 20_000))
    fitted, errors = VonMisesFisher.fit(x, axis=1), distribution.standard_errors(20_000)
    assert fitted.batch_shape == (3,)
    assert (np.abs(fitted.concentration - k) < 4 * errors.concentration).all()
    angle = np.linalg.norm(np.asarray(fitted.mean_direction) - mu, axis=-1)
    assert (angle < 4 * np.sqrt(2) * errors.mean_direction).all()


def test_fit_of_few_vectors():
    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    twice = VonMisesFisher.fit(x, weights=jnp.arange(10.0))
    repeated = VonMisesFisher.fit(np.repeat(x, np.arange(10), axis=0))
    np.testing.assert_allclose(twice.concentration, repeated.concentration, rtol=1e-5)
    assert VonMisesFisher.fit(jnp.eye(3)[:1]).concentration == jnp.inf
    assert np.isnan(VonMisesFisher.fit(jnp.zeros((0, 3))).concentration)
    assert np.isnan(VonMisesFisher.fit(x[:2], weights=jnp.array([1.0, -1.0])).concentration)
    for zero in (VonMisesFisher.fit(jnp.zeros(3)), VonMisesFisher.fit(jnp.eye(3, k=1))):
        assert np.isnan(zero.concentration)
        assert np.isnan(zero.mean_direction).all()
    padded = VonMisesFisher.fit(jnp.eye(3, k=1), weights=jnp.array([1.0, 2.0, 0.0]))
    assert float(padded.concentration) > 0


def test_fit_uses_only_directions():
    """Vectors of all lengths, rounded ones, and zero vectors and NaN of weight 0; against the fit of unit vectors."""
    x = stats.vonmises_fisher([0.0, 0.6, 0.8], 20.0).rvs(120, random_state=np.random.default_rng(0))
    lengths = np.random.default_rng(1).uniform(0.5, 1.5, (120, 1))
    for y in (2 * x, x / 2, lengths * x, 1e-30 * x, 1e30 * x, np.round(x, 1), x.astype(jnp.bfloat16).astype(float)):
        unit = y / np.linalg.norm(y, axis=1, keepdims=True)
        mean = unit.mean(0)
        want = optimize.brentq(lambda k: mean_cosine(3, k) - np.linalg.norm(mean), 1, 1e3)  # noqa: B023
        for given in (None, mean):
            found = VonMisesFisher.fit(y.astype(np.float32), mean_direction=given)
            np.testing.assert_allclose(found.concentration, want, rtol=3e-6)
            np.testing.assert_allclose(found.mean_direction, mean / np.linalg.norm(mean), atol=3e-7)


@more
def test_fit_of_other_directions():
    """In bfloat16, almost equal ones, and equal ones."""
    x = stats.vonmises_fisher([0.0, 0.6, 0.8], 20.0).rvs(120, random_state=np.random.default_rng(0))
    rounded = VonMisesFisher.fit(x.astype(jnp.bfloat16))
    unit = x.astype(jnp.bfloat16).astype(float)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    length = np.linalg.norm(unit.mean(0))
    want = optimize.brentq(lambda k: mean_cosine(3, k) - length, 1, 1e3)
    assert rounded.concentration.dtype == jnp.bfloat16
    assert float(rounded.concentration) == pytest.approx(want, rel=2**-8)
    for k in (1e5, 1e8):
        near = (7 * np.asarray(VonMisesFisher([0.3, 0.5, 0.7], k).sample(jax.random.key(0), (120,)))).astype(np.float64)
        unit = near / np.linalg.norm(near, axis=1, keepdims=True)
        mean = unit.mean(0) / np.linalg.norm(unit.mean(0))
        want = 2 / np.mean(np.sum(np.square(unit - mean), 1))
        assert float(VonMisesFisher.fit(near.astype(np.float32)).concentration) == pytest.approx(want, rel=1e-5)
    same = np.random.default_rng(0).normal(size=(9, 1, 3)).astype(np.float32)
    assert (VonMisesFisher.fit(np.repeat(same, 30, 1), axis=1).concentration == np.inf).all()


@more
def test_fit_ignores_vectors_of_weight_zero():
    x = stats.vonmises_fisher([0.0, 0.6, 0.8], 20.0).rvs(120, random_state=np.random.default_rng(0)).astype(np.float32)
    w = np.float32(np.arange(120) % 5 > 0)
    want = VonMisesFisher.fit(x[w > 0])
    concentration = jax.jit(lambda x, w: VonMisesFisher.fit(x, w).concentration)
    for bad in (0, np.nan, np.inf):
        holes = np.where(w[:, None] > 0, x, np.float32(bad))
        np.testing.assert_allclose(VonMisesFisher.fit(holes, w).concentration, want.concentration, rtol=1e-6)
        np.testing.assert_allclose(concentration(holes, w), want.concentration, rtol=1e-5)
        for slope in jax.grad(concentration, (0, 1))(holes, w):
            assert np.isfinite(slope).all()
        assert np.isnan(VonMisesFisher.fit(holes).concentration)


def test_other_numbers_of_vectors_compile_nothing(compiled):
    """One program serves all numbers of vectors up to a power of two."""
    x = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    VonMisesFisher.fit(x)
    some = jnp.asarray(x[:100].reshape(2, 50, 3))
    compiled.clear()
    for found in (VonMisesFisher.fit(x[:70], np.ones(70)), VonMisesFisher.fit(some)):
        assert np.isfinite(found.concentration)
    assert compiled == []


@pytest.mark.slow
def test_second_derivatives_of_fit():
    """Those by a factor of the angles agree with central differences."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).vonmises(0.3, 4.0, 30)

        def concentration(s):
            return VonMisesFisher.fit(jnp.stack([jnp.cos(s * x), jnp.sin(s * x)], -1)).concentration

        slope = jax.jit(jax.grad(concentration))
        difference = (slope(1 + 1e-5) - slope(1 - 1e-5)) / 2e-5
        assert float(jax.grad(slope)(1.0)) == pytest.approx(float(difference), rel=1e-6)


def mean_cosine(d, k):
    return special.ive(d / 2, k) / special.ive(d / 2 - 1, k)


OTHERS = [(2, "float64"), (8, "float32"), (8, "float64")]


@pytest.mark.parametrize(("d", "dtype"), [(3, "float32"), *(pytest.param(*case, marks=more) for case in OTHERS)])
def test_fit_with_a_known_direction(d, dtype):
    """The concentration and its correction agree with SciPy; the direction is normalised."""
    rng = np.random.default_rng(1)
    mu = np.eye(d)[0]
    with jax.enable_x64(dtype == "float64"):
        for k in (2.0, 50.0):
            x = stats.vonmises_fisher(mu, k).rvs(30, random_state=rng).astype(dtype)
            given = (3 * (mu + 0.05 * np.eye(d)[1])).astype(dtype)
            fitted = VonMisesFisher.fit(x, mean_direction=given)
            unit = given.astype(float) / np.linalg.norm(given.astype(float))
            r = float(np.mean(x.astype(float) @ unit))
            exact = optimize.brentq(lambda k: mean_cosine(d, k) - r, 1e-6, 1e4, xtol=1e-13)  # noqa: B023
            assert float(fitted.concentration) == pytest.approx(exact, rel=5e-6 if dtype == "float32" else 1e-9)
            np.testing.assert_allclose(fitted.mean_direction, unit, atol=1e-6)
            a = mean_cosine(d, exact)
            first = 1 - (d - 1) * a / exact - a * a
            second = (d - 1) * (a / exact - first) / exact - 2 * a * first
            less = VonMisesFisher.fit(x, mean_direction=given, bias_correction=True)
            assert float(less.concentration) == pytest.approx(exact + second / first**2 / 60, rel=2e-5)
            slope = jax.grad(lambda m: VonMisesFisher.fit(x, mean_direction=m).concentration)(given)  # noqa: B023
            np.testing.assert_allclose(slope @ given, 0, atol=1e-4 * exact)
            tangent = np.mean(x.astype(float), 0) - r * unit
            np.testing.assert_allclose(slope * np.linalg.norm(given), tangent / first, rtol=1e-3, atol=1e-4 * exact)


def test_fit_with_a_known_direction_at_the_ends():
    away = VonMisesFisher.fit(jnp.eye(3)[:1], mean_direction=[-1.0, 0.1, 0.0])
    assert away.concentration == 0
    assert (
        VonMisesFisher.fit(jnp.eye(3)[:1], mean_direction=[2.0, 0.0, 0.0], bias_correction=True).concentration == np.inf
    )
    none = VonMisesFisher.fit(jnp.eye(3), mean_direction=jnp.zeros(3))
    assert np.isnan(none.concentration)
    assert np.isnan(none.mean_direction).all()
    padded = VonMisesFisher.fit(jnp.eye(3, k=1), jnp.array([1.0, 2.0, 0.0]), mean_direction=jnp.ones(3))
    assert float(padded.concentration) > 0
    for bad in (VonMisesFisher.fit(x, mean_direction=jnp.ones(3)) for x in (jnp.zeros((0, 3)), jnp.eye(3, k=1))):
        assert np.isnan(bad.concentration)
    many = VonMisesFisher.fit(jnp.stack([jnp.eye(3)] * 2), axis=1, mean_direction=jnp.eye(3)[:2])
    assert (many.batch_shape, many.mean_direction.shape) == ((2,), (2, 3))
    with pytest.raises(ValueError, match=r"VonMisesFisher.fit: mean_direction of shape \(2, 3\) does not broadcast"):
        VonMisesFisher.fit(jnp.eye(3), mean_direction=jnp.eye(3)[:2])
    with pytest.raises(ValueError, match=r"VonMisesFisher.fit: mean_direction has shape \(1,\)"):
        VonMisesFisher.fit(jnp.eye(3), mean_direction=jnp.ones(1))


@more
@pytest.mark.parametrize(("k", "known"), [(1.0, False), (1.0, True), (4.0, False), (50.0, False)])
def test_bias_of_fit(k, known):
    """In 20,000 sets of ten directions in space, the bias falls to less than a tenth, up to four standard errors."""
    mu = np.eye(3)[0]
    x = stats.vonmises_fisher(mu, k).rvs(200_000, random_state=np.random.default_rng(0)).astype(np.float32)
    fits = (
        VonMisesFisher.fit(
            x.reshape(20_000, 10, 3),
            axis=1,
            mean_direction=mu.astype(np.float32) if known else None,
            bias_correction=c,
        )
        for c in (False, True)
    )
    plain, less = (np.float64(each.concentration) for each in fits)
    assert plain.mean() - k > 0.04 * k
    assert abs(less.mean() - k) < 0.1 * (plain.mean() - k) + 4 * less.std() / np.sqrt(20_000)
    assert np.mean(np.square(less - k)) < np.mean(np.square(plain - k))


def test_limits():
    mu = direction(3)
    uniform, point = VonMisesFisher(mu, 0.0), VonMisesFisher(mu, np.inf)
    assert float(uniform.entropy()) == pytest.approx(np.log(4 * np.pi), rel=1e-6)
    assert float(uniform.log_prob(-mu)) == pytest.approx(-np.log(4 * np.pi), rel=1e-6)
    assert float(uniform.mean_resultant_length()) == 0
    assert float(point.mean_resultant_length()) == 1
    assert point.log_prob(jnp.stack([mu, -mu])).tolist() == [np.inf, -np.inf]
    assert float(point.entropy()) == -np.inf
    np.testing.assert_allclose(VonMisesFisher(3 * mu, 2.0).mode(), mu, rtol=1e-6)


def test_derivatives_of_log_prob():
    """Gradients with respect to the value and the mean direction are tangent; the log normaliser has derivative A."""
    mu, x = direction(4), jnp.eye(4)[1]

    def log_prob(x, mu, k):
        return VonMisesFisher(mu, k).log_prob(x)

    derivatives = jax.jit(lambda *at: (jax.grad(log_prob, (0, 1, 2))(*at), jax.grad(jax.grad(log_prob, 2), 2)(*at)))
    for k in (0.0, 2.0, 1e6):
        (by_x, by_mu, by_k), second = derivatives(x, jnp.asarray(mu), jnp.float32(k))
        np.testing.assert_allclose(by_x, k * (mu - mu[1] * x), rtol=2e-5, atol=2e-6 * (1 + k))
        np.testing.assert_allclose(by_mu, k * (x - mu[1] * mu), rtol=2e-5, atol=2e-6 * (1 + k))
        assert float(by_k) == pytest.approx(mu[1] - float(reference.moments(4, k)[0]), abs=2e-6)
        assert float(second) == pytest.approx(-float(reference.moments(4, k)[1]), rel=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match=r"VonMisesFisher: mean_direction .* 2 or more"):
        VonMisesFisher([1.0], 1.0)
    with pytest.raises(ValueError, match="do not broadcast"):
        VonMisesFisher(np.ones((4, 3)), np.ones(3))
    with pytest.raises(ValueError, match="concentration is -1"):
        VonMisesFisher([1.0, 0.0], -1.0, validate_args=True)
    with pytest.raises(ValueError, match="value has shape"):
        VonMisesFisher([1.0, 0.0], 1.0).log_prob(np.ones(3))

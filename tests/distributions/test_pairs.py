"""Test the classes of pairs of dependent angles: densities, draws, words and fits."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from jax_von_mises import CosineBivariateVonMises, SineBivariateVonMises, VonMises
from jax_von_mises.any_density import evaluation
from jax_von_mises.engine import counter
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.von_mises import transform
from tests import pairs_reference as reference

more, slow = pytest.mark.more, pytest.mark.slow
CLASSES = {"sine": SineBivariateVonMises, "cosine": CosineBivariateVonMises}
names = pytest.mark.parametrize("name", CLASSES)
# Most of the time is spent on compilation.
sine_first = pytest.mark.parametrize("name", ["sine", pytest.param("cosine", marks=more)])
sine_more = pytest.mark.parametrize("name", [pytest.param("sine", marks=more), pytest.param("cosine", marks=slow)])
LOCS = np.array([0.5, -1.0], np.float32)
SETS = [(5.0, 6.0, -7.0), (5.0, 6.0, 3.0), (0.3, 0.2, 4.0), (1000.0, 1000.0, 500.0), (0.0, 3.0, 3.0), (1e7, 1e7, 2e7)]


def pairs(name, k):
    return CLASSES[name](*LOCS, *(np.float32(x) for x in k))


@functools.cache
def program(method):
    return jax.jit(lambda pair, *arguments: getattr(pair, method)(*arguments))


def statistics(name, x, locs=LOCS):
    """Return cos a, cos b and the dependence term of pairs, in float64."""
    a, b = (np.asarray(x, float) - locs).T
    return np.cos(a), np.cos(b), np.sin(a) * np.sin(b) if name == "sine" else -np.cos(a - b)


# ------------------------------------------------------------------------------------------------- densities


@names
def test_log_prob(name):
    """The log density agrees with mpmath, also where the second angle has the least conditional concentration."""
    rng = np.random.default_rng(0)
    near = np.geomspace(1e-6, 0.1, 10, dtype=np.float32)
    x = rng.uniform(-3.1, 3.1, (80, 2)).astype(np.float32)
    x[40:, 0] = LOCS[0] + np.concatenate([near, -near, np.pi - near, near - np.pi])
    a, b = (x.astype(float) - LOCS).T
    for k in ((5.0, 6.0, -7.0), (0.3, 0.2, 4.0), (1.0, 3.0, 3.0), (5.0, 6.0, -6.0), (0.0, 0.0, 0.0)):
        exact = reference.exponent(name, a, b, *k, np) - reference.log_normaliser_mp(name, *k)
        error = np.abs(program("log_prob")(pairs(name, k), x) - exact)
        assert (error <= 2e-6 * np.maximum(1, np.abs(exact))).all(), k
    # Full turns change nothing.
    pair = pairs(name, (5.0, 6.0, 3.0))
    later = program("log_prob")(pair, x + np.float32(2 * np.pi))
    np.testing.assert_allclose(later, program("log_prob")(pair, x), atol=1e-5)


@slow
@names
def test_log_prob_of_concentrated_pairs(name, key):
    """Near the modes, for concentrations up to 1e7, the error is mostly the effect of rounding the angles."""

    @jax.jit
    def drawn(pair):
        x = pair.sample(key, (50,))
        return x, pair.log_prob(x), jax.vmap(jax.grad(pair.log_prob))(x)

    for k in reference.parameters(name, 30):
        marginal = reference.Marginal(name, *map(float, k))
        x, found, slopes = map(np.asarray, drawn(CLASSES[name](np.float32(0), np.float32(0), *k)))
        a, b = np.longdouble(x).T
        exact = reference.exponent(name, a, b, *np.longdouble(k), np)
        top = np.longdouble(k[0]) * np.cos(np.longdouble(marginal.mode)) + np.longdouble(marginal.top)
        exact = (exact - top).astype(float) - marginal.log_total
        room = np.sum(np.abs(slopes.astype(float)) * np.spacing(np.abs(x)), 1)
        error = np.abs(found.astype(float) - exact)
        assert (error <= 2e-6 * np.maximum(1, np.abs(exact)) + 4 * room).all(), (k, error.max())


@slow
@names
def test_without_correlation(name):
    """Densities, entropy and moments are those of two independent von Mises distributions."""
    x = np.random.default_rng(0).uniform(-3, 3, (50, 2)).astype(np.float32)

    @jax.jit
    def evaluated(pair, first, second):
        alone = first.log_prob(x[:, 0]), second.log_prob(x[:, 1])
        conditional = pair.conditional(x[:, 0])
        found = pair.log_prob(x), pair.marginal_log_prob(x[:, 0]), pair.entropy(), jnp.stack(pair.moments()[:2])
        wanted = alone[0] + alone[1], alone[0], first.entropy() + second.entropy()
        return found, (*wanted, 1 - jnp.stack([first.variance(), second.variance()])), conditional

    for k1, k2 in ((5.0, 0.3), (0.0, 1e6), (1e7, 2.0)):
        pair = pairs(name, (k1, k2, 0.0))
        first, second = (VonMises(*map(np.float32, each)) for each in zip(LOCS, (k1, k2), strict=True))
        found, wanted, conditional = evaluated(pair, first, second)
        for actual, expected, atol in zip(found, wanted, (1e-6, 1e-6, 2e-6, 4e-7), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=6e-7, atol=atol)
        np.testing.assert_allclose(conditional.loc, np.broadcast_to(LOCS[1], 50), atol=1e-6)
        np.testing.assert_allclose(conditional.concentration, np.full(50, k2), rtol=1e-6)


@slow
def test_draws_without_correlation(key):
    """Each angle is the one that the sampler draws from the same word, up to rounding."""
    words = counter.words(key, (5000,), 2)
    for name in CLASSES:
        x = pairs(name, (5.0, 0.3, 0.0)).sample(key, (5000,), method="direct")
        for j, k in enumerate((5.0, 0.3)):
            alone = transform.angles(words[j : j + 1], jnp.full(5000, LOCS[j]), jnp.full(5000, np.float32(k)), "direct")
            np.testing.assert_allclose(x[:, j], alone, atol=5e-6)


@sine_first
def test_marginal_and_conditional(name):
    """The density is the product of the marginal and conditional densities, and the marginal integrates to 1."""
    phi = np.linspace(-np.pi, np.pi, 400, endpoint=False).astype(np.float32)
    x = np.stack([phi, phi[::-1]], -1)
    product = jax.jit(
        lambda pair: (pair.log_prob(x), pair.marginal_log_prob(phi), pair.conditional(phi).log_prob(x[:, 1]))
    )
    for k in ((5.0, 6.0, -7.0), (1.0, 3.0, 3.0)):
        log_prob, marginal, conditional = map(np.asarray, product(pairs(name, k)))
        assert np.exp(marginal.astype(float)).sum() * 2 * np.pi / 400 == pytest.approx(1, abs=2e-6)
        np.testing.assert_allclose(log_prob, marginal + conditional, rtol=1e-6, atol=5e-6)


@pytest.mark.more
@sine_first
def test_density_of_marginals(name):
    """Both models are symmetric, so the marginal of the second angle is that of the first if they are exchanged."""
    x = np.linspace(-3, 3, 8, dtype=np.float32)
    pair = pairs(name, (5.0, 6.0, -7.0))
    exchanged = CLASSES[name](*LOCS[::-1], *map(np.float32, (6.0, 5.0, -7.0)))
    found = jax.jit(lambda pair: pair.marginal(1).log_prob(x))(pair)
    np.testing.assert_allclose(found, program("marginal_log_prob")(exchanged, x), rtol=2e-6, atol=2e-6)
    with pytest.raises(ValueError, match="marginal: axis=2 must be 0 or 1"):
        pair.marginal(2)
    with pytest.raises(ValueError, match=r"the parameters have shape \(3,\), but must be scalars. Use jax.vmap"):
        CLASSES[name](0.0, np.zeros(3), 1.0, 1.0, 0.0).marginal()


@names
def test_calls_of_marginal(name, monkeypatch):
    """A call traces no density, and marginals of one model share their programs."""
    monkeypatch.setattr(evaluation, "hoist", None)
    first, second = (pairs(name, k).marginal() for k in SETS[:2])
    assert jax.tree.structure(first) == jax.tree.structure(second)


@slow
@names
def test_marginal(name):
    """Quantiles of both marginals have the reference's tails, up to the reported error or 4 ulp of the angle."""
    q = np.float32([1e-6, 1e-3, 0.1, 0.3, 0.5, 0.8, 0.999])
    quantiles = jax.jit(lambda marginal: (marginal.icdf(q), marginal.error()))
    for k in ((5.0, 6.0, -7.0), (1e3, 2e3, 500.0), (1e7, 1e7, 2e7)):
        for axis, (k1, k2) in enumerate([k[:2], k[1::-1]]):
            x, bound = quantiles(CLASSES[name](0.0, 0.0, *map(np.float32, k)).marginal(axis))
            x = np.float64(x)
            exact = reference.Marginal(name, k1, k2, k[2], points=np.abs(x))
            above, _, density = exact.tails(np.abs(x))
            tail = np.where(x < 0, q, np.float64(1) - q)
            room = 4 * np.spacing(np.float32(np.abs(x))) * density / 2
            assert (np.abs(above / 2 - tail) <= max(float(bound), 2e-6) * tail + room).all(), (k, axis)
    pair = pairs(name, (5.0, 6.0, -7.0))
    np.testing.assert_allclose(pair.marginal().log_prob(0.3), pair.marginal_log_prob(0.3), atol=2e-6)
    assert float(pair.marginal(1).mean()) == pytest.approx(float(pair.mean()[1]), abs=2e-6)


@slow
@names
def test_second_derivatives(name):
    """In float64, Hessians are symmetric and agree with differences; gradients in float32 agree with float64."""
    x, k = np.array([0.9, -0.4], np.float32), np.array([5.0, 6.0, -7.0])

    def log_prob(locs, k):
        return CLASSES[name](*locs, *k).log_prob(x)

    slope = jax.jit(jax.grad(log_prob, (0, 1)))
    with jax.enable_x64(True):
        locs = np.float64(LOCS)
        slopes = slope(locs, k)
        second = jax.jit(jax.hessian(log_prob, 1))(locs, k)
        rough = [(slope(locs, k + step)[1] - slope(locs, k - step)[1]) / 2e-5 for step in 1e-5 * np.eye(3)]
        np.testing.assert_allclose(second, rough, atol=1e-8)
        np.testing.assert_allclose(second, np.transpose(second), atol=1e-9)
    for actual, exact in zip(slope(LOCS, np.float32(k)), slopes, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=2e-6, atol=2e-6)


# ----------------------------------------------------------------------------------------------------- draws


@slow
@names
def test_moments_of_draws(name, key):
    """Moments of draws are within 4.5 standard errors of the exact ones, by either route, also with two modes."""
    for k in SETS:
        exact = reference.Marginal(name, *map(float, np.float32(k))).means()
        for method, size in (("table", 100_000), ("direct", 10_000)):
            if (method, k) != ("direct", SETS[-1]):
                x = pairs(name, k).sample(key, (size,), method=method)
                for values, mean in zip(statistics(name, x), exact, strict=True):
                    assert abs(values.mean() - mean) < 4.5 * values.std() / np.sqrt(size) + 2e-7, (k, method)


@slow
@names
@pytest.mark.parametrize(("size", "count"), [(10**6, 24), (10**8, 64)])
def test_chi_square_in_two_dimensions(name, size, count, key):
    """Counts agree with the density integrated over cells of a grid, at a false-alarm rate of 1e-4."""
    k = (2.0, 1.5, -2.5) if name == "sine" else (1.0, 1.5, 1.5)
    edges = np.linspace(-np.pi, np.pi, count + 1)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    points = (edges[:-1, None] + (nodes + 1) * np.pi / count).ravel()
    density = np.exp(reference.exponent(name, *np.meshgrid(points, points, indexing="ij"), *k, np))
    density *= np.outer(np.tile(weights, count), np.tile(weights, count))
    expected = density.reshape(count, 6, count, 6).sum((1, 3))
    expected *= size / expected.sum()
    observed = np.zeros((count, count))
    pair = CLASSES[name](0.0, 0.0, *k)
    draw = jax.jit(lambda start: pair.sample(key, (10**6,), start=start))
    for start in range(0, size, 10**6):
        x = np.asarray(draw(np.uint32(start)))
        observed += np.histogram2d(x[:, 0], x[:, 1], bins=[edges, edges])[0]
    assert stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), count * count - 1) > 1e-4


@slow
@names
def test_layout(name, key):
    """Pair i depends only on the key and i, up to rounding, in all shapes, slices and batches."""
    pair = pairs(name, (5.0, 6.0, 3.0))
    full = pair.sample(key, (40_000,), method="table")
    np.testing.assert_allclose(pair.sample(key, (200, 200), method="table").reshape(-1, 2), full, atol=2e-6)
    np.testing.assert_allclose(pair.sample(key, (1000,), start=5000), full[5000:6000], atol=2e-6)
    np.testing.assert_allclose(pair.sample(key, (100,), method="direct"), full[:100], atol=3e-6)
    many = CLASSES[name](LOCS[0], LOCS[1], jnp.full((100,), 5.0), 6.0, 3.0)
    np.testing.assert_allclose(many.sample(key), full[:100], atol=3e-6)


def test_the_end_of_the_stream():
    """A pair takes two of the 2^64 words of a stream, so draws beyond the first 2^63 pairs are refused."""
    pair, key = pairs("sine", (5.0, 6.0, 3.0)), jax.random.key(1)
    assert jax.eval_shape(lambda: pair.sample(key, (4,), start=2**63 - 4)).shape == (4, 2)
    with pytest.raises(ValueError, match="reach beyond the stream's 2\\^64 numbers \\(each pair takes 2\\)"):
        pair.sample(key, (4,), start=2**63 - 3)


# Checksums of the words of pairs 0 to 9 and 2^33 to 2^33 + 9; a change breaks every stream.
DIGESTS = {
    ("threefry2x32", "float32"): "47d6c95e6373b045",
    ("threefry2x32", "float64"): "efdfd2595a68edac",
    ("philox4x32", "float32"): "9b185a8d79eb1af6",
    ("philox4x32", "float64"): "fbc12ddb5ec8676a",
}


def words_of(implementation, dtype, start):
    """Return the words of ten pairs, those of the first angles before those of the second ones."""
    key, width = jax.random.key(7, impl=implementation), 2 if dtype == "float64" else 1
    start = None if start is None else counter.halves(start)
    both = Numbers(key, start, (10,), 2, width).both()
    return np.stack([np.asarray(word) for words in both for word in words], -1)


@pytest.mark.parametrize(("implementation", "dtype"), DIGESTS)
def test_words_are_frozen(implementation, dtype):
    words = [words_of(implementation, dtype, start) for start in (None, 2**33)]
    digest = hashlib.sha256(np.ascontiguousarray(np.stack(words), "<u4").tobytes()).hexdigest()[:16]
    assert digest == DIGESTS[implementation, dtype]


def test_words_are_those_of_the_stream():
    """Pair i takes the words 2 i and 2 i + 1, or 4 i to 4 i + 3 in float64."""
    words = np.asarray(counter.words(jax.random.key(7), (40,), 1)[0])
    np.testing.assert_array_equal(words_of("threefry2x32", "float32", None), words[:20].reshape(10, 2))
    np.testing.assert_array_equal(words_of("threefry2x32", "float64", None), words.reshape(10, 4))


# ----------------------------------------------------------------------------------------------------- fits


SETS_OF_FITS = [(5.0, 6.0, 3.0), (5.0, 6.0, -7.0), (0.3, 0.2, 4.0), (1e4, 2e4, -9e3), (0.0, 0.0, 8.0)]


@sine_more
def test_fit(name, key):
    """Batched fits have a log likelihood at most 15 above that of the truth.

    Where both concentrations exceed 1, the fits are within 4.5 standard errors of the truth.
    """
    draws = jax.jit(lambda pair: pair.sample(key, (3, 5000), method="direct"))
    errors_of = jax.jit(lambda pair: pair.standard_errors(5000))
    for k in SETS_OF_FITS:
        pair = pairs(name, k)
        x = draws(pair)
        fitted, errors = CLASSES[name].fit(x, axis=1), errors_of(pair)
        assert fitted.batch_shape == (3,)
        each = jnp.swapaxes(x, 0, 1)
        gain = np.asarray(program("log_prob")(fitted, each) - program("log_prob")(pair, each), float).sum(0)
        assert ((gain > -0.05) & (gain < 15)).all(), (k, gain)
        if min(k[:2]) > 1:
            for at, error, truth in zip(jax.tree.leaves(fitted), errors, (*LOCS, *k), strict=True):
                assert (np.abs(np.asarray(at) - truth) < 4.5 * float(error)).all(), k


@more
def test_fit_of_weights_and_bad_data():
    """Weights count repetitions; a data set without weights is NaN, and does not affect another."""
    x = np.random.default_rng(0).vonmises(LOCS, 5.0, (40, 2)).astype(np.float32)
    counts = np.arange(40) % 4
    weighted = SineBivariateVonMises.fit(x, weights=counts.astype(np.float32))
    repeated = SineBivariateVonMises.fit(np.repeat(x, counts, axis=0))
    for actual, expected in zip(jax.tree.leaves(weighted), jax.tree.leaves(repeated), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3)
    two = SineBivariateVonMises.fit(jnp.stack([x, x]), np.repeat([[1.0], [0.0]], 40, 1), axis=1)
    assert np.isnan(two.correlation).tolist() == [False, True]
    assert np.isnan(SineBivariateVonMises.fit(jnp.zeros((0, 2))).phi_loc)
    assert np.isnan(SineBivariateVonMises.fit(x[:2], weights=jnp.array([1.0, -1.0])).phi_concentration)
    equal = SineBivariateVonMises.fit(jnp.ones((5, 2)))
    assert equal.phi_concentration > 1e5
    np.testing.assert_allclose([equal.phi_loc, equal.psi_loc], 1, rtol=1e-5)


@sine_first
def test_against_scipy(name):
    """SciPy's simplex method, applied to the likelihood in NumPy, finds no better optimum."""
    rng = np.random.default_rng(0)
    first = rng.vonmises(0.0, 3.0, 300)
    x = np.stack([first, rng.vonmises(0.5 * first, 3.0)], 1) + LOCS
    grid = np.linspace(-np.pi, np.pi, 96, endpoint=False)
    mesh = np.meshgrid(grid, grid, indexing="ij")

    def loss(p):
        norm = np.log(np.exp(reference.exponent(name, *mesh, *p[2:], np)).mean() * 4 * np.pi**2)
        return norm - reference.exponent(name, *(x - p[:2]).T, *p[2:], np).mean()

    options = {"xatol": 1e-6, "fatol": 1e-12, "maxiter": 5000, "maxfev": 5000}
    best = optimize.minimize(loss, [*LOCS, 2.0, 3.0, 1.5], method="Nelder-Mead", options=options)
    fitted = [float(leaf) for leaf in jax.tree.leaves(CLASSES[name].fit(x.astype(np.float32)))]
    np.testing.assert_allclose(fitted, best.x, atol=1e-2)
    assert loss(np.array(fitted)) <= best.fun + 2e-6


# --------------------------------------------------------------------------------------------- construction


def test_weighted_correlation():
    pair = SineBivariateVonMises([0.0, 1.0], 0.5, [[1.0], [2.0], [3.0]], 4.0, weighted_correlation=0.5)
    assert (pair.batch_shape, pair.event_shape) == ((3, 2), (2,))
    np.testing.assert_allclose(pair.correlation, 0.5 * np.sqrt(4.0 * np.array([[1.0], [2.0], [3.0]])), rtol=1e-6)


def test_refusals(key):
    with pytest.raises(TypeError, match="give the dependence once"):
        SineBivariateVonMises(0.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="do not broadcast"):
        SineBivariateVonMises(np.zeros(2), 0.0, np.ones(3), 1.0, 0.0)
    pair = SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.5)
    with pytest.raises(ValueError, match=r"log_prob: value has shape \(3,\)"):
        pair.log_prob(np.zeros(3))
    with pytest.raises(ValueError, match="method='table' needs one"):
        SineBivariateVonMises(0.0, 0.0, np.ones(3), 1.0, 0.5).sample(key, method="table")
    with pytest.raises(TypeError, match="one random key"):
        pair.sample()

"""Test the classes of pairs of dependent angles: densities, draws, words, fits and NumPyro models."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jax_von_mises import CosineBivariateVonMises, SineBivariateVonMises, VonMises
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.numbers import Numbers
from tests import pairs_reference as reference

slow = pytest.mark.slow
CLASSES = {"sine": SineBivariateVonMises, "cosine": CosineBivariateVonMises}
names = pytest.mark.parametrize("name", CLASSES)
# Only one model runs by default, since most of the time is spent on compilation.
one_first = pytest.mark.parametrize("name", ["sine", pytest.param("cosine", marks=slow)])
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
def test_log_prob(name, key):
    """The log density agrees with mpmath, also where the second angle has the least conditional concentration."""
    near = np.geomspace(1e-6, 0.1, 10, dtype=np.float32)
    for k in ((5.0, 6.0, -7.0), (0.3, 0.2, 4.0), (1.0, 3.0, 3.0), (5.0, 6.0, -6.0), (0.0, 0.0, 0.0)):
        x = np.array(jax.random.uniform(key, (80, 2), minval=-3.1, maxval=3.1))
        x[40:, 0] = LOCS[0] + np.concatenate([near, -near, np.pi - near, near - np.pi])
        a, b = (x.astype(float) - LOCS).T
        exact = reference.exponent(name, a, b, *k, np) - reference.log_normaliser_mp(name, *k)
        error = np.abs(program("log_prob")(pairs(name, k), x) - exact)
        assert (error <= 2e-6 * np.maximum(1, np.abs(exact))).all(), k
    # Full turns change nothing.
    pair = pairs(name, (5.0, 6.0, 3.0))
    np.testing.assert_allclose(pair.log_prob(x + np.float32(2 * np.pi)), pair.log_prob(x), atol=1e-5)


@slow
@names
def test_log_prob_of_concentrated_pairs(name, key):
    """Near the modes, for concentrations up to 1e7, the error is mostly the effect of rounding the angles."""
    for k in reference.parameters(name, 30):
        pair = CLASSES[name](0.0, 0.0, *k)
        marginal = reference.Marginal(name, *map(float, k))
        x = np.asarray(pair.sample(key, (50,)))
        a, b = np.longdouble(x).T
        exact = reference.exponent(name, a, b, *np.longdouble(k), np)
        top = np.longdouble(k[0]) * np.cos(np.longdouble(marginal.mode)) + np.longdouble(marginal.top)
        exact = (exact - top).astype(float) - marginal.log_total
        slopes = [np.abs(np.asarray(s, float)) for s in jax.vmap(jax.grad(pair.log_prob))(jnp.asarray(x)).T]
        room = sum(s * np.spacing(np.abs(y)) for s, y in zip(slopes, x.T, strict=True))
        error = np.abs(np.asarray(pair.log_prob(x), float) - exact)
        assert (error <= 2e-6 * np.maximum(1, np.abs(exact)) + 4 * room).all(), (k, error.max())


@slow
def test_no_correlation_is_the_product():
    """Without correlation, densities, entropy and moments are those of two independent von Mises distributions."""
    x = np.random.default_rng(0).uniform(-3, 3, (50, 2)).astype(np.float32)
    for k1, k2 in ((5.0, 0.3), (0.0, 1e6), (1e7, 2.0)):
        first, second = VonMises(LOCS[0], k1), VonMises(LOCS[1], k2)
        for name in CLASSES:
            pair = pairs(name, (k1, k2, 0.0))
            expected = first.log_prob(x[:, 0]) + second.log_prob(x[:, 1])
            np.testing.assert_allclose(pair.log_prob(x), expected, rtol=6e-7, atol=1e-6)
            np.testing.assert_allclose(pair.marginal_log_prob(x[:, 0]), first.log_prob(x[:, 0]), rtol=6e-7, atol=1e-6)
            assert float(pair.entropy()) == pytest.approx(float(first.entropy() + second.entropy()), abs=2e-6)
            moments = pair.moments()
            np.testing.assert_allclose(moments[:2], [1 - first.variance(), 1 - second.variance()], atol=4e-7)
            conditional = pair.conditional(x[:, 0])
            np.testing.assert_allclose(conditional.loc, np.broadcast_to(LOCS[1], 50), atol=1e-6)
            np.testing.assert_allclose(conditional.concentration, np.full(50, k2), rtol=1e-6)


@slow
def test_no_correlation_draws_the_product(key):
    """Without correlation, each angle is the one that the sampler draws from the same word, up to rounding."""
    words = counter.words(key, (5000,), 2)
    for name in CLASSES:
        x = pairs(name, (5.0, 0.3, 0.0)).sample(key, (5000,), method="direct")
        for j, k in enumerate((5.0, 0.3)):
            alone = transform.angles(words[j : j + 1], jnp.full(5000, LOCS[j]), jnp.full(5000, np.float32(k)), "direct")
            np.testing.assert_allclose(x[:, j], alone, atol=5e-6)


@slow
@names
def test_marginal_and_conditional(name):
    """The density is the product of the marginal and conditional densities, and the marginal integrates to 1."""
    phi = np.linspace(-np.pi, np.pi, 400, endpoint=False).astype(np.float32)
    for k in ((5.0, 6.0, -7.0), (1.0, 3.0, 3.0)):
        pair = pairs(name, k)
        assert float(jnp.exp(pair.marginal_log_prob(phi)).sum()) * 2 * np.pi / 400 == pytest.approx(1, abs=2e-6)
        x = np.stack([phi, phi[::-1]], -1)
        both = pair.marginal_log_prob(phi) + pair.conditional(phi).log_prob(x[:, 1])
        np.testing.assert_allclose(pair.log_prob(x), both, rtol=1e-6, atol=5e-6)


@slow
@names
def test_marginal(name):
    """Quantiles of both marginals have the reference's tails, up to the reported error or 4 ulp of the angle."""
    q = np.float32([1e-6, 1e-3, 0.1, 0.3, 0.5, 0.8, 0.999])
    for k in ((5.0, 6.0, -7.0), (1e3, 2e3, 500.0), (1e7, 1e7, 2e7)):
        for axis, (k1, k2) in enumerate([k[:2], k[1::-1]]):
            marginal = CLASSES[name](0.0, 0.0, *map(np.float32, k)).marginal(axis)
            x = np.float64(marginal.icdf(q))
            exact = reference.Marginal(name, k1, k2, k[2], points=np.abs(x))
            above, _, density = exact.tails(np.abs(x))
            tail = np.where(x < 0, q, np.float64(1) - q)
            room = 4 * np.spacing(np.float32(np.abs(x))) * density / 2
            bound = max(float(marginal.error()), 2e-6)
            assert (np.abs(above / 2 - tail) <= bound * tail + room).all(), (k, axis)
    pair = pairs(name, (5.0, 6.0, -7.0))
    np.testing.assert_allclose(pair.marginal().log_prob(0.3), pair.marginal_log_prob(0.3), atol=2e-6)
    assert float(pair.marginal(1).mean()) == pytest.approx(float(pair.mean()[1]), abs=2e-6)
    with pytest.raises(ValueError, match="marginal: axis=2 must be 0 or 1"):
        pair.marginal(2)
    with pytest.raises(ValueError, match=r"the parameters have shape \(3,\), but must be scalars. Use jax.vmap"):
        CLASSES[name](0.0, np.zeros(3), 1.0, 1.0, 0.0).marginal()


@slow
@names
def test_derivatives_of_log_prob(name):
    """In float64, derivatives agree with differences, and Hessians are symmetric; float32 agrees with float64."""
    point, k = np.array([0.9, -0.4], np.float32), (5.0, 6.0, -7.0)

    def log_prob(x, *parameters):
        return CLASSES[name](*parameters).log_prob(x)

    with jax.enable_x64(True):
        at = (np.float64(point), *np.float64(LOCS), *k)
        slopes = jax.grad(log_prob, tuple(range(6)))(*at)
        for i in range(1, 6):
            up, down = (tuple(x + sign * 1e-5 * (i == j) for j, x in enumerate(at)) for sign in (1, -1))
            assert float(slopes[i]) == pytest.approx(float(log_prob(*up) - log_prob(*down)) / 2e-5, abs=1e-8)
        slope = jax.jit(jax.grad(lambda k: log_prob(*at[:3], *k)))
        second = jax.hessian(lambda k: log_prob(*at[:3], *k))(jnp.asarray(k))
        rough = [(slope(jnp.asarray(k) + step) - slope(jnp.asarray(k) - step)) / 2e-5 for step in 1e-5 * np.eye(3)]
        np.testing.assert_allclose(second, rough, atol=1e-8)
        np.testing.assert_allclose(second, np.transpose(second), atol=1e-9)
    single = jax.jit(jax.grad(log_prob, tuple(range(6))))(point, *LOCS, *(np.float32(x) for x in k))
    for actual, exact in zip(single, slopes, strict=True):
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


@one_first
@pytest.mark.parametrize(("size", "count"), [(10**6, 24), pytest.param(10**8, 64, marks=slow)])
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
def test_importance_sampling(name, key):
    """Draws weighted by a ratio of densities have the moments of the model with a weaker dependence."""
    strong, weak = pairs(name, (5.0, 6.0, 3.0)), pairs(name, (5.0, 6.0, 2.0))
    x = strong.sample(key, (10**6,))
    weights = np.exp(np.asarray(weak.log_prob(x) - strong.log_prob(x), float))
    assert weights.mean() == pytest.approx(1, abs=4.5 * weights.std() / 1000)
    for values, mean in zip(statistics(name, x), weak.moments(), strict=True):
        rest = weights * (values - float(mean))
        assert abs(rest.mean()) < 4.5 * rest.std() / 1000


@slow
@names
def test_derivatives_of_draws(name, key):
    """Derivatives of means over draws agree with those of the moments, in forward mode and in reverse mode."""
    for k in ((5.0, 6.0, 3.0), (5.0, 6.0, -7.0)):

        def mean_of(parameters, size=20_000):
            x = CLASSES[name](0.0, 0.0, *parameters).sample(key, (size,), method="direct")
            dependence = jnp.sin(x[:, 0]) * jnp.sin(x[:, 1]) if name == "sine" else -jnp.cos(x[:, 0] - x[:, 1])
            return jnp.stack([jnp.cos(x[:, 0]), jnp.cos(x[:, 1]), dependence], -1)

        k = jnp.asarray(k)
        slopes = np.asarray(jax.jit(jax.jacfwd(lambda k: mean_of(k).mean(0)))(k))
        spread = np.asarray(jax.jit(jax.jacfwd(lambda k: mean_of(k, 2000)))(k)).std(0) / np.sqrt(20_000)
        exact = np.array(jax.jacfwd(lambda k: jnp.stack(CLASSES[name](0.0, 0.0, *k).moments()))(k))
        assert (np.abs(slopes - exact) < 5 * spread + 1e-6).all(), (k, slopes, exact)
        back = jax.jit(jax.jacrev(lambda k: mean_of(k, 500).mean(0)))(k)
        np.testing.assert_allclose(back, jax.jacfwd(lambda k: mean_of(k, 500).mean(0))(k), rtol=1e-4, atol=1e-6)


@slow
@names
def test_layout(name, key):
    """Pair i depends only on the key and i, up to rounding, in all shapes, slices and batches."""
    pair = pairs(name, (5.0, 6.0, 3.0))
    full = pair.sample(key, (40_000,), method="table")
    assert full.shape == (40_000, 2)
    np.testing.assert_allclose(pair.sample(key, (200, 200), method="table").reshape(-1, 2), full, atol=2e-6)
    np.testing.assert_allclose(pair.sample(key, (1000,), start=5000), full[5000:6000], atol=2e-6)
    np.testing.assert_allclose(pair.sample(key, (100,), method="direct"), full[:100], atol=3e-6)
    many = CLASSES[name](LOCS[0], LOCS[1], jnp.full((100,), 5.0), 6.0, 3.0)
    np.testing.assert_allclose(many.sample(key), full[:100], atol=3e-6)
    keys = jax.random.split(key, 3)
    several = jax.vmap(lambda key: pair.sample(key, (50,)))(keys)
    np.testing.assert_allclose(several[1], pair.sample(keys[1], (50,)), atol=3e-6)
    assert (np.abs(full) <= np.pi).all()


def test_the_end_of_the_stream():
    """A pair takes two of the 2^64 words of a stream, so draws beyond the first 2^63 pairs are refused."""
    pair, key = pairs("sine", (5.0, 6.0, 3.0)), jax.random.key(1)
    assert pair.sample(key, (4,), start=2**63 - 4).shape == (4, 2)
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


@slow
@names
@pytest.mark.parametrize("k", [(5.0, 6.0, 3.0), (5.0, 6.0, -7.0), (0.3, 0.2, 4.0), (1e4, 2e4, -9e3), (0.0, 0.0, 8.0)])
def test_fit(name, k, key):
    """Batched fits have a log likelihood at most 15 above that of the truth.

    Where both concentrations exceed 1, the fits are within 4.5 standard errors of the truth.
    """
    pair = pairs(name, k)
    x = pair.sample(key, (3, 5000))
    fitted, errors = CLASSES[name].fit(x, axis=1), pair.standard_errors(5000)
    assert fitted.batch_shape == (3,)
    gain = np.asarray((fitted.log_prob(jnp.swapaxes(x, 0, 1)) - pair.log_prob(jnp.swapaxes(x, 0, 1))).sum(0), float)
    assert ((gain > -0.05) & (gain < 15)).all(), gain
    if min(k[:2]) > 1:
        for at, error in zip(jax.tree.leaves(fitted), errors, strict=True):
            truth = dict(zip(errors._fields, (*LOCS, *k), strict=True))[errors._fields[list(errors).index(error)]]
            assert (np.abs(np.asarray(at) - truth) < 4.5 * float(error)).all()


@slow
def test_fit_of_weights_and_bad_data(key):
    """Weights count repetitions; a data set without weights is NaN, and does not affect another."""
    x = SineBivariateVonMises(*LOCS, 5.0, 6.0, 3.0).sample(key, (40,))
    counts = jnp.arange(40) % 4
    weighted = SineBivariateVonMises.fit(x, weights=counts.astype(jnp.float32))
    repeated = SineBivariateVonMises.fit(jnp.repeat(x, counts, axis=0))
    for actual, expected in zip(jax.tree.leaves(weighted), jax.tree.leaves(repeated), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3)
    two = SineBivariateVonMises.fit(jnp.stack([x, x]), np.repeat([[1.0], [0.0]], 40, 1), axis=1)
    assert np.isnan(two.correlation).tolist() == [False, True]
    assert np.isnan(SineBivariateVonMises.fit(jnp.zeros((0, 2))).phi_loc)
    assert np.isnan(SineBivariateVonMises.fit(x[:2], weights=jnp.array([1.0, -1.0])).phi_concentration)
    equal = SineBivariateVonMises.fit(jnp.ones((5, 2)))
    assert equal.phi_concentration > 1e5
    np.testing.assert_allclose([equal.phi_loc, equal.psi_loc], 1, rtol=1e-5)


@slow
@names
def test_against_scipy(name, key):
    """SciPy's simplex method, applied to the likelihood in NumPy, finds no better optimum."""
    from scipy import optimize

    x = np.asarray(pairs(name, (2.0, 3.0, 1.5)).sample(key, (300,)), float)
    grid = np.linspace(-np.pi, np.pi, 96, endpoint=False)
    mesh = np.meshgrid(grid, grid, indexing="ij")

    def loss(p):
        norm = np.log(np.exp(reference.exponent(name, *mesh, *p[2:], np)).mean() * 4 * np.pi**2)
        return norm - reference.exponent(name, *(x - p[:2]).T, *p[2:], np).mean()

    best = optimize.minimize(
        loss, [*LOCS, 2.0, 3.0, 1.5], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12}
    )
    fitted = CLASSES[name].fit(x.astype(np.float32))
    np.testing.assert_allclose([float(leaf) for leaf in jax.tree.leaves(fitted)], best.x, atol=1e-2)
    assert float(-fitted.log_prob(x.astype(np.float32)).mean()) <= best.fun + 2e-6


# ---------------------------------------------------------------------------------- objects and invalid input


@slow
def test_pytree_and_batches(key):
    pair = SineBivariateVonMises([0.0, 1.0], 0.5, [[1.0], [2.0], [3.0]], 4.0, weighted_correlation=0.5)
    assert (pair.batch_shape, pair.event_shape) == ((3, 2), (2,))
    np.testing.assert_allclose(pair.correlation, 0.5 * np.sqrt(4.0 * np.array([[1.0], [2.0], [3.0]])), rtol=1e-6)
    x = pair.sample(key, 5)
    assert x.shape == (5, 3, 2, 2)
    assert pair.log_prob(x).shape == (5, 3, 2)
    assert pair.mean().shape == (3, 2, 2)
    assert pair.entropy().shape == pair.moments().interaction.shape == (3, 2)
    assert jax.jit(lambda pair: pair)(pair.broadcast()) == pair.broadcast()
    np.testing.assert_allclose(pair.prob(x), np.exp(pair.log_prob(x)), rtol=1e-5)
    drawn, logs = pair.sample_and_log_prob(seed=key)
    np.testing.assert_allclose(logs, pair.log_prob(drawn), rtol=1e-5)
    for dtype in ("bfloat16", "float16"):
        short = SineBivariateVonMises(*(jnp.asarray(v, dtype) for v in (0.0, 0.0, 1.0, 2.0, 1.0)))
        assert short.sample(key, (4,)).dtype == short.log_prob(jnp.zeros(2, dtype)).dtype == dtype


@slow
def test_invalid_parameters(key):
    """Invalid parameters give NaN in their own element, or with `validate_args` an error with the allowed values."""
    for index, value in ((2, -1.0), (3, np.nan), (4, np.inf), (2, np.inf), (0, np.inf)):
        parameters = [jnp.array([0.1, 0.1]), 0.2, jnp.array([1.0, 1.0]), jnp.array([2.0, 2.0]), jnp.array([0.5, 0.5])]
        parameters[index] = parameters[index].at[0].set(value)
        for cls in CLASSES.values():
            pair = cls(*parameters)
            assert np.isnan(pair.log_prob(jnp.zeros(2))).tolist() == [True, False]
            assert np.isnan(pair.sample(key)).any(-1).tolist() == [True, False], (index, value)
            with pytest.raises(ValueError, match=r"BivariateVonMises: \w+ is .* but must be"):
                cls(*parameters, validate_args=True)


def test_refusals(key):
    with pytest.raises(TypeError, match="give the dependence once"):
        SineBivariateVonMises(0.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="do not broadcast"):
        SineBivariateVonMises(np.zeros(2), 0.0, np.ones(3), 1.0, 0.0)
    pair = SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.5)
    with pytest.raises(ValueError, match=r"log_prob: value has shape \(3,\)"):
        pair.log_prob(np.zeros(3))
    with pytest.raises(ValueError, match=r"fit: samples has shape \(3,\)"):
        SineBivariateVonMises.fit(np.zeros(3))
    with pytest.raises(ValueError, match="Give one weight for each pair"):
        SineBivariateVonMises.fit(np.zeros((4, 2)), weights=np.ones(3))
    with pytest.raises(ValueError, match="method='table' needs one"):
        SineBivariateVonMises(0.0, 0.0, np.ones(3), 1.0, 0.5).sample(key, method="table")
    with pytest.raises(TypeError, match="one random key"):
        pair.sample()


# ------------------------------------------------------------------------------------------------ NumPyro

numpyro = pytest.importorskip("numpyro")


@slow
@names
def test_numpyro_distribution(name, key):
    import numpyro.distributions as dist

    from jax_von_mises import numpyro as ours

    cls = getattr(ours, CLASSES[name].__name__)
    pair = cls(0.5, -1.0, 5.0, 6.0, weighted_correlation=0.5)
    x = pair.sample(key, (7,))
    assert x.shape == (7, 2)
    assert pair.support(x).all()
    mine = CLASSES[name](0.5, -1.0, 5.0, 6.0, weighted_correlation=0.5)
    np.testing.assert_allclose(pair.log_prob(x), mine.log_prob(x), rtol=1e-6)
    np.testing.assert_allclose(pair.mean, mine.mean())
    assert pair.expand((5, 2)).sample(key).shape == (5, 2, 2)
    assert pair.expand((5, 2)).log_prob(x[0]).shape == (5, 2)
    with pytest.raises(ValueError, match="phi_concentration"):
        cls(0.5, -1.0, -5.0, 6.0, 0.0, validate_args=True)
    if name == "sine":
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            theirs = dist.SineBivariateVonMises(0.5, -1.0, 5.0, 6.0, weighted_correlation=0.5)
            np.testing.assert_allclose(pair.log_prob(x), theirs.log_prob(x), atol=2e-5)


@slow
def test_nuts(key):
    """The posterior means that NUTS finds are within 0.6 standard errors of the maximum likelihood estimates."""
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    from jax_von_mises.numpyro import SineBivariateVonMises as Theirs

    x = SineBivariateVonMises(*LOCS, 5.0, 6.0, 3.0).sample(key, (400,))

    def model():
        k1, k2 = (numpyro.sample(name, dist.LogNormal(1.5, 1.0)) for name in ("k1", "k2"))
        correlation = numpyro.sample("correlation", dist.Normal(0.0, 5.0))
        locs = [numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("phi", "psi")]
        with numpyro.plate("data", 400):
            numpyro.sample("x", Theirs(*locs, k1, k2, correlation), obs=x)

    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=300, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        mcmc.run(key)
    samples, best = mcmc.get_samples(), SineBivariateVonMises.fit(x)
    errors = best.standard_errors(400)
    names = "phi", "psi", "k1", "k2", "correlation"
    for name, at, error in zip(names, jax.tree.leaves(best), errors, strict=True):
        assert abs(float(samples[name].mean()) - float(at)) < 0.6 * float(error), name


@slow
def test_svi(key):
    """A guide that is reparametrised in all five parameters finds a posterior of its own family."""
    import optax
    from numpyro.distributions import constraints
    from numpyro.infer import SVI, Trace_ELBO

    from jax_von_mises.numpyro import SineBivariateVonMises as Theirs

    def model():
        numpyro.sample("pair", Theirs(0.5, -1.0, 5.0, 6.0, 3.0))

    def guide():
        locs = [numpyro.param(name, 0.0) for name in ("phi", "psi")]
        k = [numpyro.param(name, 2.0, constraint=constraints.positive) for name in ("k1", "k2")]
        numpyro.sample("pair", Theirs(*locs, *k, numpyro.param("correlation", 0.0)))

    svi = SVI(model, guide, optax.adam(0.05), Trace_ELBO(num_particles=256))
    with jax.numpy_dtype_promotion("standard"):
        params = svi.run(key, 500, progress_bar=False).params
    np.testing.assert_allclose([params["phi"], params["psi"]], LOCS, atol=0.03)
    np.testing.assert_allclose([params["k1"], params["k2"], params["correlation"]], [5.0, 6.0, 3.0], rtol=0.1)

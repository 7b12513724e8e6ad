"""Check the isotropic Gaussian distribution of rotations against mpmath, differences and its own draws."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from jax_von_mises.rotations import IsotropicGaussianSO3
from jax_von_mises.rotations import heat as numerics
from tests.marks import more, slow

SCALES = (1e-4, 0.02, 0.3, 0.59, 0.61, 0.79, 0.81, 0.89, 0.91, 1.2, 1.24, 1.26, 1.7, 3.0, 20.0)
MEAN = np.array([0.8, -0.3, 0.4, 0.2])
DTYPES = ("float32", "float64")


def density(angle, sigma):
    """Return f by the series of waves, with as many digits as its cancellation takes, or by that of turns."""
    angle, sigma = mpmath.mpf(angle), mpmath.mpf(sigma)
    if sigma < 0.5:
        turns = [angle + 2 * mpmath.pi * k for k in range(-3, 4)]
        total = mpmath.fsum(y / mpmath.sin(y / 2) * mpmath.exp(-(y**2) / (2 * sigma**2)) for y in turns)
        return mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(sigma**2 / 8) / sigma**3 * total
    return mpmath.fsum(
        (2 * n + 1) * mpmath.exp(-n * (n + 1) * sigma**2 / 2) * mpmath.sin((n + 0.5) * angle) / mpmath.sin(angle / 2)
        for n in range(int(13 / sigma) + 2)
    )


def about(angle, dtype):
    """Return the quaternion of a rotation by `angle` from `MEAN`, about some axis, rounded to a dtype, and the mean."""
    mean = MEAN.astype(dtype)
    m = [mpmath.mpf(float(x)) for x in mean]
    size = mpmath.sqrt(sum(x * x for x in m))
    m = [x / size for x in m]
    c, s = mpmath.cos(mpmath.mpf(angle) / 2), mpmath.sin(mpmath.mpf(angle) / 2)
    v = [s * mpmath.mpf(2) / 3, s * mpmath.mpf(-1) / 3, s * mpmath.mpf(2) / 3]
    q = [
        m[0] * c - m[1] * v[0] - m[2] * v[1] - m[3] * v[2],
        m[1] * c + m[0] * v[0] + m[2] * v[2] - m[3] * v[1],
        m[2] * c + m[0] * v[1] + m[3] * v[0] - m[1] * v[2],
        m[3] * c + m[0] * v[2] + m[1] * v[1] - m[2] * v[0],
    ]
    q = np.array([float(x) for x in q], dtype)
    # The exact angle between the rounded quaternions, from the chord between both.
    given = [mpmath.mpf(float(x)) for x in q]
    length = mpmath.sqrt(sum(x * x for x in given))
    chord = mpmath.sqrt(sum((x / length - y) ** 2 for x, y in zip(given, m, strict=True)))
    return q, mean, 4 * mpmath.asin(chord / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sigma", SCALES)
def test_density_and_score(dtype, sigma):
    sigma = float(np.dtype(dtype).type(sigma))
    reach = min(sigma, 0.6)
    angles = [x for x in (0.01 * reach, 0.7 * reach, 2 * reach, 5 * reach, 1.0, 1.49, 1.51, 2.5, 3.1) if x < 3.14]
    limit = {"float32": 1.5e-6, "float64": 2e-14}[dtype]
    with mpmath.workdps(40), jax.enable_x64(dtype == "float64"):
        for angle in angles:
            q, mean, exact = about(angle, dtype)
            distribution = IsotropicGaussianSO3(mean, np.dtype(dtype).type(sigma))
            expected = float(mpmath.log(density(exact, sigma)))
            slope = float(mpmath.diff(lambda y: mpmath.log(density(y, sigma)), exact))
            size = max(abs(slope), 1e-30)
            # In float32, the rounding error of the normalised mean is known.
            rounded = 4 * float(np.finfo(dtype).eps)
            error = limit * max(1, abs(expected)) + (rounded * size if dtype == "float64" else 0)
            assert distribution.log_prob(q) == pytest.approx(expected, abs=error)
            assert distribution.log_prob(-4 * q) == pytest.approx(expected, abs=error + rounded * size)
            score = np.asarray(distribution.score(q), float)
            # The error of the angle itself, near pi, is absolute.
            small = limit * (1 + 20 * float(mpmath.pi - exact < 0.1)) + rounded / float(exact)
            assert score @ [2 / 3, -1 / 3, 2 / 3] == pytest.approx(slope, abs=small * size + 1e-12)
            # Its direction is that of the axis, as exact as the components of a small difference are.
            rounding = float(np.finfo(dtype).eps) / min(angle, 1.0)
            np.testing.assert_allclose(
                score, slope * np.array([2, -1, 2]) / 3, atol=(small + 4 * rounding) * size + 1e-12
            )


QUANTILES = [
    (dtype, s, upper)
    for upper in (True, False)
    for s in (1e-4, 0.1, 0.28, 0.5, 0.85, 1.2, 2.0, 20.0)
    for dtype in DTYPES
]
QUICK = [("float32", 0.85, False), ("float32", 2.0, True)]
MORE = [("float64", 0.28, False), ("float64", 1.2, True), ("float32", 1e-4, True), ("float32", 20.0, False)]


@pytest.mark.parametrize(
    ("dtype", "sigma", "upper"),
    [*QUICK, *more(*MORE), *slow(*(case for case in QUANTILES if case not in QUICK + MORE))],
)
def test_quantiles_into_the_tails(dtype, sigma, upper):
    smallest = {"float32": 2.0**-33, "float64": 2.0**-65}[dtype]
    t = np.exp(np.linspace(np.log(smallest), np.log(0.5), 9)).astype(dtype)
    t[-1] = 0.5
    limit, eps = {"float32": 4e-6, "float64": 1e-12}[dtype], np.finfo(dtype).eps
    scale = float(np.dtype(dtype).type(sigma))
    with jax.enable_x64(dtype == "float64"):
        signed = jax.jit(numerics.quantile)(t, np.full(9, upper), np.full(9, scale, dtype))
    with mpmath.workdps(25):
        for tail, x in zip(t, np.asarray(signed, float), strict=True):
            # Far from 0, integrate over pi minus the angle, which has all its digits.
            rest = mpmath.mpf(-x) if x < 0 else mpmath.pi - mpmath.mpf(x)
            angle = mpmath.pi - rest if x < 0 else mpmath.mpf(x)

            def p(y):
                return 2 / mpmath.pi * mpmath.sin(y / 2) ** 2 * density(y, scale)

            def p_from_pi(u):
                return 2 / mpmath.pi * mpmath.cos(u / 2) ** 2 * density(mpmath.pi - u, scale)

            if upper:
                least = max(0, rest - 12 * scale)
                ends = mpmath.linspace(least, rest, 3 + int((rest - least) / (2 * scale)))
                mass = mpmath.quad(p_from_pi, ends)
            else:
                mass = mpmath.quad(p, mpmath.linspace(0, angle, 4))
            error = abs(float(mass / mpmath.mpf(float(tail)) - 1))
            assert error < limit or error * float(mass / p(angle)) < 4 * eps * abs(x)


@pytest.mark.more
@pytest.mark.parametrize(("method", "sigma"), [("table", 0.05), ("direct", 1.0), ("table", 1.5), ("direct", np.inf)])
def test_draws(method, sigma):
    distribution = IsotropicGaussianSO3(MEAN, sigma)
    q = np.asarray(distribution.sample(jax.random.key(4), (40_000,), method=method), float)
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1, atol=4e-7)
    scalar, vector = (np.asarray(x, float) for x in numerics.relative(jnp.asarray(MEAN), jnp.asarray(q)))
    assert np.all(scalar >= 0)
    axis = vector / np.linalg.norm(vector, axis=1)[:, None]
    for j in range(3):  # uniform in [-1, 1], by Archimedes
        assert scipy.stats.kstest(axis[:, j], scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-4
    angle = 2 * np.arctan2(np.linalg.norm(vector, axis=1), scalar)
    grid = np.linspace(0, np.pi, 20_001)[1:-1]
    f = np.array([float(density(x, min(sigma, 20))) for x in grid[::20]])
    p = 2 / np.pi * np.sin(grid[::20] / 2) ** 2 * f
    total = np.concatenate([[0], np.cumsum((p[1:] + p[:-1]) / 2) * (grid[20] - grid[0])])
    assert scipy.stats.kstest(angle, lambda x: np.interp(x, grid[::20], total)).pvalue > 1e-4


@pytest.mark.slow
def test_derivative_of_draws():
    def draw(sigma, method="direct"):
        return IsotropicGaussianSO3(MEAN, sigma).sample(jax.random.key(1), (50,), method=method)

    with jax.enable_x64(True):
        for sigma in (1e-3, 0.4, 0.7, 1.1, 2.0):
            step = 1e-5 * sigma
            expected = (draw(sigma + step) - draw(sigma - step)) / (2 * step)
            found = jax.jacfwd(draw)(sigma)
            np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())
            np.testing.assert_allclose(jax.jacrev(lambda s: draw(s, "table"))(sigma), found, atol=1e-9)
        # A point mass moves like the smallest distributions do.
        np.testing.assert_allclose(jax.jacfwd(draw)(0.0), jax.jacfwd(draw)(1e-9), rtol=1e-6)


@pytest.mark.slow
def test_derivatives_of_log_prob():
    q = IsotropicGaussianSO3(MEAN, 0.8).sample(jax.random.key(2))
    with jax.enable_x64(True):
        q, mean = np.asarray(q, float), jnp.asarray(MEAN)

        def log_prob(value, mean, sigma):
            return IsotropicGaussianSO3(mean, sigma).log_prob(value)

        for sigma in (0.05, 0.7, 0.75, 1.5):
            check_grads(log_prob, (q, mean, sigma), order=1, rtol=1e-5)
            same = MEAN / np.linalg.norm(MEAN)
            assert np.all(np.isfinite(jax.grad(log_prob)(same, mean, sigma)))


@pytest.mark.more
def test_conventions():
    q = IsotropicGaussianSO3(MEAN, 0.8).sample(jax.random.key(2), (5,))
    scalar, vector = numerics.relative(jnp.asarray(MEAN, jnp.float32), q)
    angle = np.asarray(2 * jnp.arctan2(jnp.linalg.norm(vector, axis=1), scalar), float)
    # sigma^2 as the time of a Brownian motion, and epsilon^2 as half of it
    for weight, sigma in (
        (lambda n: np.exp(-n * (n + 1) * 0.6 / 2), 0.6**0.5),
        (lambda n: np.exp(-n * (n + 1) * 0.36), 2**0.5 * 0.6),
    ):
        f = sum((2 * n + 1) * weight(n) * np.sin((n + 0.5) * angle) / np.sin(angle / 2) for n in range(30))
        np.testing.assert_allclose(IsotropicGaussianSO3(MEAN, sigma).prob(q), f, rtol=3e-6)
    # Small rotations are normal vectors with this standard deviation.
    small = IsotropicGaussianSO3([1.0, 0, 0, 0], 0.01).sample(jax.random.key(0), (100_000,))
    np.testing.assert_allclose(np.std(2 * np.asarray(small)[:, 1:], axis=0), 0.01, rtol=0.01)
    # Densities are with respect to the uniform distribution.
    assert IsotropicGaussianSO3(MEAN, np.inf).log_prob(q[0]) == 0


@pytest.mark.parametrize(
    ("dtype", "sigma"),
    [
        *more(("float32", 0.5), ("float64", 0.01), ("float32", 1.0), ("float64", 2.0)),
    ],
)
def test_expected_score_norm(dtype, sigma):
    limit = {"float32": 2e-6, "float64": 1e-12}[dtype]
    sigma = np.dtype(dtype).type(sigma)
    scale = float(sigma)

    def term(y):
        slope = mpmath.diff(lambda z: mpmath.log(density(z, scale)), y)
        return 2 / mpmath.pi * mpmath.sin(y / 2) ** 2 * density(y, scale) * slope**2

    with jax.enable_x64(dtype == "float64"), mpmath.workdps(30):
        least = mpmath.mpf(10) ** -12
        end = min(mpmath.pi - least, mpmath.mpf(15) * scale)
        expected = float(mpmath.sqrt(mpmath.quad(term, mpmath.linspace(least, end, 4), maxdegree=5)))
        found = IsotropicGaussianSO3(MEAN.astype(dtype), sigma).expected_score_norm()
        assert found == pytest.approx(expected, rel=limit)
        edges = IsotropicGaussianSO3(MEAN.astype(dtype), np.array([0, 1e-20, np.inf], dtype)).expected_score_norm()
        np.testing.assert_allclose(edges, [np.inf, 3**0.5 / 1e-20, 0], rtol=1e-6)


def test_words_are_frozen():
    later = IsotropicGaussianSO3([1.0, 0, 0, 0], np.ones(3)).sample(jax.random.key(0))
    np.testing.assert_allclose(later[:2], FROZEN, atol=1e-6)


FROZEN = ((0.8824732, 0.1879103, 0.0906343, 0.4215639), (0.7918537, -0.0211785, -0.4092634, -0.4527943))


@pytest.mark.more
def test_edges_and_bad_input():
    key = jax.random.key(0)
    point = IsotropicGaussianSO3(MEAN, 0.0)
    np.testing.assert_allclose(point.sample(key, (3,)), np.tile(MEAN / np.linalg.norm(MEAN), (3, 1)), atol=1e-7)
    assert point.log_prob(MEAN) == np.inf
    assert point.log_prob([1.0, 0, 0, 0]) == -np.inf
    bad = IsotropicGaussianSO3(MEAN, [-1.0, np.nan])
    assert np.all(np.isnan(bad.sample(key)))
    assert np.all(np.isnan(bad.log_prob(MEAN)))
    assert np.all(np.isnan(bad.expected_score_norm()))
    assert np.all(np.isnan(IsotropicGaussianSO3(np.zeros(4), 1.0).sample(key)))
    with pytest.raises(ValueError, match="scale is -1, but must be"):
        IsotropicGaussianSO3(MEAN, -1.0, validate_args=True)
    with pytest.raises(ValueError, match="mean"):
        IsotropicGaussianSO3([1.0, 0, 0], 1.0)
    with pytest.raises(ValueError, match="value"):
        IsotropicGaussianSO3(MEAN, 1.0).log_prob(np.ones(3))
    with pytest.raises(TypeError, match="scale"):
        IsotropicGaussianSO3(MEAN, "1")


def test_score_of_tiny_scales():
    for scale in (1e-12, 1e-9, 1e-7):
        for half in (0.1, 0.49, 0.51, 1.5):
            q = np.float32([np.cos(half), np.sin(half), 0, 0])
            score = IsotropicGaussianSO3([1.0, 0, 0, 0], scale).score(q)
            np.testing.assert_allclose(score, [-2 * half / np.float32(scale) ** 2, 0, 0], rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-7, 0.05, 0.79, 1.0, 2.0])
def test_derivatives_of_the_score_at_the_mean(scale):
    """At the mean, the score changes like that of a normal distribution, and not with the scale."""
    mean = jnp.array([1.0, 0, 0, 0])

    def score(q, scale):
        return IsotropicGaussianSO3(mean, scale).score(q)

    by_value, by_scale = jax.jacfwd(score, (0, 1))(mean, scale)
    step = 1e-2 * min(scale, 1.0)
    small = score(jnp.array([np.cos(step / 2), np.sin(step / 2), 0, 0], jnp.float32), scale)[0] / step
    np.testing.assert_allclose(by_value[:, 1:], 2 * small * np.eye(3), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(by_scale, 0)
    q = IsotropicGaussianSO3(mean, scale).sample(jax.random.key(0), (1_000,))
    assert np.all(np.isfinite(jax.jacfwd(score, 1)(q, scale)))


@pytest.mark.slow
def test_derivative_of_the_expected_score_norm():
    def norm(scale):
        return IsotropicGaussianSO3(jnp.array([1.0, 0, 0, 0]), scale).expected_score_norm()

    for scale in (1e-7, 1e-3):
        np.testing.assert_allclose(jax.grad(norm)(scale), -(3**0.5) / np.float32(scale) ** 2, rtol=1e-5)
    for scale in (8.0, 31.0, np.inf):
        assert jax.grad(norm)(scale) == 0


@pytest.mark.slow
def test_half_precision_rounds_float32():
    dtype = jnp.bfloat16
    given = jnp.asarray(MEAN, dtype), jnp.asarray(0.5, dtype)
    narrow, full = IsotropicGaussianSO3(*given), IsotropicGaussianSO3(*(x.astype(jnp.float32) for x in given))
    draws = narrow.sample(jax.random.key(0), (100,))
    assert draws.dtype == narrow.log_prob(draws).dtype == narrow.score(draws).dtype == dtype
    expected = full.sample(jax.random.key(0), (100,))
    tolerance = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(draws.astype(jnp.float32), expected, atol=tolerance)
    density = full.log_prob(draws.astype(jnp.float32))
    np.testing.assert_allclose(narrow.log_prob(draws).astype(jnp.float32), density, rtol=tolerance, atol=tolerance)

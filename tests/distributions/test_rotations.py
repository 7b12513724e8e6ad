"""Check the isotropic Gaussian distribution of rotations against mpmath, differences and its own draws."""

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from jax.test_util import check_grads

from jax_von_mises.rotations import IsotropicGaussianSO3, angle_between, exp, multiply, to_matrix
from jax_von_mises.rotations import heat as numerics
from tests.marks import more, slow

SCALES = (1e-4, 0.02, 0.3, 0.59, 0.61, 0.79, 0.81, 0.89, 0.91, 1.2, 1.24, 1.26, 1.7, 3.0, 20.0)
MEAN = np.array([0.8, -0.3, 0.4, 0.2])
DTYPES = ("float32", "float64")
WIDE = (1e-3, 0.1, 0.5, 0.85, 1.3, 3.0)


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


def mean_over_rotations(of, sigma, angle):
    """Return the mean of `of(angle)` over rotations about a mean at `angle`, by rules in pieces, in float64."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    nodes, weights = 0.5 * (nodes + 1), 0.5 * weights

    def pieces(*ends):
        ends = [np.asarray(end, float)[..., None] for end in ends]
        for low, high in itertools.pairwise(ends):
            yield low + (high - low) * nodes, (high - low) * weights

    log_f = jax.jit(lambda x, s: numerics.Kernel.of(s).log_density(numerics.Angle(x, np.pi - x)))
    # Geometric pieces towards the place where a turn by `angle` may first reach the opposite rotations.
    border, reach = np.pi - angle, min(12 * sigma, np.pi)
    steps = np.geomspace(1e-5, np.pi, 14)
    ends = sorted({0.0, reach, *(x for step in (0, *steps, *-steps) if 0 < (x := border + step) < reach)})
    total = norm = 0.0
    for w, weight in pieces(*ends):
        weight = weight * np.sin(w / 2) ** 2 * np.exp(np.asarray(log_f(w, np.float64(sigma))))
        low, high = np.cos((angle + w) / 2), np.cos((angle - w) / 2)
        inner = [np.clip(0.0, low, high) + sign * step for sign in (-1, 1) for step in (0, *steps)]
        inner = [np.clip(end, low, high) for end in sorted(inner, key=np.min)]
        means = 0
        for u, each in pieces(low, *inner, high):
            means = means + np.sum(each * of(2 * np.arccos(np.minimum(np.abs(u), 1))), -1)
        flat = high - low < 1e-12
        means = np.where(flat, of(w), means / np.where(flat, 1, high - low))
        total, norm = total + np.sum(weight * means), norm + np.sum(weight)
    return total / norm


@pytest.mark.parametrize(("dtype", "scales"), [("float32", (0.1, 0.85)), *more(*((each, WIDE) for each in DTYPES))])
def test_entropy_and_divergence(dtype, scales):
    """Against rules in many pieces; the error bounds are those of the docstrings."""
    of, axis = np.dtype(dtype).type, np.array([2, -1, 2]) / 3
    with jax.enable_x64(dtype == "float64"):
        entropies = np.asarray(IsotropicGaussianSO3(np.eye(4, dtype=dtype)[0], of(scales)).entropy(), float)
        second = IsotropicGaussianSO3(np.eye(4, dtype=dtype)[0], of(scales))
        angles = (0.0, 0.3, 2.5, np.pi)
        means = np.array([[np.cos(a / 2), *(np.sin(a / 2) * axis)] for a in angles], dtype)
        first = IsotropicGaussianSO3(means[:, None, None], of(scales)[:, None])
        found = np.asarray(first.kl_divergence(second), float)
    with jax.enable_x64(True):
        log_f = jax.jit(lambda x, s: numerics.Kernel.of(s).log_density(numerics.Angle(x, np.pi - x)))
        for i, s in enumerate(float(of(s)) for s in scales):
            own = mean_over_rotations(lambda x, s=s: np.asarray(log_f(x, np.float64(s))), s, 0.0)
            assert entropies[i] == pytest.approx(
                -own, abs=max(1, abs(own)) * {"float32": 1e-6, "float64": 1e-13}[dtype]
            )
            for j, other in enumerate(float(of(s)) for s in scales):
                for k, angle in enumerate(angles):
                    mean = mean_over_rotations(lambda x, other=other: np.asarray(log_f(x, np.float64(other))), s, angle)
                    # The rounding of the quaternion moves the angle.
                    rounding = 4 * angle * float(np.finfo(dtype).eps) / other**2 * (other < 0.5)
                    limit = {"float32": 4e-6, "float64": 4e-8}[dtype] * max(1, own - mean) + rounding
                    assert found[k, i, j] == pytest.approx(own - mean, abs=limit)


@pytest.mark.more
def test_derivatives_of_entropy_and_divergence():
    with jax.enable_x64(True):
        check_grads(lambda s: IsotropicGaussianSO3(MEAN, s).entropy(), (np.array([0.1, 0.7, 2.0]),), 1, rtol=1e-6)

        def divergence(mean, scale, other):
            return IsotropicGaussianSO3(mean, scale).kl_divergence(IsotropicGaussianSO3(MEAN, other))

        for mean in (MEAN + [0.1, 0.0, 0.2, 0.0], MEAN[[1, 0, 3, 2]] * [-1, 1, -1, 1]):  # the second is opposite
            for scales in ((0.2, 0.5), (0.7, 1.3), (2.0, 0.5)):
                check_grads(divergence, (mean, *scales), 1, rtol=1e-5, atol=1e-4)
        slopes = jax.grad(divergence, (0, 1, 2))(MEAN, 0.5, 0.5)
        np.testing.assert_allclose(np.concatenate([slopes[0], slopes[1:]]), 0, atol=1e-6)


def test_fit_of_draws(key):
    """Within four standard errors, those of the large sample."""
    x = IsotropicGaussianSO3(np.float32(MEAN), 0.6).sample(key, (4_000,))
    found = IsotropicGaussianSO3.fit(x)
    assert found.scale == pytest.approx(0.6, abs=4 * 0.6 / np.sqrt(6 * 4_000))
    assert angle_between(found.mean_rotation, np.float32(MEAN)) < 4 * 0.6 * np.sqrt(3 / 4_000)
    score = np.asarray(found.score(x), float)
    np.testing.assert_allclose(score.mean(0), 0, atol=1e-5)


def test_divergence_of_points_and_uniform_distributions():
    scales = np.float32([0, 0, 1, np.inf, np.inf, 1, -1, 1, 0])
    others = np.float32([0, 1, 0, np.inf, 1, np.inf, 1, np.nan, 0])
    means = np.broadcast_to(np.float32(MEAN), (9, 4)).copy()
    means[-1] = [1, 0, 0, 0]
    found = IsotropicGaussianSO3(means, scales).kl_divergence(IsotropicGaussianSO3(np.float32(MEAN), others))
    np.testing.assert_allclose(found, [0, np.inf, np.inf, 0, 0.582453, 0.516676, np.nan, np.nan, np.inf], rtol=4e-6)
    found = IsotropicGaussianSO3(np.float32(MEAN), scales[[0, 3, 6]]).kl_to_uniform()
    np.testing.assert_array_equal(found, [np.inf, 0, np.nan])
    # Narrow distributions, from an opposite mean and from the uniform distribution.
    tiny = np.float32([1e-4, 1e-8, 1e-15])
    narrow = IsotropicGaussianSO3(np.float32([1, 0, 0, 0]), tiny)
    found = IsotropicGaussianSO3(np.float32([0, 1, 0, 0]), tiny).kl_divergence(narrow) * tiny**2
    np.testing.assert_allclose(found, np.pi**2 / 2, rtol=1e-4)
    found = IsotropicGaussianSO3(np.float32([1, 0, 0, 0]), np.float32(np.inf)).kl_divergence(narrow) * tiny**2
    np.testing.assert_allclose(found, (np.pi**2 / 3 + 2) / 2, rtol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize("dtype", DTYPES)
def test_fit(dtype):
    """An independent optimiser finds no larger likelihood near the estimate, whose derivatives vanish."""
    scales = np.array([1e-3, 0.05, 0.5, 0.8, 1.0, 1.4, 2.0], dtype)
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        for number in (3, 10, 100):
            x = IsotropicGaussianSO3(MEAN.astype(dtype), scales).sample(jax.random.key(number), (number,))
            found = IsotropicGaussianSO3.fit(x, axis=0)
            limit = {"float32": 1e-4, "float64": 1e-10}[dtype]
            with jax.enable_x64(True):
                wide = [np.asarray(each, np.float64) for each in (found.mean_rotation, found.scale, x)]

                def loss(move, mean, scale, x):
                    q = multiply(mean, exp(scale * move[:3]))
                    return -jnp.mean(IsotropicGaussianSO3(q, scale * jnp.exp(move[3])).log_prob(x))

                for mean, scale, sample in zip(*wide[:2], np.swapaxes(wide[2], 0, 1), strict=True):
                    slope = jax.jit(jax.grad(loss))
                    result = scipy.optimize.minimize(
                        jax.jit(loss),
                        0.05 * rng.normal(size=4),
                        (mean, scale, sample),
                        "BFGS",
                        jac=slope,
                        options={"gtol": 1e-10},
                    )
                    np.testing.assert_allclose(
                        slope(np.zeros(4), mean, scale, sample), 0, atol=limit * max(1, 0.1 / scale)
                    )
                    np.testing.assert_allclose(result.x, 0, atol=max(limit * max(1, 0.1 / scale), 2e-6))
                    assert loss(np.zeros(4), mean, scale, sample) - result.fun < limit


@pytest.mark.more
def test_fit_of_sets_weights_and_matrices(key):
    x = IsotropicGaussianSO3(np.float32(MEAN), [0.3, 1.0]).sample(key, (40,))
    both = IsotropicGaussianSO3.fit(x, axis=0)
    for i in range(2):
        for given in (x[:, i], -2 * x[:, i], to_matrix(x[:, i])):
            one = IsotropicGaussianSO3.fit(given)
            np.testing.assert_allclose(one.mean_rotation, both.mean_rotation[i], atol=2e-6)
            np.testing.assert_allclose(one.scale, both.scale[i], rtol=1e-5)
    inside = jax.jit(jax.vmap(IsotropicGaussianSO3.fit, 1))(x)
    np.testing.assert_allclose(inside.scale, both.scale, rtol=1e-5)
    weights = np.arange(40.0) % 3
    repeated = np.repeat(x[:, 0], weights.astype(int), 0)
    one, other = IsotropicGaussianSO3.fit(x[:, 0], weights), IsotropicGaussianSO3.fit(repeated)
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-5)
    # Means of rotation matrices that are 0 are those of the uniform distribution.
    assert 3.9 < IsotropicGaussianSO3.fit(np.eye(4, dtype=np.float32)).scale < 4.1
    equal = IsotropicGaussianSO3.fit(np.tile(np.float32(MEAN), (5, 1)))
    assert equal.scale < 1e-6
    for bad in (np.zeros((0, 4)), np.zeros((3, 4)), 2 * np.eye(3)[None]):
        assert np.isnan(IsotropicGaussianSO3.fit(np.float32(bad)).scale)
    assert np.isnan(IsotropicGaussianSO3.fit(x[:, 0], -weights).scale)

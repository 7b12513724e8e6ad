"""Compare the wrapped Cauchy, cardioid and wrapped normal distributions with mpmath and with other computations."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

from jax_von_mises import Cardioid, WrappedCauchy, WrappedNormal
from jax_von_mises.circle import named
from tests.goodness_of_fit import P_VALUE

slow = pytest.mark.slow
RHO = [0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6]
HALF_RHO = [0.0, 1e-6, 0.1, 0.4, 0.4999, 0.5]
SCALES = [1e-3, 0.1, 1.0, 2.4, 2.6, 5.0, 30.0]
ANGLES = np.concatenate([[-np.pi, -3.1415, -3.0, -1.0], [-1e-3, -1e-6, 0.0, 1e-4, 0.3, 2.0, 3.1]])
TAILS = np.concatenate([2.0 ** -np.arange(33.0, 3.0, -3.0), [0.2, 0.4, 0.49, 0.5]])


def wrapped_cauchy(x, rho):
    return (1 - rho**2) / (2 * mpmath.pi * (1 + rho**2 - 2 * rho * mpmath.cos(x)))


def cardioid(x, rho):
    return (1 + 2 * rho * mpmath.cos(x)) / (2 * mpmath.pi)


def wrapped_normal(x, scale):
    turns = range(-60, 61)
    return sum(mpmath.npdf(x + 2 * mpmath.pi * k, 0, scale) for k in turns)


def exact(function, x, shape):
    with mpmath.workdps(40):
        return np.array([[function(mpmath.mpf(float(a)), mpmath.mpf(float(s))) for a in x] for s in shape])


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
@pytest.mark.parametrize(
    ("log_density", "reference", "shape"),
    [
        (named.cauchy_log_density, wrapped_cauchy, RHO),
        (named.cardioid_log_density, cardioid, HALF_RHO),
        (named.normal_log_density, wrapped_normal, SCALES),
    ],
)
def test_densities(log_density, reference, shape, dtype):
    """They agree with mpmath at 40 digits, over all parameters and into the tails."""
    x, shape = np.asarray(ANGLES, dtype), np.asarray(shape, dtype)
    with jax.enable_x64(dtype == np.float64):
        found = np.asarray(jax.jit(jax.vmap(lambda s: log_density(x, s)))(shape))
    with mpmath.workdps(40):
        expected = np.vectorize(lambda p: mpmath.log(p) if p > 0 else mpmath.mpf("-inf"))(exact(reference, x, shape))
        error = np.vectorize(lambda f, e: 0 if f == e else abs(f - e) / max(1, abs(e)))(found.astype(float), expected)
    # Next to pi, the cardioid density with rho = 1/2 depends on the rounding of pi.
    assert np.asarray(error, float)[:, 1:].max() < (2e-6 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
@pytest.mark.parametrize(
    ("quantile", "lower_tail", "shape"),
    [
        (named.cauchy_quantile, named.cauchy_lower_tail, RHO),
        (named.cardioid_quantile, named.cardioid_lower_tail, HALF_RHO),
        (named.distance_of_normal, named.wrapped_normal_lower_tail, [1e-20, *SCALES[:3], 1.4999, 1.5, *SCALES[3:]]),
    ],
)
def test_tails(quantile, lower_tail, shape, dtype):
    """A quantile has the tail that was asked for, as does the distribution function, by closed forms of mpmath."""
    t, shape = (x.reshape(-1) for x in np.meshgrid(np.asarray(TAILS, dtype), np.asarray(shape, dtype)))
    with jax.enable_x64(dtype == np.float64):
        distance = np.asarray(jax.jit(quantile)(t, (0.5 - t).astype(dtype), shape))
        tail = np.asarray(jax.jit(lower_tail)(-distance, shape))

    def closed(x, s):
        if quantile is named.cauchy_quantile:
            return mpmath.atan2((1 - s) * mpmath.cos(x / 2), (1 + s) * mpmath.sin(x / 2)) / mpmath.pi
        if quantile is named.distance_of_normal:
            ends = ((x + 2 * mpmath.pi * j, 2 * mpmath.pi * (j + 1) - x) for j in range(60))
            return (
                sum(
                    mpmath.erfc(low / s / mpmath.sqrt(2)) - mpmath.erfc(high / s / mpmath.sqrt(2)) for low, high in ends
                )
                / 2
            )
        return ((mpmath.pi - x) - 2 * s * mpmath.sin(mpmath.pi - x)) / (2 * mpmath.pi)

    limit = 3e-6 if dtype == np.float32 else 1e-14
    if quantile is named.distance_of_normal:
        limit = 2e-5 if dtype == np.float32 else 1e-12
    with mpmath.workdps(40):
        for row in zip(t, shape, distance, tail, strict=True):
            ulp = 4 * float(np.spacing(row[2]))
            asked, s, x, p = map(float, row)
            low = 0 if x + ulp > np.pi else closed(mpmath.mpf(x + ulp), mpmath.mpf(s))
            high = closed(mpmath.mpf(x - ulp), mpmath.mpf(s))
            assert low * (1 - limit) <= asked <= high * (1 + limit), row
            assert low * (1 - limit) <= p <= high * (1 + limit), row


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
def test_draws_of_wide_normals(dtype, key):
    """They have the wrapped normal distribution at every scale, by its Fourier series, and are not on a lattice."""
    scale = np.asarray([5, 8, 9, 20, 1e8, np.inf], dtype)
    with jax.enable_x64(dtype == np.float64):
        draw = jax.jit(lambda scale: WrappedNormal(dtype(0.3), scale).sample(key, (50_000,)))
        x, slope = (np.asarray(found, float) for found in jax.jvp(draw, (scale,), (np.ones_like(scale),)))
    assert np.isfinite(slope).all()
    assert (slope[:, :3] != 0).any(0).all()
    for s, column in zip(scale.astype(float), x.T, strict=True):
        terms = [np.exp(-0.5 * (k * s) ** 2) * (np.sin(k * (column - 0.3))) / (np.pi * k) for k in (1, 2)]
        assert stats.kstest(0.5 + column / (2 * np.pi) + sum(terms), "uniform").pvalue > P_VALUE
        assert len(np.unique(column)) > 0.97 * len(column)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
def test_narrow_normals(dtype):
    """Densities and their derivatives are those of the normal distribution, down to the smallest normal scale."""
    tiny = float(np.finfo(dtype).tiny)
    scale, z = np.meshgrid(
        np.asarray([tiny, tiny**0.8, 1e-20, 1e-19, 1e-12, 1e-6], dtype), np.asarray([0, 1, 1.25, 1.5])
    )
    scale = scale.astype(dtype).reshape(-1)
    x = (scale * z.reshape(-1)).astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        both = jax.jit(jax.vmap(jax.value_and_grad(named.normal_log_density, (0, 1))))
        found, (in_x, in_scale) = jax.tree.map(lambda leaf: np.asarray(leaf, float), both(x, scale))
        far = named.normal_log_density(np.asarray([1.0, np.pi], dtype), np.full(2, tiny, dtype))
    scale, x = scale.astype(float), x.astype(float)
    z, limit = x / scale, 2e-6 if dtype == np.float32 else 1e-13
    expected = -0.5 * z**2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=limit)
    np.testing.assert_allclose(in_x * scale, -z, rtol=limit, atol=limit)
    np.testing.assert_allclose(in_scale * scale, z**2 - 1, rtol=limit, atol=limit)
    assert np.isneginf(far).all()


def test_narrow_normals_at_large_angles():
    """The density of an angle near the antipode stays small, although its reduction to one turn is inexact."""
    x = np.arange(1e6, 1e6 + 400, dtype=np.float32)
    assert (np.asarray(WrappedNormal(0.0, 0.01).log_prob(x)) < 4).all()
    assert np.asarray(WrappedNormal(0.0, 1e-5).log_prob(x)).max() < 11


@pytest.mark.parametrize(
    ("make", "density", "rho"),
    [
        (WrappedCauchy, wrapped_cauchy, 0.0),
        pytest.param(WrappedCauchy, wrapped_cauchy, 1 - 2.0**-23, marks=slow),
        (Cardioid, cardioid, 0.0),
        pytest.param(Cardioid, cardioid, 0.3, marks=slow),
        (Cardioid, cardioid, 0.5),
    ],
)
def test_derivatives_at_the_ends(make, density, rho):
    """Those of densities, probabilities and quantiles are exact at the ends of the parameters and of the circle."""
    with mpmath.workdps(30):
        pi = mpmath.pi
        for x in (-np.pi, 0.0, 1.0):
            if rho > 0.9 and x != 1:
                continue
            at = -pi if x < -3 else mpmath.mpf(x)

            def probability(rho, at=at):
                if make is Cardioid:
                    return (at + pi + 2 * rho * mpmath.sin(at)) / (2 * pi)
                return 0.5 + mpmath.atan2((1 + rho) * mpmath.sin(at / 2), (1 - rho) * mpmath.cos(at / 2)) / pi

            here = density(at, rho)
            in_rho = mpmath.diff(probability, rho) if at > -pi else mpmath.mpf(0)
            of_cdf = [float(each) for each in (here, -here, in_rho)]
            found = jax.grad(lambda x, loc, rho: make(loc, rho).cdf(x), (0, 1, 2))(x, 0.0, rho)
            np.testing.assert_allclose(found, of_cdf, rtol=1e-5, atol=1e-6)
            if rho == 0.5 and x < -3:  # the density is 0
                continue
            of_icdf = [float(each) for each in (1 / here, 1, -in_rho / here)]
            q = np.float32(probability(rho) if at > -pi else 0)
            found = jax.grad(lambda q, loc, rho: make(loc, rho).icdf(q), (0, 1, 2))(q, 0.0, rho)
            if rho < 0.9:  # otherwise float32 cannot hold 1 - q
                np.testing.assert_allclose(found, of_icdf, rtol=1e-5, atol=1e-5)
            with_x = mpmath.diff(lambda angle: mpmath.log(density(angle, rho)), at)
            with_rho = mpmath.diff(lambda rho, at=at: mpmath.log(density(at, rho)), rho)
            found = jax.grad(lambda x, loc, rho: make(loc, rho).log_prob(x), (0, 1, 2))(x, 0.0, rho)
            np.testing.assert_allclose(found, np.array([with_x, -with_x, with_rho], float), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_infinitely_wide_normals():
    """At an infinite scale, the distribution is uniform, and nothing but `stddev` depends on the scale."""

    def results(scale):
        one = WrappedNormal(0.5, scale)
        names = ("variance", "mean_resultant_length", "mean", "entropy")
        return one.log_prob(1.0), one.cdf(1.0), one.moment(1).real, *(getattr(one, name)() for name in names)

    for each in jax.jacobian(results)(jnp.inf):
        assert each == 0
    np.testing.assert_allclose(WrappedNormal(0.5, np.inf).moment(0), 1)
    np.testing.assert_allclose(WrappedNormal(0.5, np.inf).log_prob(1.0), -np.log(2 * np.pi), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
def test_divergences(dtype):
    """They are sums over a fine grid of angles, 0 for equal laws, and infinite from a point mass or next to one."""
    x = np.linspace(-np.pi, np.pi, 2**14, endpoint=False)
    densities = {
        WrappedCauchy: lambda x, rho: (1 - rho**2) / (1 + rho**2 - 2 * rho * np.cos(x)),
        Cardioid: lambda x, rho: 1 + 2 * rho * np.cos(x),
    }
    for (make, density), most in zip(densities.items(), (0.99, 0.499), strict=True):
        loc, rho = np.array([0.3, -3.0, 2.0, 0.3], dtype), (most * np.array([0.0, 0.5, 1.0, 0.9])).astype(dtype)
        of_other = np.array([1.0, 3.1, -1.0, 0.3], dtype), (most * np.array([0.7, 0.0, 0.2, 0.9])).astype(dtype)
        with jax.enable_x64(dtype == np.float64):
            one, two = make(loc, rho), make(*of_other)
            found = np.asarray(one.kl_divergence(two), float)
            slopes = jax.grad(lambda one, two: one.kl_divergence(two).sum())(one, two)
        (loc, rho), (other_loc, other) = np.float64([loc, rho]), np.float64(of_other)
        p, q = density(x[:, None] - loc, rho), density(x[:, None] - other_loc, other)
        np.testing.assert_allclose(found, np.mean(p * np.log(p / q), 0), rtol=3e-6 if dtype == np.float32 else 1e-12)
        assert np.isfinite(slopes.rho).all()
    assert WrappedCauchy(0.0, 1.0).kl_divergence(WrappedCauchy(0.0, 0.5)) == np.inf
    assert np.isnan(Cardioid(0.0, 0.3).kl_divergence(Cardioid(np.inf, 0.3)))


def exact_score(x, scale):
    """Return the derivative of the logarithm of the wrapped normal density, by its sum over turns."""
    x, scale = mpmath.mpf(float(x)), mpmath.mpf(float(scale))
    places = [x + 2 * mpmath.pi * k for k in range(-60, 61)]
    top = max(-p * p for p in places)
    weights = [mpmath.exp((-p * p - top) / (2 * scale * scale)) for p in places]
    return -sum(w * p for w, p in zip(weights, places, strict=True)) / sum(weights) / scale**2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores(dtype):
    """They agree with mpmath at all scales, next to pi and on both sides of the change of series."""
    x = np.concatenate([np.linspace(-3.141, 3.141, 20), np.pi - np.float64([1e-2, 1e-4, 1e-6]), [0, 1e-6, -1e-3]])
    x = x.astype(dtype)
    scales = np.array([1e-6, 1e-3, 0.05, 0.1, 0.3, 1.0, 1.4999, 1.5, 2.5, 5.0, 9.0], dtype)
    with jax.enable_x64(dtype == "float64"), mpmath.workdps(60):
        found = np.asarray(WrappedNormal(np.zeros((), dtype), scales[:, None]).score(x), float)
        exact = np.array([[float(exact_score(each, scale)) for each in x] for scale in scales])
    least = np.where(scales < named.SCORE_SWITCH, 1 / scales, np.exp(-(scales.astype(float) ** 2) / 2))[:, None]
    error = np.abs(found - exact) / np.maximum(np.abs(exact), least)
    assert error.max() < {"float32": 2e-6, "float64": 1e-13}[dtype]


@pytest.mark.slow
def test_score_is_the_derivative_of_the_log_density(key):
    distribution = WrappedNormal(2.5, np.float32([0.2, 1.0, 3.0]))
    x = distribution.sample(key, (20,))
    slope = jax.vmap(jax.vmap(jax.grad(lambda x, d: d.log_prob(x)), (0, 0)), (0, None))(x, distribution.broadcast())
    np.testing.assert_allclose(distribution.score(x), slope, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.score(x + 2 * np.pi), distribution.score(x), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(
        jnp.mean(WrappedNormal(0.0, 0.7).score(WrappedNormal(0.0, 0.7).sample(key, (4000,)))), 0, atol=0.1
    )
    second = jax.grad(jax.grad(lambda x: WrappedNormal(0.0, 0.7).log_prob(x)))(0.3)
    np.testing.assert_allclose(jax.grad(lambda x: WrappedNormal(0.0, 0.7).score(x))(0.3), second, rtol=1e-4)
    for scale in (1e-15, 1e-19, 1e-20):
        assert WrappedNormal(0.5, scale).score(0.5) == 0
        np.testing.assert_allclose(WrappedNormal(0.0, scale).score(scale * scale * 1e10), -1e10, rtol=1e-6)
    assert np.isnan(WrappedNormal(0.0, -1.0).score(0.5))
    assert WrappedNormal(0.0, 0.0).score(np.float32([-1, 0, 1])).tolist() == [np.inf, 0, -np.inf]
    assert WrappedNormal(jnp.bfloat16(0), jnp.bfloat16(1)).score(jnp.bfloat16(1)).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quantiles_at_the_ends(dtype):
    """Quantiles of 0 and 1 are the ends at the limits of the parameters, and an array gives what its numbers give."""
    q = np.array([0, 0.25, 0.5, 0.75, 1], dtype)
    with jax.enable_x64(dtype == "float64"):
        for make, most in ((WrappedCauchy, 1.0), (Cardioid, 0.5)):
            for loc in (0.0, np.pi, 1.0):
                for rho in (0.0, np.finfo(dtype).tiny, 1e-10, 0.5 * most, most):
                    one = make(np.asarray(loc, dtype), np.asarray(rho, dtype))
                    for name, sign in (("icdf", 1), ("isf", -1)):
                        x = np.asarray(getattr(one, name)(q))
                        np.testing.assert_allclose(sign * (x[[0, -1]] - loc), [-np.pi, np.pi], rtol=1e-6)
                        alone = [getattr(one, name)(each) for each in q]
                        np.testing.assert_allclose(x, alone, atol=1e-3 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=slow)])
def test_entropies(dtype):
    """They are sums over a fine grid of angles, on both sides of the change of formula."""
    x = np.linspace(-np.pi, np.pi, 2**16, endpoint=False)

    def of_cardioid(rho):
        return (1 + 2 * rho * np.cos(x)) / (2 * np.pi)

    def of_normal(scale):
        return sum(stats.norm.pdf(x + 2 * np.pi * k, scale=scale) for k in range(-6, 7))

    for make, density, shape in (
        (Cardioid, of_cardioid, HALF_RHO[1:]),
        (WrappedNormal, of_normal, [1e-3, 0.1, 0.349, 0.351, 1.0, 4.0]),
    ):
        with jax.enable_x64(dtype == np.float64):
            shape = np.asarray(shape, dtype)
            found = np.asarray(make(np.zeros((), dtype), shape).entropy(), float)
        exact = [2 * np.pi * special.entr(density(s)).mean() for s in shape.astype(float)]
        np.testing.assert_allclose(found, exact, rtol=4e-7 if dtype == np.float32 else 1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "names", "limit"),
    [
        (np.float32, ("cdf", "icdf"), 2e-5),
        (np.float32, ("sf", "isf"), 2e-5),
        (np.float64, ("cdf", "isf"), 1e-12),
    ],
)
def test_tails_of_normals(dtype, names, limit):
    """Probabilities and quantiles of narrow normals are those of the normal distribution; wider ones add turns."""
    scale = dtype([0, 1e-20, 1e-3, 9e-3, 0.8])
    z = np.linspace(-3.9, 3.9, 45)[:, None]
    x, q = (z * scale).astype(dtype), np.tile(dtype([1e-9, 0.2, 0.5, 0.8])[:, None], 5)

    @jax.jit
    def evaluated(x, q, scale):
        one = WrappedNormal(dtype(0), scale)
        return getattr(one, names[0])(x), getattr(one, names[1])(q)

    def lower(x, scale):
        turns = 2 * np.pi * np.arange(-9, 10)
        return np.sum(special.ndtr((x[..., None] - turns) / scale) - special.ndtr((-np.pi - turns) / scale), -1)

    with jax.enable_x64(dtype == np.float64):
        tail, quantile = (np.asarray(found, float) for found in evaluated(x, q, scale))
    exact = special.ndtr(x[:, 1:4].astype(float) / scale[1:4].astype(float))
    exact = np.column_stack([exact, lower(x[:, 4].astype(float), float(scale[4]))])
    if names[0] == "sf":
        exact = exact[::-1]
    # Next to -pi, the sum over turns cancels, and the angle is rounded.
    rounding = 1e-10 if dtype == np.float32 else 2e-16
    np.testing.assert_allclose(tail[:, 1:], exact, rtol=limit, atol=2e-16)
    np.testing.assert_array_equal(tail[:, 0], 1 if names[0] == "cdf" else 0)
    sign = 1 if names[1] == "icdf" else -1
    exact = special.ndtri(q[:, 1:4].astype(float)) * scale[1:4] * sign
    np.testing.assert_allclose(quantile[:, 1:4], exact, rtol=limit)
    np.testing.assert_allclose(lower(sign * quantile[:, 4], float(scale[4])), q[:, 4], rtol=limit, atol=rounding)
    np.testing.assert_array_equal(quantile[:, 0], 0)

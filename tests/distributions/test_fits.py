"""Compare fits by maximum likelihood with SciPy's optimiser, which maximises densities that are written here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from jax_von_mises import (
    Cardioid,
    CircularDistribution,
    ProjectedNormal,
    SineSkewed,
    Torus,
    TruncatedVonMises,
    VonMises,
    WrappedCauchy,
    WrappedNormal,
)
from tests.marks import more

TURN = 2 * np.pi


def wrapped_cauchy(x, rho):
    return np.log((1 - rho**2) / (TURN * (1 + rho**2 - 2 * rho * np.cos(x))))


def cardioid(x, rho):
    return np.log(np.maximum(1 + 2 * rho * np.cos(x), 1e-300) / TURN)


def wrapped_normal(x, scale):
    away = (x[..., None] - np.round(x / TURN)[..., None] * TURN) + TURN * np.arange(-15, 16)
    return special.logsumexp(-0.5 * (away / scale) ** 2, -1) - np.log(scale * np.sqrt(TURN))


def von_mises(x, k):
    return -2 * k * np.sin(x / 2) ** 2 - np.log(TURN * special.i0e(k))


# For each class: the log density about 0, the values to search, and a typical one.
CLASSES = {
    WrappedCauchy: (wrapped_cauchy, (0, 1 - 1e-9), 0.6),
    Cardioid: (cardioid, (0, 0.5), 0.3),
    WrappedNormal: (wrapped_normal, (1e-3, 8), 0.9),
    VonMises: (von_mises, (0, 500), 2.0),
}
SYMMETRIC = [WrappedCauchy, Cardioid, WrappedNormal]
SKEWED = [VonMises, *more(WrappedCauchy, WrappedNormal, Cardioid)]


def best(log_density, starts, bounds):
    """Return the numbers with the largest mean log density, and that, by SciPy from several starts."""
    found = [
        optimize.minimize(
            lambda p: -np.mean(log_density(p)),
            start,
            bounds=bounds,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        for start in starts
    ]
    one = min(found, key=lambda each: each.fun)
    return one.x, -one.fun


def data(sizes=(100, 40, 7, 4)):
    """Return sets of angles of several spreads; the last are few."""
    generator = np.random.default_rng(5)
    for size, scale in zip(sizes, (0.7, 1.8, 1.0, 0.5), strict=True):
        yield generator.normal(3.0, scale, size) % TURN - np.pi + 0.3 * generator.exponential(1, size)


def apart(angle, other):
    return abs((angle - other + np.pi) % TURN - np.pi)


@pytest.mark.parametrize("kind", [WrappedCauchy, *more(Cardioid, WrappedNormal)])
def test_fit_of_symmetric(kind):
    """The likelihood is at least that of the optimiser, and the estimates are the same."""
    log_density, (low, high), typical = CLASSES[kind]
    with jax.enable_x64(True):
        for x in data():
            found = kind.fit(x)
            loc, shape = (float(getattr(found, p.name)) for p in kind.PARAMETERS)
            starts = [(at, each) for at in (-2, 0, 2) for each in (typical, 0.5 * typical)]
            wanted, most = best(lambda p, x=x: log_density(x - p[0], p[1]), starts, [(-9, 9), (low, high)])
            assert float(np.mean(log_density(x - loc, shape))) >= most - 1e-9
            assert apart(loc, wanted[0]) < 2e-5
            assert abs(shape - wanted[1]) < 2e-5


@pytest.mark.parametrize("kind", SKEWED)
def test_fit_of_skewed(kind):
    log_density, bounds, typical = CLASSES[kind]

    def skewed(x, p):
        return log_density(x - p[0], p[1]) + np.log(np.maximum(1 + p[2] * np.sin(x - p[0]), 1e-300))

    with jax.enable_x64(True):
        for x in data():
            found = SineSkewed.fit(x, kind)
            own = [getattr(found.distribution, p.name) for p in kind.PARAMETERS]
            numbers = np.array([float(each) for each in (*own, found.skewness)])
            starts = [(at, typical, skew) for at in (-2, 0, 2) for skew in (-0.6, 0.6)]
            wanted, most = best(lambda p, x=x: skewed(x, p), starts, [(-9, 9), bounds, (-1, 1)])
            value = float(np.mean(skewed(x, numbers)))
            assert value >= most - 1e-9
            # A skewed cardioid has two sets of parameters with the same density.
            if value < most + 1e-9 and kind is not Cardioid:
                assert apart(numbers[0], wanted[0]) < 1e-3
                np.testing.assert_allclose(numbers[1:], wanted[1:], rtol=1e-3, atol=1e-3)


FITS = more(WrappedCauchy.fit, WrappedNormal.fit, functools.partial(SineSkewed.fit, distribution=VonMises))


@pytest.mark.parametrize("fit", FITS)
def test_sets_weights_and_transformations(fit, key):
    """Sets along an axis, weights, `jit` and `vmap` give the same as fits of one set at a time."""
    x = np.asarray(SineSkewed(VonMises(3.0, [1.0, 3.0, 9.0]), 0.4).sample(key, (60,)))
    weights = np.float32(np.arange(60) % 3)
    found = fit(x, weights=weights, axis=0)
    inside = jax.jit(jax.vmap(lambda x: fit(x, weights=jnp.asarray(weights)), 1))(x)
    with jax.enable_x64(True):
        loop = [fit(np.repeat(np.float64(x[:, i]), np.int64(weights))) for i in range(3)]
    for one, two, three in zip(
        jax.tree.leaves(found), jax.tree.leaves(inside), zip(*map(jax.tree.leaves, loop), strict=True), strict=True
    ):
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(two, three, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "equal"), [(WrappedCauchy, 1.0), *more((Cardioid, 0.5), (WrappedNormal, 0.0))])
def test_edges_of_symmetric(kind, equal):
    """Equal angles, one angle, uniform and tiny spreads, turns, and invalid data."""
    name = kind.PARAMETERS[1].name
    for x in (np.full(5, 0.3, np.float32), np.float32([0.3])):
        found = kind.fit(x)
        assert float(getattr(found, name)) == equal
        assert float(found.loc) == np.float32(0.3)
    even = kind.fit(np.linspace(0, TURN, 12, endpoint=False, dtype=np.float32))
    assert even.mean_resultant_length() < 0.01
    rng = np.random.default_rng(3)
    x = np.float32(rng.normal(0.0, 0.8, 50))
    turned, plain = kind.fit(x + np.float32(TURN)), kind.fit(x)
    np.testing.assert_allclose(turned.loc, plain.loc, atol=1e-5)
    np.testing.assert_allclose(getattr(turned, name), getattr(plain, name), rtol=1e-4)
    narrow = kind.fit(np.float32(1e-8 * x))
    assert abs(float(narrow.loc)) < 1e-8
    for bad in ([], [np.nan, 1.0], [np.inf]):
        assert np.isnan(getattr(kind.fit(np.float32(bad)), name))
    assert np.isnan(kind.fit(x, -np.ones(50, np.float32)).loc)
    assert not np.isnan(kind.fit(np.float32([np.nan, 1.0, 2.0, 2.5]), np.float32([0, 1, 1, 1])).loc)


def test_atom_of_wrapped_cauchy():
    """Where most angles are equal, the likelihood has no bound, and the result is a point mass there."""
    found = WrappedCauchy.fit(np.float32([0.1, 0.1, 0.1, 2.0]))
    np.testing.assert_allclose([found.loc, found.rho], [0.1, 1.0], rtol=1e-6)


def test_close_angles_of_wrapped_cauchy():
    """The estimate for three close angles is that of the Cauchy distribution, far from that for normal angles."""
    with jax.enable_x64(True):
        wanted = WrappedCauchy.fit(np.array([1e-5, 2e-5, 4e-5]))
    found = WrappedCauchy.fit(np.float32([1e-5, 2e-5, 4e-5]))
    np.testing.assert_allclose(wanted.loc, 1.857143e-5, rtol=1e-6)
    np.testing.assert_allclose(1 - float(wanted.rho), 7.4230e-6, rtol=1e-4)  # of T. S. Ferguson's closed form, 1978
    np.testing.assert_allclose(found.loc, wanted.loc, rtol=1e-5)
    assert abs(float(found.rho) - float(wanted.rho)) < 6e-8


def two_modes(x, loc, shape):
    return jnp.exp(shape[0]) * jnp.cos(x - loc) + shape[1] * jnp.cos(2 * (x - loc))


def test_fit_of_any_density():
    """The likelihood is that of the optimiser, also from weights; other starts and sets go through `vmap`."""
    x = np.random.default_rng(2).normal(1.0, 0.6, 90) + np.pi * (np.arange(90) % 2)
    angles = np.arange(4096) * (TURN / 4096)

    def log_density(p):
        level = lambda x: np.exp(p[1]) * np.cos(x - p[0]) + p[2] * np.cos(2 * (x - p[0]))  # noqa: E731
        return level(x) - special.logsumexp(level(angles)) - np.log(TURN / 4096)

    wanted, _ = best(log_density, [(1.0, 0.0, 1.0)], None)
    with jax.enable_x64(True):
        found = CircularDistribution.fit(two_modes, x, (1.0, np.array([0.0, 1.0])))
        loc, shape = found.parameters
        np.testing.assert_allclose([loc, *shape], wanted, rtol=1e-4, atol=1e-5)


def cartwright(x, loc, log_power):
    return jnp.exp(log_power) * jnp.log1p(jnp.cos(x - loc))


def test_fit_of_densities_with_zeros(key):
    """Padding does not touch a zero of the density, and derivatives that are not finite give NaN, not the start."""
    x = np.asarray(CircularDistribution(cartwright, np.pi, 0.5).sample(key, (300,)))  # 0 at the angle 0
    fit = functools.partial(CircularDistribution.fit, cartwright, start=(3.0, 0.0))
    found = fit(x).parameters
    wanted = fit(np.concatenate([x, x[:212]]), weights=np.float32(np.arange(512) < 300)).parameters
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    np.testing.assert_allclose(found, [np.pi, 0.5], atol=0.3)
    assert np.isnan(CircularDistribution.fit(cartwright, x + np.float32(3), (0.0, 0.0)).parameters).all()


@pytest.mark.more
def test_fit_of_any_density_in_vmap(key):
    x = np.asarray(VonMises([0.5, 2.0], [2.0, 8.0]).sample(key, (80,)))
    density = lambda x, loc, log_k: jnp.exp(log_k) * jnp.cos(x - loc)  # noqa: E731
    fit = jax.jit(jax.vmap(lambda x: CircularDistribution.fit(density, x, (1.0, 0.0)), 1))
    wanted = VonMises.fit(x, axis=0)
    loc, log_k = fit(x).parameters
    np.testing.assert_allclose(loc, wanted.loc, rtol=1e-4)
    np.testing.assert_allclose(jnp.exp(log_k), wanted.concentration, rtol=1e-4)


ARCS = [
    (-1.0, 2.0, 0.5, 3.0),
    (2.0, 4.0, 0.0, 5.0),
    (-2.5, 2.5, 3.1, 20.0),
    (0.0, 1.0, 0.5, 1e4),
    (0.0, 2.0, -1.5, 200.0),
]


@pytest.mark.more
def test_fit_on_arcs():
    """The likelihood is that of the optimiser, with modes inside and outside of the arc."""
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    for low, high, loc, k in ARCS:
        with jax.enable_x64(True):
            x = np.asarray(TruncatedVonMises(loc, k, low, high).sample(jax.random.key(1), (100,)))
            found = TruncatedVonMises.fit(x, low, high)
        angles = low + 0.5 * (high - low) * (nodes + 1)
        centre = np.mean(x)

        def log_density(p, x=x, angles=angles, centre=centre, width=high - low):
            level = lambda x: p[1] * np.sin(x - centre) + p[0] * (np.cos(x - centre) - 1)  # noqa: E731
            return level(x) - special.logsumexp(level(angles), b=0.5 * width * weights)

        own = float(found.concentration) * np.array(
            [np.cos(float(found.loc) - centre), np.sin(float(found.loc) - centre)]
        )
        wanted, most = best(log_density, [1.01 * own, k * np.array([np.cos(loc - centre), np.sin(loc - centre)])], None)
        assert np.mean(log_density(own)) >= most - 1e-9
        np.testing.assert_allclose(own, wanted, rtol=3e-2, atol=3e-2 * np.abs(wanted).max())
        float32 = TruncatedVonMises.fit(np.float32(x), np.float32(low), np.float32(high))
        np.testing.assert_allclose(float32.concentration, found.concentration, rtol=1e-2)


def test_edges_on_arcs():
    fit = TruncatedVonMises.fit
    for x in ([0.5, 0.5], [0.0]):
        one = fit(np.float32(x), 0.0, 1.0)
        np.testing.assert_array_equal([one.loc, one.concentration], [x[0], np.inf])
    assert fit(np.float32([0.0, 1.0]), 0.0, 1.0).concentration > 1e3
    for x, low, high in (([0.5, 2.0], 0.0, 1.0), ([0.5, 0.6], 1.0, 0.0), ([], 0.0, 1.0)):
        assert np.isnan(fit(np.float32(x), low, high).concentration)


@pytest.mark.more
def test_fit_of_projected_normal(key):
    """The derivative vanishes at the estimate, along axes of sets with weights, in `jit` and in `vmap`."""
    means = np.array([[1.0, 2.0, 0.0], [0.0, 0.1, 0.0], [30.0, 0.0, 40.0]])
    with jax.enable_x64(True):
        x = np.asarray(ProjectedNormal(means).sample(jax.random.key(1), (200,)))
        weights = np.arange(200.0) % 3
        found = ProjectedNormal.fit(x, weights, 0)
        mean = lambda m: jnp.sum(jnp.asarray(weights)[:, None] * ProjectedNormal(m).log_prob(x))  # noqa: E731
        np.testing.assert_allclose(jax.grad(mean)(found.concentration), 0, atol=1e-7)
        assert np.all(mean(found.concentration) > mean(jnp.asarray(means)))
    assert np.all(ProjectedNormal.fit(np.ones((4, 3), np.float32)).concentration > 1e2)


def test_fit_of_torus(key):
    """It is the fit of each angle, for sets along axes and with weights."""
    x = np.asarray(Torus(VonMises([0.0, 1.0], [4.0, 9.0])).sample(key, (50, 3)))
    weights = np.float32(np.arange(50) % 3)
    found = Torus.fit(x, weights, axis=0).components
    wanted = VonMises.fit(x, weights, axis=0)
    np.testing.assert_allclose(found.loc, wanted.loc, rtol=1e-6)
    np.testing.assert_allclose(found.concentration, wanted.concentration, rtol=1e-6)
    assert Torus.fit(x).batch_shape == ()


@pytest.mark.parametrize(
    ("kind", "shape"), [(WrappedCauchy, 0.6), (Cardioid, 0.3), *more((WrappedNormal, 0.2), (WrappedNormal, 0.9))]
)
def test_standard_errors(kind, shape):
    """They come from the mean of the squared derivatives of the log density."""
    log_density = CLASSES[kind][0]
    x, step = np.arange(20_000) * (TURN / 20_000) - np.pi + 1e-4, 1e-5
    weights = np.exp(log_density(x, shape)) / 20_000 * TURN
    along = (log_density(x + step, shape) - log_density(x - step, shape)) / (2 * step)
    across = (log_density(x, shape + step) - log_density(x, shape - step)) / (2 * step)
    wanted = [1 / np.sqrt(10 * np.sum(weights * each**2)) for each in (along, across)]
    np.testing.assert_allclose(kind(0.3, np.float32(shape)).standard_errors(10), wanted, rtol=1e-4)


def test_edges_of_standard_errors():
    found = Cardioid(0.0, np.float32([0.0, 0.5])).standard_errors(np.float32([[3.0], [-1.0]]))
    np.testing.assert_array_equal(np.isinf(found.loc), [[True, False], [False, False]])
    np.testing.assert_array_equal(found.rho[0, 1], 0)
    assert np.isnan(found.rho[1]).all()
    components = VonMises(np.float32([0.0, 1.0]), np.float32([2.0, 3.0]))
    np.testing.assert_array_equal(Torus(components).standard_errors(5).loc, components.standard_errors(5).loc)


def tilted(x, loc, log_concentration):
    return jnp.exp(log_concentration) * jnp.cos(x - loc)


def second_differences(function, numbers):
    """Return the matrix of second derivatives by differences."""
    step, count = 1e-4, len(numbers)
    unit = step * np.eye(count)
    ends = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    return np.array(
        [
            [
                sum(s * t * function(numbers + s * unit[i] + t * unit[j]) for s, t in ends) / (4 * step**2)
                for j in range(count)
            ]
            for i in range(count)
        ]
    )


@pytest.mark.parametrize("kind", more(VonMises, WrappedCauchy, WrappedNormal))
def test_standard_errors_of_skewed(kind, key):
    log_density, _, typical = CLASSES[kind]
    with jax.enable_x64(True):
        x = np.asarray(SineSkewed(kind(0.4, typical), 0.3).sample(key, (300,)), float)
        fitted = SineSkewed.fit(x, kind)
        errors = fitted.standard_errors(x)
        twice = fitted.standard_errors(x, np.full(300, 2.0))

        def log_likelihood(p):
            return np.sum(log_density(x - p[0], p[1]) + np.log1p(p[2] * np.sin(x - p[0])))

        at = np.array([float(each) for each in jax.tree.leaves(fitted)])
        wanted = np.sqrt(np.diag(np.linalg.inv(-second_differences(log_likelihood, at))))
        np.testing.assert_allclose(jax.tree.leaves(errors), wanted, rtol=1e-4)
        np.testing.assert_allclose(jax.tree.leaves(twice), wanted / np.sqrt(2), rtol=1e-4)
        assert errors.distribution._fields == tuple(p.name for p in kind.PARAMETERS)


@pytest.mark.more
def test_standard_errors_of_any_density(key):
    """Those of a von Mises distribution are the closed ones."""
    x = VonMises(0.5, 3.0).sample(key, (500,))
    plain = VonMises.fit(x)
    closed = plain.standard_errors(500)
    found = CircularDistribution.fit(tilted, x, (0.0, 0.0)).standard_errors(x)
    np.testing.assert_allclose(found, [closed.loc, closed.concentration / plain.concentration], rtol=1e-3)


def test_standard_errors_of_directions(key):
    direction = ProjectedNormal(np.float32([1.0, 0.5, 2.0]))
    draws = direction.sample(key, (4_000,))
    fitted = ProjectedNormal.fit(draws)
    errors = fitted.standard_errors(draws)
    assert errors.shape == (3,)
    assert np.all(np.abs(fitted.concentration - direction.concentration) < 4 * errors)
    assert np.all(errors < 0.04)


@pytest.mark.more
def test_standard_errors_on_an_arc(key):
    arc = TruncatedVonMises(0.5, 3.0, -0.5, 1.5)
    x = arc.sample(key, (60, 400))
    fits = TruncatedVonMises.fit(x, -0.5, 1.5, axis=1)
    errors = jax.vmap(lambda each: TruncatedVonMises.fit(each, -0.5, 1.5).standard_errors(each))(x)
    for name in ("loc", "concentration"):
        spread = np.std(np.asarray(getattr(fits, name)))
        assert np.median(getattr(errors, name)) == pytest.approx(spread, rel=0.3)
    with pytest.raises(TypeError, match=r"TruncatedVonMises.standard_errors: batch_shape=\(60,\) must be \(\)"):
        fits.standard_errors(x)

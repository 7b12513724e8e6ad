"""Check the Kent distribution against mpmath, von Mises-Fisher distributions, differences and its own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jax_von_mises import Kent, VonMisesFisher
from jax_von_mises.quadratic import kent
from tests.marks import more

MEAN, MAJOR = np.array([0.3, -0.5, 0.8]), np.array([1.0, 1.0, 0.2])
# Logarithms of the integrals over the sphere, from mpmath.
KNOWN = {(10, 2): 9.59541788403636, (100, 40): 97.6873653653844}
SHAPES = [(0, 0), (1, 0.2), (10, 4), (10, 5), (1000, 500), (1e6, 1e5)]


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_known_values(dtype):
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    with jax.enable_x64(dtype == "float64"):
        mean, major = MEAN.astype(dtype), MAJOR.astype(dtype)
        for (k, beta), log_c in KNOWN.items():
            found = Kent(mean, major, np.dtype(dtype).type(k), np.dtype(dtype).type(beta)).log_prob(mean)
            assert found == pytest.approx(k - log_c, abs=4 * limit)
        round_one, other = Kent(mean, major, 7.0, 0.0), VonMisesFisher(mean, 7.0)
        x = np.random.default_rng(0).normal(size=(5, 3)).astype(dtype)
        np.testing.assert_allclose(round_one.log_prob(x), other.log_prob(x), atol=4 * limit)
        np.testing.assert_allclose(round_one.entropy(), other.entropy(), atol=2 * limit)
        np.testing.assert_allclose(round_one.mean(), other.mean(), atol=2 * limit)


@pytest.mark.more
@pytest.mark.parametrize(("concentration", "ovalness"), SHAPES)
def test_draws_and_fits(concentration, ovalness):
    distribution, number = Kent(np.float32(MEAN), np.float32(MAJOR), concentration, ovalness), 2**18
    drawn = distribution.sample(jax.random.key(1), (number,))
    x = np.asarray(drawn, float)
    error = x.std(0) / np.sqrt(number)
    assert np.all(np.abs(x.mean(0) - np.asarray(distribution.mean(), float)) <= 4 * error + 1e-7)
    log_prob = np.asarray(distribution.log_prob(drawn), float)
    assert distribution.entropy() == pytest.approx(-log_prob.mean(), abs=4 * log_prob.std() / np.sqrt(number) + 2e-6)
    found = Kent.fit(drawn)
    if concentration:
        np.testing.assert_allclose(found.mean_direction, distribution.mode(), atol=5 * error.max())
        assert found.concentration == pytest.approx(concentration, rel=0.02)
        assert found.ovalness == pytest.approx(ovalness, rel=0.05)
        orthogonal = MAJOR - MEAN * (MAJOR @ MEAN) / (MEAN @ MEAN)
        assert abs(found.major_axis @ orthogonal) / np.linalg.norm(orthogonal) > 0.999


@pytest.mark.more
def test_derivatives():
    with jax.enable_x64(True):
        given = [jnp.asarray(x) for x in (MEAN, MAJOR, 5.0, 2.0)]
        x = jnp.array([0.5, -0.2, 0.6])
        check_grads(lambda *given: Kent(*given).log_prob(x), given, 2, rtol=1e-5)
        check_grads(lambda k, b: Kent(MEAN, MAJOR, k, b).entropy(), given[2:], 1, rtol=1e-5)

    def squares(k, beta):
        x = Kent(np.float32([1, 0, 0]), np.float32([0, 1, 0]), k, beta).sample(jax.random.key(3), (2**18,))
        return jnp.stack([1 - x[:, 0], x[:, 2] ** 2 - x[:, 1] ** 2], 1)

    for along in ((1.0, 0.0), (0.0, 1.0)):
        given, along = (np.float32(10), np.float32(4)), tuple(map(np.float32, along))
        moved = np.asarray(jax.jvp(squares, given, along)[1], float)
        exact = jax.jvp(lambda *given: jnp.stack(kent.means(*given)[1]), given, along)[1]
        assert np.all(np.abs(moved.mean(0) - exact) <= 4 * moved.std(0) / 2**9 + 1e-6)


def test_values_that_are_not_allowed():
    found = Kent(np.float32(MEAN), np.float32(MAJOR), [5.0, 5.0, -1.0, 1.1e7], [2.5, 2.6, 0.0, 0.0])
    assert np.isnan(found.entropy()).tolist() == [False, True, True, True]
    assert np.isnan(found.sample(jax.random.key(0))[:, 0]).tolist() == [False, True, True, True]
    along = Kent(np.float32(MEAN), np.float32(2 * MEAN), 5.0, 1.0)
    assert np.isnan(along.log_prob(np.float32(MEAN)))
    single = Kent.fit(np.float32(MEAN)[None])
    assert (single.concentration, single.ovalness) == (1e7, 0)
    assert np.isnan(Kent.fit(np.zeros((0, 3), np.float32)).concentration)


@pytest.mark.parametrize("dtype", more("float32", "float64"))
def test_divergence(dtype):
    """Against a rule over the sphere in the frame of the first distribution, and von Mises-Fisher distributions."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    azimuth = np.arange(200) * (2 * np.pi / 200)
    # Most of the mass is near the pole, where 1 - t is a square.
    rest = 2 * ((nodes + 1) / 2) ** 3
    area = np.repeat(3 * ((nodes + 1) / 2) ** 2 * weights * (2 * np.pi / 200), 200)
    across = np.sqrt(rest * (2 - rest))[:, None]
    x = [np.broadcast_to(1 - rest[:, None], (200, 200)), across * np.cos(azimuth), across * np.sin(azimuth)]
    x = np.stack(x, -1).reshape(-1, 3)
    shapes = np.array([(0, 0), (1, 0.2), (10, 5), (300, 100)])
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    with jax.enable_x64(dtype == "float64"):
        first = Kent(np.eye(3, dtype=dtype)[0], np.eye(3, dtype=dtype)[1], *shapes.T[:, :, None].astype(dtype))
        second = Kent(MEAN.astype(dtype), MAJOR.astype(dtype), *shapes.T.astype(dtype))
        found = np.asarray(first.kl_divergence(second), float)
        np.testing.assert_allclose(first[:, 0].kl_divergence(first[:, 0]), 0, atol=4 * limit)
        round_one, other = (VonMisesFisher(mean.astype(dtype), 7.0) for mean in (MEAN, MAJOR))
        same = Kent(MEAN.astype(dtype), MAJOR.astype(dtype), 7.0, 0.0)
        away = Kent(MAJOR.astype(dtype), MEAN.astype(dtype), 7.0, 0.0)
        np.testing.assert_allclose(same.kl_divergence(away), round_one.kl_divergence(other), rtol=8 * limit)
        slopes = jax.grad(lambda k, beta: Kent(MEAN, MAJOR, k, beta).kl_divergence(second[2]), (0, 1))(
            *np.array([10.0, 4.0], dtype)
        )
        assert np.all(np.isfinite(slopes))
    with jax.enable_x64(True):
        for i, shape in enumerate(shapes):
            log_p = np.asarray(Kent(np.eye(3)[0], np.eye(3)[1], *shape).log_prob(x))
            for j, other in enumerate(shapes):
                log_q = np.asarray(Kent(MEAN, MAJOR, *other).log_prob(x))
                expected = np.sum(area * np.exp(log_p) * (log_p - log_q))
                assert found[i, j] == pytest.approx(expected, abs=4 * limit * max(1, other[0]))

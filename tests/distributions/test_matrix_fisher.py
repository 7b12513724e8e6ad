"""Check the matrix Fisher distribution against mpmath, quadrature over rotations, differences and its own draws."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.test_util import check_grads

from jax_von_mises.rotations import MatrixFisher, matrices
from tests import quadratic_reference as reference
from tests.marks import more

DTYPES = ("float32", "float64")
# log C for diagonal parameters, from integrals with mpmath, and the diagonal of the mean of R.
KNOWN = {
    (3, 2, 1): (2.47428075611811, (0.751896581, 0.697675862, 0.666986693)),
    (19.6, 0.831, -0.671): (15.938130016058, (0.948920403, 0.0767655595, 0.0748089653)),
    (25, 5, 1): (25.1950662860537, None),
    (8, 5, 2): (10.0251800171035, None),
    (5, 2, 0.5): (3.72741897824339, None),
    (1, 0.5, 0.1): (0.213392969076092, None),
}
KNOWN |= {(s, 0, 0): (float(mpmath.log(mpmath.sinh(s) / s)), None) for s in (1e-3, 2, 30)}
KNOWN |= {
    (k, k, k): (float(k + mpmath.log(mpmath.besseli(0, 2 * k) - mpmath.besseli(1, 2 * k))), None) for k in (2, 40)
}
# Distinct, equal and opposite singular values; every derivative must be finite and unbiased at all of them.
SINGULAR = [(0, 0, 0), (2, 2, 2), (3, 2, -2), (6, 0, 0), (3, 3, 1), (1000, 900, -800)]


def turned(values):
    """Return a parameter with these singular values, the last of which may be negative."""
    generator = np.random.default_rng(2)
    u, v = (np.linalg.qr(generator.normal(size=(3, 3)))[0] for _ in range(2))
    return (u * np.linalg.det(u)) @ np.diag(values) @ (v * np.linalg.det(v)).T


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_known_values(dtype):
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    with jax.enable_x64(dtype == "float64"):
        stacked = np.array([np.diag(s) for s in KNOWN], dtype)
        distribution = MatrixFisher(stacked)
        identity = np.eye(3, dtype=dtype)
        for found in distribution.log_prob(identity), distribution.log_prob(np.array([2, 0, 0, 0], dtype)):
            exact = np.array(
                [sum(map(float, s)) - c for s, (c, _) in zip(stacked.diagonal(0, 1, 2), KNOWN.values(), strict=True)]
            )
            np.testing.assert_allclose(found, exact, rtol=0, atol=limit * np.maximum(1, np.abs(exact)).max())
        for row, (_, means) in zip(distribution.mean(), KNOWN.values(), strict=True):
            if means:
                np.testing.assert_allclose(row, np.diag(means), atol=max(3e-7, limit) if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_density_and_moments(dtype):
    parameters = np.array([turned(s) for s in SINGULAR], dtype)
    with jax.enable_x64(dtype == "float64"):
        distribution = MatrixFisher(parameters)
        q = np.random.default_rng(0).normal(size=(20, 1, 4)).astype(dtype)
        found, mean, mode = distribution.log_prob(q), distribution.mean(), distribution.mode()
        spread = distribution.entropy()
    wide = q.astype(float)
    matrix = reference.matrices_of(wide / np.linalg.norm(wide, axis=-1, keepdims=True))
    eps, rule = np.finfo(dtype).eps, {"float32": 8, "float64": 400}[dtype]  # 9e-14 in float64
    for j, parameter in enumerate(parameters.astype(float)):
        rotations, weights, log_c = reference.rotations(parameter)
        size = np.linalg.norm(parameter)
        exact = np.sum(matrix[:, 0] * parameter, (1, 2)) - log_c
        # The eigenvalues have errors of a few ulp of the largest, which grow with the parameter.
        np.testing.assert_allclose(found[:, j], exact, rtol=0, atol=(rule + 12 * size) * eps)
        average = np.tensordot(weights, rotations, 1)
        np.testing.assert_allclose(mean[j], average, atol=max(8 * eps, 2e-14))
        # The means of the reference have errors of up to 4e-14.
        limit = (rule + 12 * size) * eps + 4e-14 * size
        assert spread[j] == pytest.approx(log_c - np.sum(parameter * average), abs=limit)
        best = np.sum(parameter * reference.matrices_of(np.asarray(mode[j], float)))
        u, s, v = np.linalg.svd(parameter)
        assert best == pytest.approx(s[0] + s[1] + s[2] * np.linalg.det(u @ v), abs=(1 + 12 * size) * eps)


@pytest.mark.more
@pytest.mark.parametrize("values", [(2, 2, 2), (0, 0, 0), (3, 2, -2), (3, 3, 1)])
def test_derivatives_of_the_density(values):
    with jax.enable_x64(True):
        q = jnp.array([0.3, -0.5, 0.8, 0.2])
        check_grads(lambda f, q: MatrixFisher(f).log_prob(q), (jnp.asarray(turned(values)), q), 2, rtol=1e-5)


@pytest.mark.more
def test_derivative_of_entropy():
    with jax.enable_x64(True):
        for values in SINGULAR[:5]:
            check_grads(lambda f: MatrixFisher(f).entropy(), (jnp.asarray(turned(values)),), 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("values", SINGULAR)
def test_draws_and_their_derivatives(values):
    """Means of draws and of their derivatives are within 4 standard errors, over 5e6 draws."""
    generator = np.random.default_rng(3)
    at, along = generator.normal(size=(2, 3, 3)).astype(np.float32)
    parameter = turned(values).astype(np.float32)

    @jax.jit
    def moments(parameter, key):
        def statistics(parameter):
            q = MatrixFisher(parameter).sample(key, (2**18,))
            r = matrices.of_quaternion(q)
            return jnp.concatenate([r.reshape(-1, 9), jnp.sin(jnp.sum(r * at[None], (1, 2)))[:, None]], 1)

        found, moved = jax.jvp(statistics, (parameter,), (along,))
        both = jnp.concatenate([found, moved], 1)
        return jnp.mean(both, 0), jnp.mean(jnp.square(both), 0)

    count = 20
    found = [moments(parameter, jax.random.key(i)) for i in range(count)]
    first, second = (np.mean(x, 0, dtype=float) for x in zip(*found, strict=True))
    error = np.sqrt((second - first**2) / (count * 2**18))
    rotations, weights, _ = reference.rotations(parameter)
    exact = np.concatenate([rotations.reshape(-1, 9), np.sin(np.sum(rotations * at, (1, 2)))[:, None]], 1)
    mean = weights @ exact
    slope = np.sum(rotations * along, (1, 2))
    rise = weights @ (exact * slope[:, None]) - mean * (weights @ slope)
    rounding = 2e-7 + 2e-7 * np.abs(np.concatenate([mean, rise]))
    assert np.all(np.abs(first - np.concatenate([mean, rise])) <= 4 * error + rounding)


@pytest.mark.more
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_parameters(dtype):
    """Draws, densities and derivatives are finite for every finite parameter, and NaN for others."""
    eye = np.eye(3)
    good = [1e-30 * eye, np.zeros((3, 3)), 1e7 * eye, np.diag([1e7, 1e7, -1e7]), np.diag([1e6, 1e-3, -1e-3])]
    bad = [np.full((3, 3), np.nan), np.diag([np.inf, 1, 1]), 1.1e7 * eye]
    with jax.enable_x64(dtype == "float64"):

        def compute(parameter):
            distribution = MatrixFisher(parameter)
            q = distribution.sample(jax.random.key(0), (8,))
            mean = jnp.mean(distribution.log_prob(jax.lax.stop_gradient(q)), 0)
            return jnp.mean(q, 0), distribution.entropy(), mean, distribution.mean()

        values, moved = jax.jvp(compute, (np.array(good + bad, dtype),), (np.ones((8, 3, 3), dtype),))
    for each in (*values, *moved):
        assert np.all(np.isfinite(each[:5]))
        assert np.all(np.isnan(each[5:]))


@pytest.mark.more
@pytest.mark.parametrize(("dtype", "values"), [("float32", (6, 2, 0)), *(("float64", s) for s in SINGULAR)])
def test_fit(dtype, values):
    """The mean of rotation matrices is that of the data, and the parameter within 5 standard errors."""
    number = 20_000
    with jax.enable_x64(dtype == "float64"):
        distribution = MatrixFisher(turned(values).astype(dtype))
        q = distribution.sample(jax.random.key(5), (number,))
        found = MatrixFisher.fit(q)
        moment = np.mean(reference.matrices_of(np.asarray(q, float)), 0)
        errors = distribution.standard_errors(number)
        mean = found.mean()
    np.testing.assert_allclose(mean, moment, atol=2e-6 if dtype == "float32" else 1e-10)
    assert np.all(np.abs(np.asarray(found.parameter) - distribution.parameter) <= 5 * np.asarray(errors))


@pytest.mark.more
def test_fits_of_sets():
    """Weights count, axes index sets, and fits work in `jit` and `vmap` and have derivatives."""
    q = MatrixFisher(turned((4, 2, 1)).astype(np.float32)).sample(jax.random.key(6), (3, 50))
    weights = np.random.default_rng(4).integers(0, 3, (3, 50)).astype(np.float32)
    found = MatrixFisher.fit(q, weights, axis=1)
    assert found.batch_shape == (3,)
    for j in range(3):
        repeated = np.repeat(np.asarray(q[j]), weights[j].astype(int), 0)
        np.testing.assert_allclose(MatrixFisher.fit(repeated).parameter, found.parameter[j], rtol=2e-4, atol=2e-4)
    mapped = jax.jit(jax.vmap(lambda q, w: MatrixFisher.fit(matrices.of_quaternion(q), w).parameter))(q, weights)
    np.testing.assert_allclose(mapped, found.parameter, rtol=2e-4, atol=2e-4)
    with jax.enable_x64(True):
        x, w = np.asarray(q[0, :20], float), weights[0, :20] + 1.0
        check_grads(lambda x, w: MatrixFisher.fit(x, w).parameter, (x, w), 1, rtol=1e-5)


def test_matrices():
    """Matrices count like quaternions; those that are no rotations give NaN, unless their weight is 0."""
    distribution = MatrixFisher(turned((4, 2, 1)).astype(np.float32))
    q = distribution.sample(jax.random.key(7), (60,))
    r = np.array(matrices.of_quaternion(q))
    np.testing.assert_allclose(distribution.log_prob(r), distribution.log_prob(q), atol=1e-5)
    assert np.isnan(distribution.log_prob(np.stack([0 * r[0], -r[0], 2 * r[0]]))).all()
    r[:3], r[3:6] = 0, np.nan
    weights = np.repeat(np.float32([0, 1]), [6, 54])
    np.testing.assert_allclose(MatrixFisher.fit(r, weights).parameter, MatrixFisher.fit(q[6:]).parameter, atol=1e-4)
    assert np.isnan(MatrixFisher.fit(r).parameter).all()


def test_fits_without_maximum():
    q = np.float32([[1, 0.1, 0, 0], [1, 0, 0.2, 0], [1, 0, 0, 0.1], [1, 0, 0, 0]])
    for number in (1, 2, 3):
        assert np.all(np.abs(MatrixFisher.fit(q[:number]).parameter) <= 1e7)
    for nothing in (q[:0], np.full((2, 4), np.nan, np.float32)):
        assert np.all(np.isnan(MatrixFisher.fit(nothing).parameter))


@pytest.mark.more
def test_standard_errors():
    """They are those of the inverse of the second derivatives of log C, also at equal singular values."""
    with jax.enable_x64(True):
        for values in SINGULAR[:5]:
            parameter = turned(values)
            information = jax.jacfwd(lambda f: MatrixFisher(f).mean())(parameter).reshape(9, 9)
            expected = np.sqrt(np.diag(np.linalg.inv(information)) / 7).reshape(3, 3)
            np.testing.assert_allclose(MatrixFisher(parameter).standard_errors(7), expected, rtol=1e-10)
            np.testing.assert_allclose(MatrixFisher(parameter[None]).standard_errors(7)[0], expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_divergence(dtype):
    parameters = np.array([turned(s) for s in SINGULAR[:5]], dtype)
    with jax.enable_x64(dtype == "float64"):
        p, q = MatrixFisher(parameters[:, None]), MatrixFisher(parameters[None, :, ::-1])
        found, uniform, own = p.kl_divergence(q), p.kl_to_uniform()[:, 0], p.kl_divergence(p)
        found, uniform, own = map(np.asarray, (found, uniform, own))
    eps = float(np.finfo(dtype).eps)
    for i, first in enumerate(parameters.astype(float)):
        rotations, weights, log_p = reference.rotations(first)
        for j, second in enumerate(parameters[:, ::-1].astype(float)):
            log_q = reference.rotations(second)[2]
            exact = weights @ np.sum(rotations * (first - second), (1, 2)) - log_p + log_q
            assert found[i, j] == pytest.approx(exact, abs=100 * eps + 1e-13, rel=20 * eps)
            assert np.sum(first * (weights @ rotations.reshape(-1, 9)).reshape(3, 3)) - log_p == pytest.approx(
                uniform[i], abs=100 * eps + 1e-13
            )
    assert np.all((own >= 0) & (own <= 20 * eps))


@pytest.mark.more
def test_derivatives_of_divergence():
    with jax.enable_x64(True):
        p, q = jnp.asarray(turned((3, 3, 1))), jnp.asarray(turned((2, 2, 2))[::-1])
        check_grads(lambda p, q: MatrixFisher(p).kl_divergence(MatrixFisher(q)), (p, q), 1, rtol=1e-5)


def test_constructors():
    mode, axes = np.float32([1, 0.2, -0.3, 0.4]), matrices.of_quaternion(jnp.full(4, 0.5))
    distribution = MatrixFisher.from_mode(mode, axes, [9.0, 5.0, -2.0])
    np.testing.assert_allclose(distribution.mode(), mode / np.linalg.norm(mode), atol=3e-7)
    np.testing.assert_allclose(np.linalg.svd(distribution.parameter)[1], [9, 5, 2], rtol=1e-6)
    turned_around = MatrixFisher.isotropic(mode, [0.0, 3.0])
    rotation = reference.matrices_of(mode.astype(float) / np.linalg.norm(mode.astype(float)))
    np.testing.assert_allclose(turned_around.parameter[1], 3 * rotation, atol=1e-6)
    both = distribution.multiply(turned_around)
    assert both.batch_shape == (2,)
    np.testing.assert_array_equal(both.parameter[0], distribution.parameter)
    with pytest.raises(ValueError, match=r"MatrixFisher.from_mode: axes has shape \(4,\)"):
        MatrixFisher.from_mode(mode, mode, [1.0, 1.0, 1.0])


def test_second_derivatives_of_draws_are_refused():
    def sum_of_draws(f):
        return MatrixFisher(f).sample(jax.random.key(0)).sum()

    with pytest.raises(NotImplementedError, match="MatrixFisher: `log_prob` and `prob` have two derivatives"):
        jax.hessian(sum_of_draws)(jnp.eye(3))


def test_shapes():
    distribution = MatrixFisher(np.zeros((4, 1, 3, 3), np.float32))
    assert (distribution.batch_shape, distribution.event_shape) == ((4, 1), (4,))
    assert distribution.sample(jax.random.key(0), (2,)).shape == (2, 4, 1, 4)
    assert distribution.log_prob(np.ones((5, 3, 3), np.float32)).shape == (4, 5)
    with pytest.raises(ValueError, match=r"MatrixFisher: parameter has shape \(4, 4\)"):
        MatrixFisher(np.eye(4))
    with pytest.raises(ValueError, match=r"MatrixFisher.log_prob: value has shape \(3,\)"):
        distribution.log_prob(np.ones(3))


@pytest.mark.parametrize("dtype", more("float32", "float64"))
def test_distribution_with_a_mean(dtype):
    parameters = np.random.default_rng(0).normal(size=(4, 6, 3, 3)) * np.array([0, 1, 10, 100])[:, None, None, None]
    limit = {"float32": 1e-5, "float64": 2e-14}[dtype]
    with jax.enable_x64(dtype == "float64"):
        exact = jnp.asarray(parameters, dtype)
        found = MatrixFisher.from_mean(MatrixFisher(exact).mean()).parameter
        size = np.max(np.abs(parameters), (-2, -1), keepdims=True)
        np.testing.assert_array_less(np.abs(found - exact), limit * (0.05 + size + size**2) + 0 * exact)
        means = jnp.stack([jnp.eye(3), 1.2 * jnp.eye(3), jnp.diag(jnp.array([1.0, 1.0, -1.0]))]).astype(dtype)
        np.testing.assert_allclose(
            MatrixFisher.from_mean(means).parameter, np.eye(3) * np.array([2.475e6, np.nan, np.nan])[:, None, None]
        )


@more
def test_derivatives_of_the_distribution_with_a_mean():
    with jax.enable_x64(True):
        f = jnp.diag(jnp.array([3.0, 3.0, 1.0]))
        there = jax.jacobian(lambda f: MatrixFisher(f).mean())(f).reshape(9, 9)
        back = jax.jacobian(lambda mean: MatrixFisher.from_mean(mean).parameter)(MatrixFisher(f).mean()).reshape(9, 9)
        np.testing.assert_allclose(back @ there, np.eye(9), atol=1e-12)

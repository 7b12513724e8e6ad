"""Check the eigenframes, normalisers and quantiles of quadratic log densities against NumPy, SciPy and quadrature."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import i0e

from jax_von_mises.quadratic import density, quantile
from jax_von_mises.quadratic.frames import frame_of
from jax_von_mises.quadratic.marginal import KentMarginal, normaliser
from tests import quadratic_reference as reference
from tests.marks import more

DTYPES = ("float32", "float64")
GAPS = (0.0, 1e-3, 0.5, 3.0, 20.0, 300.0, 1e4, 1e6, 4e7)
CASES = [("float32", 4), *more(("float64", 4), ("float32", 3), ("float64", 3))]


def gaps_of(dimension, dtype):
    """Return all ascending gaps of a grid, as a list of arrays."""
    listed = [g for g in itertools.product(GAPS, repeat=dimension - 1) if list(g) == sorted(g)]
    return list(np.array(listed, dtype).T)


def matrices(dimension, dtype):
    """Return symmetric matrices with distinct, nearly equal and equal eigenvalues."""
    generator = np.random.default_rng(0)
    values = generator.choice([0, 0, 1e-3, 1, 1, 1 + 1e-6, -2, 5, 100, 1e4], (600, dimension))
    axes = np.linalg.qr(generator.normal(size=(600, dimension, dimension)))[0]
    return np.einsum("nij,nj,nkj->nik", axes, values, axes).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", [3, 4])
def test_frames(dimension, dtype):
    with jax.enable_x64(dtype == "float64"):
        given = matrices(dimension, dtype)
        frame = jax.jit(frame_of)(given)
    axes = np.moveaxis(np.asarray(frame.axes, float), -1, 0)
    values = np.asarray(frame.largest, float) - np.stack([np.zeros(len(given)), *map(np.asarray, frame.gaps)])
    assert np.all(np.diff(values, axis=0) <= 0)
    exact = np.linalg.eigvalsh(given.astype(float))
    size = np.maximum(np.abs(exact).max(1), 1e-30)
    limit = {"float32": 7e-7, "float64": 3e-15}[dtype]
    assert np.all(np.abs(values[::-1].T - exact).max(1) <= limit * size)
    residual = given.astype(float) @ axes - axes * values.T[:, None, :]
    assert np.all(np.abs(residual).max((1, 2)) <= limit * size)
    assert np.abs(np.swapaxes(axes, 1, 2) @ axes - np.eye(dimension)).max() < 2 * limit


@pytest.mark.parametrize(("dtype", "dimension"), CASES)
def test_normaliser(dtype, dimension):
    gaps = gaps_of(dimension, dtype)
    with jax.enable_x64(dtype == "float64"):
        found, _ = jax.jit(lambda gaps: normaliser(density.kind_of(dimension).of(gaps)))(tuple(gaps))
    exact = np.log(reference.total(gaps))
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    assert np.all(np.abs(np.asarray(found, float) - exact) <= limit * np.maximum(1, np.abs(exact)))


@pytest.mark.parametrize(("dtype", "dimension"), CASES)
def test_quantiles_into_the_tails(dtype, dimension):
    powers = {"float32": (33, 30, 24, 16, 8, 3, 1), "float64": (65, 50, 33, 20, 9, 3, 1)}[dtype]
    t = (2.0 ** -np.array(powers)).astype(dtype)[:, None]
    upper = np.array([False, True])[:, None, None]
    gaps = gaps_of(dimension, dtype)
    with jax.enable_x64(dtype == "float64"):

        @jax.jit
        def places(gaps, t, upper):
            marginal = density.kind_of(dimension).of(gaps)
            return quantile.quantile(marginal, t, upper, normaliser(marginal)[0])

        shape = np.broadcast_shapes(t.shape, upper.shape, gaps[0].shape)
        full = [np.broadcast_to(x, shape) for x in (t, upper)]
        at = places(tuple(g[None, None] for g in gaps), *full)
    v, w = (np.asarray(x, float) for x in at)
    small = v < 0.5
    v, w = np.where(small, v, 1 - w), np.where(small, 1 - v, w)
    below, above = reference.mass_below([g[None, None] for g in gaps], v, w)
    mass, all_mass = np.where(full[1], above, below), reference.total(gaps)
    error = np.abs(mass / all_mass / full[0].astype(float) - 1)
    limit, eps = {"float32": 4e-6, "float64": 1e-11}[dtype], np.finfo(dtype).eps
    ulp = eps * np.minimum(v, w) * reference.density([g[None, None] for g in gaps], v, w) / np.maximum(mass, 1e-300)
    assert np.all((error <= limit) | (error <= 4 * ulp))


@pytest.mark.more
@pytest.mark.parametrize("dtype", DTYPES)
def test_kent_quantiles_into_the_tails(dtype, monkeypatch):
    """The same for the Kent distribution, up to an ovalness of exactly half of the concentration."""
    concentrations, ratios = (0.0, 0.1, 1.0, 10.0, 1e3, 1e5, 1e7), (0.0, 0.01, 0.3, 0.45, 0.49, 0.5)
    shapes = np.array([(k, r * k) for k in concentrations for r in ratios], dtype).T
    powers = {"float32": (33, 28, 20, 12, 5, 2, 1), "float64": (65, 50, 30, 12, 5, 2, 1)}[dtype]
    t = (2.0 ** -np.array(powers)).astype(dtype)[:, None]
    upper = np.array([False, True])[:, None, None]
    full = [np.broadcast_to(x, (2, len(t), shapes.shape[1])) for x in (t, upper)]
    with jax.enable_x64(dtype == "float64"):

        @jax.jit
        def places(shapes, t, upper):
            marginal = KentMarginal.of(shapes)
            log_norm, _ = normaliser(marginal)
            return log_norm, quantile.quantile(marginal, t, upper, log_norm)

        log_norm, at = places(tuple(x[None, None] for x in shapes), *full)

    def density_of(shapes, v, w):
        k, beta = shapes
        return np.exp(-2 * (k - 2 * beta) * v - 4 * beta * v * v) * i0e(4 * beta * v * w)

    monkeypatch.setattr(reference, "density", density_of)
    wide = [x.astype(float)[None, None] for x in shapes]
    exact = np.log(reference.total(wide))
    limit = {"float32": 1e-6, "float64": 1e-12}[dtype]
    assert np.all(np.abs(np.asarray(log_norm) - exact) <= limit * np.maximum(1, np.abs(exact)))
    v, w = (np.asarray(x, float) for x in at)
    small = v < 0.5
    v, w = np.where(small, v, 1 - w), np.where(small, 1 - v, w)
    below, above = reference.mass_below(wide, v, w)
    mass = np.where(full[1], above, below)
    error = np.abs(mass / reference.total(wide) / full[0].astype(float) - 1)
    ulp = np.finfo(dtype).eps * np.minimum(v, w) * density_of(wide, v, w) / np.maximum(mass, 1e-300)
    assert np.all((error <= {"float32": 4e-6, "float64": 1e-11}[dtype]) | (error <= 4 * ulp))


@pytest.mark.more
@pytest.mark.parametrize("dimension", [3, 4])
def test_mean_products(dimension):
    """Means of products obey 2 (z_i - z_j) E x_i^2 x_j^2 = E x_i^2 - E x_j^2, and add up to the means of squares."""
    with jax.enable_x64(True):
        gaps = gaps_of(dimension, np.float64)
        inner = np.all([g <= 1e4 for g in gaps], 0)
        gaps = tuple(g[inner] for g in gaps)
        _, squares = jax.jit(density.mean_squares)(gaps)
        products = np.asarray(jax.jit(density.mean_products)(gaps))
    means = np.stack([1 - sum(map(np.asarray, squares)), *squares])
    np.testing.assert_allclose(products.sum(1), means, rtol=1e-11)
    levels = -np.stack([np.zeros_like(gaps[0]), *gaps])
    for i in range(dimension):
        for j in range(i + 1, dimension):
            difference = 2 * (levels[i] - levels[j]) * products[i, j]
            np.testing.assert_allclose(difference, means[i] - means[j], rtol=0, atol=1e-12)
            assert np.all(products[i, j] > 0)


@pytest.mark.more
@pytest.mark.parametrize("dimension", [3, 4])
def test_second_derivatives(dimension):
    """Derivatives of the second moment are its differences, also at equal eigenvalues."""
    generator = np.random.default_rng(1)
    axes = np.linalg.qr(generator.normal(size=(dimension, dimension)))[0]
    moves = generator.normal(size=(dimension, dimension))
    moves = moves + moves.T
    with jax.enable_x64(True):
        moment = jax.jit(density.second_moment)
        for values in ([0.0] * 4, [2, 2, 2, -1.0], [3, 3, 1, 1.0], [5, 0, -1, -20.0]):
            matrix = axes @ np.diag(values[:dimension]) @ axes.T
            found = jax.jvp(moment, (jnp.asarray(matrix),), (jnp.asarray(moves),))[1]
            step = 1e-4
            difference = (moment(matrix + step * moves) - moment(matrix - step * moves)) / (2 * step)
            np.testing.assert_allclose(found, difference, atol=3e-8)


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
@pytest.mark.parametrize("dimension", [3, 4])
def test_frames_at_equal_eigenvalues_do_not_depend_on_the_program(dimension, dtype):
    """Programs for a batch and for one matrix round differently, which must not turn or exchange axes."""
    rng, number = np.random.default_rng(0), 2_000
    axes = np.linalg.qr(rng.normal(size=(number, dimension, dimension)))[0]
    values = np.array([[0, 0, -5, -5], [0, -5, -5, -5], [0, 0, 0, -9], [7, 1e5, 1e5, 7]])[rng.integers(0, 4, number)]
    with jax.enable_x64(dtype == "float64"):
        matrix = jnp.asarray(np.einsum("nij,nj,nkj->nik", axes, values[:, :dimension], axes), dtype)
        matrix = 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))

        def stacked(matrix):
            return jnp.stack([jnp.stack(row, -1) for row in frame_of(matrix).axes], -2)

        batch, singly = jax.jit(stacked)(matrix), jax.jit(lambda x: jax.lax.map(stacked, x))(matrix)
        assert np.max(np.abs(batch - singly)) < 64 * np.finfo(dtype).eps


@pytest.mark.parametrize("dimension", [3, 4])
def test_frames_of_tiny_matrices(dimension):
    """Squares of their elements underflow."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(500, dimension, dimension)).astype(np.float32)
    matrix = matrix + np.swapaxes(matrix, -1, -2)
    whole = jax.jit(frame_of)(matrix)
    for scale in (1e-12, 1e-19, 1e-30):
        tiny = jax.jit(frame_of)(matrix * np.float32(scale))
        for gap, other in zip(tiny.gaps, whole.gaps, strict=True):
            np.testing.assert_allclose(gap / np.float32(scale), other, atol=2e-5)
    uneven = np.zeros((dimension, dimension), np.float32)
    uneven[0, 1] = uneven[1, 0] = 5e-20
    uneven[1, 1] = 1.2e-38
    np.testing.assert_allclose(jax.jit(frame_of)(uneven).gaps[-1], 1e-19, rtol=1e-5)

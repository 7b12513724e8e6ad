"""Hold the file to copy, `extras/von_mises_jax.py`, to the package, bit for bit."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises as jvm
from tests import children

PATH = children.ROOT / "extras" / "von_mises_jax.py"


@pytest.fixture(scope="module")
def extra():
    """Return the file as a module."""
    specification = importlib.util.spec_from_file_location("von_mises_jax", PATH)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


KAPPAS = np.concatenate([[0, 1e-38, 1e-30, np.inf, np.nan, -1], np.geomspace(1e-9, 3e38, 300)]).astype(np.float32)


def test_draws_are_those_of_the_package(extra, key):
    many = np.tile(KAPPAS, (64, 1))
    np.testing.assert_array_equal(
        extra.sample_von_mises(key, 0.3, many), jvm.sample_von_mises(key, 0.3, many, method="direct")
    )


@pytest.mark.more
def test_draws_of_other_shapes(extra, key):
    many = np.tile(KAPPAS, (2_000, 1))
    np.testing.assert_array_equal(extra.sample_von_mises(key, 0.0, many), jvm.sample_von_mises(key, 0.0, many))
    for loc, k, shape in ((0.3, 4.0, (100_001,)), (-50.0, 0.5, (3, 1001)), (np.float32([3.0, np.inf]), 2.0, None)):
        mine = extra.sample_von_mises(key, loc, k, shape)
        np.testing.assert_array_equal(mine, jvm.sample_von_mises(key, loc, k, shape, method="direct"))
    legacy = jax.random.PRNGKey(7)
    np.testing.assert_array_equal(
        extra.sample_von_mises(legacy, 0.0, 1.0, 9), jvm.sample_von_mises(jax.random.key(7), 0.0, 1.0, (9,))
    )


USUAL = np.isfinite(KAPPAS) & (KAPPAS <= 1e18)


def slope(sample, key, k):
    return jax.jit(lambda k: jax.jvp(lambda k: sample(key, 0.5, k), (k,), (jnp.ones_like(k),))[1])(k)


def test_derivatives_are_those_of_the_package(extra, key):
    k = jnp.asarray(np.tile(KAPPAS, (64, 1)))
    mine, theirs = slope(extra.sample_von_mises, key, k), slope(jvm.sample_von_mises, key, k)
    np.testing.assert_array_equal(mine[:, USUAL], theirs[:, USUAL])
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.slow
def test_reverse_mode_and_vmap(extra, key):
    k = jnp.asarray(np.tile(KAPPAS, (300, 1)))
    reverse = jax.grad(lambda k: extra.sample_von_mises(key, 0.5, k).sum())(k)
    np.testing.assert_array_equal(reverse[:, USUAL], slope(extra.sample_von_mises, key, k)[:, USUAL])
    assert np.all(jax.grad(lambda loc: extra.sample_von_mises(key, loc, 2.0, (5,)).sum())(3.1) == 5)
    each = jax.vmap(lambda key: extra.sample_von_mises(key, 0.0, 2.0, (5,)))(jax.random.split(key, 3))
    np.testing.assert_array_equal(each[2], extra.sample_von_mises(jax.random.split(key, 3)[2], 0.0, 2.0, (5,)))


def test_log_densities_are_those_of_the_package(extra):
    x = np.linspace(-9, 9, 2_001, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(extra.log_prob(x, 0.5, KAPPAS), jvm.log_prob(x, 0.5, KAPPAS))
    k = KAPPAS[(KAPPAS >= 0) & (KAPPAS < 1e8)]
    mine, theirs = (
        jax.jit(jax.vmap(jax.vmap(jax.grad(f, (0, 1, 2)), (None, None, 0)), (0, None, None)))(x[::20, 0], 0.5, k)
        for f in (extra.log_prob, jvm.log_prob)
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_other_keys_are_refused(extra):
    several = jax.random.split(jax.random.key(0), 2)
    for key in (jax.random.key(0, impl="rbg"), several, jnp.zeros(3, jnp.uint32), 0, None):
        with pytest.raises(ValueError, match=r"(?s)sample_von_mises: key=.* must be one threefry2x32 key"):
            extra.sample_von_mises(key, 0.0, 1.0)


def test_sizes_are_integers(extra, key):
    """Integers and sequences of them, Python's, NumPy's or JAX's, share a program; others are refused."""
    first = extra.sample_von_mises(key, 0.0, 1.0, (3, 2))
    programs = extra._sample._cache_size()
    pairs = ([3, 2], (np.int64(3), np.uint8(2)), np.array([3, 2]), jnp.array([3, 2]), [np.int32(3), 2])
    for shape in pairs:
        np.testing.assert_array_equal(extra.sample_von_mises(key, 0.0, 1.0, shape), first)
    for shape in (6, np.int64(6), np.array(6), jnp.array(6), [6], (np.int16(6),)):
        np.testing.assert_array_equal(extra.sample_von_mises(key, 0.0, 1.0, shape), first.ravel())
    assert extra._sample._cache_size() == programs + 1
    for shape in (3.0, (3.0,), True, (True, 2), "3", {3}, [[3]], -1, (2, -1)):
        with pytest.raises(TypeError, match="sample_von_mises: shape="):
            extra.sample_von_mises(key, 0.0, 1.0, shape)
    with pytest.raises(TypeError, match="sample_von_mises: shape="):
        jax.jit(lambda n: extra.sample_von_mises(key, 0.0, 1.0, n))(3)

"""What is drawn follows the law: two million angles each, one false-alarm rate (`laws.FALSE_ALARM`)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from jax_von_mises import counter, sample_von_mises
from tests import laws, reference

DRAWS = 2**21
# Locations are exact in few bits and small where the law is narrow: a float32 next to 1 has a spacing of 6e-8.
PAIRS = [
    (0.0, 0.0), (2.0, 0.0), (0.0, 1e-3), (-3.0, 0.01), (0.0, 0.05), (1.0, 0.1), (0.0, 0.3), (-2.5, 0.5), (0.0, 0.8),
    (3.0, 1.0), (0.0, 1.5), (0.5, 2.0), (0.0, 3.0), (-1.0, 4.0), (0.0, 4.99), (0.25, 5.01), (0.0, 8.0), (1.5, 12.0),
    (0.0, 16.9), (-0.5, 17.1), (0.0, 30.0), (0.125, 100.0), (0.0, 1e3), (0.0, 1e4), (0.0, 1e5), (0.0, 1e7), (0.0, 1e9),
]  # fmt: skip


@functools.cache
def exact_tail(k):
    return laws.ExactTail(k)


def centred(x, loc):
    """Angles less `loc`, on the circle, in float64."""
    return np.remainder(np.asarray(x, np.float64) - loc + np.pi, 2 * np.pi) - np.pi


@pytest.mark.parametrize(("loc", "k"), PAIRS)
def test_one_concentration(loc, k):
    key = random.fold_in(random.key(100), PAIRS.index((loc, k)))
    x = sample_von_mises(key, loc, k, (DRAWS,))
    exact = float(np.float32(k))
    laws.assert_fits(laws.battery(centred(x, loc), exact, exact_tail(exact)), f"loc={loc}, k={k}")


def test_lanes_of_a_mixed_batch():
    """Each lane has its own law, and no two lanes, nor neighbours in one, know of each other."""
    ks = np.float32([k for _, k in PAIRS[1::2]])
    locs = np.float32([loc for loc, _ in PAIRS[1::2]])
    x = np.asarray(sample_von_mises(random.key(7), locs, ks, (2**18, len(ks))))
    lanes = []
    for j, k in enumerate(ks):
        angles = centred(x[:, j], float(locs[j]))
        laws.assert_fits(laws.battery(angles, float(k), exact_tail(float(k))), f"lane {j}")
        lanes.append(laws.probabilities(angles, float(k), exact_tail(float(k)))[0])
    for i, u in enumerate(lanes):
        for j in range(i):
            assert laws.independent(u, lanes[j]) > laws.P_VALUE, (i, j)
        for lag in (1, 2, 3, 4, 8):
            assert laws.independent(u[lag:], u[:-lag]) > laws.P_VALUE, (i, lag)


@pytest.mark.parametrize("implementation", tuple(counter.GENERATORS))
def test_key_implementations(implementation):
    """The law, and independence of the streams of split and folded keys, for every key implementation."""
    key = random.key(1, impl=implementation)
    # Of two parents: JAX folds a number into a key as it splits off the child of that number.
    first, second = random.split(key)
    keys = [*random.split(first, 3), random.fold_in(second, 1), random.fold_in(second, 2)]
    us = []
    for k in keys:
        x = np.asarray(sample_von_mises(k, 0.0, 2.0, (DRAWS // 4,)))
        laws.assert_fits(laws.battery(x, 2.0, exact_tail(2.0)), implementation)
        us.append(laws.probabilities(x, 2.0, exact_tail(2.0))[0])
    for i, u in enumerate(us):
        for j in range(i):
            assert laws.independent(u, us[j]) > laws.P_VALUE
            assert laws.independent(u[1:], us[j][:-1]) > laws.P_VALUE


@pytest.mark.parametrize("k", [0.5, 30.0, 1e6])
def test_float64(k):
    with jax.enable_x64(True):
        x = np.asarray(sample_von_mises(random.key(3), 0.0, k, (DRAWS,)))
    assert x.dtype == np.float64
    laws.assert_fits(laws.battery(x, k, exact_tail(k)), f"float64, k={k}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(dtype):
    """Moments alone: their few values are bins of their own, which the other tests would see."""
    x = np.asarray(sample_von_mises(random.key(3), 0.0, 2.0, (2**16,), dtype)).astype(np.float64)
    assert laws.moments(x, 2.0) > laws.P_VALUE


# The battery must be able to fail: each of these is a defect that a published sampler has or had.


def rejected(x, k, by=None):
    p_values = laws.battery(x, k, exact_tail(k))
    bad = [name for name, p in p_values.items() if not p > laws.P_VALUE]
    assert bad, p_values
    assert by is None or by in bad, p_values


def normal(k):
    return np.asarray(sample_von_mises(random.key(5), 0.0, k, (DRAWS,)), np.float64)


def test_rejects_quantised_angles():
    """Through float32 arccos, as other JAX samplers: only bins next to the mode see it at this concentration."""
    k = 1e5
    x = normal(k)
    quantised = np.arccos(np.float32(np.cos(x))) * np.sign(x)
    rejected(quantised, k, by="halving bins")


def test_rejects_a_missing_tail():
    """Uniform numbers of 12 bits: nothing beyond a tail probability of 2^-13."""
    k = 2.0
    x = normal(k)
    _, tail = laws.probabilities(x, k, exact_tail(k))
    rejected(x[tail > 2.0**-13], k, by="halving bins")


def test_rejects_a_wrong_concentration():
    rejected(normal(2.0), 2.02)


def test_rejects_a_shift():
    rejected(normal(1e4) + 5e-5, 1e4)


def test_rejects_a_repeated_value():
    x = normal(4.0)
    x[::300] = x[0]
    rejected(x, 4.0, by="equal bins")


def test_sees_dependence():
    u = np.random.default_rng(0).uniform(size=2**18)
    v = np.where(np.arange(len(u)) % 50 == 0, u, np.random.default_rng(1).uniform(size=len(u)))
    assert laws.independent(u, v) < laws.P_VALUE


def test_exact_tail_is_exact():
    """The interpolation that the battery stands on."""
    for k in (0.0, 0.3, 17.0, 1e6):
        x = reference.quantile(np.geomspace(1e-9, 0.4999, 500), k)
        np.testing.assert_allclose(exact_tail(k)(x), reference.sf(x, k), rtol=1e-7)


def test_mixed_dtypes_share_words():
    assert jnp.allclose(
        sample_von_mises(random.key(3), 0.0, 2.0, (100,)),
        sample_von_mises(random.key(3), 0.0, 2.0, (100,), "float16").astype(jnp.float32),
        atol=2e-3,
    )

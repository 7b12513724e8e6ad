"""Compare the filters for a heading with closed forms and with each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import special

from docs.examples import heading_filter as example

pytestmark = pytest.mark.slow

RUNS = 40


def test_systematic_resampling_copies_in_proportion():
    """Each particle is copied in proportion to its weight, rounded down or up, for any offset."""
    weights = np.exp(3 * np.random.default_rng(0).normal(size=200))
    expected = 200 * weights / weights.sum()
    systematic = jax.jit(example.systematic)
    for offset in np.float32([0.0, 0.37, 0.99]):
        copied = np.asarray(systematic(offset, np.float32(expected / 200)))
        assert np.all(np.abs(np.bincount(copied, minlength=200) - expected) < 1 + 1e-3)
        assert np.all(np.diff(copied) >= 0)


def ratio(k):
    return special.i1e(k) / special.i0e(k)


@pytest.fixture(scope="module")
def one_reading():
    """Return inputs with a single compass reading, near pi, and the exact mean resultant vector after each step."""
    turn = 0.7  # per step, which adds up to many full turns
    turns, readings = (jnp.full(example.STEPS, value, jnp.float32) for value in (turn, 3.1))
    concentrations = jnp.zeros(example.STEPS).at[0].set(example.COMPASS)
    after = np.arange(example.STEPS)
    length = (1 - example.WRONG) * ratio(example.COMPASS) * ratio(example.MOTION) ** after
    return (turns, readings, concentrations), length * np.exp(1j * (3.1 + turn * after))


def resultant(densities):
    """Return the mean unit vectors, as complex numbers, of densities on the grid along the last axis."""
    return np.mean(2 * np.pi * np.asarray(densities, float) * np.exp(1j * np.asarray(example.grid(), float)), axis=-1)


def test_grid_filter_has_the_exact_moments(one_reading):
    inputs, expected = one_reading
    estimates, densities = example.grid_filter(*inputs)
    np.testing.assert_allclose(np.mean(densities, axis=1) * 2 * np.pi, 1, atol=1e-5)
    np.testing.assert_allclose(resultant(densities), expected, atol=1e-5)
    np.testing.assert_allclose(np.exp(1j * np.asarray(estimates)), np.exp(1j * np.angle(expected)), atol=1e-4)


def test_particles_have_the_exact_moments(one_reading, key):
    """The mean resultant of 4096 particles differs from the exact one by at most five standard errors."""
    inputs, expected = one_reading
    estimates, cloud = example.particle_filter(key, *inputs)
    assert np.abs(cloud[0] - cloud[1]).max() > 0
    moments = np.mean(np.exp(1j * np.asarray(cloud, float)), axis=1)
    np.testing.assert_allclose(moments, expected, atol=5 / np.sqrt(example.PARTICLES))
    np.testing.assert_allclose(np.exp(1j * np.asarray(estimates)), np.exp(1j * np.angle(expected)), atol=0.1)


@pytest.fixture(scope="module")
def runs():
    """Return the headings, the readings and the exact filter's results of runs with the keys of `compare`."""
    turns, concentrations = example.gyro(), example.compass()
    results = []
    for key in random.split(random.key(2), RUNS):
        headings, readings = example.simulate(random.split(key)[0], turns, concentrations)
        results.append((headings, readings, *example.grid_filter(turns, readings, concentrations)))
    return [np.asarray(each) for each in zip(*results, strict=True)]


def test_particles_follow_the_exact_filter(runs, key):
    """The RMS distance between the particles' mean resultants and the exact ones is less than 3 / sqrt(4096)."""
    _, readings, _, densities = (each[0] for each in runs)
    cloud = np.asarray(example.particle_filter(key, example.gyro(), readings, example.compass())[1], float)
    miss = np.abs(np.mean(np.exp(1j * cloud), axis=1) - resultant(densities))
    assert np.sqrt(np.mean(miss**2)) < 3 / np.sqrt(example.PARTICLES)


def test_rotated_readings_rotate_the_posterior(runs):
    """Rotating the readings rotates the posterior, even across the ends of the grid."""
    _, readings, _, plain = (each[0] for each in runs)
    cells = 200
    turned = readings + np.float32(2 * np.pi * cells / example.CELLS)
    turned = example.grid_filter(example.gyro(), turned, example.compass())[1]
    np.testing.assert_allclose(turned, np.roll(plain, cells, axis=1), atol=1e-4 * plain.max())


def test_exact_filter_knows_its_error(runs):
    """The mean of 1 - cos(error) equals the mean circular variance of the posterior."""
    headings, _, estimates, densities = runs
    surplus = np.abs(resultant(densities)) - np.cos(headings - estimates)
    mean, error = example.mean_and_error(surplus)
    assert abs(mean) < 4 * error < 0.05


def test_exact_filter_is_far_better_than_a_reading(runs):
    """At steps with a reading, the mean loss of the exact filter is less than 0.3 times that of the readings."""
    headings, readings, estimates, _ = runs
    observed = np.asarray(example.compass()) > 0
    alone, exact = (np.mean(1 - np.cos(angles - headings)[:, observed]) for angles in (readings, estimates))
    assert exact < 0.3 * alone


def test_compass_alone_keeps_the_last_reading():
    readings = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])
    held = example.last_reading(readings, jnp.array([8.0, 8.0, 0.0, 0.0, 8.0]))
    assert held.tolist() == [1.0, 2.0, 2.0, 2.0, 5.0]

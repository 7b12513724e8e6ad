"""The example of torsion angles: its steps against closed forms, and the loss of a distribution that does not wrap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import stats

import jax_von_mises
from docs.examples import torsion_angles as example
from jax_von_mises import Mixture, Torus, VonMises

pytestmark = pytest.mark.slow

SIZE = 400

# The number of made-up residues is an argument like the others, so that one program serves all tests.
step = jax.jit(example.step)


def mixture(logits, loc, concentration, kind=VonMises):
    return Mixture(logits=jnp.float32(logits), components=Torus(kind(jnp.float32(loc), jnp.float32(concentration))))


def three(kind=VonMises, turn=0.0):
    """Three wide components, the same for each test, `turn` added to psi."""
    loc = np.array([[-1.0, 0.0], [0.5, 1.0], [-2.0, 2.4]]) + np.array([0.0, turn])
    return mixture(np.zeros(3), loc, np.full((3, 2), 2.0), kind)


@functools.cache
def residues():
    return example.simulate(random.key(7), SIZE)


def turned(points, turn):
    """`points` with `turn` added to psi, in [-pi, pi)."""
    return jnp.float32((np.asarray(points, float) + np.array([0.0, turn]) + np.pi) % (2 * np.pi) - np.pi)


def test_step_of_one_component_is_a_fit_shrunk_by_the_made_up_residues():
    """Evenly spread angles add to the number and not to the resultant; who has no weight gets none."""
    distribution = step(mixture([0.0, -np.inf, -np.inf], np.zeros((3, 2)), np.ones((3, 2))), residues(), 50.0)
    np.testing.assert_array_equal(distribution.log_weights(), [0, -np.inf, -np.inf])
    vectors = np.exp(1j * np.asarray(residues(), float)).sum(0)
    angles = distribution.components.components
    np.testing.assert_allclose(angles.loc[0], np.angle(vectors), atol=1e-5)
    np.testing.assert_allclose(1 - angles.variance()[0], np.abs(vectors) / (SIZE + 50), rtol=1e-5)


@pytest.mark.parametrize("kind", [VonMises, example.Normal])
def test_steps_climb_the_likelihood_with_the_made_up_residues(kind):
    """Those count in every component: so many times the mean over them of log(w_j p_j)."""
    pseudo, even = 3.0, np.asarray(example.EVEN, float)[:, None]

    def height(distribution):
        loc, concentration = (np.asarray(leaf, float) for leaf in jax.tree.leaves(distribution.components))
        if kind is VonMises:
            made_up = stats.vonmises.logpdf(even, concentration, loc)
        else:
            made_up = stats.norm.logpdf(even, loc, concentration**-0.5)
        weights = np.exp(np.asarray(distribution.logits, float))
        made_up = np.sum(np.mean(made_up, axis=0)) + np.sum(np.log(weights / weights.sum()))
        return SIZE * float(example.likelihood(distribution, residues())) + pseudo * made_up

    distributions = [three(kind)]
    for _ in range(6):
        distributions.append(step(distributions[-1], residues(), pseudo))
    heights = [height(distribution) for distribution in distributions]
    assert np.all(np.diff(heights) > -0.01)  # rounding of a sum of some hundreds
    assert heights[-1] > heights[0] + 100


def test_collapsing_components_stay_finite():
    """One sits on a single point, one has no point at all; without the made-up residues they break the fit."""
    points = jnp.float32([[-1.0, -1.0]] * (SIZE - 1) + [[1.0, 2.0]])
    distribution = mixture(np.zeros(3), [[-1.0, -1.0], [1.0, 2.0], [3.0, -3.0]], np.full((3, 2), 300.0))
    broken = step(distribution, points, 0.0).components.components.concentration
    assert np.isinf(broken[:2]).all()
    assert np.isnan(broken[2]).all()
    kept = step(distribution, points, 0.1)
    # One point and a tenth of one made up: a mean vector of length 1 / 1.1. No point: the uniform distribution.
    length = 1 - kept.components.components.variance()
    np.testing.assert_allclose(length[1:], [[1 / 1.1] * 2, [0, 0]], atol=1e-5)
    np.testing.assert_allclose(jnp.exp(kept.log_weights()), np.array([399.1, 1.1, 0.1]) / 400.3, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(step(kept, points, 0.1)))


@pytest.mark.parametrize("kind", [VonMises, example.Normal])
def test_where_the_circle_is_cut_matters_to_the_normal_law_alone(kind):
    """Psi turned by half a turn: the same residues, with other numbers written beside them."""
    heights = []
    for turn in (0.0, np.pi):
        distribution, points = three(kind, turn), turned(residues(), turn)
        for _ in range(20):
            distribution = step(distribution, points, example.PSEUDO)
        heights.append(float(example.likelihood(distribution, points)))
    if kind is VonMises:
        assert heights[0] == pytest.approx(heights[1], abs=1e-4)
    else:
        assert abs(heights[0] - heights[1]) > 0.05


def test_search_makes_mixtures_of_every_size():
    """With the normal distribution, which compiles in a third of the time: nothing here depends on the kind."""
    distributions = example.search(random.key(1), residues(), kind=example.Normal, most=3, starts=3, steps=40)
    np.testing.assert_array_equal(np.sum(np.asarray(distributions.logits) > -np.inf, axis=1), [1, 2, 3])
    criterion, heights = example.scores(distributions, residues(), residues())
    assert np.all(np.diff(heights) > 0.1)
    np.testing.assert_allclose(criterion, np.array([4, 9, 14]) * np.log(SIZE) / (2 * SIZE) - heights, rtol=1e-5)
    two = example.pick(distributions, 2)
    np.testing.assert_array_equal(two.logits, distributions.logits[1, :2])
    np.testing.assert_array_equal(two.components.components.loc, distributions.components.components.loc[1, :2])


def test_normal_law_is_that_of_scipy():
    points, weights = np.asarray(residues()), np.linspace(0.1, 1, SIZE, dtype=np.float32)[:, None]
    distribution = example.Normal.fit(points, weights, axis=0)
    for i, column in enumerate(points.T.astype(float)):
        mean = np.average(column, weights=weights[:, 0])
        variance = np.average((column - mean) ** 2, weights=weights[:, 0])
        np.testing.assert_allclose(
            [distribution.loc[i], 1 / distribution.concentration[i]], [mean, variance], rtol=1e-5
        )
        expected = stats.norm.logpdf(column, mean, np.sqrt(variance))
        np.testing.assert_allclose(distribution.log_prob(points)[:, i], expected, rtol=1e-4, atol=1e-5)


def test_matched_puts_components_into_order():
    truth = example.truth()
    order = np.array([3, 0, 4, 2, 1])
    shuffled = Mixture(logits=truth.logits[order], components=jax.tree.map(lambda leaf: leaf[order], truth.components))
    np.testing.assert_allclose(example.numbers(example.matched(shuffled, truth)), example.numbers(truth), rtol=1e-6)


def test_standard_errors_of_one_component_are_the_known_ones():
    distribution = VonMises.fit(residues(), axis=0)
    alone = Mixture(
        logits=jnp.zeros(1), components=Torus(VonMises(distribution.loc[None], distribution.concentration[None]))
    )
    errors = example.standard_errors(alone, residues())
    known = jax_von_mises.standard_errors(distribution.concentration, float(SIZE))
    np.testing.assert_allclose(errors[0], [0, *np.rad2deg(known.loc), *known.concentration], rtol=1e-3)


def test_ordinary_mean_goes_wrong_at_the_cut():
    mean, deviation = example.ordinary_mean(np.deg2rad([179.0, -179.0]), np.ones(2))
    assert mean == pytest.approx(0)
    assert deviation == pytest.approx(179)


def test_density_along_psi_is_the_marginal():
    grid = np.linspace(-np.pi, np.pi, 256, endpoint=False).astype(np.float32)
    plane = np.stack(np.meshgrid(grid, grid[::32], indexing="ij"), axis=-1)
    expected = np.asarray(example.density(example.truth(), plane)).mean(axis=0) * 2 * np.pi * np.pi / 180
    np.testing.assert_allclose(example.along_psi(example.truth(), grid[::32]), expected, rtol=1e-4)

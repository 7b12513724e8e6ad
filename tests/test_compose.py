"""Mixtures and tori, against sums over grids: the integrands are periodic, so that those are exact to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from jax_von_mises import Mixture, Torus, VonMises, sample_von_mises
from tests import laws, reference

WEIGHTS = np.array([0.2, 0.5, 0.3])
LOCS, CONCENTRATIONS = np.array([-2.0, 0.5, 3.0]), np.array([4.0, 0.7, 30.0])
GRID = np.linspace(-np.pi, np.pi, 512, endpoint=False)
CELL = GRID[1] - GRID[0]


def three():
    return Mixture(jnp.log(jnp.float32(WEIGHTS)), VonMises(jnp.float32(LOCS), jnp.float32(CONCENTRATIONS)))


def tori():
    """Two tori of two angles each."""
    components = VonMises(jnp.array([[-1.0, 2.0], [1.5, -0.5]]), jnp.array([[3.0, 8.0], [6.0, 1.0]]))
    return Mixture(jnp.array([0.0, 0.7]), Torus(components))


def density(x):
    return sum(w * reference.pdf(x - m, k) for w, m, k in zip(WEIGHTS, LOCS, CONCENTRATIONS, strict=True))


# ------------------------------------------------------------------------------------------ mixtures of angles


def test_density():
    law, x = three(), jnp.float32(GRID)
    exact = density(np.asarray(x, float))
    np.testing.assert_allclose(law.prob(x), exact, rtol=3e-6)
    np.testing.assert_allclose(law.log_prob(x), np.log(exact), rtol=1e-6, atol=1e-6)
    assert float(law.prob(x).sum()) * CELL == pytest.approx(1, rel=1e-6)


def test_cdf():
    """The integral of the density from -pi, on any turn."""
    fine = np.linspace(-np.pi, np.pi, 2**14 + 1)
    total = np.r_[0, np.cumsum((density(fine[1:]) + density(fine[:-1])) / 2)] * (fine[1] - fine[0])
    law, x = three(), np.float32([-3.0, -2.0, 0.0, 0.5, 2.9, 3.1])
    np.testing.assert_allclose(law.cdf(x), np.interp(x, fine, total), atol=1e-6)
    np.testing.assert_allclose(law.cdf(np.float32(x + 4 * np.pi)) - 2, law.cdf(x), atol=3e-6)
    assert abs(float(law.cdf(-np.pi))) < 1e-6
    # The largest float below pi is not pi.
    assert float(law.cdf(3.1415925)) == pytest.approx(1, abs=1e-6)


def test_mean():
    moment = CELL * np.sum(density(GRID) * np.exp(1j * GRID))
    assert float(three().mean()) == pytest.approx(np.angle(moment), abs=1e-6)


def test_responsibilities():
    law, x = three(), jnp.float32(GRID[::16])
    terms = WEIGHTS * np.stack(
        [reference.pdf(np.asarray(x, float) - m, k) for m, k in zip(LOCS, CONCENTRATIONS, strict=True)], -1
    )
    shares = law.responsibilities(x)
    np.testing.assert_allclose(shares, terms / terms.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-6)


def test_samples_follow_the_law(key):
    bins, count = 256, 2**18
    x = np.asarray(three().sample(key, (count,)))
    fine = (np.arange(64 * bins) + 0.5) / (64 * bins) * 2 * np.pi - np.pi
    expected = density(fine).reshape(bins, 64).sum(-1)
    counts = np.histogram(x, bins, (-np.pi, np.pi))[0]
    assert laws.chi_square(counts, count * expected / expected.sum()) > laws.P_VALUE


def test_one_component_s_angles_are_the_sampler_s(key):
    """A weight of 1 leaves what `sample_von_mises` draws: one angle an element, not one for each component."""
    law = Mixture([-jnp.inf, 0.0, -jnp.inf], three().components)
    draw = random.split(key)[1]
    expected = sample_von_mises(
        draw, jnp.full(100, LOCS[1], jnp.float32), jnp.full(100, CONCENTRATIONS[1], jnp.float32)
    )
    np.testing.assert_array_equal(law.sample(key, (100,)), expected)


def test_batches(key):
    """Three mixtures of two, with logits and locations that vary along different axes."""
    law = Mixture(jnp.zeros((3, 1, 2)), VonMises(jnp.zeros((4, 1)), jnp.array([1.0, 5.0])))
    assert law.batch_shape == (3, 4)
    assert law.event_shape == ()
    x = law.sample(key, (7,))
    assert x.shape == (7, 3, 4)
    assert law.log_prob(x).shape == law.prob(x).shape == law.cdf(x).shape == (7, 3, 4)
    assert law.responsibilities(x).shape == (7, 3, 4, 2)
    assert law.mean().shape == (3, 4)
    assert law.log_prob(0.0).shape == (3, 4)
    assert law.sample(seed=key).shape == (3, 4)


def test_stable_where_densities_underflow():
    """e^-4000 and less: the nearest component decides."""
    law = Mixture([0.0, 0.0], VonMises([0.0, 1.0], [1e4, 1e4]))
    value = float(law.log_prob(2.0))
    with jax.enable_x64(True):
        exact = float(VonMises(1.0, 1e4).log_prob(2.0)) + np.log(0.5)
    assert value == pytest.approx(exact, rel=1e-6)
    grads = jax.grad(lambda law: law.log_prob(2.0))(law)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("value", [0.0, 1.0, np.pi, -np.pi])
def test_gradients_with_a_weight_of_zero(value):
    """Finite, and without the component that is not there, even if that is a point mass at the value."""
    for k in (1.0, 1e6, jnp.inf):
        law = Mixture([0.0, -jnp.inf, 1.0], VonMises([0.0, 1.0, 2.0], jnp.array([2.0, k, 1e3])))
        without = Mixture([0.0, 1.0], VonMises([0.0, 2.0], [2.0, 1e3]))
        assert float(law.log_prob(value)) == pytest.approx(float(without.log_prob(value)), rel=1e-6)
        assert float(law.prob(value)) == pytest.approx(float(without.prob(value)), rel=1e-6)
        if jnp.isfinite(k):
            grads = jax.grad(lambda law: law.log_prob(value))(law)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
            assert grads.logits[1] == grads.components.loc[1] == grads.components.concentration[1] == 0


def test_gradients_are_differences():
    with jax.enable_x64(True):
        law = Mixture(np.log(WEIGHTS), VonMises(LOCS, CONCENTRATIONS))
        function = lambda law: jnp.sum(law.log_prob(jnp.linspace(-3.0, 3.0, 7)))  # noqa: E731
        grads = jax.tree.leaves(jax.grad(function)(law))
        leaves, structure = jax.tree.flatten(law)
        for i, leaf in enumerate(leaves):
            for j in range(3):
                step = 1e-6 * np.eye(3)[j]
                up, down = (
                    function(structure.unflatten([*leaves[:i], leaf + s, *leaves[i + 1 :]])) for s in (step, -step)
                )
                assert float(grads[i][j]) == pytest.approx(float(up - down) / 2e-6, rel=1e-6, abs=1e-8)


def test_samples_have_derivatives(key):
    """1 in the location of the component that was chosen, 0 in the others."""
    law = three()
    slopes = jax.jacfwd(lambda loc: Mixture(law.logits, VonMises(loc, law.components.concentration)).sample(key, (50,)))
    slopes = np.asarray(slopes(law.components.loc))
    assert (np.sort(slopes, -1) == [0, 0, 1]).all()


# ------------------------------------------------------------------------------------------ tori


def test_torus_is_a_product(key):
    components = VonMises(jnp.zeros((3, 2)), jnp.array([1.0, 5.0]))
    law = Torus(components)
    assert (law.batch_shape, law.event_shape) == ((3,), (2,))
    x = law.sample(key, (10,))
    np.testing.assert_array_equal(x, components.sample(key, (10,)))
    np.testing.assert_allclose(law.log_prob(x), components.log_prob(x).sum(-1))
    np.testing.assert_allclose(law.prob(x), jnp.exp(law.log_prob(x)), rtol=1e-5)
    assert law.mean().shape == law.mode().shape == (3, 2)
    np.testing.assert_allclose(law.entropy(), components.entropy().sum(-1))
    other = Torus(VonMises([0.3, -0.2], [2.0, 2.0]))
    divergence = law.kl_divergence(other)
    assert divergence.shape == (3,)
    # By a sum over a grid of both angles.
    grid = jnp.stack(jnp.meshgrid(jnp.float32(GRID[::4]), jnp.float32(GRID[::4])), -1)
    one = Torus(VonMises([0.0, 0.0], [1.0, 5.0]))
    exact = jnp.sum(one.prob(grid) * (one.log_prob(grid) - other.log_prob(grid))) * (4 * CELL) ** 2
    np.testing.assert_allclose(divergence, exact, rtol=1e-4)


def test_mixture_of_tori(key):
    law = tori()
    assert (law.batch_shape, law.event_shape) == ((), (2,))
    grid = jnp.stack(jnp.meshgrid(jnp.float32(GRID[::4]), jnp.float32(GRID[::4]), indexing="ij"), -1)
    probability = np.asarray(law.prob(grid), float) * (4 * CELL) ** 2
    assert probability.sum() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(law.log_prob(grid), jnp.log(law.prob(grid)), rtol=1e-5, atol=1e-5)
    # Sixteen bins each way; the angles of one point come from one component.
    count = 2**16
    x = np.asarray(law.sample(key, (count,)))
    counts = np.histogram2d(x[:, 0], x[:, 1], 16, [(-np.pi, np.pi)] * 2)[0].ravel()
    fine = np.float32((np.arange(256) + 0.5) / 256 * 2 * np.pi - np.pi)
    cells = np.asarray(law.prob(jnp.stack(jnp.meshgrid(fine, fine, indexing="ij"), -1)), float)
    expected = cells.reshape(16, 16, 16, 16).sum((1, 3)).ravel()
    expected *= count / expected.sum()
    keep = expected >= laws.FEWEST
    counts, expected = (np.r_[a[keep], a[~keep].sum()] for a in (counts, expected))
    assert laws.chi_square(counts, expected) > laws.P_VALUE
    moment = (probability[..., None] * np.exp(1j * np.asarray(grid, float))).sum((0, 1))
    np.testing.assert_allclose(law.mean(), np.angle(moment), atol=1e-5)
    assert law.responsibilities(x).shape == (count, 2)
    assert all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(lambda law: law.log_prob(jnp.zeros(2)))(law))
    )


# ------------------------------------------------------------------------------------------ fitting


def test_expectation_maximisation_recovers_the_parameters(key):
    true = Mixture(jnp.log(jnp.array([0.3, 0.7])), VonMises([-1.0, 1.5], [8.0, 3.0]))
    x = true.sample(key, (20_000,))

    @jax.jit
    def step(law):
        shares = law.responsibilities(x)
        return Mixture(
            jnp.log(shares.mean(0)), VonMises.fit(jnp.broadcast_to(x[:, None], shares.shape), shares, axis=0)
        )

    law = Mixture(jnp.zeros(2), VonMises(jnp.array([-0.5, 0.5]), jnp.array([1.0, 1.0])))
    start = float(law.log_prob(x).mean())
    for _ in range(60):
        law = step(law)
    assert float(law.log_prob(x).mean()) > max(start, float(true.log_prob(x).mean()) - 1e-3)
    np.testing.assert_allclose(jnp.exp(law.log_weights()), [0.3, 0.7], atol=0.02)
    np.testing.assert_allclose(law.components.loc, [-1.0, 1.5], atol=0.03)
    np.testing.assert_allclose(law.components.concentration, [8.0, 3.0], rtol=0.08)


# ------------------------------------------------------------------------------------------ transformations, errors


@pytest.mark.parametrize("make", [three, tori])
def test_pytree(key, make):
    law = make()
    leaves, structure = jax.tree.flatten(law)
    assert all(a is b for a, b in zip(jax.tree.leaves(structure.unflatten(leaves)), leaves, strict=True))
    x = law.sample(key, (5,))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), law)
    rows = jax.jit(jax.vmap(lambda law: law.log_prob(x)))(stacked)
    np.testing.assert_allclose(rows[1], law.log_prob(x), rtol=1e-6, atol=1e-6)
    # The same laws as a batch.
    np.testing.assert_allclose(stacked.log_prob(x[:, None])[:, 1], law.log_prob(x), rtol=1e-6, atol=1e-6)


def test_float64(key):
    with jax.enable_x64(True):
        law = Mixture(np.log(WEIGHTS), VonMises(LOCS, CONCENTRATIONS))
        x = law.sample(key, (4,))
        assert x.dtype == law.log_prob(x).dtype == law.dtype == jnp.float64
        np.testing.assert_allclose(law.prob(GRID), density(GRID), rtol=1e-12)
        # Parameters of float32 and values of float64 meet in float64.
        assert three().log_prob(x).dtype == jnp.float64


def test_errors(key):
    with pytest.raises(ValueError, match=r"Mixture: logits has shape \(3,\) for components of batch_shape=\(2,\)"):
        Mixture(jnp.zeros(3), VonMises([0.0, 1.0], 1.0)).log_prob(0.0)
    with pytest.raises(ValueError, match=r"Mixture: the components have batch_shape=\(\)"):
        Mixture(jnp.zeros(1), VonMises(0.0, 1.0)).sample(key)
    with pytest.raises(ValueError, match="do not broadcast together"):
        Mixture(jnp.zeros((3, 2)), VonMises(jnp.zeros((4, 2)), 1.0)).sample(key)
    with pytest.raises(ValueError, match=r"Torus: the components have batch_shape=\(\)"):
        Torus(VonMises(0.0, 1.0)).log_prob(0.0)
    with pytest.raises(ValueError, match=r"one torus has 2 angles, the other 3"):
        Torus(VonMises(jnp.zeros(2), 1.0)).kl_divergence(Torus(VonMises(jnp.zeros(3), 1.0)))
    with pytest.raises(TypeError, match="no order"):
        tori().cdf(jnp.zeros(2))
    for law in (three(), tori(), Torus(VonMises(jnp.zeros(2), 1.0))):
        with pytest.raises(TypeError, match="give one random key"):
            law.sample()
        with pytest.raises(TypeError, match="give one random key"):
            law.sample(key, seed=key)


def test_a_point_mass_takes_the_responsibility():
    law = Mixture([0.0, 0.0, 0.0], VonMises([0.0, 1.0, 0.0], [np.inf, 2.0, np.inf]))
    np.testing.assert_array_equal(law.responsibilities(0.0), [0.5, 0.0, 0.5])
    np.testing.assert_array_equal(law.responsibilities(0.5), [0.0, 1.0, 0.0])

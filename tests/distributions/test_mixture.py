"""Compare mixtures and tori with sums over grids, which are exact up to rounding for smooth periodic integrands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from jax_von_mises import Mixture, Torus, VonMises, WrappedCauchy, sample_von_mises
from tests import goodness_of_fit, reference

WEIGHTS = np.array([0.2, 0.5, 0.3])
LOCS, CONCENTRATIONS = np.array([-2.0, 0.5, 3.0]), np.array([4.0, 0.7, 30.0])
GRID = np.linspace(-np.pi, np.pi, 512, endpoint=False)
CELL = GRID[1] - GRID[0]


def three():
    return Mixture(
        logits=jnp.log(jnp.float32(WEIGHTS)), components=VonMises(jnp.float32(LOCS), jnp.float32(CONCENTRATIONS))
    )


def tori():
    """Return a mixture of two tori of two angles each."""
    components = VonMises(jnp.array([[-1.0, 2.0], [1.5, -0.5]]), jnp.array([[3.0, 8.0], [6.0, 1.0]]))
    return Mixture(logits=jnp.array([0.0, 0.7]), components=Torus(components))


def grid_of_two(step):
    """Return points of a torus, at every `step`-th angle of the grid."""
    axis = np.float32(GRID[::step])
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)


@functools.cache
def program(method):
    return jax.jit(lambda distribution, *arguments: getattr(distribution, method)(*arguments))


def run(distribution, method, *arguments):
    """Call a method as one program, which compiles much faster than separate operations."""
    return program(method)(distribution, *arguments)


@functools.partial(jax.jit, static_argnames="shape")
def draw(distribution, key, shape):
    return distribution.sample(key, shape)


@jax.jit
def gradient(distribution, value):
    """Return the gradient of the log density with respect to all parameters."""
    return jax.grad(lambda distribution: distribution.log_prob(value))(distribution)


def all_finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def density(x):
    return sum(w * reference.pdf(x - m, k) for w, m, k in zip(WEIGHTS, LOCS, CONCENTRATIONS, strict=True))


# ------------------------------------------------------------------------------------------ mixtures of angles


def test_density():
    mixture, x = three(), jnp.float32(GRID)
    exact = density(np.asarray(x, float))
    probability = run(mixture, "prob", x)
    np.testing.assert_allclose(probability, exact, rtol=3e-6)
    np.testing.assert_allclose(run(mixture, "log_prob", x), np.log(exact), rtol=1e-6, atol=1e-6)
    assert float(probability.sum()) * CELL == pytest.approx(1, rel=1e-6)


def test_cdf():
    """The cdf is the integral of the density from -pi, on any turn."""
    fine = np.linspace(-np.pi, np.pi, 2**14 + 1)
    total = np.r_[0, np.cumsum((density(fine[1:]) + density(fine[:-1])) / 2)] * (fine[1] - fine[0])
    mixture, x = three(), np.float32([-3.0, -2.0, 0.0, 0.5, 2.9, 3.1])
    cdf = run(mixture, "cdf", x)
    np.testing.assert_allclose(cdf, np.interp(x, fine, total), atol=1e-6)
    np.testing.assert_allclose(run(mixture, "cdf", np.float32(x + 4 * np.pi)) - 2, cdf, atol=3e-6)
    assert abs(float(run(mixture, "cdf", -np.pi))) < 1e-6
    # The largest float below pi is not pi.
    assert float(run(mixture, "cdf", 3.1415925)) == pytest.approx(1, abs=1e-6)


def test_sf_and_logarithms():
    mixture, x = three(), np.float32([-3.0, 0.5, 3.0])
    np.testing.assert_allclose(run(mixture, "cdf", x) + run(mixture, "sf", x), 1, atol=1e-6)
    np.testing.assert_allclose(run(mixture, "log_cdf", x), np.log(run(mixture, "cdf", x)), rtol=1e-5)
    np.testing.assert_allclose(run(mixture, "log_sf", x), np.log(run(mixture, "sf", x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("concentrations", [[4.0, 0.7, 30.0], [1e6, 3e4, 1e3], [0.0, 1e9, 2.0], [50.0, 50.0, 50.0]])
def test_quantiles(concentrations, dtype):
    """The probability below the quantile is `q`, by independent integrals, also between distant narrow modes."""
    with jax.enable_x64(dtype == "float64"):
        locs, ks = np.array(LOCS, dtype), np.array(concentrations, dtype)
        mixture = Mixture(probs=np.array(WEIGHTS, dtype), components=VonMises(locs, ks))
        q = np.r_[np.linspace(0, 1, 101), 1e-5, 1 - 1e-5].astype(dtype)
        x = np.asarray(run(mixture, "icdf", q), float)
    assert (np.abs(x) <= np.pi).all()
    assert (np.diff(x[:101]) >= 0).all()

    def of_component(x, m, k):
        turns = np.round((x - m) / (2 * np.pi))
        away = x - m - 2 * np.pi * turns
        return turns + np.sign(away) * reference.central(np.abs(away), k)

    def probability(x):
        return sum(
            w * (of_component(x, m, k) - of_component(np.full_like(x, -np.pi), m, k))
            for w, (m, k) in zip(np.array(WEIGHTS, dtype).astype(float), parameters, strict=True)
        )

    parameters = [*zip(locs.astype(float), ks.astype(float), strict=True)]
    eps = float(np.finfo(dtype).eps)
    slack = 4 * eps * np.maximum(np.abs(x), 1)
    below, above = (probability(np.clip(x + sign * slack, -np.pi, np.pi)) for sign in (-1, 1))
    assert (below - 6 * eps <= q).all()
    assert (q <= above + 6 * eps).all()


def test_derivatives_of_quantiles():
    """They are differences, in both modes and with respect to all parameters."""
    with jax.enable_x64(True):
        mixture = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), three())
        quantile = jax.jit(lambda mixture, q: mixture.icdf(q))
        q, h = jnp.float64(0.37), 1e-6
        slopes, slope = jax.jit(jax.grad(quantile, (0, 1)))(mixture, q)
        assert float(slope) == pytest.approx(
            float(quantile(mixture, q + h) - quantile(mixture, q - h)) / (2 * h), rel=1e-6
        )
        leaves, tree = jax.tree.flatten(mixture)
        for i, leaf in enumerate(leaves):
            moved = [
                quantile(jax.tree.unflatten(tree, [*leaves[:i], leaf.at[1].add(sign * h), *leaves[i + 1 :]]), q)
                for sign in (-1, 1)
            ]
            found = float(jax.tree.leaves(slopes)[i][1])
            assert found == pytest.approx(float(moved[1] - moved[0]) / (2 * h), rel=1e-5, abs=1e-9)


def test_derivatives_of_the_mode():
    """They are differences of the modes found on a fine grid, and an interval without mass is the mode."""
    with jax.enable_x64(True):
        mixture = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), three())
        leaves, _ = jax.tree.flatten(mixture)
        mode, slopes = jax.value_and_grad(lambda mixture: mixture.mode())(mixture)
        np.testing.assert_allclose(mixture.interval(0.0), mode, rtol=1e-12)

        def density_of(leaves):
            logits, locs, ks = (np.asarray(leaf) for leaf in leaves)
            weights = special.softmax(logits)
            return lambda x: sum(w * reference.pdf(x - m, k) for w, m, k in zip(weights, locs, ks, strict=True))

        def best(leaves):
            density = density_of(leaves)
            return optimize.brentq(lambda x: density(x + 1e-4) - density(x - 1e-4), 2.8, 3.1, xtol=1e-13)

        assert float(mode) == pytest.approx(best(leaves), abs=1e-6)
        for i, leaf in enumerate(leaves):
            for j in range(3):
                moved = [best([*leaves[:i], leaf.at[j].add(h), *leaves[i + 1 :]]) for h in (1e-3, -1e-3)]
                found = float(jax.tree.leaves(slopes)[i][j])
                assert found == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=1e-3, abs=1e-6)


def test_divergence_from_itself():
    """It is not negative, and its derivatives stay those of the divergence."""
    mixture = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 2.0], [5.0, 20.0]))
    assert 0 <= mixture.kl_divergence(mixture) < 1e-6

    def divergence(shift):
        moved = VonMises(mixture.components.loc + shift, mixture.components.concentration)
        return mixture.kl_divergence(Mixture(logits=mixture.logits, components=moved))

    # The second derivative is the information about a shift, the mean square of the slope of the log density.
    x = np.float32(np.linspace(-np.pi, np.pi, 4096, endpoint=False))
    slope = jax.vmap(jax.grad(mixture.log_prob))(x)
    information = np.sum(np.asarray(mixture.prob(x) * slope**2, float)) * 2 * np.pi / 4096
    np.testing.assert_allclose(jax.grad(jax.grad(divergence))(0.0), information, rtol=1e-4)


def test_quantiles_with_a_point_mass():
    """The quantile is at the point mass for all probabilities that it holds, and on either side for the others."""
    mixture = Mixture(probs=[0.5, 0.5], components=VonMises(np.float32([0, 2]), np.float32([np.inf, 1])))
    x = np.asarray(run(mixture, "icdf", np.float32([0.01, 0.2, 0.5, 0.9, 0.99])))
    np.testing.assert_allclose(x[1:3], 0, atol=1e-6)
    np.testing.assert_allclose(run(mixture, "cdf", x[[0, 3, 4]]), [0.01, 0.9, 0.99], atol=1e-6)


@pytest.mark.parametrize("k", [1e6, 1e8, np.inf])
def test_variance_of_narrow_components(k):
    """It has no cancellation."""
    locs = np.linspace(-3, 3, 50, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    mixture = Mixture(probs=np.float32([0.3, 0.7]), components=VonMises(locs, np.float32(k)))
    np.testing.assert_allclose(mixture.variance(), 0.5 / k, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(mixture.stddev(), k**-0.5, rtol=1e-5, atol=1e-6)


def test_invalid_quantiles():
    for logits, loc, k in (([0, 0], [np.nan, 2], [1, 1]), ([0, 0], [0, 2], [-1, 1]), ([np.nan, 0], [0, 2], [1, 1])):
        mixture = Mixture(logits=np.float32(logits), components=VonMises(np.float32(loc), np.float32(k)))
        assert np.isnan(run(mixture, "icdf", np.float32([0, 0.3, 1]))).all()
    np.testing.assert_array_equal(np.isnan(run(three(), "icdf", np.float32([-0.1, 0.5, 1.1, np.nan]))), [1, 0, 1, 1])
    for method in ("cdf", "sf", "icdf"):
        with pytest.raises(
            AttributeError, match=f"Mixture has no {method}: points of several dimensions have no order"
        ):
            getattr(tori(), method)(0.5)
    narrow = Mixture(probs=jnp.bfloat16([0.5, 0.5]), components=VonMises(jnp.bfloat16([0, 1]), jnp.bfloat16([4, 4])))
    assert narrow.icdf(0.5).dtype == jnp.bfloat16
    assert float(narrow.icdf(0.5)) == pytest.approx(0.5, abs=0.01)


def test_mean_resultant_length():
    moment = abs(CELL * np.sum(density(GRID) * np.exp(1j * GRID)))
    assert float(run(three(), "mean_resultant_length")) == pytest.approx(moment, abs=1e-6)
    assert float(run(three(), "variance")) == pytest.approx(1 - moment, abs=1e-6)
    assert float(run(three(), "stddev")) == pytest.approx(np.sqrt(-2 * np.log(moment)), abs=1e-5)
    np.testing.assert_allclose(three().probs, WEIGHTS, rtol=1e-6)


def test_mean():
    moment = CELL * np.sum(density(GRID) * np.exp(1j * GRID))
    assert float(run(three(), "mean")) == pytest.approx(np.angle(moment), abs=1e-6)


def test_responsibilities():
    mixture, x = three(), jnp.float32(GRID[::16])
    terms = WEIGHTS * np.stack(
        [reference.pdf(np.asarray(x, float) - m, k) for m, k in zip(LOCS, CONCENTRATIONS, strict=True)], -1
    )
    shares = run(mixture, "responsibilities", x)
    np.testing.assert_allclose(shares, terms / terms.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-6)


def test_samples_follow_the_distribution(key):
    bins, count = 256, 2**18
    x = np.asarray(draw(three(), key, (count,)))
    fine = (np.arange(64 * bins) + 0.5) / (64 * bins) * 2 * np.pi - np.pi
    expected = density(fine).reshape(bins, 64).sum(-1)
    counts = np.histogram(x, bins, (-np.pi, np.pi))[0]
    assert goodness_of_fit.chi_square(counts, count * expected / expected.sum()) > goodness_of_fit.P_VALUE


def test_one_component_gives_the_angles_of_the_sampler(key):
    """If one weight is 1, draw i is angle 2 i + 1 of `sample_von_mises`."""
    mixture = Mixture(logits=[-jnp.inf, 0.0, -jnp.inf], components=three().components)
    loc, concentration = np.full((2, 200), [[LOCS[1]], [CONCENTRATIONS[1]]], np.float32)
    expected = sample_von_mises(key, loc, concentration)[1::2]
    np.testing.assert_array_equal(draw(mixture, key, (100,)), expected)


def test_batches(key):
    """Logits and components that vary along different axes give a batch of 3 x 4 mixtures."""
    mixture = Mixture(logits=jnp.zeros((3, 1, 2)), components=VonMises(jnp.zeros((4, 1)), jnp.array([1.0, 5.0])))
    assert mixture.batch_shape == (3, 4)
    assert mixture.event_shape == ()

    def values(mixture):
        x = mixture.sample(key, (7,))
        draws = x, mixture.log_prob(x), mixture.prob(x), mixture.cdf(x)
        return draws, mixture.responsibilities(x), (mixture.mean(), mixture.log_prob(0.0), mixture.sample(seed=key))

    draws, shares, singles = jax.eval_shape(values, mixture)
    assert {value.shape for value in draws} == {(7, 3, 4)}
    assert shares.shape == (7, 3, 4, 2)
    assert {value.shape for value in singles} == {(3, 4)}


def test_stable_where_densities_underflow():
    """Where densities underflow (e^-4597), the nearest component determines the log density."""
    mixture = Mixture(logits=[0.0, 0.0], components=VonMises([0.0, 1.0], [1e4, 1e4]))
    value = float(run(mixture, "log_prob", 2.0))
    with jax.enable_x64(True):
        exact = float(VonMises(1.0, 1e4).log_prob(2.0)) + np.log(0.5)
    assert value == pytest.approx(exact, rel=1e-6)
    assert all_finite(gradient(mixture, 2.0))


@pytest.mark.parametrize("value", [0.0, 1.0, np.pi])
def test_gradients_with_a_weight_of_zero(value):
    """A component of weight 0, even a point mass, does not affect the density; at finite k, its gradient is 0."""
    for k in (1.0, 1e6, jnp.inf):
        mixture = Mixture(logits=[0.0, -jnp.inf, 1.0], components=VonMises([0.0, 1.0, 2.0], jnp.array([2.0, k, 1e3])))
        without = Mixture(logits=[0.0, 1.0], components=VonMises([0.0, 2.0], [2.0, 1e3]))
        for method in ("log_prob", "prob"):
            expected = float(run(without, method, value))
            assert float(run(mixture, method, value)) == pytest.approx(expected, rel=1e-6)
        if np.isfinite(k):
            grads = gradient(mixture, value)
            assert all_finite(grads)
            assert grads.logits[1] == grads.components.loc[1] == grads.components.concentration[1] == 0


def test_gradients_are_differences():
    with jax.enable_x64(True):
        mixture = Mixture(logits=np.log(WEIGHTS), components=VonMises(LOCS, CONCENTRATIONS))
        function = jax.jit(lambda mixture: jnp.sum(mixture.log_prob(np.linspace(-3.0, 3.0, 7))))
        grads = jax.tree.leaves(jax.jit(jax.grad(function))(mixture))
        leaves, structure = jax.tree.flatten(mixture)
        for i, leaf in enumerate(leaves):
            for j in range(3):
                step = 1e-6 * np.eye(3)[j]
                up, down = (
                    function(structure.unflatten([*leaves[:i], leaf + s, *leaves[i + 1 :]])) for s in (step, -step)
                )
                assert float(grads[i][j]) == pytest.approx(float(up - down) / 2e-6, rel=1e-6, abs=1e-8)


def test_samples_have_derivatives(key):
    """The derivative of a sample is 1 with respect to the location of the chosen component and 0 for the others."""
    mixture = three()

    def angles(loc):
        return Mixture(logits=mixture.logits, components=VonMises(loc, mixture.components.concentration)).sample(
            key, (50,)
        )

    slopes = np.asarray(jax.jit(jax.jacfwd(angles))(mixture.components.loc))
    assert (np.sort(slopes, -1) == [0, 0, 1]).all()


# ------------------------------------------------------------------------------------------ tori


@pytest.mark.slow
def test_torus_is_a_product(key):
    components = VonMises(jnp.zeros((3, 2)), jnp.array([1.0, 5.0]))
    torus = Torus(components)
    assert (torus.batch_shape, torus.event_shape) == ((3,), (2,))
    x = draw(torus, key, (10,))
    np.testing.assert_array_equal(x, draw(components, key, (10,)))
    log_prob = run(torus, "log_prob", x)
    np.testing.assert_allclose(log_prob, run(components, "log_prob", x).sum(-1))
    np.testing.assert_allclose(run(torus, "prob", x), np.exp(log_prob), rtol=1e-5)
    assert {jax.eval_shape(getattr(torus, method)).shape for method in ("mean", "mode")} == {(3, 2)}
    np.testing.assert_allclose(run(torus, "entropy"), run(components, "entropy").sum(-1), rtol=1e-6)
    other = Torus(VonMises([0.3, -0.2], [2.0, 2.0]))
    divergence = run(torus, "kl_divergence", other)
    assert divergence.shape == (3,)
    # Compare with a sum over a grid of both angles.
    grid = grid_of_two(4)
    one = Torus(VonMises([0.0, 0.0], [1.0, 5.0]))
    change = run(one, "log_prob", grid) - run(other, "log_prob", grid)
    exact = np.sum(run(one, "prob", grid) * change) * (4 * CELL) ** 2
    np.testing.assert_allclose(divergence, exact, rtol=1e-4)


@pytest.mark.slow
def test_mixture_of_tori(key):
    mixture = tori()
    assert (mixture.batch_shape, mixture.event_shape) == ((), (2,))
    grid = grid_of_two(4)
    density = np.asarray(run(mixture, "prob", grid))
    probability = density.astype(float) * (4 * CELL) ** 2
    assert probability.sum() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(run(mixture, "log_prob", grid), np.log(density), rtol=1e-5, atol=1e-5)
    # Use sixteen bins per axis; both angles of a point come from the same component.
    count = 2**16
    x = np.asarray(draw(mixture, key, (count,)))
    counts = np.histogram2d(x[:, 0], x[:, 1], 16, [(-np.pi, np.pi)] * 2)[0].ravel()
    fine = np.float32((np.arange(256) + 0.5) / 256 * 2 * np.pi - np.pi)
    cells = np.asarray(run(mixture, "prob", np.stack(np.meshgrid(fine, fine, indexing="ij"), -1)), float)
    expected = cells.reshape(16, 16, 16, 16).sum((1, 3)).ravel()
    expected *= count / expected.sum()
    keep = expected >= goodness_of_fit.FEWEST
    counts, expected = (np.r_[a[keep], a[~keep].sum()] for a in (counts, expected))
    assert goodness_of_fit.chi_square(counts, expected) > goodness_of_fit.P_VALUE
    moment = (probability[..., None] * np.exp(1j * np.asarray(grid, float))).sum((0, 1))
    np.testing.assert_allclose(run(mixture, "mean"), np.angle(moment), atol=1e-5)
    assert run(mixture, "responsibilities", x).shape == (count, 2)
    assert all_finite(gradient(mixture, np.zeros(2, np.float32)))


# ------------------------------------------------------------------------------------------ fitting


@pytest.mark.slow
def test_expectation_maximisation_recovers_the_parameters(key):
    true = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 1.5], [8.0, 3.0]))
    x = draw(true, key, (8_000,))

    @jax.jit
    def step(mixture):
        shares = mixture.responsibilities(x)
        angles = jnp.broadcast_to(x[:, None], shares.shape)
        return Mixture(probs=shares.mean(0), components=VonMises.fit(angles, shares, axis=0))

    mixture = Mixture(logits=jnp.zeros(2), components=VonMises(jnp.array([-0.5, 0.5]), jnp.array([1.0, 1.0])))
    start = run(mixture, "log_prob", x).mean()
    for _ in range(40):
        mixture = step(mixture)
    assert run(mixture, "log_prob", x).mean() > max(start, run(true, "log_prob", x).mean() - 1e-3)
    np.testing.assert_allclose(np.exp(run(mixture, "log_weights")), [0.3, 0.7], atol=0.02)
    np.testing.assert_allclose(mixture.components.loc, [-1.0, 1.5], atol=0.03)
    np.testing.assert_allclose(mixture.components.concentration, [8.0, 3.0], rtol=0.08)


# ------------------------------------------------------------------------------------------ transformations, errors


@pytest.mark.parametrize("make", [three, pytest.param(tori, marks=pytest.mark.slow)])
def test_pytree(key, make):
    """A mixture is a pytree, and its results agree under `jax.vmap` and as a batch."""
    distribution = make()
    leaves, structure = jax.tree.flatten(distribution)
    assert all(a is b for a, b in zip(jax.tree.leaves(structure.unflatten(leaves)), leaves, strict=True))
    x = draw(distribution, key, (5,))
    log_prob = run(distribution, "log_prob", x)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), distribution)
    rows = jax.jit(jax.vmap(lambda distribution: distribution.log_prob(x)))(stacked)
    np.testing.assert_allclose(rows[1], log_prob, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(run(stacked, "log_prob", x[:, None])[:, 1], log_prob, rtol=1e-6, atol=1e-6)


def test_weights():
    """Weights may be given as logits, or as probabilities up to a common factor; a weight may be 0."""
    components = VonMises([-1.0, 2.0, 0.0], [5.0, 20.0, 1.0])
    by_logits = Mixture(logits=jnp.log(jnp.array([0.3, 0.7, 0.0])), components=components)
    for probs in ([0.3, 0.7, 0.0], np.array([3.0, 7.0, 0.0]), jnp.array([0.6, 1.4, 0.0])):
        mixture = Mixture(probs=probs, components=components)
        np.testing.assert_allclose(jnp.exp(run(mixture, "log_weights")), [0.3, 0.7, 0.0], rtol=1e-6)
        np.testing.assert_allclose(run(mixture, "log_prob", 0.5), run(by_logits, "log_prob", 0.5), rtol=1e-6)
    # NumPyro's Categorical accepts None for the argument that is not used, so callers may pass both arguments.
    assert Mixture(logits=None, probs=[0.5, 0.5], components=components).logits.shape == (2,)
    assert Mixture(logits=[0.0, 0.0], probs=None, components=components).logits.shape == (2,)
    assert Mixture(logits=None, components=0).logits is None
    for probs in ([0.3, -0.7, 1.0], [0.3, np.nan, 1.0], [0.3, np.inf, 1.0], [0.0, 0.0, 0.0]):
        assert np.isnan(run(Mixture(probs=probs, components=components), "log_prob", 0.5)).any()
        with pytest.raises(ValueError, match=r"Mixture: probs (contains|gives all)"):
            Mixture(probs=probs, components=components, validate_args=True)
    for logits in ([0.3, np.nan, 1.0], [0.3, np.inf, 1.0], [-np.inf] * 3):
        with pytest.raises(ValueError, match=r"Mixture: logits (contains|gives all)"):
            Mixture(logits=logits, components=components, validate_args=True)
    Mixture(probs=[0.3, 0.7, 0.0], components=components, validate_args=True)
    Mixture(logits=[-np.inf, 0.0, 5.0], components=components, validate_args=True)
    bad = jnp.array([-1.0, 1.0, 1.0])
    assert jax.jit(lambda probs: jnp.isnan(Mixture(probs=probs, components=components, validate_args=True).logits))(
        bad
    )[0]


def test_components_are_checked_at_construction():
    one = VonMises(0.0, 1.0)
    for components, message in (
        ([one, one], r"components=\[.* must be one distribution .* Write VonMises\(\["),
        ((one, one), r"components=\(.* must be one distribution .* Write VonMises\(\["),
        (VonMises, r"components=<class .* must be a distribution"),
        ("VonMises", r"components='VonMises' must be a distribution"),
        (WrappedCauchy(np.zeros(3), 0.5), r"components are a jax_von_mises.*WrappedCauchy, .* not supported yet"),
    ):
        with pytest.raises(TypeError, match=f"Mixture: {message}"):
            Mixture(probs=np.ones(3), components=components)
    with pytest.raises(TypeError, match="Mixture: logits must be a real number"):
        Mixture(logits="a", components=one)


def test_gradients_in_probabilities():
    def value(probs):
        return Mixture(probs=probs, components=VonMises([-1.0, 2.0], [5.0, 2.0])).log_prob(0.5)

    densities = VonMises([-1.0, 2.0], [5.0, 2.0]).prob(0.5)
    total = 0.3 * densities[0] + 0.7 * densities[1]
    slope = jax.jit(jax.grad(value))
    np.testing.assert_allclose(slope(jnp.array([0.3, 0.7])), densities / total - 1, rtol=1e-5)
    assert np.isfinite(slope(jnp.array([0.0, 1.0]))).all()


def test_weights_by_name():
    components = VonMises([-1.0, 2.0], [5.0, 20.0])
    for weights in (
        {},
        {"logits": [0.0, 1.0], "probs": [0.5, 0.5]},
        {"probs": None},
    ):
        with pytest.raises(TypeError, match="Mixture: give the weights once, as `logits` or as `probs`"):
            Mixture(components=components, **weights)
    with pytest.raises(TypeError, match="Mixture: give `components`"):
        Mixture(probs=[0.5, 0.5])
    with pytest.raises(TypeError, match="Mixture: probs must be a real number or an array"):
        Mixture(probs=["a"], components=components)
    with pytest.raises(TypeError, match="positional"):
        Mixture([0.5, 0.5], components)


def test_broadcast_for_vmap():
    """`broadcast` repeats parameters along the first axis of the batch where they lack it."""
    components = VonMises(jnp.zeros((4, 1)), jnp.array([1.0, 5.0]))
    for distribution in (
        Mixture(logits=jnp.zeros(4), components=Torus(VonMises(jnp.zeros((3, 4, 1)), jnp.array([1.0, 5.0])))),
        Torus(components),
    ):
        value = jnp.full(distribution.event_shape, 0.3)
        mapped = jax.jit(jax.vmap(lambda distribution, value=value: distribution.log_prob(value)))(
            distribution.broadcast()
        )
        np.testing.assert_allclose(
            mapped.reshape(distribution.batch_shape), run(distribution, "log_prob", value), rtol=1e-6
        )


def test_float64(key):
    with jax.enable_x64(True):
        mixture = Mixture(logits=np.log(WEIGHTS), components=VonMises(LOCS, CONCENTRATIONS))
        x = jax.eval_shape(lambda: mixture.sample(key, (4,)))
        assert x.dtype == jax.eval_shape(mixture.log_prob, x).dtype == mixture.dtype == jnp.float64
        np.testing.assert_allclose(run(mixture, "prob", GRID), density(GRID), rtol=1e-12)
        # Float32 parameters with float64 values give float64.
        assert jax.eval_shape(three().log_prob, x).dtype == jnp.float64


def test_errors(key):
    with pytest.raises(ValueError, match=r"Mixture: logits has shape \(3,\) for components of batch_shape=\(2,\)"):
        Mixture(logits=jnp.zeros(3), components=VonMises([0.0, 1.0], 1.0)).log_prob(0.0)
    with pytest.raises(ValueError, match=r"Mixture: the components have batch_shape=\(\)"):
        Mixture(logits=jnp.zeros(1), components=VonMises(0.0, 1.0)).sample(key)
    with pytest.raises(ValueError, match="do not broadcast together"):
        Mixture(logits=jnp.zeros((3, 2)), components=VonMises(jnp.zeros((4, 2)), 1.0)).sample(key)
    with pytest.raises(ValueError, match=r"Torus: the components have batch_shape=\(\)"):
        Torus(VonMises(0.0, 1.0)).log_prob(0.0)
    with pytest.raises(ValueError, match=r"has 2 angles and `other` 3"):
        Torus(VonMises(jnp.zeros(2), 1.0)).kl_divergence(Torus(VonMises(jnp.zeros(3), 1.0)))
    with pytest.raises(AttributeError, match="no order"):
        tori().cdf(jnp.zeros(2))
    for distribution in (three(), tori(), Torus(VonMises(jnp.zeros(2), 1.0))):
        with pytest.raises(TypeError, match="give one random key"):
            distribution.sample()
        with pytest.raises(TypeError, match="give one random key"):
            distribution.sample(key, seed=key)


def test_a_point_mass_takes_the_responsibility():
    mixture = Mixture(logits=[0.0, 0.0, 0.0], components=VonMises([0.0, 1.0, 0.0], [np.inf, 2.0, np.inf]))
    np.testing.assert_array_equal(run(mixture, "responsibilities", 0.0), [0.5, 0.0, 0.5])
    np.testing.assert_array_equal(run(mixture, "responsibilities", 0.5), [0.0, 1.0, 0.0])

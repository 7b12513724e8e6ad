"""Test the truncated von Mises distribution against quadrature, also far out in the tail, and at its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises import Mixture, TruncatedVonMises, VonMises, sample_truncated

# loc, concentration, low, high: around the mode, around the opposite point, across pi, far out, narrow, a whole turn.
ARCS = [
    (0.3, 2.0, -1.0, 1.5),
    (0.3, 2.0, 1.0, 5.0),
    (-2.0, 30.0, 3.0, 4.5),
    (0.0, 1e4, 2.0, 3.0),
    (1.0, 0.0, -2.0, 0.5),
    (1.5, 200.0, 1.49, 1.492),
    (0.5, 5.0, -2.0, -2.0 + 2 * np.pi),
    (0.5, 1e8, 0.2, 0.9),
]
SHARES = np.array([0.003, 0.1, 0.4, 0.6, 0.95])


class Reference:
    """The same by composite Gauss rules in float64, of log densities less their maximum."""

    def __init__(self, loc, k, low, high):
        self.loc, self.k, self.low, self.high = loc, k, low, high
        turn = loc + 2 * np.pi * np.ceil((low - loc) / (2 * np.pi))
        self.mode = turn if turn <= high else max(low, high, key=lambda end: np.cos(end - loc))
        self.total = self.integral(low, high)

    def exponent(self, x):
        """Return k (cos(x - loc) - cos(mode - loc)), from a product of sines."""
        return -2 * self.k * np.sin((x - self.mode) / 2) * np.sin((x + self.mode) / 2 - self.loc)

    def integral(self, a, b, function=np.ones_like):
        """Integrate over panels that shrink towards the mode."""
        z, w = np.polynomial.legendre.leggauss(30)
        powers = 2.0 ** np.arange(-60, 4)
        near = np.clip(self.mode + np.concatenate([-powers, [0], powers]), a, b)
        edges = np.unique(np.concatenate([near, np.linspace(a, b, 65)]))
        half = np.diff(edges)[:, None] / 2
        x = edges[:-1, None] + half * (1 + z)
        return np.sum(half * w * np.exp(self.exponent(x)) * function(x))

    def mean(self, function):
        """Return the mean of a function of the angle."""
        return self.integral(self.low, self.high, function) / self.total


Q = np.array([0, 1e-9, 0.2, 0.7, 1])[:, None]


@jax.jit
def evaluated(arcs, x, starts):
    """Return the results of all methods of a batch of distributions."""
    one = TruncatedVonMises(*arcs)
    found = {name: getattr(one, name)(x) for name in ("prob", "cdf", "sf")}
    found |= {name: getattr(one, name)() for name in ("entropy", "mean", "mean_resultant_length", "mode")}
    away = one.icdf(Q, start=starts)
    return found | {
        "round trip": one.cdf(one.icdf(Q)),
        "from above": one.sf(one.isf(Q)),
        "from start": one.cdf(away, start=starts),
        "away": away,
    }


@pytest.mark.more
def test_values():
    with jax.enable_x64(True):
        arcs = np.transpose(ARCS)
        loc, k, low, high = arcs
        x = low + SHARES[:, None] * (high - low)
        starts = np.where(np.arange(len(ARCS)) % 2, low + 0.3, high - 4.0)
        found = jax.tree.map(np.asarray, evaluated(arcs, x, starts))
    # The differences of angles are rounded.
    error = 2e-12 + 2e-15 * k * np.max(np.abs(np.sin(x - loc)), 0)
    for name in ("round trip", "from above", "from start"):
        assert np.all(np.abs(found[name] - Q) < error), name
    assert np.all((found["away"] >= starts) & (found["away"] <= starts + 2 * np.pi))
    for i, arc in enumerate(ARCS):
        exact = Reference(*arc)
        expected = {
            "prob": np.exp(exact.exponent(x[:, i])) / exact.total,
            "cdf": np.array([exact.integral(exact.low, each) for each in x[:, i]]) / exact.total,
            "sf": np.array([exact.integral(each, exact.high) for each in x[:, i]]) / exact.total,
        }
        for name, each in expected.items():
            np.testing.assert_allclose(found[name][:, i], each, rtol=error[i], atol=1e-290, err_msg=name)
        entropy = np.log(exact.total) - exact.mean(exact.exponent)
        np.testing.assert_allclose(found["entropy"][i], entropy, rtol=1e-11, atol=1e-11)
        mean, length = exact.mean(lambda x: np.exp(1j * x)), found["mean_resultant_length"][i]
        np.testing.assert_allclose(length * np.exp(1j * found["mean"][i]), mean, atol=1e-14)
        np.testing.assert_allclose(np.exp(1j * found["mode"][i]), np.exp(1j * exact.mode), atol=1e-14)


def test_draws_are_those_of_the_function():
    """They lie on the arc, where the density of every draw is finite."""
    key, arcs = jax.random.key(1), np.transpose(ARCS).astype(np.float32)
    one = TruncatedVonMises(*arcs)
    x = one.sample(key, (500,))
    np.testing.assert_array_equal(x, sample_truncated(key, *arcs, (500, len(ARCS))))
    assert np.isfinite(one.log_prob(x)).all()
    np.testing.assert_array_equal(one.sample(key, (3,), start=100 * len(ARCS)), x[100:103])


def test_a_full_turn_is_the_full_distribution():
    k = np.float32([0.0, 0.7, 40.0])
    one, full = TruncatedVonMises(0.4, k, -2.0, -2.0 + 2 * np.pi), VonMises(0.4, k)
    x = np.linspace(-3, 3, 50, dtype=np.float32)[:, None]
    np.testing.assert_allclose(one.log_prob(x), full.log_prob(x), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(one.entropy(), full.entropy(), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(one.cdf(x, start=-1.0), full.cdf(x, start=-1.0), atol=2e-6)


@pytest.mark.more
def test_mixtures():
    """They have no methods that need a density without jumps."""
    one = Mixture(probs=[0.25, 0.75], components=TruncatedVonMises(0.0, 3.0, np.float32([-1, 1]), np.float32([0.5, 2])))
    exact = 0.25 * one.components[0].prob(0.2)
    np.testing.assert_allclose(one.prob(0.2), exact, rtol=1e-6)
    np.testing.assert_allclose(one.sf(one.isf(0.4)), 0.4, atol=1e-5)
    assert np.isfinite(one.log_prob(one.sample(jax.random.key(0), (100,)))).all()
    assert not hasattr(one, "entropy")


def test_outside_of_the_arc():
    one = TruncatedVonMises(0.0, 3.0, 3.0, 4.0)
    assert one.log_prob(2.9) == -jnp.inf
    assert one.prob(-3.0) > 0  # in the next turn
    np.testing.assert_array_equal(one.cdf(np.float32([2.9, 3.0, 4.0, 5.0, 3.0 + 2 * np.pi])), [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(one.icdf(np.float32([0, 1, -0.1, 1.1])), np.float32([3, 4, np.nan, np.nan]))


def test_a_point_mass():
    """It is at the angle that is nearest to `loc`."""
    one = TruncatedVonMises(0.0, np.inf, np.float32([-1.0, 1.0]), 2.0)
    np.testing.assert_array_equal(one.mode(), [0, 1])
    np.testing.assert_allclose(one.mean(), [0, 1], atol=1e-7)
    np.testing.assert_array_equal(one.sample(jax.random.key(0)), [0, 1])
    np.testing.assert_array_equal(one.entropy(), [-np.inf, -np.inf])
    np.testing.assert_array_equal(one.log_prob(np.float32([0, 1.5])), [np.inf, -np.inf])


def test_invalid_arcs():
    low, high = np.float32([(1.0, 1.0), (2.0, 1.0), (0.0, 6.5), (np.inf, 1.0)]).T
    one = TruncatedVonMises(0.0, 1.0, low, high)
    found = one.log_prob(1.5), one.cdf(1.5), one.icdf(0.0), one.mean()
    assert np.isnan(found).all()
    for each in zip(low, high, strict=True):
        with pytest.raises(ValueError, match=r"TruncatedVonMises: (low=.* and high|low is inf)"):
            TruncatedVonMises(0.0, 1.0, *each, validate_args=True)

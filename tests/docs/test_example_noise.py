"""Test the example of directions as noise: schedules, derivatives and samplers against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from docs.examples import direction_noise as example

D = example.DIMENSION


def mean(function, kappa):
    """Return the mean of a function of the cosine of the angle to the mean direction."""

    def log_density(w):
        return kappa * w + (D - 3) / 2 * np.log1p(-w * w)

    # The mode of the density of the cosine, and its curvature there.
    mode = 2 * kappa / (D - 3 + np.sqrt((D - 3) ** 2 + 4 * kappa**2))
    width = np.sqrt((1 - mode**2) ** 2 / ((D - 3) * (1 + mode**2)))
    low, high = max(-1, mode - 12 * width), min(1, mode + 12 * width)
    top = log_density(mode)
    weighted = quad(lambda w: function(w) * np.exp(log_density(w) - top), low, high, epsabs=0, limit=200)[0]
    return weighted / quad(lambda w: np.exp(log_density(w) - top), low, high, epsabs=0, limit=200)[0]


@pytest.mark.parametrize("kappa", [30.0, 500.0, 20_000.0])
def test_schedules_and_derivatives_are_integrals(kappa):
    length = mean(lambda w: w, kappa)
    assert float(example.length_of(kappa)) == pytest.approx(length, rel=1e-6)
    assert float(example.concentration_of_length(jnp.array([length]))[0]) == pytest.approx(kappa, rel=1e-5)
    kl = float(example.kl_of(kappa))
    assert float(example.concentration_of_kl(jnp.array([kl]))[0]) == pytest.approx(kappa, rel=1e-5)
    step = kappa * 1e-3
    slope = (mean(lambda w: w * w, kappa + step) - mean(lambda w: w * w, kappa - step)) / (2 * step)
    # E (a x)^2 with a at 60 degrees, by symmetry about the mean direction: 1/4 E w^2 + 3/4 E (1 - w^2) / (d - 1).
    slope *= 1 / 4 - 3 / 4 / (D - 1)
    # A turn towards the second axis by t changes the cosine of the angle between a and the mean direction.
    turn = 2 * 0.5 * 0.75**0.5 * mean(lambda w: w * w - (1 - w * w) / (D - 1), kappa)
    exact = example.derivatives(kappa)
    assert exact["concentration"] == pytest.approx(slope, rel=1e-4)
    assert exact["direction"] == pytest.approx(turn, rel=1e-6)


def test_both_estimators_are_unbiased():
    exact = example.derivatives(300.0)
    for name, estimators in example.estimates(jax.random.key(0), jnp.float32(300), 4_000).items():
        for values in estimators.values():
            assert abs(float(jnp.mean(values)) - exact[name]) < 4 * float(jnp.std(values)) / 4_000**0.5


def test_rejection_draws_from_the_same_distribution():
    means = example.about_first_axis(jnp.full(4_000, 10.0)).sample(jax.random.key(0))
    x = example.by_rejection(jax.random.key(1), means, jnp.full(4_000, 500.0))
    cosine = np.sum(np.asarray(x * means, float), -1)
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, atol=1e-5)
    assert np.mean(cosine) == pytest.approx(mean(lambda w: w, 500.0), abs=4 * np.std(cosine) / 4_000**0.5)
    assert np.std(cosine) == pytest.approx(
        np.sqrt(mean(lambda w: w * w, 500.0) - mean(lambda w: w, 500.0) ** 2), rel=0.06
    )


def test_training_starts_at_the_uniform_distribution():
    _, history = example.train(jax.random.key(0), 12)
    assert history["loss"][0] == pytest.approx(np.log(example.TOKENS), abs=1e-5)
    assert history["KL"][0] == 0
    assert history["loss"][-1] < history["loss"][0] - 0.5
    assert np.isfinite(history["loss"]).all()

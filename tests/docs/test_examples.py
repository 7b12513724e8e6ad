"""Run the quick mode of each example, and compare one result of each with a published or independent value."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.integrate import quad, trapezoid

from docs.examples import (
    angle_statistics,
    attitude_filter,
    direction_clusters,
    direction_noise,
    heading_filter,
    torsion_angles,
)
from jax_von_mises import VonMises, VonMisesFisher, rotations, statistics
from jax_von_mises.rotations import IsotropicGaussianSO3, MatrixFisher

# The libraries that an example needs besides Matplotlib, and what its quick mode prints, where groups in parentheses
# are numbers that must be near the values that follow, with their absolute tolerances.
QUICK = {
    "angle_statistics": ("", r"\| estimate \| (\S+)° \| (\S+) \|", (64.171, 1e-3), (1.1502, 1e-4)),
    "direction_clusters": ("", r"fitted concentrations (\d+) to (\d+), true", (360, 10), (360, 10)),
    # Right-handed helices.
    "torsion_angles": ("", r"\| 0\.\d+ \| (-6\d)° \| (-\d+)° \|", (-63, 5), (-43, 5)),
    "circular_regression": ("numpyro", r"\| mu \| 2.800 \| (\S+) \| \S+ \| (\S+) \|", (2.8, 0.25), (2.8, 0.5)),
    "heading_filter": ("", r"exact, on a grid \| (\S+) ", (8.88, 1.5)),
    # With one known direction, the angle about it is uniform.
    "attitude_filter": ("", r"states it \| (\S+)° .*\n.*\n\| truth .* \| (\S+) ± \S+ \| \S+ ±", (90, 0.5), (0.9, 0.04)),
    "numpyro_models": ("numpyro", r"\| common \| 3.00 \| (\S+) \| \S+ \| (\S+) ", (3, 0.4), (3, 0.45)),
    "direction_noise": ("", r"loss at the start: (\S+)", (np.log(256), 0.01)),
    "angle_policy": (
        "optax",
        r"\| the optimum \| (\S+) .*\n\| pathwise \| (\S+) \|",
        (1.03864, 1e-4),
        (1.0377, 0.003),
    ),
}


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """Provide JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_mode(name, tmp_path, capsys):
    needs, printed, *values = QUICK[name]
    for library in ("matplotlib", *filter(None, [needs])):
        pytest.importorskip(library, reason=f"{library} is not installed (extra `examples`)")
    example = importlib.import_module(f"docs.examples.{name}")
    example.main(["--quick", "--out", str(tmp_path / "picture.svg")])
    found = re.search(printed, capsys.readouterr().out)
    assert found
    for text, (value, tolerance) in zip(found.groups(), filter(None, values), strict=True):
        assert float(text) == pytest.approx(value, abs=tolerance)
    assert (tmp_path / "picture.svg").stat().st_size > 10_000


def test_published_turtles():
    """The mean direction is 64.2 degrees and the mean resultant length 0.497 (Mardia and Jupp, 2000)."""
    x = angle_statistics.measured()
    assert len(x) == 76
    fitted = VonMises.fit(x)
    assert np.rad2deg(fitted.loc) == pytest.approx(64.2, abs=0.05)
    assert 1 - fitted.variance() == pytest.approx(0.497, abs=0.0005)
    statistic, p = statistics.rayleigh_test(x)
    assert statistic == pytest.approx(76 * 0.497**2, abs=0.05)
    assert 1e-10 < p < np.exp(-statistic)


@pytest.mark.slow
def test_published_bic_of_households():
    """K. Hornik and B. Gruen, J. Stat. Softw. 58, 2014; their densities are per share of the sphere."""
    x, women = direction_clusters.households()
    assert x.shape == (40, 3)
    assert women.sum() == 20
    found = direction_clusters.fits(x, (1, 2, 3))
    published = {1: -169.4291, 2: -200.3364, 3: -211.5490}
    for number, value in published.items():
        bic = direction_clusters.bic(found[number, False], x, False)
        assert abs(bic - 80 * np.log(4 * np.pi) - value) < 0.01


@pytest.mark.parametrize("kappa", [30.0, 20_000.0])
def test_derivatives_of_noise_are_integrals(kappa):
    d = direction_noise.DIMENSION
    mode = 2 * kappa / (d - 3 + np.sqrt((d - 3) ** 2 + 4 * kappa**2))
    width = np.sqrt((1 - mode**2) ** 2 / ((d - 3) * (1 + mode**2)))
    low, high = max(-1, mode - 12 * width), min(1, mode + 12 * width)

    def moment(power):
        def density(w):
            # The cosine to the mean direction, less the mode.
            exponent = kappa * (w - mode) + (d - 3) / 2 * (np.log1p(-w * w) - np.log1p(-mode * mode))
            return (w - mode) ** power * np.exp(exponent)

        return quad(density, low, high, epsabs=0, limit=200)[0]

    total, *moments = map(moment, range(4))
    first, second, third = (each / total for each in moments)
    square = second + 2 * mode * first + mode**2
    # The covariance of the cosine and its square.
    slope = third + 2 * mode * second - first * (second + 2 * mode * first)
    found = direction_noise.derivatives(kappa)
    assert found["concentration"] == pytest.approx((0.25 - 0.75 / (d - 1)) * slope, rel=1e-5)
    assert found["direction"] == pytest.approx(0.75**0.5 * (square - (1 - square) / (d - 1)), rel=1e-5)


@pytest.mark.more
def test_heading_after_one_reading_has_the_exact_moments():
    """The mean resultant vector after a single reading near pi is known after each step."""
    example, turn = heading_filter, 0.7
    turns = jnp.full_like(example.TURNS, turn)
    steps = np.arange(len(turns))

    def ratio(k):
        return special.i1e(k) / special.i0e(k)

    concentrations = jnp.zeros_like(turns).at[0].set(example.COMPASS)
    length = (1 - example.WRONG) * ratio(example.COMPASS) * ratio(example.MOTION) ** steps
    estimates, densities = example.grid_filter(turns, jnp.full_like(turns, 3.1), concentrations)
    found = np.mean(2 * np.pi * np.asarray(densities, float) * np.exp(1j * example.GRID), axis=-1)
    np.testing.assert_allclose(found, length * np.exp(1j * (3.1 + turn * steps)), atol=1e-5)
    np.testing.assert_allclose(np.exp(1j * np.asarray(estimates)), np.exp(1j * (3.1 + turn * steps)), atol=1e-4)


@pytest.mark.more
@pytest.mark.parametrize("diagonal", [(9.0, 5.0, 2.0), (4.0, 3.0, -2.0), (0.0, 0.0, 0.0)])
def test_prediction_of_an_attitude_has_the_exact_mean(diagonal, key, monkeypatch):
    """The mean of draws that were turned, with the gyro's errors as draws, is that of the prediction."""
    example = attitude_filter
    monkeypatch.setattr(example, "NOISE", 0.5)  # enough to see its effect
    frames = rotations.to_matrix(jnp.array([[0.8, 0.1, -0.5, 0.3], [0.1, 0.2, 0.4, -0.9]]))
    before = MatrixFisher(frames[0] @ jnp.diag(jnp.array(diagonal)) @ frames[1].T)
    turn = jnp.array([0.3, -0.2, 0.5])
    one, two = jax.random.split(key)
    errors = IsotropicGaussianSO3([1.0, 0.0, 0.0, 0.0], example.NOISE).sample(two, (200_000,))
    steps = rotations.multiply(rotations.exp(turn), errors)
    after = rotations.to_matrix(rotations.multiply(before.sample(one, (200_000,)), steps))
    np.testing.assert_allclose(example.predict(before, turn).mean(), jnp.mean(after, 0), atol=5 / 200_000**0.5)


@pytest.mark.more
def test_likelihood_of_an_attitude_is_that_of_the_readings(key):
    """Differences of log densities of attitudes are those of von Mises-Fisher densities of the readings."""
    example = attitude_filter
    attitudes = MatrixFisher(jnp.zeros((3, 3))).sample(key, (20,))
    readings = example.simulate(key)[2][40]
    concentrations = jnp.asarray(example.CONCENTRATIONS[40])
    seen = rotations.apply(rotations.inverse(attitudes)[:, None], example.WORLD)
    expected = jnp.sum(VonMisesFisher(seen, concentrations).log_prob(readings), -1)
    found = example.likelihood(readings, concentrations).log_prob(attitudes)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-3)


@pytest.mark.more
def test_optimum_of_the_policy_is_the_normaliser():
    """The optimum is the temperature times the logarithm of the integral of exp(reward / temperature)."""
    pytest.importorskip("optax", reason="optax is not installed (extra `examples`)")
    example, state = importlib.import_module("docs.examples.angle_policy"), jnp.array([0.7, -1.9])
    heading = np.linspace(-np.pi, np.pi, 2001)
    exponent = (np.cos(heading - 0.7) + example.WIND * np.cos(heading + 1.9)) / example.TEMPERATURE
    log_normaliser = exponent.max() + np.log(trapezoid(np.exp(exponent - exponent.max()), heading))
    best = example.best(state)
    found = example.mean_reward(best, state) + example.TEMPERATURE * best.entropy()
    assert float(found) == pytest.approx(example.TEMPERATURE * log_normaliser, rel=1e-6)


def test_measured_residues():
    """Between a quarter and a half of the residues are in right-handed helices."""
    pairs, held_out = torsion_angles.divide(torsion_angles.measured())
    assert pairs.shape == held_out.shape == (868, 2)
    degrees = np.rad2deg(np.concatenate([pairs, held_out]))
    assert np.all(np.abs(degrees) <= 180.001)
    helix = (np.abs(degrees - [-63, -43]) < 20).all(1)
    assert 0.25 < helix.mean() < 0.5


def test_data_of_numpyro_models():
    """A third of the stray animals is more than 120 degrees from the mean direction, and hardly any other."""
    pytest.importorskip("numpyro", reason="NumPyro is not installed")
    numpyro_models = importlib.import_module("docs.examples.numpyro_models")
    angles, loc = zip(*map(numpyro_models.simulate, range(200)), strict=True)
    far = np.cos(np.stack(angles) - np.stack(loc)[..., None]) < -0.5
    assert np.mean(far) == pytest.approx(numpyro_models.TRUTH["stray"] / 3, abs=0.004)

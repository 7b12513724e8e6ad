"""Test the example of statistics of angles: against published values, SciPy and NumPy."""

import jax
import numpy as np
import pytest
from scipy import stats

from docs.examples import angle_statistics as example
from jax_von_mises import VonMises


def watson(u):
    """Return Watson's U^2 as the variance of the difference of the two distribution functions, times n."""
    u, n = np.sort(u), len(u)
    points = (np.arange(200_000) + 0.5) / 200_000
    difference = np.searchsorted(u, points) / n - points
    return n * np.var(difference)


def test_published_values():
    """The mean direction is 64.2 degrees and the mean resultant length 0.497 (Mardia and Jupp, 2000)."""
    x = example.measured()
    assert len(x) == 76
    fitted = VonMises.fit(x)
    assert np.rad2deg(fitted.loc) == pytest.approx(64.2, abs=0.05)
    assert 1 - fitted.variance() == pytest.approx(0.497, abs=0.0005)
    statistic, p = example.rayleigh(x)
    assert statistic == pytest.approx(76 * 0.497**2, abs=0.05)
    assert 1e-10 < p < np.exp(-statistic)


def test_the_rayleigh_test_has_the_right_level():
    x = np.random.default_rng(0).uniform(-np.pi, np.pi, (4_000, 76))
    assert np.mean([example.rayleigh(each)[1] < 0.05 for each in x]) == pytest.approx(0.05, abs=0.012)


def test_scipy_has_the_same_estimates_and_statistic():
    x = example.measured()
    fitted = VonMises.fit(x)
    np.testing.assert_allclose(example.scipy_fit(np.float64(x)), [fitted.loc, fitted.concentration], rtol=3e-6)
    assert stats.circmean(x) == pytest.approx(float(fitted.loc), rel=3e-6)
    statistic, p = example.scipy_watson(np.float64(x), 99)
    assert example.watson(fitted.cdf, x) == pytest.approx(statistic, abs=2e-6)
    assert p < 0.05


def test_watson_is_an_integral():
    """The statistic is the integral that defines it, and does not depend on the zero direction."""
    x = example.measured()
    fitted = VonMises.fit(x)
    # SciPy's distribution function continues above 1 after a full turn.
    u = stats.vonmises.cdf(x, float(fitted.concentration), float(fitted.loc)) % 1
    assert example.watson(fitted.cdf, x) == pytest.approx(watson(u), abs=2e-5)
    moved = (x + np.float32(2)) % np.float32(2 * np.pi)
    assert example.watson(VonMises.fit(moved).cdf, moved) == pytest.approx(watson(u), abs=2e-5)


def test_p_values_of_watson_are_uniform():
    """A sample from a von Mises distribution has a middling U^2; the turtles do not."""
    fitted = VonMises.fit(example.measured())
    simulated = np.asarray(example.watson_of_draws(jax.random.key(0), fitted, 76, 2_000))
    again = np.asarray(example.watson_of_draws(jax.random.key(1), VonMises(2.0, 1.15), 76, 2_000))
    assert stats.ks_2samp(simulated, again).pvalue > 1e-3
    assert np.mean(simulated >= 0.1587) < 0.01


def test_intervals_agree_where_the_model_is_right():
    """For 250 angles near the cut of the circle, the bootstrap has the standard errors of the Fisher information."""
    x = np.asarray(VonMises(3.1, 2.0).sample(jax.random.key(0), (250,)))
    fitted = VonMises.fit(x)
    errors = fitted.standard_errors(len(x))
    rows = jax.random.randint(jax.random.key(1), (2_000, len(x)), 0, len(x))
    found = example.percentiles(example.refits(x, rows), fitted)
    for (low, high), value, error in zip(found, (fitted.loc, fitted.concentration), errors, strict=True):
        assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)
        assert (high + low) / 2 == pytest.approx(float(value), abs=0.5 * float(error))
    weights = np.asarray(example.posterior(x, *example.grid(fitted)), np.float64)
    assert weights.sum() == pytest.approx(1, abs=1e-4)
    low, high = example.grid_interval(example.grid(fitted)[1], weights.sum(0))
    assert (high - low) / (2 * 1.96 * errors.concentration) == pytest.approx(1, abs=0.15)


def test_two_components_are_best():
    x = example.measured()
    models = example.fits(x, (1, 2))
    one, two = (example.bic(models[number, False], x, False) for number in (1, 2))
    log_likelihood = stats.vonmises.logpdf(x, 1.15022, 1.1200).sum()
    assert one == pytest.approx(2 * np.log(76) - 2 * log_likelihood, abs=0.01)
    assert two < one - 10
    between = np.ptp(np.asarray(models[2, False].components.loc))
    assert abs(np.cos(between) + 1) < 0.01


@pytest.mark.slow
def test_main(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    example.main(["--quick", "--out", str(tmp_path / "picture.svg")])
    blocks = capsys.readouterr().out.strip().split("\n\n")
    assert len(blocks) == 4
    assert "64.171° | 1.1502" in blocks[0]
    weights = [float(line.split("|")[1]) for line in blocks[3].splitlines()[2:]]
    assert sum(weights) == pytest.approx(1, abs=0.011)
    assert (tmp_path / "picture.svg").stat().st_size > 10_000

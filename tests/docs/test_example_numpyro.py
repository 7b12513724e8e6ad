"""Test the NumPyro example: its data, its posterior by both methods, and its table of extreme concentrations."""

import jax
import numpy as np
import pytest

from docs.examples import numpyro_models as example


def test_data_have_the_shares_of_the_model():
    angles, loc = zip(*map(example.simulate, range(200)), strict=True)
    angles, loc = np.stack(angles), np.stack(loc)
    assert angles.shape == (200, example.GROUPS, example.MEMBERS)
    far = np.cos(angles - loc[..., None]) < -0.5
    # A third of the stray animals is more than 120 degrees from the mean direction, and hardly any other.
    assert np.mean(far) == pytest.approx(example.TRUTH["stray"] / 3, abs=0.004)


@pytest.fixture
def plain_promotion():
    """Set JAX's defaults, on which NumPyro relies."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("plain_promotion")
def test_both_methods_find_the_parameters():
    angles, loc = example.simulate(0)
    sampling, fitting = jax.random.split(jax.random.key(0))
    for draws in (example.run_nuts(sampling, angles, 150, 150), example.run_svi(fitting, angles, 600, 300)):
        for name, value in example.TRUTH.items():
            values = np.asarray(draws[name])
            values = example.near(values, value) if name == "common" else values
            assert abs(values.mean() - value) < 3 * values.std(), name
        groups = example.near(np.asarray(draws["loc"])[..., 0], loc)
        assert (np.abs(groups.mean(0) - loc) < 3.5 * groups.std(0)).all()


def test_near_keeps_angles_within_half_a_turn():
    x = np.linspace(-20, 20, 401)
    moved = example.near(x, 2.5)
    np.testing.assert_allclose(np.exp(1j * moved), np.exp(1j * x), atol=1e-12)
    assert (np.abs(moved - 2.5) <= np.pi).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_extremes_are_right_here():
    rows = [line.split("|")[1:-1] for line in example.extremes_table(2_000)[2:]]
    assert [row[1].strip() for row in rows] == ["< 0.00001"] * 5
    assert all(float(row[3].replace(",", "")) >= 1_900 for row in rows)
    assert rows[0][4].strip() == "NaN"

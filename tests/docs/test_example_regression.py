"""Test that the circular regression example recovers the parameters of its data."""

import jax
import numpy as np
import pytest
from jax import random

pytest.importorskip("numpyro", reason="NumPyro is not installed")

from docs.examples import circular_regression as example

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("implicit_promotion")]


@pytest.fixture(scope="module")
def implicit_promotion():
    """Allow implicit promotion, since NumPyro's inference divides floats by integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def data():
    return example.simulate(random.key(3))


@pytest.fixture(scope="module")
def nuts(implicit_promotion, data):
    return example.run_nuts(random.key(4), *data, warmup=150, samples=300)


@pytest.fixture(scope="module")
def svi(implicit_promotion, data):
    return example.run_svi(random.key(5), *data, steps=300, samples=300)


@pytest.mark.parametrize("method", ["nuts", "svi"])
def test_circular_regression_finds_the_coefficients(method, request):
    """The posteriors are narrow, and their means are within five standard deviations of the truth."""
    columns = example.columns(request.getfixturevalue(method))
    for name, value in example.true_values().items():
        sd = np.std(columns[name])
        assert sd < (1.0 if name == "concentration" else 0.15)
        assert abs(np.mean(columns[name]) - value) < 5 * sd


def test_predictive_density_is_one_and_follows_the_model(nuts, data):
    grid = np.linspace(-np.pi, np.pi, 256, endpoint=False).astype(np.float32)
    density = np.asarray(example.predictive_density(nuts, data[0], grid), float)
    assert np.mean(density) * 2 * np.pi == pytest.approx(1, abs=1e-5)
    resultant = np.mean(2 * np.pi * density * np.exp(1j * grid.astype(float)))
    observed = np.mean(np.exp(1j * np.asarray(data[1], float)))
    # The mean of 100 unit vectors has a standard error of about 0.07.
    assert abs(resultant - observed) < 0.15

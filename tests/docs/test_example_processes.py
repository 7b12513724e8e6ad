"""Test that the example with several processes gives the same results as a single process."""

import zlib

import jax
import numpy as np
import pytest

from docs.examples import several_processes as example

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone():
    """Return the results of this process alone."""
    return example.work(jax.random.key(0), 0, 1, lambda rows: rows)


@pytest.fixture(scope="module")
def stream():
    return np.asarray(example.draw_at_once(jax.random.key(0)))


def test_blocks_are_parts_of_one_stream(alone, stream):
    parts = np.split(stream, example.BLOCKS)
    assert alone["checksums"] == [zlib.crc32(part.tobytes()) for part in parts]
    assert len(set(alone["checksums"])) == example.BLOCKS
    for part, counts in zip(parts, alone["counts"], strict=True):
        assert counts == np.histogram(part, example.BINS, (-np.pi, np.pi))[0].tolist()


def test_fit_finds_the_truth(alone, stream):
    """The fit is within five standard errors of the truth, and the gradient of the log-likelihood at the fit is 0."""
    estimates = np.array(alone["parameters"])
    hour = np.arange(len(stream)) % 24 * np.pi / 12
    information = example.CONCENTRATION * 0.80999 * len(hour) * np.array([1, 0.5])  # A(3) = I1(3)/I0(3)
    np.testing.assert_allclose(example.information(), information, rtol=1e-4)
    assert np.all(np.abs(estimates - example.TRUTH) < 5 / np.sqrt(information))
    residual = np.sin(stream.astype(float) - estimates[0] - estimates[1] * np.cos(hour))
    score = example.CONCENTRATION * np.array([residual.sum(), (residual * np.cos(hour)).sum()])
    assert np.all(np.abs(score / information) < 1e-6)


def test_gradient_is_that_of_the_likelihood():
    parameters = np.array([1.0, 0.5], np.float32)
    hour, directions = np.float32([0.0, 2.0, -1.0]), np.float32([0.3, 2.0, -3.0])
    angle = directions.astype(float) - 1 - 0.5 * np.cos(hour.astype(float))
    expected = [3 * np.sin(angle).sum(), 3 * (np.sin(angle) * np.cos(hour.astype(float))).sum()]
    np.testing.assert_allclose(example.gradient(parameters, hour, directions), expected, rtol=1e-5)


def test_two_processes_agree_with_one(alone):
    """Two processes agree with one, even if this process was started with invalid JAX settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_no_such_flag")
        patch.setenv("JAX_PLATFORMS", "no_such_platform")
        together = example.together(2)
    assert together | {"sums": None} == alone | {"sums": None}
    np.testing.assert_allclose(together["sums"], alone["sums"], rtol=1e-6)


def test_marginal_density_integrates_to_one():
    grid = np.linspace(-np.pi, np.pi, 256, endpoint=False).astype(np.float32)
    assert np.mean(example.marginal(grid)) * 2 * np.pi == pytest.approx(1, abs=1e-5)

"""Test that a resumed run of the phase noise example writes the bytes of an uninterrupted one, and its estimates."""

import json

import jax
import numpy as np
import pytest
from scipy import special

from docs.examples import phase_noise as example

pytestmark = pytest.mark.slow

ROWS = 2**17


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return the path of a file written by an interrupted and resumed run, with the second call's result and memory."""
    path = tmp_path_factory.mktemp("phases") / "phases.npy"
    return path, *example.interrupt_and_resume(path, jax.random.key(1), ROWS)


@pytest.fixture(scope="module")
def rates(file):
    return example.rates(*example.read(file[0]))


def test_file_is_resumed_to_the_same_bytes(file):
    path, written, _ = file
    assert (written.kept, written.drawn) == (example.BLOCKS // 2, example.BLOCKS // 2)
    assert example.same_as_uninterrupted(path, jax.random.key(1), ROWS)
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["phases.npy", "phases.npy.blocks"]


def test_symbol_error_against_scipy():
    """Symbol error rates agree with SciPy in double precision; without noise, they depend on the phase alone."""
    phase = np.linspace(-3, 3, 61)
    for snr in (1.0, 10.0, 20.0):
        correct = special.ndtr(np.sqrt(2 * snr) * np.cos(phase + np.pi / 4))
        correct *= special.ndtr(np.sqrt(2 * snr) * np.sin(phase + np.pi / 4))
        errors = example.symbol_error(phase.astype(np.float32), np.float32(snr))
        np.testing.assert_allclose(errors, 1 - correct, rtol=3e-5)
    certain = example.symbol_error(np.float32([0.78, 0.79, -0.78, -0.79]), np.float32(1e9))
    assert certain.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("snr", example.LOOP_DB)
def test_exact_values_against_scipy(snr):
    loop = float(example.ratio(snr))

    def density(angle):
        return np.exp(loop * (np.cos(angle) - 1)) / (2 * np.pi * special.i0e(loop))

    nodes, weights = np.polynomial.legendre.leggauss(100)
    width = 3 * np.pi / 8  # half of the arc from pi/4 to pi
    tail = 2 * width * np.sum(weights * density(np.pi / 4 + width * (nodes + 1)))
    assert example.exact_without_noise(np.float32(loop)) == pytest.approx(tail, rel=2e-5)
    grid = np.linspace(-np.pi, np.pi, 4096, endpoint=False)
    error = 1 - np.prod([special.ndtr(np.sqrt(20) * f(grid + np.pi / 4)) for f in (np.cos, np.sin)], axis=0)
    mean = np.mean(density(grid) * error) * 2 * np.pi
    assert example.exact_with_noise(np.float32(loop), np.float32(10)) == pytest.approx(mean, rel=2e-5)


def test_rates_of_the_file(file, rates):
    """Rates equal those that NumPy computes from the file, and lie within five standard errors of the exact ones."""
    phases = np.load(file[0]).astype(float)
    (tails, _), (errors, spread) = rates
    for size, estimates in zip(example.SIZES, tails, strict=True):
        np.testing.assert_array_equal(estimates, np.mean(np.abs(phases) > size, axis=0))
    for line, decibels in enumerate(example.SYMBOL_DB):
        snr = example.ratio(decibels)
        each = np.asarray(example.symbol_error(phases.astype(np.float32), snr), float)
        np.testing.assert_allclose(errors[line], each.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(spread[line], each.std(axis=0) / np.sqrt(ROWS), rtol=1e-3)
        exact = [example.exact_with_noise(example.ratio(loop), snr) for loop in example.LOOP_DB]
        assert np.all(np.abs(errors[line] - exact) < 5 * spread[line])
    exact = np.stack([example.exact_without_noise(example.ratio(example.LOOP_DB), size) for size in example.SIZES])
    assert np.all(np.abs(tails - exact) < 5 * np.sqrt(exact / ROWS) + 2 / ROWS)


def test_rare_phases_are_counted():
    """Rare phases, about 17,000 in a million, are counted in batches that do not divide the number of draws."""
    snr = example.ratio(10.0)
    exact = float(example.exact_without_noise(snr))
    count = example.count_rare(jax.random.key(3), snr, 10**6, batch=2**18)
    assert abs(count - exact * 1e6) < 5 * np.sqrt(exact * 1e6)


def test_main_keeps_the_file_in_the_given_folder(tmp_path, monkeypatch, capsys):
    """A second run uses the file of the first one and draws nothing."""
    monkeypatch.setattr(example, "ROWS", 2**17)
    monkeypatch.setattr(example, "RARE", 2**18)
    for kept in (example.BLOCKS // 2, example.BLOCKS):
        example.main(["--data", str(tmp_path)])
        text = capsys.readouterr().out
        assert f"kept {kept} blocks and drew {example.BLOCKS - kept}" in text
        assert "same bytes as an uninterrupted run: yes" in text
    assert json.loads((tmp_path / "phases.npy.blocks").read_text().splitlines()[0])["shape"] == [2**17, 5]

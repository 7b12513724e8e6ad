"""Test that draws have the density of their distribution, by each method."""

import functools

import jax
import numpy as np
import pytest

from tests.distributions.conformance import cases
from tests.goodness_of_fit import P_VALUE, chi_square

NUMBER = 2**14
QUICK = cases.PLAIN - {"SineBivariateVonMises", "CosineBivariateVonMises", "CircularDistribution"}
QUICK |= {"Mixture VonMises", "Mixture VonMisesFisher", "SineSkewed VonMises"}

MORE = {"CircularDistribution", "VonMises.from_natural", "VonMisesFisher.from_natural"}
WIDE = {"VonMises", "VonMisesFisher", "WrappedCauchy", "Cardioid", "WrappedNormal", "Torus"}


@pytest.fixture(scope="module", params=cases.cases(QUICK, MORE, WIDE))
def case(request):
    with cases.in_its_mode(request.param) as found:
        yield found


def methods(example):
    """Return the methods by which an example can be drawn."""
    return example.make(**example.one())._drawn_by()[0].methods


@functools.partial(jax.jit, static_argnums=0)
def drawn(example, given, key):
    """Return draws, by the direct method if there is one; the batch is the second axis."""
    method = "direct" if "direct" in methods(example) else "auto"
    if example.batched:
        return example.make(**given).sample(key, (NUMBER,), method=method)
    return jax.vmap(lambda given: example.make(**given).sample(key, (NUMBER,)), out_axes=1)(given)


@functools.partial(jax.jit, static_argnums=0)
def density(example, given, points):
    """Return the densities of a batch at points."""
    if example.batched:
        return example.make(**given).prob(points[:, None]).T
    return jax.vmap(lambda given: example.make(**given).prob(points))(given)


def assert_draws(case, draws, number):
    """Assert that draws have the dtype, the space and the frequencies of the first distributions of the batch."""
    given = {name: leaf[:number] for name, leaf in case.example.parameters(case.dtype).items()}
    points, weights, bins = case.space.nodes()
    p = np.asarray(density(case.example, given, points.astype(case.dtype)), float)
    assert draws.dtype == case.dtype
    for i, x in enumerate(np.moveaxis(draws.astype(float), 1, 0)):
        assert_frequencies(case.space, x, p[i] * weights, bins, i)
    if case.example.of_vectors:
        np.testing.assert_allclose(np.linalg.norm(draws, axis=-1), 1, atol=case.tolerance(1e-6, 2e-15))
    else:
        assert np.all((draws >= -np.pi) & (draws < np.pi))


def test_draws(case, key):
    """Those of each distribution fall into the bins of their space with the right frequencies."""
    found = np.asarray(drawn(case.example, case.example.parameters(case.dtype), key))
    assert_draws(case, found, 3)
    for name, invalid in case.example.invalid(case.dtype):
        bad = np.asarray(drawn(case.example, invalid, key))
        lost = np.isnan(bad).reshape(NUMBER, 3, -1)
        # A draw of a mixture is that of the component that was chosen, here with a probability above 0.05.
        share = 0.05 if case.example.name.startswith("Mixture") and name != "logits" else 1
        assert np.all(lost[:, :2].any(-1).mean(0) >= share), name
        np.testing.assert_array_equal(bad[:, 2], found[:, 2])


def test_draws_from_a_table(case, key):
    """Those of the first distribution have the right frequencies, too."""
    if "table" not in methods(case.example):
        pytest.skip("there is one method")
    one = case.example.make(**case.example.one(case.dtype))
    assert_draws(case, np.asarray(one.sample(key, (NUMBER,), method="table"))[:, None], 1)


def assert_frequencies(space, draws, mass, bins, where):
    """Assert that draws fall into the bins as often as their masses say, by a chi-square test."""
    assert abs(mass.sum() - 1) < 1e-5, where
    expected = NUMBER * np.bincount(bins, mass, space.number_of_bins)
    counts = np.bincount(space.number(space.place(draws)), minlength=space.number_of_bins)
    order = np.argsort(expected)
    groups = np.cumsum(expected[order]) // 20  # at least 20 draws are expected in a group, but for the last one
    expected, counts = (np.bincount(groups.astype(int), each[order]) for each in (expected, counts))
    kept = expected > 5
    assert not counts[~kept & (expected == 0)].any()
    assert chi_square(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()) > P_VALUE, where
    assert abs(counts[~kept].sum() - expected[~kept].sum()) < 20

"""Test that draws have the density of their distribution, by each method."""

import functools

import jax
import numpy as np
import pytest

from tests.distributions.conformance import cases
from tests.goodness_of_fit import P_VALUE, chi_square

NUMBER = 2**14
QUICK = cases.PLAIN - {"SineBivariateVonMises", "CosineBivariateVonMises"}
QUICK |= {"Mixture VonMises", "Mixture VonMisesFisher", "SineSkewed VonMises"}


@pytest.fixture(scope="module", params=cases.cases(QUICK))
def case(request):
    with cases.in_its_mode(request.param) as found:
        yield found


@functools.partial(jax.jit, static_argnums=0)
def drawn(example, given, key):
    """Return draws by the direct method and by a table; the batch is the second axis."""
    if example.batched:
        one = example.make(**given)
        methods = one._drawn_by()[0].methods
        method = "direct" if "direct" in methods else "auto"
        found = {"whole": one.sample(key, (NUMBER,), method=method)}
        if "table" in methods:
            first = example.make(**{name: leaf[0] for name, leaf in given.items()})
            found["table"] = first.sample(key, (NUMBER,), method="table")[:, None]
        return found

    def each(given):
        one = example.make(**given)
        return {"whole": one.sample(key, (NUMBER,))}

    return jax.vmap(each, out_axes=1)(given)


@functools.partial(jax.jit, static_argnums=0)
def density(example, given, points):
    """Return the densities of a batch at points."""
    if example.batched:
        return example.make(**given).prob(points[:, None]).T
    return jax.vmap(lambda given: example.make(**given).prob(points))(given)


def test_draws(case, key):
    """Those of each distribution, by each method, fall into the bins of their space with the right frequencies."""
    given = case.example.parameters(case.dtype)
    points, weights, bins = case.space.nodes()
    p = np.asarray(density(case.example, given, points.astype(case.dtype)), float)
    found = jax.tree.map(np.asarray, drawn(case.example, given, key))
    for name, draws in found.items():
        assert draws.dtype == case.dtype
        for i, x in enumerate(np.moveaxis(draws.astype(float), 1, 0)):
            assert_frequencies(case.space, x, p[i] * weights, bins, (name, i))
    if case.example.of_vectors:
        np.testing.assert_allclose(np.linalg.norm(found["whole"], axis=-1), 1, atol=case.tolerance(1e-6, 2e-15))
    else:
        assert np.all((found["whole"] >= -np.pi) & (found["whole"] < np.pi))
    for name in case.example.rules:
        bad = np.asarray(drawn(case.example, case.example.invalid(name, case.dtype), key)["whole"])
        lost = np.isnan(bad).reshape(NUMBER, 3, -1)
        # A draw of a mixture is that of the component that was chosen, here with a probability above 0.05.
        share = 0.05 if case.example.name.startswith("Mixture") and name != "logits" else 1
        assert np.all(lost[:, :2].any(-1).mean(0) >= share), name
        np.testing.assert_array_equal(bad[:, 2], found["whole"][:, 2])


def assert_frequencies(space, draws, mass, bins, where):
    """Assert that draws fall into the bins as often as their masses say, by a chi-square test."""
    expected = NUMBER * np.bincount(bins, mass, space.number_of_bins)
    counts = np.bincount(space.number(space.place(draws)), minlength=space.number_of_bins)
    order = np.argsort(expected)
    groups = np.cumsum(expected[order]) // 20  # at least 20 draws are expected in a group, but for the last one
    expected, counts = (np.bincount(groups.astype(int), each[order]) for each in (expected, counts))
    kept = expected > 5
    assert not counts[~kept & (expected == 0)].any()
    assert chi_square(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()) > P_VALUE, where
    assert abs(counts[~kept].sum() - expected[~kept].sum()) < 20

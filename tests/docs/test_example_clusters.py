"""Test the example of clusters of directions: its scores against published ones, and its tables."""

import jax
import numpy as np

from docs.examples import direction_clusters as example
from jax_von_mises import Mixture, VonMisesFisher


def test_bic_is_that_of_movmf():
    """K. Hornik and B. Gruen, J. Stat. Softw. 58, 2014; their densities are per share of the sphere."""
    x, women = example.households()
    assert x.shape == (40, 3)
    assert women.sum() == 20
    found = example.fits(x, (1, 2, 3))
    published = {1: -169.4291, 2: -200.3364, 3: -211.5490}
    for number, value in published.items():
        assert abs(example.bic(found[number, False], x, False) - 80 * np.log(4 * np.pi) - value) < 0.01
    # For one component, both models are the same.
    assert abs(example.bic(found[1, True], x, True) - example.bic(found[1, False], x, False)) < 1e-3
    lines = example.component_table(found[3, False], x, women)
    assert len(lines) == 5
    assert sum(int(line.split("|")[6]) for line in lines[2:]) == 20


def test_made_embeddings_are_found():
    vectors, labels = example.embeddings(jax.random.key(1), 2_000)
    assert abs(np.mean(np.bincount(labels, minlength=example.CLUSTERS)) - 100) < 1e-9
    mixture = Mixture.fit(vectors, VonMisesFisher, number=example.CLUSTERS, tied=True)
    found = example.most_likely(mixture, vectors)
    np.testing.assert_array_equal(found, np.argmax(mixture.responsibilities(vectors), -1))
    counts = example.confusion(found, labels)
    assert counts.sum() == 2_000
    assert np.trace(counts) > 1_980
    assert abs(float(mixture.components.concentration[0]) / example.concentration_of(example.COSINE) - 1) < 0.1

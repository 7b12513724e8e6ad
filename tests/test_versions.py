"""Test what changes between releases of JAX: words, draws and densities of every class, in `make test-versions`."""

import jax
import numpy as np
import pytest

from tests.distributions.conformance.cases import marked
from tests.distributions.conformance.examples import EXAMPLES

# The others need seconds of compilation more than these.
QUICK = {"VonMises", "VonMisesFisher", "WrappedCauchy", "Cardioid", "WrappedNormal", "Torus", "Mixture VonMises"}
# The first two draws with the key 2026, rounded.
DRAWS = {
    "Bingham": [[0.37856, 0.888671, -0.25876], [-0.052375, -0.983139, 0.1752]],
    "Mixture Bingham": [[-0.127313, 0.107217, 0.986051], [0.353501, 0.909422, 0.219062]],
    "Cardioid": [0.268263, -2.425011],
    "CosineBivariateVonMises": [[0.302026, -2.29396], [-0.306205, -0.634657]],
    "SineBivariateVonMises": [[0.32273, -2.430707], [-0.21913, -1.19664]],
    "VonMises": [0.363588, -2.049828],
    "VonMisesFisher": [[0.902553, 0.422544, 0.082795], [0.147207, 0.97889, 0.141788]],
    "WrappedCauchy": [0.299398, -2.479075],
    "TruncatedVonMises": [-0.204739, -1.762824],
    "ProjectedNormal": [[0.311545, -0.072657, -0.94745], [-0.031613, 0.535721, -0.843803]],
    "Mixture ProjectedNormal": [[-0.928401, -0.190099, -0.319271], [-0.653833, 0.267431, -0.707802]],
    "WrappedNormal": [0.278057, -2.798063],
    "IsotropicGaussianSO3": [[0.779553, 0.010879, 0.597105, 0.188796], [0.24823, 0.929126, 0.274057, -0.000391]],
    "Kent": [[0.998495, 0.040883, -0.036566], [0.932165, 0.35444, -0.073765]],
    "Mixture Kent": [[-0.771504, -0.536457, -0.342046], [-0.439925, 0.586768, 0.67983]],
    "MatrixFisher": [[-0.15546, -0.70504, 0.664648, -0.19234], [0.164537, -0.606351, 0.736098, 0.251846]],
    "Mixture MatrixFisher": [[0.125209, -0.10272, -0.392803, 0.90525], [0.093937, -0.966495, 0.189899, 0.144918]],
    "VonMises.from_natural": [-0.891759, 2.667171],
    "VonMisesFisher.from_natural": [[0.925579, 0.107139, -0.363077], [0.694915, 0.098276, 0.712345]],
    "CircularDistribution": [0.595891, -2.936239],
    "SineSkewed Cardioid": [0.731737, -2.425011],
    "SineSkewed VonMises": [0.636412, -2.049828],
    "SineSkewed WrappedCauchy": [0.700602, -2.479075],
    "SineSkewed WrappedNormal": [0.721943, -2.798063],
    "SineSkewed CircularDistribution": [1.404109, -2.936239],
    "Torus": [[0.363588, 0.394969], [-0.053408, 1.504287]],
    "Mixture CosineBivariateVonMises": [[2.494884, 2.839707], [0.65587, -1.848238]],
    "Mixture SineBivariateVonMises": [[2.208412, -2.663818], [0.639585, -1.159314]],
    "Mixture VonMises": [0.394969, 1.504287],
    "Mixture VonMisesFisher": [[-0.678581, 0.188195, 0.710008], [0.397199, 0.867777, -0.298657]],
    "Mixture WrappedCauchy": [1.630879, -3.141409],
    "Mixture IsotropicGaussianSO3": [
        [-0.376548, 0.217552, 0.433175, 0.789456],
        [-0.443742, 0.032076, 0.471975, 0.76112],
    ],
    "Mixture Torus": [[0.394969, 2.787036], [0.607413, 1.176346]],
    "SineSkewed Mixture VonMises": [-2.057225, 3.116642],
}


@pytest.mark.parametrize("name", marked(QUICK, ()))
def test_frozen_draws(name):
    """Draws are the same in every release up to rounding, and have a density."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    x, log_prob = jax.jit(lambda one, key: one.sample_and_log_prob(key, (2,)))(one, jax.random.key(2026))
    np.testing.assert_allclose(x, DRAWS[name], atol=4e-6)
    assert np.isfinite(log_prob).all()


def test_every_class_is_frozen():
    assert DRAWS.keys() == EXAMPLES.keys()

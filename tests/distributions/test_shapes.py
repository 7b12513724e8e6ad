"""Test that each method's result has the shape of the values and the batch, whichever parameter has the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises as jvm
from jax_von_mises import Mixture, SineSkewed, Torus, VonMises, VonMisesFisher
from jax_von_mises.distributions.base import Parametric
from jax_von_mises.rotations import IsotropicGaussianSO3

TWO = np.float32([0.2, 0.3])
PAIR = {"phi_loc": 0.1, "psi_loc": 0.2, "phi_concentration": 3.0, "psi_concentration": 4.0, "correlation": 1.0}
# A function that makes a distribution, and parameters without a batch.
MADE_OF = {
    "VonMises": (VonMises, {"loc": 0.5, "concentration": 2.0}),
    "VonMises.from_natural": (VonMises.from_natural, {"natural": TWO}),
    "VonMisesFisher": (VonMisesFisher, {"mean_direction": np.float32([1, 2, 3]), "concentration": 2.0}),
    "VonMisesFisher.from_natural": (VonMisesFisher.from_natural, {"natural": np.float32([1, 2, 3])}),
    "SineBivariateVonMises": (jvm.SineBivariateVonMises, PAIR),
    "CosineBivariateVonMises": (jvm.CosineBivariateVonMises, PAIR),
    "WrappedCauchy": (jvm.WrappedCauchy, {"loc": 0.5, "rho": 0.4}),
    "Cardioid": (jvm.Cardioid, {"loc": 0.5, "rho": 0.3}),
    "WrappedNormal": (jvm.WrappedNormal, {"loc": 0.5, "scale": 0.8}),
    "IsotropicGaussianSO3": (IsotropicGaussianSO3, {"mean_rotation": np.eye(4, dtype=np.float32)[0], "scale": 0.5}),
    "Torus": (lambda **given: Torus(VonMises(**given)), {"loc": TWO, "concentration": TWO}),
    "SineSkewed": (
        lambda skewness, **given: SineSkewed(VonMises(**given), skewness),
        {"skewness": 0.3, "loc": 0.5, "concentration": 2.0},
    ),
    "Mixture": (
        lambda logits, **given: Mixture(logits=logits, components=VonMises(**given)),
        {"logits": TWO, "loc": TWO, "concentration": TWO},
    ),
    "Mixture of directions": (
        lambda logits, **given: Mixture(logits=logits, components=VonMisesFisher(**given)),
        {"logits": TWO, "mean_direction": np.eye(2, 3, dtype=np.float32), "concentration": TWO},
    ),
    "Mixture of pairs": (
        lambda logits, **given: Mixture(logits=logits, components=jvm.SineBivariateVonMises(**PAIR | given)),
        {"logits": TWO, "phi_loc": TWO, "correlation": TWO},
    ),
}
# Methods of a value of the event's shape, and of a number.
OF_POINTS = {"log_prob", "prob", "responsibilities", "score"}
OF_NUMBERS = {"cdf", "sf", "log_cdf", "log_sf", "survival_function", "log_survival_function", "icdf", "isf", "quantile"}
OF_NUMBERS |= {"interval", "standard_errors", "cosine_cdf", "cosine_icdf", "conditional", "marginal_log_prob"}
OF_ANOTHER = {"kl_divergence", "cross_entropy", "multiply", "convolve"}
# Those that return no array, and the marginal of a single pair.
OTHERS = {"sample", "sample_and_log_prob", "fit", "from_natural", "broadcast", "marginal"}


def methods(distribution):
    """Return the names of the public methods."""
    kind = type(distribution)
    public = (name for name in dir(kind) if not name.startswith("_") and name not in OTHERS and not name.isupper())
    return [name for name in public if callable(getattr(kind, name)) and hasattr(distribution, name)]


def result(distribution, name, shape):
    """Return what a method returns, or zeros in the batch of a distribution that it returns."""
    found = called(getattr(distribution, name), distribution, name, shape)
    return jnp.zeros(found.batch_shape) if isinstance(found, Parametric) else found


def called(method, distribution, name, shape):
    if name in OF_POINTS:
        return method(jnp.full(shape + distribution.event_shape, 0.3))
    if name in OF_NUMBERS:
        return method(jnp.full(shape, 0.3))
    if name in OF_ANOTHER:
        return method(distribution)
    return method(2) if name == "moment" else method()


@pytest.mark.parametrize("name", MADE_OF)
def test_results_have_the_batch_of_all_parameters(name):
    """Programs are traced, not compiled."""
    make, parameters = MADE_OF[name]
    for batched in parameters:
        given = {key: np.stack([x] * 3).astype(np.float32) if key == batched else x for key, x in parameters.items()}
        distribution = make(**given)
        assert distribution.batch_shape == (3,)
        for method in methods(distribution):
            shape = (2, 1) if method in OF_POINTS | OF_NUMBERS else ()
            found = jax.eval_shape(lambda one, method=method, shape=shape: result(one, method, shape), distribution)
            wanted = (2, 3) if shape else (3,)
            for leaf in jax.tree.leaves(found):
                assert leaf.shape[: len(wanted)] == wanted, (method, batched)

"""Provide NumPyro distributions with pathwise gradients.

The module needs the extra ``numpyro``.
"""

from jax_von_mises.distributions.numpyro import Cardioid as Cardioid
from jax_von_mises.distributions.numpyro import CosineBivariateVonMises as CosineBivariateVonMises
from jax_von_mises.distributions.numpyro import SineBivariateVonMises as SineBivariateVonMises
from jax_von_mises.distributions.numpyro import VonMises as VonMises
from jax_von_mises.distributions.numpyro import VonMisesFisher as VonMisesFisher
from jax_von_mises.distributions.numpyro import WrappedCauchy as WrappedCauchy
from jax_von_mises.distributions.numpyro import WrappedNormal as WrappedNormal

__all__ = [
    "Cardioid",
    "CosineBivariateVonMises",
    "SineBivariateVonMises",
    "VonMises",
    "VonMisesFisher",
    "WrappedCauchy",
    "WrappedNormal",
]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

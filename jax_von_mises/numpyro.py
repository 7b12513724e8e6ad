"""Provide NumPyro distributions with pathwise gradients.

The module needs the extra ``numpyro``.
"""

from jax_von_mises.distributions.numpyro import CosineBivariateVonMises as CosineBivariateVonMises
from jax_von_mises.distributions.numpyro import SineBivariateVonMises as SineBivariateVonMises
from jax_von_mises.distributions.numpyro import VonMises as VonMises
from jax_von_mises.distributions.numpyro import VonMisesFisher as VonMisesFisher

__all__ = ["CosineBivariateVonMises", "SineBivariateVonMises", "VonMises", "VonMisesFisher"]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

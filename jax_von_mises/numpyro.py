"""`VonMises` for NumPyro models, with exact draws and pathwise gradients; needs the extra ``numpyro``."""

from jax_von_mises.distributions.numpyro import VonMises as VonMises

__all__ = ["VonMises"]


def __dir__():
    """Return the public names and those that every module has."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

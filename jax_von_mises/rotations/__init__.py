"""Rotations as unit quaternions."""

from jax_von_mises.rotations.distribution import IsotropicGaussianSO3 as IsotropicGaussianSO3
from jax_von_mises.rotations.matrix_fisher import MatrixFisher as MatrixFisher

__all__ = ["IsotropicGaussianSO3", "MatrixFisher"]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

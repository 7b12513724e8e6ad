"""Rotations as unit quaternions."""

from jax_von_mises.rotations.distribution import IsotropicGaussianSO3 as IsotropicGaussianSO3
from jax_von_mises.rotations.matrix_fisher import MatrixFisher as MatrixFisher
from jax_von_mises.rotations.operations import angle_between as angle_between
from jax_von_mises.rotations.operations import apply as apply
from jax_von_mises.rotations.operations import exp as exp
from jax_von_mises.rotations.operations import from_matrix as from_matrix
from jax_von_mises.rotations.operations import from_scipy as from_scipy
from jax_von_mises.rotations.operations import inverse as inverse
from jax_von_mises.rotations.operations import log as log
from jax_von_mises.rotations.operations import multiply as multiply
from jax_von_mises.rotations.operations import slerp as slerp
from jax_von_mises.rotations.operations import to_matrix as to_matrix
from jax_von_mises.rotations.operations import to_scipy as to_scipy

__all__ = [
    "IsotropicGaussianSO3",
    "MatrixFisher",
    "angle_between",
    "apply",
    "exp",
    "from_matrix",
    "from_scipy",
    "inverse",
    "log",
    "multiply",
    "slerp",
    "to_matrix",
    "to_scipy",
]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

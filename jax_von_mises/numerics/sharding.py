"""Arrays over meshes whose axes are explicit: which sharding a result takes, and broadcasting into it."""

import jax
from jax import lax
from jax.sharding import AxisType

__all__ = ["broadcast_sharded", "explicit", "explicit_sharding"]


def explicit(arrays):
    """Whether one of the arrays is on a mesh with explicit axes."""
    return any(AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types for x in arrays)


def explicit_sharding(shape, *arrays):
    """Return the sharding that one of `arrays` of the result's shape has over an explicit mesh, or None."""
    for array in arrays:
        found = jax.typeof(array).sharding
        if array.shape == shape and AxisType.Explicit in found.mesh.axis_types and any(found.spec):
            return found
    return None


def broadcast_sharded(x, shape, out_sharding):
    """Broadcast `x` to `shape`, in a sharding."""
    dimensions = tuple(range(len(shape) - x.ndim, len(shape)))
    return lax.broadcast_in_dim(x, shape, dimensions, out_sharding=out_sharding)

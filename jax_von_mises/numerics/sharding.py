"""Find the explicit sharding of a result, and broadcast arrays to it."""

from collections.abc import Iterable

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding

__all__ = ["broadcast_sharded", "explicit", "explicit_sharding"]


def explicit(arrays: Iterable[jax.Array]) -> bool:
    """Return whether any of the arrays is on a mesh with explicit axes."""
    return any(AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types for x in arrays)


def explicit_sharding(shape: tuple[int, ...], *arrays: jax.Array) -> NamedSharding | None:
    """Return the explicit sharding of the first array that has one and the result's `shape`, or None."""
    for array in arrays:
        sharding: NamedSharding = jax.typeof(array).sharding
        if array.shape == shape and AxisType.Explicit in sharding.mesh.axis_types and any(sharding.spec):
            return sharding
    return None


def broadcast_sharded(x: jax.Array, shape: tuple[int, ...], out_sharding: NamedSharding | None) -> jax.Array:
    """Broadcast `x` to `shape` with the sharding `out_sharding`."""
    dimensions = tuple(range(len(shape) - x.ndim, len(shape)))
    return lax.broadcast_in_dim(x, shape, dimensions, out_sharding=out_sharding)

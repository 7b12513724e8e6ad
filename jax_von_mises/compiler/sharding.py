"""Find the explicit sharding of a result, broadcast arrays to it, and compute with arrays that have one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

__all__ = ["broadcast_sharded", "explicit", "explicit_sharding", "sharded_by_batch"]


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


def sharded_by_batch(compute: Callable[..., Any], arrays: Sequence[jax.Array], ranks: Sequence[int]) -> Any:
    """Return ``compute(*arrays)``; for arrays on a mesh with explicit axes, the batch of the results is sharded alike.

    `ranks` counts the axes of each array after its batch. The results start with the axes of the broadcast batch.
    Inside, the compiler chooses the shardings: few operations between sharded arrays, constants and vectors have
    explicit rules.
    """
    meshes = [jax.typeof(x).sharding.mesh for x in arrays if explicit([x])]
    if not meshes:
        return compute(*arrays)
    shapes = [(x.shape[: x.ndim - rank], jax.typeof(x).sharding.spec) for x, rank in zip(arrays, ranks, strict=True)]
    names: list[Any] = [None] * max(len(shape) for shape, _ in shapes)
    for shape, spec in shapes:
        for axis, (size, name) in enumerate(zip(shape, spec, strict=False), len(names) - len(shape)):
            # A mesh axis shards one axis of a result.
            if size > 1 and names[axis] is None and name not in names:
                names[axis] = name
    return jax.sharding.auto_axes(compute, out_sharding=NamedSharding(meshes[0], PartitionSpec(*names)))(*arrays)

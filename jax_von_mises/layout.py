"""Shapes in which XLA:CPU makes fast loops.

It cuts an elementwise program into one piece for each core, along the outermost axes. Where the pieces are not of equal
length their bounds are no constants, and the loops over them no vector loops: an odd number of angles took eight times
as long as an even one. Rows of a constant length, at least some for each core, have no such pieces. Where the number of
elements has no divisor that serves as the length, the last row is filled up, and the result copied.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType

__all__ = ["explicit", "explicit_sharding", "in_rows", "rows_of"]

# Smaller programs are not cut.
SMALLEST = 2**14
# Of a row; and of the last axis of a shape that has rows of its own.
LENGTH, SHORTEST = 1024, 64
# One long axis whose size is a multiple of this is cut into equal pieces, by two cores and by most other numbers.
EVEN = 64


def cuts():
    """Whether programs will be cut so; several CPU devices are for trying out shardings, which reshaping would move."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def explicit(arrays):
    """Whether one of the arrays brings a mesh of explicit axes along."""
    return any(AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types for x in arrays)


def explicit_sharding(shape, *arrays):
    """The sharding that one of `arrays` of the result's shape has over an explicit mesh, or None."""
    for array in arrays:
        found = jax.typeof(array).sharding
        if array.shape == shape and AxisType.Explicit in found.mesh.axis_types and any(found.spec):
            return found
    return None


def rows_of(shape, *arrays):
    """The shape (rows, length) in which to compute `shape` from `arrays`; None where that one is as good.

    Inside a mesh, `jax.shard_map` or `jax.pmap`, and with arrays over explicit axes, shapes stay: types say there how
    an array is shared out, and what is not must not be mixed with what is.
    """
    total = math.prod(shape)
    if total < SMALLEST or not cuts() or explicit(arrays) or not jax.sharding.get_abstract_mesh().empty:
        return None
    long = [size for size in shape if size > 1]
    even = len(long) == 1 and total % EVEN == 0
    if even or (len(long) > 1 and shape[-1] >= SHORTEST):
        return None
    return -(-total // LENGTH), LENGTH


def in_rows(compute, shape, rows, *arrays):
    """``compute(rows, *arrays)`` for `arrays` that broadcast to `shape`, with its result in that shape.

    Arrays of a single value stay scalars. The last row is filled up by halves, which are good values of all arguments.
    """
    total, missing = math.prod(shape), math.prod(rows) - math.prod(shape)

    def spread(x):
        if x.size == 1:
            return x.reshape(())
        flat = jnp.broadcast_to(x, shape).reshape(-1)
        return (jnp.pad(flat, (0, missing), constant_values=0.5) if missing else flat).reshape(rows)

    arrays = [spread(x) for x in arrays]
    # XLA would compute what is kept alone, in the pieces that are to be avoided, if it could see through this: no
    # release sees through sorting, and what is in a branch stays there.
    always = lax.sort(lax.iota(jnp.uint32, 2))[0] == 0
    found = jax.eval_shape(lambda *given: compute(rows, *given), *arrays)
    x = lax.cond(always, lambda *given: compute(rows, *given), lambda *_: jnp.zeros(rows, found.dtype), *arrays)
    return x.reshape(-1)[:total].reshape(shape)

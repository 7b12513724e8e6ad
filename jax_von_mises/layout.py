"""What XLA:CPU needs: shapes in which it makes fast loops, and constants that it does not compute with beforehand.

A program is traced once and may be lowered for several platforms, so `lax.platform_dependent` decides when it is
lowered; the machine that traces has no say.

It cuts an elementwise program into one piece for each core, along the outermost axes. Where the pieces are not of equal
length their bounds are no constants, and the loops over them no vector loops: an odd number of angles took eight times
as long as an even one. Rows of a constant length, at least some for each core, have no such pieces. Where the number of
elements has no divisor that serves as the length, the last row is filled up, and the result copied.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType

__all__ = ["computed", "explicit", "explicit_sharding", "hide_constants"]

# Smaller programs are not cut.
SMALLEST = 2**14
# Of a row; and of the last axis of a shape that has rows of its own.
LENGTH, SHORTEST = 1024, 64
# One long axis whose size is a multiple of this is cut into equal pieces, by two cores and by most other numbers.
EVEN = 64


def one_cpu():
    """Whether there is one CPU device. Several serve to try out shardings: reshaping would move sharded arrays."""
    try:
        return jax.device_count("cpu") == 1
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out, which a program may be exported for all the same
        return True


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


def computed(compute, shape, dtype, constants, *arrays):
    """Return ``compute(shape, constants, *arrays)`` rounded to `dtype`; on a CPU computed in rows where that is faster.

    Parameters
    ----------
    compute : callable
        An elementwise function of the `arrays`, for any shape of the right size. It closes over no array.
    shape : tuple of ints
        Of the result; the arrays broadcast to it.
    dtype : dtype
    constants : pytree of arrays
        Other arguments of `compute`, without derivatives.
    *arrays : float arrays
    """
    rows = rows_of(shape, *arrays)
    if rows is None:
        return compute(shape, constants, *arrays).astype(dtype)
    return _computed(lambda *given: (compute(*given),), shape, rows, (dtype,), constants, *arrays)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _computed(compute, shape, rows, dtypes, constants, *arrays):
    """`computed` for a function with several results."""

    def rounded(shape, *given):
        return tuple(x.astype(dtype) for x, dtype in zip(compute(shape, *given), dtypes, strict=True))

    in_shape = functools.partial(rounded, shape)
    by_rows = functools.partial(in_rows, rounded, shape, rows, dtypes)
    return lax.platform_dependent(constants, *arrays, cpu=by_rows, default=in_shape)


@functools.partial(_computed.defjvp, symbolic_zeros=True)
def _computed_jvp(compute, shape, rows, dtypes, primals, tangents):
    # The slopes are results too: what JAX itself keeps for reverse mode would have the shapes of both platforms.
    constants, *arrays = primals
    moved = {j: t for j, t in enumerate(tangents[1:]) if not isinstance(t, SymbolicZero)}

    def with_slopes(shape, constants, *arrays):
        def values(moving):
            return compute(shape, constants, *(moving.get(j, x) for j, x in enumerate(arrays)))

        moving = {j: arrays[j] for j in moved}
        results, push = jax.linearize(values, moving)
        for j in moved:
            results += push({i: jnp.full_like(x, i == j) for i, x in moving.items()})
        return results

    of_slopes = (arrays[0].dtype,) * (len(dtypes) * len(moved))
    results = _computed(with_slopes, shape, rows, dtypes + of_slopes, constants, *arrays)
    values, slopes = results[: len(dtypes)], iter(results[len(dtypes) :])
    total = [jnp.zeros(shape, arrays[0].dtype)] * len(dtypes)
    for tangent in moved.values():
        total = [x + next(slopes) * jnp.broadcast_to(tangent, shape) for x in total]
    return values, tuple(x.astype(dtype) for x, dtype in zip(total, dtypes, strict=True))


def rows_of(shape, *arrays):
    """The shape (rows, length) in which a CPU should compute `shape` from `arrays`; None where that one is as good.

    Inside a mesh, `jax.shard_map` or `jax.pmap`, and with arrays over explicit axes, shapes stay: types say there how
    an array is shared out, and what is not must not be mixed with what is.
    """
    total = math.prod(shape)
    if total < SMALLEST or not one_cpu() or explicit(arrays) or not jax.sharding.get_abstract_mesh().empty:
        return None
    long = [size for size in shape if size > 1]
    even = len(long) == 1 and total % EVEN == 0
    if even or (len(long) > 1 and shape[-1] >= SHORTEST):
        return None
    return -(-total // LENGTH), LENGTH


def in_rows(compute, shape, rows, dtypes, constants, *arrays):
    """``compute(rows, constants, *arrays)`` for `arrays` that broadcast to `shape`, with its results in that shape.

    Arrays of a single value stay scalars. The last row is filled up by halves, which are good values of all arguments.
    """
    total, missing = math.prod(shape), math.prod(rows) - math.prod(shape)

    def spread(x):
        if x.size == 1:
            return x.reshape(())
        flat = jnp.broadcast_to(x, shape).reshape(-1)
        return (jnp.pad(flat, (0, missing), constant_values=0.5) if missing else flat).reshape(rows)

    # XLA would compute what is kept alone, in the pieces that are to be avoided, if it could see through this: what is
    # in a branch stays there.
    none = lambda *_: tuple(jnp.zeros(rows, dtype) for dtype in dtypes)  # noqa: E731
    results = lax.cond(always(), functools.partial(compute, rows), none, constants, *map(spread, arrays))
    return tuple(x.reshape(-1)[:total].reshape(shape) for x in results)


def always():
    """Return True in a form that XLA:CPU does not evaluate while it compiles.

    WORKAROUND(jax>=0.10): no release evaluates a sort. The optimization barrier of jax 0.10 disappears too early.
    """
    return lax.sort(lax.iota(jnp.uint32, 2))[0] == 0


def hide_constants(*arrays):
    """Return the `arrays`, whose values the compiler does not use where they are constants of the program.

    XLA:CPU would evaluate what depends on them alone while it compiles, with two roundings where a program that takes
    them as arguments has one, and the angles would differ in their last places.
    """

    def hidden(*arrays):
        known = always()
        return [jnp.where(known, x, 1) for x in arrays]

    def barrier(*arrays):
        # One for each: a common one makes all vary over the axes of a `jax.shard_map` that one of them varies over.
        return [lax.optimization_barrier(x) for x in arrays]

    return lax.platform_dependent(*arrays, cpu=hidden, default=barrier)

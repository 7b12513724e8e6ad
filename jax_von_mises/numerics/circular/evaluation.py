"""Evaluate log densities at many angles, in float64 even inside float32 programs.

In float32, a formula such as ``log(1 + rho**2 - 2 * rho * cos(x))`` loses all its digits if the distribution is narrow,
and angles are too coarse for the nodes of a narrow mode far from 0. Everything else stays in float32.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LogDensity = Callable[..., jax.Array]
"""``log_density(angle, *parameters)``, which returns a scalar for a scalar angle."""
FLOAT64 = np.dtype(np.float64)


def scope(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which float64 is available if `wide`, even in a float32 program."""
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def evaluate(
    log_density: LogDensity, parameters: tuple[jax.Array, ...], base: jax.Array, step: jax.Array, wide: bool
) -> jax.Array:
    """Evaluate a log density at a one-dimensional array of angles ``base + step``.

    If `wide`, both this sum and the log density are computed in float64.

    The result has derivatives of any order with respect to `base`, `step` and `parameters`, which share one dtype.
    """
    if wide:
        return in_float64(lambda *args: (log_density(*args),), base, step, parameters)[0]
    return at_angles(lambda *args: (log_density(*args),), base + step, parameters)[0]


def at_angles(
    function: Callable[..., tuple[jax.Array, ...]], angles: jax.Array, parameters: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """Evaluate the tuple of arrays ``function(angle, *parameters)`` at each angle, in the dtype of `angles`."""

    def of_dtype(angle: jax.Array) -> tuple[jax.Array, ...]:
        results = function(angle, *parameters)
        return tuple(lax.convert_element_type(jnp.asarray(x), angles.dtype) for x in results)

    return jax.vmap(of_dtype)(angles)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def in_float64(
    function: Callable[..., tuple[jax.Array, ...]],
    base: jax.Array,
    step: jax.Array,
    parameters: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Evaluate `at_angles` at ``base + step`` in float64, for float32 arguments."""
    with scope(True):
        start, away, *wide = (lax.convert_element_type(x, FLOAT64) for x in (base, step, *parameters))
        return at_angles(function, start + away, tuple(wide))


@in_float64.defjvp
def _in_float64_jvp(
    function: Callable[..., tuple[jax.Array, ...]],
    primals: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]],
    tangents: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    # JAX applies derivative rules long after it has traced the function, when float64 is off again. The slopes are
    # therefore a separate function, which is also evaluated in float64. Products with tangents are float32.
    def slopes(angle: jax.Array, *parameters: jax.Array) -> tuple[jax.Array, ...]:
        every = tuple(range(1 + len(parameters)))
        return tuple(jax.tree.leaves(jax.jacrev(function, every)(angle, *parameters)))

    results = in_float64(function, *primals)
    each = iter(in_float64(slopes, *primals))
    moved = (tangents[0] + tangents[1], *tangents[2])
    out = []
    for values in results:
        total = jnp.zeros(values.shape, moved[0].dtype)
        for j, tangent in enumerate(moved):
            slope = lax.convert_element_type(next(each), tangent.dtype)
            if j == 0:
                total = total + slope * tangent.reshape(-1, *[1] * (slope.ndim - 1))
            else:
                total = total + jnp.tensordot(slope, tangent, tangent.ndim, precision=lax.Precision.HIGHEST)
        with scope(True):
            out.append(lax.convert_element_type(total, FLOAT64))
    return results, tuple(out)


@functools.lru_cache(maxsize=256)
def computable_in_float64(log_density: LogDensity, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether JAX can lower a log density, with parameters of these shapes, in float64 in a float32 program."""

    def inside(angle: jax.Array, *parameters: jax.Array) -> jax.Array:
        return lax.convert_element_type(evaluate(log_density, parameters, angle, angle, True), np.float32)

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Explicitly requested dtype")
            jax.jit(inside).lower(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((1,), *shapes)))
    except Exception:  # the float32 program then either works or raises the user's error
        return False
    return True

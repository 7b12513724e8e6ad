"""Log densities at many angles; in float64 also inside of float32 programs.

A formula such as ``log(1 + rho**2 - 2 * rho * cos(x))`` loses all of its digits in float32 where the distribution is
narrow, and float32 angles are too coarse for the nodes of a narrow mode that is far from 0. Everything else stays in
float32.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LogDensity = Callable[..., jax.Array]
"""``log_density(angle, *parameters)``, a number for a number."""
FLOAT64 = np.dtype(np.float64)


def scope(wide: bool) -> contextlib.AbstractContextManager:
    """Where float64 can be computed, if `wide`, also in a float32 program."""
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def evaluate(
    log_density: LogDensity, parameters: tuple[jax.Array, ...], base: jax.Array, step: jax.Array, wide: bool
) -> jax.Array:
    """Log densities at the angles ``base + step``, of one axis; in float64 if `wide`, the sum included.

    Differentiable, to any order, in `base`, `step` and `parameters`, which are of the dtype of `base`.
    """
    if wide:
        return in_float64(lambda *given: (log_density(*given),), base, step, parameters)[0]
    return at_angles(lambda *given: (log_density(*given),), base + step, parameters)[0]


def at_angles(
    function: Callable[..., tuple[jax.Array, ...]], angles: jax.Array, parameters: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """The arrays ``function(angle, *parameters)`` at each angle, of its dtype."""

    def of_dtype(angle):
        found = function(angle, *parameters)
        return tuple(lax.convert_element_type(jnp.asarray(x), angles.dtype) for x in found)

    return jax.vmap(of_dtype)(angles)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def in_float64(function, base, step, parameters):
    """`at_angles` in float64, of float32 arguments."""
    with scope(True):
        base, step, *parameters = (lax.convert_element_type(x, FLOAT64) for x in (base, step, *parameters))
        return at_angles(function, base + step, tuple(parameters))


@in_float64.defjvp
def _in_float64_jvp(function, primals, tangents):
    # JAX applies rules of derivatives long after the function was traced, when float64 is off again. So the slopes are
    # a function of their own, evaluated here in the same way; with tangents they are float32.
    def slopes(angle, *parameters):
        every = tuple(range(1 + len(parameters)))
        return tuple(jax.tree.leaves(jax.jacrev(function, every)(angle, *parameters)))

    found = in_float64(function, *primals)
    each = iter(in_float64(slopes, *primals))
    moved = (tangents[0] + tangents[1], *tangents[2])
    out = []
    for values in found:
        total = jnp.zeros(values.shape, moved[0].dtype)
        for j, tangent in enumerate(moved):
            slope = lax.convert_element_type(next(each), tangent.dtype)
            if j == 0:
                total = total + slope * tangent.reshape(-1, *[1] * (slope.ndim - 1))
            else:
                total = total + jnp.tensordot(slope, tangent, tangent.ndim, precision=lax.Precision.HIGHEST)
        with scope(True):
            out.append(lax.convert_element_type(total, FLOAT64))
    return found, tuple(out)


@functools.lru_cache(maxsize=256)
def computable_in_float64(log_density: LogDensity, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether JAX compiles a log density, of parameters of these shapes, in float64 inside of a float32 program."""

    def inside(angle, *parameters):
        return lax.convert_element_type(evaluate(log_density, parameters, angle, angle, True), np.float32)

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Explicitly requested dtype")
            jax.jit(inside).lower(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((1,), *shapes)))
    except Exception:  # whatever goes wrong, in float32 it goes right or fails by itself
        return False
    return True

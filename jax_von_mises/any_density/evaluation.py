"""Evaluate log densities at many angles, in float64 even inside float32 programs.

In float32, a formula such as ``log(1 + rho**2 - 2 * rho * cos(x))`` loses all its digits if the distribution is narrow,
and angles are too coarse for the nodes of a narrow mode far from 0. Everything else stays in float32.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LogDensity = Callable[..., jax.Array]
"""``log_density(angle, *parameters)``, which returns a scalar for a scalar angle."""
FLOAT64 = np.dtype(np.float64)


class Closed:
    """Base class of the package's own log densities, which close over no traced value and return one float."""

    def __call__(self, angle: jax.Array, *parameters: jax.Array) -> jax.Array:
        """Return the log density at one angle."""
        raise NotImplementedError


def scope(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which float64 is available if `wide`, even in a float32 program."""
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, eq=False)
class Hoisted:
    """A log density whose last parameters are the traced values over which the user's function closes."""

    programs: dict[np.dtype, tuple[Any, list[Any], list[int | None]]]
    """For each dtype of the angle: a jaxpr, its constants, and for each constant the traced value that replaces it."""
    count: int
    """Number of the function's own parameters."""

    def __call__(self, angle: jax.Array, *parameters: jax.Array) -> jax.Array:
        """Return the log density at one angle."""
        jaxpr, constants, numbers = self.programs[np.dtype(angle.dtype)]
        values = [
            each if j is None else self.value(parameters[self.count + j : self.count + j + 2], each.dtype)
            for each, j in zip(constants, numbers, strict=True)
        ]
        result: jax.Array = jax.core.eval_jaxpr(jaxpr, values, angle, *parameters[: self.count])[0]
        return result

    @staticmethod
    def value(parts: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
        """Return a value of `dtype` from its real part, and the imaginary part of a complex one."""
        if jnp.issubdtype(dtype, jnp.complexfloating):
            real = jnp.finfo(dtype).dtype
            return lax.complex(*(lax.convert_element_type(part, real) for part in parts))
        return lax.convert_element_type(parts[0], dtype)


def hoist(
    log_density: LogDensity, dtype: np.dtype, shapes: Sequence[tuple[int, ...]]
) -> tuple[LogDensity, tuple[jax.Array, ...], list[Any]]:
    """Make the traced values over which a log density closes its last parameters.

    A function that closes over a traced value loses the derivative with respect to it inside `in_float64`, and is
    invalid outside the transformation that traces the value.

    Parameters
    ----------
    log_density : callable
        ``log_density(angle, *parameters)``.
    dtype : dtype
        Dtype of the angle and the parameters, float32 or float64.
    shapes : sequence of tuples
        Shapes of the parameters.

    Returns
    -------
    tuple
        The log density, which is `log_density` itself if it closes over no traced value; these values; and a list with
        the shape and dtype of the function's result.
    """

    def trace(dtype: np.dtype) -> Any:
        given = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((), *shapes))
        with scope(dtype == FLOAT64):
            return jax.make_jaxpr(lambda *of: jnp.asarray(log_density(*of)))(*given)

    traced = {dtype: trace(dtype)}
    results = traced[dtype].out_avals
    if not any(map(is_traced, traced[dtype].consts)):
        return log_density, (), results
    if dtype != FLOAT64:
        # Without a program for float64, `computable_in_float64` is false.
        with contextlib.suppress(Exception):
            traced[FLOAT64] = trace(FLOAT64)
    known: list[jax.Array] = []
    starts: list[int] = []
    values: list[jax.Array] = []
    programs = {}
    for name, program in traced.items():
        numbers: list[int | None] = []
        for value in program.consts:
            if is_traced(value) and not any(value is other for other in known):
                known.append(value)
                starts.append(len(values))
                values += [value.real, value.imag] if jnp.iscomplexobj(value) else [value]
            numbers.append(next((j for j, other in zip(starts, known, strict=True) if value is other), None))
        constants = [
            value if j is None else jax.ShapeDtypeStruct(value.shape, value.dtype)
            for value, j in zip(program.consts, numbers, strict=True)
        ]
        programs[name] = program.jaxpr, constants, numbers
    return Hoisted(programs, len(shapes)), tuple(values), results


def is_traced(value: Any) -> bool:
    """Return whether a constant of a jaxpr is a traced number."""
    return isinstance(value, jax.core.Tracer) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)


def converted(parameters: Sequence[jax.Array], dtype: np.dtype) -> tuple[jax.Array, ...]:
    """Return the parameters with floats of `dtype`; hoisted integers and booleans stay as they are."""
    return tuple(lax.convert_element_type(x, dtype) if has_slope(x) else x for x in parameters)


def has_slope(parameter: jax.Array) -> bool:
    """Return whether a log density has a derivative with respect to a parameter."""
    return bool(jnp.issubdtype(parameter.dtype, jnp.floating))


def levels_at(
    log_density: LogDensity, parameters: tuple[jax.Array, ...], base: jax.Array, step: jax.Array, wide: bool
) -> jax.Array:
    """Evaluate a log density at a one-dimensional array of angles ``base + step``.

    If `wide`, both this sum and the log density are computed in float64.

    The result has derivatives of any order with respect to `base`, `step` and the float `parameters`, which share one
    dtype.
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


def _mapped_in_scope(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `compute` with float64 available, also under `jax.vmap`.

    JAX maps a traced function long after it has traced it, when float64 is off again, and fails for products of
    matrices. The function is therefore traced again for each `jax.vmap`.
    """

    @jax.custom_batching.custom_vmap
    def in_scope(*args: Any) -> Any:
        with scope(True):
            return compute(*args)

    @in_scope.def_vmap
    def _(size: int, batched: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
        results = _mapped_in_scope(jax.vmap(compute, axes, axis_size=size))(*args)
        return results, jax.tree.map(lambda _: True, results)

    return in_scope


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def in_float64(
    function: Callable[..., tuple[jax.Array, ...]],
    base: jax.Array,
    step: jax.Array,
    parameters: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Evaluate `at_angles` at ``base + step`` in float64, for float32 arguments."""

    def compute(base: jax.Array, step: jax.Array, parameters: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start, away = (lax.convert_element_type(x, FLOAT64) for x in (base, step))
        return at_angles(function, start + away, converted(parameters, FLOAT64))

    results: tuple[jax.Array, ...] = _mapped_in_scope(compute)(base, step, parameters)
    return results


@in_float64.defjvp
def _in_float64_jvp(
    function: Callable[..., tuple[jax.Array, ...]],
    primals: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]],
    tangents: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    # JAX applies derivative rules long after it has traced the function, when float64 is off again. The slopes are
    # therefore a separate function, which is also evaluated in float64. Products with tangents are float32.
    def slopes(angle: jax.Array, *parameters: jax.Array) -> tuple[jax.Array, ...]:
        every = (0, *(1 + j for j, x in enumerate(parameters) if has_slope(x)))
        return tuple(jax.tree.leaves(jax.jacrev(function, every)(angle, *parameters)))

    results = in_float64(function, *primals)
    each = iter(in_float64(slopes, *primals))
    moved = (tangents[0] + tangents[1], *(tangents[2][j] for j, x in enumerate(primals[2]) if has_slope(x)))
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
def computable_in_float64(log_density: LogDensity, parameters: tuple[tuple[tuple[int, ...], np.dtype], ...]) -> bool:
    """Return whether JAX can lower a log density in float64 in a float32 program.

    `parameters` holds the shape and dtype of each parameter.
    """

    def inside(angle: jax.Array, *parameters: jax.Array) -> jax.Array:
        return lax.convert_element_type(levels_at(log_density, parameters, angle, angle, True), np.float32)

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Explicitly requested dtype")
            given = (((1,), np.dtype(np.float32)), *parameters)
            jax.jit(inside).lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given))
    except Exception:  # the float32 program then either works or raises the user's error
        return False
    return True

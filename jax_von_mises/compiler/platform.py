"""Evaluate elementwise formulas that have one form on a CPU and another on a GPU.

A CPU is limited by chains of dependent operations, and a GPU by the number of operations and of constants
(`xla.hidden`). `lax.platform_dependent` would trace both forms wherever a program calls the formula, and again for each
derivative. Here, a `Formula` is one operation of a traced program. It is traced when the program is lowered, in the
form for that platform.
"""

import dataclasses
import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

GPUS = ("cuda", "rocm")


class Formula(Protocol):
    """An elementwise function of one array. Equal formulas must have equal hashes, so that programs are shared."""

    def on_cpu(self, x: jax.Array) -> jax.Array:
        """Return the value, in the form for all platforms except GPUs."""

    def on_gpu(self, x: jax.Array) -> jax.Array:
        """Return the value, in the form for GPUs."""

    def slope(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """Return the derivative at `x`, where the value is `y`."""


def evaluate(formula: Formula, x: jax.Array) -> jax.Array:
    """Return the value of a formula at a floating-point `x`, in its shape and dtype."""
    value: jax.Array = _formula.bind(x, formula=formula)
    return value


@dataclasses.dataclass(frozen=True)
class Stored:
    """The `Formula` of `stored`."""

    def on_cpu(self, x: jax.Array) -> jax.Array:
        """Return `x`."""
        return x

    def on_gpu(self, x: jax.Array) -> jax.Array:
        """Return `x` behind a barrier."""
        stored: jax.Array = lax.optimization_barrier(x)
        return stored

    def slope(self, y: jax.Array, _: jax.Array) -> jax.Array:
        """Return 1."""
        return jnp.ones_like(y)


def stored(x: jax.Array) -> jax.Array:
    """Return `x`; a GPU computes it once and stores it, if a kernel reads each element several times.

    Where each thread of a kernel computes one component of a vector, XLA would otherwise divide the program at some
    earlier point, where more arrays cross through memory.
    """
    return evaluate(Stored(), x)


# The class is `jax.extend.core.Primitive`, but importing that takes 35 ms, five times as long as this package.
_formula = type(lax.add_p)("formula")


@functools.partial(jax.jit, static_argnums=0)
def _jitted(formula: Formula, x: jax.Array) -> jax.Array:
    # Where JAX looks for the operation that made a NaN, `evaluate` would call itself without end.
    on_gpus = dict.fromkeys(GPUS, functools.partial(_on_gpu, formula=formula))
    value: jax.Array = lax.platform_dependent(x, default=functools.partial(_on_cpu, formula=formula), **on_gpus)
    return value


def _evaluate_now(x: jax.Array, *, formula: Formula) -> jax.Array:
    with jax.disable_jit(False):
        value: jax.Array = _jitted(formula, x)
        return value


_formula.def_impl(_evaluate_now)
# The type of a result includes how it is sharded, and over which axes of `jax.shard_map` it varies.
_formula.def_abstract_eval(lambda x, *, formula: x.update(weak_type=False))
batching.defvectorized(_formula)
ad.defjvp2(_formula, lambda tangent, y, x, *, formula: tangent * formula.slope(y, x))


def _on_cpu(x: jax.Array, *, formula: Formula) -> jax.Array:
    with _precision_of(x):
        return formula.on_cpu(x)


def _on_gpu(x: jax.Array, *, formula: Formula) -> jax.Array:
    with _precision_of(x):
        return formula.on_gpu(x)


def _precision_of(x: jax.Array) -> AbstractContextManager[None]:
    # The setting may have changed since the program was traced.
    wide = x.dtype.itemsize == 8
    if wide == jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return nullcontext()
    scope: AbstractContextManager[None] = jax.enable_x64(wide)
    return scope


mlir.register_lowering(_formula, mlir.lower_fun(_on_cpu, multiple_results=False))
for _platform in GPUS:
    mlir.register_lowering(_formula, mlir.lower_fun(_on_gpu, multiple_results=False), platform=_platform)

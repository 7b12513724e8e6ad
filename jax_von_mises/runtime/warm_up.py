"""Compile the sampler before the first request."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine import draws
from jax_von_mises.engine.request import Request, program
from jax_von_mises.von_mises import sampler


class Compiled(NamedTuple):
    """A program that `warmup` compiled, with the time of each stage, and the memory and operations that XLA reports."""

    shape: tuple[int, ...]
    dtype: str
    method: str
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    """Time to compile the program, or to read it from the compilation cache."""
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    """Memory that the program needs in addition to its arguments and its result."""
    flops: float | None
    """Operations per call, including the integer operations that generate the random words."""
    bytes_accessed: float | None

    def __str__(self) -> str:
        seconds = self.trace_seconds + self.lower_seconds + self.compile_seconds
        stages = f"trace {self.trace_seconds:.3f}, lower {self.lower_seconds:.3f}, compile {self.compile_seconds:.3f}"
        text = f"{self.dtype}{list(self.shape)} ({self.method}): {seconds:.3f} s ({stages})"
        if self.output_bytes is not None:
            text += f"; writes {self.output_bytes:,} bytes, needs {self.temporary_bytes:,} more temporarily"
        return text


def warmup(
    shapes: int | tuple[int, ...] | list[int | tuple[int, ...] | None] | None,
    dtypes: DTypeLike | Sequence[DTypeLike] | None = None,
    *,
    loc: ArrayLike | jax.ShapeDtypeStruct = 0.0,
    concentration: ArrayLike | jax.ShapeDtypeStruct = 1.0,
    key: ArrayLike | jax.ShapeDtypeStruct | None = None,
    method: str = "auto",
    out_sharding: NamedSharding | PartitionSpec | None = None,
    block: bool = False,
) -> tuple[Compiled, ...]:
    """Compile the sampler before it is needed, for each shape and dtype.

    A later call of the sampler with such arguments compiles nothing. No angles are drawn and no memory is allocated for
    them. With a compilation cache (`initialize_compilation_cache`), later processes use the programs too.

    Parameters
    ----------
    shapes : shape or list of shapes
        As `shape` of `sample_von_mises`: an integer, a tuple or None. A list holds several shapes.
    dtypes : dtype or list of dtypes, optional
        As `dtype` of `sample_von_mises`.
    loc, concentration : float, array or jax.ShapeDtypeStruct
        Arguments with the shape, dtype and weak type of later calls; their values do not matter.
    key : jax.Array, optional
        Any key with the implementation of later calls; by default, a key of JAX's default implementation.
    method, out_sharding
        As in `sample_von_mises`.
    block : bool
        Compile `sample_block` instead of `sample_von_mises`.

    Returns
    -------
    tuple of Compiled
        One program for each shape and dtype; all dtypes of the first shape come first.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; nothing was compiled.
    """
    caller = "warmup"
    block = arguments.flag(caller, "block", block)
    key = jax.random.key(0) if key is None else key
    # Trace with each `jax.ShapeDtypeStruct` itself, since it may have a sharding over several devices.
    given = {"loc": loc, "concentration": concentration}.items()
    described = {name: _narrowed(value) for name, value in given if isinstance(value, jax.ShapeDtypeStruct)}
    values = {name: _stand_in(described[name]) if name in described else value for name, value in given}
    shapes = shapes if isinstance(shapes, list) else [shapes]
    several: Sequence[Any] = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    sharding = arguments.sharding(caller, out_sharding)

    def request(shape: Any, dtype: DTypeLike | None) -> Request:
        found = Request.of(caller, sampler.VON_MISES, key, values, shape, dtype, method, by_size=not block)
        return (found.at(0) if block else found).sharded(caller, sharding)

    def traced(request: Request) -> jax.stages.Traced:
        """Return the program that a later call runs, traced with the described arguments."""
        parameters = tuple(map(described.get, request.family.parameters, request.parameters))
        run = program if block else draws.program_of(request)
        return run.trace(dataclasses.replace(request, parameters=parameters))

    # Check everything before anything is compiled.
    planned = [request(shape, dtype) for shape in shapes for dtype in several]
    return tuple(_compile(traced, each) for each in planned)


def _narrowed(value: Any) -> Any:
    """Return a `jax.ShapeDtypeStruct` with a dtype that JAX allows."""
    return value.update(dtype=np.float32) if arguments.too_wide(value.dtype) else value


def _stand_in(value: jax.ShapeDtypeStruct) -> Any:
    """Return an array of the same shape, dtype and weak type, of which one element is in memory if possible."""
    if value.weak_type:
        return jnp.broadcast_to(0.0, value.shape)
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _compile(trace: Callable[[Request], jax.stages.Traced], request: Request) -> Compiled:
    times = [time.perf_counter()]
    traced = trace(request)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    of_trace, of_lower, of_compile = np.diff(times).tolist()
    memory = compiled.memory_analysis()  # None where the backend does not report it
    costs = compiled.cost_analysis() or {}
    return Compiled(
        request.shape,
        request.dtype.name,
        request.route,
        of_trace,
        of_lower,
        of_compile,
        argument_bytes=getattr(memory, "argument_size_in_bytes", None),
        output_bytes=getattr(memory, "output_size_in_bytes", None),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
        flops=costs.get("flops"),
        bytes_accessed=costs.get("bytes accessed"),
    )

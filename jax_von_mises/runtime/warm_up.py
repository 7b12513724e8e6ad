"""Compile before the first request."""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.sampling import sampler
from jax_von_mises.sampling.request import DrawRequest


class Compiled(NamedTuple):
    """A program that `warmup` compiled, how long each stage took, and what the program needs."""

    shape: tuple[int, ...]
    dtype: str
    method: str
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    """XLA's work, or reading the program from the compilation cache."""
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    """Memory that the program needs besides its arguments and its result."""
    flops: float | None
    """Operations as XLA counts them, including those on the integers that make the words."""
    bytes_accessed: float | None

    def __str__(self) -> str:
        seconds = self.trace_seconds + self.lower_seconds + self.compile_seconds
        stages = f"trace {self.trace_seconds:.3f}, lower {self.lower_seconds:.3f}, compile {self.compile_seconds:.3f}"
        text = f"{self.dtype}{list(self.shape)} ({self.method}): {seconds:.3f} s ({stages})"
        if self.output_bytes is not None:
            text += f"; writes {self.output_bytes:,} bytes, needs {self.temporary_bytes:,} more on the way"
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

    A call of `sample_von_mises` with such arguments then compiles nothing. Nothing is drawn, and no memory is taken for
    angles. With a compilation cache (`initialize_compilation_cache`) the programs are kept for later processes too.

    Parameters
    ----------
    shapes : shape or list of shapes
        As `shape` of `sample_von_mises`: an integer, a tuple or None. A list is always one of several shapes.
    dtypes : dtype or list of dtypes, optional
        As `dtype` of `sample_von_mises`.
    loc, concentration : float, array or jax.ShapeDtypeStruct
        Like the arguments that will be given: of their shape, dtype and weak type; the values do not matter.
    key : jax.Array, optional
        Any key of the implementation that will be used; JAX's default one by default.
    method, out_sharding
        As in `sample_von_mises`.
    block : bool
        Compile for `sample_block`, in place of `sample_von_mises`.

    Returns
    -------
    tuple of Compiled
        For each shape, and for each dtype within it: seconds to trace, lower and compile, memory, flops.
    """
    caller = "warmup"
    block = arguments.flag(caller, "block", block)
    key = jax.random.key(0) if key is None else key
    given = loc, concentration = described(loc), described(concentration)
    loc, concentration = like(loc), like(concentration)
    shapes = shapes if isinstance(shapes, list) else [shapes]
    several: Sequence[Any] = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    sharding = arguments.sharding(caller, out_sharding)

    def request(shape, dtype):
        if block:
            return DrawRequest.part(caller, key, loc, concentration, shape, dtype, method).at(0, out_sharding=sharding)
        return DrawRequest.whole(caller, key, loc, concentration, shape, dtype, method, sharding)

    # Check everything before anything is compiled.
    planned = [request(shape, dtype) for shape in shapes for dtype in several]
    return tuple(_compile(request, *given) for request in planned)


def described(value):
    """Return an argument or its description, with the dtype that it will have in the program."""
    if isinstance(value, jax.ShapeDtypeStruct) and arguments.too_wide(value.dtype):
        return value.update(dtype=np.float32)
    return value


def like(value):
    """Return an argument of the shape, the dtype and the weak type of `value`, which may be a description."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    if value.weak_type:
        return jnp.broadcast_to(0.0, value.shape)
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)  # which takes no memory


def _compile(request, loc, concentration):
    # What is described and not given may lie on several devices, as its description says.
    given = {"loc": loc, "concentration": concentration}.items()
    described = {name: value for name, value in given if isinstance(value, jax.ShapeDtypeStruct)}
    times = [time.perf_counter()]
    traced = sampler.programs_for(request).new.trace(dataclasses.replace(request, **described), request.engine())
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    memory = compiled.memory_analysis()  # None if a backend does not report it
    costs = compiled.cost_analysis() or {}
    return Compiled(
        request.shape,
        request.dtype.name,
        request.route,
        *(float(second - first) for first, second in itertools.pairwise(times)),
        argument_bytes=getattr(memory, "argument_size_in_bytes", None),
        output_bytes=getattr(memory, "output_size_in_bytes", None),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
        flops=costs.get("flops"),
        bytes_accessed=costs.get("bytes accessed"),
    )

"""Sample Dask arrays of angles, whose chunks are drawn when and where they are needed.

A chunk is a box of the array. The position of an angle in the key's stream is its row-major index in the complete
array, so a chunk consists of runs of consecutive positions. One program draws them. A task needs only the key, the box
and its part of the parameters.

This module requires Dask: ``pip install "jax_von_mises[dask]"``.
"""

import contextlib
import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.request import Request, draw
from jax_von_mises.von_mises import sampler

try:
    # This absolute import finds the library, not this module.
    import dask.array as da
    from dask.base import tokenize
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "dask":
        raise
    raise ImportError(
        'jax_von_mises.dask needs Dask, which is not installed: pip install "jax_von_mises[dask]".'
    ) from error

__all__ = ["sample"]


def sample(
    key: jax.Array,
    loc: "ArrayLike | da.Array",
    concentration: "ArrayLike | da.Array",
    shape: int | tuple[int, ...] | None = None,
    dtype: DTypeLike | None = None,
    *,
    chunks: object = "auto",
    method: str = "auto",
) -> "da.Array":
    """Return a Dask array of von Mises angles, which are drawn chunk by chunk when they are computed.

    On devices of one kind, the angles are identical bit for bit to those of `sample_von_mises` with the same arguments
    and without CUDA kernels, for any chunks; in float64 with arrays of parameters, they may differ by 4.5e-16.

    Parameters
    ----------
    key, dtype, method
        As in `sample_von_mises`.
    loc, concentration : float, array or dask.array.Array
        As in `sample_von_mises`. Arrays are split into the chunks of the result.
    shape : int or tuple of ints, optional
        Shape of the complete array, which may exceed the memory; by default the broadcast shape of `loc` and
        `concentration`.
    chunks : int, tuple, dict or str
        As in Dask. "auto" uses Dask's setting ``array.chunk-size``.

    Returns
    -------
    dask.array.Array
        Angles in radians in [-pi, pi), with one task per chunk.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before anything is drawn.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import dask
    >>> angles = dask.sample(jax.random.key(0), 0.5, 4.0, (1_000_000, 1_000), chunks=(10_000, 1_000))
    >>> angles.shape, angles.dtype.name, angles.numblocks
    ((1000000, 1000), 'float32', (100, 1))
    >>> angles[123_456:123_458, 7].compute().shape
    (2,)
    """
    caller = "jax_von_mises.dask.sample"
    key = arguments.one_key(caller, key)
    given = {"loc": _as_array(caller, "loc", loc), "concentration": _as_array(caller, "concentration", concentration)}
    sizes: tuple[int, ...] = arguments.result_shape(caller, shape, {name: np.shape(x) for name, x in given.items()})
    # Choose the method for the complete array from sizes and dtypes alone, since parameters may exceed the memory too.
    route = arguments.method(caller, method, given["concentration"].shape)
    if route == "auto" and given["concentration"].size > 1:
        route = "direct"
    few = {name: np.zeros((), value.dtype) if value.ndim else value for name, value in given.items()}
    # Python numbers and weakly typed JAX arrays have no fixed dtype, so a number stands for them in the request.
    numbers = {"loc": loc, "concentration": concentration}
    few |= {name: 0.0 for name, value in numbers.items() if type(value) in (int, float) or is_weak_array(value)}
    request = Request.of(caller, sampler.VON_MISES, key, few, sizes, dtype, route)
    cuts: tuple[tuple[int, ...], ...] = da.core.normalize_chunks(chunks, sizes, dtype=request.dtype)
    compute = arguments.compute_dtype(request.dtype)
    drawing = Drawing(
        str(jax.random.key_impl(key)),
        np.asarray(jax.random.key_data(key)).tobytes(),
        sizes,
        request.dtype.name,
        request.route,
    )
    parameters = [_chunked(value, compute, sizes, cuts) for value in given.values()]
    empty = np.empty((0,) * len(sizes), request.dtype)
    name = f"von-mises-{tokenize(drawing, cuts, *(getattr(each, 'name', each) for each in parameters))}"
    return da.map_blocks(drawing, *parameters, chunks=cuts, dtype=request.dtype, meta=empty, name=name)


def is_weak_array(value: Any) -> bool:
    """Return whether `value` is a weakly typed JAX array, which takes the dtype of the other arguments."""
    return isinstance(value, jax.Array) and bool(value.weak_type)


def _as_array(caller: str, name: str, value: Any) -> Any:
    """Return a parameter as a NumPy array; return a Dask array unchanged."""
    if isinstance(value, da.Array):
        arguments.parameter(caller, name, np.zeros((), value.dtype))
        if any(map(math.isnan, value.shape)):  # as after indexing with a boolean array
            raise ValueError(
                f"{caller}: {name} has chunks of unknown size (its shape is {value.shape}). "
                f"Call {name}.compute_chunk_sizes() first."
            )
        return value
    checked = arguments.parameter(caller, name, value)
    return np.asarray(checked)


def _chunked(value: Any, compute: np.dtype, shape: tuple[int, ...], chunks: tuple[tuple[int, ...], ...]) -> Any:
    """Return a parameter in chunks that match those of the result, or as a number."""
    if not value.ndim and not isinstance(value, da.Array):
        return float(value)
    ours = chunks[len(shape) - value.ndim :]
    ours = tuple(sizes if size > 1 else (size,) for size, sizes in zip(value.shape, ours, strict=True))
    return da.rechunk(da.asarray(value), ours).astype(compute)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Function that draws the chunks of one array."""

    implementation: str
    """Name of the key's implementation."""
    key: bytes
    shape: tuple[int, ...]
    """Shape of the complete array."""
    dtype: str
    route: str

    def __call__(self, loc: Any, concentration: Any, block_info: Any = None) -> np.ndarray:
        """Return the chunk whose place in the array Dask describes."""
        dtype = np.dtype(jax.numpy.dtype(self.dtype))
        ends = block_info[None]["array-location"] if self.shape else []
        start, size = tuple(first for first, _ in ends), tuple(end - first for first, end in ends)
        if 0 in size:
            return np.empty(size, dtype)
        # A run extends over the last cut axis and all axes after it.
        cut = max((axis for axis in range(len(size)) if size[axis] < self.shape[axis]), default=0)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(size))]
        first: Any = np.array(sum(i * stride for i, stride in zip(start, strides, strict=True)), np.uint64)
        for axis in range(cut):
            first = first[..., None] + np.arange(size[axis], dtype=np.uint64) * np.uint64(strides[axis])
        first, length = first.reshape(-1), math.prod(size[cut:])
        compute = arguments.compute_dtype(dtype)
        spread = [np.asarray(each, compute) for each in (loc, concentration)]
        spread = [np.broadcast_to(x, size).reshape(len(first), length) if x.size > 1 else x.reshape(()) for x in spread]
        halves = (first >> np.uint64(32)).astype(np.uint32), first.astype(np.uint32)
        with jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext():
            words = np.frombuffer(self.key, np.uint32)
            key = jax.random.wrap_key_data(words, impl=self.implementation)  # type: ignore[arg-type]
            return np.asarray(_runs(key, *spread, *halves, length, dtype, self.route)).reshape(size)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _runs(
    key: jax.Array,
    loc: jax.Array,
    concentration: jax.Array,
    high: jax.Array,
    low: jax.Array,
    length: int,
    dtype: np.dtype,
    route: str,
) -> jax.Array:
    """Return runs of `length` angles from several positions of a stream."""

    def run(loc: jax.Array, concentration: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
        request = Request(sampler.VON_MISES, key, (loc, concentration), (high, low), (length,), dtype, route)
        return draw(request)

    along = 0 if loc.ndim else None, 0 if concentration.ndim else None
    if len(high) == 1:
        loc, concentration = (x[0] if x.ndim else x for x in (loc, concentration))
        return run(loc, concentration, high[0], low[0])
    return jax.vmap(run, (*along, 0, 0))(loc, concentration, high, low)

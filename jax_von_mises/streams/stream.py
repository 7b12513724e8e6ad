"""Represent streams of rows, and locate each row in a key's sequence of words.

A **stream** is the sequence of rows of one key, `loc`, `concentration`, dtype, method and distribution. A row has one
angle, direction or pair for each element of the broadcast parameters (one if they are numbers or single vectors). With
n of them in a row, element j of row i has the position i n + j in the stream. Only the key and the 64-bit position
determine its words. Batches, devices, processes and restarts can therefore divide the rows of one stream among
themselves, and the result does not depend on the division.
"""

import base64
import contextlib
import dataclasses
import functools
import math
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine import counter
from jax_von_mises.engine.base import Distribution
from jax_von_mises.engine.request import Request, by_family, draw, family_named
from jax_von_mises.von_mises.sampler import VON_MISES

# Stands in the identity of each file and store. A change of the words or the angles of any stream raises the number.
FORMAT = "jax_von_mises stream 3"

# Parameter arrays of up to this many values are written out in an identity; longer ones are encoded.
WRITTEN_OUT = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One stream of rows, created by `Stream.of`, which checks its arguments."""

    row: Request
    """The request for the first row."""

    @classmethod
    def of(
        cls,
        caller: str,
        key: ArrayLike,
        loc: ArrayLike | None,
        concentration: ArrayLike | None,
        dtype: DTypeLike | None,
        method: str,
        distribution: Distribution | None = None,
    ) -> "Stream":
        """Return the stream of these arguments, which are those of `sample_batches`."""
        if distribution is None:
            family, values = VON_MISES, {"loc": loc, "concentration": concentration}
        elif isinstance(distribution, Distribution):
            if loc is not None or concentration is not None:
                raise TypeError(
                    f"{caller}: give the parameters once, as `loc` and `concentration` or in the distribution "
                    f"{arguments.safe_repr(distribution)}."
                )
            family, values = distribution._drawn_by()
            dtype = distribution.dtype if dtype is None else dtype
        else:
            raise TypeError(
                f"{caller}: distribution={arguments.safe_repr(distribution)} must be a distribution of this package, "
                "such as VonMisesFisher(mean_direction, concentration), or None for angles by `loc` and "
                "`concentration`."
            )
        return cls(Request.of(caller, family, key, values, None, dtype, method, by_size=False))

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return *self.row.shape, *self.row.event_shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the numbers."""
        return self.row.dtype

    @property
    def width(self) -> int:
        """Number of values in a row: of angles, or of the components of directions."""
        return math.prod(self.row_shape)

    def within(self, caller: str, start: int, end: int, described: str) -> None:
        """Raise ValueError if rows `start` to ``end - 1``, as `described` in the message, pass the stream's end."""
        self.row.within_stream(caller, start, end * max(math.prod(self.row.shape), 1), described)

    def rows(
        self, first: int, count: int, buffer: jax.Array | None = None, out_sharding: NamedSharding | None = None
    ) -> jax.Array:
        """Return rows `first` to ``first + count - 1`` as an array ``(count, *row_shape)``, in the memory of `buffer`.

        Without a `buffer`, the array is new. A float64 stream is computed in 64 bits even in a background thread, which
        starts in JAX's default mode.
        """
        # Transfer the position explicitly, since users may forbid implicit transfers.
        start = jax.device_put(counter.halves(first * math.prod(self.row.shape)))
        request = self.row.at(start, shape=(count, *self.row.shape), out_sharding=out_sharding)
        with jax.enable_x64(True) if self.dtype == np.float64 else contextlib.nullcontext():
            drawn: jax.Array = draw(request) if buffer is None else draw_into(buffer, request)
            return drawn

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the numbers, as JSON types; equal streams have equal identities."""
        return {
            "distribution": self.row.family.name,
            "key": {
                "impl": str(jax.random.key_impl(self.row.key)),
                "data": np.asarray(jax.random.key_data(self.row.key)).tolist(),
            },
            "parameters": {
                name: as_json(value, self.dtype)
                for name, value in zip(self.row.family.parameters, self.row.parameters, strict=True)
            },
            "dtype": self.dtype.name,
            "method": self.row.route,
        }

    @classmethod
    def from_identity(cls, caller: str, identity: dict[str, Any]) -> "Stream":
        """Return the stream with this `identity`, in any process."""
        dtype, key = identity["dtype"], identity["key"]
        with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
            words = jax.numpy.asarray(np.array(key["data"], np.uint32))
            typed = jax.random.wrap_key_data(words, impl=key["impl"])
            values = {name: from_json(value, dtype) for name, value in identity["parameters"].items()}
            family, method = family_named(identity["distribution"]), identity["method"]
            return cls(Request.of(caller, family, typed, values, None, dtype, method, by_size=False))


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def draw_into(buffer: jax.Array, request: Request) -> jax.Array:
    """Draw a request in the memory of `buffer`, which has the shape and dtype of the result, and is deleted."""
    return by_family(request)


def as_json(value: ArrayLike, dtype: np.dtype) -> str | dict[str, Any]:
    """Return a parameter, rounded as in the computation: a number as text, an array as its shape and values.

    Values that are too large become infinite, as in the computation.
    """
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(np.asarray(value), arguments.compute_dtype(dtype)) + 0  # + 0: no negative zero
    if np.ndim(value) == 0:
        return str(float(array.reshape(())))
    if array.size <= WRITTEN_OUT:
        return {"shape": list(array.shape), "values": [str(float(x)) for x in array.flat]}
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"shape": list(array.shape), "zlib": base64.b64encode(zlib.compress(little.tobytes())).decode()}


def from_json(found: str | dict[str, Any], dtype: str) -> np.ndarray:
    """Return the parameter that `as_json` has written."""
    compute = arguments.compute_dtype(jax.numpy.dtype(dtype))
    if isinstance(found, str):
        return np.array(float(found), compute)
    if "values" in found:
        return np.array(list(map(float, found["values"])), compute).reshape(found["shape"])
    stored = np.frombuffer(zlib.decompress(base64.b64decode(found["zlib"])), compute.newbyteorder("<"))
    return stored.astype(compute).reshape(found["shape"])


def split_evenly(count: int, parts: int, part: int) -> range:
    """Return part `part` of `count` tasks, divided into `parts` ranges whose lengths differ by at most one."""
    return range(part * count // parts, (part + 1) * count // parts)


class Spans:
    """First position and length of each batch of `size` in [start, stop); the last may be shorter.

    The spans are computed on demand, since there may be billions.
    """

    def __init__(self, start: int, stop: int, size: int):
        self.firsts, self.stop = range(start, stop, size), stop

    def __len__(self) -> int:
        return len(self.firsts)

    def __getitem__(self, index: int) -> tuple[int, int]:
        first = self.firsts[index]
        return first, min(self.firsts.step, self.stop - first)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(self.__getitem__, range(len(self)))

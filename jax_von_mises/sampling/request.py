"""Hold the checked arguments of a draw in one object, and choose its route."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from jax_von_mises import arguments
from jax_von_mises.sampling import counter

# Smallest number of draws for which a table (2048 quantiles, or 16384 in float64) saves more time than it costs,
# measured on a two-core CPU by ``python -m benchmarks.performance_benchmark``.
QUANTILE_TABLE_MIN_SIZE = {"float32": 2**14, "float64": 2**15}


class Request:
    """A draw of angles, directions or pairs, with its route, its position in the stream and its sharding.

    Each subclass is a dataclass, whose fields hold the arguments that `part` has checked.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # lets `dataclasses.replace` accept subclasses
    distribution: ClassVar[str]
    """Name in `sampler.FAMILIES`."""
    noun: ClassVar[str] = "angle"
    """Name of one draw in messages."""
    key: jax.Array
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    route: str

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw, whose axes follow those of `shape`."""
        return ()

    @property
    def numbers(self) -> int:
        """How many numbers of the stream one draw uses."""
        return 1

    @classmethod
    def whole(
        cls,
        caller: str,
        key: object,
        location: object,
        concentration: object,
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        out_sharding: object = None,
    ) -> Self:
        """Return a checked request for a draw from position 0.

        Method "auto" uses the table for one concentration and many draws.
        """
        sharding = arguments.sharding(caller, out_sharding)
        request = cls.part(caller, key, location, concentration, shape, dtype, method)
        return request.routed_by_size(method).sharded(caller, sharding)

    @classmethod
    def part(
        cls,
        caller: str,
        key: object,
        location: object,
        concentration: object,
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        /,
    ) -> Self:
        """Return a checked request from position 0, with a route that does not depend on its size."""
        raise NotImplementedError

    def routed_by_size(self, method: str) -> Self:
        """Return the request, with the direct route if `method` is "auto" and the draws are too few for a table."""
        few = math.prod(self.shape) < QUANTILE_TABLE_MIN_SIZE[arguments.compute_dtype(self.dtype).name]
        return dataclasses.replace(self, route="direct") if method == "auto" and few else self

    def sharded(self, caller: str, out_sharding: NamedSharding | None) -> Self:
        """Return the request with the sharding of its result; raise ValueError if it shards components of a draw."""
        if out_sharding is None:
            return self
        if self.event_shape and any(out_sharding.spec[len(self.shape) :]):
            raise ValueError(
                f"{caller}: out_sharding={arguments.safe_repr(out_sharding.spec)} shards the components of a "
                f"{self.noun}. Shard only the axes of the batch, of shape {self.shape}."
            )
        return dataclasses.replace(self, out_sharding=out_sharding)

    def at(self, start: Any, **changed: Any) -> Self:
        """Return the request moved to position `start`, with the fields in `changed` replaced.

        `start` is an integer, traced or not, or a pair (hi, lo) of uint32.
        """
        return dataclasses.replace(self, start=counter.halves(start), **changed)

    def block(self, caller: str, start: Any) -> Self:
        """Return the request moved to the checked position `start`; raise ValueError if it passes the stream's end."""
        if (first := arguments.known_position(start)) is not None:
            self.within_stream(caller, first, first + math.prod(self.shape), f"shape={self.shape}")
        return self.at(start)

    def within_stream(self, caller: str, start: int, end: int, described: str) -> None:
        """Raise ValueError if draws `start` to ``end - 1``, as `described` in the message, pass the stream's end."""
        arguments.within_stream(caller, start, end, described, self.numbers, self.noun)


def route_of(caller: str, method: str, concentration: jax.Array | jax.ShapeDtypeStruct) -> str:
    """Return the route of a part of a stream: for "auto", the table for one concentration, whatever the part's size."""
    route = arguments.method(caller, method, concentration)
    if route == "auto":
        route = "table" if concentration.size == 1 else "direct"
    return route


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "loc", "concentration", "start"),
    meta_fields=("shape", "dtype", "route", "out_sharding"),
)
@dataclasses.dataclass(frozen=True)
class DrawRequest(Request):
    """A draw of angles for `sampler.draw`, as a pytree in which all fields except arrays are static."""

    distribution: ClassVar[str] = "von-mises"
    key: jax.Array
    """One typed key."""
    loc: jax.Array
    concentration: jax.Array
    """Like `loc`, an array that `arguments.parameters` returned."""
    start: counter.Wide | None
    """Position of the first angle in the key's stream, a pair (hi, lo) of uint32; None for 0."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    route: str
    """ "direct" or "table"."""
    out_sharding: NamedSharding | None = None

    @classmethod
    def part(
        cls,
        caller: str,
        key: object,
        loc: object,
        concentration: object,
        shape: object,
        dtype: DTypeLike | None,
        method: str,
        /,
    ) -> Self:
        """Return a checked request from position 0, with a route that does not depend on its size."""
        checked_key = arguments.one_key(caller, key)
        arrays, of_result = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        sizes = arguments.result_shape(caller, shape, **arrays)
        route = route_of(caller, method, arrays["concentration"])
        return cls(checked_key, arrays["loc"], arrays["concentration"], None, sizes, of_result, route)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {"loc": self.loc, "concentration": self.concentration}

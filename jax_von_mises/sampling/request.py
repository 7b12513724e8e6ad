"""A draw as one object: checked arguments, and the route and engine chosen from them."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.sampling import counter, cuda

# From this many elements on the table (2048 quantiles, or 16384 in float64, and a few more kernels) pays off: where the
# two routes cross on a two-core CPU, ``python -m benchmarks.performance_benchmark``.
QUANTILE_TABLE_MIN_SIZE = {"float32": 2**14, "float64": 2**15}


class Request:
    """What requests for angles, directions and pairs have in common: their route, their place and their sharding.

    Subclasses check their parameters in `part`, and have a field for each plain argument.
    """

    distribution: ClassVar[str]
    """The name in `sampler.FAMILIES`."""
    event_shape: tuple[int, ...] = ()
    """Shape of one draw, behind the axes of `shape`."""
    numbers = 1
    """Numbers of the stream that one draw takes."""
    noun = "angle"
    """What one draw is called."""

    @classmethod
    def whole(
        cls: Any,
        caller: str,
        key: ArrayLike | jax.ShapeDtypeStruct,
        location: Any,
        concentration: Any,
        shape: object,
        dtype: Any,
        method: str,
        out_sharding: object = None,
    ) -> Any:
        """Check a draw from position 0; method "auto" takes the table for one concentration and many draws."""
        sharding = arguments.sharding(caller, out_sharding)
        request = cls.part(caller, key, location, concentration, shape, dtype, method)
        return request.routed_by_size(method).sharded(caller, sharding)

    def routed_by_size(self: Any, method: str) -> Any:
        """Return the same without a table where method "auto" asks for too few draws to pay for it."""
        few = math.prod(self.shape) < QUANTILE_TABLE_MIN_SIZE[arguments.compute_dtype(self.dtype).name]
        return dataclasses.replace(self, route="direct") if method == "auto" and few else self

    def sharded(self: Any, caller: str, out_sharding: Any) -> Any:
        """Return the same with a result that is shared out so over devices."""
        if self.event_shape and out_sharding is not None and any(out_sharding.spec[len(self.shape) :]):
            raise ValueError(
                f"{caller}: out_sharding={arguments.safe_repr(out_sharding.spec)} shares out the components of a "
                f"{self.noun}. Name axes of the batch alone, of shape {self.shape}."
            )
        return dataclasses.replace(self, out_sharding=out_sharding)

    def at(self: Any, start: Any, **changed: Any) -> Any:
        """Return the same from position `start` (an integer, traced or not, or a pair), with `changed` fields."""
        return dataclasses.replace(self, start=counter.halves(start), **changed)

    def block(self: Any, caller: str, start: Any) -> Any:
        """Return the same from `start`, which `caller` has checked, if it ends within the stream."""
        if (first := arguments.known_position(start)) is not None:
            self.within_stream(caller, first, first + math.prod(self.shape), f"shape={self.shape}")
        return self.at(start)

    def within_stream(self, caller: str, start: int, end: int, described: str) -> None:
        """Refuse draws from position `start` to `end`, as `described`, that go on where the stream has ended."""
        arguments.within_stream(caller, start, end, described, self.numbers, self.noun)


def route_of(caller: str, method: str, concentration: jax.Array) -> str:
    """Return what a part of a stream is drawn by, "direct" or "table"; "auto" decides alike for parts of every size."""
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
    """What `sampler.draw` draws. Made by `whole` or `part`, which check; a pytree with everything else static."""

    distribution: ClassVar[str] = "von-mises"
    key: jax.Array
    """One typed key."""
    loc: jax.Array
    concentration: jax.Array
    """Both as `arguments.parameters` returns them, arrays."""
    start: tuple | None
    """Position of the first angle in the key's stream, a pair (hi, lo) of uint32; None for 0."""
    shape: tuple[int, ...]
    dtype: np.dtype
    route: str
    """ "direct" or "table"."""
    out_sharding: object = None

    @classmethod
    def part(
        cls,
        caller: str,
        key: ArrayLike | jax.ShapeDtypeStruct,
        loc: Any,
        concentration: Any,
        shape: object,
        dtype: Any,
        method: str,
    ) -> "DrawRequest":
        """Check a draw from anywhere in a stream."""
        key = arguments.one_key(caller, key)
        arrays, dtype = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        shape = arguments.result_shape(caller, shape, **arrays)
        route = route_of(caller, method, arrays["concentration"])
        return cls(key, arrays["loc"], arrays["concentration"], None, shape, dtype, route)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {"loc": self.loc, "concentration": self.concentration}

    def engine(self) -> str:
        """Return what draws it on a CUDA device: "kernel", one of the package's own, or "xla"."""
        return "kernel" if cuda.use_cuda_kernel(self) else "xla"

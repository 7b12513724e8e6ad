"""A draw as one object: checked arguments, and the route and engine chosen from them."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.sampling import counter, cuda

# From this many elements on the table (2048 quantiles, or 16384 in float64, and a few more kernels) pays off: where the
# two routes cross on a two-core CPU, ``python -m benchmarks.performance_benchmark``.
QUANTILE_TABLE_MIN_SIZE = {"float32": 2**14, "float64": 2**15}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "loc", "concentration", "start"),
    meta_fields=("shape", "dtype", "route", "out_sharding"),
)
@dataclasses.dataclass(frozen=True)
class DrawRequest:
    """What `sampler.draw` draws. Made by `whole` or `part`, which check; a pytree with everything else static."""

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
    def whole(
        cls,
        caller: str,
        key: ArrayLike | jax.ShapeDtypeStruct,
        loc: Any,
        concentration: Any,
        shape: object,
        dtype: Any,
        method: str,
        out_sharding: object = None,
    ) -> "DrawRequest":
        """Check a draw from position 0; method "auto" takes the table for one concentration and many angles."""
        out_sharding = arguments.sharding(caller, out_sharding)
        request = cls.part(caller, key, loc, concentration, shape, dtype, method)
        few = math.prod(request.shape) < QUANTILE_TABLE_MIN_SIZE[arguments.compute_dtype(request.dtype).name]
        route = "direct" if method == "auto" and few else request.route
        return dataclasses.replace(request, route=route, out_sharding=out_sharding)

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
        """Check a draw from anywhere in a stream; method "auto" decides alike for parts of every size."""
        key = arguments.one_key(caller, key)
        arrays, dtype = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        shape = arguments.result_shape(caller, shape, **arrays)
        route = arguments.method(caller, method, arrays["concentration"])
        if route == "auto":
            route = "table" if arrays["concentration"].size == 1 else "direct"
        return cls(key, arrays["loc"], arrays["concentration"], None, shape, dtype, route)

    def at(self, start: Any, **changed: Any) -> "DrawRequest":
        """Return the request from position `start` (an integer, traced or not, or a pair), with `changed` fields."""
        return dataclasses.replace(self, start=counter.halves(start), **changed)

    def engine(self) -> str:
        """Return what draws it on a CUDA device: "kernel", one of the package's own, or "xla"."""
        return "kernel" if cuda.use_cuda_kernel(self) else "xla"

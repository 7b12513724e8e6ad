"""One draw, decided: checked arguments, and what is chosen from them once and by name, the route and the engine."""

import dataclasses
import functools
import math

import jax
import numpy as np

from jax_von_mises import arguments
from jax_von_mises.sampling import counter, cuda

# From this many elements on the table pays for being made (2048 quantiles, or 16384 in float64, and a few more
# kernels): where the two routes cross on a two-core CPU, ``python -m benchmarks.performance_benchmark``.
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
    loc: object
    concentration: object
    """Both as `arguments.parameters` returns them: an array, or a Python float."""
    start: tuple | None
    """Position of the first angle in the key's stream, a pair (hi, lo) of uint32; None for 0."""
    shape: tuple[int, ...]
    dtype: np.dtype
    route: str
    """ "direct" or "table"."""
    out_sharding: object = None

    @classmethod
    def whole(cls, caller, key, loc, concentration, shape, dtype, method, out_sharding=None):
        """Check a draw from position 0; method "auto" takes the table for one concentration and many angles."""
        out_sharding = arguments.sharding(caller, out_sharding)
        return cls._checked(
            caller, key, loc, concentration, shape, dtype, method, QUANTILE_TABLE_MIN_SIZE, out_sharding
        )

    @classmethod
    def part(cls, caller, key, loc, concentration, shape, dtype, method):
        """Check a draw from anywhere in a stream; method "auto" decides alike for parts of every size."""
        return cls._checked(caller, key, loc, concentration, shape, dtype, method, {})

    @classmethod
    def _checked(cls, caller, key, loc, concentration, shape, dtype, method, least, out_sharding=None):
        key = arguments.one_key(caller, key)
        arrays, dtype = arguments.parameters(caller, dtype, loc=loc, concentration=concentration)
        shape = arguments.result_shape(caller, shape, **arrays)
        method = arguments.method(caller, method, arrays["concentration"])
        if method == "auto":
            many = math.prod(shape) >= least.get(arguments.compute_dtype(dtype).name, 0)
            method = "table" if many and arrays["concentration"].size == 1 else "direct"
        return cls(key, arrays["loc"], arrays["concentration"], None, shape, dtype, method, out_sharding)

    def at(self, start, **changed):
        """The same from position `start`, an integer, a traced one or a pair, with other fields `changed` as well."""
        return dataclasses.replace(self, start=counter.halves(start), **changed)

    def engine(self):
        """What draws it on a CUDA device: "kernel", one of the package's own, or "xla"."""
        return "kernel" if cuda.use_cuda_kernel(self) else "xla"

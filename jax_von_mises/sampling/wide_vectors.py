"""Decide whether XLA:CPU compiles a draw with 512-bit vectors; its default is 256 bits.

With 512 bits, a float32 draw by the table takes a fifth less time and returns the same bits. Other draws keep 256 bits,
since their last digits would differ. In the direct route, XLA approximates `rsqrt` differently for 16 floats than for
8. In float64, XLA fuses some products and sums in only one of the two programs.

JAX accepts the option only for the outermost program. A user's program that contains a draw must therefore set it, with
``jax.jit(..., compiler_options=wide_vectors.OPTIONS)`` or ``configure(vector_width=512)``.
"""

import functools
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from jax_von_mises import environment

if TYPE_CHECKING:
    from jax_von_mises.sampling.request import DrawRequest

__all__ = ["FLAG", "OPTIONS", "supported", "use_wide_vectors"]

FLAG = "xla_cpu_prefer_vector_width"
OPTIONS = {FLAG: 512}
# For smaller draws the checks below take longer than the wide vectors save.
SMALLEST = 2**17


def use_wide_vectors(request: "DrawRequest") -> bool:
    """Return whether to draw a request with wide vectors.

    The draw must be large and not sharded, wide vectors must not change its bits, the CPU and XLA must support them,
    and JAX must not be tracing.
    """
    same_bits = request.route == "table" and request.dtype != np.float64
    if not same_bits or request.out_sharding is not None or math.prod(request.shape) < SMALLEST:
        return False
    # Inside another program the result of an operation without arguments is a tracer.
    arrays = [*jax.tree.leaves(request), lax.iota(np.uint32, 1)]
    return not any(isinstance(x, jax.core.Tracer) for x in arrays) and on_cpu(arrays) and supported()


def on_cpu(arrays: Iterable[Any]) -> bool:
    """Return whether all JAX arrays among `arrays` are on a CPU."""
    return all(d.platform == "cpu" for x in arrays if isinstance(x, jax.Array) for d in x.devices())


@functools.cache
def supported() -> bool:
    """Return whether the CPU has 512-bit vectors, XLA has the option, and ``XLA_FLAGS`` does not set a width."""
    if FLAG in os.environ.get("XLA_FLAGS", "") or "avx512f" not in environment.processor("flags").split():
        return False
    try:
        jax.jit(lambda: np.float32(0), compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:  # this release of XLA does not have the option
        return False
    return True

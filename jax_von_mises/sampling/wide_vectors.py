"""Decide whether a draw is compiled with vectors of 512 bits, which XLA:CPU makes only where it is asked for them.

A draw by the table then takes a fifth less time, and has the same bits. Two others would get other last digits, and
keep 256 bits: an array of concentrations, since XLA's `rsqrt` is another approximation for 16 floats than for 8; and
float64, some of whose products and sums are contracted in one program and not in the other.

The option belongs to a call, and JAX takes it for the outermost program alone: inside a program of the user's, it is
that program's to choose, by ``jax.jit(..., compiler_options=wide_vectors.OPTIONS)`` or ``configure(vector_width=512)``.
"""

import functools
import math
import os

import jax
import numpy as np
from jax import lax

from jax_von_mises import environment

__all__ = ["FLAG", "OPTIONS", "supported", "use_wide_vectors"]

FLAG = "xla_cpu_prefer_vector_width"
OPTIONS = {FLAG: 512}
# Smaller draws gain less than it takes to find out whether they may.
SMALLEST = 2**17


def use_wide_vectors(request):
    """Whether a `DrawRequest` is drawn so: where the bits stay, on such a CPU, and outside of other programs."""
    same_bits = request.route == "table" and request.dtype != np.float64
    if not same_bits or request.out_sharding is not None or math.prod(request.shape) < SMALLEST:
        return False
    # JAX traces without saying so: whether a program is being made shows in what an operation without arguments is.
    arrays = [*jax.tree.leaves(request), lax.iota(np.uint32, 1)]
    return not any(isinstance(x, jax.core.Tracer) for x in arrays) and on_cpu(arrays) and supported()


def on_cpu(arrays):
    """Whether all of the arrays that JAX holds are on a CPU."""
    return all(d.platform == "cpu" for x in arrays if isinstance(x, jax.Array) for d in x.devices())


@functools.cache
def supported():
    """Whether the processor has such vectors, XLA has the option, and the process was not started with a width."""
    if FLAG in os.environ.get("XLA_FLAGS", "") or "avx512f" not in environment.processor("flags").split():
        return False
    try:
        jax.jit(lambda: np.float32(0), compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:  # a release of XLA without it
        return False
    return True

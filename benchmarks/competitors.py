"""Make competitors from functions, and say why a library cannot compete."""

import contextlib

import numpy as np

from benchmarks.timing import Competitor

__all__ = ["SEED", "Unavailable", "cycling", "of_arrays", "of_keys", "precision"]

SEED = 20261127
# Calls cycle through this many arrays.
ARRAYS = 4


class Unavailable(Exception):
    """A library cannot run here or does not support the work; the message gives the reason."""


def precision(dtype):
    """Return a context in which JAX supports `dtype`."""
    import jax

    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def of_keys(function, *parameters, implementation="threefry2x32", jit=True):
    """Return a competitor that calls the compiled ``function(key, *parameters)`` with a new key each time."""
    import jax

    try:
        key = jax.random.key(SEED, impl=implementation)
    except ValueError as error:
        raise Unavailable(f"this JAX has no {implementation}") from error
    call = jax.jit(function) if jit else function
    # A compiled program gets its parameters as arguments, since it could compute with constants beforehand.
    parameters = tuple(jax.block_until_ready(jax.numpy.asarray(value)) for value in parameters)
    fresh = lambda i: jax.block_until_ready(jax.random.fold_in(key, i))  # noqa: E731
    return Competitor(lambda key: call(key, *parameters), fresh, jax.block_until_ready)


def cycling(make, give=np.asarray):
    """Return a function that cycles through the arrays ``give(make(generator))``, made in advance."""
    arrays = [give(make(np.random.default_rng((SEED, i)))) for i in range(ARRAYS)]
    return lambda i: arrays[i % ARRAYS]


def of_arrays(function, make, dtype, *parameters):
    """Return a competitor that calls the compiled ``function(x, *parameters)``; ``make(generator)`` returns an x."""
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(function)
    parameters = tuple(jax.block_until_ready(jnp.asarray(value, dtype)) for value in parameters)
    fresh = cycling(make, lambda x: jax.block_until_ready(jnp.asarray(x, dtype)))
    return Competitor(lambda x: compiled(x, *parameters), fresh, jax.block_until_ready)

"""Compute the standard normal quantile."""

import math

import jax
import jax.numpy as jnp

from jax_von_mises.numerics.elementary import LN_2, log2, polynomial, square_root

# Standard normal quantile of M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2010. It uses powers of
# w - 2.5 near the centre and of sqrt(w) - 3 in the tails, with w = -log(4 t (1 - t)).
GILES_CENTRE = (
    *(1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087),
    *(-4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08),
)
GILES_TAIL = (
    *(2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773),
    *(-0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257),
)


def quantile(t: jax.Array, half_minus_t: jax.Array, negative: jax.Array) -> jax.Array:
    """Return the standard normal quantile of a one-sided tail `t`, to 1e-6 (float32) or 1e-14 (float64)."""
    if t.dtype == jnp.float64:
        z = -jax.scipy.special.ndtri(t)
    else:
        w = (-LN_2) * log2(t * (4 - 4 * t))
        low = polynomial(GILES_CENTRE, w - 2.5)
        high = polynomial(GILES_TAIL, square_root(jnp.maximum(w, 1)) - 3)
        z = (2 * math.sqrt(2)) * half_minus_t * jnp.where(w < 5, low, high)
    return jnp.where(negative, -z, z)

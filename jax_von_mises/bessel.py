"""The normaliser of the von Mises law and the ratio of its Bessel functions, without cancellation.

With kappa the concentration, ``N(kappa) = 2 pi e^-kappa I0(kappa)`` and ``1 - A(kappa)`` for
``A = I1 / I0``. The textbook difference ``1 - I1 / I0`` keeps no digit in float32 from kappa = 1e7 on.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax_von_mises import tables
from jax_von_mises.elementary import polynomial

# Below, power series in kappa; above, in 1 / kappa. The fits of `tables` hold on these sides only.
SWITCH = 5.0
# Below, float64 takes the difference, which loses two digits at most; above, fifteen asymptotic terms reach 1e-16.
SWITCH64 = 30.0
TERMS64 = 15


def norm(kappa, inverse):
    """``n`` and ``s`` with N(kappa) = n e^-s; `inverse` is 1 / kappa. Relative error 2e-7 (float32), 1e-15.

    The exponential is left to the caller, who has another one to fold it into.
    """
    if kappa.dtype == jnp.float64:
        return 2 * np.pi * special.i0e(kappa), jnp.zeros_like(kappa)
    small = kappa < SWITCH
    k = jnp.minimum(kappa, SWITCH)
    r = jnp.minimum(inverse, 1 / SWITCH)
    n = jnp.where(
        small, 2 * np.pi * polynomial(tables.I0_SMALL, k * k / 4), polynomial(tables.NORM_LARGE, r) * lax.sqrt(r)
    )
    return n, jnp.where(small, kappa, 0)


def ratio_complement(kappa, inverse):
    """1 - I1(kappa) / I0(kappa); `inverse` is 1 / kappa. Relative error 1e-6 (float32, next to 5), 2e-14 (float64)."""
    if kappa.dtype == jnp.float64:
        return ratio_complement64(kappa)
    k = jnp.minimum(kappa, SWITCH)
    r = jnp.minimum(inverse, 1 / SWITCH)
    z = k * k / 4
    small = 1 - 0.5 * k * polynomial(tables.RATIO_SMALL, z) * (1 / polynomial(tables.I0_SMALL, z))
    return jnp.where(kappa < SWITCH, small, r * polynomial(tables.COMPLEMENT_LARGE, r))


def ratio_complement64(kappa):
    """1 - I1(kappa) / I0(kappa) in float64: the difference below `SWITCH64`, an asymptotic series above."""
    i0, i1 = special.i0e(kappa), special.i1e(kappa)
    # DLMF 10.40.1 for both functions, subtracted term by term.
    far = jnp.maximum(kappa, SWITCH64)
    term0 = term1 = total = jnp.ones_like(kappa)
    difference = jnp.zeros_like(kappa)
    for j in range(1, TERMS64):
        term0 = term0 * ((2 * j - 1) ** 2 / (8 * j)) / far
        term1 = term1 * (((2 * j - 1) ** 2 - 4) / (8 * j)) / far
        total, difference = total + term0, difference + (term0 - term1)
    return jnp.where(kappa < SWITCH64, (i0 - i1) / i0, difference / total)

"""Bessel functions of the von Mises distribution without cancellation: the normaliser, A = I1 / I0 and its inverse.

With kappa the concentration, ``N(kappa) = 2 pi e^-kappa I0(kappa)`` normalises the density, A is the mean of cos x, and
``C = 1 - A`` that of 1 - cos x, which is kept apart: the textbook difference holds no digit in float32 from kappa = 1e7
on. The derivatives are ``(log I0)' = A`` and ``A' = 1 - A / kappa - A^2``, the variance of cos x.

In float32 polynomials fitted by `tools/make_tables.py`, in float64 sums of a quadrature.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax_von_mises.numerics import coefficients
from jax_von_mises.numerics.elementary import polynomial

# Below, power series in kappa; above, in 1 / kappa. The fits of `coefficients` hold on these sides only.
SWITCH = 5.0
# In float64 the logarithm of I0 and the ratio A vanish with kappa; below these they come from functions that do.
LOG_SWITCH64 = 8.0
RATIO_SWITCH64 = 1.0
# I0 - 1 over kappa^2 / 4, in that variable; to 1e-18 up to `LOG_SWITCH64`.
I0_SERIES64 = tuple(1 / float(np.prod(np.arange(1.0, j + 1))) ** 2 for j in range(1, 32))
# Beyond, 1 / (2 kappa) is C to the last digit.
LARGEST_KAPPA = 1e30


def norm(kappa, inverse):
    """Return ``n`` and ``s`` with N(kappa) = n e^-s; `inverse` is 1 / kappa. Relative error 2e-7 (float32), 1e-15.

    The exponential is left to the caller, who has another one to fold it into.
    """
    if kappa.dtype == jnp.float64:
        return 2 * np.pi * special.i0e(kappa), jnp.zeros_like(kappa)
    small, z, r = fit_variables(kappa, inverse)
    n = jnp.where(
        small, 2 * np.pi * polynomial(coefficients.I0_SMALL, z), polynomial(coefficients.NORM_LARGE, r) * lax.sqrt(r)
    )
    return n, jnp.where(small, kappa, 0)


def fit_variables(kappa, inverse):
    """Return which side of `SWITCH`, and the two variables kappa^2 / 4 and 1 / kappa, each within its fits."""
    k = jnp.minimum(kappa, SWITCH)
    return kappa < SWITCH, k * k / 4, jnp.minimum(inverse, 1 / SWITCH)


def ratio_complement(kappa, inverse):
    """Return C(kappa) = 1 - I1(kappa) / I0(kappa); `inverse` = 1 / kappa. Relative error 3e-7 (float32), 2e-15."""
    if kappa.dtype == jnp.float64:
        return rise_moments(kappa)[0]
    small, z, r = fit_variables(kappa, inverse)
    difference = polynomial(coefficients.I_DIFFERENCE, jnp.minimum(kappa, SWITCH) - SWITCH / 2)
    near = difference * (1 / polynomial(coefficients.I0_SMALL, z))
    return jnp.where(small, near, r * polynomial(coefficients.COMPLEMENT_LARGE, r))


def rise_moments(kappa):
    """Return the mean and variance of 1 - cos x, sums of positive terms: to a few units in the last place."""
    mean, variance, unit = scaled_rise_moments(kappa)
    return mean * unit, (variance * unit) * unit


def scaled_rise_moments(kappa):
    """Return `rise_moments` in units of 1 / max(kappa, 1), which prevents underflow of squares; and that unit.

    32 exponentials each, so nothing that a sample waits for uses it, except in float64.
    """
    k = jnp.minimum(kappa, LARGEST_KAPPA)[..., None]
    # As in `tail_integral`: half angles up to where the density has fallen by e^-depth. The mean does not depend on
    # the end.
    last = (1,) * kappa.ndim + (-1,)
    nodes, weights = (
        np.reshape(np.array(a, kappa.dtype), last) for a in (coefficients.MOMENT_NODES, coefficients.MOMENT_WEIGHTS)
    )
    scale = jnp.maximum(k, 1)
    cut = (0.5 * coefficients.MOMENT_DEPTH) / lax.stop_gradient(scale)
    rise = 2 * jnp.square(jnp.sin(jnp.arcsin(jnp.sqrt(jnp.minimum(cut, 1))) * nodes))
    weight = jnp.exp(-k * rise) * weights
    total = jnp.sum(weight, -1, keepdims=True)
    rise = scale * rise
    mean = jnp.sum(weight * rise, -1, keepdims=True) / total
    variance = jnp.sum(weight * jnp.square(rise - mean), -1, keepdims=True) / total
    # Not a division by the inverse: XLA would multiply by the square of `LARGEST_KAPPA`.
    unit = (1 / scale[..., 0]) * (LARGEST_KAPPA / jnp.maximum(kappa, LARGEST_KAPPA))
    return mean[..., 0], variance[..., 0], unit


def scaled_slope(kappa):
    """Return A'(kappa) max(kappa, 1)^2, which is 1/2 at infinity."""
    return scaled_rise_moments(kappa)[1]


@jax.custom_jvp
def log_i0(kappa):
    """Return log I0(kappa), to a relative error of 4e-7 (float32) or 2e-15 (float64) for kappa in [0, inf]."""
    if kappa.dtype == jnp.float64:
        k = jnp.minimum(kappa, LOG_SWITCH64)
        z = k * k / 4
        near = jnp.log1p(z * polynomial(I0_SERIES64, z))
        far = jnp.maximum(kappa, LOG_SWITCH64)
        return jnp.where(kappa < LOG_SWITCH64, near, far + jnp.log(special.i0e(jnp.minimum(far, LARGEST_KAPPA**8))))
    small, z, r = fit_variables(kappa, 1 / jnp.maximum(kappa, SWITCH))
    near = jnp.log1p(z * polynomial(coefficients.I0_SMALL[1:], z))
    root = 0.5 * jnp.log(jnp.maximum(kappa, SWITCH))
    far = kappa + (jnp.log(polynomial(coefficients.NORM_LARGE, r) * (0.5 / np.pi)) - root)
    return jnp.where(small, near, jnp.where(kappa == jnp.inf, jnp.inf, far))


@log_i0.defjvp
def _log_i0_jvp(primals, tangents):
    return log_i0(*primals), ratio(*primals) * tangents[0]


@jax.custom_jvp
def ratio(kappa):
    """Return A(kappa) = I1(kappa) / I0(kappa) with relative error 3e-7 (float32) or 1e-15; 0 at 0, 1 at infinity."""
    if kappa.dtype == jnp.float64:
        k = jnp.minimum(kappa, RATIO_SWITCH64)
        return jnp.where(kappa < RATIO_SWITCH64, special.i1e(k) / special.i0e(k), 1 - ratio_complement(kappa, None))
    small, z, _ = fit_variables(kappa, 0)
    near = (
        (0.5 * jnp.minimum(kappa, SWITCH))
        * polynomial(coefficients.RATIO_SMALL, z)
        / polynomial(coefficients.I0_SMALL, z)
    )
    return jnp.where(small, near, 1 - one_minus_ratio(kappa))


@ratio.defjvp
def _ratio_jvp(primals, tangents):
    return ratio(*primals), slope(*primals) * tangents[0]


@jax.custom_jvp
def one_minus_ratio(kappa):
    """Return 1 - A(kappa), to the relative error of `ratio_complement`; 1 at 0 and 0 at infinity."""
    return jnp.minimum(ratio_complement(kappa, 1 / jnp.maximum(kappa, SWITCH)), 1)


@one_minus_ratio.defjvp
def _complement_jvp(primals, tangents):
    return one_minus_ratio(*primals), -slope(*primals) * tangents[0]


def slope(kappa):
    """Return A'(kappa), to a relative error of 4e-7 (float32) or 2e-15; 1/2 at 0 and 0 at infinity."""
    return rise_moments(kappa)[1]


def rough_slope(kappa):
    """Return `slope` to 1e-4 in float32, without its 32 exponentials: enough for Newton's method."""
    if kappa.dtype == jnp.float64:
        return slope(kappa)
    a = ratio(kappa)
    near = jnp.maximum(kappa, 1e-3)
    small, _, r = fit_variables(kappa, 1 / near)
    # d/dr of r P(r), where 1 - A is that, and dr/dkappa = -r^2.
    derivative = tuple((j + 1) * c for j, c in enumerate(coefficients.COMPLEMENT_LARGE))
    return jnp.where(small, jnp.where(kappa < 1e-3, 0.5, 1 - a / near - a * a), r * (r * polynomial(derivative, r)))


@jax.custom_jvp
def inverse_ratio(resultant, rest):
    """Return the concentration with A(kappa) = `resultant`, whose complement to 1 is `rest`, in [0, inf].

    Both are given, so that neither end loses digits. To a relative error of 6e-7 (float32) or 4e-15 (float64).
    """
    r, c = resultant, rest
    # Banerjee et al., J. Mach. Learn. Res. 6, 2005, equation 4.4, on the circle: within 4 %, and exact at both ends.
    kappa = r * (1 + c * (1 + r)) / jnp.maximum(c * (1 + r), jnp.finfo(c.dtype).tiny)
    start = kappa
    for _ in range(4 if c.dtype == jnp.float64 else 3):
        # Newton's method on the side that keeps its digits.
        error = jnp.where(r < 0.5, ratio(kappa) - r, c - one_minus_ratio(kappa))
        kappa = kappa - error / rough_slope(kappa)
    # So far out the start is right to rounding, and the slope may be no float.
    kappa = jnp.where(c < jnp.finfo(c.dtype).eps ** 1.5, start, kappa)
    return jnp.where(c <= 0, jnp.inf, jnp.maximum(kappa, 0))


@inverse_ratio.defjvp
def _inverse_ratio_jvp(primals, tangents):
    kappa = inverse_ratio(*primals)
    # `rest` is 1 - `resultant`: its tangent, where there is one, keeps the digits at the far end.
    movement = jnp.where(primals[0] < 0.5, tangents[0], -tangents[1])
    return kappa, movement / slope(kappa)

"""Compute the normaliser of the von Mises distribution, A = I1 / I0 and its inverse without cancellation.

At the concentration kappa, ``N(kappa) = 2 pi e^-kappa I0(kappa)`` normalises the density, A is the mean of cos x, and
``C = 1 - A`` is the mean of 1 - cos x. C is computed directly, since the float32 difference 1 - A has no correct digit
above kappa = 1e7. The derivatives are ``(log I0)' = A`` and ``A' = 1 - A / kappa - A^2``, the variance of cos x.

N, A and C come from polynomials, most of them fitted by `tools/make_tables.py`. A' comes from a quadrature rule, and
log I0 at large float64 concentrations from `jax.scipy.special`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from jax_von_mises.numerics import coefficients
from jax_von_mises.numerics.elementary import LOG2_E, exp2, polynomial, with_slopes

# The fits of N, A and C use kappa (or kappa^2 / 4) below this concentration, and 1 / kappa above it.
SWITCH = 5.0
# log I0 and A are 0 at kappa = 0. Below these concentrations, float64 uses expressions that keep relative accuracy.
SWITCH64 = 8.0
RATIO_SWITCH64 = 1.0
# Power series of (I0 - 1) / z in z = kappa^2 / 4, with a truncation error below 1e-33 up to `SWITCH64`.
I0_SERIES64 = tuple(1 / float(np.prod(np.arange(1.0, j + 1))) ** 2 for j in range(1, 32))
# I0 in z up to `SWITCH64`, and 2 I1 / kappa in z up to `RATIO_SWITCH64`, both exact to rounding.
I0_64 = (1.0, *I0_SERIES64[:21])
I1_64 = tuple(c / (j + 1) for j, c in enumerate(I0_64[:10]))
# Above this concentration, C is 1 / (2 kappa) to rounding.
LARGEST_KAPPA = 1e30


def norm(kappa: jax.Array, inverse: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return n and s with N(kappa) = n e^-s; `inverse` is 1 / kappa.

    The relative error is 2e-7 (float32) or 1e-15 (float64). Callers merge e^-s into another exponential.
    """
    if kappa.dtype == jnp.float64:
        small, k, r = wide_variables(kappa, inverse)
        near = 2 * np.pi * polynomial(I0_64, k * k / 4)
        far = polynomial(coefficients.NORM_LARGE64, r - 0.5 / SWITCH64) * lax.sqrt(r)
        return jnp.where(small, near, far), jnp.where(small, kappa, 0)
    small, z, r = fit_variables(kappa, inverse)
    n = jnp.where(
        small, 2 * np.pi * polynomial(coefficients.I0_SMALL, z), polynomial(coefficients.NORM_LARGE, r) * lax.sqrt(r)
    )
    return n, jnp.where(small, kappa, 0)


def fit_variables(kappa: jax.Array, inverse: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return whether `kappa` is below `SWITCH`, then kappa^2 / 4 and 1 / kappa clipped to the ranges of their fits."""
    k = jnp.minimum(kappa, SWITCH)
    return kappa < SWITCH, k * k / 4, jnp.minimum(inverse, 1 / SWITCH)


def wide_variables(kappa: jax.Array, inverse: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return whether `kappa` is below `SWITCH64`, then kappa and 1 / kappa clipped to the float64 fits."""
    return kappa < SWITCH64, jnp.minimum(kappa, SWITCH64), jnp.minimum(inverse, 1 / SWITCH64)


def ratio_complement(kappa: jax.Array, inverse: ArrayLike) -> jax.Array:
    """Return C(kappa) = 1 - I1(kappa) / I0(kappa); `inverse` is 1 / kappa.

    The relative error is 3e-7 (float32) or 2e-15 (float64).
    """
    if kappa.dtype == jnp.float64:
        small, k, r = wide_variables(kappa, inverse)
        difference = polynomial(coefficients.I_DIFFERENCE64, k - SWITCH64 / 2) * exp2((0.5 * LOG2_E) * k)
        far = r * polynomial(coefficients.COMPLEMENT_LARGE64, r - 0.5 / SWITCH64)
        return jnp.where(small, difference / polynomial(I0_64, k * k / 4), far)
    small, z, r = fit_variables(kappa, inverse)
    difference = polynomial(coefficients.I_DIFFERENCE, jnp.minimum(kappa, SWITCH) - SWITCH / 2)
    near = difference * (1 / polynomial(coefficients.I0_SMALL, z))
    return jnp.where(small, near, r * polynomial(coefficients.COMPLEMENT_LARGE, r))


def scaled_rise_variance(kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the variance of (1 - cos x) / unit, which does not underflow, to a few ulp, and unit = 1 / max(kappa, 1).

    Each element takes 32 exponentials, so the float32 samplers do not use this function.
    """
    k = jnp.minimum(kappa, LARGEST_KAPPA)[..., None]
    # Integrate over the half angle, as in `tail_integral`, up to where the density is e^-depth of its maximum. To
    # working precision, the result does not depend on this upper limit, which therefore needs no derivative.
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
    # Do not divide by the inverse of the second factor: XLA would turn that into a product with the square of
    # `LARGEST_KAPPA`, which overflows in float32.
    unit = (1 / scale[..., 0]) * (LARGEST_KAPPA / jnp.maximum(kappa, LARGEST_KAPPA))
    return variance[..., 0], unit


def scaled_slope(kappa: jax.Array) -> jax.Array:
    """Return A'(kappa) max(kappa, 1)^2, which is 1/2 at infinity."""
    return scaled_rise_variance(kappa)[0]


@with_slopes(lambda y, kappa: slope(kappa))
def ratio(kappa: jax.Array) -> jax.Array:
    """Return A(kappa) = I1(kappa) / I0(kappa), which is 0 at 0 and 1 at infinity.

    The relative error is 3e-7 (float32) or 1e-15 (float64).
    """
    if kappa.dtype == jnp.float64:
        k = jnp.minimum(kappa, RATIO_SWITCH64)
        near = 0.5 * k * polynomial(I1_64, k * k / 4) / polynomial(I0_64, k * k / 4)
        return jnp.where(kappa < RATIO_SWITCH64, near, 1 - one_minus_ratio(kappa))
    small, z, _ = fit_variables(kappa, 0)
    near = (
        (0.5 * jnp.minimum(kappa, SWITCH))
        * polynomial(coefficients.RATIO_SMALL, z)
        / polynomial(coefficients.I0_SMALL, z)
    )
    return jnp.where(small, near, 1 - one_minus_ratio(kappa))


@with_slopes(lambda y, kappa: ratio(kappa))
def log_i0(kappa: jax.Array) -> jax.Array:
    """Return log I0(kappa) for kappa in [0, inf], with a relative error of 4e-7 (float32) or 2e-15 (float64)."""
    if kappa.dtype == jnp.float64:
        k = jnp.minimum(kappa, SWITCH64)
        z = k * k / 4
        near = jnp.log1p(z * polynomial(I0_SERIES64, z))
        far = jnp.maximum(kappa, SWITCH64)
        return jnp.where(kappa < SWITCH64, near, far + jnp.log(special.i0e(jnp.minimum(far, LARGEST_KAPPA**8))))
    small, z, r = fit_variables(kappa, 1 / jnp.maximum(kappa, SWITCH))
    near = jnp.log1p(z * polynomial(coefficients.I0_SMALL[1:], z))
    root = 0.5 * jnp.log(jnp.maximum(kappa, SWITCH))
    far = kappa + (jnp.log(polynomial(coefficients.NORM_LARGE, r) * (0.5 / np.pi)) - root)
    return jnp.where(small, near, jnp.where(kappa == jnp.inf, jnp.inf, far))


@with_slopes(lambda y, kappa: -slope(kappa))
def one_minus_ratio(kappa: jax.Array) -> jax.Array:
    """Return 1 - A(kappa), with the relative error of `ratio_complement`; 1 at 0 and 0 at infinity."""
    return jnp.minimum(ratio_complement(kappa, 1 / jnp.maximum(kappa, SWITCH)), 1)


def slope(kappa: jax.Array) -> jax.Array:
    """Return A'(kappa), with a relative error of 4e-7 (float32) or 2e-15 (float64); 1/2 at 0 and 0 at infinity."""
    variance, unit = scaled_rise_variance(kappa)
    return (variance * unit) * unit


def rough_slope(kappa: jax.Array) -> jax.Array:
    """Return `slope` without its 32 exponentials, with a relative error of 1e-4 in float32, for Newton's method."""
    if kappa.dtype == jnp.float64:
        return slope(kappa)
    a = ratio(kappa)
    near = jnp.maximum(kappa, 1e-3)
    small, _, r = fit_variables(kappa, 1 / near)
    # The fit is 1 - A = r P(r) with r = 1 / kappa, so A' = r^2 d(r P) / dr.
    derivative = tuple((j + 1) * c for j, c in enumerate(coefficients.COMPLEMENT_LARGE))
    return jnp.where(small, jnp.where(kappa < 1e-3, 0.5, 1 - a / near - a * a), r * (r * polynomial(derivative, r)))


@jax.custom_jvp
def inverse_ratio(resultant: jax.Array, rest: jax.Array) -> jax.Array:
    """Return the concentration in [0, inf] with A(kappa) = `resultant`; `rest` is 1 - `resultant`.

    Both arguments are needed to keep all digits near 0 and near 1. The relative error is 6e-7 (float32) or 4e-15
    (float64).
    """
    r, c = resultant, rest
    # Start from equation 4.4 of Banerjee et al., J. Mach. Learn. Res. 6, 2005, for the circle. Its relative error is
    # below 7%, and vanishes as r tends to 0 or 1.
    kappa = r * (1 + c * (1 + r)) / jnp.maximum(c * (1 + r), np.finfo(c.dtype).tiny)
    start = kappa
    for _ in range(4 if c.dtype == jnp.float64 else 3):
        # Use Newton's method for A or for 1 - A, whichever keeps its digits.
        error = jnp.where(r < 0.5, ratio(kappa) - r, c - one_minus_ratio(kappa))
        kappa = kappa - error / rough_slope(kappa)
    # Where `rest` is below eps^1.5, the starting value is exact to rounding, but the slope may underflow.
    kappa = jnp.where(c < np.finfo(c.dtype).eps ** 1.5, start, kappa)
    return jnp.where(c <= 0, jnp.inf, jnp.maximum(kappa, 0))


@inverse_ratio.defjvp
def _inverse_ratio_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    kappa = inverse_ratio(*primals)
    # At large concentrations, only the tangent of `rest` keeps its digits.
    movement = jnp.where(primals[0] < 0.5, tangents[0], -tangents[1])
    return kappa, movement / slope(kappa)

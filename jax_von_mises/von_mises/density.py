r"""Compute the density of the von Mises distribution and its logarithm without cancellation.

For an angle x measured from `loc`, the concentration :math:`\kappa` and :math:`N = 2\pi e^{-\kappa} I_0(\kappa)`,

.. math:: p(x) = e^{-q(x)} / N, \qquad q(x) = 2\kappa\sin^2(x/2).

With a single float32 product, the absolute error of q would be 1e-6 near q = 20 and 8 near q = 1e8, so q is computed as
a sum of two numbers.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import coefficients
from jax_von_mises.numerics.circle import HALF_PI, half_pi_rest
from jax_von_mises.numerics.elementary import (
    cosine,
    exp_product,
    log_parts,
    polynomial,
    product_parts,
    sine_over,
    sine_square,
    wide_sine_square,
    with_slopes,
)
from jax_von_mises.von_mises import bessel

# Below this concentration, the distribution is uniform up to rounding.
KAPPA_MIN = 1e-30


class HalfAngle(NamedTuple):
    """Functions of an angle x in [0, pi] that the formulas share."""

    angle: jax.Array  # x / 2
    to_pole: jax.Array  # pi / 2 - x / 2
    square: jax.Array  # sin(x / 2)^2
    rest: jax.Array  # cos(x / 2)^2
    parts: tuple[jax.Array, jax.Array, jax.Array]  # three summands of `square`, largest first, with twice the digits
    sin: jax.Array  # sin x
    cos: jax.Array  # cos x

    @classmethod
    def of(cls, x: jax.Array, exact: bool = True) -> Self:
        """Return the functions of `x`, computed from pi - x beyond a right angle so that nothing cancels near pi.

        The error of `parts` is 5e-9. Without `exact`, it is 2e-8, which is enough for the tails that samples reach.
        """
        angle = 0.5 * x
        away, missing = xla.round_here(HALF_PI - angle, 2), half_pi_rest(x.dtype)
        to_pole = away + missing
        upper = angle > 0.5 * HALF_PI
        psi = jnp.where(upper, to_pole, angle)
        square = psi * psi
        sin = 2 * (psi * sine_over(square)) * cosine(square)
        first, rest = sine_square(jnp.where(upper, away, angle) if exact else psi, exact)
        if exact:
            # `away` is exact, but `to_pole` is rounded, so the effect of `missing` is added to the small part.
            rest = rest + jnp.where(upper, missing * sin, 0)
        sine2 = first + rest
        parts = jnp.where(upper, 1, 0), jnp.where(upper, -first, first), jnp.where(upper, -rest, rest)
        return cls(
            angle,
            to_pole,
            square=jnp.where(upper, 1 - sine2, sine2),
            rest=jnp.where(upper, sine2, 1 - sine2),
            parts=parts,
            sin=sin,
            cos=jnp.where(upper, 2 * sine2 - 1, 1 - 2 * sine2),
        )


def density_root(half: HalfAngle, kappa: jax.Array, inverse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return h and n with p = h^2 / n at the angles `half`, so that nothing underflows before p does."""
    n, shift = bessel.norm(kappa, inverse)
    exponent = kappa * half.square - 0.5 * shift
    root = 1 / exp_product(0.5 * kappa, half.parts, 0.5 * shift)
    return jnp.where(exponent > LARGEST_EXPONENT[np.dtype(kappa.dtype).name], 0, root), n


# Up to this x, e^x is finite. Beyond it, the square of e^-x is 0.
LARGEST_EXPONENT = {"float32": 88.0, "float64": 708.0}


def rescaled(x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return an angle in [0, pi] and a concentration with the same q, and the factor by which the angle was multiplied.

    Angles are scaled only where x^2 may underflow; there the distribution is normal up to rounding. The factors are
    powers of two, so q keeps all its digits.
    """
    factor, k = scaling(jnp.clip(kappa, KAPPA_MIN, float(np.finfo(kappa.dtype).max)))
    return jnp.minimum(x * factor, np.pi), k, factor


def scaling(kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the power of two by which to multiply small angles, and `kappa` divided by the square of that factor."""
    name = np.dtype(kappa.dtype).name
    huge = kappa > HUGE[name]
    return jnp.where(huge, FACTOR[name], 1).astype(kappa.dtype), kappa * jnp.where(huge, FACTOR[name] ** -2, 1)


HUGE = {"float32": 2.0**94, "float64": 2.0**700}
FACTOR = {"float32": 2.0**17, "float64": 2.0**300}


@with_slopes(lambda p, x, kappa: tuple(p * slope for slope in score(x, kappa)))
def density(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the density p at angles in [-pi, pi]; a density below the smallest normal float becomes 0.

    The relative error is at most 4e-6 (float32) or 1e-12 (float64).
    """
    moved, k, factor = rescaled(jnp.abs(x), kappa)
    root, n = density_root(HalfAngle.of(moved), k, 1 / k)
    # `scale_by` turns a NaN with a payload, such as R's NA, into a number. Multiplying the angle by 0 keeps NaN.
    found = jnp.where(jnp.isnan(moved + k), jnp.nan, ((root * factor) / n) * root)
    return jnp.where(kappa == jnp.inf, jnp.where(x == 0, jnp.inf, 0 * moved), found)


def nearby_density(x: jax.Array, kappa: jax.Array, lost: jax.Array, lost_kappa: jax.Array) -> jax.Array:
    """Return `density` at x + lost and kappa + lost_kappa, which differ from x and kappa by rounding."""
    along, across = lax.stop_gradient(score(x, kappa))
    change = along * lost + across * lost_kappa
    return density(x, kappa) * (1 + jnp.where(jnp.isfinite(change), change, 0))


def score(x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of log p with respect to x and kappa, -kappa sin x and cos x - A(kappa)."""
    sign = jnp.where(x < 0, -1, 1).astype(x.dtype)
    half = HalfAngle.of(sign * x)
    return -kappa * (sign * half.sin), bessel.one_minus_ratio(kappa) - 2 * half.square


def nearby_log_density(x: jax.Array, kappa: jax.Array, lost: jax.Array) -> jax.Array:
    """Return `log_density` at x + lost, which differs from x by rounding; the change has no derivatives."""
    half = 0.5 * x
    sine = x * sine_over(half * half) * cosine(half * half)  # of x, faster than `jnp.sin`
    change = lax.stop_gradient(-kappa * sine * lost)
    return log_density(x, kappa) + jnp.where(jnp.isfinite(change), change, 0)


@with_slopes(lambda y, x, kappa: score(x, kappa))
def log_density(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return log p at angles in [-pi, pi]; the error is 4e-7 (float32) or 1e-14 (float64) times max(1, |log p|).

    In float64, it may reach 1e-16 log kappa, from terms that cancel where |log p| is much smaller than log kappa.
    One formula serves all angles, because cancellation near pi is too small to affect the logarithm.
    """
    factor, k = scaling(kappa)
    if x.dtype == jnp.float64:
        half = 0.5 * x
        sine = factor * (half * sine_over(half * half))
        value = -2 * k * (sine * sine) - log_norm(kappa)
    else:
        exact, rest = product_parts(k, (0, *wide_sine_square(0.5 * x, factor)))
        norm_exact, norm_rest = log_norm_parts(kappa)
        value = -((exact + norm_exact) + (rest + norm_rest))
    return jnp.where(kappa == jnp.inf, jnp.where(x == 0, jnp.inf, -jnp.inf * jnp.abs(x)), value)


def log_norm_parts(kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return float32 log N(kappa) as a sum of two numbers, the first of which is exact."""
    small, z, r = bessel.fit_variables(kappa, 1 / jnp.maximum(kappa, bessel.SWITCH))
    exact, rest = log_parts(jnp.clip(kappa, bessel.SWITCH, np.finfo(kappa.dtype).max))
    # Products with 1/2 are exact. The logarithm of the fit is below 1 and has an error of 1e-7.
    far = -0.5 * rest + jnp.log(polynomial(coefficients.NORM_LARGE, r))
    near = jnp.log(2 * np.pi * jnp.exp(-jnp.minimum(kappa, bessel.SWITCH)) * polynomial(coefficients.I0_SMALL, z))
    return jnp.where(small, 0, -0.5 * exact), jnp.where(small, near, far)


@with_slopes(lambda y, kappa: -bessel.one_minus_ratio(kappa))
def log_norm(kappa: jax.Array) -> jax.Array:
    """Return log N(kappa) = -log p(0), where N = 2 pi e^-kappa I0(kappa); -inf at infinity."""
    if kappa.dtype == jnp.float64:
        # At huge concentrations, N is proportional to kappa^-1/2, and the inverse may underflow.
        factor, k = scaling(kappa)
        n, shift = bessel.norm(k, 1 / k)
        return jnp.log(n) - jnp.log(factor) - shift
    exact, rest = log_norm_parts(kappa)
    return jnp.where(kappa == jnp.inf, -jnp.inf, exact + rest)


@with_slopes(lambda y, kappa, other: (-bessel.one_minus_ratio(kappa), bessel.one_minus_ratio(other)))
def log_norm_ratio(kappa: jax.Array, other: jax.Array) -> jax.Array:
    """Return log(N(kappa) / N(other)), in float32 without the rounding errors of two large logarithms."""
    if kappa.dtype == jnp.float64:
        return log_norm(kappa) - log_norm(other)
    (exact, rest), (other_exact, other_rest) = log_norm_parts(kappa), log_norm_parts(other)
    return (exact - other_exact) + (rest - other_rest)

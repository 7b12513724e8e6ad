r"""Compute the mean and the normaliser of the von Mises-Fisher distribution, in the notation of `fits`.

With :math:`h = (1 - s^2)^2 Q / (n + 1)`, the mean A of the cosine and its derivative are

.. math:: A = s (1 - h), \quad 1 - A = (1 - s) + s h, \quad A' = h (1 + s^2 - s^2 h).

These formulas have no cancellation at any concentration, and need no Bessel function, continued fraction or separate
cases.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.numerics.elementary import with_slopes
from jax_von_mises.sphere import fits
from jax_von_mises.sphere.radial import KAPPA_MAX, chebyshev_series

# Above this concentration, the bias is proportional to the concentration to 1e-6. Derivatives could overflow.
LARGE = 1e6


def mode_cosine_by_division(kappa: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Compute `radial.mode_cosine` with divisions; JAX 0.12 takes minutes to compile that function for small arrays."""
    root = lax.sqrt(n * n + 4 * kappa * kappa)
    inverse = 1 / (n + root)
    return (2 * kappa) * inverse, (n * inverse) * (1 + n * (1 / (root + 2 * kappa)))


def shrinkage(kappa: jax.Array, dimension: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return s, 1 - s and h, for `kappa` up to `KAPPA_MAX`."""
    n = dimension - 1
    s, rest = mode_cosine_by_division(kappa, n)
    gap = rest * (1 + s)
    series = chebyshev_series(fits.fits(n, kappa.dtype.name).below, 2 * s * s - 1)
    return s, rest, gap * gap * series * (1 / dimension)


def mean_cosine(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return A, with full relative accuracy."""
    s, _, h = shrinkage(jnp.minimum(kappa, KAPPA_MAX), dimension)
    return with_slope(s * (1 - h), kappa, dimension)


def versine_mean(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return 1 - A, with full relative accuracy; 0 at infinity."""
    limit = jnp.minimum(kappa, KAPPA_MAX)
    s, rest, h = shrinkage(limit, dimension)
    return -with_slope(-(rest + s * h) * beyond(kappa), kappa, dimension)


def beyond(kappa: jax.Array) -> jax.Array:
    """Return the scale of 1 - w, which is 1 up to `KAPPA_MAX` and proportional to 1 / kappa above it."""
    return jnp.minimum(KAPPA_MAX / jnp.maximum(kappa, 1), 1)


@with_slopes(lambda y, value, kappa, slope: (None, slope, None))
def _with_slope(value: jax.Array, kappa: jax.Array, slope: jax.Array) -> jax.Array:
    return value


def with_slope(value: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    """Return `value` with the derivative A' with respect to `kappa`."""
    return _with_slope(lax.stop_gradient(value), kappa, cosine_variance(kappa, dimension))


def cosine_variance(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return A', the variance of the cosine, with full relative accuracy; 0 at infinity."""
    s, _, h = shrinkage(jnp.minimum(kappa, KAPPA_MAX), dimension)
    scale = beyond(kappa)
    return h * (1 + s * s * (1 - h)) * scale * scale


def scaled_cosine_variance(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return A' max(kappa, 1)^2, which is n / 2 at infinity."""
    finite = jnp.minimum(kappa, KAPPA_MAX)
    return cosine_variance(finite, dimension) * jnp.square(jnp.maximum(finite, 1))


def weighted_variance(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return kappa A', the derivative of the divergence from the uniform distribution."""
    k = jnp.minimum(kappa, KAPPA_MAX)
    return k * cosine_variance(k, dimension) * beyond(kappa)


def log_norm(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return the logarithm of the integral of exp(kappa (w - 1)) over the sphere; -inf at infinity."""
    return _log_norm(kappa, versine_mean(kappa, dimension), dimension)


def _log_norm(kappa: jax.Array, slope: jax.Array, dimension: int) -> jax.Array:
    n = dimension - 1
    fit = fits.fits(n, kappa.dtype.name)
    limit = jnp.minimum(kappa, KAPPA_MAX)
    s, rest = mode_cosine_by_division(limit, n)
    gap = jnp.where(s < 0.5, jnp.log1p(-s * s), jnp.log(rest * (1 + s)))
    series = chebyshev_series(fit.log_peak, 2 * s * s - 1)
    value = fit.log_area + ((n / 2) * gap - n * (s / (1 + s)) - (0.5 * jnp.log1p(s * s) + series))
    value = value + jnp.where(kappa > KAPPA_MAX, (n / 2) * jnp.log(beyond(kappa)), 0)
    return _with_slope(lax.stop_gradient(value), kappa, -slope)


def scaled_versine_mean(kappa: jax.Array, dimension: int) -> jax.Array:
    """Return kappa (1 - A), which is n / 2 at infinity."""
    finite = jnp.minimum(kappa, KAPPA_MAX)
    return finite * versine_mean(finite, dimension)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _concentration(resultant: jax.Array, complement: jax.Array, found: jax.Array, dimension: int) -> jax.Array:
    return found


@_concentration.defjvp
def _concentration_jvp(
    dimension: int, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    kappa = _concentration(*primals, dimension)
    slope = cosine_variance(jnp.minimum(kappa, KAPPA_MAX), dimension)
    return kappa, (0.5 / slope) * (tangents[0] - tangents[1])


def inverse_mean_cosine(resultant: jax.Array, complement: jax.Array, dimension: int) -> jax.Array:
    """Return the kappa with A(kappa) = `resultant` = 1 - `complement`.

    Newton's method starts from the approximation of Banerjee et al. (see `bessel.inverse_ratio`). Derivatives treat the
    two arguments as one number in two forms.
    """
    r, c = lax.stop_gradient(resultant), lax.stop_gradient(complement)
    largest = 1e17 if r.dtype == jnp.float32 else 1e30
    positive = jnp.maximum(c, dimension / largest)
    kappa = r * (dimension - r * r) / (positive * (1 + r))

    def newton(_: jax.Array, kappa: jax.Array) -> jax.Array:
        limit = jnp.clip(kappa, 0, KAPPA_MAX)
        s, rest, h = shrinkage(limit, dimension)
        missing = jnp.where(r < 0.5, r - s * (1 - h), (rest + s * h) - positive)
        return jnp.maximum(limit + missing / (h * (1 + s * s * (1 - h))), 0)

    kappa = lax.fori_loop(0, 4 if r.dtype == jnp.float32 else 5, newton, kappa)
    kappa = jnp.where(c > 0, kappa, jnp.where(jnp.isnan(c), c, jnp.inf))
    return _concentration(resultant, complement, kappa, dimension)


def less_bias(kappa: jax.Array, size: jax.Array, dimension: int, known: bool) -> jax.Array:
    r"""Subtract from the maximum likelihood estimate `kappa` its bias to first order in 1 / `size`, down to 0 at least.

    The estimate is :math:`A^{-1}(r)`, where r is the length of the mean of `size` vectors, or its component along the
    `known` mean direction. From the second derivatives of this function of the mean, and the covariance of one vector,
    A' along the mean direction and A / kappa across it, the bias is

    .. math:: \frac{1}{2n} \left(\frac{d - 1}{\kappa A'} - \frac{A''}{A'^2}\right),

    without the first term if the direction is known. This agrees with D. R. Cox and E. J. Snell, J. R. Stat. Soc. B 30,
    1968.
    """
    # Below this, the bias exceeds the estimate for every possible size, or is proportional to it.
    low = 1e-2 if known else 1e-8
    near = jnp.clip(kappa, low, LARGE)
    variance, slope = jax.jvp(lambda k: cosine_variance(k, dimension), (near,), (jnp.ones_like(near),))
    relative = ((0 if known else dimension - 1) - near * slope / variance) / (2 * near * (near * variance))
    relative = jnp.where(near == kappa, relative, lax.stop_gradient(relative))
    # An infinite estimate stays infinite.
    kept = jnp.where(kappa == jnp.inf, 1, jnp.maximum(1 - relative / size, 0))
    return kappa * kept

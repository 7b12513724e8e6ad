"""Compute the cdf and the quantile of the cosine of the angle to the mean direction, in the notation of `fits`."""

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics.circle import half_pi_rest
from jax_von_mises.numerics.elementary import nan_unless, with_slopes
from jax_von_mises.sphere import fits, radial
from jax_von_mises.von_mises import density as circle_density
from jax_von_mises.von_mises import quantile as circle_quantile
from jax_von_mises.von_mises import tail_integral as circle_tail_integral
from jax_von_mises.von_mises import tail_probability as circle_tail


def place_at(w: jax.Array, kappa: jax.Array, n: int) -> tuple[radial.Mode, radial.Latitude]:
    """Return the `radial.Mode` and `radial.Latitude` of the cosine `w`, on its side of the mode."""
    small = 0.5 * (1 - jnp.abs(w))
    near = w > radial.mode_cosine(kappa, n)[0]
    mode = radial.Mode.of(kappa, n, near)
    return mode, radial.Latitude.of(small, (w >= 0) == near, n, mode)


def tail_of_cosine(
    w: jax.Array, kappa: jax.Array, dimension: int
) -> tuple[jax.Array, jax.Array | np.ndarray, jax.Array]:
    """Return the probability beyond `w` as seen from the mode, whether this is the upper tail, and the density of y."""
    n, name = dimension - 1, w.dtype.name
    mode, place = place_at(w, kappa, n)
    j = radial.inverse_hazard(place, n, mode.near, fits.SMALLEST[name])
    log_density = radial.log_ratio(place, mode, n, radial.peak_density(n, mode.s))
    lowest = float(np.log(np.finfo(w.dtype).tiny))
    density = jnp.where(log_density < lowest, 0, jnp.exp(jnp.maximum(log_density, lowest)))
    return j * density, mode.near, density


@with_slopes(lambda y, *arguments: slopes(*arguments), static=(2,))
def lower_tail(w: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    """Return P(cosine < `w`), which is 0 for `w` <= -1 and 1 for `w` >= 1."""
    inside = jnp.abs(w) < 1
    x, limit = jnp.where(inside, w, 0), jnp.minimum(kappa, radial.KAPPA_MAX)
    if dimension == 2:
        # Subtract an angle below pi/2 from pi exactly, since pi minus the angle has relative accuracy.
        away, rest = jnp.sqrt(1 - x), jnp.sqrt(1 + x)
        small = 2 * jnp.arctan2(jnp.minimum(away, rest), jnp.maximum(away, rest))
        angle = jnp.where(x < 0, np.pi - small, small)
        lost = jnp.where(x < 0, ((np.pi - angle) - small) + 2 * half_pi_rest(w.dtype), 0)
        below = 2 * circle_tail.lower_tail(-angle, limit, -lost)
    else:
        beyond, near, _ = tail_of_cosine(x, limit, dimension)
        below = jnp.where(near, 1 - beyond, beyond)
    return jnp.where(inside, below, jnp.where(w > 0, 1, 0) + 0 * (kappa + w))


def slopes(w: jax.Array, kappa: jax.Array, dimension: int) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of `lower_tail` with respect to `w` and `kappa`."""
    x, limit = jnp.clip(w, -1, 1), jnp.minimum(kappa, radial.KAPPA_MAX)
    gap = jnp.maximum((1 - x) * (1 + x), float(np.finfo(w.dtype).tiny))
    if dimension == 2:
        angle = 2 * jnp.arctan2(jnp.sqrt(1 - x), jnp.sqrt(1 + x))
        density = 2 * circle_density.density(angle, limit)
        return density * jax.lax.rsqrt(gap), density * circle_tail_integral.derivative(angle, limit)
    n = dimension - 1
    x = jnp.where(jnp.abs(w) < 1, w, 0)
    *_, density = tail_of_cosine(x, limit, dimension)
    mode, place = place_at(x, limit, n)
    rise = radial.slope_of_distance(place, mode, n, fits.SMALLEST[w.dtype.name])
    inside = jnp.where(jnp.abs(w) < 1, density, 0)
    return inside / gap, inside * jnp.where(mode.near, -rise, rise)


def quantile_slopes(w: jax.Array, _: jax.Array, kappa: jax.Array, dimension: int) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of `quantile`, which are 0 where those of `lower_tail` underflow."""
    along, across = slopes(w, kappa, dimension)
    inverse = jnp.where(along > 0, 1 / jnp.where(along > 0, along, 1), 0)
    return inverse, -inverse * across


@with_slopes(quantile_slopes, static=(2,))
def quantile(q: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    """Return the cosine w with P(cosine < w) = `q`; NaN for `q` outside [0, 1].

    In three or more dimensions, tails between 0 and `fits.SMALLEST_QUANTILE` are treated as that value.
    """
    smallest = fits.SMALLEST_QUANTILE[q.dtype.name]
    upper = q > 0.5
    t = jnp.clip(jnp.where(upper, 1 - q, q), smallest, 0.5)
    if dimension == 2:
        half = jnp.sin(0.5 * circle_quantile.any_half_quantile(0.5 * q, 0.5 * (1 - q), kappa))
        w = 1 - 2 * half * half
    else:
        if dimension == 3:
            signed = radial.closed_quantile_share(t, upper, kappa)
        else:
            signed = radial.quantile_share(t, upper, kappa, dimension, smallest)
        w = jnp.where(signed < 0, -1, 1) - 2 * signed
    w = jnp.where(q == 0, -1, jnp.where(q == 1, 1, w)) + 0 * kappa.clip(max=1)
    return nan_unless(w, (q >= 0) & (q <= 1))

r"""Compute the quantile of the von Mises distribution, the angle with a given tail probability, without a loop.

Let t be the tail probability, c = 1/2 - t, and J the integral of `tail_integral`. To first order, the distance to the
root is :math:`u = J - t N e^q` (tail) or :math:`u = J + c N e^q` (centre). `refine` sums the Taylor series of the
inverse function in :math:`d = \kappa \sin(x) u` and :math:`e = \kappa \cos(x) u^2`. One step from `guess` is enough for
float32, and two are enough for float64. Tails smaller than those of samples start from `deep_guess`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import coefficients
from jax_von_mises.numerics.circle import largest_angle
from jax_von_mises.numerics.elementary import (
    LN_2,
    LOG2_E,
    clip,
    exp2,
    exp_product,
    log2,
    polynomial,
    polynomial2,
    with_slopes,
)
from jax_von_mises.numerics.table import TAILS, QuantileTable, tails
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.density import KAPPA_MIN, HalfAngle, density, score
from jax_von_mises.von_mises.tail_integral import (
    ARCSINE,
    KAPPA_MAX,
    RULES,
    Rule,
    at_any_concentration,
    derivative,
    integrals,
)

# Smallest tail probability of a sample. `guess` covers larger ones, and `deep_guess` smaller ones.
SMALLEST_TAIL = {"float32": 2.0**-33, "float64": 2.0**-65}
LOG_2_ROOT_PI = float(np.log(2 * np.sqrt(np.pi)))
# The Z^2 below which `deep_guess` uses its formula for angles near pi. With 4 or 6, its largest error of 0.038 would be
# 0.058 or 0.046.
NEAR_PI = 5


def guess(t: jax.Array, kappa: jax.Array, inverse: jax.Array, root: jax.Array, wide: bool = False) -> jax.Array:
    """Return the float32 starting angle for the tail probability `t`; `inverse` is 1 / kappa, `root` is kappa^-1/2.

    The variable is a logit that saturates where the angle reaches pi and, like the angle, is 0 at t = 1/2,

        L = log2((1 + E) / (2 t + E)),   E = exp(-2 kappa) = p(pi) / p(0).

    A polynomial in L / (2 + kappa) and 1 / (2 + kappa) covers small concentrations, and one in L and 1 / kappa covers
    the others. With `wide`, both polynomials cover tails down to 2^-65. `coefficients` lists the weighted errors
    |dx| max(kappa sin x, sqrt(kappa)).
    """
    switch = coefficients.GUESS64_SWITCH if wide else coefficients.GUESS_SWITCH
    low_table = coefficients.GUESS64_LOW if wide else coefficients.GUESS_LOW
    high_table = coefficients.GUESS64_HIGH if wide else coefficients.GUESS_HIGH
    low = jnp.minimum(kappa, switch)
    floor = exp2((-2 * LOG2_E) * low)
    # Two logarithms are faster than the logarithm of a quotient, because they do not wait for each other.
    level = log2(1 + floor) - log2(2 * t + floor)
    shrink = 1 / (2 + low)
    y = level * shrink
    small = y * polynomial2(low_table, y, shrink)
    r = jnp.minimum(inverse, 1 / switch)
    large = (level * root) * polynomial2(high_table, level, r)
    return clip(jnp.where(kappa < switch, small, large), 0, largest_angle(t.dtype))


def deep_guess(t: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the float32 starting angle for a `t` below `SMALLEST_TAIL`, with a weighted error (see `guess`) of 0.04.

    With Z^2 = 2 kappa - q = 2 kappa cos^2(x/2), Dawson's integral D and N = sqrt(2 pi / kappa), the tail is to leading
    order

        P(X > x) = 2 D(Z) p(x) / sqrt(q).

    Away from pi, where 2 D(Z) = (1 + 1/(2 Z^2) + ...) / Z, one substitution solves the logarithm of this equation for
    q. Near pi, where q is nearly 2 kappa, the equation is e^(Z^2) D(Z) = S with S = t N sqrt(2 kappa) e^(2 kappa) / 2.
    Up to Z^2 = `NEAR_PI`, Z^2 = v / (1 + v/43) with v = (3/4) log(1 + (4/3) S^2) solves it with an error of about 0.02.

    The first two terms of v in powers of S^2 are exact. The number 43 and the factor 1 - 0.2 / kappa, which corrects N,
    are fitted: with 38 or 48, the weighted error would be 0.05 or 0.09, and without the factor 0.1.
    """
    # At smaller concentrations, such small tails lie at pi.
    kappa = jnp.clip(kappa, 1, KAPPA_MAX).astype(jnp.float32)
    double, inverse = 2 * kappa, 1 / kappa
    level = -LN_2 * log2(t).astype(jnp.float32) - LOG_2_ROOT_PI  # log(1 / (t N sqrt(2 kappa)))
    # A first value of Z^2, whose logarithm enters q. With 0 or 1.5 in place of 0.75, the error would be 0.09 or 0.12.
    z2 = jnp.maximum(double - level + 0.75, 4)
    q = level - (0.5 * LN_2) * log2(level * (z2 * (0.5 * inverse))) + 0.5 / (z2 - 1)
    # Bounds within which `exp2` neither underflows nor overflows. At the upper one, Z^2 is far above `NEAR_PI`.
    s2 = exp2((2 * LOG2_E) * clip(double - level, -40, 12)) * 0.25
    v = (0.75 * LN_2) * log2(1 + (4 / 3) * s2) * (1 - 0.2 * inverse)
    near = v / (1 + v * (1 / 43))
    # The larger of q and Z^2 follows from the smaller one.
    z2 = jnp.where(near < NEAR_PI, near, double - q)
    q = jnp.where(near < NEAR_PI, double - near, q)
    square = jnp.minimum(q, z2) * (0.5 * inverse)
    x = lax.sqrt(square) * polynomial(ARCSINE, square)
    return jnp.where(q < z2, x, np.pi - x)


def with_deep_guesses(
    x: jax.Array, t: jax.Array, c: jax.Array, deep: jax.Array, kappa: jax.Array, inverse: jax.Array
) -> jax.Array:
    """Replace `x` where `deep` is true by `deep_guess`, which takes one step in float64."""

    def replace(x: jax.Array, t: jax.Array, c: jax.Array, kappa: jax.Array, inverse: jax.Array) -> jax.Array:
        below, found = t < SMALLEST_TAIL[t.dtype.name], deep_guess(t, kappa).astype(t.dtype)
        if t.dtype == jnp.float64:
            # The nodes of float32 are enough, since a second step removes their error.
            found = refine(found, t, c, kappa, inverse, rule=RULES["float32"], deep=below).end
        return jnp.where(below, found, x)

    return xla.replace_where_any(deep, replace, x, t, c, kappa, inverse)


class Step(NamedTuple):
    """A step towards a quantile."""

    start: jax.Array
    length: jax.Array
    half: HalfAngle
    """Functions of `start`."""
    integral: jax.Array
    """The integral of the highest order that was asked for, at `start`."""

    @property
    def end(self) -> jax.Array:
        """The angle after the step."""
        return clip(self.start + self.length, 0, largest_angle(self.start.dtype))


def refine(
    x: jax.Array,
    t: jax.Array,
    c: jax.Array,
    kappa: jax.Array,
    inverse: jax.Array,
    rule: Rule | None = None,
    deep: jax.Array | None = None,
    order: int = 0,
) -> Step:
    """Return one step towards the quantile of `t`, from an `x` with a weighted error (see `guess`) below about 0.08.

    The error of its end is about the sixth power of that of `x`. `deep` is true for elements with a `t` below
    `SMALLEST_TAIL`; the results of other elements do not depend on it.
    """
    # In float32, even the deepest tail has an interval long enough to be computed as a difference.
    short = False if deep is None or x.dtype != jnp.float64 else deep
    found, centre, half = integrals(x, kappa, inverse, order=order, rule=rule, deep=short)
    u = found[0] - wanted_integral(t, c, kappa, inverse, centre, half, deep)
    return Step(x, inverse_series(u, kappa * half.sin, kappa * half.cos), half, found[-1])


def slope_at_end(step: Step, kappa: jax.Array, inverse: jax.Array) -> jax.Array:
    """Return J1 of `tail_integral` at the end of a float32 step of order 1, by its Taylor series.

    The series follows from the derivative of J1 with respect to the angle, q' J1 - (cos x - A).
    """
    j1, half = step.integral, step.half
    slope, curvature = kappa * half.sin, kappa * half.cos
    first = slope * j1 - (bessel.ratio_complement(kappa, inverse) - 2 * half.square)
    second = slope * first + curvature * j1 + half.sin
    third = slope * (second - j1) + 2 * curvature * first + half.cos
    fourth = slope * (third - 3 * first) + curvature * (3 * second - j1) - half.sin
    return j1 + step.length * polynomial([first, second / 2, third / 6, fourth / 24], step.length)


def wanted_integral(
    t: jax.Array,
    c: jax.Array,
    kappa: jax.Array,
    inverse: jax.Array,
    centre: jax.Array,
    half: HalfAngle,
    deep: jax.Array | None,
) -> jax.Array:
    """Return what J would be if the angle were the quantile: t N e^q in the tail, and -c N e^q in the `centre`."""
    n, shift = bessel.norm(kappa, inverse)
    mass, growth = jnp.where(centre, -c, t) * n, exp_product(kappa, half.parts, shift)
    if deep is not None:
        # In deep tails, t N may underflow, so multiply N by e^q first. Select the factors, not the product, which would
        # then be rounded before it is subtracted, unlike without deep tails.
        mass, growth = jnp.where(deep, t, mass), jnp.where(deep, n * growth, growth)
    return mass * growth


def inverse_series(u: jax.Array, slope: jax.Array, curvature: jax.Array) -> jax.Array:
    """Return the distance to the root, to fifth order in its first-order approximation `u`.

    The derivative of the inverse function is e^q up to a factor. With the `slope` q' = kappa sin x, the `curvature`
    q'' = kappa cos x, d = q' u and e = q'' u^2, the distance is

        u (1 + d/2 + (2 d^2 + e)/6 + (6 d^3 + 7 d e - d u^2)/24
             + (24 d^4 + 46 d^2 e + 7 e^2 - 11 d^2 u^2 - e u^2)/120)
    """
    u2 = u * u
    d, e = slope * u, curvature * u2
    d2 = d * d
    third = (1 / 3) * d2 + (1 / 6) * e
    fourth = d * (0.25 * d2 + (7 / 24) * e - (1 / 24) * u2)
    fifth = d2 * (0.2 * d2 + (46 / 120) * e - (11 / 120) * u2) + e * ((7 / 120) * e - (1 / 120) * u2)
    return u + u * ((0.5 * d + third) + (fourth + fifth))


@xla.traced_once()
def half_quantile(t: jax.Array, c: jax.Array, kappa: jax.Array, deep: jax.Array | None = None) -> jax.Array:
    """Return the |x| in [0, pi) with P(X > |x|) = `t`, for a distribution centred at 0.

    See `sample_von_mises` for the accuracy, and `icdf` for that of `deep` elements.

    Parameters
    ----------
    t, c
        Tail probability in (0, 1/2], at least 2^-33 (float32) or 2^-65 (float64), and 1/2 - `t`. Both are needed for
        the relative accuracy of angles near 0.
    kappa
        Concentration in [0, inf]; NaN gives NaN.
    deep
        True where `t` is smaller than that, down to the smallest normal float. The results of other elements do not
        depend on it.
    """
    x, k, inverse, scale = start(t, c, kappa, deep)
    return refine(x, t, c, k, inverse, deep=deep).end * scale


@xla.traced_once()
def half_quantile_and_slope(t: jax.Array, c: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return float32 `half_quantile` without deep elements, and its `tail_integral.derivative` in `kappa`."""
    x, k, inverse, scale = start(t, c, kappa, None)
    step = refine(x, t, c, k, inverse, order=1)
    x = step.end * scale
    return x, at_any_concentration(slope_at_end(step, k, inverse), x, kappa)


def start(
    t: jax.Array, c: jax.Array, kappa: jax.Array, deep: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the angle from which one step leads to `half_quantile`, kappa in range, 1 / kappa, and a last factor."""
    name = np.dtype(t.dtype).name
    # XLA:CPU does not vectorise loops with a float64 `rsqrt`.
    bounded = jnp.maximum(kappa, KAPPA_MIN)
    root_full = lax.sqrt(1 / bounded) if name == "float64" else lax.rsqrt(bounded)
    root = jnp.maximum(root_full, KAPPA_MAX**-0.5)
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    inverse = root * root
    covered = t if deep is None else jnp.maximum(t, SMALLEST_TAIL[name])
    # float32 is accurate enough here.
    t32, c32, k32, inverse32, root32 = (a.astype(jnp.float32) for a in (covered, c, k, inverse, root))
    x = guess(t32, k32, inverse32, root32, wide=name == "float64")
    if name == "float64":
        x = refine(x, t32, c32, k32, inverse32).end.astype(jnp.float64)
    if deep is not None:
        x = with_deep_guesses(x, t, c, deep, k, inverse)
    # The factor is 1 up to KAPPA_MAX. Above it, angles scale as in the normal distribution, down to 0 at infinity.
    return x, k, inverse, jnp.minimum(root_full * KAPPA_MAX**0.5, 1)


@jax.custom_jvp
def inverse_density(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return 1 / p, but a finite number where p underflows, so that its product with 0 is 0."""
    return 1 / jnp.maximum(density(x, kappa), float(np.finfo(x.dtype).tiny))


@inverse_density.defjvp
def _inverse_density_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    # Use the derivatives of log p, since the square of p may underflow.
    value, (along, across) = inverse_density(*primals), score(*primals)
    return value, -value * (along * tangents[0] + across * tangents[1])


@with_slopes(lambda x, t, c, kappa: (-inverse_density(x, kappa), None, derivative(x, kappa)))
def any_half_quantile(t: jax.Array, c: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return `half_quantile` for tails down to 0, where it is pi, with derivatives with respect to `t` and `kappa`."""
    name = np.dtype(t.dtype).name
    deep = (t > 0) & (t < SMALLEST_TAIL[name])
    x = half_quantile(jnp.maximum(t, float(np.finfo(t.dtype).tiny)), c, kappa, deep)
    # Keep the NaN of an invalid concentration.
    return jnp.where((t > 0) | jnp.isnan(x), x, np.pi)


def quantile_table(kappa: jax.Array) -> QuantileTable:
    """Tabulate `half_quantile` for a scalar `kappa`."""
    t = tails(TAILS[kappa.dtype.name])
    kappa = jnp.broadcast_to(kappa, t.shape)
    return QuantileTable.of(half_quantile(jnp.asarray(t, kappa.dtype), jnp.asarray(0.5 - t, kappa.dtype), kappa))

r"""Compute tail probabilities and quantiles of the cosine w, and their derivatives, in the notation of `fits`.

A place is a value of w. It is given by two shares, `own` = (1 -+ w)/2, which is 0 at the pole of the tail, and `other`
= 1 - `own`. The smaller share keeps its digits at both poles and at any concentration.

With :math:`b` the own share, :math:`b^*` that of the mode, :math:`g = b^*(1 - b^*)` and signed s,

.. math:: \delta = (b - b^*)/g, \quad e = \delta (s - g\delta), \quad q = 1 + e = b(1 - b)/g, \quad
          L = -n\delta\left(\tfrac{1 + s^2}{2} - s g \delta\right), \\
          f - f^* = -\tfrac n2 (g\delta^2 + e - \log q) = -\tfrac n2 (s\delta - \log q).

The first form of f - f* is a sum of terms of one sign, and the second form is computed with split logarithms. The
quantile of the tail probability t takes one step of fourth order in log t (two in float64) from the polynomial
`fits.fitted_guess`, and one more for tails smaller than those of a sampler's words.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla
from jax_von_mises.numerics.circle import rounded_off
from jax_von_mises.numerics.elementary import (
    LN2_HEAD,
    LN2_TAIL,
    LN_2,
    LOG2_E,
    clip,
    exp2,
    exponent_and_log,
    inverse_root,
    log2,
    polynomial,
    polynomial2,
    product_parts,
    reciprocal,
    square_root,
    with_slopes,
)
from jax_von_mises.numerics.table import QuantileTable, two_tails
from jax_von_mises.sphere import fits

# Above this concentration, the distribution of (1 - w) kappa equals its limit to rounding.
KAPPA_MAX = 1e18
# Above this concentration, the distribution is a point mass.
LARGEST_KAPPA = {"float32": 1e37, "float64": 1e300}
# Up to this value of f* - f, in units of n/2, the difference is the sum of positive terms, in which
# log(1 + e) / (2 r) - 1, with r = e / (2 + e), is a series in r^2. Above it, the second form loses less to cancellation
# than the sum would lose to rounding.
SPLIT = 0.2
# Above this n, the sum is used wherever |e| < 1/2.
MANY = 20
# Powers of r^2 of (atanh(r) / r - 1) / r^2: in float32, the interpolant at 8 Chebyshev points of [0, 0.3].
ATANH = {
    "float32": (0.33333334, 0.20000017, 0.14284599, 0.11139888, 0.08730634, 0.10090619, -0.01815582, 0.19905652),
    "float64": tuple(1 / j for j in range(3, 61, 2)),
}
# Longer series, which only float64 has, in up to five dimensions, are summed in a loop. If `x` is broadcast, XLA's
# algebraic simplifier moves the broadcast through one term per run, and after 50 runs it prints an error ("likely stuck
# in a circular simplification loop"). Observed with JAX 0.10.2.
LONGEST_UNROLLED = 40
# Terms in each pass of the loop. A GPU launches a kernel for each pass, which takes longer than what it computes.
UNROLLED = 6
# In three dimensions, e^2k - 1 gives the share at the far pole up to this k; it would overflow at a large one.
FEW = 12
# Largest step in log t.
LARGEST_STEP = 0.7


class Mode(NamedTuple):
    """The mode, counted from the pole of each element's tail."""

    kappa: jax.Array
    near: jax.Array | np.ndarray
    """Whether tails are counted from the mean direction."""
    s: jax.Array
    """In [0, 1]."""
    signed: jax.Array
    own: jax.Array
    other: jax.Array
    product: jax.Array
    """g, the product of the two shares."""
    inverse: jax.Array

    @classmethod
    def of(cls, kappa: jax.Array, n: int, near: jax.Array | np.ndarray) -> "Mode":
        """Compute the mode for kappa in [0, `KAPPA_MAX`]."""
        s, rest = mode_cosine(kappa, n)
        # Use s near the equator, where this rounds once, and elsewhere 1 - s, which is small and keeps its digits.
        small, large = jnp.where(s < 0.5, 0.5 - 0.5 * s, 0.5 * rest), 0.5 + 0.5 * s
        own, other = jnp.where(near, small, large), jnp.where(near, large, small)
        product = small * large
        return cls(kappa, near, s, jnp.where(near, s, -s), own, other, product, reciprocal(product))


class Latitude(NamedTuple):
    """A place on the sphere, in the variables of the formulas."""

    small: jax.Array
    """The smaller share."""
    own_small: jax.Array
    """Whether `small` is the own share."""
    own: jax.Array
    other: jax.Array
    across: jax.Array
    """b - b* = g delta, exact except for the rounding of b*."""
    delta: jax.Array
    e: jax.Array
    q: jax.Array
    cosine: jax.Array
    slope: jax.Array
    """L."""

    @classmethod
    def of(cls, small: jax.Array, own_small: jax.Array, n: int, mode: Mode) -> "Latitude":
        """Compute the place with the smaller share `small`."""
        rest = 1 - small
        own, other = jnp.where(own_small, small, rest), jnp.where(own_small, rest, small)
        across = jnp.where(own_small, small - mode.own, mode.other - small)
        delta = across * mode.inverse
        e = delta * (mode.signed - across)
        q = (own * mode.inverse) * other
        slope = (-n * delta) * (0.5 * (1 + mode.s * mode.s) - xla.round_here(mode.signed * across, 1))
        return cls(small, own_small, own, other, across, delta, e, q, other - own, slope)

    @property
    def width(self) -> jax.Array:
        """1 - w^2."""
        return 4 * (self.own * self.other)

    def moved(self, distance: jax.Array) -> jax.Array:
        """Return `small` after a move by `distance` in y towards the pole."""
        x = expm1(-2 * distance)
        change = (self.own * self.other) * x * reciprocal(1 + self.own * x)
        return jnp.where(self.own_small, self.small + change, self.small - change)


def mode_cosine(kappa: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Return s and 1 - s, each to a few ulp."""
    root = square_root(n * n + 4 * kappa * kappa)
    inverse = reciprocal(n + root)
    return (2 * kappa) * inverse, (n * inverse) * (1 + n * reciprocal(root + 2 * kappa))


def expm1(x: jax.Array) -> jax.Array:
    """Return e^x - 1 for |x| up to 2 `LARGEST_STEP`."""
    if x.dtype == jnp.float64:
        return jnp.expm1(x)
    return x * polynomial(EXPM1, x)


EXPM1 = tuple(1 / float(np.prod(np.arange(1.0, j + 2))) for j in range(11))


def log_split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split a normal positive x into 2^e m; return e (in float64, 0) and the logarithm of m."""
    if x.dtype == jnp.float64:
        return jnp.zeros_like(x), jnp.log(x)
    exponent, log_mantissa = exponent_and_log(x)
    return exponent, LN_2 * log_mantissa


def chebyshev_series(series: Sequence[float], x: jax.Array) -> jax.Array:
    """Return the sum of series[j] T_j(x), by Clenshaw's recurrence."""
    if len(series) == 1:
        return jnp.full_like(x, series[0])
    double = 2 * x
    if len(series) > LONGEST_UNROLLED:

        def clenshaw(state: tuple[jax.Array, jax.Array], term: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            return (double * state[0] + (term - state[1]), state[0]), None

        start, terms = jnp.zeros_like(x), jnp.asarray(series[:0:-1], x.dtype)
        (last, before), _ = lax.scan(clenshaw, (start, start), terms)
        return x * last + (series[0] - before)
    first: jax.Array | float
    second: jax.Array | float
    first, second = series[-1], 0.0
    for coefficient in series[-2:0:-1]:
        first, second = double * first + (coefficient - second), first
    return x * first + (series[0] - second)


def chebyshev_polynomials(x: jax.Array, count: int) -> list[jax.Array]:
    """Return T_j(x) for j < `count`, each from two of half its degree, to keep chains of operations short."""
    values = [jnp.ones_like(x), x]
    for j in range(2, count):
        half = values[j // 2]
        values.append(2 * half * half - 1 if j % 2 == 0 else 2 * half * values[j // 2 + 1] - x)
    return values[:count]


def evaluate_surface(surface: fits.Surface, n: float, w: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Evaluate the function of a `fits.Surface`, and 1 / (L + r)."""
    low, high = fits.variable_range(surface, n, w, reciprocal)
    inverse = reciprocal(slope + surface.scale)
    span = 1 / (high - low) if surface.near else reciprocal(high - low)
    variable = 2 * (surface.scale * inverse - low) * span - 1
    cosine = (w - 0.49) * (1 / 0.51) if surface.near else w
    # Thousands of unrolled terms, which only float64 has, would take minutes to compile.
    evaluate = double_series_by_loop if w.dtype == jnp.float64 else double_series
    return evaluate(surface.rows, cosine, variable), inverse


def double_series(rows: Sequence[Sequence[float]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the sum of T_i(x) times the polynomial in y with the coefficients rows[i]."""
    terms = zip((polynomial(row, y) for row in rows), chebyshev_polynomials(x, len(rows)), strict=True)
    return xla.tree_sum([value * t for value, t in terms])


def double_series_by_loop(rows: Sequence[tuple[float, ...]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Compute `double_series` by a loop of Clenshaw's recurrence, with Horner's scheme for the polynomials."""
    # Rows of zeros make passes of equal length: a shorter last pass would be rounded differently.
    table = np.zeros((-(-len(rows) // UNROLLED) * UNROLLED, max(map(len, rows))))
    for i, row in enumerate(rows):
        table[i, : len(row)] = row

    def clenshaw(state: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        first, second = state
        return (2 * x * first - second + xla.polynomial_of_row(row, y), first), None

    start = jnp.zeros_like(x + y)
    (first, second), _ = lax.scan(clenshaw, (start, start), jnp.asarray(table[::-1]), unroll=UNROLLED)
    return first - x * second


def inverse_hazard(place: Latitude, n: int, near: jax.Array | np.ndarray, smallest: float, order: int = 0) -> jax.Array:
    """Compute J at a `Latitude`, or -dJ/dL with `order` 1, for tails down to `smallest`."""
    if n == 2:
        return closed_inverse_hazard(place, order)
    by_side = []
    for side in (True, False):
        surface = fits.surface(n, place.small.dtype.name, smallest, side, order)
        value, inverse = evaluate_surface(surface, float(n), place.cosine, place.slope)
        for _ in range(order + 1):
            value = value * inverse
        by_side.append(value)
    return jnp.where(near, by_side[0], by_side[1])


def closed_inverse_hazard(place: Latitude, order: int) -> jax.Array:
    """Compute `inverse_hazard` in three dimensions, from the integral of v^order e^(x v) over [0, 1].

    With u = T / (1 + w T), which rises to 1/(1 + w), the integrand is e^(c u), where c = 2 w - L. Then x = c / (1 + w).
    """
    reach = 0.5 * reciprocal(place.other)
    x = (2 * place.cosine - place.slope) * reach
    terms = 14 if x.dtype == jnp.float32 else 24
    factorials = np.cumprod([1.0, *range(1, terms)])
    series = polynomial([float(1 / (f * (j + 1 + order))) for j, f in enumerate(factorials)], clip(x, -1, 1))
    far = jnp.where(jnp.abs(x) < 1, 1, x)
    growth = jnp.exp(far)
    inverse = reciprocal(far)
    value = (growth * (far - 1) + 1) * inverse * inverse if order else (growth - 1) * inverse
    value = reach * jnp.where(jnp.abs(x) < 1, series, value)
    return reach * value if order else value


def peak_density(n: int, s: jax.Array) -> jax.Array:
    """Return the density of y at the mode."""
    fit = fits.fits(n, s.dtype.name)
    root = square_root((n / (2 * np.pi)) * (1 + s * s))
    return chebyshev_series(fit.peak, 2 * s * s - 1) * root


def log_ratio(place: Latitude, mode: Mode, n: int, ratio: jax.Array) -> jax.Array:
    """Return log(`ratio`) + f - f*."""
    ratio_log = log_split(ratio)
    fall = sum_of_falls(place)
    sum_is_best = ((fall < SPLIT) | (n > MANY)) & (jnp.abs(place.e) < 0.5)
    return jnp.where(sum_is_best, near_mode(fall, n, ratio_log), far_out(place, mode, n, ratio_log))


def sum_of_falls(place: Latitude) -> jax.Array:
    """Return f* - f in units of n/2 as g delta^2 + (e - log q), two terms that are never negative, for |e| < 1/2."""
    r = place.e * reciprocal(2 + place.e)
    square = r * r
    rest = r * (place.e - 2 * square * polynomial(ATANH[place.e.dtype.name], square))
    return place.across * place.delta + rest


def near_mode(fall: jax.Array, n: int, ratio_log: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return `log_ratio` from `sum_of_falls` and the `log_split` of the ratio."""
    whole, rest = ratio_log
    return (LN2_HEAD * whole - 0.5 * n * fall) + (rest + LN2_TAIL * whole)


def far_out(place: Latitude, mode: Mode, n: int, ratio_log: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return `log_ratio` from s delta and log q; their large parts are exact, and cancel before the rest is added."""
    half = 0.5 * n
    whole_q, rest_of_q = log_split(place.q)
    whole = half * whole_q + ratio_log[0]
    exact, small = linear_fall(place, mode, n)
    return (LN2_HEAD * whole - exact) + ((half * rest_of_q + ratio_log[1]) + (LN2_TAIL * whole - small))


def linear_fall(place: Latitude, mode: Mode, n: int) -> tuple[jax.Array, jax.Array]:
    """Return n/2 s delta = 2 kappa (b - b*), at most 45 in float32, as a sum of two numbers, the first one exact.

    In float64, the second number is 0.
    """
    if place.e.dtype == jnp.float64:
        exact = (0.5 * n) * (mode.signed * place.delta)
        return exact, jnp.zeros_like(exact)
    # Use b - b* where both are small, which only happens near the mean direction, and (1 - b*) - (1 - b) elsewhere. If
    # b is small in the latter, 1 - b is rounded, and its error counts too.
    near_small, far_small = mode.near & place.own_small, place.own_small & ~mode.near
    rest = xla.round_here(1 - place.small, 2)
    lost = (1 - rest) - place.small
    minuend = jnp.where(near_small, place.small, mode.other)
    subtrahend = jnp.where(near_small, mode.own, jnp.where(far_small, rest, place.small))
    missing = rounded_off(minuend, subtrahend) - jnp.where(far_small, lost, 0)
    difference = minuend - subtrahend
    exact, small = product_parts(mode.kappa, (difference, missing, jnp.zeros_like(difference)))
    sign = jnp.where(mode.near, 1, -1).astype(difference.dtype)
    return sign * exact, sign * small


def guessed_place(t: jax.Array, n: int, mode: Mode, smallest: float) -> tuple[jax.Array, jax.Array]:
    """Return the smaller share near the quantile of `t`, and whether it is the own share."""
    log_t = LN_2 * log2(t)
    level = square_root((fits.LEVEL - LN_2) - log_t) - float(np.sqrt(fits.LEVEL))
    y = 2 * mode.s - 1
    near_guess, far_guess = (fits.fitted_guess(n, smallest, side) for side in (True, False))
    near_fit, far_fit = (
        polynomial2(guess.table, level * (2 / guess.largest_level) - 1, y) for guess in (near_guess, far_guess)
    )
    # A guess is a distance in y from a place with known shares: the mode, or the closed base.
    width = inverse_root(n * (1 + mode.s * mode.s))
    start_near = mode.own, mode.other, width * near_fit
    if far_guess.closed_base:
        start_far = *closed_base_shares(log_t, n, mode), far_fit
    else:
        start_far = mode.own, mode.other, width * far_fit
    own, other, distance = (jnp.where(mode.near, *pair) for pair in zip(start_near, start_far, strict=True))
    own = own * exp2((-2 * LOG2_E) * distance)
    inverse = reciprocal(own + other)
    own_small = own < other
    return jnp.where(own_small, own, other) * inverse, own_small


def closed_base_shares(log_t: jax.Array, n: int, mode: Mode) -> tuple[jax.Array, jax.Array]:
    """Return the two shares of `fits.closed_base`, to the accuracy of a starting value."""
    limit = 600.0 if log_t.dtype == jnp.float64 else 60.0
    x = jnp.maximum(mode.s * mode.inverse, 1e-2)
    tau = exp2((2 / n * LOG2_E) * log_t)
    inverse = reciprocal(x)
    e = exp2(LOG2_E * jnp.minimum(x, limit))
    rise = tau * (e - 1)
    own = jnp.where(rise < 1e-2, rise * (1 - 0.5 * rise), LN_2 * log2(1 + rise)) * inverse
    other = (-LN_2 * inverse) * log2(tau + (1 - tau) * reciprocal(e))
    return jnp.where(x < limit, own, 1 - other), jnp.where(x < 1, 1 - own, other)


def quantile_share(
    t: jax.Array, near: jax.Array, kappa: jax.Array, dimension: int, smallest: float | None = None
) -> jax.Array:
    """Return the `signed_share` of the place where the tail towards the near or the far pole has probability `t`.

    Parameters
    ----------
    t : float32 or float64 array
        In [`smallest`, 1/2].
    near : bool array
        Whether the tail is towards the near pole.
    kappa : array of the dtype of `t`
        In [0, inf]; NaN gives NaN.
    dimension : int
        4 or more. For 3, use `closed_quantile_share`; for 2, the quantile of the circle.
    smallest : float, optional
        Smallest value of `t`; by default the smallest tail of a sampler's words.

    Returns
    -------
    array
        The tail probability has a relative error of at most 2e-6 (float32) or 1e-12 (float64), or the smaller share is
        within 6 ulp.
    """
    n, name = dimension - 1, t.dtype.name
    limit = jnp.minimum(kappa, KAPPA_MAX)
    words = fits.SMALLEST_WORD[name]
    smallest = words if smallest is None else smallest
    mode = Mode.of(limit, n, near)
    ratio = peak_density(n, mode.s) * reciprocal(t)
    small, own_small = guessed_place(t, n, mode, smallest)
    for _ in range((2 if name == "float64" else 1) + (smallest < words)):
        place = Latitude.of(small, own_small, n, mode)
        small = place.moved(step(place, mode, n, ratio, smallest))
    return signed_share(small, own_small == near, kappa)


def signed_share(small: jax.Array, below_small: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return both shares as one number: (1 - w)/2 if that is the smaller one (`below_small`), else -(1 + w)/2."""
    return jnp.where(below_small, small * scale_beyond(kappa), -small)


def share_below(signed: jax.Array) -> jax.Array:
    """Return (1 - w)/2 from a `signed_share`."""
    return jnp.where(signed < 0, 1 + signed, signed)


def sine(signed: jax.Array) -> jax.Array:
    """Return sqrt(1 - w^2) from a `signed_share`, to full relative accuracy at both poles."""
    small = jnp.abs(signed)
    square, tiny = small * (1 - small), float(np.finfo(signed.dtype).tiny)
    return jnp.where(square < tiny, 0, 2 * square_root(jnp.maximum(square, tiny)))


def scale_beyond(kappa: jax.Array) -> jax.Array:
    """Return the factor by which to multiply 1 - w; it is 1 up to `KAPPA_MAX` and then falls to 0 at infinity."""
    largest = LARGEST_KAPPA[kappa.dtype.name]
    return jnp.where(kappa > largest, 0, jnp.minimum(KAPPA_MAX * reciprocal(jnp.clip(kappa, 1, largest)), 1))


def step(place: Latitude, mode: Mode, n: int, ratio: jax.Array, smallest: float) -> jax.Array:
    """Return the distance in y to the place with the tail t, by the inverse series to fourth order in log t."""
    j = inverse_hazard(place, n, mode.near, smallest)
    v = jnp.clip(log_ratio(place, mode, n, j * ratio), -LARGEST_STEP, LARGEST_STEP)
    w, slope, width = place.cosine, place.slope, place.width
    curve = n * (1 + w * w) - 2 * w * slope
    third = 2 * (width * (slope - n * w) + w * curve)
    # Derivatives of J, since f' = -L, f'' = -curve, f''' = third.
    j1 = slope * j - 1
    j2 = curve * j + slope * j1
    j3 = 2 * curve * j1 - third * j + slope * j2
    fourth = v * ((j1 * j1 * j1 + j * (4 * j1 * j2 + j * j3)) * (1 / 24))
    return (j * v) * (1 + v * (0.5 * j1 + v * ((j1 * j1 + j * j2) * (1 / 6) + fourth)))


class ClosedTails(NamedTuple):
    """The functions of the concentration k that `closed_quantile_share` needs; k is large above `FEW`."""

    rise: jax.Array
    """1 - e^-2k."""
    far_base: jax.Array
    """The constant in the far pole's logarithm: 1, or e^-2k for large k."""
    far_factor: jax.Array
    """The factor of t in that logarithm: e^2k - 1, or 1 - e^-2k for large k."""
    far_sign: jax.Array
    """1, or -1 for large k, where the logarithm gives the other share."""
    half: jax.Array
    """1 / (2k)."""
    half_ln2: jax.Array

    @classmethod
    def of(cls, k: jax.Array) -> "ClosedTails":
        """Compute them; those of a scalar are computed once, behind a barrier, and not in the loop over the tails."""
        floor, rise, few = jnp.exp(-2 * k), -jnp.expm1(-2 * k), k <= FEW
        half = 0.5 / k
        found = cls(
            rise,
            jnp.where(few, 1.0, floor).astype(k.dtype),
            jnp.where(few, jnp.expm1(2 * jnp.minimum(k, FEW)), rise),
            jnp.where(few, 1.0, -1.0).astype(k.dtype),
            half,
            LN_2 * half,
        )
        return found if k.ndim else lax.optimization_barrier(found)


def closed_quantile_share(t: jax.Array, near: jax.Array, kappa: jax.Array) -> jax.Array:
    """Compute `quantile_share` in three dimensions, where the tail is a difference of exponentials.

    For the near pole, b = -log(1 - t (1 - e^-2k)) / (2k), where k is `kappa`. For the far pole, k changes sign; if
    k > `FEW`, b is 1 minus the other share, which is -log(t (1 - e^-2k) + e^-2k) / (2k).
    """
    tails = ClosedTails.of(jnp.maximum(kappa, 1e-20))
    base = jnp.where(near, 1, tails.far_base)
    product = t * jnp.where(near, -tails.rise, tails.far_factor)
    sign = jnp.where(near, -1, tails.far_sign)
    total = base + product
    if t.dtype == jnp.float64:
        own = sign * tails.half * jnp.where(base == 1, jnp.log1p(product), jnp.log(total))
    else:
        # Add the rounding error of the sum, using the slope of the logarithm.
        lost = jnp.where(total < 4, (base - total) + product, 0) * reciprocal(total)
        own = sign * (log2(total) * tails.half_ln2 + lost * tails.half)
    own = jnp.minimum(own, 1)
    below = near | (sign < 0)
    other = 1 - own
    return jnp.where(own < other, jnp.where(below, own, -own), jnp.where(below, -other, other))


@with_slopes(lambda signed, t, near, kappa, dimension: slope_of_share(signed, near, kappa, dimension), static=(0, 1, 3))
def share_at(t: jax.Array, near: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    """Compute `quantile_share` in three or more dimensions, differentiable with respect to `kappa` only."""
    if dimension == 3:
        return closed_quantile_share(t, near, kappa)
    return quantile_share(t, near, kappa, dimension)


def table_places(kappa: jax.Array, dimension: int) -> tuple[jax.Array, np.ndarray, Mode]:
    """Return the shares at the nodes of a table for one `kappa`, and the sides and modes there."""
    t, near = two_tails(kappa.dtype)
    limit = jnp.broadcast_to(jnp.minimum(kappa, KAPPA_MAX), t.shape)
    signed = share_at(t.astype(kappa.dtype), near, limit, dimension)
    return signed, near, Mode.of(limit, dimension - 1, near)


def odds_table(kappa: jax.Array, dimension: int) -> QuantileTable:
    """Tabulate the odds divided by those of the mode for one `kappa`, near side first."""
    signed, near, mode = table_places(kappa, dimension)
    small = jnp.abs(signed)
    odds = jnp.where((signed >= 0) == near, small * (1 / (1 - small)), (1 - small) * (1 / small))
    return QuantileTable.of(odds * (mode.other * (1 / mode.own)))


def slope_table(kappa: jax.Array, dimension: int) -> QuantileTable:
    """Tabulate `slope_of_distance` for one `kappa`, near side first."""
    n = dimension - 1
    signed, near, mode = table_places(kappa, dimension)
    place = Latitude.of(jnp.abs(signed), (signed >= 0) == near, n, mode)
    return QuantileTable.of(slope_of_distance(place, mode, n, fits.SMALLEST_WORD[kappa.dtype.name]))


def look_up_share(
    t: jax.Array,
    near: jax.Array,
    table: QuantileTable,
    kappa: jax.Array,
    dimension: int,
    out_sharding: NamedSharding | None = None,
) -> jax.Array:
    """Evaluate `quantile_share` from an `odds_table`."""
    odds = table.at(t, ~near, out_sharding)
    mode = Mode.of(jnp.minimum(kappa, KAPPA_MAX), dimension - 1, near)
    own = mode.own * odds
    own_small = own < mode.other
    return signed_share(jnp.where(own_small, own, mode.other) * reciprocal(own + mode.other), own_small == near, kappa)


def slope_of_distance(place: Latitude, mode: Mode, n: int, smallest: float) -> jax.Array:
    """Return the derivative of y, towards the pole of the tail, with respect to kappa at a fixed tail probability."""
    j, j_slope = (inverse_hazard(place, n, mode.near, smallest, order) for order in (0, 1))
    # `above` is w minus its mean, towards the pole. Select instead of multiplying by a sign, since XLA's simplifier
    # loops on such products.
    towards = below_mode(mode, n)
    above = jnp.where(mode.near, towards, -towards) - 2 * place.across
    rise = place.width * j_slope + above * j
    return jnp.where(mode.near, rise, -rise)


def below_mode(mode: Mode, n: int) -> jax.Array:
    """Return s - A for the mean A of w, with full relative accuracy."""
    series = chebyshev_series(fits.fits(n, mode.s.dtype.name).below, 2 * mode.s * mode.s - 1)
    gap = 4 * mode.product
    return mode.s * (gap * gap) * series * (1 / (n + 1))


def slope_of_share(signed: jax.Array, near: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    """Return the derivative of (1 - w)/2 with respect to kappa from `quantile_share`; it is never positive."""
    n = dimension - 1
    mode = Mode.of(jnp.minimum(kappa, KAPPA_MAX), n, near)
    # Above `KAPPA_MAX`, the place is not used. A share may slightly exceed 1/2 if a step ended beyond the equator.
    small = jnp.where(kappa > KAPPA_MAX, 0.5, jnp.abs(signed))
    place = Latitude.of(small, (signed >= 0) == near, n, mode)
    distance = slope_of_distance(place, mode, n, fits.SMALLEST_WORD[signed.dtype.name])
    return slope_at(signed, near, kappa, distance)


def slope_at(signed: jax.Array, near: jax.Array, kappa: jax.Array, distance: jax.Array) -> jax.Array:
    """Return `slope_of_share` from the `slope_of_distance`."""
    small = jnp.abs(signed)
    rise = jnp.where(near, -2, 2) * (small * (1 - small)) * distance
    return jnp.where(
        kappa > KAPPA_MAX, -share_below(signed) * reciprocal(jnp.clip(kappa, 1, LARGEST_KAPPA[kappa.dtype.name])), rise
    )

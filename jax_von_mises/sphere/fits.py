r"""Fit polynomials for the sphere of a given dimension, in NumPy, while a program is traced.

For up to 16 dimensions, the coefficients are those of the file that `shipped` reads (in float64, only those that draws
and densities need). Otherwise they are computed here without `numpy.linalg` and matrix products, whose last digits
depend on the BLAS library and on its number of threads. The last digits of the computed coefficients may still differ
between kinds of CPU, since NumPy's exponential function does.

*Coordinates.* Let w be the cosine of the angle to the mean direction, d the dimension and n = d - 1. Half the log odds,
:math:`y = \tfrac12 \log((1 + w)/(1 - w))`, has a density proportional to :math:`e^f` on the whole line, with
:math:`f = \kappa w + (n/2)\log(1 - w^2)`, for every d and :math:`\kappa`. Its mode is at :math:`w = s`,

.. math:: s = 2\kappa / (n + R), \quad R = \sqrt{n^2 + 4\kappa^2}, \quad \kappa = n s / (1 - s^2),
          \quad -f''(s) = n (1 + s^2).

Therefore s in [0, 1] replaces the concentration. Tails are counted from the near pole, w = 1, or from the far one. The
formulas for the far pole are those for the near one with -w, -s and :math:`-\kappa`.

*The hazard integral.* Let y be the place where the tail begins, w its cosine, and L = -f'(y). With the distance z from
y and T = tanh(z),

.. math:: J(w, L) = \int_0^\infty e^{f(y + z) - f(y)} dz, \qquad
          f(y + z) - f(y) = (n w - L)\frac{T}{1 + w T} + \frac n2 \log(1 - T^2) - n \log(1 + w T),

and the tail probability is the density at y times J. J is an analytic function of w and L, also at the poles and at
infinite concentration. The derivative of the quantile with respect to the concentration needs -dJ/dL.

All computations here use float64; ``tests/numerics/test_sphere.py`` measures the accuracies.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from jax_von_mises.sphere import shipped

# Coefficients below this size (in a `Surface`, below this fraction of the first one) are dropped, since the rounding
# error of results is larger.
TOLERANCE = {"float32": 6e-8, "float64": 2e-14}
# Smallest tail probabilities of a sampler's words and of quantiles, and the smallest normal number.
SMALLEST_WORD = {"float32": 2.0**-33, "float64": 2.0**-65}
SMALLEST_QUANTILE = {"float32": 2.0**-126, "float64": 2.0**-200}
SMALLEST = {"float32": 2.0**-126, "float64": 2.0**-1022}
DEEP = 2.0**-100
# The starting value is a polynomial in sqrt(LEVEL - log(2 t)) - sqrt(LEVEL), the level of the tail.
LEVEL = 0.4
# Below this n (twice this n for tails below `DEEP`), the starting value on the far side corrects the closed form of
# three dimensions.
CLOSED_BASE_BELOW = 10

# exp-sinh quadrature of the half line: nodes in units of the integrand's width, and weights.
_STEPS = np.linspace(-4.4, 2.6, 160)
HALF_LINE = np.exp(0.5 * np.pi * np.sinh(_STEPS))
HALF_LINE_WEIGHTS = (_STEPS[1] - _STEPS[0]) * 0.5 * np.pi * np.cosh(_STEPS) * HALF_LINE


class Surface(NamedTuple):
    """A function of w and L, as a Chebyshev series in w with polynomials in r / (L + r) as coefficients."""

    rows: tuple[tuple[float, ...], ...]
    """Coefficients of these polynomials, constant first, for each degree in w."""
    near: bool
    scale: float
    """The number r."""
    reach: float
    """On the far side, the largest (L - n w) / (1 - w)."""


class Guess(NamedTuple):
    """A starting value, as a polynomial in the level of the tail and in s, both scaled to [-1, 1]."""

    table: tuple[tuple[float, ...], ...]
    """Coefficients, by powers of the level and then of s."""
    largest_level: float
    closed_base: bool
    error: float
    """Largest error of the logarithm of the tail."""


class Fits(NamedTuple):
    """Series for one dimension."""

    n: int
    peak: tuple[float, ...]
    """Chebyshev series in 2 s^2 - 1 of the density at the mode divided by sqrt(n (1 + s^2) / (2 pi))."""
    log_peak: tuple[float, ...]
    """Chebyshev series in 2 s^2 - 1 of the logarithm of that ratio, minus its value at s = 0."""
    below: tuple[float, ...]
    """Chebyshev series in 2 s^2 - 1 of Q, defined by s - A = s (1 - s^2)^2 Q / (n + 1) with the mean A of w."""
    log_area: float
    """Logarithm of the area of the unit sphere."""


def chebyshev_points(count: int) -> np.ndarray:
    """Return the zeros of the Chebyshev polynomial of degree `count`."""
    return np.cos(np.pi * (np.arange(count) + 0.5) / count)


def log_relative_density(n: int, s: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return f at `distance` from the mode towards the pole, minus f at the mode, for signed `s`."""
    below, above, g = (1 - s) / 2, (1 + s) / 2, (1 - s * s) / 4
    rise = np.expm1(-2 * distance)
    spread = above + below * (1 + rise)
    delta = rise / spread
    e = delta * (s - g * delta)
    log_q = -2 * distance - 2 * np.log(spread)
    series = e * e * (0.5 - e * (1 / 3 - e * (0.25 - e * (0.2 - e * (1 / 6 - e / 7)))))
    relative: np.ndarray = -(n / 2) * (g * delta * delta + np.where(np.abs(e) < 2e-3, series, e - log_q))
    return relative


def line(n: int, smallest: float, points: int) -> np.ndarray:
    """Return distances from the mode that cover all mass except `smallest`."""
    depth = -np.log(smallest) + 12
    end = 2 * depth / n + np.sqrt(2 * depth / n)
    return np.linspace(-end, end, points)


def interpolating_series(values: np.ndarray) -> np.ndarray:
    """Return the Chebyshev series, along the first axis, of the polynomial with `values` at `chebyshev_points`."""
    size = len(values)
    # Reduce the angles before the cosine, so that large multiples of pi are exact.
    quarter = np.cos(np.pi / (2 * size) * np.arange(4 * size))
    cosines = quarter[np.arange(size)[:, None] * (2 * np.arange(size) + 1) % (4 * size)]
    series: np.ndarray = (2 / size) * np.einsum("jp,p...->j...", cosines, values, optimize=False)
    series[0] *= 0.5
    return series


def truncated(series: np.ndarray, tolerance: float) -> tuple[float, ...]:
    """Return `series` without the trailing coefficients below `tolerance`."""
    kept = np.flatnonzero(np.abs(series) > tolerance)
    return tuple(series[: kept[-1] + 1].tolist()) if len(kept) else (0.0,)


@functools.cache
def fits(n: int, dtype: str) -> Fits:
    """Return the `Fits` for n = d - 1 and a dtype's name."""
    found = shipped.find(fits_name(n, dtype))
    if found is None:
        return computed_fits(n, dtype)
    (peak, log_peak, below), (log_area,) = found
    return Fits(n, peak, log_peak, below, log_area)


def fits_name(n: int, dtype: str) -> str:
    """Return the name of `fits` in the file."""
    return f"fits {n} {dtype}"


def computed_fits(n: int, dtype: str) -> Fits:
    """Compute `fits` by the trapezoid rule, which converges geometrically."""
    x = chebyshev_points(128)
    s = np.sqrt((1 + x) / 2)[:, None]
    distance = line(n, 1e-17, 1601)
    step = distance[1] - distance[0]
    density = np.exp(log_relative_density(n, s, distance))
    total = density.sum(1) * step
    rise = np.expm1(-2 * distance)
    delta = rise / ((1 + s) / 2 + (1 - s) / 2 * (1 + rise))
    mean_square = (density * delta * delta).sum(1) * step / total
    s = s[:, 0]
    peak = np.sqrt(2 * np.pi / (n * (1 + s * s))) / total
    # Use E[L] = 0, in which nothing cancels; from E[w], the result would be a difference.
    below = (n + 1) * mean_square / (4 * (1 + s * s))
    series = list(interpolating_series(np.stack([peak, np.log(peak), below], 1))[:121].T)
    series[1][0] -= chebyshev.chebval(-1.0, series[1])
    log_area = np.log(2) + (n + 1) / 2 * np.log(np.pi) - math.lgamma((n + 1) / 2)
    peak, log_peak, below = (truncated(each, TOLERANCE[dtype]) for each in series)
    return Fits(n, peak, log_peak, below, float(log_area))


def hazard_integral(n: int, w: np.ndarray, slope: np.ndarray, order: int = 0) -> np.ndarray:
    """Compute J(w, L) for L = `slope`, or -dJ/dL with `order` 1."""
    w, slope = (np.asarray(x, float)[..., None] for x in np.broadcast_arrays(w, slope))
    width = 1 / (slope + np.sqrt(n) + 0.7)
    z = np.minimum(HALF_LINE * width, 300)
    one_less_t = 2 * np.exp(-2 * z) / (1 + np.exp(-2 * z))
    t = np.tanh(z)
    denominator = np.where(w < 0, one_less_t + (1 + w) * t, 1 + w * t)
    ratio = t / denominator
    exponent = (n * w - slope) * ratio + (n / 2) * (np.log(one_less_t) + np.log1p(t)) - n * np.log(denominator)
    value = np.exp(exponent) * (HALF_LINE_WEIGHTS * width)
    integral: np.ndarray = (value * ratio if order else value).sum(-1)
    return integral


def ends(surface: Surface, n: float, w: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest L that a `Surface` covers at `w`, a NumPy or JAX array."""
    if surface.near:
        return -0.05, float(n)
    return -0.68 * (w * w) - 0.02, n * w + surface.reach * (1 - w)


def variable_range(
    surface: Surface, n: float, w: Any, reciprocal: Callable[[Any], Any] = np.reciprocal
) -> tuple[Any, Any]:
    """Return the smallest and the largest r / (L + r) that a `Surface` covers at `w`, a NumPy or JAX array."""
    smallest, largest = ends(surface, n, w)
    inverse: Callable[[Any], Any] = (lambda x: 1 / x) if surface.near else reciprocal
    return surface.scale * inverse(largest + surface.scale), surface.scale * inverse(smallest + surface.scale)


def largest_gamma(shape: float, tail: float) -> float:
    """Return the value that a gamma variable exceeds with probability `tail`."""
    # Import SciPy at first use, since this takes a quarter of a second.
    from scipy import special

    number: float = special.gammainccinv(shape, tail)
    return number


@functools.cache
def surface(n: int, dtype: str, smallest: float, near: bool, order: int = 0) -> Surface:
    """Return the `Surface` of J (L + r), or of -dJ/dL (L + r)^2 with `order` 1, for tails down to `smallest`."""
    found = shipped.find(surface_name(n, dtype, smallest, near, order))
    if found is None:
        return computed_surface(n, dtype, smallest, near, order)
    rows, (reach,) = found
    return Surface(rows, near, surface_scale(n), reach)


def surface_name(n: int, dtype: str, smallest: float, near: bool, order: int) -> str:
    """Return the name of a `surface` in the file."""
    return f"surface {n} {dtype} {smallest.hex()} {'near' if near else 'far'} {order}"


def surface_scale(n: int) -> float:
    """Return the number r of a `Surface`."""
    return float(3 * np.sqrt(n) + 0.5)


def computed_surface(n: int, dtype: str, smallest: float, near: bool, order: int = 0) -> Surface:
    """Fit a `surface`."""
    # On the far side, at infinite concentration, kappa (1 + w) has a gamma distribution.
    reach = 0.0 if near else float(1.02 * largest_gamma(n / 2, smallest))
    wide = dtype == "float64" or smallest < 1e-20
    if near:
        shape = (30, 48) if wide else (18, 24)
    else:
        # As a function of w, the range of the variable has a pole at 1 + (n + r) / (reach - n), near 1 for deep tails.
        deep = smallest < SMALLEST_QUANTILE["float64"]
        shape = ((224 if deep else 96) if dtype == "float64" else 44, 56 if wide else 28)
    bare = Surface((), near, surface_scale(n), reach)
    a, x = np.meshgrid(*(chebyshev_points(size) for size in shape), indexing="ij")
    w = 0.51 * a + 0.49 if near else a
    low, high = variable_range(bare, n, w)
    slope = bare.scale * (1 / (0.5 * (x + 1) * (high - low) + low) - 1)
    values = hazard_integral(n, w, slope, order) * (slope + bare.scale) ** (1 + order)
    series = interpolating_series(interpolating_series(values).T).T
    large = np.abs(series) > TOLERANCE[dtype] * np.abs(series[0, 0])
    rows = np.flatnonzero(large.any(1))[-1] + 1
    # Keep at least three coefficients of each row, so that the compiler finds no product with 0 to simplify.
    counts = [max(*np.flatnonzero(row), 2, 2) + 1 for row in large[:rows]]
    return bare._replace(
        rows=tuple(tuple(chebyshev.cheb2poly(row[:count]).tolist()) for row, count in zip(series, counts, strict=False))
    )


def closed_base(n: int, t: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return half the log odds at the far pole's tail `t` in three dimensions, with t^(2/n) in place of t."""
    x = np.maximum(4 * s / (1 - s * s), 1e-2)
    tau = np.exp(np.log(t) * (2 / n))
    own = np.log1p(tau * np.expm1(np.minimum(x, 600))) / x
    other = -np.log(tau + (1 - tau) * np.exp(-x)) / x
    own, other = np.where(x < 600, own, 1 - other), np.where(x < 1, 1 - own, other)
    half_odds: np.ndarray = 0.5 * np.log(other / own)
    return half_odds


@functools.cache
def fitted_guess(n: int, smallest: float, near: bool) -> Guess:
    """Return the `Guess` on one side for tails down to `smallest`."""
    found = shipped.find(guess_name(n, smallest, near))
    if found is None:
        return computed_guess(n, smallest, near)
    table, (largest_level, error) = found
    return Guess(table, largest_level, corrects_closed_base(n, smallest, near), error)


def guess_name(n: int, smallest: float, near: bool) -> str:
    """Return the name of a `fitted_guess` in the file."""
    return f"guess {n} {smallest.hex()} {'near' if near else 'far'}"


def corrects_closed_base(n: int, smallest: float, near: bool) -> bool:
    """Return whether a `Guess` corrects `closed_base`."""
    return not near and n < (2 if smallest < DEEP else 1) * CLOSED_BASE_BELOW


def computed_guess(n: int, smallest: float, near: bool) -> Guess:
    """Fit a `fitted_guess`.

    With the mode y*, the polynomial approximates (y - y*) sqrt(n (1 + s^2)), or y minus `closed_base` (see
    `CLOSED_BASE_BELOW`). The error to minimise is that of the logarithm of t.
    """
    base = corrects_closed_base(n, smallest, near)
    x = np.concatenate([[1.0], chebyshev_points(31), [-1.0]])
    s = np.clip((1 + x) / 2, 1e-6, 1 - 1e-7)[:, None]
    signed = s if near else -s
    largest = float(np.sqrt(LEVEL - np.log(2 * smallest)) - np.sqrt(LEVEL))
    level = np.linspace(0, largest, 32)
    t = 0.5 * np.exp(LEVEL - (level + np.sqrt(LEVEL)) ** 2)
    distance = reference_quantile(n, signed, t, smallest)
    width = np.sqrt(n * (1 + s * s))
    # The error of log t is that of y times the slope of f, but at the mode, where that slope is 0, times the width.
    weight = np.maximum(slope_of_density(n, signed, distance), width)
    if base:
        target = np.arctanh(signed) + distance - closed_base(n, t, s)
    else:
        target, weight = distance * width, weight / width
    table, error = lawson((x, 2 * level / largest - 1), guess_degrees(smallest, near, base), target, weight)
    return Guess(to_powers(table), largest, base, error)


def guess_degrees(smallest: float, near: bool, base: bool) -> tuple[int, int]:
    """Return the degrees of a `Guess` in the level and in s."""
    if near:
        return 4, 4
    if smallest < DEEP:
        return (8, 12) if base else (10, 20)
    return (5, 8) if base else (6, 12)


def reference_quantile(n: int, signed: np.ndarray, t: np.ndarray, smallest: float) -> np.ndarray:
    """Return the distances from the mode beyond which the probability is `t`, for each `signed` s.

    They interpolate the tails that the trapezoid rule gives on the `line` for tails down to `smallest`.
    """
    distance = line(n, smallest, 2001)
    density = np.exp(log_relative_density(n, signed, distance))
    tail = np.cumsum(density[:, ::-1], 1) - 0.5 * density[:, ::-1]
    log_tail = np.log(np.maximum(tail[:, ::-1] / tail[:, -1:], 1e-320))
    quantiles: np.ndarray = np.stack([np.interp(-np.log(t), -row, distance) for row in log_tail])
    return quantiles


def slope_of_density(n: int, signed: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return the size of the derivative of f, from a difference."""
    above, below = (log_relative_density(n, signed, distance + step) for step in (1e-4, -1e-4))
    slope: np.ndarray = np.abs(above - below) / 2e-4
    return slope


def lawson(
    variables: tuple[np.ndarray, np.ndarray], degrees: tuple[int, int], target: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the double Chebyshev series with nearly the least largest error times `weight`, and that error.

    The arguments are those of `least_squares`. Lawson's algorithm repeats least squares, here eight times, each time
    with larger weights where the error was large.
    """
    emphasis, best, least = np.ones_like(target), np.zeros((degrees[0] + 1, degrees[1] + 1)), np.inf
    x, level = variables
    for _ in range(8):
        table = least_squares(variables, degrees, target, weight * weight * emphasis)
        error = np.abs(chebyshev.chebval(level, chebyshev.chebval(x, table.T)) - target) * weight
        if error.max() < least:
            least, best = error.max(), table
        # The small constant keeps points in the fit where the error happens to be 0.
        emphasis = emphasis * (error / error.max() + 1e-3)
        emphasis /= emphasis.mean()
    return best, float(least)


def to_powers(series: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Return the power coefficients of a double Chebyshev series."""
    by_power = np.stack([all_powers(row) for row in series])
    by_power = np.stack([all_powers(column) for column in by_power.T]).T
    return tuple(map(tuple, by_power.tolist()))


def least_squares(
    variables: tuple[np.ndarray, np.ndarray], degrees: tuple[int, int], target: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return the weighted least squares fit of a double Chebyshev series to `target` on a grid.

    `target` and `weight` have an axis for each of the `variables`. The result has the second variable's degree first.
    """
    # The product of two Chebyshev polynomials is the mean of two, so the normal equations only need moments.
    across, along = (chebyshev.chebvander(x, 2 * degree) for x, degree in zip(variables, degrees[::-1], strict=True))

    def moments(values: np.ndarray) -> np.ndarray:
        by_place = np.einsum("qp,pa->qa", values, along, optimize=False)
        of_grid: np.ndarray = np.einsum("qa,qb->ab", by_place, across, optimize=False)
        return of_grid

    of_weight = moments(weight)
    i, j = (np.arange(degree + 1) for degree in degrees)
    by_level, by_place = ((np.add.outer(x, x), np.abs(np.subtract.outer(x, x))) for x in (i, j))
    matrix = np.sum(
        [of_weight[a[:, None, :, None], b[None, :, None, :]] for a, b in itertools.product(by_level, by_place)], 0
    )
    right = moments(weight * target)[: len(i), : len(j)]
    return solve(0.25 * matrix.reshape(right.size, right.size), right.ravel()).reshape(right.shape)


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve linear equations with a positive definite symmetric `matrix`."""
    size = len(right)
    rows = np.concatenate([matrix, right[:, None]], 1)
    for k in range(size - 1):
        rows[k + 1 :, k:] -= (rows[k + 1 :, k] / rows[k, k])[:, None] * rows[k, k:]
    solution = np.zeros(size)
    for k in range(size - 1, -1, -1):
        solution[k] = (rows[k, -1] - np.sum(rows[k, k:-1] * solution[k:])) / rows[k, k]
    return solution


def all_powers(series: np.ndarray) -> np.ndarray:
    """Return as many power coefficients as the Chebyshev `series` has terms."""
    powers = chebyshev.cheb2poly(series)
    return np.pad(powers, (0, len(series) - len(powers)))

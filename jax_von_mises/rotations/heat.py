r"""Compute the density, the score and quantiles of the isotropic Gaussian distribution of rotations.

The rotation from the mean has an angle :math:`\omega` in [0, pi] about a uniform axis. Its density with respect to the
uniform distribution is the heat kernel of the group of rotations,

.. math:: f(\omega) = \sum_{l \ge 0} (2l+1) e^{-l(l+1)\sigma^2/2} \frac{\sin((l + 1/2)\omega)}{\sin(\omega/2)}
    = \frac{\sqrt{2\pi} e^{\sigma^2/8}}{\sigma^3} \sum_k \frac{y_k}{\sin(y_k / 2)} e^{-y_k^2/(2\sigma^2)}
    \quad\text{with}\quad y_k = \omega + 2\pi k.

Wide distributions use the first series, of *waves*, as a polynomial of :math:`\cos^2(\omega/2)`. Narrow ones use the
second series, of *turns*, which follows from the first one by Poisson's formula; only k = 0 and k = -1 matter. The
density of the angle is :math:`p = (2/\pi)\sin^2(\omega/2) f`.

*Draws.* The quantile of the angle comes from Gauss-Legendre integrals of p, as for pairs of angles. The heat equation
gives its derivative at a fixed tail probability without another integral,

.. math:: \frac{d\omega}{d\sigma} = -\sigma\,\frac{f'(\omega)}{f(\omega)}.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import normal
from jax_von_mises.numerics.elementary import aligned, polynomial, sine_over, valid
from jax_von_mises.numerics.quadrature import add_terms, gauss_legendre, tail_step
from jax_von_mises.numerics.table import QuantileTable, two_tails
from jax_von_mises.sphere import vectors

OfRelative = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Range(NamedTuple):
    """Where a dtype uses which series, and how far."""

    narrow: float
    """Below this scale, turns are used at every angle."""
    wide: float
    """Below this scale, turns are used from the angle `BORDER` on, where waves would cancel."""
    waves: int
    """Number of waves; the others are below 2e-9 (float32) or 2e-15 (float64) of the sum."""
    nodes: int
    """Number of nodes of the rule that integrates p."""
    depth: float
    """By how much the exponent falls before a tail is cut off."""
    steps: int
    """Number of steps to a quantile."""


RANGE = {
    "float32": Range(narrow=0.8, wide=1.25, waves=8, nodes=14, depth=20.0, steps=3),
    "float64": Range(narrow=0.6, wide=0.9, waves=15, nodes=26, depth=42.0, steps=4),
}
BORDER = 1.5
# Below this angle, the turn k = -1 does not matter for scales at which turns are used.
NEAREST = 1.0
# Scales beyond these give draws and densities that differ by less than rounding: proportional to the scale, or uniform.
SMALLEST, LARGEST = 1e-18, 30.0
# Scales below this one count as it where a quantile in the upper half starts from the density at pi.
FLAT = 0.3
# Coefficients of (1 - (w / 2) cot(w / 2)) / w^2 in powers of w^2, 2 zeta(2 n) / (2 pi)^(2 n) for n = 1, 2, ...
ZETA = np.pi**2 / 6, *(sum(float(j) ** (-2 * n) for j in range(3000, 0, -1)) for n in range(2, 11))
LESS_POLE = tuple(2 * zeta / (2 * np.pi) ** (2 * n) for n, zeta in enumerate(ZETA, 1))


@functools.cache
def wave_coefficients(count: int) -> np.ndarray:
    """Return, for each l, the coefficients of (2l+1) sin((l+1/2) w) / sin(w/2) in powers of cos(w/2)^2."""
    rows = np.zeros((count, count))
    rows[0, 0], rows[1, :2] = 1, (-1, 4)
    for order in range(2, count):
        rows[order] = 4 * np.roll(rows[order - 1], 1) - 2 * rows[order - 1] - rows[order - 2]
    found: np.ndarray = rows * (2 * np.arange(count)[:, None] + 1)
    return found


def waves(sigma: jax.Array) -> list[jax.Array]:
    """Return the coefficients of f in powers of cos(w/2)^2."""
    count = RANGE[sigma.dtype.name].waves
    square = sigma * sigma
    weights = [jnp.exp((-0.5 * order * (order + 1)) * square) for order in range(1, count)]
    rows = wave_coefficients(count).tolist()
    return [
        rows[0][j] + xla.tree_sum([w * rows[order][j] for order, w in enumerate(weights, 1) if rows[order][j] != 0])
        for j in range(count)
    ]


def power_series(terms: list[jax.Array], x: jax.Array) -> jax.Array:
    """Return the sum of terms[j] x^j; unlike those of `elementary.polynomial`, the terms broadcast with `x`."""
    total = terms[-1]
    for term in terms[-2::-1]:
        total = total * x + term
    return total


class Angle(NamedTuple):
    """An angle in [0, pi], with relative accuracy at both ends."""

    angle: jax.Array
    rest: jax.Array
    """pi minus the angle."""

    @classmethod
    def of_signed(cls, signed: jax.Array) -> Self:
        """Return the angle that one number holds: the angle itself up to pi / 2, minus the rest beyond."""
        beyond = signed < 0
        return cls(jnp.where(beyond, np.pi + signed, signed), jnp.where(beyond, -signed, np.pi - signed))

    @property
    def signed(self) -> jax.Array:
        """The number from which `of_signed` restores the angle."""
        return jnp.where(self.rest < self.angle, -self.rest, self.angle)

    @property
    def half_sine(self) -> jax.Array:
        """The sine of half the angle."""
        half = 0.5 * self.angle
        return half * sine_over(half * half)

    @property
    def half_cosine(self) -> jax.Array:
        """The cosine of half the angle."""
        half = 0.5 * self.rest
        return half * sine_over(half * half)

    def moved(self, step: jax.Array) -> Self:
        """Return the angle plus `step`."""
        return type(self)(self.angle + step, self.rest - step)


class Kernel(NamedTuple):
    """f at one scale, or at a scale for each angle."""

    sigma: jax.Array
    """Within `SMALLEST` and `LARGEST`."""
    coefficients: list[jax.Array]
    """Those of `waves`."""

    @classmethod
    def of(cls, sigma: jax.Array) -> Self:
        """Return the kernel at a scale, which is clipped."""
        sigma = jnp.clip(sigma, SMALLEST, LARGEST)
        return cls(sigma, waves(jnp.maximum(sigma, RANGE[sigma.dtype.name].narrow)))

    def by_turns(self, angle: jax.Array) -> jax.Array:
        """Return whether the series of turns is used."""
        limits = RANGE[self.sigma.dtype.name]
        return (self.sigma < limits.narrow) | ((self.sigma < limits.wide) & (angle >= BORDER))

    @property
    def of_turns(self) -> jax.Array:
        """The scale, or a smaller one where only waves are used."""
        return jnp.minimum(self.sigma, RANGE[self.sigma.dtype.name].wide)

    def turn_before(self, at: Angle) -> jax.Array:
        """Return by how much the term of k = -1 raises that of k = 0, as a share of it."""
        fall = (2 * np.pi) * at.rest / jnp.square(jnp.maximum(self.of_turns, 1e-8))
        return jnp.exp(-fall) * (np.pi + at.rest) / jnp.maximum(at.angle, NEAREST)

    @property
    def log_peak(self) -> jax.Array:
        """The logarithm of the factor before the sum of turns."""
        sigma = self.of_turns
        return (sigma * sigma / 8 + 0.5 * math.log(2 * np.pi)) - 3 * jnp.log(sigma)

    def log_density(self, at: Angle) -> jax.Array:
        """Return log f."""
        angle, sigma = at.angle, self.of_turns
        turns = (self.log_peak - 0.5 * jnp.square(angle / sigma)) + (
            jnp.log1p(self.turn_before(at)) - jnp.log(0.5 * sine_over(jnp.square(0.5 * angle)))
        )
        return jnp.where(
            self.by_turns(angle), turns, jnp.log(power_series(self.coefficients, jnp.square(at.half_cosine)))
        )

    def relative(self, at: Angle, base: jax.Array, step: jax.Array) -> jax.Array:
        """Return (sin(w/2) / s)^2 f over exp(`log_peak` - (base / s)^2 / 2) at the angle w, which is `base` + `step`.

        Here s is `of_turns`, so that nothing overflows or underflows.
        """
        sigma, sine = self.of_turns, at.half_sine / self.of_turns
        turns = jnp.exp(-0.5 * (step / sigma) * ((at.angle + base) / sigma)) * (
            (at.angle / sigma) * sine * (1 + self.turn_before(at))
        )
        wide = jnp.maximum(sigma, RANGE[sigma.dtype.name].narrow)
        factor = jnp.exp(0.5 * jnp.square(base / wide) - self._replace(sigma=wide).log_peak)
        by_waves = factor * (sine * sine) * power_series(self.coefficients, jnp.square(at.half_cosine))
        return jnp.where(self.by_turns(at.angle), turns, by_waves)

    def slope_per_angle(self, at: Angle) -> jax.Array:
        """Return f' / (f w) at the angle w."""
        square = jnp.square(self.of_turns)
        near = polynomial(LESS_POLE, jnp.square(jnp.minimum(at.angle, NEAREST))) - 1 / square
        # Both terms of the sum, with exponential functions that cannot overflow. Far from pi, where the first term
        # prevails, `decay` is small. Near pi, both cancel to a multiple of the rest. Angles below `NEAREST` are not
        # used here.
        angle, rest = jnp.maximum(at.angle, NEAREST), jnp.minimum(at.rest, np.pi - NEAREST)
        a = np.pi * rest / jnp.maximum(square, 1e-16)
        decay = jnp.exp(-2 * a)
        decay = 2 * decay / (1 + decay)
        bend = (rest * rest + np.pi**2) - square
        prevails = (square - angle * angle + bend * decay) / (square * (angle + rest * decay))
        t = jnp.tanh(a)
        cancels = (2 * np.pi * rest - bend * t) / (square * (np.pi - rest * t))
        half = 0.5 * rest
        tangent = jnp.tan(half)
        far = (jnp.where(a > 1, prevails, cancels) - 0.5 * tangent) / angle
        turns = jnp.where(at.angle < NEAREST, near, far)
        z = jnp.square(at.half_cosine)
        rise = power_series([j * c for j, c in enumerate(self.coefficients)][1:], z) / power_series(
            self.coefficients, z
        )
        by_waves = -0.5 * at.half_cosine * sine_over(jnp.square(0.5 * at.angle)) * rise
        return jnp.where(self.by_turns(at.angle), turns, by_waves)


def tail_of_angle(kernel: Kernel, at: Angle, sign: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the integral of p / p(w) from the angle w to pi (`sign` 1) or 0 (-1), and `Kernel.relative` there."""
    limits = RANGE[at.angle.dtype.name]
    unit = jnp.minimum(kernel.sigma, 1)
    x = at.angle / unit
    cut = unit * (2 * limits.depth / (x + jnp.sqrt(x * x + 2 * limits.depth)))
    length = sign * jnp.where(sign > 0, jnp.minimum(at.rest, cut), at.angle)
    here = kernel.relative(at, at.angle, jnp.zeros_like(length))

    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        step = length * node
        return (weight * kernel.relative(at.moved(step), at.angle, step),)

    (total,) = add_terms(term, *gauss_legendre(limits.nodes), length, loop=True)
    return jnp.abs(length) * total / here, here


def quantile(t: jax.Array, upper: jax.Array, sigma: jax.Array) -> jax.Array:
    """Return the `Angle.signed` with the probability `t` in (0, 1/2] beyond it, towards pi (`upper`) or 0.

    The probability has a relative error of at most 4e-6 (float32) or 1e-12 (float64), or the angle or its rest is
    within 4 ulp.
    """
    kernel = Kernel.of(sigma)
    sign = jnp.where(upper, 1, -1).astype(t.dtype)
    share = (math.sqrt(8 / np.pi) * jnp.exp(kernel.of_turns * kernel.of_turns / 8)) / t

    def step(_: int, signed: jax.Array) -> jax.Array:
        at = Angle.of_signed(signed)
        integral, here = tail_of_angle(kernel, at, sign)
        # The argument of the logarithm is near 1 in the lower tail, so that no digits are lost there.
        excess = jnp.log(share * ((integral / kernel.of_turns) * here)) - 0.5 * jnp.square(at.angle / kernel.of_turns)
        slope = kernel.slope_per_angle(at) * at.angle + at.half_cosine / at.half_sine
        step = tail_step(integral, excess, 1 + sign * integral * slope)
        room = jnp.where(upper, at.rest, at.angle)
        return at.moved(sign * jnp.minimum(step, 0.5 * room)).signed

    signed: jax.Array = lax.fori_loop(0, RANGE[t.dtype.name].steps, step, first_guess(kernel, t, upper))
    return signed


def first_guess(kernel: Kernel, t: jax.Array, upper: jax.Array) -> jax.Array:
    """Return an `Angle.signed` from which `quantile` starts."""
    sigma = kernel.sigma
    zero, pi = jnp.zeros_like(sigma), jnp.full_like(sigma, np.pi)
    # Near 0, p is nearly that of a normal vector in three dimensions.
    at_zero = Angle(zero, pi)
    spread = 1 / jnp.sqrt(1 / 6 - kernel.slope_per_angle(at_zero))
    v = jnp.exp((jnp.log((6 * np.pi) * t) - kernel.log_density(at_zero)) / 3 - jnp.log(spread))
    low = spread * v * (1 + v * v * (0.1 + 0.04 * v * v))
    # In the upper tail, use Wilson and Hilferty's approximation for the length of such a vector.
    z = normal.quantile(t, 0.5 - t, jnp.zeros_like(t, bool))
    root = jnp.sqrt(25 / 27 + math.sqrt(2 / 27) * z)
    far = (spread * math.sqrt(3)) * (root * root * root)
    # Near pi, p is nearly a multiple of a hyperbolic cosine (or a cosine).
    flat = Kernel.of(jnp.maximum(sigma, FLAT))
    at_pi = Angle(pi, zero)
    square = jnp.square(flat.of_turns)
    by_waves = 0.5 * flat.coefficients[1] / flat.coefficients[0]
    rate = jnp.where(flat.by_turns(pi), (np.pi / square) ** 2 - 3 / square + 0.25, by_waves) - 0.5
    size = jnp.sqrt(jnp.maximum(jnp.abs(rate), 1e-6))
    y = size * t * jnp.exp(math.log(np.pi / 2) - flat.log_density(at_pi))
    sine = jnp.minimum(y, 1)
    square = sine * sine
    nearly_arcsine = sine * (1 + square * (1 / 6 + 0.4 * square))
    # `jnp.arcsinh` and `jnp.arcsin` are slow on CPUs.
    rest = jnp.where(rate > 0, jnp.log1p(y + y * (y / (1 + jnp.sqrt(1 + y * y)))), nearly_arcsine) / size
    rest = jnp.minimum(rest, 0.9 * np.pi)
    high = jnp.where(rest < np.pi - far, Angle(far, np.pi - far).signed, Angle(np.pi - rest, rest).signed)
    return jnp.where(upper, high, Angle(low, np.pi - low).signed)


def quantile_table(sigma: jax.Array) -> QuantileTable:
    """Tabulate `quantile`, for the upper tail and then for the lower one."""
    tau, upper = two_tails(sigma.dtype)
    t = jnp.asarray(tau, sigma.dtype)
    at = Angle.of_signed(quantile(t, jnp.asarray(upper), jnp.broadcast_to(sigma, t.shape)))
    # The polynomial of a cell needs one form for the whole cell.
    return QuantileTable.of(jnp.where(at.rest[:, :1] < at.angle[:, :1], -at.rest, at.angle))


def slope_by_sigma(signed: jax.Array, sigma: jax.Array) -> jax.Array:
    """Return the derivative of a `quantile`, as an angle, with respect to the scale."""
    at, kernel = Angle.of_signed(signed), Kernel.of(sigma)
    return (-kernel.sigma * kernel.slope_per_angle(at)) * at.angle


def small_share(sigma: jax.Array) -> jax.Array:
    """Return the share of `SMALLEST` that a smaller scale is, or 1."""
    return jnp.minimum(sigma, SMALLEST) * (1 / SMALLEST)


# ------------------------------------------------------------------------------------------------
# rotations


def relative(mean: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the scalar and vector part of the quaternion of the rotation from `mean` to `value`, up to its length.

    Quaternions are along the last axis. Small vector parts have relative accuracy. The scalar part is not negative.
    """
    ndim = max(mean.ndim, value.ndim)
    unit, lost = (aligned(each, ndim) for each in vectors.direction_of(mean))
    y = aligned(vectors.unit_of(value).y, ndim)
    cosine = xla.tree_sum([unit[..., j] * y[..., j] for j in range(4)])
    sign = jnp.where(cosine < 0, -1, 1).astype(y.dtype)
    m = [unit[..., j] for j in range(4)]
    difference = (sign[..., None] * y - unit) - lax.stop_gradient(lost)
    d = [difference[..., j] for j in range(4)]
    vector = [
        (m[0] * d[1] - m[1] * d[0]) - (m[2] * d[3] - m[3] * d[2]),
        (m[0] * d[2] - m[2] * d[0]) - (m[3] * d[1] - m[1] * d[3]),
        (m[0] * d[3] - m[3] * d[0]) - (m[1] * d[2] - m[2] * d[1]),
    ]
    return sign * cosine, jnp.stack(vector, -1)


def place(signed: jax.Array, axis: jax.Array, mean: jax.Array) -> jax.Array:
    """Return the quaternions of rotations by the angles of `quantile` about unit vectors `axis`, then by `mean`."""
    at, unit = Angle.of_signed(signed), aligned(mean, signed.ndim + 1)
    m = [unit[..., j] for j in range(4)]
    sine, cosine = at.half_sine, at.half_cosine
    vector = [sine * axis[..., j] for j in range(3)]
    # A Newton step towards length 1.
    unit_length = 1.5 - 0.5 * (cosine * cosine + xla.tree_sum([v * v for v in vector]))
    x, y, z = (v * unit_length for v in vector)
    # The product with a quaternion minus 1 keeps the digits of small angles.
    less = -(x * x + y * y + z * z) / (1 + cosine * unit_length)
    moved = [
        m[0] * less - (m[1] * x + m[2] * y + m[3] * z),
        (m[1] * less + m[0] * x) + (m[2] * z - m[3] * y),
        (m[2] * less + m[0] * y) + (m[3] * x - m[1] * z),
        (m[3] * less + m[0] * z) + (m[1] * y - m[2] * x),
    ]
    return unit + jnp.stack(moved, -1)


def rotation_angle(scalar: jax.Array, vector: jax.Array) -> tuple[Angle, jax.Array]:
    """Return the angle of a rotation, and what the vector part times half of it gives: the rotation vector."""
    square = vectors.sum_of_squares(vector)
    some = square > 0
    length = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 0)
    at = Angle(2 * jnp.arctan2(length, scalar), 2 * jnp.arctan2(scalar, length))
    return at, jnp.where(some, at.angle / jnp.where(some, length, 1), 2 / jnp.where(some, 1, scalar))


@jax.custom_jvp
def log_density(scalar: jax.Array, vector: jax.Array, sigma: jax.Array) -> jax.Array:
    """Return log f for the parts of `relative`."""
    at, _ = rotation_angle(scalar, vector)
    found = Kernel.of(sigma).log_density(at)
    # Equal rotations differ by rounding.
    equal = at.angle <= 4 * jnp.finfo(sigma.dtype).eps
    return jnp.where(sigma == 0, jnp.where(equal, jnp.inf, -jnp.inf), found)


@log_density.defjvp
def _log_density_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    scalar, vector, sigma = primals
    at, per_length = rotation_angle(scalar, vector)
    square = vectors.sum_of_squares(vector)
    slope = 2 * Kernel.of(sigma).slope_per_angle(at) * per_length / (scalar * scalar + square)
    across = scalar * jnp.sum(vector * tangents[1], -1) - square * tangents[0]
    fixed = Angle(*map(lax.stop_gradient, at))
    _, rise = jax.jvp(lambda sigma: Kernel.of(sigma).log_density(fixed), (sigma,), (jnp.ones_like(sigma),))
    rise = jnp.where((sigma <= SMALLEST) | (sigma >= LARGEST), 0, rise)
    return log_density(*primals), slope * across + rise * tangents[2]


def score(scalar: jax.Array, vector: jax.Array, sigma: jax.Array) -> jax.Array:
    """Return the gradient of log f with respect to a rotation vector about axes that turn with the rotation."""
    at, per_length = rotation_angle(scalar, vector)
    return (Kernel.of(sigma).slope_per_angle(at) * per_length)[..., None] * vector


# Number of intervals, and upper end in units of the scale, of the trapezoidal rule for means over all angles.
MEAN_RULE = {"float32": (64, 8.0), "float64": (128, 11.0)}


def sums_over_angles(kernel: Kernel, function: Callable[[Angle], jax.Array]) -> tuple[jax.Array, ...]:
    """Return sums that are proportional to the integral of p over all angles, and to that of p times a function."""
    intervals, reach = MEAN_RULE[kernel.sigma.dtype.name]
    length = jnp.minimum(reach * kernel.sigma, np.pi)

    # p is even about 0 and pi, where it is 0 or is cut off.
    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        angle = length * node
        at = Angle(angle, (np.pi - length) + length * (1 - node))
        p = weight * kernel.relative(at, jnp.zeros_like(angle), angle)
        return p, p * function(at)

    nodes = np.arange(1, intervals + 1) / intervals
    weights = np.where(nodes < 1, 1, 0.5)
    return add_terms(term, nodes.tolist(), weights.tolist(), length, loop=True)


def root_mean_square_score(sigma: jax.Array) -> jax.Array:
    """Return the square root of the mean of the squared length of the score, with a relative error of 2e-6 or 1e-13."""
    sigma, share = valid(sigma), small_share(valid(sigma))
    kernel = Kernel.of(sigma)

    def scaled_square(at: Angle) -> jax.Array:
        return jnp.square(kernel.slope_per_angle(at) * at.angle * jnp.minimum(kernel.sigma, 1))

    total, squares = sums_over_angles(kernel, scaled_square)
    some = squares > 0
    root = jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1) / total), 0)
    return root / (jnp.minimum(kernel.sigma, 1) * share)

r"""Compute the tail integral, from which all functions of the von Mises distribution follow, and its derivatives.

The distribution is symmetric about `loc`, so all formulas are for the distance :math:`x \in [0, \pi]` from `loc`. At
the concentration :math:`\kappa`,

.. math:: q(x) = 2\kappa\sin^2(x/2), \qquad p(x) = e^{-q(x)} / N, \qquad N = 2\pi e^{-\kappa} I_0(\kappa).

The integral J gives the tail probability and the quantile, and :math:`J_1` gives the derivative of the quantile:

.. math:: J(x) = \int_x^{end} e^{q(x)-q(\theta)} d\theta, \qquad
          J_1(x) = \int_x^{end} (\cos\theta - A) e^{q(x)-q(\theta)} d\theta, \qquad A = I_1/I_0.

The second derivative needs :math:`J_2`, which has the factor :math:`(\cos\theta - A)^2 - A'` instead.

For :math:`end = \pi`, the *tail*, :math:`P(X > x) = J p`. For :math:`end = 0`, the *centre*, J is negative and
:math:`P(0 < X < x) = -J p`. Computing the side with less mass keeps full relative accuracy at both ends.

*Derivative.* With the cdf F, :math:`dx/d\kappa = -(\partial F/\partial\kappa) / p = J_1` at a fixed tail probability,
for the tail and for the centre.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import coefficients, quadrature
from jax_von_mises.numerics.circle import HALF_PI
from jax_von_mises.numerics.elementary import (
    COSINE64,
    LOG2_E,
    SINE64,
    cosine,
    exp2_in_sum,
    polynomial,
    polynomial_at,
    sine_over,
    with_slopes,
)
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.density import KAPPA_MIN, HalfAngle, score

# Above this concentration, the distribution is normal to rounding, and angles scale with kappa^-1/2.
KAPPA_MAX = 1e18
# If the sine of a tail's interval is below this fraction of sin(x), the interval is computed from its sine.
SHORT = 0.1
# Integrals are over the centre where 2 sin^2(x/2) (1 + kappa) is below this bound. With a smaller bound, the seven
# nodes would not reach float32 accuracy in the tail. With a larger one, the centre would hold so much mass that its
# rounding error would be noticeable in the tail.
CENTRE = 0.5
# Coefficients of 2 arcsin(sqrt(s)) / sqrt(s) in powers of s for s in [0, 1/2], with an error of 2e-6.
ARCSINE = (2.0, 0.33347781, 0.14624456, 0.12035545, -0.04619342, 0.19143589)
# Terms of sines and cosines below this bound are left out.
NEGLIGIBLE = 1e-14


class Rule(NamedTuple):
    """A quadrature rule on [0, 1] for the interval of half angles up to where the tail is cut off."""

    nodes: Sequence[float]
    weights: Sequence[float]
    depth: float
    """By how much the exponent grows up to the cut-off."""


RULES = {
    "float32": Rule(coefficients.RULE_NODES, coefficients.RULE_WEIGHTS, coefficients.RULE_DEPTH),
    "float64": Rule(coefficients.RULE64_NODES, coefficients.RULE64_WEIGHTS, coefficients.RULE64_DEPTH),
}
# The float32 rule for tails that no sample reaches.
FAR_RULE = Rule(*quadrature.gauss_legendre(12), 18.0)


def integrals(
    x: jax.Array,
    kappa: jax.Array,
    inverse: jax.Array,
    order: int = 0,
    rule: Rule | None = None,
    deep: bool | jax.Array = True,
    loop: bool = False,
) -> tuple[list[jax.Array], jax.Array, HalfAngle]:
    """Return J, J1 and J2 at `x` up to `order`, whether they are integrals over the centre, and the `HalfAngle`.

    In the tail, the quadrature runs over the half angle, from x / 2 to where the exponent has grown by the rule's
    depth, or to pi / 2. Differences of exponents come from sin^2 b - sin^2 a = sin(b - a) sin(b + a), because
    subtracting the two large exponents would leave their rounding errors.

    By default, the `rule` is that for samples of the dtype. `deep` tells which elements may be in tails that no sample
    reaches: all, none, or those of a mask, on which the results of other elements do not depend. `loop` is that of
    `quadrature.add_terms`.
    """
    rule = rule or RULES[x.dtype.name]
    half = HalfAngle.of(x, exact=rule is FAR_RULE or x.dtype == jnp.float64)
    centre = 2 * half.square * (1 + kappa) < CENTRE
    span = jnp.where(centre, -half.angle, tail_span(half, inverse, rule.depth, deep))
    complement = bessel.ratio_complement(kappa, inverse) if order > 0 else 0.0
    slope = bessel.slope(kappa) if order > 1 else 0.0
    exponent_at = exponents(half.sin, half.cos, span, kappa)

    def term(node: float | jax.Array, weight: float | jax.Array) -> tuple[jax.Array, ...]:
        exponent = exponent_at(node)
        growth = exp2_in_sum(exponent)
        value = (2 * weight) * growth
        if order == 0:
            return (value,)
        rise = exponent * ((-0.5 / LOG2_E) * inverse)
        factor = complement - 2 * (half.square + rise)
        # Only one sum may read `value`; otherwise XLA would not contract it into the sum, and J would be rounded
        # differently from that of order 0.
        first = value, ((2 * weight) * factor) * growth
        return first if order == 1 else (*first, value * (factor * factor - slope))

    return [span * total for total in quadrature.add_terms(term, rule.nodes, rule.weights, x, loop)], centre, half


def tail_span(half: HalfAngle, inverse: jax.Array, depth: float, deep: bool | jax.Array) -> jax.Array:
    """Return the length of a tail's interval of half angles (see `integrals`)."""
    growth = (0.5 * depth) * inverse
    square_at_end = jnp.minimum(half.square + xla.round_here(growth, 2), 1)
    rest_at_end = 1 - square_at_end
    if inverse.dtype == jnp.float64:
        # This rule needs an exact cut to have few nodes.
        smaller = jnp.minimum(square_at_end, rest_at_end)
        angle = lax.sqrt(smaller) * (0.5 * polynomial(ARCSINE, smaller))
        end = jnp.where(square_at_end < 0.5, angle, HALF_PI - angle)
    else:
        end = lax.sqrt(square_at_end) * polynomial(coefficients.CUT, rest_at_end)
    tail, cut = end - half.angle, square_at_end < 1
    if deep is not False:
        # Far in the tail at large concentrations, the difference above cancels, and the interval comes from
        # sin(b - a) = (sin^2 b - sin^2 a) / sin(b + a). Its end need not be exact, because the integrand is tiny there.
        sine = growth / jnp.maximum(half.sin, float(np.finfo(inverse.dtype).tiny))
        short = sine < SHORT * half.sin
        if deep is True:
            cut = growth < half.rest
        else:
            short = short & deep
        tail = jnp.where(short, growth / (half.sin + sine * half.cos), tail)
    return jnp.where(cut, tail, half.to_pole)


def exponents(
    sin_x: jax.Array, cos_x: jax.Array, span: jax.Array, kappa: jax.Array
) -> Callable[[float | jax.Array], jax.Array]:
    """Return a function that maps a node to the binary exponent -2 log2(e) kappa sin(d) sin(x + d), d = node * span."""
    square = span * span
    along, across = (kappa * sin_x) * span, (kappa * cos_x) * square

    def by_sines(node: Any) -> jax.Array:
        if isinstance(node, float):
            sine = polynomial_at(node, needed(SINE64, node), square, power=1)
            cos = polynomial_at(node, needed(COSINE64, node), square)
        else:
            sine, cos = node * sine_over((node * node) * square), cosine((node * node) * square)
        return ((-2 * LOG2_E) * sine) * (along * cos + across * sine)

    def by_products(node: float) -> jax.Array:
        # All nodes share the powers of the span.
        first = polynomial_at(node, coefficients.SIN_COS, square, power=1, factor=-2 * LOG2_E)
        second = polynomial_at(node, coefficients.SIN_SIN, square, power=2, factor=-2 * LOG2_E)
        return along * first + across * second

    known = square.dtype == jnp.float32
    return lambda node: by_products(node) if known and isinstance(node, float) else by_sines(node)


def needed(terms: Sequence[float], node: float) -> Sequence[float]:
    """Return the coefficients of a polynomial in (node span)^2 without negligible ones, which are the last."""
    sizes = [abs(c) * node ** (2 * j) * (np.pi / 2) ** (2 * j) for j, c in enumerate(terms)]
    return terms[: sum(size > NEGLIGIBLE for size in sizes)]


def derivative_slopes(d: jax.Array, x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of D: with the cdf F, D = -(dF/dkappa) / p, so dD/dx = kappa sin(x) D - (cos x - A)."""
    along, across = score(x, kappa)
    return -(along * d + across), second_derivative(x, kappa)


@with_slopes(derivative_slopes)
@xla.traced_once()
def derivative(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return D = d|x| / d kappa = J1, at a fixed tail probability; 0 at infinity, and NaN for NaN."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1), *_ = integrals(x, k, 1 / k, order=1)
    return at_any_concentration(j1, x, kappa)


def at_any_concentration(j1: jax.Array, x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return J1 at `x`, or its limit above `KAPPA_MAX`, where 2 kappa sin^2(x/2) stays constant."""
    return jnp.where(kappa > KAPPA_MAX, -tangent(HalfAngle.of(x)) / kappa, j1)


def tangent(half: HalfAngle) -> jax.Array:
    """Return tan(x/2), from whichever of cos^2(x/2) and sin^2(x/2) is not small."""
    near_pi = half.square > 0.5
    return jnp.where(near_pi, 2 * half.square, half.sin) / jnp.where(near_pi, half.sin, 2 * half.rest)


@xla.traced_once()
def second_derivative(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return dD/dkappa = J2 - D (cos x - A), at a fixed x."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1, j2), *_ = integrals(x, k, 1 / k, order=2)
    beyond = tangent(HalfAngle.of(x)) / kappa / kappa
    return jnp.where(kappa > KAPPA_MAX, beyond, j2 - j1 * score(x, k)[1])

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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jax_von_mises.numerics import bessel, coefficients, xla
from jax_von_mises.numerics.density import KAPPA_MIN, HalfAngle, score
from jax_von_mises.numerics.elementary import LOG2_E, cosine, exp2, polynomial, sine_over, with_slopes

# Above this concentration, the distribution is normal to rounding, and angles scale with kappa^-1/2.
KAPPA_MAX = 1e18
# If the sine of a tail's interval is below this fraction of sin(x), the interval is computed from its sine.
SHORT = 0.1
# Integrals are over the centre where 2 sin^2(x/2) (1 + kappa) is below this bound. With a smaller bound, the seven
# nodes would not reach float32 accuracy in the tail. With a larger one, the centre would hold so much mass that its
# rounding error would be noticeable in the tail.
CENTRE = 0.5


def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Return the Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (0.5 * (nodes + 1)).tolist(), (0.5 * weights).tolist()


# Nodes, weights and cut-off exponent for tails that no sample reaches.
FAR_NODES, FAR_WEIGHTS = gauss_legendre(12)
FAR_DEPTH = 18.0


def rule(dtype: DTypeLike, far: bool = False) -> tuple[Sequence[float], Sequence[float], float]:
    """Return the nodes, weights and cut-off exponent of the quadrature."""
    if dtype == jnp.float64:
        return coefficients.RULE64_NODES, coefficients.RULE64_WEIGHTS, coefficients.RULE64_DEPTH
    if far:
        return FAR_NODES, FAR_WEIGHTS, FAR_DEPTH
    return coefficients.RULE_NODES, coefficients.RULE_WEIGHTS, coefficients.RULE_DEPTH


def integrals(
    x: jax.Array,
    kappa: jax.Array,
    inverse: jax.Array,
    order: int = 0,
    dtype_rule: DTypeLike | None = None,
    far: bool = False,
    deep: jax.Array | None = None,
) -> tuple[list[jax.Array], jax.Array, HalfAngle]:
    """Return J, J1 and J2 at `x` up to `order`, whether they are integrals over the centre, and the `HalfAngle`.

    In the tail, the quadrature runs over the half angle, from x / 2 to where the exponent has grown by the rule's
    depth, or to pi / 2. Differences of exponents come from sin^2 b - sin^2 a = sin(b - a) sin(b + a), because
    subtracting the two large exponents would leave their rounding errors.

    `far` selects nodes for tails that no sample reaches. With the nodes for samples, `deep` marks the elements in such
    tails; the results of other elements do not depend on it.
    """
    nodes, weights, depth = rule(dtype_rule or x.dtype, far)
    half = HalfAngle.of(x, exact=far or x.dtype == jnp.float64)
    s0, sin_x, cos_x = half.square, half.sin, half.cos
    centre = 2 * s0 * (1 + kappa) < CENTRE
    s1 = jnp.minimum(s0 + xla.round_here((0.5 * depth) * inverse, 2), 1)
    end = lax.sqrt(s1) * polynomial(coefficients.CUT, 1 - s1)
    tail, cut = end - half.angle, s1 < 1
    if far or order > 0 or deep is not None:
        # Far in the tail at large concentrations, the difference above cancels, and the interval comes from
        # sin(b - a) = (sin^2 b - sin^2 a) / sin(b + a). Its end need not be exact, because the integrand is tiny there.
        delta = (0.5 * depth) * inverse
        sine = delta / jnp.maximum(sin_x, float(np.finfo(x.dtype).tiny))
        short = sine < SHORT * sin_x
        if deep is None:
            cut = delta < half.rest
        else:
            short = short & deep
        tail = jnp.where(short, delta / (sin_x + sine * cos_x), tail)
    span = jnp.where(centre, -half.angle, jnp.where(cut, tail, half.to_pole))
    complement = bessel.ratio_complement(kappa, inverse) if order > 0 else 0.0
    slope = bessel.slope(kappa) if order > 1 else 0.0
    exponent_at = exponents(sin_x, cos_x, span, kappa)

    def term(node: float | jax.Array, weight: float | jax.Array) -> tuple[jax.Array, ...]:
        exponent = exponent_at(node)
        value = (2 * weight) * exp2(exponent)
        if order == 0:
            return (value,)
        rise = exponent * ((-0.5 / LOG2_E) * inverse)
        factor = complement - 2 * (s0 + rise)
        first = value, value * factor
        return first if order == 1 else (*first, value * (factor * factor - slope))

    return [span * total for total in xla.add_terms(term, nodes, weights, x)], centre, half


def exponents(
    sin_x: jax.Array, cos_x: jax.Array, span: jax.Array, kappa: jax.Array
) -> Callable[[float | jax.Array], jax.Array]:
    """Return a function that maps a node to the binary exponent -2 log2(e) kappa sin(d) sin(x + d), d = node * span."""
    square = span * span
    along, across = (kappa * sin_x) * span, (kappa * cos_x) * square
    return lambda node: along * rise_along(node, square) + across * rise_across(node, square)


def rise_along(node: float | jax.Array, square: jax.Array) -> jax.Array:
    """Return -2 log2(e) sin(d) cos(d) / span for d = `node` * span, with `square` = span^2."""
    if square.dtype == jnp.float64:
        d2 = (node * node) * square
        return (-2 * LOG2_E * node) * sine_over(d2) * cosine(d2)
    # All nodes share the powers of the span.
    return polynomial([-2 * LOG2_E * c * node ** (2 * j + 1) for j, c in enumerate(coefficients.SIN_COS)], square)


def rise_across(node: float | jax.Array, square: jax.Array) -> jax.Array:
    """Return -2 log2(e) sin(d)^2 / span^2 for d = `node` * span, with `square` = span^2."""
    if square.dtype == jnp.float64:
        sine = node * sine_over((node * node) * square)
        return (-2 * LOG2_E) * sine * sine
    return polynomial([-2 * LOG2_E * c * node ** (2 * j + 2) for j, c in enumerate(coefficients.SIN_SIN)], square)


def derivative_slopes(d: jax.Array, x: jax.Array, kappa: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the derivatives of D: with the cdf F, D = -(dF/dkappa) / p, so dD/dx = kappa sin(x) D - (cos x - A)."""
    along, across = score(x, kappa)
    return -(along * d + across), second_derivative(x, kappa)


@with_slopes(derivative_slopes)
def derivative(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return D = d|x| / d kappa = J1, at a fixed tail probability; 0 at infinity, and NaN for NaN."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1), *_ = integrals(x, k, 1 / k, order=1)
    # Above `KAPPA_MAX`, 2 kappa sin^2(x/2) stays constant.
    return jnp.where(kappa > KAPPA_MAX, -tangent(HalfAngle.of(x)) / kappa, j1)


def tangent(half: HalfAngle) -> jax.Array:
    """Return tan(x/2), from whichever of cos^2(x/2) and sin^2(x/2) is not small."""
    near_pi = half.square > 0.5
    return jnp.where(near_pi, 2 * half.square, half.sin) / jnp.where(near_pi, half.sin, 2 * half.rest)


def second_derivative(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return dD/dkappa = J2 - D (cos x - A), at a fixed x."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1, j2), *_ = integrals(x, k, 1 / k, order=2)
    beyond = tangent(HalfAngle.of(x)) / kappa / kappa
    return jnp.where(kappa > KAPPA_MAX, beyond, j2 - j1 * score(x, k)[1])

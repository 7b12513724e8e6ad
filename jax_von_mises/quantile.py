r"""The quantile of the von Mises law: from a tail probability to an angle, without a loop.

The law is symmetric about `loc`, so everything is about :math:`x \in [0, \pi]`, with :math:`\kappa` the concentration,

.. math:: q(x) = 2\kappa\sin^2(x/2), \qquad p(x) = e^{-q(x)} / N, \qquad N = 2\pi e^{-\kappa} I_0(\kappa).

One integral serves the tail probability, the quantile and its derivative:

.. math:: J(x) = \int_x^{end} e^{q(x)-q(\theta)} d\theta, \qquad
          J_1(x) = \int_x^{end} (\cos\theta - A) e^{q(x)-q(\theta)} d\theta, \qquad A = I_1/I_0,

and :math:`J_2` with the factor :math:`(\cos\theta - A)^2 - A'`.

With :math:`end = \pi` ("tail") :math:`P(X > x) = J p`; with :math:`end = 0` ("centre", J < 0)
:math:`P(0 < X < x) = -J p`. Taking the side that holds less mass keeps full relative accuracy at both ends.

*Quantile.* For the tail probability t and c = 1/2 - t the distance to the root is, to first order,
:math:`u = J - t N e^q` (tail) or :math:`u = J + c N e^q` (centre). The root is the Taylor series of the inverse
function, x' = 1/p, in :math:`d = \kappa \sin(x) u` and :math:`e = \kappa \cos(x) u^2`; see `refine`. One step from
`guess` is enough for float32, and a second one for float64.

*Derivative.* At fixed t, :math:`dx/d\kappa = -(\partial F/\partial\kappa) / p = J_1`, on either side, and
:math:`dx/dt = -1/p`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises import bessel, tables
from jax_von_mises.density import (
    KAPPA_MIN,
    HalfAngle,
    density,
    log_density,
    rescaled,
    score,
    square_root,
)
from jax_von_mises.elementary import (
    LOG2_E,
    clip,
    cosine,
    exp2,
    exp_product,
    log2,
    polynomial,
    polynomial2,
    sine_over,
    unfused,
)

# Above, the law is normal to less than rounding, and the quantile scales with kappa^-1/2.
KAPPA_MAX = 1e18
# The angles lie in [-pi, pi): the largest float below pi, since the nearest float32 to pi is larger than pi.
LARGEST_ANGLE = {
    np.dtype(np.float32): float(np.nextafter(np.float32(np.pi), np.float32(0))),
    np.dtype(np.float64): float(np.pi),
}
# Half angles of the tail that are shorter than this share of the angle are computed from their sine.
SHORT = 0.1
# The side of the integrals changes where 2 sin^2(x/2) (1 + kappa) passes this. With less, the seven nodes do not
# reach float32 on the tail side; with more, the centre holds so much more mass than the tail that its rounding shows.
CENTRE = 0.5


def largest_angle(dtype):
    """The largest float below pi."""
    return LARGEST_ANGLE[np.dtype(dtype)]


# Gauss and Legendre's nodes and weights on [0, 1], and the cut-off exponent, for tails that no sample reaches.
FAR_NODES, FAR_WEIGHTS = (0.5 * (np.polynomial.legendre.leggauss(12) + np.array([[1.0], [0.0]]))).tolist()
FAR_DEPTH = 18.0


def rule(dtype, far=False):
    """Nodes, weights and cut-off exponent of the quadrature."""
    if dtype == jnp.float64:
        return tables.RULE64_NODES, tables.RULE64_WEIGHTS, tables.RULE64_DEPTH
    if far:
        return FAR_NODES, FAR_WEIGHTS, FAR_DEPTH
    return tables.RULE_NODES, tables.RULE_WEIGHTS, tables.RULE_DEPTH


def guess(t, kappa, inverse, root, wide=False):
    """Starting angle, float32, for the tail probability `t`; `inverse` and `root` are 1 / kappa and kappa^-1/2.

    The variable is a logit that saturates where the angle reaches pi, and vanishes with it at t = 1/2,

        L = log2((1 + E) / (2 t + E)),   E = exp(-2 kappa) = p(pi) / p(0).

    A polynomial in L / (2 + kappa) and 1 / (2 + kappa) covers small concentrations, one in L and 1 / kappa the
    rest; with `wide` for tails down to 2^-65. `tables` gives the error, as |dx| max(kappa sin x, sqrt(kappa)).
    """
    switch = tables.GUESS64_SWITCH if wide else tables.GUESS_SWITCH
    low_table = tables.GUESS64_LOW if wide else tables.GUESS_LOW
    high_table = tables.GUESS64_HIGH if wide else tables.GUESS_HIGH
    low = jnp.minimum(kappa, switch)
    floor = exp2((-2 * LOG2_E) * low)
    # Two logarithms side by side are quicker than a quotient and one: the chain is shorter.
    level = log2(1 + floor) - log2(2 * t + floor)
    shrink = 1 / (2 + low)
    y = level * shrink
    small = y * polynomial2(low_table, y, shrink)
    r = jnp.minimum(inverse, 1 / switch)
    large = (level * root) * polynomial2(high_table, level, r)
    return clip(jnp.where(kappa < switch, small, large), 0, largest_angle(t.dtype))


def integrals(x, kappa, inverse, order=0, dtype_rule=None, far=False):
    """J(x) and with `order` 1 or 2 the others of the module's head; whether the side is the centre; the `HalfAngle`.

    The quadrature runs in the half angle phi = x / 2, from phi to where the exponent has grown by the rule's
    depth, at most pi/2. Differences of exponents come from sin^2 b - sin^2 a = sin(b - a) sin(b + a), since
    the difference of the two large exponents themselves would be off by their rounding.
    """
    nodes, weights, depth = rule(dtype_rule or x.dtype, far)
    half = HalfAngle.of(x)
    s0, sin_x, cos_x = half.square, half.sin, half.cos
    centre = 2 * s0 * (1 + kappa) < CENTRE
    # The inner minimum changes no value: it keeps a product of the concentration alone from meeting a sum, where one
    # program contracts them and another, which has moved the product out of its loop, cannot. See `kernel`.
    s1 = jnp.minimum(s0 + jnp.minimum((0.5 * depth) * inverse, 2), 1)
    end = lax.sqrt(s1) * polynomial(tables.CUT, 1 - s1)
    tail, cut = end - half.angle, s1 < 1
    if far or order > 0:
        # Far out at a large concentration that cancels; there sin(b - a) = (sin^2 b - sin^2 a) / sin(b + a). Neither
        # has to be exact: what counts is that the integrand has nearly vanished at the end.
        delta = (0.5 * depth) * inverse
        sine = delta / jnp.maximum(sin_x, 1e-20)
        tail, cut = jnp.where(sine < SHORT * sin_x, delta / (sin_x + sine * cos_x), tail), delta < half.rest
    span = jnp.where(centre, -half.angle, jnp.where(cut, tail, half.to_pole))
    complement = bessel.ratio_complement(kappa, inverse) if order > 0 else None
    slope = bessel.slope(kappa) if order > 1 else None
    square = span * span
    along, across = (kappa * sin_x) * span, (kappa * cos_x) * square

    def term(node, weight):
        # The exponent is -2 k sin(d) sin(x + d), with d = node * span.
        exponent = along * rise_along(node, square) + across * rise_across(node, square)
        value = (2 * weight) * exp2(exponent)
        if order == 0:
            return (value,)
        rise = exponent * ((-0.5 / LOG2_E) * inverse)
        factor = complement - 2 * (s0 + rise)
        first = value, value * factor
        return first if order == 1 else (*first, value * (factor * factor - slope))

    return [span * total for total in sum_over(term, nodes, weights, x)], centre, half


def rise_along(node, square):
    """-2 log2(e) sin(d) cos(d) / span for d = `node` * span, with `square` = span^2."""
    if square.dtype == jnp.float64:
        d2 = (node * node) * square
        return (-2 * LOG2_E * node) * sine_over(d2) * cosine(d2)
    # All nodes share the powers of the span.
    return polynomial([-2 * LOG2_E * c * node ** (2 * j + 1) for j, c in enumerate(tables.SIN_COS)], square)


def rise_across(node, square):
    """-2 log2(e) sin(d)^2 / span^2, likewise."""
    if square.dtype == jnp.float64:
        sine = node * sine_over((node * node) * square)
        return (-2 * LOG2_E) * sine * sine
    return polynomial([-2 * LOG2_E * c * node ** (2 * j + 2) for j, c in enumerate(tables.SIN_SIN)], square)


def sum_over(term, nodes, weights, like):
    """Sums of the arrays of ``term(node, weight)``, of the shape and dtype of `like`."""
    if like.dtype == jnp.float64:
        # Unrolled, so many nodes of so long polynomials take XLA:CPU gigabytes to compile.
        def add(totals, at):
            return tuple(a + unfused(b) for a, b in zip(totals, term(*at), strict=True)), None

        first = term(nodes[0], weights[0])
        rest = jnp.asarray(nodes[1:], like.dtype), jnp.asarray(weights[1:], like.dtype)
        return lax.scan(add, first, rest)[0]
    columns = zip(*(term(node, weight) for node, weight in zip(nodes, weights, strict=True)), strict=True)
    return tuple(tree_sum(list(column)) for column in columns)


def tree_sum(terms):
    """Pairwise: the chain of dependent additions is short."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def refine(x, t, c, kappa, inverse, dtype_rule=None):
    """One step towards the quantile of `t`, from an `x` with a weighted error (see `guess`) below about 0.08.

    The series to fifth order; what it leaves is about the sixth power of the weighted error:

        x + u (1 + d/2 + (2 d^2 + e)/6 + (6 d^3 + 7 d e - d u^2)/24
                 + (24 d^4 + 46 d^2 e + 7 e^2 - 11 d^2 u^2 - e u^2)/120)
    """
    (j,), centre, half = integrals(x, kappa, inverse, dtype_rule=dtype_rule)
    n, shift = bessel.norm(kappa, inverse)
    u = j - jnp.where(centre, -c, t) * n * exp_product(kappa, half.parts, shift)
    u2 = u * u
    d = kappa * half.sin * u
    e = kappa * half.cos * u2
    d2 = d * d
    third = (1 / 3) * d2 + (1 / 6) * e
    fourth = d * (0.25 * d2 + (7 / 24) * e - (1 / 24) * u2)
    fifth = d2 * (0.2 * d2 + (46 / 120) * e - (11 / 120) * u2) + e * ((7 / 120) * e - (1 / 120) * u2)
    series = (0.5 * d + third) + (fourth + fifth)
    return clip(x + (u + u * series), 0, largest_angle(x.dtype))


def half_quantile(t, c, kappa):
    """|x| with P(X > |x|) = `t`, for a law centred at 0.

    Parameters
    ----------
    t, c : float32 or float64 arrays
        Tail probability in (0, 1/2], at least 2^-33 (float32) or 2^-65 (float64), and 1/2 - `t`, given apart so
        that angles near 0 keep their relative accuracy.
    kappa : array of the same dtype
        Concentration in [0, inf]; NaN gives NaN.

    Returns
    -------
    array
        Radians, in [0, pi). Accuracy: see `sample_von_mises`.
    """
    return quantile_with_derivative(t, c, kappa)


@jax.custom_jvp
def quantile_with_derivative(t, c, kappa):
    """`half_quantile` with its derivatives in `t` and `kappa`; `c` follows `t` and has none of its own."""
    root_full = lax.rsqrt(jnp.maximum(kappa, KAPPA_MIN))
    root = jnp.maximum(root_full, KAPPA_MAX**-0.5)
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    inverse = root * root
    if t.dtype == jnp.float64:
        # In float32, which is enough, and where one concentration gives the digits that an array of it gives (XLA's
        # float64 exponential does not). The short rule serves the first step; the second makes its error invisible.
        single = (a.astype(jnp.float32) for a in (t, k, inverse, root))
        x = guess(*single, wide=True).astype(jnp.float64)
        x = refine(x, t, c, k, inverse, dtype_rule=jnp.float32)
    else:
        x = guess(t, k, inverse, root)
    x = refine(x, t, c, k, inverse)
    # 1 up to KAPPA_MAX, then the normal law's own scaling; 0 at infinity.
    return x * jnp.minimum(root_full * KAPPA_MAX**0.5, 1)


@quantile_with_derivative.defjvp
def _quantile_jvp(primals, tangents):
    t, c, kappa = primals
    x = quantile_with_derivative(t, c, kappa)
    dt, _, dkappa = tangents
    return x, derivative(x, kappa) * dkappa - over_density(dt, x, kappa)


def over_density(tangent, x, kappa):
    """`tangent` / p, finite where p is no float, so that a tangent of 0 gives 0."""
    return tangent / jnp.maximum(density(x, kappa), float(jnp.finfo(x.dtype).tiny))


@jax.custom_jvp
def derivative(x, kappa):
    """D = d|x| / d kappa at fixed tail probability, J1 of this module's head; 0 at infinity, NaN for NaN."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1), *_ = integrals(x, k, 1 / k, order=1)
    return jnp.where(kappa > KAPPA_MAX, -0.5 * x / kappa, j1)


@derivative.defjvp
def _derivative_jvp(primals, tangents):
    # dD/dx = kappa sin(x) D - (cos x - A), from F = the law's cdf and D = -(dF/dkappa) / p.
    x, kappa = primals
    d = derivative(x, kappa)
    along, across = score(x, kappa)
    return d, -(along * d + across) * tangents[0] + second_derivative(x, kappa) * tangents[1]


def second_derivative(x, kappa):
    """dD/dkappa = J2 - D (cos x - A), J2 being J with the factor (cos theta - A)^2 - A'."""
    k = jnp.clip(kappa, KAPPA_MIN, KAPPA_MAX)
    (_, j1, j2), *_ = integrals(x, k, 1 / k, order=2)
    return jnp.where(kappa > KAPPA_MAX, 0.5 * x / kappa / kappa, j2 - j1 * score(x, k)[1])


# ------------------------------------------------------------------------------------------ probabilities


@jax.custom_jvp
def lower_tail(x, kappa):
    """P(X < x) for a law centred at 0 and x in [-pi, pi]: relative error 4e-6 (float32) or 1e-13 where below 1/2."""
    tail = tail_beyond(jnp.abs(x), kappa)
    # The point mass at 0 belongs to both sides by the formulas, and to the right one by the definition.
    right = (x > 0) | ((x == 0) & (kappa == jnp.inf))
    tail = jnp.where((kappa == jnp.inf), 0, tail)
    return jnp.where(right, 1 - tail, tail)


@lower_tail.defjvp
def _lower_tail_jvp(primals, tangents):
    x, kappa = primals
    p, slope = density(x, kappa), odd_derivative(x, kappa)
    return lower_tail(x, kappa), p * (tangents[0] - slope * tangents[1])


def odd_derivative(x, kappa):
    """`derivative` for x in [-pi, pi], of the sign of x."""
    sign = jnp.where(x < 0, -1, 1).astype(x.dtype)
    return sign * derivative(sign * x, kappa)


def tail_beyond(x, kappa):
    """P(X > x) for x in [0, pi], to 0 below the smallest float."""
    moved, k, _ = rescaled(x, kappa)
    (j,), centre, half = integrals(moved, k, 1 / k, far=True)
    root, n = square_root(half, k, 1 / k)
    mass = ((j / n) * root) * root
    # The float next to pi may lie beyond it.
    return jnp.where(kappa >= 0, jnp.where(centre, 0.5 + mass, jnp.maximum(mass, 0)), jnp.nan)


@jax.custom_jvp
def log_lower_tail(x, kappa):
    """log P(X < x), down to tails that no float holds."""
    far, j, probability = tail_integral(x, kappa)
    return jnp.where(far, jnp.log(j) + log_density(x, kappa), jnp.log(probability))


def tail_integral(x, kappa):
    """Whether P(X < x) is so small that its logarithm should come from J, where it is J p; J; and P itself."""
    moved, k, factor = rescaled(jnp.abs(x), kappa)
    (j,), centre, _ = integrals(moved, k, 1 / k, far=True)
    # A rescaled angle is no longer small where J is 1 over the slope of log p, to rounding.
    steep = (factor > 1) & (moved > 1e-3)
    j = jnp.where(steep, 1 / (kappa * jnp.abs(jnp.sin(x))), j / factor)
    probability = lower_tail(x, kappa)
    far = (x < 0) & ~centre & (probability < 1e-20)
    return far, jnp.where(far, j, 1), probability


@log_lower_tail.defjvp
def _log_lower_tail_jvp(primals, tangents):
    x, kappa = primals
    return log_lower_tail(x, kappa), hazard(x, kappa) * (tangents[0] - odd_derivative(x, kappa) * tangents[1])


@jax.custom_jvp
def hazard(x, kappa):
    """p(x) / P(X < x), not from the two where they are no floats."""
    far, j, probability = tail_integral(x, kappa)
    return jnp.where(far, 1 / j, density(x, kappa) / probability)


@hazard.defjvp
def _hazard_jvp(primals, tangents):
    x, kappa = primals
    rate, (along, across) = hazard(x, kappa), score(x, kappa)
    in_kappa = across + odd_derivative(x, kappa) * rate
    return rate, rate * ((along - rate) * tangents[0] + in_kappa * tangents[1])


# Half quantiles start from a guess for the tails that a sampler's words reach; deeper ones are bracketed.
SMALLEST_TAIL = {"float32": 2.0**-33, "float64": 2.0**-65}
# log p falls by at most 3.9 (float32) or 15.8 times as much for any float, and goes with the square of the chord, so
# this many times the angle is beyond the deepest tail; then one bisection a digit, and some for the bracket.
REACH = {"float32": 3.3, "float64": 6.6}
BISECTIONS = {"float32": 27, "float64": 57}


@jax.custom_jvp
def any_half_quantile(t, c, kappa):
    """`half_quantile` for tails down to 0, where the angle is pi."""
    name = np.dtype(t.dtype).name
    x = half_quantile(jnp.maximum(t, SMALLEST_TAIL[name]), c, kappa)
    deep = t < SMALLEST_TAIL[name]

    def bisect(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        inside = tail_beyond(middle, kappa) > t
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    def search(x):
        ends = x, jnp.minimum(REACH[name] * x, largest_angle(x.dtype))
        low, high = lax.fori_loop(0, BISECTIONS[name], bisect, ends)
        return jnp.where(deep, jnp.where(t > 0, 0.5 * (low + high), np.pi), x)

    return lax.cond(jnp.any(deep), search, lambda x: x, x)


@any_half_quantile.defjvp
def _any_half_quantile_jvp(primals, tangents):
    t, c, kappa = primals
    x = any_half_quantile(t, c, kappa)
    return x, derivative(x, kappa) * tangents[2] - over_density(tangents[0], x, kappa)


def signed_quantile(q, kappa):
    """The angle in [-pi, pi] with P(X < angle) = `q`; NaN outside [0, 1]."""
    q = jnp.where((q >= 0) & (q <= 1), q, jnp.nan)
    left = q < 0.5
    x = any_half_quantile(jnp.where(left, q, 1 - q), jnp.where(left, 0.5 - q, q - 0.5), kappa)
    return jnp.where(left, -x, x)

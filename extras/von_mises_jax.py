# Copyright 2026 The jax_von_mises authors
# SPDX-License-Identifier: Apache-2.0
"""The von Mises distribution for JAX in one file to copy: draws without rejection, their derivatives, and `log_prob`.

The float32 core of the package jax_von_mises, for threefry2x32 keys; it depends on JAX alone. On a CPU it draws the
package's angles for the same key (``method="direct"``), bit for bit. The package has other dtypes, keys, distributions,
functions and files, and a faster route for many angles with one concentration; its page *Method* derives the formulas.

Draws: the tail probability of each angle has a relative error below 2e-6, or the angle is within 4 ulp, for every
concentration from 0 to infinity. `log_prob`: the error is at most 4e-7 times max(1, abs(log_prob)). A negative or NaN
concentration, or a `loc` that is not finite, gives NaN.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["log_prob", "sample_von_mises"]

# Polynomials, the constant coefficient first; tables in two variables have one row per power of the first.
# fmt: off
SINE = (0.9999999947, -0.1666665668, 0.008333025139, -0.0001980741871, 2.601903039e-06)
COSINE = (0.9999999998, -0.4999999931, 0.0416666346, -0.00138883428, 2.47593087e-05, -2.603778308e-07)
SIN_COS = (0.9999999743, -0.6666658762, 0.1333291248, -0.01268985905, 0.0006973539524, -2.199361171e-05)
SIN_SIN = (0.9999999977, -0.3333332528, 0.04444396805, -0.003173553005, 0.0001400308326, -3.770981492e-06)
SINE_SQUARE = (-0.3333333282, 0.04444419268, -0.003172589385, 0.0001358858383)
SINE_SQUARE_WIDE = (-0.3333333331, 0.04444443935, -0.003174579894, 0.0001410540318, -4.245035059e-06, 8.291989844e-08)
EXP = (1.000000001, 1.000000039, 0.499999916, 0.1666641036, 0.04166828802, 0.008375635568, 0.00138358128)
EXP2 = (1.000000072, 0.6931469671, 0.2402211972, 0.05550713276, 0.009675541328, 0.001327647113)
LOG2 = (1.442694805, -0.7213466226, 0.4809655095, -0.3607837136, 0.2855820236, -0.236891861, 0.2468621692,
    -0.2216796505)
I0_SMALL = (1.0, 0.9999999953, 0.2500000334, 0.02777770175, 0.00173619081, 6.939998135e-05, 1.943004032e-06,
    3.689266548e-08, 8.40822138e-10)
NORM_LARGE = (2.506628325, 0.3132965498, 0.1795732607, 0.05420863163, 2.666434396, -21.77838631, 102.8303681,
    -164.2288498)
I_DIFFERENCE = (0.7731228995, 0.2335636444, 0.1385114348, 0.01949315046, 0.006913668772, 0.0005897090922,
    0.0001623979584, 9.25823749e-06, 2.209393231e-06, 1.011014632e-07, 2.213227112e-08)
COMPLEMENT_LARGE = (0.499999987, 0.1250128432, 0.1229157931, 0.3233644899, -3.405216816, 60.6919637, -467.0538516,
    1205.941897, 6669.755689, -46088.45003, 74055.13527)
CUT = (1.5707963267948966, -3.110423028, 8.523637266, -10.38952469, 4.420605272)
RULE_NODES = (0.01082829136, 0.05653828622, 0.1371330083, 0.2519528843, 0.404477387, 0.6041400353, 0.8584444902)
RULE_WEIGHTS = (0.02772646117, 0.06342953256, 0.09758565524, 0.1325940223, 0.1740887482, 0.2271280037, 0.2774475769)
GUESS_LOW = ((2.65500243, 14.2721752, -135.805995, 285.513785), (-0.98005363, -136.857119, 1000.08638, -1675.56159),
    (-5.37904405, 387.999661, -2620.76092, 4194.40161), (10.331071, -491.400597, 3163.22368, -4806.93494), (-7.86711465,
    317.513543, -1958.33913, 2814.47336), (2.78510655, -101.838754, 597.640237, -793.449889), (-0.37574978, 12.7720424,
    -70.1986758, 83.5229019))
GUESS_HIGH = ((0.683208254, 0.0866327336, 0.0472845859), (-0.0718875406, 0.0115860214, 0.0170319498), (0.00557094734,
    -0.000278203002, 4.65625181e-05), (-0.000241617576, 1.95357945e-05, 0.00024183567), (5.34320799e-06,
    -7.81307043e-07, -9.79136849e-06), (-4.69326536e-08, 9.30992337e-09, 1.63547952e-07))
# fmt: on
LOG2_E, LN_2 = float(np.log2(np.e)), float(np.log(2))
LN2_HEAD, LN2_TAIL = 0.693359375, float(np.log(2)) - 0.693359375  # products with the first and an exponent are exact
SWITCH, GUESS_SWITCH = 5.0, 17.0  # concentrations at which formulas change
KAPPA_MIN, KAPPA_MAX = 1e-30, 1e18  # below, the distribution is uniform to rounding; above, it is normal
RULE_DEPTH, CENTRE = 18.0, 0.5
PI_BELOW = float(np.nextafter(np.float32(np.pi), np.float32(0)))
TURN = 6.25, 0.033184051513671875, 2 * np.pi - 6.25 - 0.033184051513671875  # 2 pi in three parts
THIRD, FOURTH = 1.255422830581665e-06, 2.430840202602477e-10  # the last part in two
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def sample_von_mises(key, loc, concentration, shape=None):
    """Draw float32 angles in [-pi, pi), in radians.

    `key` is one threefry2x32 key, typed or legacy; `loc` (radians) and `concentration` (0 to infinity) broadcast to
    `shape`, by default their own. Element i depends only on the key and i. The derivative with respect to `loc` is 1;
    with respect to `concentration`, it is the implicit one at a fixed tail probability.
    """
    typed = jnp.issubdtype(getattr(key, "dtype", object), jax.dtypes.prng_key)
    data = jax.random.key_data(key) if typed else key
    kind = str(jax.random.key_impl(key)) if typed else "threefry2x32"
    if kind != "threefry2x32" or getattr(data, "shape", None) != (2,) or data.dtype != jnp.uint32:
        raise ValueError(f"sample_von_mises: key={key} must be one threefry2x32 key, such as jax.random.key(0).")
    loc, concentration = (jnp.asarray(x, jnp.float32) for x in (loc, concentration))
    if shape is None:
        shape = jnp.broadcast_shapes(loc.shape, concentration.shape)
    try:
        sizes = np.broadcast_shapes(shape)  # takes an integer or a sequence of integers
    except (TypeError, ValueError) as error:
        raise TypeError(f"sample_von_mises: shape={shape} must be one or more integers, from 0: {error}") from error
    return _sample(data, loc, concentration, sizes)


def log_prob(x, loc, concentration):
    """Return the logarithm of the density at angles `x` in radians, as float32; it has period 2 pi."""
    return _log_prob(*(jnp.asarray(each, jnp.float32) for each in (x, loc, concentration)))


@functools.partial(jax.jit, static_argnums=3)
def _sample(key, loc, kappa, shape):
    if math.prod(shape) > 2**32:
        raise ValueError(f"sample_von_mises: shape={shape} has more than 2^32 elements.")
    index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    # Words and angles in one loop would take LLVM minutes to compile, with JAX 0.12 on a CPU.
    word = lax.optimization_barrier(jnp.where(index & 1 == 0, *_threefry(jnp.zeros_like(index), index >> 1, key)))
    total = _about_zero(word, jnp.broadcast_to(_valid(kappa), shape)) + jnp.broadcast_to(_reduced(loc), shape)
    turn = jnp.where(total >= np.pi, -1.0, jnp.where(total < -np.pi, 1.0, 0.0)).astype(total.dtype)
    x = total + turn * (2 * np.pi)
    return x + lax.stop_gradient(_clip(x, -PI_BELOW, PI_BELOW) - x)  # without the derivative of the bounds


def _threefry(x0, x1, key):
    """Encrypt blocks by Threefry-2x32 with 20 rounds (Salmon et al., SC 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for r in range(20):
        x0 = x0 + x1
        turn = np.uint32(ROTATIONS[r % 8])
        x1 = ((x1 << turn) | (x1 >> (np.uint32(32) - turn))) ^ x0
        if r % 4 == 3:
            s = r // 4 + 1
            x0, x1 = x0 + schedule[s % 3], x1 + schedule[(s + 1) % 3] + np.uint32(s)
    return x0, x1


@jax.custom_jvp
def _about_zero(word, kappa):
    return _signed_quantile(word, kappa, slope=False)[0]


@_about_zero.defjvp
def _about_zero_jvp(primals, tangents):
    x, rise = _signed_quantile(*primals, slope=True)
    return x, rise * tangents[1]


def _signed_quantile(word, kappa, slope):
    """Return angles and their derivatives; the lowest bit of a word is the sign, and the others give the tail."""
    numbers = (lax.bitcast_convert_type((word >> 1) ^ np.uint32(mask), jnp.int32) for mask in (0, 0x7FFFFFFF))
    t, c = ((number.astype(jnp.float32) + 0.5) * 2.0**-32 for number in numbers)  # c = 1/2 - t, for its last digits
    return tuple(x if x is None else jnp.where(word & 1 == 1, -x, x) for x in _half_quantile(t, c, kappa, slope))


def _half_quantile(t, c, kappa, slope):
    """Return the x in [0, pi) with P(X > x) = t, and its derivative in kappa if `slope` is true.

    A closed guess is followed by one step of fifth order on the tail integral J, or on that of the centre.
    """
    root_full = lax.rsqrt(jnp.maximum(kappa, KAPPA_MIN))
    root = jnp.maximum(root_full, KAPPA_MAX**-0.5)
    k, inverse = _clip(kappa, KAPPA_MIN, KAPPA_MAX), root * root
    x = _guess(t, k, inverse, root)
    half = _half_angle(x)
    j, j1, centre = _integrals(half, k, inverse, slope)
    n, shift = _norm(k, inverse)
    u = j - (jnp.where(centre, -c, t) * n) * _exp_product(k, half["parts"], shift)
    # The distance to the root, to fifth order in u, its first-order approximation.
    u2, d, e = u * u, k * half["sin"] * u, k * half["cos"] * (u * u)
    d2 = d * d
    third = (1 / 3) * d2 + (1 / 6) * e
    fourth = d * (0.25 * d2 + (7 / 24) * e - (1 / 24) * u2)
    fifth = d2 * (0.2 * d2 + (46 / 120) * e - (11 / 120) * u2) + e * ((7 / 120) * e - (1 / 120) * u2)
    step = u + u * ((0.5 * d + third) + (fourth + fifth))
    end = _clip(x + step, 0, PI_BELOW) * jnp.minimum(root_full * KAPPA_MAX**0.5, 1)
    if not slope:
        return end, None
    # Move J1 from x to the end by its Taylor series.
    a, b = k * half["sin"], k * half["cos"]
    first = a * j1 - (_complement(k, inverse) - 2 * half["square"])
    second = a * first + b * j1 + half["sin"]
    third = a * (second - j1) + 2 * b * first + half["cos"]
    fourth = a * (third - 3 * first) + b * (3 * second - j1) - half["sin"]
    j1 = j1 + step * _polynomial([first, second / 2, third / 6, fourth / 24], step)
    return end, jnp.where(kappa > KAPPA_MAX, -0.5 * end / kappa, j1)


def _guess(t, kappa, inverse, root):
    """Return the starting angle, a polynomial in a logit that saturates where the angle reaches pi."""
    low = jnp.minimum(kappa, GUESS_SWITCH)
    floor = _exp2((-2 * LOG2_E) * low)
    level = sum(_log2_parts(1 + floor)) - sum(_log2_parts(2 * t + floor))
    shrink = 1 / (2 + low)
    y = level * shrink
    small = y * _polynomial([_polynomial(row, shrink) for row in GUESS_LOW], y)
    r = jnp.minimum(inverse, 1 / GUESS_SWITCH)
    large = (level * root) * _polynomial([_polynomial(row, r) for row in GUESS_HIGH], level)
    return _clip(jnp.where(kappa < GUESS_SWITCH, small, large), 0, PI_BELOW)


def _half_angle(x):
    """Return functions of x / 2, computed from pi - x beyond a right angle, so that nothing cancels near pi."""
    angle = 0.5 * x
    away = _round(np.pi / 2 - angle, 2)
    to_pole = away + float(np.pi / 2 - float(np.float32(np.pi / 2)))
    upper = angle > 0.25 * np.pi
    psi = jnp.where(upper, to_pole, angle)
    square = psi * psi
    sin = 2 * (psi * _polynomial(SINE, square)) * _polynomial(COSINE, square)
    psi_head = _head(psi)
    first, low = psi_head * psi_head, (psi + psi_head) * (psi - psi_head)
    rest = low + (square * square) * _polynomial(SINE_SQUARE, square)
    sine2 = first + rest
    parts = jnp.where(upper, 1, 0), jnp.where(upper, -first, first), jnp.where(upper, -rest, rest)
    square, cos = jnp.where(upper, 1 - sine2, sine2), jnp.where(upper, 2 * sine2 - 1, 1 - 2 * sine2)
    return {"angle": angle, "to_pole": to_pole, "parts": parts, "sin": sin, "square": square, "cos": cos}


def _integrals(half, kappa, inverse, slope):
    """Return J = int e^(q(x) - q(theta)) over the tail or the centre, J1 with the factor cos - A, and which side."""
    centre = 2 * half["square"] * (1 + kappa) < CENTRE
    square_at_end = jnp.minimum(half["square"] + _round((0.5 * RULE_DEPTH) * inverse, 2), 1)
    end = lax.sqrt(square_at_end) * _polynomial(CUT, 1 - square_at_end)
    tail = jnp.where(square_at_end < 1, end - half["angle"], half["to_pole"])
    span = jnp.where(centre, -half["angle"], tail)
    square = span * span
    along, across = (kappa * half["sin"]) * span, (kappa * half["cos"]) * square
    complement = _complement(kappa, inverse) if slope else 0.0
    sums, firsts = [], []
    for node, weight in zip(RULE_NODES, RULE_WEIGHTS, strict=True):
        one = _polynomial([-2 * LOG2_E * c * node ** (2 * j + 1) for j, c in enumerate(SIN_COS)], square)
        two = _polynomial([-2 * LOG2_E * c * node ** (2 * j + 2) for j, c in enumerate(SIN_SIN)], square)
        exponent = along * one + across * two
        growth = _exp2(exponent)
        sums.append((2 * weight) * growth)
        if slope:
            factor = complement - 2 * (half["square"] + exponent * ((-0.5 / LOG2_E) * inverse))
            firsts.append(((2 * weight) * factor) * growth)
    return span * _polynomial(sums, 1), span * _polynomial(firsts, 1) if slope else None, centre


def _norm(kappa, inverse):
    """Return n and s with 2 pi e^-kappa I0(kappa) = n e^-s."""
    small, k = kappa < SWITCH, jnp.minimum(kappa, SWITCH)
    r = jnp.minimum(inverse, 1 / SWITCH)
    near, far = 2 * np.pi * _polynomial(I0_SMALL, k * k / 4), _polynomial(NORM_LARGE, r) * lax.sqrt(r)
    return jnp.where(small, near, far), jnp.where(small, kappa, 0)


def _complement(kappa, inverse):
    """Return 1 - I1(kappa) / I0(kappa) without cancellation."""
    small, k = kappa < SWITCH, jnp.minimum(kappa, SWITCH)
    near = _polynomial(I_DIFFERENCE, k - SWITCH / 2) * (1 / _polynomial(I0_SMALL, k * k / 4))
    r = jnp.minimum(inverse, 1 / SWITCH)
    return jnp.where(small, near, r * _polynomial(COMPLEMENT_LARGE, r))


@jax.jit
def _log_prob(x, loc, kappa):
    x, loc, kappa = jnp.broadcast_arrays(x, loc, _valid(kappa))
    away = _reduced(x - loc)
    turns = lax.round(lax.stop_gradient(x - loc) * (1 / (2 * np.pi)), lax.RoundingMethod.TO_NEAREST_EVEN)
    reduced = ((x - loc) - turns * TURN[0]) - turns * TURN[1]
    nearly, rest = reduced - turns * THIRD, _off(x, loc) - turns * FOURTH
    lost = _off(reduced, turns * THIRD) + _off(nearly, -rest)
    away = away + lax.stop_gradient((nearly + rest) - away)
    square = jnp.square(0.5 * away)
    change = lax.stop_gradient(-kappa * (away * _polynomial(SINE, square) * _polynomial(COSINE, square)) * lost)
    return _log_density(away, kappa) + jnp.where(jnp.isfinite(change), change, 0)


def _off(a, b):
    """Return the rounding error of a - b."""
    difference = a - b
    part = difference - a
    return (a - (difference - part)) + (-b - part)


@jax.custom_jvp
def _log_density(x, kappa):
    huge = kappa > 2.0**94
    factor, k = jnp.where(huge, 2.0**17, 1), kappa * jnp.where(huge, 2.0**-34, 1)
    half = 0.5 * x
    square, scaled = half * half, factor * half
    head = _head(scaled)
    first, low = head * head, (scaled + head) * (scaled - head)
    unscaled = first * factor**-2
    fourth = first * unscaled + _round(low * (unscaled + square), 1e30)
    wide = functools.reduce(lambda total, c: total * square + c, SINE_SQUARE_WIDE[::-1])
    exact, rest = _product_parts(k, (0, first, low + fourth * wide))
    norm_exact, norm_rest = _log_norm_parts(kappa)
    value = -((exact + norm_exact) + (rest + norm_rest))
    return jnp.where(kappa == jnp.inf, jnp.where(x == 0, jnp.inf, -jnp.inf * jnp.abs(x)), value)


@_log_density.defjvp
def _log_density_jvp(primals, tangents):
    x, kappa = primals
    half = _half_angle(jnp.abs(x))
    along = -kappa * jnp.where(x < 0, -half["sin"], half["sin"])
    across = _complement(kappa, 1 / jnp.maximum(kappa, SWITCH)) - 2 * half["square"]
    return _log_density(x, kappa), along * tangents[0] + across * tangents[1]


def _log_norm_parts(kappa):
    """Return the logarithm of the normaliser as a sum of two numbers, the first of which is exact."""
    small, k = kappa < SWITCH, jnp.minimum(kappa, SWITCH)
    r = jnp.minimum(1 / jnp.maximum(kappa, SWITCH), 1 / SWITCH)
    whole, fraction = _log2_parts(jnp.clip(kappa, SWITCH, np.finfo(np.float32).max))
    far = -0.5 * (whole * LN2_TAIL + LN_2 * fraction) + jnp.log(_polynomial(NORM_LARGE, r))
    near = jnp.log(2 * np.pi * jnp.exp(-k) * _polynomial(I0_SMALL, k * k / 4))
    return jnp.where(small, 0, -0.5 * (whole * LN2_HEAD)), jnp.where(small, near, far)


def _valid(kappa):
    return kappa * jnp.where(kappa >= 0, 1, jnp.nan).astype(kappa.dtype)


def _reduced(x):
    """Return `x` minus full turns; NaN where floats are too coarse to be angles."""
    turns = lax.round(lax.stop_gradient(x) * (1 / (2 * np.pi)), lax.RoundingMethod.TO_NEAREST_EVEN)
    for part in TURN:
        x = x - turns * part
    return x * jnp.where(jnp.abs(turns) <= 2.0**24 / (2 * np.pi), 1, jnp.nan).astype(x.dtype)


def _clip(x, low, high):
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def _round(x, most):
    """Return `x`, at most `most`, rounded before it enters a sum, which XLA would otherwise reorder or contract."""
    return jnp.where(x > most, most, x)


def _head(x):
    """Return `x` with the lower half of its mantissa cleared; the product of two such heads is exact."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) & np.uint32(0xFFFFF000), jnp.float32)


def _polynomial(terms, x):
    """Return the sum of terms[j] x^j, by Estrin's scheme."""
    while len(terms) > 1:
        pairs = [a + x * b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms, x = pairs + list(terms[len(terms) - len(terms) % 2 :]), x * x
    return terms[0]


def _exp2(x, of_rest=lambda x, whole: _polynomial(EXP2, x - whole)):
    """Return 2^x for |x| < 126; ``of_rest(x, whole)`` returns the power of what is left of x."""
    found = of_rest(x, lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))
    # The sum has the nearest integer in its lower bits.
    bits = lax.bitcast_convert_type(x + 1.5 * 2.0**23, jnp.int32)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(found, jnp.int32) + (bits << 23), jnp.float32)


def _log2_parts(x):
    """Return a whole number and a fraction, whose sum is log2(x)."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - 0x3F2AAAAB) >> 23
    m = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    return exponent.astype(jnp.float32), m * _polynomial(LOG2, m)


def _product_parts(a, b):
    """Return 2 a b as a sum of two numbers, the first of which is exact, for `b` with three summands."""
    total = b[0] + b[1] + b[2]
    a_head, b_head = _head(a), _head(total)
    small = 2 * (a_head * (((b[0] - b_head) + b[1]) + b[2]) + (a - a_head) * total)
    return 2 * (a_head * b_head), small


def _exp_product(a, b, c):
    """Return exp(2 a b - c) with a relative error of 1e-7."""
    large, small = _product_parts(a, b)

    def of_rest(_, whole):
        return _polynomial(EXP, (((large - whole * LN2_HEAD) - c) - whole * LN2_TAIL) + small)

    return _exp2(LOG2_E * (large - c), of_rest)

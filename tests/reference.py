"""The von Mises law centred at 0 in float64 NumPy, and in mpmath to vouch for it: what every test compares with.

Independent of the package: plain Gauss-Legendre quadrature with 96 nodes of

    J(x) = integral of e^{q(x) - q(theta)} d theta,   q(theta) = 2 k sin^2(theta / 2),

from x to where the integrand has fallen by e^-60 or to pi (tail), or from 0 to x (centre). Both are positive and keep
their relative accuracy, about 1e-13; exponents are differences of q by a product of sines, so that they do at any k.
"""

import mpmath as mp
import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.legendre.leggauss(96)
PI_REST = 1.2246467991473532e-16  # pi less its nearest double
CHUNK = 2**13  # elements at a time: 96 doubles each
DEPTH = 60.0


def norm(k):
    """2 pi e^-k I0(k)."""
    return 2 * np.pi * special.i0e(k)


def pdf(x, k):
    """Density at x."""
    return np.exp(-2 * k * np.sin(x / 2) ** 2) / norm(k)


def ratio_complement(k):
    """1 - I1(k) / I0(k) without cancellation: the difference below 30, the series of DLMF 10.40.1 above."""
    k = np.asarray(k, float)
    near = (special.i0e(k) - special.i1e(k)) / special.i0e(k)
    far = np.maximum(k, 30.0)
    term0 = term1 = total = np.ones_like(far)
    difference = np.zeros_like(far)
    for j in range(1, 16):
        term0 = term0 * (2 * j - 1) ** 2 / (8 * j * far)
        term1 = term1 * ((2 * j - 1) ** 2 - 4) / (8 * j * far)
        total, difference = total + term0, difference + term0 - term1
    return np.where(k < 30, near, difference / total)


def chunked(function):
    """Apply an elementwise function of (x, k) in pieces that fit the cache."""

    def apply(x, k, *rest):
        x, k, *rest = np.broadcast_arrays(np.asarray(x, float), np.asarray(k, float), *rest)
        flat = [a.reshape(-1) for a in (x, k, *rest)]
        pieces = [function(*(a[i : i + CHUNK] for a in flat)) for i in range(0, x.size, CHUNK)]
        return np.concatenate(pieces).reshape(x.shape) if pieces else np.zeros(x.shape)

    apply.__doc__ = function.__doc__
    return apply


def scaled_integral(x, k, tail, slope=False):
    """J(x) on one side; with `slope` the integrand also has the factor cos(theta) - A(k)."""
    if tail:
        s = np.sin(x / 2) ** 2 + 0.5 * DEPTH / np.maximum(k, 1e-300)
        span = np.where(s < 1, 2 * np.arcsin(np.sqrt(np.minimum(s, 1))) - x, (np.pi - x) + PI_REST)
    else:
        span = -x
    step = span[:, None] * ((NODES + 1) / 2)
    rise = 2 * np.sin(x[:, None] + step / 2) * np.sin(step / 2)  # cos x - cos theta
    value = np.exp(-k[:, None] * rise)
    if slope:
        value *= ratio_complement(k)[:, None] - 2 * np.sin((x[:, None] + step) / 2) ** 2
    return span / 2 * (value @ WEIGHTS)


@chunked
def sf(x, k):
    """P(X > x) for x in [0, pi], relative accuracy."""
    return scaled_integral(x, k, tail=True) * pdf(x, k)


@chunked
def central(x, k):
    """P(0 < X < x) for x in [0, pi], relative accuracy."""
    return -scaled_integral(x, k, tail=False) * pdf(x, k)


@chunked
def dquantile_dk(x, k):
    """d x / d k at fixed tail probability, for x in [0, pi], from the side with less mass."""
    centre = 2 * np.sin(x / 2) ** 2 * (1 + k) < 1
    return np.where(centre, scaled_integral(x, k, False, True), scaled_integral(x, k, True, True))


def quantile(t, k, c=None):
    """|x| with P(X > |x|) = t for t in (0, 1/2]; `c` = 1/2 - t where that is known better than t."""
    t = np.asarray(t, float)
    return _quantile(t, k, 0.5 - t if c is None else c)


@chunked
def _quantile(t, k, c):
    low = np.zeros_like(t)
    s = np.sqrt(200 / np.maximum(k, 1e-300)) / 2
    high = np.where(s < 1, 2 * np.arcsin(np.minimum(s, 1)), np.pi)
    x = np.minimum(-special.ndtri(t) / np.sqrt(k + 0.1), 0.9 * high)
    todo = np.arange(len(t))
    # Newton's method on log P(X > x), inside a bracket; then on P(0 < X < x), which sees angles near 0.
    for _ in range(200):
        xs, ks = x[todo], k[todo]
        integral = scaled_integral(xs, ks, tail=True)
        with np.errstate(divide="ignore"):
            excess = np.log(integral * pdf(xs, ks) / t[todo])
        high[todo] = np.where(excess < 0, xs, high[todo])
        low[todo] = np.where(excess >= 0, xs, low[todo])
        with np.errstate(invalid="ignore"):
            new = xs + excess * integral
        new = np.where((new >= low[todo]) & (new <= high[todo]), new, (low[todo] + high[todo]) / 2)
        x[todo] = new
        todo = todo[np.abs(new - xs) > 4e-16 * np.abs(xs)]
        if not len(todo):
            break
    # Where the float spacing stopped the logarithm early (next to pi), a plain step ends exactly: P is linear there.
    xs, ks = x[c >= 0.25], k[c >= 0.25]
    for _ in range(2):
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            move = scaled_integral(xs, ks, tail=True) - t[c >= 0.25] / pdf(xs, ks)
        xs = np.where(np.abs(move) < 1e-3 * xs, xs + move, xs)
    x[c >= 0.25] = xs
    near = c < 0.25
    xs, ks = np.where(c == 0, 0.0, x)[near], k[near]
    for _ in range(4):
        xs = xs + scaled_integral(xs, ks, tail=False) + c[near] / pdf(xs, ks)
    x[near] = xs
    return np.where(np.isinf(k), 0.0, x)


def mp_tail(x, k):
    """P(X > x) in mpmath, 30 digits; x and k exact floats."""
    with mp.workdps(40):
        x, k = mp.mpf(float(x)), mp.mpf(float(k))
        width = 1 / mp.sqrt(k + 1)
        points = [x, *(p for p in (x + j * width for j in (0.1, 0.3, 1, 2, 4, 8, 16, 32)) if p < mp.pi)]
        if points[-1] + 20 * width > mp.pi:
            points.append(mp.pi)
        total = mp.quad(lambda u: mp.exp(-2 * k * mp.sin(u / 2) ** 2), points)
        return total / (2 * mp.pi * mp.besseli(0, k) * mp.exp(-k)) if k < 1e6 else total / mp_norm_large(k)


def mp_norm_large(k):
    """2 pi e^-k I0(k) by its asymptotic series, where mpmath's own evaluation would be slow."""
    term = total = mp.mpf(1)
    for j in range(1, 12):
        term = term * (2 * j - 1) ** 2 / (8 * j * k)
        total += term
    return mp.sqrt(2 * mp.pi / k) * total


def mp_central(x, k):
    """P(0 < X < x) in mpmath."""
    with mp.workdps(40):
        return mp.mpf(1) / 2 - mp_tail(x, k)

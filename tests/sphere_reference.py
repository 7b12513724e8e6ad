"""Evaluate the distribution of the von Mises-Fisher cosine in float64 NumPy and mpmath, independently of the package.

The variable is y, the log of the tangent of half the angle from the mean direction. In terms of the cosine w, its
density without the normaliser is e^f with

    f(y) = -2 k a + (d - 1)/2 log(a b),   a = (1 - w)/2 = 1/(1 + e^(-2 y)),   b = 1 - a.
"""

import mpmath as mp
import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
PANELS = 24
DEPTH = 45.0


def direction(d):
    """Return a unit vector in `d` dimensions without a zero component, as float32."""
    mu = np.random.default_rng(d).normal(size=d)
    return (mu / np.linalg.norm(mu)).astype(np.float32)


def log_density(y, d, k):
    """Return f."""
    a = special.expit(2 * y)
    return -2 * k * a + 0.5 * (d - 1) * (special.log_expit(2 * y) + special.log_expit(-2 * y))


def mode(d, k):
    """Return the y at which the density is largest."""
    n = d - 1
    root = np.hypot(n, 2 * k)
    small = 0.5 * n / (n + root) * (1 + n / (root + 2 * k))
    return 0.5 * (np.log(small) - np.log1p(-small))


def log_integral(y, d, k, away):
    """Return the logarithm of the integral of e^(f - f(mode)) above `y` if `away`, else below."""
    y, k, away = np.broadcast_arrays(*(np.asarray(x, t) for x, t in ((y, float), (k, float), (away, bool))))
    sign, top = np.where(away, 1.0, -1.0), log_density(mode(d, k), d, k)
    first = log_density(y, d, k)
    beyond = (y - mode(d, k)) * sign >= 0
    goal = np.where(beyond, first, top) - DEPTH
    low, high = np.zeros_like(y), np.full(y.shape, 2.0 * DEPTH)
    for _ in range(60):
        middle = 0.5 * (low + high)
        inside = (log_density(y + sign * middle, d, k) > goal) | (~beyond & (middle < np.abs(y - mode(d, k))))
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    step, total = high / PANELS, np.zeros_like(y)
    for panel in range(PANELS):
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            place = y + sign * step * (panel + 0.5 * (node + 1))
            total += 0.5 * weight * step * np.exp(log_density(place, d, k) - goal - DEPTH)
    return np.log(total) + goal + DEPTH - top


def log_tail(small, near, small_is_own, d, k):
    """Return the log probability of a cap around the mean direction if `near`, else around the opposite direction.

    The height of the cap is the fraction `small` of the sphere's diameter if `small_is_own`, else 1 - `small`.
    """
    odds = np.log(small) - np.log1p(-small)
    y = 0.5 * np.where(small_is_own == near, odds, -odds)
    peak = mode(d, k)
    total = np.logaddexp(log_integral(peak, d, k, True), log_integral(peak, d, k, False))
    return log_integral(y, d, k, ~np.asarray(near)) - total


def moments(d, k):
    """Return A, A', and the log of the integral of exp(k (w - 1)) over the sphere, in mpmath."""
    with mp.workdps(50):
        half, k = mp.mpf(d) / 2, mp.mpf(float(k))
        if not k:
            return mp.mpf(0), mp.mpf(1) / d, mp.log(2 * mp.pi**half / mp.gamma(half))
        bessel = mp.besseli(half - 1, k)
        a = mp.besseli(half, k) / bessel
        norm = mp.log(bessel) - k + (1 - half) * mp.log(k) + half * mp.log(2 * mp.pi)
        return a, 1 - a * a - (d - 1) / k * a, norm


def exact_tail(small, near, d, k):
    """Return the probability of a cap of height `small` times the diameter, by integration in mpmath."""
    with mp.workdps(30):
        n, k, end = mp.mpf(d - 1), mp.mpf(float(k)), mp.mpf(float(small))
        sign = -2 * k if near else 2 * k

        # In u = (b / end)^(n/2) the integrand has no singularity.
        def integrand(u):
            b = end * u ** (2 / n)
            return mp.exp(sign * b) * (1 - b) ** (n / 2 - 1)

        part = 2 / n * end ** (n / 2) * mp.quad(integrand, [0, *(1 - mp.mpf(2) ** -j for j in range(1, 8)), 1])
        return part / (mp.beta(n / 2, n / 2) * mp.hyp1f1(n / 2, n, sign))

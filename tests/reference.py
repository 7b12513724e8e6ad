"""Compute reference values of the von Mises distribution with location 0, independently of the package.

The values are in float64 NumPy and in mpmath. The float64 values come from plain Gauss-Legendre quadrature of

    J(x) = integral of e^{q(x) - q(theta)} d theta,   q(theta) = 2 k sin^2(theta / 2).

The integral of the tail ends where the integrand has fallen by a factor of e^DEPTH, or at pi. That of the centre is
taken between x and 0. The integrand is positive, and its exponents are differences of q, computed as products of sines.
Both integrals therefore have a relative error of about 1e-15 at any k. The concentration k may be any number from 0 to
inf; at inf the distribution is a point mass at 0.
"""

import mpmath as mp
import numpy as np
from scipy import special

PI_REST = 1.2246467991473532e-16  # pi minus the nearest double
CHUNK = 2**12  # elements at a time, 40 doubles each, to fit the cache
DEPTH = 42.0  # the omitted integrand is below 1e-18 of its maximum
ASYMPTOTIC = 30.0  # from here on the 15-term series of DLMF 10.40.1 is exact to rounding
TERMS = 15
# Beyond this, angles are so small that e^-q and the products below would leave the range of floats. x sqrt(k) is then
# normal, with corrections of O(1 / k).
LARGEST = 1e200


def gauss_legendre(count):
    """Return nodes and weights on [-1, 1], exact to rounding; NumPy's and SciPy's have errors of 1e-12 at the ends."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    with mp.workdps(30):
        for i, node in enumerate(nodes):
            z = mp.mpf(float(node))
            for _ in range(2):
                last, value = mp.mpf(0), mp.mpf(1)
                for j in range(1, count + 1):
                    last, value = value, ((2 * j - 1) * z * value - (j - 1) * last) / j
                slope = count * (z * value - last) / (z * z - 1)
                z -= value / slope
            nodes[i], weights[i] = z, 2 / ((1 - z * z) * slope**2)
    return nodes, weights


# The hardest integrand is half a normal density, 9 standard deviations wide; 36 nodes would suffice for 1e-15.
NODES, WEIGHTS = gauss_legendre(40)


def _series(k):
    """Return asymptotic sums S and D with e^-k I0 = S / sqrt(2 pi k) and I0 - I1 = I0 D / S (DLMF 10.40.1)."""
    k = np.maximum(k, ASYMPTOTIC)
    term0 = term1 = total = np.ones_like(k)
    difference = np.zeros_like(k)
    for j in range(1, TERMS + 1):
        term0 = term0 * (2 * j - 1) ** 2 / (8 * j * k)
        term1 = term1 * ((2 * j - 1) ** 2 - 4) / (8 * j * k)
        total, difference = total + term0, difference + term0 - term1
    return total, difference


def norm(k):
    """Return 2 pi e^-k I0(k), which is 0 at inf."""
    return 2 * np.pi * special.i0e(k)


def log_norm(k):
    """Return log(2 pi I0(k)), the logarithm of the integral of e^{k cos x}."""
    return np.where(np.isinf(k), np.inf, np.log(norm(np.minimum(k, LARGEST))) + k)


def pdf(x, k):
    """Return the density at x, which is inf at the point mass."""
    finite = np.minimum(k, LARGEST)
    density = np.exp(-2 * finite * np.sin(np.divide(x, 2)) ** 2) / norm(finite)
    return np.where(np.isinf(k) & np.equal(x, 0), np.inf, density)


def log_pdf(x, k):
    """Return the log density, also where the density underflows; k must be finite."""
    return -2 * k * np.sin(np.divide(x, 2)) ** 2 - np.log(norm(k))


def ratio(k):
    """Return A(k) = I1(k) / I0(k), the mean resultant length."""
    k = np.asarray(k, float)
    near = np.minimum(k, ASYMPTOTIC)
    return np.where(k < ASYMPTOTIC, special.i1e(near) / special.i0e(near), 1 - ratio_complement(k))


def ratio_complement(k):
    """Return 1 - I1(k) / I0(k): by subtraction below k = 30, by the asymptotic series without cancellation above."""
    k = np.asarray(k, float)
    near = np.minimum(k, ASYMPTOTIC)
    total, difference = _series(k)
    return np.where(k < ASYMPTOTIC, (special.i0e(near) - special.i1e(near)) / special.i0e(near), difference / total)


def ratio_slope(k):
    """Return A'(k), the variance of cos x, as a sum of positive terms; at inf it is below 1e-190."""
    k = np.minimum(np.asarray(k, float), LARGEST**0.5)
    end = np.arcsin(np.sqrt(np.minimum(0.5 * DEPTH / np.maximum(k, 1), 1)))
    versine = 2 * np.sin(end[..., None] * (NODES + 1) / 2) ** 2
    mass = np.exp(-k[..., None] * versine) * WEIGHTS
    mass /= mass.sum(-1, keepdims=True)
    mean = (mass * versine).sum(-1, keepdims=True)
    return (mass * (versine - mean) ** 2).sum(-1)


def chunked(function):
    """Decorate an elementwise function of (x, k) to compute in pieces that fit the cache."""

    def apply(x, k, *rest):
        x, k, *rest = np.broadcast_arrays(np.asarray(x, float), np.minimum(np.asarray(k, float), LARGEST), *rest)
        flat = [a.reshape(-1) for a in (x, k, *rest)]
        pieces = [function(*(a[i : i + CHUNK] for a in flat)) for i in range(0, x.size, CHUNK)]
        return np.concatenate(pieces).reshape(x.shape) if pieces else np.zeros(x.shape)

    apply.__doc__ = function.__doc__
    return apply


def scaled_integral(x, k, tail, slope=False):
    """Return J(x) on one side; with `slope`, the integrand also has the factor cos(theta) - A(k).

    The integral of the centre is negative, since it runs from x down to 0.
    """
    half_sin, half_cos = np.sin(x / 2), np.cos(x / 2)
    if tail:
        span = (np.pi - x) + PI_REST
        # Integrate up to the angle 2 b with sin(b)^2 - sin(x / 2)^2 = d, if it exists, without subtracting angles.
        d = 0.5 * DEPTH / np.maximum(k, 1)  # no cut for k below 21
        cut = d < half_cos**2
        # x / 2 + b, or pi minus that next to pi, where 1 - sin(x / 2)^2 would cancel.
        total = x / 2 + np.arcsin(np.sqrt(np.minimum(half_sin**2 + d, 1)))
        rest = (np.pi - x) / 2 + np.arcsin(np.sqrt(np.maximum(half_cos**2 - d, 0)))
        sine = np.sin(np.where(half_sin**2 < 0.5, total, rest))
        end = 2 * np.arcsin(np.minimum(d / np.where(cut, sine, np.inf), 1))
        span = np.where(cut, np.minimum(end, span), span)
    else:
        span = -x
    # For a step h from x, cos x - cos(x + h) = 2 sin(h / 2) sin(x + h / 2); the addition theorem gives the second sine.
    sine = np.sin((span / 4)[:, None] * (NODES + 1))
    cosine = np.sqrt(1 - sine * sine)
    sin_x, cos_x = 2 * half_sin * half_cos, (half_cos - half_sin) * (half_cos + half_sin)
    middle = sin_x[:, None] * cosine + cos_x[:, None] * sine
    value = np.exp((-2 * k)[:, None] * sine * middle)
    if slope:
        end = half_sin[:, None] * cosine + half_cos[:, None] * sine
        value *= ratio_complement(k)[:, None] - 2 * end**2
    return span / 2 * (value @ WEIGHTS)


@chunked
def sf(x, k):
    """Return P(X > x) for x in [0, pi], with full relative accuracy."""
    return scaled_integral(x, k, tail=True) * pdf(x, k)


@chunked
def log_sf(x, k):
    """Return log P(X > x) for x in [0, pi], also where P underflows."""
    return np.log(scaled_integral(x, k, tail=True)) + log_pdf(x, k)


@chunked
def central(x, k):
    """Return P(0 < X < x) for x in [0, pi], with full relative accuracy."""
    # Integrate the centre only near the mode, since e^{q(x) - q(0)} overflows far out.
    near = k * np.sin(x / 2) ** 2 < 1
    inside = np.where(near, x, 0.0)
    return np.where(near, -scaled_integral(inside, k, tail=False) * pdf(inside, k), 0.5 - sf(x, k))


@chunked
def dquantile_dk(x, k):
    """Return d x / d k at fixed tail probability, for x in [0, pi], by an integral over the centre or the tail."""
    centre = 2 * np.sin(x / 2) ** 2 * (1 + k) < 1
    inside = np.where(centre, x, 0.0)
    return np.where(centre, scaled_integral(inside, k, False, True), scaled_integral(x, k, True, True))


def quantile(t, k, c=None):
    """Return |x| with P(X > |x|) = t for normal floats t up to 1/2; give `c` = 1/2 - t if t does not resolve it."""
    t = np.asarray(t, float)
    return np.where(np.isinf(k), 0.0, _quantile(t, k, 0.5 - t if c is None else c))


@chunked
def _quantile(t, k, c):
    low = np.zeros_like(t)
    s = np.sqrt(1420 / np.maximum(k, 1e-300)) / 2
    high = np.where(s < 1, 2 * np.arcsin(np.minimum(s, 1)), np.pi)
    # Start from the uniform quantile at small k. At large k the chord is nearly normal, so start from its quantile.
    chord = -special.ndtri(t) / (2 * np.sqrt(np.maximum(k, 1e-300)))
    x = np.where(k > 2, 2 * np.arcsin(np.minimum(chord, 0.9)), 2 * np.pi * c)
    x = np.minimum(x, 0.99 * high)
    todo = np.arange(len(t))
    # Iterate on log P(X > x) inside a bracket, then on P(0 < X < x), which resolves angles near 0.
    for _ in range(200):
        xs, ks = x[todo], k[todo]
        integral = scaled_integral(xs, ks, tail=True)
        with np.errstate(divide="ignore"):
            excess = np.log(integral * pdf(xs, ks) / t[todo])
        high[todo] = np.where(excess < 0, xs, high[todo])
        low[todo] = np.where(excess >= 0, xs, low[todo])
        with np.errstate(invalid="ignore", over="ignore"):
            # Near the solution, use one order more than Newton's method. J' = k sin(x) J - 1 lies between -1 and 0,
            # since log P is concave.
            bend = np.clip(ks * np.sin(xs) * integral - 1, -1, 0)
            new = xs + excess * integral * (1 + 0.5 * np.where(np.abs(excess) < 0.5, excess, 0) * bend)
        new = np.where((new >= low[todo]) & (new <= high[todo]), new, (low[todo] + high[todo]) / 2)
        x[todo] = new
        # The next error is of the order of the cube of this step.
        todo = todo[(np.abs(excess) > 1e-6) & (np.abs(new - xs) > 4e-16 * np.abs(xs))]
        if not len(todo):
            break
    # Next to pi, where the float spacing stopped the iteration early, a plain step is exact, since P is linear there.
    far, near = np.flatnonzero(c >= 0.25), np.flatnonzero(c < 0.25)
    xs, ks = x[far], k[far]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        move = scaled_integral(xs, ks, tail=True) - t[far] / pdf(xs, ks)
    x[far] = np.where(np.abs(move) < 1e-3 * xs, xs + move, xs)
    xs, ks = np.where(c == 0, 0.0, x)[near], k[near]
    for _ in range(3):
        xs = xs + scaled_integral(xs, ks, tail=False) + c[near] / pdf(xs, ks)
    x[near] = xs
    return x


@np.vectorize
def deviation(x, loc):
    """Return x - loc modulo a full turn, treating the floats as exact."""
    x, loc = float(x), float(loc)
    if abs(x - loc) < 3 and abs(x) < 1e3 and float(np.float32(x)) == x and float(np.float32(loc)) == loc:
        return x - loc
    with mp.workdps(60):
        difference = mp.mpf(x) - mp.mpf(loc)
        return float(difference - 2 * mp.pi * mp.nint(difference / (2 * mp.pi)))


# The same functions in mpmath. They are slow, but cancellation does no harm with 40 digits.


def mp_norm(k):
    """Return 2 pi e^-k I0(k) in mpmath."""
    k = mp.mpf(k)
    if k < 1e6:
        return 2 * mp.pi * mp.besseli(0, k) * mp.exp(-k)
    # mpmath's own evaluation would be slow here, and the asymptotic series is exact to 40 digits.
    term = total = mp.mpf(1)
    for j in range(1, 12):
        term = term * (2 * j - 1) ** 2 / (8 * j * k)
        total += term
    return mp.sqrt(2 * mp.pi / k) * total


def mp_log_i0(k):
    """Return log I0(k) in mpmath, accurate also at small k, where it is about k^2 / 4."""
    with mp.workdps(100):
        return mp.mpf(k) + mp.log(mp_norm(k) / (2 * mp.pi))


def mp_ratio(k):
    """Return A(k) = I1(k) / I0(k) in mpmath, with 30 digits even in 1 - A."""
    with mp.workdps(80):
        return mp.besseli(1, k) / mp.besseli(0, k)


def mp_ratio_slope(k):
    """Return A'(k) in mpmath."""
    with mp.workdps(80):
        k, a = mp.mpf(k), mp_ratio(k)
        return 1 - a / k - a * a


def mp_pdf(x, k):
    """Return the density at x in mpmath."""
    return mp.exp(-2 * mp.mpf(k) * mp.sin(mp.mpf(x) / 2) ** 2) / mp_norm(k)


def mp_tail(x, k):
    """Return P(X > x) in mpmath with 30 digits; x and k are taken as exact."""
    with mp.workdps(40):
        x, k = mp.mpf(x), mp.mpf(k)
        width = 1 / mp.sqrt(k + 1)
        points = [x, *(p for p in (x + j * width for j in (0.1, 0.3, 1, 2, 4, 8, 16, 32)) if p < mp.pi)]
        if points[-1] + 20 * width > mp.pi:
            points.append(mp.pi)
        # Integrate relative to the density at x, since mpmath stops at an absolute error of 1e-40.
        level = mp.sin(x / 2) ** 2
        return mp.quad(lambda u: mp.exp(-2 * k * (mp.sin(u / 2) ** 2 - level)), points) * mp_pdf(x, k)


def mp_central(x, k):
    """Return P(0 < X < x) in mpmath."""
    with mp.workdps(40):
        return mp.mpf(1) / 2 - mp_tail(x, k)


def mp_quantile(t, k, start):
    """Return the angle with P(X > angle) = t in mpmath, by Newton's method; `start` must have some correct digits."""
    with mp.workdps(40):
        x, step = mp.mpf(start), mp.inf
        while abs(step) > mp.mpf(10) ** -25 * x:
            last, step = step, (mp_tail(x, k) - t) / mp_pdf(x, k)
            if abs(step) > abs(last) / 2:
                raise ArithmeticError(f"no convergence at t={t}, k={k}: steps {last}, {step}")
            x += step
        return x


def mp_dquantile_dk(x, k):
    """Return d x / d k at fixed tail probability in mpmath, from a central difference of P(X > x) with respect to k."""
    with mp.workdps(40):
        step = mp.mpf(k) * mp.mpf(10) ** -12
        difference = mp_tail(x, mp.mpf(k) + step) - mp_tail(x, mp.mpf(k) - step)
        return difference / (2 * step * mp_pdf(x, k))

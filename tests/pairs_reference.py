"""Evaluate the sine and cosine models of two angles in float64 NumPy and mpmath, independently of the package."""

import math

import mpmath as mp
import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


def exponent(name, a, b, k1, k2, r, lib=math):
    """Return the logarithm of the density without its normaliser."""
    dependence = lib.sin(a) * lib.sin(b) if name == "sine" else -lib.cos(a - b)
    return k1 * lib.cos(a) + k2 * lib.cos(b) + r * dependence


def log_normaliser_mp(name, k1, k2, r, size=64):
    """Return the log normaliser in mpmath, from a sum over a two-dimensional grid of angles.

    The integrand is periodic, so the sum is exact to rounding for parameters up to about ten.
    """
    with mp.workdps(20):
        k1, k2, r = (mp.mpf(float(k)) for k in (k1, k2, r))
        grid = [2 * mp.pi * j / size for j in range(size)]
        total = mp.fsum(mp.exp(exponent(name, a, b, k1, k2, r, mp)) for a in grid for b in grid)
        return float(mp.log(total * (2 * mp.pi / size) ** 2))


def rho(name, a, k2, r):
    """Return the concentration of the second angle given the first angle `a`."""
    if name == "sine":
        return np.sqrt(k2**2 + (r * np.sin(a)) ** 2)
    near = (k2 - r) ** 2 + 4 * k2 * r * np.sin(a / 2) ** 2
    far = (k2 + r) ** 2 - 4 * k2 * r * np.cos(a / 2) ** 2
    return np.sqrt(np.maximum(near if r >= 0 else far, 0))


def mode(name, k1, k2, r):
    """Return the angle a in [0, pi] that maximises k1 cos a + rho(a), which is concave as a function of cos a.

    In the cosine model, k1 and r may both be negative, since measuring the first angle from pi changes both signs.
    """
    if name == "sine":
        if r * r <= k1 * k2:
            return 0.0
        return math.acos(min(1.0, k1 / abs(r) * math.sqrt((k2**2 + r**2) / (k1**2 + r**2))))
    product, sign = k2 * r, -1 if k1 <= 0 and r < 0 else 1
    if sign * product <= 0 or k1 * abs(k2 - r) >= product:
        return 0.0
    if k1 * abs(k2 + r) <= product:
        return math.pi
    top = product / k1
    half = (top - abs(k2 - r)) * (top + abs(k2 - r)) / (4 * product)
    return 2 * math.asin(math.sqrt(min(max(half, 0), 1)))


class Marginal:
    """Marginal density of the first angle on [0, pi], on panels that shrink towards `mode` and both ends.

    The density without its normaliser is e^g with g(a) = k1 cos a + log I0(rho(a)) - k1 cos m - rho(m) for m = `mode`.
    """

    def __init__(self, name, k1, k2, r, points=()):
        self.name, self.k1, self.k2, self.r = name, k1, k2, r
        self.mode = mode(name, k1, k2, r)
        self.top = float(rho(name, np.float64(self.mode), k2, r))
        steps = np.concatenate([[0], np.geomspace(1e-8, 4, 400)])
        edges = [self.mode - steps, self.mode + steps, steps, np.pi - steps, points]
        self.edges = np.unique(np.clip(np.concatenate(edges), 0, np.pi))
        width = np.diff(self.edges)
        self.a = self.edges[:-1, None] + width[:, None] * (NODES + 1) / 2
        self.mass = np.exp(self.log_density(self.a)) * WEIGHTS * width[:, None] / 2
        self.total = self.mass.sum()
        self.log_total = math.log(4 * math.pi * self.total)

    def log_density(self, a):
        """Return g, without cancellation in its differences."""
        rise = -2 * np.sin((a - self.mode) / 2) * np.sin((a + self.mode) / 2)
        both = np.cos(a) + math.cos(self.mode)
        squares = -(self.r**2) * rise * both if self.name == "sine" else -2 * self.k2 * self.r * rise
        rhos = rho(self.name, a, self.k2, self.r)
        return self.k1 * rise + squares / np.maximum(rhos + self.top, 1e-300) + np.log(special.i0e(rhos))

    def means(self):
        """Return the means of cos a, cos b and the dependence term of `exponent`."""
        rhos = np.maximum(rho(self.name, self.a, self.k2, self.r), 1e-300)
        over = special.i1e(rhos) / special.i0e(rhos) / rhos
        if self.name == "sine":
            first, second = self.k2 + 0 * self.a, self.r * np.sin(self.a) ** 2
        else:
            first, second = self.k2 - self.r * np.cos(self.a), self.r - self.k2 * np.cos(self.a)
        return [(self.mass * x).sum() / self.total for x in (np.cos(self.a), over * first, over * second)]

    def tails(self, a):
        """Return the probabilities above and below the angles `a`, and the density at `a`, normalised on [0, pi].

        The angles must be among `points`.
        """
        sums = self.mass.sum(1)
        below = np.concatenate([[0], np.cumsum(sums)])
        above = np.concatenate([np.cumsum(sums[::-1])[::-1], [0]])
        at = np.searchsorted(self.edges, np.clip(a, 0, np.pi))
        return above[at] / self.total, below[at] / self.total, np.exp(self.log_density(a)) / self.total


def parameters(name, count, seed=1):
    """Return rows (k1, k2, r) with k1 and k2 up to 1e7, many of them near the boundary between one and two modes."""
    rng = np.random.default_rng(seed)
    fixed = [
        (0, 0, 0),
        (0, 0, 3),
        (0, 4, 0),
        (2, 3, 1),
        (5, 6, -7),
        (0.3, 0.2, 40),
        (2000, 500, 1500),
        (3, 3, 3),
        (1, 3, 3),
    ]
    fixed += [(1e7, 1e7, r) for r in (9e6, 1e7, 9.9999e6, 1.00001e7, 2e7, -1e7, 5e6)] + [(1e5, 1e5, 1.0005e5)]
    fixed += [(1e7, 0, 3e3), (1e7, 1e-3, 100), (0, 0, 1e7), (1, 0, 1e7), (1e7, 1, 1e6), (1, 1e7, 1e6), (1e7, 1e3, 1e3)]
    fixed += [(0, 5, 5), (4, 1e7, 4), (9.17, 1.14e-3, -0.0863)]
    for _ in range(count):
        k1, k2 = 10 ** rng.uniform(-3, 7, 2)
        product = k1 * k2
        critical = math.sqrt(product) if name == "sine" else product / rng.choice([k1 + k2, abs(k1 - k2)])
        kind = rng.integers(3)
        r = (
            10 ** rng.uniform(-3, 7),
            critical * rng.uniform(0, 2),
            critical * (1 + rng.normal() / (1 + critical) ** 0.5),
        )
        fixed.append((k1, k2, min(r[kind], 1e8) * rng.choice([-1, 1])))
    return np.array(fixed, np.float32)

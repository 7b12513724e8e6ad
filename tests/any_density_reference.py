"""Define log densities on the circle for NumPy and `jax.numpy`, and integrate the densities in float64.

The angle is a scalar in `jax.numpy`, and an array with a last axis of length 1 in NumPy. `Reference` integrates by
Gauss-Legendre rules on intervals that shrink to 1e-9 radians towards the steep places of a density. `exact_tail` uses
mpmath.
"""

from typing import NamedTuple

import jax.numpy as jnp
import mpmath as mp
import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
IMAGES = np.arange(-3, 4) * 2 * np.pi


def logsumexp(terms, m):
    """Return the log of the sum of exponentials over the last axis, which is kept in NumPy only."""
    top = m.max(terms, -1, keepdims=True)
    total = top + m.log(m.sum(m.exp(terms - top), -1, keepdims=True))
    return total if m is np else total[0]


def mixture(x, weights, concentrations, centres, m=jnp):
    """Return the unnormalised log density of a von Mises mixture; `weights` are the components' peak values."""
    return logsumexp(m.log(weights) - 2 * concentrations * m.sin(0.5 * (x - centres)) ** 2, m)


def wrapped_cauchy(x, rho, m=jnp):
    return -m.log(1 + rho**2 - 2 * rho * m.cos(x))


def wrapped_normal(x, sigma, m=jnp):
    return logsumexp(-0.5 * ((x + m.asarray(IMAGES, x.dtype)) / sigma) ** 2, m)


def cardioid(x, rho, m=jnp):
    return m.log1p(2 * rho * m.cos(x))


def kato_jones(x, gamma, rho, skew, m=jnp):
    """Return the log density of S. Kato and M. C. Jones, Biometrika 102, 2015, equation 3, without its normaliser."""
    return m.log1p(2 * gamma * (m.cos(x) - rho * m.cos(skew)) / (1 + rho**2 - 2 * rho * m.cos(x - skew)))


def sine_skewed(x, kappa, skewness, m=jnp):
    return kappa * m.cos(x) + m.log1p(skewness * m.sin(x))


def harmonics(x, cosine, sine, m=jnp):
    """Return the log density of the generalised von Mises distribution of order 3, without its normaliser."""
    angles = m.asarray(np.arange(1, 4), x.dtype) * x
    return m.sum(cosine * m.cos(angles) + sine * m.sin(angles), -1, keepdims=m is np)


def kernels(x, counts, kappa, m=jnp):
    """Return the log of a kernel density estimate from a histogram with 12 equal bins, without its normaliser."""
    centres = m.asarray((np.arange(12) + 0.5) * np.pi / 6 - np.pi, x.dtype)
    return logsumexp(m.log(counts) + kappa * m.cos(x - centres), m)


class Example(NamedTuple):
    """A log density, its parameters, its steep places, and a bound on the error of a float32 table."""

    log_density: object
    parameters: tuple
    points: tuple[float, ...]
    bound: float = 1.5e-6


def of_mixture(*parts, bound=1.5e-6):
    """Return a mixture of parts (weight, concentration, centre), padded to three with parts of negligible weight."""
    parts = (*parts, *[(1e-30, 0.0, 0.0)] * (3 - len(parts)))
    weight, kappa, centre = np.array(parts, np.float64).T
    kappa, centre = np.float32(kappa).astype(float), np.float32(centre).astype(float)
    at_mode = weight / np.array([float(mp.exp(-k) * mp.besseli(0, k)) for k in kappa])
    at_mode = np.float32(at_mode).astype(float)
    return Example(mixture, (at_mode, kappa, centre), tuple(centre), bound)


def single(*parameters):
    """Return the parameters rounded to float32."""
    return tuple(np.asarray(x, np.float32).astype(float) for x in parameters)


EXAMPLES = {
    "uniform": of_mixture((1, 0, 0)),
    "von Mises 5": of_mixture((1, 5, 0)),
    "von Mises 1e4": of_mixture((1, 1e4, 0)),
    "von Mises 1e7": of_mixture((1, 1e7, 0)),
    "von Mises 1e7 at 2": of_mixture((1, 1e7, 2), bound=5e-6),
    "two modes": of_mixture((0.5, 50, -1.5), (0.5, 50, 1.5)),
    "two unequal modes": of_mixture((0.3, 40, -2), (0.7, 200, 1)),
    "three modes": of_mixture((0.3, 30, -2), (0.4, 30, 0), (0.3, 30, 2)),
    "three narrow modes": of_mixture((0.3, 300, -2), (0.4, 300, 0.2), (0.3, 300, 2)),
    "spike on a flat background": of_mixture((0.3, 1e4, 1), (0.7, 0, 0), bound=2e-5),
    "exp(8 cos 2x)": Example(harmonics, single([0, 8, 0], [0, 0, 0]), (0, np.pi / 2, -np.pi / 2)),
    "exp(30 cos 3x + 2 cos x)": Example(harmonics, single([2, 0, 30], [0, 0, 0]), (0,)),
    "generalised von Mises": Example(harmonics, single([2, 1, 0], [0.5, -1, 0]), ()),
    "wrapped Cauchy 0.7": Example(wrapped_cauchy, single(0.7), (0,)),
    "wrapped Cauchy 0.9999": Example(wrapped_cauchy, single(0.9999), (0,)),
    "wrapped normal 0.02": Example(wrapped_normal, single(0.02), (0,)),
    "wrapped normal 2": Example(wrapped_normal, single(2), ()),
    "cardioid 0.45": Example(cardioid, single(0.45), ()),
    "cardioid 0.5": Example(cardioid, single(0.5), (np.pi, -np.pi)),
    "Kato-Jones": Example(kato_jones, single(0.5, 0.7, 0.5), (0.5,)),
    "sine-skewed": Example(sine_skewed, single(2, -0.9), (0,)),
    "kernel estimate": Example(kernels, single([3, 1, 0.01, 0.01, 5, 9, 4, 1, 0.01, 1, 2, 7], 40), (), 1e-5),
}


class Reference:
    """The distribution of an `Example` in float64."""

    def __init__(self, example):
        self.example = example
        edges = [np.linspace(-np.pi, np.pi, 801)]
        for point in example.points:
            distance = np.geomspace(1e-9, 2 * np.pi, 800)
            edges += [point + distance, point - distance, [point]]
        edges = np.unique(np.concatenate(edges))
        self.edges = np.concatenate([[-np.pi], edges[(edges > -np.pi) & (edges < np.pi)], [np.pi]])
        self.top = 0.0
        self.top = np.max(self.log_densities(self.edges))
        mass = self.integral(self.edges[:-1], self.edges[1:])
        self.lower = np.concatenate([[0.0], np.cumsum(mass)])
        self.upper = np.concatenate([np.cumsum(mass[::-1])[::-1], [0.0]])
        self.total = mass.sum()
        self.log_normalizer = self.top + np.log(self.total)

    def log_densities(self, x):
        """Return the log density at many angles, minus its largest value at the edges."""
        with np.errstate(divide="ignore"):
            return self.example.log_density(np.asarray(x)[..., None], *self.example.parameters, m=np)[..., 0] - self.top

    def integral(self, low, high):
        """Return the unnormalised masses of intervals that contain no steep place."""
        half = 0.5 * (high - low)
        x = (0.5 * (high + low))[:, None] + half[:, None] * NODES
        return half * (np.exp(self.log_densities(x)) @ WEIGHTS)

    def density(self, x):
        """Return the density per radian."""
        return np.exp(self.log_densities(x)) / self.total

    def tails(self, x):
        """Return P(X < x) and P(X > x) for angles in [-pi, pi], both with full relative accuracy."""
        x = np.clip(np.asarray(x, np.float64), -np.pi, np.pi)
        i = np.clip(np.searchsorted(self.edges, x, side="right") - 1, 0, len(self.edges) - 2)
        before, after = self.integral(self.edges[i], x), self.integral(x, self.edges[i + 1])
        return (self.lower[i] + before) / self.total, (self.upper[i + 1] + after) / self.total


def exact_tail(x, log_density, points):
    """Return P(X < x) in mpmath; `log_density` takes one mpmath number."""
    with mp.workdps(30):
        ends = [-mp.pi, *sorted(p for p in points if -np.pi < p < np.pi), mp.pi]
        density = lambda x: mp.exp(log_density(x))  # noqa: E731
        below = [-mp.pi, *[p for p in ends[1:-1] if p < x], mp.mpf(x)]
        return float(mp.quad(density, below) / mp.quad(density, ends))

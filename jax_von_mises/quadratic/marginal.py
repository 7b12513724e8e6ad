r"""Integrate the marginal density of one squared coordinate, in the frame of the eigenvectors.

On a sphere with the density :math:`\exp(x^T A x)`, let :math:`g_i` be the gaps between the largest eigenvalue of A and
the others, in ascending order, and v the squared length of the part of x along the last eigenvectors: the last two on
the sphere in four dimensions, the last one in three. With :math:`E(y) = e^{-y} I_0(y)`, the marginal density of v in
[0, 1], relative to the uniform distribution and to the density at the mode, is

.. math:: p(v) = e^{-a v} E(c (1 - v)) E(d v), \qquad a = g_3,\; c = g_2 / 2,\; d = (g_4 - g_3) / 2,

in four dimensions. In three, :math:`v^{-1/2} / 2` stands in place of the last factor, its limit for an infinite
:math:`g_4`. Since a is at least 2 c, p falls monotonically for all parameters. Given v, the angles in the planes of the
first two and of the last two eigenvectors are halves of angles with von Mises distributions of the concentrations
c (1 - v) and d v.

*Integrals.* p is flat below v = 1/d, falls as v^(-1/2) up to 1/a, and then exponentially. With
:math:`v = \sinh(y)^2 / \delta`, which is linear in the root of v below 1/delta and logarithmic above, it is smooth on
all scales, and one Gauss-Legendre rule in y serves all parameters. From a place v on, :math:`v' - v` is a sum of
positive terms.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import quadrature
from jax_von_mises.von_mises import bessel

# Nodes of the normaliser, and of a tail.
NODES = {"float32": (24, 16), "float64": (64, 48)}
# Fall of the exponent within the integral of a tail.
DEPTH = {"float32": 17.0, "float64": 38.0}

Sums = tuple[jax.Array, ...]


def scaled_i0(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return n and s with E(x) = n e^-s."""
    n, s = bessel.norm(x, 1 / jnp.maximum(x, 1))
    return n * (0.5 / np.pi), s


class Place(NamedTuple):
    """A squared coordinate and its complement, both with relative accuracy."""

    v: jax.Array
    w: jax.Array
    """1 - v."""


class Halves(NamedTuple):
    """Means of two squared coordinates r cos(x)^2 and r sin(x)^2, where 2 x has a von Mises distribution."""

    means: Sums
    squares: Sums
    """Of the square of the first, of the product of both, and of the square of the second."""


def halves(r: jax.Array, kappa: jax.Array) -> Halves:
    """Return the `Halves` for a sum of two squares and a concentration."""
    rest, variance = bessel.one_minus_ratio(kappa), bessel.slope(kappa)
    ratio = bessel.ratio(kappa)
    some = kappa > 1e-3
    product = jnp.where(some, ratio / jnp.where(some, kappa, 1), 0.5 - kappa * kappa / 16)
    square = 0.25 * r * r
    means = 0.5 * r * (1 + ratio), 0.5 * r * rest
    return Halves(
        means, (square * (variance + jnp.square(1 + ratio)), square * product, square * (variance + rest * rest))
    )


class Marginal(NamedTuple):
    """The marginal density of v on the sphere in four dimensions."""

    a: jax.Array
    c: jax.Array
    d: jax.Array

    @classmethod
    def of(cls, gaps: Sums) -> Self:
        """Return the marginal density for the gaps, in ascending order."""
        second, third, fourth = gaps
        return cls(third, 0.5 * second, 0.5 * (fourth - third))

    @property
    def scale(self) -> jax.Array:
        """The delta of the map of nodes."""
        return self.d + 0.1 * jnp.maximum(self.a, 1)

    def factor(self, at: Place) -> tuple[jax.Array, jax.Array]:
        """Return n and s with p = n exp(-s - a v)."""
        first, s = scaled_i0(self.c * at.w)
        second, shift = scaled_i0(self.d * at.v)
        return first * second, s + shift

    def fall(self, v: jax.Array, moved: jax.Array) -> jax.Array:
        """Return the fall of the exponent from v to v + `moved`."""
        return self.a * moved

    def reach(self, at: Place, depth: float) -> jax.Array:
        """Return how far above v the exponent falls by `depth`, at most 1 - v."""
        return jnp.minimum(at.w, depth / jnp.maximum(self.a, 1e-30))

    def slope(self, at: Place) -> jax.Array:
        """Return the derivative of log p with respect to v."""
        rise = self.c * bessel.one_minus_ratio(self.c * at.w)
        return -self.a + rise - self.d * bessel.one_minus_ratio(self.d * at.v)

    def squares(self, at: Place) -> Sums:
        """Return the means of the squared coordinates but the first, given v: minus the slopes of log p by the gaps."""
        second = 0.5 * at.w * bessel.one_minus_ratio(self.c * at.w)
        fourth = 0.5 * at.v * bessel.one_minus_ratio(self.d * at.v)
        return second, at.v - fourth, fourth

    def products(self, at: Place) -> Sums:
        """Return the means of products of two squared coordinates, given v: (1, 1), (1, 2), ..., (4, 4)."""
        first, second = halves(at.w, self.c * at.w), halves(at.v, self.d * at.v)
        across = [x * y for x in first.means for y in second.means]
        return (*first.squares[:2], *across[:2], first.squares[2], *across[2:], *second.squares)

    @property
    def rate(self) -> jax.Array:
        """The inverse of the v at which the exponential has fallen."""
        return self.a

    def upper_tail(self, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return v and 1 - v beyond which the exponential alone has the share t, and whether 1 - v is the better."""
        a = jnp.maximum(self.a, 1e-3)
        v = jnp.minimum(-jnp.log(t + (1 - t) * jnp.exp(-a)) / a, 1)
        rest = jnp.log1p(t * jnp.expm1(jnp.minimum(a, 60))) / a
        return v, rest, (rest < 0.25) & (a < 60)

    def start_near_0(self, mass: jax.Array) -> jax.Array:
        """Return a v below which the mass, relative to p(0), is about `mass`."""
        return mass + (0.5 * np.pi) * self.d * mass * mass

    def share_of_root(self, v: jax.Array) -> jax.Array:
        """Return about how much of the factor v^(-1/2) the density has at v, from 0 to 1."""
        return self.d * v / (1 + self.d * v)


class Marginal3(Marginal):
    """The marginal density of v on the sphere in three dimensions; `d` is not used."""

    @classmethod
    def of(cls, gaps: Sums) -> Self:
        """Return the marginal density for the gaps, in ascending order."""
        second, third = gaps
        return cls(third, 0.5 * second, jnp.zeros_like(third))

    def factor(self, at: Place) -> tuple[jax.Array, jax.Array]:
        """Return n and s with p = n exp(-s - a v)."""
        n, s = scaled_i0(self.c * at.w)
        return 0.5 * n / jnp.sqrt(at.v), s

    def slope(self, at: Place) -> jax.Array:
        """Return the derivative of log p with respect to v."""
        return -self.a + self.c * bessel.one_minus_ratio(self.c * at.w) - 0.5 / at.v

    def squares(self, at: Place) -> Sums:
        """Return the means of the squared coordinates but the first, given v: minus the slopes of log p by the gaps."""
        return 0.5 * at.w * bessel.one_minus_ratio(self.c * at.w), at.v

    def products(self, at: Place) -> Sums:
        """Return the means of products of two squared coordinates, given v: (1, 1), (1, 2), ..., (3, 3)."""
        first = halves(at.w, self.c * at.w)
        across = [x * at.v for x in first.means]
        return (*first.squares[:2], across[0], first.squares[2], across[1], at.v * at.v)

    def start_near_0(self, mass: jax.Array) -> jax.Array:
        """Return a v below which the mass, relative to the density without its root, is about `mass`."""
        return mass * mass

    def share_of_root(self, v: jax.Array) -> jax.Array:
        """Return how much of the factor v^(-1/2) the density has at v."""
        return jnp.ones_like(v)


class KentMarginal(Marginal):
    """The marginal density of v = (1 - t) / 2 for the cosine t of the angle to a Kent distribution's mean direction.

    It is exp(-(a + b v) v) E(b v (1 - v)) with a = 2 k - 4 beta and b = 4 beta, for the concentration k and the
    ovalness beta, of which twice is at most k. Here `d` is b, and `c` is not used.
    """

    @classmethod
    def of(cls, gaps: Sums) -> Self:
        """Return the marginal density for the concentration and the ovalness."""
        concentration, ovalness = gaps
        return cls(2 * (concentration - 2 * ovalness), jnp.zeros_like(ovalness), 4 * ovalness)

    @property
    def scale(self) -> jax.Array:
        """The delta of the map of nodes."""
        return self.d + 0.1 * jnp.maximum(self.a + jnp.sqrt(self.d), 1)

    def fall(self, v: jax.Array, moved: jax.Array) -> jax.Array:
        """Return the fall of the exponent from v to v + `moved`."""
        return (self.a + self.d * (2 * v + moved)) * moved

    def reach(self, at: Place, depth: float) -> jax.Array:
        """Return how far above v the exponent falls by `depth`, at most 1 - v."""
        slope = self.a + 2 * self.d * at.v
        bottom = slope + jnp.sqrt(slope * slope + 4 * self.d * depth)
        return jnp.minimum(at.w, 2 * depth / jnp.maximum(bottom, 1e-30))

    def factor(self, at: Place) -> tuple[jax.Array, jax.Array]:
        """Return n and s with p = n exp(-s) times the exponential of minus the exponent's fall."""
        return scaled_i0(self.d * at.v * at.w)

    def slope(self, at: Place) -> jax.Array:
        """Return the derivative of log p with respect to v."""
        rest = bessel.one_minus_ratio(self.d * at.v * at.w)
        return -(self.a + 2 * self.d * at.v) - self.d * (at.w - at.v) * rest

    def squares(self, at: Place) -> Sums:
        """Return minus the slopes of log p by the concentration and the ovalness, given v."""
        product = at.v * at.w
        return 2 * at.v, -4 * product * bessel.ratio(self.d * product)

    def products(self, at: Place) -> Sums:
        """Return the means of v (1 - v) times 1 and times the cosine of twice the azimuth, given v."""
        product = at.v * at.w
        return product, product * bessel.ratio(self.d * product)

    @property
    def rate(self) -> jax.Array:
        """About the inverse of the v at which the exponential has fallen."""
        return self.a + jnp.sqrt(self.d)

    def upper_tail(self, t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return v and 1 - v beyond which the exponential alone has the share t, and whether 1 - v is the better."""
        a, b = jnp.maximum(self.a, 1e-3), self.d
        level = -jnp.log(t + (1 - t) * jnp.exp(-(a + b)))
        v = jnp.minimum(2 * level / (a + jnp.sqrt(a * a + 4 * b * level)), 1)
        rest = jnp.log1p(t * jnp.expm1(jnp.minimum(a + b, 60))) / (a + 2 * b)
        return v, rest, (rest < 0.25) & (a + b < 60)


def sinh_map(scale: jax.Array, sine: jax.Array | float, cosine: jax.Array | float, y: jax.Array) -> Sums:
    """Return v - v0 and dv/dy at y0 + y, where v = sinh(y)^2 / scale; `sine` and `cosine` are those of 2 y0."""
    e = jnp.expm1(y)
    inverse = 1 / (1 + e)
    sinh, cosh = 0.5 * e * (1 + inverse), 0.5 * (1 + e + inverse)
    rise = sinh * (sine * cosh + cosine * sinh)
    return rise / scale, (sine * (1 + 2 * sinh * sinh) + cosine * (2 * sinh * cosh)) / scale


def normaliser(marginal: Marginal, function: Callable[[Place], Sums] = lambda at: ()) -> tuple[jax.Array, Sums]:
    """Return the logarithm of the integral of p, and the means of a function."""
    one = jnp.ones_like(marginal.a)
    # To working precision, the integral does not depend on the nodes, which therefore need no derivatives.
    fixed = lax.stop_gradient(marginal)
    end = fixed.reach(Place(jnp.zeros_like(one), one), DEPTH[one.dtype.name] + 2)
    length = jnp.arcsinh(jnp.sqrt(fixed.scale * end))

    def term(node: jax.Array, weight: jax.Array) -> Sums:
        v, slope = sinh_map(fixed.scale, 0.0, 1.0, length * node)
        v = jnp.minimum(v, 1)
        at = Place(v, 1 - v)
        n, s = marginal.factor(at)
        p = weight * slope * n * jnp.exp(-s - marginal.fall(jnp.zeros_like(v), v))
        return p, *(p * each for each in function(at))

    total, *means = quadrature.add_terms(term, *quadrature.gauss_legendre(NODES[one.dtype.name][0]), one, loop=True)
    return jnp.log(total * length), tuple(each / total for each in means)


def tail(marginal: Marginal, at: Place, upper: jax.Array, function: Callable[[Place], Sums] = lambda at: ()) -> Sums:
    """Return the integral of p from v to 1 if `upper`, else from 0 to v, over p(v), and that of p times a function."""
    v, w = at
    scale = marginal.scale
    far = marginal.reach(at, DEPTH[v.dtype.name])
    r, r_far = scale * v, scale * (v + far)
    gap = scale * far / (jnp.sqrt(r_far * (1 + r)) + jnp.sqrt(r * (1 + r_far)))
    length = jnp.arcsinh(jnp.where(upper, gap, jnp.sqrt(r)))
    sine = jnp.where(upper, 2 * jnp.sqrt(r * (1 + r)), 0)
    cosine = jnp.where(upper, 1 + 2 * r, 1)
    n0, s0 = marginal.factor(at)
    end = jnp.where(upper, w, v)

    def term(node: jax.Array, weight: jax.Array) -> Sums:
        rise, slope = sinh_map(scale, sine, cosine, length * node)
        rise = jnp.minimum(rise, end)
        moved = jnp.where(upper, rise, rise - v)
        there = Place(jnp.where(upper, v + rise, rise), w - moved)
        n, s = marginal.factor(there)
        p = weight * slope * n * jnp.exp((s0 - s) - marginal.fall(v, moved))
        return p, *(p * each for each in function(there))

    sums = quadrature.add_terms(term, *quadrature.gauss_legendre(NODES[v.dtype.name][1]), v, loop=True)
    return tuple(length * each / n0 for each in sums)

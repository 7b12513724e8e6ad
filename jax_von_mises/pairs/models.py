r"""Evaluate the sine and the cosine model about their modes, without cancellation.

Let a and b be the two angles, measured from their locations. The density of either model is proportional to

.. math:: \exp(k_1\cos a + k_2\cos b + r\,W(a, b)), \qquad W = \sin a\sin b \text{ or } -\cos(a - b).

For a given a, the last two terms are :math:`\rho(a)\cos(b - \nu(a))`, so b has a von Mises distribution. The marginal
density of a is proportional to :math:`e^{k_1\cos a} I_0(\rho)`. Its logarithm and the function
:math:`g = k_1\cos a + \rho` are concave in cos a, so each has one mode for a in [0, pi]. Everything is measured from
the mode a* of g. For all parameters, the exponent E = g(a) - g(a*) is a sum of terms of one sign, each accurate to a
few ulp.

Given a, the means of cos b and W are :math:`A(\rho) / \rho` times their `Projections`, :math:`P = \rho\cos\nu` and
:math:`Q = \rho W(a, \nu)`, where A is the ratio of Bessel functions:

.. math:: \text{sine: } P = k_2, \quad Q = r\sin^2 a; \qquad
          \text{cosine: } P = k_2 - r\cos a, \quad Q = r - k_2\cos a.

If the mode of the cosine model is beyond a right angle, a is counted from pi, which changes the signs of k1 and r.

The sine model is that of H. Singh, V. Hnizdo and E. Demchuk, Biometrika 89, 2002, 719-723. The cosine model (with
positive interaction) is that of K. V. Mardia, C. C. Taylor and G. K. Subramaniam, Biometrics 63, 2007, 505-512.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics import elementary
from jax_von_mises.numerics.circle import half_pi_rest, rounded_off
from jax_von_mises.numerics.elementary import inverse_root, reciprocal, square_root

# Lower bound of the second concentration, at which the second angle is uniform to rounding but has a mean direction.
SMALLEST = {"float32": 1e-10, "float64": 1e-20}


class FirstAngle(NamedTuple):
    """Functions of a first angle a in [0, pi]."""

    rise: jax.Array
    """cos a - cos a*."""
    exponent: jax.Array
    """E, 0 or less."""
    rho: jax.Array
    """Concentration of the second angle."""
    sin: jax.Array
    """sin a."""
    versine: jax.Array
    """1 - cos a."""


class Projections(NamedTuple):
    """P and Q of the module docstring, at one angle a."""

    first: jax.Array
    """P."""
    second: jax.Array
    """Q."""
    first_rise: jax.Array
    """P - P*, where a star marks values at the mode a*."""
    second_rise: jax.Array
    """Q - Q*."""
    fall: jax.Array
    """rho* - rho."""


def difference_of_products(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
    """Return a b - c d, accurate to the rounding of the result unless that is tiny."""
    (ah, bh, ch, dh) = (elementary.head(x) for x in (a, b, c, d))
    al, bl, cl, dl = a - ah, b - bh, c - ch, d - dh
    return (ah * bh - ch * dh) + ((ah * bl - ch * dl) + (al * bh - cl * dh)) + (al * bl - cl * dl)


def trigonometry(offset: jax.Array, mode: jax.Array, versine: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return cos a - cos a*, sin a and 1 - cos a for a = mode + offset in [0, pi]; `versine` is 1 - cos a*."""
    half = 0.5 * offset
    square = half * half
    sin_half, cos_half = half * elementary.sine_over(square), elementary.cosine(square)
    sine, cosine = mode * elementary.sine_over(mode * mode), 1 - versine
    rise = -2 * sin_half * (sine * cos_half + cosine * sin_half)
    turned = 1 - 2 * sin_half * sin_half
    sin = sine * turned + cosine * (2 * sin_half * cos_half)
    return rise, sin, versine - rise


def angle_of_versine(versine: jax.Array) -> jax.Array:
    """Return the angle a in [0, pi/2] with 1 - cos a = `versine`."""
    return 2 * jnp.arcsin(jnp.sqrt(jnp.clip(0.5 * versine, 0, 0.5)))


class Sine(NamedTuple):
    """The sine model, W = sin a sin b."""

    k1: jax.Array
    k2: jax.Array
    r: jax.Array
    mode: jax.Array
    """a* in [0, pi/2]."""
    versine: jax.Array
    """1 - cos a*."""
    top: jax.Array
    """rho at the mode."""
    rest: jax.Array
    """max(k1 k2 - r^2, 0)."""

    @classmethod
    def of(cls, k1: jax.Array, k2: jax.Array, r: jax.Array) -> "Sine":
        """Find the mode, for concentrations of 0 or more."""
        least = SMALLEST[k2.dtype.name]
        k2 = jnp.maximum(k2, least)
        d = difference_of_products(k1, k2, r, r)
        square = jnp.maximum(r * r, least**2)
        # Where the mode is not 0, these are its sin^2 and cos.
        below = reciprocal(square + k1 * k1)
        sine2 = jnp.minimum(jnp.maximum(-d, 0) * ((square + k1 * k2) * reciprocal(square)) * below, 1)
        far = k1 * inverse_root(square) * square_root((k2 * k2 + square) * below)
        versine = sine2 * reciprocal(1 + jnp.where(d < 0, jnp.minimum(far, 1), 1))
        top = square_root(k2 * k2 + r * r * sine2)
        return cls(k1, k2, r, angle_of_versine(versine), versine, top, jnp.maximum(d, 0))

    @property
    def flip(self) -> jax.Array:
        """Return 1, since a is always counted from 0; see `Cosine`."""
        return jnp.ones((), self.k1.dtype)

    def at(self, offset: jax.Array) -> FirstAngle:
        """Return the `FirstAngle` of the angle a* + `offset`."""
        rise, sin, versine = trigonometry(offset, self.mode, self.versine)
        across = self.r * sin
        rho = square_root(self.k2 * self.k2 + across * across)
        inverse = reciprocal(rho + self.top)
        square, both = self.r * self.r * inverse, 2 - versine - self.versine
        slope = inverse * (2 * self.rest) - (square * rise) * (1 + self.k1 * both * inverse)
        # Far from a mode of small rho, the difference below is accurate, but the expression above is not.
        slope = jnp.where(-square * rise * inverse > 1, self.k1 - square * both, slope)
        return FirstAngle(rise, jnp.minimum(rise * slope, 0), rho, sin, versine)

    def second(self, sin: jax.Array, versine: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return rho times the cosine and the sine of the mean direction of b, given a."""
        return jnp.broadcast_to(self.k2, sin.shape), self.r * sin

    def projections(self, place: FirstAngle) -> Projections:
        """Return the `Projections` at a place."""
        rise, both = place.rise, 2 - place.versine - self.versine
        return Projections(
            first=jnp.broadcast_to(self.k2, rise.shape),
            second=self.r * place.sin * place.sin,
            first_rise=jnp.zeros_like(rise),
            second_rise=-self.r * rise * both,
            fall=self.r * self.r * rise * both * reciprocal(place.rho + self.top),
        )

    def across(self, place: FirstAngle) -> tuple[jax.Array, jax.Array]:
        """Return rho times the derivatives of cos b and W with respect to b, at the mean direction of b."""
        return -self.r * place.sin, self.k2 * place.sin

    def slope(self, place: FirstAngle) -> jax.Array:
        """Return the derivative of rho with respect to a."""
        return self.r * self.r * place.sin * (1 - place.versine) * reciprocal(place.rho)

    @staticmethod
    def mixed_slope(cosine: jax.Array, second_cosine: jax.Array, statistic: jax.Array) -> jax.Array:
        """Return the mean of the mixed derivative of W, from cos a and the means of cos b and W given a."""
        return cosine * second_cosine

    @staticmethod
    def at_zero() -> float:
        """Return W at a = b = 0."""
        return 0.0

    @staticmethod
    def statistic(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return W and its derivatives with respect to a and b."""
        return jnp.sin(a) * jnp.sin(b), jnp.cos(a) * jnp.sin(b), jnp.sin(a) * jnp.cos(b)

    @staticmethod
    def rise_of_statistic(a: jax.Array, b: jax.Array, a0: jax.Array, b0: jax.Array) -> jax.Array:
        """Return W(a, b) - W(a0, b0), as accurate as the differences of angles."""
        return jnp.sin(a) * sine_difference(b, b0) + jnp.sin(b0) * sine_difference(a, a0)


class Cosine(NamedTuple):
    """The cosine model, W = -cos(a - b). Where `flip` is -1, a is counted from pi, and k1 and r have changed sign."""

    k1: jax.Array
    k2: jax.Array
    r: jax.Array
    mode: jax.Array
    """a* in [0, pi/2]."""
    versine: jax.Array
    """1 - cos a*."""
    top: jax.Array
    """rho at the mode."""
    rest: jax.Array
    """Derivative of g with respect to cos a at a = 0 if it is positive, else 0."""
    gap: jax.Array
    """k2 - r; its absolute value is rho at a = 0."""
    flip: jax.Array

    @classmethod
    def of(cls, k1: jax.Array, k2: jax.Array, r: jax.Array) -> "Cosine":
        """Find the mode, for concentrations of 0 or more."""
        least = SMALLEST[k2.dtype.name]
        k2 = jnp.maximum(k2, least)
        size = jnp.maximum(k2, jnp.abs(r))
        unit = reciprocal(size)
        sum_of_squares = size * square_root(jnp.square(k2 * unit) + jnp.square(r * unit))
        flip = jnp.where(k1 * sum_of_squares < k2 * r, -1, 1).astype(k1.dtype)
        k1, r = flip * k1, flip * r
        gap, lost = k2 - r, rounded_off(k2, r)
        end, lost = jnp.abs(gap), jnp.where(gap < 0, -lost, lost)
        d = difference_of_products(k1, end, k2, r) + k1 * lost
        inner = d < 0
        # At a mode other than 0, rho is k2 r / k1.
        inverse = reciprocal(jnp.where(inner, k1, 1))
        top = jnp.maximum(jnp.where(inner, k2 * (r * inverse), end), least)
        versine = jnp.where(inner, -d * inverse * ((top + end) * reciprocal(jnp.where(inner, 2 * k2 * r, 1))), 0)
        rest = jnp.where(inner, 0, d * reciprocal(jnp.maximum(end, least)))
        versine = jnp.clip(versine, 0, 1)
        return cls(k1, k2, r, angle_of_versine(versine), versine, top, rest, gap, flip)

    def at(self, offset: jax.Array) -> FirstAngle:
        """Return the `FirstAngle` of the angle a* + `offset`."""
        rise, sin, versine = trigonometry(offset, self.mode, self.versine)
        # Add two squares, since a single expression for rho^2 has a large relative error if both are small.
        along, across = self.second(sin, versine)
        rho = square_root(jnp.maximum(along * along + across * across, SMALLEST[sin.dtype.name] ** 2))
        inverse = reciprocal(rho + self.top)
        bend = 2 * rise * jnp.square(self.k2 * self.r * inverse) * reciprocal(self.top)
        return FirstAngle(rise, jnp.minimum(rise * (self.rest - bend), 0), rho, sin, versine)

    def second(self, sin: jax.Array, versine: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return rho times the cosine and the sine of the mean direction of b, given a."""
        return self.gap + self.r * versine, -self.r * sin

    def projections(self, place: FirstAngle) -> Projections:
        """Return the `Projections` at a place."""
        rise, versine = place.rise, place.versine
        return Projections(
            first=self.gap + self.r * versine,
            second=self.k2 * versine - self.gap,
            first_rise=-self.r * rise,
            second_rise=-self.k2 * rise,
            fall=2 * self.k2 * self.r * rise * reciprocal(place.rho + self.top),
        )

    def across(self, place: FirstAngle) -> tuple[jax.Array, jax.Array]:
        """Return rho times the derivatives of cos b and W with respect to b, at the mean direction of b."""
        return self.r * place.sin, -self.k2 * place.sin

    def slope(self, place: FirstAngle) -> jax.Array:
        """Return the derivative of rho with respect to a."""
        return self.k2 * self.r * place.sin * reciprocal(place.rho)

    @staticmethod
    def mixed_slope(cosine: jax.Array, second_cosine: jax.Array, statistic: jax.Array) -> jax.Array:
        """Return the mean of the mixed derivative of W, from cos a and the means of cos b and W given a."""
        return statistic

    @staticmethod
    def at_zero() -> float:
        """Return W at a = b = 0."""
        return -1.0

    @staticmethod
    def statistic(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return W and its derivatives with respect to a and b."""
        sine = jnp.sin(a - b)
        return -jnp.cos(a - b), sine, -sine

    @staticmethod
    def rise_of_statistic(a: jax.Array, b: jax.Array, a0: jax.Array, b0: jax.Array) -> jax.Array:
        """Return W(a, b) - W(a0, b0), as accurate as the differences of angles."""
        return -cosine_difference(a - b, a0 - b0)


Model = Sine | Cosine


def sine_difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return sin x - sin y."""
    return 2 * jnp.sin(0.5 * (x - y)) * jnp.cos(0.5 * (x + y))


def cosine_difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return cos x - cos y."""
    return -2 * jnp.sin(0.5 * (x - y)) * jnp.sin(0.5 * (x + y))


def from_mode_side(a: jax.Array, model: Model) -> jax.Array:
    """Return `a` in [-pi, pi] as the model counts it, from 0 or from pi."""
    half = np.asarray(np.pi, a.dtype)
    beyond = jnp.where(a < 0, (a + half) + 2 * half_pi_rest(a.dtype), (a - half) - 2 * half_pi_rest(a.dtype))
    return jnp.where(model.flip < 0, beyond, a)

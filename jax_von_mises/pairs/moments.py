r"""Compute the normaliser, moments and log density, by Gauss-Legendre quadrature of the marginal of the first angle.

The normaliser is :math:`e^{g(a^*)}` times

.. math:: 4\pi\int_0^\pi e^{E(a)}\,e^{-\rho} I_0(\rho)\,da,

and the first and second derivatives of its logarithm with respect to k = (k1, k2, r) are the means and covariances of
the statistics T = (cos a, cos b, W). Statistics are measured from their values T* at the mode, since large numbers
would otherwise cancel. Since g(a*) = k . T*, the density is exp(k . (T - T*)) divided by that integral.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_von_mises.numerics import elementary
from jax_von_mises.numerics.elementary import with_slopes
from jax_von_mises.numerics.quadrature import gauss_legendre
from jax_von_mises.pairs import models
from jax_von_mises.pairs.models import Model
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.density import log_density

# Number of nodes of the rule, and the fall of E at the ends of its interval.
NODES = {"float32": 48, "float64": 160}
DEPTH = {"float32": 19.0, "float64": 42.0}
# Number of bisection steps for an end of an interval, in the binary logarithm of its distance from the start.
STEPS = {"float32": 8, "float64": 10}
SMALLEST_DISTANCE = {"float32": -24.0, "float64": -50.0}
HALVES = 0.5 ** np.arange(1, 11)

Triple = tuple[jax.Array, jax.Array, jax.Array]


def reach(model: Model, start: jax.Array, sign: jax.Array | int, depth: jax.Array | float) -> jax.Array:
    """Return the distance from offset `start`, towards pi (`sign` 1) or 0 (-1), to where E has fallen by `depth`.

    If E does not fall that far, this is the distance to pi or 0.
    """
    room = jnp.where(sign > 0, np.pi - model.mode - start, model.mode + start)
    least = model.at(start).exponent - depth
    room, least = jnp.broadcast_arrays(room, least)

    name = room.dtype.name
    low, high = SMALLEST_DISTANCE[name], 2.0

    def halve(i: jax.Array, begin: jax.Array) -> jax.Array:
        # All brackets have the same length, so one end is enough to store.
        middle = begin + (high - low) * jnp.asarray(HALVES, room.dtype)[i]
        inside = model.at(start + sign * jnp.minimum(elementary.exp2(middle), room)).exponent > least
        return jnp.where(inside, middle, begin)

    begin = lax.fori_loop(0, STEPS[name], halve, jnp.full_like(room, low))
    return jnp.minimum(elementary.exp2(begin) * 2 ** ((high - low) * 0.5 ** STEPS[name]), room)


def allowance(model: Model) -> jax.Array:
    """Return a bound on the logarithm of the Bessel factor by which the marginal density may exceed e^E."""
    return 0.5 * jnp.log1p(model.top)


def marginal_density(place: models.FirstAngle) -> jax.Array:
    """Return the unnormalised marginal density 2 pi e^E e^-rho I0(rho)."""
    n, shift = bessel.norm(place.rho, 1 / jnp.maximum(place.rho, bessel.SWITCH))
    return n * jnp.exp(place.exponent - shift)


class Integral(NamedTuple):
    """Nodes of the integral and the fraction of it that each contributes, along a last axis."""

    model: Model
    """The parameters, with a last axis of length 1."""
    place: models.FirstAngle
    share: jax.Array
    log_total: jax.Array
    """Logarithm of the normaliser divided by e^g(a*), without the last axis."""


def marginal_integral(model: Model) -> Integral:
    """Integrate the marginal density of `model`."""
    dtype = model.mode.dtype
    shape = (1,) * model.mode.ndim + (-1,)
    nodes, weights = (np.reshape(np.asarray(x, dtype), shape) for x in gauss_legendre(NODES[dtype.name]))
    depth = DEPTH[dtype.name] + allowance(model)
    zero = jnp.zeros_like(model.mode)
    below, above = reach(model, zero, -1, depth), reach(model, zero, 1, depth)
    model = jax.tree.map(lambda x: x[..., None], model)
    offset = (below + above)[..., None] * nodes - below[..., None]
    place = model.at(offset)
    weight = marginal_density(place) * weights
    total = jnp.sum(weight, -1)
    return Integral(model, place, weight / total[..., None], jnp.log(2 * total * (below + above)))


def conditional_means(model: Model, place: models.FirstAngle) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return the means of the three statistics given a, minus their values at the mode, and A(rho) / rho."""
    rho, top = place.rho, model.top
    over = bessel.ratio(rho) / rho
    on = model.projections(place)
    # `inverse` is A / rho - 1 / rho*. Where rho is large, both terms are small and nearly cancel.
    far = jnp.maximum(rho, bessel.SWITCH)
    inverse = jnp.where(rho < bessel.SWITCH, over - 1 / top, (on.fall / top - bessel.one_minus_ratio(far)) / far)
    means = place.rise, on.first * inverse + on.first_rise / top, on.second * inverse + on.second_rise / top
    return means, over


def mean_over(integral: Integral, values: jax.Array) -> jax.Array:
    """Return the mean of `values`, which may have further axes in front, over the marginal."""
    return jnp.sum(times(integral.share, values), -1)


def times(factor: jax.Array, values: jax.Array) -> jax.Array:
    """Return `values` times a `factor` that lacks some of the first axes."""
    return jnp.expand_dims(factor, tuple(range(values.ndim - factor.ndim))) * values


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def mean_rises(kind: type[Model], k1: jax.Array, k2: jax.Array, r: jax.Array) -> Triple:
    """Return the means of the three statistics minus their values at the mode, with derivatives at a fixed T*."""
    model = kind.of(k1, k2, r)
    integral = marginal_integral(model)
    return signed(
        model, [mean_over(integral, values) for values in conditional_means(integral.model, integral.place)[0]]
    )


@mean_rises.defjvp
def _mean_rises_jvp(kind: type[Model], primals: Triple, tangents: Triple) -> tuple[Triple, Triple]:
    first, second, third = (inner(row, tangents) for row in cumulants(kind, *primals).covariance)
    return mean_rises(kind, *primals), (first, second, third)


@with_slopes(lambda y, *arguments: mean_rises(*arguments), static=(0,))
def log_total(kind: type[Model], k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
    """Return the logarithm of the normaliser divided by e^g(a*).

    The absolute error is about 1e-6 (float32) or 1e-12 (float64). The derivatives, at a fixed T*, are `mean_rises`.
    """
    return marginal_integral(kind.of(k1, k2, r)).log_total


class Cumulants(NamedTuple):
    """The logarithm of the normaliser and its first two derivatives with respect to k."""

    log_total: jax.Array
    """See `log_total`."""
    mean_rises: Triple
    """See `mean_rises`."""
    covariance: jax.Array
    """Covariances of the three statistics along the first two axes, the Fisher information about (k1, k2, r)."""


def cumulants(kind: type[Model], k1: jax.Array, k2: jax.Array, r: jax.Array) -> Cumulants:
    """Compute all three from one integral."""
    model = kind.of(k1, k2, r)
    integral = marginal_integral(model)
    means, over = conditional_means(integral.model, integral.place)
    place, rho = integral.place, integral.place.rho
    of_means = mean_over(integral, jnp.stack(means))
    # The second angle contributes by its deviations along its mean direction and orthogonal to it.
    on, zero = integral.model.projections(place), jnp.zeros_like(rho)
    along = jnp.stack([zero, on.first / rho, on.second / rho])
    across = jnp.stack([zero, *(x / rho for x in integral.model.across(place))])
    spread = times(bessel.slope(rho), outer(along)) + times(over, outer(across))
    products = outer(jnp.stack(means) - of_means[..., None]) + spread
    signs = jnp.stack(signed(model, [jnp.ones_like(model.mode)] * 3))
    return Cumulants(integral.log_total, signed(model, of_means), outer(signs) * mean_over(integral, products))


def location_information(kind: type[Model], k1: jax.Array, k2: jax.Array, r: jax.Array) -> Triple:
    """Return the Fisher information of a pair about the two locations: the two diagonal terms and the mixed term."""
    model = kind.of(k1, k2, r)
    integral = marginal_integral(model)
    place, wide = integral.place, integral.model
    over = bessel.ratio(place.rho) / place.rho
    cosine = 1 - place.versine
    on = wide.projections(place)
    second_cosine, statistic = over * on.first, over * on.second
    of_phi, of_psi, shared = (mean_over(integral, x) for x in (cosine, second_cosine, statistic))
    mixed = mean_over(integral, wide.mixed_slope(cosine, second_cosine, statistic))
    return model.k1 * of_phi + model.r * shared, model.k2 * of_psi + model.r * shared, -model.r * mixed


def signed(model: Model, statistics: Iterable[jax.Array]) -> Triple:
    """Convert the three `statistics` of an angle as the model counts it to those of the angle itself, or back."""
    first, second, third = statistics
    return model.flip * first, second, model.flip * third


def outer(vector: jax.Array) -> jax.Array:
    """Return the products of all pairs of entries along the first axis."""
    return vector[:, None] * vector[None]


def inner(values: Iterable[jax.Array], tangents: Iterable[jax.Array]) -> jax.Array:
    """Return the inner product of `values` and `tangents`."""
    products: Iterator[Any] = (value * tangent for value, tangent in zip(values, tangents, strict=True))
    total: jax.Array = sum(products)
    return total


def second_at_mode(model: Model) -> jax.Array:
    """Return the mean direction of the second angle at the mode."""
    cosine, sine = model.second(jnp.sin(model.mode), model.versine)
    return jnp.arctan2(sine, cosine)


def rises(kind: type[Model], a: jax.Array, b: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> Triple:
    """Return T - T* for angles in [-pi, pi], as accurate as differences of angles; derivatives are at a fixed T*."""
    model = jax.tree.map(lax.stop_gradient, kind.of(k1, k2, r))
    turned = models.from_mode_side(a, model)
    # Use the mode on the side of a.
    sign = jnp.where(turned < 0, -1, 1).astype(a.dtype)
    turned, b = sign * turned, sign * b
    at_mode = second_at_mode(model)
    return signed(
        model,
        (
            models.cosine_difference(turned, model.mode),
            models.cosine_difference(b, at_mode),
            model.rise_of_statistic(turned, b, model.mode, at_mode),
        ),
    )


def exponent_slopes(
    _: jax.Array, kind: type[Model], a: jax.Array, b: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the derivatives of `exponent`."""
    _, along_a, along_b = kind.statistic(a, b)
    return r * along_a - k1 * jnp.sin(a), r * along_b - k2 * jnp.sin(b), *rises(kind, a, b, k1, k2, r)


@with_slopes(exponent_slopes, static=(0,))
def exponent(kind: type[Model], a: jax.Array, b: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
    """Return k . (T - T*), 0 or less, for angles in [-pi, pi]; derivatives with respect to k are at a fixed T*."""
    model = kind.of(k1, k2, r)
    turned = models.from_mode_side(a, model)
    size = jnp.abs(turned)
    place = model.at(size - model.mode)
    cosine, sine = model.second(place.sin, place.versine)
    direction = jnp.arctan2(jnp.where(turned < 0, -sine, sine), cosine)
    return place.exponent - 2 * place.rho * jnp.square(jnp.sin(0.5 * (b - direction)))


def second_given_first(
    kind: type[Model], a: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the concentration and the mean direction of the second angle, given a first angle in [-pi, pi]."""
    model = kind.of(k1, k2, r)
    turned = models.from_mode_side(a, model)
    half = jnp.sin(0.5 * turned)
    cosine, sine = model.second(jnp.sin(turned), 2 * half * half)
    rho = jnp.maximum(jnp.sqrt(cosine * cosine + sine * sine), models.SMALLEST[a.dtype.name])
    return rho, jnp.arctan2(sine, cosine)


def marginal_log_density(kind: type[Model], a: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
    """Return `log_total` plus the logarithm of the marginal density of the first angle in [-pi, pi].

    For any second angle, the marginal density is the density of the pair divided by that of the second angle given the
    first.
    """
    rho, direction = second_given_first(kind, a, k1, k2, r)
    b = lax.stop_gradient(direction)
    return exponent(kind, a, b, k1, k2, r) - log_density(b - direction, rho)

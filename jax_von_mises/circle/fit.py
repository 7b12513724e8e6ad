r"""Fit distributions of an angle that are symmetric, or skewed, by maximum likelihood.

All angles are measured from the mean direction of the data. The unconstrained numbers are the change of the location,
in units of the spread of the data; a number t for the concentration; and for skewed distributions q with
:math:`\lambda = \sin q`. A negative t turns the distribution by pi, so that the likelihood is smooth up to the uniform
distribution, and a sine makes a bound a maximum like any other.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises.circle import named
from jax_von_mises.engine.likelihood import maximised
from jax_von_mises.engine.samples import WeightedSets, warn_of_degrees
from jax_von_mises.numerics.circle import deviation, less_turns, reduce_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.von_mises import bessel, density
from jax_von_mises.von_mises.fitting import Estimate, of_both

# From this concentration of the von Mises distribution on, angles count as equal.
EQUAL = {"float32": 1e24, "float64": 1e200}
# The least t of a start.
LEAST = 1e-3
# The skewness at each start.
SKEWS = (-0.98, -0.6, 0.0, 0.6, 0.98)


class Shape(NamedTuple):
    """How the parameter other than the location follows from an unconstrained number t."""

    parameter: Callable[[jax.Array], jax.Array]
    """The parameter for t >= 0."""
    log_density: Callable[[jax.Array, jax.Array], jax.Array]
    """``log_density(x, t)`` for x in [-pi, pi] and t >= 0."""
    start: Callable[[jax.Array], jax.Array]
    """The number t for data with a finite concentration of the von Mises distribution."""
    equal: float
    """The parameter for equal angles."""
    estimate: Callable[..., Any]
    """The named tuple of the standard errors of both parameters."""
    errors: Callable[[jax.Array], Any] | None
    """The standard errors of both estimates from one angle, for a parameter; `VonMises` has its own."""


class OfLength(NamedTuple):
    """A standard error for each parameter of a wrapped Cauchy or cardioid distribution."""

    loc: jax.Array
    """In radians."""
    rho: jax.Array


class OfScale(NamedTuple):
    """A standard error for each parameter of a wrapped normal distribution, in radians."""

    loc: jax.Array
    scale: jax.Array


def cauchy_errors(rho: jax.Array) -> OfLength:
    """Return the standard errors from one angle, with the information 2 rho^2 / (1 - rho^2)^2 and 2 / (1 - rho^2)^2."""
    rho = named.valid_length(rho, 1)
    spread = (1 - rho) * (1 + rho) / math.sqrt(2)
    return OfLength(spread / rho, spread)


def cardioid_errors(rho: jax.Array) -> OfLength:
    """Return the standard errors from one angle, with the information 1 - s and 4 / (s + s^2), s^2 = 1 - 4 rho^2."""
    rho = named.valid_length(rho, 0.5)
    s = jnp.sqrt((1 - 2 * rho) * (1 + 2 * rho))
    return OfLength(0.5 * jnp.sqrt(1 + s) / rho, 0.5 * jnp.sqrt(s * (1 + s)))


def normal_errors(scale: jax.Array) -> OfScale:
    """Return the standard errors from one angle, by the trapezoidal rule, which is exact to rounding."""
    scale = nan_unless(scale, scale >= 0)
    count = 2 * named.ENTROPY_ANGLES
    shape = (*scale.shape, count)
    x = jnp.broadcast_to(jnp.asarray((np.arange(count) + 0.5) * (2 * np.pi / count) - np.pi, scale.dtype), shape)
    wide = jnp.broadcast_to(jnp.maximum(scale, named.ENTROPY_SWITCH)[..., None], shape)
    logs, slopes = jax.vjp(named.compact_normal_log_density, x, wide)
    weights = jnp.exp(logs) * (2 * np.pi / count)
    information = [jnp.sum(weights * slope * slope, -1) for slope in slopes(jnp.ones_like(logs))]
    narrow = scale < named.ENTROPY_SWITCH
    along, across = (
        jnp.where(narrow, scale / math.sqrt(n), lax.rsqrt(each)) for n, each in zip((1, 2), information, strict=True)
    )
    return OfScale(along, across)


def errors_of(shape: Shape, size: jax.Array, parameter: jax.Array) -> Any:
    """Return the standard errors of both estimates from `size` angles."""
    assert shape.errors is not None
    root = lax.rsqrt(nan_unless(jnp.abs(size), size >= 0))
    return jax.tree.map(lambda error: root * error, shape.errors(parameter))


def atanh_of_one_minus(rest: jax.Array) -> jax.Array:
    """Return t with tanh(t) = 1 - `rest`, without cancellation."""
    return 0.5 * (jnp.log(2 - rest) - jnp.log(rest))


def start_of_length(k: jax.Array) -> jax.Array:
    """Return t at which tanh(t) is the mean resultant length of a concentration."""
    return atanh_of_one_minus(bessel.one_minus_ratio(k))


def start_of_cauchy(k: jax.Array) -> jax.Array:
    """Return t for data of which most may be much closer to each other than the mean resultant length says.

    1 - tanh(t) is the root of 1 minus this length, which for small angles is about the half width at half maximum.
    """
    return atanh_of_one_minus(jnp.sqrt(bessel.one_minus_ratio(k)))


def scale_of(t: jax.Array) -> jax.Array:
    """Return the scale of the wrapped normal distribution with the mean resultant length tanh(t)."""
    return jnp.sqrt(2 * jnp.log1p(2 / jnp.expm1(2 * jnp.maximum(t, 1e-7))))


WRAPPED_CAUCHY = Shape(jnp.tanh, named.cauchy_log_density_of_atanh, start_of_cauchy, 1.0, OfLength, cauchy_errors)
CARDIOID = Shape(
    lambda t: 0.5 * jnp.abs(jnp.sin(t)),
    lambda x, t: named.cardioid_log_density(x, 0.5 * jnp.sin(t)),
    lambda k: jnp.arcsin(jnp.minimum(2 * bessel.ratio(k), 0.9)),
    0.5,
    OfLength,
    cardioid_errors,
)
WRAPPED_NORMAL = Shape(
    scale_of,
    lambda x, t: named.compact_normal_log_density(x, scale_of(t)),
    start_of_length,
    0.0,
    OfScale,
    normal_errors,
)
VON_MISES = Shape(jnp.sinh, lambda x, t: density.log_density(x, jnp.sinh(t)), jnp.arcsinh, np.inf, Estimate, None)


@functools.partial(jax.jit, static_argnums=(1, 2))
def fitted(sets: WeightedSets, shape: Shape, skewed: bool) -> tuple[jax.Array, ...]:
    """Return the estimates of the location and of the other parameter, and of the skewness if `skewed`."""
    x, share = sets.rows()
    share = jnp.broadcast_to(share, x.shape)
    origin, k = of_both(x, share)
    away = deviation(jnp.where(share == 0, origin[..., None], x), origin[..., None])[0]
    equal = k >= EQUAL[x.dtype.name]
    k = jnp.where(equal, 1, k)
    spread = jnp.where(equal, 0, jnp.minimum(lax.rsqrt(k), 1))
    t = jnp.maximum(shape.start(k), LEAST)
    starts = []
    for skew in SKEWS if skewed else (0.0,):
        # To first order, skewness moves the mean by its product with the square of the spread.
        starts.append(jnp.stack([-skew * spread, t, np.arcsin(skew) + 0 * t][: 2 + skewed], -1))
    log_density = functools.partial(log_density_about, shape)
    move, t, *q = jnp.moveaxis(maximised(log_density, jnp.stack(starts, -2), share, away, spread), -1, 0)

    turn = jnp.where(t < 0, np.pi, 0)
    loc = wrap(less_turns(turn + jnp.where(equal, 0, spread * move), 0.0), reduce_turns(origin))
    parameter = jnp.where(equal, shape.equal, shape.parameter(jnp.abs(t)))
    skews = [jnp.where(equal, 0, jnp.where(t < 0, -1, 1) * jnp.sin(each)) for each in q]
    return tuple(each.astype(sets.dtype) for each in (loc, parameter + 0 * origin, *skews))


def log_density_about(shape: Shape, numbers: jax.Array, away: jax.Array, spread: jax.Array) -> jax.Array:
    """Return the log densities of angles, from the numbers of a fit."""
    move, t, *q = numbers
    away = less_turns(away - spread * move, 0.0)
    turned = jnp.where(t < 0, away - jnp.where(away > 0, np.pi, -np.pi), away)
    value = shape.log_density(turned, jnp.abs(t))
    return value + jnp.log1p(jnp.sin(q[0]) * jnp.sin(away)) if q else value


def fit_angles(
    kind: str,
    shape: Shape,
    samples: ArrayLike,
    weights: ArrayLike | None,
    axis: int | Sequence[int] | None,
    skewed: bool = False,
) -> tuple[jax.Array, ...]:
    """Check the arguments of the `fit` of a class, and return the estimates of its parameters."""
    sets = WeightedSets.of(f"{kind}.fit", "angle", samples, weights, axis)
    warn_of_degrees(f"{kind}.fit", sets.samples)
    found: tuple[jax.Array, ...] = fitted(sets.padded(), shape, skewed)
    return found

"""Draw pairs of angles from counter-based words, without rejection.

The first angle is the quantile function of its marginal distribution, evaluated at a uniform random number. Given the
first angle, the second has a von Mises distribution.

*Layout of the stream.* Pair i uses number 2 i of the stream (see :mod:`jax_von_mises.engine.numbers`) for its first
angle and number 2 i + 1 for its second. The lowest bit of a number's first word gives the angle's
side, and the other bits give its tail probability, as in `tails.tail`. The first angle is measured from its mode,
or from halfway between its modes if there are two. The second angle is measured from its mean direction given the
first.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla
from jax_von_mises.engine import tails
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family
from jax_von_mises.numerics import elementary
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless, valid
from jax_von_mises.pairs import models, quantile
from jax_von_mises.von_mises import transform

NAMES = "phi_loc", "psi_loc", "phi_concentration", "psi_concentration", "correlation"


def pairs(
    kind: type[models.Model],
    numbers: Numbers,
    parameters: tuple[jax.Array, ...],
    route: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Return pairs of a model, as a family's `place`."""
    phi_loc, psi_loc, *of_model = parameters
    shape = numbers.shape
    k1, k2, r = (x.reshape(()) if all(x.size == 1 for x in of_model) else jnp.broadcast_to(x, shape) for x in of_model)
    k1, k2 = valid(k1), valid(k2)

    first, second = numbers.both()
    a = first_angle(first, k1, k2, r, kind, route)
    phi, psi = pair(kind, a, second, k1, k2, r)
    phi, psi = (wrap(x, broadcast_loc(loc, shape)) for x, loc in ((phi, phi_loc), (psi, psi_loc)))
    return jnp.stack([phi, psi], -1)


def family(name: str, kind: type[models.Model]) -> Family:
    """Return the family of a model."""
    return Family(
        name=name,
        noun="pair",
        parameters=dict.fromkeys(NAMES, 0),
        place=functools.partial(pairs, kind),
        numbers=lambda event_shape: 2,
        event_shape=lambda parameters: (2,),
        tabulated=NAMES[2:],
    )


SINE = family("sine-bivariate-von-mises", models.Sine)
COSINE = family("cosine-bivariate-von-mises", models.Cosine)


def broadcast_loc(loc: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `loc` reduced to one turn and broadcast to `shape`."""
    return jnp.broadcast_to(reduce_turns(loc), shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def first_angle(
    words: tuple[jax.Array, ...],
    k1: jax.Array,
    k2: jax.Array,
    r: jax.Array,
    kind: type[models.Model],
    route: str,
) -> jax.Array:
    """Return the first angle as the model measures it, in (-pi, pi), from the quantile function of its marginal."""

    def angle(words: tuple[jax.Array, ...], k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
        t, c, negative = tails.tail(words)
        upper = t <= 0.25
        tau = 2 * jnp.where(upper, t, c)
        model = kind.of(k1, k2, r)
        if route == "table":
            a = quantile.look_up(quantile.quantile_table(model), tau, upper)
        else:
            a = quantile.half_quantile(model, tau, upper)
        a = nan_unless(a, ~jnp.isnan(k1 + k2 + r))
        return jnp.where(negative, -a, a)

    return xla.boundary(angle, words, k1, k2, r)


@first_angle.defjvp
def _first_angle_jvp(
    kind: type[models.Model], route: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    a = first_angle(*primals, kind, route)
    slopes = quantile.derivatives(kind, jnp.abs(a), *primals[1:])
    moved = sum(slope * tangent for slope, tangent in zip(slopes, tangents[1:], strict=True))
    return a, jnp.where(a < 0, -moved, moved)


def pair(
    kind: type[models.Model],
    a: jax.Array,
    words: tuple[jax.Array, ...],
    k1: jax.Array,
    k2: jax.Array,
    r: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return both angles relative to their locations, given the `a` of `first_angle` and the second angle's words."""
    model = kind.of(k1, k2, r)
    half = 0.5 * a
    square = half * half
    sine_half = half * elementary.sine_over(square)
    cosine, sine = model.second(2 * sine_half * elementary.cosine(square), 2 * sine_half * sine_half)
    least = models.SMALLEST[a.dtype.name] ** 2
    rho = elementary.square_root(jnp.maximum(cosine * cosine + sine * sine, least))
    b = transform.angles_about_zero(words, rho, "direct", None)
    return models.from_mode_side(a, model), wrap(b, quantile.angle_of_vector(cosine, sine))

"""Draw pairs of angles from counter-based words, without rejection.

The first angle is the quantile function of its marginal distribution, evaluated at a uniform random number. Given the
first angle, the second has a von Mises distribution.

*Layout of the stream.* Number j of a stream is word j (float32), or words 2 j and 2 j + 1 (float64). Pair i uses number
2 i for its first angle and number 2 i + 1 for its second. The lowest bit of a number's first word gives the angle's
side, and the other bits give its tail probability, as in `transform.tail`. The first angle is measured from its mode,
or from halfway between its modes if there are two. The second angle is measured from its mean direction given the
first.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises import arguments
from jax_von_mises.numerics import elementary, xla
from jax_von_mises.numerics.bivariate import models, quantile
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.request import Family, Request
from jax_von_mises.sampling.sphere import number_positions

NAMES = "phi_loc", "psi_loc", "phi_concentration", "psi_concentration", "correlation"


def pairs_of(kind: type[models.Model], request: Request) -> jax.Array:
    """Return the pairs of a request, computed in one program."""
    shape, route, sharding = request.shape, request.route, request.out_sharding
    compute = arguments.compute_dtype(request.dtype)
    phi_loc, psi_loc, *of_model = xla.hide_constants(*(jnp.asarray(x, compute) for x in request.parameters))
    k1, k2, r = of_model
    if all(x.size == 1 for x in of_model):
        k1, k2, r = (x.reshape(()) for x in of_model)
    else:
        k1, k2, r = (jnp.broadcast_to(x, shape) for x in of_model)
    k1, k2 = valid(k1), valid(k2)
    words = functools.partial(pair_words, shape, transform.words_per_element(compute))
    first, second = xla.separate_loop(words, request.key, request.start)
    a = first_angle(first, k1, k2, r, kind, route)
    phi, psi = pair(kind, a, second, k1, k2, r)
    phi, psi = (wrap(x, broadcast_loc(loc, shape)) for x, loc in ((phi, phi_loc), (psi, psi_loc)))
    x = jnp.stack([phi, psi], -1).astype(request.dtype)
    return x if sharding is None else lax.with_sharding_constraint(x, sharding)


def family(name: str, kind: type[models.Model]) -> Family:
    """Return the family of a model."""
    return Family(
        name=name,
        noun="pair",
        parameters=dict.fromkeys(NAMES, 0),
        tabulated=NAMES[2:],
        program=functools.partial(pairs_of, kind),
        numbers=lambda event_shape: 2,
        event_shape=(2,),
        packed={"loc": NAMES[:2], "concentration": NAMES[2:]},
        explicit_meshes=False,
    )


SINE = family("sine-bivariate-von-mises", models.Sine)
COSINE = family("cosine-bivariate-von-mises", models.Cosine)


def pair_words(
    shape: tuple[int, ...], width: int, key: jax.Array, start: counter.Wide | None
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Return the `width` words of each first angle, and those of each second angle, for pairs from `start` on."""
    generator, key = counter.key_words(key)
    if width == 1:
        # One block of the generator holds both words of a pair.
        first, second = counter.block_words(generator, key, counter.indices(shape, start), 2)
        return (first,), (second,)
    positions = [number_positions(shape, start, 2, j, None) for j in range(2)]
    of_first, of_second = (counter.block_words(generator, key, position, 2) for position in positions)
    return of_first, of_second


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
        t, c, negative = transform.tail(words)
        upper = t <= 0.25
        tau = 2 * jnp.where(upper, t, c)
        model = kind.of(k1, k2, r)
        if route == "table":
            a = quantile.look_up(quantile.table(model), tau, upper)
        else:
            a = quantile.half_quantile(model, tau, upper)
        a = nan_unless(a, ~jnp.isnan(k1 + k2 + r))
        return jnp.where(negative, -a, a)

    return xla.separate_loop(angle, words, k1, k2, r)


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
    return models.from_mode_side(a, model), wrap(b, quantile.direction(cosine, sine))

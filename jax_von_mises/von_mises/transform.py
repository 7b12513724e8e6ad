"""Convert words to angles in one elementwise pass: sign and tail probability, quantile, location, wrap.

Two routes lead from the tail probability t to |x|, with the same words and the same accuracy:

- *direct*, for any concentrations: evaluate `quantile.half_quantile` for every element.
- *table*, for one concentration: tabulate the quantile function on a grid whose cells halve in width with each octave
  towards t = 0, and evaluate a polynomial (of degree 3 in float32, 10 in float64) for every element. The program itself
  computes the table, so the concentration may be traced.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jax_von_mises.compiler import xla
from jax_von_mises.compiler.sharding import broadcast_sharded
from jax_von_mises.engine import counter
from jax_von_mises.engine.tails import tail, words_per_element
from jax_von_mises.numerics.circle import largest_angle, reduce_turns, wrap
from jax_von_mises.numerics.elementary import clip, valid
from jax_von_mises.numerics.table import below_half
from jax_von_mises.von_mises import quantile, tail_integral

# Up to this many words, storing them before the look-up saves time. Beyond it, new memory pages cost more than that.
FEW_WORDS = 2**22


def draw(
    generator: str,
    stream: tuple[jax.Array, counter.Wide | None],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    loc: jax.Array,
    kappa: jax.Array,
    route: str,
    out_sharding: NamedSharding | None = None,
    in_rows: bool = True,
) -> jax.Array:
    """Return the angles of a stream, rounded to `dtype`.

    Parameters
    ----------
    generator : str
        Name in `counter.GENERATORS`.
    stream : tuple
        The words of the key, and the position of the first angle; None for 0.
    loc, kappa, route
        As in `angles`; the dtype of `loc` is that of the computation.
    out_sharding : optional
        Sharding of the result on an explicit mesh.
    in_rows : bool
        Whether a CPU may compute the angles in rows (`xla.compute_elementwise`), which a mesh rules out.
    """
    loc, kappa = xla.hide_constants(loc, kappa)
    if route == "table":
        kappa = kappa.reshape(())
    width = words_per_element(loc.dtype)

    def drawn(
        shape: tuple[int, ...], stream: tuple[jax.Array, counter.Wide | None], loc: jax.Array, kappa: jax.Array
    ) -> jax.Array:
        key, start = stream
        words = counter.block_words(generator, key, counter.indices(shape, start, out_sharding), width)
        return angles(words, loc, kappa, route, out_sharding)

    if in_rows:
        return xla.compute_elementwise(drawn, shape, dtype, stream, loc, kappa)
    return drawn(shape, stream, loc, kappa).astype(dtype)


def angles(
    words: tuple[jax.Array, ...],
    loc: jax.Array,
    kappa: jax.Array,
    route: str,
    out_sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return angles in [-pi, pi) from the words of each element.

    Parameters
    ----------
    words : tuple of one (float32) or two (float64) uint32 arrays
    loc, kappa : float32 or float64 arrays
        Mean direction in radians and concentration; broadcast against the words. Negative or NaN `kappa` and
        non-finite `loc` give NaN.
    route : {"direct", "table"}
        "table" requires a scalar `kappa`.
    """
    if route == "direct":
        return turned(xla.finish_words(words), loc, kappa, route, out_sharding)
    if words[0].size > FEW_WORDS:
        return turned(words, loc, kappa, route, out_sharding)
    return turned_apart(words, loc, kappa, route, out_sharding)


def turned(
    words: tuple[jax.Array, ...], loc: jax.Array, kappa: jax.Array, route: str, out_sharding: NamedSharding | None
) -> jax.Array:
    """Return `angles`, computed in one loop with the words."""
    x = angles_about_zero(words, kappa, route, out_sharding)
    return wrap(x, broadcast_sharded(reduce_turns(loc), x.shape, out_sharding))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def turned_apart(
    words: tuple[jax.Array, ...], loc: jax.Array, kappa: jax.Array, route: str, out_sharding: NamedSharding | None
) -> jax.Array:
    """Return `angles`, computed in a separate loop after the words."""
    turn = functools.partial(turned, route=route, out_sharding=out_sharding)
    return xla.boundary(turn, words, loc, kappa)


@turned_apart.defjvp
def _turned_apart_jvp(
    route: str, out_sharding: NamedSharding | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    # The derivative of `angles_about_zero` separates the loops itself. To differentiate `boundary`, JAX would
    # trace the program for each platform again.
    turn = functools.partial(turned, route=route, out_sharding=out_sharding)
    results: tuple[jax.Array, jax.Array] = jax.jvp(turn, primals, tangents)
    return results


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def angles_about_zero(
    words: tuple[jax.Array, ...], kappa: jax.Array, route: str, out_sharding: NamedSharding | None
) -> jax.Array:
    """Return `angles` for a `loc` of 0."""
    kappa, (t, c, negative) = valid(kappa), tail(words)
    if route == "table":
        t, negative = xla.carry_sign_on_cuda(t, negative, below_half(t.dtype))
        x = quantile.quantile_table(kappa).at(t, out_sharding=out_sharding)
        x = clip(x, 0, largest_angle(t.dtype))
    else:
        x = quantile.half_quantile(t, c, broadcast_sharded(kappa, t.shape, out_sharding))
    return jnp.where(negative, -x, x)


@angles_about_zero.defjvp
def _angles_about_zero_jvp(
    route: str, out_sharding: NamedSharding | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    if route == "direct" and primals[1].dtype == jnp.float32:
        x, rise = angles_and_slopes(*primals, out_sharding)
        return x, rise * broadcast_sharded(tangents[1], x.shape, out_sharding)
    draw = functools.partial(angles_about_zero, route=route, out_sharding=out_sharding)
    x = xla.boundary(draw, *primals)
    kappa, moved = (broadcast_sharded(each, x.shape, out_sharding) for each in (primals[1], tangents[1]))
    return x, slope_by_kappa(x, kappa) * moved


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def angles_and_slopes(
    words: tuple[jax.Array, ...], kappa: jax.Array, out_sharding: NamedSharding | None
) -> tuple[jax.Array, jax.Array]:
    """Return float32 `angles_about_zero` by the direct route, and their slopes; a CPU computes both in one loop."""
    kappa, (t, c, negative) = valid(kappa), tail(words)
    x, rise = quantile.half_quantile_and_slope(t, c, broadcast_sharded(kappa, t.shape, out_sharding))
    return xla.boundary(xla.as_pair, *(jnp.where(negative, -each, each) for each in (x, rise)), joined=True)


@angles_and_slopes.defjvp
def _angles_and_slopes_jvp(
    out_sharding: NamedSharding | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    x, rise = angles_and_slopes(*primals, out_sharding)
    kappa, moved = (broadcast_sharded(each, x.shape, out_sharding) for each in (valid(primals[1]), tangents[1]))
    sign = jnp.where(x < 0, -1, 1).astype(x.dtype)
    along, across = tail_integral.derivative_slopes(sign * rise, sign * x, kappa)
    return (x, rise), (rise * moved, (along * rise + sign * across) * moved)


def slope_by_kappa(x: jax.Array, kappa: jax.Array) -> jax.Array:
    """Return the derivative of angles drawn about 0 with respect to `kappa`, by the implicit function theorem."""
    # In both routes this is the derivative of the exact quantile, not of its interpolation; NaN where the angle is NaN.
    return jnp.where(x < 0, -1, 1).astype(x.dtype) * tail_integral.derivative(jnp.abs(x), valid(kappa))

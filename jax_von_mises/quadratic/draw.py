r"""Draw unit vectors x with the log density :math:`x^T A x` from counter-based words, without rejection.

*Layout of the stream.* Vector i uses numbers 4 i to 4 i + 3 of the stream (see :mod:`jax_von_mises.engine.numbers`). In
the frame of the eigenvectors, the first gives the squared length v of the part along the last ones, the second twice
the angle in the plane of the first two eigenvectors, and the third twice that in the plane of the last two; in three
dimensions, it is not used. The lowest bit of the first word of a number gives the side, and the other bits the tail
probability, as in `tails.tail`. Of the first word of the fourth number, bit 31 gives the sign of the part along the
last eigenvectors relative to that along the first ones, and bit 30 the sign of both.

*Derivatives.* With fixed words, a draw turns with the eigenvectors, which may turn by any angle where two eigenvalues
are equal. Unbiased derivatives of means only need draws that move by a velocity field that solves the equation of
continuity. A change of A whose element in the frame is M for the axes i < j, with the gap g between them, turns x in
their plane at the rate

.. math:: M \frac{1 - e^{-g x_i^2}}{g},

which is :math:`M x_i^2` for equal eigenvalues, and the turn of the eigenvectors for very different ones. Changes of the
gaps move v and both angles at their fixed probabilities.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.compiler import xla
from jax_von_mises.numerics import elementary
from jax_von_mises.quadratic.density import fixed_frame, gap_moves, kind_of
from jax_von_mises.quadratic.frames import frame_of
from jax_von_mises.quadratic.marginal import Sums
from jax_von_mises.quadratic.quantile import drawn_place
from jax_von_mises.von_mises import transform

Words = tuple[jax.Array, ...]


def half_turn(words: Words, concentration: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cosine and sine of half an angle with a von Mises distribution about 0."""

    def angle(words: Words, concentration: jax.Array) -> jax.Array:
        return transform.angles_about_zero(words, concentration, "direct", None)

    half = 0.5 * xla.boundary(angle, words, concentration)
    square = half * half
    return elementary.cosine(square), half * elementary.sine_over(square)


def in_frame(words: tuple[Words, ...], gaps: Sums, route: str) -> list[jax.Array]:
    """Return the components of draws along the eigenvectors; the first is not negative."""
    place, first, last, signs = words
    kind = kind_of(len(gaps) + 1)
    at = drawn_place(kind, place, gaps, route)
    marginal = kind.of(gaps)
    c, s = half_turn(first, marginal.c * at.w)
    near, far = jnp.sqrt(at.w), jnp.where(signs[0] >> np.uint32(31) == 1, -1, 1) * jnp.sqrt(at.v)
    if len(gaps) == 2:
        return [near * c, near * s, far]
    cosine, sine = half_turn(last, marginal.d * at.v)
    return [near * c, near * s, far * cosine, far * sine]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def drawn(matrix: jax.Array, words: tuple[Words, ...], route: str) -> jax.Array:
    """Return draws for matrices of a batch whose shape broadcasts to that of the words, or for a single one."""
    frame = frame_of(matrix)
    x = in_frame(words, frame.gaps, route)
    return jnp.stack(frame.placed(x), -1)


@drawn.defjvp
def _drawn_jvp(route: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    matrix, words = primals
    frame = fixed_frame(matrix)
    seen = frame.seen(tangents[0])
    x, moved = jax.jvp(lambda gaps: in_frame(words, gaps, route), (frame.gaps,), (gap_moves(seen),))
    levels = [jnp.zeros_like(frame.largest), *frame.gaps]
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            rate = seen[i][j] * turned_share(levels[j] - levels[i], x[i] * x[i])
            moved[i], moved[j] = moved[i] - rate * x[j], moved[j] + rate * x[i]
    return drawn(matrix, words, route), jnp.stack(frame.placed(moved), -1)


def turned_share(gap: jax.Array, square: jax.Array) -> jax.Array:
    """Return (1 - exp(-gap square)) / gap, which is `square` for a gap of 0."""
    y = gap * square
    some = y > 1e-4
    return square * jnp.where(some, -jnp.expm1(-y) / jnp.where(some, y, 1), 1 - 0.5 * y)


def aligned_form(form: jax.Array, ndim: int) -> jax.Array:
    """Return forms aligned to draws of a batch with `ndim` axes, and a single form without axes of the batch."""
    matrix = form.shape[-2:]
    if form.size == matrix[0] * matrix[1]:
        return form.reshape(matrix)
    return form.reshape((1,) * (ndim + 2 - form.ndim) + form.shape)


def unit(x: jax.Array) -> jax.Array:
    """Return vectors of nearly the length 1 with a smaller error of it, by a step of Newton's method."""
    return x * (1.5 - 0.5 * jnp.sum(x * x, -1, keepdims=True))

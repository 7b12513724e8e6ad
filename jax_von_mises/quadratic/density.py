r"""Compute densities and moments on a sphere with the log density :math:`x^T A x`, and their derivatives.

In the frame of the eigenvectors of A, with the gaps :math:`g_i`, the logarithm of the density relative to the uniform
distribution is :math:`-\sum_i g_i x_i^2 - \log C`, where C depends on the gaps alone. Derivatives with respect to A are
means of products of coordinates. They exist in any frame, and nothing is divided by the difference of two eigenvalues,
which may be 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.engine.base import LARGEST_ELEMENT
from jax_von_mises.numerics.elementary import nan_unless, undifferentiable
from jax_von_mises.quadratic.frames import Frame, Rows, frame_of, sum_of
from jax_von_mises.quadratic.marginal import Marginal, Marginal3, Sums, normaliser


def kind_of(dimension: int) -> type[Marginal]:
    """Return the kind of marginal density on the sphere in three or four dimensions."""
    return {3: Marginal3, 4: Marginal}[dimension]


# Marks what a derivative is computed from if it must not be differentiated again.
constant = undifferentiable(
    "Bingham, MatrixFisher: `log_prob` and `prob` have two derivatives, and draws and other methods one. Further ones "
    "would divide by differences of eigenvalues, which may be 0."
)


def allowed(parameter: jax.Array) -> jax.Array:
    """Return matrices of natural parameters, NaN if an element is not allowed."""
    return nan_unless(parameter, jnp.all(jnp.abs(parameter) <= LARGEST_ELEMENT, (-2, -1), keepdims=True))


def added(other: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the natural parameter of the normalised product of two densities."""
    return parameter + other


def fixed_frame(matrix: jax.Array) -> Frame:
    """Return the frame of a matrix, for derivatives that must not be differentiated."""
    frame: Frame = jax.tree.map(constant, frame_of(matrix))
    return frame


@jax.custom_jvp
def gaps_of(matrix: jax.Array) -> Sums:
    """Return the gaps of a matrix, for functions in which equal eigenvalues may change places."""
    return frame_of(matrix).gaps


@gaps_of.defjvp
def _gaps_of_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[Sums, Sums]:
    return gaps_of(*primals), gap_moves(fixed_frame(*primals).seen(*tangents))


def gap_moves(moved: Rows) -> Sums:
    """Return how the gaps change with a matrix whose change is seen in the frame."""
    return tuple(moved[0][0] - moved[i][i] for i in range(1, len(moved)))


@jax.custom_jvp
def mean_squares(gaps: Sums) -> tuple[jax.Array, Sums]:
    """Return log C, and the means of all squared coordinates but the first."""
    marginal = kind_of(len(gaps) + 1).of(gaps)
    return normaliser(marginal, marginal.squares)


@mean_squares.defjvp
def _mean_squares_jvp(
    primals: tuple[Sums], tangents: tuple[Sums]
) -> tuple[tuple[jax.Array, Sums], tuple[jax.Array, Sums]]:
    (gaps,), (moves,) = primals, tangents
    log_norm, squares = mean_squares(gaps)
    rises = rises_of(squares, mean_products(jax.tree.map(constant, gaps)), moves)
    return (log_norm, squares), (-sum_of([m * move for m, move in zip(squares, moves, strict=True)]), rises)


def mean_products(gaps: Sums) -> Rows:
    """Return the means of products of two squared coordinates."""
    d = len(gaps) + 1
    marginal = kind_of(d).of(gaps)
    listed = iter(normaliser(marginal, marginal.products)[1])
    upper = {(i, j): next(listed) for i in range(d) for j in range(i, d)}
    return tuple(tuple(upper[min(i, j), max(i, j)] for j in range(d)) for i in range(d))


def rises_of(squares: Sums, products: Rows, moves: Sums) -> Sums:
    """Return how the means of all squared coordinates but the first change with the gaps."""
    return tuple(
        -sum_of(
            [
                (products[i][j] - own * other) * move
                for j, (other, move) in enumerate(zip(squares, moves, strict=True), 1)
            ]
        )
        for i, own in enumerate(squares, 1)
    )


@jax.custom_jvp
def second_moment(matrix: jax.Array) -> jax.Array:
    """Return the mean of x x^T."""
    frame = frame_of(matrix)
    _, squares = mean_squares(frame.gaps)
    return frame.unseen(diagonal([1 - sum_of(list(squares)), *squares]))


@second_moment.defjvp
def _second_moment_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    frame = fixed_frame(*primals)
    moved, products = frame.seen(*tangents), mean_products(frame.gaps)
    rises = rises_of(mean_squares(frame.gaps)[1], products, gap_moves(moved))
    across = [[2 * p * m for p, m in zip(*rows, strict=True)] for rows in zip(products, moved, strict=True)]
    return second_moment(*primals), frame.unseen(diagonal([-sum_of(list(rises)), *rises], across))


def diagonal(values: list[jax.Array], others: list[list[jax.Array]] | None = None) -> Rows:
    """Return a matrix with a diagonal and with 0 or the elements of another matrix elsewhere."""
    zero, size = jnp.zeros_like(values[0]), range(len(values))
    return tuple(tuple(values[i] if i == j else others[i][j] if others else zero for j in size) for i in size)


class Parts(NamedTuple):
    """The log density at unit vectors x, and its derivatives."""

    log_density: jax.Array
    by_matrix: jax.Array
    """x x^T minus its mean."""
    by_vector: jax.Array
    """(A - z) x for the largest eigenvalue z, half of the derivative."""


@jax.custom_jvp
def parts(matrix: jax.Array, x: jax.Array) -> Parts:
    """Return the `Parts` for a batch of matrices and one of unit vectors."""
    frame = frame_of(matrix)
    along = frame.along([x[..., i] for i in range(x.shape[-1])])
    log_norm, means = mean_squares(frame.gaps)
    squares = [y * y for y in along[1:]]
    value = -sum_of([gap * square for gap, square in zip(frame.gaps, squares, strict=True)]) - log_norm
    excess = [square - mean for square, mean in zip(squares, means, strict=True)]
    by_matrix = frame.unseen(diagonal([-sum_of(excess), *excess], [[p * q for q in along] for p in along]))
    pulled = [jnp.zeros_like(value), *(-gap * y for gap, y in zip(frame.gaps, along[1:], strict=True))]
    return Parts(value, by_matrix, jnp.stack(frame.placed(pulled), -1))


@parts.defjvp
def _parts_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[Parts, Parts]:
    (matrix, x), (moved, dx) = primals, tangents
    found = parts(matrix, x)
    _, rise = jax.jvp(second_moment, (matrix,), (moved,))
    outer = x[..., :, None] * dx[..., None, :]
    by_vector = times(moved, x) + pull(matrix, dx)
    return found, Parts(rate(found, moved, dx), outer + jnp.swapaxes(outer, -1, -2) - rise, by_vector)


def rate(at: Parts, moved: jax.Array, dx: jax.Array) -> jax.Array:
    """Return how the log density changes with the matrix and the vector."""
    return jnp.sum(at.by_matrix * moved, (-2, -1)) + 2 * jnp.sum(at.by_vector * dx, -1)


def times(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """Return products of matrices and vectors."""
    return jnp.sum(matrix * x[..., None, :], -1)


def pull(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """Return `Parts.by_vector`, whose derivatives are those for a constant largest eigenvalue."""
    return times(matrix, x) - frame_of(lax.stop_gradient(matrix)).largest[..., None] * x


@jax.custom_jvp
def log_density(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """Return the logarithm of the density at unit vectors, relative to the uniform distribution."""
    return parts(matrix, x).log_density


@log_density.defjvp
def _log_density_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    found = parts(*primals)
    return found.log_density, rate(found, *tangents)


@jax.custom_jvp
def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence of the distribution with the form `q` from that with the form `p`."""
    first, second = frame_of(p), frame_of(q)
    (log_p, means), (log_q, _) = mean_squares(first.gaps), mean_squares(second.gaps)
    all_means, d = [1 - sum_of(list(means)), *means], len(means) + 1
    # The axes of q, seen in the frame of p.
    turned = [first.along([second.axes[i][j] for i in range(d)]) for j in range(1, d)]
    squares = [sum_of([m * y * y for m, y in zip(all_means, axis, strict=True)]) for axis in turned]
    own, other = (
        sum_of([gap * square for gap, square in zip(gaps, of, strict=True)])
        for gaps, of in ((first.gaps, means), (second.gaps, squares))
    )
    return jnp.maximum(log_q - log_p + (other - own), 0)


@divergence.defjvp
def _divergence_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    p, q = primals
    own, rise = jax.jvp(second_moment, (p,), tangents[:1])
    across = (second_moment(q) - own) * tangents[1]
    return divergence(p, q), jnp.sum((p - q) * rise + across, (-2, -1))


def entropy(matrix: jax.Array) -> jax.Array:
    """Return the entropy relative to the uniform distribution, minus the divergence from it."""
    gaps = gaps_of(matrix)
    log_norm, squares = mean_squares(gaps)
    return log_norm + sum_of([gap * mean for gap, mean in zip(gaps, squares, strict=True)])

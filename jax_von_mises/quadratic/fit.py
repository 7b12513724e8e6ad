r"""Find the quadratic form of a log density from the second moment of data, by maximum likelihood.

The eigenvectors are those of the moment, and the gaps those at which the squared coordinates have the means of the
data. The frame of the data seen in a first frame gives the axes of small eigenvalues with all their digits. Newton's
method then takes a fixed number of steps from :math:`g_i = (m_1 - m_i) / (2 m_1 m_i)`, which is exact for concentrated
data.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jax_von_mises.engine.samples import total
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.quadratic.density import diagonal, fixed_frame, mean_products
from jax_von_mises.quadratic.frames import Frame, Rows, frame_of, sum_of
from jax_von_mises.quadratic.marginal import Sums

# The largest gap. The elements of parameters are then below the largest that is allowed.
LARGEST_GAP = 9.9e6
STEPS = 6


def moment(x: list[jax.Array], share: jax.Array) -> jax.Array:
    """Return the means of products of components, which have an axis for the samples, with shares of the weights."""
    rows = [[total(share * p * q) for q in x] for p in x]
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def covariance_of(gaps: Sums) -> tuple[jax.Array, jax.Array]:
    """Return the means of the squared coordinates but the first, along a last axis, and their covariances."""
    products = mean_products(gaps)
    squares = jnp.stack([sum_of(list(row)) for row in products[1:]], -1)
    inner = jnp.stack([jnp.stack(row[1:], -1) for row in products[1:]], -2)
    return squares, inner - squares[..., :, None] * squares[..., None, :]


def solved(covariance: jax.Array, right: jax.Array) -> jax.Array:
    """Return the solution of linear equations with a covariance matrix, scaled since its elements may be tiny."""
    scale = lax.rsqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))
    scaled = covariance * scale[..., :, None] * scale[..., None, :]
    found: jax.Array = jnp.linalg.solve(scaled, (right * scale)[..., None])[..., 0] * scale
    return found


def gaps_with(means: jax.Array) -> jax.Array:
    """Return the gaps at which the squared coordinates but the first have these means, in descending order."""
    first = 1 - jnp.sum(means, -1, keepdims=True)

    def step(_: jax.Array, gaps: jax.Array) -> jax.Array:
        squares, covariance = covariance_of(tuple(gaps[..., i] for i in range(gaps.shape[-1])))
        moved = gaps + solved(covariance, squares - means)
        moved = jnp.clip(moved, 0.25 * gaps, jnp.minimum(4 * gaps + 1, LARGEST_GAP))
        return lax.cummax(moved, axis=moved.ndim - 1)

    start = jnp.maximum(first - means, 0) / (2 * first * jnp.maximum(means, 0.5 / LARGEST_GAP))
    start = lax.cummax(jnp.minimum(start, LARGEST_GAP), axis=start.ndim - 1)
    found: jax.Array = lax.fori_loop(0, STEPS, step, start)
    return found


@jax.custom_jvp
def fitted(x: list[jax.Array], share: jax.Array) -> jax.Array:
    """Return the form that explains unit vectors best, given by components with an axis for the samples."""
    d = range(len(x))

    def seen(axes: Rows) -> list[jax.Array]:
        return [sum_of([axes[i][j][..., None] * x[i] for i in d]) for j in d]

    def better(_: jax.Array, axes: Rows) -> Rows:
        further = frame_of(moment(seen(axes), share)).axes
        return tuple(tuple(sum_of([row[k] * further[k][j] for k in d]) for j in d) for row in axes)

    zero = jnp.zeros_like(jnp.sum(x[0] * share, -1))
    axes = lax.fori_loop(0, 2, better, tuple(tuple(zero + float(i == j) for j in d) for i in d))
    return form_in(axes, jnp.stack([total(share * y * y) for y in seen(axes)[1:]], -1))


def form_in(axes: Rows, means: jax.Array) -> jax.Array:
    """Return the form with these eigenvectors and means of the squared coordinates but the first."""
    gaps = gaps_with(means)
    zero = jnp.zeros_like(gaps[..., 0])
    return Frame(axes, (), zero).unseen(diagonal([zero, *(-gaps[..., i] for i in range(gaps.shape[-1]))]))


@fitted.defjvp
def _fitted_jvp(
    primals: tuple[list[jax.Array], jax.Array], tangents: tuple[list[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    form = fitted(*primals)
    return form, form_moves(form, jax.jvp(moment, primals, tangents)[1])


@jax.custom_jvp
def form_with(moment: jax.Array) -> jax.Array:
    """Return the form for which x x^T has this mean, a positive definite matrix of trace 1."""
    frame = frame_of(moment)
    squares = jnp.stack([frame.largest - gap for gap in frame.gaps], -1)
    return form_in(frame.axes, nan_unless(squares, squares > -8 * jnp.finfo(squares.dtype).eps))


@form_with.defjvp
def _form_with_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    form = form_with(*primals)
    return form, form_moves(form, *tangents)


def form_moves(form: jax.Array, moved: jax.Array) -> jax.Array:
    """Return how a form changes with the mean of x x^T."""
    frame = fixed_frame(form)
    seen, products = frame.seen(moved), mean_products(frame.gaps)
    _, covariance = covariance_of(frame.gaps)
    rises = solved(covariance, jnp.stack([seen[i][i] for i in range(1, len(seen))], -1))
    along = [jnp.zeros_like(form[..., 0, 0]), *(rises[..., i] for i in range(len(seen) - 1))]
    across = [[0.5 * s / p for s, p in zip(*rows, strict=True)] for rows in zip(seen, products, strict=True)]
    return frame.unseen(diagonal(along, across))


def standard_errors(size: jax.Array, form: jax.Array, of: list[list[jax.Array]]) -> jax.Array:
    """Return the standard errors, for `size` samples, of matrices of estimates that are linear functions of the form.

    ``of[i][j]`` is what the estimates are for the form with the elements (i, j) and (j, i) equal to 1 in the frame.
    """
    gaps = tuple(gap[..., None, None] for gap in frame_of(form).gaps)
    products = mean_products(gaps)
    d = range(len(products))
    across = sum_of([jnp.square(of[i][j]) / (4 * products[i][j]) for i in d for j in d if i < j])
    _, covariance = covariance_of(gaps)
    along = jnp.stack([of[i][i] for i in d[1:]], -1)
    along = along * solved(jnp.broadcast_to(covariance, (*along.shape, along.shape[-1])), along)
    return jnp.sqrt((across + jnp.sum(along, -1)) / (size[..., None, None] if size.ndim else size))


def units(form: jax.Array) -> list[list[jax.Array]]:
    """Return the forms with the elements (i, j) and (j, i) equal to 1 in the frame of a form."""
    axes: Rows = frame_of(form).axes
    d = range(len(axes))
    columns = [jnp.stack([axes[i][j] for i in d], -1) for j in d]
    outer = [[p[..., :, None] * q[..., None, :] for q in columns] for p in columns]
    return [[outer[i][i] if i == j else outer[i][j] + outer[j][i] for j in d] for i in d]

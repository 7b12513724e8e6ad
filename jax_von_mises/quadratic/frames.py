r"""Compute eigenvalues and eigenvectors of symmetric matrices of three or four rows, elementwise.

Jacobi's method turns the planes of axes (0, 1) and (2, 3), then permutes the axes, a fixed number of times. It has no
branches, so that a batch of matrices is one vector loop, and diagonal matrices keep their axes.

Where eigenvalues are equal, any axes in their plane are eigenvectors. Turns and exchanges that only rounding errors
would cause are left out, so that all programs and devices find the same axes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Passes of two planes each; three of them visit all planes once.
PASSES = {"float32": 12, "float64": 15}
# Elements and gaps below this number of bounds of their rounding errors count as 0.
NOISE = 2
# Pairs of axes, in the order in which a matrix's elements are stored.
UPPER = ((0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3))
# The order of the axes after a pass.
NEXT = (0, 2, 3, 1)

Rows = tuple[tuple[jax.Array, ...], ...]
State = tuple[list[jax.Array], list[list[jax.Array]], list[jax.Array]]


class Frame(NamedTuple):
    """The eigenvectors of a matrix, and the gaps between its eigenvalues."""

    axes: Rows
    """Component i of eigenvector j, ordered by descending eigenvalues."""
    gaps: tuple[jax.Array, ...]
    """The largest eigenvalue minus each of the others."""
    largest: jax.Array

    def along(self, vector: list[jax.Array]) -> list[jax.Array]:
        """Return the components of a vector along the eigenvectors."""
        d = len(self.axes)
        return [sum_of([self.axes[i][j] * vector[i] for i in range(d)]) for j in range(d)]

    def placed(self, x: list[jax.Array]) -> list[jax.Array]:
        """Return the vector with components along the eigenvectors."""
        return [sum_of([a * b for a, b in zip(row, x, strict=True)]) for row in self.axes]

    def seen(self, matrix: jax.Array) -> Rows:
        """Return a symmetric matrix in the frame."""
        d = len(self.axes)
        columns = [self.along([matrix[..., i, j] for i in range(d)]) for j in range(d)]
        return tuple(tuple(self.along([columns[j][i] for j in range(d)])) for i in range(d))

    def unseen(self, matrix: Rows) -> jax.Array:
        """Return the symmetric matrix that is `matrix` in the frame."""
        d = len(self.axes)
        columns = [self.placed([matrix[i][j] for i in range(d)]) for j in range(d)]
        rows = [self.placed([columns[j][i] for j in range(d)]) for i in range(d)]
        return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def sum_of(terms: list[jax.Array]) -> jax.Array:
    """Return the sum of terms."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def turn(
    a: jax.Array, b: jax.Array, off: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the tangent, cosine and sine of the turn that makes ((a, off), (off, b)) diagonal, and the noise after it.

    The noise bounds the rounding errors of elements; smaller elements cause no turn.
    """
    noise = jnp.maximum(noise, float(jnp.finfo(a.dtype).eps) * jnp.maximum(jnp.abs(a), jnp.abs(b)))
    off = jnp.where(jnp.abs(off) <= NOISE * noise, 0, off)  # NaN stays
    some = off != 0
    # No squares of elements, which may underflow.
    ratio = jnp.abs(0.5 * (b - a) / jnp.where(some, off, 1))
    t = jnp.where(some, jnp.where((b < a) == (off < 0), 1, -1) / (ratio + jnp.sqrt(1 + ratio * ratio)), 0)
    c = lax.rsqrt(1 + t * t)
    return t, c, t * c, noise


@jax.jit
def jacobi_pass(state: State) -> State:
    """Turn the planes (0, 1) and (2, 3) of matrices and of the axes so far, and permute the axes."""
    elements, axes, noise = state
    m = dict(zip(UPPER, elements, strict=True))
    t1, c1, s1, first = turn(m[0, 0], m[1, 1], m[0, 1], jnp.maximum(noise[0], noise[1]))
    t2, c2, s2, last = turn(m[2, 2], m[3, 3], m[2, 3], jnp.maximum(noise[2], noise[3]))
    new = {(0, 0): m[0, 0] - t1 * m[0, 1], (1, 1): m[1, 1] + t1 * m[0, 1]}
    new |= {(2, 2): m[2, 2] - t2 * m[2, 3], (3, 3): m[3, 3] + t2 * m[2, 3]}
    new |= {(0, 1): jnp.zeros_like(c1), (2, 3): jnp.zeros_like(c1)}
    for j in (2, 3):
        new[0, j], new[1, j] = c1 * m[0, j] - s1 * m[1, j], s1 * m[0, j] + c1 * m[1, j]
    for i in (0, 1):
        new[i, 2], new[i, 3] = c2 * new[i, 2] - s2 * new[i, 3], s2 * new[i, 2] + c2 * new[i, 3]
    turned = [[c1 * p - s1 * q, s1 * p + c1 * q, c2 * r - s2 * s, s2 * r + c2 * s] for p, q, r, s in axes]
    permuted = [new[min(NEXT[i], NEXT[j]), max(NEXT[i], NEXT[j])] for i, j in UPPER]
    noise = [jnp.where(t1 == 0, noise[i], first) for i in (0, 1)] + [jnp.where(t2 == 0, noise[i], last) for i in (2, 3)]
    return permuted, [[row[j] for j in NEXT] for row in turned], [noise[j] for j in NEXT]


def passes(state: State, number: int) -> State:
    """Return the state after a number of passes: in a loop, or on a GPU as one kernel."""

    def in_loop(state: State) -> State:
        found: State = lax.fori_loop(0, number, lambda _, state: jacobi_pass(state), state)
        return found

    def unrolled(state: State) -> State:
        for _ in range(number):
            state = jacobi_pass(state)
        return state

    found: State = lax.platform_dependent(state, cuda=unrolled, rocm=unrolled, default=in_loop)
    return found


def frame_of(matrix: jax.Array) -> Frame:
    """Return the frames of symmetric matrices, of shape batch + (d, d) with d = 3 or 4.

    Eigenvalues have an error of at most 7e-7 (float32) or 3e-15 (float64) of the largest one, and the matrix with these
    axes and eigenvalues has one of 1e-6 or 4e-15.
    """
    d = matrix.shape[-1]
    zero = jnp.zeros_like(matrix[..., 0, 0])
    # Count from the first element of the diagonal, so that gaps of diagonal matrices are exact if it is the largest.
    base = matrix[..., 0, 0]
    elements = [zero if max(i, j) >= d else matrix[..., i, j] - base if i == j else matrix[..., i, j] for i, j in UPPER]
    axes = [[zero + float(i == j) for j in range(4)] for i in range(d)]
    elements, axes, noise = passes((elements, axes, [zero] * 4), PASSES[matrix.dtype.name])
    values = [elements[UPPER.index((i, i))] for i in range(d)]
    columns = [[axes[i][j] for i in range(d)] for j in range(d)]
    # Sort by exchanges of neighbours.
    for last in range(d - 1, 0, -1):
        for j in range(last):
            swap = values[j] + NOISE * jnp.maximum(noise[j], noise[j + 1]) < values[j + 1]
            both = [(values[j], values[j + 1]), (noise[j], noise[j + 1]), *zip(columns[j], columns[j + 1], strict=True)]
            exchanged = [(jnp.where(swap, q, p), jnp.where(swap, p, q)) for p, q in both]
            (values[j], values[j + 1]), (noise[j], noise[j + 1]), *pairs = exchanged
            columns[j], columns[j + 1] = [p for p, _ in pairs], [q for _, q in pairs]
    for j in range(d - 1, 0, -1):
        values[j - 1] = jnp.maximum(values[j - 1], values[j])
    gaps = tuple(values[0] - value for value in values[1:])
    rows = tuple(tuple(columns[j][i] for j in range(d)) for i in range(d))
    return Frame(rows, gaps, base + values[0])

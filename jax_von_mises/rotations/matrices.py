"""Convert between unit quaternions (w, x, y, z) and rotation matrices, which turn column vectors."""

import jax
import jax.numpy as jnp

from jax_von_mises.numerics.elementary import aligned, nan_unless


def of_quaternion(q: jax.Array) -> jax.Array:
    """Return the rotation matrices of unit quaternions."""
    w, x, y, z = (q[..., i] for i in range(4))
    return of_rows(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def of_rows(rows: list[list[jax.Array]]) -> jax.Array:
    """Return matrices with these elements."""
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def quadratic_form(matrix: jax.Array) -> jax.Array:
    """Return Davenport's matrix A of F, with q^T A q = tr(F^T R) for the rotation R of a unit quaternion q."""
    f = [[matrix[..., i, j] for j in range(3)] for i in range(3)]
    upper = [
        [f[0][0] + f[1][1] + f[2][2], f[2][1] - f[1][2], f[0][2] - f[2][0], f[1][0] - f[0][1]],
        [f[0][0] - f[1][1] - f[2][2], f[0][1] + f[1][0], f[0][2] + f[2][0]],
        [f[1][1] - f[0][0] - f[2][2], f[1][2] + f[2][1]],
        [f[2][2] - f[0][0] - f[1][1]],
    ]
    return of_rows([[upper[min(i, j)][abs(i - j)] for j in range(4)] for i in range(4)])


def of_moments(moment: jax.Array) -> jax.Array:
    """Return the mean of rotation matrices from the mean of q q^T, a matrix of trace 1."""
    m = [[moment[..., i, j] for j in range(4)] for i in range(4)]
    return of_rows(
        [
            [m[0][0] + m[1][1] - m[2][2] - m[3][3], 2 * (m[1][2] - m[0][3]), 2 * (m[1][3] + m[0][2])],
            [2 * (m[1][2] + m[0][3]), m[0][0] - m[1][1] + m[2][2] - m[3][3], 2 * (m[2][3] - m[0][1])],
            [2 * (m[1][3] - m[0][2]), 2 * (m[2][3] + m[0][1]), m[0][0] - m[1][1] - m[2][2] + m[3][3]],
        ]
    )


def moments_of(mean: jax.Array) -> jax.Array:
    """Return the mean of q q^T from that of rotation matrices, the inverse of `of_moments`."""
    return 0.25 * (quadratic_form(mean) + aligned(jnp.eye(4, dtype=mean.dtype), mean.ndim))


def of_form(form: jax.Array) -> jax.Array:
    """Return F from its `quadratic_form`, up to a multiple of the identity in the latter."""
    a = [[form[..., i, j] for j in range(4)] for i in range(4)]
    rows = [
        [a[0][0] + a[1][1], a[1][2] - a[0][3], a[1][3] + a[0][2]],
        [a[1][2] + a[0][3], a[0][0] + a[2][2], a[2][3] - a[0][1]],
        [a[1][3] - a[0][2], a[2][3] + a[0][1], a[0][0] + a[3][3]],
    ]
    trace = a[0][0] + a[1][1] + a[2][2] + a[3][3]
    return of_rows(
        [[0.5 * (x - 0.5 * trace) if i == j else 0.5 * x for j, x in enumerate(row)] for i, row in enumerate(rows)]
    )


def to_quaternion(matrix: jax.Array) -> jax.Array:
    """Return that of the two unit quaternions of rotation matrices with w >= 0; NaN for matrices that are no rotations.

    These differ by more than 0.1 from a rotation, in the products of their rows or in their orientation.
    """
    lines = [matrix[..., i, :] for i in range(3)]
    apart = [jnp.sum(lines[i] * lines[j], -1) - float(i == j) for i in range(3) for j in range(i, 3)]
    good = jnp.all(jnp.abs(jnp.stack(apart)) < 0.1, 0) & (jnp.sum(jnp.cross(lines[0], lines[1]) * lines[2], -1) > 0)
    # The rows of 4 q q^T are multiples of q. That with the largest diagonal element has the least rounding error.
    outer = 4 * moments_of(matrix)
    rows = [outer[..., i, :] for i in range(4)]
    longest, most = rows[0], outer[..., 0, 0]
    for i in range(1, 4):
        larger = outer[..., i, i] > most
        most = jnp.where(larger, outer[..., i, i], most)
        longest = jnp.where(larger[..., None], rows[i], longest)
    q = longest / jnp.sqrt(4 * most)[..., None]
    return nan_unless(jnp.where(q[..., :1] < 0, -q, q), good[..., None])

"""Work with rotations as unit quaternions (w, x, y, z) along the last axis, where q and -q are the same rotation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import computed
from jax_von_mises.rotations import matrices
from jax_von_mises.sphere.vectors import direction_of

# Below this squared length, functions of the length of a vector are series.
SMALL = {"float32": 1e-3, "float64": 1e-5}


def evaluated(
    name: str, function: Callable[..., jax.Array], sizes: dict[str, tuple[int, ...]], **values: ArrayLike
) -> jax.Array:
    """Return a function of checked arrays, whose last axes have the `sizes` of one rotation, vector, or number."""
    caller = f"rotations.{name}"
    given, dtype = arguments.parameters(caller, None, **values)
    for each, size in sizes.items():
        shape = np.shape(given[each])
        if size and shape[len(shape) - len(size) :] != size:
            what = {(4,): "quaternions (w, x, y, z)", (3,): "vectors", (3, 3): "rotation matrices"}[size]
            wanted = ", ".join(map(str, ("...", *size)))
            raise ValueError(f"{caller}: {each} has shape {shape}, but must hold {what}, of shape ({wanted}).")
    batch = {each: np.shape(x)[: np.ndim(x) - len(sizes[each])] for each, x in given.items()}
    arguments.broadcast_shapes(caller, batch)
    found: jax.Array = computed(function, (), tuple(given.values()), tuple(len(sizes[each]) for each in given), dtype)
    return found


def multiply(p: ArrayLike, q: ArrayLike) -> jax.Array:
    """Return the quaternion product p q, the rotation by `q` followed by that by `p`; both broadcast.

    Its length is the product of theirs.
    """
    return evaluated("multiply", product, {"p": (4,), "q": (4,)}, p=p, q=q)


def inverse(q: ArrayLike) -> jax.Array:
    """Return the conjugate quaternion, the inverse rotation, of the same length."""
    return evaluated("inverse", conjugate, {"q": (4,)}, q=q)


def apply(q: ArrayLike, vector: ArrayLike) -> jax.Array:
    """Return `vector`, of shape (..., 3), turned by the rotation `q`, of any length but 0; both broadcast."""
    return evaluated("apply", turned, {"q": (4,), "vector": (3,)}, q=q, vector=vector)


def exp(vector: ArrayLike) -> jax.Array:
    """Return the rotation about `vector`, of shape (..., 3), by its length in radians.

    Derivatives of any order exist everywhere, also at 0.
    """
    return evaluated("exp", exponential, {"vector": (3,)}, vector=vector)


def log(q: ArrayLike) -> jax.Array:
    """Return the rotation vector of `q`, of any length but 0: along the axis, and as long as the angle, at most pi.

    Derivatives exist at every rotation; at pi, they are those of one of the two vectors.
    """
    return evaluated("log", logarithm, {"q": (4,)}, q=q)


def to_matrix(q: ArrayLike) -> jax.Array:
    """Return the rotation matrix of `q`, of any length but 0; it turns column vectors."""
    return evaluated("to_matrix", matrix_of, {"q": (4,)}, q=q)


def from_matrix(matrix: ArrayLike) -> jax.Array:
    """Return the unit quaternion of a rotation matrix, of shape (..., 3, 3).

    The first component is at least 0. Matrices that differ by more than about 0.1 from a rotation give NaN. Derivatives
    exist at every rotation.
    """
    return evaluated("from_matrix", matrices.to_quaternion, {"matrix": (3, 3)}, matrix=matrix)


def angle_between(p: ArrayLike, q: ArrayLike) -> jax.Array:
    """Return the angle in [0, pi] of the rotation from `p` to `q`, of any length but 0; both broadcast.

    The derivative at equal rotations, where there is none, is 0.
    """
    return evaluated("angle_between", angle_of_step, {"p": (4,), "q": (4,)}, p=p, q=q)


def slerp(p: ArrayLike, q: ArrayLike, t: ArrayLike) -> jax.Array:
    """Return the rotation a fraction `t` of the shortest way from `p`, at 0, to `q`, at 1; all broadcast."""
    return evaluated("slerp", between, {"p": (4,), "q": (4,), "t": ()}, p=p, q=q, t=t)


def from_scipy(rotation: Any) -> np.ndarray:
    """Return the quaternions (w, x, y, z) of a ``scipy.spatial.transform.Rotation``, whose order is (x, y, z, w)."""
    if not hasattr(rotation, "as_quat"):
        raise TypeError(
            f"rotations.from_scipy: rotation={arguments.safe_repr(rotation)} must be a "
            "scipy.spatial.transform.Rotation."
        )
    return np.roll(np.asarray(rotation.as_quat()), 1, -1)


def to_scipy(q: ArrayLike) -> Any:
    """Return the ``scipy.spatial.transform.Rotation`` of quaternions (w, x, y, z), of shape (4,) or (n, 4)."""
    from scipy.spatial.transform import Rotation

    q = arguments.parameter("rotations.to_scipy", "q", q)
    if np.shape(q)[-1:] != (4,) or np.ndim(q) > 2:
        raise ValueError(f"rotations.to_scipy: q has shape {np.shape(q)}, but must have the shape (4,) or (n, 4).")
    return Rotation.from_quat(np.roll(np.asarray(q, np.float64), -1, -1))


def product(p: jax.Array, q: jax.Array) -> jax.Array:
    """Return products of quaternions."""
    (a, b, c, d), (w, x, y, z) = ([each[..., i] for i in range(4)] for each in (p, q))
    parts = [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x,
        a * z + b * y - c * x + d * w,
    ]
    return jnp.stack(parts, -1)


def conjugate(q: jax.Array) -> jax.Array:
    """Return quaternions with the opposite vector part."""
    return jnp.concatenate([q[..., :1], -q[..., 1:]], -1)


def turned(q: jax.Array, vector: jax.Array) -> jax.Array:
    """Return turned vectors."""
    q = direction_of(q).unit
    w, (axis, vector) = q[..., :1], jnp.broadcast_arrays(q[..., 1:], vector)
    across = jnp.cross(axis, vector)
    return vector + 2 * (w * across + jnp.cross(axis, across))


def length_of(vector: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return squared lengths, whether they are not small, and lengths, or 1 where they are small."""
    square = jnp.sum(vector * vector, -1)
    some = square > SMALL[vector.dtype.name]
    return square, some, jnp.sqrt(jnp.where(some, square, 1))


def exponential(vector: jax.Array) -> jax.Array:
    """Return the rotations with rotation vectors."""
    square, some, length = length_of(0.5 * vector)
    small = jnp.where(some, 0, square)
    cosine = jnp.where(some, jnp.cos(length), 1 - small / 2 * (1 - small / 12 * (1 - small / 30)))
    sine = jnp.where(some, jnp.sin(length) / length, 1 - small / 6 * (1 - small / 20 * (1 - small / 42)))
    return jnp.concatenate([cosine[..., None], (0.5 * sine)[..., None] * vector], -1)


def logarithm(q: jax.Array) -> jax.Array:
    """Return rotation vectors."""
    q = direction_of(q).unit
    q = jnp.where(q[..., :1] < 0, -q, q)
    w, vector = q[..., 0], q[..., 1:]
    square, some, length = length_of(vector)
    ratio = jnp.where(some, 0, square) / jnp.square(jnp.where(some, 1, w))
    series = (1 - ratio * (1 / 3 - ratio * (1 / 5 - ratio * (1 / 7 - ratio / 9)))) / jnp.where(some, 1, w)
    factor = jnp.where(some, jnp.arctan2(length, w) / length, series)
    return (2 * factor)[..., None] * vector


def angle_of_step(p: jax.Array, q: jax.Array) -> jax.Array:
    """Return the angle of the rotation between two."""
    vector = logarithm(product(conjugate(direction_of(p).unit), direction_of(q).unit))
    square = jnp.sum(vector * vector, -1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def between(p: jax.Array, q: jax.Array, t: jax.Array) -> jax.Array:
    """Return rotations on the way from one to another."""
    p = direction_of(p).unit
    step = logarithm(product(conjugate(p), q))
    return product(*jnp.broadcast_arrays(p, exponential((t[..., None] if t.ndim else t) * step)))


def matrix_of(q: jax.Array) -> jax.Array:
    """Return rotation matrices."""
    return matrices.of_quaternion(direction_of(q).unit)

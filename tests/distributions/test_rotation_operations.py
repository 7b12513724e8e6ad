"""Check the functions of rotations against SciPy, and their derivatives at the identity and at pi."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.spatial.transform import Rotation

from jax_von_mises import rotations
from tests.marks import more


def some(count, seed=0):
    """Return unit quaternions and SciPy's objects, among them rotations by 0, small angles, and pi."""
    vectors = np.random.default_rng(seed).normal(size=(count, 3))
    vectors[0], vectors[1] = 0, 1e-9 * vectors[1]
    vectors[2] *= np.pi / np.linalg.norm(vectors[2])
    theirs = Rotation.from_rotvec(vectors)
    return rotations.from_scipy(theirs), theirs


@pytest.mark.parametrize("dtype", ["float32", *more("float64")])
def test_same_as_scipy(dtype):
    eps = float(np.finfo(dtype).eps)
    with jax.enable_x64(dtype == "float64"):
        (p, first), (q, second) = some(20), some(20, 1)
        p, q = p.astype(dtype), q.astype(dtype)
        x = np.random.default_rng(2).normal(size=(20, 3)).astype(dtype)
        pairs = [
            (rotations.to_matrix(rotations.multiply(p, q)), (first * second).as_matrix()),
            (rotations.to_matrix(rotations.inverse(p)), first.inv().as_matrix()),
            (rotations.to_matrix(3 * p), first.as_matrix()),
            (rotations.apply(p, x), first.apply(x)),
            (rotations.log(-2 * q)[3:], second.as_rotvec()[3:]),
            (rotations.to_matrix(rotations.exp(rotations.log(p))), first.as_matrix()),
            (rotations.angle_between(p, q), (first.inv() * second).magnitude()),
            (rotations.to_matrix(rotations.from_matrix(first.as_matrix().astype(dtype))), first.as_matrix()),
        ]
        halfway = rotations.slerp(p, q, 0.5)
        both = rotations.angle_between(p, halfway), rotations.angle_between(halfway, q)
        ends = rotations.slerp(p[:, None], q[:, None], np.array([0, 1], dtype))
    for found, exact in pairs:
        np.testing.assert_allclose(np.asarray(found, float), exact, atol=20 * eps)
    np.testing.assert_allclose(*both, atol=1e3 * eps)  # near pi, the shorter way may be either
    np.testing.assert_allclose(np.abs(np.sum(np.asarray(ends) * np.stack([p, q], 1), -1)), 1, atol=20 * eps)
    assert np.allclose(rotations.to_scipy(p).as_matrix(), first.as_matrix(), atol=20 * eps)
    small = np.asarray(rotations.log(p[1]), float)
    np.testing.assert_allclose(small, first.as_rotvec()[1], rtol=1e-6)


def outer(q):
    """Return products of components, the same for q and -q."""
    return q[:, None] * q[None, :]


@pytest.mark.more
def test_derivatives():
    """Two derivatives exist at the identity, next to it, and at pi."""
    with jax.enable_x64(True):
        for vector in ([0.0, 0, 0], [1e-7, 0, 0], [4e-3, 2e-3, 1e-3], [0, np.pi - 1e-6, 0], [1.0, -4.0, 2.0]):
            v = jnp.array(vector)
            check_grads(rotations.exp, (v,), 2, rtol=1e-5, atol=1e-5)
            if np.linalg.norm(vector) < 3:
                check_grads(lambda v: rotations.log(rotations.exp(v)), (v,), 2, rtol=1e-5, atol=1e-4)
            q = rotations.exp(v)
            check_grads(lambda q: outer(rotations.from_matrix(rotations.to_matrix(q))), (q,), 1, rtol=1e-5, atol=1e-5)
        at_pi = jax.jacfwd(rotations.log)(jnp.array([0.0, 1, 0, 0]))
        assert np.isfinite(at_pi).all()
        assert np.isfinite(jax.grad(lambda q: rotations.angle_between(q, q[::-1]))(jnp.full(4, 0.5))).all()


def test_bad_input():
    with pytest.raises(ValueError, match=r"rotations.multiply: q has shape \(3,\), but must hold quaternions"):
        rotations.multiply(np.ones(4), np.ones(3))
    with pytest.raises(ValueError, match=r"rotations.from_matrix: matrix has shape \(3,\)"):
        rotations.from_matrix(np.ones(3))
    with pytest.raises(TypeError, match=r"rotations.from_scipy: rotation=1 must be a scipy"):
        rotations.from_scipy(1)

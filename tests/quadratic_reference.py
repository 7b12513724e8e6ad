"""Compute marginal masses and means of distributions with a quadratic log density by quadrature, with NumPy and SciPy.

The integrals run over pieces whose lengths grow geometrically from the places where the density may be singular.
"""

import jax
import numpy as np
from scipy.special import i0e

from jax_von_mises.rotations import matrices

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
# Ends of pieces, relative to the length of an interval.
PIECES = np.concatenate([[0.0], 2.0 ** np.arange(-100, 1, 1.0)])


def density(gaps, v, w):
    """Return the marginal density of v = 1 - w for the gaps along the first axis, relative to that of the mode."""
    if len(gaps) == 3:
        return np.exp(-gaps[1] * v) * i0e(gaps[0] / 2 * w) * i0e((gaps[2] - gaps[1]) / 2 * v)
    return np.exp(-gaps[1] * v) * i0e(gaps[0] / 2 * w) / (2 * np.sqrt(v))


def mass_below(gaps, v, w):
    """Return the integral of the density from 0 to v = 1 - w, and that from v to 1."""
    left, size = PIECES[:-1, None], np.diff(PIECES)[:, None]
    place = (left + size * NODES).reshape(-1)
    weight = (size * WEIGHTS).reshape(-1)
    gaps = [np.asarray(g, float)[..., None] for g in gaps]
    v, w = (np.asarray(x, float)[..., None] for x in (v, w))
    below = np.sum(v * weight * density(gaps, v * place, w + v * (1 - place)), -1)
    # On the other side, the pieces are shortest next to v.
    return below, np.sum(w * weight * density(gaps, v + w * place, w * (1 - place)), -1)


def total(gaps):
    """Return the integral of the density over [0, 1]."""
    return sum(mass_below(gaps, np.full(np.shape(gaps[0]), 0.5), np.full(np.shape(gaps[0]), 0.5)))


def matrices_of(q):
    """Return the rotation matrices of unit quaternions along the last axis."""
    w, x, y, z = np.moveaxis(q, -1, 0)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return np.stack(rows, -1).reshape(*w.shape, 3, 3)


def rotations(parameter, nodes=40):
    """Return rotation matrices, the weights of a rule for means under a matrix Fisher distribution, and log C."""
    with jax.enable_x64(True):
        form = matrices.quadratic_form(np.asarray(parameter, float))
    values, axes = np.linalg.eigh(np.asarray(form))
    values, axes = values[::-1], axes[:, ::-1]
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = (x + 1) / 2, w / 2
    end = min(1, 40 / max(values[0] - values[2], 1e-9))
    # Opposite quaternions are the same rotation. Both angles have densities like those of von Mises distributions.
    turns = 64 if values[0] - values[3] < 100 else 192
    turn = (np.arange(turns) + 0.5) * 2 * np.pi / turns
    v, a, b = np.meshgrid(end * x * x, turn[: turns // 2], turn, indexing="ij")
    q = np.stack(
        [np.sqrt(1 - v) * np.cos(a), np.sqrt(1 - v) * np.sin(a), np.sqrt(v) * np.cos(b), np.sqrt(v) * np.sin(b)], -1
    )
    weight = (w * 2 * x * end)[:, None, None] * 2 / turns**2 * np.exp(np.sum((values - values[0]) * q * q, -1))
    return (
        matrices_of(q @ axes.T).reshape(-1, 3, 3),
        (weight / weight.sum()).reshape(-1),
        values[0] + np.log(weight.sum()),
    )

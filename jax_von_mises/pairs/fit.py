"""Fit the distributions of pairs of angles by maximum likelihood, for many data sets at once.

The likelihood depends on the data only through means of products of the angles' sines and cosines. NumPy computes these
and takes the Newton steps; the only compiled program computes the cumulants of the statistics. It serves all numbers of
data sets up to the next power of two.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.samples import (
    Array,
    HostSets,
    WeightedSets,
    kept,
    power_of_two,
    rough_concentration,
    turns_removed,
    warn_of_degrees,
)
from jax_von_mises.pairs import models, moments

Kind = type[models.Sine | models.Cosine]
Parameters = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
# If the likelihood has no maximum, the concentrations estimated by `fit` end near these values.
LARGEST = {"float32": 1e8, "float64": 1e14}
# Largest numbers of Newton steps, in `fit` and within one step of expectation maximisation.
STEPS, FEW_STEPS = 60, 8
# Smallest gain of the log likelihood per sample for which another step is taken.
LEAST_GAIN = {"float32": 1e-8, "float64": 1e-15}
# The damping at the start and after a rejected step, and the one at which no step is left.
DAMPING, MOST_DAMPING = 1e-3, 1e6
# The statistics minus their values at 0, as bilinear forms in (1, sin, 1 - cos) of the two angles.
PHI_COSINE = [[0, 0, 0], [0, 0, 0], [-1, 0, 0]]
PSI_COSINE = [[0, 0, -1], [0, 0, 0], [0, 0, 0]]
INTERACTION: dict[Kind, list[list[int]]] = {
    models.Sine: [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    models.Cosine: [[0, 0, 1], [0, -1, 0], [1, 0, -1]],
}
# The derivative of (1, sin, 1 - cos) of x - loc with respect to loc is this matrix times these functions.
BY_LOC = np.array([[0.0, 0, 0], [-1, 0, 1], [0, -1, 0]])
# Largest correlation coefficient of an initial estimate, in magnitude.
LARGEST_CORRELATION = 0.99


class Point(NamedTuple):
    """Parameters (alpha, beta, k1, k2, r) of each data set along the first axis, and the likelihood there."""

    at: Array
    known: Array
    """The results of `cumulant_rows`, along the last axis."""
    value: Array
    """Mean log likelihood."""
    slopes: Array
    """Its gradient, along the last axis."""
    curvature: Array
    """Its negative Hessian, along the last two axes."""


def products_of(deviations: Array, share: Array) -> Array:
    """Return weighted means of products of (1, sin, 1 - cos) of two angles.

    Parameters
    ----------
    deviations : array
        Angles minus the origins from which they are measured, of shape (sets, n, 2).
    share : array
        Weights of shape (sets, n).

    Returns
    -------
    array
        Shape (sets, 3, 3); the axes of length 3 belong to the first and to the second angle.
    """
    half = 0.5 * deviations
    sine = np.sin(half)
    functions = np.stack([np.ones_like(half), 2 * sine * np.cos(half), 2 * sine * sine])
    means: Array = np.einsum("sn,asn,bsn->sab", share, functions[..., 0], functions[..., 1], optimize=True)
    return means


def turn_matrices(loc: Array) -> Array:
    """Return the matrices that take (1, sin x, 1 - cos x) to the same functions of x - `loc`."""
    sine, cosine, versine = np.sin(loc), np.cos(loc), 2 * np.sin(0.5 * loc) ** 2
    one, zero = np.ones_like(loc), np.zeros_like(loc)
    rows = [[one, zero, zero], [-sine, cosine, sine], [versine, -sine, cosine]]
    return np.stack([np.stack(row, -1) for row in rows], -2)


# What `cumulant_rows` returns for each data set: T(0, 0) - T*, the logarithm of the normaliser divided by e^g(a*) (see
# `moments.log_total`), the means of T - T*, and the covariances of the statistics.
AT_ZERO, LOG_TOTAL, EXPECTED, COVARIANCE = slice(0, 3), 3, slice(4, 7), slice(7, 16)


@functools.partial(jax.jit, static_argnames="kind")
def cumulant_rows(kind: Kind, k: jax.Array) -> jax.Array:
    """Return 16 numbers for each column of `k`, the concentrations and the correlation, along the last axis."""
    zero = jnp.zeros_like(k[0])
    log_total, expected, covariance = moments.cumulants(kind, *k)
    rows = [*moments.rises(kind, zero, zero, *k), log_total, *expected, *covariance.reshape(9, -1)]
    return jnp.stack(rows, -1)


def known_of(kind: Kind, k: Array, dtype: np.dtype) -> Array:
    """Return `cumulant_rows` for concentrations and correlations `k` (sets, 3)."""
    padded = np.ones((3, power_of_two(len(k))), dtype)
    padded[:, : len(k)] = k.T
    return np.asarray(cumulant_rows(kind, padded), np.float64)[: len(k)]


def point(kind: Kind, products: Array, at: Array, known: Array) -> Point:
    """Return the likelihood at `at` (sets, 5) of data sets with `products` (sets, 3, 3)."""
    forms, k = np.array([PHI_COSINE, PSI_COSINE, INTERACTION[kind]], float), at[:, 2:]

    def statistics(products: Array) -> Array:
        """Return the means of the statistics minus their values at 0, or their derivatives from those of `products`."""
        found: Array = products.reshape(-1, 9) @ forms.reshape(3, 9).T
        return found

    means = turn_matrices(at[:, 0]) @ products @ np.swapaxes(turn_matrices(at[:, 1]), 1, 2)
    first, second = BY_LOC @ means, means @ BY_LOC.T
    of_statistics = statistics(means) + known[:, AT_ZERO]
    across = np.stack([statistics(first), statistics(second)], 1)
    twice = statistics(BY_LOC @ first), statistics(first @ BY_LOC.T), statistics(second @ BY_LOC.T)
    of_first, mixed, of_second = (np.sum(k * each, 1) for each in twice)
    curvature = np.empty((len(at), 5, 5))
    curvature[:, 0, 0], curvature[:, 1, 1] = -of_first, -of_second
    curvature[:, 0, 1] = curvature[:, 1, 0] = -mixed
    curvature[:, :2, 2:], curvature[:, 2:, :2] = -across, -np.swapaxes(across, 1, 2)
    curvature[:, 2:, 2:] = known[:, COVARIANCE].reshape(-1, 3, 3)
    slopes = np.concatenate([np.sum(k[:, None] * across, 2), of_statistics - known[:, EXPECTED]], 1)
    return Point(at, known, np.sum(k * of_statistics, 1) - known[:, LOG_TOTAL], slopes, curvature)


def canonical(at: Array) -> Array:
    """Return parameters of the same distributions with concentrations of 0 or more.

    Turning one angle by half a turn changes the signs of its concentration and of r.
    """
    signs = np.where(at[:, 2:4] < 0, -1.0, 1.0)
    locs = at[:, :2] + np.where(signs < 0, np.pi, 0)
    return np.concatenate([locs, signs * at[:, 2:4], signs.prod(1, keepdims=True) * at[:, 4:]], 1)


def maximise(
    kind: Kind, products: Array, start: Array, largest: float, steps: int, dtype: np.dtype, known: Array | None = None
) -> Point:
    """Maximise the likelihoods by damped Newton steps from `start` (sets, 5), whose `cumulant_rows` may be `known`.

    Concentrations and correlations that a step would make exceed `largest` in magnitude stop there. A step that lowers
    the likelihood is rejected, and the damping is increased; it ascends if the damping is large enough.
    """
    known = known_of(kind, start[:, 2:], dtype) if known is None else known
    here, least = point(kind, products, start, known), LEAST_GAIN[dtype.name]
    damping, going = np.full(len(start), DAMPING), np.isfinite(here.value)
    for _ in range(steps):
        if not going.any():
            break
        # Scale the parameters so that the diagonal of the curvature is 1.
        diagonal = np.abs(np.diagonal(here.curvature, axis1=1, axis2=2))
        unit = 1 / np.sqrt(np.maximum(diagonal, float(np.finfo(dtype).tiny) ** 0.5))
        scaled = np.where(going[:, None, None], here.curvature * unit[:, :, None] * unit[:, None, :], np.eye(5))
        rise = np.where(going[:, None], unit * here.slopes, 0)
        # Far from the maximum, the likelihood may curve upwards; the step must ascend there too.
        bends, axes = np.linalg.eigh(scaled)
        along = np.einsum("sji,sj->si", axes, rise) / (np.abs(bends) + damping[:, None])
        move = unit * np.einsum("sij,sj->si", axes, along)
        new = np.where(going[:, None], canonical(here.at + move), here.at)
        beyond = np.abs(new[:, 2:]) > largest
        new[:, 2:] = np.clip(new[:, 2:], -largest, largest)
        there = point(kind, products, new, known_of(kind, new[:, 2:], dtype))
        good = going & (there.value >= here.value)
        gain = np.where(good, there.value - here.value, 2 * least)
        here = Point(*map(functools.partial(kept, good), there, here))
        # Estimate the gain of another step.
        move[:, 2:][beyond] = 0
        promise = np.abs(np.sum(here.slopes * move, 1))
        damping = np.where(good, 0.1 * damping, np.maximum(10 * damping, DAMPING))
        going &= (np.maximum(promise, gain) > least) & (damping < MOST_DAMPING)
    return here


def starts(kind: Kind, products: Array, limits: tuple[float, float]) -> tuple[Array, Array]:
    """Return two starting points (sets, 5), with independent angles and from a normal distribution's precision matrix.

    The concentrations of the first are within `limits`.
    """
    alpha = np.arctan2(products[:, 1, 0], 1 - products[:, 2, 0])
    beta = np.arctan2(products[:, 0, 1], 1 - products[:, 0, 2])
    means = turn_matrices(alpha) @ products @ np.swapaxes(turn_matrices(beta), 1, 2)
    versines = np.clip(np.stack([means[:, 2, 0], means[:, 0, 2]]), 1e-12, 1)
    k1, k2 = np.clip(rough_concentration(versines), *limits)
    scale = np.sqrt(k1 * k2)
    correlation = np.clip(means[:, 1, 1] * scale, -LARGEST_CORRELATION, LARGEST_CORRELATION)
    factor = 1 / (1 - correlation * correlation)
    r = correlation * factor * scale
    independent = np.stack([alpha, beta, k1, k2, np.zeros_like(r)], 1)
    if kind is models.Sine:
        return independent, np.stack([alpha, beta, factor * k1, factor * k2, r], 1)
    return independent, canonical(np.stack([alpha, beta, factor * k1 - r, factor * k2 - r, -r], 1))


def fit(
    kind: Kind,
    caller: str,
    samples: ArrayLike,
    weights: ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
) -> Parameters:
    """Return the maximum likelihood estimate of the five parameters; see `SineBivariateVonMises.fit`."""
    samples = arguments.parameter(caller, "samples", samples)
    shape = np.shape(samples)
    if not shape or shape[-1] != 2:
        raise ValueError(
            f"{caller}: samples has shape {shape}, but its last axis must hold the two angles of a pair, phi and psi. "
            "Put them together with jnp.stack([phi, psi], axis=-1)."
        )
    sets = WeightedSets.of(caller, "pair", samples, weights, axis, event_ndim=1)
    warn_of_degrees(caller, sets.samples)
    host = HostSets.of(caller, sets)
    dtype, x, share = host.dtype, host.x, host.share
    origins = np.arctan2(*(np.einsum("sn,sni->si", share, function(x)) for function in (np.sin, np.cos)))
    products = products_of(turns_removed(x - origins[:, None]), share)
    both = np.concatenate(starts(kind, products, (1e-2, 0.1 * LARGEST[dtype.name])))
    found = maximise(kind, np.tile(products, (2, 1, 1)), both, LARGEST[dtype.name], STEPS, dtype)
    ends, value = found.at.reshape(2, -1, 5), found.value.reshape(2, -1)
    best = kept(value[1] > value[0], ends[1], ends[0])
    best[:, :2] = turns_removed(best[:, :2] + origins)
    best[~host.good] = np.nan
    alpha, beta, k1, k2, r = (jax.device_put(column.reshape(sets.kept).astype(sets.dtype)) for column in best.T)
    return alpha, beta, k1, k2, r

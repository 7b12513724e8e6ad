"""Fit the distributions of pairs of angles by maximum likelihood, for one data set or the components of a mixture."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises.functions.samples import WeightedSets, shares, total
from jax_von_mises.numerics import bessel
from jax_von_mises.numerics.circle import deviation, less_turns
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.numerics.pairs import models, moments

Kind = type[models.Sine | models.Cosine]
# The two locations, the two concentrations and the correlation.
Parameters = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
# If the likelihood has no maximum, the concentrations estimated by `fit` end near these values.
LARGEST = {"float32": 1e8, "float64": 1e14}
# Largest numbers of Newton steps, in `fit` and within one step of expectation maximisation.
STEPS, FEW_STEPS = 60, 20
# Smallest gain of the log likelihood per sample for which another step is taken.
LEAST_GAIN = {"float32": 1e-8, "float64": 1e-15}
# The statistics minus their values at 0, as bilinear forms in (1, sin, 1 - cos) of the two angles.
PHI_COSINE = [[0, 0, 0], [0, 0, 0], [-1, 0, 0]]
PSI_COSINE = [[0, 0, -1], [0, 0, 0], [0, 0, 0]]
INTERACTION: dict[Kind, list[list[int]]] = {
    models.Sine: [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    models.Cosine: [[0, 0, 1], [0, -1, 0], [1, 0, -1]],
}
# Largest correlation coefficient of an initial estimate, in magnitude.
LARGEST_CORRELATION = 0.99


class Sums(NamedTuple):
    """Weighted means of products of (1, sin, 1 - cos) of the two angles, which are measured from `origins`."""

    products: jax.Array
    """Array whose first two axes, of length 3, belong to the first and the second angle."""
    origins: tuple[jax.Array, jax.Array]


def sums_of(phi: jax.Array, psi: jax.Array, share: jax.Array, origins: tuple[jax.Array, jax.Array]) -> Sums:
    """Return the `Sums` of angles with weights `share` along the last axis."""

    def each(x: jax.Array, origin: jax.Array) -> list[jax.Array]:
        half = 0.5 * deviation(x, origin[..., None])[0]
        sine = jnp.sin(half)
        return [jnp.ones_like(x), 2 * sine * jnp.cos(half), 2 * sine * sine]

    first, second = each(phi, origins[0]), each(psi, origins[1])
    return Sums(jnp.stack([jnp.stack([total(share * x * y) for y in second]) for x in first]), origins)


def turned(loc: jax.Array) -> jax.Array:
    """Return the matrix that takes (1, sin x, 1 - cos x) to the same functions of x - `loc`."""
    sine, cosine = jnp.sin(loc), jnp.cos(loc)
    versine = 2 * jnp.square(jnp.sin(0.5 * loc))
    one, zero = jnp.ones_like(loc), jnp.zeros_like(loc)
    return jnp.stack(
        [jnp.stack([one, zero, zero]), jnp.stack([-sine, cosine, sine]), jnp.stack([versine, -sine, cosine])]
    )


# The derivative of (1, sin, 1 - cos) of x - loc with respect to loc is this matrix times these functions.
BY_LOC = np.array([[0, 0, 0], [-1, 0, 1], [0, -1, 0]])


def product_means(sums: Sums, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Return the means of products of (1, sin, 1 - cos) of the angles measured from `alpha` and `beta`."""
    return product(turned(alpha), sums.products, turned(beta).T)


def product(*matrices: ArrayLike) -> jax.Array:
    """Return the product of three-by-three matrices, in full precision on every device."""
    multiply = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    return functools.reduce(multiply, map(jnp.asarray, matrices))


def log_likelihood(kind: Kind, sums: Sums, parameters: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the mean logarithm of the density at (alpha, beta, k1, k2, r), its gradient and its negative Hessian."""
    alpha, beta, k1, k2, r = parameters
    k = parameters[2:]
    zero, by_loc = jnp.zeros_like(k1), BY_LOC.astype(k.dtype)
    forms = np.array([PHI_COSINE, PSI_COSINE, INTERACTION[kind]], k.dtype)

    def statistics(products: jax.Array) -> jax.Array:
        """Return the means of the statistics minus their values at 0, or their derivatives from those of `products`."""
        return jnp.sum(forms * products[None], (-2, -1))

    means = product_means(sums, alpha, beta)
    first, second = product(by_loc, means), product(means, by_loc.T)
    by_alpha, by_beta = statistics(first), statistics(second)
    by_alpha_alpha, by_beta_beta = statistics(product(by_loc, first)), statistics(product(second, by_loc.T))
    by_alpha_beta = statistics(product(first, by_loc.T))

    at_zero = jnp.stack(moments.rises(kind, zero, zero, k1, k2, r))  # T(0, 0) - T*
    log_total, expected, covariance = moments.cumulants(kind, k1, k2, r)
    of_statistics = statistics(means) + at_zero
    value = jnp.sum(k * of_statistics) - log_total
    slopes = jnp.concatenate(
        [jnp.stack([jnp.sum(k * by_alpha), jnp.sum(k * by_beta)]), of_statistics - jnp.stack(expected)]
    )
    mixed = jnp.sum(k * by_alpha_beta)
    of_locs = jnp.stack(
        [jnp.stack([jnp.sum(k * by_alpha_alpha), mixed]), jnp.stack([mixed, jnp.sum(k * by_beta_beta)])]
    )
    across = jnp.stack([by_alpha, by_beta])
    curvature = jnp.block([[-of_locs, -across], [-across.T, covariance]])
    return value, slopes, curvature


def canonical(parameters: jax.Array) -> jax.Array:
    """Return parameters of the same distribution with concentrations of 0 or more.

    Turning one angle by half a turn changes the signs of its concentration and of r.
    """
    alpha, beta, k1, k2, r = parameters
    sign1, sign2 = (jnp.where(k < 0, -1, 1).astype(r.dtype) for k in (k1, k2))
    half = np.asarray(np.pi, r.dtype)
    alpha, beta = (x + jnp.where(k < 0, half, 0) for x, k in ((alpha, k1), (beta, k2)))
    return jnp.stack([alpha, beta, sign1 * k1, sign2 * k2, sign1 * sign2 * r])


# Number of steps, parameters, the values of `log_likelihood` there, expected gain of another step, and damping.
State = tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array, jax.Array], jax.Array, jax.Array]


def maximise(
    kind: Kind, sums: Sums, start: jax.Array, largest: jax.Array | float, steps: int = STEPS
) -> tuple[jax.Array, jax.Array]:
    """Maximise the likelihood of one data set by damped Newton steps from `start`.

    Return the parameters and the mean logarithm of the density there. A step that lowers the likelihood or makes a
    concentration or the correlation exceed `largest` in magnitude is rejected, and the damping is increased.
    """
    dtype = start.dtype

    def should_continue(state: State) -> jax.Array:
        step, _, _, gain, damping = state
        return (step < steps) & (gain > LEAST_GAIN[dtype.name]) & (damping < 1e6)

    def climb(state: State) -> State:
        step, at, found, _, damping = state
        value, slopes, curvature = found
        # Scale the parameters so that the diagonal of the curvature is 1.
        unit = lax.rsqrt(jnp.maximum(jnp.abs(jnp.diagonal(curvature)), float(np.finfo(dtype).tiny) ** 0.5))
        scaled = curvature * unit[:, None] * unit[None, :] + damping * jnp.eye(5, dtype=dtype)
        move = unit * jnp.linalg.solve(scaled, unit * slopes)
        new = canonical(at + move)
        new_found = log_likelihood(kind, sums, new)
        good = (new_found[0] >= value) & (jnp.max(jnp.abs(new[2:])) <= largest)
        at, found = jax.tree.map(lambda x, y: jnp.where(good, x, y), (new, new_found), (at, found))
        # Estimate the gain of another step.
        promise = jnp.abs(jnp.dot(found[1], move, precision=lax.Precision.HIGHEST))
        gain = jnp.maximum(promise, jnp.where(good, new_found[0] - value, 2 * LEAST_GAIN[dtype.name]))
        return step + 1, at, found, gain, jnp.where(good, 0.1 * damping, jnp.maximum(10 * damping, 1e-3))

    state = jnp.zeros((), jnp.int32), start, log_likelihood(kind, sums, start), jnp.full((), jnp.inf, dtype)
    _, at, (value, *_), *_ = lax.while_loop(should_continue, climb, (*state, jnp.full((), 1e-3, dtype)))
    return at, value


def starts(kind: Kind, sums: Sums, limits: tuple[float, float]) -> tuple[jax.Array, jax.Array]:
    """Return two starting points, one with independent angles and one from a normal distribution's precision matrix.

    The concentrations of the first are within `limits`.
    """
    alpha = jnp.arctan2(sums.products[1, 0], 1 - sums.products[2, 0])
    beta = jnp.arctan2(sums.products[0, 1], 1 - sums.products[0, 2])
    means = product_means(sums, alpha, beta)
    versines = [jnp.clip(x, 1e-12, 1) for x in (means[2, 0], means[0, 2])]
    k1, k2 = (jnp.clip(bessel.inverse_ratio(1 - x, x), *limits) for x in versines)
    correlation = jnp.clip(means[1, 1] * jnp.sqrt(k1 * k2), -LARGEST_CORRELATION, LARGEST_CORRELATION)
    factor = 1 / (1 - correlation * correlation)
    r = correlation * factor * jnp.sqrt(k1 * k2)
    independent = jnp.stack([alpha, beta, k1, k2, jnp.zeros_like(r)])
    if kind is models.Sine:
        joint = jnp.stack([alpha, beta, factor * k1, factor * k2, r])
    else:
        joint = canonical(jnp.stack([alpha, beta, factor * k1 - r, factor * k2 - r, -r]))
    return independent, joint


def fit(
    kind: Kind,
    caller: str,
    samples: ArrayLike,
    weights: ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
) -> Parameters:
    """Return the maximum likelihood estimate of the five parameters; see `SineBivariateVonMises.fit`."""
    sets = WeightedSets.of(caller, "pair", samples, weights, axis, event_ndim=1)
    shape = np.shape(sets.samples)
    if not shape or shape[-1] != 2:
        raise ValueError(
            f"{caller}: samples has shape {shape}, but its last axis must hold the two angles of a pair, phi and psi. "
            "Put them together with jnp.stack([phi, psi], axis=-1)."
        )
    estimate: Parameters = _fit(kind, sets)
    return estimate


@functools.partial(jax.jit, static_argnums=0)
def _fit(kind: Kind, sets: WeightedSets) -> Parameters:
    (phi, psi), share = sets.rows()
    compute, kept = phi.dtype, sets.kept
    first, second = (jnp.arctan2(total(share * jnp.sin(x)), total(share * jnp.cos(x))) for x in (phi, psi))
    origins = first, second
    sums = sums_of(phi, psi, share, origins)
    flat = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[: leaf.ndim - len(kept)] + (-1,)), sums)

    def climb(sums: Sums) -> jax.Array:
        ends, values = jax.vmap(lambda at: maximise(kind, sums, at, LARGEST[compute.name]))(
            jnp.stack(starts(kind, sums, (1e-2, 0.1 * LARGEST[compute.name])))
        )
        return jnp.where(values[1] > values[0], ends[1], ends[0])

    found = jax.vmap(climb, in_axes=-1, out_axes=-1)(flat).reshape((5, *kept))
    good = jnp.isfinite(share).all(-1) & jnp.isfinite(origins[0] + origins[1])
    locs = [less_turns(origin + shift, 0.0) for origin, shift in zip(origins, found[:2], strict=True)]
    alpha, beta, k1, k2, r = (nan_unless(value, good).astype(sets.dtype) for value in (*locs, *found[2:]))
    return alpha, beta, k1, k2, r


def component_sums(samples: jax.Array, weights: jax.Array, origins: tuple[jax.Array, jax.Array]) -> Sums:
    """Return the `Sums` of pairs of shape (n, 2) for each column of `weights` (n, j), about `origins` (j,).

    They are 0 for a column without positive weights.
    """
    share = jnp.where(jnp.sum(weights, 0)[:, None] == 0, 0, shares(weights.T))
    phi, psi = (jnp.broadcast_to(samples[:, i], share.shape) for i in range(2))
    return sums_of(phi, psi, share, origins)


def about_origins(parameters: jax.Array, sums: Sums) -> Parameters:
    """Return estimates from `parameters` whose locations are measured from the origins of `sums`."""
    locs = (less_turns(origin + loc, 0.0) for origin, loc in zip(sums.origins, parameters[:2], strict=True))
    alpha, beta = locs
    _, _, k1, k2, r = parameters
    return alpha, beta, k1, k2, r


def climb_from(
    kind: Kind, parameters: Iterable[ArrayLike], samples: jax.Array, weights: jax.Array, largest: jax.Array
) -> Parameters:
    """Improve `parameters` of shape (j,) by a few steps, for samples of shape (n, 2) and weights (n, j)."""
    start = jnp.stack([jnp.asarray(x, samples.dtype) for x in parameters])
    sums = component_sums(samples, weights, (start[0], start[1]))

    def climb(sums: Sums, at: jax.Array) -> jax.Array:
        return maximise(kind, sums, at.at[:2].set(0), largest, FEW_STEPS)[0]

    return about_origins(jax.vmap(climb, in_axes=-1, out_axes=-1)(sums, start), sums)


def rough(
    kind: Kind, samples: jax.Array, weights: jax.Array, places: jax.Array, limits: tuple[float, float]
) -> Parameters:
    """Estimate parameters of shape (j,) without iteration, near `places` (j, 2); see `starts` and `climb_from`."""
    sums = component_sums(samples, weights, (places[:, 0], places[:, 1]))
    joint = jax.vmap(lambda sums: starts(kind, sums, limits)[1], in_axes=-1, out_axes=-1)(sums)
    return about_origins(joint, sums)

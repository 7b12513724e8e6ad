"""Maximise the mean log likelihood of data sets over a few unconstrained numbers each.

Steps of Newton's method, of which there are at most `STEPS`, use the absolute values of the curvatures, so that each
leads uphill. Where it overshoots, the best of some shorter steps is taken, or none, so that the likelihood never falls
by more than rounding. Numbers are scaled by their own curvatures first, so their units do not matter.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.samples import WeightedSets, total
from jax_von_mises.numerics.elementary import nan_unless

STEPS = 32
# Steps as parts of that of Newton's method. The last one keeps the numbers.
PARTS = (1.0, 0.25, 2.0**-4, 2.0**-7, 2.0**-11, 0.0)
# The longest step, relative to 1 plus the size of each number.
LONGEST = 2.0
# In units of rounding: the least curvature relative to the largest one, and the fall that a step of full length may
# have. Rounding would otherwise stop the steps at half of the digits.
FLAT, SLACK = 64, 32

# The last step is shorter than this power of rounding, in units of the standard error for one sample.
LAST = 0.6

State = tuple[jax.Array, jax.Array, jax.Array]
LogDensity = Callable[..., jax.Array]


def maximised(log_density: LogDensity, starts: jax.Array, share: jax.Array, *given: jax.Array) -> jax.Array:
    """Return the numbers with the largest mean log likelihood of each data set, of shape sets + (count,).

    Parameters
    ----------
    log_density : callable
        ``log_density(numbers, *given)`` returns the log densities of the samples of one data set, of shape (n,). It
        must be finite where the share is 0.
    starts : array
        Numbers to begin with, of shape sets + (starts, count). The best result of all starts is returned; NaN if at
        none of them the likelihood and its derivatives are finite.
    share : array
        Weights that sum to 1, of shape sets + (n,).
    *given : array
        What belongs to each data set, of shape sets + any.
    """
    sets = share.shape[:-1]

    def of_set(starts: jax.Array, share: jax.Array, *given: jax.Array) -> jax.Array:
        def likelihood(numbers: jax.Array) -> jax.Array:
            return total(share * log_density(numbers, *given))

        return highest(likelihood, starts)

    function: Any = of_set
    for _ in sets:
        function = jax.vmap(function)
    found: jax.Array = function(starts, share, *given)
    return found


def root_of_covariance(function: Callable[[jax.Array], jax.Array], numbers: jax.Array, size: jax.Array) -> jax.Array:
    """Return a matrix whose columns have the covariances of estimated numbers as their products, from `size` samples.

    They are the inverse of the observed information, minus the second derivatives of a mean log likelihood, and NaN
    where that is not positive definite.
    """
    # One column after the other, so that the memory does not grow with the number of parameters.
    slope, unit = jax.grad(function), jnp.eye(len(numbers), dtype=numbers.dtype)
    columns = lax.map(lambda along: jax.jvp(slope, (numbers,), (along,))[1], unit)
    information = -0.5 * (columns + columns.T)
    scale = jnp.sqrt(jnp.diagonal(information))
    # The Cholesky factor is NaN where the matrix is not positive definite.
    factor = jnp.linalg.cholesky(information / jnp.outer(scale, scale))
    root: jax.Array = solve_triangular(factor, jnp.diag(1 / scale), lower=True) / jnp.sqrt(size)
    return root


def checked_samples(caller: str, one: Any, samples: ArrayLike) -> ArrayLike:
    """Return samples whose last axes belong to an event of a distribution."""
    samples, event = arguments.parameter(caller, "samples", samples), one.event_shape
    if event and np.shape(samples)[-1:] != event:
        raise ValueError(
            f"{caller}: samples has shape {np.shape(samples)}, but its last axis must have the length {event[0]} of a "
            "sample."
        )
    return samples


def errors_of_samples(
    caller: str, one: Any, samples: ArrayLike, weights: ArrayLike | None, count: int
) -> list[jax.Array]:
    """Check the arguments of `standard_errors` of a distribution, and return the errors of its first `count` leaves."""
    if one.batch_shape:
        raise TypeError(f"{caller}: batch_shape={one.batch_shape} must be (). Use `jax.vmap`, or index the batch.")
    samples = checked_samples(caller, one, samples)
    sets = WeightedSets.of(caller, "sample", samples, weights, None, len(one.event_shape))
    compute = arguments.compute_dtype(one.dtype)
    errors = observed_errors(jax.tree.map(lambda leaf: arguments.as_jax(leaf, compute), one), sets.padded(), count)
    return [error.astype(one.dtype) for error in errors]


@functools.partial(jax.jit, static_argnums=2)
def observed_errors(one: Any, sets: WeightedSets, count: int) -> list[jax.Array]:
    """Return the standard errors of the first `count` leaves of a distribution."""
    leaves, structure = jax.tree.flatten(one)
    numbers, of_numbers = ravel_pytree(leaves[:count])
    x, share = sets.rows()
    x = jnp.moveaxis(x, 0, -1) if one.event_shape else x
    x, share = x.astype(numbers.dtype), share.astype(numbers.dtype)

    def mean_log_prob(numbers: jax.Array) -> jax.Array:
        at = jax.tree.unflatten(structure, [*of_numbers(numbers), *leaves[count:]])
        return total(share * jnp.where(share > 0, at.log_prob(x), 0))

    root = root_of_covariance(mean_log_prob, numbers, sets.observations().astype(numbers.dtype))
    found: list[jax.Array] = of_numbers(jnp.sqrt(jnp.sum(jnp.square(root), 0)))
    return found


def highest(function: Callable[[jax.Array], jax.Array], starts: jax.Array) -> jax.Array:
    """Return the numbers, reached from any of `starts` of shape (starts, count), at which a function is largest."""

    def end(start: jax.Array) -> jax.Array:
        def step(state: State) -> State:
            numbers, going, finite = uphill(function, state[0])
            return nan_unless(numbers, finite | (state[1] > 0)), state[1] + 1, going

        found: jax.Array = lax.while_loop(
            lambda state: state[2] & (state[1] < STEPS),
            step,
            (start, jnp.zeros((), jnp.int32), jnp.ones((), bool)),
        )[0]
        return found

    ends = jax.vmap(end)(starts)
    values = jax.vmap(function)(ends)
    best: jax.Array = ends[jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))]
    return best


def uphill(function: Callable[[jax.Array], jax.Array], numbers: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return numbers after a step, whether another one would change more than rounding, and whether this one could.

    Where derivatives are not finite, no step is possible.
    """
    eps = float(jnp.finfo(numbers.dtype).eps)

    def twice(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope = jax.grad(function)(numbers)
        return slope, slope

    curvature, slope = jax.jacfwd(twice, has_aux=True)(numbers)
    finite = jnp.all(jnp.isfinite(slope)) & jnp.all(jnp.isfinite(curvature))
    own = jnp.abs(jnp.diagonal(curvature))
    unit = jnp.where(own > 0, lax.rsqrt(jnp.where(own > 0, own, 1)), 1)
    sizes, axes = jnp.linalg.eigh(curvature * unit[None] * unit[:, None])
    sizes = jnp.abs(sizes)
    sizes = jnp.maximum(sizes, FLAT * eps * jnp.max(sizes) + float(jnp.finfo(sizes.dtype).tiny))
    move = unit * (axes @ ((axes.T @ (unit * slope)) / sizes))
    move = move / jnp.maximum(jnp.max(jnp.abs(move) / (1 + jnp.abs(numbers))) / LONGEST, 1)

    parts = jnp.asarray(np.asarray(PARTS), numbers.dtype)[:, None]
    reached = jnp.where(parts > 0, numbers[None] + parts * move[None], numbers[None])
    values = jax.vmap(function)(reached)
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    slack = jnp.asarray(np.where(np.asarray(PARTS) == 1, SLACK * eps, 0), numbers.dtype)
    chosen = jnp.argmax(values + slack * (1 + jnp.abs(values[-1])))
    # The error after a step of Newton's method is about the square of the step.
    return reached[chosen], (chosen < len(PARTS) - 1) & (jnp.max(jnp.abs(move) / unit) > eps**LAST), finite

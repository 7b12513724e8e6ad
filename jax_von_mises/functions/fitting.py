"""Estimate the mean direction and the concentration by maximum likelihood, with standard errors."""

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.functions.von_mises import direction
from jax_von_mises.numerics import bessel, xla
from jax_von_mises.numerics.circle import deviation, less_turns
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.elementary import cosine, nan_unless, sine_over

# Number of leading angles among which the origin is chosen.
PILOT = 16
# Number of summands in a block.
SUM_BLOCK = 2**14
# Above this concentration, A' is 1 / (2 kappa^2) to rounding, and may underflow.
NORMAL = 1e9


class Estimate(NamedTuple):
    """A value or a standard error for each parameter of the distribution."""

    loc: jax.Array
    """In radians."""
    concentration: jax.Array
    """Dimensionless."""


def fit(samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None) -> Estimate:
    r"""Return the maximum likelihood estimate of ``loc`` and ``concentration``.

    ``loc`` is the direction of the mean of :math:`(\cos x, \sin x)`, and ``concentration`` is the value for which
    :math:`A = I_1/I_0` is the length of this mean (Mardia and Jupp, *Directional Statistics*, 2000, section 5.3.1).
    The data enter only through three sums, so no iteration over the data is needed.

    Parameters
    ----------
    samples : array
        Angles in radians, of any float dtype; bfloat16 and float16 are computed in float32. Convert degrees with
        ``jnp.deg2rad``: they cannot be detected, and would give a wrong estimate.
    weights : array, optional
        Weight of each angle, 0 or more; broadcasts to `samples`, or is one-dimensional along a single `axis`. Weights
        below the smallest normal float (1e-38 in float32) count as 0.
    axis : int or tuple of ints, optional
        Axes to estimate over; all by default. The other axes index separate data sets.

    Returns
    -------
    Estimate
        ``loc`` in radians in [-pi, pi) and ``concentration`` in [0, inf], of the shape of `samples` without `axis`.
        Apart from the effect of rounding the angles, the concentration has a relative error of about 1e-6 (float32) or
        1e-14 (float64), or in float32 an absolute error of 1e-7 near 0. It is inf if all angles are equal. For evenly
        spread angles, it is 0 up to rounding, and the direction is arbitrary. The estimates are NaN without angles,
        without positive weights, for a negative weight, and for an angle that is not finite or exceeds 2^24 rad (2^53
        in float64) in magnitude, where floats do not determine a direction.

    Raises
    ------
    TypeError, ValueError
        If samples or weights are not numbers or do not broadcast, or an axis is out of range.

    Notes
    -----
    Both estimates have derivatives with respect to `samples` and `weights`. As usual for maximum likelihood, a large
    concentration estimated from n angles is biased upwards, by about 3 / n of its value. `standard_errors` returns the
    uncertainty of both estimates.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import fit, sample_von_mises
    >>> estimate = fit(sample_von_mises(jax.random.key(0), 0.5, 4.0, (100_000,)))
    >>> print(f"{estimate.loc:.2f} {estimate.concentration:.1f}")
    0.50 4.0
    """
    caller = "fit"
    given = {"samples": samples} if weights is None else {"samples": samples, "weights": weights}
    arrays, dtype = arguments.parameters(caller, None, **given)
    samples, weights = arrays["samples"], arrays.get("weights")
    axes = axes_of(caller, axis, np.ndim(samples))
    if weights is not None:
        if np.ndim(weights) == 1 and len(axes) == 1 and np.ndim(samples) > 1:
            weights = jnp.reshape(weights, tuple(-1 if i == axes[0] else 1 for i in range(np.ndim(samples))))
        if not arguments.broadcasts(np.shape(weights), np.shape(samples)):
            raise ValueError(
                f"{caller}: weights of shape {np.shape(weights)} do not broadcast to samples of shape "
                f"{np.shape(samples)}. Give one weight for each angle, or one for each position along a single axis."
            )
    estimate: Estimate = _fit(samples, weights, axes, dtype)
    return estimate


def axes_of(caller: str, axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes to sum over, as a sorted tuple of non-negative indices."""
    if axis is None:
        return tuple(range(ndim))
    try:
        axes = tuple(operator.index(a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    except TypeError as error:
        raise TypeError(
            f"{caller}: axis={arguments.safe_repr(axis)} must be an integer, a tuple of integers or None."
        ) from error
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(
            f"{caller}: axis={arguments.safe_repr(axis)} is out of range for samples with {ndim} "
            f"dimension{'s' * (ndim != 1)}."
        )
    axes = tuple(sorted(a % ndim for a in axes))
    if len(set(axes)) < len(axes):
        raise ValueError(f"{caller}: axis={arguments.safe_repr(axis)} names an axis twice.")
    return axes


@functools.partial(jax.jit, static_argnames=("axes", "dtype"))
def _fit(samples: ArrayLike, weights: ArrayLike | None, axes: tuple[int, ...], dtype: np.dtype) -> Estimate:
    compute = arguments.compute_dtype(dtype)
    x = rows(jnp.asarray(samples, compute), axes)
    if weights is None:
        size = x.shape[-1]
        share = jnp.full((1,) * (x.ndim - 1) + (size,), 1 / size if size else np.nan, compute)
    else:
        share = shares(rows(jnp.broadcast_to(jnp.asarray(weights, compute), np.shape(samples)), axes))
    origin = pilot(x, share)
    sine, versine = means(x, share, origin)
    # If the origin is far from most angles, the two terms of `spread` below nearly cancel. In that case, repeat the
    # sums about the mean direction.
    poor = jnp.any(sine * sine > 0.9 * versine * (2 - versine))
    better = lax.stop_gradient(origin + angle_of(sine, 1 - versine))
    origin = jnp.where(poor, better, origin)
    sine, versine = lax.cond(poor, lambda: means(x, share, better), lambda: (sine, versine))

    # Compute 1 - R^2 and the mean resultant length R, each in a form that is accurate where it is small.
    spread = jnp.maximum(versine * (2 - versine) - sine * sine, 0)
    resultant = length(1 - versine, sine)
    k = bessel.inverse_ratio(resultant, spread / (1 + resultant))
    k = jnp.where(jnp.isnan(origin), jnp.nan, k)  # without angles all sums are 0
    loc = direction(less_turns(origin + angle_of(sine, 1 - versine), 0.0), k)
    return Estimate(loc.astype(dtype), k.astype(dtype))


def rows(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Return `x` with `axes` merged into one last axis."""
    x = jnp.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    kept = x.shape[: x.ndim - len(axes)]
    return x.reshape(*kept, int(np.prod(x.shape[len(kept) :], dtype=np.int64)))


def shares(weights: jax.Array) -> jax.Array:
    """Return weights divided by their sum over the last axis.

    The shares are NaN for a negative or infinite weight, and if no weight is positive.
    """
    weights = nan_unless(weights, weights >= 0)
    # Scale by a power of two where the sum may overflow or underflow.
    largest = jnp.max(weights, -1, keepdims=True, initial=0)
    scaled = weights * jnp.where(largest > 2.0**64, 2.0**-64, jnp.where(largest < 2.0**-64, 2.0**64, 1))
    return scaled / total(scaled)[..., None]


def total(values: jax.Array) -> jax.Array:
    """Return the sum over the last axis, in blocks, so that rounding errors grow only with the number of blocks."""
    size = values.shape[-1]
    if size > SUM_BLOCK:
        pad = [(0, 0)] * (values.ndim - 1) + [(0, -size % SUM_BLOCK)]
        return total(total(jnp.pad(values, pad).reshape(*values.shape[:-1], -1, SUM_BLOCK)))
    return xla.sum_last_axis(values)


def means(x: jax.Array, share: jax.Array, origin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the means of sin and of 1 - cos of the angles measured from `origin`."""
    half = 0.5 * deviation(x, origin[..., None])[0]
    square = half * half
    sine = half * sine_over(square)
    return total(share * (2 * sine * cosine(square))), total(share * (2 * sine * sine))


def pilot(x: jax.Array, share: jax.Array) -> jax.Array:
    """Return the most central of the first few angles, unchanged, so that equal angles do not deviate from it."""
    if not x.shape[-1]:
        return jnp.full(x.shape[:-1], jnp.nan, x.dtype)
    x, share = lax.stop_gradient(x[..., :PILOT]), lax.stop_gradient(share[..., :PILOT])
    middle = angle_of(jnp.sum(share * jnp.sin(x), -1), jnp.sum(share * jnp.cos(x), -1))
    closeness = jnp.where(share > 0, jnp.cos(x - middle[..., None]), -jnp.inf)
    return jnp.take_along_axis(x, jnp.argmax(closeness, -1)[..., None], -1)[..., 0]


def length(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return sqrt(a^2 + b^2), with the derivative 0 at 0."""
    square = a * a + b * b
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), square)


def angle_of(sine: jax.Array, cosine: jax.Array) -> jax.Array:
    """Return atan2(sine, cosine); its value and derivative are 0 if both are 0."""
    none = (sine == 0) & (cosine == 0)
    return jnp.where(none, 0, jnp.arctan2(sine, jnp.where(none, 1, cosine)))


def standard_errors(concentration: ArrayLike, size: ArrayLike) -> Estimate:
    r"""Return the standard errors of the two estimates of `fit`, from the Fisher information.

    One angle carries the Fisher information :math:`\kappa A(\kappa)` about the direction and :math:`A'(\kappa)` about
    the concentration, and the two estimates are asymptotically independent (Mardia and Jupp, *Directional Statistics*,
    2000, section 5.3.1).

    Parameters
    ----------
    concentration : float or array
        Concentration of the distribution, or its estimate.
    size : float or array
        Number of angles, or the sum of their weights; broadcasts with `concentration`.

    Returns
    -------
    Estimate
        Standard errors of ``loc`` in radians (inf at concentration 0, where there is no direction) and of
        ``concentration`` (inf at infinity). NaN for a negative or NaN concentration or size.

    Raises
    ------
    TypeError, ValueError
        If arguments are not numbers, or do not broadcast.
    """
    caller = "standard_errors"
    arrays, dtype = arguments.parameters(caller, None, concentration=concentration, size=size)
    arguments.result_shape(caller, None, **arrays)
    errors: Estimate = _standard_errors(**arrays, dtype=dtype)
    return errors


@functools.partial(jax.jit, static_argnames="dtype")
def _standard_errors(concentration: ArrayLike, size: ArrayLike, dtype: np.dtype) -> Estimate:
    compute = arguments.compute_dtype(dtype)
    k, n = jnp.broadcast_arrays(jnp.asarray(concentration, compute), jnp.asarray(size, compute))
    k, n = valid(k), nan_unless(jnp.abs(n), n >= 0)  # rsqrt(-0.0) is -inf
    root = lax.rsqrt(n)
    near = jnp.minimum(k, NORMAL)
    spread = jnp.where(k > NORMAL, (root * np.sqrt(2).astype(compute)) * k, root * lax.rsqrt(bessel.slope(near)))
    return Estimate((root * lax.rsqrt(k * bessel.ratio(k))).astype(dtype), spread.astype(dtype))

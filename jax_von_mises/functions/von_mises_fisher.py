r"""Compute functions of the von Mises-Fisher distribution: densities, moments, the cosine, and maximum likelihood.

The density on the unit sphere in d dimensions is :math:`\exp(\kappa\mu\cdot x) / C(\kappa)`, with :math:`\mu` =
`mean_direction` along a last axis of length d and :math:`\kappa` = `concentration` in [0, inf]. Batch shapes, which
do not include that axis, broadcast. The methods of the class `VonMisesFisher` call these functions.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.functions.divergence import Family, divergence
from jax_von_mises.functions.samples import WeightedSets, effective_size, total
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.numerics.sphere import cosine, moments, vectors

# Above this concentration, the standard error of `concentration` is proportional to the concentration to rounding.
LARGE = 1e15
T = TypeVar("T")


class Estimate(NamedTuple):
    """A value or a standard error for each parameter."""

    mean_direction: jax.Array
    """A unit vector along the last axis; as a standard error, an angle in radians."""
    concentration: jax.Array


def checked(
    caller: str, of_vectors: Mapping[str, ArrayLike], of_numbers: Mapping[str, ArrayLike]
) -> tuple[dict[str, Any], int, np.dtype]:
    """Check vectors and numbers; return them as arrays by name, the vectors' dimension, and the dtype of the result."""
    arrays, dtype = arguments.parameters(caller, None, **of_vectors, **of_numbers)
    first, *others = sorted(of_vectors, key=lambda name: name != "mean_direction")
    dimension = arguments.dimension(caller, first, arrays[first])
    for name in others:
        arguments.dimension(caller, name, arrays[name], dimension)
    shapes = {name: np.shape(x)[:-1] if name in of_vectors else np.shape(x) for name, x in arrays.items()}
    arguments.broadcast_shapes(caller, shapes)
    return arrays, dimension, dtype


def by_dtype(function: Callable[..., T]) -> Callable[[tuple[Any, ...], int, np.dtype], T]:
    """Compile ``function(*values, dimension)`` and round its result to a dtype."""

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def compiled(values: tuple[Any, ...], dimension: int, dtype: np.dtype) -> Any:
        compute = arguments.compute_dtype(dtype)
        result = function(*(jnp.asarray(x, compute) for x in values), dimension)
        return jax.tree.map(lambda x: x.astype(dtype), result)

    return compiled


def spread(*arrays: jax.Array) -> list[jax.Array]:
    """Broadcast the `arrays` explicitly, since JAX may be configured to refuse rank promotion."""
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [jnp.broadcast_to(x, shape) for x in arrays]


@by_dtype
def _log_prob(x: jax.Array, mean_direction: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    kappa = valid(kappa)
    versine = vectors.versine(x, vectors.direction_of(mean_direction))
    kappa, versine = spread(kappa, versine)
    finite = -(jnp.where(kappa == jnp.inf, 0, kappa) * versine) - moments.log_norm(kappa, dimension)
    # Keep NaN for a NaN direction.
    close = jnp.isnan(versine) | (versine <= 8 * np.finfo(versine.dtype).eps ** 2)
    point = jnp.where(close, jnp.inf, -jnp.inf) + 0 * lax.stop_gradient(versine)
    return jnp.where(kappa == jnp.inf, point, finite)


def log_prob(x: ArrayLike, mean_direction: ArrayLike, concentration: ArrayLike) -> jax.Array:
    r"""Return the logarithm of the density, :math:`\kappa\mu\cdot x - \log C(\kappa)`, per unit area of the sphere.

    Parameters
    ----------
    x : array
        Unit vectors along the last axis. Only the direction of other vectors is used, with a rounding error as of the
        components of a unit vector. Vectors shorter than 1e-30 (float32) or 1e-291 (float64) give NaN.
    mean_direction : array
        Vectors along the last axis, of any length except 0.
    concentration : float or array
        In [0, inf]; broadcasts with the other arguments without their last axis.

    Returns
    -------
    jax.Array
        Array of the batch shape. NaN for a negative or NaN concentration, and for a zero or non-finite direction.

    Notes
    -----
    The error is at most 1e-6 (float32) or 1e-12 (float64) times max(1, abs(result)), at every concentration.
    """
    given, dimension, dtype = checked(
        "VonMisesFisher.log_prob", {"value": x, "mean_direction": mean_direction}, {"concentration": concentration}
    )
    return _log_prob(tuple(given.values()), dimension, dtype)


@by_dtype
def _mean_resultant_length(kappa: jax.Array, dimension: int) -> jax.Array:
    return moments.mean_cosine(valid(kappa), dimension)


def mean_resultant_length(concentration: ArrayLike, dimension: int) -> jax.Array:
    r"""Return the length of the mean vector, :math:`I_{d/2}(\kappa) / I_{d/2-1}(\kappa)`, to a few ulp."""
    return _number("mean_resultant_length", _mean_resultant_length, concentration, dimension)


@by_dtype
def _entropy(kappa: jax.Array, dimension: int) -> jax.Array:
    kappa = valid(kappa)
    return moments.log_norm(kappa, dimension) + moments.scaled_versine_mean(kappa, dimension)


def entropy(concentration: ArrayLike, dimension: int) -> jax.Array:
    """Return the differential entropy in nats; -inf at infinite concentration."""
    return _number("entropy", _entropy, concentration, dimension)


def _number(
    name: str,
    compiled: Callable[[tuple[Any, ...], int, np.dtype], jax.Array],
    concentration: ArrayLike,
    dimension: int,
) -> jax.Array:
    given, dtype = arguments.parameters(f"VonMisesFisher.{name}", None, concentration=concentration)
    return compiled(tuple(given.values()), dimension, dtype)


@by_dtype
def _mean(mean_direction: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    unit = vectors.direction_of(mean_direction).unit
    length, unit = spread(moments.mean_cosine(valid(kappa), dimension)[..., None], unit)
    return length * unit


def mean(mean_direction: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the mean vector, inside the sphere: `mean_resultant_length` times the mean direction."""
    given, dimension, dtype = checked(
        "VonMisesFisher.mean", {"mean_direction": mean_direction}, {"concentration": concentration}
    )
    return _mean(tuple(given.values()), dimension, dtype)


@by_dtype
def _mode(mean_direction: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    unit = vectors.direction_of(mean_direction).unit
    return nan_unless(*spread(unit, (kappa >= 0)[..., None]))


def mode(mean_direction: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the direction of largest density: `mean_direction` scaled to length 1."""
    given, dimension, dtype = checked(
        "VonMisesFisher.mode", {"mean_direction": mean_direction}, {"concentration": concentration}
    )
    return _mode(tuple(given.values()), dimension, dtype)


@by_dtype
def _kl_divergence(
    mean_direction: jax.Array, kappa: jax.Array, other_direction: jax.Array, other_kappa: jax.Array, dimension: int
) -> jax.Array:
    mean = vectors.direction_of(mean_direction)
    versine = vectors.versine(mean.unit, vectors.direction_of(other_direction), mean.lost)
    p, q, versine = spread(valid(kappa), valid(other_kappa), versine)

    def by_norms(p: jax.Array, q: jax.Array) -> jax.Array:
        rest = moments.versine_mean(p, dimension)
        return moments.log_norm(q, dimension) - moments.log_norm(p, dimension) + (q - p) * rest

    family = Family(
        dimension,
        mean=lambda k: moments.mean_cosine(k, dimension),
        scaled_slope=lambda k: moments.scaled_cosine_variance(k, dimension),
        by_norms=by_norms,
    )
    return divergence(family, p, q, versine, apart=versine)


def kl_divergence(
    mean_direction: ArrayLike,
    concentration: ArrayLike,
    other_mean_direction: ArrayLike,
    other_concentration: ArrayLike,
) -> jax.Array:
    """Return the Kullback-Leibler divergence of one von Mises-Fisher distribution from another, in nats."""
    of_vectors = {"mean_direction": mean_direction, "other.mean_direction": other_mean_direction}
    of_numbers = {"concentration": concentration, "other.concentration": other_concentration}
    given, dimension, dtype = checked("VonMisesFisher.kl_divergence", of_vectors, of_numbers)
    names = "mean_direction", "concentration", "other.mean_direction", "other.concentration"
    return _kl_divergence(tuple(given[name] for name in names), dimension, dtype)


@by_dtype
def _cosine_cdf(w: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    w, kappa = spread(w, kappa)
    return cosine.lower_tail(w, valid(kappa), dimension)


def cosine_cdf(value: ArrayLike, concentration: ArrayLike, dimension: int) -> jax.Array:
    r"""Return the probability that the cosine of the angle to the mean direction is below `value`.

    Parameters
    ----------
    value : float or array
        In [-1, 1]; the probability is 0 for smaller values and 1 for larger ones.
    concentration : float or array
        In [0, inf]; broadcasts with `value`.
    dimension : int
        Dimension d of the vectors, at least 2.

    Returns
    -------
    jax.Array
        The probability has a relative error of at most 4e-6 (float32) or 1e-12 (float64), or its error corresponds to
        an error of 6 ulp in 1 - `value` or 1 + `value`.
    """
    given, dtype = arguments.parameters("VonMisesFisher.cosine_cdf", None, value=value, concentration=concentration)
    arguments.result_shape("VonMisesFisher.cosine_cdf", None, **given)
    return _cosine_cdf(tuple(given.values()), dimension, dtype)


@by_dtype
def _cosine_icdf(q: jax.Array, kappa: jax.Array, dimension: int) -> jax.Array:
    q, kappa = spread(q, kappa)
    return cosine.quantile(q, valid(kappa), dimension)


def cosine_icdf(q: ArrayLike, concentration: ArrayLike, dimension: int) -> jax.Array:
    """Return the value below which the cosine of the angle to the mean direction lies with probability `q`.

    The result is NaN for `q` outside [0, 1]. Its tail probability is as accurate as that of a draw. In three or more
    dimensions in float64, tails between 0 and 2^-200 are treated as 2^-200.
    """
    given, dtype = arguments.parameters("VonMisesFisher.cosine_icdf", None, q=q, concentration=concentration)
    arguments.result_shape("VonMisesFisher.cosine_icdf", None, **given)
    return _cosine_icdf(tuple(given.values()), dimension, dtype)


def fit(
    samples: ArrayLike,
    weights: ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
    *,
    mean_direction: ArrayLike | None = None,
    bias_correction: bool = False,
) -> Estimate:
    r"""Return the maximum likelihood estimate of the mean direction and the concentration.

    The estimates are the direction of the mean vector, and the concentration at which the mean resultant length equals
    the length of that vector (Mardia and Jupp, *Directional Statistics*, 2000, section 10.3.1).

    Parameters
    ----------
    samples : array
        Unit vectors along the last axis.
    weights : array, optional
        Weight of each vector, 0 or more; broadcasts to the shape of `samples` without its last axis.
    axis : int or tuple of ints, optional
        Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index separate
        data sets.
    mean_direction : array, optional
        The mean direction, if it is known: one vector, or one for each data set, of any length except 0. Only the
        concentration is then estimated.
    bias_correction : bool
        Subtract from the concentration its bias to first order in 1 / n; see below.

    Returns
    -------
    Estimate
        The concentration has a relative error of about 1e-6 (float32) or 1e-14 (float64). It is inf if all vectors are
        equal. The estimates are NaN without vectors, without positive weights, for a negative weight, and for a vector
        that is not finite, or that is zero and has a positive weight. A given `mean_direction` is returned with the
        length 1, and NaN if it is zero or not finite; the concentration is 0 if the mean cosine of the angles to it is
        negative. The estimates have derivatives with respect to `samples`, `weights` and `mean_direction`.

    Raises
    ------
    TypeError, ValueError
        If samples, weights or `mean_direction` are not numbers or do not broadcast, if an axis is out of range, or if
        `bias_correction` is not a bool.

    Notes
    -----
    A large concentration estimated from n vectors is biased upwards, by about (1 + 2 / (d - 1)) / n of its value, or
    2 / ((d - 1) n) if the mean direction is given. `bias_correction` subtracts the bias to first order in 1 / n of
    D. R. Cox and E. J. Snell (J. R. Stat. Soc. B 30, 1968),

    .. math:: \frac{1}{2n} \left(\frac{d - 1}{\kappa A'} - \frac{A''}{A'^2}\right),

    at the estimate, or without the first term if `mean_direction` is given; the result is at least 0, and an infinite
    estimate stays infinite. With weights, n is :math:`(\sum w)^2 / \sum w^2`. In 40,000 sets of 10 vectors in three
    dimensions, the mean error of the concentration falls from +0.48 to +0.03 at the concentration 1, from +0.98 to
    -0.01 at 4, and from +12.6 to +0.05 at 50. A bias remains where the data are almost uniform: at 0.5, it falls from
    +0.61 to +0.17. If (n - 1) (d - 1) is at most 2, large concentrations have no finite mean, and are corrected to 0.
    """
    caller = "VonMisesFisher.fit"
    bias_correction = arguments.flag(caller, "bias_correction", bias_correction)
    sets = WeightedSets.of(caller, "vector", samples, weights, axis, 1, mean_direction=mean_direction)
    dimension = arguments.dimension(caller, "samples", sets.samples)
    if sets.known is not None:
        arguments.dimension(caller, "mean_direction", sets.known, dimension)
    estimate: Estimate = _fit(sets, dimension, bias_correction)
    return estimate


@functools.partial(jax.jit, static_argnums=(1, 2))
def _fit(sets: WeightedSets, dimension: int, bias_correction: bool) -> Estimate:
    x, share = sets.rows()
    share = nan_unless(share, (share == 0) | jnp.any(x != 0, 0))
    known = sets.known is not None
    if known:
        given = vectors.direction_of(sets.place())
        direction, kappa = given.unit, along(given, x, share, dimension)
    else:
        direction, kappa = of_both(x, share, dimension)
    if bias_correction:
        kappa = moments.less_bias(kappa, effective_size(share), dimension, known)
    return Estimate(direction.astype(sets.dtype), kappa.astype(sets.dtype))


def along(direction: vectors.Direction, x: jax.Array, share: jax.Array, dimension: int) -> jax.Array:
    """Return the concentration about a known `direction`; the components of `x` are along the first axis."""
    each = vectors.Direction(*(part[..., None, :] for part in direction))
    x = jnp.moveaxis(x, 0, -1)
    # A zero vector has no direction, and no weight.
    x = jnp.where(jnp.any(x != 0, -1, keepdims=True), x, each.unit)
    # If the mean cosine is negative, the likelihood is largest at the concentration 0.
    rest = jnp.minimum(total(share * vectors.versine(x, each)), 1)
    return moments.concentration_of(1 - rest, rest, dimension)


def of_both(x: jax.Array, share: jax.Array, dimension: int) -> Estimate:
    """Return the estimates of both parameters; the components of `x` are along the first axis."""
    share = share.reshape((1, *share.shape))
    mean_vector = total(share * x)
    length = jnp.sqrt(jnp.sum(jnp.square(mean_vector), 0))
    direction = mean_vector / length[None]
    # Compute 1 - `length`, as a mean of squares where it is small.
    origin = lax.stop_gradient(direction)
    across = total(share[0] * jnp.sum(jnp.square(x - origin[..., None]), 0))
    # Correct for vectors that rounding has made longer or shorter than 1.
    excess = total(share[0] * (jnp.sum(jnp.square(x), 0) - 1))
    complement = 0.5 * (across - excess)
    complement = jnp.where(lax.stop_gradient(length) < 0.5, 1 - length, complement)
    kappa = moments.concentration_of(length, jnp.maximum(complement, 0), dimension)
    return Estimate(jnp.moveaxis(direction, 0, -1), kappa)


@by_dtype
def _standard_errors(kappa: jax.Array, size: jax.Array, dimension: int) -> tuple[jax.Array, jax.Array]:
    kappa, size = spread(valid(kappa), nan_unless(jnp.abs(size), size >= 0))
    root = lax.rsqrt(size)
    finite = jnp.minimum(kappa, LARGE)
    deviation = lax.rsqrt(moments.cosine_variance(finite, dimension)) * jnp.maximum(kappa / LARGE, 1)
    return root * lax.rsqrt(kappa * moments.mean_cosine(kappa, dimension)), root * deviation


def standard_errors(concentration: ArrayLike, size: ArrayLike, dimension: int) -> Estimate:
    r"""Return the standard errors of the estimates of `fit` for `size` vectors, from the Fisher information.

    The standard error of the direction, :math:`1/\sqrt{n \kappa A(\kappa)}`, is an angle in radians along each of the
    d - 1 tangents. That of the concentration is :math:`1/\sqrt{n A'(\kappa)}` (Mardia and Jupp, *Directional
    Statistics*, 2000, section 10.3.1).
    """
    caller = "VonMisesFisher.standard_errors"
    given, dtype = arguments.parameters(caller, None, concentration=concentration, size=size)
    arguments.result_shape(caller, None, **given)
    return Estimate(*_standard_errors(tuple(given.values()), dimension, dtype))

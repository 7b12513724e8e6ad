"""Estimate the mean direction and the concentration by maximum likelihood, with standard errors."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.samples import WeightedSets, check_size, total, warn_of_degrees
from jax_von_mises.numerics.circle import deviation, less_turns
from jax_von_mises.numerics.elementary import cosine, nan_unless, sine_over, valid
from jax_von_mises.sphere import moments
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.functions import direction

# Number of leading angles among which the origin is chosen.
PILOT = 16
# Above this concentration, A' is 1 / (2 kappa^2) to rounding, and may underflow.
NORMAL = 1e9


class Estimate(NamedTuple):
    """A value or a standard error for each parameter of the distribution."""

    loc: jax.Array
    """In radians."""
    concentration: jax.Array
    """Dimensionless."""


def fit(
    samples: ArrayLike,
    weights: ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
    *,
    loc: ArrayLike | None = None,
    bias_correction: bool = False,
    size: ArrayLike | None = None,
) -> Estimate:
    r"""Return the maximum likelihood estimate of ``loc`` and ``concentration``.

    ``loc`` is the direction of the mean of :math:`(\cos x, \sin x)`, and ``concentration`` is the value for which
    :math:`A = I_1/I_0` is the length of this mean (Mardia and Jupp, *Directional Statistics*, 2000, section 5.3.1).
    The data enter only through three sums, so no iteration over the data is needed.

    Parameters
    ----------
    samples : array
        Angles in radians, of any float dtype; bfloat16 and float16 are computed in float32. Convert degrees with
        ``jnp.deg2rad``: they would give a wrong estimate. A warning says that angles, known and in the host's memory,
        look like degrees or hours, if of the first 1,000 more than a quarter are beyond one turn, none beyond 3,600,
        and all multiples of 0.05, or if most are beyond two turns. Unwrapped phases, with steps below pi to and fro,
        give none.
    weights : array, optional
        Number of times that each angle was observed, 0 or more, also fractions; broadcasts to `samples`, or is
        one-dimensional along a single `axis`. A value of weight 0 is ignored, also NaN. Weights below the smallest
        normal float (1e-38 in float32) count as 0.
    axis : int or tuple of ints, optional
        Axes to estimate over; all by default. The other axes index separate data sets.
    loc : float or array, optional
        The mean direction in radians, if it is known: one angle, or one for each data set. Only the concentration is
        then estimated.
    bias_correction : bool
        Subtract from the concentration its bias to first order in 1 / n; see below.
    size : float or array, optional
        The number n of observations for `bias_correction`, above 0, one or one for each data set; the sum of the
        weights by default, or the number of angles without weights. Give it if the weights are shares.

    Returns
    -------
    Estimate
        ``loc`` in radians in [-pi, pi) and ``concentration`` in [0, inf], of the shape of `samples` without `axis`.
        Apart from the effect of rounding the angles, the concentration has a relative error of about 1e-6 (float32) or
        1e-14 (float64), or in float32 an absolute error of 1e-7 near 0. It is inf if all angles are equal. For evenly
        spread angles, it is 0 up to rounding, and the direction is arbitrary. The estimates are NaN without angles,
        without positive weights, for a negative weight, and for an angle of positive weight that is not finite or
        exceeds 2^24 rad (2^53 in float64) in magnitude, where floats do not determine a direction. A given `loc` is
        returned unchanged; the concentration is 0 if the mean of :math:`\cos(x - \mathrm{loc})` is negative, and NaN
        for an invalid `loc`.

    Raises
    ------
    TypeError, ValueError
        If samples, weights, `loc` or `size` are not numbers or do not broadcast, if an axis is out of range, if
        `bias_correction` is not a bool, or if `size` is given without it.

    Notes
    -----
    The estimates have derivatives with respect to `samples`, `weights` and `loc`. `standard_errors` returns the
    uncertainty of both estimates. Outside of transformations, one compiled program serves all numbers of angles up to
    the next power of two.

    As usual for maximum likelihood, a large concentration estimated from n angles is biased upwards, by about 3 / n of
    its value, or 2 / n if `loc` is given. `bias_correction` subtracts the bias to first order in 1 / n of D. R. Cox and
    E. J. Snell (J. R. Stat. Soc. B 30, 1968),

    .. math:: \frac{1}{2n} \left(\frac{1}{\kappa A'} - \frac{A''}{A'^2}\right),

    at the estimate, or without the first term if `loc` is given; the result is at least 0, and an infinite estimate
    stays infinite. In 40,000 simulated sets of 10 angles, the mean
    error of the concentration, with a standard error of at most 0.5%, is:

    =============  ======  =========  ===============  ============  ===============
    concentration  plain   corrected  Best and Fisher  loc is given  and corrected
    =============  ======  =========  ===============  ============  ===============
    1              +0.30   -0.01      +0.03            +0.12         -0.00
    4              +1.53   +0.00      -0.00            +0.92         +0.00
    50             +21.4   +0.1       +1.5             +12.6         +0.1
    =============  ======  =========  ===============  ============  ===============

    In sets of five at the concentration 4, it is +5.3, and -0.01 corrected; by the rule of D. J. Best and N. I. Fisher
    (Commun. Stat. Simul. Comput. 10, 1981), it would be +0.6. A part of the bias remains where the data are almost
    uniform: in sets of 10 at the concentration 0.5, it is +0.32, and +0.06 corrected. The correction is for the mean;
    the median error at the concentration 4 becomes -0.60, from +0.69. With three or fewer angles (two if `loc` is
    given), large concentrations have no finite mean, and are corrected to 0.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import fit, sample_von_mises
    >>> estimate = fit(sample_von_mises(jax.random.key(0), 0.5, 4.0, (100_000,)))
    >>> print(f"{estimate.loc:.2f} {estimate.concentration:.1f}")
    0.50 4.0
    """
    caller = "fit"
    bias_correction = arguments.flag(caller, "bias_correction", bias_correction)
    check_size(caller, size, bias_correction)
    sets = WeightedSets.of(caller, "angle", samples, weights, axis, size=size, loc=loc)
    warn_of_degrees(caller, sets.samples)
    estimate: Estimate = _fit(sets.padded(), bias_correction)
    return estimate


@functools.partial(jax.jit, static_argnums=1)
def _fit(sets: WeightedSets, bias_correction: bool) -> Estimate:
    x, share = sets.rows()
    known = sets.known is not None
    if known:
        loc = sets.place()
        # If the mean cosine is negative, the likelihood is largest at the concentration 0.
        rest = jnp.minimum(means(x, share, loc)[1], 1)
        k = bessel.inverse_ratio(1 - rest, rest)
    else:
        loc, k = of_both(x, share)
    if bias_correction:
        k = moments.less_bias(k, sets.observations(), 2, known)
    return Estimate(loc.astype(sets.dtype), k.astype(sets.dtype))


def of_both(x: jax.Array, share: jax.Array) -> Estimate:
    """Return the estimates of both parameters from angles and their `share` of the weights along the last axis."""
    origin = pilot(x, share)
    sine, versine = means(x, share, origin)
    # If the origin is far from most angles, the two terms of `spread` below nearly cancel. In that case, repeat the
    # sums about the mean direction.
    poor = jnp.any(sine * sine > 0.9 * versine * (2 - versine))
    better = lax.stop_gradient(origin + angle_or_zero(sine, 1 - versine))
    origin = jnp.where(poor, better, origin)
    sine, versine = lax.cond(poor, lambda: means(x, share, better), lambda: (sine, versine))

    # Compute 1 - R^2 and the mean resultant length R, each in a form that is accurate where it is small.
    spread = jnp.maximum(versine * (2 - versine) - sine * sine, 0)
    resultant = hypotenuse(1 - versine, sine)
    k = bessel.inverse_ratio(resultant, spread / (1 + resultant))
    return Estimate(direction(less_turns(origin + angle_or_zero(sine, 1 - versine), 0.0), k), k)


def means(x: jax.Array, share: jax.Array, origin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the means of sin and of 1 - cos of the angles measured from `origin`."""
    half = 0.5 * deviation(x, origin[..., None])[0]
    square = half * half
    sine = half * sine_over(square)
    return total(share * (2 * sine * cosine(square))), total(share * (2 * sine * sine))


def pilot(x: jax.Array, share: jax.Array) -> jax.Array:
    """Return the most central of the first few angles, unchanged, so that equal angles do not deviate from it."""
    x, share = lax.stop_gradient(x[..., :PILOT]), lax.stop_gradient(share[..., :PILOT])
    middle = angle_or_zero(jnp.sum(share * jnp.sin(x), -1), jnp.sum(share * jnp.cos(x), -1))
    closeness = jnp.where(share > 0, jnp.cos(x - middle[..., None]), -jnp.inf)
    return jnp.take_along_axis(x, jnp.argmax(closeness, -1)[..., None], -1)[..., 0]


def hypotenuse(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return sqrt(a^2 + b^2), with the derivative 0 at 0."""
    square = a * a + b * b
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), square)


def angle_or_zero(sine: jax.Array, cosine: jax.Array) -> jax.Array:
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
    arguments.broadcast_shapes(caller, {name: np.shape(x) for name, x in arrays.items()})
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

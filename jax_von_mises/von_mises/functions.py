r"""Compute densities, probabilities, quantiles, moments and information of the von Mises distribution.

The density is :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`, with :math:`\mu` = `loc` in radians and
:math:`\kappa` = `concentration` in [0, inf]: 0 gives the uniform distribution, inf a point mass at `loc`.

Arguments broadcast and may have any float dtype; bfloat16 and float16 are computed in float32 and rounded once. A
negative or NaN concentration, or a non-finite `loc`, gives NaN. Every function is compiled, works inside `jit`, `vmap`
and `scan`, and has first and second derivatives with respect to all arguments (`jax.jvp`, `jax.grad`).
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.compiler.sharding import sharded_by_batch
from jax_von_mises.numerics import symmetric
from jax_von_mises.numerics.circle import deviation, exact_deviation, reduce_turns, wrap
from jax_von_mises.numerics.divergence import Normaliser, divergence
from jax_von_mises.numerics.elementary import valid, with_slopes
from jax_von_mises.sphere import moments
from jax_von_mises.von_mises import bessel, density, quantile, tail_probability

P = ParamSpec("P")
Function = Callable[..., jax.Array]

# The tails of the distribution, with NaN for an invalid concentration.
TAILS = symmetric.Tails(
    lambda x, concentration, lost: tail_probability.lower_tail(x, valid(concentration), lost),
    lambda t, half_minus_t, concentration: quantile.any_half_quantile(t, half_minus_t, valid(concentration)),
    point=np.inf,
)


def check_and_compute(caller: str, function: Function, /, **values: ArrayLike) -> jax.Array:
    """Check the named `values` and compute `function` of them in their common dtype."""
    arrays, dtype = arguments.parameters(caller, None, **values)
    arguments.broadcast_shapes(caller, {name: x.shape for name, x in arrays.items()})
    result: jax.Array = compiled(function, tuple(arrays.values()), dtype)
    return result


def elementwise(function: Callable[P, jax.Array]) -> Callable[P, jax.Array]:
    """Wrap a `function` of arrays so that it checks its arguments, as `check_and_compute` does."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> jax.Array:
        return check_and_compute(function.__name__, function, **signature.bind(*args, **kwargs).arguments)

    return checked


@functools.partial(jax.jit, static_argnames=("function", "dtype"))
def compiled(function: Function, values: Sequence[ArrayLike], dtype: np.dtype) -> jax.Array:
    """Promote and broadcast the `values`, compute with `function`, and round to `dtype` once."""
    arrays = [jnp.asarray(value, arguments.compute_dtype(dtype)) for value in values]
    shape = lax.broadcast_shapes(*(array.shape for array in arrays))

    def broadcast(shape: tuple[int, ...], _: Any, *values: jax.Array) -> jax.Array:
        return function(*(jnp.broadcast_to(x, shape) for x in values))

    compute = functools.partial(xla.compute_elementwise, broadcast, shape, dtype, (), apart=True)
    result: jax.Array = sharded_by_batch(compute, arrays, (0,) * len(arrays))
    return result


def about_loc(function: Function) -> Function:
    """Return a function of (x, loc, concentration), from one of the results of `exact_deviation` and concentration."""

    def compute(x: jax.Array, loc: jax.Array, concentration: jax.Array) -> jax.Array:
        return function(*exact_deviation(x, loc), valid(concentration))

    return compute


def log_density_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the logarithm of the density at angles that are full `turns` and a `difference` + `lost` from `loc`."""
    return density.nearby_log_density(difference, concentration, lost)


_log_prob = about_loc(log_density_at)


def log_prob(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    r"""Return the logarithm of the density, :math:`\kappa\cos(x-\mu) - \log(2\pi I_0(\kappa))`.

    The result has period 2 pi in `x`. At infinite concentration, it is inf at `loc` and -inf elsewhere.

    Parameters
    ----------
    x : float or array
        Angles in radians. The result is NaN for angles more than 2^24 rad (2^53 in float64) from `loc`, where floats do
        not determine a direction.
    loc : float or array
        Mean direction in radians, any finite value.
    concentration : float or array
        In [0, inf]; 0 gives the uniform distribution on the circle, and inf gives a point mass.

    Returns
    -------
    jax.Array
        Array of the broadcast shape and common float dtype of the arguments, or of JAX's default float dtype if all are
        Python numbers or integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the
        concentration is negative or NaN, or `x` or `loc` is not finite.

    Raises
    ------
    TypeError, ValueError
        If arguments are not numbers, or do not broadcast.

    Notes
    -----
    The error is at most 4e-7 (float32) or 1e-14 (float64) times max(1, abs(result)), at every concentration; in float64
    it may reach 1e-16 times log(concentration) where that is more. Up to 4,096 full turns (2^27 in float64) between `x`
    and `loc` add nothing. More turns change the remaining angle by less than the spacing of floats at `x`, which large
    concentrations magnify.

    The density is equation (3.5.17) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000.

    Examples
    --------
    >>> round(float(log_prob(0.3, 0.5, 4.0)), 5)
    -0.34258
    """
    return check_and_compute("log_prob", _log_prob, x=x, loc=loc, concentration=concentration)


def density_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the density."""
    return density.nearby_density(difference, concentration, lost, jnp.zeros_like(lost))


_prob = about_loc(density_at)


def prob(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    r"""Return the density per radian, :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`.

    The result has period 2 pi in `x`.

    For the arguments, dtypes and NaN, see `log_prob`.

    Notes
    -----
    The relative error is at most 4e-6 (float32) or 1e-12 (float64), down to the smallest normal float. Smaller
    densities become 0.

    The density is equation (3.5.17) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000.
    """
    return check_and_compute("prob", _prob, x=x, loc=loc, concentration=concentration)


def cdf_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the cumulative probability."""
    return turns + tail_probability.lower_tail(difference, concentration, lost)


def sf_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the survival function."""
    upper = tail_probability.lower_tail(-difference, concentration, -lost)
    # A point mass belongs to the lower side.
    upper = jnp.where((concentration == jnp.inf) & (difference == 0), 0, upper)
    return upper - turns


def counted(caller: str, function: Function, start: ArrayLike | None, **values: ArrayLike) -> jax.Array:
    """Evaluate a function that counts probabilities from `start`, or from loc - pi."""
    return check_and_compute(caller, function, **values, **({} if start is None else {"start": start}))


def about_mean(mean: jax.Array, width: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the ends of an arc, a width below and above a mean direction."""
    mean = jnp.broadcast_to(mean, width.shape).astype(width.dtype)
    return mean - width, mean + width


def cdf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
    """Return the cumulative probability from loc - pi, or from `start`, to `x`.

    Every full turn adds 1, as in TensorFlow Probability: the result is negative below loc - pi, and above 1 beyond
    loc + pi. To count from another angle, give `start` in radians. The floats next to -pi and pi stand for these
    numbers.

    For the other arguments, dtypes and NaN, see `log_prob`.

    Notes
    -----
    The absolute error is at most 2 ulp of 1 (4 in float64), and a tail below 1/2 has a relative error below 4e-6
    (float32) or 1e-12 (float64), down to the smallest normal float, also for angles next to loc - pi and loc + pi. As
    many full turns as in `log_prob` add only the rounding of the result. The cdf has no closed form; see the page
    *Method* of the documentation.

    Examples
    --------
    >>> round(float(cdf(0.3, 0.5, 4.0)), 5)
    0.35022
    """
    return counted("cdf", symmetric.cdf(TAILS), start, x=x, loc=loc, concentration=concentration)


def sf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
    """Return the survival function 1 - cdf, as accurate in the upper tail as `cdf` is in the lower tail.

    Every full turn subtracts 1.

    For the arguments, dtypes and NaN, see `cdf`.
    """
    return counted("sf", symmetric.sf(TAILS), start, x=x, loc=loc, concentration=concentration)


def log_cdf_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the logarithm of `cdf_at`."""
    within = tail_probability.log_lower_tail(difference, concentration, lost)
    # Select twice, since the logarithm of an unselected 0 would still make the derivative NaN.
    beyond = jnp.where(turns == 0, 1, turns + tail_probability.lower_tail(difference, concentration, lost))
    return jnp.where(turns == 0, within, jnp.log(beyond))


_log_cdf = about_loc(log_cdf_at)


def log_cdf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the logarithm of `cdf`, even for tails that underflow.

    The result is NaN where full turns make `cdf` negative.

    For the arguments, dtypes and NaN, see `log_prob`.

    Notes
    -----
    The error is at most 4e-6 (float32) or 1e-12 (float64) times max(1, abs(result)).
    """
    return check_and_compute("log_cdf", _log_cdf, x=x, loc=loc, concentration=concentration)


def log_sf_at(difference: jax.Array, turns: jax.Array, lost: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the logarithm of `sf_at`."""
    within = tail_probability.log_lower_tail(-difference, concentration, -lost)
    within = jnp.where((concentration == jnp.inf) & (difference == 0), -jnp.inf, within)
    beyond = jnp.where(turns == 0, 1, tail_probability.lower_tail(-difference, concentration, -lost) - turns)
    return jnp.where(turns == 0, within, jnp.log(beyond))


_log_sf = about_loc(log_sf_at)


def log_sf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the logarithm of `sf`, even for tails that underflow.

    The result is NaN where full turns make `sf` negative. The error bound is that of `log_cdf`.

    For the arguments, dtypes and NaN, see `log_prob`.
    """
    return check_and_compute("log_sf", _log_sf, x=x, loc=loc, concentration=concentration)


def icdf(q: ArrayLike, loc: ArrayLike, concentration: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
    """Return the angle in [loc - pi, loc + pi] with probability `q` below it, the inverse of `cdf`.

    `q` holds probabilities; the result is NaN for those outside [0, 1]. With a `start`, it is the angle in
    [start, start + 2 pi] with probability `q` between `start` and it. For the other arguments, dtypes and NaN, see
    `log_prob`.

    Notes
    -----
    The angle's tail probability has a relative error below 2e-6 (float32) or 1e-12 (float64), or the angle is within
    4 ulp, down to tails of 2^-33 (float32) or 2^-65 (float64). For smaller tails, the relative error is below 4e-6 or
    1e-12, or the angle is within 4 ulp of pi. The angle increases with `q` up to rounding: if two probabilities are
    nearly equal, the angle of the smaller one may be larger by at most 8 ulp. `sample_von_mises` draws angles by the
    same method; see the page *Method* of the documentation.

    Examples
    --------
    >>> round(float(icdf(0.975, 0.0, 4.0)), 4)
    1.0765
    """
    return counted("icdf", symmetric.icdf(TAILS), start, q=q, loc=loc, concentration=concentration)


def isf(q: ArrayLike, loc: ArrayLike, concentration: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
    """Return the angle in [loc - pi, loc + pi] with probability `q` above it, the inverse of `sf`.

    The result is as accurate as that of `icdf`.

    For the arguments, dtypes and NaN, see `icdf`.
    """
    return counted("isf", symmetric.isf(TAILS), start, q=q, loc=loc, concentration=concentration)


def _entropy(concentration: jax.Array) -> jax.Array:
    k = valid(concentration)
    return density.log_norm(k) + scaled_complement(k)


def entropy(concentration: ArrayLike) -> jax.Array:
    r"""Return the differential entropy in nats, :math:`\log(2\pi I_0(\kappa)) - \kappa A(\kappa)`.

    The entropy is log(2 pi) at concentration 0 and -inf at infinity.

    For the argument, dtypes and NaN, see `log_prob`.

    Notes
    -----
    :math:`A = I_1/I_0` is the mean of :math:`\cos(x-\mu)`. Among all distributions on the circle with the same mean
    cosine and sine, the von Mises distribution has the largest entropy (Mardia and Jupp, *Directional Statistics*,
    2000, section 3.5.4).
    """
    return check_and_compute("entropy", _entropy, concentration=concentration)


def scaled_complement(k: jax.Array) -> jax.Array:
    """Return k (1 - A(k)), which is 1/2 at infinity."""
    return jnp.where(k > bessel.LARGEST_KAPPA, 0.5, jnp.minimum(k, bessel.LARGEST_KAPPA) * bessel.one_minus_ratio(k))


def mean(loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the mean direction in radians, `loc` wrapped to [-pi, pi).

    The result is `loc` even for the uniform distribution, which has no mean direction.

    For the arguments, dtypes and NaN, see `log_prob`. The result is also NaN where `loc` exceeds 2^24 rad (2^53 in
    float64) in magnitude.
    """
    return check_and_compute("mean", direction, loc=loc, concentration=concentration)


def mode(loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the angle of largest density in radians: `loc` wrapped to [-pi, pi).

    For the arguments, dtypes and NaN, see `mean`.
    """
    return check_and_compute("mode", direction, loc=loc, concentration=concentration)


def direction(loc: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return `loc` wrapped to [-pi, pi), with NaN for invalid parameters."""
    return wrap(reduce_turns(loc), jnp.where(valid(concentration) >= 0, 0.0, jnp.nan).astype(loc.dtype))


def _variance(concentration: jax.Array) -> jax.Array:
    return bessel.one_minus_ratio(valid(concentration))


def mean_resultant_length(concentration: ArrayLike) -> jax.Array:
    """Return I1 / I0, the length of the mean of (cos x, sin x), to a few ulp."""
    return check_and_compute("mean_resultant_length", _mean_resultant_length, concentration=concentration)


def _mean_resultant_length(concentration: jax.Array) -> jax.Array:
    return bessel.ratio(valid(concentration))


@with_slopes(lambda y, kappa: bessel.slope(kappa) * jnp.minimum(kappa, bessel.LARGEST_KAPPA))
def divergence_from_uniform(kappa: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence from the uniform distribution."""
    zero = jnp.zeros_like(kappa)
    return _kl_divergence(zero, kappa, zero, zero)


def _kl_to_uniform(concentration: jax.Array) -> jax.Array:
    return divergence_from_uniform(valid(concentration))


def kl_to_uniform(concentration: ArrayLike) -> jax.Array:
    """Return the Kullback-Leibler divergence from the uniform distribution, in nats."""
    return check_and_compute("kl_to_uniform", _kl_to_uniform, concentration=concentration)


def convolution(
    loc: ArrayLike, concentration: ArrayLike, other_loc: ArrayLike, other_concentration: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Return the mean direction of the sum of two angles, and the concentration of its mean resultant length."""
    length = {"concentration": concentration, "other_concentration": other_concentration}
    return (
        check_and_compute("convolve", _sum_of_locs, loc=loc, other_loc=other_loc),
        check_and_compute("convolve", _concentration_of_sum, **length),
    )


def _sum_of_locs(loc: jax.Array, other: jax.Array) -> jax.Array:
    return wrap(reduce_turns(loc), reduce_turns(other))


def _concentration_of_sum(concentration: jax.Array, other: jax.Array) -> jax.Array:
    first, second = valid(concentration), valid(other)
    length, rest = bessel.ratio(first), bessel.one_minus_ratio(first)
    return bessel.inverse_ratio(length * bessel.ratio(second), rest + length * bessel.one_minus_ratio(second))


def moment(order: int, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the complex mean of exp(i * order * x); `loc` and `concentration` are those of the class."""
    length = check_and_compute("moment", moment_length(order), loc=loc, concentration=concentration)
    angle = order * check_and_compute("moment", direction, loc=loc, concentration=concentration)
    compute = arguments.compute_dtype(length.dtype)
    length, angle = length.astype(compute), angle.astype(compute)
    return lax.complex(length * jnp.cos(angle), length * jnp.sin(angle))


@functools.cache
def moment_length(order: int) -> Function:
    """Return a function of (loc, concentration), the ratio of Bessel functions I_order / I_0."""

    def compute(loc: jax.Array, concentration: jax.Array) -> jax.Array:
        k = jnp.minimum(valid(concentration), bessel.LARGEST_KAPPA)
        length = jnp.ones_like(k) + 0 * k
        if order:
            # Each ratio I_j / I_(j - 1) follows from the next one, without cancellation.
            ratio = length = bessel.ratio(k) if order == 1 else moments.mean_cosine(k, 2 * order)
            for j in reversed(range(1, order)):
                ratio = k / (2 * j + k * ratio)
                length = length * ratio
        return length

    return compute


def variance(concentration: ArrayLike) -> jax.Array:
    r"""Return the circular variance :math:`1 - A(\kappa)`.

    The result is 1 at concentration 0 and 0 at infinite concentration, and has full relative accuracy.

    For the argument, dtypes and NaN, see `log_prob`.

    Notes
    -----
    :math:`A = I_1/I_0` is the mean resultant length, which is the length of the mean of (cos x, sin x) (Mardia and
    Jupp, *Directional Statistics*, 2000, sections 2.3.1 and 3.5.4).
    """
    return check_and_compute("variance", _variance, concentration=concentration)


def _stddev(concentration: jax.Array) -> jax.Array:
    return spread_of(valid(concentration))


def stddev(concentration: ArrayLike) -> jax.Array:
    r"""Return the circular standard deviation :math:`\sqrt{-2 \log A(\kappa)}` in radians.

    The result is inf at concentration 0 and 0 at infinite concentration, and has full relative accuracy.

    For the argument, dtypes and NaN, see `log_prob`.

    Notes
    -----
    A normal distribution with this standard deviation, wrapped around the circle, has the same mean resultant length
    (Mardia and Jupp, *Directional Statistics*, 2000, section 2.3.1).
    """
    return check_and_compute("stddev", _stddev, concentration=concentration)


def spread_slope(value: jax.Array, k: jax.Array) -> jax.Array:
    """Return the derivative of `spread_of`; at concentrations 0 and inf it is the limit of an undefined quotient."""
    middle = (k > 0) & (value > 0)
    slope = -bessel.slope(k) / jnp.where(middle, bessel.ratio(k) * value, 1)
    return jnp.where(k == 0, -jnp.inf, jnp.where(value == 0, 0, slope))


@with_slopes(spread_slope)
def spread_of(k: jax.Array) -> jax.Array:
    """Return sqrt(-2 log A(k))."""
    rest = bessel.one_minus_ratio(k)
    near = rest < 0.5
    return jnp.sqrt(-2 * jnp.where(near, jnp.log1p(-jnp.where(near, rest, 0)), jnp.log(bessel.ratio(k))))


def kl_divergence(
    loc: ArrayLike, concentration: ArrayLike, other_loc: ArrayLike, other_concentration: ArrayLike
) -> jax.Array:
    r"""Return the Kullback-Leibler divergence of one von Mises distribution from another, in nats.

    The divergence is the mean, under the first distribution, of the logarithm of the ratio of the first density to the
    other. It is never negative, and has full relative accuracy even where the two distributions are close.

    Parameters
    ----------
    loc : float or array
        Mean direction in radians, any finite value.
    concentration : float or array
        In [0, inf]; 0 gives the uniform distribution on the circle, and inf gives a point mass.
    other_loc : float or array
        Mean direction of the other distribution, in radians.
    other_concentration : float or array
        Concentration of the other distribution.

    Returns
    -------
    jax.Array
        Array of the broadcast shape and common float dtype of the arguments, or of JAX's default float dtype if all are
        Python numbers or integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where a
        concentration is negative or NaN, a mean direction is not finite, or the mean directions differ by more than
        2^24 rad (2^53 in float64).

    Raises
    ------
    TypeError, ValueError
        If arguments are not numbers, or do not broadcast.

    Notes
    -----
    With :math:`A = I_1/I_0` the divergence is :math:`\log(I_0(\kappa')/I_0(\kappa)) + A(\kappa)\,(\kappa -
    \kappa'\cos(\mu - \mu'))`.
    """
    return check_and_compute(
        "kl_divergence",
        _kl_divergence,
        loc=loc,
        concentration=concentration,
        other_loc=other_loc,
        other_concentration=other_concentration,
    )


def _kl_divergence(
    loc: jax.Array, concentration: jax.Array, other_loc: jax.Array, other_concentration: jax.Array
) -> jax.Array:
    half = jnp.sin(0.5 * deviation(loc, other_loc)[0])
    return divergence(CIRCLE, valid(concentration), valid(other_concentration), 2 * half * half, half)


def divergence_by_norms(p: jax.Array, q: jax.Array) -> jax.Array:
    """Return the divergence for equal mean directions and concentrations that are not close."""
    return density.log_norm_ratio(q, p) + q * bessel.one_minus_ratio(p) - scaled_complement(p)


CIRCLE = Normaliser(2, bessel.ratio, bessel.scaled_slope, divergence_by_norms)

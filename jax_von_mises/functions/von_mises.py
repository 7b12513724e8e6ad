r"""The von Mises distribution as functions: densities, probabilities, quantiles, moments, information.

Density :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`, with :math:`\mu` = `loc` in radians and :math:`\kappa` =
`concentration` in [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

Arguments broadcast, of any float dtype (bfloat16 and float16 are computed in float32 and rounded once). Negative or
NaN concentration and non-finite `loc` give NaN. Every function is compiled by itself, works inside `jit`, `vmap` and
`scan`, and has first and second derivatives in all arguments, by `jax.jvp` and `jax.grad`.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.numerics import bessel, density, quantile, tail_probability, xla
from jax_von_mises.numerics.circle import deviation, reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.numerics.piecewise import lower_tail_by_table
from jax_von_mises.numerics.sharding import broadcast_sharded, explicit, explicit_sharding
from jax_von_mises.numerics.tail_integral import gauss_legendre

# From this many angles on, a table of 6146 probabilities (28,674 in float64) pays off.
TAIL_TABLE_MIN_SIZE = 2**17
P = ParamSpec("P")


@overload
def elementwise(function: Callable[P, jax.Array], *, by_table: None = None) -> Callable[P, jax.Array]: ...


@overload
def elementwise(
    function: None = None, *, by_table: Callable[..., jax.Array]
) -> Callable[[Callable[P, jax.Array]], Callable[P, jax.Array]]: ...


def elementwise(function: Any = None, *, by_table: Callable[..., jax.Array] | None = None) -> Any:
    """Make `function` public: check the arguments, find their common dtype, and pass them to `compiled`.

    `by_table` computes the same of (x, loc, concentration) faster for many angles at one concentration, a scalar.
    """
    if function is None:
        return functools.partial(elementwise, by_table=by_table)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        arrays, dtype = arguments.parameters(function.__name__, None, **given)
        arguments.result_shape(function.__name__, None, **arrays)
        return compiled(function, by_table, tuple(arrays.values()), dtype)

    return checked


@functools.partial(jax.jit, static_argnames=("function", "by_table", "dtype"))
def compiled(function, by_table, values, dtype):
    """Promote and broadcast the `values`, compute with `function` or `by_table`, and round to `dtype` once."""
    compute = arguments.compute_dtype(dtype)
    values = [jnp.asarray(value, compute) for value in values]
    shape = lax.broadcast_shapes(*(value.shape for value in values))
    chosen = route(function, by_table, shape, values)
    return xla.compute_elementwise(chosen, shape, dtype, (), *values)


def route(function, by_table, shape, values):
    """Choose `by_table` or `function`, in the form that `xla.compute_elementwise` takes."""
    if by_table is not None and table_pays(shape, values):
        return with_scalar_concentration(by_table)
    return with_all_broadcast(function, explicit_sharding(shape, *values))


def table_pays(shape, values):
    """Whether there are many angles, one concentration, and no explicit mesh; `values` as `cdf` takes them."""
    _, _, concentration = values
    return concentration.size == 1 and math.prod(shape) >= TAIL_TABLE_MIN_SIZE and not explicit(values)


def with_scalar_concentration(by_table):
    """Return `by_table` with the angles and the location broadcast."""

    def compute(shape, _, x, loc, concentration):
        x, loc = (broadcast_sharded(each, shape, None) for each in (x, loc))
        return by_table(x, loc, concentration.reshape(()))

    return compute


def with_all_broadcast(function, sharding):
    """Return `function` with all arguments broadcast into `sharding`."""

    def compute(shape, _, *values):
        return function(*(broadcast_sharded(x, shape, sharding) for x in values))

    return compute


def finite_loc(loc):
    """Return the location, NaN where it is infinite."""
    return nan_unless(loc, jnp.isfinite(loc))


@elementwise
def log_prob(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    r"""Return the logarithm of the density, :math:`\kappa\cos(x-\mu) - \log(2\pi I_0(\kappa))`.

    Full turns do not count. At infinite concentration it is inf at `loc` and -inf elsewhere.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    Error at most 4e-7 (float32) or 1e-14 times the larger of 1 and its size, for every concentration: it is a sum in
    two parts, of which the first is exact.

    The density is (3.5.17) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000.

    Examples
    --------
    >>> round(float(log_prob(0.3, 0.5, 4.0)), 5)
    -0.34258
    """
    return density.log_density(deviation(x, loc)[0], valid(concentration))


@elementwise
def prob(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    r"""Return the density per radian, :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`; full turns do not count.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    Relative error at most 4e-6 (float32) or 1e-12, down to the smallest normal float; below it, 0.

    It is (3.5.17) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000.
    """
    return density.density(deviation(x, loc)[0], valid(concentration))


def cdf_by(lower_tail, x, loc, concentration):
    """Return `cdf` by a `lower_tail` of `tail_probability`, or of `piecewise` for one concentration."""
    difference, turns = deviation(x, loc)
    return turns + lower_tail(difference, valid(concentration))


def sf_by(lower_tail, x, loc, concentration):
    """Return `sf` by an upper tail, like `cdf_by`."""
    difference, turns = deviation(x, loc)
    concentration = valid(concentration)
    upper = lower_tail(-difference, concentration)
    # A point mass belongs to the lower side.
    upper = jnp.where((concentration == jnp.inf) & (difference == 0), 0, upper)
    return upper - turns


@elementwise(by_table=functools.partial(cdf_by, lower_tail_by_table))
def cdf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the probability of an angle between loc - pi and `x`, both on the line.

    Full turns count: it grows by 1 with every turn, below loc - pi it is negative and above loc + pi more than 1, as
    in TensorFlow Probability.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    The absolute error is at most 2 ulp of 1, and a tail below 1/2 has a relative error of 4e-6 (float32) or 1e-12, down
    to the smallest normal float. There is no closed form; see the page *Method* of the
    documentation. Many angles at one concentration (2^17 or more) come from a table that the program
    makes, within the same bounds.

    Examples
    --------
    >>> round(float(cdf(0.3, 0.5, 4.0)), 5)
    0.35022
    """
    return cdf_by(tail_probability.lower_tail, x, loc, concentration)


@elementwise(by_table=functools.partial(sf_by, lower_tail_by_table))
def sf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the survival function 1 - cdf, with the relative accuracy of `cdf` in the upper tail; full turns count.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.
    """
    return sf_by(tail_probability.lower_tail, x, loc, concentration)


@elementwise
def log_cdf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the logarithm of `cdf`, also of tails that no float holds; NaN where full turns make it negative.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    Error at most 4e-6 (float32) or 1e-12 times the larger of 1 and its size.
    """
    difference, turns = deviation(x, loc)
    concentration = valid(concentration)
    within = tail_probability.log_lower_tail(difference, concentration)
    # Select twice: the logarithm of an unselected 0 would still make the derivative NaN.
    beyond = jnp.where(turns == 0, 1, turns + tail_probability.lower_tail(difference, concentration))
    return jnp.where(turns == 0, within, jnp.log(beyond))


@elementwise
def log_sf(x: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the logarithm of `sf`, with the accuracy of `log_cdf` in the upper tail.

    Parameters
    ----------
    x : float or array
        Angles in radians, on any turn. Further than 2^24 (2^53 in float64) from `loc` floats hold no direction:
        NaN results.
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or an angle or direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.
    """
    difference, turns = deviation(x, loc)
    concentration = valid(concentration)
    within = tail_probability.log_lower_tail(-difference, concentration)
    within = jnp.where((concentration == jnp.inf) & (difference == 0), -jnp.inf, within)
    beyond = jnp.where(turns == 0, 1, tail_probability.lower_tail(-difference, concentration) - turns)
    return jnp.where(turns == 0, within, jnp.log(beyond))


@elementwise
def icdf(q: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the angle in [loc - pi, loc + pi] with probability `q` below it, the inverse of `cdf`.

    Parameters
    ----------
    q : float or array
        Probabilities in [0, 1].
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where `q` is not in [0, 1], the
        concentration is negative or NaN, or `loc` is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    The tail probability of the angle is right to 2e-6 (float32) or 1e-12, or the angle to 4 ulp, down to tails of 2^-33
    and 2^-65; further out to 4e-6 or 1e-12, or 4 ulp of pi. It ascends with `q`, but for rounding: of probabilities
    that are nearly the same the smaller one may have the larger angle, by 8 ulp at most. It is what `sample_von_mises`
    uses to draw angles; see the page *Method* of the documentation.

    Examples
    --------
    >>> round(float(icdf(0.975, 0.0, 4.0)), 4)
    1.0765
    """
    return finite_loc(loc) + quantile.signed_quantile(q, valid(concentration))


@elementwise
def isf(q: ArrayLike, loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the angle in [loc - pi, loc + pi] with probability `q` above it, the inverse of `sf`; as exact as `icdf`.

    Parameters
    ----------
    q : float or array
        Probabilities in [0, 1].
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where `q` is not in [0, 1], the
        concentration is negative or NaN, or `loc` is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.
    """
    return finite_loc(loc) - quantile.signed_quantile(q, valid(concentration))


@elementwise
def entropy(concentration: ArrayLike) -> jax.Array:
    r"""Return the differential entropy in nats, :math:`\log(2\pi I_0(\kappa)) - \kappa A(\kappa)`.

    It is log(2 pi) at 0, and -inf at infinity.

    Parameters
    ----------
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    :math:`A = I_1/I_0` is the mean of the cosine. The distribution has the largest entropy of all distributions on the
    circle with its mean cosine and sine (Mardia and Jupp, *Directional Statistics*, 2000, section 3.5.4).
    """
    k = valid(concentration)
    return density.log_norm(k) + scaled_complement(k)


def scaled_complement(k):
    """Return k (1 - A(k)), 1/2 at infinity."""
    return jnp.where(k > bessel.LARGEST_KAPPA, 0.5, jnp.minimum(k, bessel.LARGEST_KAPPA) * bessel.one_minus_ratio(k))


@elementwise
def mean(loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the mean direction in radians: `loc` in [-pi, pi), also for the uniform distribution, which has none.

    Parameters
    ----------
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or `loc` is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.
    """
    return direction(loc, concentration)


@elementwise
def mode(loc: ArrayLike, concentration: ArrayLike) -> jax.Array:
    """Return the angle of largest density in radians: `loc` in [-pi, pi).

    Parameters
    ----------
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN, or `loc` is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.
    """
    return direction(loc, concentration)


def direction(loc, concentration):
    """Return `loc` wrapped to [-pi, pi), NaN for invalid parameters."""
    return wrap(reduce_turns(loc), jnp.where(valid(concentration) >= 0, 0.0, jnp.nan).astype(loc.dtype))


@elementwise
def variance(concentration: ArrayLike) -> jax.Array:
    r"""Return the circular variance :math:`1 - A(\kappa)`, of full relative accuracy: 1 at 0, 0 at infinity.

    Parameters
    ----------
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    :math:`A = I_1/I_0` is the length of the mean of the unit vectors (Mardia and Jupp, *Directional Statistics*, 2000,
    sections 2.3.1 and 3.5.4).
    """
    return bessel.one_minus_ratio(valid(concentration))


@elementwise
def stddev(concentration: ArrayLike) -> jax.Array:
    r"""Return the circular standard deviation :math:`\sqrt{-2 \log A(\kappa)}` in radians: inf at 0, 0 at infinity.

    Parameters
    ----------
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where the concentration is negative
        or NaN.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    That of the wrapped normal distribution with the same mean resultant length (Mardia and Jupp, *Directional
    Statistics*, 2000, section 2.3.1). Of full relative accuracy.
    """
    return spread_of(valid(concentration))


@jax.custom_jvp
def spread_of(k):
    """Return sqrt(-2 log A(k))."""
    rest = bessel.one_minus_ratio(k)
    near = rest < 0.5
    return jnp.sqrt(-2 * jnp.where(near, jnp.log1p(-jnp.where(near, rest, 0)), jnp.log(bessel.ratio(k))))


@spread_of.defjvp
def _spread_of_jvp(primals, tangents):
    # At the ends, take the limits: their quotients are undefined.
    (k,) = primals
    value = spread_of(k)
    middle = (k > 0) & (value > 0)
    slope = -bessel.slope(k) / jnp.where(middle, bessel.ratio(k) * value, 1)
    return value, jnp.where(k == 0, -jnp.inf, jnp.where(value == 0, 0, slope)) * tangents[0]


# Up to such a ratio two concentrations are close; Gauss and Legendre's nodes on [0, 1], and weights times the factor of
# Taylor's remainder, then give the integral of A' to rounding.
KL_REACH = {"float32": 4.0, "float64": 2.0}
KL_NODES, _WEIGHTS = np.array(gauss_legendre(10))
KL_WEIGHTS = _WEIGHTS * (1 - KL_NODES)


@elementwise
def kl_divergence(
    loc: ArrayLike, concentration: ArrayLike, other_loc: ArrayLike, other_concentration: ArrayLike
) -> jax.Array:
    r"""Return the Kullback-Leibler divergence of one von Mises distribution from another, in nats.

    The mean under the first distribution of the logarithm of the ratio of the first density to the other. Never
    negative, and of full relative accuracy where the two distributions are close as well.

    Parameters
    ----------
    loc : float or array
        Mean direction in radians, on any turn.
    concentration : float or array
        In [0, inf]: 0 is the uniform distribution on the circle, inf a point mass at `loc`.
    other_loc : float or array
        Mean direction of the other distribution, in radians.
    other_concentration : float or array
        Concentration of the other distribution.

    Returns
    -------
    jax.Array
        Of the shape to which the arguments broadcast, in their float dtype; JAX's default float for Python numbers and
        integers. bfloat16 and float16 are computed in float32 and rounded once. NaN where a concentration is negative
        or NaN, or a direction is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no numbers, or do not broadcast.

    Notes
    -----
    With :math:`A = I_1/I_0` it is :math:`\log(I_0(\kappa')/I_0(\kappa)) + A(\kappa)\,(\kappa - \kappa'\cos(\mu -
    \mu'))`.
    """
    p, q = valid(concentration), valid(other_concentration)
    rest = bessel.one_minus_ratio(p)
    difference = q - p
    # Close by, the integral of the remainder of Taylor's series, a sum of positive terms.
    reach = KL_REACH[np.dtype(p.dtype).name]
    close = (q < reach * p + (reach - 1)) & (p < reach * q + (reach - 1))
    step = jnp.where(close, difference, 0)
    nodes = jnp.asarray(KL_NODES, p.dtype).reshape((1,) * p.ndim + (-1,))
    between = p[..., None] + step[..., None] * nodes
    # In units of the concentration, whose inverse square underflows where it is large.
    share = step[..., None] / jnp.maximum(between, 1)
    slopes = bessel.scaled_slope(between) * jnp.asarray(KL_WEIGHTS, p.dtype).reshape(nodes.shape)
    near = jnp.sum(share * share * slopes, -1)
    far = density.log_norm_ratio(q, p) + q * rest - scaled_complement(p)
    half = jnp.sin(0.5 * deviation(loc, other_loc)[0])
    value = jnp.where(close, near, far) + q * (2 * bessel.ratio(p) * half * half)
    same = (p == q) & (half == 0)
    # The sum is infinite, or NaN where anything is.
    apart = lax.stop_gradient(p + q + half)
    return jnp.where((p == jnp.inf) | (q == jnp.inf), jnp.where(same, 0, apart), value)

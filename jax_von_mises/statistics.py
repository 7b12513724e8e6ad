"""Test and describe samples of angles: uniformity, fit of a distribution, correlation, and the mean direction."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.samples import WeightedSets, total, warn_of_degrees
from jax_von_mises.numerics.circle import deviation
from jax_von_mises.von_mises import bessel
from jax_von_mises.von_mises.distribution import VonMises
from jax_von_mises.von_mises.fitting import of_both

__all__ = [
    "Interval",
    "SignificanceResult",
    "circular_correlation",
    "confidence_interval",
    "goodness_of_fit",
    "kuiper_test",
    "rayleigh_test",
    "watson_test",
]

# Number of terms of the series of p values, and the smallest exponent at which they sum to 1 within rounding.
TERMS, LEAST = 20, 0.1
# Concentrations are clipped to this range, in which no factor of the Rayleigh test is 0 or infinite.
SMALLEST, LARGEST = 1e-12, 1e15


class SignificanceResult(NamedTuple):
    """The result of a test, of the shape of the samples without `axis`."""

    statistic: jax.Array
    pvalue: jax.Array
    """The probability of a statistic at least as extreme under the null hypothesis."""


class Interval(NamedTuple):
    """The ends of an interval of angles in radians, of the shape of the samples without `axis`."""

    low: jax.Array
    high: jax.Array


def rayleigh_test(
    samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
) -> SignificanceResult:
    r"""Test whether angles are uniform, against one preferred direction.

    Parameters
    ----------
    samples : array
        Angles in radians, of any float dtype.
    weights : array, optional
        Number of times that each angle was observed, as in `jax_von_mises.fit`. Their sum is the number n of
        observations.
    axis : int or tuple of ints, optional
        Axes that hold the angles of one test; all by default. The other axes index separate data sets.

    Returns
    -------
    SignificanceResult
        The statistic :math:`z = n R^2`, where R is the mean resultant length, and its p value. Both are NaN without
        angles, and for angles or weights for which `jax_von_mises.fit` returns NaN.

    Raises
    ------
    TypeError, ValueError
        If samples or weights are not numbers or do not broadcast, or if an axis is out of range.

    Notes
    -----
    The p value is the saddlepoint approximation

    .. math:: p = e^{-n h} \sqrt{\frac{A(\kappa)}{\kappa A'(\kappa)}}, \qquad h = \kappa R - \log I_0(\kappa),

    at the maximum likelihood estimate, where :math:`A(\kappa) = R`. Compared with the exact distribution, its relative
    error is 0 for n = 1, at most 9% for n = 2 and 3, 5% for n = 5, 3% for n = 10 and 1.5% for n = 20, however small p
    is, and 0.5% for n = 10 and p above 0.005. The formula of J. H. Zar (*Biostatistical Analysis*, 1999, equation 27.4)
    has the same error near p = 0.05, but for n = 20 and p = 2e-9 it is 2.3 times too large.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import sample_von_mises, statistics
    >>> angles = sample_von_mises(jax.random.key(0), 0.5, 1.0, (100,))
    >>> print(f"{statistics.rayleigh_test(angles).pvalue:.0e}")
    2e-07
    """
    caller = "statistics.rayleigh_test"
    sets = WeightedSets.of(caller, "angle", samples, weights, axis)
    warn_of_degrees(caller, sets.samples)
    result: SignificanceResult = _rayleigh_test(sets.padded())
    return result


@jax.jit
def _rayleigh_test(sets: WeightedSets) -> SignificanceResult:
    n, k = sets.observations(), of_both(*sets.rows()).concentration
    a = bessel.ratio(k)
    k = jnp.clip(k, SMALLEST, LARGEST)
    # Both forms of h = k A - log I0 are equal; each has no cancellation where it is used.
    scaled, _ = bessel.norm(k, 1 / jnp.maximum(k, bessel.SWITCH))
    large = -k * bessel.one_minus_ratio(k) - jnp.log(scaled / (2 * np.pi))
    h = jnp.where(k < 2 * bessel.SWITCH, k * a - bessel.log_i0(k), large)
    variance, unit = bessel.scaled_rise_variance(k)
    p = jnp.exp(0.5 * jnp.log(bessel.ratio(k) / (k * unit * variance * unit)) - n * h)
    return _rounded(sets, n * a * a, jnp.where(n <= 1, 0 * p + 1, jnp.minimum(p, 1)))


def watson_test(
    samples: ArrayLike, distribution: Any = None, axis: int | Sequence[int] | None = None
) -> SignificanceResult:
    r"""Test with Watson's :math:`U^2` whether angles are uniform, or have another known distribution.

    For a distribution with parameters estimated from the same angles, the p value is too large: use `goodness_of_fit`.

    Parameters
    ----------
    samples : array
        Angles in radians, of any float dtype.
    distribution : distribution, optional
        A distribution of one angle with the method ``cdf``, which adds 1 at each full turn, such as `VonMises` or
        `Mixture`. Its batch broadcasts to the shape of the result. The uniform distribution by default.
    axis : int or tuple of ints, optional
        Axes that hold the angles of one test; all by default. The other axes index separate data sets.

    Returns
    -------
    SignificanceResult
        The statistic :math:`U^2`, which does not depend on the zero direction, and its p value. Both are NaN without
        angles, for an angle that is not finite or exceeds 2^24 rad (2^53 in float64), and for invalid parameters.

    Raises
    ------
    TypeError, ValueError
        If samples are not numbers, if `distribution` has no ``cdf`` or its batch does not broadcast, or if an axis is
        out of range.

    Notes
    -----
    The p value is that of a large sample, :math:`2 \sum_k (-1)^{k-1} e^{-2 k^2 \pi^2 U^*}`, at the statistic
    :math:`U^* = (U^2 - 0.1/n + 0.1/n^2)(1 + 0.8/n)` of M. A. Stephens (J. R. Stat. Soc. B 32, 1970). In a million
    simulated samples of 10, the share of p values up to a level of 0.1 or 0.05 is right within 1%; that up to 0.01 is
    0.0095, and that up to 0.001 is 0.0007 (0.0009 for n = 20), so small p values are too large. For n = 3, the shares
    up to 0.1, 0.05 and 0.01 are 0.112, 0.056 and 0.0017. For n = 1, p is 1.
    """
    return _test("watson_test", _watson, samples, distribution, axis)


def kuiper_test(
    samples: ArrayLike, distribution: Any = None, axis: int | Sequence[int] | None = None
) -> SignificanceResult:
    r"""Test with Kuiper's V whether angles are uniform, or have another known distribution.

    Parameters and NaN are those of `watson_test`.

    Returns
    -------
    SignificanceResult
        The statistic :math:`V = D^+ + D^-`, the sum of the largest differences of the empirical and the given ``cdf``
        in both directions, which does not depend on the zero direction, and its p value.

    Notes
    -----
    The p value is that of a large sample, :math:`2 \sum_k (4 k^2 V^{*2} - 1) e^{-2 k^2 V^{*2}}`, at the statistic
    :math:`V^* = V (\sqrt n + 0.155 + 0.24/\sqrt n)` of M. A. Stephens (J. R. Stat. Soc. B 32, 1970). In a million
    simulated samples of 10, the share of p values up to a level of 0.1 or 0.05 is 2% or 3% smaller than the level; that
    up to 0.01 is 0.0091, and that up to 0.001 is 0.0007 (0.0009 for n = 20), so small p values are too large: for n =
    20, 1.7 times at p = 5e-6. For n = 3, the shares up to 0.1, 0.05 and 0.01 are 0.121, 0.057 and 0.0005. For n = 1, p
    is 1.
    """
    return _test("kuiper_test", _kuiper, samples, distribution, axis)


def goodness_of_fit(
    key: ArrayLike,
    samples: ArrayLike,
    fit: Callable[..., Any],
    number: int = 999,
    axis: int | Sequence[int] | None = None,
) -> SignificanceResult:
    r"""Test with Watson's :math:`U^2` whether angles have a distribution whose parameters are fitted to them.

    The p value comes from a parametric bootstrap: samples of the same size are drawn from the fit, and each is fitted
    again (W. Stute, W. Gonzáles Manteiga and M. Presedo Quindimil, Metrika 40, 1993).

    Parameters
    ----------
    key : jax.Array
        A random key.
    samples : array
        Angles in radians, of any float dtype.
    fit : class or function
        A class of distributions of one angle whose method ``fit`` needs only samples, such as `VonMises`, or a function
        that is called as ``fit(samples, axis=0)`` and returns a distribution of one angle with a batch, such as
        ``functools.partial(Mixture.fit, components=VonMises, number=2)`` or ``functools.partial(TruncatedVonMises.fit,
        low=-1, high=1)``. It also gets all drawn samples as one array, with ``axis=1``. A function without the argument
        ``axis``, such as ``functools.partial(CircularDistribution.fit, log_density, start=start)``, gets one data set,
        and the drawn ones by `jax.vmap`; `samples` must then be one data set.
    number : int
        Number of drawn samples.
    axis : int or tuple of ints, optional
        Axes that hold the angles of one test; all by default. The other axes index separate data sets.

    Returns
    -------
    SignificanceResult
        The statistic :math:`U^2` of the fit, and the p value (1 + c) / (1 + `number`), where c drawn samples have at
        least this statistic, or no fit. Its standard error is :math:`\sqrt{p (1 - p) / \mathrm{number}}`. NaN where the
        fit or `watson_test` gives NaN.

    Raises
    ------
    TypeError, ValueError
        If `key` is not one key, if samples are not numbers, if `fit` is no such function or class, if `number` is not
        an integer of 1 or more, or if an axis is out of range.

    Notes
    -----
    All drawn samples are in memory at once. The function runs inside `jit` and `vmap` where `fit` does; `Mixture.fit`
    does not.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import VonMises, WrappedCauchy, statistics
    >>> angles = WrappedCauchy(0.5, 0.6).sample(jax.random.key(0), (200,))
    >>> print(statistics.goodness_of_fit(jax.random.key(1), angles, VonMises).pvalue)
    0.001
    """
    caller = "statistics.goodness_of_fit"
    key = arguments.one_key(caller, key)
    number = arguments.whole_number(caller, "number", number, 1)
    estimate, batched = _estimator(caller, fit)
    sets = WeightedSets.of(caller, "angle", samples, None, axis)
    if not batched and sets.kept:
        raise ValueError(
            f"{caller}: fit={arguments.safe_repr(fit)} has no argument `axis`, so samples must be one data set, but "
            f"those of shape {np.shape(sets.samples)} with axis={axis} are {sets.kept} data sets. Use jax.vmap."
        )
    warn_of_degrees(caller, sets.samples)
    x = _first(sets)
    model = estimate(x, axis=0) if batched else estimate(x)
    draws = model.sample(key, (number, len(x)))
    observed, _ = _watson(model.cdf(x))
    if batched:
        again = estimate(draws, axis=1).cdf(jnp.moveaxis(draws, 1, 0))
    else:
        again = jax.vmap(lambda x: estimate(x).cdf(x), out_axes=1)(draws)
    simulated, _ = _watson(again)
    # A statistic that is NaN counts as large.
    count = jnp.sum(~(simulated < observed[None]), 0)
    p = jnp.where(jnp.isnan(observed), jnp.nan, (1 + count.astype(observed.dtype)) / (1 + number))
    return _rounded(sets, observed, p)


def _estimator(caller: str, fit: Any) -> tuple[Callable[..., Any], bool]:
    """Return the function that fits, and whether it has the argument `axis`."""
    estimate = fit
    if isinstance(fit, type):
        estimate = getattr(fit, "fit", None) if hasattr(fit, "cdf") else None
    if not callable(estimate):
        raise TypeError(
            f"{caller}: fit={arguments.safe_repr(fit)} must be a class of distributions of one angle with the methods "
            "`fit` and `cdf`, or a function that is called as fit(samples, axis=0) and returns such a distribution."
        )
    given = inspect.signature(estimate).parameters
    samples = "samples" if "samples" in given else next(iter(given), None)
    missing = [
        f"`{name}`"
        for name, each in given.items()
        if name not in (samples, "axis")
        and each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if missing:
        raise TypeError(
            f"{caller}: fit={arguments.safe_repr(fit)} also needs {' and '.join(missing)}. Give a functools.partial of "
            "this function, or of the method `fit` of this class, that has them."
        )
    return estimate, any(name == "axis" or each.kind is each.VAR_KEYWORD for name, each in given.items())


def circular_correlation(
    x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
) -> SignificanceResult:
    r"""Return the correlation of two angles, and test whether it is 0.

    Parameters
    ----------
    x, y : array
        Angles in radians, of any float dtype, which broadcast to pairs.
    weights : array, optional
        Number of times that each pair was observed, as in `jax_von_mises.fit`.
    axis : int or tuple of ints, optional
        Axes of the pairs that hold one data set; all by default. The other axes index separate data sets.

    Returns
    -------
    SignificanceResult
        The coefficient in [-1, 1], positive if the angles turn in the same sense, and the two-sided p value of no
        correlation. NaN without pairs, where one of the angles is constant, and for angles or weights for which
        `jax_von_mises.fit` returns NaN.

    Raises
    ------
    TypeError, ValueError
        If x, y or weights are not numbers or do not broadcast, or if an axis is out of range.

    Notes
    -----
    The coefficient is that of S. R. Jammalamadaka and A. SenGupta (*Topics in Circular Statistics*, 2001, section 8.2):
    with :math:`s = \sin(x - \bar x)` and :math:`t = \sin(y - \bar y)` from the mean directions,

    .. math:: r = \frac{\sum s t}{\sqrt{\sum s^2 \sum t^2}}.

    The p value is that of a large sample, where :math:`r \sqrt{n\, \overline{s^2}\, \overline{t^2} /
    \overline{s^2 t^2}}` is standard normal without correlation. In 200,000 simulated samples of independent
    angles, the share of p values up to 0.05 was within 0.046 to 0.057 for n = 10 and 0.051 to 0.054 for n = 20 to 50;
    small p values are too large: the share up to 0.01 was 0.006 to 0.009 for n = 20. If an angle is close to uniform,
    its mean direction and hence the coefficient are arbitrary.
    """
    caller = "statistics.circular_correlation"
    given, dtype = arguments.parameters(caller, None, x=x, y=y)
    arguments.broadcast_shapes(caller, {name: np.shape(values) for name, values in given.items()})
    for values in given.values():
        warn_of_degrees(caller, values)
    pairs = jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(values, dtype) for values in given.values())), -1)
    result: SignificanceResult = _correlation(WeightedSets.of(caller, "pair", pairs, weights, axis, 1).padded())
    return result


@jax.jit
def _correlation(sets: WeightedSets) -> SignificanceResult:
    pairs, share = sets.rows()

    def sines(x: jax.Array) -> jax.Array:
        """Return the sines of deviations from the mean direction, divided by their root mean square."""
        s = jnp.sin(deviation(x, of_both(x, share).loc[..., None])[0])
        return s * jax.lax.rsqrt(total(share * s * s))[..., None]

    s, t = map(sines, pairs)
    r = total(share * s * t)
    normal = r * jnp.sqrt(sets.observations() / total(share * jnp.square(s * t)))
    return _rounded(sets, jnp.clip(r, -1, 1), jax.scipy.special.erfc(jnp.abs(normal) * np.sqrt(0.5).astype(r.dtype)))


def confidence_interval(
    samples: ArrayLike,
    level: float = 0.95,
    weights: ArrayLike | None = None,
    axis: int | Sequence[int] | None = None,
) -> Interval:
    r"""Return a confidence interval of the mean direction, for any distribution with one.

    Parameters
    ----------
    samples : array
        Angles in radians, of any float dtype.
    level : float
        The probability that the interval contains the mean direction of the distribution, above 0 and at most 1.
    weights : array, optional
        Number of times that each angle was observed, as in `jax_von_mises.fit`.
    axis : int or tuple of ints, optional
        Axes that hold the angles of one interval; all by default. The other axes index separate data sets.

    Returns
    -------
    Interval
        ``low`` and ``high`` in radians, less than pi / 2 below and above the mean direction in [-pi, pi) that
        `jax_von_mises.fit` returns. They do not wrap, so ``low`` is never above ``high``: an angle x is inside if it is
        after ``low`` by ``(x - low) % (2 * pi) <= high - low``. If the angles determine no direction at this level, as
        is always so with fewer than four at 0.95, the interval is the full circle, the mean plus and minus pi. NaN
        without angles, and for angles or weights for which `jax_von_mises.fit` returns NaN.

    Raises
    ------
    TypeError, ValueError
        If samples or weights are not numbers or do not broadcast, if `level` is not above 0 and at most 1, or if an
        axis is out of range.

    Notes
    -----
    The interval holds the directions :math:`\mu` at which the mean of :math:`\sin(x - \mu)`, which is 0 at the mean
    direction of the distribution, is within z of its standard errors from 0,

    .. math:: n \left(\overline{\sin(x - \mu)}\right)^2 \le z^2\, \overline{\sin^2(x - \mu)},

    where z is the normal quantile of the level. In a large sample, it is the interval of N. I. Fisher (*Statistical
    Analysis of Circular Data*, 1993, section 4.4.4). In 40,000 simulated samples, the coverage at 0.95 is:

    ==========================  =====  ======  ======  ======
    distribution                n = 5  n = 10  n = 20  n = 50
    ==========================  =====  ======  ======  ======
    concentration 0.5           0.953  0.952   0.949   0.951
    concentration 2             0.969  0.953   0.953   0.950
    concentration 50            0.977  0.960   0.954   0.951
    two opposite modes, 4 to 1  0.989  0.967   0.958   0.950
    wrapped exponential         0.954  0.950   0.948   0.949
    concentration 2, Fisher     0.879  0.920   0.938   0.944
    ==========================  =====  ======  ======  ======
    """
    caller = "statistics.confidence_interval"
    level = arguments.fraction(caller, "level", level)
    sets = WeightedSets.of(caller, "angle", samples, weights, axis)
    warn_of_degrees(caller, sets.samples)
    interval: Interval = _confidence_interval(sets.padded(), level)
    return interval


@jax.jit
def _confidence_interval(sets: WeightedSets, level: float) -> Interval:
    x, share = sets.rows()
    loc = of_both(x, share).loc
    away = deviation(x, loc[..., None])[0]
    sine, cosine = jnp.sin(away), jnp.cos(away)
    square = jnp.square(jax.scipy.special.ndtri(0.5 + 0.5 * jnp.asarray(level, x.dtype)))
    # In t = tan(mu - loc), the condition is lead t^2 + 2 middle t <= rest.
    middle, rest = square * total(share * sine * cosine), square * total(share * sine * sine)
    lead = sets.observations() * jnp.square(total(share * cosine)) - square * total(share * cosine * cosine)
    some = lead > 0
    lead = jnp.where(some, lead, 1)
    root = jnp.sqrt(middle * middle + lead * rest)
    ends = (jnp.where(some, jnp.arctan((sign * root - middle) / lead), sign * np.pi) for sign in (-1, 1))
    return Interval(*((loc + end).astype(sets.dtype) for end in ends))


def _test(
    name: str,
    statistic: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    samples: ArrayLike,
    distribution: Any,
    axis: int | Sequence[int] | None,
) -> SignificanceResult:
    """Check the arguments of a test of a known distribution, and return its result."""
    caller = f"statistics.{name}"
    sets = WeightedSets.of(caller, "angle", samples, None, axis)
    distribution = VonMises(0.0, 0.0) if distribution is None else distribution
    if isinstance(distribution, type) or not callable(getattr(distribution, "cdf", None)):
        raise TypeError(
            f"{caller}: distribution={arguments.safe_repr(distribution)} must be a distribution of one angle with the "
            "method `cdf`, such as VonMises(loc, concentration)."
        )
    batch = tuple(getattr(distribution, "batch_shape", ()))
    if not arguments.broadcasts(batch, sets.kept):
        raise ValueError(
            f"{caller}: distribution has the batch shape {batch}, which does not broadcast to the shape of the result, "
            f"{sets.kept}. Give one distribution, or one for each data set."
        )
    warn_of_degrees(caller, sets.samples)
    return _rounded(sets, *statistic(distribution.cdf(_first(sets))))


@jax.jit
def _first(sets: WeightedSets) -> jax.Array:
    """Return the samples of each set along the first axis, so that a batch of distributions broadcasts."""
    return jnp.moveaxis(sets.rows()[0], -1, 0)


def _sorted(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return probabilities without full turns in order along the first axis, minus (i + 1/2) / n, and n."""
    n = len(u)
    steps = ((np.arange(n) + 0.5) / n).astype(u.dtype)
    return jnp.sort(u - jnp.floor(u), 0) - steps.reshape(-1, *[1] * (u.ndim - 1)), jnp.asarray(n, u.dtype)


@jax.jit
def _watson(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return U^2 of probabilities along the first axis, and its p value."""
    rest, n = _sorted(u)
    statistic = jnp.sum(jnp.square(rest - jnp.mean(rest, 0, keepdims=True)), 0) + 1 / (12 * n)
    exponent = 2 * np.pi**2 * (statistic - 0.1 / n + 0.1 / n**2) * (1 + 0.8 / n)
    return statistic, _series(exponent, n, lambda k, x: (-1.0) ** (k - 1))


@jax.jit
def _kuiper(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return V of probabilities along the first axis, and its p value."""
    rest, n = _sorted(u)
    statistic = jnp.max(rest, 0) - jnp.min(rest, 0) + 1 / n
    exponent = 2 * jnp.square(statistic * (jnp.sqrt(n) + 0.155 + 0.24 / jnp.sqrt(n)))
    return statistic, _series(exponent, n, lambda k, x: 2 * k * k * x - 1)


def _series(exponent: jax.Array, n: jax.Array, factor: Callable[[Any, jax.Array], Any]) -> jax.Array:
    """Return 2 times the sum of factor(k, x) e^(-k^2 x) over k from 1, for an exponent x; 1 where x is small.

    It is 1 for n = 1, since the statistics of one angle have a single value.
    """
    x = jnp.maximum(exponent, LEAST)[..., None]
    k = np.arange(1, TERMS + 1).astype(x.dtype).reshape((1,) * exponent.ndim + (-1,))
    p = jnp.clip(2 * jnp.sum(factor(k, x) * jnp.exp(-k * k * x), -1), 0, 1)
    return jnp.where(n > 1, p, 0 * exponent + 1)


def _rounded(sets: WeightedSets, *values: jax.Array) -> SignificanceResult:
    return SignificanceResult(*(value.astype(sets.dtype) for value in values))


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

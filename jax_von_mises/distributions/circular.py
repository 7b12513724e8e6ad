"""Define `CircularDistribution`, for any density on the circle, and `SineSkewed`, a skewed symmetric distribution.

Each method computes everything from the density in one program; see `jax_von_mises.numerics.circular`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.distributions.base import Distribution, OfAngles, Parameter, check_values
from jax_von_mises.distributions.pytrees import ByValue, pytree
from jax_von_mises.distributions.von_mises import VonMises
from jax_von_mises.numerics import xla
from jax_von_mises.numerics.circle import deviation, largest_angle, reduce_turns, wrap
from jax_von_mises.numerics.circular import evaluation, panels, quantiles
from jax_von_mises.numerics.elementary import clip, nan_unless
from jax_von_mises.sampling import counter, transform

# Fewer nodes would miss too many features, and more nodes would take too long.
FEWEST_NODES, MOST_NODES = 512, 2**16
# In float32; float64 has twice as many nodes in each of the same panels.
NODES_PER_PANEL = panels.NODES["float32"]


class OfDensity(OfAngles):
    """Base class of distributions of an angle with a given density, with or without a table of its quantile."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch, (); use `jax.vmap` for several sets of parameters."""
        return ()

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    def error(self) -> jax.Array:
        """Return an upper bound on the relative error of a tail probability in `sample`, `cdf`, `sf` and `icdf`.

        It is estimated from the density at the nodes, and cannot see a mode that lies between them.
        """
        result: jax.Array = error_of(self)
        return result

    def log_normalizer(self) -> jax.Array:
        """Return the logarithm of the integral of exp(log_density) over the circle."""
        result: jax.Array = of_panels(self, "log_normalizer")
        return result

    def sample(
        self,
        key: ArrayLike | None = None,
        sample_shape: int | Sequence[int] = (),
        *,
        seed: ArrayLike | None = None,
    ) -> jax.Array:
        """Draw angles in [-pi, pi), in radians, of shape `sample_shape`.

        Parameters
        ----------
        key : jax.Array
            A random key.
        sample_shape : int or tuple of ints
            Shape of the result.
        seed : jax.Array
            Another name for `key`, used by TFP and distrax.
        """
        result: jax.Array = draw(self, *self._of_key(key, seed, sample_shape))
        return result

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, which has period 2 pi."""
        result: jax.Array = log_prob(self, *self._values("log_prob", value=value))
        return result

    def cdf(self, value: ArrayLike) -> jax.Array:
        """Return the probability of an angle between -pi and `value`; every full turn adds 1."""
        result: jax.Array = tail_probability(self, *self._values("cdf", value=value), upper=False)
        return result

    def sf(self, value: ArrayLike) -> jax.Array:
        """Return the probability of an angle between `value` and pi; every full turn subtracts 1.

        The relative error is at most `error`, even for small probabilities.
        """
        result: jax.Array = tail_probability(self, *self._values("sf", value=value), upper=True)
        return result

    def icdf(self, q: ArrayLike) -> jax.Array:
        """Return the angle in [-pi, pi) with probability `q` below it; NaN for `q` outside [0, 1]."""
        result: jax.Array = quantile(self, *self._values("icdf", q=q))
        return result

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        result: jax.Array = of_panels(self, "entropy")
        return result

    def mean(self) -> jax.Array:
        """Return the mean direction in radians; it is poorly defined if `mean_resultant_length` is near 0."""
        result: jax.Array = of_panels(self, "mean")
        return result

    def mean_resultant_length(self) -> jax.Array:
        """Return the length of the mean of the unit vectors, between 0 and 1."""
        result: jax.Array = of_panels(self, "mean_resultant_length")
        return result

    def variance(self) -> jax.Array:
        """Return the circular variance, 1 - `mean_resultant_length`, without cancellation."""
        result: jax.Array = of_panels(self, "variance")
        return result

    def _values(self, method: str, **values: ArrayLike) -> tuple[Any, np.dtype]:
        """Return the single value as an array, and the dtype of the result."""
        raise NotImplementedError


@pytree("parameters", "closed_over", "points", static=("log_density", "nodes", "wide"))
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class CircularDistribution(OfDensity):
    r"""The distribution of an angle with a density proportional to ``exp(log_density(angle, *parameters))``.

    A frozen pytree with the parameters and `points` as leaves, so `jit`, `grad` and `vmap` accept and return it.
    Sampling needs no rejection. The program tabulates the quantile on intervals that adapt to the density, even if it
    is narrow or multimodal. Each draw then takes one random word (two in float64) and one table look-up.

    Parameters
    ----------
    log_density : callable
        ``log_density(angle, *parameters)`` returns the logarithm of the density, up to a constant, at one angle in
        [-pi, pi] in radians. The angle and the result are scalars; -inf means a density of 0. Write the function with
        `jax.numpy`, with equal values at -pi and pi. Define it once, because it is static and each new function causes
        a new compilation. Traced values over which it closes, such as those of an enclosing `jit` or `grad`, become
        differentiable leaves, like parameters.
    *parameters : float or array
        Differentiable parameters of the density. `log_density` receives each as a float array.
    nodes : int
        Number of angles at which to evaluate the density (twice as many in float64), a power of two from 512 to 65536.
        Many narrow features need more; `error` reports whether there are enough.
    wide : bool
        Evaluate `log_density` in float64 even in float32 programs. This avoids the rounding errors of formulas such as
        ``log(1 + rho**2 - 2 * rho * cos(x))``, but computing the table takes up to a third longer. Functions that JAX
        cannot compile in float64, such as ``jax.scipy.special.i0e``, are still evaluated in float32.
    points : array, optional
        Angles in [-pi, pi] near modes that are narrower than 0.01 rad. Needed if there are several such modes, or
        one in a density that is flat elsewhere.
    validate_args : bool
        Evaluate the density if the parameters are known, and raise ValueError if it is NaN or infinite, 0 everywhere,
        or unequal at -pi and pi. Otherwise, and under a transformation, all results of such a density are NaN.

    Raises
    ------
    TypeError, ValueError
        For a `log_density` that is not callable or does not return one float, parameters that are not numbers, and
        invalid `nodes`, `wide` or `points`.

    Notes
    -----
    *Accuracy.* For a draw, and for `cdf` and `icdf`, the smaller of the two probabilities on either side of the angle
    has a relative error of at most `error`, or the angle is within 4 ulp. This holds for tails down to 2^-33 (2^-65 in
    float64). `error` is an upper bound on interpolation, quadrature and rounding errors, estimated from the density at
    the nodes. It cannot see a mode narrower than the distance between nodes, or rounding inside of `log_density`. With
    2048 nodes, it is

    ==========================================  ============  ============
    narrowest feature                           float32       float64
    ==========================================  ============  ============
    one mode, of any width down to 3e-4 rad     2e-6          1e-11
    up to four modes of 0.05 rad or more        5e-6          2e-9
    a mode of 0.01 rad on a flat background     1e-4          1e-5
    ==========================================  ============  ============

    A mode narrower than 0.01 rad with little mass may be missed unless `points` has an angle near it; `error` does not
    detect this. A density with jumps is integrated less accurately, as `error` reports.

    *Words.* Angle i of a sample comes from word i of the key's stream (words 2 i and 2 i + 1 in float64). The lowest
    bit is 1 for the lower half of the distribution; the other bits encode the tail probability, from -pi or from pi.
    ``CircularDistribution(lambda x, k: k * jnp.cos(x), k)`` therefore draws the angles of ``VonMises(0.0, k)``.

    *Derivatives.* Draws and `icdf` have first derivatives with respect to the parameters, by the implicit function
    theorem, in forward and reverse mode. `log_prob`, `entropy` and the moments have derivatives of any order. Before
    JAX 0.10.2, float32 gradients of `log_prob` with respect to parameters have errors of 1e-5 instead of 1e-6.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax_von_mises import CircularDistribution
    >>> def wrapped_cauchy(x, rho):
    ...     return -jnp.log(1 + rho**2 - 2 * rho * jnp.cos(x))
    >>> distribution = CircularDistribution(wrapped_cauchy, 0.7)
    >>> distribution.sample(jax.random.key(0), (1000,)).shape
    (1000,)
    >>> round(float(distribution.mean_resultant_length()), 5)
    0.7
    """

    log_density: Callable[..., jax.Array]
    parameters: tuple[Any, ...]
    closed_over: tuple[jax.Array, ...]
    nodes: int
    wide: bool
    points: jax.Array | None

    def __init__(
        self,
        log_density: Callable[..., jax.Array],
        *parameters: ArrayLike,
        nodes: int = 2048,
        wide: bool = True,
        points: ArrayLike | None = None,
        validate_args: bool = False,
    ) -> None:
        name = "CircularDistribution"
        if not callable(log_density):
            raise TypeError(
                f"{name}: log_density={arguments.safe_repr(log_density)} must be a function of an angle and the "
                "parameters."
            )
        known = isinstance(nodes, int) and not isinstance(nodes, bool)
        if not known or not FEWEST_NODES <= nodes <= MOST_NODES or nodes & (nodes - 1):
            raise ValueError(
                f"{name}: nodes={arguments.safe_repr(nodes)} must be a power of two from {FEWEST_NODES} to "
                f"{MOST_NODES}."
            )
        if not isinstance(wide, bool):
            raise TypeError(f"{name}: wide={arguments.safe_repr(wide)} must be True or False.")
        given = tuple(arguments.parameter(name, f"parameter {i}", x) for i, x in enumerate(parameters))
        if points is not None:
            points = arguments.parameter(name, "points", points)
            most, shape = panels.most_points(nodes // NODES_PER_PANEL), np.shape(points)
            if len(shape) != 1 or shape[0] > most:
                raise ValueError(
                    f"{name}: points has shape {shape}, but must be one-dimensional with at most {most} angles. "
                    "Increase `nodes` to allow more."
                )
        log_density, closed_over = checked_density(log_density, given)
        fields = {
            "log_density": log_density,
            "parameters": given,
            "closed_over": closed_over,
            "nodes": nodes,
            "wide": wide,
            "points": points,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        if validate_args and not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(self)):
            check_density(self)

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        return arguments.float_dtype("CircularDistribution", None, self.parameters)

    def tabulate(self) -> "TabulatedDistribution":
        """Return the same distribution with its table, for several calls; every method here computes it again."""
        return TabulatedDistribution(self, tabulated(self))

    def _values(self, method: str, **values: ArrayLike) -> tuple[Any, np.dtype]:
        """Return the single value as an array, and the dtype of the result."""
        numbered = {f"parameter {i}": x for i, x in enumerate(self.parameters)}
        given, dtype = arguments.parameters(f"CircularDistribution.{method}", None, **values, **numbered)
        return next(iter(given.values())), dtype


@pytree("distribution", "table")
@dataclasses.dataclass(frozen=True, eq=False)
class TabulatedDistribution(OfDensity):
    """A `CircularDistribution` with the table of its quantile, from `CircularDistribution.tabulate`.

    A frozen pytree with the methods of the distribution, which read the table. Draws and all other results are the
    same up to rounding, as are their derivatives with respect to parameters of the distribution.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax_von_mises import CircularDistribution
    >>> distribution = CircularDistribution(lambda x, k: k * jnp.cos(2 * x), 3.0).tabulate()
    >>> distribution.sample(jax.random.key(0), (1000,)).shape, round(float(distribution.cdf(0.0)), 6)
    ((1000,), 0.5)
    """

    distribution: CircularDistribution
    table: quantiles.Table

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        return self.distribution.dtype

    def _values(self, method: str, **values: ArrayLike) -> tuple[Any, np.dtype]:
        return arguments.parameter(f"TabulatedDistribution.{method}", *next(iter(values.items()))), self.dtype


Density = CircularDistribution | TabulatedDistribution


def density_of(source: Density) -> CircularDistribution:
    """Return the distribution without its table."""
    return source.distribution if isinstance(source, TabulatedDistribution) else source


def known_parameters(distribution: CircularDistribution, dtype: np.dtype) -> tuple[jax.Array, ...]:
    """Return the parameters, and the values over which the log density closes, as arrays with floats of `dtype`."""
    given = (*distribution.parameters, *distribution.closed_over)
    return evaluation.converted([jnp.asarray(x) for x in given], dtype)


def checked_density(
    log_density: evaluation.LogDensity, parameters: tuple[Any, ...]
) -> tuple[evaluation.LogDensity, tuple[jax.Array, ...]]:
    """Return the log density and the traced values over which it closes, as in `evaluation.hoist`.

    Raise an error if the log density does not return one real number for one angle.
    """
    dtype = arguments.compute_dtype(arguments.float_dtype("CircularDistribution", None, parameters))
    try:
        density, values, (found,) = evaluation.hoist(log_density, dtype, [np.shape(x) for x in parameters])
    except TypeError as error:
        raise TypeError(
            f"CircularDistribution: log_density(angle, *parameters) fails for one {dtype} angle and "
            f"{len(parameters)} parameter{'s' * (len(parameters) != 1)}: {error}"
        ) from error
    if found.shape != () or not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(
            f"CircularDistribution: log_density returns an array of shape {found.shape} and dtype {found.dtype} for "
            "one angle, but must return one float. Add up its terms, for example with jax.scipy.special.logsumexp."
        )
    return density, values


def check_density(distribution: CircularDistribution) -> None:
    """Raise ValueError if the log density differs between -pi and pi or has no finite normaliser."""
    if not math.isnan(float(distribution.log_normalizer())):
        return
    dtype = arguments.compute_dtype(distribution.dtype)
    given = known_parameters(distribution, dtype)
    ends = [float(distribution.log_density(jnp.asarray(x, dtype), *given)) for x in (-np.pi, np.pi)]
    if all(map(math.isfinite, ends)) and abs(ends[1] - ends[0]) > panels.END_TOLERANCE:
        raise ValueError(
            f"CircularDistribution: log_density is {ends[0]:g} at -pi and {ends[1]:g} at pi, but must be periodic. "
            "Write it in terms of cos(x - loc), or of an angle reduced to [-pi, pi) about its centre."
        )
    raise ValueError(
        "CircularDistribution: log_density is NaN or +inf at some angle, or -inf at all of them. Check the "
        "parameters; -inf is allowed where the density is 0."
    )


def evaluated_wide(distribution: CircularDistribution, dtype: np.dtype) -> bool:
    """Return whether to evaluate the log density in float64, in a program of `dtype`."""
    if dtype == np.float64 or not distribution.wide:
        return False
    given = tuple((x.shape, x.dtype) for x in known_parameters(distribution, dtype))
    return evaluation.computable_in_float64(distribution.log_density, given)


def divide(distribution: Density, dtype: np.dtype) -> panels.Panels:
    """Divide the circle into panels that adapt to the density, in float32 or float64."""
    if isinstance(distribution, TabulatedDistribution):
        return distribution.table.panels
    count = distribution.nodes // NODES_PER_PANEL
    points, parameters = distribution.points, known_parameters(distribution, dtype)
    if points is not None:
        points = lax.convert_element_type(jnp.asarray(points), dtype)
    wide = evaluated_wide(distribution, dtype)
    return panels.adapt(distribution.log_density, count, dtype, wide, points, parameters)


def table_of(distribution: Density, dtype: np.dtype) -> quantiles.Table:
    """Return the table of the quantile, in float32 or float64."""
    if isinstance(distribution, TabulatedDistribution):
        return distribution.table
    return quantiles.of_panels(divide(distribution, dtype))


@jax.jit
def tabulated(distribution: CircularDistribution) -> quantiles.Table:
    """Compute the table of `TabulatedDistribution`."""
    return table_of(distribution, arguments.compute_dtype(distribution.dtype))


def rounded(distribution: Density) -> tuple[np.dtype, np.dtype]:
    """Return the dtype of results, and the dtype in which to compute them."""
    return distribution.dtype, arguments.compute_dtype(distribution.dtype)


@functools.partial(jax.jit, static_argnames="name")
def of_panels(distribution: Density, name: str) -> jax.Array:
    """Compute the log normaliser, the entropy, the mean, its length or the variance, from panels."""
    dtype, compute = rounded(distribution)
    divided = divide(distribution, compute)
    if name == "log_normalizer":
        result = divided.log_normalizer
    elif name == "entropy":
        result = divided.entropy()
    else:
        cosine, sine = (divided.expectation(of(divided.angles)) for of in (jnp.cos, jnp.sin))
        mean = jnp.arctan2(sine, cosine)
        if name == "mean":
            result = mean
        elif name == "variance":
            result = divided.expectation(2 * jnp.square(jnp.sin(0.5 * (divided.angles - mean))))
        else:
            result = jnp.sqrt(cosine * cosine + sine * sine)
    return result.astype(dtype)


@jax.jit
def error_of(distribution: Density) -> jax.Array:
    """Return the error of the table."""
    dtype, compute = rounded(distribution)
    return table_of(distribution, compute).error.astype(dtype)


def tail_and_end(*words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return each angle's tail probability, from its one or two words, and whether it counts from pi."""
    t, _, lower = transform.tail(words)
    return t, ~lower


@functools.partial(jax.jit, static_argnames="shape")
def draw(distribution: Density, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw angles of `shape`, as one program."""
    dtype, compute = rounded(distribution)
    table = table_of(distribution, compute)
    rows = xla.rows_of(shape) or shape
    words = counter.words(key, rows, transform.words_per_element(compute))
    x = table.angle_of(tail_and_end, *words).astype(dtype)
    return x if rows == shape else x.reshape(-1)[: math.prod(shape)].reshape(shape)


@functools.partial(jax.jit, static_argnames="dtype")
def log_prob(distribution: Density, value: jax.Array, dtype: np.dtype) -> jax.Array:
    """Compute the logarithm of the density."""
    compute = arguments.compute_dtype(dtype)
    divided, distribution = divide(distribution, compute), density_of(distribution)
    wide = evaluated_wide(distribution, compute)
    x = reduce_turns(jnp.asarray(value, compute))
    base, parameters = x.reshape(-1), known_parameters(distribution, compute)
    levels = evaluation.evaluate(distribution.log_density, parameters, base, jnp.zeros_like(base), wide)
    with evaluation.scope(wide):
        fall = levels - lax.convert_element_type(divided.shift, levels.dtype)
        levels = lax.convert_element_type(fall, compute)
    return (levels.reshape(x.shape) - jnp.log(divided.total)).astype(dtype)


@functools.partial(jax.jit, static_argnames=("dtype", "upper"))
def tail_probability(distribution: Density, value: jax.Array, dtype: np.dtype, upper: bool) -> jax.Array:
    """Compute the probability of an angle above or below each value."""
    compute = arguments.compute_dtype(dtype)
    x = jnp.asarray(value, compute)
    x, turns = deviation(x, jnp.zeros_like(x))
    divided = divide(distribution, compute)
    result = panels.tail(divided, clip(x, -np.pi, np.pi), jnp.full(x.shape, upper)) / divided.total
    result = jnp.minimum(result, 1)
    return (result - turns if upper else result + turns).astype(dtype)


@functools.partial(jax.jit, static_argnames="dtype")
def quantile(distribution: Density, q: jax.Array, dtype: np.dtype) -> jax.Array:
    """Compute the angle with probability `q` below it."""
    compute = arguments.compute_dtype(dtype)
    divided = divide(distribution, compute)
    q = jnp.asarray(q, compute)
    upper = q > 0.5
    x, _ = panels.quantile(divided, jnp.where(upper, 1 - q, q) * divided.total, upper)
    limit = largest_angle(compute)
    # The quantiles of 0 and 1 are the ends, even if the density underflows next to them.
    x = jnp.where(q == 0, -limit, jnp.where(q == 1, limit, clip(x, -limit, limit)))
    return nan_unless(x * (1 + 0 * divided.total), (q >= 0) & (q <= 1)).astype(dtype)


@pytree("distribution", "skewness")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class SineSkewed(Distribution):
    r"""A skewed symmetric distribution of angles, with density :math:`f(x) (1 + \lambda \sin(x - \mu))`.

    A frozen pytree. `f` is the density of a distribution that is symmetric about its mean direction :math:`\mu`; the
    symmetry is not checked. Sampling is exact and needs no rejection. An angle drawn from `f` is kept with probability
    :math:`(1 + \lambda \sin(x - \mu)) / 2`, and otherwise reflected about :math:`\mu`.

    Parameters
    ----------
    distribution : VonMises or CircularDistribution
        The symmetric distribution, or another object with the methods `sample`, `log_prob` and `mean`.
    skewness : float or array
        :math:`\lambda` in [-1, 1]; other values give NaN. Broadcasts with the batch of the distribution, to which it
        may only add leading axes.
    validate_args : bool
        Raise ValueError for a skewness outside [-1, 1] if its value is known.

    Raises
    ------
    TypeError, ValueError
        For an object that is not a distribution, and a skewness that is not a number or does not broadcast.

    Notes
    -----
    *Words.* Angle i before the reflection is angle i of ``distribution.sample(key)``. Word i of the stream of the key
    ``jax.random.fold_in(key, 1)`` decides the reflection.

    *Derivatives.* The derivatives of `log_prob` are exact. A reflection has no derivative, so the derivatives of draws
    are NaN. For differentiable draws, write the density as a `CircularDistribution`.

    *Source.* T. Abe and A. Pewsey. "Sine-skewed circular distributions". Statistical Papers 52, 2011, equation (2).

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import SineSkewed, VonMises
    >>> distribution = SineSkewed(VonMises(0.5, 4.0), skewness=-0.8)
    >>> distribution.sample(jax.random.key(0), (1000,)).shape
    (1000,)
    """

    _ONE_ANGLE = True
    distribution: VonMises | CircularDistribution
    skewness: ArrayLike

    def __init__(
        self, distribution: VonMises | CircularDistribution, skewness: ArrayLike, validate_args: bool = False
    ) -> None:
        object.__setattr__(self, "distribution", distribution)
        if not all(hasattr(distribution, name) for name in ("sample", "log_prob", "mean", "batch_shape")):
            raise TypeError(
                f"SineSkewed: distribution={arguments.safe_repr(distribution)} must be a distribution of angles, "
                "such as a VonMises."
            )
        object.__setattr__(self, "skewness", arguments.parameter("SineSkewed", "skewness", skewness))
        self.batch_shape  # noqa: B018 - raises ValueError if shapes do not broadcast
        if validate_args:
            check_values("SineSkewed", Parameter("skewness", "share"), self.skewness)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of the distribution, after any leading axes that `skewness` adds."""
        own, skewness = self.distribution.batch_shape, np.shape(self.skewness)
        batch = arguments.broadcast_shapes("SineSkewed", {"the distribution": own, "skewness": skewness})
        if batch[len(batch) - len(own) :] != own:
            raise ValueError(
                f"SineSkewed: skewness has shape {skewness}, but the distribution has batch_shape={own}. Give the "
                f"distribution parameters of shape {batch}."
            )
        return batch

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities, that of the distribution."""
        return self.distribution.dtype

    def sample(
        self,
        key: ArrayLike | None = None,
        sample_shape: int | Sequence[int] = (),
        *,
        seed: ArrayLike | None = None,
    ) -> jax.Array:
        """Draw angles in [-pi, pi), in radians, of shape `sample_shape` + ``batch_shape``.

        `seed` is another name for `key`.
        """
        caller = "SineSkewed.sample"
        key = arguments.key_or_seed(caller, key, seed)
        result: jax.Array = draw_skewed(self, key, arguments.whole_sizes(caller, "sample_shape", sample_shape))
        return result

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, with the accuracy of the distribution's `log_prob`."""
        base = self.distribution.log_prob(arguments.parameter("SineSkewed.log_prob", "value", value))
        given, _ = arguments.parameters("SineSkewed.log_prob", base.dtype, value=value, skewness=self.skewness)
        result: jax.Array = skewed_log_prob(self, base, given["value"])
        return result


def slant(distribution: SineSkewed, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the angles' deviations from the mean direction, that direction, and the skewness times their sines."""
    centre = lax.convert_element_type(jnp.asarray(distribution.distribution.mean()), x.dtype)
    skewness = lax.convert_element_type(jnp.asarray(distribution.skewness), x.dtype)
    shape = jnp.broadcast_shapes(x.shape, centre.shape, skewness.shape)
    x, centre, skewness = (jnp.broadcast_to(each, shape) for each in (x, centre, skewness))
    away, _ = deviation(x, centre)
    return away, centre, nan_unless(skewness, jnp.abs(skewness) <= 1) * jnp.sin(away)


@functools.partial(jax.jit, static_argnames="sample_shape")
def draw_skewed(distribution: SineSkewed, key: jax.Array, sample_shape: tuple[int, ...]) -> jax.Array:
    """Draw the angles of `SineSkewed.sample`, as one program."""
    batch, own = distribution.batch_shape, distribution.distribution.batch_shape
    before = sample_shape + batch[: len(batch) - len(own)]
    base = distribution.distribution.sample(key, before)
    compute = arguments.compute_dtype(base.dtype)
    (word,) = counter.words(jax.random.fold_in(key, 1), base.shape, 1)

    def reflected(base: jax.Array, word: jax.Array, skewed: SineSkewed) -> jax.Array:
        x = lax.convert_element_type(base, compute)
        away, centre, tilt = slant(skewed, x)
        share = (word.astype(compute) + 0.5) * 2.0**-32
        kept = jnp.where(jnp.isnan(tilt), tilt, jnp.where(2 * share < 1 + tilt, x, wrap(-away, reduce_turns(centre))))
        return kept.astype(base.dtype)

    return no_derivative(xla.separate_loop(reflected, base, word, distribution), distribution)


@jax.custom_jvp
def no_derivative(x: jax.Array, depends_on: ByValue) -> jax.Array:
    """Return `x` with NaN as its derivative with respect to `depends_on`."""
    return x


@no_derivative.defjvp
def _no_derivative_jvp(
    primals: tuple[jax.Array, ByValue], tangents: tuple[jax.Array, Any]
) -> tuple[jax.Array, jax.Array]:
    moved = sum(jnp.sum(tangent).astype(primals[0].dtype) for tangent in jax.tree.leaves(tangents[1]))
    return primals[0], (tangents[0] + moved) * jnp.nan


@jax.jit
def skewed_log_prob(distribution: SineSkewed, base: jax.Array, value: jax.Array) -> jax.Array:
    """Compute the logarithm of the skewed density from that of the distribution."""
    compute = arguments.compute_dtype(base.dtype)
    _, _, tilt = slant(distribution, jnp.asarray(value, compute))
    shape = jnp.broadcast_shapes(base.shape, tilt.shape)
    base, tilt = jnp.broadcast_to(base, shape), jnp.broadcast_to(tilt, shape)
    return (base.astype(compute) + jnp.log1p(tilt)).astype(base.dtype)

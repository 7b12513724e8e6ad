"""Define `CircularDistribution`, for any density on the circle.

Each method computes everything from the density in one program; see `evaluation`, `panels` and `quantiles`.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density import evaluation, panels, quantiles
from jax_von_mises.any_density.draw import DENSITY
from jax_von_mises.engine.base import Distribution, OfAngles, of_one_angle
from jax_von_mises.engine.likelihood import errors_of_samples, maximised
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import WeightedSets, depth_of_caller, warn_of_degrees
from jax_von_mises.numerics.circle import deviation, largest_angle, reduce_turns, with_derivative_of
from jax_von_mises.numerics.elementary import clip, nan_unless

# Fewer nodes would miss too many features, and more nodes would take too long.
FEWEST_NODES, MOST_NODES = 512, 2**16
# In float32; float64 has twice as many nodes in each of the same panels.
NODES_PER_PANEL = panels.NODES["float32"]


class OfDensity(OfAngles):
    """Base class of distributions of an angle, with methods that are computed from the density.

    They have the accuracy of `CircularDistribution`. For a distribution with a batch, each of its elements is
    integrated and tabulated, so that time and memory grow with the batch.
    """

    def _density(self) -> "Density":
        """Return a distribution with the batch shape () as one of any density."""
        leaves, structure = jax.tree.flatten(self)
        return CircularDistribution(LogProb(structure), *leaves)

    def _map(self, function: Callable[..., Any], *values: jax.Array) -> Any:
        """Return ``function(density, *values)`` for each element of the batch, with which the values broadcast."""
        batch = self.batch_shape
        if not batch:
            return function(self._density(), *values)
        shapes = {"the batch": batch} | {f"value {i}": x.shape for i, x in enumerate(values)}
        shape = arguments.broadcast_shapes(type(self).__name__, shapes) if values else batch
        lead, count, whole = shape[: len(shape) - len(batch)], math.prod(batch), self.broadcast()
        if not count:
            numbers = [jnp.zeros((), x.dtype) for x in values]
            return of_no_element(lambda one: function(one._density(), *numbers), shape, whole)

        def one(i: jax.Array, *values: jax.Array) -> Any:
            element = whole._at((*jnp.unravel_index(i, batch), ...))
            return function(element._density(), *values)

        def columns(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x, shape).reshape(math.prod(lead), count).T if values else x

        found = jax.vmap(one)(jnp.arange(count), *map(columns, values))
        return jax.tree.map(lambda x: x.T.reshape(shape), found)

    def _of_value(
        self, function: Callable[..., Any], method: str, start: ArrayLike | None = None, **values: ArrayLike
    ) -> Any:
        """Return ``function(density, value, dtype=dtype)`` for each element of the batch and a value.

        The function takes `start` as another value, if that is given.
        """
        value, dtype = self._values(method, **values)
        given = [arguments.as_jax(value)]
        if start is not None:
            given.append(arguments.as_jax(arguments.parameter(f"{type(self).__name__}.{method}", "start", start)))
            shape = jnp.broadcast_shapes(*(x.shape for x in given))
            given = [jnp.broadcast_to(x, shape) for x in given]
        return self._map(functools.partial(function, dtype=dtype), *given)

    def _values(self, method: str, **values: ArrayLike) -> tuple[Any, np.dtype]:
        """Return the single value as an array, and the dtype of the result."""
        return arguments.parameter(f"{type(self).__name__}.{method}", *next(iter(values.items()))), self.dtype

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the probability of an angle between -pi, or `start`, and `value`; every full turn adds 1."""
        function = functools.partial(tail_probability, upper=False)
        result: jax.Array = self._of_value(function, "cdf", start, value=value)
        return result

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return 1 - `cdf`, the probability of an angle between `value` and pi; every full turn subtracts 1.

        `CircularDistribution.error` estimates the relative error, even of small probabilities, unless they are counted
        from another `start`.
        """
        function = functools.partial(tail_probability, upper=True)
        result: jax.Array = self._of_value(function, "sf", start, value=value)
        return result

    def icdf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle in [-pi, pi), or [start, start + 2 pi], with probability `q` below it.

        The result is NaN for `q` outside [0, 1].
        """
        result: jax.Array = self._of_value(quantile, "icdf", start, q=q)
        return result

    def isf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle with probability `q` above it, the inverse of `sf`, as `icdf` does."""
        result: jax.Array = self._of_value(functools.partial(quantile, upper=True), "isf", start, q=q)
        return result

    def interval(self, mass: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return both ends of the shortest arc with the probability `mass` in [0, 1].

        The second end is not reduced to one turn, so that it is never below the first. If there are several such arcs,
        the result is one of them. For a mass of 0, both ends are the mode. Derivatives keep the probability before the
        arc fixed; where that changes with a parameter, they are not those of the shortest arc.
        """
        low, high = self._of_value(shortest_arc, "interval", mass=mass)
        return low, high

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._by_panels("entropy")

    def mean(self) -> jax.Array:
        """Return the mean direction in radians; it is poorly defined if `mean_resultant_length` is near 0."""
        return self._by_panels("mean")

    def mode(self) -> jax.Array:
        """Return the angle with the largest density, in radians, with first derivatives."""
        return self._by_panels("mode")

    def mean_resultant_length(self) -> jax.Array:
        """Return the length of the mean of the unit vectors, between 0 and 1."""
        return self._by_panels("mean_resultant_length")

    def variance(self) -> jax.Array:
        """Return the circular variance, 1 - `mean_resultant_length`, without cancellation."""
        return self._by_panels("variance")

    def moment(self, order: int) -> jax.Array:
        """Return the trigonometric moment of a whole order below 64, the complex mean of exp(i * order * x)."""
        order = arguments.whole_number(f"{type(self).__name__}.moment", "order", order, 0, 64)
        result: jax.Array = self._map(functools.partial(moment_of, order=order))
        return result

    def kl_divergence(self, other: OfAngles) -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to `other` in nats: the mean of log(self / other).

        `other` is a distribution of one angle, of any class; the batches broadcast.
        """
        caller = self._check_angle("kl_divergence", other)
        shape = arguments.broadcast_shapes(caller, {"self": self.batch_shape, "other": other.batch_shape})
        if not shape:
            alone: jax.Array = kl_divergence(self._density(), other)
            return alone
        first, second = self._broadcast_to(shape), other._broadcast_to(shape)
        if not math.prod(shape):
            none: jax.Array = of_no_element(lambda p, q: kl_divergence(p._density(), q), shape, first, second)
            return none

        def one(i: jax.Array) -> jax.Array:
            at = (*jnp.unravel_index(i, shape), ...)
            found: jax.Array = kl_divergence(first._at(at)._density(), second._at(at))
            return found

        return jax.vmap(one)(jnp.arange(math.prod(shape))).reshape(shape)

    def _check_angle(self, method: str, other: object) -> str:
        """Return the method's name for messages; raise TypeError unless `other` is a distribution of one angle."""
        caller = f"{type(self).__name__}.{method}"
        if not of_one_angle(other):
            raise TypeError(f"{caller}: other={arguments.safe_repr(other)} must be a distribution of one angle.")
        return caller

    def _by_panels(self, name: str) -> jax.Array:
        result: jax.Array = self._map(functools.partial(summary, name=name))
        return result


def of_no_element(function: Callable[..., Any], shape: tuple[int, ...], *wholes: Distribution) -> Any:
    """Return the empty result, of a shape, of a function of one element each of distributions with empty batches."""

    def element(whole: Distribution) -> Distribution:
        rank = len(whole.batch_shape)
        found: Distribution = jax.tree.map(lambda x: jnp.ones(x.shape[rank:], x.dtype), whole)
        return found

    elements = list(map(element, wholes))
    return jax.tree.map(lambda x: jnp.zeros(shape, x.dtype), jax.eval_shape(function, *elements))


class OfOneDensity(OfDensity):
    """Base class of `CircularDistribution` and `TabulatedDistribution`, which have the batch shape ()."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch, (); use `jax.vmap` for several sets of parameters."""
        return ()

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    def _broadcast_to(self, shape: tuple[int, ...]) -> Self:
        return self

    def _at(self, index: tuple[Any, ...]) -> Self:
        return self

    def _density(self) -> "Density":
        found: Any = self
        density: Density = found
        return density

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        cells, error = tabulated(self)
        warn_of_error(f"{type(self).__name__}.sample", error)
        return DENSITY, cells._asdict()

    def error(self) -> jax.Array:
        """Return an estimate of the largest relative error of a tail probability in `sample`, `cdf`, `sf` and `icdf`.

        It is computed from the density at the nodes. For a smooth density it is at least the true error, and usually
        several times as large; near a jump or a cusp the true error may exceed it. It cannot see a mode, or a piece
        between two jumps, that lies between the nodes. Where it is above 0.1, `sample` warns once for each place of a
        call, unless it is traced.
        """
        result: jax.Array = error_of(self)
        return result

    def log_normalizer(self) -> jax.Array:
        """Return the logarithm of the integral of exp(log_density) over the circle."""
        return self._by_panels("log_normalizer")

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, which has period 2 pi."""
        value, dtype = self._values("log_prob", value=value)
        result: jax.Array = log_prob(self, value, dtype)
        return result


@dataclasses.dataclass(frozen=True)
class LogProb(evaluation.Closed):
    """The log density of a distribution of one angle, as a function of the angle and the distribution's leaves."""

    structure: Any

    def __call__(self, angle: jax.Array, *leaves: jax.Array) -> jax.Array:
        """Return the log density at one angle."""
        density: jax.Array = jax.tree.unflatten(self.structure, leaves).log_prob(angle)
        return density


@pytree("parameters", "closed_over", "points", static=("log_density", "nodes", "wide"))
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class CircularDistribution(OfOneDensity):
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
    float64). `error` is an estimate of interpolation, quadrature and rounding errors from the density at the nodes: an
    upper bound in tests of smooth densities, which a jump or cusp may exceed. It cannot see a mode narrower than the
    distance between nodes, or rounding inside of `log_density`. With 2048 nodes, it is

    ==========================================  ============  ============
    narrowest feature                           float32       float64
    ==========================================  ============  ============
    one mode, of any width down to 3e-4 rad     2e-6          1e-11
    up to four modes of 0.05 rad or more        5e-6          2e-9
    a mode of 0.01 rad on a flat background     1e-4          1e-5
    ==========================================  ============  ============

    A mode narrower than 0.01 rad with little mass may be missed unless `points` has an angle near it; `error` does not
    detect this. The same holds for a piece between two jumps that is narrower than 8 pi / `nodes` rad. A density with
    jumps, also to 0, is integrated less accurately, as `error` reports.

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

    @classmethod
    def fit(
        cls,
        log_density: Callable[..., jax.Array],
        samples: ArrayLike,
        start: Sequence[ArrayLike],
        weights: ArrayLike | None = None,
        *,
        nodes: int = 2048,
        wide: bool = True,
        points: ArrayLike | None = None,
    ) -> "CircularDistribution":
        """Fit the parameters of a density by maximum likelihood, with derivatives of the density by JAX.

        Parameters
        ----------
        log_density : callable
            As in the constructor, with second derivatives with respect to the parameters. Every parameter may take any
            real value: write a positive one as an exponential, and a bounded one as a sine.
        samples : array
            Angles in radians, all of one data set; see the notes for several sets.
        start : sequence of floats or arrays
            A value for each parameter, with which to begin. The result is uphill of it.
        weights : array, optional
            Number of times that each angle was observed, 0 or more, also fractions; broadcasts to `samples`.
        nodes, wide, points : optional
            As in the constructor.

        Returns
        -------
        CircularDistribution
            With the estimates as parameters, of the shapes of `start`. The method is Newton's with absolute curvatures
            and at most 32 steps, none of which decreases the likelihood by more than rounding. Where the likelihood has
            its maximum near the start, each estimate has an error of at most 1e-3 (float32) or 1e-6 (float64) of its
            standard error for one angle. Where the likelihood rises without bound, or does not depend on a parameter,
            the parameter is where the steps end. NaN without angles, without positive weights, for a negative weight,
            an angle that is not finite, and a start at which the likelihood or its derivatives are not finite, such as
            one at which the density is 0 at -pi, an angle of the table. Begin elsewhere then.

        Notes
        -----
        It works inside `jit` and `vmap`, which fits several data sets or from several starts. The parameters then have
        another axis. Outside of transformations, one compiled program serves all numbers of angles up to the next power
        of two.

        Examples
        --------
        >>> import jax, jax.numpy as jnp
        >>> from jax_von_mises import CircularDistribution
        >>> def two_modes(x, loc, log_concentration):
        ...     return jnp.exp(log_concentration) * jnp.cos(2 * (x - loc))
        >>> x = CircularDistribution(two_modes, 0.5, 1.0).sample(jax.random.key(0), (100_000,))
        >>> found = CircularDistribution.fit(two_modes, x, start=(0.0, 0.0))
        >>> [round(float(each), 1) for each in found.parameters]
        [0.5, 1.0]
        """
        caller = "CircularDistribution.fit"
        if not isinstance(start, list | tuple):
            raise TypeError(
                f"{caller}: start={arguments.safe_repr(start)} must be a list or tuple with a value for each parameter."
            )
        given = {f"start[{i}]": arguments.parameter(caller, f"start[{i}]", x) for i, x in enumerate(start)}
        sets = WeightedSets.of(caller, "angle", samples, weights, None)
        dtype = arguments.float_dtype(caller, None, [sets.samples, *given.values()])
        warn_of_degrees(caller, sets.samples)
        begin = [jnp.asarray(x, dtype) for x in given.values()]
        distribution = cls(log_density, *begin, nodes=nodes, wide=wide, points=points)
        found: CircularDistribution = fitted(distribution, sets.padded())
        return found

    def standard_errors(self, samples: ArrayLike, weights: ArrayLike | None = None) -> tuple[jax.Array, ...]:
        """Return the standard errors of the parameters of a fit to `samples`, from the observed information.

        The information is minus the second derivatives of the log likelihood of the samples. The errors are good for
        many samples, and NaN where the matrix of the information is not positive definite, as at the edge of what is
        allowed.

        Parameters
        ----------
        samples : array
            The samples of the fit, of one data set; the distribution has no batch.
        weights : array, optional
            Number of observations that each sample stands for, as in `fit`.
        """
        count = len(self.parameters)
        return tuple(errors_of_samples("CircularDistribution.standard_errors", self, samples, weights, count))

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        return arguments.float_dtype("CircularDistribution", None, self.parameters)

    def tabulate(self) -> "TabulatedDistribution":
        """Return the same distribution with its table, for several calls; every method here computes it again."""
        return TabulatedDistribution(self, computed_table(self))

    def _values(self, method: str, **values: ArrayLike) -> tuple[Any, np.dtype]:
        """Return the single value as an array, and the dtype of the result."""
        numbered = {f"parameter {i}": x for i, x in enumerate(self.parameters)}
        given, dtype = arguments.parameters(f"CircularDistribution.{method}", None, **values, **numbered)
        return next(iter(given.values())), dtype


@pytree("distribution", "table")
@dataclasses.dataclass(frozen=True, eq=False)
class TabulatedDistribution(OfOneDensity):
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


Density = CircularDistribution | TabulatedDistribution
# Error of a table from which on a draw warns.
LARGE_ERROR = 0.1
# Arcs among which `interval` looks for the shortest.
ARCS = 512
# Difference in radians by which another arc must be shorter than the one whose ends have equal densities.
CLEARLY = 1e-4


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
    if isinstance(log_density, evaluation.Closed):
        return log_density, ()
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
def computed_table(distribution: Density) -> quantiles.Table:
    """Compute the table of the quantile."""
    return table_of(distribution, arguments.compute_dtype(distribution.dtype))


@jax.jit
def tabulated(distribution: Density) -> tuple[quantiles.Cells, jax.Array]:
    """Compute the part of the table that draws read, and its error."""
    table = table_of(distribution, arguments.compute_dtype(distribution.dtype))
    return table.cells, table.error


def warn_of_error(caller: str, error: jax.Array) -> None:
    """Warn once for each place of a call if the error of a table is known and large."""
    if isinstance(error, jax.core.Tracer) or not error.is_fully_addressable:
        return
    if (found := float(jax.device_get(error))) > LARGE_ERROR:
        warnings.warn(
            f"{caller}: some tail probabilities of the draws may be wrong by {found:.2g} of their value, since the "
            "density has jumps, or modes too narrow for its nodes. Increase `nodes`, or give `points` near the modes.",
            UserWarning,
            stacklevel=depth_of_caller(),
        )


def dtypes_of(distribution: Density) -> tuple[np.dtype, np.dtype]:
    """Return the dtype of results, and the dtype in which to compute them."""
    return distribution.dtype, arguments.compute_dtype(distribution.dtype)


@functools.partial(jax.jit, static_argnames="name")
def summary(distribution: Density, name: str) -> jax.Array:
    """Compute the log normaliser, the entropy, the mode, the mean, its length or the variance, from panels."""
    dtype, compute = dtypes_of(distribution)
    divided = divide(distribution, compute)
    if name == "log_normalizer":
        result = divided.log_normalizer
    elif name == "entropy":
        result = divided.entropy()
    elif name == "mode":
        result = mode_of(density_of(distribution), divided)
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


def mode_of(distribution: CircularDistribution, divided: panels.Panels) -> jax.Array:
    """Return the angle with the largest density, by halving an interval between nodes where its slope changes sign.

    Its derivatives are those of the root of the slope, or 0 where the slope itself does not change.
    """
    dtype = divided.edges.dtype
    known = known_parameters(distribution, np.dtype(dtype))
    nodes = lax.stop_gradient(divided.angles).reshape(-1)
    best = jnp.argmax(divided.fall.reshape(-1))
    low, high = (lax.dynamic_index_in_dim(jnp.roll(nodes, by), best, keepdims=False) for by in (1, -1))
    here = lax.dynamic_index_in_dim(nodes, best, keepdims=False)
    low, high = jnp.where(low > here, -np.pi, low), jnp.where(high < here, np.pi, high)

    def root(slope: Callable[[jax.Array], jax.Array], _: jax.Array) -> jax.Array:
        def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            rises = slope(middle) > 0
            return jnp.where(rises, middle, low), jnp.where(rises, high, middle)

        ends: tuple[jax.Array, jax.Array] = lax.fori_loop(0, 2 + jnp.finfo(dtype).nmant, halve, (low, high))
        return 0.5 * (ends[0] + ends[1])

    def moved(bend: Callable[[jax.Array], jax.Array], y: jax.Array) -> jax.Array:
        change = bend(jnp.ones_like(y))
        return y * jnp.where(change == 0, 0, 1 / jnp.where(change == 0, 1, change))

    slope = jax.grad(lambda x: distribution.log_density(x, *known))
    mode: jax.Array = lax.custom_root(slope, here, root, moved)
    return nan_unless(mode, ~jnp.isnan(divided.total))


@functools.partial(jax.jit, static_argnames="order")
def moment_of(distribution: Density, order: int) -> jax.Array:
    """Compute the mean of exp(i * order * x)."""
    divided = divide(distribution, dtypes_of(distribution)[1])
    return lax.complex(*(divided.expectation(of(order * divided.angles)) for of in (jnp.cos, jnp.sin)))


@jax.jit
def kl_divergence(distribution: Density, other: OfAngles) -> jax.Array:
    """Compute the mean of log(distribution / other)."""
    dtype, compute = dtypes_of(distribution)
    divided = divide(distribution, compute)
    against = lax.convert_element_type(other.log_prob(divided.angles), compute)
    gain = jnp.where(divided.weights > 0, divided.fall - against, 0)
    found = divided.expectation(gain) - jnp.log(divided.total)
    # No divergence is negative. Rounding may make it so, but does not spoil its derivatives.
    return with_derivative_of(found, jnp.maximum(found, 0)).astype(dtype)


@functools.partial(jax.jit, static_argnames="dtype")
def shortest_arc(distribution: Density, mass: jax.Array, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    """Compute the ends of the shortest arcs with the probabilities `mass`.

    Between the two neighbours of the best of some arcs, find the arc with equal densities at its ends, and the shortest
    one, which differ next to a jump.
    """
    compute = arguments.compute_dtype(dtype)
    divided, logs = divide(distribution, compute), density_of(distribution)
    fixed = lax.stop_gradient(divided)
    mass = nan_unless(jnp.asarray(mass, compute), (mass >= 0) & (mass <= 1))
    within = jnp.where(jnp.isnan(mass), 0.5, mass)

    def ends(q: jax.Array, divided: panels.Panels) -> tuple[jax.Array, jax.Array]:
        """Return the ends of the arcs that begin where the probability is `q`, counted through pi; their densities."""
        both = jnp.stack([q, q + jnp.broadcast_to(within.reshape(-1, 1), q.shape)])
        turns = jnp.floor(both)
        rest = both - turns
        upper = rest > 0.5
        x, density = panels.quantile(divided, jnp.where(upper, 1 - rest, rest) * divided.total, upper)
        return x + turns.astype(compute) * (2 * np.pi), density

    starts = jnp.broadcast_to(jnp.asarray(np.arange(ARCS) / ARCS, compute), (within.size, ARCS))
    low, high = ends(starts, fixed)[0]
    best = jnp.argmin(high - low, 1, keepdims=True).astype(compute) / ARCS

    def narrow(_: int, intervals: jax.Array) -> jax.Array:
        """Halve the interval with equal densities, and take a third off that with the shortest arc."""
        low, high = intervals
        third = (high - low)[:, 1:] / 3
        middle = jnp.concatenate([0.5 * (low + high)[:, :1], low[:, 1:] + third, high[:, 1:] - third], 1)
        (start, end), density = ends(middle + 1, fixed)  # from 1 turn below, no probability is negative
        right = jnp.stack([density[1, :, 0] > density[0, :, 0], (end - start)[:, 1] > (end - start)[:, 2]], 1)
        return jnp.stack([jnp.where(right, middle[:, :2], low), jnp.where(right, high, middle[:, ::2])])

    intervals = jnp.broadcast_to(jnp.stack([best - 1 / ARCS, best + 1 / ARCS]), (2, within.size, 2))
    low, high = lax.fori_loop(0, jnp.finfo(compute).nmant, narrow, intervals)
    # Next to a jump, no arc has equal densities at its ends.
    at = lax.stop_gradient(jnp.concatenate([0.5 * (low + high), low[:, 1:], high[:, 1:], best], 1))
    low, high = ends(at - jnp.floor(at), divided)[0]
    length = lax.stop_gradient(high - low) + jnp.asarray(np.array([[0, *[CLEARLY] * 4]]), compute)
    chosen = jnp.argmin(length, 1, keepdims=True)
    found = (jnp.take_along_axis(end, chosen, 1).reshape(within.shape) for end in (low, high))
    # The mode is the limit of arcs that become shorter.
    mode = mode_of(logs, divided)
    low, high = (jnp.where(within == 0, mode, end) + 0 * mass for end in found)
    return low.astype(dtype), high.astype(dtype)


@jax.jit
def error_of(distribution: Density) -> jax.Array:
    """Return the error of the table."""
    dtype, compute = dtypes_of(distribution)
    return table_of(distribution, compute).error.astype(dtype)


@functools.partial(jax.jit, static_argnames="dtype")
def log_prob(distribution: Density, value: ArrayLike, dtype: np.dtype) -> jax.Array:
    """Compute the logarithm of the density."""
    compute = arguments.compute_dtype(dtype)
    divided, distribution = divide(distribution, compute), density_of(distribution)
    wide = evaluated_wide(distribution, compute)
    x = reduce_turns(jnp.asarray(value, compute))
    base, parameters = x.reshape(-1), known_parameters(distribution, compute)
    levels = evaluation.levels_at(distribution.log_density, parameters, base, jnp.zeros_like(base), wide)
    with evaluation.scope(wide):
        fall = levels - lax.convert_element_type(divided.shift, levels.dtype)
        levels = lax.convert_element_type(fall, compute)
    return (levels.reshape(x.shape) - jnp.log(divided.total)).astype(dtype)


@jax.jit
def fitted(start: CircularDistribution, sets: WeightedSets) -> CircularDistribution:
    """Return the distribution with the largest likelihood, reached from `start`."""
    dtype, compute = dtypes_of(start)
    x, share = sets.rows()
    x, share = x.astype(compute), jnp.broadcast_to(share, x.shape).astype(compute)
    # At other angles, the density may be 0.
    x = jnp.where(share == 0, x[jnp.argmax(share)], x)
    leaves, structure = jax.tree.flatten(start)
    count = len(start.parameters)
    numbers, of_numbers = ravel_pytree([x.astype(compute) for x in leaves[:count]])

    def log_density(numbers: jax.Array, x: jax.Array) -> jax.Array:
        distribution = jax.tree.unflatten(structure, [*of_numbers(numbers), *leaves[count:]])
        found: jax.Array = log_prob(distribution, x, compute)
        return found

    found = of_numbers(maximised(log_density, numbers[None] + 0 * jnp.sum(share), share, x))
    result: CircularDistribution = jax.tree.unflatten(structure, [*(x.astype(dtype) for x in found), *leaves[count:]])
    return result


@functools.partial(jax.jit, static_argnames=("dtype", "upper"))
def tail_probability(
    distribution: Density, value: jax.Array, start: jax.Array | None = None, *, dtype: np.dtype, upper: bool
) -> jax.Array:
    """Compute the probability of an angle above or below each value, counted from -pi or `start`."""
    compute = arguments.compute_dtype(dtype)
    divided = divide(distribution, compute)
    if start is not None:
        (below, above, turns), (below_start, above_start, more) = (tails_at(divided, x) for x in (value, start))
        by_above = above + above_start < below + below_start
        result = (turns - more) + jnp.where(by_above, above_start - above, below - below_start)
        return (1 - result if upper else result).astype(dtype)
    x = jnp.asarray(value, compute)
    x, turns = deviation(x, jnp.zeros_like(x))
    result = panels.mass_up_to(divided, clip(x, -np.pi, np.pi), jnp.full(x.shape, upper)) / divided.total
    result = jnp.minimum(result, 1)
    return (result - turns if upper else result + turns).astype(dtype)


def tails_at(divided: panels.Panels, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the probabilities below and above angles, and the turns that are removed from these."""
    x = jnp.asarray(x, divided.edges.dtype)
    x, turns = deviation(x, jnp.zeros_like(x))
    both = jnp.broadcast_to(clip(x, -np.pi, np.pi), (2, *x.shape))
    upper = jnp.broadcast_to(jnp.arange(2).reshape(2, *[1] * x.ndim) == 1, both.shape)
    below, above = jnp.minimum(panels.mass_up_to(divided, both, upper) / divided.total, 1)
    return below, above, turns


@functools.partial(jax.jit, static_argnames=("dtype", "upper"))
def quantile(
    distribution: Density, q: jax.Array, start: jax.Array | None = None, *, dtype: np.dtype, upper: bool = False
) -> jax.Array:
    """Compute the angle with probability `q` below it or, if `upper`, above it, from -pi or `start` on."""
    compute = arguments.compute_dtype(dtype)
    divided = divide(distribution, compute)
    q = jnp.asarray(q, compute)
    if start is not None:
        start = jnp.asarray(start, compute)
        end = start + 2 * np.pi
        before, after, turns = tails_at(divided, start)
        share, rest = (1 - q, q) if upper else (q, 1 - q)
        # Beyond pi, the rest of the probability counts from -pi.
        beyond = share > after
        below, above = jnp.where(beyond, share - after, before + share), jnp.where(beyond, after + rest, after - share)
        above_less = below > above
        x, _ = panels.quantile(divided, clip(jnp.where(above_less, above, below), 0, 0.5) * divided.total, above_less)
        x = jnp.minimum(jnp.maximum(x + 2 * np.pi * (turns + beyond.astype(compute)), start), end)
        x = jnp.where(share == 0, start, jnp.where(share == 1, end, x))
        return nan_unless(x * (1 + 0 * divided.total), (q >= 0) & (q <= 1)).astype(dtype)
    more = q > 0.5
    x, _ = panels.quantile(divided, jnp.where(more, 1 - q, q) * divided.total, more != upper)
    limit = largest_angle(compute)
    # The quantiles of 0 and 1 are the ends, even if the density underflows next to them.
    low = limit if upper else -limit
    x = jnp.where(q == 0, low, jnp.where(q == 1, -low, clip(x, -limit, limit)))
    return nan_unless(x * (1 + 0 * divided.total), (q >= 0) & (q <= 1)).astype(dtype)

"""Define `Mixture`, a mixture of distributions of one class, and fit it to data.

`Mixture` is a frozen pytree. Its methods call those of the components, and have their accuracy, derivatives and errors.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density.distribution import OfDensity
from jax_von_mises.circle.torus import last_axis, shape_of_components
from jax_von_mises.engine import em
from jax_von_mises.engine.base import Distribution, OfAngles, as_leaf
from jax_von_mises.engine.likelihood import checked_samples, root_of_covariance
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import (
    Array,
    HostSets,
    WeightedSets,
    depth_of_caller,
    loop_on_host,
    merged,
    total,
    turns_removed,
    warn_of_degrees,
)
from jax_von_mises.mixture.draw import mixture_of
from jax_von_mises.numerics.circle import largest_angle
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.von_mises import functions as von_mises

# Up to this number of components, one loop over the values computes the density. Each component adds 0.15 s to the
# compilation. Of more components, a turn of a loop adds up this number.
UNROLLED = 16
# Most steps of `quantile`. Each halves the bracket or the step, so that twice the number of a float's bits is enough.
MOST_STEPS = 128
# What the components must have, so that mixtures have a method. A density from which a method is computed must not
# jump: components have moments if theirs does not.
NEEDED = {name: name for kind in (OfAngles, OfDensity) for name in vars(kind) if not name.startswith("_")}
NEEDED |= dict.fromkeys(("interval", "entropy", "mode", "moment", "kl_divergence"), "moment")
NEEDED |= dict.fromkeys(("mean", "mean_resultant_length", "variance"), "_unit_means")


class Estimate(NamedTuple):
    """Standard errors of a mixture."""

    probs: jax.Array
    """Of the weights, of shape (components,)."""
    components: Any
    """A named tuple with those of the components' parameters, as their `standard_errors` returns it."""


@pytree("logits", "components")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Mixture(OfDensity):
    r"""A mixture :math:`\sum_j w_j p_j` of distributions of one class.

    A frozen pytree of `logits` and `components`. Accuracy, derivatives, dtypes and the results for invalid parameters
    (NaN) are those of the components. Draws have derivatives with respect to the parameters of the component that was
    chosen, but not with respect to the weights. The probability of a component differs from its weight by at most 2^-32
    (5e-7 in float32; see the page *Guarantees*). Invalid weights make all draws NaN. If the shapes do not fit, the
    methods that need them raise ValueError.

    Parameters
    ----------
    logits : array
        Logarithms of the weights, up to a constant; -inf is a weight of 0. The last axis runs over the components.
    probs : array
        The weights, 0 or more, instead of their logarithms; they are divided by their sum. Give either `logits` or
        `probs`. In both cases, the attribute `logits` holds logarithms.
    components : distribution
        The distributions, along the last axis of their batch, which broadcasts with the weights: any distribution of
        this package that can have a batch, such as `VonMises`, but not another mixture.
    validate_args : bool
        Raise ValueError for `probs` that are negative or not finite, for `logits` that are NaN or inf, and for weights
        that are all 0, if the values are known. Otherwise, and under a transformation, such weights give NaN. The
        components have a `validate_args` of their own.

    Raises
    ------
    TypeError
        If neither or both of `logits` and `probs` are given, or for weights or components of an unsupported type, such
        as a list of distributions.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import Mixture, VonMises
    >>> distribution = Mixture(probs=[0.3, 0.7], components=VonMises(loc=[-1.0, 2.0], concentration=[5.0, 20.0]))
    >>> angles = distribution.sample(jax.random.key(0), (1000,))
    >>> distribution.log_prob(angles).shape, distribution.responsibilities(angles).shape
    ((1000,), (1000, 2))
    """

    logits: jax.Array
    components: Distribution
    CHOOSES = True

    def __init__(
        self,
        *,
        logits: ArrayLike | EllipsisType | None = ...,
        probs: ArrayLike | None = None,
        components: Distribution | EllipsisType = ...,
        validate_args: bool = False,
    ) -> None:
        # `...` marks an argument that was not given, since None may stand for an array in a pytree.
        if components is ...:
            raise TypeError("Mixture: give `components`, such as a VonMises with an axis of components.")
        if logits is None and probs is not None:
            logits = ...
        if (logits is ...) == (probs is None):
            raise TypeError("Mixture: give the weights once, as `logits` or as `probs`.")
        check_components(components)
        if validate_args:
            check_weights(*(("logits", logits) if probs is None else ("probs", probs)))
        if logits is ...:
            logits = log_of_weights(arguments.as_jax(arguments.parameter("Mixture", "probs", probs)))
        elif isinstance(logits, list | tuple):  # would itself be a pytree
            logits = arguments.as_jax(arguments.parameter("Mixture", "logits", logits))
        else:
            logits = as_leaf("Mixture", "logits", logits)
        logits, components = with_same_axes(logits, components)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "components", components)

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, but no method that needs what the components lack."""
        if name in NEEDED and not hasattr(object.__getattribute__(self, "components"), NEEDED[name]):
            raise self._no(name)
        return super().__getattribute__(name)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of mixtures."""
        return self._shape()[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw, that of the components."""
        return self.components.event_shape

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities, that of the components."""
        return self.components.dtype

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of the batch, followed by the number of components."""
        shape = np.shape(arguments.parameter("Mixture", "logits", self.logits))
        batch = shape_of_components("Mixture", self.components, "a VonMises or a Torus")
        last_axis("Mixture", batch, "components")
        if not shape or shape[-1] != batch[-1]:
            raise ValueError(
                f"Mixture: logits has shape {shape} for components of batch_shape={batch}. The last axis of both is "
                "that of the components. Give one logit for each component."
            )
        try:
            return jnp.broadcast_shapes(shape, batch)
        except ValueError as error:
            raise ValueError(
                f"Mixture: logits of shape {shape} and components of batch_shape={batch} do not broadcast together. "
                "Insert axes of length 1 to make them broadcast."
            ) from error

    def _broadcast_to(self, shape: tuple[int, ...]) -> "Mixture":
        shape = (*shape, self._shape()[-1])
        logits = jnp.broadcast_to(arguments.as_jax(self.logits), shape)
        return Mixture(logits=logits, components=self.components._broadcast_to(shape))

    def _at(self, index: tuple[Any, ...]) -> "Mixture":
        whole, index = self.broadcast(), (*index, slice(None))
        return Mixture(logits=whole.logits[index], components=whole.components._at(index))

    def log_weights(self) -> jax.Array:
        """Return the logarithms of the normalised weights, of shape ``batch_shape`` + (components,)."""
        shape = self._shape()
        return jnp.broadcast_to(jax.nn.log_softmax(arguments.as_jax(self.logits, self.dtype)), shape)

    def _each(self, caller: str, method: Callable[[jax.Array], jax.Array], value: ArrayLike) -> jax.Array:
        """Evaluate a `method` of all components at `value`, along a new last axis."""
        value = arguments.as_jax(arguments.parameter(f"Mixture.{caller}", "value", value))
        return method(jnp.expand_dims(value, -1 - len(self.event_shape)))

    def _joint(self, caller: str, value: ArrayLike) -> jax.Array:
        """Return the logarithm of each term w_j p_j of the density at `value`, along a new last axis."""
        return em.log_of_term(self.log_weights(), self._each(caller, self._weighted().log_prob, value))

    def _weighted(self) -> Distribution:
        """Return the components, with the parameters of those of weight 0 replaced, since they may be NaN."""
        components: Distribution = weighted(self.broadcast())
        return components

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density at `value`, without underflow or overflow of its terms."""
        value = arguments.as_jax(arguments.parameter("Mixture.log_prob", "value", value))
        compute = log_prob_by_component if self._shape()[-1] <= UNROLLED else log_prob_of_many
        logs: jax.Array = compute(self.broadcast(), value)
        return logs

    def prob(self, value: ArrayLike) -> jax.Array:
        """Return the density at `value`."""
        weights, probs = em.promote_and_broadcast(self.probs, self._each("prob", self._weighted().prob, value))
        return jnp.sum(weights * jnp.where(weights == 0, 0, probs), -1)

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the probability of an angle between -pi, or `start`, and `value`; every full turn adds 1.

        The components have no common `loc` from which to count. The absolute error is 3 ulp of 1.
        """
        each = functools.partial(self._weighted().cdf, start=self._start("cdf", start))
        return self._mean_of("cdf", each, value)

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return 1 - `cdf`, the probability of an angle between `value` and pi, as accurate as `cdf`."""
        each = functools.partial(self._weighted().sf, start=self._start("sf", start))
        return self._mean_of("sf", each, value)

    def _start(self, method: str, start: ArrayLike | None) -> jax.Array:
        """Return the angle from which to count, with an axis of components."""
        start = -np.pi if start is None else arguments.parameter(f"Mixture.{method}", "start", start)
        return jnp.expand_dims(arguments.as_jax(start), -1)

    def _mean_of(self, method: str, each: Callable[[jax.Array], jax.Array], value: ArrayLike) -> jax.Array:
        """Return the mean over the components of a method at `value`."""
        weights, found = em.promote_and_broadcast(self.probs, self._each(method, each, value))
        return jnp.sum(weights * found, -1)

    def icdf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle in [-pi, pi), or [start, start + 2 pi], with probability `q` below it.

        The result is NaN for `q` outside [0, 1]. The probability below it differs from `q` by at most 6 ulp of 1, or
        the angle is within 4 ulp. First derivatives are exact, with respect to `q` and all parameters, in forward and
        reverse mode.
        """
        compute = arguments.compute_dtype(self.dtype)
        low = -largest_angle(compute) if start is None else arguments.parameter("Mixture.icdf", "start", start)
        q, low = (arguments.as_jax(x, compute) for x in (arguments.parameter("Mixture.icdf", "q", q), low))
        mixture = jax.tree.map(lambda leaf: arguments.as_jax(leaf, compute), self)
        shape = jnp.broadcast_shapes(q.shape, low.shape, self.batch_shape)
        high = -low if start is None else low + 2 * np.pi
        x: jax.Array = quantile(mixture, *(jnp.broadcast_to(x, shape) for x in (q, low, high)), from_pi=start is None)
        return x.astype(self.dtype)

    def isf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle with probability `q` above it, the inverse of `sf`, as `icdf` does."""
        if hasattr(self.components, "moment"):
            return super().isf(q, start=start)
        return self.icdf(1 - arguments.as_jax(arguments.parameter("Mixture.isf", "q", q), self.dtype), start=start)

    def responsibilities(self, value: ArrayLike) -> jax.Array:
        """Return the probability of each component given `value`, along a new last axis."""
        return em.posterior(self._joint("responsibilities", value))

    def predict(self, samples: ArrayLike) -> jax.Array:
        """Return the index (int32) of the most probable component of each sample; -1 for a sample that is NaN."""
        joint = self._joint("predict", samples)
        return jnp.where(jnp.any(jnp.isnan(joint), -1), -1, jnp.argmax(joint, -1)).astype(jnp.int32)

    def log_likelihood(
        self, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> jax.Array:
        """Return the sum of `log_prob` over samples, times their weights.

        Parameters
        ----------
        samples : array
            Samples as `log_prob` takes them, which broadcast with the batch of mixtures.
        weights : array, optional
            Weight of each sample, 0 or more, as in `fit`. A sample of weight 0 is ignored, also NaN.
        axis : int or tuple of ints, optional
            Axes to sum over, of the broadcast samples without the axes of an event; all by default.
        """
        return summed("Mixture.log_likelihood", self, samples, weights, axis)[0]

    def bic(
        self,
        samples: ArrayLike,
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
        *,
        parameters: int | None = None,
    ) -> jax.Array:
        """Return the Bayesian information criterion, p log(n) - 2 `log_likelihood`; smaller is better.

        The number n of observations is the sum of the weights. Without `parameters`, the number p of estimated
        parameters is that of a `fit` of all of them: of the weights but one, and of each component. Give it after a fit
        with `tied` or `fixed`. The other arguments are those of `log_likelihood`.
        """
        value, size = summed("Mixture.bic", self, samples, weights, axis)
        return free_parameters("Mixture.bic", self, parameters) * jnp.log(size) - 2 * value

    def aic(
        self,
        samples: ArrayLike,
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
        *,
        parameters: int | None = None,
    ) -> jax.Array:
        """Return Akaike's information criterion, 2 p - 2 `log_likelihood`, with the arguments of `bic`."""
        value, _ = summed("Mixture.aic", self, samples, weights, axis)
        return 2 * free_parameters("Mixture.aic", self, parameters) - 2 * value

    def standard_errors(self, samples: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
        """Return the standard errors of the parameters of a fit to `samples`, from the observed information.

        The information is minus the matrix of second derivatives of the log likelihood with respect to all weights and
        parameters, also those that the fit held or tied. The errors are good near a maximum with many samples for each
        component. They are NaN where the matrix is not positive definite: at a component of weight 0 or concentration
        0, for two equal components, and often at a component that stopped at `largest_concentration`.

        Parameters
        ----------
        samples : array
            The samples of the fit, of one data set.
        weights : array, optional
            Number of observations that each sample stands for, as in `fit`.

        Returns
        -------
        Estimate
            `probs`, of shape (components,), and `components`, a named tuple with a field for each parameter, such as
            `loc` in radians and `concentration`, of the shape of the parameter. The error of a mean direction is an
            angle in radians, the root mean square over the tangents, of shape (components,).

        Raises
        ------
        TypeError
            For components of which `fit` fits no mixtures, and for a mixture with a batch.
        """
        caller = "Mixture.standard_errors"
        kind, whole = says_how_to_fit(type(self.components)), self.broadcast()
        if kind is None or len(jax.tree.leaves(whole.components)) != len(kind.CLUSTERING.estimate._fields):
            raise TypeError(
                f"{caller}: standard errors of a mixture of {type(self.components).__name__} are not supported. "
                f"Components may be {names_of_fitted()}; otherwise, fit bootstrap samples."
            )
        if whole.batch_shape:
            raise TypeError(
                f"{caller}: batch_shape={whole.batch_shape} must be (). Index the batch, one after the other."
            )
        samples, how = checked_samples(caller, self, samples), kind.CLUSTERING
        sets = WeightedSets.of(caller, "sample", samples, weights, None, event_ndim=len(self.event_shape))
        compute = arguments.compute_dtype(self.dtype)
        whole = jax.tree.map(lambda leaf: arguments.as_jax(leaf, compute), whole)
        errors = errors_of_mixture(whole, sets.padded(), directions=how.directions)
        probs, *each = (error.astype(self.dtype) for error in errors)
        return Estimate(probs, how.estimate(*each))

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        self._shape()
        component, values = self.components.broadcast()._drawn_by()
        return mixture_of(component), {"logits": self.logits} | values

    @property
    def probs(self) -> jax.Array:
        """The normalised weights, of shape ``batch_shape`` + (components,)."""
        return jnp.exp(self.log_weights())

    def mean(self) -> jax.Array:
        """Return the mean direction in radians, the direction of the mean of (cos x, sin x).

        For directions, return the mean vector, as `VonMisesFisher.mean` does.
        """
        means = self._unit_means()
        return means[0] if len(means) == 1 else von_mises.mean(jnp.arctan2(*reversed(means)), 1.0)

    def mean_resultant_length(self) -> jax.Array:
        """Return the length of the mean of (cos x, sin x), for each angle of a point, or of the mean vector."""
        means = self._unit_means()
        return jnp.sqrt(jnp.sum(jnp.square(means[0]), -1)) if len(means) == 1 else jnp.hypot(*means)

    def variance(self) -> jax.Array:
        """Return the circular variance of each angle, or that of directions, 1 - `mean_resultant_length`.

        For components of one angle, it is a sum of positive terms, without cancellation. For others, the absolute error
        is 2 ulp of 1.
        """
        if self.event_shape:
            return jnp.maximum(1 - self.mean_resultant_length(), 0)
        components = self._weighted()
        half = jnp.sin(0.5 * (components.mean() - self.mean()[..., None]))
        weights, half, within = em.promote_and_broadcast(self.probs, half, components.variance())
        terms = within + (1 - within) * (2 * half * half)
        return jnp.sum(weights * jnp.where(weights == 0, 0, terms), -1)

    def _of_vectors(self) -> bool:
        return self.components._of_vectors()

    def _unit_means(self) -> tuple[jax.Array, ...]:
        weights = self.probs
        weights = weights.reshape(weights.shape + (1,) * len(self.event_shape))
        weights, *means = em.promote_and_broadcast(weights, *self._weighted()._unit_means())
        axis = -1 - len(self.event_shape)
        return tuple(jnp.sum(weights * jnp.where(weights == 0, 0, each), axis) for each in means)

    @classmethod
    @loop_on_host("Mixture.fit")
    def fit(
        cls,
        samples: ArrayLike,
        components: "type[Distribution] | Mixture",
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
        *,
        number: int | None = None,
        key: ArrayLike | None = None,
        starts: int = 8,
        steps: int = 500,
        tolerance: float = 1e-6,
        largest_concentration: float = 1e4,
        tied: bool = False,
        fixed: "Mixture | None" = None,
        progress: bool = False,
    ) -> "Mixture":
        """Fit a mixture by expectation maximisation; no step decreases the likelihood.

        The fit is a loop on the host over compiled steps, so it cannot run inside `jit`, `vmap` or `grad`; `axis` fits
        several data sets at once. Another number of samples or components needs no compilation until it exceeds the
        next power of two; another number of data sets does.

        Parameters
        ----------
        samples : array
            Angles in radians. For `Torus` and pairs of angles, the last axis holds the angles of a point. For
            `VonMisesFisher`, it holds the components of a vector, of which only the direction is used.
        components : class or Mixture
            A class such as `VonMises`, `Torus`, `VonMisesFisher` or `SineBivariateVonMises`, to fit `number` components
            of it from several random starts, or a mixture of one to start from. The error for another class names all.
        weights : array, optional
            Weight of each sample, 0 or more; broadcasts with `samples` without the axis of a point's angles, or is
            one-dimensional along a single `axis`. A sample of weight 0 is ignored, also NaN and zero vectors. Weights
            below the smallest normal float (1e-38 in float32) count as 0.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting that of a point's angles, to estimate over; all by default. The other axes
            index separate data sets, and become the batch of the result.
        number : int, optional
            Number of components, if `components` is a class.
        key : jax.Array, optional
            Random key of the starts; ``jax.random.key(0)`` by default, so that fits are reproducible.
        starts : int
            Number of starts. Each takes a few steps, on 2^14 of the samples if there are more, or on fewer, down to
            2^12, above 32 dimensions. The one with the largest likelihood continues. The starts are spread over the
            samples, as in k-means++. For pairs of angles, every second start has random locations and correlations.
            With up to 128 samples, which have many local maxima, there are 8 times as many starts, except for pairs.
        steps : int
            Largest number of steps.
        tolerance : float
            The fit ends when a step increases the mean log likelihood by no more than this; finite. With a negative
            number, it takes all `steps`.
        largest_concentration : float
            Largest concentration of a component, also of the start, above 0 and finite. Without this limit, the
            likelihood would be unbounded for a component on a single sample. Directions in d dimensions that are close
            together have a concentration of about (d - 1) / (2 (1 - c)), with the mean c of the cosine of the angle to
            their mean direction.
        tied : bool
            Give all components of a mixture the same concentration (for each angle, on a torus). Pairs have no such
            fit.
        fixed : Mixture, optional
            A mixture of the same class and number of components that holds weights and parameters: numbers are held,
            and NaN is estimated. For example, ``Mixture(probs=[nan, nan], components=VonMises([nan, 0], [nan, 0]))``
            has a uniform background. Held weights are probabilities (with `logits`, their logarithms), and the others
            share the rest. A mean direction is held or estimated as a vector, and a pair's component with all its
            parameters. Held concentrations may exceed `largest_concentration`; with `tied`, the others are equal.
        progress : bool
            Show the number of steps taken, with tqdm (``pip install tqdm``).

        Returns
        -------
        Mixture
            The best mixture found. With several starts, a poor local maximum is unlikely but possible. NaN where a data
            set has no samples, no positive weight or a negative weight.

        Warns
        -----
        UserWarning
            If the concentration of a component stopped at `largest_concentration`, or if there are fewer distinct
            samples than components; once for each reason. Also for angles that look like degrees.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C; the exception's attribute ``best`` is the best mixture so far, or None before the first step.
        TypeError, ValueError
            For invalid arguments, for a sample of positive weight that is a zero vector or not finite (the message
            gives its index), and inside `jit`, `vmap` or `grad`.

        Examples
        --------
        >>> import jax
        >>> from jax_von_mises import Mixture, VonMises
        >>> truth = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 1.5], [8.0, 3.0]))
        >>> found = Mixture.fit(truth.sample(jax.random.key(1), (5000,)), VonMises, number=2)
        >>> found.batch_shape, found.logits.shape
        ((), (2,))
        """
        caller = "Mixture.fit"
        start = components if isinstance(components, Mixture) else None
        kind = says_how_to_fit(type(start.components) if start is not None else components)
        if isinstance(samples, type | Mixture):
            raise TypeError(
                f"{caller}: samples={arguments.safe_repr(samples)} must be an array of angles. The samples come first: "
                "Mixture.fit(samples, components, ...)."
            )
        if kind is None or (start is None and components is not kind):
            raise TypeError(
                f"{caller}: components={arguments.safe_repr(components)} must be one of the classes {names_of_fitted()}"
                ", or a Mixture of one of these to start from."
            )
        if start is None and number is None and isinstance(weights, int):
            raise TypeError(
                f"{caller}: {weights!r} was taken for `weights`, the third argument. Give the number of components by "
                f"name: Mixture.fit(samples, {kind.__name__}, number={weights!r})."
            )
        if (start is None) == (number is None):
            raise TypeError(f"{caller}: give `number`, the number of components, with a class, and not with a Mixture.")
        counts = {"starts": starts, "steps": steps} | ({} if number is None else {"number": number})
        counts = {name: arguments.whole_number(caller, name, value, 1, 2**31) for name, value in counts.items()}
        starts, steps = counts["starts"] if start is None else 0, counts["steps"]
        shown, tied = progress_of(caller, progress), arguments.flag(caller, "tied", tied)
        tolerance = arguments.finite_number(caller, "tolerance", tolerance)
        largest = arguments.finite_number(caller, "largest_concentration", largest_concentration, above=0)
        samples = arguments.parameter(caller, "samples", samples)
        shape, how = np.shape(samples), kind.CLUSTERING
        model = how.model(caller, samples, tied)
        if start is not None and start.event_shape and shape[-1:] != start.event_shape:
            raise ValueError(
                f"{caller}: samples has shape {shape}, but the components of the mixture have {start.event_shape[0]} "
                f"{'components' if how.directions else 'angles'}, which must be the length of the last axis."
            )
        sets = WeightedSets.of(caller, "sample", samples, weights, axis, event_ndim=how.event_ndim)
        if not how.directions:
            warn_of_degrees(caller, sets.samples)
        host = HostSets.of(caller, sets, directions=how.directions)
        warn_of_few(caller, host, counts["number"] if start is None else start._shape()[-1])
        held = None
        if fixed is not None:
            held = held_by(caller, fixed, kind, model, sets, counts["number"] if start is None else start)
        good, copies = host.good, em.copies_of(model, *host.share.shape) if starts > 0 else 1
        if copies > 1:
            host, starts = host.repeated(copies), -(-em.MORE_STARTS * starts // copies)
        held = held and held.repeated(copies)
        data = few = em.Data(model, *host.on_device(), largest, held, copies)
        key = jax.random.key(0) if key is None else arguments.one_key(caller, key)
        generator = np.random.default_rng(np.ravel(jax.random.key_data(key)))
        if starts > 0:
            places = em.places_of(host.x.shape[2], counts["number"])
            if host.x.shape[1] > places:
                host = host.some(places, generator)
                few = em.Data(model, *host.on_device(), largest, held)

        def first(i: int) -> em.Terms:
            if start is not None:
                terms = terms_of(start, sets.kept, how)
                completed = model.completed(terms.parameters, largest, host.dtype)
                return data.holding(terms._replace(parameters=completed))
            return em.seeds(data, host, generator, counts["number"], odd=i % 2 == 1)

        def result(terms: em.Terms) -> Mixture:
            warn_of_limit(caller, model, terms, good, data)
            return mixture_from(kind, terms, good, sets)

        found: Mixture = em.fit(data, few, first, starts, steps, tolerance, result, shown)
        return found


@functools.partial(jax.jit, static_argnames="directions")
def errors_of_mixture(mixture: Mixture, sets: WeightedSets, directions: bool) -> list[jax.Array]:
    """Return the standard errors of the weights and of the leaves of the components of a mixture without a batch."""
    leaves, structure = jax.tree.flatten(mixture.components)
    log_weights = mixture.log_weights()
    number, dtype = log_weights.shape[0], log_weights.dtype
    x, share = sets.rows()
    x = jnp.moveaxis(x, -1, 0).astype(dtype)
    # Changes of the logits that do not change their sum.
    contrasts = tangents_of(jnp.full(number, number**-0.5, dtype))
    none = [jnp.zeros(number - 1, dtype), *map(jnp.zeros_like, leaves)]
    if directions:
        means = leaves[0] / jnp.linalg.norm(leaves[0], axis=-1, keepdims=True)
        tangents = jax.vmap(tangents_of)(means)
        none[1] = none[1][:, 1:]
    start, unravel = ravel_pytree(none)

    def mean_log_prob(numbers: jax.Array) -> jax.Array:
        change, *moves = unravel(numbers)
        moved = [leaf + move for leaf, move in zip(leaves[directions:], moves[directions:], strict=True)]
        if directions:
            moved = [means + jnp.einsum("jdi,ji->jd", tangents, moves[0], precision=lax.Precision.HIGHEST), *moved]
        at = Mixture(logits=log_weights + contrasts @ change, components=jax.tree.unflatten(structure, moved))
        return total(share * jnp.where(share > 0, at.log_prob(x), 0))

    root = root_of_covariance(mean_log_prob, start, sets.observations())
    weights = jnp.exp(log_weights)
    of_weights = weights[:, None] * (contrasts - (weights @ contrasts)[None])
    probs = jnp.sqrt(jnp.sum(jnp.square(root[:, : number - 1] @ of_weights.T), 0))
    _, *errors = unravel(jnp.sqrt(jnp.sum(jnp.square(root), 0)))
    if directions:
        errors[0] = jnp.sqrt(jnp.mean(jnp.square(errors[0]), -1))
    return [probs + 0 * jnp.sum(root), *errors]


def tangents_of(unit: jax.Array) -> jax.Array:
    """Return the columns of an orthonormal basis of the plane that is orthogonal to a `unit` vector, (d, d - 1)."""
    mirror = unit.at[0].add(jnp.where(unit[0] < 0, -1, 1).astype(unit.dtype))
    basis = jnp.eye(len(unit), dtype=unit.dtype) - 2 * jnp.outer(mirror, mirror) / jnp.sum(jnp.square(mirror))
    return basis[:, 1:]


def summed(
    caller: str, mixture: Mixture, samples: ArrayLike, weights: ArrayLike | None, axis: int | Sequence[int] | None
) -> tuple[jax.Array, jax.Array]:
    """Return the log likelihoods of samples, and the sums of the weights."""
    event = mixture.event_shape
    samples = arguments.as_jax(checked_samples(caller, mixture, samples), mixture.dtype)
    shape = np.shape(samples)[: samples.ndim - len(event)]
    try:
        shape = jnp.broadcast_shapes(shape, mixture.batch_shape)
    except ValueError as error:
        raise ValueError(
            f"{caller}: samples of shape {samples.shape} and batch_shape={mixture.batch_shape} do not broadcast "
            "together. Insert axes of length 1 to make them broadcast."
        ) from error
    samples = jnp.broadcast_to(samples, shape + event)
    sets = WeightedSets.of(caller, "sample", samples, weights, axis, event_ndim=len(event))
    value, size = weighted_sum(mixture.log_prob(samples), sets)
    return value, size


@jax.jit
def weighted_sum(logs: jax.Array, sets: WeightedSets) -> tuple[jax.Array, jax.Array]:
    """Return the weighted sums of `logs` over the axes of the data sets, and the sums of the weights."""
    if sets.weights is not None:
        weights = jnp.broadcast_to(jnp.asarray(sets.weights, logs.dtype), logs.shape)
        logs = nan_unless(jnp.where(weights == 0, 0, weights * logs), weights >= 0)
    return total(merged(logs, sets.axes)), sets.observations().astype(logs.dtype)


def free_parameters(caller: str, mixture: Mixture, given: int | None) -> int:
    """Return how many parameters a fit estimates, if it is not `given`."""
    if given is not None:
        return arguments.whole_number(caller, "parameters", given, 0, 2**31)
    components, number = mixture.components, mixture._shape()[-1]
    one = getattr(components, "components", components)  # of a torus, the distribution of its angles
    declared = getattr(one, "PARAMETERS", ())
    if not declared or any(each.event_rank and each.values != "direction" for each in declared):
        raise TypeError(
            f"{caller}: give `parameters`, the number of estimated parameters, since that of a mixture of "
            f"{type(components).__name__} is not known."
        )
    each = sum(not parameter.event_rank for parameter in declared)
    if one is not components:
        each *= math.prod(mixture.event_shape)
    # A direction has one number less than its vector, and one that is orthogonal to another, two.
    directions = sum(parameter.event_rank for parameter in declared)
    each += sum(mixture.event_shape[-1] - 1 - k for k in range(directions))
    return number * (each + 1) - 1


def progress_of(caller: str, progress: object) -> Callable[[Iterator[None]], Iterable[None]]:
    """Return a function that passes steps on, with a count of them on the screen if `progress` is true."""
    if not arguments.flag(caller, "progress", progress):
        return lambda turns: turns
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(f"{caller}: progress=True needs tqdm: pip install tqdm") from error
    return functools.partial(tqdm, desc=caller, unit=" steps")


def held_by(caller: str, fixed: Any, kind: Any, model: em.Model, sets: WeightedSets, like: "int | Mixture") -> em.Terms:
    """Return the weights and parameters that `fixed` holds, NaN elsewhere, for a number of components or a start."""
    if not isinstance(fixed, Mixture) or says_how_to_fit(type(fixed.components)) is not kind:
        raise TypeError(
            f"{caller}: fixed={arguments.safe_repr(fixed)} must be a Mixture of {kind.__name__} that has the numbers "
            "to hold, and NaN where to estimate."
        )
    number = like if isinstance(like, int) else like._shape()[-1]
    length = np.shape(sets.samples)[-1:] if fixed.event_shape else ()
    if fixed._shape()[-1] != number or fixed.event_shape != length:
        raise ValueError(
            f"{caller}: fixed has {fixed._shape()[-1]} components of event_shape={fixed.event_shape}, but the fit has "
            f"{number} of event_shape={length}. Give one component for each, with NaN where to estimate."
        )
    vectors = np.isnan(fixed.components.mean_direction) if kind.CLUSTERING.directions else np.zeros(1)
    if np.any(vectors.any(-1) != vectors.all(-1)):
        raise ValueError(f"{caller}: fixed holds a part of a mean direction. Give all its components, or NaN for all.")
    parameters = terms_of(fixed, sets.kept, kind.CLUSTERING).parameters
    log_weights = terms_of(fixed, sets.kept, kind.CLUSTERING, normalised=False).log_weights
    if np.isinf(parameters).any() or (log_weights == np.inf).any():
        raise ValueError(f"{caller}: fixed holds an infinite number. Give finite ones, and NaN where to estimate.")
    free = np.isnan(log_weights)
    held = np.sum(np.exp(np.where(free, -np.inf, log_weights)), 1)
    if np.any((held >= 1) & free.any(1)) or np.any((np.abs(held - 1) > 1e-3) & ~free.any(1)):
        raise ValueError(
            f"{caller}: the weights that fixed holds sum to {held[np.argmax(np.abs(held - 1))]:g}. Held weights must "
            "sum to 1 if all are held, and to less otherwise."
        )
    log_weights = log_weights - np.log(np.where(free.any(1), 1, held))[:, None]
    return em.Terms(log_weights, model.held(caller, parameters, arguments.compute_dtype(sets.dtype)))


def warn_of_few(caller: str, host: HostSets, number: int) -> None:
    """Warn once if a data set has fewer distinct samples of positive weight than the `number` of components.

    Angles that differ by full turns, or samples by rounding, are not distinct.
    """
    digits = int(-np.log10(8 * np.finfo(host.dtype).eps))
    for x, share in zip(host.x[host.good], host.share[host.good], strict=True):
        used = np.round(turns_removed(x[share > 0]), digits)
        # The first samples nearly always are enough.
        if any(len(np.unique(some, axis=0)) >= number for some in (used[: 2 * number], used)):
            continue
        warnings.warn(
            f"{caller}: there are fewer distinct samples ({len(np.unique(used, axis=0))}) than components ({number}), "
            "so several components fit the same ones. Fit fewer components, or give more samples.",
            UserWarning,
            stacklevel=depth_of_caller(),
        )
        return


def warn_of_limit(caller: str, model: em.Model, terms: em.Terms, good: Array, data: em.Data) -> None:
    """Warn once if estimated concentrations stopped at the largest one."""
    place, flat = model.of_concentrations, terms.log_weights.shape + (-1,)
    at = np.abs(terms.parameters[place].reshape(flat)) >= data.largest
    if data.held is not None:
        at &= np.isnan(data.held.parameters[: len(at)][place].reshape(flat))
    at = at.any(-1) & (terms.log_weights > -np.inf) & good[:, None]
    if at.any():
        first, component = np.argwhere(at)[0]
        where = f"component {component}" + (f" of data set {first}" if len(at) > 1 else "")
        others = f", and {at.sum() - 1} more did" if at.sum() > 1 else ""
        warnings.warn(
            f"{caller}: the concentration of {where} stopped at largest_concentration={data.largest:g}{others}. It may "
            "be on a single sample or on equal ones. Fit fewer components, or give a smaller largest_concentration; if "
            "the samples are that close together, give a larger one.",
            UserWarning,
            stacklevel=depth_of_caller(),
        )


def terms_of(start: Mixture, kept: tuple[int, ...], how: em.Clustering, normalised: bool = True) -> em.Terms:
    """Return a mixture as the start of each of the data sets `kept`; weights are not `normalised` if some are NaN."""
    first = start.broadcast()
    wanted, behind = kept + first._shape()[-1:], len(first.batch_shape) + 1

    def spread(values: ArrayLike) -> Array:
        values = np.asarray(values, np.float64)
        event = values.shape[behind:]
        return np.broadcast_to(values, wanted + event).reshape(math.prod(kept), wanted[-1], *event)

    log_weights = first.log_weights() if normalised else first.logits
    return em.Terms(spread(log_weights), spread(how.parameters(first.components)))


def mixture_from(kind: Any, terms: em.Terms, good: Array, sets: WeightedSets) -> Mixture:
    """Return fitted mixtures, NaN for the data sets that are not `good`."""

    def shaped(values: Array) -> Array:
        values = np.where(good.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)
        return values.reshape(*sets.kept, *values.shape[1:])

    logits, parameters = map(shaped, terms)
    found = Mixture(logits=logits, components=kind.CLUSTERING.distribution(kind, parameters))
    mixture: Mixture = jax.tree.map(lambda leaf: jax.device_put(leaf.astype(sets.dtype)), found)
    return mixture


def says_how_to_fit(kind: Any) -> Any:
    """Return the class, or the base class, that says how mixtures of it are fitted; None if there is none."""
    return next((base for base in getattr(kind, "__mro__", ()) if "CLUSTERING" in vars(base)), None)


def names_of_fitted() -> str:
    """Return the names of the classes of which mixtures can be fitted, for a message."""

    def below(kind: type) -> set[str]:
        own = {kind.__name__} if says_how_to_fit(kind) is kind else set()
        return own.union(*map(below, kind.__subclasses__()))

    return " or ".join(", ".join(sorted(below(Distribution))).rsplit(", ", 1))


def with_same_axes(logits: Any, components: Any) -> tuple[Any, Any]:
    """Return weights and components with the same number of axes, of which length 1 makes up for missing ones."""
    known = isinstance(components, Distribution) and all(map(arguments.is_known, jax.tree.leaves((logits, components))))
    if not known or not components.batch_shape:
        return logits, components
    ndim = max(np.ndim(logits), len(components.batch_shape))
    return (arguments.with_axes(logits, ndim, logits.dtype) if np.ndim(logits) else logits), components._aligned(ndim)


def check_components(components: Any) -> None:
    """Refuse components that are not a distribution with a batch; other objects may stand for one in a pytree."""
    if isinstance(components, list | tuple) and not isinstance(components, PartitionSpec):
        raise TypeError(
            f"Mixture: components={arguments.safe_repr(components)} must be one distribution whose last axis runs over "
            "the components, not a list. Write VonMises([0.0, 1.0], [2.0, 3.0]) for two components."
        )
    if isinstance(components, str | bytes | type):
        raise TypeError(
            f"Mixture: components={arguments.safe_repr(components)} must be a distribution, such as a VonMises with an "
            "axis of components."
        )
    if reason := why_not(components):
        name = f"{type(components).__module__}.{type(components).__name__}"
        raise TypeError(f"Mixture: components are a {name}, of which mixtures are not supported: {reason}.")


def why_not(components: Any) -> str | None:
    """Return why there is no mixture of an object that computes a density, or None if there is one."""
    if not isinstance(components, Distribution):
        return "give a distribution of jax_von_mises, such as a VonMises" if hasattr(components, "log_prob") else None
    if isinstance(components, Mixture):
        return "give all components to one mixture, with the products of the weights"
    known = all(map(arguments.is_known, jax.tree.leaves(components)))
    if known and not components.batch_shape and not components._broadcast_to((1,)).batch_shape:
        name = type(components).__name__
        return f"a {name} has no batch. Give a CircularDistribution the log density of the mixture"
    parts = (part for part in vars(components).values() if isinstance(part, Distribution))
    return next(filter(None, map(why_not, parts)), None)


def check_weights(name: str, weights: Any) -> None:
    """Refuse invalid `probs` or `logits`; traced weights are not checked, since their values are unknown."""
    weights = arguments.parameter("Mixture", name, weights)
    if isinstance(weights, jax.core.Tracer):
        return
    weights = np.asarray(weights, np.float64)
    probs = name == "probs"
    good = (weights >= 0) & (weights < np.inf) if probs else weights < np.inf
    if not np.all(good):
        allowed = "at least 0 and finite" if probs else "finite or -inf"
        raise ValueError(f"Mixture: {name} contains {weights[~good].flat[0]:g}, but must be {allowed}.")
    if weights.ndim and np.any(np.all(weights == (0 if probs else -np.inf), -1)):
        raise ValueError(f"Mixture: {name} gives all components the weight 0. Give at least one a positive weight.")


@jax.jit
def weighted(mixture: Mixture) -> Distribution:
    """Return the components of a broadcast mixture; the parameters of those of weight 0 become 0, but vectors ones."""
    none = mixture.log_weights() == -jnp.inf

    def chosen(leaf: jax.Array) -> jax.Array:
        of_leaf = jnp.broadcast_to(none.reshape(*none.shape, *[1] * (leaf.ndim - none.ndim)), leaf.shape)
        return jnp.where(of_leaf, int(leaf.ndim > none.ndim), leaf)

    components: Distribution = jax.tree.map(chosen, mixture.components)
    return components


@jax.jit
def log_prob_by_component(mixture: Mixture, value: jax.Array) -> jax.Array:
    """Compute `Mixture.log_prob` of a broadcast mixture in one loop over the values, without sums over short rows."""
    log_weights, components = mixture.log_weights(), weighted(mixture)
    joint = []
    for j in range(log_weights.shape[-1]):
        component = components._at((..., j))
        joint.append(em.log_of_term(log_weights[..., j], component.log_prob(value)))
    top = finite(lax.stop_gradient(functools.reduce(jnp.maximum, joint)))
    return top + jnp.log(sum(jnp.exp(term - top) for term in joint))


@jax.jit
def log_prob_of_many(mixture: Mixture, value: jax.Array) -> jax.Array:
    """Compute `Mixture.log_prob` of a broadcast mixture, with the components along the first axis of each array.

    The loops over the values are then long, and what belongs to one value or to one component is computed once.
    """
    given, axis = (mixture.log_weights(), weighted(mixture)), len(mixture.batch_shape)
    joint = jax.vmap(lambda log_weight, one: em.log_of_term(log_weight, one.log_prob(value)), axis)(*given)
    logs: jax.Array = log_of_sum(joint)
    return logs


@jax.custom_jvp
def log_of_sum(logs: jax.Array) -> jax.Array:
    """Return the logarithm of the sum of exp(`logs`) over the first axis, without underflow or overflow."""
    top = finite(over_rows(jnp.maximum, logs[0], logs))
    return top + jnp.log(over_rows(lambda total, row: total + jnp.exp(row - top), jnp.zeros_like(top), logs))


@log_of_sum.defjvp
def _log_of_sum_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    total = log_of_sum(*primals)
    return total, jnp.sum(jnp.exp(primals[0] - finite(total)[None]) * tangents[0], 0)


def finite(logs: jax.Array) -> jax.Array:
    """Return `logs` with 0 in place of infinities and NaN."""
    return jnp.where(jnp.isfinite(logs), logs, 0)


def over_rows(combine: Callable[[jax.Array, jax.Array], jax.Array], start: jax.Array, rows: jax.Array) -> jax.Array:
    """Combine `start` with one row after the other, several in each turn of a loop; XLA:CPU reduces columns slowly."""
    combined: jax.Array = lax.scan(lambda found, row: (combine(found, row), None), start, rows, unroll=UNROLLED)[0]
    return combined


@jax.jit
def log_of_weights(probs: jax.Array) -> jax.Array:
    """Return the logarithms of weights, at least in float32; a weight of 0 has the derivative 0, like its logit."""
    probs = jnp.asarray(probs, arguments.compute_dtype(arguments.float_dtype("Mixture", None, [probs])))
    logs = jnp.log(jnp.where(probs > 0, probs, 1))
    return jnp.where(probs > 0, logs, jnp.where(probs == 0, -jnp.inf, jnp.nan))


@functools.partial(jax.jit, static_argnames="from_pi")
def quantile(mixture: Mixture, q: jax.Array, low: jax.Array, high: jax.Array, from_pi: bool) -> jax.Array:
    """Solve ``mixture.cdf(x) = q`` between `low` and `high` by Newton's method, safeguarded by a bracket.

    The cdf counts from `low` unless `from_pi` is true.
    """
    at, fixed = lax.stop_gradient(q), lax.stop_gradient(mixture)
    start = None if from_pi else lax.stop_gradient(low)
    ends = lax.stop_gradient((low, high))

    def unsolved(state: tuple[jax.Array, ...]) -> jax.Array:
        count, _, _, x, step = state
        return (count < MOST_STEPS) & jnp.any(jnp.abs(step) > jnp.finfo(x.dtype).eps * jnp.abs(x))

    def closer(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        count, low, high, x, before = state
        excess = fixed.cdf(x, start=start) - at
        low, high = jnp.where(excess < 0, x, low), jnp.where(excess < 0, high, x)
        newton = excess / fixed.prob(x)
        # Halve the bracket where Newton's step leaves it, is more than half as long as the step before, or is 0 at a
        # point mass.
        good = (newton != 0) & (x - newton >= low) & (x - newton <= high) & (2 * jnp.abs(newton) <= jnp.abs(before))
        step = jnp.where(good, newton, x - (low + 0.5 * (high - low)))
        step = jnp.where((excess == 0) | jnp.isnan(excess), 0, step)
        return count + 1, low, high, x - step, step

    first: tuple[jax.Array, ...] = (jnp.zeros((), jnp.int32), *ends, 0.5 * (ends[0] + ends[1]), 2 * (ends[1] - ends[0]))
    x = lax.while_loop(unsolved, closer, first)[3]
    # A step of length 0 has the derivatives, which are 0 where the density underflows.
    density = fixed.prob(x)
    excess = mixture.cdf(x, start=None if from_pi else low) - q
    step = jnp.where(density > 0, excess / jnp.where(density > 0, density, 1), 0)
    x = jnp.where(at == 0, ends[0], jnp.where(at == 1, ends[1], x)) - (step - lax.stop_gradient(step))
    return nan_unless(x, (at >= 0) & (at <= 1) & ~jnp.isnan(density))

"""Define `TruncatedVonMises`, the von Mises distribution restricted to an arc."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import OfAngles, Parameter, Parametric
from jax_von_mises.engine.likelihood import errors_of_samples
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.samples import WeightedSets, warn_of_degrees
from jax_von_mises.von_mises import truncated, truncated_fit
from jax_von_mises.von_mises.fitting import Estimate
from jax_von_mises.von_mises.truncated_draw import TRUNCATED, check_arc

NAMES = "loc", "concentration", "low", "high"


@pytree(*NAMES)
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class TruncatedVonMises(Parametric, OfAngles):
    r"""The von Mises distribution restricted to an arc: a density proportional to :math:`\exp(\kappa\cos(x-\mu))`.

    A frozen pytree, like `VonMises`. The arc runs counterclockwise from `low` to `high`. It may cross pi, contain the
    mode or the point opposite to it, be as narrow as floats allow, or lie so far out that its probability under the
    full distribution is below the smallest float.

    Parameters
    ----------
    loc : float or array
        Direction :math:`\mu` of the mode of the full distribution in radians, any finite number.
    concentration : float or array
        :math:`\kappa` in [0, inf]: 0 is the uniform distribution on the arc, and inf a point mass at the angle of the
        arc that is nearest to `loc`, as every concentration above 1e36 (1e300 in float64) is.
    low, high : float or array
        Ends of the arc in radians, 0 < high - low <= 2 pi. ``low=3, high=4`` crosses pi. All parameters broadcast.
    validate_args : bool
        Raise ValueError for invalid parameters, also ends that are not those of an arc, if their values are known.
        Otherwise, they give NaN.

    Notes
    -----
    *Accuracy.* The error of `log_prob` and `entropy` is at most 4e-6 (float32) or 1e-12 (float64) times
    max(1, abs(result)), beyond the effect of rounding the differences between angles. `cdf` and `sf` have this relative
    error, even where they are small; `icdf` and draws have that of `sample_truncated`. Angles up to 32 ulp of 1 outside
    the arc count as its ends.

    *Derivatives.* First derivatives are exact, with respect to all parameters and in both modes.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import TruncatedVonMises
    >>> distribution = TruncatedVonMises(loc=0.0, concentration=1e4, low=2.0, high=[2.5, 3.0])
    >>> x = distribution.sample(jax.random.key(0), (1000,))
    >>> x.shape, bool(((x >= 2) & (x < 2.01)).all()), distribution.log_prob(2.001).shape
    ((1000, 2), True, (2,))
    """

    loc: ArrayLike
    concentration: ArrayLike
    low: ArrayLike
    high: ArrayLike

    FAMILY = TRUNCATED
    PARAMETERS = (
        Parameter("loc", "angle"),
        Parameter("concentration", "nonnegative"),
        Parameter("low", "angle"),
        Parameter("high", "angle"),
    )
    SYMMETRIC = False

    def __init__(
        self,
        loc: ArrayLike,
        concentration: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        *,
        validate_args: bool = False,
    ) -> None:
        given = {"loc": loc, "concentration": concentration, "low": low, "high": high}
        self._assign(given, validate_args)
        if validate_args:
            own = self._parameters()
            check_arc("TruncatedVonMises", own["low"], own["high"], arguments.compute_dtype(self.dtype))

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
    ) -> "TruncatedVonMises":
        """Fit `loc` and `concentration` by maximum likelihood, for a known arc.

        Parameters
        ----------
        samples : array
            Angles in radians, on the arc.
        low, high : float or array
            Ends of the arc in radians, as in the constructor; one arc, or one for each data set.
        weights : array, optional
            Number of times that each angle was observed, 0 or more, also fractions; broadcasts to `samples`, or is
            one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes to estimate over; all by default. The other axes index separate data sets.

        Returns
        -------
        TruncatedVonMises
            The likelihood has a single maximum, unless all angles are equal, where the concentration is inf, or lie at
            both ends, where it is large. On an arc much narrower than 1 rad, both estimates are far from those of the
            full distribution: the data determine the slope and the bend of the log density on the arc, and `loc` may
            lie outside of it. Each of both has an error of at most 1e-6 of its standard error for one angle in float64,
            and 1e-3 in float32 for arcs of 0.1 rad or more. NaN for an angle outside the arc, for invalid ends, without
            angles, without positive weights, and for a negative weight.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of angles
        up to the next power of two.
        """
        caller = "TruncatedVonMises.fit"
        sets = WeightedSets.of(caller, "angle", samples, weights, axis)
        warn_of_degrees(caller, sets.samples)
        ends = truncated_fit.arc_of(caller, sets, low, high)
        return cls(*truncated_fit.fitted(sets.padded(), *ends), *(end.astype(sets.dtype) for end in ends))

    def standard_errors(self, samples: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
        """Return the standard errors of `loc` and `concentration` of a fit to `samples`, from the observed information.

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
        return Estimate(*errors_of_samples("TruncatedVonMises.standard_errors", self, samples, weights, 2))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    def _of(
        self, method: str, function: Callable[..., jax.Array], start: ArrayLike | None = None, **value: ArrayLike
    ) -> jax.Array:
        """Return a function of a value and the parameters, which counts from `start` if that is given."""
        result: jax.Array
        if start is None:
            result = self._compute(method, function, NAMES, (), value)
        else:
            result = self._compute(method, from_start, NAMES, (function,), {"start": start} | value)
        return result

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, which has period 2 pi; -inf outside the arc."""
        return self._of("log_prob", truncated.log_prob, value=value)

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the probability of an angle between `low`, or `start`, and `value`; every full turn adds 1."""
        return self._of("cdf", truncated.cdf, start, value=value)

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return 1 - `cdf`, as accurate in the other tail; every full turn subtracts 1."""
        return self._of("sf", truncated.sf, start, value=value)

    def icdf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle in [low, high], or from `start` on, with probability `q` below it.

        The result is NaN for `q` outside [0, 1].
        """
        return self._of("icdf", truncated.icdf, start, q=q)

    def isf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle with probability `q` above it, the inverse of `sf`, as `icdf` does."""
        return self._of("isf", truncated.isf, start, q=q)

    def mean(self) -> jax.Array:
        """Return the mean direction in radians, with an absolute error of a few ulp of pi."""
        return self._of("mean", truncated.mean)

    def mode(self) -> jax.Array:
        """Return the most likely angle in [-pi, pi), the angle of the arc that is nearest to `loc`."""
        return self._of("mode", truncated.mode)

    def mean_resultant_length(self) -> jax.Array:
        """Return the length of the mean of (cos x, sin x), with an absolute error of a few ulp of 1."""
        return self._of("mean_resultant_length", truncated.mean_resultant_length)

    def _unit_means(self) -> tuple[jax.Array, ...]:
        length, mean = self.mean_resultant_length(), self.mean()
        return length * jnp.cos(mean), length * jnp.sin(mean)

    def variance(self) -> jax.Array:
        """Return the circular variance, 1 - `mean_resultant_length`, with the same absolute error."""
        return 1 - self.mean_resultant_length()

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._of("entropy", truncated.entropy)


def from_start(function: Callable[..., jax.Array], start: jax.Array, *given: jax.Array) -> jax.Array:
    """Return a function of a value and the parameters, which counts from `start`."""
    return function(*given, start=start)

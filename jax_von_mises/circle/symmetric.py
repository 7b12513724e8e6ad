"""Define `WrappedCauchy`, `Cardioid` and `WrappedNormal`, distributions of an angle that are symmetric about `loc`."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density.distribution import OfDensity
from jax_von_mises.circle import fit, named
from jax_von_mises.circle import symmetric_draw as families
from jax_von_mises.circle.fit import OfLength, OfScale
from jax_von_mises.engine.base import OfAngles, Parameter, Parametric
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.numerics import symmetric
from jax_von_mises.numerics.circle import deviation
from jax_von_mises.von_mises import functions as von_mises


class Symmetric(Parametric, OfDensity):
    """Base class of distributions with two parameters, the mean direction `loc` and another one."""

    LAW: ClassVar[symmetric.Law]
    TAILS: ClassVar[symmetric.Tails]
    SHAPE: ClassVar[fit.Shape]

    @classmethod
    def fit(cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None) -> Self:
        """Fit the distribution by maximum likelihood.

        Parameters
        ----------
        samples : array
            Angles in radians.
        weights : array, optional
            Number of times that each angle was observed, 0 or more, also fractions; broadcasts to `samples`, or is
            one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes to estimate over; all by default. The other axes index separate data sets.

        Returns
        -------
        distribution
            Its `loc` is in [-pi, pi). Each estimate has an error of at most 1e-3 (float32) or 1e-6 (float64) of its
            standard error for one angle, besides the effect of the rounding of angles. Equal angles give the most
            concentrated distribution of the class. NaN without angles, without positive weights, for a negative weight,
            and for an angle that is not finite or beyond 2^24 rad (2^53 in float64).

            - `WrappedCauchy`: `rho` is 1, up to rounding, where more than half of the angles are equal. For two angles
              the likelihood is largest on a curve, and the result is its point halfway between them.
            - `Cardioid`: `rho` is 1/2 where the likelihood rises up to there.
            - `WrappedNormal`: for widely spread angles the likelihood may have several maxima; this is the one
              that lies uphill of the mean direction and length. Evenly spread angles give a `scale` above 3, which
              then has no more meaning than `loc`.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of angles
        up to the next power of two.
        """
        return cls(*fit.fit_angles(cls.__name__, cls.SHAPE, samples, weights, axis))

    def standard_errors(self, size: ArrayLike) -> OfLength | OfScale:
        """Return the standard errors of the estimates of `fit` from `size` angles, by the Fisher information.

        The two estimates are asymptotically independent. The error of `loc` is inf for the uniform distribution. At a
        bound (`rho` of 1, or 1/2 for `Cardioid`, or a `scale` of 0) the other error is 0, and means nothing. NaN for a
        negative `size`. The relative error is at most 1e-5 (float32) or 1e-12 (float64), for a `scale` up to 9.

        Parameters
        ----------
        size : float or array
            Number of angles, or the sum of their weights; broadcasts with the batch.
        """
        names = (self.PARAMETERS[1].name,)
        found: OfLength | OfScale = self._compute(
            "standard_errors", fit.errors_of, names, (self.SHAPE,), {"size": size}
        )
        return found

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    def _evaluate(self, method: str, function: von_mises.Function, **value: ArrayLike) -> jax.Array:
        return von_mises.check_and_compute(f"{type(self).__name__}.{method}", function, **value, **self._parameters())

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, which has period 2 pi."""
        return self._evaluate("log_prob", symmetric.log_prob(self.LAW), value=value)

    def mean(self) -> jax.Array:
        """Return the mean direction in radians, `loc` in [-pi, pi)."""
        return self._evaluate("mean", symmetric.mean(self.LAW))

    def mode(self) -> jax.Array:
        """Return the most likely angle in radians, `loc` in [-pi, pi)."""
        return self.mean()

    def mean_resultant_length(self) -> jax.Array:
        """Return the length of the mean of (cos x, sin x)."""
        return self._evaluate("mean_resultant_length", symmetric.length(self.LAW, 1))

    def variance(self) -> jax.Array:
        """Return the circular variance, 1 - `mean_resultant_length`."""
        return 1 - self.mean_resultant_length()

    def moment(self, order: int) -> jax.Array:
        """Return the trigonometric moment of a whole order below 64, the complex mean of exp(i * order * x)."""
        order = arguments.whole_number(f"{type(self).__name__}.moment", "order", order, 0, 64)
        compute = arguments.compute_dtype(self.dtype)
        length = self._evaluate("moment", symmetric.length(self.LAW, order)).astype(compute)
        angle = order * self.mean().astype(compute)
        return lax.complex(length * jnp.cos(angle), length * jnp.sin(angle))

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the probability from loc - pi, or from `start`, to `value`; every full turn adds 1.

        The absolute error is a few ulp of 1. A small probability keeps its relative accuracy where `value` is far below
        `loc`.
        """
        return self._counted("cdf", symmetric.cdf(self.TAILS), start, value=value)

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return 1 - `cdf`, as accurate in the other tail; every full turn subtracts 1."""
        return self._counted("sf", symmetric.sf(self.TAILS), start, value=value)

    def icdf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle in [loc - pi, loc + pi], or [start, start + 2 pi], with probability `q` below it.

        The result is NaN for `q` outside [0, 1].
        """
        return self._counted("icdf", symmetric.icdf(self.TAILS), start, q=q)

    def isf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the angle with probability `q` above it, the inverse of `sf`, as `icdf` does."""
        return self._counted("isf", symmetric.isf(self.TAILS), start, q=q)

    def interval(self, mass: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return both ends of the shortest arc with the probability `mass` in [0, 1], ``loc`` minus and plus a width.

        The ends are not reduced to one turn, so that the second is never below the first.
        """
        return von_mises.about_mean(self.mean(), self._evaluate("interval", symmetric.width(self.TAILS), mass=mass))

    def kl_divergence(self, other: OfAngles) -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to `other` in nats: the mean of log(self / other).

        `other` is a distribution of one angle, of any class; the batches broadcast. Between two wrapped Cauchy or two
        cardioid distributions, it has a closed form.
        """
        formula = symmetric.kl_divergence(self.LAW)
        if formula is None or not isinstance(other, Symmetric) or other.LAW is not self.LAW:
            return super().kl_divergence(other)
        of_other = {f"other.{name}": value for name, value in other._parameters().items()}
        caller = f"{type(self).__name__}.kl_divergence"
        return von_mises.check_and_compute(caller, formula, **self._parameters(), **of_other)

    def _counted(
        self, method: str, function: von_mises.Function, start: ArrayLike | None, **value: ArrayLike
    ) -> jax.Array:
        caller = f"{type(self).__name__}.{method}"
        return von_mises.counted(caller, function, start, **value, **self._parameters())


@pytree("loc", "rho")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class WrappedCauchy(Symmetric):
    r"""The wrapped Cauchy distribution, with density :math:`(1-\rho^2) / (2\pi(1+\rho^2-2\rho\cos(x-\mu)))`.

    A frozen pytree, like `VonMises`. It has heavier tails than a `VonMises`, so that outliers move a fit less.

    Parameters
    ----------
    loc : float or array
        Mean direction :math:`\mu` in radians, any finite number.
    rho : float or array
        Mean resultant length :math:`\rho` in [0, 1]: 0 is the uniform distribution, 1 a point mass at `loc`.
    validate_args : bool
        Raise ValueError for invalid parameters if their values are known. Otherwise, they give NaN.

    Notes
    -----
    The error of `log_prob` is at most 2e-6 (float32) or 1e-13 (float64) times max(1, abs(log_prob)). The tail
    probability of a draw has a relative error of at most 3e-6 (1e-14), or the angle is within 4 ulp. Draws have exact
    derivatives with respect to both parameters. At rho = 1, derivatives that have no finite limit are infinite or NaN.
    The source is section 3.5.7 of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import WrappedCauchy
    >>> distribution = WrappedCauchy(loc=0.5, rho=[0.1, 0.9])
    >>> distribution.sample(jax.random.key(0), (1000,)).shape, distribution.moment(1).shape
    ((1000, 2), (2,))
    """

    loc: ArrayLike
    rho: ArrayLike

    LAW = symmetric.Law(named.cauchy_log_density, named.cauchy_length, named.cauchy_divergence)
    TAILS = symmetric.Tails(named.cauchy_lower_tail, named.cauchy_quantile, point=1.0)
    FAMILY = families.WRAPPED_CAUCHY
    SHAPE = fit.WRAPPED_CAUCHY
    PARAMETERS = (Parameter("loc", "angle"), Parameter("rho", "length"))

    def __init__(self, loc: ArrayLike, rho: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"loc": loc, "rho": rho}, validate_args)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats, log(2 pi (1 - rho^2))."""
        return self._evaluate("entropy", named.cauchy_entropy)


@pytree("loc", "rho")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Cardioid(Symmetric):
    r"""The cardioid distribution, with density :math:`(1+2\rho\cos(x-\mu)) / (2\pi)`.

    A frozen pytree, like `VonMises`, for angles that are nearly uniform.

    Parameters
    ----------
    loc : float or array
        Mean direction :math:`\mu` in radians, any finite number.
    rho : float or array
        Mean resultant length :math:`\rho` in [0, 1/2]; 0 is the uniform distribution.
    validate_args : bool
        Raise ValueError for invalid parameters if their values are known. Otherwise, they give NaN.

    Notes
    -----
    Accuracy and derivatives are those of `WrappedCauchy`; those of quantiles at -pi and pi have no finite limit at
    rho = 1/2. The source is section 3.5.5 of K. V. Mardia and P. E. Jupp,
    *Directional Statistics*, 2000.
    """

    loc: ArrayLike
    rho: ArrayLike

    LAW = symmetric.Law(named.cardioid_log_density, named.cardioid_length, named.cardioid_divergence)
    TAILS = symmetric.Tails(named.cardioid_lower_tail, named.cardioid_quantile)
    FAMILY = families.CARDIOID
    SHAPE = fit.CARDIOID
    PARAMETERS = (Parameter("loc", "angle"), Parameter("rho", "half length"))

    def __init__(self, loc: ArrayLike, rho: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"loc": loc, "rho": rho}, validate_args)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._evaluate("entropy", named.cardioid_entropy)


@pytree("loc", "scale")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class WrappedNormal(Symmetric):
    r"""The wrapped normal distribution: a normal angle, reduced to one turn.

    A frozen pytree, like `VonMises`. It is the law of a Brownian motion on the circle, as in diffusion models.

    Parameters
    ----------
    loc : float or array
        Mean :math:`\mu` of the normal distribution in radians, any finite number.
    scale : float or array
        Its standard deviation :math:`\sigma` in radians, in [0, inf].
    validate_args : bool
        Raise ValueError for invalid parameters if their values are known. Otherwise, they give NaN.

    Notes
    -----
    The error of `log_prob` is at most 2e-6 (float32) or 1e-13 (float64) times max(1, abs(log_prob)). Draws have exact
    derivatives with respect to both parameters; with a `scale` above 10 they are uniform to rounding, and do not depend
    on it. At a `scale` of 0, `log_prob` is inf at `loc` and -inf elsewhere, and its derivatives, which have no limit,
    are 0. A probability above 1e-30 on either side of an angle has a relative error of at most 2e-5 (1e-12), or, for a
    quantile, the angle is within 4 ulp. The source is section 3.5.7 of K. V. Mardia and P. E. Jupp, *Directional
    Statistics*, 2000.
    """

    loc: ArrayLike
    scale: ArrayLike

    LAW = symmetric.Law(named.normal_log_density, named.normal_length)
    TAILS = symmetric.Tails(named.wrapped_normal_lower_tail, named.distance_of_normal, point=0.0)
    FAMILY = families.WRAPPED_NORMAL
    SHAPE = fit.WRAPPED_NORMAL
    PARAMETERS = (Parameter("loc", "angle"), Parameter("scale", "nonnegative"))

    def __init__(self, loc: ArrayLike, scale: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"loc": loc, "scale": scale}, validate_args)

    def score(self, value: ArrayLike) -> jax.Array:
        """Return the derivative of `log_prob` with respect to `value`, per radian, as diffusion models learn it.

        It has period 2 pi. A sum over turns gives it below a `scale` of 1.5, and one over waves above. The error is at
        most 2e-6 (float32) or 1e-13 (float64) times the larger of the result and 1 / scale, or above 1.5 of the result
        and the mean resultant length. At a `scale` of 0 it is 0 at `loc`, and infinite elsewhere.
        """
        return self._evaluate("score", score_about, value=value)

    def variance(self) -> jax.Array:
        """Return the circular variance 1 - exp(-scale^2 / 2), without cancellation."""
        return self._evaluate("variance", named.normal_variance)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats; the error is a few ulp of the larger of 1 and the result."""
        return self._evaluate("entropy", named.normal_entropy)

    def stddev(self) -> jax.Array:
        """Return the circular standard deviation in radians, which is `scale`."""
        return self._evaluate("stddev", named.normal_deviation)


def score_about(value: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the derivative of the logarithm of the wrapped normal density with respect to the value."""
    return named.normal_score(deviation(value, loc)[0], scale)

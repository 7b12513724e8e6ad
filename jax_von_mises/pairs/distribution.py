"""Define `SineBivariateVonMises` and `CosineBivariateVonMises`, distributions of pairs of dependent angles."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density.distribution import CircularDistribution
from jax_von_mises.any_density.evaluation import Closed
from jax_von_mises.engine import em
from jax_von_mises.engine.base import Parameter, Parametric, computed
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.samples import loop_on_host
from jax_von_mises.numerics.circle import deviation, less_turns, wrap
from jax_von_mises.numerics.elementary import nan_unless
from jax_von_mises.pairs import draw as sampling
from jax_von_mises.pairs import fit as pairs_fit
from jax_von_mises.pairs import models, moments
from jax_von_mises.pairs.clusters import Dependent
from jax_von_mises.pairs.draw import NAMES
from jax_von_mises.pairs.fit import Kind
from jax_von_mises.von_mises import functions as von_mises
from jax_von_mises.von_mises.distribution import VonMises


class Estimate(NamedTuple):
    """A value or a standard error for each parameter."""

    phi_loc: jax.Array
    """In radians."""
    psi_loc: jax.Array
    """In radians."""
    phi_concentration: jax.Array
    psi_concentration: jax.Array
    correlation: jax.Array


class Moments(NamedTuple):
    """Means of the three statistics of a model."""

    phi_cosine: jax.Array
    """Mean of cos(phi - phi_loc)."""
    psi_cosine: jax.Array
    """Mean of cos(psi - psi_loc)."""
    interaction: jax.Array
    """Mean of sin(phi - phi_loc) sin(psi - psi_loc) in the sine model, and of -cos(phi - phi_loc - psi + psi_loc) in
    the cosine model."""


def correlation_of(
    caller: str,
    phi_concentration: ArrayLike,
    psi_concentration: ArrayLike,
    correlation: ArrayLike | EllipsisType,
    weighted_correlation: ArrayLike | EllipsisType,
) -> ArrayLike:
    """Return the correlation, from the one of the two arguments that was given."""
    if correlation is not ... and weighted_correlation is ...:
        return correlation
    if correlation is not ... or weighted_correlation is ...:
        raise TypeError(f"{caller}: give the dependence once, as `correlation` or as `weighted_correlation`.")
    given = {
        "phi_concentration": phi_concentration,
        "psi_concentration": psi_concentration,
        "weighted_correlation": weighted_correlation,
    }
    arrays, dtype = arguments.parameters(caller, None, **given)
    first, second, weighted = (jnp.asarray(x, dtype) for x in arrays.values())
    shape = arguments.broadcast_shapes(caller, {name: np.shape(x) for name, x in arrays.items()})
    first, second, weighted = (jnp.broadcast_to(x, shape) for x in (first, second, weighted))
    return weighted * (jnp.sqrt(first) * jnp.sqrt(second))


def clustering(kind: Kind) -> em.Clustering:
    """Return how mixtures of a model are fitted."""
    return em.Clustering(
        model=functools.partial(Dependent, kind),
        parameters=lambda one: np.stack([getattr(one, name) for name in NAMES], -1, dtype=np.float64),
        distribution=lambda kind, parameters: kind(*np.moveaxis(parameters[..., : len(NAMES)], -1, 0)),
        estimate=Estimate,
    )


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class BivariateVonMises(Parametric):
    """Base class of the two models of dependent angles."""

    PARAMETERS = (
        *(Parameter(name, "angle") for name in ("phi_loc", "psi_loc")),
        *(Parameter(name, "nonnegative and finite") for name in ("phi_concentration", "psi_concentration")),
        Parameter("correlation", "real"),
    )
    _MODEL: ClassVar[type[models.Model]]
    phi_loc: ArrayLike
    psi_loc: ArrayLike
    phi_concentration: ArrayLike
    psi_concentration: ArrayLike
    correlation: ArrayLike

    def __init__(
        self,
        phi_loc: ArrayLike,
        psi_loc: ArrayLike,
        phi_concentration: ArrayLike,
        psi_concentration: ArrayLike,
        correlation: ArrayLike | EllipsisType = ...,
        weighted_correlation: ArrayLike | EllipsisType = ...,
        *,
        validate_args: bool = False,
    ) -> None:
        caller = type(self).__name__
        # `...` marks an argument that was not given, since None may stand for an array in a pytree.
        correlation = correlation_of(caller, phi_concentration, psi_concentration, correlation, weighted_correlation)
        given = dict(zip(NAMES, (phi_loc, psi_loc, phi_concentration, psi_concentration, correlation), strict=True))
        self._assign(given, validate_args)

    def _evaluate(self, method: str, function: Callable[..., Any], names: Sequence[str], **values: ArrayLike) -> Any:
        """Return ``function(model, *values, *parameters)`` for the parameters with these names."""
        return self._compute(method, function, names, (self._MODEL,), values)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one pair, (2,)."""
        return (2,)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density at pairs of angles along the last axis of `value`, per square radian.

        The error is at most 2e-6 (float32) or 1e-12 (float64) times max(1, abs(log_prob)), beyond the effect of
        rounding the angles' differences from the locations.
        """
        caller = f"{type(self).__name__}.log_prob"
        pairs = arguments.parameter(caller, "value", value)
        if np.ndim(pairs) == 0 or np.shape(pairs)[-1] != 2:
            raise ValueError(
                f"{caller}: value has shape {np.shape(pairs)}, but its last axis must hold the two angles of a pair, "
                "phi and psi. Put them together with jnp.stack([phi, psi], axis=-1)."
            )
        result: jax.Array = self._evaluate("log_prob", log_prob, NAMES, phi=pairs[..., 0], psi=pairs[..., 1])
        return result

    def mean(self) -> jax.Array:
        """Return the mean direction of each angle in radians, along a last axis."""
        found = self.moments()
        # The mean of the cosine about a location may be negative in the cosine model.
        turns = [jnp.where(x < 0, np.pi, 0).astype(x.dtype) for x in found[:2]]
        locs = [self._spread(arguments.as_jax(getattr(self, name))) for name in NAMES[:2]]
        return jnp.stack(
            [von_mises.mean(loc + self._spread(turn), 1.0) for loc, turn in zip(locs, turns, strict=True)], -1
        )

    def _unit_means(self) -> tuple[jax.Array, ...]:
        lengths = jnp.stack(self.moments()[:2], -1)
        pair = self.broadcast()
        locs = jnp.stack([pair.phi_loc, pair.psi_loc], -1).astype(lengths.dtype)
        return lengths * jnp.cos(locs), lengths * jnp.sin(locs)

    def moments(self) -> Moments:
        """Return the means of cos(phi - phi_loc), cos(psi - psi_loc) and the statistic of the dependence.

        See `Moments`. The means are the derivatives of the logarithm of the normaliser with respect to the
        concentrations and the correlation. Their absolute error is 1e-6 (float32) or 1e-13 (float64).
        """
        return Moments(*map(self._spread, self._evaluate("moments", mean_statistics, NAMES[2:])))

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._spread(self._evaluate("entropy", entropy, NAMES[2:]))

    def conditional(self, phi: ArrayLike) -> VonMises:
        """Return the distribution of the second angle, given the first angle `phi` in radians."""
        return VonMises(*self._evaluate("conditional", conditional, NAMES, phi=phi))

    def marginal_log_prob(self, phi: ArrayLike) -> jax.Array:
        """Return the logarithm of the marginal density of the first angle, per radian, at `phi` in radians."""
        names = tuple(name for name in NAMES if name != "psi_loc")
        result: jax.Array = self._evaluate("marginal_log_prob", marginal_log_prob, names, phi=phi)
        return result

    def marginal(self, axis: int = 0) -> CircularDistribution:
        """Return the distribution of the first angle (`axis` 0) or of the second one (`axis` 1).

        The `error` of the result estimates the largest relative error of a tail probability, apart from the effect of
        an error of 4 ulp in the angle. It is about 3e-6 (float32) for one mode, and up to 1e-3 for two modes at
        concentrations of 1e7. For the density of the first angle alone, use `marginal_log_prob`, which needs no table.

        Raises
        ------
        ValueError
            For another `axis`, or parameters that are not scalars; use `jax.vmap` for several distributions.
        """
        caller = f"{type(self).__name__}.marginal"
        if not isinstance(axis, int) or axis not in (0, 1):
            raise ValueError(
                f"{caller}: axis={arguments.safe_repr(axis)} must be 0 or 1, the first or the second angle."
            )
        if self.batch_shape:
            raise ValueError(
                f"{caller}: the parameters have shape {self.batch_shape}, but must be scalars. Use jax.vmap for "
                "several."
            )
        loc, _, k1, k2, r = self._parameters().values()
        if axis == 1:
            # Both models are symmetric in the two angles.
            loc, k1, k2 = self._parameters()["psi_loc"], k2, k1
        given, dtype = arguments.parameters(caller, None, loc=loc, k1=k1, k2=k2, r=r)
        modes = computed(modes_of_marginal, (self._MODEL,), tuple(given.values()), (0,) * 4, dtype)
        return CircularDistribution(Marginal(self._MODEL), loc, k1, k2, r, points=lax.stop_gradient(modes))

    def standard_errors(self, size: ArrayLike) -> Estimate:
        """Return the standard errors of `fit` for `size` pairs (or a sum of weights), from the Fisher information."""
        return Estimate(*self._evaluate("standard_errors", standard_errors, NAMES[2:], size=size))

    @classmethod
    def fit(cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None) -> Self:
        """Fit the distribution by maximum likelihood.

        The likelihood depends on the samples only through means of products of the angles' sines and cosines. Damped
        Newton iterations start from independent angles and from the precision matrix of a normal distribution. The
        better result is returned.

        Parameters
        ----------
        samples : array
            Pairs of angles in radians along the last axis.
        weights : array, optional
            Weight of each pair, 0 or more; broadcasts with `samples` without the last axis, or is one-dimensional along
            a single `axis`. A pair of weight 0 is ignored, also NaN.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index
            separate data sets.

        Returns
        -------
        distribution
            The parameters have the shape of `samples` without `axis` and the last axis. Concentrations stay below about
            1e8 (float32) or 1e14 (float64), even if the likelihood has no maximum, as for equal pairs. The parameters
            are NaN without pairs, without positive weights, and for a negative weight. `standard_errors` returns the
            uncertainty.

        Raises
        ------
        TypeError, ValueError
            For invalid arguments, for an angle of positive weight that is not finite, and inside `jit`, `vmap` or
            `grad`, since the fit is a loop on the host. `axis` fits many data sets at once.
        """
        caller = f"{cls.__name__}.fit"
        with loop_on_host(caller):
            return cls(*pairs_fit.fit(cls._MODEL, caller, samples, weights, axis))


@pytree(*NAMES)
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class SineBivariateVonMises(BivariateVonMises):
    r"""The sine model of two dependent angles on the torus.

    With a = :math:`\phi - \mu` and b = :math:`\psi - \nu`, the density is proportional to

    .. math:: \exp(\kappa_1\cos a + \kappa_2\cos b + \lambda\sin a\sin b)

    (Singh, Hnizdo and Demchuk, Biometrika 89, 2002). For :math:`\lambda^2 > \kappa_1\kappa_2`, it has two modes. A
    frozen pytree, like `VonMises`, with the parameter names of NumPyro's class.

    Parameters
    ----------
    phi_loc, psi_loc : float or array
        Locations :math:`\mu` and :math:`\nu` of the two angles in radians, any finite numbers.
    phi_concentration, psi_concentration : float or array
        :math:`\kappa_1` and :math:`\kappa_2`, 0 or more and finite.
    correlation : float or array
        :math:`\lambda`, any finite number; 0 makes the angles independent.
    weighted_correlation : float or array
        :math:`\lambda / \sqrt{\kappa_1\kappa_2}`, an alternative to `correlation`.
    validate_args : bool
        Raise ValueError for parameters outside these ranges if their values are known. Otherwise, and under a
        transformation, they give NaN.

    Raises
    ------
    TypeError
        If neither or both of the two correlations are given.
    ValueError
        If parameters do not broadcast.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import SineBivariateVonMises
    >>> pair = SineBivariateVonMises(-1.1, 2.4, 5.0, 6.0, correlation=3.0)
    >>> angles = pair.sample(jax.random.key(0), (1000,))
    >>> angles.shape, pair.log_prob(angles).shape
    ((1000, 2), (1000,))
    """

    FAMILY, _MODEL, CLUSTERING = sampling.SINE, models.Sine, clustering(models.Sine)


@pytree(*NAMES)
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class CosineBivariateVonMises(BivariateVonMises):
    r"""The cosine model of two dependent angles on the torus.

    With a = :math:`\phi - \mu` and b = :math:`\psi - \nu`, the density is proportional to

    .. math:: \exp(\kappa_1\cos a + \kappa_2\cos b - \kappa_3\cos(a - b))

    (the model with positive interaction of Mardia, Taylor and Subramaniam, Biometrics 63, 2007). Note the sign: a
    negative `correlation` :math:`\kappa_3` draws a and b together. A frozen pytree, like `VonMises`.

    Parameters
    ----------
    phi_loc, psi_loc : float or array
        Locations :math:`\mu` and :math:`\nu` of the two angles in radians, any finite numbers.
    phi_concentration, psi_concentration : float or array
        :math:`\kappa_1` and :math:`\kappa_2`, 0 or more and finite.
    correlation : float or array
        :math:`\kappa_3`, any finite number; 0 makes the angles independent.
    weighted_correlation : float or array
        :math:`\kappa_3 / \sqrt{\kappa_1\kappa_2}`, an alternative to `correlation`.
    validate_args : bool
        Raise ValueError for parameters outside these ranges if their values are known. Otherwise, and under a
        transformation, they give NaN.

    Raises
    ------
    TypeError
        If neither or both of the two correlations are given.
    ValueError
        If parameters do not broadcast.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import CosineBivariateVonMises
    >>> pair = CosineBivariateVonMises(-1.1, 2.4, 5.0, 6.0, correlation=-3.0)
    >>> pair.sample(jax.random.key(0), (1000,)).shape
    (1000, 2)
    """

    FAMILY, _MODEL, CLUSTERING = sampling.COSINE, models.Cosine, clustering(models.Cosine)


def of_model(k1: jax.Array, k2: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Broadcast the parameters to one shape, with NaN for a negative concentration or an infinite parameter."""
    k1, k2, r = jnp.broadcast_arrays(k1, k2, r)
    return (
        nan_unless(k1, (k1 >= 0) & (k1 < jnp.inf)),
        nan_unless(k2, (k2 >= 0) & (k2 < jnp.inf)),
        nan_unless(r, jnp.abs(r) < jnp.inf),
    )


def log_prob(
    kind: Kind,
    phi: jax.Array,
    psi: jax.Array,
    phi_loc: jax.Array,
    psi_loc: jax.Array,
    k1: jax.Array,
    k2: jax.Array,
    r: jax.Array,
) -> jax.Array:
    """Return the logarithm of the density, per square radian."""
    k1, k2, r = of_model(k1, k2, r)
    a, b = deviation(phi, phi_loc)[0], deviation(psi, psi_loc)[0]
    log_total = moments.log_total(kind, k1, k2, r)
    a, b, k1, k2, r, log_total = jnp.broadcast_arrays(a, b, k1, k2, r, log_total)
    return moments.exponent(kind, a, b, k1, k2, r) - log_total


def mean_statistics(kind: Kind, k1: jax.Array, k2: jax.Array, r: jax.Array) -> list[jax.Array]:
    """Return the means of the three statistics."""
    k1, k2, r = of_model(k1, k2, r)
    zero = jnp.zeros_like(k1)
    anchors = 1, 1, kind.at_zero()
    at_zero = moments.rises(kind, zero, zero, k1, k2, r)
    return [x + (y - z) for x, y, z in zip(anchors, moments.mean_rises(kind, k1, k2, r), at_zero, strict=True)]


def entropy(kind: Kind, k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
    """Return the differential entropy in nats."""
    k1, k2, r = of_model(k1, k2, r)
    return moments.log_total(kind, k1, k2, r) - moments.inner((k1, k2, r), moments.mean_rises(kind, k1, k2, r))


def standard_errors(kind: Kind, size: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> list[jax.Array]:
    """Return the standard errors of the five parameters."""
    k1, k2, r, size = jnp.broadcast_arrays(*of_model(k1, k2, r), nan_unless(jnp.abs(size), size >= 0))
    root = lax.rsqrt(size)
    of_concentrations = jnp.moveaxis(moments.cumulants(kind, k1, k2, r).covariance, (0, 1), (-2, -1))
    unit = lax.rsqrt(jnp.diagonal(of_concentrations, axis1=-2, axis2=-1))
    inverse = jnp.linalg.inv(of_concentrations * unit[..., :, None] * unit[..., None, :])
    of_k = unit * jnp.sqrt(jnp.diagonal(inverse, axis1=-2, axis2=-1))
    first, second, both = moments.location_information(kind, k1, k2, r)
    # Determinant of the Fisher information about the two locations.
    rest = first * second - both * both
    of_locs = jnp.sqrt(second / rest), jnp.sqrt(first / rest)
    return [root * x for x in (*of_locs, *jnp.moveaxis(of_k, -1, 0))]


def marginal_log_prob(
    kind: Kind, phi: jax.Array, phi_loc: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array
) -> jax.Array:
    """Return the logarithm of the marginal density of the first angle, per radian."""
    k1, k2, r = of_model(k1, k2, r)
    a = deviation(phi, phi_loc)[0]
    log_total = moments.log_total(kind, k1, k2, r)
    a, k1, k2, r, log_total = jnp.broadcast_arrays(a, k1, k2, r, log_total)
    return moments.marginal_log_density(kind, a, k1, k2, r) - log_total


@dataclasses.dataclass(frozen=True)
class Marginal(Closed):
    """The logarithm of the first angle's marginal density in a model, up to a constant."""

    kind: Kind

    def __call__(self, angle: jax.Array, *parameters: jax.Array) -> jax.Array:
        """Return it at one angle, for scalar parameters phi_loc, k1, k2 and r."""
        phi_loc, k1, k2, r = parameters
        return moments.marginal_log_density(self.kind, deviation(angle, phi_loc)[0], *of_model(k1, k2, r))


def modes_of_marginal(kind: Kind, phi_loc: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array) -> jax.Array:
    """Return the two angles, possibly equal, at which the exponent of the first angle's marginal density is largest."""
    k1, k2, r = of_model(k1, k2, r)
    model = kind.of(k1, k2, r)
    mode = jnp.where(model.flip < 0, np.pi - model.mode, model.mode)
    return wrap(jnp.stack([mode, -mode]), less_turns(phi_loc, 0.0))


def conditional(
    kind: Kind, phi: jax.Array, phi_loc: jax.Array, psi_loc: jax.Array, k1: jax.Array, k2: jax.Array, r: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the location and the concentration of the second angle, given the first angle."""
    k1, k2, r = of_model(k1, k2, r)
    a, psi_loc, k1, k2, r = jnp.broadcast_arrays(deviation(phi, phi_loc)[0], psi_loc, k1, k2, r)
    rho, direction = moments.second_given_first(kind, a, k1, k2, r)
    return less_turns(psi_loc + direction, 0.0), rho

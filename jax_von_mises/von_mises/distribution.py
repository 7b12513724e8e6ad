"""Define `VonMises`, with `functions` as methods, named as in NumPyro, TFP and distrax."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density.distribution import OfDensity
from jax_von_mises.engine import em
from jax_von_mises.engine.base import OfAngles, Parameter, Parametric
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.numerics import symmetric
from jax_von_mises.numerics.circle import at_exact
from jax_von_mises.numerics.elementary import valid
from jax_von_mises.von_mises import bessel, fitting, sampler
from jax_von_mises.von_mises import functions as von_mises
from jax_von_mises.von_mises.clusters import Independent
from jax_von_mises.von_mises.natural import (
    angle_of,
    density_of_angles,
    differentiable_once,
    log_density_of_angles,
    polar,
    vector_of,
)
from jax_von_mises.von_mises.natural_distribution import OfNatural, sum_of_naturals


@pytree("loc", "concentration")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class VonMises(Parametric, OfDensity):
    r"""The von Mises distribution of angles, with density :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`.

    A frozen pytree, which `jit`, `vmap`, `scan` and `grad` accept and return. Its methods are the functions of this
    package with ``loc`` and ``concentration`` filled in, and have their accuracy, derivatives and errors. For
    ``numpyro.sample``, use `jax_von_mises.numpyro.VonMises`.

    Parameters
    ----------
    loc : float or array
        Mean direction :math:`\mu` in radians, any finite number.
    concentration : float or array
        :math:`\kappa` in [0, inf]; broadcasts with `loc`.
    validate_args : bool
        Raise ValueError for a concentration that is negative or NaN, and for a `loc` that is not finite, if the values
        are known. Otherwise, and under a transformation, such values give NaN.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes. Other objects may take the place of numbers in a
        pytree, such as an axis or None in ``in_axes=VonMises(None, 0)``, or a ``PartitionSpec``.
    ValueError
        If `loc` and `concentration` are numbers or arrays that do not broadcast.

    Notes
    -----
    Two distributions are equal (``==``, `hash`) if their parameters have the same shapes, dtypes and values; Python
    numbers differ from arrays. Under a transformation, ``==`` returns a traced bool, as between arrays.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import VonMises
    >>> distribution = VonMises(loc=0.5, concentration=[1.0, 4.0, 16.0])
    >>> distribution.sample(jax.random.key(0), (1000,)).shape
    (1000, 3)
    >>> distribution.log_prob(0.5).shape
    (3,)
    """

    loc: ArrayLike
    concentration: ArrayLike

    FAMILY = sampler.VON_MISES
    PARAMETERS = (Parameter("loc", "angle"), Parameter("concentration", "nonnegative"))
    CLUSTERING = em.Clustering(
        model=lambda caller, samples, tied: Independent(1, tied),
        parameters=lambda one: np.stack([one.loc, one.concentration], -1, dtype=np.float64)[..., None],
        distribution=lambda kind, parameters: kind(parameters[..., 0, 0], parameters[..., 1, 0]),
        estimate=fitting.Estimate,
        event_ndim=0,
    )

    def __init__(self, loc: ArrayLike, concentration: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"loc": loc, "concentration": concentration}, validate_args)

    @classmethod
    def from_natural(cls, natural: ArrayLike, *, validate_args: bool = False) -> "VonMises":
        r"""Return the distribution with the density proportional to :math:`\exp(\eta_1\cos x + \eta_2\sin x)`.

        Its `concentration` is the length of the natural parameter, and its `loc` the direction.

        Parameters
        ----------
        natural : array
            :math:`\eta`, two components along the last axis. Vectors of length 0 are allowed, and give the uniform
            distribution. Infinite components give NaN.
        validate_args : bool
            Raise ValueError for components that are not finite, if the values are known.

        Returns
        -------
        VonMises
            Its only leaf is `natural`. Words and draws are those of the distribution with the same `loc` and
            `concentration`.

        Notes
        -----
        First derivatives with respect to `natural` are right for every value, also at 0, and so are the second ones of
        `log_prob` and `prob`; those of `cdf`, `sf` and their logarithms raise NotImplementedError, and those of other
        methods lose their digits to rounding as the length of `natural` approaches 0. First derivatives of draws differ
        from derivatives with respect to `loc`, which would be infinite at 0: a draw moves by
        :math:`(1 - e^{-\kappa(1 + \cos(x - \mu))}) / \kappa` times a change across :math:`\eta`. Means of functions of
        draws have the same derivatives either way. Vectors whose components are all below 2^-60 (2^-13 in float16),
        also 0, count as the vector of this length with `loc` 0.

        In float32, `log_prob`, `prob`, `cdf` and `sf` have the bounds of the functions, although `loc` and
        `concentration` are rounded. In float64, the direction is rounded to an angle. This has the effect of a change
        of the angle by up to 4e-16 rad, which adds up to 4e-16 times :math:`\kappa |\sin(x - \mu)|` to the error of
        `log_prob`.

        Examples
        --------
        >>> import jax
        >>> from jax_von_mises import VonMises
        >>> log_prob = lambda natural: VonMises.from_natural(natural).log_prob(0.0)
        >>> jax.grad(log_prob)(jax.numpy.zeros(2)).tolist()
        [1.0, 0.0]
        """
        return NaturalVonMises._of("VonMises.from_natural", natural, validate_args, 2)

    @property
    def natural(self) -> jax.Array:
        """The natural parameter, `concentration` times (cos loc, sin loc); of shape ``batch_shape`` + (2,)."""
        result: jax.Array = self._compute("natural", vector_of, ("loc", "concentration"))
        return result

    def multiply(self, other: "VonMises") -> "VonMises":
        """Return the distribution whose density is proportional to the product of both densities.

        Its natural parameter is the sum of both, as after a measurement. Infinite concentrations give NaN.
        """
        self._check_other("multiply", other, VonMises)
        return VonMises.from_natural(sum_of_naturals("VonMises.multiply", self.natural, other.natural))

    def convolve(self, other: "VonMises") -> "VonMises":
        """Return the von Mises distribution nearest to the sum of two angles, one drawn from each.

        The sum does not have a von Mises distribution. The result has its mean direction and mean resultant length
        (Mardia and Jupp, *Directional Statistics*, 2000, section 3.5.4), and therefore the largest likelihood.
        """
        self._check_other("convolve", other, VonMises)
        return VonMises(*von_mises.convolution(self.loc, self.concentration, other.loc, other.concentration))

    def kl_to_uniform(self) -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to the uniform distribution in nats.

        It is accurate where `concentration` is small, too, unlike the difference of two entropies.
        """
        return self._spread(von_mises.kl_to_uniform(self.concentration))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.log_prob`."""
        return von_mises.log_prob(value, self.loc, self.concentration)

    def prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.prob`."""
        return von_mises.prob(value, self.loc, self.concentration)

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.cdf`; every full turn adds 1."""
        return von_mises.cdf(value, self.loc, self.concentration, start=start)

    def log_cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.log_cdf`; with a `start`, tails below the smallest float give -inf."""
        if start is not None:
            return super().log_cdf(value, start=start)
        return von_mises.log_cdf(value, self.loc, self.concentration)

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.sf`."""
        return von_mises.sf(value, self.loc, self.concentration, start=start)

    def log_sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.log_sf`; with a `start`, tails below the smallest float give -inf."""
        if start is not None:
            return super().log_sf(value, start=start)
        return von_mises.log_sf(value, self.loc, self.concentration)

    def icdf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.icdf`."""
        return von_mises.icdf(q, self.loc, self.concentration, start=start)

    def isf(self, q: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.isf`."""
        return von_mises.isf(q, self.loc, self.concentration, start=start)

    def interval(self, mass: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return both ends of the shortest arc with the probability `mass` in [0, 1], ``loc`` minus and plus a width.

        The ends are not reduced to one turn, so that the second is never below the first.
        """
        given = {"mass": mass, "loc": self.loc, "concentration": self.concentration}
        width = von_mises.check_and_compute("VonMises.interval", symmetric.width(von_mises.TAILS), **given)
        return von_mises.about_mean(self.mean(), width)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._spread(von_mises.entropy(self.concentration))

    def mean(self) -> jax.Array:
        """Return the mean direction in radians."""
        return von_mises.mean(self.loc, self.concentration)

    def mode(self) -> jax.Array:
        """Return the most likely angle in radians."""
        return von_mises.mode(self.loc, self.concentration)

    def mean_resultant_length(self) -> jax.Array:
        """Return I1(concentration) / I0(concentration), the length of the mean of (cos x, sin x)."""
        return self._spread(von_mises.mean_resultant_length(self.concentration))

    def _unit_means(self) -> tuple[jax.Array, ...]:
        wide = arguments.compute_dtype(self.dtype)
        length = bessel.ratio(valid(arguments.as_jax(self.concentration, wide)))
        loc, length = em.promote_and_broadcast(arguments.as_jax(self.loc, wide), length)
        return tuple(self._spread(length * f(loc)) for f in (jnp.cos, jnp.sin))

    def variance(self) -> jax.Array:
        """Return the circular variance 1 - I1(concentration) / I0(concentration), between 0 and 1."""
        return self._spread(von_mises.variance(self.concentration))

    def stddev(self) -> jax.Array:
        """Return the circular standard deviation in radians; see `jax_von_mises.stddev`."""
        return self._spread(von_mises.stddev(self.concentration))

    def moment(self, order: int) -> jax.Array:
        """Return the trigonometric moment of a whole order below 64, the complex mean of exp(i * order * x).

        The relative error is at most 1e-6 (float32) or 1e-14 (float64) times 1 + order.
        """
        order = arguments.whole_number("VonMises.moment", "order", order, 0, 64)
        return von_mises.moment(order, self.loc, self.concentration)

    def kl_divergence(self, other: OfAngles) -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to `other` in nats: the mean of log(self / other).

        `other` is a `VonMises`, or another distribution of one angle; see `CircularDistribution.kl_divergence`.
        """
        if not isinstance(other, VonMises):
            return super().kl_divergence(other)
        return von_mises.kl_divergence(self.loc, self.concentration, other.loc, other.concentration)

    def cross_entropy(self, other: OfAngles) -> jax.Array:
        """Return the mean under `self` of -log `other`, in nats."""
        self._check_angle("cross_entropy", other)
        return self.entropy() + self.kl_divergence(other)

    def standard_errors(self, size: ArrayLike) -> fitting.Estimate:
        """Return the standard errors of the estimates of `fit` from `size` angles; see `standard_errors`."""
        errors = fitting.standard_errors(self.concentration, size)
        shape = jnp.broadcast_shapes(errors.loc.shape, self.batch_shape)
        return fitting.Estimate(*(jnp.broadcast_to(x, shape) for x in errors))

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
        *,
        loc: ArrayLike | None = None,
        bias_correction: bool = False,
        size: ArrayLike | None = None,
    ) -> "VonMises":
        """Fit the distribution by maximum likelihood; see `jax_von_mises.fit`."""
        return cls(*fitting.fit(samples, weights, axis, loc=loc, bias_correction=bias_correction, size=size))


@pytree("natural")
class NaturalVonMises(OfNatural, VonMises):
    """What `VonMises.from_natural` returns."""

    fit = VonMises.fit

    @property
    def loc(self) -> jax.Array:
        """Direction of the natural parameter in radians; 0 for a parameter of 0."""
        return self._part(angle_of)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.log_prob`."""
        return self._of_natural("log_prob", log_density_of_angles, value)

    def prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.prob`."""
        return self._of_natural("prob", density_of_angles, value)

    def cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.cdf`; every full turn adds 1."""
        if start is not None:
            return self._between("cdf", start, value)
        return self._of_natural("cdf", from_direction(von_mises.cdf_at), value)

    def log_cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.log_cdf`."""
        if start is not None:
            return jnp.log(self._between("log_cdf", start, value))
        return self._of_natural("log_cdf", from_direction(von_mises.log_cdf_at), value)

    def sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.sf`."""
        if start is not None:
            return 1 - self._between("sf", start, value)
        return self._of_natural("sf", from_direction(von_mises.sf_at), value)

    def log_sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `jax_von_mises.log_sf`."""
        if start is not None:
            return jnp.log(1 - self._between("log_sf", start, value))
        return self._of_natural("log_sf", from_direction(von_mises.log_sf_at), value)

    def _between(self, caller: str, start: ArrayLike, value: ArrayLike) -> jax.Array:
        """Return the probability from `start` to `value`, up to a few ulp of 1."""
        start = arguments.parameter(f"VonMises.{caller}", "start", start)
        before, after = self.cdf(start), self.cdf(value)
        shape, dtype = (
            jnp.broadcast_shapes(before.shape, after.shape),
            arguments.float_dtype("cdf", None, [before, after]),
        )
        return (jnp.broadcast_to(after, shape) - jnp.broadcast_to(before, shape)).astype(dtype)


@functools.cache
def from_direction(function: von_mises.Function) -> von_mises.Function:
    """Return a function of (x, natural), from one of the results of `exact_deviation` and the concentration."""

    @differentiable_once
    def compute(x: jax.Array, natural: jax.Array) -> jax.Array:
        *place, length, lost_length = polar(x, natural)
        return at_exact(lambda length: function(*place, length), length, lost_length)

    return compute

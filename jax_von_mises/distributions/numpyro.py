"""Define `VonMises`, `VonMisesFisher` and the bivariate models as NumPyro distributions, for MCMC and SVI.

`VonMises` is a drop-in replacement for ``numpyro.distributions.VonMises``. Its draws are also differentiable with
respect to the concentration, so it can be used in a guide. It adds `cdf`, `icdf`, `entropy` and `kl_divergence`, and
allows a concentration of 0. `kl_divergence` also compares different distributions of one angle.

This module requires NumPyro: ``pip install "jax_von_mises[numpyro]"``.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.distributions import base, pairs, sphere
from jax_von_mises.distributions import symmetric as symmetric_classes
from jax_von_mises.distributions import von_mises as von_mises_class
from jax_von_mises.functions import von_mises
from jax_von_mises.numerics.circle import with_derivative_of
from jax_von_mises.numerics.elementary import clip

try:
    # This absolute import refers to the library NumPyro, not to this module.
    from numpyro.distributions import Distribution, constraints, kl_divergence
    from numpyro.distributions import VonMises as NumPyroVonMises
    from numpyro.distributions.util import validate_sample
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "numpyro":
        raise
    raise ImportError(
        'jax_von_mises.numpyro needs NumPyro, which is not installed: pip install "jax_von_mises[numpyro]".'
    ) from error

__all__ = [
    "Cardioid",
    "CosineBivariateVonMises",
    "SineBivariateVonMises",
    "VonMises",
    "VonMisesFisher",
    "WrappedCauchy",
    "WrappedNormal",
]

# NumPyro's name for the values that a rule of `base.RULES` allows.
CONSTRAINTS = {
    "angle": constraints.real,
    "real": constraints.real,
    "nonnegative": constraints.nonnegative,
    "nonnegative and finite": constraints.nonnegative,
    "direction": constraints.sphere,
    "length": constraints.unit_interval,
    "half length": constraints.interval(0.0, 0.5),
}


class OfClass(Distribution):
    """Base class whose methods call those of the class `OF`, from whose table of parameters the constraints follow."""

    OF: ClassVar[type[base.Parametric]]
    # Constraints that NumPyro has, where the package allows more.
    NARROWER: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Define what NumPyro asks of a class."""
        if hasattr(cls, "OF"):
            allowed = {parameter.name: CONSTRAINTS[parameter.values] for parameter in cls.OF.PARAMETERS}
            cls.arg_constraints = allowed | cls.NARROWER
            cls.reparametrized_params = list(allowed)
        super().__init_subclass__(**options)

    def _of(self, own: base.Parametric, validate_args: bool | None) -> None:
        """Take the parameters of a distribution, in the constructor."""
        # NumPyro checks the values as given. Under jit, they are unknown as soon as JAX has converted them.
        for parameter in own.PARAMETERS:
            setattr(self, parameter.name, getattr(own, parameter.name))
        super().__init__(batch_shape=own.batch_shape, event_shape=own.event_shape, validate_args=validate_args)

    def _own(self) -> Any:
        own = self.OF(*(getattr(self, parameter.name) for parameter in self.OF.PARAMETERS))
        return own if own.batch_shape == self.batch_shape else own.broadcast()

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return draws, those of the method of the class of the same name in `jax_von_mises`."""
        draws: jax.Array = self._own().sample(key, sample_shape)
        return draws

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density."""
        density: jax.Array = self._own().log_prob(value)
        return density

    @property
    def mean(self) -> jax.Array:
        """The mean direction of each angle in [-pi, pi), or the mean vector, inside the sphere."""
        found: jax.Array = self._own().mean()
        return found

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        found: jax.Array = self._own().entropy()
        return found


class OfOneAngle(OfClass):
    """Base class of distributions of one angle, with the support [-pi, pi]."""

    support = constraints.circular

    @property
    def mode(self) -> jax.Array:
        """The most likely angle, in [-pi, pi)."""
        found: jax.Array = self._own().mode()
        return found

    @property
    def variance(self) -> jax.Array:
        """The circular variance, 1 minus the mean resultant length, as in NumPyro's class."""
        found: jax.Array = self._own().variance()
        return found

    def cdf(self, value: ArrayLike) -> jax.Array:
        """Return the probability of an angle between -pi and `value`: 0 at -pi and below, 1 at pi and above.

        This counts over the support, as NumPyro does. The class in `jax_von_mises` counts from loc - pi.
        """
        own, value = self._own(), arguments.parameter(f"{type(self).__name__}.cdf", "value", value)
        dtype = arguments.float_dtype("cdf", None, [value, *own._parameters().values()])
        # The half precision numbers next to pi are too far from it to stand for the ends.
        value = clip(arguments.as_jax(value, arguments.compute_dtype(dtype)), -np.pi, np.pi)
        found = own.cdf(value, start=-np.pi)
        return with_derivative_of(found, clip(found, 0, 1)).astype(dtype)

    def icdf(self, q: ArrayLike) -> jax.Array:
        """Return the angle in [-pi, pi] with probability `q` below it, the inverse of `cdf`; NaN for invalid `q`."""
        found: jax.Array = self._own().icdf(q, start=-np.pi)
        return found


class VonMises(OfOneAngle):
    r"""The von Mises distribution of angles, with density :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`.

    The support is [-pi, pi]. Samples are reparameterised, with exact derivatives with respect to `loc` and
    `concentration`. For a latent variable with HMC or NUTS, use ``numpyro.infer.reparam.CircularReparam``, as for every
    distribution on the circle.

    Parameters
    ----------
    loc : float or array
        Mean direction :math:`\mu` in radians, any finite number.
    concentration : float or array
        :math:`\kappa \ge 0`; broadcasts with `loc`. Unlike in NumPyro's class, it may be 0, for the uniform
        distribution on the circle.
    validate_args : bool, optional
        Raise ValueError for parameters outside these constraints. Warn about values outside [-pi, pi], and return a
        density of 0 for them. Without validation, invalid parameters give NaN, and the density is periodic. The default
        is NumPyro's setting.

    Examples
    --------
    >>> import jax, numpyro
    >>> from jax_von_mises.numpyro import VonMises
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     direction = numpyro.sample("direction", VonMises(0.5, 4.0))
    """

    OF = von_mises_class.VonMises

    def __init__(self, loc: ArrayLike, concentration: ArrayLike, *, validate_args: bool | None = None) -> None:
        self._of(self.OF(loc, concentration), validate_args)


class WrappedCauchy(OfOneAngle):
    """The wrapped Cauchy distribution; see `jax_von_mises.WrappedCauchy`. Samples are reparameterised."""

    OF = symmetric_classes.WrappedCauchy

    def __init__(self, loc: ArrayLike, rho: ArrayLike, *, validate_args: bool | None = None) -> None:
        self._of(self.OF(loc, rho), validate_args)


class Cardioid(OfOneAngle):
    """The cardioid distribution; see `jax_von_mises.Cardioid`. Samples are reparameterised."""

    OF = symmetric_classes.Cardioid

    def __init__(self, loc: ArrayLike, rho: ArrayLike, *, validate_args: bool | None = None) -> None:
        self._of(self.OF(loc, rho), validate_args)


class WrappedNormal(OfOneAngle):
    """The wrapped normal distribution; see `jax_von_mises.WrappedNormal`. Samples are reparameterised."""

    OF = symmetric_classes.WrappedNormal

    def __init__(self, loc: ArrayLike, scale: ArrayLike, *, validate_args: bool | None = None) -> None:
        self._of(self.OF(loc, scale), validate_args)


class VonMisesFisher(OfClass):
    r"""The von Mises-Fisher distribution on the sphere, with density :math:`\exp(\kappa\mu\cdot x) / C(\kappa)`.

    Samples are reparameterised in both parameters. Use the class as a likelihood or in a guide. HMC and NUTS need a
    flat space. For a latent variable, use ``numpyro.distributions.ProjectedNormal``, or a vector of normal components
    that the model divides by its length.

    Parameters
    ----------
    mean_direction : array
        :math:`\mu`, d >= 2 components along the last axis. With `validate_args`, its length must be 1; otherwise it is
        normalised.
    concentration : float or array
        :math:`\kappa \ge 0`; broadcasts with `mean_direction` without its last axis.
    validate_args : bool, optional
        Raise ValueError for parameters outside these constraints. Otherwise, invalid parameters give NaN.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro
    >>> from jax_von_mises.numpyro import VonMisesFisher
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     x = numpyro.sample("x", VonMisesFisher(jnp.array([0.0, 0.0, 1.0]), 20.0))
    """

    OF = sphere.VonMisesFisher
    support = constraints.sphere

    def __init__(
        self, mean_direction: ArrayLike, concentration: ArrayLike, *, validate_args: bool | None = None
    ) -> None:
        self._of(self.OF(mean_direction, concentration), validate_args)

    @property
    def mode(self) -> jax.Array:
        """The most likely direction."""
        found: jax.Array = self._own().mode()
        return found


class BivariateVonMises(OfClass):
    """Base class of the two models of dependent angles."""

    OF: ClassVar[type[pairs.BivariateVonMises]] = pairs.BivariateVonMises
    NARROWER: ClassVar = {"phi_loc": constraints.circular, "psi_loc": constraints.circular}
    support = constraints.independent(constraints.circular, 1)

    def __init__(
        self,
        phi_loc: ArrayLike,
        psi_loc: ArrayLike,
        phi_concentration: ArrayLike,
        psi_concentration: ArrayLike,
        correlation: ArrayLike | None = None,
        weighted_correlation: ArrayLike | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        # NumPyro marks missing arguments with None, and `OF` marks them with `...`.
        pair = self.OF(
            phi_loc,
            psi_loc,
            phi_concentration,
            psi_concentration,
            ... if correlation is None else correlation,
            ... if weighted_correlation is None else weighted_correlation,
        )
        self._of(pair, validate_args)


class SineBivariateVonMises(BivariateVonMises):
    r"""The sine model of two dependent angles; see `jax_von_mises.SineBivariateVonMises`.

    A drop-in replacement for ``numpyro.distributions.SineBivariateVonMises``. It also allows two modes and
    concentrations of 0, and its samples are reparameterised in all five parameters.

    Parameters
    ----------
    phi_loc, psi_loc, phi_concentration, psi_concentration, correlation, weighted_correlation
        As in `jax_von_mises.SineBivariateVonMises`.
    validate_args : bool, optional
        Raise ValueError for parameters outside their ranges, and for locations outside [-pi, pi]. Otherwise, invalid
        parameters give NaN.

    Examples
    --------
    >>> import jax, numpyro
    >>> from jax_von_mises.numpyro import SineBivariateVonMises
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     pair = numpyro.sample("pair", SineBivariateVonMises(-1.1, 2.4, 5.0, 6.0, weighted_correlation=0.5))
    """

    OF = pairs.SineBivariateVonMises


class CosineBivariateVonMises(BivariateVonMises):
    r"""The cosine model of two dependent angles; see `jax_von_mises.CosineBivariateVonMises`.

    Samples are reparameterised in all five parameters.

    Parameters
    ----------
    phi_loc, psi_loc, phi_concentration, psi_concentration, correlation, weighted_correlation
        As in `jax_von_mises.CosineBivariateVonMises`.
    validate_args : bool, optional
        Raise ValueError for parameters outside their ranges, and for locations outside [-pi, pi]. Otherwise, invalid
        parameters give NaN.

    Examples
    --------
    >>> import jax, numpyro
    >>> from jax_von_mises.numpyro import CosineBivariateVonMises
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     pair = numpyro.sample("pair", CosineBivariateVonMises(-1.1, 2.4, 5.0, 6.0, correlation=-3.0))
    """

    OF = pairs.CosineBivariateVonMises


@kl_divergence.register(OfOneAngle, OfOneAngle)
def kl_divergence_of_angles(p: OfOneAngle, q: OfOneAngle) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats."""
    shape = jnp.broadcast_shapes(p.batch_shape, q.batch_shape)
    divergence: jax.Array = p._own().kl_divergence(q._own())
    return jnp.broadcast_to(divergence, shape)


@kl_divergence.register(VonMisesFisher, VonMisesFisher)
def von_mises_fisher_kl_divergence(p: VonMisesFisher, q: VonMisesFisher) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats."""
    divergence: jax.Array = p._own().kl_divergence(q._own())
    return divergence


@kl_divergence.register(VonMises, VonMises)
@kl_divergence.register(VonMises, NumPyroVonMises)
@kl_divergence.register(NumPyroVonMises, VonMises)
def von_mises_kl_divergence(p: VonMises, q: VonMises) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats."""
    return von_mises.kl_divergence(p.loc, p.concentration, q.loc, q.concentration)

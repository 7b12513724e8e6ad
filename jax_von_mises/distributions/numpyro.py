"""Define `VonMises`, `VonMisesFisher` and the bivariate models as NumPyro distributions, for MCMC and SVI.

`VonMises` is a drop-in replacement for ``numpyro.distributions.VonMises``. Its draws are also differentiable with
respect to the concentration, so it can be used in a guide. It adds `cdf`, `icdf`, `entropy` and `kl_divergence`, and
allows a concentration of 0.

This module requires NumPyro: ``pip install "jax_von_mises[numpyro]"``.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.distributions import bivariate
from jax_von_mises.distributions import von_mises_fisher as fisher_class
from jax_von_mises.functions import symmetric, von_mises, von_mises_fisher
from jax_von_mises.numerics import quantile, tail_probability
from jax_von_mises.numerics.density import valid
from jax_von_mises.sampling import sampler, sphere

try:
    # This absolute import refers to the library NumPyro, not to this module.
    from numpyro.distributions import Distribution, constraints, kl_divergence
    from numpyro.distributions import VonMises as NumPyroVonMises
    from numpyro.distributions.util import promote_shapes, validate_sample
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "numpyro":
        raise
    raise ImportError(
        'jax_von_mises.numpyro needs NumPyro, which is not installed: pip install "jax_von_mises[numpyro]".'
    ) from error

__all__ = ["CosineBivariateVonMises", "SineBivariateVonMises", "VonMises", "VonMisesFisher"]

# The tails of the von Mises distribution, with NaN for an invalid concentration.
TAILS = symmetric.Tails(
    lambda x, concentration: tail_probability.lower_tail(x, valid(concentration)),
    lambda t, half_minus_t, concentration: quantile.any_half_quantile(t, half_minus_t, valid(concentration)),
)


class VonMises(Distribution):
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

    # A concentration of 0 is allowed; values and derivatives are those of the limit.
    arg_constraints: ClassVar = {"loc": constraints.real, "concentration": constraints.nonnegative}
    reparametrized_params: ClassVar = ["loc", "concentration"]
    support = constraints.circular

    def __init__(self, loc: ArrayLike, concentration: ArrayLike, *, validate_args: bool | None = None) -> None:
        batch_shape = lax.broadcast_shapes(jnp.shape(loc), jnp.shape(concentration))
        # NumPyro checks the values as given. Under jit, they are unknown as soon as JAX has converted them.
        self.loc: Any = loc
        self.concentration: Any = concentration
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)
        if batch_shape:
            # NumPyro would give Python numbers a fixed dtype, but they must take that of the other parameter.
            loc, concentration = (arguments.as_jax(x) if type(x) in (int, float) else x for x in (loc, concentration))
        self.loc, self.concentration = promote_shapes(loc, concentration)

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return angles in [-pi, pi), drawn by `jax_von_mises.sample_von_mises`."""
        return sampler.sample_von_mises(key, self.loc, self.concentration, shape=self.shape(sample_shape))

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.log_prob`."""
        return von_mises.log_prob(value, self.loc, self.concentration)

    def cdf(self, value: ArrayLike) -> jax.Array:
        """Return the probability of an angle between -pi and `value`: 0 at -pi and below, 1 at pi and above.

        This differs from `jax_von_mises.cdf`, which counts from loc - pi. The absolute error is a few ulp of 1. A
        probability that is small because `value` is far below `loc` keeps relative accuracy.
        """
        return von_mises.evaluate(
            "cdf", symmetric.cdf(TAILS), value=value, loc=self.loc, concentration=self.concentration
        )

    def icdf(self, q: ArrayLike) -> jax.Array:
        """Return the angle in [-pi, pi] with probability `q` below it, the inverse of `cdf`; NaN for invalid `q`."""
        parameters = {"loc": self.loc, "concentration": self.concentration}
        return von_mises.evaluate("icdf", symmetric.icdf(TAILS), q=q, **parameters)

    @property
    def mean(self) -> jax.Array:
        """The mean direction, `loc` wrapped to [-pi, pi)."""
        return von_mises.mean(self.loc, self.concentration)

    @property
    def mode(self) -> jax.Array:
        """The most likely angle, `loc` wrapped to [-pi, pi)."""
        return von_mises.mode(self.loc, self.concentration)

    @property
    def variance(self) -> jax.Array:
        """The circular variance 1 - I1(concentration) / I0(concentration), as in NumPyro's class."""
        return jnp.broadcast_to(von_mises.variance(self.concentration), self.batch_shape)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return jnp.broadcast_to(von_mises.entropy(self.concentration), self.batch_shape)


class VonMisesFisher(Distribution):
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

    arg_constraints: ClassVar = {"mean_direction": constraints.sphere, "concentration": constraints.nonnegative}
    reparametrized_params: ClassVar = ["mean_direction", "concentration"]
    support = constraints.sphere

    def __init__(
        self, mean_direction: ArrayLike, concentration: ArrayLike, *, validate_args: bool | None = None
    ) -> None:
        fisher = fisher_class.VonMisesFisher(mean_direction, concentration)
        batch_shape, event_shape = fisher.batch_shape, fisher.event_shape
        # NumPyro checks the values as given. Under jit, they are unknown as soon as JAX has converted them.
        self.mean_direction, self.concentration = fisher.mean_direction, fisher.concentration
        super().__init__(batch_shape=batch_shape, event_shape=event_shape, validate_args=validate_args)
        # NumPyro maps over the leading axes of parameters, which must therefore be those of the batch.
        spread = fisher.broadcast()
        self.mean_direction, self.concentration = spread.mean_direction, spread.concentration

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return unit vectors, drawn by `jax_von_mises.sample_von_mises_fisher`."""
        shape = tuple(sample_shape) + self.batch_shape
        return sphere.sample_von_mises_fisher(key, self.mean_direction, self.concentration, shape)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per unit area; see `jax_von_mises.VonMisesFisher.log_prob`."""
        return von_mises_fisher.log_prob(value, self.mean_direction, self.concentration)

    @property
    def mean(self) -> jax.Array:
        """The mean vector, inside the sphere."""
        return von_mises_fisher.mean(self.mean_direction, self.concentration)

    @property
    def mode(self) -> jax.Array:
        """The most likely direction."""
        return von_mises_fisher.mode(self.mean_direction, self.concentration)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return von_mises_fisher.entropy(self.concentration, self.event_shape[0])


class BivariateVonMises(Distribution):
    """Base class of the two models of dependent angles; its methods call those of the class `OF`."""

    arg_constraints: ClassVar = {
        "phi_loc": constraints.circular,
        "psi_loc": constraints.circular,
        "phi_concentration": constraints.nonnegative,
        "psi_concentration": constraints.nonnegative,
        "correlation": constraints.real,
    }
    reparametrized_params: ClassVar = list(bivariate.NAMES)
    support = constraints.independent(constraints.circular, 1)
    OF: ClassVar[type[bivariate.BivariateVonMises]]

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
        # NumPyro checks the values as given. Under jit, they are unknown as soon as JAX has converted them.
        given = [getattr(pair, name) for name in bivariate.NAMES]
        for name, value in zip(bivariate.NAMES, given, strict=True):
            setattr(self, name, value)
        super().__init__(batch_shape=pair.batch_shape, event_shape=(2,), validate_args=validate_args)
        for name, value in zip(bivariate.NAMES, promote_shapes(*map(jnp.asarray, given)), strict=True):
            setattr(self, name, value)

    def _pair(self) -> bivariate.BivariateVonMises:
        pair = self.OF(*(getattr(self, name) for name in bivariate.NAMES))
        return pair if pair.batch_shape == self.batch_shape else pair.broadcast()

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return pairs of angles in [-pi, pi); see `jax_von_mises.SineBivariateVonMises.sample`."""
        return self._pair().sample(key, sample_shape)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """See `jax_von_mises.SineBivariateVonMises.log_prob`."""
        return self._pair().log_prob(value)

    @property
    def mean(self) -> jax.Array:
        """The mean direction of each angle in radians, along a last axis."""
        return self._pair().mean()

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._pair().entropy()


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

    OF = bivariate.SineBivariateVonMises


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

    OF = bivariate.CosineBivariateVonMises


@kl_divergence.register(VonMisesFisher, VonMisesFisher)
def von_mises_fisher_kl_divergence(p: VonMisesFisher, q: VonMisesFisher) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats."""
    return von_mises_fisher.kl_divergence(p.mean_direction, p.concentration, q.mean_direction, q.concentration)


@kl_divergence.register(VonMises, VonMises)
@kl_divergence.register(VonMises, NumPyroVonMises)
@kl_divergence.register(NumPyroVonMises, VonMises)
def von_mises_kl_divergence(p: VonMises, q: VonMises) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats."""
    return von_mises.kl_divergence(p.loc, p.concentration, q.loc, q.concentration)

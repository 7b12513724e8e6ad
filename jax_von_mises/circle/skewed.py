"""Define `SineSkewed`, a skewed version of a symmetric distribution of angles."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.any_density.distribution import OfDensity
from jax_von_mises.circle import fit
from jax_von_mises.circle import skewed_draw as skewed
from jax_von_mises.circle.symmetric import Symmetric
from jax_von_mises.engine.base import OfAngles, Parameter, check_values, of_one_angle
from jax_von_mises.engine.likelihood import errors_of_samples
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.von_mises.distribution import VonMises


class Estimate(NamedTuple):
    """Standard errors of a skewed distribution."""

    distribution: Any
    """A named tuple with those of the parameters of the symmetric distribution, or a tuple for any density."""
    skewness: jax.Array


def shape_of(kind: Any) -> fit.Shape | None:
    """Return what a fit knows of a class of symmetric distributions, or None."""
    shape = fit.VON_MISES if kind is VonMises else getattr(kind, "SHAPE", None)
    return shape if isinstance(shape, fit.Shape) else None


@pytree("distribution", "skewness")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class SineSkewed(OfDensity):
    r"""A skewed symmetric distribution of angles, with density :math:`f(x) (1 + \lambda \sin(x - \mu))`.

    A frozen pytree. `f` is the density of a distribution that is symmetric about its mean direction :math:`\mu`; the
    symmetry is not checked. Sampling is exact and needs no rejection. An angle drawn from `f` is kept with probability
    :math:`(1 + \lambda \sin(x - \mu)) / 2`, and otherwise reflected about :math:`\mu`.

    Parameters
    ----------
    distribution : distribution of angles
        The symmetric distribution, such as a `VonMises` or a `CircularDistribution`.
    skewness : float or array
        :math:`\lambda` in [-1, 1]; other values give NaN. Broadcasts with the batch of the distribution.
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

    distribution: OfAngles
    skewness: ArrayLike
    SYMMETRIC = False
    CHOOSES = True

    def __init__(self, distribution: OfAngles, skewness: ArrayLike, *, validate_args: bool = False) -> None:
        if not of_one_angle(distribution):
            raise TypeError(
                f"SineSkewed: distribution={arguments.safe_repr(distribution)} must be a distribution of one "
                "angle, such as a VonMises."
            )
        if not distribution.SYMMETRIC:
            kind = type(distribution).__name__
            raise TypeError(f"SineSkewed: distribution is a {kind}, which is not symmetric about its mean.")
        object.__setattr__(self, "distribution", distribution)
        object.__setattr__(self, "skewness", arguments.parameter("SineSkewed", "skewness", skewness))
        ndim = len(self.batch_shape)  # raises ValueError if shapes do not broadcast
        if validate_args:
            check_values("SineSkewed", Parameter("skewness", "share"), self.skewness)
        if np.ndim(self.skewness) < ndim:
            object.__setattr__(self, "skewness", arguments.with_axes(self.skewness, ndim, self.dtype))
        object.__setattr__(self, "distribution", distribution._aligned(ndim))

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        distribution: type[VonMises] | type[Symmetric],
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
    ) -> "SineSkewed":
        """Fit the skewness and both parameters of the symmetric distribution by maximum likelihood.

        Parameters
        ----------
        samples : array
            Angles in radians.
        distribution : class
            The class of the symmetric distribution: `VonMises`, `WrappedCauchy`, `Cardioid` or `WrappedNormal`.
        weights : array, optional
            Number of times that each angle was observed, 0 or more, also fractions; broadcasts to `samples`, or is
            one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes to estimate over; all by default. The other axes index separate data sets.

        Returns
        -------
        SineSkewed
            As for `WrappedCauchy.fit`; the likelihood is the largest that is reached from five starts, with skewnesses
            from -0.98 to 0.98. In 8 settings with 10 to 100 angles, uniform or von Mises, there was a larger one
            elsewhere for at most 1% of data sets. The skewness is -1 or 1 where the likelihood rises up to there. Equal
            angles give a skewness of 0. For nearly uniform data, where the skewed distribution is a cardioid with
            another mean direction, `loc` and the skewness are arbitrary. For a `Cardioid`, skewness and cardioid are
            two factors of one form, so that the estimates are one of two sets of parameters with the same density; for
            a positive skewness, the other one is ``loc`` + pi / 2, half the skewness as ``rho``, and -2 ``rho`` as the
            skewness.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of angles
        up to the next power of two.
        """
        shape = shape_of(distribution)
        if shape is None:
            raise TypeError(
                f"SineSkewed.fit: distribution={arguments.safe_repr(distribution)} must be a class: VonMises, "
                "WrappedCauchy, Cardioid or WrappedNormal."
            )
        *of_symmetric, skewness = fit.fit_angles("SineSkewed", shape, samples, weights, axis, True)
        return cls(distribution(*of_symmetric), skewness)

    def standard_errors(self, samples: ArrayLike, weights: ArrayLike | None = None) -> Estimate:
        """Return the standard errors of all parameters of a fit to `samples`, from the observed information.

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
        shape, count = shape_of(type(self.distribution)), len(jax.tree.leaves(self))
        *errors, skewness = errors_of_samples("SineSkewed.standard_errors", self, samples, weights, count)
        return Estimate(shape.estimate(*errors) if shape else tuple(errors), skewness)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape to which the batch of the distribution and `skewness` broadcast."""
        shapes = {"the distribution": self.distribution.batch_shape, "skewness": np.shape(self.skewness)}
        return arguments.broadcast_shapes("SineSkewed", shapes)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one angle, ()."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities, that of the distribution."""
        return self.distribution.dtype

    def _broadcast_to(self, shape: tuple[int, ...]) -> "SineSkewed":
        skewness = jnp.broadcast_to(arguments.as_jax(self.skewness), shape)
        return SineSkewed(self.distribution._broadcast_to(shape), skewness)

    def _at(self, index: tuple[Any, ...]) -> "SineSkewed":
        whole = self.broadcast()
        return SineSkewed(whole.distribution._at(index), arguments.as_jax(whole.skewness)[index])

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        symmetric, values = self.distribution._drawn_by()
        return skewed.skewed_of(symmetric), values | {"centre": self.distribution.mean(), "skewness": self.skewness}

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per radian, with the accuracy of the distribution's `log_prob`."""
        base = self.distribution.log_prob(arguments.parameter("SineSkewed.log_prob", "value", value))
        given, _ = arguments.parameters("SineSkewed.log_prob", base.dtype, value=value, skewness=self.skewness)
        result: jax.Array = skewed_log_prob(self, base, given["value"])
        return result


@jax.jit
def skewed_log_prob(distribution: SineSkewed, base: jax.Array, value: jax.Array) -> jax.Array:
    """Compute the logarithm of the skewed density from that of the distribution."""
    compute = arguments.compute_dtype(base.dtype)
    centre, skewness = (jnp.asarray(x, compute) for x in (distribution.distribution.mean(), distribution.skewness))
    _, tilt = skewed.slant(jnp.asarray(value, compute), centre, skewness)
    shape = jnp.broadcast_shapes(base.shape, tilt.shape)
    base, tilt = jnp.broadcast_to(base, shape), jnp.broadcast_to(tilt, shape)
    return (base.astype(compute) + jnp.log1p(tilt)).astype(base.dtype)

"""Define `VonMisesFisher`, whose methods call `functions.von_mises_fisher` and are named as in NumPyro and TFP."""

import dataclasses
from collections.abc import Sequence

import jax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.distributions.base import Parameter, Parametric
from jax_von_mises.distributions.pytrees import pytree
from jax_von_mises.functions import von_mises_fisher as functions
from jax_von_mises.sampling import sphere


@pytree("mean_direction", "concentration")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class VonMisesFisher(Parametric):
    r"""The von Mises-Fisher distribution of directions, with density :math:`\exp(\kappa\mu\cdot x) / C(\kappa)`.

    A frozen pytree, like `VonMises`. In two dimensions, the sphere is the circle.

    Parameters
    ----------
    mean_direction : array
        :math:`\mu`, d >= 2 components along the last axis. Any length except 0 is allowed; the vector is normalised.
    concentration : float or array
        :math:`\kappa` in [0, inf]: 0 is the uniform distribution on the sphere, inf a point mass at the mean direction.
        Broadcasts with `mean_direction` without its last axis.
    validate_args : bool
        Raise ValueError for a concentration that is negative or NaN, and for a mean direction that is zero or not
        finite, if the values are known. Otherwise, and under a transformation, such values give NaN.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes.
    ValueError
        For a mean direction of fewer than two components, and for parameters that do not broadcast.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import VonMisesFisher
    >>> fisher = VonMisesFisher(mean_direction=[0.0, 0.0, 1.0], concentration=50.0)
    >>> directions = fisher.sample(jax.random.key(0), (1000,))
    >>> directions.shape, fisher.log_prob(directions).shape
    ((1000, 3), (1000,))
    """

    mean_direction: ArrayLike
    concentration: ArrayLike

    FAMILY = sphere.VON_MISES_FISHER
    PARAMETERS = (Parameter("mean_direction", "direction", 1), Parameter("concentration", "nonnegative"))

    def __init__(self, mean_direction: ArrayLike, concentration: ArrayLike, validate_args: bool = False) -> None:
        self._assign({"mean_direction": mean_direction, "concentration": concentration}, validate_args)

    @property
    def dimension(self) -> int:
        """Number of components d of a direction."""
        return self.event_shape[0]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one direction, (d,)."""
        given = self._parameters()["mean_direction"]
        return (arguments.dimension("VonMisesFisher", "mean_direction", given),)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density at unit vectors, per unit area.

        The error is at most 1e-6 (float32) or 1e-12 (float64) times max(1, abs(log_prob)).
        """
        return functions.log_prob(value, self.mean_direction, self.concentration)

    def mean(self) -> jax.Array:
        """Return the mean vector, whose length is at most 1."""
        return self._spread(functions.mean(self.mean_direction, self.concentration), self.event_shape)

    def mode(self) -> jax.Array:
        """Return the most likely direction."""
        return self._spread(functions.mode(self.mean_direction, self.concentration), self.event_shape)

    def mean_resultant_length(self) -> jax.Array:
        r"""Return the length of the mean vector, :math:`I_{d/2}(\kappa) / I_{d/2-1}(\kappa)`."""
        return self._spread(functions.mean_resultant_length(self.concentration, self.dimension))

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._spread(functions.entropy(self.concentration, self.dimension))

    def kl_divergence(self, other: "VonMisesFisher") -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to `other` in nats: the mean of log(self / other)."""
        self._same_class("kl_divergence", other)
        return functions.kl_divergence(
            self.mean_direction, self.concentration, other.mean_direction, other.concentration
        )

    def cosine_cdf(self, value: ArrayLike) -> jax.Array:
        """Return the probability that the cosine of the angle to the mean direction is below `value`."""
        return functions.cosine_cdf(value, self.concentration, self.dimension)

    def cosine_icdf(self, q: ArrayLike) -> jax.Array:
        """Return the value below which the cosine of the angle to the mean direction lies with probability `q`."""
        return functions.cosine_icdf(q, self.concentration, self.dimension)

    def standard_errors(self, size: ArrayLike) -> functions.Estimate:
        """Return the standard errors of the estimates of `fit` from `size` vectors.

        The standard error of the direction is an angle in radians, the same along each of the d - 1 tangents.
        """
        return functions.standard_errors(self.concentration, size, self.dimension)

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        weights: ArrayLike | None = None,
        axis: int | Sequence[int] | None = None,
        *,
        mean_direction: ArrayLike | None = None,
        bias_correction: bool = False,
    ) -> "VonMisesFisher":
        """Fit the distribution to unit vectors by maximum likelihood; see `functions.von_mises_fisher.fit`."""
        found = functions.fit(samples, weights, axis, mean_direction=mean_direction, bias_correction=bias_correction)
        return cls(*found)

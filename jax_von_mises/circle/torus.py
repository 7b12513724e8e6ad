"""Define `Torus`, the distribution of several independent von Mises angles as one point.

`Torus` is a frozen pytree and can be a component of a mixture. Its methods call those of `VonMises`, and have the same
accuracy, derivatives and errors.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.circle.torus_draw import TORUS
from jax_von_mises.engine import em
from jax_von_mises.engine.base import Distribution
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import WeightedSets
from jax_von_mises.von_mises.clusters import Independent, number_of_angles
from jax_von_mises.von_mises.distribution import VonMises
from jax_von_mises.von_mises.fitting import Estimate


def last_axis(caller: str, shape: tuple[int, ...], meaning: str) -> tuple[tuple[int, ...], int]:
    """Return `shape` without its last axis, and the length of that axis."""
    if not shape or not shape[-1]:
        raise ValueError(
            f"{caller}: the components have batch_shape={shape}, but need a last axis of {meaning}, of length 1 or "
            "more. Add one to a parameter, such as `loc`."
        )
    return shape[:-1], shape[-1]


def shape_of_components(caller: str, components: Any, example: str) -> tuple[int, ...]:
    """Return the batch shape of `components`, or raise TypeError if they are not a distribution."""
    if not hasattr(components, "batch_shape"):
        raise TypeError(
            f"{caller}: components={arguments.safe_repr(components)} must be a distribution, such as {example}."
        )
    shape: tuple[int, ...] = components.batch_shape
    return shape


@pytree("components")
@dataclasses.dataclass(frozen=True, eq=False)
class Torus(Distribution):
    """Distribution of points on a torus, with independent angles that have von Mises distributions.

    A frozen pytree. Accuracy, derivatives, dtypes and the results for invalid parameters (NaN) are those of `VonMises`.
    If the components have no axis of angles, the methods that need it raise ValueError.

    Parameters
    ----------
    components : VonMises
        The distributions of the angles, along the last axis of the batch.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import Torus, VonMises
    >>> distribution = Torus(VonMises(loc=[0.0, 1.0], concentration=[4.0, 9.0]))
    >>> points = distribution.sample(jax.random.key(0), (1000,))
    >>> points.shape, distribution.log_prob(points).shape
    ((1000, 2), (1000,))
    """

    components: VonMises

    CLUSTERING = em.Clustering(
        model=lambda caller, samples, tied: Independent(number_of_angles(caller, samples), tied),
        parameters=lambda one: np.stack([one.components.loc, one.components.concentration], -2, dtype=np.float64),
        distribution=lambda kind, parameters: kind(VonMises(parameters[..., 0, :], parameters[..., 1, :])),
        estimate=Estimate,
    )

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "Torus":
        """Fit the distribution by maximum likelihood, which is `VonMises.fit` of each angle separately.

        Parameters
        ----------
        samples : array
            Points, with their angles in radians along the last axis.
        weights : array, optional
            Number of times that each point was observed, 0 or more, also fractions; broadcasts to the shape of
            `samples` without its last axis, or is one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index
            separate data sets.
        """
        number_of_angles("Torus.fit", arguments.parameter("Torus.fit", "samples", samples))
        sets = WeightedSets.of("Torus.fit", "point", samples, weights, axis, 1)
        weights = None if sets.weights is None else arguments.as_jax(sets.weights)[..., None]
        return cls(VonMises.fit(sets.samples, weights, sets.axes))

    def standard_errors(self, size: ArrayLike) -> Estimate:
        """Return the standard errors of `loc` and `concentration` of each angle from `size` points.

        See `VonMises.standard_errors`; `size` broadcasts with the batch.
        """
        size = arguments.parameter("Torus.standard_errors", "size", size)
        return self._angles().standard_errors(arguments.as_jax(size)[..., None])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of points."""
        return self._shape()[0]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one point, (number of angles,)."""
        return (self._shape()[1],)

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        return self.components.dtype

    def _shape(self) -> tuple[tuple[int, ...], int]:
        """Return the shape of the batch and the number of angles.

        The components are checked here and not in the constructor, because a pytree may hold any object in their place.
        """
        return last_axis("Torus", shape_of_components("Torus", self.components, "a VonMises with a batch"), "angles")

    def _angles(self) -> VonMises:
        """Return the components after checking their axis of angles."""
        self._shape()
        return self.components

    def _broadcast_to(self, shape: tuple[int, ...]) -> "Torus":
        return Torus(self._angles()._broadcast_to(shape + self.event_shape))

    def _at(self, index: tuple[Any, ...]) -> "Torus":
        return Torus(self.components._at((*index, slice(None))))

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        spread = self._angles().broadcast()
        return TORUS, {"loc": spread.loc, "concentration": spread.concentration}

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density at points `value`, with the angles along the last axis."""
        return jnp.sum(self._angles().log_prob(value), -1)

    def prob(self, value: ArrayLike) -> jax.Array:
        """Return the density at points `value`, per radian to the power of the number of angles."""
        return jnp.prod(self._angles().prob(value), -1)

    def mean(self) -> jax.Array:
        """Return the mean direction of each angle in radians."""
        return jnp.broadcast_to(self._angles().mean(), self.components.batch_shape)

    def _unit_means(self) -> tuple[jax.Array, ...]:
        return self._angles()._unit_means()

    def mode(self) -> jax.Array:
        """Return the most likely point."""
        return jnp.broadcast_to(self._angles().mode(), self.components.batch_shape)

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return jnp.sum(self._angles().entropy(), -1)

    def kl_divergence(self, other: "Torus") -> jax.Array:
        """Return the Kullback-Leibler divergence from `self` to `other` in nats: the mean of log(self / other)."""
        self._check_other("kl_divergence", other, Torus)
        if self.event_shape != other.event_shape:
            raise ValueError(
                f"Torus.kl_divergence: `self` has {self.event_shape[0]} angles and `other` {other.event_shape[0]}, but "
                "both must have the same number."
            )
        return jnp.sum(self.components.kl_divergence(other.components), -1)

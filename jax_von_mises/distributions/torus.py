"""`Torus`: independent von Mises angles, also as parts of a mixture.

A frozen pytree with the method names of `VonMises`, made of its methods: accuracy, derivatives and errors are theirs.
"""

import dataclasses

import jax.numpy as jnp

from jax_von_mises import arguments
from jax_von_mises.distributions.pytrees import ByValue, pytree
from jax_von_mises.distributions.von_mises import VonMises


def last_axis(caller, shape, meaning):
    """`shape` without its last axis, and the length of that."""
    if not shape or not shape[-1]:
        raise ValueError(
            f"{caller}: the components have batch_shape={shape}, but the last axis must be that of the {meaning}, 1 or "
            "more. Give `loc` or `concentration` one."
        )
    return shape[:-1], shape[-1]


def laws(caller, components, such):
    """The components; TypeError where they are no laws at all."""
    if not hasattr(components, "batch_shape"):
        raise TypeError(f"{caller}: components={arguments.safe_repr(components)} must be a law, such as {such}.")
    return components


@pytree("components")
@dataclasses.dataclass(frozen=True, eq=False)
class Torus(ByValue):
    """Independent von Mises angles as one point of a torus.

    A frozen pytree. Accuracy, derivatives, dtypes and what bad parameters get (NaN) are those of `VonMises`; components
    without an axis of angles are a ValueError of the method that needs it.

    Parameters
    ----------
    components : VonMises
        The law of each angle, along the last axis of its batch.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import Torus, VonMises
    >>> law = Torus(VonMises(loc=[0.0, 1.0], concentration=[4.0, 9.0]))
    >>> points = law.sample(jax.random.key(0), (1000,))
    >>> points.shape, law.log_prob(points).shape
    ((1000, 2), (1000,))
    """

    components: VonMises

    @property
    def batch_shape(self):
        """Shape of the batch of points."""
        return last_axis("Torus", self._laws().batch_shape, "angles")[0]

    @property
    def event_shape(self):
        """Shape of one point, (number of angles,)."""
        return (last_axis("Torus", self._laws().batch_shape, "angles")[1],)

    @property
    def dtype(self):
        """The float dtype of samples and densities."""
        return self.components.dtype

    def _angles(self):
        """The components, which have an axis of angles."""
        last_axis("Torus", self._laws().batch_shape, "angles")
        return self.components

    def _laws(self):
        """The components, which are laws: only now, since anything may stand there while JAX takes a pytree apart."""
        return laws("Torus", self.components, "a VonMises of as many angles")

    def broadcast(self):
        """Return the same distribution with all parameters of the components of one shape, for `jax.vmap`.

        See `VonMises.broadcast`.
        """
        return Torus(self._angles().broadcast())

    def sample(self, key=None, sample_shape=(), *, seed=None):
        """Points of shape `sample_shape` + ``batch_shape`` + ``event_shape``, angles in [-pi, pi).

        `seed` is another name for `key`.
        """
        return self._angles().sample(arguments.key_or_seed("Torus.sample", key, seed), sample_shape)

    def log_prob(self, value):
        """Logarithm of the density at points `value`, whose last axis is that of the angles."""
        return jnp.sum(self._angles().log_prob(value), -1)

    def prob(self, value):
        """Density at points `value`, per radian to the power of the number of angles."""
        return jnp.prod(self._angles().prob(value), -1)

    def mean(self):
        """Mean direction of each angle in radians."""
        return jnp.broadcast_to(self._angles().mean(), self.components.batch_shape)

    def mode(self):
        """The most likely point."""
        return jnp.broadcast_to(self._angles().mode(), self.components.batch_shape)

    def entropy(self):
        """Differential entropy in nats."""
        return jnp.sum(self._angles().entropy(), -1)

    def kl_divergence(self, other):
        """Kullback-Leibler divergence from `self` to another `Torus`, in nats."""
        if not isinstance(other, Torus):
            raise TypeError(f"Torus.kl_divergence: other={arguments.safe_repr(other)} must be a Torus.")
        if self.event_shape != other.event_shape:
            raise ValueError(
                f"Torus.kl_divergence: one torus has {self.event_shape[0]} angles, the other {other.event_shape[0]}. "
                "Give two of as many."
            )
        return jnp.sum(self.components.kl_divergence(other.components), -1)

"""`Mixture`: several von Mises laws, or tori of independent angles, with weights.

A frozen pytree with the method names of `VonMises`, made of its methods: accuracy, derivatives and errors are theirs.
"""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax_von_mises import arguments
from jax_von_mises.distributions.pytrees import ByValue, pytree
from jax_von_mises.distributions.torus import Torus, last_axis, laws
from jax_von_mises.distributions.von_mises import VonMises
from jax_von_mises.functions import von_mises
from jax_von_mises.numerics import bessel
from jax_von_mises.numerics.density import valid

# Densities of so many components are one program; each adds 0.15 s to its compilation.
UNROLLED = 16


@pytree("logits", "components")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Mixture(ByValue):
    r"""A mixture :math:`\sum_j w_j p_j` of von Mises laws, or of tori of them.

    A frozen pytree of `logits` and `components`. Accuracy, derivatives, dtypes and what bad parameters get (NaN) are
    those of `VonMises`; samples have no derivative in the weights. Shapes that do not fit are a ValueError of the
    method that needs them.

    Parameters
    ----------
    logits : array
        Logarithms of the weights, up to a constant; -inf is a weight of 0. The last axis is that of the components.
    probs : array
        The weights instead of their logarithms, 0 or more, up to a factor: they are divided by their sum. Give either
        `logits` or `probs`. Their logarithms are kept, as the attribute `logits`.
    components : VonMises or Torus
        The distributions, along the last axis of their batch; the batch broadcasts with the weights.

    Raises
    ------
    TypeError
        For neither or both of `logits` and `probs`, or for weights or components of another kind.

    Warns
    -----
    DeprecationWarning
        For arguments without a name, which the next release refuses: the first of them is taken for `logits`.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import Mixture, VonMises
    >>> law = Mixture(probs=[0.3, 0.7], components=VonMises(loc=[-1.0, 2.0], concentration=[5.0, 20.0]))
    >>> angles = law.sample(jax.random.key(0), (1000,))
    >>> law.log_prob(angles).shape, law.responsibilities(angles).shape
    ((1000,), (1000, 2))
    """

    logits: jax.Array
    components: VonMises | Torus

    def __init__(self, *deprecated, logits=..., probs=None, components=...):
        # `...` is an argument that is not given: None may stand for an array in a pytree.
        if deprecated:
            warnings.warn(
                "Mixture: the next release refuses arguments without a name, since probabilities were taken for "
                "logits. Write Mixture(logits=..., components=...) or Mixture(probs=..., components=...).",
                DeprecationWarning,
                stacklevel=2,
            )
            first, *rest = deprecated
            if logits is not ... or len(rest) > 1 or (rest and components is not ...):
                raise TypeError("Mixture: an argument is given twice. Give `components`, and `logits` or `probs`.")
            logits, components = first, rest[0] if rest else components
        if components is ...:
            raise TypeError("Mixture: give `components`, such as a VonMises with an axis of components.")
        if logits is None and probs is not None:
            logits = ...
        if (logits is ...) == (probs is None):
            raise TypeError("Mixture: give the weights once, as `logits` or as `probs`.")
        if logits is ...:
            logits = log_of_weights(arguments.as_jax(arguments.parameter("Mixture", "probs", probs)))
        elif isinstance(logits, list | tuple):  # which would be a pytree itself
            logits = arguments.as_jax(arguments.parameter("Mixture", "logits", logits))
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "components", components)

    @property
    def batch_shape(self):
        """Shape of the batch of mixtures."""
        return self._shape()[:-1]

    @property
    def event_shape(self):
        """Shape of one draw, that of the components."""
        return self.components.event_shape

    @property
    def dtype(self):
        """The float dtype of samples and densities, that of the components."""
        return self.components.dtype

    def _shape(self):
        """Batch and components."""
        shape = np.shape(arguments.parameter("Mixture", "logits", self.logits))
        batch = laws("Mixture", self.components, "a VonMises or a Torus").batch_shape
        last_axis("Mixture", batch, "components")
        if not shape or shape[-1] != batch[-1]:
            raise ValueError(
                f"Mixture: logits has shape {shape} for components of batch_shape={batch}. Both end with the axis of "
                "the components: give one logit for each."
            )
        try:
            return jnp.broadcast_shapes(shape, batch)
        except ValueError as error:
            raise ValueError(
                f"Mixture: logits of shape {shape} and components of batch_shape={batch} do not broadcast together. "
                "Add axes of length 1 where they should vary alone."
            ) from error

    def broadcast(self):
        """Return the same distribution with logits and components of the whole batch, for `jax.vmap`.

        See `VonMises.broadcast`.
        """
        shape = self._shape()

        def each(leaf):
            return jnp.broadcast_to(arguments.as_jax(leaf), shape + self.event_shape)

        return Mixture(
            logits=jnp.broadcast_to(arguments.as_jax(self.logits), shape),
            components=jax.tree.map(each, self.components),
        )

    def log_weights(self):
        """Logarithms of the weights, which sum to 1, of shape ``batch_shape`` + (components,)."""
        shape = self._shape()
        return jnp.broadcast_to(jax.nn.log_softmax(arguments.as_jax(self.logits, self.dtype)), shape)

    def _each(self, method, value):
        """A method of every component, on a last axis."""
        value = arguments.as_jax(arguments.parameter("Mixture", "value", value))
        return method(jnp.expand_dims(value, -1 - len(self.event_shape)))

    def _joint(self, value):
        """Logarithms of the terms w_j p_j."""
        log_weights, log_probs = promote_and_broadcast(self.log_weights(), self._each(self.components.log_prob, value))
        # A weight of 0 leaves nothing, also where its density is infinite.
        return log_weights + jnp.where(log_weights == -jnp.inf, 0, log_probs)

    def log_prob(self, value):
        """Logarithm of the density at `value`; no term under- or overflows before the sum."""
        if self._shape()[-1] > UNROLLED:
            return special.logsumexp(self._joint(value), axis=-1)
        value = arguments.as_jax(arguments.parameter("Mixture", "value", value))
        return log_prob_by_component(self.broadcast(), value)

    def prob(self, value):
        """Density at `value`."""
        weights, probs = promote_and_broadcast(jnp.exp(self.log_weights()), self._each(self.components.prob, value))
        return jnp.sum(weights * jnp.where(weights == 0, 0, probs), -1)

    def cdf(self, value):
        """Probability of an angle between -pi and `value`, both on the line: whole turns count, as in `cdf`.

        To an absolute error of 3 ulp of 1. From -pi, since the components share no `loc`. Angles only: the points of a
        torus have no order.
        """
        if self.event_shape:
            raise TypeError("Mixture.cdf: the points of a torus have no order. Use prob or log_prob.")
        start = self._each(self.components.cdf, jnp.asarray(-jnp.pi, self.dtype))
        weights, start, end = promote_and_broadcast(
            jnp.exp(self.log_weights()), start, self._each(self.components.cdf, value)
        )
        return jnp.sum(weights * (end - start), -1)

    def responsibilities(self, value):
        """Probability of each component given `value`, on a last axis."""
        joint = self._joint(value)
        # Components with an infinite density share all of it.
        infinite = joint == jnp.inf
        joint = jnp.where(jnp.any(infinite, -1, keepdims=True), jnp.where(infinite, 0.0, -jnp.inf), joint)
        return jax.nn.softmax(joint, axis=-1)

    def sample(self, key=None, sample_shape=(), *, seed=None):
        """Draws of shape `sample_shape` + ``batch_shape`` + ``event_shape``, angles in [-pi, pi).

        A component is chosen first and one angle drawn from it alone, so what is drawn of a bad component is NaN, and
        of bad weights everything: those of a NaN or +inf among `logits`, or of nothing but -inf. The derivative in the
        parameters of the components is that at the components chosen; there is none in `logits`. `seed` is another name
        for `key`.
        """
        caller = "Mixture.sample"
        choose, draw = jax.random.split(arguments.key_or_seed(caller, key, seed))
        shape = arguments.whole_sizes(caller, "sample_shape", sample_shape) + self.batch_shape
        log_weights = self.log_weights()
        index = jax.random.categorical(choose, log_weights, shape=shape)
        # Axes of the draws before the batch, and of an event behind the components.
        lead, event = (1,) * (len(shape) - len(self.batch_shape)), self.event_shape
        index = index.reshape(*shape, 1, *(1 for _ in event))

        def of_chosen(leaf):
            leaf = jnp.broadcast_to(arguments.as_jax(leaf, self.dtype), self._shape() + event)
            chosen = jnp.take_along_axis(leaf.reshape(lead + leaf.shape), index, axis=len(shape))
            return jnp.squeeze(chosen, len(shape))

        drawn = jax.tree.map(of_chosen, self.components).sample(draw)
        known = ~jnp.any(jnp.isnan(log_weights), -1)
        return jnp.where(known.reshape(lead + known.shape + (1,) * len(event)), drawn, jnp.nan)

    def mean(self):
        """Mean direction in radians: that of the mean of (cos x, sin x)."""
        weights = jnp.exp(self.log_weights())
        weights = weights.reshape(weights.shape + (1,) * len(self.event_shape))
        weights, cosine, sine = promote_and_broadcast(weights, *resultant(self.components))
        axis = -1 - len(self.event_shape)
        sine, cosine = (jnp.sum(weights * jnp.where(weights == 0, 0, each), axis) for each in (sine, cosine))
        return von_mises.mean(jnp.arctan2(sine, cosine), 1.0)


@jax.jit
def log_prob_by_component(mixture, value):
    """`Mixture.log_prob` of a `Mixture.broadcast`: in one loop over the values, where XLA would sum short rows."""
    event = len(mixture.event_shape)
    log_weights = mixture.log_weights()
    joint = []
    for j in range(log_weights.shape[-1]):
        component = jax.tree.map(lambda leaf, j=j: jnp.take(leaf, j, axis=-1 - event), mixture.components)
        log_weight, log_prob = promote_and_broadcast(log_weights[..., j], component.log_prob(value))
        # A weight of 0 leaves nothing, also where its density is infinite.
        joint.append(log_weight + jnp.where(log_weight == -jnp.inf, 0, log_prob))
    top = lax.stop_gradient(functools.reduce(jnp.maximum, joint))
    top = jnp.where(jnp.isfinite(top), top, 0)
    return top + jnp.log(sum(jnp.exp(term - top) for term in joint))


@jax.jit
def log_of_weights(probs):
    """The logarithms of weights, computed in float32 at least; a weight of 0 has the derivative 0, as its logit has."""
    probs = jnp.asarray(probs, arguments.compute_dtype(arguments.float_dtype("Mixture", None, [probs])))
    logs = jnp.log(jnp.where(probs > 0, probs, 1))
    return jnp.where(probs > 0, logs, jnp.where(probs == 0, -jnp.inf, jnp.nan))


def promote_and_broadcast(*arrays):
    """`arrays` broadcast together, in the dtype of the last, also where JAX's implicit promotion is turned off."""
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(jnp.broadcast_to(a, shape).astype(arrays[-1].dtype) for a in arrays)


def resultant(components):
    """Mean cosine and sine of each angle."""
    if isinstance(components, Torus):
        return resultant(components.components)
    wide = jnp.float64 if components.dtype == jnp.float64 else jnp.float32
    length = bessel.ratio(valid(arguments.as_jax(components.concentration, wide)))
    loc, length = promote_and_broadcast(arguments.as_jax(components.loc, wide), length)
    shape = components.batch_shape
    return tuple(jnp.broadcast_to(length * f(loc), shape).astype(components.dtype) for f in (jnp.cos, jnp.sin))

"""`Mixture`: several distributions of angles, or of points of a torus, with weights, and its fit to data.

A frozen pytree with the method names of `VonMises`, made of its methods: accuracy, derivatives and errors are theirs.
"""

import dataclasses
import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax_von_mises import arguments
from jax_von_mises.distributions import em
from jax_von_mises.distributions.bivariate import BivariateVonMises
from jax_von_mises.distributions.pytrees import ByValue, pytree
from jax_von_mises.distributions.torus import Torus, last_axis, laws
from jax_von_mises.distributions.von_mises import VonMises
from jax_von_mises.functions import von_mises
from jax_von_mises.functions.fitting import axes_of
from jax_von_mises.numerics import bessel
from jax_von_mises.numerics.density import valid

# Densities of so many components are one program; each adds 0.15 s to its compilation.
UNROLLED = 16


@pytree("logits", "components")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Mixture(ByValue):
    r"""A mixture :math:`\sum_j w_j p_j` of von Mises distributions, of tori of them, or of pairs of dependent angles.

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
    components : VonMises, Torus, SineBivariateVonMises or CosineBivariateVonMises
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
    components: VonMises | Torus | BivariateVonMises

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
            return jnp.broadcast_to(arguments.as_jax(leaf), shape + axes_of_angles(self.components))

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
        return log_of_term(self.log_weights(), self._each(self.components.log_prob, value))

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
        lead, event = (1,) * (len(shape) - len(self.batch_shape)), axes_of_angles(self.components)
        index = index.reshape(*shape, 1, *(1 for _ in event))

        def of_chosen(leaf):
            leaf = jnp.broadcast_to(arguments.as_jax(leaf, self.dtype), self._shape() + event)
            chosen = jnp.take_along_axis(leaf.reshape(lead + leaf.shape), index, axis=len(shape))
            return jnp.squeeze(chosen, len(shape))

        drawn = jax.tree.map(of_chosen, self.components).sample(draw)
        known = ~jnp.any(jnp.isnan(log_weights), -1)
        return jnp.where(known.reshape(lead + known.shape + (1,) * len(self.event_shape)), drawn, jnp.nan)

    def mean(self):
        """Mean direction in radians: that of the mean of (cos x, sin x)."""
        weights = jnp.exp(self.log_weights())
        weights = weights.reshape(weights.shape + (1,) * len(self.event_shape))
        weights, cosine, sine = promote_and_broadcast(weights, *resultant(self.components))
        axis = -1 - len(self.event_shape)
        sine, cosine = (jnp.sum(weights * jnp.where(weights == 0, 0, each), axis) for each in (sine, cosine))
        return von_mises.mean(jnp.arctan2(sine, cosine), 1.0)

    @classmethod
    def fit(
        cls,
        samples,
        components,
        weights=None,
        axis=None,
        *,
        number=None,
        key=None,
        starts=8,
        steps=500,
        tolerance=1e-6,
        largest_concentration=1e4,
    ):
        """Fit a mixture by expectation maximisation: the likelihood of every step is at least that of the step before.

        Parameters
        ----------
        samples : array
            Angles in radians; for `Torus` and pairs of angles with the angles of a point along the last axis.
        components : class or Mixture
            `VonMises`, `Torus`, `SineBivariateVonMises` or `CosineBivariateVonMises`, for `number` components of that
            class from several random starts; or a mixture to start from.
        weights : array, optional
            How often each sample counts, 0 or more; broadcasts with `samples`, without the axis of a point's angles.
        axis : int or tuple of ints, optional
            Axes of `samples` (without that of a point's angles) to estimate over; the others are separate data sets,
            and become the batch of the result. All by default.
        number : int, optional
            How many components, where `components` is a class.
        key : jax.Array, optional
            Random key of the starts; ``jax.random.key(0)`` by default, so that a fit can be repeated.
        starts : int
            How many starts. Each takes a few steps, and the one of largest likelihood goes on.
        steps : int
            How many steps at most.
        tolerance : float
            The climb ends when a step gains less in the mean logarithm of the density.
        largest_concentration : float
            Of any component: on a single sample the likelihood would have no bound.

        Returns
        -------
        Mixture
            The best found. Several starts make a poor local maximum unlikely, not impossible. NaN where a data set
            has no samples, no weight, a negative weight, or an angle that is not finite.

        Examples
        --------
        >>> import jax
        >>> from jax_von_mises import Mixture, VonMises
        >>> truth = Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 1.5], [8.0, 3.0]))
        >>> found = Mixture.fit(truth.sample(jax.random.key(1), (5000,)), VonMises, number=2)
        >>> found.batch_shape, found.logits.shape
        ((), (2,))
        """
        caller = "Mixture.fit"
        start = components if isinstance(components, Mixture) else None
        kinds = (VonMises, Torus, *BivariateVonMises.__subclasses__())
        if start is None and components not in kinds:
            raise TypeError(
                f"{caller}: components={arguments.safe_repr(components)} must be one of the classes "
                f"{', '.join(kind.__name__ for kind in kinds)}, or a Mixture to start from."
            )
        if (start is None) == (number is None):
            raise TypeError(f"{caller}: give `number`, the number of components, with a class, and not with a Mixture.")
        counts = {"starts": starts, "steps": steps} | ({} if number is None else {"number": number})
        counts = {name: arguments.whole_number(caller, name, value, 1, 2**31) for name, value in counts.items()}
        kind = type(start.components) if start is not None else components
        given = {"samples": samples} if weights is None else {"samples": samples, "weights": weights}
        arrays, dtype = arguments.parameters(caller, None, **given)
        shape = np.shape(arrays["samples"])
        event = () if kind is VonMises else shape[-1:]
        if kind is not VonMises and (not shape or not shape[-1] or (kind is not Torus and shape[-1] != 2)):
            raise ValueError(
                f"{caller}: samples has shape {shape}, but its last axis must hold the angles of a point"
                f"{'' if kind is Torus else ', phi and psi'}."
            )
        batch = shape[: len(shape) - len(event)]
        axes = axes_of(caller, axis, len(batch))
        if weights is not None and not arguments.broadcasts(np.shape(arrays["weights"]), batch):
            raise ValueError(
                f"{caller}: weights of shape {np.shape(arrays['weights'])} do not broadcast to the samples' shape "
                f"{batch} (without the axis of a point's angles). Give one weight for each sample."
            )
        options = {name: counts[name] for name in ("starts", "steps")} | {"number": counts.get("number")}
        key = jax.random.key(0) if key is None else arguments.one_key(caller, key)
        limits = jnp.asarray(tolerance, jnp.float32), jnp.asarray(largest_concentration, jnp.float32)
        return fit_sets(
            arrays["samples"],
            arrays.get("weights"),
            key,
            start,
            limits,
            kind,
            axes,
            event,
            dtype,
            tuple(options.items()),
        )


@functools.partial(jax.jit, static_argnames=("kind", "axes", "event", "dtype", "options"))
def fit_sets(samples, weights, key, start, limits, kind, axes, event, dtype, options):
    """`Mixture.fit` of checked arguments, for each data set."""
    options = dict(options)
    compute = arguments.compute_dtype(dtype)
    tolerance, largest = (x.astype(compute) for x in limits)
    x = jnp.asarray(samples, compute)
    batch = x.shape[: x.ndim - len(event)]
    kept = tuple(size for i, size in enumerate(batch) if i not in axes)
    front = tuple(i for i in range(len(batch)) if i not in axes)

    def sets(array, rest):
        """Data sets along the first axis and samples along the second."""
        order = (*front, *axes, *range(len(batch), array.ndim))
        return array.transpose(order).reshape(math.prod(kept), math.prod(batch[i] for i in axes), *rest)

    weights = jnp.ones((), compute) if weights is None else jnp.asarray(weights, compute)
    x, share = sets(x, event), sets(jnp.broadcast_to(weights, batch), ())
    angles_good = jnp.isfinite(x).all(tuple(range(share.ndim, x.ndim)))
    share = share / jnp.sum(share, 1, keepdims=True)
    good = (angles_good & (share >= 0)).all(1) if share.shape[1] else jnp.zeros(share.shape[0], bool)
    # A set that is not good must not hold others up.
    x = jnp.where(good.reshape(-1, 1, *(1 for _ in event)), x, 0)
    share = jnp.where(good[:, None], share, 1 / max(share.shape[1], 1))
    if not share.shape[1]:
        x, share = jnp.zeros((share.shape[0], 1, *event), compute), jnp.ones((share.shape[0], 1), compute)
    if start is None:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(share.shape[0]))

        def one(key, x, share):
            number, starts, steps = (options[name] for name in ("number", "starts", "steps"))
            return em.from_seeds(key, Mixture, kind, number, x, share, largest, starts, steps, tolerance)

        found = jax.vmap(one)(keys, x, share)
    else:
        start = start.broadcast()
        wanted = kept + start._shape()[-1:]
        start = jax.tree.map(lambda leaf: leaf.astype(compute), start)

        def spread(leaf):
            behind = leaf.shape[len(start.batch_shape) + 1 :]
            return jnp.broadcast_to(leaf, wanted + behind).reshape(share.shape[0], *wanted[-1:], *behind)

        def one_from(start, x, share):
            return em.climb(start, x, share, largest, options["steps"], tolerance)[0]

        found = jax.vmap(one_from)(jax.tree.map(spread, start), x, share)

    def result(leaf):
        leaf = jnp.where(good.reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, jnp.nan)
        return leaf.reshape(kept + leaf.shape[1:]).astype(dtype)

    return jax.tree.map(result, found)


@jax.jit
def log_prob_by_component(mixture, value):
    """`Mixture.log_prob` of a `Mixture.broadcast`: in one loop over the values, where XLA would sum short rows."""
    event = len(axes_of_angles(mixture.components))
    log_weights = mixture.log_weights()
    joint = []
    for j in range(log_weights.shape[-1]):
        component = jax.tree.map(lambda leaf, j=j: jnp.take(leaf, j, axis=-1 - event), mixture.components)
        joint.append(log_of_term(log_weights[..., j], component.log_prob(value)))
    top = lax.stop_gradient(functools.reduce(jnp.maximum, joint))
    top = jnp.where(jnp.isfinite(top), top, 0)
    return top + jnp.log(sum(jnp.exp(term - top) for term in joint))


@jax.jit
def log_of_weights(probs):
    """The logarithms of weights, computed in float32 at least; a weight of 0 has the derivative 0, as its logit has."""
    probs = jnp.asarray(probs, arguments.compute_dtype(arguments.float_dtype("Mixture", None, [probs])))
    logs = jnp.log(jnp.where(probs > 0, probs, 1))
    return jnp.where(probs > 0, logs, jnp.where(probs == 0, -jnp.inf, jnp.nan))


def log_of_term(log_weight, log_prob):
    """Logarithm of a weight times a density. A weight of 0 leaves nothing, also where the density is infinite."""
    log_weight, log_prob = promote_and_broadcast(log_weight, log_prob)
    return log_weight + jnp.where(log_weight == -jnp.inf, 0, log_prob)


def promote_and_broadcast(*arrays):
    """`arrays` broadcast together, in the dtype of the last, also where JAX's implicit promotion is turned off."""
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(jnp.broadcast_to(a, shape).astype(arrays[-1].dtype) for a in arrays)


def axes_of_angles(components):
    """Axes that the arrays of `components` have behind those of the batch: a torus has one for its angles."""
    return components.event_shape if isinstance(components, Torus) else ()


def resultant(components):
    """Mean cosine and sine of each angle."""
    if isinstance(components, Torus):
        return resultant(components.components)
    if isinstance(components, BivariateVonMises):
        lengths = jnp.stack(components.moments()[:2], -1)
        pair = components.broadcast()
        locs = jnp.stack([pair.phi_loc, pair.psi_loc], -1).astype(lengths.dtype)
        return lengths * jnp.cos(locs), lengths * jnp.sin(locs)
    wide = jnp.float64 if components.dtype == jnp.float64 else jnp.float32
    length = bessel.ratio(valid(arguments.as_jax(components.concentration, wide)))
    loc, length = promote_and_broadcast(arguments.as_jax(components.loc, wide), length)
    shape = components.batch_shape
    return tuple(jnp.broadcast_to(length * f(loc), shape).astype(components.dtype) for f in (jnp.cos, jnp.sin))

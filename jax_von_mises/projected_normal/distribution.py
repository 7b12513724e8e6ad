r"""Define `ProjectedNormal`, the distribution of the direction of a normal vector.

*Layout of the stream.* Direction i in d dimensions uses numbers d i to d i + d - 1 of the stream (see
:mod:`jax_von_mises.engine.numbers`), one for each component of the normal vector. The lowest bit of a number's first
word gives the sign, and the other bits the tail probability, as in `tails.tail`.

*Density.* With :math:`t = \mu\cdot x` and the part :math:`\mu_\perp` of :math:`\mu` orthogonal to x, the integral over
the length r of the vector is

.. math:: p(x) = (2\pi)^{-d/2} e^{-|\mu_\perp|^2/2} \int_0^\infty r^{d-1} e^{-(r-t)^2/2} dr.

The integrand is log-concave. With its mode m, n = d - 1 and u = r - m, its logarithm falls by
:math:`u^2/2 + n(u/m - \log(1+u/m))` from there. A Gauss-Legendre rule integrates it up to where it is below rounding.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine import tails
from jax_von_mises.engine.base import Parameter, Parametric
from jax_von_mises.engine.likelihood import errors_of_samples, maximised
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import WeightedSets, total
from jax_von_mises.numerics import normal, quadrature
from jax_von_mises.sphere.vectors import direction_of

# Fall of the logarithm at which the integral ends, and number of nodes.
RULE = {"float32": (17.0, 40), "float64": (38.0, 72)}


def projected(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return directions, as a family's `place`."""
    (mean,) = parameters
    z = normal.quantile(*tails.tail(numbers(0, mean.shape[-1])))
    return direction_of(jnp.broadcast_to(mean, z.shape) + z).unit


def log_radial(t: jax.Array, n: int) -> jax.Array:
    """Return the logarithm of the integral of r^n exp(-(r - t)^2 / 2) over r > 0."""
    root = jnp.sqrt(t * t + 4 * n)
    mode = jnp.where(t > 0, 0.5 * (root + t), 2 * n / jnp.where(t > 0, 1, root - t))
    depth, count = RULE[t.dtype.name]
    reach = (2 * depth) ** 0.5
    spread = 1 / jnp.sqrt(1 + n / (mode * mode))
    low = jnp.maximum(-reach * spread, -mode)
    high = jnp.minimum(reach, spread * (reach + (depth + 3) / n**0.5))
    low, high = lax.stop_gradient((low, high))

    def term(node: jax.Array, weight: jax.Array) -> tuple[jax.Array]:
        u = low + (high - low) * node
        v = u / mode
        return (weight * jnp.exp(n * (jnp.log1p(v) - v) - 0.5 * u * u),)

    (total,) = quadrature.add_terms(term, *quadrature.gauss_legendre(count), t, loop=True)
    return n * jnp.log(mode) - 0.5 * jnp.square(n / mode) + jnp.log((high - low) * total)


def log_density(value: jax.Array, mean: jax.Array) -> jax.Array:
    """Return the logarithm of the density at vectors, of which only the direction counts."""
    value, mean = jnp.broadcast_arrays(direction_of(value).unit, mean)
    t = jnp.sum(value * mean, -1)
    across = mean - t[..., None] * value
    d = mean.shape[-1]
    return log_radial(t, d - 1) - 0.5 * jnp.sum(across * across, -1) - 0.5 * d * float(np.log(2 * np.pi))


@jax.jit
def fitted(sets: WeightedSets) -> jax.Array:
    """Return the estimate of the mean of the normal vector."""
    x, share = sets.rows()
    x = direction_of(jnp.moveaxis(x, 0, -1)).unit
    share = jnp.broadcast_to(share, x.shape[:-1])
    d = x.shape[-1]
    mean = jnp.stack([total(share * x[..., i]) for i in range(d)], -1)
    length = jnp.sqrt(jnp.sum(mean * mean, -1, keepdims=True))
    # For long means, 1 - length is about (d - 1) / (2 |mean|^2).
    rest = jnp.maximum(1 - length, float(jnp.finfo(x.dtype).eps))
    start = mean * jnp.sqrt(0.5 * (d - 1) / rest)
    found = maximised(lambda mean, x: log_density(x, mean[None]), start[..., None, :], share, x)
    return found.astype(sets.dtype)


@pytree("concentration")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class ProjectedNormal(Parametric):
    r"""The distribution of the direction of a normal vector with identity covariance, on the circle or a sphere.

    A frozen pytree, like `VonMises`. Its density has one mode, and is flatter at the top than that of a
    `VonMisesFisher`. Its draws are as cheap as normal vectors, in any number of dimensions.

    Parameters
    ----------
    concentration : array
        Mean :math:`\mu` of the normal vector, d >= 2 components along the last axis. The longer it is, the more
        concentrated are the directions; 0 is the uniform distribution. Components that are not finite give NaN. The
        name is that of NumPyro.
    validate_args : bool
        Raise ValueError for components that are not finite, if their values are known.

    Notes
    -----
    *Accuracy.* The error of `log_prob` is at most 2e-6 (float32) or 1e-13 (float64) times max(1, abs(log_prob)), plus
    the effect of the rounding of both vectors. A component of the normal vector has a relative error of at most 2e-6
    (1e-13).

    *Derivatives.* Those of draws are pathwise. Both those and the derivatives of `log_prob` are exact.

    *Source.* K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000, section 9.3.3.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import ProjectedNormal
    >>> distribution = ProjectedNormal([0.0, 3.0, 4.0])
    >>> x = distribution.sample(jax.random.key(0), (1000,))
    >>> x.shape, distribution.log_prob(x).shape
    ((1000, 3), (1000,))
    """

    concentration: ArrayLike

    FAMILY = Family(
        name="projected-normal",
        noun="direction",
        parameters={"concentration": 1},
        place=projected,
        numbers=lambda event_shape: event_shape[0],
        event_shape=lambda parameters: np.shape(parameters[0])[-1:],
        methods=("auto", "direct"),
        vector="concentration",
    )
    PARAMETERS = (Parameter("concentration", "vector", 1),)

    def __init__(self, concentration: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"concentration": concentration}, validate_args)

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "ProjectedNormal":
        """Fit the distribution to directions by maximum likelihood.

        Parameters
        ----------
        samples : array
            Vectors of d >= 2 components along the last axis, of any length except 0.
        weights : array, optional
            Number of times that each vector was observed, 0 or more, also fractions; broadcasts to the shape of
            `samples` without its last axis, or is one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index
            separate data sets.

        Returns
        -------
        ProjectedNormal
            Up to a length of 100 (1e5 in float64), each component of the `concentration` has an error of at most 1e-3
            (1e-6) of its standard error for one direction. Beyond that, the rounding of directions limits the length;
            for equal directions it is large and otherwise arbitrary. NaN without vectors, without positive weights, and
            for a negative weight or a vector that is zero or not finite.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of vectors
        up to the next power of two. Time and memory of a step grow with d^2.
        """
        caller = "ProjectedNormal.fit"
        samples = arguments.parameter(caller, "samples", samples)
        arguments.dimension(caller, "samples", samples)
        return cls(fitted(WeightedSets.of(caller, "vector", samples, weights, axis, 1).padded()))

    def standard_errors(self, samples: ArrayLike, weights: ArrayLike | None = None) -> jax.Array:
        """Return the standard errors of `concentration` of a fit to `samples`, from the observed information.

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
        return errors_of_samples("ProjectedNormal.standard_errors", self, samples, weights, 1)[0]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one direction, (d,)."""
        return (arguments.dimension("ProjectedNormal", "concentration", self._parameters()["concentration"]),)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per unit of area, at vectors of which only the direction counts."""
        caller = "ProjectedNormal.log_prob"
        arguments.dimension(caller, "value", arguments.parameter(caller, "value", value), *self.event_shape)
        result: jax.Array = self._compute(
            "log_prob", log_density, ("concentration",), (), {"value": value}, {"value": 1}
        )
        return result

    def mode(self) -> jax.Array:
        """Return the most likely direction; NaN for a `concentration` of 0."""
        found = self._compute("mode", lambda mean: direction_of(mean).unit, ("concentration",))
        return self._spread(found, self.event_shape)

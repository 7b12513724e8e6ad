r"""Define `Kent`, the distribution of directions with elliptic contours.

*Layout of the stream.* Direction i uses numbers 4 i, 4 i + 1 and 4 i + 3 of the stream (see
:mod:`jax_von_mises.engine.numbers`), in the frame of the mean direction and of the major and minor axes. The first
gives v = (1 - t) / 2 for the cosine t of the angle to the mean direction, and the second twice the azimuth from the
major axis, both as in `tails.tail`. Bit 31 of the first word of the last one gives the sign of the part orthogonal to
the mean direction.

*Distribution.* Relative to the uniform distribution and to the mode, v has the density
:math:`e^{-(a + b v) v} E(b v (1 - v))` with :math:`a = 2 \kappa - 4 \beta`, :math:`b = 4 \beta` and
:math:`E(y) = e^{-y} I_0(y)`. It falls monotonically if 2 beta is at most kappa. Given v, twice the azimuth has a von
Mises distribution with the concentration b v (1 - v).
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
from jax_von_mises.compiler import xla
from jax_von_mises.engine.base import LARGEST_ELEMENT, Parameter, Parametric
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import WeightedSets, total
from jax_von_mises.numerics.elementary import aligned, nan_unless
from jax_von_mises.quadratic import draw, fit
from jax_von_mises.quadratic.bingham import LOG_AREA
from jax_von_mises.quadratic.marginal import KentMarginal, Sums, normaliser
from jax_von_mises.quadratic.quantile import drawn_place
from jax_von_mises.sphere import vectors

STEPS = 12


def valid_shape(concentration: jax.Array, ovalness: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both numbers, NaN where they are not allowed, in one shape."""
    concentration, ovalness = jnp.broadcast_arrays(concentration, ovalness)
    good = (ovalness >= 0) & (2 * ovalness <= concentration) & (concentration <= LARGEST_ELEMENT)
    return nan_unless(concentration, good), nan_unless(ovalness, good)


def frame_of(mean_direction: jax.Array, major_axis: jax.Array) -> tuple[vectors.Direction, jax.Array, jax.Array]:
    """Return the mean direction, the part of the major axis orthogonal to it, and the minor axis, as unit vectors."""
    mean_direction, major_axis = jnp.broadcast_arrays(mean_direction, major_axis)
    mean, major = vectors.direction_of(mean_direction), vectors.direction_of(major_axis).unit
    across = major - jnp.sum(major * mean.unit, -1, keepdims=True) * mean.unit
    some = jnp.max(jnp.abs(across), -1, keepdims=True) > 8 * jnp.finfo(across.dtype).eps
    major = vectors.direction_of(nan_unless(across, some)).unit
    return mean, major, jnp.cross(mean.unit, major)


def directions(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return unit vectors, as a family's `place`."""
    mean_direction, major_axis, *numbers_of_shape = parameters
    ndim = len(numbers.shape)
    if all(x.size == 1 for x in numbers_of_shape):
        concentration, ovalness = valid_shape(*(x.reshape(()) for x in numbers_of_shape))
    else:
        concentration, ovalness = valid_shape(*(aligned(x, ndim) for x in numbers_of_shape))
    at = drawn_place(KentMarginal, numbers(0), (concentration, ovalness), route)
    product = at.v * at.w
    c, s = draw.half_turn(numbers(1), 4 * ovalness * product)
    across = jnp.where(numbers(3)[0] >> np.uint32(31) == 1, -2, 2) * jnp.sqrt(product)
    mean, major, minor = frame_of(*(aligned(x, ndim + 1) for x in (mean_direction, major_axis)))
    moved = (across * c)[..., None] * major + (across * s)[..., None] * minor - (2 * at.v)[..., None] * mean.unit
    return draw.unit(mean.unit + moved)


def means(concentration: jax.Array, ovalness: jax.Array) -> tuple[jax.Array, Sums]:
    """Return log C, the mean of 1 - t, and that of the difference of squares along the minor and the major axis."""
    marginal = KentMarginal.of((concentration, ovalness))
    return normaliser(marginal, marginal.squares)


@jax.custom_jvp
def log_norm(concentration: jax.Array, ovalness: jax.Array) -> jax.Array:
    """Return log C, relative to the mode and to the uniform distribution."""
    return means(concentration, ovalness)[0]


@log_norm.defjvp
def _log_norm_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    value, (first, second) = means(*primals)
    return value, -(first * tangents[0] + second * tangents[1])


def log_density(
    value: jax.Array, mean_direction: jax.Array, major_axis: jax.Array, concentration: jax.Array, ovalness: jax.Array
) -> jax.Array:
    """Return the logarithm of the density at vectors, of which only the direction counts."""
    mean, major, minor = frame_of(mean_direction, major_axis)
    concentration, ovalness = valid_shape(concentration, ovalness)
    x = vectors.direction_of(value).unit
    along, across = (jnp.sum(x * axis, -1) for axis in (major, minor))
    oval = ovalness * ((along - across) * (along + across))
    return oval - concentration * vectors.versine(value, mean) - log_norm(concentration, ovalness) - LOG_AREA[3]


def mean_of(
    mean_direction: jax.Array, major_axis: jax.Array, concentration: jax.Array, ovalness: jax.Array
) -> jax.Array:
    """Return the mean vector."""
    mean, _, _ = frame_of(mean_direction, major_axis)
    _, (rest, _) = means(*valid_shape(concentration, ovalness))
    return (1 - rest)[..., None] * mean.unit


def mode(mean_direction: jax.Array, major_axis: jax.Array, concentration: jax.Array, ovalness: jax.Array) -> jax.Array:
    """Return the direction of largest density."""
    mean, _, _ = frame_of(mean_direction, major_axis)
    concentration, _ = valid_shape(concentration, ovalness)
    return nan_unless(mean.unit, ~jnp.isnan(concentration)[..., None])


def entropy(concentration: jax.Array, ovalness: jax.Array) -> jax.Array:
    """Return the differential entropy."""
    concentration, ovalness = valid_shape(concentration, ovalness)
    _, (first, second) = means(concentration, ovalness)
    return log_norm(concentration, ovalness) + concentration * first + ovalness * second + LOG_AREA[3]


def divergence(*parameters: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence of the distribution with the first four parameters from the other one."""
    (mean_q, major_q, minor_q), (mean, major, minor) = frame_of(*parameters[:2]), frame_of(*parameters[4:6])
    (k_q, beta_q), (k, beta) = valid_shape(*parameters[2:4]), valid_shape(*parameters[6:])
    marginal = KentMarginal.of((k, beta))
    log_norm_p, (rest, oval, even, odd) = normaliser(marginal, lambda at: marginal.squares(at) + marginal.products(at))
    squares = [1 - 4 * even, 2 * (even + odd), 2 * (even - odd)]

    def square(axis: jax.Array) -> jax.Array:
        """Return the mean of the squared component along an axis."""
        along = [jnp.sum(axis * own, -1) for own in (mean.unit, major, minor)]
        return xla.tree_sum([m * x * x for m, x in zip(squares, along, strict=True)])

    versine = rest + (1 - rest) * vectors.versine(mean_q.unit, mean)
    other = k_q * versine - beta_q * (square(major_q) - square(minor_q)) + log_norm(k_q, beta_q)
    return jnp.maximum(other - (k * rest + beta * oval + log_norm_p), 0)


def shape_with(rest: jax.Array, along: jax.Array, across: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the concentration and ovalness with given means of 1 - t and of squares along both axes.

    Newton's method solves for kappa - 2 beta and kappa + 2 beta, which stay in this order.
    """
    floor = 1 / LARGEST_ELEMENT
    target = jnp.stack([rest, across - along], -1)

    def of(both: jax.Array) -> jax.Array:
        low, high = both[..., 0], both[..., 1]
        return jnp.stack(means(0.5 * (low + high), 0.25 * (high - low))[1], -1)

    def step(_: jax.Array, both: jax.Array) -> jax.Array:
        found, push = jax.linearize(of, both)
        unit = jnp.zeros_like(both)
        slopes = jnp.stack([push(unit.at[..., j].set(1)) for j in range(2)], -1)
        moved = both + jnp.linalg.solve(slopes, (target - found)[..., None])[..., 0]
        moved = jnp.clip(moved, 0.25 * both, jnp.minimum(4 * both + 1, LARGEST_ELEMENT))
        return lax.cummax(moved, axis=moved.ndim - 1)

    start = 1 / jnp.maximum(jnp.stack([along, across], -1), floor)
    both = lax.fori_loop(0, STEPS, step, lax.cummax(start, axis=start.ndim - 1))
    return 0.5 * (both[..., 0] + both[..., 1]), 0.25 * (both[..., 1] - both[..., 0])


@jax.jit
def fitted(sets: WeightedSets) -> tuple[jax.Array, ...]:
    """Return the estimates of all parameters."""
    x, share = sets.rows()
    x = vectors.direction_of(jnp.moveaxis(x, 0, -1)).unit
    share = jnp.broadcast_to(share, x.shape[:-1])
    mean = vectors.direction_of(jnp.stack([total(share * x[..., i]) for i in range(3)], -1))
    first, second = vectors.orthogonal(mean.unit)
    y, z = (jnp.sum(x * axis[..., None, :], -1) for axis in (first, second))
    moment = fit.moment([y, z], share)
    half = 0.5 * jnp.arctan2(2 * moment[..., 0, 1], moment[..., 0, 0] - moment[..., 1, 1])
    c, s = jnp.cos(half)[..., None], jnp.sin(half)[..., None]
    major, minor = c * first + s * second, c * second - s * first
    y, z = (jnp.sum(x * axis[..., None, :], -1) for axis in (major, minor))
    rest = total(share * vectors.versine(x, vectors.Direction(*(each[..., None, :] for each in mean))))
    concentration, ovalness = shape_with(rest, total(share * y * y), total(share * z * z))
    return tuple(each.astype(sets.dtype) for each in (mean.unit, major, concentration, ovalness))


@pytree("mean_direction", "major_axis", "concentration", "ovalness")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Kent(Parametric):
    r"""The Kent distribution of directions in three dimensions, with elliptic contours about a mean direction.

    With the orthogonal unit vectors :math:`\mu` (mean direction), :math:`\gamma_1` (major axis) and :math:`\gamma_2`
    (minor axis), the density per unit of area is proportional to

    .. math:: \exp(\kappa\, \mu \cdot x + \beta\, ((\gamma_1 \cdot x)^2 - (\gamma_2 \cdot x)^2)).

    It is also called the five-parameter Fisher-Bingham distribution, FB5. A frozen pytree, like `VonMises`.

    Parameters
    ----------
    mean_direction : array
        Vector of three components along the last axis, of any length but 0.
    major_axis : array
        Vector along which the distribution is widest, of any length but 0. Only its part orthogonal to the mean
        direction counts, which must not be 0.
    concentration : float or array
        :math:`\kappa`, from 0 to 1e7.
    ovalness : float or array
        :math:`\beta`, from 0, which gives `VonMisesFisher`, to half of the concentration. Beyond it, the mean direction
        would be no mode. Other values give NaN.
    validate_args : bool
        Raise ValueError for negative and infinite numbers and for vectors that are 0 or not finite, if the values are
        known. Otherwise, such values give NaN.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes.
    ValueError
        For vectors without three components, and for parameters that do not broadcast.

    Notes
    -----
    *Accuracy.* The tail probability of (1 - t) / 2, for the cosine t of the angle of a draw to the mean direction, has
    a relative error of at most 4e-6 (1e-11 in float64), or t is within 4 ulp; the azimuth is as accurate as the angles
    of `sample_von_mises`. The error of `log_prob` is at most 1e-6 (1e-12) times max(1, abs(log_prob)), besides the
    effect of the rounding of vectors.

    *Derivatives.* Those of draws are pathwise: of t and of the azimuth at their fixed probabilities, and of the axes.

    *Source.* J. T. Kent, "The Fisher-Bingham distribution on the sphere", *Journal of the Royal Statistical Society* B
    44, 1982.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises import Kent
    >>> beds = Kent([0.0, 0.0, 1.0], [1.0, 0.0, 0.0], concentration=50.0, ovalness=20.0)
    >>> x = beds.sample(jax.random.key(0), (1000,))
    >>> x.shape, beds.log_prob(x).shape, Kent.fit(x).major_axis.shape
    ((1000, 3), (1000,), (3,))
    """

    mean_direction: ArrayLike
    major_axis: ArrayLike
    concentration: ArrayLike
    ovalness: ArrayLike

    FAMILY = Family(
        name="kent",
        noun="direction",
        parameters={"mean_direction": 1, "major_axis": 1, "concentration": 0, "ovalness": 0},
        place=directions,
        numbers=lambda event_shape: 4,
        event_shape=lambda parameters: np.shape(parameters[0])[-1:],
        tabulated=("concentration", "ovalness"),
        vector="mean_direction",
    )
    PARAMETERS = (
        Parameter("mean_direction", "direction", 1),
        Parameter("major_axis", "direction", 1),
        Parameter("concentration", "nonnegative and finite"),
        Parameter("ovalness", "nonnegative and finite"),
    )

    def __init__(
        self,
        mean_direction: ArrayLike,
        major_axis: ArrayLike,
        concentration: ArrayLike,
        ovalness: ArrayLike,
        *,
        validate_args: bool = False,
    ) -> None:
        given = {"mean_direction": mean_direction, "major_axis": major_axis}
        self._assign(given | {"concentration": concentration, "ovalness": ovalness}, validate_args)
        for name in given:
            if arguments.is_array(getattr(self, name)):
                arguments.dimension("Kent", name, getattr(self, name), 3)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one direction, (3,)."""
        return (3,)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per unit of area, at vectors of which only the direction counts."""
        arguments.dimension("Kent.log_prob", "value", arguments.parameter("Kent.log_prob", "value", value), 3)
        names = [parameter.name for parameter in self.PARAMETERS]
        result: jax.Array = self._compute("log_prob", log_density, names, (), {"value": value}, {"value": 1})
        return result

    def mean(self) -> jax.Array:
        """Return the mean vector, inside the sphere."""
        result: jax.Array = self._compute("mean", mean_of, [parameter.name for parameter in self.PARAMETERS])
        return result

    def mode(self) -> jax.Array:
        """Return the direction of largest density, the unit vector along `mean_direction`."""
        result: jax.Array = self._compute("mode", mode, [parameter.name for parameter in self.PARAMETERS])
        return result

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        return self._spread(self._compute("entropy", entropy, ("concentration", "ovalness")))

    def kl_divergence(self, other: "Kent") -> jax.Array:
        """Return the Kullback-Leibler divergence of `other` from this distribution, in nats.

        Its error is about 1e-6 (1e-12 in float64) times max(1, kl_divergence), besides the effect of the rounding of
        vectors.
        """
        self._check_other("kl_divergence", other, Kent)
        names = [parameter.name for parameter in self.PARAMETERS]
        values = {f"other_{name}": getattr(other, name) for name in names}
        ranks = {f"other_{parameter.name}": parameter.event_rank for parameter in self.PARAMETERS}
        result: jax.Array = self._compute("kl_divergence", divergence, names, (), values, ranks)
        return result

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "Kent":
        """Fit the distribution to directions.

        The mean direction is that of the mean vector, and the axes are those along which the parts orthogonal to it
        are widest and narrowest, as Kent proposes. Given these, the concentration and the ovalness have the largest
        likelihood.

        Parameters
        ----------
        samples : array
            Vectors of three components along the last axis, of any length except 0.
        weights : array, optional
            Number of times that each vector was observed, 0 or more, also fractions; broadcasts to the shape of
            `samples` without its last axis, or is one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index
            separate data sets.

        Returns
        -------
        Kent
            The concentration is at most 1e7, also where the likelihood has no maximum. NaN without vectors, without
            positive weights, and for a negative weight or a vector that is zero or not finite.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of vectors
        up to the next power of two.
        """
        caller = "Kent.fit"
        samples = arguments.parameter(caller, "samples", samples)
        arguments.dimension(caller, "samples", samples, 3)
        sets = WeightedSets.of(caller, "vector", samples, weights, axis, 1)
        return cls(*fitted(sets.padded()))

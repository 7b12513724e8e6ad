r"""Define `Bingham`, the distribution of axes with a quadratic log density."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import Parameter, Parametric, computed
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.engine.request import Family
from jax_von_mises.engine.samples import WeightedSets
from jax_von_mises.quadratic import density, draw, fit
from jax_von_mises.quadratic.frames import frame_of
from jax_von_mises.sphere.vectors import direction_of

# Logarithms of the areas of spheres.
LOG_AREA = {3: float(np.log(4 * np.pi)), 4: float(np.log(2 * np.pi**2))}


def form_of(parameter: jax.Array) -> jax.Array:
    """Return the symmetric part of a parameter, NaN if an element is not allowed."""
    parameter = density.allowed(parameter)
    return 0.5 * (parameter + jnp.swapaxes(parameter, -1, -2))


def axes(numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None) -> jax.Array:
    """Return unit vectors, as a family's `place`."""
    words = tuple(numbers(i) for i in range(4))
    x = draw.unit(draw.drawn(draw.aligned_form(form_of(parameters[0]), len(numbers.shape)), words, route))
    return jnp.where((words[3][0] >> np.uint32(30) & np.uint32(1) == 1)[..., None], -x, x)


def log_density(value: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the logarithm of the density at vectors, of which only the direction counts."""
    return density.log_density(form_of(parameter), direction_of(value).unit) - LOG_AREA[value.shape[-1]]


def mode(parameter: jax.Array) -> jax.Array:
    """Return one of the two most likely directions, whose largest component is positive."""
    x = jnp.stack([row[0] for row in frame_of(form_of(parameter)).axes], -1)
    largest = jnp.max(x, -1, keepdims=True)
    return draw.unit(jnp.where(largest < -jnp.min(x, -1, keepdims=True), -x, x))


def second_moment(parameter: jax.Array) -> jax.Array:
    """Return the mean of x x^T."""
    return density.second_moment(form_of(parameter))


def entropy(parameter: jax.Array) -> jax.Array:
    """Return the differential entropy."""
    return density.entropy(form_of(parameter)) + LOG_AREA[parameter.shape[-1]]


def kl_to_uniform(parameter: jax.Array) -> jax.Array:
    """Return the divergence of the uniform distribution."""
    return -density.entropy(form_of(parameter))


def divergence(other: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the divergence of another distribution."""
    return density.divergence(form_of(parameter), form_of(other))


def standard_errors(size: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the standard errors of the elements of an estimated parameter."""
    form = form_of(parameter)
    return fit.standard_errors(size, form, fit.units(form))


def from_axes(columns: jax.Array, concentrations: jax.Array) -> jax.Array:
    """Return the parameter with these eigenvectors and eigenvalues."""
    scaled = columns * concentrations[..., None, :]
    return jnp.sum(scaled[..., :, None, :] * columns[..., None, :, :], -1)


def watson(axis: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the parameter of Watson's distribution."""
    unit = direction_of(axis).unit
    return concentration[..., None, None] * unit[..., :, None] * unit[..., None, :]


@jax.jit
def fitted(sets: WeightedSets) -> jax.Array:
    """Return the maximum likelihood estimates of the parameter."""
    x, share = sets.rows()
    unit = direction_of(jnp.moveaxis(x, 0, -1)).unit
    components = [unit[..., i] for i in range(unit.shape[-1])]
    return fit.fitted(components, jnp.broadcast_to(share, unit.shape[:-1])).astype(sets.dtype)


def dimension_of(caller: str, name: str, value: ArrayLike) -> int:
    """Return the number of dimensions, 3 or 4, of checked vectors along the last axis."""
    shape: tuple[int, ...] = np.shape(value)
    if shape[-1:] not in ((3,), (4,)):
        raise ValueError(
            f"{caller}: {name} has shape {shape}, but its last axis must have the length 3 or 4: the distribution is "
            "that of axes in three or four dimensions."
        )
    return shape[-1]


def require_square(caller: str, name: str, value: ArrayLike) -> None:
    """Raise ValueError for an array that does not hold matrices of three or four rows and columns."""
    shape: tuple[int, ...] = np.shape(value)
    if shape[-2:] not in ((3, 3), (4, 4)):
        raise ValueError(
            f"{caller}: {name} has shape {shape}, but must hold matrices, of shape (..., 3, 3) or (..., 4, 4)."
        )


@pytree("parameter")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Bingham(Parametric):
    r"""The Bingham distribution of axes, unit vectors x and -x with the same density, in three or four dimensions.

    The density per unit of area is proportional to :math:`\exp(x^T A x)`. Its axes and gaps are the eigenvectors of A
    and the differences of its eigenvalues. Girdles, with one small eigenvalue, and poles, with one large one, are among
    its shapes. In four dimensions, unit quaternions x are rotations, and `rotations.MatrixFisher` is the same
    distribution.

    A frozen pytree, like `VonMises`.

    Parameters
    ----------
    parameter : array
        A, of shape batch + (3, 3) or (4, 4). Only its symmetric part counts, up to a multiple of the identity; 0 gives
        the uniform distribution. Elements that are not finite, or above 1e7, give NaN.
    validate_args : bool
        Raise ValueError for elements that give NaN, if their values are known.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes.
    ValueError
        For a parameter that does not hold matrices of three or four rows.

    Notes
    -----
    *Accuracy.* The tail probability of the squared length v of a draw's part along the last eigenvectors (see
    :mod:`jax_von_mises.quadratic.marginal`) has a relative error of at most 4e-6 (1e-11 in float64), or v or 1 - v is
    within 4 ulp; the angles in the planes of eigenvectors are as accurate as those of `sample_von_mises`. The error of
    log C is at most 1e-6 (1e-12) times max(1, abs(log C)), where C is relative to the mode. Besides, all results have
    the error that comes from the rounding of A and of x, and from that of the eigenvalues, 7e-7 (3e-15) of the largest.

    *Derivatives.* Those of draws are pathwise, finite for every A, and give unbiased derivatives of means, also where
    eigenvalues are equal. `log_prob` and `prob` have second derivatives.

    *Source.* C. Bingham, "An antipodally symmetric distribution on the sphere", *Annals of Statistics* 2, 1974; K. V.
    Mardia and P. E. Jupp, *Directional Statistics*, 2000, section 9.4.3.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax_von_mises import Bingham
    >>> girdle = Bingham.from_axes(jnp.eye(3), [0.0, -1.0, -20.0])
    >>> x = girdle.sample(jax.random.key(0), (1000,))
    >>> x.shape, girdle.log_prob(x).shape, Bingham.fit(x).second_moment().shape
    ((1000, 3), (1000,), (3, 3))
    """

    parameter: ArrayLike

    FAMILY = Family(
        name="bingham",
        noun="unit vector",
        parameters={"parameter": 2},
        place=axes,
        numbers=lambda event_shape: 4,
        event_shape=lambda parameters: np.shape(parameters[0])[-1:],
        tabulated=("parameter",),
    )
    PARAMETERS = (Parameter("parameter", "matrix", 2),)

    def __init__(self, parameter: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"parameter": parameter}, validate_args)
        if arguments.is_array(self.parameter):
            require_square("Bingham", "parameter", self.parameter)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one axis, (3,) or (4,)."""
        return (dimension_of("Bingham", "parameter", self._parameters()["parameter"]),)

    def _check_dimension(self, method: str, other: "Bingham") -> None:
        """Raise an error if `other` is no Bingham distribution in as many dimensions."""
        self._check_other(method, other, Bingham)
        if other.event_shape != self.event_shape:
            raise ValueError(
                f"Bingham.{method}: other is a distribution in {other.event_shape[0]} dimensions, but this one is in "
                f"{self.event_shape[0]}."
            )

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density per unit of area, at vectors of which only the direction counts."""
        caller = "Bingham.log_prob"
        arguments.dimension(caller, "value", arguments.parameter(caller, "value", value), *self.event_shape)
        result: jax.Array = self._compute("log_prob", log_density, ("parameter",), (), {"value": value}, {"value": 1})
        return result

    def mean(self) -> jax.Array:
        """Return the mean vector, which is 0."""
        result: jax.Array = self._compute("mean", lambda parameter: 0 * form_of(parameter)[..., 0], ("parameter",))
        return result

    def mode(self) -> jax.Array:
        """Return one of the two most likely unit vectors, that whose largest component is positive."""
        result: jax.Array = self._compute("mode", mode, ("parameter",))
        return result

    def second_moment(self) -> jax.Array:
        """Return the mean of x x^T, of the shape of `parameter`, also called orientation tensor or scatter matrix."""
        result: jax.Array = self._compute("second_moment", second_moment, ("parameter",))
        return result

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats; its derivatives have absolute errors of 1e-7 (1e-15 in float64)."""
        result: jax.Array = self._compute("entropy", entropy, ("parameter",))
        return result

    def kl_divergence(self, other: "Bingham") -> jax.Array:
        """Return the Kullback-Leibler divergence of `other` from this distribution, in nats.

        Its error is about 1e-6 (1e-12 in float64), or 4 ulp of the parameters, also where it is smaller itself.
        """
        self._check_dimension("kl_divergence", other)
        values = {"other": other.parameter}
        result: jax.Array = self._compute("kl_divergence", divergence, ("parameter",), (), values, {"other": 2})
        return result

    def kl_to_uniform(self) -> jax.Array:
        """Return the Kullback-Leibler divergence of the uniform distribution from this one, in nats."""
        result: jax.Array = self._compute("kl_to_uniform", kl_to_uniform, ("parameter",))
        return result

    def multiply(self, other: "Bingham") -> "Bingham":
        """Return the normalised product of the densities, such as of a prior and a likelihood: the parameters add."""
        self._check_dimension("multiply", other)
        return Bingham(
            self._compute("multiply", density.added, ("parameter",), (), {"other": other.parameter}, {"other": 2})
        )

    def standard_errors(self, size: ArrayLike) -> jax.Array:
        """Return the standard errors of the elements of `parameter` from `fit` to `size` vectors.

        They follow from the Fisher information. The shape is that of `parameter`.
        """
        result: jax.Array = self._compute("standard_errors", standard_errors, ("parameter",), (), {"size": size})
        return result

    @classmethod
    def from_axes(cls, axes: ArrayLike, concentrations: ArrayLike) -> "Bingham":
        """Return the distribution with given eigenvectors and eigenvalues.

        Parameters
        ----------
        axes : array
            Orthogonal matrix whose columns are the eigenvectors, of shape (..., d, d).
        concentrations : array
            The eigenvalues, of shape (..., d). Only their differences count; other libraries let the largest be 0.
        """
        caller = "Bingham.from_axes"
        given, dtype = arguments.parameters(caller, None, axes=axes, concentrations=concentrations)
        require_square(caller, "axes", given["axes"])
        arguments.dimension(caller, "concentrations", given["concentrations"], np.shape(given["axes"])[-1])
        return cls(computed(from_axes, (), tuple(given.values()), (2, 1), dtype))

    @classmethod
    def watson(cls, axis: ArrayLike, concentration: ArrayLike) -> "Bingham":
        """Return Watson's distribution, whose density is proportional to exp(concentration cos(angle to `axis`)^2).

        Parameters
        ----------
        axis : array
            Vector along the last axis, of three or four components and any length but 0.
        concentration : float or array
            Above 0 for vectors near the axis and its opposite, below 0 for those orthogonal to it.
        """
        caller = "Bingham.watson"
        given, dtype = arguments.parameters(caller, None, axis=axis, concentration=concentration)
        dimension_of(caller, "axis", given["axis"])
        return cls(computed(watson, (), tuple(given.values()), (1, 0), dtype))

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "Bingham":
        """Fit the distribution to axes by maximum likelihood.

        The estimate is the parameter for which `second_moment` is that of the data, with the largest eigenvalue 0.

        Parameters
        ----------
        samples : array
            Vectors of three or four components along the last axis, of any length except 0; x and -x are the same.
        weights : array, optional
            Number of times that each vector was observed, 0 or more, also fractions; broadcasts to the shape of
            `samples` without its last axis, or is one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting the last one, to estimate over; all by default. The other axes index
            separate data sets.

        Returns
        -------
        Bingham
            The gaps between eigenvalues have relative errors of about 1e-5 (float32) or 1e-12 (float64), besides the
            rounding of `parameter`. They are at most 9.9e6, also where the likelihood has no maximum, as for fewer
            vectors than dimensions. NaN without vectors, without positive weights, and for a negative weight or a
            vector that is zero or not finite. The estimates have first derivatives.

        Notes
        -----
        It works inside `jit`, `vmap` and `grad`. Outside of transformations, one compiled program serves all numbers of
        vectors up to the next power of two.
        """
        caller = "Bingham.fit"
        samples = arguments.parameter(caller, "samples", samples)
        dimension_of(caller, "samples", samples)
        sets = WeightedSets.of(caller, "vector", samples, weights, axis, 1)
        return cls(fitted(sets.padded()))

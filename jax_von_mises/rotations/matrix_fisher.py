r"""Define `MatrixFisher`, the exponential family of rotations with the sufficient statistic R."""

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
from jax_von_mises.rotations import matrices
from jax_von_mises.rotations.fit import quaternions, rank_of, sets_of
from jax_von_mises.sphere.vectors import direction_of


def form_of(parameter: jax.Array) -> jax.Array:
    """Return the quadratic form of quaternions, NaN for a parameter with an element that is not allowed."""
    return matrices.quadratic_form(density.allowed(parameter))


def rotations(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return unit quaternions, as a family's `place`."""
    form = draw.aligned_form(form_of(parameters[0]), len(numbers.shape))
    return draw.unit(draw.drawn(form, tuple(numbers(i) for i in range(4)), route))


def log_density(value: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the logarithm of the density at quaternions, of which only the direction counts."""
    return density.log_density(form_of(parameter), direction_of(value).unit)


def log_density_of_matrices(value: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the logarithm of the density at rotation matrices."""
    return log_density(matrices.to_quaternion(value), parameter)


def mean(parameter: jax.Array) -> jax.Array:
    """Return the mean rotation matrix."""
    return matrices.of_moments(density.second_moment(form_of(parameter)))


def mode(parameter: jax.Array) -> jax.Array:
    """Return the most likely rotation."""
    q = jnp.stack([row[0] for row in frame_of(form_of(parameter)).axes], -1)
    return draw.unit(jnp.where(q[..., :1] < 0, -q, q))


def entropy(parameter: jax.Array) -> jax.Array:
    """Return the entropy relative to the uniform distribution."""
    return density.entropy(form_of(parameter))


def divergence(other: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence of another distribution from one."""
    return density.divergence(form_of(parameter), form_of(other))


def from_axes(mode: jax.Array, axes: jax.Array, concentrations: jax.Array) -> jax.Array:
    """Return the parameter with this mode and these concentrations along the columns of `axes`."""
    scaled = axes * concentrations[..., None, :]
    around = jnp.sum(scaled[..., :, None, :] * axes[..., None, :, :], -1)
    turn = matrices.of_quaternion(direction_of(mode).unit)
    return jnp.sum(around[..., :, :, None] * turn[..., None, :, :], -2)


def isotropic(mode: jax.Array, concentration: jax.Array) -> jax.Array:
    """Return the parameter with this mode and the same concentration about all axes."""
    return concentration[..., None, None] * matrices.of_quaternion(direction_of(mode).unit)


def from_mean(mean: jax.Array) -> jax.Array:
    """Return the parameter for which rotation matrices have this mean."""
    return matrices.of_form(fit.form_with(matrices.moments_of(mean)))


def standard_errors(size: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return the standard errors of the elements of an estimated parameter."""
    form = form_of(parameter)
    return fit.standard_errors(size, form, jax.tree.map(matrices.of_form, fit.units(form)))


@jax.jit
def fitted(sets: WeightedSets) -> jax.Array:
    """Return the maximum likelihood estimates of the parameter."""
    q, share = quaternions(sets)
    found = matrices.of_form(fit.fitted([q[..., i] for i in range(4)], share))
    return found.astype(sets.dtype)


@pytree("parameter")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class MatrixFisher(Parametric):
    r"""The matrix Fisher distribution of rotations, also called matrix von Mises or Langevin distribution on SO(3).

    The density of a rotation matrix R with respect to the uniform distribution of rotations is

    .. math:: f(R) = \exp(\mathrm{tr}(F^T R)) / C(F).

    A frozen pytree, like `VonMises`. Draws are unit quaternions (w, x, y, z) along the last axis; q and -q are the
    same rotation. `to_matrix` makes matrices of them.

    With the singular value decomposition F = U S V^T, in which U and V are rotations, the mode is U V^T, and the
    variances of small rotations about the columns of U are 1 / (s_j + s_k) at high concentration.

    Parameters
    ----------
    parameter : array
        F, any matrices of shape batch + (3, 3); 0 gives the uniform distribution. Elements that are not finite, or
        above 1e7, give NaN.
    validate_args : bool
        Raise ValueError for elements that give NaN, if their values are known.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes.
    ValueError
        For a parameter whose last two axes have not three elements each.

    Notes
    -----
    *Accuracy.* The tail probability of the angle-like coordinate v of a draw (see
    :mod:`jax_von_mises.quadratic.marginal`) has a relative error of at most 4e-6 (1e-11 in float64), or v or 1 - v is
    within 4 ulp; the two other angles are as accurate as those of `sample_von_mises`. The error of log C is at most
    1e-6 (1e-12) times max(1, abs(log C)), where C is relative to the mode. Besides, all results have the error that
    comes from the rounding of F and of rotations, and from that of the eigenvalues of the quadratic form, 7e-7 (3e-15)
    of the largest.

    *Derivatives.* Those of draws are pathwise, finite for every F, and give unbiased derivatives of means, also where
    singular values are equal. `log_prob` and `prob` have second derivatives.

    *Source.* K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000, section 13.2; T. Lee, "Bayesian attitude
    estimation with the matrix Fisher distribution on SO(3)", *IEEE Transactions on Automatic Control* 63, 2018. The
    marginal distribution that draws use is in :mod:`jax_von_mises.quadratic.marginal`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jax_von_mises.rotations import MatrixFisher
    >>> pose = MatrixFisher(jnp.diag(jnp.array([8.0, 5.0, 2.0])))
    >>> q = pose.sample(jax.random.key(0), (1000,))
    >>> q.shape, pose.log_prob(q).shape, pose.mean().shape
    ((1000, 4), (1000,), (3, 3))
    """

    parameter: ArrayLike

    FAMILY = Family(
        name="matrix-fisher",
        noun="rotation",
        parameters={"parameter": 2},
        place=rotations,
        numbers=lambda event_shape: 4,
        event_shape=lambda parameters: (4,),
        tabulated=("parameter",),
    )
    PARAMETERS = (Parameter("parameter", "matrix", 2),)

    def __init__(self, parameter: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"parameter": parameter}, validate_args)
        if arguments.is_array(self.parameter):
            require_matrices("MatrixFisher", "parameter", self.parameter)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one quaternion, (4,)."""
        return (4,)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density with respect to the uniform distribution, whose own is 0.

        Subtract log(8 pi^2) for rotation vectors, whose volume is that of small angles in radians.

        Parameters
        ----------
        value : array
            Quaternions along the last axis, of which only the direction counts, or rotation matrices along the last
            two axes, of three elements each.
        """
        rank = rank_of("MatrixFisher.log_prob", "value", value)
        function = log_density if rank == 1 else log_density_of_matrices
        result: jax.Array = self._compute("log_prob", function, ("parameter",), (), {"value": value}, {"value": rank})
        return result

    def mean(self) -> jax.Array:
        """Return the mean of rotation matrices, of shape ``batch`` + (3, 3); itself no rotation."""
        result: jax.Array = self._compute("mean", mean, ("parameter",))
        return result

    def mode(self) -> jax.Array:
        """Return the most likely rotation, a unit quaternion with w >= 0."""
        result: jax.Array = self._compute("mode", mode, ("parameter",))
        return result

    def kl_divergence(self, other: "MatrixFisher") -> jax.Array:
        """Return the Kullback-Leibler divergence of `other` from this distribution, in nats.

        Its error is about 1e-6 (1e-12 in float64), or 4 ulp of the parameters, also where it is smaller itself.
        """
        self._check_other("kl_divergence", other, MatrixFisher)
        values = {"other": other.parameter}
        result: jax.Array = self._compute("kl_divergence", divergence, ("parameter",), (), values, {"other": 2})
        return result

    def kl_to_uniform(self) -> jax.Array:
        """Return the Kullback-Leibler divergence of the uniform distribution from this one, in nats."""
        return -self.entropy()

    def multiply(self, other: "MatrixFisher") -> "MatrixFisher":
        """Return the normalised product of the densities, such as of a prior and a likelihood: the parameters add."""
        self._check_other("multiply", other, MatrixFisher)
        return MatrixFisher(
            self._compute("multiply", density.added, ("parameter",), (), {"other": other.parameter}, {"other": 2})
        )

    def standard_errors(self, size: ArrayLike) -> jax.Array:
        """Return the standard errors of the elements of `parameter` from `fit` to `size` rotations.

        They follow from the Fisher information. The shape is that of `parameter`.
        """
        result: jax.Array = self._compute("standard_errors", standard_errors, ("parameter",), (), {"size": size})
        return result

    @classmethod
    def from_mode(cls, mode: ArrayLike, axes: ArrayLike, concentrations: ArrayLike) -> "MatrixFisher":
        """Return the distribution with a mode, and concentrations about axes.

        Parameters
        ----------
        mode : array
            Quaternion along the last axis, of any length but 0.
        axes : array
            Rotation matrix whose columns are axes, of shape (..., 3, 3).
        concentrations : array
            The numbers s_j for the axes, of shape (..., 3). At high concentration, the variance of small rotations
            about axis j is 1 / (s_k + s_l) for the other two. The mode is as given if no such sum is negative.

        Notes
        -----
        The sums keep the digits that F has, about 1e-7 (1e-16 in float64) of the largest concentration.
        """
        caller = "MatrixFisher.from_mode"
        given, dtype = arguments.parameters(caller, None, mode=mode, axes=axes, concentrations=concentrations)
        arguments.dimension(caller, "mode", given["mode"], 4)
        arguments.dimension(caller, "concentrations", given["concentrations"], 3)
        require_matrices(caller, "axes", given["axes"])
        return cls(computed(from_axes, (), tuple(given.values()), (1, 2, 1), dtype))

    @classmethod
    def isotropic(cls, mode: ArrayLike, concentration: ArrayLike) -> "MatrixFisher":
        """Return the distribution of the parameter `concentration` times the rotation matrix of the quaternion `mode`.

        At high concentration, the variance of small rotations about each axis is 1 / (2 concentration).
        """
        caller = "MatrixFisher.isotropic"
        given, dtype = arguments.parameters(caller, None, mode=mode, concentration=concentration)
        arguments.dimension(caller, "mode", given["mode"], 4)
        return cls(computed(isotropic, (), tuple(given.values()), (1, 0), dtype))

    @classmethod
    def from_mean(cls, mean: ArrayLike) -> "MatrixFisher":
        """Return the distribution whose `mean` is given, the nearest one to any distribution with this mean.

        Among distributions of this class, it has the smallest Kullback-Leibler divergence from that one, so that a
        filter continues with it where noise or a mixture leads out of the class.

        Parameters
        ----------
        mean : array
            Mean of rotation matrices, of shape (..., 3, 3); NaN for matrices that are none.

        Notes
        -----
        The mean is given to rounding of 1, so that the concentrations s have a relative error of about 5e-6 s (1e-14 s
        in float64). Gaps of the quadratic form are at most 9.9e6. There are first derivatives.
        """
        caller = "MatrixFisher.from_mean"
        given, dtype = arguments.parameters(caller, None, mean=mean)
        require_matrices(caller, "mean", given["mean"])
        return cls(computed(from_mean, (), tuple(given.values()), (2,), dtype))

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "MatrixFisher":
        """Fit the distribution to rotations by maximum likelihood.

        The estimate is the parameter for which the mean of rotation matrices is that of the data.

        Parameters
        ----------
        samples : array
            Quaternions along the last axis, of any length except 0, or rotation matrices along the last two axes.
        weights : array, optional
            Number of times that each rotation was observed, 0 or more, also fractions; broadcasts to the shape of
            `samples` without the axes of one rotation, or is one-dimensional along a single `axis`.
        axis : int or tuple of ints, optional
            Axes of `samples`, not counting those of one rotation, to estimate over; all by default. The other axes
            index separate data sets.

        Returns
        -------
        MatrixFisher
            The gaps of the quadratic form (see :mod:`jax_von_mises.quadratic.marginal`) have relative errors of about
            1e-5 (float32) or 1e-12 (float64), besides the rounding of `parameter`. They are at most 9.9e6, also
            where the likelihood has no maximum, as for fewer than four rotations. NaN without rotations, without
            positive weights, and for a negative weight, a zero quaternion or a matrix that is no rotation. The
            estimates have first derivatives.

        Notes
        -----
        It works inside `jit`, `vmap` and `grad`. Outside of transformations, one compiled program serves all numbers of
        rotations up to the next power of two.
        """
        return cls(fitted(sets_of("MatrixFisher.fit", samples, weights, axis)))

    def entropy(self) -> jax.Array:
        """Return the entropy with respect to the uniform distribution, whose own is 0, in nats.

        Its derivatives have an absolute error of about 1e-7 (1e-15 in float64).
        """
        result: jax.Array = self._compute("entropy", entropy, ("parameter",))
        return result


def require_matrices(caller: str, name: str, value: ArrayLike) -> None:
    """Raise ValueError for an array that does not hold matrices of three rows and columns."""
    if np.shape(value)[-2:] != (3, 3):
        raise ValueError(f"{caller}: {name} has shape {np.shape(value)}, but must hold matrices, of shape (..., 3, 3).")

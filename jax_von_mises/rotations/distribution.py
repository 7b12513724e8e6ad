"""Define `IsotropicGaussianSO3`, a distribution of rotations in three dimensions."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import Parameter, Parametric
from jax_von_mises.engine.pytrees import pytree
from jax_von_mises.numerics.elementary import valid
from jax_von_mises.rotations import divergence, fit
from jax_von_mises.rotations import heat as rotations
from jax_von_mises.rotations.draw import ISOTROPIC_GAUSSIAN
from jax_von_mises.sphere import vectors


@pytree("mean_rotation", "scale")
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class IsotropicGaussianSO3(Parametric):
    r"""The isotropic Gaussian distribution of rotations, the solution of the heat equation on SO(3).

    Relative to `mean_rotation`, a rotation has a uniform axis and an angle :math:`\omega` in [0, pi]. The density with
    respect to the uniform distribution of rotations is

    .. math:: f(\omega) = \sum_{l \ge 0} (2l+1) e^{-l(l+1)\sigma^2/2} \frac{\sin((l + 1/2)\omega)}{\sin(\omega/2)}.

    A frozen pytree, like `VonMises`. Rotations are unit quaternions (w, x, y, z) along the last axis; q and -q are the
    same rotation.

    Parameters
    ----------
    mean_rotation : array
        Mean rotation, a quaternion of any length but 0.
    scale : float or array
        :math:`\sigma` in [0, inf]: 0 is a point mass at the mean, inf the uniform distribution. A small scale is the
        standard deviation of each component of the rotation vector from the mean, in radians. It is the square root of
        the time of a Brownian motion. Papers that write :math:`e^{-l(l+1)\epsilon^2}` have
        :math:`\sigma = \sqrt{2}\,\epsilon`. Broadcasts with `mean_rotation` without its last axis.
    validate_args : bool
        Raise ValueError for a scale that is negative or NaN, and for a mean that is zero or not finite, if the values
        are known. Otherwise, and under a transformation, such values give NaN.

    Raises
    ------
    TypeError
        For text, complex numbers, and arrays of unsupported dtypes.
    ValueError
        For a mean whose last axis has not four components, and for parameters that do not broadcast.

    Notes
    -----
    *Accuracy.* The tail probability of a drawn angle has a relative error of at most 4e-6 (1e-12 in float64), or the
    angle, or pi minus the angle, is within 4 ulp. This holds for every scale. Scales below 1e-18 have the density
    of that scale.

    *Derivatives.* The angle of a draw moves by :math:`-\sigma f'(\omega) / f(\omega)` times a change of the scale,
    which is its derivative at a fixed tail probability. A draw turns with the mean.

    *Source.* D. I. Nikolayev and T. I. Savyolov, "Normal distribution on the rotation group SO(3)", *Textures and
    Microstructures* 29, 1997. Both series are in the module :mod:`jax_von_mises.rotations.heat`.

    Examples
    --------
    >>> import jax
    >>> from jax_von_mises.rotations import IsotropicGaussianSO3
    >>> noise = IsotropicGaussianSO3(mean_rotation=[1.0, 0.0, 0.0, 0.0], scale=[0.1, 1.0])
    >>> rotations = noise.sample(jax.random.key(0), (1000,))
    >>> rotations.shape, noise.log_prob(rotations).shape, noise.score(rotations).shape
    ((1000, 2, 4), (1000, 2), (1000, 2, 3))
    """

    mean_rotation: ArrayLike
    scale: ArrayLike

    FAMILY = ISOTROPIC_GAUSSIAN
    PARAMETERS = (Parameter("mean_rotation", "direction", 1), Parameter("scale", "nonnegative"))

    def __init__(self, mean_rotation: ArrayLike, scale: ArrayLike, *, validate_args: bool = False) -> None:
        self._assign({"mean_rotation": mean_rotation, "scale": scale}, validate_args)
        if arguments.is_array(self.mean_rotation):
            arguments.dimension("IsotropicGaussianSO3", "mean_rotation", self.mean_rotation, 4)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one quaternion, (4,)."""
        return (arguments.dimension("IsotropicGaussianSO3", "mean_rotation", self._parameters()["mean_rotation"], 4),)

    def _of_value(self, method: str, function: rotations.OfRelative, value: ArrayLike) -> jax.Array:
        caller = f"IsotropicGaussianSO3.{method}"
        arguments.dimension(caller, "value", arguments.parameter(caller, "value", value), 4)
        names = "mean_rotation", "scale"
        result: jax.Array = self._compute(method, of_relative, names, (function,), {"value": value}, {"value": 1})
        return result

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return log f, the logarithm of the density with respect to the uniform distribution, whose own is 0.

        Subtract log(8 pi^2) for rotation vectors, whose volume is that of small angles in radians.

        Parameters
        ----------
        value : array
            Quaternions along the last axis. Only their direction is used.

        Notes
        -----
        The error is at most 1e-6 (float32) or 1e-14 (float64) times max(1, abs(log_prob)), plus the effect of the
        rounding of `value`. Derivatives with respect to all arguments are exact.
        """
        return self._of_value("log_prob", rotations.log_density, value)

    def score(self, value: ArrayLike) -> jax.Array:
        r"""Return the gradient of `log_prob` as a tangent vector, of shape ``batch`` + (3,).

        Its component along u is the derivative of log f at :math:`q \exp(tu)` with respect to t, where the quaternion
        :math:`\exp(tu)` is the rotation by the rotation vector tu: the axes turn with q. To get the score about fixed
        axes, turn the vector by q. Both are along the axis of the rotation from the mean.

        Parameters
        ----------
        value : array
            As in `log_prob`. The score is the same for q and -q.

        Notes
        -----
        The relative error is at most 1e-6 (float32) or 1e-14 (float64), plus the effect of the rounding of `value`. At
        an angle of pi, where the axis is not unique, the score is 0.
        """
        return self._of_value("score", rotations.score, value)

    def expected_score_norm(self) -> jax.Array:
        """Return the square root of the mean of the squared length of `score`; inf at scale 0, and 0 at inf.

        Losses of diffusion models divide by it. For small scales, it is sqrt(3) / `scale`.

        Notes
        -----
        The relative error is at most 2e-6 (float32) or 1e-13 (float64).
        """
        norm = self._compute("expected_score_norm", rotations.root_mean_square_score, ("scale",))
        return self._spread(norm)

    def mean(self) -> jax.Array:
        """Return the mean rotation, the unit quaternion of `mean_rotation`."""
        return self.mode()

    def mode(self) -> jax.Array:
        """Return the most likely rotation, the unit quaternion of `mean_rotation`."""
        return self._spread(self._compute("mode", unit, ("mean_rotation",)), (4,))

    def entropy(self) -> jax.Array:
        """Return the entropy with respect to the uniform distribution, whose own is 0, in nats; -inf at scale 0.

        Notes
        -----
        The error is at most 1e-6 (float32) or 1e-13 (float64) times max(1, abs(entropy)).
        """
        return self._spread(self._compute("entropy", divergence.entropy, ("scale",)))

    def kl_divergence(self, other: "IsotropicGaussianSO3") -> jax.Array:
        """Return the Kullback-Leibler divergence of `other` from this distribution, in nats.

        It is inf if exactly one of both is a point mass, and for different point masses.

        Notes
        -----
        The error is at most 4e-6 (float32) or 4e-8 (float64) times the larger of 1 and the result, also where the
        result is small; 1e-12 in float64 without a distribution that is narrow beside one that reaches the opposite
        rotations. First derivatives exist everywhere, except for point masses.
        """
        self._check_other("kl_divergence", other, IsotropicGaussianSO3)
        values = {"other_mean": other.mean_rotation, "other_scale": other.scale}
        names, ranks = ("mean_rotation", "scale"), {"other_mean": 1, "other_scale": 0}
        result: jax.Array = self._compute("kl_divergence", divergence.divergence, names, (), values, ranks)
        return result

    def kl_to_uniform(self) -> jax.Array:
        """Return the Kullback-Leibler divergence of the uniform distribution from this one, in nats."""
        return -self.entropy()

    @classmethod
    def fit(
        cls, samples: ArrayLike, weights: ArrayLike | None = None, axis: int | Sequence[int] | None = None
    ) -> "IsotropicGaussianSO3":
        """Fit the distribution to rotations by maximum likelihood.

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
        IsotropicGaussianSO3
            The mean rotation has w >= 0. The scale has a relative error of about 1e-6 (float32) or 1e-12 (float64),
            besides the effect of the rounding of rotations, which alone gives the scale of equal ones. Where the
            uniform distribution has the largest likelihood, it is about 4 (6 in float64). If the data are few and
            nearly uniform, the likelihood may have several maxima; this is one that lies uphill of the mean in the
            least squares sense. NaN without rotations, without positive weights, and for a negative weight, a zero
            quaternion or a matrix that is no rotation.

        Notes
        -----
        It works inside `jit` and `vmap`. Outside of transformations, one compiled program serves all numbers of
        rotations up to the next power of two.
        """
        return cls(*fit.fitted(fit.sets_of("IsotropicGaussianSO3.fit", samples, weights, axis)))


def of_relative(function: rotations.OfRelative, value: jax.Array, mean: jax.Array, scale: jax.Array) -> jax.Array:
    """Return a function of the rotation from `mean` to `value` and the scale."""
    scalar, vector = rotations.relative(mean, value)
    scale = valid(scale)
    shape = jnp.broadcast_shapes(scalar.shape, scale.shape)
    scalar, scale = (jnp.broadcast_to(x, shape) for x in (scalar, scale))
    return function(scalar, jnp.broadcast_to(vector, (*shape, 3)), scale)


def unit(mean: jax.Array) -> jax.Array:
    """Return the unit vectors along vectors."""
    return vectors.direction_of(mean).unit

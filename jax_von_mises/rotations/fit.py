"""Read rotations for fits, and fit isotropic Gaussian distributions to them by maximum likelihood.

The start is the eigenvector of the mean of q q^T with the largest eigenvalue, and the scale with the same mean of the
cosine of the angle. A fixed number of steps then improves the mean rotation and the scale. Steps of the mean are
Newton's with the absolute values of the curvatures, so that they lead uphill. Those of the scale are of the secant
method for 1 - exp(-scale^2), in which the likelihood is smooth up to the uniform distribution.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine.samples import WeightedSets, total
from jax_von_mises.numerics.elementary import aligned
from jax_von_mises.quadratic.fit import moment
from jax_von_mises.quadratic.frames import frame_of
from jax_von_mises.rotations import matrices
from jax_von_mises.rotations.heat import Angle, Kernel, relative, rotation_angle
from jax_von_mises.rotations.operations import exponential, product
from jax_von_mises.sphere.vectors import direction_of

STEPS = 24
# The longest step of the mean, in radians, and the least curvature relative to that of the density at the mean.
LONGEST, FLOOR = 0.5, 1e-3


def rank_of(caller: str, name: str, value: ArrayLike) -> int:
    """Return how many last axes of a value belong to one rotation: 1 of quaternions, and 2 of matrices."""
    shape = np.shape(arguments.parameter(caller, name, value))
    if shape[-2:] == (3, 3):
        return 2
    if shape[-1:] != (4,):
        raise ValueError(
            f"{caller}: {name} has shape {shape}, but must hold quaternions (w, x, y, z), of shape (..., 4), or "
            "rotation matrices, of shape (..., 3, 3)."
        )
    return 1


def sets_of(
    caller: str, samples: ArrayLike, weights: ArrayLike | None, axis: int | Sequence[int] | None
) -> WeightedSets:
    """Check the arguments of a fit to quaternions or rotation matrices, whose elements get one axis."""
    if rank_of(caller, "samples", samples) == 2:
        samples = arguments.parameter(caller, "samples", samples)
        samples = samples if isinstance(samples, jax.Array) else np.asarray(samples)
        samples = samples.reshape(*samples.shape[:-2], 9)
    return WeightedSets.of(caller, "rotation", samples, weights, axis, 1).padded()


def quaternions(sets: WeightedSets) -> tuple[jax.Array, jax.Array]:
    """Return unit quaternions of shape sets + (n, 4), and their shares of the weights, of shape sets + (n,)."""
    x, share = sets.rows()
    x = jnp.moveaxis(x, 0, -1)
    share = jnp.broadcast_to(share, x.shape[:-1])
    if x.shape[-1] == 9:
        identity = aligned(jnp.eye(3, dtype=x.dtype), x.ndim + 1)
        x = matrices.to_quaternion(jnp.where((share == 0)[..., None, None], identity, x.reshape(*share.shape, 3, 3)))
    return direction_of(x).unit, share


class State(NamedTuple):
    """The estimates of a step."""

    mean: jax.Array
    spread: jax.Array
    """1 - exp(-scale^2)."""
    rise: jax.Array
    """The derivative of the mean log density with respect to the spread before, `last`."""
    last: jax.Array
    curved: jax.Array
    """The second derivative, from the last two steps."""

    def better(self, q: jax.Array, share: jax.Array) -> "State":
        """Return the state after a step for unit quaternions with shares of the weights."""
        scalar, vector = relative(self.mean[..., None, :], q)
        at, per_length = rotation_angle(scalar, vector)
        turn = [per_length * vector[..., i] for i in range(3)]
        scale = scale_of(self.spread)
        kernel = Kernel.of(scale[..., None])

        def slope(angle: jax.Array) -> jax.Array:
            return kernel.slope_per_angle(at.moved(angle - at.angle)) * angle

        # The log density has the slope s w at the angle w. It curves by `along` about the axis, and by `across`
        # otherwise.
        s = kernel.slope_per_angle(at)
        _, along = jax.jvp(slope, (at.angle,), (jnp.ones_like(at.angle),))
        some = at.angle > 0
        half = 0.5 * jnp.where(some, at.angle, 1)
        across = s * jnp.where(some, half * at.half_cosine / jnp.where(some, at.half_sine, 1), 1)
        ratio = jnp.where(some, 0.25 * (along - across) / (half * half), 0)
        uphill = [-total(share * s * t) for t in turn]
        curvature = [
            [total(share * (ratio * p * q + (across if i == j else 0))) for j, q in enumerate(turn)]
            for i, p in enumerate(turn)
        ]
        peak = Kernel.of(scale).slope_per_angle(Angle(jnp.zeros_like(scale), jnp.full_like(scale, np.pi)))
        # The heat equation gives the derivative with respect to the scale.
        rise = total(share * (along + 2 * across + jnp.square(s * at.angle))) / (2 * (1 - self.spread))
        return self.moved(moved_mean(self.mean, uphill, curvature, -FLOOR * peak), rise)

    def moved(self, mean: jax.Array, rise: jax.Array) -> "State":
        """Return the state with a new mean, and a spread by the secant method."""
        spread = self.spread
        step = spread - self.last
        some = jnp.abs(step) > 64 * jnp.finfo(step.dtype).eps * spread
        curved = jnp.where(some, (rise - self.rise) / jnp.where(some, step, 1), self.curved)
        curved = jnp.where(curved < 0, curved, self.curved)
        found = jnp.clip(spread - rise / curved, 0.25 * spread, jnp.minimum(4 * spread, 0.5 * (spread + 1)))
        return State(mean, bounded(found), rise, spread, curved)


def bounded(spread: jax.Array) -> jax.Array:
    """Return spreads from one whose inverse square does not overflow to one below 1, the uniform distribution."""
    limits = jnp.finfo(spread.dtype)
    return jnp.clip(spread, math.sqrt(10 * float(limits.tiny)), 1 - float(limits.eps))


def moved_mean(
    mean: jax.Array, uphill: list[jax.Array], curvature: list[list[jax.Array]], least: jax.Array
) -> jax.Array:
    """Return the mean rotation after a step of Newton's method with absolute curvatures, which are at least `least`."""
    frame = frame_of(-matrices.of_rows(curvature))
    curvatures = [frame.largest, *(frame.largest - gap for gap in frame.gaps)]
    steps = zip(frame.along(uphill), curvatures, strict=True)
    step = jnp.stack(frame.placed([rise / jnp.maximum(jnp.abs(c), least) for rise, c in steps]), -1)
    length = jnp.sqrt(jnp.sum(step * step, -1, keepdims=True))
    return direction_of(product(mean, exponential(step * (LONGEST / jnp.maximum(length, LONGEST))))).unit


def scale_of(spread: jax.Array) -> jax.Array:
    """Return the scale for 1 - exp(-scale^2)."""
    return jnp.sqrt(-jnp.log1p(-spread))


@jax.jit
def fitted(sets: WeightedSets) -> tuple[jax.Array, jax.Array]:
    """Return the estimates of the mean rotation and of the scale of isotropic Gaussian distributions."""
    q, share = quaternions(sets)
    frame = frame_of(moment([q[..., i] for i in range(4)], share))
    mean = direction_of(jnp.stack([row[0] for row in frame.axes], -1)).unit

    at, _ = rotation_angle(*relative(mean[..., None, :], q))
    spread = bounded(4 / 3 * total(share * jnp.square(at.half_sine)))
    state = State(mean, spread, jnp.zeros_like(spread), spread, -1.5 / jnp.square(spread))
    mean, spread, *_ = lax.fori_loop(0, STEPS, lambda _, state: state.better(q, share), state)
    mean = jnp.where(mean[..., :1] < 0, -mean, mean)
    return mean.astype(sets.dtype), scale_of(spread).astype(sets.dtype)

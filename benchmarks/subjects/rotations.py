"""Draw rotations from the isotropic Gaussian distribution, and compute its density and score.

The peers are what programs for diffusion over frames do. They tabulate the distribution of the angle at 1,000 angles
for each of 1,000 scales, before the draws and not counted here, and interpolate. They sum 100 waves for the density,
and differentiate the sum for the score.
"""

import numpy as np

from benchmarks.competitors import of_arrays, of_keys
from benchmarks.peers import NORMAL, Spread, values
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.subjects.sphere import unit_vectors

__all__ = ["cases"]

# 100 waves suffice from the smaller one on.
BROAD = Spread(0.1, 2.0)
WAVES, POINTS = 100, 1_000
TABLE, SERIES = "a table of angles", f"{WAVES} waves"
IDENTITY = np.float32([1, 0, 0, 0])


def waves(angle, scale):
    """Return the sum of waves: the density with respect to the uniform distribution."""
    import jax.numpy as jnp

    order = np.arange(WAVES, dtype=np.float32)
    terms = (2 * order + 1) * jnp.exp(-order * (order + 1) * scale[..., None] ** 2 / 2)
    return jnp.sum(terms * jnp.sin((order + 0.5) * angle[..., None]), -1) / jnp.sin(angle / 2)


def table(scales):
    """Return POINTS angles, and the distribution function at these for each scale, by the trapezoidal rule."""
    angles = np.linspace(0, np.pi, POINTS)
    order = np.arange(WAVES)
    terms = (2 * order + 1) * np.exp(-order * (order + 1) * scales[:, None] ** 2 / 2)
    density = 2 / np.pi * (terms @ np.sin((order[:, None] + 0.5) * angles)) * np.sin(angles / 2)
    steps = (density[:, 1:] + density[:, :-1]) / 2 * (angles[1] - angles[0])
    total = np.concatenate([np.zeros((len(scales), 1)), np.cumsum(steps, 1)], 1)
    return angles.astype(np.float32), (total / total[:, -1:]).astype(np.float32)


def by_table(k, count):
    """Return draws that interpolate in a table for one scale, or in the table of the next smaller of 1,000 scales."""
    import jax
    import jax.numpy as jnp

    one = not isinstance(k, Spread)
    scales = np.array([k]) if one else np.geomspace(k.low, k.high, POINTS)
    row = np.zeros(count, int) if one else np.searchsorted(scales, values(k, count), side="right") - 1
    angles, total = table(scales)

    def draw(key, angles, total, row):
        first, second = jax.random.split(key)
        u = jax.random.uniform(first, (count,))
        if one:
            angle = jnp.interp(u, total[0], angles)
        else:
            angle = jax.vmap(lambda u, row: jnp.interp(u, total[row], angles))(u, row)
        axis = jax.random.normal(second, (count, 3))
        axis = axis / jnp.linalg.norm(axis, axis=-1, keepdims=True)
        return jnp.concatenate([jnp.cos(angle / 2)[:, None], jnp.sin(angle / 2)[:, None] * axis], -1)

    return of_keys(draw, angles, total, row)


def draws(k):
    """Return draws about the identity, and those of as many normal components."""
    import jax

    from jax_von_mises.rotations import IsotropicGaussianSO3

    def of(draw, count):
        return of_keys(draw, IDENTITY, values(k, count).astype(np.float32))

    def ours(count):
        size = () if isinstance(k, Spread) else (count,)
        return of(lambda key, mean, scale: IsotropicGaussianSO3(mean, scale).sample(key, size), count)

    def normal(count):
        return of(lambda key, mean, scale: jax.random.normal(key, (count, 4)), count)

    return {OURS: ours, NORMAL: normal, TABLE: lambda count: by_table(k, count)}


def functions(name):
    """Return the log density or the score of rotations about the identity, with a scale each."""
    import jax
    import jax.numpy as jnp

    from jax_von_mises.rotations import IsotropicGaussianSO3

    def of(function, count):
        return of_arrays(function, unit_vectors(count, 4), "float32", IDENTITY, values(BROAD, count))

    def density(x, mean, scale):
        angle = 2 * jnp.arctan2(jnp.linalg.norm(x[:, 1:], axis=-1), jnp.abs(x[:, 0]))
        return jnp.log(waves(angle, scale))

    def score(x, mean, scale):
        length = jnp.linalg.norm(x[:, 1:], axis=-1)
        angle = 2 * jnp.arctan2(length, jnp.abs(x[:, 0]))
        slope = jax.grad(lambda angle: jnp.log(waves(angle, scale)).sum())(angle)
        return (jnp.sign(x[:, 0]) * slope / length)[:, None] * x[:, 1:]

    return {
        OURS: lambda count: of(lambda x, mean, scale: getattr(IsotropicGaussianSO3(mean, scale), name)(x), count),
        SERIES: lambda count: of({"log_prob": density, "score": score}[name], count),
    }


def cases():
    """Return the cases."""
    return [
        Case("one scale, 0.5", 2**17, draws(0.5), gpu=2**4),
        Case("scales from 0.1 to 2", 2**15, draws(BROAD), gpu=2**4),
        *(
            Case(f"`{name}`, scales from 0.1 to 2", 2**15, functions(name), "points", gpu=2**4)
            for name in ("log_prob", "score")
        ),
    ]

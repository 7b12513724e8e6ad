"""Define damaged samplers, each with an error that a sampler could have. The tests must report all of them.

Each is a function ``draw(key, k, start, count)`` that returns float32 angles about 0, and whose docstring describes the
error; `start` is a pair (hi, lo) of uint32, and `count` is static.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from jax_von_mises.engine import counter, tails
from jax_von_mises.von_mises import transform

__all__ = ["DAMAGES"]


def words(key, start, count):
    """Return the words of a block."""
    return counter.words(key, (count,), 1, start)[0]


def right(key, k, start, count):
    """Return the angles of the package."""
    return jvm.sample_block(key, jnp.float32(0), k, start, (count,), "float32")


def quantised(key, k, start, count):
    """Round the angles to a grid of 2^-18."""
    return jnp.round(right(key, k, start, count) * 2.0**18) * 2.0**-18


def short_tail(key, k, start, count):
    """Use only 24 bits for the tail probability, like samplers that start from a uniform float32 number."""
    word = words(key, start, count)
    return transform.angles((word & np.uint32(0xFFFFFF01) | np.uint32(0x80),), jnp.float32(0), k, "table")


def bent_segment(key, k, start, count):
    """Multiply the angles of one cell of the table, 1/32 of all angles, by 1 + 1e-5."""
    word = words(key, start, count)
    t = tails.tail((word,)).t
    inside = (t >= 0.25) & (t < 0.25 * (1 + 1 / 16))
    return jnp.where(inside, jnp.float32(1 + 1e-5), jnp.float32(1)) * right(key, k, start, count)


def swapped(key, k, start, count):
    """Swap the two words of each block of the cipher, which gives an equally random but different stream."""
    return right(key, k, start, count).reshape(-1, 2)[:, ::-1].ravel()


def biased_sign(key, k, start, count):
    """Set the sign bit of one word in a thousand."""
    word = words(key, start, count)
    rarely = (word >> 1) % np.uint32(1000) == 0
    return transform.angles((jnp.where(rarely, word | np.uint32(1), word),), jnp.float32(0), k, "table")


def repeated(key, k, start, count):
    """Replace every 64th angle by the angle eight places before it, as if two lanes shared a counter."""
    x = right(key, k, start, count)
    place = lax.iota(jnp.int32, count)
    return jnp.where(place % 64 == 0, jnp.roll(x, 8), x)


def by_arccos(key, k, start, count):
    """Take the arccosine of a float32 cosine, as rejection samplers do."""
    x = right(key, k, start, count)
    return jnp.sign(x) * jnp.arccos(jnp.cos(x))


def numpyro(key, k, start, count):
    """Use NumPyro's sampler."""
    from numpyro.distributions import VonMises

    for part in start:
        key = jax.random.fold_in(key, part)
    with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        return VonMises(jnp.float32(0), k).sample(key, (count,))


# The samplers, and the concentration at which each error shows.
DAMAGES = {
    "quantised": (quantised, 5.0),
    "24 bits": (short_tail, 5.0),
    "one segment": (bent_segment, 5.0),
    "swapped words": (swapped, 5.0),
    "sign": (biased_sign, 5.0),
    "repeated": (repeated, 5.0),
    "arccos": (by_arccos, 1e7),
    "numpyro": (numpyro, 1e7),
}

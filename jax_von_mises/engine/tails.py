"""Convert the words of a number to a sign and a tail probability, or to a uniform number and its complement."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike


class Tail(NamedTuple):
    """Tail probability `t` in (0, 1/2], `half_minus_t` = 1/2 - t (both with errors below 1 ulp), and a sign bit."""

    t: jax.Array
    half_minus_t: jax.Array
    sign: jax.Array


def words_per_element(dtype: DTypeLike) -> int:
    """Return how many 32-bit words one angle uses."""
    return 2 if dtype == jnp.float64 else 1


def tail(words: tuple[jax.Array, ...]) -> Tail:
    """Split the word (float32) or the two words (float64) of each element into a `Tail`.

    The lowest bit of the first word is the sign. The other 31 or 63 bits, an integer m, give t = (m + 1/2) 2^-32 or
    (m + 1/2) 2^-64. The complement of m gives 1/2 - t, which keeps its full relative accuracy near t = 1/2.
    """
    first = words[0]
    high = first >> 1
    negative = (first & np.uint32(1)) == 1

    def value(high: jax.Array, low: jax.Array | None) -> jax.Array:
        # Convert as signed, since the top bit is clear and every backend has an instruction for that.
        number = lax.bitcast_convert_type(high, jnp.int32)
        if low is None:
            return (number.astype(jnp.float32) + 0.5) * 2.0**-32
        return number.astype(jnp.float64) * 2.0**-32 + (low.astype(jnp.float64) + 0.5) * 2.0**-64

    low = words[1] if len(words) == 2 else None
    mask = np.uint32(0x7FFFFFFF)
    return Tail(value(high, low), value(high ^ mask, None if low is None else ~low), negative)


def fractions(tail: Tail) -> tuple[jax.Array, jax.Array]:
    """Return a uniform number and its complement to 1, both with full relative resolution near 0."""
    rest = 0.5 + tail.half_minus_t
    return jnp.where(tail.sign, tail.t, rest), jnp.where(tail.sign, rest, tail.t)

"""Check the angle of every tail probability that a float32 draw can have.

A word has 31 bits for the tail probability t of its angle, and one for the sign. The check can therefore cover every t.
It calls the function that the sampler calls, and compares the angles with a float64 quantile that is independent of the
package. That quantile is computed at 2^17 values of t, 4096 in each octave, with a relative error in t below 1e-9.
Cubics with the exact slopes interpolate it with a far smaller additional error.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from benchmarks import reference
from benchmarks.exactness import expected
from benchmarks.exactness.verdicts import Verdict
from jax_von_mises.sampling import transform

__all__ = ["CHUNK", "CHUNKS", "OCTAVES", "Worst", "check", "chunks", "verdict"]

CHUNK = 2**22
CHUNKS = 2**31 // CHUNK
# t is u / 2^33 for odd u. Each octave of u has 2^CELL_BITS cells.
CELL_BITS = 12
OCTAVES = 32
MANTISSA = 52


class Worst(NamedTuple):
    """The largest errors in each octave of t, from 2^-33 to 1/2; zero where no t was checked."""

    share: np.ndarray
    """Error divided by the guaranteed error, the larger of 2e-6 of the tail probability and 4 ulp of the angle."""
    tail: np.ndarray
    """Relative error of the tail probability."""


def cubics(k):
    """Return an array of shape (5, cells): the coefficients of a cubic for each cell, and the density at its start.

    The variable of the cubic is the place in the cell, from 0 to 1.
    """
    octave = 2.0 ** np.arange(OCTAVES)
    u = np.append((octave[:, None] * (1 + np.arange(2**CELL_BITS) / 2**CELL_BITS)).ravel(), 2.0**OCTAVES)
    t = u / 2**33
    with jax.enable_x64(True):
        x = np.array(jvm.isf(jnp.asarray(t), 0.0, jnp.float64(k)))
    # The package's quantile is only the starting point of two Newton steps on the reference's tail probability.
    x = np.clip(x, 0, np.pi)
    for _ in range(2):
        x = np.clip(x + (reference.tail(x, k) - t) / np.exp(reference.log_prob(x, k)), 0, np.pi)
    density = np.exp(reference.log_prob(x, k))
    off = np.abs(reference.tail(x, k) - t)
    # Next to pi, x is accurate only to the spacing of float64, which is far smaller than that of float32.
    if not np.all((off < 1e-9 * t) | (off < 2 * np.spacing(x) * density)):
        raise RuntimeError(f"the reference does not converge at concentration {k:g}")
    width, rise = np.diff(t), np.diff(x)
    start, end = -width / density[:-1], -width / density[1:]
    return np.stack([x[:-1], start, 3 * rise - 2 * start - end, start + end - 2 * rise, density[:-1]])


def errors(x, first, table):
    """Return the errors of the angles `x`, whose values of t are numbered from `first` on.

    The errors are relative to the guaranteed error, and relative to t.

    Near angle 0, the reference's error of 1e-11 in t is many ulp of the angle, but there the guarantee for t applies.
    """
    u = 2 * (first.astype(jnp.float64) + lax.iota(jnp.float64, CHUNK)) + 1
    # The exponent and the first bits of u give the number of its cell, and the other bits give the place in the cell.
    bits = lax.bitcast_convert_type(u, jnp.uint64)
    row = ((bits >> (MANTISSA - CELL_BITS)) - (1023 << CELL_BITS)).astype(jnp.int32)
    place = (bits & (2 ** (MANTISSA - CELL_BITS) - 1)).astype(jnp.float64) * 2.0 ** (CELL_BITS - MANTISSA)
    a, b, c, d, density = (table[j][row] for j in range(5))
    off = jnp.abs(x.astype(jnp.float64) - (a + place * (b + place * (c + place * d))))
    # One ulp is 2^-23 of the power of two in x, or of the smallest normal number.
    power = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) & np.uint32(0xFF << 23)
    ulp = jnp.maximum(lax.bitcast_convert_type(power, jnp.float32).astype(jnp.float64), 2.0**-126) * 2.0**-23
    tail = off * density * 2.0**33 / u
    share = jnp.minimum(tail / expected.ALLOWED["float32"], off / ulp / expected.ULP)
    good = (x >= 0) & (x <= np.pi)
    return [jnp.where(good, each, jnp.inf) for each in (share, tail)]


def chunks(number):
    """Return the indices of `number` evenly spaced chunks; chunk 0 covers all octaves but the nine largest."""
    return np.unique(np.linspace(0, CHUNKS - 1, min(number, CHUNKS)).astype(int))


def check(k, method, chosen, worst=None, keep=lambda chunk, worst: None):
    """Check all angles of the `chosen` chunks.

    Parameters
    ----------
    k : float
        The concentration, a float32.
    method : {"direct", "table"}
    chosen : sequence of int
        Indices of chunks.
    worst : Worst, optional
        The errors found so far in other chunks.
    keep : callable
        Called after each chunk with its index and the largest errors so far.

    Returns
    -------
    Worst
    """
    worst = Worst(*np.zeros((2, OCTAVES))) if worst is None else worst
    with jax.enable_x64(True):
        table = jnp.asarray(cubics(k))

        @jax.jit
        def draw(first, k):
            words = (first + lax.iota(jnp.uint32, CHUNK)) << 1
            return transform.angles((words,), jnp.float32(0), k, method)

        largest = jax.jit(lambda *given: [jnp.max(each) for each in errors(*given)])
        for chunk in chosen:
            first = np.uint32(chunk * CHUNK)
            x = draw(first, np.float32(k))
            found = np.zeros((2, OCTAVES))
            if chunk == 0:
                octave = np.log2(2.0 * np.arange(CHUNK) + 1).astype(int)
                for j, each in enumerate(jax.jit(errors)(x, first, table)):
                    np.maximum.at(found[j], octave, np.asarray(each))
            else:
                found[:, int(np.log2(2.0 * first + 1))] = [float(each) for each in largest(x, first, table)]
            worst = Worst(*np.maximum(worst, found))
            keep(chunk, worst)
    return worst


def verdict(worst, number):
    """Return the verdict on the errors of `number` chunks; p is 0 or 1, since no chance is involved."""
    which = "every" if number == CHUNKS else "some"
    share = np.max(worst.share)
    found = f"{number * CHUNK:,} of {2**31:,} tail probabilities, at most {share:.2g} of the guaranteed error"
    return Verdict(f"the angle of {which} tail probability", found, 1.0 if share <= 1 else 0.0)

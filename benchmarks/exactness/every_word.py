"""Every tail probability that a float32 angle can have, one after the other.

A word has 31 bits for the tail probability t of its angle, and one for the sign. So whether the angle is the quantile
can be looked up for each t there is, and no chance is left: 2^31 angles, by the function that the sampler calls, beside
a quantile in float64 that the package has no part in. That one is known at 2^17 values of t, 4096 in each octave, to
1e-10; between them it is a cubic in t with the right slopes, whose error is far smaller still.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from benchmarks import reference
from benchmarks.exactness import law
from benchmarks.exactness.verdicts import Verdict
from jax_von_mises.sampling import transform

__all__ = ["CHUNK", "CHUNKS", "Worst", "check", "chunks"]

CHUNK = 2**22
CHUNKS = 2**31 // CHUNK
# t is u / 2^33 for odd u. Cells of u: this many in each octave, as a power of two.
CELL_BITS = 12
OCTAVES = 32
MANTISSA = 52


class Worst(NamedTuple):
    """The largest of what was found, for each octave of t, from 2^-33 to 1/2; zero where nothing was looked up."""

    share: np.ndarray
    """Error as a share of the promise: 2e-6 of the tail probability, or 4 ulp of the angle."""
    tail: np.ndarray
    """Error of the tail probability, relative to it."""

    @classmethod
    def none(cls):
        """Before anything was looked up."""
        return cls(*(np.zeros(OCTAVES) for _ in cls._fields))


def cubics(k):
    """Coefficients (5, cells) in the place in the cell: four of the angle, and one for the density, which is even."""
    octave = 2.0 ** np.arange(OCTAVES)
    u = np.append((octave[:, None] * (1 + np.arange(2**CELL_BITS) / 2**CELL_BITS)).ravel(), 2.0**OCTAVES)
    t = u / 2**33
    with jax.enable_x64(True):
        x = np.array(jvm.isf(jnp.asarray(t), 0.0, jnp.float64(k)))
    # Ours is at hand, and near. What decides is the other: two steps of Newton's to its tail probabilities.
    x = np.clip(x, 0, np.pi)
    for _ in range(2):
        density = np.exp(reference.log_prob(x, k))
        x = np.clip(x + (reference.tail(x, k) - t) / density, 0, np.pi)
    density = np.exp(reference.log_prob(x, k))
    off = np.abs(reference.tail(x, k) - t)
    # Next to pi the spacing of float64 is more than that; that of float32 far more still.
    if not np.all((off < 1e-9 * t) | (off < 2 * np.spacing(x) * density)):
        raise RuntimeError(f"the reference does not settle at concentration {k:g}")
    width = np.diff(t)
    start, end = -width / density[:-1], -width / density[1:]
    rise = np.diff(x)
    return np.stack([x[:-1], start, 3 * rise - 2 * start - end, start + end - 2 * rise, density[:-1]])


def angles(first, k, method):
    """The sizes of the angles of `CHUNK` values of t in ascending order, from number `first` on."""
    words = (first + lax.iota(jnp.uint32, CHUNK)) << 1
    return transform.angles((words,), jnp.float32(0), k, method)


def compare(x, first, table):
    """Errors of the angles `x`: as shares of the promise, and of the tail probability, relative to it.

    At the mode the reference is no better than 1e-11 of t, which is many units of angles next to 0; but there the
    promise is one of t.
    """
    u = 2 * (first.astype(jnp.float64) + lax.iota(jnp.float64, CHUNK)) + 1
    bits = lax.bitcast_convert_type(u, jnp.uint64)
    row = ((bits >> (MANTISSA - CELL_BITS)) - (1023 << CELL_BITS)).astype(jnp.int32)
    place = (bits & (2 ** (MANTISSA - CELL_BITS) - 1)).astype(jnp.float64) * 2.0 ** (CELL_BITS - MANTISSA)
    a, b, c, d, density = (table[j][row] for j in range(5))
    off = jnp.abs(x.astype(jnp.float64) - (a + place * (b + place * (c + place * d))))
    # A unit in the last place: the power of two that x has, by 2^-23; of the smallest normal number at least.
    power = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) & np.uint32(0xFF << 23)
    unit = jnp.maximum(lax.bitcast_convert_type(power, jnp.float32).astype(jnp.float64), 2.0**-126) * 2.0**-23
    tail = off * density * 2.0**33 / u
    ulp = off / unit
    share = jnp.minimum(tail / law.ALLOWED["float32"], ulp / law.ULP)
    # What is no number, or has the wrong sign, is off by all there is.
    good = (x >= 0) & (x <= np.pi)
    return [jnp.where(good, each, jnp.inf) for each in (share, tail)]


def chunks(number):
    """Places of `number` of the `CHUNKS`, the first among them, where all octaves but eight are."""
    return np.unique(np.linspace(0, CHUNKS - 1, min(number, CHUNKS)).astype(int))


def octave_of(chunk):
    """The octave of a chunk that lies within one."""
    return int(np.log2(2.0 * chunk * CHUNK + 1))


def check(k, method, chosen, worst=None, said=lambda done, worst: None):
    """Look up all angles of the `chosen` chunks.

    Parameters
    ----------
    k : float
        The concentration, a float32.
    method : {"direct", "table"}
    chosen : sequence of int
        Numbers of chunks.
    worst : Worst, optional
        What other chunks have shown.
    said : callable
        Told after each chunk: its number and the `Worst` so far.

    Returns
    -------
    Worst
    """
    worst = Worst.none() if worst is None else worst
    with jax.enable_x64(True):
        table = jnp.asarray(cubics(k))
        draw = jax.jit(lambda first, k: angles(first, k, method))
        judge = jax.jit(compare)
        largest = jax.jit(lambda *given: [jnp.max(each) for each in compare(*given)])
        for chunk in chosen:
            first = np.uint32(chunk * CHUNK)
            x = draw(first, np.float32(k))
            found = np.zeros((len(Worst._fields), OCTAVES))
            if chunk == 0:
                octave = np.log2(2.0 * np.arange(CHUNK) + 1).astype(int)
                for j, each in enumerate(judge(x, first, table)):
                    np.maximum.at(found[j], octave, np.asarray(each))
            else:
                found[:, octave_of(chunk)] = [float(each) for each in largest(x, first, table)]
            worst = Worst(*np.maximum(worst, found))
            said(chunk, worst)
    return worst


def verdict(worst, number):
    """What the errors mean: there is no chance in it."""
    which = "every" if number == CHUNKS else "some"
    told = f"{number * CHUNK:,} of {2**31:,} tail probabilities, at most {np.max(worst.share):.2g} of the promise off"
    return Verdict(f"the angle of {which} tail probability", told, 1.0 if np.max(worst.share) <= 1 else 0.0)

"""Compare single angles with their words: some along the stream, and the angle of every tail probability.

Angle i is computed from word i of the key. `stream` checks this with an independent cipher and distribution function.

A word has 31 bits for the tail probability t of its angle, and one for the sign. `largest_error` can therefore cover
every t. It calls the function that the sampler calls, and compares the angles with a float64 quantile that is
independent of the package. That quantile is computed at 2^17 values of t, 4096 in each octave, with a relative error in
t below 1e-9. Cubics with the exact slopes interpolate it with a far smaller additional error.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from benchmarks import reference
from benchmarks.exactness import expected
from benchmarks.exactness.verdicts import Verdict
from jax_von_mises.von_mises import transform

__all__ = ["CHUNK", "CHUNKS", "cubics", "errors", "largest_error", "stream", "threefry", "verdict"]

# The beginning, the ends of blocks, a distant place, and places where the low 32 bits of an angle's index (2^32) or of
# the counter (2^33) overflow.
PLACES = (0, 2**14 - 50, 2**22 - 50, 2**32 - 50, 2**33 - 50, 2**40 + 12345)
LENGTH = 100
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
CHUNK = 2**22
CHUNKS = 2**31 // CHUNK
# t is u / 2^33 for odd u. Each octave of u has 2^CELL_BITS cells.
CELL_BITS = 12
OCTAVES = 32
MANTISSA = 52


def threefry(key, counter):
    """Compute Threefry-2x32 with 20 rounds on integers (Salmon et al., SC11, 2011, doi:10.1145/2063384.2063405)."""
    mask = 2**32 - 1
    schedule = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    left, right = ((c + k) & mask for c, k in zip(counter, key, strict=True))
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = (left + right) & mask
            right = ((right << rotation | right >> (32 - rotation)) & mask) ^ left
        left = (left + schedule[(group + 1) % 3]) & mask
        right = (right + schedule[(group + 2) % 3] + group + 1) & mask
    return left, right


def word(key, i):
    """Return word `i` of the stream of `key`, which is a pair of integers."""
    block = i // 2
    return threefry(key, (block >> 32, block & (2**32 - 1)))[i % 2]


def stream(draw, key_data, k):
    """Compare the tail probabilities of angles about 0, drawn by ``draw(start, count)``, with those of their words."""
    worst, where = 0.0, 0
    for start in PLACES:
        x = np.asarray(draw(start, LENGTH), np.float64)
        words = np.array([word(key_data, start + j) for j in range(LENGTH)], np.uint64)
        tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) / expected.LATTICE
        size = np.where(words & np.uint64(1), -1.0, 1.0) * x  # negative if the sign is wrong, which gives a large error
        share = np.abs(reference.cdf(-size, k) - tail) / expected.slack_at(x, tail, k, "float32")
        if not np.max(share) <= worst:
            worst, where = float(np.max(share)), start + int(np.argmax(share))
    found = f"{len(PLACES) * LENGTH} angles, at most {worst:.2g} of the guaranteed error, at angle {where:,}"
    return Verdict("angle i is the quantile of word i", found, 1.0 if worst <= 1 else 0.0)


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
    """Return the errors of the angles `x`, relative to the guaranteed error; their t are numbered from `first` on.

    The guaranteed error is the larger of 2e-6 of the tail probability and 4 ulp of the angle. Near angle 0, the
    reference's error of 1e-11 in t is many ulp of the angle, but there the guarantee for t applies.
    """
    u = 2 * (first.astype(jnp.float64) + lax.iota(jnp.float64, len(x))) + 1
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
    return jnp.where((x >= 0) & (x <= np.pi), share, jnp.inf)


@functools.partial(jax.jit, static_argnames=("angles", "method", "count"))
def angles_from(first, k, angles, method, count):
    """Return the angles of `count` tail probabilities from the one numbered `first` on, with a positive sign."""
    return angles(((first + lax.iota(jnp.uint32, count)) << 1,), jnp.float32(0), k, method)


@jax.jit
def larger(worst, x, first, table):
    """Return `worst` or the largest of the `errors`."""
    return jnp.maximum(worst, jnp.max(errors(x, first, table)))


def largest_error(k, method, number):
    """Return the largest error, relative to the guaranteed error, in `number` evenly spaced chunks.

    Chunk 0, which covers all octaves of t but the nine largest, is always among them. `k` is a float32.
    """
    with jax.enable_x64(True):
        table, worst = jnp.asarray(cubics(k)), jnp.float64(0)
        for chunk in np.unique(np.linspace(0, CHUNKS - 1, number).astype(int)):
            first = np.uint32(chunk * CHUNK)
            # Separate programs, so that the angles are computed as in the sampler.
            x = angles_from(first, np.float32(k), transform.angles, method, CHUNK)
            worst = larger(worst, x, first, table)
        return float(worst)


def verdict(share, number):
    """Return the verdict on the errors of `number` chunks; p is 0 or 1, since no chance is involved."""
    which = "every" if number == CHUNKS else "some"
    found = f"{number * CHUNK:,} of {2**31:,} tail probabilities, at most {share:.2g} of the guaranteed error"
    return Verdict(f"the angle of {which} tail probability", found, 1.0 if share <= 1 else 0.0)

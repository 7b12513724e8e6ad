"""Compute counts and sums over blocks of angles, so that no angles are kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from benchmarks.exactness import expected
from jax_von_mises.engine import counter

__all__ = ["LAGS", "ORDERS", "at_once", "count_blocks"]

ORDERS = (1, 2, 3, 4)
# Distances to neighbours, to other lanes of a vector unit, to other warps and blocks of threads, and to distant angles.
LAGS = (1, 2, 3, 4, 8, 32, 64, 1024, 2**14)
# Rounding shifts the guess of a bin by at most this many bins.
STEPS = 2
# Number of copies of the counts. Most angles pass few thresholds, so without copies GPU threads would wait for the same
# few counts.
COPIES = 2**10


def at_once():
    """Return the number of blocks per call; on a GPU, starting a program takes longer than counting a block."""
    return 2**8 if jax.default_backend() == "gpu" else 1


def place_of(x, places, guess):
    """Return how many of the ascending `places` are at most `x`, given a guess; ``len(places) + 1`` for NaN."""
    ends = jnp.concatenate([jnp.full(1, -jnp.inf, x.dtype), places, jnp.full(1, jnp.inf, x.dtype)])
    place = jnp.clip(guess.astype(jnp.int32), 0, len(places))
    for _ in range(STEPS):
        place = place + (x >= ends[place + 1]).astype(jnp.int32)
        place = place - (x < ends[place]).astype(jnp.int32)
    return jnp.where((x >= ends[place]) & (x < ends[place + 1]), place, len(places) + 1)


def bin_of(x, edges, k, even):
    """Return the index of the bin of each angle, or the number of bins for NaN."""
    if even:
        guess = jnp.floor(jvm.cdf(x, jnp.zeros((), x.dtype), k) * (len(edges) + 1))
    else:
        guess = jnp.searchsorted(edges, x, side="right")
    return place_of(x, edges, guess)


def passed(x, levels, k):
    """Return how many of the thresholds `levels` each |x| reaches."""
    if not len(levels):
        return jnp.zeros(x.shape, jnp.int32)
    size = jnp.abs(x)
    # The first threshold has a tail of 1/4 on each side, and each further one has half the tail of the one before.
    octave = -jnp.log2(jvm.sf(size, jnp.zeros((), x.dtype), k)) - 1
    return place_of(size, levels, jnp.minimum(jnp.nan_to_num(octave), jnp.sum(levels < jnp.inf, dtype=x.dtype)))


def total(values):
    """Sum in float64, whose rounding error is far below the statistical error."""
    return jnp.sum(values, dtype=jnp.float64)


def multiples(x):
    """Return sin(j x) and 1 - cos(j x) for j in `ORDERS`, from the half angle, so that small x keep their digits."""
    sine, cosine = jnp.sin(x / 2), jnp.cos(x / 2)
    s, c = sine, cosine
    halves = [s]
    for _ in range(2 * ORDERS[-1] - 1):
        s, c = s * cosine + c * sine, c * cosine - s * sine
        halves.append(s)
    return [halves[2 * j - 1] for j in ORDERS], [2 * halves[j - 1] ** 2 for j in ORDERS]


def products(one, other):
    """Sum products of two (even, odd) pairs of functions: even by even, odd by odd, even by odd."""
    (v, s), (w, t) = one, other
    return jnp.stack([total(v * w), total(s * t), total(v * t)])


def block_sums(x, other, edges, levels, k, mean, even):
    """Return the bin of each angle of the block `x`, the number of thresholds that it passes, and sums over the block.

    Parameters
    ----------
    x, other : array (n,)
        Blocks of two streams, longer than the longest of the `LAGS`.
    edges, levels : array
        Edges of the bins and thresholds of |x|, ascending; infinite thresholds come last.
    k, mean : scalar
        Concentration, and the mean of 1 - cos(x).
    even : bool
        Whether all bins have nearly the same probability.
    """
    compute = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    x, other, edges, levels, mean = (each.astype(compute) for each in (x, other, edges, levels, mean))
    # Without barriers, each function would be computed again in every sum that uses it.
    sines, versines = lax.optimization_barrier(multiples(x))
    theirs = lax.optimization_barrier((2 * jnp.sin(other / 2) ** 2 - mean, jnp.sin(other)))
    mine = versines[0] - mean, sines[0]
    # Since all angles are independent, treat the block as a ring, in which the first angles follow the last ones.
    ring = lax.optimization_barrier([jnp.concatenate([each, each[: LAGS[-1]]]) for each in (*mine, x < 0)])
    after = lambda lag: [each[lag : lag + len(x)] for each in ring]  # noqa: E731
    return {
        "bin": bin_of(x, edges, k, even),
        "passed": passed(x, levels, k),
        "versines": jnp.stack([total(each) for each in versines]),
        "sines": jnp.stack([total(each) for each in sines]),
        "lagged": jnp.stack([products(mine, after(lag)[:2]) for lag in LAGS]),
        "across": products(mine, theirs),
        "changes": jnp.sum((x < 0) != after(1)[2]),
        "rises": jnp.sum(x[1:] > x[:-1]),
        "positive": jnp.sum(x >= 0),
    }


_block_sums = jax.jit(block_sums, static_argnames="even")


@functools.partial(jax.jit, static_argnames=("draw", "block", "even"))
def _loop(first, number, keys, *arguments, draw, block, even):
    """Sum `block_sums` over blocks, and replace the bin and the thresholds of each angle by their counts."""
    edges, levels, k, _ = arguments

    def one(i):
        start = counter.halves((first + i).astype(jnp.uint64) * np.uint64(block))
        sums = block_sums(*(draw(key, k, start, block) for key in keys), *arguments, even)
        copy = lax.iota(jnp.int32, block) % COPIES
        copies = jnp.zeros((COPIES, len(levels) + 2), jnp.int64).at[copy, sums["passed"]].add(1)
        bins = jnp.zeros(len(edges) + 2, jnp.int64).at[sums["bin"]].add(1)
        return sums | {"bin": bins, "passed": jnp.sum(copies, axis=0)}

    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), jax.eval_shape(one, first))
    return lax.fori_loop(0, number, lambda i, sums: jax.tree.map(jnp.add, sums, one(i)), nothing)


def count_blocks(first, number, draw, keys, k, bins, tails, mean, block):
    """Return counts and sums over `number` blocks; several blocks are drawn and counted by a single program.

    Parameters
    ----------
    first, number : int
        Index of the first block, and number of blocks.
    draw : callable
        ``draw(key, k, start, count)`` returns angles of a stream; `start` is a pair (hi, lo) of uint32.
    keys : tuple of two keys
        The keys of the counted stream and of the stream compared with it.
    k, mean : float
        Concentration, and the mean of 1 - cos(x).
    bins, tails : expected.Bins, expected.Tails
    block : int
        Angles in a block.
    """
    k, length = np.float32(k), len(tails.places)
    # As many thresholds for every concentration, so that one program serves all; no angle reaches infinity.
    levels = np.append(tails.places, np.full(expected.OCTAVES - 1 - length, np.inf)) if length else tails.places
    arguments = np.float64(bins.edges), levels, k, np.float64(mean)
    with jax.enable_x64(True):
        if number == 1:
            # Draw, sum and count in separate programs, which is several times as fast on a CPU as a single program.
            x, other = (draw(key, k, counter.halves(first * block), block) for key in keys)
            sums = jax.device_get(_block_sums(x, other, *arguments, even=bins.even))
            for name, size in (("bin", len(bins.mass) + 1), ("passed", len(levels) + 2)):
                sums[name] = np.bincount(sums[name], minlength=size)
        else:
            options = {"draw": draw, "block": block, "even": bins.even}
            sums = jax.device_get(_loop(np.int64(first), np.int64(number), keys, *arguments, **options))
    *counted, lost = sums.pop("bin")
    return sums | {
        "bins": np.array(counted),
        "lost": lost,
        "beyond": np.cumsum(sums.pop("passed")[-2::-1])[-2::-1][:length],
        "angles": np.int64(number * block),
        "neighbours": np.int64(number * (block - 1)),
    }

"""Counts and sums of a block of angles; nothing else of the angles is kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_von_mises as jvm
from jax_von_mises.sampling import counter

__all__ = ["AT_ONCE", "LAGS", "ORDERS", "block_counts", "many_blocks", "must_fit"]

ORDERS = (1, 2, 3, 4)
# Neighbours, lanes of vector units, rows of warps and blocks, and far.
LAGS = (1, 2, 3, 4, 8, 32, 64, 1024, 2**14)
# A guess of the bin may be off by rounding of the guess; a wrong one is seen, not believed.
STEPS = 2
ROW = 2**12
# Blocks in one call, where the host is not to be asked after each: a GPU counts one in less time than that takes.
AT_ONCE = {"gpu": 2**8}


def settle(place, x, ends):
    """Move each place, a guess, to where ``ends[place] <= x < ends[place + 1]``."""
    for _ in range(STEPS):
        place = place + (x >= ends[place + 1]).astype(jnp.int32)
        place = place - (x < ends[place]).astype(jnp.int32)
    return place


def between(places):
    """Places with infinities to both sides, which stand for the ends of the circle."""
    return jnp.concatenate([jnp.full(1, -jnp.inf, places.dtype), places, jnp.full(1, jnp.inf, places.dtype)])


def bin_of(x, edges, k, even):
    """The number of `edges` that are at most `x`; one more than there are bins for what is no number."""
    if even:
        place = jnp.floor(jvm.cdf(x, jnp.zeros((), x.dtype), k) * (len(edges) + 1)).astype(jnp.int32)
        place = jnp.clip(place, 0, len(edges))
    else:
        place = jnp.searchsorted(edges, x, side="right").astype(jnp.int32)
    ends = between(edges)
    place = settle(place, x, ends)
    return jnp.where((x >= ends[place]) & (x < ends[place + 1]), place, len(edges) + 1)


def passed(x, levels, k):
    """How many of the thresholds each |x| has reached."""
    if not len(levels):
        return jnp.zeros(x.shape, jnp.int32)
    size = jnp.abs(x)
    # The first threshold has a tail of 1/4 to each side, the next ones half of the one before.
    octave = -jnp.log2(jvm.sf(size, jnp.zeros((), x.dtype), k)) - 1
    guess = jnp.clip(jnp.nan_to_num(octave, posinf=len(levels)), 0, len(levels)).astype(jnp.int32)
    return settle(guess, size, between(levels))


def total(values):
    """Sum, with the rows' sums in float64: rounding stays far below chance."""
    rows = jnp.matmul(values.reshape(-1, ROW), jnp.ones(ROW, values.dtype), precision=lax.Precision.HIGHEST)
    return jnp.sum(rows.astype(jnp.float64))


def multiples(x):
    """sin(j x) and 1 - cos(j x) for the `ORDERS`, from the half angle: no digit is lost where x is small."""
    sine, cosine = jnp.sin(x / 2), jnp.cos(x / 2)
    s, c = sine, cosine
    halves = [s]
    for _ in range(2 * ORDERS[-1] - 1):
        s, c = s * cosine + c * sine, c * cosine - s * sine
        halves.append(s)
    return [halves[2 * j - 1] for j in ORDERS], [2 * halves[j - 1] ** 2 for j in ORDERS]


def products(one, other):
    """Sums of products of two pairs of an even and an odd function: both even, both odd, one of each."""
    (v, s), (w, t) = one, other
    return jnp.stack([jnp.vdot(v, w), jnp.vdot(s, t), jnp.vdot(v, t)]).astype(jnp.float64)


@functools.partial(jax.jit, static_argnames=("even",))
def _counts(x, other, edges, levels, k, mean, even):
    # Each is computed once and kept: XLA would compute it again within every sum.
    sines, versines = lax.optimization_barrier(multiples(x))
    mine = lax.optimization_barrier((versines[0] - mean, sines[0]))
    theirs = lax.optimization_barrier((2 * jnp.sin(other / 2) ** 2 - mean, jnp.sin(other)))
    negative = x < 0
    return {
        "place": bin_of(x, edges, k, even),
        "passed": passed(x, levels, k),
        "versines": jnp.stack([total(each) for each in versines]),
        "sines": jnp.stack([total(each) for each in sines]),
        # The block is a ring here: its last angles are followed by its first ones, as independent as any.
        "lagged": jnp.stack([products(mine, [jnp.roll(each, -lag) for each in mine]) for lag in LAGS]),
        "across": products(mine, theirs),
        "changes": jnp.sum(negative != jnp.roll(negative, -1)),
        "rises": jnp.sum(x[1:] > x[:-1]),
        "positive": jnp.sum(~negative),
    }


def histogram(places, size):
    """How often each of `size` numbers occurs, where they are: XLA's own way on a CPU takes one after the other."""
    if jax.default_backend() == "cpu":
        return np.bincount(np.asarray(places), minlength=size)
    return np.asarray(jnp.zeros(size, jnp.int32).at[places].add(1), np.int64)


def block_counts(x, other, expected, levels, k, mean):
    """Counts and sums of the block `x`, beside the block `other` of another stream.

    Parameters
    ----------
    x, other : arrays of one axis, the same length: a multiple of `ROW`, and more than the longest of the `LAGS`
    expected : law.Expected
    levels : array
        Thresholds of |x|, ascending.
    k, mean : float
        Concentration, and the mean of 1 - cos(x).
    """
    compute = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    with jax.enable_x64(True):
        x, other, edges, places, mean = (
            jnp.asarray(each, compute) for each in (x, other, expected.edges, levels, mean)
        )
        found = _counts(x, other, edges, places, jnp.float32(k), mean, expected.even)
    bins = len(expected.mass)
    counted = histogram(found.pop("place"), bins + 1)
    reached = histogram(found.pop("passed"), len(levels) + 1)
    return {name: np.asarray(value) for name, value in found.items()} | {
        "bins": counted[:bins],
        "lost": counted[bins],
        "beyond": np.cumsum(reached[::-1])[::-1][1:],
        "angles": len(x),
        "neighbours": len(x) - 1,
    }


def many_blocks(draw, keys, expected, levels, k, mean, block):
    """`block_counts` of many blocks in one call of the device: a function of the first one's number and of how many.

    Parameters
    ----------
    draw : callable
        ``draw(key, k, start, count)``, the angles of a stream from `start` on, a pair (hi, lo) of uint32.
    keys : two keys
        Of the stream that is counted, and of the one beside it.
    expected, levels, k, mean
        As in `block_counts`.
    block : int
        Angles in a block.
    """
    bins = len(expected.mass)

    def one(number, keys, edges, levels, k, mean):
        place = counter.halves(number.astype(jnp.uint64) * np.uint64(block))
        x, other = (draw(key, k, place, block) for key in keys)
        compute = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
        x, other, edges, levels, mean = (each.astype(compute) for each in (x, other, edges, levels, mean))
        found = _counts(x, other, edges, levels, k, mean, expected.even)
        # Most angles have reached few thresholds: added one by one, they would all wait for the same number.
        reached = found.pop("passed")[:, None] > jnp.arange(len(levels), dtype=jnp.int32)[None]
        counted = jnp.zeros(bins + 1, jnp.int64).at[found.pop("place")].add(1)
        return found | {"bins": counted, "beyond": jnp.sum(reached, axis=0)}

    @jax.jit
    def sums(first, number, *given):
        each = lambda i: one(first + i, *given)  # noqa: E731
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(each, first))
        return lax.fori_loop(0, number, lambda i, so_far: jax.tree.map(jnp.add, so_far, each(i)), nothing)

    given = tuple(keys), np.float64(expected.edges), np.float64(levels), np.float32(k), np.float64(mean)

    def counts(first, number):
        with jax.enable_x64(True):
            found = jax.device_get(sums(np.int64(first), np.int64(number), *given))
        counted = found.pop("bins")
        angles = {"angles": number * block, "neighbours": number * (block - 1)}
        return found | {"bins": counted[:bins], "lost": counted[bins]} | angles

    return counts


def must_fit(sums, bins, levels):
    """See that `sums` from a file are such as `block_counts` gives; ValueError where they are not."""
    shapes = {
        **dict.fromkeys(("changes", "rises", "positive", "lost", "angles", "neighbours"), ()),
        **dict.fromkeys(("versines", "sines"), (len(ORDERS),)),
        **{"lagged": (len(LAGS), 3), "across": (3,), "bins": (bins,), "beyond": (levels,)},
    }
    if {name: np.shape(value) for name, value in sums.items()} != shapes:
        raise ValueError("its sums have other names or shapes than those of this program")
    if not all(np.asarray(value).dtype.kind in "iuf" and np.all(np.isfinite(value)) for value in sums.values()):
        raise ValueError("its sums are no finite numbers")
    if any(np.any(sums[name] < 0) for name in ("bins", "beyond", "angles", "neighbours")):
        raise ValueError("its counts are negative")

"""How exact the angles are: shape, tails, distinct values and rounding, ours beside what others draw."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import jax_von_mises as jvm
from benchmarks import accuracy, reference
from benchmarks.cases import Case
from benchmarks.exactness.expected import ALLOWED, ULP
from benchmarks.peers import OURS, PEERS
from benchmarks.performance_benchmark import prepare
from benchmarks.profile_gpu import measuring
from jax_von_mises.sampling import transform

__all__ = ["ROUNDED", "drawn_tails", "exact_tails", "histogram", "measure", "rounded"]

SHAPES = (0.5, 5.0, 100.0, 1e4)  # concentrations of the pictures
TAILS = (0.5, 5.0, 1e4, 1e7)
DRAWN = (5.0, 1e7)
ROUNDED = (5.0, 100.0)
DISTINCT = 1e7
BINS = 60
REACH = 4.5  # standard deviations to each side
FEWEST = 8  # angles expected in a bin or beyond a threshold, below which its count says little


def drawn(peer, concentration, draws):
    """Float32 angles by a peer; None where it does not run."""
    case = Case(f"profile k={concentration:g}", "profile", draws, concentration)
    angles = accuracy.answer(peer, case)
    return None if angles is None else np.asarray(angles, np.float32).ravel()


def histogram(angles, k):
    """Counts of angles about 0 in bins, what the law expects of each, and the probability of a worse fit.

    The last and the first bin reach out to pi, so all angles count; neighbours are joined where few are expected.
    """
    width = min(np.pi, REACH / np.sqrt(max(k, 1.0)))
    edges = np.linspace(-width, width, BINS + 1)
    inner = reference.cdf(edges[1:-1], k)
    expected = np.diff(np.concatenate([[0.0], inner, [1.0]])) * len(angles)
    observed = np.bincount(np.searchsorted(edges[1:-1], angles.astype(np.float64)), minlength=BINS)
    seen, awaited = [0.0], [0.0]
    for one, other in zip(observed, expected, strict=True):
        if awaited[-1] >= FEWEST:
            seen.append(0.0)
            awaited.append(0.0)
        seen[-1] += one
        awaited[-1] += other
    if len(awaited) > 1 and awaited[-1] < FEWEST:
        last = seen.pop(), awaited.pop()
        seen[-1], awaited[-1] = seen[-1] + last[0], awaited[-1] + last[1]
    square = float(np.sum((np.array(seen) - awaited) ** 2 / np.array(awaited)))
    return {
        "concentration": k,
        "draws": len(angles),
        "edges": edges.tolist(),
        "observed": observed.tolist(),
        "p_value": float(stats.chi2.sf(square, max(1, len(seen) - 1))),
    }


def exact_tails(k, method, points):
    """Error of the tail probability of our angles, without drawing: the words that give them are chosen.

    Returns
    -------
    dict
        ``tail`` (probabilities from 1/2 down to 2^-33), ``error`` (of P(X > angle) as a share of it), ``share``, of
        the promised error, by that or by the distance of the angle in units of its last place, whichever is less; and
        ``worst``, the largest share.
    """
    numbers = np.unique(np.geomspace(1, 2.0**31 - 1, points).astype(np.uint64)) - 1
    t = (numbers.astype(np.float64) + 0.5) * 2.0**-32
    words = jnp.asarray((numbers << 1).astype(np.uint32))
    draw = jax.jit(lambda words, k: transform.angles((words,), jnp.float32(0), k, method))
    angles = np.asarray(draw(words, np.float32(k)))
    exact = angles.astype(np.float64)
    # The float32 concentration is the one that was asked for.
    k = float(np.float32(k))
    error = reference.cdf(-exact, k) / t - 1
    place = np.spacing(np.abs(angles).astype(np.float32)).astype(np.float64)
    ulp = np.abs(error) * t / np.exp(reference.log_prob(exact, k)) / place
    share = np.minimum(np.abs(error) / ALLOWED["float32"], ulp / ULP)
    return {
        "concentration": k,
        "method": method,
        "tail": t.tolist(),
        "error": error.tolist(),
        "share": share.tolist(),
        "worst": float(np.max(share)),
    }


def drawn_tails(angles, k):
    """How many angles lie beyond the quantiles of ever smaller probabilities, beside how many should."""
    levels = 2.0 ** -np.arange(1, np.floor(np.log2(len(angles) / FEWEST)) + 1)
    beyond = np.sort(np.abs(angles.astype(np.float64)))
    thresholds = -reference.icdf(levels / 2, k)
    counts = len(beyond) - np.searchsorted(beyond, thresholds, side="right")
    ratio = counts / (levels * len(beyond))
    error = np.sqrt((1 - levels) / (levels * len(beyond)))
    return {
        "concentration": k,
        "level": levels.tolist(),
        "ratio": ratio.tolist(),
        "error": error.tolist(),
        # In standard errors; of so many levels the largest is below 4 but once in a few hundred runs.
        "worst": float(np.max(np.abs(ratio - 1) / error)),
    }


def rounded(dtype, k, draws):
    """What rounding to `dtype` leaves of the law.

    Returns
    -------
    dict
        ``distinct`` values; ``step``, how far rounding takes the distribution function from the law's, whatever the
        number of draws; ``fair``, the distance of the draws from the law at the points where the rounding goes from
        one value to the next, which is small if each value is drawn as often as the law says; ``noise``, what chance
        leaves of ``fair`` in 999 of 1000 runs.
    """
    key = jax.random.key(11)
    values = jvm.sample_von_mises(key, np.float32(0), np.float32(k), (draws,), dtype)
    # NumPy's own sorting does not know bfloat16; float64 holds all values of the smaller types.
    angles = np.asarray(values).astype(np.float64)
    places, counts = np.unique(angles, return_counts=True)
    after = np.cumsum(counts) / draws
    upper = edges_of(places, dtype)
    law, between = reference.cdf(places, k), reference.cdf(upper, k)
    below = reference.cdf(-edges_of(-places, dtype), k)
    return {
        "dtype": dtype,
        "concentration": k,
        "distinct": len(places),
        "step": float(max(np.max(between - law), np.max(law - below))),
        "fair": float(np.max(np.abs(after - between)[:-1])),
        "noise": float(stats.kstwobign.isf(1e-3) / np.sqrt(draws)),
    }


def edges_of(places, dtype):
    """For each of `places`, numbers of `dtype`, the point halfway to the next larger number."""
    exact = jnp.finfo(dtype)
    # The spacing of a dtype at a number: its precision at the power of two below it.
    power = np.floor(np.log2(np.maximum(np.abs(places), float(exact.tiny))))
    spacing = 2.0 ** (power - exact.nmant)
    # Below 0 the next larger number is nearer where the number itself is a power of two.
    down = (places < 0) & (np.abs(places) == 2.0**power)
    return places + np.where(down, spacing / 2, spacing) / 2


def measure(plan):
    """Everything about accuracy, ours and the peers'."""
    chosen = [peer for peer in PEERS if "sample" not in peer.lacks and (plan.peers is None or peer.name in plan.peers)]
    shapes, tails, missing = [], [], {}
    for peer in chosen:
        for k in SHAPES:
            angles = drawn(peer, k, plan.draws)
            if angles is not None:
                shapes.append({"peer": peer.name, **histogram(angles, k)})
        for k in DRAWN:
            angles = drawn(peer, k, plan.draws)
            if angles is not None:
                tails.append({"peer": peer.name, **drawn_tails(angles, k)})
    distinct = accuracy.measure(chosen, plan.draws, (DISTINCT,))
    exact = [exact_tails(k, method, plan.tail_points) for k in TAILS for method in ("table", "direct")]
    return {
        "labels": {peer.name: peer.label for peer in chosen},
        "ours": OURS,
        "draws": plan.draws,
        "shapes": shapes,
        "drawn_tails": tails,
        "exact_tails": exact,
        "distinct": distinct,
        "speed": speed(plan, chosen, missing),
        "missing": missing,
    }


def speed(plan, peers, missing):
    """The rate of each peer at one concentration, in turns."""
    entries = {}
    for peer in peers:
        try:
            count, ready = prepare(peer, Case("profile", "one", plan.count, plan.concentration), capped=True)
            label = peer.label if count == plan.count else f"{peer.label}, {count:,} angles"
            entries[peer.name] = measuring.Entry(label, count, ready.competitor)
        except Exception as error:
            missing[peer.name] = str(error) if "Unavailable" in type(error).__name__ else measuring.failure(error)
    return measuring.race(entries, plan.rounds)

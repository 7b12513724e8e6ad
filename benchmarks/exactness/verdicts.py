"""From counts and sums to probabilities: how likely so bad an agreement is, for a sampler that keeps its promise.

All tests of one run share one rate of false alarms. Each is an upper bound on the chance of what was seen: what the
sampler may be off by (`law.Expected.slack`) is taken off first, so a sampler that keeps its promise fails no more often
than the rate says, however many angles are drawn; and what is worse than the promise fails for certain if enough are.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmarks.exactness import counting, law

__all__ = ["FALSE_ALARM", "Verdict", "alarms", "of_law"]

# The chance that a run of all tests on a right sampler reports anything.
FALSE_ALARM = 1e-6
# Angles expected in a bin, below which squares of what its count is off by are not those of normal numbers: neighbours
# are joined. With so many, the tail of their sum is that of chi-square to a few per cent.
FEWEST = 200


class Verdict(NamedTuple):
    """One test: what was tested, the statistic in words, and a bound on the probability of a worse one."""

    test: str
    found: str
    p: float


def joined(observed, expected, slack):
    """Neighbouring bins as one until each expects `FEWEST`."""
    places = np.searchsorted(np.cumsum(expected), np.arange(FEWEST, np.sum(expected) - FEWEST, FEWEST))
    starts = np.unique(np.concatenate([[0], places + 1]))
    starts = starts[starts < len(expected)]
    # What bins allow adds up at the ends of the joined one only, but more slack is never a false alarm.
    return tuple(np.add.reduceat(np.asarray(each, np.float64), starts) for each in (observed, expected, slack))


def beyond_chance(seen, count, least, most):
    """How likely counts so far out are, at most, where each probability lies somewhere between `least` and `most`."""
    few = stats.binom.cdf(seen, count, np.clip(least, 0, 1))
    many = stats.binom.sf(np.asarray(seen) - 1, count, np.clip(most, 0, 1))
    return np.minimum(1, 2 * np.minimum(few, many))


def bins(sums, expected):
    """Pearson's statistic over all bins, of what is beyond the slack."""
    count = sums["angles"]
    seen, awaited, slack = joined(sums["bins"], count * expected.mass, count * expected.slack)
    excess = np.maximum(np.abs(seen - awaited) - slack, 0)
    square = float(np.sum(excess**2 / awaited))
    freedom = max(1, len(awaited) - 1)
    told = f"chi-square {square:,.0f} of {freedom + 1:,} bins"
    yield Verdict("bins of equal probability", told, float(stats.chi2.sf(square, freedom)))
    # One bad bin is lost among so many in the sum. Of so many, one is far out: no normal law is near enough there.
    p = beyond_chance(seen, count, (awaited - slack) / count, (awaited + slack) / count)
    worst = int(np.argmin(p))
    told = f"{seen[worst]:,.0f} angles of {awaited[worst]:,.1f} expected, give or take {slack[worst]:.2g}"
    yield Verdict("the worst bin", told, float(min(1.0, len(p) * p[worst])))


def tails(sums, expected):
    """Counts beyond ever smaller tail probabilities, each by its own; `expected` are `law.Tails`."""
    count, seen = sums["angles"], sums["beyond"]
    p = beyond_chance(seen, count, expected.least, expected.most)
    worst = int(np.argmin(p))
    level = f"a tail of 2^{np.log2(expected.mass[worst] / 2):.1f}"
    told = f"beyond {level}: {seen[worst]:,} angles of {count * expected.mass[worst]:,.1f} expected"
    yield Verdict("tails down to 2^-32", told, float(min(1.0, len(p) * p[worst])))


def normal(z):
    """Probability of a larger size of a normal number."""
    return float(2 * stats.norm.sf(abs(z)))


def moments(sums, expected):
    """Means of 1 - cos(j x) and sin(j x) for j up to 4; `expected` as `law.moments` gives it."""
    count = sums["angles"]
    for name, (means, variances, slack) in expected.items():
        off = np.abs(sums[f"{name}s"] / count - means)
        z = np.maximum(off - slack, 0) / np.sqrt(variances / count)
        worst = int(np.argmax(z))
        told = (
            f"mean of the {name} of {counting.ORDERS[worst]} x off by {off[worst]:.1e}: {z[worst]:.1f} standard errors"
        )
        yield Verdict(f"moments, {name}", told, min(1.0, len(z) * normal(z[worst])))


def correlations(sums, expected):
    """Products of neighbours, and of the same places of two streams: means of products of independent numbers are 0."""
    even, odd = (expected[name][1, 0] for name in ("versine", "sine"))
    names = ("versine versine", "sine sine", "versine sine")
    for test, table, places in (
        ("correlation along the stream", sums["lagged"], [f"lag {lag}" for lag in counting.LAGS]),
        ("correlation between streams", sums["across"][None], ["the same place"]),
    ):
        z = np.abs(table) / np.sqrt(np.array([even**2, odd**2, even * odd])[None] * sums["angles"])
        row, column = np.unravel_index(np.argmax(z), z.shape)
        told = f"{names[column]} at {places[row]}: {z[row, column]:.1f} standard errors"
        yield Verdict(test, told, min(1.0, z.size * normal(z[row, column])))


def runs(sums):
    """Changes of sign, rises from one angle to the next, and the balance of signs."""
    count, pairs = sums["angles"], sums["neighbours"]
    # The number of rises among n independent numbers has the variance (n + 1) / 12; blocks are counted apart.
    cases = {
        "signs": (
            (sums["positive"] - count / 2) / np.sqrt(count / 4),
            f"{sums['positive']:,} of {count:,} not negative",
        ),
        "runs of signs": ((sums["changes"] - count / 2) / np.sqrt(count / 4), f"{sums['changes']:,} changes"),
        "runs up and down": ((sums["rises"] - pairs / 2) / np.sqrt(pairs / 12), f"{sums['rises']:,} rises"),
    }
    for test, (z, told) in cases.items():
        yield Verdict(test, f"{told}: {abs(z):.1f} standard errors", normal(z))


def of_law(sums, expected, beyond, k, dtype):
    """All verdicts on the sums of one law.

    `beyond` are the `law.Tails`; only float32 angles have the lattice they are of.
    """
    if sums["lost"]:
        yield Verdict("every angle is one", f"{sums['lost']:,} angles are not numbers in [-pi, pi)", 0.0)
    yield from bins(sums, expected)
    if dtype == "float32":
        yield from tails(sums, beyond)
    if dtype in ("float32", "float64"):
        means = law.moments(k, counting.ORDERS, dtype)
        yield from moments(sums, means)
        yield from correlations(sums, means)
        yield from runs(sums)


def alarms(verdicts, rate=FALSE_ALARM):
    """Those that are less likely than the rate of false alarms, shared among all, allows."""
    limit = rate / max(1, len(verdicts))
    return [verdict for verdict in verdicts if not verdict.p >= limit]

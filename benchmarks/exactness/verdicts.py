"""Turn counts and sums into p-values under the guaranteed accuracy.

The tests of bins, tails and moments subtract the guaranteed error (`slack` in `expected`) first, so their p-values are
upper bounds. A sampler with at most this error therefore fails no more often than the rate of false alarms, however
many angles are drawn.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmarks.exactness import counting, expected

__all__ = ["FALSE_ALARM", "Verdict", "alarms", "of_counts"]

# The probability that a run of all tests reports a sampler within its guaranteed error.
FALSE_ALARM = 1e-6
# Neighbouring bins are joined until each expects this many angles, so that the chi-square approximation is accurate.
FEWEST = 200
# Number of bins whose binomial p-value is computed.
CANDIDATES = 1000


class Verdict(NamedTuple):
    """One test: its name, the finding in words, and an upper bound of the p-value."""

    test: str
    found: str
    p: float


def joined(observed, awaited, slack):
    """Join neighbouring bins until each expects `FEWEST` angles."""
    places = np.searchsorted(np.cumsum(awaited), np.arange(FEWEST, np.sum(awaited) - FEWEST, FEWEST))
    starts = np.unique(np.concatenate([[0], places + 1]))
    starts = starts[starts < len(awaited)]
    # Only the slack at both ends matters. The sum of all slacks is larger, which cannot cause a false alarm.
    return tuple(np.add.reduceat(np.asarray(each, np.float64), starts) for each in (observed, awaited, slack))


def binomial(seen, count, least, most):
    """Return two-sided p-values of counts whose probability lies between `least` and `most`."""
    few = stats.binom.cdf(seen, count, np.clip(least, 0, 1))
    many = stats.binom.sf(np.asarray(seen) - 1, count, np.clip(most, 0, 1))
    return np.minimum(1, 2 * np.minimum(few, many))


def bonferroni(p):
    """Return the smallest p-value times the number of p-values, at most 1."""
    return float(min(1.0, np.size(p) * np.min(p)))


def normal(z):
    """Return two-sided p-values of standard normal numbers."""
    return 2 * stats.norm.sf(np.abs(z))


def bin_tests(sums, bins):
    """Test all bins by Pearson's statistic, and the worst bin by its binomial distribution."""
    count = sums["angles"]
    seen, awaited, slack = joined(sums["bins"], count * bins.mass, count * bins.slack)
    excess = np.maximum(np.abs(seen - awaited) - slack, 0)
    square, freedom = float(np.sum(excess**2 / awaited)), max(1, len(awaited) - 1)
    found = f"chi-square {square:,.0f} of {freedom + 1:,} bins"
    yield Verdict("bins of equal probability", found, float(stats.chi2.sf(square, freedom)))
    # The sum can hide a single wrong bin. The normal approximation is too coarse for such a small probability, but it
    # shows in which bins the slow binomial distribution can be smallest.
    bins_in_all, some = len(seen), np.argsort(excess**2 / awaited)[-CANDIDATES:]
    seen, awaited, slack = seen[some], awaited[some], slack[some]
    p = binomial(seen, count, (awaited - slack) / count, (awaited + slack) / count)
    i = int(np.argmin(p))
    found = f"{seen[i]:,.0f} angles of {awaited[i]:,.1f} expected, give or take {slack[i]:.2g}"
    yield Verdict("the worst bin", found, float(min(1.0, bins_in_all * p[i])))


def tail_tests(sums, tails):
    """Test the number of angles beyond each threshold."""
    count, seen = sums["angles"], sums["beyond"]
    p = binomial(seen, count, tails.least, tails.most)
    i = int(np.argmin(p))
    level = f"a tail of 2^{np.log2(tails.mass[i] / 2):.1f}"
    found = f"beyond {level}: {seen[i]:,} angles of {count * tails.mass[i]:,.1f} expected"
    yield Verdict("tails down to 2^-32", found, bonferroni(p))


def moment_tests(sums, moments):
    """Test the means of 1 - cos(j x) and sin(j x), with the `moments` that `expected.moments` returns."""
    count = sums["angles"]
    for name, (means, variances, slack) in moments.items():
        off = np.abs(sums[f"{name}s"] / count - means)
        z = np.maximum(off - slack, 0) / np.sqrt(variances / count)
        i = int(np.argmax(z))
        found = f"mean of the {name} of {counting.ORDERS[i]} x off by {off[i]:.1e}: {z[i]:.1f} standard errors"
        yield Verdict(f"moments, {name}", found, bonferroni(normal(z)))


def correlation_tests(sums, moments):
    """Test that correlations at several lags, and correlations between two streams at the same place, are 0."""
    even, odd = (moments[name][1, 0] for name in ("versine", "sine"))
    names = ("versine versine", "sine sine", "versine sine")
    for test, products, places in (
        ("correlation along the stream", sums["lagged"], [f"lag {lag}" for lag in counting.LAGS]),
        ("correlation between streams", sums["across"][None], ["the same place"]),
    ):
        z = np.abs(products) / np.sqrt(np.array([even**2, odd**2, even * odd]) * sums["angles"])
        row, column = np.unravel_index(np.argmax(z), z.shape)
        found = f"{names[column]} at {places[row]}: {z[row, column]:.1f} standard errors"
        yield Verdict(test, found, bonferroni(normal(z)))


def sign_tests(sums):
    """Test the balance of signs, the changes of sign, and the rises from one angle to the next."""
    count, pairs = sums["angles"], sums["neighbours"]
    # The number of rises among n independent numbers has variance (n + 1) / 12. Each block is counted separately.
    for test, seen, of, variance, what in (
        ("signs", sums["positive"], count, count / 4, f"of {count:,} not negative"),
        ("runs of signs", sums["changes"], count, count / 4, "changes"),
        ("runs up and down", sums["rises"], pairs, pairs / 12, "rises"),
    ):
        z = (seen - of / 2) / np.sqrt(variance)
        yield Verdict(test, f"{seen:,} {what}: {abs(z):.1f} standard errors", float(normal(z)))


def of_counts(sums, bins, tails, k, dtype):
    """Return all verdicts on the sums of one distribution."""
    found = [*bin_tests(sums, bins)]
    if sums["lost"]:
        found.append(Verdict("valid angles", f"{sums['lost']:,} angles are not numbers in [-pi, pi)", 0.0))
    if dtype == "float32":  # no other dtype has these tail probabilities
        found += tail_tests(sums, tails)
    if dtype in ("float32", "float64"):
        moments = expected.moments(k, counting.ORDERS, dtype)
        found += [*moment_tests(sums, moments), *correlation_tests(sums, moments), *sign_tests(sums)]
    return found


def alarms(verdicts, rate=FALSE_ALARM):
    """Return the verdicts with a p-value below `rate` divided by the number of tests."""
    limit = rate / max(1, len(verdicts))
    return [verdict for verdict in verdicts if not verdict.p >= limit]

"""Goodness-of-fit tests with one stated rate of false alarms for the whole suite.

Angles are mapped to probabilities by the float64 reference, so that every law is tested as the uniform one, in its
bulk (Kolmogorov-Smirnov, Anderson-Darling, chi-square on equal bins), in its tails and next to its mode (chi-square on
bins that halve), and in its trigonometric moments.
"""

import numpy as np
from scipy import special, stats

from tests import reference

# The probability that a correct sampler fails any test of the suite, shared by its at most TESTS single tests.
FALSE_ALARM = 1e-4
TESTS = 1000
P_VALUE = FALSE_ALARM / TESTS
EQUAL_BINS = 2**10
LARGEST_OCTAVE = 20
GRID = 2**14


class ExactTail:
    """P(X > |x|) from a table of exact values, good to 1e-7 of itself: fast enough for millions of angles.

    Cubic Hermite interpolation of log P, with the exact slope, on exact quantiles of evenly spaced logits.
    """

    def __init__(self, k):
        logit = np.linspace(-1, 1, GRID) * np.log(2.0**40)
        # From t next to 1/2 (c next to 0) down to 2^-40, dense at both ends.
        c = 0.5 / (1 + np.exp(logit))
        t = 0.5 / (1 + np.exp(-logit))
        self.x = np.r_[0.0, reference.quantile(t, k, c)[::-1]]
        self.t = np.r_[0.5, t[::-1]]
        self.slope = -reference.pdf(self.x, k)

    def __call__(self, x):
        """Tail probability beyond |x|."""
        x = np.clip(np.abs(x), 0, self.x[-1])
        i = np.clip(np.searchsorted(self.x, x, side="right") - 1, 0, len(self.x) - 2)
        h = self.x[i + 1] - self.x[i]
        f = np.divide(x - self.x[i], h, out=np.zeros_like(x), where=h > 0)
        a, b, p, q = self.t[i], self.t[i + 1], h * self.slope[i], h * self.slope[i + 1]
        return a + f * (p + f * ((3 * (b - a) - 2 * p - q) + f * (p + q - 2 * (b - a))))


def probabilities(x, k, exact=None):
    """P(X < x) in float64 for angles about 0, and the tail beyond |x| with its relative accuracy."""
    x = np.asarray(x, np.float64)
    tail = (exact or ExactTail(k))(x)
    return np.where(x < 0, tail, 1 - tail), tail


def kolmogorov_smirnov(u):
    u = np.sort(u)
    n = len(u)
    distance = max((np.arange(1, n + 1) / n - u).max(), (u - np.arange(n) / n).max())
    return stats.kstwobign.sf(distance * np.sqrt(n))


def anderson_darling(u):
    """Asymptotic p-value of A^2 by the infinite sum of weighted chi-squares, A^2 = sum z_j^2 / (j (j + 1)).

    Its far tail is that of the first, largest term with a constant: P(A^2 > a) ~ C erfc(sqrt(a)), where C is the
    product over j >= 2 of (1 - 2 / (j (j + 1)))^-1/2 = sqrt(3). An upper bound is what a test needs.
    """
    u = np.clip(np.sort(u), 1e-300, 1 - 1e-16)
    n = len(u)
    i = np.arange(1, n + 1)
    a2 = -n - np.mean((2 * i - 1) * (np.log(u) + np.log1p(-u[::-1])))
    return min(1.0, np.sqrt(3) * special.erfc(np.sqrt(max(a2, 0.0))))


def equal_bins(u):
    counts = np.bincount((u * EQUAL_BINS).astype(int).clip(0, EQUAL_BINS - 1), minlength=EQUAL_BINS)
    return stats.chisquare(counts).pvalue


def halving_bins(x, tail):
    """Bins of probability 2^-2, 2^-3, ... towards both tails, and the same towards the mode from both sides."""
    n = len(tail)
    parts = []
    for distance in (tail, 0.5 - tail):
        octave = np.clip(-np.log2(np.maximum(distance, 2.0**-60)).astype(int) - 1, 0, LARGEST_OCTAVE)
        for side in (x < 0, x >= 0):
            parts.append(np.bincount(octave[side], minlength=LARGEST_OCTAVE + 1))
    share = 2.0 ** -np.arange(2, LARGEST_OCTAVE + 3)
    share[-1] *= 2  # the rest
    keep = n * share >= 10
    p_values = []
    for counts in (np.concatenate(parts[:2]), np.concatenate(parts[2:])):
        both = counts.reshape(2, -1)
        observed = np.concatenate([both[:, keep], both[:, ~keep].sum(1, keepdims=True)], 1)
        expected = n * np.r_[share[keep], share[~keep].sum()]
        ok = expected > 0
        p_values.append(stats.chisquare(observed[:, ok].ravel(), np.tile(expected[ok], 2)).pvalue)
    return min(1.0, 2 * min(p_values))


def moments(x, k, order=4):
    """Trigonometric moments up to `order`, as the largest of their normal scores."""
    x = np.asarray(x, np.float64)
    ratio = lambda m: special.ive(m, k) / special.ive(0, k) if np.isfinite(k) else 1.0  # noqa: E731
    p_values = []
    for m in range(1, order + 1):
        if k < 1e4:
            mean_cos, mean_cos2 = ratio(m), (1 + ratio(2 * m)) / 2
            variance = mean_cos2 - mean_cos**2
            score_cos = (np.cos(m * x).mean() - mean_cos) * np.sqrt(len(x) / variance)
            score_sin = np.sin(m * x).mean() * np.sqrt(len(x) / ((1 - ratio(2 * m)) / 2))
        else:
            # Normal to 1e-4 there: powers of the scaled angle instead, whose moments are known.
            z = x * np.sqrt(k)
            even = special.factorial2(2 * m - 1)
            score_cos = ((z ** (2 * m)).mean() - even) * np.sqrt(len(x) / (special.factorial2(4 * m - 1) - even**2))
            score_sin = (z ** (2 * m - 1)).mean() * np.sqrt(len(x) / special.factorial2(4 * m - 3))
        p_values += [2 * stats.norm.sf(abs(score_cos)), 2 * stats.norm.sf(abs(score_sin))]
    return min(1.0, len(p_values) * min(p_values))


def battery(x, k, exact=None):
    """P-values by test name for angles `x`, centred at 0, against concentration `k`."""
    u, tail = probabilities(x, k, exact)
    return {
        "kolmogorov-smirnov": kolmogorov_smirnov(u),
        "anderson-darling": anderson_darling(u),
        "equal bins": equal_bins(u),
        "halving bins": halving_bins(np.asarray(x), tail),
        "moments": moments(x, k),
    }


def independent(u, v):
    """P-value of the correlation of two sets of uniform probabilities."""
    score = 12 * np.mean((u - 0.5) * (v - 0.5)) * np.sqrt(len(u))
    return 2 * stats.norm.sf(abs(score))


def assert_fits(p_values, where):
    bad = {name: p for name, p in p_values.items() if not p > P_VALUE}
    assert not bad, f"{where}: {bad}"

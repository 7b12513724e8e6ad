"""Test the goodness of fit of samples, with one false-alarm rate for the whole suite.

The float64 reference maps angles to probabilities, which are tested for uniformity: in the bulk (Kolmogorov-Smirnov,
Anderson-Darling, chi-square on equal bins), and in the tails and near the mode (chi-square on successively halved
bins). The trigonometric moments are tested, too.

.. [1] T. W. Anderson, D. A. Darling. "Asymptotic theory of certain goodness of fit criteria based on stochastic
   processes". Ann. Math. Statist. 23, 1952. doi:10.1214/aoms/1177729437
.. [2] G. Marsaglia, J. Marsaglia. "Evaluating the Anderson-Darling distribution". J. Stat. Softw. 9(2), 2004.
   doi:10.18637/jss.v009.i02
"""

import numpy as np
from scipy import special, stats

from tests import reference

# The probability that a correct sampler fails at least one of the suite's tests, of which there are at most TESTS.
# Seeds are fixed, so only a change of the random words can cause a false alarm; a repetition cannot.
FALSE_ALARM = 1e-4
TESTS = 1000
P_VALUE = FALSE_ALARM / TESTS
EQUAL_BINS = 2**10
LARGEST_OCTAVE = 20
FEWEST = 10  # smallest expected count of a bin; smaller bins are merged
MOMENTS = 4
GRID = 2**14  # the relative interpolation error of `ExactTail` is then 1e-10
SMALLEST_TAIL = 2.0**-40


class ExactTail:
    """Tail probability P(X > |x|), interpolated in a table of exact values; fast enough for millions of angles.

    The relative error is 1e-10. Cubic Hermite polynomials in x with exact slopes interpolate the tail probability t
    between exact quantiles. The logits of 2 t are evenly spaced, so the quantiles are dense towards pi and towards 0.
    """

    def __init__(self, k):
        logit = np.linspace(1, -1, GRID) * np.log(1 / SMALLEST_TAIL)
        t, c = 0.5 * special.expit(logit), 0.5 * special.expit(-logit)
        self.x = np.r_[0.0, reference.quantile(t, k, c)]
        self.t = np.r_[0.5, t]
        width = np.diff(self.x)
        low, high = -width * reference.pdf(self.x[:-1], k), -width * reference.pdf(self.x[1:], k)
        rise = np.diff(self.t)
        # Coefficients of powers of the position within a cell. Next to pi, cells are only a few floats wide, or empty.
        self.scale = np.divide(1, width, out=np.zeros_like(width), where=width > 0)
        self.powers = np.stack([self.t[:-1], low, 3 * rise - 2 * low - high, low + high - 2 * rise], -1)

    def __call__(self, x):
        """Return the tail probability beyond |x|, at least SMALLEST_TAIL."""
        x = np.clip(np.abs(x), 0, self.x[-1])
        i = np.clip(np.searchsorted(self.x, x, side="right") - 1, 0, len(self.x) - 2)
        f = (x - self.x[i]) * self.scale[i]
        a, b, c, d = self.powers[i].T
        return a + f * (b + f * (c + f * d))


def probabilities(x, exact):
    """Return P(X < x) in float64 and the tail beyond |x| with full relative accuracy, for angles from the mode."""
    x = np.asarray(x, np.float64)
    tail = exact(x)
    return np.where(x < 0, tail, 1 - tail), tail


def kolmogorov_smirnov(u):
    """Return the p-value of the largest distance between the empirical cdf of sorted `u` and the uniform cdf."""
    n = len(u)
    distance = max((np.arange(1, n + 1) / n - u).max(), (u - np.arange(n) / n).max())
    return stats.kstwobign.sf(distance * np.sqrt(n))


def anderson_darling(u):
    """Return the p-value of the Anderson-Darling statistic of sorted `u`."""
    u = np.clip(u, SMALLEST_TAIL, 1 - SMALLEST_TAIL)
    n = len(u)
    odd = np.arange(1, 2 * n, 2)
    return anderson_darling_tail(-n - np.mean(odd * (np.log(u) + np.log1p(-u[::-1]))))


def anderson_darling_tail(a):
    """Return P(A^2 > a) for large `a` and infinitely many samples.

    A^2 is the sum of w_j z_j^2 with independent standard normal z_j and w_j = 1 / (j (j + 1)) [1]. For large a, the
    first term dominates, with w_1 = 1/2 and P(z_1^2 / 2 > a) = erfc(sqrt(a)). The sum Y of the other terms lowers the
    level that the first term must exceed to a - Y. Since erfc(sqrt(a - Y)) is about erfc(sqrt(a)) e^Y (1 + Y / (2 a)),
    they contribute the factor

        E[e^Y] (1 + E[Y e^Y] / (2 a E[e^Y])),   E[e^Y] = product over j > 1 of (1 - 2 w_j)^-1/2 = sqrt(3),
        E[Y e^Y] / E[e^Y] = sum over j > 1 of w_j / (1 - 2 w_j) = sum of 1 / ((j - 1) (j + 2)) = 11 / 18.

    The relative error is below 1% for a >= 2.5 (P <= 0.05). The approximations of [2] have absolute errors of 2e-6,
    too large for the small probabilities needed here.
    """
    a = max(a, 1e-3)
    return min(1.0, np.sqrt(3) * special.erfc(np.sqrt(a)) * (1 + 11 / (36 * a)))


def chi_square(counts, expected):
    """Return the p-value of a chi-square test of counts with the same sum as `expected`."""
    return special.chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2 / expected))


def equal_bins(u):
    """Return the p-value of a chi-square test on bins of equal probability."""
    counts = np.bincount((u * EQUAL_BINS).astype(int).clip(0, EQUAL_BINS - 1), minlength=EQUAL_BINS)
    return chi_square(counts, np.full(EQUAL_BINS, len(u) / EQUAL_BINS))


def halving_bins(x, tail):
    """Return p-values of chi-square tests on bins of probability 1/4, 1/8, ... towards both tails and the mode."""
    mass = 2.0 ** -np.arange(2, LARGEST_OCTAVE + 3)
    mass[-1] *= 2  # the last bin holds the rest
    keep = len(tail) * mass >= FEWEST
    expected = len(tail) * np.r_[mass[keep], mass[~keep].sum()]
    # If no bins were merged, the last one is empty.
    used = expected > 0
    p_values = []
    for distance in (tail, 0.5 - tail):
        octave = np.clip(-np.log2(np.maximum(distance, 2.0**-60)).astype(int) - 1, 0, LARGEST_OCTAVE)
        sides = [np.bincount(octave[side], minlength=len(mass)) for side in (x < 0, x >= 0)]
        observed = [np.r_[counts[keep], counts[~keep].sum()][used] for counts in sides]
        p_values.append(chi_square(np.concatenate(observed), np.tile(expected[used], 2)))
    return p_values


def lowest_frequency(k):
    """Return the lowest frequency of `moments`: 1 for wide distributions, else one radian per standard deviation."""
    return max(1.0, np.sqrt(k))


def mean_cosine(frequency, k):
    """Return E[cos(frequency X)], by quadrature where the density exceeds e^-DEPTH times its largest value."""
    span = 2 * np.arcsin(np.sqrt(min(1.0, 0.5 * reference.DEPTH / max(k, 1.0))))
    # At 8 times the lowest frequency, 9 standard deviations hold 12 waves, which 160 nodes in four equal parts resolve.
    x = span / 4 * (np.arange(4)[:, None] + (reference.NODES + 1) / 2)
    return 2 * span / 8 * np.sum(reference.WEIGHTS * np.cos(frequency * x) * reference.pdf(x, k))


def moments(x, k):
    """Return p-values of the mean cosine and sine at each frequency, against their exact means and variances."""
    p_values = []
    angle = lowest_frequency(k) * np.asarray(x, np.float64)
    first = np.cos(angle) + 1j * np.sin(angle)
    wave = np.ones_like(first)
    for multiple in range(1, MOMENTS + 1):
        wave *= first  # a product is faster than a cosine and a sine
        frequency, mean = multiple * lowest_frequency(k), wave.mean()
        cosine, double = mean_cosine(frequency, k), mean_cosine(2 * frequency, k)
        score_cos = (mean.real - cosine) * np.sqrt(len(x) / ((1 + double) / 2 - cosine**2))
        score_sin = mean.imag * np.sqrt(len(x) / ((1 - double) / 2))
        p_values += [2 * stats.norm.sf(abs(score_cos)), 2 * stats.norm.sf(abs(score_sin))]
    return p_values


def smallest(p_values):
    """Return the p-value of the smallest of several p-values, with a Bonferroni correction."""
    return min(1.0, len(p_values) * min(p_values))


def battery(x, k, exact):
    """Return p-values by test name for angles `x` from the mode; `exact` is the `ExactTail` for concentration `k`."""
    x = np.sort(x)  # look-ups in order are twice as fast, and the tests ignore the order
    u, tail = probabilities(x, exact)
    ordered = np.sort(u)
    return {
        "kolmogorov-smirnov": kolmogorov_smirnov(ordered),
        "anderson-darling": anderson_darling(ordered),
        "equal bins": equal_bins(u),
        "halving bins": smallest(halving_bins(x, tail)),
        "moments": smallest(moments(x, k)),
    }


def independent(u, v):
    """Return the p-value for the correlation of two sets of uniform numbers and of their distances from 1/2.

    The second correlation detects angles that are as far from the mode as their neighbours, on either side.
    """
    n = len(u)
    p_values = []
    for a, b in ((u - 0.5, v - 0.5), (2 * np.abs(u - 0.5) - 0.5, 2 * np.abs(v - 0.5) - 0.5)):
        p_values.append(2 * stats.norm.sf(abs(12 * np.dot(a, b) / np.sqrt(n))))
    return smallest(p_values)


def assert_fits(p_values, where):
    """Assert that no test rejects; the message names those that do."""
    rejected = {name: p for name, p in p_values.items() if not p > P_VALUE}
    assert not rejected, f"{where}: {rejected}"

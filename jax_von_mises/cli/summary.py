"""Compare the moments of a sample, such as mean direction and resultant length, with those of its distribution.

This module uses only NumPy and SciPy, and shares no code with the sampler that it checks.
"""

import math

import numpy as np
from scipy import special

# From this concentration on, 1 - I1/I0 and the derivative of I1/I0 are computed from their series in 1/k, with relative
# errors below 1e-12 and 5e-12. Differences of Bessel functions would lose digits: the derivative would have a relative
# error of 2e-9 at this concentration, and more above it.
SERIES_MIN = 1e3

# 2 pi minus the nearest float64.
TWO_PI_REST = 2.4492935982947064e-16

# Fraction of correct files whose worst column exceeds the reported level.
FALSE_ALARM = 1e-3
# With fewer angles per column, the distribution of a column's mean is too far from normal for that level.
COLUMN_MIN = 100
# Number of stored fraction bits of each dtype.
SIGNIFICANT_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}

NOTHING = "nothing was drawn, so there is nothing to compare"
HEADER = f"{'':24}{'sample':>14}{'distribution':>14}{'std. error':>14}{'difference':>16}"


class Moments:
    """Sums of sin(x - loc) and 1 - cos(x - loc) for each column, in float64.

    A mean cosine would lose digits, since it is close to 1 at a large concentration.
    """

    numbers = draws = "angles"
    components = 1

    def __init__(self, loc: np.ndarray, concentration: np.ndarray):
        self.given = loc, concentration
        self.loc = exact_turns(loc)
        self.count = 0
        self.columns = max(loc.size, concentration.size)
        self.sine = np.zeros(self.columns)
        self.versine = np.zeros(self.columns)

    def add(self, angles: np.ndarray) -> None:
        """Add a block of rows."""
        compute = np.float64 if angles.dtype == np.float64 else np.float32
        half = angles.astype(compute, copy=False) - self.loc.astype(compute)
        half *= compute(0.5)
        sine, cosine = np.sin(half), np.cos(half, out=half)
        self.count += len(angles)
        cosine *= sine
        self.sine += 2 * np.sum(cosine.reshape(len(angles), -1), axis=0, dtype=np.float64)
        sine *= sine
        self.versine += 2 * np.sum(sine.reshape(len(angles), -1), axis=0, dtype=np.float64)

    def report(self, dtype: str) -> list[str]:
        """Return lines that compare the angles with their distribution."""
        return summarise(self, *self.given, dtype)


class DirectionMoments:
    """Sums of 1 - w and of the differences from the mean direction, in float64.

    Here, w is the cosine of the angle between a draw and the mean direction.
    """

    numbers, draws = "components", "directions"

    def __init__(self, mean_direction: np.ndarray, concentration: np.ndarray):
        mean = mean_direction.astype(np.float64)
        mean /= np.abs(mean).max()
        self.mean, self.concentration = mean / np.linalg.norm(mean), float(concentration)
        self.components = self.columns = mean.size
        self.count, self.versine, self.difference = 0, 0.0, np.zeros(mean.size)

    def add(self, directions: np.ndarray) -> None:
        """Add a block of rows."""
        difference = directions.astype(np.float64) - self.mean
        self.count += len(difference)
        self.versine += 0.5 * float(np.sum(difference * difference))
        self.difference += np.sum(difference, axis=0)

    def report(self, dtype: str) -> list[str]:
        """Return lines that compare the directions with their distribution."""
        count, d = self.count, self.components
        if count == 0:
            return [NOTHING]
        gap, variance = versine_moments(self.concentration, d)
        mean = self.difference / count
        # A component orthogonal to the mean direction has the variance E[1 - w^2] / (d - 1).
        across = float(np.linalg.norm(mean - (mean @ self.mean) * self.mean))
        spread = math.sqrt(max(2 * gap - variance - gap * gap, 0) / (d - 1))
        # Largest spacing of components below 1, in the sample's dtype and in the dtype of its computation.
        step = 2.0 ** -(SIGNIFICANT_BITS[dtype] + 1)
        inner = 2.0 ** -(53 if dtype == "float64" else 24)
        shift = step * math.exp(-2 * (math.pi * spread / step) ** 2) + 2 * inner
        error = spread / math.sqrt(count)
        rest = max(across - math.sqrt(d) * shift, 0.0)
        # The squared norm of the orthogonal mean, divided by the squared standard error, is chi-squared with d - 1
        # degrees of freedom. Show the normal deviate with the same tail probability.
        tail = special.chdtrc(d - 1, (rest / error) ** 2) if error > 0 else float(rest == 0)
        across_z = float(-special.ndtri(tail)) if rest else 0.0
        versine, versine_error = self.versine / count, math.sqrt(variance / count)
        allowed = d * (step * step / 2 + inner * spread)
        judged = map(np.asarray, (versine - gap, allowed, versine_error))
        versine_z = float(standard_deviations(*judged))
        lines = [HEADER, row("mean off-axis component", across, 0.0, error * math.sqrt(d - 1), across_z)]
        if gap > 0.01:
            return [*lines, row("resultant length", 1 - versine, 1 - gap, versine_error, -versine_z)]
        return [*lines, row("1 - resultant length", versine, gap, versine_error, versine_z)]


class PairMoments:
    """Sums of `pair_statistics` over all pairs, in float64, with the angles relative to their locations."""

    numbers, draws = "angles", "pairs"
    components = columns = 2
    NAMES = ("sin(phi - phi_loc)", "sin(psi - psi_loc)", "1 - cos(phi - phi_loc)", "1 - cos(psi - psi_loc)")

    def __init__(self, model: str, loc: np.ndarray, concentration: np.ndarray):
        self.model, self.given, self.loc = model, (loc, concentration), exact_turns(loc)
        self.count, self.sums = 0, np.zeros(5)

    def add(self, pairs: np.ndarray) -> None:
        """Add a block of rows."""
        statistics = pair_statistics(self.model, *(pairs.astype(np.float64) - self.loc).T)
        self.count += len(pairs)
        self.sums += np.sum(statistics, axis=1)

    def report(self, dtype: str) -> list[str]:
        """Return lines that compare the sample with the distribution."""
        if self.count == 0:
            return [NOTHING]
        loc, concentration = (x.astype(np.float64) for x in self.given)
        mean, variance = pair_moments(self.model, *concentration)
        spread = np.minimum(np.sqrt(2 * mean[2:4]), 1.0)
        _, shift, square = rounding(loc, spread, dtype)
        dependence = shift @ spread[::-1] if self.model == "sine" else np.sum(np.sqrt(square)) ** 2
        allowed = np.array([*shift, *square, dependence + np.prod(shift)])
        sample, error = self.sums / self.count, np.sqrt(variance / self.count)
        z = standard_deviations(sample - mean, allowed, error)
        names = (*self.NAMES, "product of the sines" if self.model == "sine" else "1 - cos of difference")
        return [HEADER, *map(row, names, sample, mean, error, z)]


def pair_statistics(model: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the sines, the versines and a dependence statistic of pairs of angles relative to their locations."""
    dependence = np.sin(a) * np.sin(b) if model == "sine" else versine(a - b)
    return np.stack([np.sin(a), np.sin(b), versine(a), versine(b), dependence])


def versine(x: np.ndarray) -> np.ndarray:
    """Return 1 - cos(x)."""
    return 2 * np.square(np.sin(0.5 * x))


def pair_moments(model: str, k1: float, k2: float, r: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and variances of `pair_statistics`, by quadrature over both angles.

    Given the first angle a, the second has the concentration rho about its conditional mean direction. The density of
    the first angle has its mode near the point where the derivative of k1 c + rho with respect to c = cos(a) changes
    sign. Gauss-Legendre panels are graded towards this point and both ends of the half circle. The other half follows
    by symmetry.
    """

    def second(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s = np.sqrt((1 - c) * (1 + c))
        return (k2 + 0 * c, r * s) if model == "sine" else (k2 - r * c, -r * s)

    low, high = -1.0, 1.0
    for _ in range(60):
        c = 0.5 * (low + high)
        slope = -r * r * c if model == "sine" else -k2 * r
        rises = k1 * math.hypot(*second(np.asarray(c))) + slope > 0
        low, high = (c, high) if rises else (low, c)
    steps = np.concatenate([[0], np.geomspace(1e-7, 4, 150)])
    mode = math.acos(low)
    edges = np.unique(np.clip(np.concatenate([mode - steps, mode + steps, steps, np.pi - steps]), 0, np.pi))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    width = np.diff(edges)[:, None]
    a = (edges[:-1, None] + width * (nodes + 1) / 2).ravel()
    along, across = second(np.cos(a))
    rho = np.hypot(along, across)
    # Sum over a full period, or over the range in which the second angle's density is not negligible. Equal weights
    # converge geometrically in both cases.
    reach = np.minimum(np.pi, 9 / np.sqrt(np.maximum(rho, 1e-9)))[:, None]
    place = reach * (np.arange(-48, 48) + 0.5) / 48
    log_density = (k1 * np.cos(a) + rho)[:, None] - rho[:, None] * versine(place)
    probability = np.exp(log_density - log_density.max()) * reach * (width * weights).ravel()[:, None]
    probability /= probability.sum()
    statistics = pair_statistics(
        model, np.broadcast_to(a[:, None], probability.shape), np.arctan2(across, along)[:, None] + place
    )
    mean = np.sum(probability * statistics, axis=(1, 2))
    mean[:2] = 0  # by symmetry
    return mean, np.sum(probability * np.square(statistics - mean[:, None, None]), axis=(1, 2))


def moments_of(
    distribution: str, location: np.ndarray, concentration: np.ndarray
) -> Moments | DirectionMoments | PairMoments:
    """Return empty moments for samples of a distribution."""
    if distribution == "von-mises-fisher":
        return DirectionMoments(location, concentration)
    if distribution == "von-mises":
        return Moments(location, concentration)
    return PairMoments(distribution.split("-")[0], location, concentration)


def versine_moments(concentration: float, dimension: int) -> tuple[float, float]:
    """Return the mean and variance of 1 - w under the von Mises-Fisher distribution.

    Here, w is the cosine of the angle to the mean direction. The trapezoid rule in y = log tan(angle / 2) converges
    geometrically. The density of y is proportional to e^f with f = -k (1 - w) + (d - 1)/2 log(1 - w^2).
    """
    n, k = dimension - 1, concentration
    if k == math.inf:
        return 0.0, 0.0
    root = math.hypot(n, 2 * k)
    least = 0.5 * n / (n + root) * (1 + n / (root + 2 * k))
    reach = 45 / n + 12 / math.sqrt(n)
    y = 0.5 * (math.log(least) - math.log1p(-least)) + np.linspace(-reach, reach, 4001)
    versine = 2 * special.expit(2 * y)
    f = -k * versine + 0.5 * n * (special.log_expit(2 * y) + special.log_expit(-2 * y))
    probability = np.exp(f - f.max())
    probability /= probability.sum()
    mean = float(probability @ versine)
    return mean, float(probability @ (versine - mean) ** 2)


def exact_turns(loc: np.ndarray) -> np.ndarray:
    """Reduce directions to [-pi, pi] in float64; directions in that interval stay unchanged.

    The error of this reduction must be below the spread of the angles, which may be as small as the last digit of loc.
    """
    loc = np.asarray(loc, np.float64)
    rest = np.fmod(loc, 2 * np.pi)  # exact, like the next line
    rest = rest - np.where(np.abs(rest) > np.pi, np.copysign(2 * np.pi, rest), 0.0)
    reduced: np.ndarray = rest - np.rint((loc - rest) / (2 * np.pi)) * TWO_PI_REST
    return reduced


def distribution_moments(concentration: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 1 - R and the variances of sin and cos about the mean direction, where R = I1(k) / I0(k).

    E sin^2 = R / k and Var cos = R' = 1 - R / k - R^2 (Mardia and Jupp, Directional Statistics, 2000, section 3.5.4).
    """
    k = np.asarray(concentration, np.float64)
    small = np.where(k < SERIES_MIN, k, 1.0)
    order0, order1 = special.ive(0, small), special.ive(1, small)
    gap = (order0 - order1) / order0
    ratio = np.where(small > 0, (1 - gap) / np.where(small > 0, small, 1.0), 0.5)
    inverse = 1 / np.where(k < SERIES_MIN, SERIES_MIN, k)
    # DLMF 10.40.1 for I1 and I0, divided: 1 - R = 1/(2k) + 1/(8k^2) + 1/(8k^3) + 25/(128k^4) + ...
    gap_series = inverse * (1 / 2 + inverse * (1 / 8 + inverse * (1 / 8 + inverse * 25 / 128)))
    cosine_series = inverse**2 * (1 / 2 + inverse * (1 / 4 + inverse * (3 / 8 + inverse * 25 / 32)))
    large = k >= SERIES_MIN
    return (
        np.where(large, gap_series, gap),
        np.where(large, (1 - gap_series) * inverse, ratio),
        np.where(large, cosine_series, 1 - ratio - (1 - gap) ** 2),
    )


def rounding(loc: np.ndarray, spread: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the spacing of angles near loc, and bounds on the effect of rounding on the means of sine and versine.

    Angles that spread over many steps of width g are rounded up as often as down. For spread s, the mean then changes
    by less than g exp(-2 (pi s / g)^2), the first term of Poisson's sum, and the mean square by less than g^2. All
    angles may share a shift of two steps of the dtype in which they are computed: one because loc is reduced to one
    turn, and one because angles are limited to the largest float below pi. Since 2 pi is rounded, the shift grows by
    2^-53 |loc|.
    """
    bits = SIGNIFICANT_BITS[dtype]
    reach = np.minimum(np.abs(exact_turns(loc)) + spread, np.pi)
    step = np.exp2(np.floor(np.log2(np.maximum(reach, np.finfo(np.float32).tiny))) - bits)
    # loc + x is computed in float32 unless the dtype is float64, so half-precision angles are rounded twice.
    inner = np.exp2(np.floor(np.log2(np.maximum(reach, np.finfo(np.float32).tiny))) - (52 if bits == 52 else 23))
    offset = 2 * inner + np.abs(loc) * 2.0**-53
    shift = step * np.exp(-2 * (np.pi * spread / step) ** 2) + offset
    return step, shift, (step * step + offset * offset) / 2 + inner * spread


def standard_deviations(difference: np.ndarray, allowance: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the difference, less the allowance for rounding, in units of the standard error."""
    rest = np.sign(difference) * np.maximum(np.abs(difference) - allowance, 0.0)
    result: np.ndarray = np.where(rest == 0, 0.0, np.copysign(np.inf, rest))
    np.divide(rest, error, out=result, where=error > 0)
    return result


def summarise(moments: Moments, loc: np.ndarray, concentration: np.ndarray, dtype: str) -> list[str]:
    """Return lines that compare the sample with its distribution."""
    count = moments.count
    if count == 0:
        return [NOTHING]
    gap, sine_variance, cosine_variance = (np.atleast_1d(a) for a in distribution_moments(concentration))
    spread = np.minimum(np.sqrt(sine_variance), 1.0)
    step, sine_allowance, cosine_allowance = rounding(np.atleast_1d(loc).astype(np.float64), spread, dtype)
    sine, versine = moments.sine / count, moments.versine / count
    sine_error, cosine_error = np.sqrt(sine_variance / count), np.sqrt(cosine_variance / count)
    sine_z, versine_z = np.broadcast_arrays(
        standard_deviations(sine, np.broadcast_to(sine_allowance, sine.shape), np.broadcast_to(sine_error, sine.shape)),
        standard_deviations(
            versine - gap,
            np.broadcast_to(cosine_allowance, sine.shape),
            np.broadcast_to(cosine_error, sine.shape),
        ),
    )
    if loc.ndim or concentration.ndim:
        lines = summarise_columns(sine_z, versine_z, count, concentration, loc)
    else:
        lines = [HEADER]
        length = 1 - gap[0]
        direction_error = sine_error[0] / length if length > 0 else math.inf
        determined = direction_error < 1
        if determined:
            direction = math.atan2(sine[0], 1 - versine[0])
            drawn = math.remainder(moments.loc + direction, 2 * math.pi)
            lines.append(row("mean direction", drawn, float(moments.loc), direction_error, sine_z[0]))
        else:
            lines.append(row("mean sine about loc", sine[0], 0.0, sine_error[0], sine_z[0]))
        if length < 0.99:
            name = "resultant length" if determined else "mean cosine about loc"
            lines.append(row(name, 1 - versine[0], length, cosine_error[0], -versine_z[0]))
        else:
            lines.append(row("1 - resultant length", versine[0], gap[0], cosine_error[0], versine_z[0]))
    coarse = np.broadcast_to((step > spread) & (spread > 0), sine.shape)
    if np.any(coarse):
        k = np.broadcast_to(np.atleast_1d(concentration), coarse.shape)[coarse][0]
        where = f"at concentration {k:g}"
        if coarse.size > 1:
            where = f"in {np.count_nonzero(coarse)} of {coarse.size} columns (the first {where})"
        lines.append(
            f"note: the angles {where} vary by less than the spacing of {dtype} near loc; "
            "use a loc of 0 or a wider --dtype to resolve them"
        )
    return lines


def row(name: str, sample: float, distribution: float, error: float, z: float) -> str:
    """Return one line of the table under `HEADER`."""
    return f"{name:24}{sample:>14.7g}{distribution:>14.7g}{error:>14.2g}{f'{z + 0.0:+.1f} s.e.':>16}"


def summarise_columns(
    sine_z: np.ndarray, versine_z: np.ndarray, count: int, concentration: np.ndarray, loc: np.ndarray
) -> list[str]:
    """Return lines that compare all columns together, and the worst column, with their distributions."""
    columns = sine_z.size
    lines = [
        f"{name:24}{np.sum(z) / math.sqrt(columns):+.1f} s.e. over {columns} columns together"
        for name, z in (("mean directions", sine_z), ("resultant lengths", -versine_z))
    ]
    if count < COLUMN_MIN:
        return [
            *lines,
            f"columns are not compared individually, since each has fewer than {COLUMN_MIN} angles ({count})",
        ]
    worst = np.maximum(np.abs(sine_z), np.abs(versine_z))
    index = int(np.argmax(worst))
    level = -special.ndtri(FALSE_ALARM / (4 * columns))
    k = np.broadcast_to(concentration, columns)[index]
    mu = np.broadcast_to(loc, columns)[index]
    return [
        *lines,
        f"{'worst column':24}{worst[index]:.1f} s.e., column {index} (loc {mu:g}, concentration {k:g}); "
        f"correct files stay below {level:.1f} in {1 - FALSE_ALARM:.1%} of cases",
    ]

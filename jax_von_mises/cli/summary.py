"""Compare the mean direction and the resultant length of a sample with those of its distribution."""

import math
from typing import Any

import jax
import numpy as np

from jax_von_mises.numerics.circle import LARGEST_LOC
from jax_von_mises.pairs.distribution import CosineBivariateVonMises, SineBivariateVonMises
from jax_von_mises.sphere.distribution import VonMisesFisher
from jax_von_mises.streams import writer
from jax_von_mises.von_mises.distribution import VonMises

# Pairs are tested up to this concentration; far beyond it, they can be NaN.
LARGEST_OF_PAIRS = 1e7
# Numbers that are summarised: summing them takes longer than drawing them.
SUMMARISED = 2**22

PAIRS: dict[str, Any] = {
    "sine-bivariate-von-mises": SineBivariateVonMises,
    "cosine-bivariate-von-mises": CosineBivariateVonMises,
}


def check(distribution: str, loc: np.ndarray, concentration: np.ndarray) -> None:
    """Raise ValueError if a parameter is invalid, or so large that draws would be NaN or rounded to whole radians."""
    if distribution == "von-mises-fisher":
        VonMisesFisher(loc, concentration, validate_args=True)
        return
    if distribution in PAIRS:
        PAIRS[distribution](*loc, *concentration, validate_args=True)
        if np.any(concentration[:2] > LARGEST_OF_PAIRS):
            raise ValueError(f"concentration is above {LARGEST_OF_PAIRS:.0e}, the largest one of pairs.")
    else:
        VonMises(loc, concentration, validate_args=True)
    limit = LARGEST_LOC[loc.dtype.name]
    if np.any(np.abs(loc) > limit):
        raise ValueError(
            f"loc is beyond {limit:.0f} or -{limit:.0f}, where neighbouring {loc.dtype.name} numbers are "
            "more than a radian apart."
        )


class Summary:
    """Sums over the draws of a distribution, in float64.

    For angles and pairs these are sums of sin(x - loc) and 1 - cos(x - loc) for each angle of a draw, since a mean
    cosine would lose digits at a large concentration; for directions, sums of the differences from the mean direction.
    """

    def __init__(self, distribution: str, location: np.ndarray, concentration: np.ndarray):
        self.distribution, self.concentration = distribution, concentration
        self.sphere, self.pairs = distribution == "von-mises-fisher", distribution in PAIRS
        self.draws = "directions" if self.sphere else "pairs" if self.pairs else "angles"
        # Numbers in a draw, and in a row of the result.
        self.components = location.size if self.sphere else 2 if self.pairs else 1
        self.columns = self.components if self.sphere or self.pairs else max(location.size, concentration.size)
        self.mean = location.astype(np.float64)
        if self.sphere:
            self.mean /= np.abs(self.mean).max()
            self.mean /= np.linalg.norm(self.mean)
        else:
            self.mean = np.arctan2(np.sin(self.mean), np.cos(self.mean))  # reduces large angles exactly
        self.count = 0  # of draws
        self.sine = np.zeros(2 if self.pairs else 1)
        self.versine, self.difference = np.zeros_like(self.sine), np.zeros(self.mean.size)

    def of_file(self, out: str) -> list[str]:
        """Add the first blocks of a finished file or store, and return the lines of `report`."""
        fewer = False
        for rows in writer.read_blocks(out):
            if fewer := self.count * self.components >= SUMMARISED:
                break
            self.add(rows)
        return [f"the first {self.count:,} {self.draws}:"] * fewer + self.report() if self.count else []

    def add(self, rows: np.ndarray) -> None:
        """Add rows of the result."""
        self.count += rows.size // self.components
        if self.sphere:
            self.difference += np.sum(rows.astype(np.float64) - self.mean, axis=0)
            return
        # NumPy's float32 functions take a sixteenth of the time, and are as accurate as the rows.
        compute = np.float64 if rows.dtype == np.float64 else np.float32
        half = (compute(0.5) * (rows.astype(compute, copy=False) - self.mean.astype(compute))).reshape(
            -1, self.sine.size
        )
        sine, cosine = np.sin(half), np.cos(half)
        self.sine += 2 * np.sum(sine * cosine, axis=0, dtype=np.float64)
        self.versine += 2 * np.sum(sine * sine, axis=0, dtype=np.float64)

    def report(self) -> list[str]:
        """Return lines that compare the draws with their distribution."""
        gaps = self.expected()
        if self.sphere:
            mean = self.difference / self.count
            # With the mean m + d of the draws and the mean direction m, |m + d|^2 = 1 + 2 m.d + |d|^2.
            gap = 1 - math.sqrt(max(1 + 2 * float(mean @ self.mean) + float(mean @ mean), 0.0))
            off = float(np.linalg.norm(mean - (mean @ self.mean) * self.mean))
            return [row("off the mean direction", off, 0.0), resultant(gap, gaps[0])]
        lines = []
        for j, name in enumerate(("phi", "psi") if self.pairs else ("",)):
            sine, versine = self.sine[j] / self.count, self.versine[j] / self.count
            off, length = math.atan2(sine, 1 - versine), math.hypot(1 - versine, sine)
            gap = (2 * versine - versine * versine - sine * sine) / (1 + length)
            away = 0.0
            if gaps[j] > 1:  # the mean direction is opposite to the location
                away, gaps[j] = math.pi, 2 - gaps[j]
            if self.mean.size == self.sine.size:
                place = float(np.ravel(self.mean)[j])
                off, place = (math.remainder(place + x, 2 * math.pi) for x in (off, away))
                lines.append(row(f"{name} mean direction".strip(), off, place))
            else:
                lines.append(row("mean direction - loc", off, 0.0))
            lines.append(resultant(gap, gaps[j], name))
        return lines

    def expected(self) -> list[float]:
        """Return 1 - resultant length of the distribution, about its mean directions, for each angle of a draw."""
        with jax.enable_x64(True):
            k = self.concentration.astype(np.float64)
            if self.sphere:
                return [1 - float(VonMisesFisher(self.mean, k).mean_resultant_length())]
            if self.pairs:
                return [1 - float(x) for x in PAIRS[self.distribution](0.0, 0.0, *k).moments()[:2]]
            return [float(np.mean(VonMises(0.0, k).variance()))]


def resultant(sample: float, distribution: float, name: str = "") -> str:
    """Return the line on the resultant length, or on its distance from 1 if that is small."""
    if distribution > 0.01:
        return row(f"{name} resultant length".strip(), 1 - sample, 1 - distribution)
    return row(f"{name} 1 - resultant length".strip(), sample, distribution)


def row(name: str, sample: float, distribution: float) -> str:
    """Return a line of the comparison."""
    return f"{name:26}{sample:14.6g}   distribution {distribution:.6g}"

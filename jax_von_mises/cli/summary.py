"""Compare the mean direction and the resultant length of a sample with those of its distribution."""

import math
from typing import Any

import jax
import numpy as np

from jax_von_mises.engine.base import of_vectors


def compare(distribution: Any, rows: np.ndarray, degrees: bool) -> list[str]:
    """Return lines that compare rows of draws with their distribution, in radians or degrees.

    The draws of all columns count together. They are turned by the mean directions of their columns, so that the mean
    direction of the result is 0. Classes without a mean have no lines.
    """
    lines = [f"{wrong:,} of {rows.size:,} numbers are NaN"] if (wrong := int(np.isnan(rows).sum())) else []
    if not (rows.size and hasattr(distribution, "_unit_means")):
        return lines
    with jax.enable_x64(True):
        exact = type(distribution)(**{name: np.float64(x) for name, x in distribution._parameters().items()})
        means = [np.asarray(x) for x in exact._unit_means()]
        single = [np.asarray(exact.variance())] if exact.event_shape == () else []
    rows = rows.astype(np.float64)
    if of_vectors(type(distribution)):
        length = np.linalg.norm(means[0], axis=-1, keepdims=True)
        unit = means[0] / np.where(length > 0, length, 1)
        # For unit vectors, 1 - x.u = |x - u|^2 / 2.
        sample, expected = np.mean(np.sum((rows - unit) ** 2, -1)) / 2, 1 - np.mean(length)
        return [*lines, closeness("cosine to the mean", sample, expected)]
    cosine, sine = means
    expected = single[0] if single else 1 - np.hypot(cosine, sine)
    mean = np.arctan2(sine, cosine)
    names = [""] if single else ["phi ", "psi "]
    mean, expected = (x.reshape(-1, len(names)) for x in (mean, expected))
    half = (rows.reshape(-1, *mean.shape) - mean) / 2
    sine, cosine = np.sin(half), np.cos(half)
    sines, versines = np.mean(2 * sine * cosine, (0, 1)), np.mean(2 * sine * sine, (0, 1))
    words, scale = ("degrees", math.degrees(1)) if degrees else ("radians", 1.0)
    for j, name in enumerate(names):
        off = math.atan2(sines[j], 1 - versines[j])
        if len(mean) == 1:
            angles = math.remainder(mean[0, j] + off, 2 * math.pi), mean[0, j]
            lines.append(row(f"{name}mean direction, {words}", *(angle * scale for angle in angles)))
        else:
            lines.append(row(f"{name}off their means, {words}", off * scale, 0.0))
        length = math.hypot(1 - versines[j], sines[j])
        gap = (2 * versines[j] - versines[j] ** 2 - sines[j] ** 2) / (1 + length)
        lines.append(closeness(f"{name}resultant length", gap, np.mean(expected[:, j])))
    return lines


def closeness(name: str, sample: float, distribution: float) -> str:
    """Return the line on a length, given its distances from 1; if these are small, the line is on them."""
    if distribution > 0.01:
        return row(name, 1 - sample, 1 - distribution)
    return row(f"1 - {name}", sample, distribution)


def row(name: str, sample: float, distribution: float) -> str:
    """Return a line of the comparison."""
    return f"{name:28}{sample:14.6g}   distribution {distribution:.6g}"

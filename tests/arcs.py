"""Compute tail probabilities, however small, of the von Mises distribution restricted to an arc, in float64 NumPy.

The module is independent of the package. It applies composite Gauss-Legendre quadrature to the parts of the arc on
which the density is monotone.
"""

import itertools

import numpy as np

from tests import reference

DEPTH = 90.0
# Panels grow outwards, since the integrand changes fastest at the near end.
PANELS = np.linspace(0, 1, 13) ** 1.5
HALVES, MIDDLES = np.diff(PANELS)[:, None] / 2, (PANELS[1:] + PANELS[:-1])[:, None] / 2
UNIT_NODES, UNIT_WEIGHTS = (MIDDLES + HALVES * reference.NODES).ravel(), (HALVES * reference.WEIGHTS).ravel()


def rise(start, u, k):
    """Return q(start + u) - q(start) without cancellation, where q(x) = 2 k sin^2(x / 2)."""
    return 2 * k * np.sin(u / 2) * np.sin(start + u / 2)


def mass(a, b, k, at):
    """Return the integral of e^(q(at) - q(x)) over x from a to b >= a, for unwrapped angles measured from the mode."""
    cuts = np.arange(-2, 5) * np.pi
    points = [a, *cuts[(cuts > a) & (cuts < b)], b]
    total = 0.0
    for start, end in itertools.pairwise(points):
        # Integrate outwards from the end nearer to the mode, as far as the density matters.
        outwards = rise(start, end - start, k) >= 0
        near, span = (start, end - start) if outwards else (end, start - end)
        while rise(near, span, k) > DEPTH:
            span *= 0.75
        with np.errstate(over="ignore"):
            values = np.exp(-rise(at, near - at, k) - rise(near, span * UNIT_NODES, k))
            total += abs(span) * np.sum(UNIT_WEIGHTS * values)
    return total


def share_before(x, a, b, k):
    """Return the fractions of the arc's probability below and above x, which is clipped to the arc from a to b."""
    x = min(max(x, a), b)
    before, after = mass(a, x, k, x), mass(x, b, k, x)
    return before / (before + after), after / (before + after)


def on_line(x, loc, low, high):
    """Return `low`, x and `high` as unwrapped angles measured from the mode, ascending up to rounding."""
    a = low - loc
    a -= 2 * np.pi * np.rint(a / (2 * np.pi))
    b = a + (high - low) if abs(high - loc) > np.pi or abs(low - loc) > np.pi else high - loc
    turns = [(x - loc) + 2 * np.pi * j if j else x - loc for j in (0, 1, -1, 2, -2, 3)]
    return a, min(turns, key=lambda y: max(a - y, y - b, 0)), b

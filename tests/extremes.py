"""Hypothesis strategies for numbers at which formulas tend to fail: switching points and the limits of floats.

A case is one element of each argument. A list of cases fills arrays of a fixed shape, so that one compiled program
serves all examples.
"""

import numpy as np
from hypothesis import strategies as st

from jax_von_mises.numerics import circle, coefficients
from jax_von_mises.von_mises import bessel, density, fitting, quantile, tail_integral, truncated

LANES = 96
# Largest absolute decimal exponent of the numbers drawn, which covers nearly the range of floats.
EXPONENTS = {"float32": 37.0, "float64": 307.0}


def concentration_switches(dtype):
    """Return the concentrations at which a formula changes."""
    names = (dtype,) if dtype == "float64" else ("float32",)
    switches = [density.KAPPA_MIN, tail_integral.KAPPA_MAX, bessel.SWITCH, bessel.SWITCH64, bessel.RATIO_SWITCH64]
    switches += [
        bessel.LARGEST_KAPPA,
        coefficients.GUESS_SWITCH,
        coefficients.GUESS64_SWITCH,
        fitting.NORMAL,
        1.0,
        1e-3,
    ]
    switches += [table[name] for table in (density.HUGE, truncated.POINT_MASS) for name in names]
    return switches


def angle_switches(dtype):
    """Return the angles at which a formula changes or a turn ends."""
    switches = [np.pi * part for part in (0.25, 0.5, 2 / 3, 1, 1.5, 2, 3, 4, 101)]
    return [*switches, circle.largest_angle(dtype), circle.LARGEST_LOC[dtype], 2.0**12, 6.25]


def probability_switches(dtype):
    """Return the probabilities at which a formula changes."""
    return [quantile.SMALLEST_TAIL[dtype], 2.0**-24, 2.0**-53, 0.25, 1e-20]


def with_neighbours(values, dtype):
    """Return each value and its neighbouring floats."""
    kind = np.dtype(dtype).type
    values = np.array([v for v in values if abs(v) <= np.finfo(dtype).max], kind)
    near = [values, np.nextafter(values, kind(0)), np.nextafter(values, kind(np.inf))]
    return sorted({float(v) for v in np.concatenate(near)})


def floats(dtype, **bounds):
    """Draw any float of `dtype` except subnormal ones, which a device may flush to 0."""
    return st.floats(width=np.dtype(dtype).itemsize * 8, allow_subnormal=False, **bounds)


def size(dtype, low=-30.0, high=30.0):
    """Draw positive numbers with decimal exponents from `low` to `high`."""
    return st.floats(low, high).map(lambda e: float(np.dtype(dtype).type(10.0**e)))


def concentrations(dtype, bad=False):
    """Draw concentrations from 0 to infinity; with `bad`, also invalid ones."""
    info = np.finfo(dtype)
    ends = [0.0, -0.0, float(info.tiny), float(info.max), np.inf]
    edges = with_neighbours(concentration_switches(dtype), dtype)
    good = [st.sampled_from(ends + edges), size(dtype, -6.0, 8.0), size(dtype, -EXPONENTS[dtype], EXPONENTS[dtype])]
    return st.one_of(*good, *([floats(dtype), st.sampled_from([np.nan, -np.inf, -1.0])] if bad else []))


def angles(dtype, bad=False):
    """Draw angles within a turn and on other turns; with `bad`, also invalid ones."""
    edges = with_neighbours(angle_switches(dtype), dtype)
    edges = [0.0, -0.0, float(np.finfo(dtype).tiny), *edges, *(-edge for edge in edges)]
    good = [
        st.sampled_from(edges),
        floats(dtype, min_value=-4, max_value=4),
        floats(dtype, min_value=-1e3, max_value=1e3),
    ]
    return st.one_of(*good, *([floats(dtype), st.sampled_from([np.nan, np.inf, -np.inf])] if bad else []))


def probabilities(dtype, bad=False):
    """Draw probabilities from 0 to 1, many of them near 0 or 1; with `bad`, also invalid ones."""
    info = np.finfo(dtype)
    edges = with_neighbours(probability_switches(dtype), dtype)
    edges += [1 - edge for edge in edges]
    ends = [0.0, -0.0, float(info.tiny), 0.5, 1.0, *with_neighbours([0.5, 1.0], dtype)[:2]]
    good = [
        st.sampled_from(ends + edges),
        floats(dtype, min_value=0, max_value=1),
        size(dtype, -EXPONENTS[dtype], -0.31),
    ]
    return st.one_of(*good, *([floats(dtype)] if bad else []))


def parameters(dtype, bad=False):
    """Draw (loc, concentration); with `bad`, also invalid ones."""
    good = st.tuples(angles(dtype), concentrations(dtype))
    return st.one_of(good, good, good, st.tuples(angles(dtype, bad), concentrations(dtype, bad)))


@st.composite
def near_the_mode(draw, dtype, bad=False):
    """Draw (x, loc, concentration) with x where the distribution has its mass, or anywhere."""
    loc, k = draw(parameters(dtype, bad))
    if draw(st.booleans()):
        return draw(angles(dtype, bad)), loc, k
    if draw(st.booleans()):
        loc = 0.0
    width = 1 / np.sqrt(1 + k) if k >= 0 else 1.0
    return float(np.dtype(dtype).type(loc + draw(st.floats(-14, 14)) * width)), loc, k


def lanes(cases, dtype, count=LANES):
    """Draw lists of cases as arrays of length `count`, one array for each element of a case."""

    def arrays(values):
        columns = np.array(values, dtype).reshape(len(values), -1).T
        return tuple(np.resize(column, count) for column in columns)

    return st.lists(cases, min_size=1, max_size=count).map(arrays)

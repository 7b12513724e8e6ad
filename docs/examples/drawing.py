"""Provide the command line, times, colours and picture settings of the examples; equal results give equal files."""

import argparse
import contextlib
import time
from pathlib import Path

import numpy as np

__all__ = ["COLORS", "GREY", "INK", "near", "parser", "seconds", "settings", "write"]

# Distinguishable with a colour vision deficiency (Okabe and Ito): orange, blue, green,
# pink, sky, gold.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
INK, GREY = "#222222", "#BBBBBB"
SETTINGS = {
    "svg.hashsalt": "jax_von_mises",  # otherwise element names are random
    "svg.fonttype": "path",  # looks the same without the font
    "font.family": "DejaVu Sans",  # comes with Matplotlib
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def parser(text):
    """Return the argument parser of an example, described by the first line of its docstring `text`."""
    result = argparse.ArgumentParser(description=text.splitlines()[0])
    result.add_argument(
        "--out", type=Path, help="picture to write; the suffix determines its format"
    )
    result.add_argument(
        "--quick", action="store_true", help="run a smaller example, in a few seconds"
    )
    return result


def near(angles, centre):
    """Return angles moved by full turns to within half a turn of `centre`."""
    return centre + np.remainder(angles - centre + np.pi, 2 * np.pi) - np.pi


def seconds(function, *given):
    """Return the time of the first call, which compiles, and the shortest of five further ones."""
    import jax  # some examples choose its devices before they import it

    times = []
    for _ in range(6):
        begun = time.perf_counter()
        jax.block_until_ready(function(*given))
        times.append(time.perf_counter() - begun)
    return times[0], min(times[1:])


@contextlib.contextmanager
def settings():
    """Apply the picture settings; Matplotlib is imported here because examples without `--out` do not need it."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def write(figure, out):
    """Write a figure without a date, so that equal results give equal bytes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150
    )

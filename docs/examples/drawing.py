"""Provide the command line, colours and picture settings of the examples; equal results give equal files."""

import argparse
import contextlib
from pathlib import Path

__all__ = ["COLORS", "GREY", "INK", "parser", "settings", "write"]

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

"""What the examples share: their command line, their colours, and pictures that are the same for the same numbers."""

import argparse
import contextlib
from pathlib import Path

__all__ = ["COLORS", "GREY", "INK", "parser", "settings", "write"]

# Distinguishable with a colour vision deficiency (Okabe and Ito): orange, blue, green,
# pink, sky, gold.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
INK, GREY = "#222222", "#BBBBBB"
SETTINGS = {
    "svg.hashsalt": "jax_von_mises",  # else element names are drawn at random
    "svg.fonttype": "path",  # looks the same where the font is missing
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
    """The command line of the example with the docstring `text`."""
    made = argparse.ArgumentParser(description=text.splitlines()[0])
    made.add_argument(
        "--out", type=Path, help="picture to write; its ending says the format"
    )
    made.add_argument(
        "--quick", action="store_true", help="less of everything, in some seconds"
    )
    return made


@contextlib.contextmanager
def settings():
    """Settings of Matplotlib, which is imported here and not before: the rest runs without it."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def write(figure, out):
    """Write a figure; the same numbers give the same bytes, so there is no date in it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150
    )

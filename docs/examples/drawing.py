"""Provide the command line, colours, tables and pictures of the examples; equal results give equal files."""

import argparse
from pathlib import Path

import numpy as np

__all__ = [
    "COLORS",
    "GREY",
    "INK",
    "draw",
    "near",
    "parser",
    "posterior_table",
    "table",
]

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
    "contour.linewidth": 0.7,
    "contour.negative_linestyle": "solid",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}
INKED = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "xtick.color",
    "ytick.color",
)
SETTINGS |= dict.fromkeys(INKED, INK)

# Colours of a picture on light pages, and their replacements on dark pages.
DARK = {
    "#222222": "#e0e0e0",
    "#dddddd": "#44494f",
    "#ffffff": "#131416",
    "#555555": "#a8a8a8",
    "#bbbbbb": "#666c72",
}
REPLACED = "".join(
    f'[style*="{paint}: {light}"]{{{paint}:{dark} !important}}'
    for light, dark in DARK.items()
    for paint in ("fill", "stroke")
)
THEME = (
    "<style>svg{background:#ffffff}@media (prefers-color-scheme:dark)"
    "{svg{background:#131416;fill:#e0e0e0}" + REPLACED + "}</style>"
)


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
    return centre + (angles - centre + np.pi) % (2 * np.pi) - np.pi


def table(head, rows):
    """Return a Markdown table of texts whose first column is aligned to the left and all others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def posterior_table(truth, methods, digits):
    """Return the table of true values, and of the mean and standard deviation of the draws of each method."""
    rows = [[name, f"{value:.{digits}f}"] for name, value in truth.items()]
    for row in rows:
        for draws in methods.values():
            values = draws[row[0]]
            row += [f"{each:.{digits}f}" for each in (values.mean(), values.std())]
    heads = [head for method in methods for head in (f"{method} mean", "sd")]
    return table(["", "true", *heads], rows)


def themed(svg):
    """Return an SVG picture that follows the reader's preference for light or dark pages."""
    end = svg.index(">", svg.index("<svg")) + 1
    return svg[:end] + THEME + svg[end:]


def draw(out, picture, *given):
    """Write the figure `picture(*given)` to the file `out`, without a date; do nothing if `out` is None."""
    if out is None:
        return
    import matplotlib  # only needed for pictures

    out.parent.mkdir(parents=True, exist_ok=True)
    svg = out.suffix == ".svg"
    with matplotlib.rc_context(SETTINGS):
        picture(*given).savefig(out, metadata={"Date": None} if svg else None, dpi=150)
    if svg:
        out.write_text(themed(out.read_text(encoding="utf-8")), encoding="utf-8")

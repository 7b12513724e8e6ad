"""Draw the picture of a section as SVG: a bar for each row, or a line against the angles per call."""

import io
from typing import NamedTuple

import numpy as np

from benchmarks.text import number

__all__ = ["Picture", "draw"]

# Colours that colour-blind readers can distinguish (after Okabe and Ito).
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
MARKS = ("o", "s", "^", "D")
GRID = {"color": "#888888", "alpha": 0.35, "linewidth": 0.7}
SETTINGS = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "profile"}


class Picture(NamedTuple):
    """What a picture shows: the field of the rows times `scale`, with the label of its axis."""

    field: str
    label: str
    scale: float = 1.0
    by_size: bool = False
    """Draw lines against the angles per call instead of bars."""
    log: bool = False


def draw(picture, rows):
    """Return the picture of these rows as SVG text, or None if fewer than two rows have a value."""
    rows = [row for row in rows if row.get(picture.field) is not None]
    if len(rows) < 2:
        return None
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(7, 3.8 if picture.by_size else 0.9 + 0.33 * len(rows)), layout="constrained")
        (lines if picture.by_size else bars)(figure.subplots(), picture, rows)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def reach(picture, row):
    """Return the distances from the value of a row to the ends of its span."""
    value = row[picture.field]
    if "span" not in row or picture.field not in ("seconds", "rate"):
        return 0.0, 0.0
    ends = row["span"] if picture.field == "seconds" else tuple(row["count"] / end for end in reversed(row["span"]))
    return tuple(max(0.0, distance * picture.scale) for distance in (value - ends[0], ends[1] - value))


def bars(axes, picture, rows):
    """Draw a bar for each row, with its span."""
    for place, row in zip(range(len(rows))[::-1], rows, strict=True):
        value, (below, above) = row[picture.field] * picture.scale, reach(picture, row)
        axes.barh(place, value, xerr=[[below], [above]], color=COLORS[1], height=0.62, alpha=0.8)
        end = (value + above, place)
        axes.annotate(number(value), end, (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows))[::-1], [row["line"] for row in rows])
    axes.set(xlabel=picture.label)
    axes.margins(x=0.12)
    axes.grid(visible=True, axis="x", **GRID)
    axes.set_axisbelow(True)


def lines(axes, picture, rows):
    """Draw a line for each kind of row against the angles per call."""
    for place, line in enumerate(dict.fromkeys(row["line"] for row in rows)):
        chosen = [row for row in rows if row["line"] == line]
        spans = np.transpose([reach(picture, row) for row in chosen])
        counts, values = ([row[field] for row in chosen] for field in ("count", picture.field))
        values = np.multiply(values, picture.scale)
        axes.errorbar(counts, values, spans, marker=MARKS[place], color=COLORS[place], label=line)
    axes.set_xscale("log", base=2)
    if picture.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.set(xlabel="angles per call", ylabel=picture.label)
    axes.grid(visible=True, **GRID)
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9.5)

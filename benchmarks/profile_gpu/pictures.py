"""Draw the pictures of the report, as SVG that follows the reader's light or dark theme, and as PNG.

Times and rates are drawn with their spread, and pale if they are unsteady or from a busy machine. A section with fewer
than two rows has no picture.
"""

import io

import numpy as np

from benchmarks import plots
from benchmarks.profile_gpu.sections import SECTIONS
from jax_von_mises.streams.disk import readable

__all__ = ["draw"]

WIDTH = 6.4  # inches
# Placeholder for the text colour, which the page determines.
INK = "#010203"
THEME = "<style>svg{color:#222}@media (prefers-color-scheme:dark){svg{color:#dcdcdc}}</style>"
# Colours that are readable on white and black, and that colour-blind readers can distinguish (after Okabe and Ito).
COLORS = ("#D55E00", "#2A8FD0", "#009E73", "#C978A8", "#C98B00", "#7A7FD9")
MARKS = ("o", "s", "^", "D", "v", "P")
GRID = {"color": "#888888", "alpha": 0.35, "linewidth": 0.7}
PALE = 0.35


def draw(result):
    """Return the pictures of a result by section, each as SVG and PNG bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings = plots.SETTINGS | dict.fromkeys(inked, INK) | {"font.size": 11}
    quiet, drawn = result["machine_state"]["quiet"], {}
    for name, data in result["sections"].items():
        rows = [row for row in data.get("rows", ()) if "failed" not in row]
        if SECTIONS[name].picture is None or len(rows) < 2:
            continue
        kind, label = SECTIONS[name].picture
        with matplotlib.rc_context(settings):
            figure = Figure(figsize=(WIDTH, 1), layout="constrained")
            KINDS[kind](figure, rows, label, quiet)
            svg, png = io.BytesIO(), io.BytesIO()
            figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
            figure.savefig(png, format="png", facecolor="white", dpi=150)
        drawn[name] = themed(svg.getvalue()), png.getvalue()
    return drawn


def themed(svg):
    """Replace the placeholder colour in a picture with the text colour of the reader's theme."""
    text = svg.decode().replace(INK, "currentColor")
    end = text.index(">", text.index("<svg")) + 1
    return (text[:end] + THEME + text[end:]).encode()


def bars(figure, rows, label, quiet, field="rate", scale=1e-6, form="{:.3g}"):
    """Draw a bar for each row, with the interquartile range."""
    figure.set_figheight(0.9 + 0.33 * len(rows))
    axes = figure.subplots()
    places = range(len(rows))[::-1]
    values = [row[field] * scale for row in rows]
    for place, row, value in zip(places, rows, values, strict=True):
        alpha = 0.85 if quiet and row["steady"] else PALE
        half = value * row["spread"] / 2
        axes.barh(place, value, color=COLORS[1], height=0.62, alpha=alpha, xerr=half, ecolor=INK)
        axes.annotate(form.format(value), (value + half, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row["line"] for row in rows])
    axes.set(xlabel=label)
    axes.margins(x=0.12)
    axes.grid(visible=True, axis="x", **GRID)
    axes.set_axisbelow(True)


def times(figure, rows, label, quiet):
    """Draw the time of each row as a bar, in milliseconds."""
    bars(figure, rows, label, quiet, "seconds", 1e3)


def shares(figure, rows, label, quiet):
    """Draw each stage's share of its bound."""
    rows = [row for row in rows if row.get("share") is not None]
    bars(figure, rows, label, quiet, "share", 1.0, "{:.0%}")
    figure.axes[0].axvline(1, color=INK, linewidth=1, linestyle=(0, (5, 3)))


def by_size(figure, rows, label, quiet, field, scale):
    """Draw a line for each kind of row against the angles per call."""
    figure.set_figheight(3.8)
    axes = figure.subplots()
    sizes = sorted({row["count"] for row in rows})
    for place, line in enumerate(dict.fromkeys(row["line"] for row in rows)):
        chosen = [row for row in rows if row["line"] == line]
        x, y = (np.array([row[name] for row in chosen], float) for name in ("count", field))
        spread = np.array([row.get("spread", 0) for row in chosen]) / 2
        sure = all(row.get("steady", True) for row in chosen) and quiet
        axes.errorbar(
            x, y * scale, y * scale * spread, marker=MARKS[place], color=COLORS[place], label=line,
            alpha=1 if sure else PALE,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    shown = sizes[:: max(1, -(-len(sizes) // 6))]
    axes.set_xticks(shown, [f"$2^{{{round(np.log2(size))}}}$" for size in shown])
    axes.set(xlabel="angles per call", ylabel=label)
    axes.grid(visible=True, **GRID)
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9.5)
    return axes


def rates_by_size(figure, rows, label, quiet):
    """Draw rates against the angles per call."""
    by_size(figure, rows, label, quiet, "rate", 1e-6).set_ylim(0, None)


def times_by_size(figure, rows, label, quiet):
    """Draw times against the angles per call."""
    by_size(figure, rows, label, quiet, "seconds", 1e6).set_yscale("log")


def bytes_by_size(figure, rows, label, _quiet):
    """Draw temporary memory and the size of the result against the angles per call."""
    first = rows[0]["line"]
    rows = [{**row, "bytes": max(1, row["temporary"]), "line": f"temporary, {row['line']}"} for row in rows] + [
        {**row, "bytes": row["result"], "line": "result"} for row in rows if row["line"] == first
    ]
    axes = by_size(figure, rows, label, True, "bytes", 1.0)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: readable(int(value)))


def errors(figure, rows, label, _quiet):
    """Draw the error of each angle against its tail probability."""
    figure.set_figheight(4.2)
    axes = figure.subplots()
    concentrations = list(dict.fromkeys(row["concentration"] for row in rows))
    for row in rows:
        direct = row["route"] == "direct"
        axes.plot(
            row["tail"],
            np.maximum(row["share"], 1e-4),
            "+" if direct else ".",
            color=COLORS[concentrations.index(row["concentration"])],
            markersize=4.5,
            label=None if direct else f"{row['concentration']:g}",
        )
    axes.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.set(xscale="log", yscale="log", xlabel="tail probability", ylabel=label)
    axes.invert_xaxis()
    axes.grid(visible=True, **GRID)
    axes.minorticks_off()
    title = "concentration (dots: table route, crosses: direct route)"
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, title=title, title_fontsize=9.5)


KINDS = {
    "rates": bars,
    "times": times,
    "shares": shares,
    "rates by size": rates_by_size,
    "times by size": times_by_size,
    "bytes": bytes_by_size,
    "errors": errors,
}

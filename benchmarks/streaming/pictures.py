"""Draw a result of ``benchmarks.streaming``: memory of a stream on the left, rates to the disk on the right.

``python -m benchmarks.streaming.pictures result.json --out picture.svg`` writes the same bytes for the same result.
"""

import sys

from benchmarks import plots

__all__ = ["main"]

# Colours that colour-blind readers can distinguish (Okabe and Ito), and dashes for print in black and white.
STYLES = {
    "npy": {"color": "#D55E00", "linestyle": "-"},
    "zarr": {"color": "#0072B2", "linestyle": "--"},
    "prefetch": {"color": "#009E73", "linestyle": ":"},
    "save": {"color": "#999999", "linestyle": "-."},
}
OTHERS = "#999999"
LIMIT = {"color": "#555555", "linestyle": (0, (5, 3)), "linewidth": 1.5}
BARS = ("draw", "plain", "npy", "zarr", "save", "read")
BYTES = 4  # of a float32


def checked(result):
    """Return `result`; raise ValueError or KeyError if it cannot be drawn."""
    if result["program"] != "streaming":
        raise KeyError("program 'streaming'")
    if result["format"] != 1:
        raise ValueError(f"its format is {result['format']}, not 1")
    for section in ("memory", "disk"):
        if section not in result["sections"]:
            raise ValueError(f"it has no section {section!r}")
    return result


def memory_panel(axes, found):
    """Draw memory over time, and the size of the complete result as a line."""
    complete, largest = found["whole_bytes"] / 1e9, 0.0
    for kind, run in found["results"].items():
        seconds, held = zip(*run["trace"], strict=True)
        gigabytes = [size / 1e9 for size in held]
        largest = max(largest, *gigabytes)
        axes.plot(seconds, gigabytes, label=run["label"], linewidth=1.8, **STYLES[kind])
    axes.axhline(complete, **LIMIT)
    axes.annotate(
        f"the complete result: {complete:.3g} GB",
        (0.01, complete),
        xycoords=("axes fraction", "data"),
        va="bottom",
        fontsize=9,
    )
    axes.set_ylim(0, 1.15 * max(complete, largest))
    axes.set_title(f"Memory while {found['count']:,} angles are drawn")
    axes.set(xlabel="time (s)", ylabel="memory held (GB)")
    axes.set_xlim(left=0)
    axes.grid(visible=True, axis="y")
    if found["results"]:
        axes.legend(loc="best", frameon=False, fontsize=9)


def rate_panel(axes, found):
    """Draw rates as bars, and the plain write as a line."""
    names = [name for name in BARS if name in found["results"]][::-1]
    results = [found["results"][name] for name in names]
    scale = BYTES / 1e9
    rates = [result["rate"] * scale for result in results]
    spread = [
        [(result["rate"] - result["rate_quartiles"][0]) * scale for result in results],
        [(result["rate_quartiles"][1] - result["rate"]) * scale for result in results],
    ]
    colors = [STYLES[name]["color"] if name in STYLES else OTHERS for name in names]
    axes.barh(range(len(names)), rates, color=colors, xerr=spread, ecolor=plots.INK, capsize=3, height=0.65)
    axes.axvline(found["results"]["plain"]["rate"] * scale, zorder=0.5, **LIMIT)
    axes.set_yticks(range(len(names)), [result["label"] for result in results])
    end = max(rate + above for rate, above in zip(rates, spread[1], strict=True))
    for place, (rate, above) in enumerate(zip(rates, spread[1], strict=True)):
        axes.annotate(f"{rate:.3g}", (rate + above + 0.015 * end, place), va="center", fontsize=9)
    axes.set_xlim(0, 1.12 * end)
    axes.set_title(f"Rate to the disk: {found['count'] * scale:.3g} GB, fsync included")
    axes.set(xlabel="GB/s (dashed: the plain write; whiskers: quartiles)")
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)


def picture(result):
    """Return the figure with both panels."""
    from matplotlib.figure import Figure

    # A white background keeps the picture readable on a dark page.
    figure = Figure(figsize=(11, 4.2), facecolor="white", layout="constrained")
    memory, rate = figure.subplots(1, 2)
    memory_panel(memory, result["sections"]["memory"])
    rate_panel(rate, result["sections"]["disk"])
    figure.suptitle(
        f"{plots.machine_text(result['environment'])}; {result['disk']['filesystem'] or 'unknown'} file system, "
        f"float32, blocks of {result['options']['block']:,} angles",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return figure


def main(arguments=None):
    """Write the picture and return the exit code."""
    return plots.run(arguments, "benchmarks.streaming.pictures", __doc__, "streaming", checked, picture)


if __name__ == "__main__":
    sys.exit(main())

"""The pictures of the report: SVG for the page, which follow its light or dark ground, and the same as PNG.

Each is small enough to be read on a phone. What was too noisy is left out, or said in words where its bar would be.
"""

import io
from typing import NamedTuple

import numpy as np

from benchmarks import plots, reference
from benchmarks.profile_gpu import measuring
from benchmarks.text import install_command
from jax_von_mises.streams.checkpoint import readable

__all__ = ["Picture", "draw"]

WIDTH, HEIGHT = 5.4, 3.5  # inches
# Stands for the text's colour until the drawing is done, then the page decides; a near black in PNG files.
INK = "#010203"
THEME = "<style>svg{color:#222}@media (prefers-color-scheme:dark){svg{color:#dcdcdc}}</style>"  # of the picture alone
# Readable on white and on black, and told apart by people with a colour deficiency (after Okabe and Ito).
COLORS = ("#D55E00", "#2A8FD0", "#009E73", "#C978A8", "#C98B00", "#7A7FD9", "#888888")
PEER_COLORS = {"ours": COLORS[0], "numpy": COLORS[1], "numpyro": COLORS[2], "tfp": COLORS[5], "torch": COLORS[3]}
PEER_COLORS |= {"cupy": COLORS[4], "normal": COLORS[6]}
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
PEER_MARKS = dict(zip(PEER_COLORS, MARKS, strict=False))
GRID = {"color": "#888888", "alpha": 0.35, "linewidth": 0.7}


# Draws expected in a bin, below which its share is mostly chance.
ENOUGH = 50


class Picture(NamedTuple):
    """One picture: its file's name, its section, what it shows in words, and its bytes or why there are none."""

    name: str
    section: str
    caption: str
    svg: bytes | None
    png: bytes | None
    failed: str = ""


def settings():
    """Settings of matplotlib for all pictures."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return plots.SETTINGS | dict.fromkeys(inked, INK) | {"font.size": 11, "axes.titlesize": 11, "axes.labelsize": 10.5}


def draw(result):
    """Draw all pictures that the sections of `result` have data for.

    Raises
    ------
    ImportError
        Without matplotlib, with what to install.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"matplotlib is not installed: {install_command('bench')}") from error
    drawn = []
    with matplotlib.rc_context(settings()):
        for name, (section, caption, paint, height) in PICTURES.items():
            data = result["sections"].get(section)
            if data is not None and "error" not in data:
                drawn.append(one(name, section, caption, paint, data, height))
    return drawn


def one(name, section, caption, paint, data, height):
    """Draw one picture; who fails does not take the others along."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    try:
        paint(figure, data)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(png, format="png", facecolor="white", dpi=150)
    except Exception as error:
        return Picture(name, section, caption, None, None, measuring.failure(error))
    return Picture(name, section, caption, themed(svg.getvalue()), png.getvalue())


def themed(svg):
    """Give a picture the colour of its text by the reader's choice of light or dark."""
    text = svg.decode().replace(INK, "currentColor")
    start = text.index("<svg")
    end = text.index(">", start) + 1
    return (text[start:end] + THEME + text[end:]).encode()


def plain(axes, axis="both"):
    """A grid behind, no minor marks."""
    axes.grid(visible=True, axis=axis, **GRID)
    axes.set_axisbelow(True)
    axes.minorticks_off()


def round_numbers(axis):
    """Marks at 1, 2 and 5 times the powers of ten: a logarithmic axis may not span a whole one."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def powers_of_two(axes, sizes):
    """Mark sizes on a logarithmic axis as 2^n, at most six of them."""
    chosen = sizes[:: max(1, -(-len(sizes) // 6))]
    axes.set_xscale("log", base=2)
    axes.set_xticks(chosen, [f"$2^{{{round(np.log2(size))}}}$" for size in chosen])
    axes.minorticks_off()


def legend(axes, **more):
    """A legend without a frame, if there is anything to tell."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9.5, **more)


def bars(figure, rows, label):
    """Bars of rates with the middle half of the turns; `rows` are labels and results, the first on top."""
    axes = figure.subplots()
    places = range(len(rows))[::-1]
    most = max((result["rate"] for _, result in rows if measuring.usable(result)), default=1.0) / 1e6
    for place, (_, result) in zip(places, rows, strict=True):
        if not measuring.usable(result):
            word = "failed" if "failed" in result else "too noisy"
            axes.annotate(word, (0.01 * most, place), va="center", fontsize=9.5, style="italic")
            continue
        value = result["rate"] / 1e6
        low, high = (result["count"] / quartile / 1e6 for quartile in reversed(result["quartiles"]))
        axes.barh(place, value, color=COLORS[1], height=0.62, alpha=0.85)
        axes.plot([low, high], [place, place], color=INK, linewidth=1.5)
        axes.annotate(f"{value:.3g}", (max(value, high) + 0.015 * most, place), va="center", fontsize=9.5)
    axes.set_yticks(places, [name for name, _ in rows])
    axes.set(xlabel=label, xlim=(0, 1.17 * most), ylim=(-0.6, len(rows) - 0.4))
    plain(axes, "x")


def or_say_why(axes):
    """Say so where all that was to be drawn was too noisy."""
    if not any(len(line.get_xdata()) for line in axes.lines):
        axes.annotate("too noisy", (0.5, 0.5), xycoords="axes fraction", ha="center", style="italic")


def usable_points(sizes, results, field="rate"):
    """Sizes and values of the results that can be believed."""
    pairs = [(size, result[field]) for size, result in zip(sizes, results, strict=True) if measuring.usable(result)]
    return ([], []) if not pairs else tuple(zip(*pairs, strict=True))


def compiling(figure, data):
    """Seconds in all after so many calls."""
    axes = figure.subplots()
    calls = np.geomspace(1, 1e5, 200)
    for place, row in enumerate(data["rows"]):
        for name, style in (("jit", "-"), ("plain", "--")):
            if measuring.usable(row[name]) and measuring.usable(row["firsts"][name]):
                total = row["firsts"][name]["median"] + (calls - 1) * row[name]["median"]
                label = f"{row['count']:,}" + ("" if name == "jit" else ", no jit")
                axes.plot(calls, total, style, color=COLORS[place % len(COLORS)], label=label, linewidth=1.8)
    or_say_why(axes)
    axes.set(xscale="log", yscale="log", xlabel="calls", ylabel="seconds in all")
    plain(axes)
    legend(axes, title="angles a call", title_fontsize=9.5)


def roof(figure, data):
    """The roofline: operations a second against operations a byte."""
    axes = figure.subplots()
    found = data["ceilings"]
    stages = [stage for stage in data["stages"].values() if measuring.usable(stage) and stage.get("bytes")]
    points = [(operations_of(stage) / stage["bytes"], operations_of(stage) / stage["median"]) for stage in stages]
    places = [x for x, _ in points] or [1.0]
    x = np.geomspace(min(places) / 4, max(places) * 4, 100)
    for name, color in (("floats", COLORS[2]), ("integers", COLORS[1])):
        if found[name]:
            slope = x * found["bytes"] if found["bytes"] else np.inf
            height = np.minimum(slope, np.full(len(x), found[name])) / 1e9
            axes.plot(x, height, color=color, label=f"ceiling: {name}")
    for number, (stage, (place, height)) in enumerate(zip(stages, points, strict=True), 1):
        axes.plot(place, height / 1e9, MARKS[(number - 1) % len(MARKS)], color=COLORS[0], markersize=6)
        axes.annotate(str(number), (place, height / 1e9), (5, 3), textcoords="offset points", fontsize=9.5)
        axes.plot([], [], " ", label=f"{number}  {stage['label']}")
    if not points:
        axes.annotate("too noisy", (0.5, 0.5), xycoords="axes fraction", ha="center", style="italic")
    axes.set(xscale="log", yscale="log", xlabel="operations for each byte moved", ylabel="G operations/s")
    plain(axes)
    round_numbers(axes.yaxis)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", fontsize=9, frameon=False, handlelength=1.5
    )


def operations_of(stage):
    """All operations of a stage."""
    return stage["floats"] + stage["integers"] + stage["transcendentals"]


def shares(figure, data):
    """How near its bound each stage comes."""
    axes = figure.subplots()
    stages = list(data["stages"].values())
    colors = {"bytes": COLORS[4], "floats": COLORS[2], "integers": COLORS[1]}
    places = range(len(stages))[::-1]
    for place, stage in zip(places, stages, strict=True):
        if not measuring.usable(stage) or stage["share"] is None:
            axes.annotate("too noisy" if stage.get("wide") else "-", (0.01, place), va="center", style="italic")
            continue
        axes.barh(place, stage["share"], color=colors[stage["bound_by"]], height=0.62, alpha=0.85)
        axes.annotate(f"{stage['share']:.0%}", (stage["share"] + 0.015, place), va="center", fontsize=9.5)
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    for name, color in colors.items():
        axes.barh(0, 0, color=color, alpha=0.85, label=f"bound by {name}")
    axes.set_yticks(places, [stage["label"] for stage in stages], fontsize=9.5)
    most = max([1.0, *(stage["share"] for stage in stages if measuring.usable(stage) and stage["share"])])
    axes.set(xlabel="share of the bound", xlim=(0, 1.18 * most))
    plain(axes, "x")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", fontsize=9, frameon=False, ncols=2)


def batch(figure, data):
    """Rate against the size of a call."""
    axes = figure.subplots()
    for place, (method, line) in enumerate(data["lines"].items()):
        sizes, rates = usable_points(data["sizes"], line)
        axes.plot(sizes, np.array(rates) / 1e6, MARKS[place] + "-", color=COLORS[place], label=f"{method} route")
        best = data["recommended"][method]
        if best:
            axes.axvline(best, color=COLORS[place], linestyle=(0, (4, 3)), linewidth=1.2)
    or_say_why(axes)
    axes.set(xlabel="angles in one call (dashed: enough)", ylabel="million angles a second", ylim=(0, None))
    powers_of_two(axes, data["sizes"])
    plain(axes)
    legend(axes)


def memory(figure, data):
    """Bytes against the size of a call."""
    axes = figure.subplots()
    methods = list(dict.fromkeys(row["method"] for row in data["rows"]))
    sizes = sorted({row["count"] for row in data["rows"]})
    for place, method in enumerate(methods):
        rows = [row for row in data["rows"] if row["method"] == method and row["output_bytes"]]
        counts = [row["count"] for row in rows]
        axes.plot(
            counts,
            [max(1, row["temporary_bytes"]) for row in rows],
            MARKS[place] + "--",
            color=COLORS[place],
            label=f"on the way, {method}",
        )
        if place == 0:
            axes.plot(counts, [row["output_bytes"] for row in rows], "-", color=INK, label="the result")
    axes.set(xlabel="angles in one call", ylabel="memory")
    powers_of_two(axes, sizes)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: readable(int(value)))
    plain(axes)
    legend(axes)


def donation(figure, data):
    """Rates with and without donation."""
    bars(figure, [(result["label"], result) for result in data["results"].values()], "million angles a second")


def prefetch(figure, data):
    """Rates with and without prefetch."""
    bars(figure, [(result["label"], result) for result in data["results"].values()], "million angles a second")


def transfer(figure, data):
    """Seconds of each part against the size of a call."""
    axes = figure.subplots()
    names = {"dispatch": "the call returns", "compute": "then it is there", "to_host": "to the host"}
    names |= {"to_device": "as many to the device"}
    for place, (name, label) in enumerate(names.items()):
        sizes, seconds = usable_points(data["sizes"], [row[name] for row in data["rows"]], "median")
        axes.plot(sizes, np.array(seconds) * 1e6, MARKS[place] + "-", color=COLORS[place], label=label)
    or_say_why(axes)
    axes.set(xlabel="angles in one call", ylabel="microseconds", yscale="log")
    powers_of_two(axes, data["sizes"])
    plain(axes)
    legend(axes)


def precision(figure, data):
    """Rates of the dtypes."""
    bars(figure, list(data["results"].items()), "million angles a second")


def losses(figure, data):
    """Distinct values of the dtypes."""
    axes = figure.subplots()
    names = list(data["results"])
    concentrations = list(dict.fromkeys(loss["concentration"] for loss in data["losses"]))
    for place, k in enumerate(concentrations):
        counts = [loss["distinct"] for loss in data["losses"] if loss["concentration"] == k]
        spots = np.arange(len(names)) + 0.38 * (place - (len(concentrations) - 1) / 2)
        axes.bar(spots, counts, width=0.36, color=COLORS[place], alpha=0.85, label=f"concentration {k:g}")
    axes.axhline(data["draws"], color=INK, linewidth=1, linestyle=(0, (5, 3)), label="draws")
    axes.set_xticks(range(len(names)), names)
    axes.set(yscale="log", ylabel="distinct values")
    plain(axes, "y")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)


def keys(figure, data):
    """Rates of the keys."""
    bars(figure, list(data["results"].items()), "million angles a second")


def devices(figure, data):
    """Rates over devices."""
    axes = figure.subplots()
    numbers = [int(name) for name in data["results"]]
    sizes, rates = usable_points(numbers, list(data["results"].values()))
    axes.plot(sizes, np.array(rates) / 1e6, "o-", color=COLORS[0], label="measured")
    if rates and sizes[0] == 1:
        axes.plot(numbers, np.array(numbers) * rates[0] / 1e6, "--", color=COLORS[6], label="n times one")
    axes.set(xlabel="devices", ylabel="million angles a second", ylim=(0, None))
    if not rates:
        or_say_why(axes)
        axes.set_yticks([])
    axes.set_xticks(numbers)
    plain(axes)
    legend(axes)


def trace(figure, data):
    """The longest operations."""
    axes = figure.subplots()
    rows = data["longest"]
    places = range(len(rows))[::-1]
    axes.barh(places, [each["seconds"] * 1e3 for each in rows], color=COLORS[1], height=0.62, alpha=0.85)
    axes.set_yticks(places, [each["operation"][:28] for each in rows], fontsize=9.5)
    axes.set(xlabel=f"milliseconds in {data['calls']} calls")
    plain(axes, "x")


def shapes(figure, data):
    """Histograms of our draws beside the density."""
    rows = [shape for shape in data["shapes"] if shape["peer"] == data["ours"]]
    grid = figure.subplots(2, 2) if len(rows) > 2 else figure.subplots(1, 2)
    for axes, row in zip(grid.flat, rows, strict=False):
        edges, k = np.array(row["edges"]), row["concentration"]
        # What lies beyond the outer edges was counted in the outer bins; it is too little to be seen.
        axes.stairs(
            np.array(row["observed"]) / row["draws"] / np.diff(edges), edges, fill=True, color=COLORS[1], alpha=0.5
        )
        x = np.linspace(edges[0], edges[-1], 300)
        axes.plot(x, np.exp(reference.log_prob(x, k)), color=COLORS[0], linewidth=1.5)
        axes.set_title(f"concentration {k:g}", fontweight="normal", fontsize=10)
        axes.set_ylim(0, None)
        axes.locator_params(nbins=4)
        axes.tick_params(labelsize=9)
        plain(axes)


def peers(figure, data):
    """Draws in each bin as a share of those expected, at the largest concentration, a line for each peer."""
    axes = figure.subplots()
    largest = max((shape["concentration"] for shape in data["shapes"]), default=None)
    for shape in data["shapes"]:
        if shape["concentration"] != largest:
            continue
        edges, peer = np.array(shape["edges"]), shape["peer"]
        inner = reference.cdf(edges[1:-1], largest)
        expected = np.diff(np.concatenate([[0.0], inner, [1.0]])) * shape["draws"]
        enough = expected >= ENOUGH
        middles = ((edges[1:] + edges[:-1]) / 2 * np.sqrt(largest))[enough]
        ratio = (np.array(shape["observed"]) / expected)[enough]
        axes.plot(middles, ratio, color=PEER_COLORS[peer], linewidth=1.5, label=data["labels"][peer])
        if peer == data["ours"]:
            band = 3 / np.sqrt(expected[enough])
            axes.fill_between(middles, 1 - band, 1 + band, color="#888888", alpha=0.25, linewidth=0)
    axes.set(xlabel=f"standard deviations, at concentration {largest:g}", ylabel="drawn / expected")
    plain(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)


def exact(figure, data):
    """Errors of our tail probabilities."""
    axes = figure.subplots()
    concentrations = list(dict.fromkeys(tail["concentration"] for tail in data["exact_tails"]))
    for tail in data["exact_tails"]:
        place = concentrations.index(tail["concentration"])
        shares = np.maximum(tail["share"], 1e-4)
        direct = tail["method"] == "direct"
        axes.plot(
            tail["tail"],
            shares,
            "+" if direct else ".",
            color=COLORS[place],
            markersize=4.5,
            label=None if direct else f"{tail['concentration']:g}",
        )
    axes.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.set(xscale="log", yscale="log", xlabel="tail probability", ylabel="share of the promised error")
    axes.set_ylim(None, max(2.0, *(2 * tail["worst"] for tail in data["exact_tails"])))
    axes.invert_xaxis()
    plain(axes)
    round_numbers(axes.yaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9.5,
                  title="concentration (dots: table, crosses: direct)", title_fontsize=9.5)  # fmt: skip


def tails(figure, data):
    """Draws beyond thresholds at the largest concentration, as a share of those expected."""
    axes = figure.subplots()
    rows = data["drawn_tails"]
    largest = max((row["concentration"] for row in rows), default=None)
    for row in rows:
        if row["concentration"] != largest:
            continue
        level, ratio = np.array(row["level"]), np.array(row["ratio"])
        peer = row["peer"]
        axes.plot(
            level, ratio, PEER_MARKS[peer] + "-", color=PEER_COLORS[peer], markersize=4, label=data["labels"][peer]
        )
        if peer == data["ours"]:
            band = 3 * np.array(row["error"])
            axes.fill_between(level, 1 - band, 1 + band, color="#888888", alpha=0.25, linewidth=0)
    axes.set(xscale="log", xlabel="tail probability", ylabel="drawn / expected", ylim=(0, 2.2))
    axes.invert_xaxis()
    plain(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)


def beside(figure, data):
    """Speed against distinct values, a point for each peer."""
    axes = figure.subplots()
    counts = {row["peer"]: row["distinct"] for row in data["distinct"]}
    for peer, result in data["speed"].items():
        if measuring.usable(result) and peer in counts:
            rate = result["rate"] / 1e6
            mark = {"marker": PEER_MARKS[peer], "color": PEER_COLORS[peer], "linestyle": "", "markersize": 8}
            axes.plot([rate], [counts[peer]], label=data["labels"][peer], **mark)
    or_say_why(axes)
    axes.set(xscale="log", yscale="log", xlabel="million angles a second", ylabel="distinct values at 1e7")
    axes.margins(x=0.12)
    axes.set_ylim(0.6, 2 * max([1, *counts.values()]))
    plain(axes)
    round_numbers(axes.xaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)


# Name of the file: section, what the picture shows, what draws it, its height.
PICTURES = {
    "compile": (
        "compile",
        "Seconds in all after so many calls, compiling included; dashed without jit.",
        compiling,
        3.6,
    ),
    "roofline": (
        "roofline",
        "Roofline: operations a second of each stage against its operations a byte, below the ceilings of this run.",
        roof,
        6.0,
    ),
    "roofline-shares": ("roofline", "How near its bound each stage comes; 100% is the ceiling.", shares, 4.4),
    "batch": ("batch", "Rate against the number of angles in one call, for both routes.", batch, HEIGHT),
    "memory": (
        "memory",
        "Memory of the result, and what the program needs beside it, by its own account.",
        memory,
        HEIGHT,
    ),
    "donation": ("donation", "Rate of a stream with and without donation.", donation, 1.9),
    "prefetch": ("prefetch", "Rate of a stream to a busy host, and of either side alone.", prefetch, HEIGHT),
    "transfer": ("transfer", "Parts of one call against its size.", transfer, HEIGHT),
    "precision": ("precision", "Rate of each dtype.", precision, 2.2),
    "precision-values": ("precision", "Distinct values that are left of the draws.", losses, HEIGHT),
    "keys": ("keys", "Rate with each implementation of keys.", keys, 3.0),
    "devices": ("devices", "Rate over 1, 2, ... devices, beside as many times that of one.", devices, HEIGHT),
    "trace": ("trace", "The operations that take the time.", trace, 3.2),
    "shapes": ("accuracy", "Our draws (blue) and the density (line).", shapes, 4.4),
    "shapes-peers": (
        "accuracy",
        "Draws in each bin beside those expected, at the largest concentration; grey: what chance allows ours.",
        peers,
        4.4,
    ),
    "tails-exact": (
        "accuracy",
        "Error of our angles, without drawing: of the tail probability, or in last places. Dashed: promised.",
        exact,
        4.2,
    ),
    "tails-drawn": (
        "accuracy",
        "Draws in the tails beside those expected, at the largest concentration; grey: what chance allows ours.",
        tails,
        4.4,
    ),
    "speed-and-values": (
        "accuracy",
        "Speed and distinct values at concentration 1e7: best is above and right.",
        beside,
        4.6,
    ),
}

"""Draw a result of ``benchmarks.exactness``: bins, tails and all tests.

``python -m benchmarks.exactness.pictures result.json --out picture.svg``.
"""

import io
import sys

import numpy as np

from benchmarks import plots

__all__ = ["main", "picture", "summary", "svg"]

WIDTH, STEPS = 6.0, 48  # of the histogram of deviations, in standard errors


def summary(sums, expected, beyond):
    """What the pictures need of the sums of one law: how far the bins are off in standard errors, and the tails."""
    awaited = sums["angles"] * expected.mass
    known = awaited >= 5
    z = (sums["bins"][known] - awaited[known]) / np.sqrt(awaited[known])
    counts, _ = np.histogram(np.clip(z, -WIDTH, WIDTH), STEPS, (-WIDTH, WIDTH))
    tails = {name: getattr(beyond, name).tolist() for name in ("mass", "least", "most")}
    tails["seen"] = [int(seen) for seen in sums["beyond"]]
    return {"angles": sums["angles"], "deviations": counts.tolist(), "tails": tails}


def current(result):
    """The result, if it is one."""
    if result["program"] != "exactness" or result["format"] != 2:
        raise ValueError("it was written by another program")
    return result


def picture(result):
    """Make the figure of four panels."""
    from matplotlib.figure import Figure
    from scipy import stats

    figure = Figure(figsize=(10, 8), facecolor="white", layout="constrained")
    (bins, tails), (words, tests) = figure.subplots(2, 2)
    edges = np.linspace(-WIDTH, WIDTH, STEPS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    shown = result["laws"]
    colors = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555"]
    styles = {name: "--" if "direct" in name else "-" for name in shown}
    for number, (name, law) in enumerate(shown.items()):
        share = np.array(law["deviations"]) / max(1, sum(law["deviations"])) / np.diff(edges)
        bins.plot(middles, share, color=colors[number % len(colors)], linewidth=1, alpha=0.8)
        if law["tails"]["seen"]:
            seen = np.array(law["tails"]["seen"])
            level, expected, least, most = (
                np.array(law["tails"][name]) * times
                for name, times in (("mass", 0.5), *((name, law["angles"]) for name in ("mass", "least", "most")))
            )
            chosen = expected >= 1
            z = (seen - np.clip(seen, least, most)) / np.sqrt(expected)
            color = colors[number % len(colors)]
            tails.plot(
                *(level[chosen], z[chosen], "."),
                **dict(linestyle=styles[name], color=color, linewidth=0.8, markersize=4, label=name),
            )
    bins.plot(middles, stats.norm.pdf(middles), color="#222222", linewidth=1.6, linestyle=(0, (5, 3)))
    bins.set(xlabel="standard errors", yscale="log", ylim=(1e-6, 1))
    bins.set_title("Bins: how far off (dashed: chance)")
    tails.axhspan(-3, 3, color="#888888", alpha=0.2, linewidth=0)
    tails.set(xscale="log", xlabel="tail probability, to each side", ylabel="standard errors", ylim=(-6, 6))
    tails.invert_xaxis()
    tails.set_title("Tails: beyond the promise (grey: chance)")
    for number, (name, law) in enumerate(shown.items()):
        if "worst" in law:
            share = np.array(law["worst"]["share"])
            level = 2.0 ** (np.arange(len(share)) - 33.0)
            color = colors[number % len(colors)]
            words.plot(
                *(level[share > 0], share[share > 0], "."),
                **dict(linestyle=styles[name], color=color, linewidth=0.8, markersize=4),
            )
    words.axhline(1, color="#D55E00", linestyle=(0, (5, 3)), linewidth=1.3)
    words.set(xscale="log", xlabel="tail probability, to each side", ylabel="share of the promise", ylim=(0, 1.2))
    words.invert_xaxis()
    words.set_title("Angle by angle: largest error (dashed: promise)")
    p = np.sort([max(verdict["p"], 1e-30) for verdict in result["verdicts"]])
    tests.plot((np.arange(len(p)) + 0.5) / len(p), p, "o", color="#0072B2", markersize=3.5)
    tests.axhline(result["false_alarm"] / len(p), color="#D55E00", linestyle=(0, (5, 3)), linewidth=1.3)
    tests.set(yscale="log", xlabel="share of the tests", ylabel="p at most", ylim=(min(p.min(), 1e-9) / 3, 2))
    tests.set_title("All tests (dashed: reported below)")
    for axes in (bins, tails, words, tests):
        axes.grid(visible=True)
        axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        f"{plots.machine_text(result['environment'])}; {result['angles']:,} angles", fontsize=9, x=0.01, ha="left"
    )
    return figure


def svg(result):
    """The figure as bytes of SVG; None without Matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    file = io.BytesIO()
    with matplotlib.rc_context(plots.SETTINGS):
        picture(result).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def main(arguments=None):
    """Write the picture; returns the exit code."""
    return plots.run(arguments, "benchmarks.exactness.pictures", __doc__, "exactness", current, picture)


if __name__ == "__main__":
    sys.exit(main())

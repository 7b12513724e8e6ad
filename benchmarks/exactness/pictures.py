"""Draw a result of ``benchmarks.exactness``: bins, tails, the error of each angle, and all tests.

Run ``python -m benchmarks.exactness.pictures result.json --out picture.svg``.
"""

import sys

import numpy as np

from benchmarks import plots

__all__ = ["main", "picture", "summary"]

WIDTH, STEPS = 6.0, 48  # of the histogram of deviations, in standard errors
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
LIMIT = {"color": "#D55E00", "linestyle": (0, (5, 3)), "linewidth": 1.3}


def summary(sums, bins, tails):
    """Return the data to draw for one distribution: deviations of the bins in standard errors, and the tails."""
    awaited = sums["angles"] * bins.mass
    known = awaited >= 5
    z = (sums["bins"][known] - awaited[known]) / np.sqrt(awaited[known])
    counts, _ = np.histogram(np.clip(z, -WIDTH, WIDTH), STEPS, (-WIDTH, WIDTH))
    shown = {name: getattr(tails, name).tolist() for name in ("mass", "least", "most")}
    shown["seen"] = [int(seen) for seen in sums["beyond"]]
    return {"angles": int(sums["angles"]), "deviations": counts.tolist(), "tails": shown}


def current(result):
    """Return `result`; raise ValueError if it is from another program or in another format."""
    if result["program"] != "exactness" or result["format"] != 2:
        raise ValueError("it was written by another program or in another format")
    return result


def picture(result):
    """Return the figure with four panels."""
    from matplotlib.figure import Figure
    from scipy import stats

    figure = Figure(figsize=(10, 8), facecolor="white", layout="constrained")
    (bins, tails), (words, tests) = figure.subplots(2, 2)
    edges = np.linspace(-WIDTH, WIDTH, STEPS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    for number, (name, shown) in enumerate(result["laws"].items()):
        color = COLORS[number % len(COLORS)]
        line = {"color": color, "linestyle": "--" if "direct" in name else "-", "linewidth": 0.8, "markersize": 4}
        share = np.array(shown["deviations"]) / max(1, sum(shown["deviations"])) / np.diff(edges)
        bins.plot(middles, share, color=color, linewidth=1, alpha=0.8)
        seen, mass, least, most = (np.array(shown["tails"][field]) for field in ("seen", "mass", "least", "most"))
        if len(seen):
            count = shown["angles"]
            few = count * mass < 1
            z = (seen - np.clip(seen, count * least, count * most)) / np.sqrt(count * mass)
            tails.plot(mass[~few] / 2, z[~few], ".", **line, label=name)
        if "worst" in shown:
            share = np.array(shown["worst"]["share"])
            level = 2.0 ** (np.arange(len(share)) - 33.0)
            words.plot(level[share > 0], share[share > 0], ".", **line)
    bins.plot(middles, stats.norm.pdf(middles), color="#222222", linewidth=1.6, linestyle=(0, (5, 3)))
    bins.set(title="Bins: deviation (dashed: chance)", xlabel="standard errors", yscale="log", ylim=(1e-6, 1))
    tails.axhspan(-3, 3, color="#888888", alpha=0.2, linewidth=0)
    tails.set(title="Tails: beyond the guaranteed error (grey: chance)", ylabel="standard errors", ylim=(-6, 6))
    words.axhline(1, **LIMIT)
    words.set(
        title="Angle by angle: largest error (dashed: guarantee)", ylabel="share of the guaranteed error", ylim=(0, 1.2)
    )
    for axes in (tails, words):
        axes.set(xscale="log", xlabel="tail probability, on each side")
        axes.invert_xaxis()
    p = np.sort([max(verdict["p"], 1e-30) for verdict in result["verdicts"]])
    tests.plot((np.arange(len(p)) + 0.5) / len(p), p, "o", color=COLORS[0], markersize=3.5)
    tests.axhline(result["false_alarm"] / len(p), **LIMIT)
    tests.set(title="All tests (dashed: reported below)", xlabel="share of the tests", ylabel="p at most")
    tests.set(yscale="log", ylim=(min(p.min(), 1e-9) / 3, 2))
    for axes in (bins, tails, words, tests):
        axes.grid(visible=True)
        axes.minorticks_off()
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    machine = plots.machine_text(result["environment"])
    figure.suptitle(f"{machine}; {result['angles']:,} angles", fontsize=9, x=0.01, ha="left")
    return figure


def main(arguments=None):
    """Write the picture; return the exit code."""
    return plots.run(arguments, "benchmarks.exactness.pictures", __doc__, "exactness", current, picture)


if __name__ == "__main__":
    sys.exit(main())

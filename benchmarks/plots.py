"""Draw a result of ``benchmarks.performance_benchmark``: speed on the left, accuracy on the right.

``python -m benchmarks.plots result.json --out picture.svg`` writes the same bytes for the same result.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.files import checked, read_json
from benchmarks.peers import LABELS, OURS, PEERS
from benchmarks.text import install_command

__all__ = ["main", "run"]

# Colours that colour-blind readers can distinguish (Okabe and Ito), and markers for print in black and white.
STYLES = {
    OURS: {"color": "#D55E00", "marker": "o", "linewidth": 2.4, "markersize": 7, "zorder": 5},
    "eager": {"color": "#D55E00", "marker": "x", "linestyle": (0, (1, 1))},
    "kernels": {"color": "#D55E00", "marker": "+", "linestyle": (0, (4, 1))},
    "normal": {"color": "#555555", "marker": "", "linestyle": (0, (5, 3)), "linewidth": 1.5},
    "numpy": {"color": "#0072B2", "marker": "s"},
    "mkl": {"color": "#0072B2", "marker": "x", "linestyle": (0, (1, 1))},
    "numpyro": {"color": "#009E73", "marker": "^"},
    "tfp": {"color": "#56B4E9", "marker": "v"},
    "torch": {"color": "#CC79A7", "marker": "D"},
    "cupy": {"color": "#E69F00", "marker": "P"},
}
COMMON = {"linewidth": 1.5, "markersize": 5.5}
INK = "#222222"
SETTINGS = {
    "svg.hashsalt": "jax_von_mises",  # otherwise element names are random
    "svg.fonttype": "path",  # looks the same where the font is missing
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
}


def speed_series(result):
    """Map each peer to pairs of a concentration and a rate in million draws per second.

    The rates are those of cases with one concentration for all draws. Noisy rates are left out.
    """
    series = {}
    for case in result["cases"]:
        if case["group"] == "one":
            for name, found in case["results"].items():
                if not found["wide"]:
                    series.setdefault(name, []).append((case["concentration"], found["rate"] / 1e6))
    return {name: sorted(points) for name, points in series.items()}


def accuracy_series(result):
    """Map each peer to pairs of a concentration and a number of distinct values."""
    series = {}
    for row in result["accuracy"]:
        series.setdefault(row["peer"], []).append((row["concentration"], row["distinct"]))
    return {name: sorted(points) for name, points in series.items()}


def draws_text(result):
    """Return the number of draws per call as text, with the peers that drew fewer."""
    cases = [case for case in result["cases"] if case["group"] == "one"]
    largest = max((case["count"] for case in cases), default=0)
    fewer = {}
    for case in cases:
        for name, found in case["results"].items():
            if found["count"] < case["count"]:
                fewer.setdefault(found["count"], {})[LABELS[name]] = None
    exceptions = "; ".join(f"{', '.join(names)}: {draws:,}" for draws, names in fewer.items())
    return f"{largest:,}" + (f" ({exceptions})" if exceptions else "")


def draw(axes, series):
    """Draw one line for each peer; return the lines."""
    handles = {}
    for peer in PEERS:
        if peer.name in series:
            style = {**COMMON, **STYLES[peer.name], "label": peer.label}
            (handles[peer.name],) = axes.plot(*zip(*series[peer.name], strict=True), **style)
    axes.set(xscale="log", yscale="log", xlabel="concentration")
    axes.grid(visible=True)
    return handles


def machine_text(found):
    """Return the machine and the release of JAX as text."""
    machine = f"{found['cpu']}, {found['cores']} cores" if found["platform"] == "cpu" else found["device"]
    return f"{machine}, JAX {found['versions']['jax']}"


def picture(result):
    """Return the figure with both panels."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), facecolor="white", layout="constrained")
    speed, accuracy = figure.subplots(1, 2)
    handles = draw(speed, speed_series(result))
    speed.set_title("Speed: million float32 draws per second")
    # Leave room below the lowest line, and between the highest one and the title.
    speed.margins(y=0.12)
    speed.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))

    counts = accuracy_series(result)
    handles |= draw(accuracy, counts)
    draws = max((row["draws"] for row in result["accuracy"]), default=0)
    accuracy.set_title(f"Accuracy: distinct values in {draws:,} draws")
    accuracy.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for axes in (speed, accuracy):
        axes.minorticks_off()

    order = [peer.name for peer in PEERS if peer.name in handles]
    figure.legend(
        [handles[name] for name in order],
        [handles[name].get_label() for name in order],
        loc="outside lower center",
        ncols=len(order) if len(order) < 7 else (len(order) + 1) // 2,
        frameon=False,
    )
    figure.suptitle(
        f"{machine_text(result['environment'])}; {draws_text(result)} draws per call, compiled and warm",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return figure


def main(arguments=None):
    """Write the picture of speed and accuracy; return the exit code."""
    return run(arguments, "benchmarks.plots", __doc__, "performance_benchmark", checked, picture)


def run(arguments, module, text, source, upgrade, make):
    """Write one picture; return the exit code.

    Parameters
    ----------
    arguments : list of str or None
        Arguments of the command line.
    module, text : str
        Name and docstring of the program.
    source : str
        Name of the program that writes the results.
    upgrade : callable
        Function that takes the JSON object in a file and returns the result; it raises KeyError or ValueError if the
        object is not a result.
    make : callable
        Function that takes the result and returns the figure.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=text.splitlines()[0])
    parser.add_argument("result", type=Path, help=f"file written by {source} --json")
    parser.add_argument("--out", type=Path, required=True, help="picture to write; its suffix sets the format")
    options = parser.parse_args(arguments)
    try:
        import matplotlib
    except ImportError:
        print(f"the pictures need matplotlib; install it with {install_command('plots')}", file=sys.stderr)
        return 1
    try:
        with matplotlib.rc_context(SETTINGS):
            figure = make(upgrade(read_json(options.result)))
    except KeyError as error:
        print(f"{options.result} is not a result of {source}: it has no {error}", file=sys.stderr)
        return 1
    except (TypeError, AttributeError, IndexError) as error:
        print(f"{options.result} is not a result of {source}: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"cannot read {options.result}: {error}", file=sys.stderr)
        return 1
    with matplotlib.rc_context(SETTINGS):
        # A date would make the bytes differ between runs.
        metadata = {"Date": None} if options.out.suffix == ".svg" else None
        options.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.out, metadata=metadata, dpi=150)
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

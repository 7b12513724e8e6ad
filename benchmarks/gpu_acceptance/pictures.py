"""Draw the rates of a result of ``benchmarks.gpu_acceptance``, if matplotlib is installed."""

__all__ = ["picture"]


def picture(result):
    """Draw the rates as bars, with the memory limit for float32 as a line; return None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    rows = {name: row for name, row in result["speed"].items() if not name.startswith(("ours", "copy", "fill"))}
    names = sorted(rows, key=lambda name: rows[name]["rate"])
    figure = Figure(figsize=(9, 0.3 * len(names) + 1.5), facecolor="white", layout="constrained")
    axes = figure.subplots()
    colours = {"kernel": "#1b5e8c", "plain": "#6aa5cc"}
    shades = [colours.get(name.split(",")[0], "#b0b0b0") for name in names]
    bars = axes.barh(names, [rows[name]["rate"] / 1e9 for name in names], color=shades)
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.axvline(result["speed"]["fill"]["rate"] / 1e9, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("billion numbers per second; dotted: writing float32 only")
    axes.set_title(f"{result['environment']['device']}, one process", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure

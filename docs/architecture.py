"""Draws the modules of the package and what imports what, from their source, when the documentation is built."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "jax_von_mises"
MADE = HERE / "_generated"

# Rows from the bottom to the top, and what each is for. A module imports from rows below it, or from its left.
ROWS = (
    (
        "words and numbers",
        ("checks", "pytrees", "sharding", "xla", "counter", "tables", "elementary", "circle", "bessel"),
    ),
    ("the law's integral", ("density", "integral", "tails", "quantile", "piecewise")),
    ("from words to angles", ("kernel", "cuda", "request", "sampler")),
    ("the law", ("law", "schemes", "truncated", "fitting", "distribution", "compose", "numpyro")),
    ("streams and devices", ("devices", "streams", "batches")),
    ("files and machines", ("untrusted", "records", "npy_file", "zarr_store", "writer", "runtime", "machines")),
    ("command line", ("summary", "cli")),
)
INK, BLUE, GREY = "#222222", "#0072B2", "#888888"


def imports():
    """Map each module, or subpackage, to those of the package that it imports."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name.startswith("__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name:
                inside = node.module.split(".")[1:2]
                names = inside or [alias.name for alias in node.names]
                found.setdefault(name, set()).update(other for other in names if other != name)
    return {name: sorted(others & modules()) for name, others in found.items()}


def arrows(found):
    """The imports without those that follow from others: what is imported by something imported as well."""

    def reached(name):
        return set(found.get(name, ())).union(*map(reached, found.get(name, ())))

    return {
        name: [other for other in others if not any(other in reached(each) for each in others)]
        for name, others in found.items()
    }


def modules():
    """All names that the picture shows."""
    return {name for _, row in ROWS for name in row}


def picture():
    """Make the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.2), layout="constrained")
    axes = figure.subplots()
    places = {}
    for height, (_, row) in enumerate(ROWS):
        for number, name in enumerate(row):
            places[name] = (1.35 * (number - (len(row) - 1) / 2), 1.15 * height)
    for name, others in arrows(imports()).items():
        for other in others:
            (x0, y0), (x1, y1) = places[name], places[other]
            bend = 0.25 if y0 == y1 else 0.0
            axes.annotate(
                "",
                (x1, y1 + (0.2 if y0 > y1 else 0.0)),
                (x0, y0 - (0.2 if y0 > y1 else 0.0)),
                arrowprops={
                    "arrowstyle": "->",
                    "color": GREY,
                    "alpha": 0.8,
                    "linewidth": 1.0,
                    "shrinkA": 0 if bend == 0 else 22,
                    "shrinkB": 0 if bend == 0 else 22,
                    "connectionstyle": f"arc3,rad={bend}",
                },
                zorder=1,
            )
    for name, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": BLUE, "linewidth": 1.3}
        axes.text(x, y, name, ha="center", va="center", fontsize=10.5, color=INK, bbox=box, zorder=3)
    for height, (label, _) in enumerate(ROWS):
        axes.text(-6.6, 1.15 * height, label, ha="left", va="center", fontsize=10, color=GREY, style="italic")
    axes.set(xlim=(-6.7, 4.7), ylim=(-0.6, 1.15 * (len(ROWS) - 1) + 0.6))
    axes.set_axis_off()
    return figure


def make(app=None):
    """Write the picture."""
    import matplotlib

    MADE.mkdir(exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": PACKAGE.name, "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        picture().savefig(MADE / "architecture.svg", metadata={"Date": None}, facecolor="white")


def setup(app):
    """Register with Sphinx."""
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}

"""Draw the folders and modules of the package, as listed in the import contract in pyproject.toml and in the source."""

import ast
import re
import textwrap
import tomllib
from pathlib import Path

from docs.examples import drawing

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "jax_von_mises"
BLUE, GREY = drawing.COLORS[1], "#555555"
TEXT = {"va": "center", "linespacing": 1.2}


def layers():
    """Return the rows of the contract, from top to bottom: the folders and modules in each."""
    linter = tomllib.loads(
        (HERE.parent / "pyproject.toml").read_text(encoding="utf-8")
    )["tool"]["importlinter"]
    (contract,) = linter["contracts"]
    return [re.split(r" *[|:] *", row) for row in contract["layers"]]


def modules(layer):
    """Return the names of the modules in a layer, or an empty list if the layer is itself a module."""
    return sorted(
        path.stem
        for path in (PACKAGE / layer).glob("*.py")
        if not path.stem.startswith("__")
    )


def purpose(layer):
    """Return the first line of the docstring of a layer."""
    path = (
        PACKAGE / layer / "__init__.py"
        if (PACKAGE / layer).is_dir()
        else PACKAGE / f"{layer}.py"
    )
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[
        0
    ]


def picture():
    """Return the figure, with a box for each layer and an arrow for the imports."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    rows = layers()
    figure = Figure(figsize=(11, 0.9 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row, names in enumerate(reversed(rows)):
        width = 12 / len(names)
        for column, name in enumerate(names):
            left = column * width
            axes.add_patch(
                FancyBboxPatch(
                    (left, row),
                    width - 0.2,
                    0.78,
                    "round,pad=0.04",
                    facecolor="white",
                    edgecolor=BLUE,
                )
            )
            axes.text(left + 0.1, row + 0.64, name, **TEXT, fontsize=11, weight="bold")
            characters = int(12 * width)
            room = characters - 2 * len(name)
            about = textwrap.shorten(purpose(name), room) if room > 20 else ""
            start = left + 0.45 + 0.12 * len(name)
            axes.text(start, row + 0.64, about, **TEXT, fontsize=8, style="italic")
            contents = textwrap.fill("  ".join(modules(name)), characters)
            axes.text(left + 0.1, row + 0.25, contents, **TEXT, fontsize=7)
    arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 1.5}
    axes.annotate("", (-0.35, 0.1), (-0.35, len(rows) - 0.4), arrowprops=arrow)
    axes.text(
        -0.55,
        len(rows) / 2,
        "imports",
        rotation=90,
        ha="center",
        va="center",
        color=GREY,
        fontsize=11,
    )
    axes.set(xlim=(-0.8, 12.1), ylim=(-0.1, len(rows) - 0.15))
    axes.set_axis_off()
    return figure


def draw(out):
    """Write the picture to the file `out`."""
    drawing.draw(out, picture)

"""Draw the folders and modules of the package, as listed in the import contract in pyproject.toml and in the source."""

import ast
import textwrap
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "jax_von_mises"
INK, BLUE, GREY = "#222222", "#0072B2", "#555555"


def layers():
    """Return the folders and modules in the order of the contract, from top to bottom."""
    linter = tomllib.loads(
        (HERE.parent / "pyproject.toml").read_text(encoding="utf-8")
    )["tool"]["importlinter"]
    (contract,) = linter["contracts"]
    return contract["layers"]


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

    names = layers()
    figure = Figure(figsize=(10, 0.8 * len(names)), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(reversed(names)):
        axes.add_patch(
            FancyBboxPatch(
                (0, row), 10, 0.74, "round,pad=0.04", facecolor="white", edgecolor=BLUE
            )
        )
        axes.text(
            0.15, row + 0.36, name, va="center", fontsize=12, color=INK, weight="bold"
        )
        axes.text(
            1.9,
            row + 0.58,
            purpose(name),
            va="center",
            fontsize=8.5,
            color=GREY,
            style="italic",
        )
        contents = textwrap.fill("  ".join(modules(name)), 100)
        axes.text(
            1.9,
            row + 0.22,
            contents,
            va="center",
            fontsize=9,
            color=INK,
            linespacing=1.2,
        )
    arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 1.5}
    axes.annotate("", (-0.35, 0.1), (-0.35, len(names) - 0.4), arrowprops=arrow)
    axes.text(
        -0.55,
        len(names) / 2,
        "imports",
        rotation=90,
        ha="center",
        va="center",
        color=GREY,
        fontsize=11,
    )
    axes.set(xlim=(-0.8, 10.1), ylim=(-0.1, len(names) - 0.15))
    axes.set_axis_off()
    return figure


def draw(folder):
    """Write the picture into `folder`."""
    import matplotlib

    with matplotlib.rc_context(
        {
            "svg.hashsalt": PACKAGE.name,
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
        }
    ):
        picture().savefig(
            folder / "architecture.svg", metadata={"Date": None}, facecolor="white"
        )

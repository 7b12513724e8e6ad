"""Fill the pages with results and outputs, so that they look the same on a code host and in the built site.

A page marks each such part with the lines ``<!-- made: KIND NAME -->`` and ``<!-- end -->``. The kinds are:

- ``results NAME [MACHINE]``: a part of the committed benchmark results (`docs.results.part`);
- ``output EXAMPLE [N]``: the output of an example, or block N of that output, counted from 0;
- ``programs``: the counts of programs for a GPU (`docs.results.programs`);
- ``methods``: which methods each distribution has.

``python -m docs.pages`` writes these parts, the notebook of the tour and the pictures in ``docs/_static``;
``--examples`` also runs the examples again, which takes several minutes.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax_von_mises
import jax_von_mises.rotations
from docs import architecture, results
from docs.examples import drawing
from jax_von_mises.engine.base import Distribution

HERE = Path(__file__).parent
STATIC = HERE / "_static"
EXAMPLES = HERE / "examples"
PART = re.compile(r"^(<!-- made: ([^\n]+) -->)\n.*?^(<!-- end -->)$", re.M | re.S)
TOUR = HERE / "tour.md"
NOTEBOOK = HERE / "tour.ipynb"
SECONDS = 900  # time limit of one example, on a busy machine

INKED = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "xtick.color",
    "ytick.color",
)
SETTINGS = drawing.SETTINGS | dict.fromkeys(INKED, drawing.INK)

# Colours of the pictures on light pages, and their replacements on dark pages.
DARK = {
    "#222222": "#e0e0e0",
    "#dddddd": "#44494f",
    "#ffffff": "#131416",
    "#555555": "#a8a8a8",
    "#bbbbbb": "#666c72",
}
THEME = (
    "<style>svg{background:#ffffff}@media (prefers-color-scheme:dark){svg{background:#131416;fill:#e0e0e0}"
    + "".join(
        f'[style*="{paint}: {light}"]{{{paint}:{dark} !important}}'
        for light, dark in DARK.items()
        for paint in ("fill", "stroke")
    )
    + "}</style>"
)


def themed(svg):
    """Return an SVG picture that follows the reader's preference for light or dark pages."""
    if THEME in svg:
        return svg
    end = svg.index(">", svg.index("<svg")) + 1
    return svg[:end] + THEME + svg[end:]


def examples():
    """Return the names of all examples that draw a picture."""
    paths = (path for path in sorted(EXAMPLES.glob("*.py")) if path.stem != "drawing")
    return [
        path.stem
        for path in paths
        if "examples.drawing import" in path.read_text(encoding="utf-8")
    ]


def output(example, block=None):
    """Return the output of an example, as Markdown tables or as a text block."""
    text = (STATIC / f"{example}.txt").read_text(encoding="utf-8").strip("\n")
    if block is not None:
        text = re.split(r"\n\n", text)[int(block)]
    return text if text.startswith("|") else f"```text\n{text}\n```"


def classes():
    """Return the public classes of distributions, by the names that users import."""
    modules = {"": jax_von_mises, "rotations.": jax_von_mises.rotations}
    public = {
        prefix + name: getattr(module, name)
        for prefix, module in modules.items()
        for name in module.__all__
    }
    return {
        name: value
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, Distribution)
    }


def methods():
    """Return the table of the distributions' public methods and properties: a row for those of the same classes."""
    named, having = classes(), {}
    for name, cls in named.items():
        for method in dir(cls):
            if (
                method[0] != "_"
                and method not in cls.__dataclass_fields__
                and not method.isupper()
            ):
                having.setdefault(method, []).append(name)
    rows = {}
    for method in sorted(having):
        rows.setdefault(tuple(having[method]), []).append(method)

    def listed(names):
        return ", ".join(f"`{name}`" for name in names)

    def whose(names):
        others = [name for name in named if name not in names]
        if len(others) > len(named) / 3:
            return listed(names)
        return "all" + (f" but {listed(others)}" if others else "")

    lines = ["| methods and properties | of |", "|---|---|"]
    for names, found in sorted(rows.items(), key=lambda row: (-len(row[0]), row)):
        lines.append(f"| {listed(found)} | {whose(names)} |")
    return "\n".join(lines)


MAKERS = {
    "results": results.part,
    "programs": results.programs,
    "output": output,
    "methods": methods,
}


def filled(text):
    """Return the text of a page with all its generated parts updated."""

    def update(match):
        kind, *names = match[2].split()
        return f"{match[1]}\n\n{MAKERS[kind](*names)}\n\n{match[3]}"

    return PART.sub(update, text)


def notebook(text):
    """Return the tour as a Jupyter notebook without outputs, with its text and its Python blocks as cells."""
    cells = []

    def add(kind, source):
        body = {
            "cell_type": kind,
            "id": f"cell-{len(cells)}",
            "metadata": {},
            "source": source.strip("\n"),
        }
        cells.append(
            body | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        )

    add(
        "markdown",
        "In a clone of the repository, this line installs the package; then restart the runtime. Elsewhere, clone it first.",
    )
    add("code", "# %pip install ..")
    for number, piece in enumerate(
        re.split(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    ):
        # Leave out pictures and outputs, which the cells produce, and links to other pages.
        piece = (
            piece
            if number % 2
            else re.sub(
                r"^(!\[.*?\]\(.*?\)|```text\n.*?```)$", "", piece, flags=re.M | re.S
            )
        )
        piece = (
            piece
            if number % 2
            else re.sub(r"(?<!!)\[([^\[\]]+)\]\([\w.#-]+\)", r"\1", piece)
        )
        if piece.strip():
            add("code" if number % 2 else "markdown", re.sub(r"\n{3,}", "\n\n", piece))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def draw_tour(folder):
    """Draw the picture of the tour by running the blocks of the page up to the one that saves it."""
    text = TOUR.read_text(encoding="utf-8")
    program = ["import matplotlib", f"matplotlib.rcParams.update({SETTINGS!r})"]
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        program.append(
            block.replace('("angles.svg")', '("angles.svg", metadata={"Date": None})')
        )
        if "savefig" in block:
            break
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "tour.py")
        script.write_text("\n".join(program), encoding="utf-8")
        subprocess.run(
            [sys.executable, script.name],
            cwd=scratch,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        shutil.copy(Path(scratch, "angles.svg"), folder / "tour.svg")


def pages():
    """Return the paths of all pages, including the README."""
    return [HERE.parent / "README.md", *sorted(HERE.glob("*.md"))]


def run(example):
    """Run an example at full size, and store its picture and its output."""
    picture = STATIC / f"{example}.svg"
    command = [sys.executable, "-m", f"docs.examples.{example}", "--out", str(picture)]
    done = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"the example {example} failed:\n{done.stderr[-2000:]}")
    (STATIC / f"{example}.txt").write_text(done.stdout, encoding="utf-8")


def main(arguments=None):
    """Update all pages, pictures and the notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.pages", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--examples",
        action="store_true",
        help="also run the examples again, which takes several minutes",
    )
    options = parser.parse_args(arguments)
    for example in examples() if options.examples else ():
        print(f"running the example {example}", flush=True)
        run(example)
    architecture.draw(STATIC)
    draw_tour(STATIC)
    for picture in {*STATIC.glob("*.svg")} - {STATIC / "logo.svg"}:
        picture.write_text(
            themed(picture.read_text(encoding="utf-8")), encoding="utf-8"
        )
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    NOTEBOOK.write_text(notebook(TOUR.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

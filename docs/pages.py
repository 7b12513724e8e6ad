"""Fill the pages with results and outputs, which a code host shows as well as the built site, and draw its pictures.

A page marks each such part with the lines ``<!-- made: KIND NAME -->`` and ``<!-- end -->``. The kinds are:

- ``results NAME [MACHINE]``: a part of the committed benchmark results (`docs.results.part`);
- ``output EXAMPLE [N]``: the output of an example, or block N of that output, counted from 0;
- ``programs``: the counts of programs for a GPU (`docs.results.programs`);
- ``methods``: which methods each distribution has.

``python -m docs.pages`` writes these parts, the notebook of the tour and the picture of the README; ``--examples`` also
runs the examples again, which takes a few minutes. The other pictures in ``docs/_static`` are not committed: Sphinx
calls `draw` before it reads the pages.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax_von_mises
import jax_von_mises.rotations
from docs import architecture, overview, results
from docs.examples import drawing
from jax_von_mises.engine.base import Distribution

HERE = Path(__file__).parent
STATIC = HERE / "_static"
EXAMPLES = HERE / "examples"
PART = re.compile(r"^(<!-- made: ([^\n]+) -->)\n.*?^(<!-- end -->)$", re.M | re.S)
TOUR = HERE / "tour.md"
NOTEBOOK = HERE / "tour.ipynb"
SECONDS = 900  # time limit of one example, on a busy machine


def examples():
    """Return the names of all examples."""
    paths = sorted(EXAMPLES.glob("[a-z]*.py"))
    return [path.stem for path in paths if path.stem != "drawing"]


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


def draw_tour(out):
    """Draw the picture of the tour by running the blocks of the page up to the one that saves it."""
    text = TOUR.read_text(encoding="utf-8")
    program = [f"import matplotlib; matplotlib.rcParams.update({drawing.SETTINGS!r})"]
    program += re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    last = next(i for i, block in enumerate(program) if "savefig" in block)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", "\n".join(program[: last + 1])]
        subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        svg = Path(scratch, "angles.svg").read_text(encoding="utf-8")
    out.write_text(drawing.themed(svg), encoding="utf-8")


def draw():
    """Draw the pictures that are missing or older than the file that draws them, two at a time."""
    makers = {"tour": (TOUR, draw_tour)}
    makers |= {name: (EXAMPLES / f"{name}.py", None) for name in examples()}

    def update(name):
        source, maker = makers[name]
        out = STATIC / f"{name}.svg"
        changed = max(
            file.stat().st_mtime for file in (source, EXAMPLES / "drawing.py")
        )
        if out.exists() and out.stat().st_mtime > changed:
            return
        print(f"drawing {out.name}", flush=True)
        with complete(out) as unfinished:
            maker(unfinished) if maker else run(name, unfinished)

    with complete(STATIC / "architecture.svg") as unfinished:
        architecture.draw(unfinished)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(update, makers))


@contextlib.contextmanager
def complete(out):
    """Return a name for a file that gets the name `out` when it is complete, so that no part of one stays."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as folder:
        unfinished = Path(folder, out.name)
        yield unfinished
        unfinished.replace(out)


def pages():
    """Return the paths of all pages, including the README."""
    return [HERE.parent / "README.md", *sorted(HERE.glob("*.md"))]


def run(example, out):
    """Run an example at full size, which draws its picture, and return its output."""
    command = [sys.executable, "-m", f"docs.examples.{example}", "--out", str(out)]
    done = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"the example {example} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def main(arguments=None):
    """Update all pages and the notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.pages", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--examples", action="store_true", help="also run the examples again"
    )
    options = parser.parse_args(arguments)
    for example in examples() if options.examples else ():
        print(f"running the example {example}", flush=True)
        with complete(STATIC / f"{example}.svg") as out:
            printed = run(example, out)
        (STATIC / f"{example}.txt").write_text(printed, encoding="utf-8")
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    NOTEBOOK.write_text(notebook(TOUR.read_text(encoding="utf-8")), encoding="utf-8")
    with complete(STATIC / "overview.png") as out:
        overview.draw(out)


if __name__ == "__main__":
    main()

"""Runs the examples of the gallery when the documentation is built: their tables and pictures are those of this build.

An example runs again only when its script or the package has changed. `GALLERY=quick` runs them with little data, to
see that the pages can be built; nothing of such a build is kept for the next one that is not quick.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE / "examples"
MADE = HERE / "_generated"
# Shared by the examples; no examples themselves.
SHARED = ("__init__", "drawing")
SECONDS = 600  # for one example, on a machine that is busy


def examples():
    """Names of all examples that draw a picture, in the order of the alphabet."""
    found = (path for path in sorted(EXAMPLES.glob("*.py")) if path.stem not in SHARED)
    return [path.stem for path in found if "examples.drawing import" in path.read_text(encoding="utf-8")]


def state(name, quick):
    """What the outputs of an example depend on, as a word: its script, what it shares, the package, and how much."""
    package = sorted((HERE.parent / "jax_von_mises").rglob("*.py"))
    texts = [path.read_bytes() for path in (*(EXAMPLES / f"{each}.py" for each in (name, *SHARED)), *package)]
    return hashlib.sha256(b"\0".join([*texts, b"quick" if quick else b"full"])).hexdigest()


def run(name, quick):
    """Run one example; its table and picture appear in `MADE`, unless they are there already."""
    table, picture, mark = (MADE / f"{name}.{ending}" for ending in ("txt", "svg", "state"))
    wanted = state(name, quick)
    if table.exists() and picture.exists() and mark.exists() and mark.read_text() == wanted:
        return
    command = [sys.executable, "-m", f"docs.examples.{name}", "--out", os.fspath(picture), *["--quick"] * quick]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"the example {name} failed:\n{done.stderr[-2000:]}")
    table.write_text(done.stdout, encoding="utf-8")
    mark.write_text(wanted)


def make(app=None):
    """Run all examples."""
    MADE.mkdir(exist_ok=True)
    for name in examples():
        run(name, os.environ.get("GALLERY") == "quick")


def setup(app):
    """Register with Sphinx."""
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}

"""Check what the pages, README.md and the citation files refer to, and what the file to copy imports.

``make lint`` runs this. Sphinx does not read README.md, and checks neither modules nor paths in running text.
"""

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from jax_von_mises.version import __version__

ROOT = Path(__file__).parents[1]
# Languages of blocks that tests/docs/test_docs.py runs, and those that are only shown. A name in braces is a directive.
LANGUAGES = ("python", "py", "sh", "console", "yaml", "text")


def mistakes(path: Path) -> Iterator[str]:
    """Yield the mistakes of one page."""
    text = path.read_text(encoding="utf-8")
    for language in re.findall(r"^```([^\s`]+)$", text, re.M):
        if language not in LANGUAGES and not language.startswith("{"):
            yield f"a block has the language {language}, which no test runs"
    for module in re.findall(r"`[^`\n]*python -m ([\w.]+)", text):
        if importlib.util.find_spec(module) is None:
            yield f"there is no module {module}"
    for name in re.findall(r"`((?:docs|tests|benchmarks|jax_von_mises|tools)/[\w/.-]+)`", text):
        if not (ROOT / name).exists():
            yield f"there is no {name}"
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose):
        drawn = target.startswith("_static/") and target.endswith(".svg")  # by the build, which reports what is missing
        if "://" not in target and not drawn and not (path.parent / target).exists():
            yield f"a link leads to {target}, which does not exist"


def main() -> int:
    """Print all mistakes, and return 1 if there are any."""
    found = [
        f"{path.relative_to(ROOT)}: {mistake}"
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for mistake in mistakes(path)
    ]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    versions = {
        "CITATION.cff": re.findall(r"^version: (.*)$", citation, re.M)[0],
        "codemeta.json": json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))["version"],
    }
    found += [
        f"{name}: the version is {version}, not {__version__}"
        for name, version in versions.items()
        if version != __version__
    ]
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse((ROOT / "extras" / "von_mises_jax.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    if more := imported - {"functools", "math", "jax", "numpy"}:  # JAX needs NumPy
        found.append(f"extras/von_mises_jax.py imports {', '.join(sorted(more))}")
    print("\n".join(found) or "no mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

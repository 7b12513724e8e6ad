"""Test the imports and names of the package: no heavy imports, and the documented names.

`make lint` checks the imports between the package's folders, and that it uses only JAX's public names.
"""

import ast
import importlib
import subprocess
import sys

import pytest

import jax_von_mises
from jax_von_mises.engine import base
from tests import children


@pytest.mark.parametrize("module", [jax_von_mises, jax_von_mises.runtime])
def test_only_public_names_complete(module):
    completed = {name for name in dir(module) if not name.startswith("__")}
    assert completed - {"numpyro"} == set(module.__all__)
    assert "__doc__" in dir(module)


def test_import_is_light():
    """Importing the package loads nothing heavy beyond what JAX itself imports."""
    program = "import jax, sys; old = set(sys.modules); import jax_von_mises.public; print(*(set(sys.modules) - old))"
    new = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    roots = {name.split(".")[0] for name in new}
    assert not roots & {
        "scipy",
        "matplotlib",
        "tqdm",
        "numpyro",
        "tensorstore",
        "torch",
        "pandas",
        "zarr",
        "fsspec",
        "dask",
    }


def test_numpyro_is_optional(monkeypatch):
    """Without NumPyro, importing `jax_von_mises.numpyro` raises an error that names the command to install it."""
    monkeypatch.setitem(sys.modules, "numpyro", None)
    monkeypatch.setitem(sys.modules, "numpyro.distributions", None)
    monkeypatch.delitem(sys.modules, "jax_von_mises.numpyro", raising=False)
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[numpyro\]"'):
        importlib.import_module("jax_von_mises.numpyro")


# Floors that serve all distributions, and name none of them.
OF_ALL = ("cli", "compiler", "engine", "mixture", "numerics", "runtime", "streams", "arguments.py", "numpyro.py")


def test_what_serves_all_distributions_names_none():
    """A class is named in code only where it is defined, and where others are made of it: there is no list of them."""
    names = {kind.__name__ for kind in base.declared()} | {"CircularDistribution", "SineSkewed", "Torus"}
    package = children.ROOT / "jax_von_mises"
    for place in OF_ALL:
        for path in [package / place] if place.endswith(".py") else sorted((package / place).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            used |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert not used & names, f"{path} names {used & names}"

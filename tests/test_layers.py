"""Test the imports and names of the package: no heavy imports, and the documented names.

`make lint` checks the imports between the package's folders, and that it uses only JAX's public names.
"""

import importlib
import subprocess
import sys

import pytest

import jax_von_mises


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

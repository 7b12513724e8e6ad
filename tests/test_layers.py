"""The structure of the package: imports point one way, the public names are the documented ones."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import jax_von_mises

# Left imports nothing from its right. A new module takes one place here, and with it says what it may use.
LAYERS = (
    "checks",
    "untrusted",
    "pytrees",
    "sharding",
    "xla",
    "counter",
    "tables",
    "elementary",
    "circle",
    "bessel",
    "density",
    "integral",
    "tails",
    "quantile",
    "piecewise",
    "kernel",
    "cuda",
    "request",
    "sampler",
    "runtime.child",
    "runtime.flags",
    "runtime.configuration",
    "runtime.cache",
    "runtime.ahead",
    "runtime.artifact",
    "runtime.memory",
    "runtime.hardware",
    "runtime.variables",
    "runtime.probe",
    "runtime.diagnosis",
    "runtime",
    "devices",
    "streams",
    "batches",
    "law",
    "schemes",
    "truncated",
    "fitting",
    "distribution",
    "compose",
    "numpyro",
    "records",
    "npy_file",
    "zarr_store",
    "writer",
    "machines",
    "summary",
    "cli",
)
PACKAGE = pathlib.Path(jax_von_mises.__file__).parent
OUTSIDE = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path not in OUTSIDE)


def name(path):
    """The module's name within the package, as ``runtime.cache``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        inside = module.removeprefix("jax_von_mises").removeprefix(".")
        if not module.startswith("jax_von_mises"):
            continue
        if inside and (PACKAGE / f"{inside.replace('.', '/')}.py").exists():
            yield inside
        else:
            names = [".".join(filter(None, (inside, alias.name))) for alias in node.names]
            yield from (found if found in LAYERS or not inside else inside for found in names)


def test_every_module_has_a_place():
    assert sorted(map(name, MODULES)) == sorted(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_point_one_way(path):
    allowed = {*LAYERS[: LAYERS.index(name(path))], "__version__"}
    assert set(imported_modules(path)) <= allowed, f"{path.name} reaches upwards"


@pytest.mark.parametrize("path", [*MODULES, PACKAGE / "__init__.py"], ids=name)
def test_only_public_jax(path):
    assert "jax._src" not in path.read_text()


def test_public_names_exist():
    assert sorted(jax_von_mises.__all__) == jax_von_mises.__all__
    for public in jax_von_mises.__all__:
        assert getattr(jax_von_mises, public).__doc__


@pytest.mark.parametrize("module", [jax_von_mises, jax_von_mises.runtime])
def test_only_public_names_complete(module):
    completed = {name for name in dir(module) if not name.startswith("__")}
    assert completed - {"numpyro"} == set(module.__all__)
    assert "__doc__" in dir(module)


def test_import_is_light():
    """Importing the package brings jax and numpy, and nothing heavy that jax does not bring itself."""
    program = "import jax, sys; before = set(sys.modules); import jax_von_mises; print(*(set(sys.modules) - before))"
    new = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    roots = {name.split(".")[0] for name in new}
    assert not roots & {"scipy", "matplotlib", "tqdm", "numpyro", "tensorstore", "torch", "pandas"}


def test_numpyro_is_optional(monkeypatch):
    """Without NumPyro its module says what to install; the package itself never asks for it."""
    monkeypatch.setitem(sys.modules, "numpyro", None)
    monkeypatch.setitem(sys.modules, "numpyro.distributions", None)
    monkeypatch.delitem(sys.modules, "jax_von_mises.numpyro", raising=False)
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[numpyro\]"'):
        importlib.import_module("jax_von_mises.numpyro")

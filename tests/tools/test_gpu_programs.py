"""Test that XLA's programs for draws on an H100, compiled without one, are no worse than the table in `tools`."""

import json
import shutil
import subprocess
import sys

import pytest

from tests import children
from tools import gpu_programs


def test_the_table_is_a_bound():
    """More kernels, over 5% more bytes or instructions, and narrow stores are reported; improvements are not."""
    table = json.loads(gpu_programs.TABLE.read_text())
    assert list(gpu_programs.worse(table, table)) == []
    for quantity, value in (("kernels", 99), ("bytes moved an angle", 99), ("instructions an angle", 999)):
        changed = {name: row | {quantity: value} for name, row in table.items()}
        assert len(list(gpu_programs.worse(changed, table))) == len(table)
        assert list(gpu_programs.worse(table, changed)) == []
    name = "table, threefry2x32"
    assert list(gpu_programs.worse(table | {name: table[name] | {"stores of 16 bytes": 0}}, table))


def test_the_check_uses_a_fixed_release():
    """The release of JAX that made the table has a separate environment."""
    command = ["make", "--dry-run", "--always-make", "GPU_PYTHON=python3.12", "GPU_JAX=0.12.0.1", "gpu-programs"]
    done = subprocess.run(command, cwd=children.ROOT, capture_output=True, text=True, check=True)
    assert ".venv-gpu-0.12.0.1/bin/python -m tools.gpu_programs --check\n" in done.stdout
    assert "--no-deps jax-cuda13-plugin==0.12.0.1 jax-cuda13-pjrt==0.12.0.1 " in done.stdout


@pytest.mark.parametrize(("skip", "code"), [("true", 0), ("false", 2)])
def test_programs_that_cannot_be_compiled(tmp_path, skip, code):
    """Programs that cannot be compiled are reported, and are an error with GPU_SKIP=false, as in the weekly run."""
    shutil.copy(children.ROOT / "Makefile", tmp_path)
    for name in ("setup.cfg", "pyproject.toml"):
        (tmp_path / name).touch()
    command = ["make", "gpu-programs", "GPU_JAX=0.12.0.1", "GPU_PYTHON=true", f"GPU_SKIP={skip}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "programs of JAX 0.12.0.1 were not checked" in done.stdout
    assert done.returncode == code
    weekly = (children.ROOT / ".github" / "workflows" / "benchmark.yml").read_text()
    assert "make test-gpu-programs GPU_SKIP=false" in weekly


def test_nothing_is_worse():
    """No program is worse than its entry in the table."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="JAX's CUDA 13 plugin is not installed (extra `gpu-aot`)")
    environment = children.environment(JAX_PLATFORMS="cpu")
    command = [sys.executable, "-m", "tools.gpu_programs", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=children.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

"""What XLA makes of draws for an H100, compiled without one, is no worse than the table in `tools` says."""

import json
import re
import subprocess
import sys

import pytest

from tests import children
from tools import gpu_programs


def test_the_table_is_held_to():
    """A kernel more, a byte more, twenty percent more instructions or narrow stores are told; less of them is not."""
    table = json.loads(gpu_programs.TABLE.read_text())
    assert list(gpu_programs.worse(table, table)) == []
    for what, found in (("kernels", 99), ("bytes moved an angle", 99), ("instructions an angle", 999)):
        changed = {name: row | {what: found} for name, row in table.items()}
        assert len(list(gpu_programs.worse(changed, table))) == len(table)
        assert list(gpu_programs.worse(table, changed)) == []
    name = "plain table, threefry2x32"
    assert list(gpu_programs.worse(table | {name: table[name] | {"stores of 16 bytes": 0}}, table))


def test_it_is_looked_at_before_every_merge():
    """In an environment of its own, of a release that is named, so that it neither skips nor changes by itself."""
    assert "\nmake test-gpu-programs\n" in (children.ROOT / ".ci/run").read_text()
    recipe = (children.ROOT / "Makefile").read_text().split("\ntest-gpu-programs:\n")[1].split("\n\n")[0]
    assert ".venv-gpu/bin/python -m tools.gpu_programs --check" in recipe
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", ".venv-gpu/installed", "GPU_PYTHON=python3.12"],
        cwd=children.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"--no-deps jax-cuda13-plugin==[\d.]+ jax-cuda13-pjrt==[\d.]+\n", done.stdout)


def test_no_program_is_worse():
    """In a process of its own, which dumps what it compiles."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="nothing here compiles for a GPU: see tools/gpu_programs.py")
    command = [sys.executable, "-m", "tools.gpu_programs", "--check"]
    environment = children.environment(JAX_PLATFORMS="cpu")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=children.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

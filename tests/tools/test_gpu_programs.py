"""Test that XLA's programs for draws on an H100, compiled without one, are no worse than the table in `tools`."""

import json
import subprocess
import sys

import pytest

from tests import children
from tools import gpu_programs


def test_the_table_is_a_bound():
    """More kernels, over 5% more bytes or instructions, and narrow stores are reported; improvements are not."""
    table = json.loads(gpu_programs.TABLE.read_text())
    assert list(gpu_programs.worse(table, table)) == []
    for quantity in ("kernels", "bytes moved an angle", "instructions an angle"):
        having = {name: row for name, row in table.items() if quantity in row}
        changed = table | {name: row | {quantity: 99_999} for name, row in having.items()}
        assert len(list(gpu_programs.worse(changed, table))) == len(having) > 9
        assert list(gpu_programs.worse(table, changed)) == []
    assert len(list(gpu_programs.worse(table | {"new": {}}, table))) == 1
    name = "table, threefry2x32"
    assert list(gpu_programs.worse(table | {name: table[name] | {"stores of 16 bytes": 0}}, table))


def test_nothing_is_worse():
    """No program is worse than its entry in the table."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="JAX's CUDA 13 plugin is not installed")
    environment = children.environment(JAX_PLATFORMS="cpu")
    command = [sys.executable, "-m", "tools.gpu_programs", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3_000, cwd=children.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

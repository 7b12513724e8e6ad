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
    lacking = {what: have for what, have in table[name].items() if what != "stores of 16 bytes"}
    assert list(gpu_programs.worse(table | {name: lacking}, table)) == [f"{name}: no stores of 16 bytes"]


def test_a_loop_computes_its_condition_unless_its_passes_are_known():
    program = """
%condition (x: f32[16]) -> pred[] {
  %x = f32[16]{0} parameter(0)
  ROOT %reduced = pred[] fusion(%x), kind=kInput, calls=%any
}
%body (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %halved = f32[16]{0} fusion(%x), kind=kLoop, calls=%half
}
ENTRY %main (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %loop = f32[16]{0} while(%x), condition=%condition, body=%bodyTRIPS
}
"""
    known = ', backend_config={"known_trip_count":{"n":"3"}}'
    for text, expected in ((known, ["halved"] * 3), ("", ["reduced", "halved"])):
        found = gpu_programs.COMPUTATION.findall(program.replace("TRIPS", text))
        computations = {name: gpu_programs.OPERATION.findall(body) for _, name, body in found}
        assert [name for name, _ in gpu_programs.launches(computations, "main")] == expected


def test_nothing_is_worse():
    """No program is worse than its entry in the table."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="JAX's CUDA 13 plugin is not installed")
    environment = children.environment(JAX_PLATFORMS="cpu")
    command = [sys.executable, "-m", "tools.gpu_programs", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3_000, cwd=children.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

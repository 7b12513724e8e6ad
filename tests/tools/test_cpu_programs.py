"""Test that the programs that users wait for have not grown."""

import subprocess
import sys

import pytest

from tests import children
from tools import cpu_programs


def test_growth_is_reported():
    """A program that grows by more than a tenth, one that is missing and a new one are reported; others are not."""
    table = cpu_programs.read()
    assert list(cpu_programs.worse(table, table)) == []
    for what in ("equations", "instructions", "kernels"):
        larger = {name: row | {what: row[what] * 1.11} for name, row in table.items()}
        assert len(list(cpu_programs.worse(larger, table))) == len(table)
        assert list(cpu_programs.worse(table, larger)) == []
    name = next(iter(table))
    rest = {other: row for other, row in table.items() if other != name}
    assert len(list(cpu_programs.worse(rest, table))) == len(list(cpu_programs.worse(table, rest))) == 1


@pytest.mark.more
def test_no_program_has_grown():
    """No program is larger than in the table; instructions and kernels are counted with the oldest JAX."""
    command = [sys.executable, "-m", "tools.cpu_programs", "--check"]
    environment = children.environment(JAX_NUM_CPU_DEVICES=None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=children.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr

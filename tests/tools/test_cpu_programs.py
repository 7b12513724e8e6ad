"""Test that the programs that users wait for have not grown."""

import jax
import pytest

from tools import cpu_programs


def test_growth_is_reported():
    """A program that grows by more than a tenth, one that is missing and a new one are reported; others are not."""
    table = cpu_programs.read()
    assert list(cpu_programs.worse(table, table)) == []
    larger = {name: count * 1.11 for name, count in table.items()}
    assert len(list(cpu_programs.worse(larger, table))) == len(table)
    assert list(cpu_programs.worse(table, larger)) == []
    name = next(iter(table))
    rest = {other: count for other, count in table.items() if other != name}
    assert len(list(cpu_programs.worse(rest, table))) == len(list(cpu_programs.worse(table, rest))) == 1


@pytest.mark.more
@pytest.mark.skipif(jax.__version__ != cpu_programs.RELEASE, reason=f"the table is of JAX {cpu_programs.RELEASE}")
def test_no_program_has_grown():
    """No program has more equations than in the table, with a tenth to spare."""
    faults = list(cpu_programs.worse(cpu_programs.counted(), cpu_programs.read()))
    assert not faults, "\n".join(faults)

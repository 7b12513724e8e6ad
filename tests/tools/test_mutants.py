"""Test that the draw of mutants is reproducible, and that each mutant is a single change."""

import difflib
from pathlib import Path

import pytest

from tools import mutants

pytest.importorskip("cosmic_ray", reason="Cosmic Ray is not installed (extra `mutants`)")

ROOT = Path(__file__).parents[2]


def test_the_same_seed_draws_the_same_mutants():
    drawn = mutants.draw(ROOT, "functions", 5, seed=5)
    assert drawn == mutants.draw(ROOT, "functions", 5, seed=5)
    assert drawn != mutants.draw(ROOT, "functions", 5, seed=6)
    assert len(set(map(mutants.identity, drawn))) == 5


def test_a_mutant_changes_one_place():
    for mutant in mutants.draw(ROOT, "functions", 20, seed=7):
        source = (ROOT / mutant["module"]).read_text(encoding="utf-8")
        old = source.splitlines()
        new = mutants.mutate(source, mutant["operator"], mutant["occurrence"]).splitlines()
        opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        ((_, first, _, _, _),) = (each for each in opcodes if each[0] != "equal")
        assert (first + 1, old[first].strip()) == (mutant["line"], mutant["text"])
        assert new[first].strip() == mutant["becomes"]

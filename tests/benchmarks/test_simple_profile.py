"""Test the advice of the simple profile on made-up measurements, and one real run."""

import re

import pytest

from benchmarks import simple_profile, timing
from tests.made_up import timed_case

NOISY = [0.5, 0.7, 1.0, 1.6, 2.0]


@pytest.mark.parametrize(
    ("gpu", "busy", "seconds", "compiling", "parts"),
    [
        (None, False, {"ours": 1.0, "normal": 2.0}, 0.1, []),
        ("H100", False, {"ours": 1.0, "normal": 2.0}, 0.5, ["H100", "initialize_compilation_cache"]),
        (None, False, {"ours": 1.0, "normal": 0.5}, 0.1, ["slower than jax.random.normal"]),
        # A noisy timing or a busy machine allows no conclusion.
        (None, False, {"ours": NOISY, "normal": 0.5}, 0.1, ["rounds disagree"]),
        (None, True, {"ours": 1.0, "normal": 0.5}, 0.1, ["Other work"]),
        # Even steady rounds are precise only to 1%.
        (None, False, {"ours": 1.0, "normal": 0.995}, 0.1, []),
    ],
)
def test_advice(gpu, busy, seconds, compiling, parts):
    lines = simple_profile.advice(gpu, busy, timed_case(**seconds), compiling)
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True))


def test_sizes_fit_the_free_memory():
    sizes = (2**10, 2**20, 2**24)
    assert simple_profile.fitting(sizes, None) == simple_profile.fitting(sizes, 2**29) == sizes
    assert simple_profile.fitting(sizes, 2**29 - 1) == sizes[:2]
    assert simple_profile.fitting(sizes, 0) == sizes[:1]


def test_a_real_run(monkeypatch, capsys):
    monkeypatch.setattr(simple_profile, "SIZES", {"cpu": (2**10, 2**12), "gpu": (2**10, 2**12)})
    monkeypatch.setattr(simple_profile, "ROUNDS", 3)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.001)
    assert simple_profile.main([]) == 0
    text = capsys.readouterr().out
    for part in ("machine ", "First call for 4,096 draws", "jax.random.normal", "until it returns", "suggested batch"):
        assert part in text
    stages = text[text.index("until it returns") :].splitlines()
    assert stages[0].endswith("spread")
    assert all(re.fullmatch(r"  [0-9,]+( +~?[0-9.]+ [mun]?s){3} +[0-9]+%", line) for line in stages[1:3])

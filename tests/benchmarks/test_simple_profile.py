"""Test the advice of the simple profile on made-up measurements, and one real run."""

import pytest

from benchmarks import simple_profile, timing

FASTER, SLOWER, SAME = (timing.Interval(*ends) for ends in ((2.0, 1.8, 2.2), (0.7, 0.6, 0.8), (0.9, 0.7, 1.01)))


@pytest.mark.parametrize(
    ("gpu", "ratio", "compiling", "parts"),
    [
        (None, FASTER, 0.1, []),
        ("H100", FASTER, 0.5, ["H100", "initialize_compilation_cache"]),
        (None, SLOWER, 0.1, ["Slower than jax.random.normal at a draw", "slower than jax.random.normal for a large"]),
        (None, SAME, 0.1, []),
    ],
)
def test_advice(gpu, ratio, compiling, parts):
    lines = simple_profile.advice(gpu, [{"line": "a draw", "ratio": ratio}] * 2, compiling)
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True))


def test_sizes_fit_the_free_memory():
    sizes = (2**10, 2**20, 2**24)
    assert simple_profile.fitting(sizes, None) == simple_profile.fitting(sizes, 2**29) == sizes
    assert simple_profile.fitting(sizes, 2**29 - 1) == sizes[:2]
    assert simple_profile.fitting(sizes, 0) == sizes[:1]


@pytest.mark.more
def test_a_real_run(monkeypatch, capsys):
    monkeypatch.setattr(simple_profile, "SIZES", dict.fromkeys(("cpu", "gpu"), (2**10, 2**12)))
    monkeypatch.setattr(simple_profile, "SECONDS", 0)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.001)
    assert simple_profile.main([]) == 0
    text = capsys.readouterr().out
    for part in (
        "platform: ",
        "First call for 4,096 draws",
        "jax.random.normal",
        "until it returns",
        "nothing is copied to the host",
        "used by this process",
        "Suggested batch",
    ):
        assert part in text

"""The simple profile: what it says of made-up measurements, and one real run."""

import pytest

from benchmarks import simple_profile as profile
from benchmarks import timing
from benchmarks.peers import OURS

CPU = profile.Device("cpu", "cpu", None, (), None)
GPU = profile.Device("gpu", "NVIDIA H100", None, ("NVIDIA H100",), None)
STEADY = (1.0, 1.0, 1.0, 1.0, 1.0)
NOISY = (0.5, 0.7, 1.0, 1.6, 2.0)


def timings(ours, normal, turns=STEADY):
    return {
        OURS: timing.Timing(1.0, tuple(ours * turn for turn in turns)),
        profile.NORMAL: timing.Timing(1.0, tuple(normal * turn for turn in STEADY)),
    }


def made_up(device=CPU, **changes):
    """A profile of a machine that draws 100 million angles a second, in calls of 20 microseconds at least."""
    found = profile.Profile(
        device=device,
        compile={"trace": 0.05, "lower": 0.02, "compile": 0.03},
        cache=None,
        rates={2**10: timings(2e-5, 1e-5), 2**24: timings(0.16777216, 0.33554432)},
        stages={2**10: [timing.Stages(5e-6, 1e-5, 1e-6)] * 3, 2**24: [timing.Stages(1e-3, 0.16, 1e-3)] * 3},
        memory=profile.Memory(2**26, 2**14, 2**28, 2**34, 2**35, 2**29),
        left_out=None,
    )
    return found._replace(**changes)


def test_numbers_of_the_text():
    told = profile.text(made_up())
    rows = [line.split() for line in told.splitlines()]
    assert ["16,777,216", "1", "ms", "160", "ms", "1", "ms"] in rows
    assert ["16,777,216", "100", "100", "to", "100", "168", "ms", "50", "2.00"] in rows
    assert "JAX uses the CPU. The system knows of no GPU." in told
    assert "the result 64 MiB, on the way 16 KiB" in told
    assert "batches of 536,870,912 angles" in told
    assert "?" not in told


def test_advice_of_a_good_profile():
    first, second = profile.advice(made_up())
    assert first == "The sampler draws 100 million angles a second, 2.00 times jax.random.normal, as it should."
    assert "16,777,216" not in second
    # 1024 draws in 20 us are half of 100 M/s: more than that is not overhead.
    assert second == "Nothing here asks for more."


def test_a_slow_ratio_is_not_called_well():
    told = profile.advice(made_up(rates={2**24: timings(1.0, 0.5)}))[0]
    assert "only 0.50 times" in told
    assert "doctor" in told


def test_what_is_too_close_is_not_told_apart():
    turns = (0.95, 0.98, 1.0, 1.05, 1.08)
    for normal in (1.02, 0.98):
        told = profile.advice(made_up(rates={2**24: timings(1.0, normal, turns)}))[0]
        assert "too close to tell apart" in told
        assert "as it should" not in told
        assert "doctor" not in told
    # Steady rounds tell the same two apart.
    assert "1.02 times jax.random.normal, as it should" in profile.advice(made_up(rates={2**24: timings(1, 1.02)}))[0]
    assert "only 0.98 times" in profile.advice(made_up(rates={2**24: timings(1.0, 0.98)}))[0]


def test_small_calls():
    rates = {2**10: timings(1e-4, 1e-5), 2**24: timings(0.16777216, 0.33554432)}
    told = profile.advice(made_up(rates=rates))[1]
    # At 100 M/s 10,000 angles take as long as that call.
    assert "A call for 1,024 angles takes 100 us, most of it overhead: draw 16,384 or more" in told


def test_a_long_first_call():
    slow = {"trace": 0.1, "lower": 0.1, "compile": 0.3}
    assert "The first call costs 500 ms: initialize_compilation_cache()" in profile.advice(made_up(compile=slow))[1]
    assert profile.advice(made_up(compile=slow, cache="/cache"))[1] == "Nothing here asks for more."


def test_a_long_copy():
    stages = {2**10: [timing.Stages(1e-5, 1e-5, 1e-5)] * 3, 2**24: [timing.Stages(0.01, 0.09, 0.5)] * 3}
    assert "takes 5.0 times as long as drawing" in profile.advice(made_up(GPU, stages=stages))[1]
    assert "NumPy shares" not in profile.text(made_up(GPU, stages=stages))
    noisy = stages | {2**24: [timing.Stages(0.01, 0.09, copy) for copy in (0.1, 0.5, 0.9)]}
    assert not any("copy to the host" in told for told in profile.advice(made_up(GPU, stages=noisy)))
    rows = [line.split() for line in profile.text(made_up(GPU, stages=noisy)).splitlines()]
    assert ["16,777,216", "noise", "noise", "noise"] in rows


def test_noise_is_told_in_place_of_a_number():
    noisy = made_up(rates={2**10: timings(2e-5, 1e-5), 2**24: timings(0.1, 0.2, NOISY)})
    told = profile.text(noisy)
    (row,) = (line.split() for line in told.splitlines() if line.split()[:2] == ["16,777,216", "noise"])
    # Only the quartiles, which show the noise, and the rate of the other, which is steady.
    assert row == ["16,777,216", "noise", "104.9", "to", "239.7", "noise", "83.89", "noise"]
    assert "noise: jax_von_mises, 16,777,216 draws: the middle half" in told
    told = " ".join(profile.advice(noisy))
    assert "disagree too much to name a rate" in told
    assert "million" not in told


@pytest.mark.parametrize(
    ("device", "told", "advised"),
    [
        (GPU, "JAX uses the gpu: NVIDIA H100.", False),
        (CPU._replace(gpus=("NVIDIA H100",)), "though this machine has 1 x NVIDIA H100: its plugin", True),
        (CPU._replace(gpus=("NVIDIA H100",), asked="cpu"), "JAX_PLATFORMS=cpu asks for that", False),
        (CPU._replace(trouble="nvidia-smi fails"), "GPUs: nvidia-smi fails.", False),
    ],
)
def test_device(device, told, advised):
    assert told in profile.device_text(device)
    assert any("install_gpu.sh" in sentence for sentence in profile.advice(made_up(device))) == advised


def test_sizes_follow_the_memory():
    assert profile.sizes("cpu", None) == ((2**10, 2**20, 2**24), None)
    assert profile.sizes("gpu", 2**36) == ((2**10, 2**20, 2**28), None)
    counts, reason = profile.sizes("gpu", 2**33)
    assert counts == (2**10, 2**20, 2**28)
    assert reason is None
    counts, reason = profile.sizes("cpu", 2**33 // 2**7)
    assert counts == (2**10, 2**20, 2**21)
    assert "0.062 GiB of memory are free" in reason
    assert profile.sizes("cpu", 2**20)[0] == (2**10, 2**15)


def test_unknown_memory():
    unknown = profile.Memory(None, None, None, None, None, None)
    told = profile.text(made_up(memory=unknown, left_out="too little"))
    assert "the result unknown" in told
    assert "room for not even one angle" in told
    assert "\n  too little\n" in told


def test_a_real_run(monkeypatch, capsys):
    monkeypatch.setattr(profile, "LARGE", {"cpu": 2**12, "gpu": 2**12})
    monkeypatch.setattr(profile, "MIDDLE", 2**11)
    monkeypatch.setattr(profile, "ROUNDS", 2)
    monkeypatch.setattr(profile.measure, "__defaults__", (2, *profile.measure.__defaults__[1:]))
    monkeypatch.setattr(timing, "SHORTEST_TURN", 0.001)
    assert profile.main([]) == 0
    told = capsys.readouterr().out
    for part in ("JAX uses the", "The first call", "4,096", "until it returns", "room for batches", "What that means"):
        assert part in told
    with pytest.raises(SystemExit, match="0"):
        profile.main(["--help"])

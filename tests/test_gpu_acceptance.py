"""The acceptance run on a GPU, here without one: every line of it on small sizes, with the kernels on the host."""

import json

import numpy as np
import pytest

from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import plan as laws
from benchmarks.exactness import verdicts
from benchmarks.gpu_acceptance import __main__ as acceptance
from benchmarks.gpu_acceptance import checks, pictures, speed
from benchmarks.gpu_acceptance.plan import TINY
from tests import reference
from tests.host_kernels import on_host  # noqa: F401


def test_without_a_gpu_it_says_so(capsys):
    assert acceptance.main([]) == 2
    assert "JAX runs on cpu here, and this is about a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("platform", "there", "devices", "told"),
    [
        ("gpu", ("cuda", "cpu"), 1, None),
        ("gpu", ("rocm", "cpu"), 1, "about a CUDA device"),
        ("gpu", ("cuda",), 1, "JAX_PLATFORMS=cuda,cpu"),
        ("gpu", ("cuda", "cpu"), 8, "CUDA_VISIBLE_DEVICES=0"),
    ],
)
def test_what_it_needs(monkeypatch, platform, there, devices, told):
    monkeypatch.setattr(acceptance, "has", there.__contains__)
    reason = acceptance.unfit({"platform": platform, "device_count": devices})
    assert reason is None if told is None else told in reason


def test_angles_are_held_to_the_promise():
    """Right ones pass; one of a wrong sign, one that is off by 4e-6 of its tail and one that is no number do not."""
    words = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    t = ((words >> 1) + 0.5) * 2.0**-32
    x = np.where(words & 1, -1, 1) * reference.quantile(t, 5.0)
    right = x.astype(np.float32)
    assert checks.compared(right, words, 5.0) < 1
    for wrong in (-right, right * np.float32(1 + 1e-4), np.where(np.arange(64) == 7, np.nan, right)):
        assert checks.compared(wrong.astype(np.float32), words, 5.0) > 1


def test_an_error_is_a_wrong_check():
    def broken(plan):
        yield checks.Found("first", True, "")
        raise RuntimeError("no memory")

    said = []
    found = checks.run(TINY, lambda text, **_: said.append(text), (broken,))
    assert [check.ok for check in found] == [True, False]
    assert "no memory" in found[1].told
    assert "WRONG" in said[1]


def row(rate, width=4, noisy=False):
    return {"rate": rate, "bytes_per_second": rate * width, "noisy": noisy}


def test_goals():
    """Met, missed, too noisy and not measured; bytes where it is about the memory."""
    rows = {
        speed.PLAIN: row(1.3e11),
        speed.KERNEL: row(1.5e11),
        "jax.random.normal": row(1e11),
        "kernel, philox4x32, float32": row(6e11),
        "fill": row(4e11, 8),
        speed.ONE: row(1.5e11),
        "numpyro": row(1e9, noisy=True),
        "cupy": row(1e9),
    }
    found = {(each["name"], each["beside"]): each for each in speed.judge(rows, {"torch": "not installed"})}
    states = {beside: each["state"] for (name, beside), each in found.items() if name == speed.ONE}
    assert states == {"numpyro": "too noisy", "cupy": "met", "torch": "not measured"}
    assert found[speed.ONE, "torch"]["why"] == "not installed"
    assert found[speed.PLAIN, "jax.random.normal"]["state"] == "met"
    assert found[speed.KERNEL, "jax.random.normal"]["state"] == "MISSED"
    assert found["kernel, philox4x32, float32", "fill"]["ratio"] == pytest.approx(0.75)


@pytest.mark.slow
def test_all_of_it(on_host, tmp_path, capsys):  # noqa: F811
    """Both parts, both paths, file and picture."""
    asked = []

    def searched(given):
        asked.append(given.angles)
        assert exactness.about(given)["chunks"] == laws.WORDS["every"]
        return [(laws.LAWS[0], verdicts.Verdict("bins", "", 1.0))], {}, given.angles

    on_host.setattr(exactness, "run", searched)
    file, image = tmp_path / "found.json", tmp_path / "rates.png"
    code = acceptance.main(["--tiny", "--json", str(file), "--picture", str(image)])
    told = capsys.readouterr().out
    assert "WRONG" not in told, told
    assert asked == [TINY.law * sum(law.weight for law in laws.LAWS)]
    found = json.loads(file.read_text())
    # What is missed here says nothing: the host's kernels take their time.
    assert code == (1 if any(each["state"] == "MISSED" for each in found["verdicts"]) else 0)
    names = {check["check"] for check in found["checks"]}
    assert {"angles, table, kernel", "sizes, direct, kernel", "gradients, direct, kernel", "CUDA kernels"} <= names
    assert {"kernel, philox4x32, bfloat16", "plain, arrays", "kernel, arrays", "fill", "copy"} <= set(found["speed"])
    assert image.stat().st_size > 1000
    on_host.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert pictures.picture(found) is None

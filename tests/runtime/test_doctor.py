"""Test the diagnosis: facts from drivers' tools and a child process, and one rule for each thing that may be broken."""

import json
import os
import re
import sys
import time

import jax
import pytest

from jax_von_mises import environment, runtime
from jax_von_mises.cli import program
from jax_von_mises.runtime import compilation_cache, doctor, probe
from jax_von_mises.runtime.doctor import Card
from tests import children

DEVICE = {
    **{"step": "device", "device": "cuda:0", "kind": "H100", "angles": 2**22, "first_seconds": 2.0, "seconds": 0.01},
    **{"words_agree": True, "apart": 1e-7, "agrees": True, "broken": [], "kernels": None, "free": 2**30},
}
STEPS = (
    {"step": "start", "jax": "0.11.2"},
    {"step": "devices", "platform": "gpu", "version": "cuda 13000", "count": 1},
    DEVICE,
    {"step": "end"},
)
PACKAGES = {"jax": "0.11.2", "jaxlib": "0.11.2", "jax-cuda13-plugin": "0.11.2", "jax-cuda13-pjrt": "0.11.2"}
WELL = doctor.Facts(
    packages=PACKAGES,
    driver="580.65.06",
    cards=(Card("H100", 80 * 2**30, 79 * 2**30),),
    amd=(),
    trouble=None,
    expect=None,
    steps=STEPS,
    ended=None,
    flag=None,
    said="",
    cache=compilation_cache.cache_info()._replace(path="gs://bucket/cache"),
)
ON_CPU = (STEPS[0], STEPS[1] | {"platform": "cpu", "version": "cpu"}, DEVICE | {"device": "cpu:0"}, STEPS[3])


def test_a_machine_in_order():
    """A machine in order has no findings, and its report shows what matters."""
    assert doctor.findings_of(WELL) == ()
    text = str(doctor.Diagnosis(WELL, "Linux", ()))
    for words in ("jax-cuda13-plugin 0.11.2", "NVIDIA 580.65.06", "H100, 79 of 80 GiB free", "runs on cuda"):
        assert words in text
    assert "419 million angles per second, 2.00 s for the first call; agrees" in text
    assert text.endswith("no problems found")


def test_the_guide_shows_the_lines_of_a_report():
    """The report in the guide has the lines of a report of this version, in their order."""
    page = (children.ROOT / "docs" / "runtime.md").read_text("utf-8")
    shown = page.split("```text\nversions")[1].split("```")[0]
    report = str(doctor.Diagnosis(WELL._replace(steps=ON_CPU, driver=None, cards=()), "Linux", ()))
    names = [line.split()[0] for line in report.splitlines() if line and line[0] != " "]
    assert ["versions", *re.findall(r"^(\w+) {2,}\S", shown, re.M)] == names[:-1]
    assert shown.endswith(f"\n\n{report.splitlines()[-1]}\n")


FLAG = "Unknown flag in XLA_FLAGS: --xla_x=true"
UNINSTALLED = {name: version for name, version in PACKAGES.items() if "cuda" not in name}


NO_PLUGIN = dict(packages=UNINSTALLED, steps=ON_CPU)
NO_CARD = dict(steps=ON_CPU, cards=(), driver=None)


def on_device(**changes):
    return dict(steps=(*STEPS[:2], DEVICE | changes))


# What differs from a machine in order; the level of the one finding, and words of what it says and advises.
BROKEN = [
    (NO_PLUGIN, "problem", "no CUDA plugin", ".[cuda13]"),
    (NO_PLUGIN | dict(driver="550.1"), "problem", "no CUDA", ".[cuda12]"),
    (NO_PLUGIN | dict(expect="cpu"), "note", "no CUDA plugin", "install_gpu.sh"),
    (NO_PLUGIN | NO_CARD | dict(amd=("MI300X",)), "problem", "no ROCm plugin", ".[rocm]"),
    (NO_PLUGIN | NO_CARD | dict(trouble="nvidia-smi failed"), "problem", "nvidia-smi failed", "reboot"),
    (NO_CARD, "warning", "no NVIDIA driver was found", "--gpus all"),
    (NO_CARD | dict(trouble="nvidia-smi failed", expect="cpu"), "note", "nvidia-smi failed", "reboot"),
    (dict(trouble="rocminfo failed with exit code 9"), "warning", "exit code 9", "reboot"),
    (dict(driver="550.54"), "problem", "driver 550.54 is too old for JAX's CUDA 13", "--cuda12"),
    (dict(driver="470.8"), "problem", "too old", "update the driver to 580 or newer"),
    (
        dict(packages=PACKAGES | {"jax-cuda12-plugin": "0.11.2"}),
        *("problem", "plugins for cuda12 and cuda13", "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt"),
    ),
    (
        dict(packages=PACKAGES | {"jax-cuda13-plugin": "0.10.2"}),
        *("problem", "0.10.2 does not match jaxlib 0.11.2", 'pip install --upgrade "jax[cuda13]==0.11.2"'),
    ),
    (dict(steps=STEPS[:1], ended=FLAG, flag=FLAG), "problem", "--xla_x=true", "XLA_FLAGS"),
    (dict(steps=(), ended="ImportError: x"), "problem", "cannot be imported: ImportError: x", "JAX_PLATFORMS=cpu"),
    (dict(steps=STEPS[:1], ended="no answer within 9 s"), "problem", "does not start: no answer", "hangs"),
    (
        dict(steps=(*STEPS[:2], {"step": "draw", "device": "cuda:0"}), ended="RESOURCE_EXHAUSTED: x"),
        *("problem", "drawing on cuda:0 failed", "memory"),
    ),
    (
        dict(steps=ON_CPU, said="INFO x\nfailed to load libcudnn\n"),
        *("problem", "runs on the CPU: failed to load libcudnn", "When the GPU is not used"),
    ),
    (dict(expect="rocm"), "problem", "runs on cuda, not on rocm", "JAX_PLATFORMS"),
    (on_device(words_agree=False), "problem", "random words", "do not use"),
    (on_device(agrees=False, apart=0.1), "problem", "1.0e-01 rad", "XLA_FLAGS"),
    (on_device(agrees=False, apart=None), "problem", "angles: NaN", "FLAGS"),
    (on_device(broken=["x gives y"]), "problem", "that x gives y", "fast-math"),
    (on_device(kernels="why"), "note", "not used: why", environment.CUDA_KERNELS),
    (dict(cards=(Card("H100", 80 * 2**30, 2**30),)), "warning", "1 of 80 GiB free", "PREALLOCATE=false"),
    (dict(cache=WELL.cache._replace(path=None)), "note", "no compilation cache", "initialize_compilation_cache"),
]


def test_what_is_broken():
    """Each rule finds the one thing that is broken, and says what to do."""
    for changes, level, what, do in BROKEN:
        (finding,) = doctor.findings_of(WELL._replace(**changes))
        assert finding.level == level, changes
        assert what in finding.what
        assert do in finding.do


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_cache_of_others(tmp_path):
    tmp_path.chmod(0o777)
    (finding,) = doctor.findings_of(WELL._replace(cache=WELL.cache._replace(path=str(tmp_path))))
    assert finding.level == "warning"
    assert "holds executable code" in finding.what
    tmp_path.chmod(0o700)
    assert doctor.findings_of(WELL._replace(cache=WELL.cache._replace(path=str(tmp_path)))) == ()


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Return a function that writes a stand-in for a driver's program; the real ones are hidden."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(environment, "PROC_DRIVER", tmp_path / "version")

    def write(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_drivers(tool, tmp_path, monkeypatch):
    """The drivers' answers are read, also if a card is lost or a tool fails or hangs."""
    assert doctor.nvidia() == (None, (), None)
    assert doctor.rocm() == ((), None)
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    assert doctor.nvidia() == ("535.183.01", (), None)
    tool(
        "nvidia-smi", 'echo "580.65.06, 81559, 81000, NVIDIA H100"; echo "580.65.06, [N/A], 5, L4"; echo lost; exit 15'
    )
    cards = Card("NVIDIA H100", 81559 * 2**20, 81000 * 2**20), Card("L4", None, 5 * 2**20)
    assert doctor.nvidia()[:2] == ("580.65.06", cards)
    assert "failed with exit code 15" in doctor.nvidia()[2]
    tool("nvidia-smi", "printf '580.65.06, 9, 9, \\377\\n'")
    assert [card.total for card in doctor.nvidia()[1]] == [9 * 2**20]
    tool("nvidia-smi", "echo NVIDIA-SMI has failed >&2; exit 9")
    assert doctor.nvidia() == (None, (), "nvidia-smi failed with exit code 9: NVIDIA-SMI has failed")
    monkeypatch.setattr(doctor, "TOOL_TIMEOUT", 0.2)
    tool("nvidia-smi", "sleep 60")
    assert doctor.nvidia()[2] == "nvidia-smi did not answer within 0.2 s"
    agent = 'echo "*******"; echo "  Marketing Name:   AMD {}"; echo "  Device Type:  {}"'
    tool("rocminfo", "\n".join(agent.format(*each) for each in (("EPYC", "CPU"), ("Instinct MI300X", "GPU"))))
    assert doctor.rocm() == (("AMD Instinct MI300X",), None)


def test_this_machine(monkeypatch, tool, capsys):
    """The child draws the known angles; variables that spoil draws are kept from it."""
    tool("nvidia-smi", "echo NVIDIA-SMI has failed >&2; exit 9")
    monkeypatch.setenv("JAX_RANDOM_SEED_OFFSET", "1")
    monkeypatch.setenv("JAX_DEBUG_NANS", "1")
    found = runtime.diagnose(expect="cpu")
    assert found.ok, found
    assert found.facts.platform == "cpu"
    (device,) = found.facts.devices
    assert device["agrees"]
    assert device["apart"] <= probe.ANGLE_TOLERANCE
    read = json.loads(found.as_json())
    assert read["ok"] is True
    assert read["packages"]["jax"] == jax.__version__
    assert max(map(len, str(found).splitlines())) < 160
    monkeypatch.setattr(runtime, "diagnose", lambda **options: found)
    assert program.main(["doctor"]) == 0
    assert capsys.readouterr().out.strip() == str(found)
    assert program.main(["doctor", "--json", "--expect", "cpu", "--timeout", "9"]) == 0
    assert json.loads(capsys.readouterr().out)["platform"] == "cpu"
    bad = found._replace(findings=(runtime.Finding("problem", "x", "y"),))
    monkeypatch.setattr(runtime, "diagnose", lambda **options: bad)
    assert program.main(["doctor"]) == 1
    assert "problem: x\n  -> y\n\n1 problem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("XLA_FLAGS", "--xla_no_such_flag=1", "XLA ends every program that uses JAX: Unknown flag"),
        pytest.param(
            *("XLA_FLAGS", "--xla_gpu_autotune_level=abc", "Couldn't interpret value abc for flag xla_gpu_autotune"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "XLA_FLAGS",
            "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false",
            "fails the check",
            marks=pytest.mark.slow,
        ),
        ("PYTHONPATH", None, "JAX cannot be imported: ImportError: broken"),
    ],
)
def test_programs_that_fail(monkeypatch, tmp_path, variable, value, words):
    """Flags that end the process or change angles, and a broken package, are found by the child."""
    if value is None:
        (tmp_path / "jaxlib").mkdir()
        (tmp_path / "jaxlib" / "__init__.py").write_text("raise ImportError('broken')")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    else:
        monkeypatch.setenv(variable, value)
    found = runtime.diagnose(expect="cpu")
    assert not found.ok
    assert words in str(found)


def test_a_flag_is_found_behind_another_fault(monkeypatch):
    fault = "RuntimeError: Unable to initialize backend 'cuda'"
    monkeypatch.setattr(doctor, "probe", lambda timeout: (STEPS[:1], fault, fault))
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    found = str(runtime.diagnose())
    assert f"problem: JAX does not start: {fault}\n" in found
    assert "problem: XLA ends every program that uses JAX: Unknown flag in XLA_FLAGS: --xla_no_such_flag=1\n" in found


@pytest.mark.skipif(os.name != "posix", reason="POSIX processes")
def test_a_child_that_hangs(monkeypatch, tmp_path):
    """A child that gives no answer is stopped, with the processes that it started, even if one keeps its pipe open."""
    stand_in = tmp_path / "python"
    stand_in.write_text(
        '#!/bin/sh\necho $$ > pid\nenv > environment\necho \'x {"step": "start"}\'\necho \'{"step": x}\'\n'
        "setsid sleep 30 &\nsleep 30\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(doctor, "STUCK", 0.5)
    monkeypatch.setenv("JAX_DEBUG_NANS", "1")
    began = time.monotonic()
    found = runtime.diagnose(timeout=1)
    assert time.monotonic() - began < 15
    assert "JAX does not start: no answer within 1 s" in str(found)
    assert not found.ok
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    given = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert given["JAX_PLATFORMS"] == "cpu"
    assert given["JAX_NUM_CPU_DEVICES"] == str(jax.config.jax_num_cpu_devices)
    assert given["JAX_ENABLE_X64"] == str(bool(jax.config.jax_enable_x64))
    assert given["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "JAX_DEBUG_NANS" not in given


def test_the_platform_that_jax_was_told(monkeypatch):
    """Without `expect`, the platform in JAX's own setting is expected."""
    monkeypatch.setattr(doctor, "probe", lambda timeout: (ON_CPU, None, ""))
    monkeypatch.setattr(doctor, "nvidia", lambda: (None, (), None))
    found = runtime.diagnose()
    assert found.facts.expect == "cpu"
    json.loads(found.as_json(), parse_constant=lambda name: pytest.fail(name))

"""Test the doctor's findings on machines, installations and settings, and its handling of failed child processes."""

import functools
import importlib.metadata
import json
import os
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_von_mises import environment, runtime
from jax_von_mises.cli import commands
from jax_von_mises.runtime import child, doctor, hardware, probe, variables
from jax_von_mises.sampling import counter, cuda, transform
from tests import children, reference

PIP = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA12 = PIP | {"jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}
CUDA13 = PIP | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}


def stand_in(folder, program, script):
    """Write a stand-in for a driver's program, and return its path."""
    path = folder / program
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that writes stand-ins for drivers' programs; the real ones are hidden."""
    for name, program in (("SMI", "nvidia-smi"), ("ROCMINFO", "rocminfo")):
        monkeypatch.setattr(hardware, name, (str(tmp_path / program),))
    monkeypatch.setattr(environment, "PROC_DRIVER", tmp_path / "version")
    return functools.partial(stand_in, tmp_path)


def test_nvidia(machine):
    machine("nvidia-smi", 'echo "580.65.06, 81559, 4, NVIDIA H100, 9.0"; echo "580.65.06, [N/A], 5, NVIDIA L4, 8.9"')
    (found,) = hardware.accelerators()
    cards = (
        hardware.Card("NVIDIA H100", 81559 * 2**20, 4 * 2**20, 9.0),
        hardware.Card("NVIDIA L4", None, 5 * 2**20, 8.9),
    )
    assert found == ("NVIDIA", "580.65.06", cards, None)


def test_old_nvidia(machine):
    """Cards are found even if nvidia-smi does not know the compute capability."""
    machine(
        "nvidia-smi", 'case "$1" in *compute_cap*) echo "not a valid field"; exit 2;; esac; echo "470.8, 99, 4, K80"'
    )
    (found,) = hardware.accelerators()
    assert found == ("NVIDIA", "470.8", (hardware.Card("K80", 99 * 2**20, 4 * 2**20, None),), None)


def test_lost_card(machine):
    """If a card is lost, the remaining cards are found, whatever the exit code."""
    machine("nvidia-smi", 'echo "580.65.06, 99, 4, H100, 9.0"; echo "GPU 1 is lost"; exit 15')
    (found,) = hardware.accelerators()
    assert (found.driver, len(found.cards)) == ("580.65.06", 1)
    assert "exit code 15" in found.trouble


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            'echo "NVIDIA-SMI has failed because it could not communicate with the driver" >&2; exit 9',
            "exit code 9",
        ),
        ('echo "No devices were found"', "nvidia-smi reports: No devices were found"),
        ("sleep 60", "did not answer within 0.3 s"),
        ("printf '\\377\\376'", "nvidia-smi reports"),
    ],
)
def test_broken_nvidia(machine, monkeypatch, script, words):
    monkeypatch.setattr(hardware, "TOOL_TIMEOUT", 0.3)
    machine("nvidia-smi", script)
    (found,) = hardware.accelerators()
    assert (found.vendor, found.driver, found.cards) == ("NVIDIA", None, ())
    assert words in found.trouble


def test_driver_without_its_program(machine, tmp_path):
    assert hardware.accelerators() == ()
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    (found,) = hardware.accelerators()
    assert (found.vendor, found.driver) == ("NVIDIA", "535.183.01")
    (tmp_path / "version").write_text("?")
    assert hardware.accelerators() == ()


def test_amd(machine):
    """AMD cards are found even if NVIDIA's driver fails."""
    machine("nvidia-smi", "exit 9")
    name = 'echo "*******  Name: AMD EPYC"; echo "  Marketing Name:          AMD EPYC"; echo "  Device Type:  CPU"'
    card = name.replace("EPYC", "Instinct MI300X").replace("CPU", "GPU")
    unnamed = 'echo "*******  Name: gfx942"; echo "  Device Type:  GPU"'
    machine("rocminfo", "\n".join((name, card, unnamed)))
    broken, found = hardware.accelerators()
    assert (broken.vendor, broken.cards) == ("NVIDIA", ())
    assert (found.vendor, found.trouble) == ("AMD", None)
    assert [card.name for card in found.cards] == ["AMD Instinct MI300X", "gfx942"]


def test_requirements(monkeypatch):
    """Requirements are read from the metadata of JAX's plugins."""
    needs = [
        'nvidia-cudnn-cu12<10.0,>=9.8; sys_platform == "linux" and extra == "with-cuda"',
        "nvidia-nccl-cu12 (>=2.18)",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs if name.endswith("plugin") else None)
    assert hardware.unmet(CUDA12 | {"nvidia-cudnn-cu12": "9.9.1"}) == []
    (text,) = hardware.unmet(CUDA12 | {"nvidia-cudnn-cu12": "9.1.0", "nvidia-nccl-cu12": "2.20"})
    assert text == "jax-cuda12-plugin 0.10.2 needs nvidia-cudnn-cu12<10.0,>=9.8, but 9.1.0 is installed"


def test_shadows(tmp_path, monkeypatch):
    (tmp_path / "libcudart.so.12").touch()
    (tmp_path / "libz.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/no/such{os.pathsep}{os.pathsep}{tmp_path}")
    assert hardware.shadows() == {str(tmp_path): "libcudart.so.12"}


def detail(findings):
    return "\n".join(f"{finding.level}: {finding.what} -> {finding.do}" for finding in findings)


def nvidia(driver, **card):
    cards = (hardware.Card("H100", **card),)
    return hardware.Accelerators("NVIDIA", driver, cards, None)


# Combinations of driver, plugin and GPU.


@pytest.mark.parametrize(
    ("driver", "installed", "words"),
    [
        ("580.65", CUDA13, None),
        ("535.1", CUDA12, None),
        ("535.1", CUDA13, "problem: driver 535.1 is too old for JAX's CUDA 13 wheels.*580 or newer, or.*--cuda12"),
        ("470.2", CUDA12, "problem: driver 470.2 is too old for JAX's CUDA 12 wheels -> update the driver to 525"),
        ("580.65", PIP, r"problem: there is an NVIDIA GPU, but JAX has no CUDA plugin.*\[cuda13\]"),
        ("535.1", PIP, r"no CUDA plugin.*\[cuda12\]"),
        ("470.2", PIP, "no CUDA plugin.*update the driver to 525 or newer"),
    ],
)
def test_driver(driver, installed, words):
    text = detail(doctor._drivers(nvidia(driver), installed, "problem"))
    if words is None:
        assert text == ""
    else:
        assert re.search(words, text), text


def test_other_combinations(monkeypatch):
    monkeypatch.setattr(hardware, "missing", lambda installed: [])
    assert "no NVIDIA driver was found" in detail(doctor._installed((), CUDA12))
    assert detail(doctor._installed((nvidia("580.1"),), CUDA12)) == detail(doctor._installed((), PIP)) == ""
    amd = hardware.Accelerators("AMD", "7.0", (hardware.Card("MI300X"),), None)
    assert "JAX has no ROCm plugin" in detail(doctor._drivers(amd, PIP, "problem"))
    assert detail(doctor._drivers(amd, PIP | {"jax-rocm7-plugin": "0.10.2"}, "problem")) == ""
    broken = hardware.Accelerators("NVIDIA", None, (), "nvidia-smi failed with exit code 9")
    assert "problem: NVIDIA: nvidia-smi failed" in detail(doctor._drivers(broken, CUDA12, "problem"))
    full = nvidia("580.1", total=80 * 2**30, used=79 * 2**30)
    assert "GPU 0 (H100) has 1 GiB of 80 GiB free" in detail(doctor._drivers(full, CUDA13, "problem"))
    monkeypatch.setattr(hardware, "shadows", lambda: {"/cuda/lib64": "libcudnn.so.9"})
    assert "/cuda/lib64, whose libcudnn.so.9" in detail(doctor._installed((nvidia("580.1"),), CUDA13))
    monkeypatch.setattr(hardware, "missing", lambda installed: ["nvidia-cudnn-cu13"])
    assert "without nvidia-cudnn-cu13" in detail(doctor._installed((nvidia("580.1"),), CUDA13))
    pascal = nvidia("580.1", capability=6.1)
    assert "problem: H100 has compute capability 6.1, but" in detail(doctor._drivers(pascal, CUDA13, "problem"))
    assert detail(doctor._drivers(pascal, CUDA12, "problem")) == ""


def test_problems_of_unused_gpus():
    """Failures of a GPU that is not selected are notes, not problems."""
    amd = hardware.Accelerators("AMD", None, (), "x")
    levels = [doctor._level(one, wanted) for one in (nvidia("580.1"), amd) for wanted in ("", "cuda", "rocm", "cpu")]
    assert levels == ["problem", "problem", "note", "note", "problem", "note", "problem", "note"]


def test_plugins(monkeypatch):
    monkeypatch.setattr(hardware, "unmet", lambda installed: [])
    assert detail(doctor._plugins(PIP)) == ""
    assert "plugins for cuda12 and cuda13, but can use only one" in detail(doctor._plugins(CUDA12 | CUDA13))
    old = PIP | {"jax-cuda12-plugin": "0.10.1"}
    assert 'does not match jaxlib 0.10.2 -> run pip install --upgrade "jax[cuda12]==0.10.2"' in detail(
        doctor._plugins(old)
    )


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"TF_XLA_CACHE_DIR": "/x"}, "warning", "is not read by JAX"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "warning", "JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        ({"jax_enable_x64": "1"}, "warning", "write JAX_ENABLE_X64, in capitals"),
        ({"JAX_SOMETHING_ELSE_OF_MINE": "1"}, "note", "check whether anything else reads it"),
        ({"JAX_VON_MISES_CUDA_KERNELS": "maybe"}, "warning", "write 1 or 0"),
        ({"JAX_VON_MISES_CUDA_KERNEL": "1"}, "warning", "did you mean JAX_VON_MISES_CUDA_KERNELS?"),
        ({"JAX_VON_MISES_SPEED": "1"}, "warning", "is not read by jax_von_mises -> unset it"),
        ({"NCCL_P2P_DISABLE": "1"}, "note", "is read by NCCL, through which GPUs exchange data; the sampler exchanges"),
        ({"OMP_NUM_THREADS": "4"}, "note", "is not read by JAX; the linear algebra of NumPy and SciPy reads it"),
        ({"TF_NUM_INTEROP_THREADS": "4"}, "note", "by TensorFlow, not by JAX -> for JAX's threads on a CPU set PJRT"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, "warning", "hides the GPUs"),
        ({"PJRT_NPROC": "abc"}, "warning", "is not a number of threads"),
        ({"JAX_RANDOM_SEED_OFFSET": "1"}, "warning", "changes every seed"),
        ({"JAX_ENABEL_X64": "1"}, "warning", "did you mean JAX_ENABLE_X64"),
        ({"XLA_PYTHON_CLIENT_PREALOCATE": "false"}, "warning", "did you mean XLA_PYTHON_CLIENT_PREALLOCATE"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, "note", "use XLA_CLIENT_MEM_FRACTION"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", "XLA_CLIENT_MEM_FRACTION": ".5"}, "problem", "with both"),
        ({"XLA_CLIENT_MEM_FRACTION": "50%"}, "problem", "is not a share"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "no"}, "warning", "counts as true"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "malloc"}, "problem", "is not an allocator"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "warning", "slow"),
        ({"JAX_PLATFORMS": "gpu"}, "warning", "write cuda or rocm"),
        ({"JAX_PLATFORM_NAME": "cpu"}, "note", "old name"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "warning", "hides the GPUs"),
        ({"JAX_DISABLE_JIT": "1"}, "warning", "slow, for debugging only"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warning", "wait for each kernel"),
        (
            {
                "XLA_CLIENT_MEM_FRACTION": "0.5",
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "JAX_ENABLE_X64": "1",
                "JAX_COMPILATION_CACHE_DIR": "/x",
                "JAX_DEBUG_NANS": "false",
                "CUDA_VISIBLE_DEVICES": "0,1",
                "JAX_PLATFORMS": "cuda,cpu",
                "JAX_VON_MISES_CUDA_KERNELS": "1",
            },
            None,
            None,
        ),
    ],
)
def test_variables(monkeypatch, changes, level, words):
    for name in os.environ:
        if name.startswith(("JAX_", "XLA_", "CUDA_", "TF_", "NCCL_", "OMP_")):
            monkeypatch.delenv(name)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    found = variables.findings(gpus=True)
    if level is None:
        assert found == []
    else:
        assert [item.level for item in found] == [level]
        assert words in detail(found)


def test_variables_of_this_package_are_known():
    package = children.ROOT / "jax_von_mises"
    text = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert set(re.findall(r"\bJAX_VON_MISES_\w+", text)) == set(variables.OWN)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_the_statement_on_threads_holds():
    """JAX computes on a CPU with PJRT_NPROC threads, and ignores the variables of other libraries."""
    program = """
import os, jax
jax.block_until_ready(jax.jit(lambda: 0.0)())
names = (open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task"))
print(sum(name == "tf_XLAEigen" for name in names))
"""
    others = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    assert children.run(program, JAX_NUM_CPU_DEVICES="1", PJRT_NPROC="3", **others) == ["3"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Return a diagnosis of this machine, with a failing driver and variables that cause warnings."""
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "SMI", (stand_in(folder, "nvidia-smi", 'echo "NVIDIA-SMI has failed"; exit 9'),))
        patch.setenv("JAX_RANDOM_SEED_OFFSET", "1")
        patch.setenv("JAX_DEBUG_NANS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "new"))
        found = runtime.diagnose(expect="cpu")
        assert not (folder / "new").exists()
    return found


def test_this_machine(here):
    """A failing driver is no problem if the CPU is expected, as by install_gpu.sh without a working GPU."""
    assert here.ok, here
    assert here.backend["platform"] == "cpu"
    assert here.backend["why"] == "JAX_PLATFORMS=cpu requests it"
    (device,) = here.devices
    assert device["device"] == "cpu:0"
    assert device["agrees"]
    assert device["apart"] <= probe.ANGLE_TOLERANCE
    assert device["angles"] / device["seconds"] > 1e5
    assert device["memory"]["free"] > 0
    read = json.loads(here.as_json())
    assert read["ok"] is True
    assert read["versions"]["jax"] == jax.__version__
    assert set(hardware.PACKAGES) <= set(read["versions"])
    assert [item["name"] for item in read["settings"]][:2] == ["platform", "x64"]
    text = str(here)
    assert text.endswith("no problems found")
    assert max(map(len, text.splitlines())) < 160
    assert "NVIDIA driver unknown" in text
    findings = detail(here.findings)
    assert "note: NVIDIA: nvidia-smi failed with exit code 9: NVIDIA-SMI has failed" in findings
    assert "warning: JAX_RANDOM_SEED_OFFSET=1" in findings
    assert "warning: JAX_DEBUG_NANS=1" in findings


def test_command_line(here, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(runtime, "diagnose", lambda **options: calls.append(options) or here)
    assert commands.main(["doctor"]) == 0
    assert capsys.readouterr().out.strip() == str(here)
    assert commands.main(["doctor", "--json", "--expect", "cpu", "--timeout", "9"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"]["platform"] == "cpu"
    assert calls == [{"expect": None, "timeout": 180.0}, {"expect": "cpu", "timeout": 9.0}]
    bad = here._replace(findings=(runtime.Finding("problem", "x", "y"),))
    monkeypatch.setattr(runtime, "diagnose", lambda **options: bad)
    assert commands.main(["doctor"]) == 1
    assert "problem: x\n  -> y\n\n1 problem" in capsys.readouterr().out
    assert commands.main(["doctor", "--timeout", "0"]) == 2


@pytest.mark.slow
def test_flags_that_end_jax_or_change_angles(monkeypatch):
    """The doctor removes flags that would end the process, and reports the effect of other flags on the angles."""
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_gpu_autotune=1 --xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false"
    )
    found = runtime.diagnose(expect="cuda")
    text = detail(found.findings)
    assert not found.ok
    assert "problem: --xla_gpu_autotune in XLA_FLAGS ends the process" in text
    assert "problem: cpu:0 fails the check that a negative concentration gives NaN" in text
    assert "warning: --xla_cpu_fast_math_honor_nans=false in XLA_FLAGS" in text
    assert "problem: JAX runs on cpu, not on cuda" in text
    assert "DOES NOT AGREE" in str(found)
    assert [finding.level for finding in found.findings] == sorted(
        (finding.level for finding in found.findings), key=["problem", "warning", "note"].index
    )


def test_flags_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "no-such-file")
    accepted, findings = doctor._flags(60)
    assert accepted == []
    assert "XLA_FLAGS cannot be read: No such file or directory" in detail(findings)


@pytest.mark.parametrize(
    ("steps", "code", "words"),
    [
        ([], 1, "JAX cannot be imported: E: last words"),
        (["start"], -6, "JAX does not start: it was fatal"),
        (["start", "devices"], None, "drawing failed: no answer within 7 s"),
        (["start", "devices", "draw"], None, "drawing on cuda:1 failed: no answer"),
        (["start", "devices", "draw", "device"], 1, "drawing failed after cuda:1 was checked"),
        (["start", "devices", "draw", "device", "end"], 0, ""),
    ],
)
def test_child_that_does_not_finish(steps, code, words):
    err = "noise\nF1121 14:25:38.226570   1 x.cc:1] it was fatal\n" if code == -6 else "E: last words\n"
    listed = [{"step": step, "device": "cuda:1"} for step in steps]
    assert words in detail(doctor._start(listed, child.Ended(code, "", err), 7))


def test_gpu_that_is_not_used(monkeypatch):
    """If JAX runs on the CPU despite an installed GPU plugin, the doctor reports JAX's reason."""
    message = "RuntimeError: Unable to load CUDA. Is it installed?\n\nAssertionError\n"
    calls = []

    def run(*arguments, timeout, **changes):
        calls.append(changes)
        return child.Ended(1, "", message)

    monkeypatch.setattr(child, "run", run)
    text = detail(doctor._unused([], CUDA12, 9))
    reason = "RuntimeError: Unable to load CUDA"
    assert f"problem: JAX's plugin for cuda12 is installed, but JAX does not use the GPU: {reason}" in text
    assert [changes["JAX_PLATFORMS"] for changes in calls] == ["cuda"]
    assert detail(doctor._unused([], PIP, 9)) == ""


DEVICE = {"device": "cuda:0", "words_agree": True, "agrees": True, "broken": [], "apart": 1.0, "kind": "H100"}
DEVICE |= {"angles": 1, "seconds": 1.0, "first_seconds": 1.0, "memory": {"free": None}}


@pytest.mark.parametrize("kernels", [None, True, False])
def test_cuda_kernels(kernels):
    """The doctor says whether CUDA kernels that are turned on agree; kernels that do not agree are only a note."""
    device = DEVICE | {"kernels": kernels}
    note = "note: cuda:0: this package's CUDA kernels differ from XLA's program, which is used instead"
    assert (note in detail(doctor._drawn([device]))) == (kernels is False)
    lines = "\n".join(doctor._device_lines(device))
    assert ("CUDA kernels are turned on and agree" in lines) == (kernels is True)


def test_cuda_kernels_are_compared_only_if_turned_on(monkeypatch):
    monkeypatch.delenv(environment.CUDA_KERNELS, raising=False)
    assert probe.kernels() is None
    monkeypatch.setattr(cuda, "devices", lambda: ("a card",))
    monkeypatch.setattr(cuda, "agrees", lambda cipher: cipher == "threefry2x32")
    assert probe.kernels() is None
    monkeypatch.setenv(environment.CUDA_KERNELS, "on")
    assert probe.kernels() is False
    monkeypatch.setattr(cuda, "devices", lambda: ())
    assert probe.kernels() is None


@pytest.mark.slow
def test_grandchild_that_holds_the_pipe():
    """`child.run` does not wait for a grandchild that keeps the pipe open."""
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    began = time.monotonic()
    assert child.run("-c", program, timeout=0.5).code is None
    assert time.monotonic() - began < 20


def test_hanging(monkeypatch):
    found = runtime.diagnose(timeout=0.05)
    assert not found.ok
    assert "no answer within 0.05 s" in detail(found.findings)
    assert found.backend["platform"] is None


def test_missing_platform(monkeypatch):
    backend = {"platform": "cpu"}
    monkeypatch.setattr(doctor.jax, "config", type("config", (), {"jax_platforms": "cuda"}))
    assert "no such platform here" in detail(doctor._expected(backend, None))


def test_known_angles():
    """The probe's known angles equal the quantile function at the probabilities given by the key's words."""
    words = np.asarray(counter.words(jax.random.key(0, impl="threefry2x32"), (len(probe.KNOWN_ANGLES),), 1)[0])
    magnitude = (words >> 1).astype(np.float64)
    t, c = (magnitude + 0.5) * 2.0**-32, (2.0**31 - 1 - magnitude + 0.5) * 2.0**-32
    expected = reference.quantile(t, probe.CONCENTRATION, c) * np.where(words & 1, -1, 1)
    np.testing.assert_allclose(probe.KNOWN_ANGLES, expected, atol=1e-9, rtol=0)
    assert transform.words_per_element(np.dtype(np.float32)) == 1


@pytest.mark.slow
def test_wrong_device_is_detected(capsys, monkeypatch):
    """A correct device agrees with the known angles, but not with these angles multiplied by 1 + 2e-5."""
    monkeypatch.setattr(probe, "ANGLES", 2**15)
    device = jax.devices()[1]
    probe.examine(device)
    monkeypatch.setattr(probe, "KNOWN_ANGLES", tuple(angle * (1 + 2e-5) for angle in probe.KNOWN_ANGLES))
    probe.examine(device)
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "angles" in line)
    assert good["agrees"]
    assert good["words_agree"]
    assert not good["broken"]
    assert not bad["agrees"]
    assert "draws different angles" in detail(doctor._drawn([bad]))
    assert "generates random words that differ" in detail(doctor._drawn([good | {"words_agree": False}]))

"""The doctor: what it makes of machines, installations and flags, and that nothing it finds can harm it."""

import importlib.metadata
import json
import os
import re

import jax
import numpy as np
import pytest

from jax_von_mises import cli, counter, kernel, runtime
from jax_von_mises.runtime import child, diagnosis, hardware, probe, variables
from tests import reference

PIP = {"jax": "0.10.2", "jaxlib": "0.10.2"}
CUDA12 = PIP | {"jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}
CUDA13 = PIP | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Puts stand-ins for the drivers' programs on the path, which holds nothing else of theirs."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(hardware, "SMI", ("nvidia-smi",))
    monkeypatch.setattr(hardware, "ROCMINFO", ("rocminfo",))
    monkeypatch.setattr(hardware, "PROC_DRIVER", tmp_path / "version")

    def install(program, script):
        path = tmp_path / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return install


def test_nvidia(machine):
    machine("nvidia-smi", 'echo "580.65.06, NVIDIA H100, 81559, 4"; echo "580.65.06, NVIDIA H100, [N/A], 5"')
    assert hardware.accelerators() == (
        "NVIDIA",
        "580.65.06",
        (hardware.Card("NVIDIA H100", 81559 * 2**20, 4 * 2**20), hardware.Card("NVIDIA H100", None, 5 * 2**20)),
        None,
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            'echo "NVIDIA-SMI has failed because it could not communicate with the driver" >&2; exit 9',
            "exit code 9",
        ),
        ('echo "No devices were found"', "nvidia-smi says: No devices were found"),
        ("sleep 60", "does not answer within 0.3 s"),
        ("printf '\\377\\376'", "nvidia-smi says"),
    ],
)
def test_broken_nvidia(machine, monkeypatch, script, words):
    monkeypatch.setattr(hardware, "PATIENCE", 0.3)
    machine("nvidia-smi", script)
    found = hardware.accelerators()
    assert (found.vendor, found.driver, found.cards) == ("NVIDIA", None, ())
    assert words in found.trouble


def test_driver_without_its_program(machine, tmp_path):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    found = hardware.accelerators()
    assert (found.vendor, found.driver) == ("NVIDIA", "535.183.01")
    (tmp_path / "version").write_text("?")
    assert hardware.accelerators().vendor is None


def test_amd(machine):
    machine(
        "rocminfo",
        """cat <<'END'
*******
Agent 1
  Name:                    AMD EPYC
  Marketing Name:          AMD EPYC
  Device Type:             CPU
*******
Agent 2
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
END""",
    )
    found = hardware.accelerators()
    assert found.vendor == "AMD"
    assert [card.name for card in found.cards] == ["AMD Instinct MI300X"]


def test_none(machine):
    assert hardware.accelerators() == (None, None, (), None)


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("9.8.0.87", ">=9.8", True),
        ("9.10", ">=9.8", True),
        ("10.0", "<10.0", False),
        ("0.10.2", "==0.10.2", True),
        ("0.10.2", "==0.10.*", True),
        ("0.11", "==0.10.*", False),
        ("12.8", "~=12.6", True),
        ("13.0", "~=12.6", False),
        ("1.2", "!=1.2", False),
        ("1", "nonsense", True),
    ],
)
def test_versions(version, wanted, fits):
    assert hardware._fits(version, wanted) is fits


def test_requirements(monkeypatch):
    """As the metadata of JAX's plugins have them."""
    needs = [
        'nvidia-cudnn-cu12<10.0,>=9.8; sys_platform == "linux" and extra == "with-cuda"',
        "nvidia-nccl-cu12 (>=2.18)",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs if name.endswith("plugin") else None)
    assert hardware.unmet(CUDA12 | {"nvidia-cudnn-cu12": "9.9.1"}) == []
    (text,) = hardware.unmet(CUDA12 | {"nvidia-cudnn-cu12": "9.1.0", "nvidia-nccl-cu12": "2.20"})
    assert text == "jax-cuda12-plugin 0.10.2 needs nvidia-cudnn-cu12<10.0,>=9.8, and 9.1.0 is installed"


def test_installed():
    found = hardware.packages()
    assert found["jax"] == jax.__version__
    assert set(hardware.PACKAGES) <= set(found)


def test_shadows(tmp_path, monkeypatch):
    (tmp_path / "libcudart.so.12").touch()
    (tmp_path / "libz.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/no/such{os.pathsep}{os.pathsep}{tmp_path}")
    assert hardware.shadows() == {str(tmp_path): "libcudart.so.12"}


def told(findings):
    return "\n".join(f"{finding.level}: {finding.what} -> {finding.do}" for finding in findings)


def nvidia(driver, **card):
    cards = (hardware.Card("H100", card.get("total"), card.get("used")),)
    return hardware.Accelerators("NVIDIA", driver, cards, None)


# Driver, plugin and GPU, each of which comes from somebody else.


@pytest.mark.parametrize(
    ("driver", "installed", "words"),
    [
        ("580.65", CUDA13, None),
        ("580.65", CUDA12, None),
        ("535.1", CUDA12, None),
        ("535.1", CUDA13, "problem: driver 535.1 is too old for JAX's CUDA 13 wheels.*580 or newer, or.*--cuda12"),
        ("470.2", CUDA12, "problem: driver 470.2 is too old for JAX's CUDA 12 wheels -> update the driver to 525"),
        ("580.65", PIP, r"problem: there is an NVIDIA GPU, and JAX has no CUDA plugin.*\[cuda13\]"),
        ("535.1", PIP, r"no CUDA plugin.*\[cuda12\]"),
        ("470.2", PIP, "no CUDA plugin.*update the driver to 525 or newer"),
    ],
)
def test_driver(driver, installed, words):
    text = told(diagnosis._drivers(nvidia(driver), installed, "problem"))
    if words is None:
        assert text == ""
    else:
        assert re.search(words, text), text


def test_wanting_the_cpu():
    """Then a GPU that cannot be used is none of its business."""
    assert told(diagnosis._drivers(nvidia("470.2"), PIP, "note")).startswith("note: ")


def test_others(monkeypatch):
    nothing = hardware.Accelerators(None, None, (), None)
    assert "no NVIDIA driver was found" in told(diagnosis._drivers(nothing, CUDA12, "problem"))
    amd = hardware.Accelerators("AMD", "7.0", (hardware.Card("MI300X", None, None),), None)
    assert "JAX has no ROCm plugin" in told(diagnosis._drivers(amd, PIP, "problem"))
    assert told(diagnosis._drivers(amd, PIP | {"jax-rocm7-plugin": "0.10.2"}, "problem")) == ""
    broken = hardware.Accelerators("NVIDIA", None, (), "nvidia-smi fails with exit code 9")
    assert "problem: NVIDIA: nvidia-smi fails" in told(diagnosis._drivers(broken, CUDA12, "problem"))
    full = nvidia("580.1", total=80 * 2**30, used=79 * 2**30)
    assert "GPU 0 (H100) has 1 GiB of 80 GiB free" in told(diagnosis._drivers(full, CUDA13, "problem"))
    monkeypatch.setattr(hardware, "shadows", lambda: {"/cuda/lib64": "libcudnn.so.9"})
    assert "/cuda/lib64, whose libcudnn.so.9" in told(diagnosis._drivers(nvidia("580.1"), CUDA13, "problem"))


def test_plugins(monkeypatch):
    monkeypatch.setattr(hardware, "unmet", lambda installed: [])
    assert told(diagnosis._plugins(PIP)) == ""
    assert "plugins for cuda12 and cuda13, of which it can use one" in told(diagnosis._plugins(CUDA12 | CUDA13))
    old = PIP | {"jax-cuda12-plugin": "0.10.1"}
    assert 'belong to jaxlib 0.10.2 -> pip install --upgrade "jax[cuda12]==0.10.2"' in told(diagnosis._plugins(old))


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        ({"TF_XLA_CACHE_DIR": "/x"}, "warning", "is read by nobody"),
        ({"JAX_ENABEL_X64": "1"}, "warning", "did you mean JAX_ENABLE_X64"),
        ({"XLA_PYTHON_CLIENT_PREALOCATE": "false"}, "warning", "did you mean XLA_PYTHON_CLIENT_PREALLOCATE"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, "note", "call it XLA_CLIENT_MEM_FRACTION"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", "XLA_CLIENT_MEM_FRACTION": ".5"}, "problem", "with both"),
        ({"XLA_CLIENT_MEM_FRACTION": "50%"}, "problem", "is not a share"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "no"}, "warning", "counts as true"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "malloc"}, "problem", "is not an allocator"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "warning", "slow"),
        ({"JAX_PLATFORMS": "gpu"}, "warning", "write cuda, or rocm"),
        ({"JAX_PLATFORM_NAME": "cpu"}, "note", "old name"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "warning", "hides the GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "warning", "hides the GPUs"),
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
            },
            None,
            None,
        ),
    ],
)
def test_variables(monkeypatch, given, level, words):
    for name in os.environ:
        if name.startswith(("JAX_", "XLA_", "CUDA_")):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = variables.findings(gpus=True)
    if level is None:
        assert found == []
    else:
        assert [item.level for item in found] == [level]
        assert words in told(found)


@pytest.fixture(scope="module")
def here():
    return runtime.diagnose()


def test_this_machine(here):
    assert here.ok, here
    assert here.backend["platform"] == "cpu"
    assert here.backend["why"] == "JAX_PLATFORMS=cpu asks for it"
    (device,) = here.devices
    assert device["device"] == "cpu:0"
    assert device["agrees"]
    assert device["apart"] <= probe.TOLERANCE
    assert device["angles"] / device["seconds"] > 1e5
    assert device["memory"]["free"] > 0
    told = json.loads(here.as_json())
    assert told["ok"] is True
    assert told["versions"]["jax"] == jax.__version__
    assert [item["name"] for item in told["settings"]][:2] == ["platform", "x64"]
    text = str(here)
    assert text.endswith("all is well")
    assert max(map(len, text.splitlines())) < 160


def test_command_line(here, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(runtime, "diagnose", lambda **options: asked.append(options) or here)
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.strip() == str(here)
    assert cli.main(["doctor", "--json", "--expect", "cpu", "--timeout", "9"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"]["platform"] == "cpu"
    assert asked == [{"expect": None, "timeout": 180.0}, {"expect": "cpu", "timeout": 9.0}]
    bad = here._replace(findings=(runtime.Finding("problem", "x", "y"),))
    monkeypatch.setattr(runtime, "diagnose", lambda **options: bad)
    assert cli.main(["doctor"]) == 1
    assert "problem: x\n  -> y\n\n1 problem" in capsys.readouterr().out
    assert cli.main(["doctor", "--timeout", "0"]) == 2


def test_flags_that_end_or_spoil(monkeypatch):
    """JAX is started without those that end it, and what the others do to the angles is seen."""
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_gpu_autotune=1 --xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false"
    )
    found = runtime.diagnose(expect="cuda")
    text = told(found.findings)
    assert not found.ok
    assert "problem: --xla_gpu_autotune in XLA_FLAGS ends the process" in text
    assert "problem: on cpu:0 it does not hold that a negative concentration gives NaN" in text
    assert "warning: --xla_cpu_fast_math_honor_nans=false in XLA_FLAGS" in text
    assert "problem: JAX runs on cpu, not on cuda" in text
    assert "DOES NOT AGREE" in str(found)
    assert [finding.level for finding in found.findings] == sorted(
        (finding.level for finding in found.findings), key=["problem", "warning", "note"].index
    )


def test_flags_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "no-such-file")
    taken, found = diagnosis._flags(60)
    assert taken == {}
    assert "XLA_FLAGS cannot be read: No such file or directory" in told(found)


@pytest.mark.parametrize(
    ("steps", "code", "words"),
    [
        ([], 1, "JAX cannot be imported: E: last words"),
        (["start"], -6, "JAX does not start: it was fatal"),
        (["start", "devices"], None, "drawing failed: no answer within 7 s"),
        (["start", "devices", "draw"], None, "drawing on cuda:1 failed: no answer"),
        (["start", "devices", "draw", "device"], 1, "drawing after cuda:1 failed"),
        (["start", "devices", "draw", "device", "end"], 0, ""),
    ],
)
def test_child_that_does_not_come_to_its_end(steps, code, words):
    err = "noise\nF1121 14:25:38.226570   1 x.cc:1] it was fatal\n" if code == -6 else "E: last words\n"
    listed = [{"step": step, "device": "cuda:1"} for step in steps]
    assert words in told(diagnosis._start(listed, child.Ended(code, "", err), 7))


def test_hanging(monkeypatch):
    found = runtime.diagnose(timeout=0.05)
    assert not found.ok
    assert "no answer within 0.05 s" in told(found.findings)
    assert found.backend["platform"] is None


def test_platform_that_is_not_there(monkeypatch):
    backend = {"platform": "cpu"}
    monkeypatch.setattr(diagnosis.jax, "config", type("config", (), {"jax_platforms": "cuda"}))
    assert "no such platform here" in told(diagnosis._expected(backend, None))


@pytest.mark.parametrize("options", [{"expect": "gpu"}, {"timeout": 0}, {"timeout": "1"}])
def test_bad_arguments(options):
    with pytest.raises(ValueError, match=f"diagnose: {next(iter(options))}="):
        runtime.diagnose(**options)


def test_known_angles():
    """What the probe compares with is the law's quantile of the key's words."""
    words = np.asarray(counter.words(jax.random.key(0, impl="threefry2x32"), (len(probe.KNOWN),), 1)[0])
    magnitude = (words >> 1).astype(np.float64)
    t, c = (magnitude + 0.5) * 2.0**-32, (2.0**31 - 1 - magnitude + 0.5) * 2.0**-32
    expected = reference.quantile(t, probe.CONCENTRATION, c) * np.where(words & 1, -1, 1)
    np.testing.assert_allclose(probe.KNOWN, expected, atol=1e-9, rtol=0)
    assert kernel.words_per_element(np.dtype(np.float32)) == 1


def test_a_wrong_device_is_seen(capsys, monkeypatch):
    """One that draws what it should, and then one that is off by little more than rounding."""
    monkeypatch.setattr(probe, "ANGLES", 2**15)
    device = jax.devices()[1]
    probe.examine(device)
    monkeypatch.setattr(probe, "KNOWN", tuple(angle * (1 + 2e-5) for angle in probe.KNOWN))
    probe.examine(device)
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines() if "angles" in line)
    assert good["agrees"]
    assert good["words_agree"]
    assert not good["broken"]
    assert not bad["agrees"]
    assert "draws other angles" in told(diagnosis._drawn([bad]))
    assert "makes other random words" in told(diagnosis._drawn([good | {"words_agree": False}]))

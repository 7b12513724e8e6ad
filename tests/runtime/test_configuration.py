"""Test `configure`, in child processes, since most settings must precede the start of JAX."""

import os
import re

import pytest

from jax_von_mises import runtime
from tests import children


def test_all_settings():
    """All settings reach JAX before it starts, and `configure` does not start it."""
    program = """
import os
import jax
from jax_von_mises.runtime import configuration, configure
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.1"
flags = {"xla_cpu_enable_fast_math": False, "--xla_force_host_platform_device_count": 3}
configure(
    platform="cpu", x64=True, memory_fraction=0.5, preallocate=False, threads=2, cuda_kernels=False, xla_flags=flags
)
option = configuration.EARLY
before = getattr(jax.config, option)
assert not configuration.started() and getattr(jax.config, option) == before
assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5" and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == os.environ["JAX_VON_MISES_CUDA_KERNELS"] == "false"
assert (jax.config.jax_platforms, os.environ["PJRT_NPROC"]) == ("cpu", "2")
print(os.environ["XLA_FLAGS"])
assert len(jax.devices()) == 3 and configuration.started() and getattr(jax.config, option) == before
assert jax.random.uniform(jax.random.key(0)).dtype == "float64"
configure(x64=False, cuda_kernels=True, threads=2, xla_flags=flags)  # late settings, and unchanged ones
try:
    configure(threads=4, x64=True)
except RuntimeError as error:
    print(error)
assert jax.config.jax_enable_x64 is False and os.environ["PJRT_NPROC"] == "2"
"""
    before = '--xla_cpu_enable_fast_math=true --xla_hlo_graph_sharding_color --xla_gpu_cuda_data_dir="a b"'
    flags, refused = children.run(program, XLA_FLAGS=before, JAX_PLATFORMS=None)
    assert flags == f"{before} --xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=3"
    assert refused.startswith("configure: JAX has started, on cpu, so it ignores new values of PJRT_NPROC")
    assert "start the program with PJRT_NPROC=4 in its environment" in refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(platform="gpu"), "Give one"),
        (dict(memory_fraction=1.5), "memory_fraction"),
        (dict(platform="cpu,gpus"), "is not one of cpu, cuda"),
        (dict(xla_flags="xla_dump_to=x"), "'xla_dump_to=x' is not of the form --xla_name=value"),
        (dict(xla_flags={"xla_dump to": "x"}), "'--xla_dump to=x' is not of the form"),
        (dict(xla_flags={"xla_dump_to": "a b"}, threads=7), "without spaces or quotes"),
        (dict(xla_flags="--xla_dump_to=/x\0y", threads=7), "is not of the form"),
    ],
)
def test_rejected_values(given, words):
    """Each value is checked before anything changes."""
    before = dict(os.environ)
    with pytest.raises((TypeError, ValueError), match="configure: ") as caught:
        runtime.configure(**{"cuda_kernels": True, **given})
    assert words in str(caught.value)
    assert dict(os.environ) == before


def test_flags_in_a_file(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    with pytest.raises(ValueError, match=r"names the file 'flags\.txt'"):
        runtime.configure(xla_flags="--xla_dump_to=x")


@pytest.mark.more
def test_xla_accepts_the_flags_of_the_guide():
    page = (children.ROOT / "docs" / "gpu.md").read_text("utf-8")
    given = dict(re.findall(r"`--(xla_\w+)=?([^`]*)`", page))
    assert len(given) == 7
    values = {"xla_gpu_autotune_level": "4", "xla_dump_to": ""}  # others are switches
    flags = {
        name: values.get(name, value if value or name.endswith("buffer") else "false") for name, value in given.items()
    }
    program = f"from jax_von_mises.runtime import configure; configure(xla_flags={flags}); import jax; jax.devices()"
    assert children.run(program, XLA_FLAGS=None) == []

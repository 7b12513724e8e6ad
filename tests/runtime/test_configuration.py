"""Test `configure`, in child processes, since most settings must precede the start of JAX."""

import os

import pytest

from jax_von_mises import runtime
from jax_von_mises.runtime import configuration
from tests import children


def test_all_settings():
    """All settings reach JAX before it starts, and `configure` does not start it."""
    program = """
import os
import jax
from jax_von_mises.runtime import configuration, configure
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.1"
configure(
    platform="cpu", x64=True, memory_fraction=0.5, preallocate=False, allocator="bfc", threads=2, vector_width=128,
    cpu_devices=3, compile_threads=2, latency_hiding=True, profile_guided=True, profiled_runs=5, cuda_kernels=False,
    xla_flags={"xla_cpu_enable_fast_math": False, "--xla_gpu_cuda_data_dir": "a b"},
)
option = configuration.EARLY
before = getattr(jax.config, option)
assert not configuration.started() and getattr(jax.config, option) == before
assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5" and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == os.environ["JAX_VON_MISES_CUDA_KERNELS"] == "false"
assert (os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"], os.environ["PJRT_NPROC"]) == ("bfc", "2")
assert (jax.config.jax_platforms, jax.config.jax_enable_pgle, jax.config.jax_pgle_profiling_runs) == ("cpu", True, 5)
print(os.environ["XLA_FLAGS"])
configure(profile_guided=False)  # on a CPU, JAX finds no profile and warns
assert len(jax.devices()) == 3 and configuration.started() and getattr(jax.config, option) == before
assert jax.random.uniform(jax.random.key(0)).dtype == "float64"
configure(x64=False, cuda_kernels=True, threads=2, cpu_devices=3)  # late settings, and unchanged ones
try:
    configure(threads=4, x64=True)
except RuntimeError as error:
    print(error)
assert jax.config.jax_enable_x64 is False and os.environ["PJRT_NPROC"] == "2"
"""
    before = "--xla_cpu_enable_fast_math=true --xla_hlo_graph_sharding_color --xla_cpu_enable_fast_min_max=false"
    flags, refused = children.run(program, XLA_FLAGS=before, JAX_PLATFORMS=None, JAX_ENABLE_PGLE=None)
    assert flags == (
        "--xla_hlo_graph_sharding_color --xla_cpu_enable_fast_min_max=false --xla_cpu_prefer_vector_width=128 "
        "--xla_gpu_force_compilation_parallelism=2 --xla_gpu_enable_latency_hiding_scheduler=true "
        '--xla_cpu_enable_fast_math=false --xla_gpu_cuda_data_dir="a b"'
    )
    assert refused.startswith("configure: JAX has started, on cpu, so it ignores new values of PJRT_NPROC")
    assert "start the program with PJRT_NPROC=4 in its environment" in refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(platform="gpu"), "Give one"),
        (dict(memory_fraction=1.5), "memory_fraction"),
        (dict(vector_width=100), "is not one of 128, 256, 512"),
        (dict(xla_flags="xla_dump_to=x"), "Write --xla_name=value"),
        (dict(xla_flags={"xla_dump to": "x"}), "begins with xla_"),
        (dict(xla_flags="--xla_dump_to=/x\0y", threads=7), "XLA cannot read"),
        (dict(xla_flags="--xla_gpu_autotune=2"), "xla_flags='xla_gpu_autotune': the installed jaxlib"),
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
def test_flags_of_the_guide_are_known():
    """The flags of the GPU guide that exist are found in the installed jaxlib, and XLA accepts them."""
    flags = {
        **{"xla_gpu_autotune_level": 4, "xla_gpu_enable_latency_hiding_scheduler": True, "xla_dump_to": ""},
        **{"xla_gpu_enable_command_buffer": "", "xla_gpu_enable_fast_min_max": False, "xla_disable_hlo_passes": ""},
        **{"xla_gpu_cuda_data_dir": "", "xla_gpu_triton_gemm_any": False},
    }
    configuration._must_be_known(flags)
    program = f"from jax_von_mises.runtime import configure; configure(xla_flags={flags}); import jax; jax.devices()"
    assert children.run(program, XLA_FLAGS=None) == []

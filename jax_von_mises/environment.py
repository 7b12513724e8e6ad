"""Describe the machine, read the variables of this package, and list names, without importing JAX."""

import contextlib
import os
import re
from pathlib import Path

__all__ = [
    "CUDA_KERNELS",
    "DTYPES",
    "PLATFORMS",
    "SWITCH",
    "cuda_kernels",
    "nvidia_driver",
    "nvidia_gpus",
    "processor",
]

# Dtypes of draws, and platforms on which `diagnose` looks for problems.
DTYPES = ("float32", "float64", "bfloat16", "float16")
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

PROC_DRIVER = Path("/proc/driver/nvidia/version")
PROC_GPUS = Path("/proc/driver/nvidia/gpus")
PROC_CPU = Path("/proc/cpuinfo")
# The environment variable that turns on the CUDA kernels of this package, and its values.
CUDA_KERNELS = "JAX_VON_MISES_CUDA_KERNELS"
SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}


def cuda_kernels() -> bool:
    """Return whether the environment turns on the CUDA kernels of this package."""
    return SWITCH.get(os.environ.get(CUDA_KERNELS, "").strip().lower(), False)


def nvidia_driver() -> str | None:
    """Return the version of the loaded NVIDIA driver, as Linux reports it; None if no driver is loaded."""
    with contextlib.suppress(OSError):
        if match := re.search(r"\s(\d+\.\d+(\.\d+)?)\s", PROC_DRIVER.read_text()):
            return match[1]
    return None


def nvidia_gpus() -> int:
    """Return the number of NVIDIA GPUs that Linux and ``CUDA_VISIBLE_DEVICES`` let this process use."""
    count = 0
    with contextlib.suppress(OSError):
        count = len(os.listdir(PROC_GPUS))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, len([name for name in visible.split(",") if name.strip()]))


def processor(field: str) -> str:
    """Return a field of the first processor as Linux reports it, such as "model name" or "flags"; "" if unavailable."""
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{field}\s*: (.*)$", PROC_CPU.read_text(), re.MULTILINE):
            return match[1].strip()
    return ""

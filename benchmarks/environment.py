"""The machine and the libraries that a result belongs to."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["describe"]

LIBRARIES = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "numpyro",
    "tensorflow-probability",
    "tfp-nightly",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "tensorstore",
)
# Variables that change what JAX compiles or how many threads it runs.
VARIABLES = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_COMPILATION_CACHE_DIR", "OMP_NUM_THREADS")


def cpu_model():
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores():
    """Count the cores that this process may use, which a container or `taskset` can make fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def commit():
    """Return the commit that is checked out, marked where files differ from it; None outside a repository."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    try:
        text = subprocess.check_output(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return text.strip()


def versions():
    """Map each installed library to its version."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe():
    """Everything that a reader needs to judge a timing, ready for JSON."""
    import jax

    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "cpu": cpu_model(),
        "cores": cores(),
        # Above the number of busy cores this process needs, others were running too.
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "x64": bool(jax.config.jax_enable_x64),
        "versions": versions(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "commit": commit(),
    }

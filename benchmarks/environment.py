"""Describe the machine and the libraries with which a result is measured."""

import contextlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["describe", "without_cache"]

LIBRARIES = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "numpyro",
    "tensorflow-probability",
    "tfp-nightly",
    "torch",
    "mkl_random",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "zarr",
)
# Environment variables that change what JAX compiles, where it runs or how many threads it uses.
VARIABLES = re.compile(r"(JAX|XLA|PJRT)_\w+|GLIBC_TUNABLES|\w+_(NUM_THREADS|VISIBLE_DEVICES)")


def cpu_model():
    """Return the processor's name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores():
    """Count the cores that this process may use; a container or `taskset` can allow fewer than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def commit():
    """Return the checked-out commit, with a suffix if tracked files differ from it, or None outside a repository."""
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


@contextlib.contextmanager
def without_cache():
    """Turn off JAX's compilation cache, which would shorten first calls."""
    import jax

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def describe():
    """Return the environment of a timing, ready for JSON; exit if nothing can be timed."""
    import jax

    if jax.config.jax_disable_jit:
        raise SystemExit("JAX_DISABLE_JIT is on, so nothing would be compiled. Unset it to run the benchmarks.")
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        setting = f" with JAX_PLATFORMS={jax.config.jax_platforms}" if jax.config.jax_platforms else ""
        raise SystemExit(
            f"JAX does not start{setting}: {error}. Run `jax-von-mises doctor` to find the reason."
        ) from error
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "cpu": cpu_model(),
        "cores": cores(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "x64": bool(jax.config.jax_enable_x64),
        "versions": versions(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)},
        "commit": commit(),
    }

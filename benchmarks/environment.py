"""Describe the code, the machine and the libraries of a measurement."""

import contextlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["describe", "dirty", "text", "tree", "without_cache"]

ROOT = Path(__file__).parents[1]
PACKAGE = "jax_von_mises"
LIBRARIES = (
    *("jax", "jaxlib", "numpy", "scipy", "numpyro", "tensorflow-probability", "tfp-nightly", "torch", "mkl_random"),
    *("cupy-cuda12x", "cupy-cuda13x", "zarr"),
)
# Environment variables that change what JAX compiles, where it runs or how many threads it uses.
VARIABLES = re.compile(r"(JAX|XLA|PJRT)_\w+|GLIBC_TUNABLES|\w+_(NUM_THREADS|VISIBLE_DEVICES)")


def git(*arguments):
    """Return the output of a git command in this clone; None without git or outside a clone."""
    try:
        return subprocess.check_output(("git", *arguments), cwd=ROOT, stderr=subprocess.DEVNULL, text=True).rstrip()
    except (OSError, subprocess.SubprocessError):
        return None


def tree():
    """Return the name that git gives to the committed content of the package's folder; None if there is no git."""
    return git("rev-parse", f"HEAD:{PACKAGE}")


def dirty():
    """Return the files of the package and of the benchmarks that differ from the last commit."""
    changes = git("status", "--porcelain", "--", PACKAGE, "benchmarks", ":!benchmarks/results")
    return [line[3:] for line in (changes or "").splitlines()]


def processor():
    """Return the processor's name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def vectors():
    """Return the widest vector instructions of an x86 processor, or an empty string."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return ""
    return next((label for flag, label in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")


def cores():
    """Count the cores that this process may use; a container or `taskset` can allow fewer than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


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
    """Return the environment of a measurement as a dict of strings; exit if nothing can be timed."""
    import jax

    from jax_von_mises import version

    if jax.config.jax_disable_jit:
        raise SystemExit("JAX_DISABLE_JIT is on, so nothing would be compiled. Unset it to run the benchmarks.")
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        setting = f" with JAX_PLATFORMS={jax.config.jax_platforms}" if jax.config.jax_platforms else ""
        raise SystemExit(
            f"JAX does not start{setting}: {error}. Run `jax-von-mises doctor` to find the reason."
        ) from error
    variables = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}
    return {
        "platform": device.platform,
        "device": f"{jax.device_count()} x {device.device_kind}",
        "processor": f"{processor()}, {cores()} cores{', ' * bool(vectors())}{vectors()}",
        "system": f"{platform.system()} {platform.machine()}",
        "load": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown",
        "versions": ", ".join([f"Python {platform.python_version()}", *map(" ".join, versions().items())]),
        "variables": " ".join(f"{name}={value}" for name, value in variables.items()) or "none",
        "version": version.__version__,
        "tree": tree() or "unknown",
    }


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


def text(machine):
    """Return an environment in a few lines of text."""
    return "\n".join(f"  {name}: {value}" for name, value in machine.items())

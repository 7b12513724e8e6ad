"""Find out what the machine has and what is installed for it, from drivers' programs and pip's records, without JAX."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from jax_von_mises import environment

# As JAX names what it runs on.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# The oldest driver, by its first number, that runs JAX's wheels for a release of CUDA, and the least of cards.
# install_gpu.sh has the same rule.
DRIVERS = {13: 580, 12: 525}
CAPABILITIES = {13: 7.5, 12: 5.0}

# Where WSL and ROCm keep them when they are not on the path.
SMI = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")
ROCMINFO = ("rocminfo", "/opt/rocm/bin/rocminfo")

# Seconds: a program that asks a broken driver may never come back.
TOOL_TIMEOUT = 20

PACKAGES = ("jax", "jaxlib", "numpy", "scipy")
# pip's names of what JAX uses on accelerators, and of NVIDIA's libraries that come with it.
PLUGIN = re.compile(r"jax-(cuda\d+|rocm\d+|oneapi)-(plugin|pjrt)$")
LIBRARY = re.compile(r"(nvidia-.*|libtpu)$")

# Libraries of CUDA that pip's wheels bring themselves: another copy on LD_LIBRARY_PATH would be loaded in their place.
CUDA_LIBRARIES = re.compile(
    r"lib(cudart|cudnn\w*|cublas(Lt)?|cufft|cusolver|cusparse|cupti|nccl|nvJitLink|nvrtc|nvshmem\w*)\.so"
)


class Card(NamedTuple):
    """A GPU, as its driver describes it; None where the driver does not."""

    name: str
    total: int | None = None
    """Bytes of memory, and those that are taken."""
    used: int | None = None
    capability: float | None = None
    """NVIDIA's compute capability."""

    @property
    def free(self):
        """The free bytes."""
        return None if self.total is None or self.used is None else self.total - self.used


class Accelerators(NamedTuple):
    """GPUs of one vendor that the system knows of."""

    vendor: str
    """``"NVIDIA"`` or ``"AMD"``."""
    driver: str | None
    cards: tuple[Card, ...]
    trouble: str | None
    """What stands in the way of asking, if anything."""


def accelerators():
    """Return the GPUs of this machine, by vendors."""
    return tuple(found for found in (_nvidia(), _amd()) if found is not None)


def _ask(names, *arguments):
    """Return what the first of these programs that is there answers: (text, trouble or None), or None without one."""
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        return None
    name = os.path.basename(program)
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "", f"{name} does not answer within {TOOL_TIMEOUT} s"
    except OSError as error:
        return "", f"{program} cannot be run ({error.strerror})"
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        return done.stdout, f"{name} fails with exit code {done.returncode}: {said[:200]}"
    return done.stdout, None


def _nvidia():
    asked = "--query-gpu=driver_version,memory.total,memory.used"
    rest = ("--format=csv,noheader,nounits",)
    answer = _ask(SMI, f"{asked},name,compute_cap", *rest)
    if answer is not None and not _table_rows(answer[0]):
        answer = _ask(SMI, f"{asked},name", *rest)  # drivers before 510 do not know the capability
    if answer is None:
        driver = environment.nvidia_driver()
        return driver and Accelerators("NVIDIA", driver, (), "there is no nvidia-smi to describe the GPUs")
    text, trouble = answer
    rows = _table_rows(text)  # of cards that work, also where another has fallen off
    if not rows:
        return Accelerators("NVIDIA", None, (), trouble or f"nvidia-smi reports: {' '.join(text.split())[:200]}")
    cards = (Card(row[3], _mib(row[1]), _mib(row[2]), _number(row[4:])) for row in rows)
    return Accelerators("NVIDIA", rows[0][0], tuple(cards), trouble)


def _table_rows(text):
    """Return the lines of nvidia-smi that describe a card, and not its messages."""
    split = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return [row for row in split if len(row) >= 4 and re.match(r"\d+\.\d+", row[0])]


def _number(fields):
    return float(fields[0]) if fields and re.fullmatch(r"\d+\.\d+", fields[0]) else None


def _mib(text):
    return int(text) * 2**20 if text.isdigit() else None


def _amd():
    answer = _ask(ROCMINFO)
    if answer is None:
        return None
    text, trouble = answer
    cards = []
    for agent in text.split("*******"):
        if re.search(r"Device Type:\s+GPU", agent):
            name = re.search(r"Marketing Name:[ \t]*(\S.*)", agent) or re.search(r"Name:[ \t]*(\S.*)", agent)
            cards.append(Card(name[1].strip() if name else "AMD GPU"))
    version = None
    with contextlib.suppress(OSError):
        version = Path("/opt/rocm/.info/version").read_text().strip()
    return Accelerators("AMD", version, tuple(cards), trouble or (None if cards else "rocminfo names no GPU"))


def packages():
    """Return the versions of the installed packages that matter here."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if (name in PACKAGES or PLUGIN.match(name) or LIBRARY.match(name)) and name not in found:
            found[name] = distribution.version
    return dict(sorted(found.items()))


def plugins(installed):
    """Return the platforms that plugins of JAX are installed for, as ``cuda12``."""
    return sorted({match[1] for match in map(PLUGIN.match, installed) if match})


def unmet(installed):
    """Return as sentences the requirements of JAX's plugins that the installed libraries do not meet."""
    return [
        f"{plugin} {installed[plugin]} needs {name}{wanted}, and {installed[name]} is installed"
        for plugin, name, wanted in _requirements(installed)
        if name in installed and not wanted.contains(installed[name], prereleases=True)
    ]


def missing(installed):
    """Return the libraries that JAX's plugins use and pip has not installed; those of the system may serve."""
    needed = {name for _, name, _ in _requirements(installed)}
    return sorted(name for name in needed if name.startswith("nvidia-") and name not in installed)


def _requirements(installed):
    """Yield what JAX's plugins need, by pip's records: the plugin, the package, and its versions."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for plugin in filter(PLUGIN.match, installed):
        # Also what an extra asks for, which is how the plugins name NVIDIA's libraries.
        for requirement in map(Requirement, importlib.metadata.requires(plugin) or ()):
            yield plugin, canonicalize_name(requirement.name), requirement.specifier


def shadows():
    """Return the directories on ``LD_LIBRARY_PATH`` that hold libraries of CUDA, and one library of each."""
    found = {}
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(folder) if CUDA_LIBRARIES.match(name))
            if names:
                found[folder] = names[0]
    return found


def system():
    """Describe the system, the processor and its cores that this process may use, in a line."""
    model = environment.processor("model name") or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; {model}, {cores} cores"

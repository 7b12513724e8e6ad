"""Report the machine's GPUs and installed packages, from the drivers' tools and package metadata, without JAX."""

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jax_von_mises import environment

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# JAX's names for the supported platforms.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# The oldest major version of the driver and the lowest compute capability that JAX's wheels for each CUDA release
# support. install_gpu.sh contains the same numbers, except 5.0: NVIDIA's drivers from 525 on support no older cards.
DRIVERS = {13: 580, 12: 525}
CAPABILITIES = {13: 7.5, 12: 5.0}

# The drivers' tools: first by name, for the search path, then in the directories where WSL and ROCm install them.
SMI = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi")
ROCMINFO = ("rocminfo", "/opt/rocm/bin/rocminfo")

# Timeout in seconds, since a program that queries a broken driver may hang.
TOOL_TIMEOUT = 20

PACKAGES = ("jax", "jaxlib", "numpy", "scipy")
# pip's names of JAX's plugins for accelerators, and of the vendors' libraries that JAX needs.
PLUGIN = re.compile(r"jax-(cuda\d+|rocm\d+|oneapi)-(plugin|pjrt)$")
LIBRARY = re.compile(r"(nvidia-.*|libtpu)$")

# CUDA libraries in pip's wheels; copies of them on LD_LIBRARY_PATH take precedence.
CUDA_LIBRARIES = re.compile(
    r"lib(cudart|cudnn\w*|cublas(Lt)?|cufft|cusolver|cusparse|cupti|nccl|nvJitLink|nvrtc|nvshmem\w*)\.so"
)


class Card(NamedTuple):
    """A GPU as its driver describes it; a value is None if the driver does not report it."""

    name: str
    total: int | None = None
    """Memory in bytes."""
    used: int | None = None
    """Memory in use, in bytes."""
    capability: float | None = None
    """NVIDIA's compute capability."""

    @property
    def free(self) -> int | None:
        """Free memory in bytes."""
        return None if self.total is None or self.used is None else self.total - self.used


class Accelerators(NamedTuple):
    """GPUs of one vendor, as reported by its driver."""

    vendor: str
    """``"NVIDIA"`` or ``"AMD"``."""
    driver: str | None
    cards: tuple[Card, ...]
    trouble: str | None
    """Reason why the query of the driver failed or was incomplete; None if it succeeded."""


def accelerators() -> tuple[Accelerators, ...]:
    """Return the GPUs of this machine by vendor."""
    return tuple(found for found in (_nvidia(), _amd()) if found is not None)


def _ask(names: Sequence[str], *arguments: str) -> tuple[str, str | None] | None:
    """Run the first installed program of `names`; return its output and its failure, or None if none is installed.

    The failure is None if the program succeeded.
    """
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        return None
    name = os.path.basename(program)
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "", f"{name} did not answer within {TOOL_TIMEOUT} s"
    except OSError as error:
        return "", f"{program} cannot be run ({error.strerror})"
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        return done.stdout, f"{name} failed with exit code {done.returncode}: {said[:200]}"
    return done.stdout, None


def _nvidia() -> Accelerators | None:
    fields = "--query-gpu=driver_version,memory.total,memory.used"
    rest = ("--format=csv,noheader,nounits",)
    answer = _ask(SMI, f"{fields},name,compute_cap", *rest)
    if answer is not None and not _table_rows(answer[0]):
        answer = _ask(SMI, f"{fields},name", *rest)  # drivers before 510 do not report the capability
    if answer is None:
        driver: str | None = environment.nvidia_driver()
        if not driver:
            return None
        return Accelerators("NVIDIA", driver, (), "nvidia-smi, which describes the GPUs, is not installed")
    text, trouble = answer
    rows = _table_rows(text)  # the working cards, even if another card failed
    if not rows:
        return Accelerators("NVIDIA", None, (), trouble or f"nvidia-smi reports: {' '.join(text.split())[:200]}")
    cards = (Card(row[3], _mib(row[1]), _mib(row[2]), _number(row[4:])) for row in rows)
    return Accelerators("NVIDIA", rows[0][0], tuple(cards), trouble)


def _table_rows(text: str) -> list[list[str]]:
    """Return the fields of nvidia-smi's lines that describe a card, without its messages."""
    split = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return [row for row in split if len(row) >= 4 and re.match(r"\d+\.\d+", row[0])]


def _number(fields: Sequence[str]) -> float | None:
    return float(fields[0]) if fields and re.fullmatch(r"\d+\.\d+", fields[0]) else None


def _mib(text: str) -> int | None:
    return int(text) * 2**20 if text.isdigit() else None


def _amd() -> Accelerators | None:
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
    return Accelerators("AMD", version, tuple(cards), trouble or (None if cards else "rocminfo lists no GPU"))


def packages() -> dict[str, str]:
    """Return the versions of JAX, NumPy, SciPy, JAX's plugins and the vendors' libraries, if installed."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if (name in PACKAGES or PLUGIN.match(name) or LIBRARY.match(name)) and name not in found:
            found[name] = distribution.version
    return dict(sorted(found.items()))


def plugins(installed: Iterable[str]) -> list[str]:
    """Return the platforms, such as ``cuda12``, for which a JAX plugin is installed."""
    return sorted({match[1] for match in map(PLUGIN.match, installed) if match})


def unmet(installed: Mapping[str, str]) -> list[str]:
    """Return a message for each requirement of JAX's plugins that the installed packages do not meet."""
    return [
        f"{plugin} {installed[plugin]} needs {name}{wanted}, but {installed[name]} is installed"
        for plugin, name, wanted in _requirements(installed)
        if name in installed and not wanted.contains(installed[name], prereleases=True)
    ]


def missing(installed: Mapping[str, str]) -> list[str]:
    """Return NVIDIA's libraries that JAX's plugins require and pip has not installed; the system may provide them."""
    needed = {name for _, name, _ in _requirements(installed)}
    return sorted(name for name in needed if name.startswith("nvidia-") and name not in installed)


def _requirements(installed: Mapping[str, str]) -> "Iterator[tuple[str, str, SpecifierSet]]":
    """Yield the plugin, the package and its allowed versions, for each requirement of JAX's plugins."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for plugin in filter(PLUGIN.match, installed):
        # Requirements of extras count too: the plugins list NVIDIA's libraries there.
        for requirement in map(Requirement, importlib.metadata.requires(plugin) or ()):
            yield plugin, canonicalize_name(requirement.name), requirement.specifier


def shadows() -> dict[str, str]:
    """Return the directories on ``LD_LIBRARY_PATH`` that hold CUDA libraries, each with the name of one library."""
    found = {}
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(folder) if CUDA_LIBRARIES.match(name))
            if names:
                found[folder] = names[0]
    return found


def system() -> str:
    """Describe the system, the processor and the number of cores that this process may use, on one line."""
    model = environment.processor("model name") or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; {model}, {cores} cores"

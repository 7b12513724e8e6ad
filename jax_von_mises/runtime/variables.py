"""Find mistakes in environment variables that JAX reads or is believed to read."""

import difflib
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

import jax

from jax_von_mises import environment
from jax_von_mises.runtime.configuration import ALLOCATORS, BOOLS, FRACTION, OLD_FRACTION
from jax_von_mises.runtime.flags import GONE as WRONG
from jax_von_mises.runtime.flags import HARMFUL, OFF, USELESS

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"

# Prefixes of JAX's variables, and the known variables that are not options of jax.config.
READ_BY_JAX = ("JAX_", "XLA_CLIENT_", "XLA_PYTHON_CLIENT_")
KNOWN = {
    *(FRACTION, OLD_FRACTION, PREALLOCATE, ALLOCATOR, "XLA_FLAGS"),
    *(
        f"XLA_PYTHON_CLIENT_{name}"
        for name in ("COLLECTIVE_MEM_SIZE_MB", "ABORT_COLLECTIVES_ON_FAILURE", "USE_TFRT_GPU_CLIENT")
    ),
    *(f"JAX_COORDINATOR_{name}" for name in ("ADDRESS", "BIND_ADDRESS", "PORT")),
    *("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_PARTITION_INDEX", "JAX_SLICE_INDEX"),
    *("JAX_PLATFORM_NAME", "JAX_BACKEND_TARGET", "JAX_DUMP_IR_TO", "JAX_DUMP_IR_MODES", "JAX_FORCE_TPU_INIT"),
}
HIDING = (
    *("CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES"),
)

# Prefix of this package's variables, and all their names.
OURS, OWN = "JAX_VON_MISES_", (environment.CUDA_KERNELS,)

# Some guides recommend these, but no supported release of JAX, jaxlib or the CUDA plugin reads them. Each has a remedy.
NEVER_READ = {
    "TF_XLA_CACHE_DIR": "JAX_COMPILATION_CACHE_DIR or runtime.initialize_compilation_cache() turns the cache on",
    "JAX_XLA_BACKEND_TARGET_CACHE_SIZE": (
        "JAX_COMPILATION_CACHE_DIR or runtime.initialize_compilation_cache() turns the cache on"
    ),
    "TF_FORCE_GPU_ALLOW_GROWTH": "JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false",
    "TF_XLA_FLAGS": "JAX reads XLA_FLAGS",
    "XLA_PREALLOCATE": "JAX reads XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_MEM_FRACTION": f"JAX reads {FRACTION}",
}

# Some guides also recommend variables with these prefixes, which other libraries read. Each prefix has a description
# and a remedy.
THREADS = "for JAX's threads on a CPU set PJRT_NPROC, or call runtime.configure(threads=)"
OF_OTHERS = {
    "NCCL_": (
        "is read by NCCL, through which GPUs exchange data; the sampler exchanges none",
        "keep it only for other programs that use several GPUs",
    ),
    "OMP_NUM_THREADS": ("is not read by JAX; the linear algebra of NumPy and SciPy reads it", THREADS),
    "TF_NUM_": ("is read by TensorFlow, not by JAX", THREADS),
}


class Mistake(NamedTuple):
    """A mistake in an environment variable: its level, what is wrong, and what to do."""

    level: str
    what: str
    do: str


def findings(gpus: bool) -> list[Mistake]:
    """Return the mistakes in the environment of a machine with or without `gpus`."""
    known = KNOWN | {name.upper() for name in jax.config.values} | {*OWN}
    found = [(name, *details) for name in sorted(os.environ) if (details := _unread(name, known))]
    found += [(name, level, what, do) for name, wrong, level, what, do in _values(gpus) if wrong and name in os.environ]
    return [Mistake(level, f"{name}={os.environ[name]} {what}", do) for name, level, what, do in found]


def _unread(name: str, known: set[str]) -> tuple[str, str, str] | None:
    """Return the level, description and remedy for a variable that JAX does not read; None for one that it reads."""
    if name in NEVER_READ:
        return HARMFUL, "is not read by JAX", f"unset it; {NEVER_READ[name]}"
    if name in known:
        return None
    if name.upper() in known:
        return HARMFUL, "is not read by JAX", f"write {name.upper()}, in capitals"
    rules: tuple[tuple[str | tuple[str, ...], Collection[str], str, str, str], ...] = (
        (OURS, OWN, "is not read by jax_von_mises", HARMFUL, f"unset it; jax_von_mises reads only {' and '.join(OWN)}"),
        (READ_BY_JAX, known, "is not an option of JAX", USELESS, "check whether anything else reads it, or unset it"),
    )
    for start, names, what, level, do in rules:
        if name.startswith(start):
            near = difflib.get_close_matches(name, names, 1, 0.8)
            return (HARMFUL, what, f"did you mean {near[0]}?") if near else (level, what, do)
    return next(((USELESS, *about) for start, about in OF_OTHERS.items() if name.startswith(start)), None)


def _values(gpus: bool) -> Iterator[tuple[str, bool, str, str, str]]:
    """Yield, for each check, the variable, whether its value is wrong, the level, the description and the remedy."""

    def text(name: str, default: str = "") -> str:
        return os.environ.get(name, default).strip().lower()

    new, old = FRACTION in os.environ, OLD_FRACTION in os.environ
    what = f"is set together with {FRACTION}, and JAX cannot start a GPU with both"
    yield OLD_FRACTION, new, WRONG, what, f"unset {OLD_FRACTION}"
    yield OLD_FRACTION, old and not new, USELESS, "is an old name", f"use {FRACTION}"
    for name in (FRACTION, OLD_FRACTION):
        do = "give a number above 0 and at most 1, such as 0.5"
        yield name, not _is_share(text(name, "1") or "1"), WRONG, "is not a share of the memory", do
    wrong = os.environ.get(PREALLOCATE, "") not in ("", *BOOLS)
    yield PREALLOCATE, wrong, HARMFUL, "counts as true: only false, False and 0 do not", "write false or true"
    do = f"give one of {', '.join(ALLOCATORS)}"
    yield (
        ALLOCATOR,
        text(ALLOCATOR) not in ALLOCATORS,
        WRONG,
        "is not an allocator of JAX, so JAX cannot start a GPU",
        do,
    )
    what = "requests memory from the driver for each array, which is slow"
    yield ALLOCATOR, text(ALLOCATOR) == "platform", HARMFUL, what, "unset it"
    what = "requests both CUDA and ROCm, and JAX fails if either is missing"
    yield "JAX_PLATFORMS", "gpu" in text("JAX_PLATFORMS").split(","), HARMFUL, what, "write cuda or rocm"
    yield "JAX_PLATFORM_NAME", bool(text("JAX_PLATFORM_NAME")), USELESS, "is an old name", "use JAX_PLATFORMS"
    for name in HIDING:
        hidden = gpus and text(name).split(",")[0] in ("", "-1", "nodevfiles")
        yield name, hidden, HARMFUL, "hides the GPUs", "unset it, or list those to use, such as 0,1"
    do = "give a positive integer, such as 4, or unset it"
    yield "PJRT_NPROC", not text("PJRT_NPROC").isdecimal(), HARMFUL, "is not a number of threads", do
    what = "is neither on nor off, and has no effect"
    kernels = environment.CUDA_KERNELS
    yield kernels, text(kernels) not in environment.SWITCH, HARMFUL, what, "write 1 or 0"
    what = "changes every seed, and therefore all angles"
    yield "JAX_RANDOM_SEED_OFFSET", text("JAX_RANDOM_SEED_OFFSET") != "0", HARMFUL, what, "unset it"
    slow = {
        "JAX_DISABLE_JIT": "runs every operation separately",
        "JAX_DEBUG_NANS": "checks every result, and stops at NaN",
        "CUDA_LAUNCH_BLOCKING": "makes the program wait for each kernel",
    }
    for name, what in slow.items():
        on = text(name) not in (*OFF, "", "no", "off")
        yield name, on, HARMFUL, f"{what}: slow, for debugging only", "unset it"


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False

"""Environment variables that JAX reads, or that people believe it reads."""

import difflib
import os
from typing import NamedTuple

import jax

from jax_von_mises.runtime.configuration import ALLOCATORS, FRACTION, OLD_FRACTION
from jax_von_mises.runtime.flags import GONE as WRONG
from jax_von_mises.runtime.flags import HARMFUL, OFF, USELESS
from jax_von_mises.sampling import cuda

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"

# Read by JAX or its libraries outside of jax.config; others that begin so are read by nobody.
KNOWN = {
    FRACTION,
    OLD_FRACTION,
    PREALLOCATE,
    ALLOCATOR,
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB",
    "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE",
    "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PARTITION_INDEX",
    "JAX_SLICE_INDEX",
    "JAX_PLATFORM_NAME",
    "JAX_BACKEND_TARGET",
    "JAX_DUMP_IR_TO",
    "JAX_DUMP_IR_MODES",
    "JAX_FORCE_TPU_INIT",
}
HIDING = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "JAX_ROCM_VISIBLE_DEVICES",
)
READ_BY_JAX = ("JAX_", "XLA_CLIENT_", "XLA_PYTHON_CLIENT_")

# Recommended by guides, and in no release of JAX, jaxlib or the CUDA plugin that is supported here.
NEVER_READ = {
    "TF_XLA_CACHE_DIR": "JAX_COMPILATION_CACHE_DIR or runtime.initialize_compilation_cache() turn the cache on",
    "JAX_XLA_BACKEND_TARGET_CACHE_SIZE": "JAX_COMPILATION_CACHE_DIR or runtime.initialize_compilation_cache() do",
    "TF_FORCE_GPU_ALLOW_GROWTH": "JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false",
    "TF_XLA_FLAGS": "JAX reads XLA_FLAGS",
    "XLA_PREALLOCATE": "JAX reads XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_MEM_FRACTION": f"JAX reads {FRACTION}",
}


# How those of this package begin, and all of them.
OURS, OWN = "JAX_VON_MISES_", (cuda.VARIABLE,)

# Recommended by guides, and read by libraries around JAX: by how their names begin, who reads them and what to do.
THREADS = "for JAX's threads on a CPU set PJRT_NPROC, or call runtime.configure(threads=)"
OF_OTHERS = {
    "NCCL_": (
        "is read by NCCL, through which GPUs exchange data; the sampler exchanges none",
        "keep it only for other programs over several GPUs",
    ),
    "OMP_NUM_THREADS": ("is not read by JAX; the linear algebra of NumPy and SciPy reads it", THREADS),
    "TF_NUM_": ("is read by TensorFlow, not by JAX", THREADS),
}


class Told(NamedTuple):
    """What there is to say of a variable."""

    level: str
    what: str
    do: str


def findings(gpus):
    """What is wrong, useless or of note in the environment of this process; `gpus` is whether the machine has any."""
    found = []
    given = os.environ

    def tell(level, name, what, do):
        found.append(Told(level, f"{name}={given[name]} {what}", do))

    known = KNOWN | {name.upper() for name in jax.config.values} | {*OWN}
    for name in sorted(given):
        if name in NEVER_READ:
            tell(HARMFUL, name, "is not read by JAX", f"unset it; {NEVER_READ[name]}")
        elif name.upper() in known and name not in known:
            tell(HARMFUL, name, "is not read by JAX", f"write {name.upper()}, in capitals")
        elif name.startswith(OURS) and name not in known:
            near = difflib.get_close_matches(name, OWN, 1, 0.8)
            do = f"did you mean {near[0]}?" if near else f"unset it; {' and '.join(OWN)} is read"
            tell(HARMFUL, name, "is not read by jax_von_mises", do)
        elif name.startswith(READ_BY_JAX) and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.8)
            if near:
                tell(HARMFUL, name, "is not an option of JAX", f"did you mean {near[0]}?")
            else:
                tell(USELESS, name, "is not an option of JAX", "see whether anything else reads it, or unset it")
        else:
            for start, (what, do) in OF_OTHERS.items():
                if name.startswith(start):
                    tell(USELESS, name, what, do)

    if FRACTION in given and OLD_FRACTION in given:
        tell(WRONG, OLD_FRACTION, f"beside {FRACTION}: JAX starts no GPU with both", f"unset {OLD_FRACTION}")
    elif OLD_FRACTION in given:
        tell(USELESS, OLD_FRACTION, "is an old name", f"call it {FRACTION}")
    for name in (FRACTION, OLD_FRACTION):
        if given.get(name) and not _is_share(given[name]):
            tell(WRONG, name, "is not a share of the memory", "give a number above 0 and at most 1, such as 0.5")
    if given.get(PREALLOCATE, "true") not in ("", "true", "True", "1", "false", "False", "0"):
        tell(HARMFUL, PREALLOCATE, "counts as true: only false, False and 0 do not", "write false or true")
    if given.get(ALLOCATOR, "default").lower() not in ALLOCATORS:
        tell(WRONG, ALLOCATOR, "is not an allocator of JAX: no GPU starts", f"give one of {', '.join(ALLOCATORS)}")
    elif given.get(ALLOCATOR, "").lower() == "platform":
        tell(HARMFUL, ALLOCATOR, "asks the driver for each array, which is slow", "unset it")
    if "gpu" in given.get("JAX_PLATFORMS", "").split(","):
        tell(
            HARMFUL, "JAX_PLATFORMS", "asks for CUDA and for ROCm, and JAX stops without either", "write cuda, or rocm"
        )
    if given.get("JAX_PLATFORM_NAME"):
        tell(USELESS, "JAX_PLATFORM_NAME", "is an old name", "call it JAX_PLATFORMS")
    for name in HIDING if gpus else ():
        if given.get(name, "0").split(",")[0].strip() in ("", "-1", "NoDevFiles"):
            tell(HARMFUL, name, "hides the GPUs", "unset it, or name those to use, such as 0,1")
    if not given.get("PJRT_NPROC", "1").isdecimal():
        tell(HARMFUL, "PJRT_NPROC", "is not a number of threads", "give one, such as 4, or unset it")
    if given.get(cuda.VARIABLE, "").strip().lower() not in cuda.VALUES:
        tell(HARMFUL, cuda.VARIABLE, "is neither on nor off, and has no effect", "write 1 or 0")
    if given.get("JAX_RANDOM_SEED_OFFSET", "0") != "0":
        tell(HARMFUL, "JAX_RANDOM_SEED_OFFSET", "makes every seed another, so all angles too", "unset it")
    slow = {
        "JAX_DISABLE_JIT": "runs every operation by itself",
        "JAX_DEBUG_NANS": "looks at every result, and stops at NaN",
        "CUDA_LAUNCH_BLOCKING": "makes the program wait for each kernel",
    }
    for name, what in slow.items():
        if given.get(name, "0").lower() not in (*OFF, "", "no", "off"):
            tell(HARMFUL, name, f"{what}: slow, for debugging only", "unset it")
    return found


def _is_share(text):
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False

"""Configure JAX, cache compiled programs, compile ahead of time, report memory, and diagnose problems.

================================  ====================================================================
`configure`                       set JAX's platform, memory, threads and XLA flags
`initialize_compilation_cache`    keep compiled programs on disk for later processes
`cache_info`                      show the cache's directory, and the number and size of its programs
`warmup`                          compile before the first request
`memory_report`                   report the memory of each device
`suggest_batch_size`              suggest a number of rows that fit in memory
`diagnose`                        find problems with JAX on this machine and suggest remedies
================================  ====================================================================

Importing this module changes no setting.
"""

from jax_von_mises.runtime.compilation_cache import CacheInfo, cache_info, initialize_compilation_cache
from jax_von_mises.runtime.configuration import configure
from jax_von_mises.runtime.doctor import Diagnosis, Finding, diagnose
from jax_von_mises.runtime.memory import DeviceMemory, memory_report, suggest_batch_size
from jax_von_mises.runtime.warm_up import Compiled, warmup

__all__ = [
    "CacheInfo",
    "Compiled",
    "DeviceMemory",
    "Diagnosis",
    "Finding",
    "cache_info",
    "configure",
    "diagnose",
    "initialize_compilation_cache",
    "memory_report",
    "suggest_batch_size",
    "warmup",
]


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

"""Runtime: settings of JAX, compilation cache, warm-up, export, memory and diagnosis.

================================  ====================================================================
`configure` `settings` `reset`    platform, memory, threads, flags of XLA: set, shown, undone
`initialize_compilation_cache`    compiled programs on disk, for later processes
`cache_info` `clear_cache`        what it holds and did
`warmup`                          compile before the first request
`export_sampler` `load_sampler`   a compiled sampler in a file
`memory_report`                   memory of each device
`suggest_batch_size`              how many angles fit
`diagnose`                        what is wrong with the machine, and what to do
================================  ====================================================================

Importing it changes nothing.
"""

from jax_von_mises.runtime.compilation_cache import CacheInfo, cache_info, clear_cache, initialize_compilation_cache
from jax_von_mises.runtime.configuration import Setting, configure, reset, settings
from jax_von_mises.runtime.doctor import Diagnosis, Finding, diagnose
from jax_von_mises.runtime.memory import DeviceMemory, memory_report, suggest_batch_size
from jax_von_mises.runtime.sampler_file import LoadedSampler, export_sampler, load_sampler
from jax_von_mises.runtime.warm_up import Compiled, warmup

__all__ = [
    "CacheInfo",
    "Compiled",
    "DeviceMemory",
    "Diagnosis",
    "Finding",
    "LoadedSampler",
    "Setting",
    "cache_info",
    "clear_cache",
    "configure",
    "diagnose",
    "export_sampler",
    "initialize_compilation_cache",
    "load_sampler",
    "memory_report",
    "reset",
    "settings",
    "suggest_batch_size",
    "warmup",
]


def __dir__():
    """Return the public names and those that every module has."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]

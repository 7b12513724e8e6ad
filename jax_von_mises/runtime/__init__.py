"""How the sampler is run: settings of JAX, compilation cache, compiling ahead, memory, diagnosis.

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

from jax_von_mises.runtime.compilation_cache import CacheInfo as CacheInfo
from jax_von_mises.runtime.compilation_cache import cache_info as cache_info
from jax_von_mises.runtime.compilation_cache import clear_cache as clear_cache
from jax_von_mises.runtime.compilation_cache import initialize_compilation_cache as initialize_compilation_cache
from jax_von_mises.runtime.configuration import Setting as Setting
from jax_von_mises.runtime.configuration import configure as configure
from jax_von_mises.runtime.configuration import reset as reset
from jax_von_mises.runtime.configuration import settings as settings
from jax_von_mises.runtime.doctor import Diagnosis as Diagnosis
from jax_von_mises.runtime.doctor import Finding as Finding
from jax_von_mises.runtime.doctor import diagnose as diagnose
from jax_von_mises.runtime.memory import DeviceMemory as DeviceMemory
from jax_von_mises.runtime.memory import memory_report as memory_report
from jax_von_mises.runtime.memory import suggest_batch_size as suggest_batch_size
from jax_von_mises.runtime.sampler_file import LoadedSampler as LoadedSampler
from jax_von_mises.runtime.sampler_file import export_sampler as export_sampler
from jax_von_mises.runtime.sampler_file import load_sampler as load_sampler
from jax_von_mises.runtime.warm_up import Compiled as Compiled
from jax_von_mises.runtime.warm_up import warmup as warmup

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

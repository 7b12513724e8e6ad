"""Report the memory of each device, and suggest how many angles to draw at a time."""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.request import Request, program
from jax_von_mises.von_mises import sampler

# Larger batches gain nothing: on any device, drawing this many angles takes far longer than starting a program.
AT_MOST = 2**26

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
# For each version of Linux's control groups: the line of ``/proc/self/cgroup`` that names the group, the folder of all
# groups below `CGROUPS`, the files ``memory.*`` of the limit and of the memory in use, and the entry of ``memory.stat``
# for cached file contents.
VERSIONS = (
    (r"0::(.*)", "", "max", "current", "inactive_file"),
    (r"\d+:(?:.*,)?memory(?:,.*)?:(.*)", "memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
)


class DeviceMemory(NamedTuple):
    """Memory of one device in bytes; a value is None if neither JAX nor the system reports it."""

    device: str
    """Name of the device, such as ``cuda:0`` or ``cpu:0``."""
    kind: str
    """JAX's description of the device."""
    in_use: int | None
    """Memory of this process's arrays; on a CPU, all memory of this process."""
    peak: int | None
    """Largest value of `in_use` so far."""
    limit: int | None
    """Limit of this process. On a GPU, the memory that JAX may use; on a CPU, the memory of the machine or the job."""
    free: int | None
    """Unused part of the limit; on a CPU, the memory that the system can still provide."""


def memory_report() -> tuple[DeviceMemory, ...]:
    """Report the memory of each device of this process.

    On a GPU, the numbers come from JAX's allocator (``device.memory_stats``) and do not include other processes. On a
    CPU, for which JAX has no such numbers, they describe this process and the machine, or the container or batch job (a
    control group of Linux) if that has less. Outside Linux, these need the package ``psutil``.

    Returns
    -------
    tuple of DeviceMemory
        One entry for each device in ``jax.local_devices()``.
    """
    return tuple(of_device(device) for device in jax.local_devices())


def suggest_batch_size(
    concentration: ArrayLike = 1.0,
    loc: ArrayLike = 0.0,
    shape: int | Sequence[int] = (),
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    key: ArrayLike | None = None,
    device: jax.Device | None = None,
    in_flight: int = 3,
    share: float = 0.9,
) -> int:
    """Suggest how many rows of angles to draw at a time, from the memory that the compiled program needs.

    The function compiles the sampler for a few sizes, and draws nothing.

    Parameters
    ----------
    concentration, loc : float or array
        As in `sample_von_mises`; they broadcast to the batch.
    shape : int or tuple of ints
        Shape of one row: the batch has shape ``(result, *shape)``.
    dtype, method, key
        As in `sample_von_mises`. Any key with the implementation of later calls can be given.
    device : jax.Device, optional
        One of ``jax.local_devices()``; by default JAX's default device, or else the first.
    in_flight : int
        Number of batches in memory at once. A loop over `sample_batches` has three: the current batch, the next one,
        and the one after it, which is started when the next one is requested.
    share : float
        Fraction of the free memory to use, above 0 and at most 1. The rest is for the program that uses the angles.

    Returns
    -------
    int
        Number of rows. A batch has at most 2^26 angles, since larger ones gain nothing, or one row if that is longer.

    Raises
    ------
    MemoryError
        Not even one row fits, or the device does not report its free memory or how much memory a program needs.
    """
    caller = "suggest_batch_size"
    sizes = arguments.whole_sizes(caller, "shape", shape)
    in_flight = arguments.whole_number(caller, "in_flight", in_flight, 1)
    share = arguments.fraction(caller, "share", share)
    config: Any = jax.config
    if device is None:
        device = config.jax_default_device or jax.local_devices()[0]
        device = device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]
    elif not isinstance(device, jax.Device):
        raise TypeError(
            f"{caller}: device={arguments.safe_repr(device)} must be a JAX device, such as jax.local_devices()[0]."
        )
    key = jax.random.key(0) if key is None else key

    def request(rows: int) -> Request:
        of_batch = rows, *sizes
        values = {"loc": loc, "concentration": concentration}
        part = Request.of(caller, sampler.VON_MISES, key, values, of_batch, dtype, method, by_size=False)
        return part.at(0)

    def need(rows: int) -> int:
        """Return the bytes that `in_flight` batches of `rows` rows and their program need."""
        batch = request(rows)
        with jax.default_device(device):
            compiled = program.lower(batch).compile()
        found = compiled.memory_analysis()
        if found is None:
            raise MemoryError(
                f"{caller}: {named(device)} does not report how much memory a program needs. Choose a size yourself."
            )
        needed: int = found.argument_size_in_bytes + found.temp_size_in_bytes + in_flight * found.output_size_in_bytes
        return needed

    size = max(1, math.prod(sizes))
    free = of_device(device).free
    if free is None:
        raise MemoryError(f"{caller}: {named(device)} does not report how much memory is free. Choose a size yourself.")
    budget = int(share * free)
    # Start with as many rows as the results alone allow; only a compiled program shows how much more memory it needs.
    item = request(1).dtype.itemsize
    rows = max(1, min(AT_MOST // size, budget // (in_flight * size * item)))
    while (used := need(rows := _rounded(rows))) > budget:
        if rows == 1:
            raise MemoryError(
                f"{caller}: one row of {size} angles needs {used} bytes, but only {budget} are available ({share:g} of "
                f"the free memory of {named(device)}). Free some memory, or draw shorter rows."
            )
        rows = max(1, min(rows - 1, rows * budget // used))
    return rows


def _rounded(rows: int) -> int:
    """Round down to five significant bits, since fewer sizes mean fewer programs to compile."""
    step = 1 << max(0, rows.bit_length() - 5)
    return rows // step * step


def named(device: jax.Device) -> str:
    """Return the name of a device, such as ``cuda:0``."""
    return f"{device.platform}:{device.id}"


def of_device(device: jax.Device) -> DeviceMemory:
    """Return the `DeviceMemory` of a device."""
    if device.platform == "cpu":
        return DeviceMemory(named(device), device.device_kind, *_of_process(), *host_memory())
    stats: dict[str, int] = {}
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the backend does not implement the call
        stats = device.memory_stats() or {}
    in_use, limit = stats.get("bytes_in_use"), stats.get("bytes_limit")
    free = None if in_use is None or limit is None else limit - in_use
    return DeviceMemory(named(device), device.device_kind, in_use, stats.get("peak_bytes_in_use"), limit, free)


def _of_process() -> tuple[int | None, int | None]:
    """Return the current and the peak resident memory of this process, in bytes."""
    if PROC.is_dir():
        found = _table("self/status")
        return found.get("VmRSS"), found.get("VmHWM")
    with contextlib.suppress(ImportError):
        import psutil

        return psutil.Process().memory_info().rss, None
    return None, None


def host_memory() -> tuple[int | None, int | None]:
    """Return the memory of the machine, or of the job if it has less, and the free memory; None if unknown."""
    pairs = list(_control_groups())
    if PROC.is_dir():
        machine = _table("meminfo")
        pairs.append((machine["MemTotal"], machine["MemAvailable"]))
    else:
        with contextlib.suppress(ImportError):
            import psutil

            found = psutil.virtual_memory()
            pairs.append((found.total, found.available))
    if not pairs:
        return None, None
    limits, frees = zip(*pairs, strict=True)
    return min(limits), max(0, min(frees))


def _table(name: str) -> dict[str, int]:
    """Return the sizes in a file of Linux's ``/proc``, in bytes by name."""
    lines = re.findall(r"^(\w+):\s*(\d+) kB$", (PROC / name).read_text(), re.M)
    return {name: int(size) * 1024 for name, size in lines}


def _control_groups() -> Iterator[tuple[int, int]]:
    """Yield the limit and the free memory of each control group of this process, as containers and batch jobs have."""
    lines = ""
    with contextlib.suppress(OSError):
        lines = (PROC / "self" / "cgroup").read_text()
    for line, root, of_limit, of_usage, cached in VERSIONS:
        for path in re.findall(f"^{line}$", lines, re.M):
            groups = CGROUPS / root
            # In a container, the path may be the host's, in which case the group's files are at the root.
            below = groups / path.strip("/")
            for folder in (below, *(above for above in below.parents if above.is_relative_to(groups))):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    # "max", which means no limit, is not a number.
                    limit = int((folder / f"memory.{of_limit}").read_text())
                    stats = dict(entry.split() for entry in (folder / "memory.stat").read_text().splitlines())
                    # Cached file contents count as used, but can be dropped.
                    used = int((folder / f"memory.{of_usage}").read_text()) - int(stats[cached])
                    yield limit, limit - used

"""Report how much memory there is, and how many angles fit into it."""

import contextlib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.sampling import sampler
from jax_von_mises.sampling.request import DrawRequest

# So many angles take milliseconds on any device, and starting a program takes far less. Larger batches gain nothing.
AT_MOST = 2**30

CGROUPS = Path("/sys/fs/cgroup")


class DeviceMemory(NamedTuple):
    """Memory of one device, in bytes; None if neither JAX nor the system reports it."""

    device: str
    """As ``cuda:0`` or ``cpu:0``."""
    kind: str
    """What the device calls itself."""
    in_use: int | None
    """Taken by the arrays of this process; on a CPU, by all of this process."""
    peak: int | None
    """The most that ever was."""
    limit: int | None
    """What this process may take in all, which is JAX's share of a GPU; on a CPU, the machine or the job's limit."""
    free: int | None
    """What is left of it; on a CPU, what the system can still give."""


def memory_report() -> tuple[DeviceMemory, ...]:
    """Report the memory of each device of this process.

    On a GPU these are the numbers of JAX's allocator (``device.memory_stats``), which has set aside its share of the
    memory; what other processes take of a GPU is not among them. A CPU has no such numbers (there it is None): they are
    those of this process and of the machine, or of the job's limit (a control group, ``ulimit``) where that is lower.

    Returns
    -------
    tuple of DeviceMemory
        One for each of ``jax.local_devices()``.
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

    Parameters
    ----------
    concentration, loc : float or array
        As in `sample_von_mises`; they broadcast to `shape`.
    shape : int or tuple of ints
        Shape of one row: the batch is of shape ``(result, *shape)``.
    dtype, method, key
        As in `sample_von_mises`; `key` is any key of the implementation that is used.
    device : jax.Device, optional
        One of ``jax.local_devices()``; the first, or JAX's default device, by default.
    in_flight : int
        Batches that are in memory at once. In a loop over `sample_batches` there are three: the one that the loop has,
        the next one, and the one after it, which is begun when the next is asked for.
    share : float
        Share of the free memory to use, above 0 and at most 1. The rest is for what the program does with the angles.

    Returns
    -------
    int
        Rows; at most 2^30 angles, beyond which there is nothing to gain.

    Raises
    ------
    MemoryError
        Not even one row fits.
    """
    caller = "suggest_batch_size"
    shape = arguments.whole_sizes(caller, "shape", shape)
    in_flight = arguments.whole_number(caller, "in_flight", in_flight, 1)
    share = checked_share(caller, "share", share)
    if device is None:
        device = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]  # JAX's stubs lack it
        device = device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]
    elif not isinstance(device, jax.Device):
        raise TypeError(
            f"{caller}: device={arguments.safe_repr(device)} must be a device of JAX, such as jax.local_devices()[0]."
        )
    key = jax.random.key(0) if key is None else key

    def request(rows):
        return DrawRequest.part(caller, key, loc, concentration, (rows, *shape), dtype, method).at(0)

    def need(rows):
        """Return the bytes for batches of so many rows."""
        batch = request(rows)
        with jax.default_device(device):
            compiled = sampler.PLAIN.new.lower(batch, batch.engine()).compile()
        found = compiled.memory_analysis()
        if found is None:
            raise MemoryError(
                f"{caller}: {named(device)} does not report what a program needs. Choose a size yourself."
            )
        return found.argument_size_in_bytes + found.temp_size_in_bytes + in_flight * found.output_size_in_bytes

    size = max(1, math.prod(shape))
    free = of_device(device).free
    if free is None:
        raise MemoryError(f"{caller}: {named(device)} does not report how much memory is free. Choose a size yourself.")
    budget = int(share * free)
    # The results alone allow that many; what the program needs in addition shows when it is compiled for it.
    item = request(1).dtype.itemsize
    rows = max(1, min(AT_MOST // size, budget // (in_flight * size * item)))
    while (used := need(rows := _rounded(rows))) > budget:
        if rows == 1:
            raise MemoryError(
                f"{caller}: one row of {size} angles needs {used} bytes, and {budget} are there ({share:g} of what is "
                f"free on {named(device)}). Free memory, or draw shorter rows."
            )
        rows = max(1, min(rows - 1, rows * budget // used))
    return rows


def checked_share(caller, name, value):
    """Return `value`, a share of the memory, as a float above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{caller}: {name}={arguments.safe_repr(value)} must be a number.")
    if not 0 < value <= 1:
        raise ValueError(f"{caller}: {name}={arguments.safe_repr(value)} must be above 0 and at most 1.")
    return float(value)


def _rounded(rows):
    """Return the next number below with five significant bits: few sizes are few programs to compile."""
    step = 1 << max(0, rows.bit_length() - 5)
    return rows // step * step


def named(device):
    """Return a device's name, as ``cuda:0``."""
    return f"{device.platform}:{device.id}"


def of_device(device):
    """Return the `DeviceMemory` of a device."""
    try:
        stats = device.memory_stats()
    except jax.errors.JaxRuntimeError:  # of backends that have no such call
        stats = None
    if stats is None:
        stats = {}
        if device.platform == "cpu":
            in_use, peak = _of_process()
            limit, free = host_memory()
            return DeviceMemory(named(device), device.device_kind, in_use, peak, limit, free)
    in_use, limit = stats.get("bytes_in_use"), stats.get("bytes_limit")
    free = None if in_use is None or limit is None else limit - in_use
    return DeviceMemory(named(device), device.device_kind, in_use, stats.get("peak_bytes_in_use"), limit, free)


def _of_process():
    """Return the bytes of this process in memory: now, and at most."""
    found = _table("/proc/self/status")
    return found.get("VmRSS"), found.get("VmHWM")


def _table(path):
    """Return the sizes in a table of the kernel, in bytes by name; none where the system has no such table."""
    with contextlib.suppress(OSError):
        lines = re.findall(r"^(\w+):\s*(\d+) kB$", Path(path).read_text(), re.M)
        return {name: int(size) * 1024 for name, size in lines}
    return {}


def host_memory():
    """Return the bytes that this process may have in all, and those still free; None if the system does not report it.

    They are those of the machine, or of a limit where one is lower.
    """
    machine = _table("/proc/meminfo")
    pairs = [*_control_groups(), *_process_limits()]
    if machine:
        pairs.append((machine["MemTotal"], machine["MemAvailable"]))
    if not pairs:
        return None, None
    limits, frees = zip(*pairs, strict=True)
    return min(limits), max(0, min(frees))


def _control_groups():
    """Yield the limits of the control groups that this process is in, as containers and batch systems set them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _levels(CGROUPS, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _levels(CGROUPS / "memory", path, *names)


def _levels(root, path, limit, usage, cached):
    """Yield the limit of a control group and of those above it, and what is free; where they have a limit."""
    # Within a container the path is that of the host, and the files lie at the root.
    below = root / path.strip("/")
    for folder in (below, *(above for above in below.parents if above.is_relative_to(root))):
        with contextlib.suppress(OSError, ValueError, KeyError):
            most = int((folder / limit).read_text())  # "max" is no number: no limit
            stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # What was read from files counts as used, and can be dropped.
            yield most, most - int((folder / usage).read_text()) + int(stats[cached])


def _process_limits():
    """Yield the limits of ``ulimit -v`` and its like, and what is free of them."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        sizes = Path("/proc/self/statm").read_text().split()
        page = os.sysconf("SC_PAGE_SIZE")
        for name, pages in (("RLIMIT_AS", sizes[0]), ("RLIMIT_DATA", sizes[5])):
            most = resource.getrlimit(getattr(resource, name))[0]
            if most != resource.RLIM_INFINITY:
                yield most, most - int(pages) * page

"""Decide whether to draw with one of this package's CUDA kernels, and report the path taken on CUDA devices.

XLA compiles a draw into several kernels with intermediate arrays in memory. A kernel of ``kernels/angles.cu`` draws in
one pass: all intermediate values stay in registers, and only the angles are written to memory. The path through XLA,
without such a kernel, is the *plain path*. The environment variable `VARIABLE` turns the kernels on or off. The plain
path is used if

- there is no CUDA device, or a device is too old for the kernels;
- there are several CUDA devices, since XLA cannot split a kernel over devices, and the last digits should not depend on
  whether a draw is split. Kernels that are turned on are nevertheless used inside `jax.shard_map` and `jax.pmap`;
- a parameter is on a mesh with explicit axes, or the mesh in scope has axes that are not manual;
- the dtype is float64, `out_sharding` is given, or the result is empty;
- the kernels are turned off;
- the kernels are neither turned on nor off, and have not passed their trial on this machine (`cuda_verdict`). A kernel
  that faults destroys all the process's data on the device, so the trial runs in a child process;
- the kernels are turned on but have not passed their trial, and the kernel in question fails its self-test in this
  process (`cuda_self_test`);
- the program is lowered for `jax.export` or for several devices, or `jax.vmap` would repeat a table (`cuda_launch`);
- the angles are written to a file, or drawn by Dask or by the workers of an executor (`jax_von_mises.streams`).
"""

import functools
import logging
import math
import os
from typing import TYPE_CHECKING

import jax
from jax.sharding import AxisType

from jax_von_mises.numerics.sharding import explicit
from jax_von_mises.sampling import cuda_launch, cuda_self_test, cuda_verdict

if TYPE_CHECKING:
    from jax_von_mises.sampling.request import DrawRequest

__all__ = ["FAILED", "VARIABLE", "kernel_report", "setting", "tried", "use_cuda_kernel"]

# "0" turns the kernels off; "1" turns them on, even with several devices or processes, for each device separately.
VARIABLE = "JAX_VON_MISES_CUDA_KERNEL"
VALUES = {"0": "off", "false": "off", "off": "off", "1": "on", "true": "on", "on": "on", "": "auto", "auto": "auto"}
# The beginning of the report of a failed self-test.
FAILED = "the self-test failed for"

log = logging.getLogger("jax_von_mises")


def setting() -> str:
    """Return the setting of the environment: "off", "on" or "auto"."""
    return VALUES.get(os.environ.get(VARIABLE, "").strip().lower(), "auto")


def whole_on_one_device(*arrays: jax.Array) -> bool:
    """Return whether the current program runs on one device, or separately on each device of a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.device_count(cuda_launch.PLATFORM) == 1 and not explicit(arrays)
    return all(kind == AxisType.Manual for kind in mesh.axis_types)


def allowed() -> bool:
    """Return whether the environment, the number of devices (of all processes) and the trial allow a kernel."""
    wish = setting()
    return wish == "on" or (wish == "auto" and jax.device_count(cuda_launch.PLATFORM) == 1 and tried())


def tried() -> bool:
    """Return whether the kernels passed their trial on this machine."""
    return cuda_verdict.passed()


def use_cuda_kernel(request: "DrawRequest") -> bool:
    """Return whether a kernel draws a request on CUDA devices."""
    has_kernel = request.dtype.name in cuda_launch.KERNEL_DTYPES
    if not cuda_launch.devices() or not has_kernel or request.out_sharding is not None:
        return False
    if math.prod(request.shape) == 0 or not whole_on_one_device(request.loc, request.concentration):
        return False
    if not allowed():
        if setting() == "auto" and jax.device_count(cuda_launch.PLATFORM) == 1:
            warn()
        return False
    return tried() or cuda_self_test.passes(cuda_launch.KernelSpec.of(request))


def why_not() -> str:
    """Return a text that explains why the trial does not allow the kernels."""
    detail = [
        f"the CUDA kernels failed their trial on {kind}: {failed}"
        if failed
        else f"the CUDA kernels have no verdict on {kind}"
        for kind, failed in cuda_verdict.find().items()
        if failed != ""
    ]
    return f"{', '.join(detail)}; `{cuda_verdict.TRIED_BY}` tries them"


@functools.cache
def warn() -> None:
    """Log once that the trial does not allow the kernels."""
    ways = f"{VARIABLE}=1 uses them after a test in each process, {VARIABLE}=0 silences this warning"
    log.warning("angles are drawn by the plain path: %s (%s)", why_not(), ways)


def kernel_report() -> str | None:
    """Return a text that names the path by which CUDA devices draw, and explains why; None without such a device."""
    if not cuda_launch.devices():
        return None
    if not allowed():
        if setting() == "off":
            return f"the plain path: {VARIABLE} turns the CUDA kernels off"
        if jax.device_count(cuda_launch.PLATFORM) > 1:
            use = f"{VARIABLE}=1 allows the kernels in jax.shard_map and jax.pmap"
            return f"the plain path, since there are several devices; {use}"
        return f"the plain path: {why_not()}"
    if tried():
        return "the CUDA kernels, which passed their trial"
    verdicts = cuda_self_test.verdicts()
    faults = [f"the plain path, since {FAILED} {name}: {fault}" for name, fault in verdicts.items() if fault]
    passed = [name for name, fault in verdicts.items() if not fault]
    lines = [f"the CUDA kernels {', '.join(passed)}"] * bool(passed) + faults
    return "; ".join(lines) or "the plain path: no CUDA kernel supports any of the draws so far"

"""Decide whether a draw goes to one of the package's CUDA kernels, and report what CUDA devices draw by.

XLA makes several kernels of a draw, with numbers between them in memory. A kernel of ``kernels/angles.cu`` draws in one
pass: words, quantile, direction and wrap in registers, and only the angles are written. The plain path defines what a
draw is, and takes every draw where

- there is no CUDA device, or more than one: XLA cannot split a kernel over devices, and last digits should not depend
  on whether it has to. `VARIABLE` allows kernels inside `jax.shard_map` and `jax.pmap`;
- the dtype is float64, or `out_sharding` is given;
- the environment turns the kernels off, or says nothing and they have not passed their trial on this machine
  (`cuda_verdict`): a kernel that faults loses everything that the process has on the device, so a child process tries
  them;
- the environment turns the kernels on, they have not passed their trial, and this one fails its self-test in the
  process (`cuda_self_test`);
- the program is lowered for `jax.export` or for several devices, or a map would repeat a table (`cuda_launch`);
- a file is drawn (`streams.writer`).
"""

import functools
import logging
import math
import os

import jax
from jax.sharding import AxisType

from jax_von_mises.numerics.sharding import explicit
from jax_von_mises.sampling import cuda_launch, cuda_self_test, cuda_verdict

__all__ = ["FAILED", "VARIABLE", "kernel_report", "setting", "tried", "use_cuda_kernel"]

# "0" turns the kernels off; "1" also allows them where there are several devices or processes, for each by itself.
VARIABLE = "JAX_VON_MISES_CUDA_KERNEL"
VALUES = {"0": "off", "false": "off", "off": "off", "1": "on", "true": "on", "on": "on", "": "auto", "auto": "auto"}
# How the report of a failed self-test begins.
FAILED = "the test was failed by"

log = logging.getLogger("jax_von_mises")


def setting():
    """Return what the environment asks for: "off", "on" or "auto"."""
    return VALUES.get(os.environ.get(VARIABLE, "").strip().lower(), "auto")


def whole_on_one_device(*arrays):
    """Whether the program that is traced, if any, is for one device, or for each device of a mesh by itself."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.device_count(cuda_launch.PLATFORM) == 1 and not explicit(arrays)
    return all(kind == AxisType.Manual for kind in mesh.axis_types)


def allowed():
    """Whether the environment, the number of devices, of all processes, and the trial allow a kernel."""
    wish = setting()
    return wish == "on" or (wish == "auto" and jax.device_count(cuda_launch.PLATFORM) == 1 and tried())


def tried():
    """Whether the kernels passed their trial on this machine."""
    return cuda_verdict.passed()


def use_cuda_kernel(request):
    """Whether a `DrawRequest` goes to a kernel on CUDA devices."""
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


def why_not():
    """Return in words why the trial does not allow the kernels."""
    detail = [
        f"they failed it on {kind}: {failed}" if failed else f"there is no verdict for {kind}"
        for kind, failed in cuda_verdict.find().items()
        if failed != ""
    ]
    return f"`{cuda_verdict.TRIED_BY}` tries the CUDA kernels, and {', '.join(detail)}"


@functools.cache
def warn():
    """Log once that the trial does not allow the kernels."""
    ways = f"{VARIABLE}=1 uses them after a test in each process, {VARIABLE}=0 silences this"
    log.warning("angles are drawn by the plain path: %s (%s)", why_not(), ways)


def kernel_report():
    """Return in words what CUDA devices draw by, and why; None without such a device."""
    if not cuda_launch.devices():
        return None
    if not allowed():
        if setting() == "off":
            return f"the plain path: {VARIABLE} turns the CUDA kernels off"
        if jax.device_count(cuda_launch.PLATFORM) > 1:
            return f"the plain path, with several devices; {VARIABLE}=1 allows kernels in jax.shard_map and jax.pmap"
        return f"the plain path: {why_not()}"
    if tried():
        return "the CUDA kernels, which passed their trial"
    verdicts = cuda_self_test.verdicts()
    faults = [f"the plain path, since {FAILED} {name}: {fault}" for name, fault in verdicts.items() if fault]
    passed = [name for name, fault in verdicts.items() if not fault]
    lines = [f"the CUDA kernels {', '.join(passed)}"] * bool(passed) + faults
    return "; ".join(lines) or "the plain path: no draw yet that a CUDA kernel is for"

"""Draws in one CUDA kernel: words, quantile, direction and wrap in registers, nothing but the angles in memory.

XLA makes several kernels of a draw, with numbers between them in memory. The kernels of ``kernels/angles.cu`` make one;
they are shipped as PTX, a text that the driver compiles for the GPU at hand, so that neither a compiler nor a toolkit
is needed. The plain path stays the meaning, and takes every draw where

- there is no CUDA device, or more than one: XLA cannot cut a kernel over devices, and last places should not depend on
  whether it has to. Where the environment allows it (`VARIABLE`) kernels draw inside of `jax.shard_map` and `jax.pmap`;
- the dtype is float64, or the angles go to a sharding that is named;
- the environment says so, or says nothing on a kind of card on which nobody has tried the kernels (`ACCEPTED`): one
  that faults would take all that the process has on the device with it, and no test in the process could undo that;
- the kernel failed its test: before its first use in a process it draws some thousand angles, which are compared with
  those of the plain path.

XLA takes the kernels by a custom call that is no stable interface of it: the test, which any error fails, is what
allows its use. For the same reason `jax.export` refuses a program with one, unless it is given
``disabled_checks=[DisabledSafetyCheck.custom_call(TARGET)]``. JAX tells nobody who is traced that it exports, so the
plain path cannot be taken for it by itself; `VARIABLE` turns the kernels off.
"""

import functools
import logging
import math
import os
import re
import threading
from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from jax_von_mises.numerics import piecewise, tail_integral, xla
from jax_von_mises.numerics.circle import largest_angle, reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.sharding import broadcast_sharded, explicit
from jax_von_mises.sampling import counter, transform

__all__ = [
    "ACCEPTED",
    "FAILED",
    "VARIABLE",
    "KernelSpec",
    "cipher_of",
    "draw_by_kernel",
    "kernel_report",
    "setting",
    "use_cuda_kernel",
]

# Kinds of devices, as JAX names them, on which ``python -m benchmarks.gpu_acceptance`` has passed.
ACCEPTED: tuple[str, ...] = ()
# "0" turns the kernels off; "1" also allows them where there are several devices or processes, for each by itself.
VARIABLE = "JAX_VON_MISES_CUDA_KERNEL"
VALUES = {"0": "off", "false": "off", "off": "off", "1": "on", "true": "on", "on": "on", "": "auto", "auto": "auto"}
PLATFORM, TARGET = "cuda", "__gpu$xla.gpu.ptx"
KERNEL_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # `Kind` of angles.cu
# Of angles.cu: which operands have a row for each row of the result, and an element for each element.
KEY_ROWS, START_ROWS, CONCENTRATION_ROWS, LOC_ROWS, CONCENTRATIONS, LOCS = (1 << j for j in range(6))
BLOCK_THREADS = 256
# For each multiprocessor: enough blocks, of all rows together, that all end at about the same time, and few enough that
# filling their tables of 8 KiB is nothing.
BLOCKS = 16
MULTIPROCESSORS = 132  # where a device does not tell
MOST_ROWS = 65535  # of a grid's second dimension; the kernel goes round

# A test: angles, and where in a stream they begin, which is inside a block and before a carry.
TESTED = 4099
TESTED_FROM = (0, 2**32 - 6)
# Twice what either path may be off, and the rounding of `loc`. Far below the distance of different angles.
SELF_TEST_TOLERANCE, SELF_TEST_ROUNDING = 4e-6, 1e-6
# Seconds for a test; then it has failed. The driver compiles a kernel in well under one.
TIMEOUT = 120
# How a report of one that failed begins.
FAILED = "the test was failed by"

log = logging.getLogger("jax_von_mises")
_lock = threading.Lock()
# What is known of each kernel, by name: None for one that passed, else why it did not.
_verdicts: dict[str, str | None] = {}


class KernelSpec(NamedTuple):
    """What a kernel's launch depends on beside its operands."""

    cipher: str
    method: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def name(self):
        """The kernel's name in the PTX; with the direct route one kernel rounds to every dtype."""
        return f"{self.cipher}_table_{self.dtype}" if self.method == "table" else f"{self.cipher}_direct"


def setting():
    """What the environment asks for: "off", "on" or "auto"."""
    return VALUES.get(os.environ.get(VARIABLE, "").strip().lower(), "auto")


@functools.cache
def devices():
    """One CUDA device of this process for each kind."""
    try:
        found = jax.local_devices(backend=PLATFORM)
    except Exception:  # no such backend, or one that does not start
        return ()
    return tuple({device.device_kind: device for device in found}.values())


def cipher_of(key):
    """The name of the cipher that makes a key's words."""
    generator = counter.GENERATORS.get(str(jax.random.key_impl(key)))
    return generator.cipher.__name__ if generator else "threefry4x32"


def whole_on_one_device(*arrays):
    """Whether the program that is traced, if any, is for one device, or for each device of a mesh by itself."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.device_count(PLATFORM) == 1 and not explicit(arrays)
    return all(kind == AxisType.Manual for kind in mesh.axis_types)


def allowed():
    """Whether the environment and the number of devices, of all processes, leave room for a kernel."""
    wish = setting()
    return wish == "on" or (wish == "auto" and jax.device_count(PLATFORM) == 1 and accepted())


def accepted():
    """Whether somebody has tried the kernels on each kind of device here."""
    return all(device.device_kind in ACCEPTED for device in devices())


def use_cuda_kernel(request):
    """Whether a `DrawRequest` goes to a kernel on CUDA devices."""
    if not devices() or request.dtype.name not in KERNEL_DTYPES or request.out_sharding is not None:
        return False
    if math.prod(request.shape) == 0 or not allowed() or not whole_on_one_device(request.loc, request.concentration):
        return False
    return passes_self_test(KernelSpec(cipher_of(request.key), request.route, request.dtype.name, request.shape))


def passes_self_test(job):
    """Whether the job's kernel has passed its test, which is made once in a process."""
    with _lock:
        if job.name not in _verdicts:
            _verdicts[job.name] = fault = _tested(job)
            log.debug("CUDA kernel %s: %s", job.name, fault or "agrees with the plain path, and is used")
        return _verdicts[job.name] is None


def kernel_report():
    """What CUDA devices draw by, and why, in words; None without such a device."""
    if not devices():
        return None
    if not allowed():
        if setting() == "off":
            return f"the plain path: {VARIABLE} turns the CUDA kernels off"
        if not accepted():
            kinds = ", ".join(device.device_kind for device in devices())
            return f"the plain path: nobody has accepted the CUDA kernels on {kinds} so far; {VARIABLE}=1 turns them on"
        return f"the plain path, with several devices; {VARIABLE}=1 allows CUDA kernels in jax.shard_map and jax.pmap"
    with _lock:
        faults = [f"the plain path, since {FAILED} {name}: {fault}" for name, fault in _verdicts.items() if fault]
        passed = [name for name, fault in _verdicts.items() if not fault]
    lines = [f"the CUDA kernels {', '.join(passed)}"] * bool(passed) + faults
    return "; ".join(lines) or "the plain path: no draw yet that a CUDA kernel is for"


def _tested(job):
    """None if the job's kernel is right on every kind of device here, else what is wrong.

    In a thread of its own: a draw may be traced here, and no trace, mesh or default device of it reaches there; and it
    can be given up.
    """
    outcome = ["no answer"]

    def test():
        try:
            outcome[0] = next(filter(None, (_difference(job, device) for device in devices())), None)
        except Exception as error:
            outcome[0] = f"{type(error).__name__}: {str(error).strip()[:300]}"

    try:
        thread = threading.Thread(target=test, name="test of a CUDA kernel", daemon=True)
        thread.start()
        thread.join(TIMEOUT)
    except RuntimeError as error:  # the interpreter is shutting down
        return str(error)
    return f"no answer within {TIMEOUT} s" if thread.is_alive() else outcome[0]


def _difference(job, device):
    """What is wrong with the kernel on a device, or None."""
    # What one kernel rounds to several dtypes is tested in each: whoever draws next has the verdict of all.
    dtypes = KERNEL_DTYPES if job.method == "direct" else (job.dtype,)
    job = job._replace(dtype="float32", shape=(TESTED,))
    words = {"threefry2x32": 2, "threefry4x32": 4, "philox2x32": 1, "philox4x32": 2}[job.cipher]
    key = np.arange(words, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(12345)
    kappa = np.float32(4) if job.method == "table" else np.geomspace(1e-3, 1e6, TESTED, dtype=np.float32)
    loc = np.float32(2.5)
    allowed = (
        SELF_TEST_TOLERANCE / np.sqrt(np.maximum(kappa, 1)) + SELF_TEST_ROUNDING + 4 * float(jnp.finfo(jnp.float32).eps)
    )
    plain = jax.jit(functools.partial(_plain, job))
    fused = {dtype: jax.jit(functools.partial(_launch, job._replace(dtype=dtype))) for dtype in dtypes}
    for start in TESTED_FROM:
        given = key, np.array([start >> 32, start % 2**32], np.uint32), loc, kappa
        expected = np.asarray(plain(*jax.device_put(given, beside(device))), np.float64)
        for dtype, draw in fused.items():
            ours = jax.device_get(draw(*jax.device_put(given, device)))
            if not _rounded_from(ours, expected, allowed).all():
                apart = np.abs(np.mod(ours.astype(np.float64) - expected + np.pi, 2 * np.pi) - np.pi)
                told = f"its {dtype} angles are up to {np.nanmax(apart):.1e} away from the plain path's"
                return f"on {device.device_kind} {told}"
    return None


def _rounded_from(ours, expected, allowed):
    """Which of `ours`, of any dtype, are the rounding of an angle that is as near to the `expected` one as `allowed`.

    Rounding keeps order, so they lie between two roundings. A short float's own spacing is no part of what is allowed:
    it is thousands of times as wide.
    """
    largest = largest_angle(np.float32)
    # To both sides of where the circle is cut, too.
    places = expected + 2 * np.pi * np.array([-1.0, 0.0, 1.0])[:, None]
    there = np.abs(places) <= np.pi + allowed
    ends = (np.clip(places + side * allowed, -largest, largest).astype(ours.dtype) for side in (-1, 1))
    least, most, ours = (x.astype(np.float64) for x in (*ends, ours))
    return (there & (least <= ours) & (ours <= most)).any(axis=0)


def beside(device):
    """Where the plain path draws for comparison: on the CPU if there is one, for which it is compiled in less time."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except Exception:  # JAX_PLATFORMS may leave it out
        return device


@functools.cache
def _ptx():
    """The head of the shipped text, and each kernel's part."""
    text = resources.files("jax_von_mises.sampling").joinpath("kernels", "angles.ptx").read_text(encoding="ascii")
    head, *parts = re.split(r"(?=^\.visible \.entry )", text, flags=re.M)
    return head, {re.match(r"\.visible \.entry (\w+)\(", part)[1]: part for part in parts}


def draw_by_kernel(job, key, start, loc, kappa):
    """Angles of a `KernelSpec`, by its kernel on CUDA devices and by the plain path elsewhere.

    Parameters
    ----------
    job : Job
    key : uint32 array
        The words of the key, as from `counter.key_words`.
    start : pair of uint32, or None
        Position of the first angle in the stream; None for 0.
    loc, kappa : float32 arrays
        As in `transform.angles`.

    Returns
    -------
    array of the job's shape and dtype
        With the derivatives of `transform.angles`: by the implicit function theorem at the angle drawn.
    """
    start = jnp.zeros(2, jnp.uint32) if start is None else jnp.stack([jnp.asarray(half, jnp.uint32) for half in start])
    return _draw_by_kernel(job, key, start, loc, kappa)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _draw_by_kernel(job, key, start, loc, kappa):
    ours = {PLATFORM: functools.partial(_launch, job)}
    return lax.platform_dependent(key, start, loc, kappa, default=functools.partial(_plain, job), **ours)


@_draw_by_kernel.defjvp
def _draw_by_kernel_jvp(job, primals, tangents):
    key, start, loc, kappa = primals

    def moved(loc, kappa):
        x = _about_zero(job._replace(dtype="float32"), key, start, kappa)
        direction = broadcast_sharded(reduce_turns(loc), job.shape, None)
        return wrap(x, direction).astype(job.dtype)

    return jax.jvp(moved, (loc, kappa), tangents[2:])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _about_zero(job, key, start, kappa):
    """Angles about 0, float32: with their signs they are all that a derivative asks for."""
    return _draw_by_kernel(job, key, start, jnp.zeros_like(kappa, shape=()), kappa)


@_about_zero.defjvp
def _about_zero_jvp(job, primals, tangents):
    key, start, kappa = primals
    x = _about_zero(job, key, start, kappa)
    # In here, so that the derivative is NaN where the angle is.
    kappa = broadcast_sharded(valid(kappa), job.shape, None)
    slope = jnp.where(x < 0, -1, 1).astype(x.dtype) * tail_integral.derivative(jnp.abs(x), kappa)
    return x, slope * broadcast_sharded(tangents[2], job.shape, None)


def _plain(job, key, start, loc, kappa):
    """What a kernel computes, for XLA."""

    def angles(shape, stream, loc, kappa):
        key, start = stream
        # Generators of one cipher have one form of counter.
        words = counter.block_words(job.cipher, key, counter.indices(shape, (start[0], start[1])), 1)
        return transform.angles(words, loc, kappa, job.method)

    return xla.compute_elementwise(angles, job.shape, job.dtype, (key, start), loc, kappa)


def _launch(job, key, start, loc, kappa):
    """By the kernel. Operands with an element for each angle are flat, those of one value scalars."""
    flags = 0

    def operand(x, flag):
        nonlocal flags
        if x.size == 1:
            return x.reshape(())
        flags |= flag
        return jnp.broadcast_to(x, job.shape).reshape(-1)

    loc = operand(loc, LOCS)
    if job.method == "table":
        # Rows of four coefficients, which a thread reads at once.
        kappa = kappa.reshape(())
        concentration = piecewise.quantile_table(valid(kappa)).T
    else:
        concentration = operand(kappa, CONCENTRATIONS)
    return _launch_rows(job, 1, flags)(key, start, concentration, loc).reshape(job.shape)


def _launch_rows(job, rows, flags):
    """The launch for `rows` draws of one job; `flags` tell which operands have a row for each, as leading axis.

    A further `jax.vmap` makes more rows.
    """
    call = jax.custom_batching.custom_vmap(functools.partial(_call, job, rows, flags))

    @call.def_vmap
    def more_rows(size, batched, *operands):
        found = flags
        given = []
        for x, new, flag in zip(operands, batched, (KEY_ROWS, START_ROWS, CONCENTRATION_ROWS, LOC_ROWS), strict=True):
            if new and flags & flag:
                x = x.reshape(size * rows, *x.shape[2:])
            elif new:
                x = jnp.repeat(x, rows, axis=0)
            elif flags & flag:
                x = jnp.tile(x, (size,) + (1,) * (x.ndim - 1))
            found |= flag if new else 0
            given.append(x)
        out = _launch_rows(job, size * rows, found)(*given)
        return out.reshape(size, rows, -1), True

    return call


def _call(job, rows, flags, *operands):
    """One launch; (rows, angles in a row)."""
    count = math.prod(job.shape)
    grid, block = _grid(count, rows, job.method == "table", flags & CONCENTRATION_ROWS)
    sizes = np.array([count % 2**32, count >> 32, rows, flags, KERNEL_DTYPES[job.dtype]], np.uint32)
    key, start, concentration, loc = operands
    out = jax.ShapeDtypeStruct((rows, count), job.dtype)
    x = launch(job.name, grid, block, out, key, start, jnp.asarray(sizes), concentration, loc)
    # Inside `jax.shard_map` a custom call does not say that its result varies where an operand does.
    axes = frozenset().union(*map(_varying, operands)) - _varying(x)
    return lax.pcast(x, tuple(axes), to="varying") if axes else x


def _grid(count, rows, table, of_rows):
    """Blocks along a row of `count` angles and over `rows`, and the threads of a block; the kernel goes round in both.

    With `table` each block fills one, which `of_rows` tells that each row has of its own.
    """
    cores = getattr(next(iter(devices()), None), "core_count", None)
    limit = BLOCKS * (cores if isinstance(cores, int) and cores > 0 else MULTIPROCESSORS)
    # A group more than there may be, for a start inside of one.
    groups = _ceiling(count + 4, 4)
    wide = min(BLOCK_THREADS, 1 << (groups - 1).bit_length())
    # Short rows share a block, if they share its table.
    high = 1 if table and of_rows else min(BLOCK_THREADS // wide, rows)
    over = _ceiling(rows, high)
    # Where a table serves all rows, a block takes several, and each as many as the others.
    over = _ceiling(over, _ceiling(over, limit)) if table and not of_rows else min(over, MOST_ROWS)
    return (min(_ceiling(groups, wide), _ceiling(limit, over)), over), (wide, high)


def _ceiling(a, b):
    """a / b, rounded up."""
    return -(-a // b)


def _varying(x):
    return jax.typeof(x).manual_axis_type.varying


def launch(name, grid, block, out, *operands):
    """A kernel over a grid of blocks of threads: pointers to the operands and to the result are its arguments."""
    head, parts = _ptx()
    numbers = {"grid_x": grid[0], "grid_y": grid[1], "grid_z": 1, "shared_mem_bytes": 0}
    numbers |= {"block_x": block[0], "block_y": block[1], "block_z": 1}
    return jax.ffi.ffi_call(TARGET, out, custom_call_api_version=4)(
        *operands,
        name=name,
        kernel_type="ptx",
        kernel_data=head + parts[name],
        **{key: np.int32(value) for key, value in numbers.items()},
    )

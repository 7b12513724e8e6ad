"""Draw angles with this package's CUDA kernels, if the environment turns them on and they agree with XLA's program.

XLA compiles a draw with a concentration for each angle into several kernels, which pass 20 bytes per angle to each
other. A kernel of ``kernels/angles.cu`` does everything in one pass and writes only the angles. On an H100, it draws
2^24 angles in 0.6 of the time of the *plain path*, XLA's program, and 2^26 in half of it; for 2^20, both take about
equally long. The kernels draw what `draws` describes; everything else takes the plain path.

The kernels are shipped as PTX, which the driver compiles for the GPU at hand, so no compiler or toolkit is needed. XLA
accepts them in the custom call `TARGET`, which is not a stable interface: each kernel is therefore compared with the
plain path before its first use in a process. `sampler` imports this module only if it is needed.

XLA passes a kernel the addresses of the operands in order, then that of the result; scalars are passed by address. It
takes the grid and the blocks from the attributes, and compares neither them nor the operands with the PTX. An operand
is a buffer of its own, aligned to 16 bytes or more, and shares no memory with the result.
"""

import concurrent.futures
import functools
import logging
import math
import re
import threading
from importlib import resources
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_von_mises.compiler.sharding import explicit
from jax_von_mises.engine import counter
from jax_von_mises.engine.request import Request
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.von_mises import transform

__all__ = ["KernelSpec", "devices", "draws", "fault"]

PLATFORM, TARGET = "cuda", "__gpu$xla.gpu.ptx"
LEAST_CAPABILITY = 8.0  # compute capability that the PTX is compiled for
KERNEL_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # `Kind` in angles.cu
KEY_SIZES = {"threefry2x32": 2, "threefry4x32": 4}  # words of a key, for the ciphers that have a kernel
# Flags in angles.cu for operands with a separate value for each angle.
CONCENTRATIONS, LOCS = 1, 2
BLOCK_THREADS = 256
# Blocks per multiprocessor, enough for the multiprocessors to finish at about the same time.
BLOCKS = 16
MULTIPROCESSORS = 132  # if a device does not report the number
# Number of angles that the comparison of a kernel draws.
TESTED = 4099
# Fewer angles take about as long by XLA's program.
SMALLEST = 2**22

log = logging.getLogger("jax_von_mises")
_lock = threading.Lock()


class KernelSpec(NamedTuple):
    """The static arguments of a kernel's launch."""

    cipher: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the static arguments of the launch that draws a request."""
        generator = counter.generator_of(request.key)
        return cls(counter.GENERATORS[generator].cipher.__name__, request.dtype.name, request.shape)

    @property
    def name(self) -> str:
        """The kernel's name in the PTX."""
        return f"{self.cipher}_direct"


def draws(request: Request) -> bool:
    """Return whether a kernel draws a request for all of its angles.

    The kernels draw at least `SMALLEST` float32, bfloat16 or float16 angles by the direct route, with a concentration
    for each, with Threefry keys (and all keys that `counter` draws with threefry4x32), with a single CUDA device in all
    processes, and outside of meshes. XLA could not split a kernel over several devices.
    """
    if math.prod(request.shape) < SMALLEST or np.size(request.parameters[1]) == 1 or request.route != "direct":
        return False
    spec = KernelSpec.of(request)
    if spec.dtype not in KERNEL_DTYPES or spec.cipher not in KEY_SIZES or request.out_sharding is not None:
        return False
    if not jax.sharding.get_abstract_mesh().empty or explicit(request.parameters):
        return False
    return not fault(spec.cipher)


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """Return the CUDA devices of this process."""
    try:
        return tuple(jax.local_devices(backend=PLATFORM))
    except RuntimeError:  # no CUDA backend, or one that does not start
        return ()


def fault(cipher: str) -> str | None:
    """Return why the kernel of a cipher is not used on this machine, or None if it is; warn once if it is wrong."""
    if not devices():
        return "JAX has no CUDA device"
    if jax.device_count(PLATFORM) > 1:
        return "there are several CUDA devices"
    if float(getattr(devices()[0], "compute_capability", 0)) < LEAST_CAPABILITY:
        return f"the device has a compute capability below {LEAST_CAPABILITY}"
    with _lock:
        return _difference(cipher)


@jax.jit
def angles_by_kernel(request: Request) -> jax.Array:
    """Return the angles of a request, by a kernel on a CUDA device and by the plain path elsewhere."""
    loc, concentration = (jnp.asarray(x, jnp.float32) for x in request.parameters)
    return draw(KernelSpec.of(request), counter.key_words(request.key)[1], loc, concentration)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def draw(spec: KernelSpec, key: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw the angles of a `KernelSpec`.

    Parameters
    ----------
    spec : KernelSpec
    key : uint32 array
        The words of the key, as from `counter.key_words`.
    loc, kappa : float32 arrays
        As in `transform.angles`.

    Returns
    -------
    array of the shape and dtype of `spec`
        Differentiable like `transform.angles`, by the implicit function theorem at the angle drawn.
    """
    x: jax.Array = _unmapped(spec)(key, loc, kappa)
    return x


@draw.defjvp
def _draw_jvp(spec: KernelSpec, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    key, loc, kappa = primals

    def moved(loc: jax.Array, kappa: jax.Array) -> jax.Array:
        x = _about_zero(spec._replace(dtype="float32"), key, kappa)
        return wrap(x, jnp.broadcast_to(reduce_turns(loc), spec.shape)).astype(spec.dtype)

    x: jax.Array
    x, dx = jax.jvp(moved, (loc, kappa), tangents[1:])
    return x, dx


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _about_zero(spec: KernelSpec, key: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw float32 angles about 0, from which derivatives are computed."""
    return draw(spec, key, jnp.zeros((), jnp.float32), kappa)


@_about_zero.defjvp
def _about_zero_jvp(
    spec: KernelSpec, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    key, kappa = primals
    x = _about_zero(spec, key, kappa)
    kappa, change = (jnp.broadcast_to(each, spec.shape) for each in (kappa, tangents[1]))
    return x, transform.slope_by_kappa(x, kappa) * change


def _unmapped(spec: KernelSpec) -> jax.custom_batching.custom_vmap:
    """Return the draw of a `KernelSpec`: a kernel on a CUDA device; the plain path elsewhere and under `jax.vmap`."""
    plain = functools.partial(plain_angles, spec)

    @jax.custom_batching.custom_vmap
    def drawn(*operands: jax.Array) -> jax.Array:
        by_kernel = {PLATFORM: functools.partial(kernel_angles, spec)}
        x: jax.Array = lax.platform_dependent(*operands, default=plain, **by_kernel)
        return x

    @drawn.def_vmap
    def _(size: int, batched: list[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
        axes = [0 if each else None for each in batched]
        return jax.vmap(plain, axes, axis_size=size)(*operands), True

    return drawn


def plain_angles(spec: KernelSpec, key: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw the angles of a `KernelSpec` by the plain path."""
    # All generators of one cipher have the same form of counter, so the cipher's name serves as the generator's.
    return transform.draw(spec.cipher, (key, None), spec.shape, np.dtype(spec.dtype), loc, kappa, "direct")


def kernel_angles(spec: KernelSpec, key: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw the angles of a `KernelSpec` by its kernel, in one launch."""
    size, flags = math.prod(spec.shape), CONCENTRATIONS * (kappa.size > 1) | LOCS * (loc.size > 1)
    sizes = np.array([size % 2**32, size >> 32, flags, KERNEL_DTYPES[spec.dtype]], np.uint32)
    loc, kappa = (jnp.broadcast_to(x, spec.shape).reshape(-1) if x.size > 1 else x.reshape(1) for x in (loc, kappa))
    out = jax.ShapeDtypeStruct((size,), spec.dtype)
    return launch(spec.name, blocks(size), out, key, sizes, kappa, loc).reshape(spec.shape)


def blocks(count: int) -> int:
    """Return the number of blocks that draw `count` angles; a thread draws groups of four, in a loop if necessary."""
    cores = getattr(next(iter(devices()), None), "core_count", None) or MULTIPROCESSORS
    return min(-(-count // (4 * BLOCK_THREADS)), BLOCKS * cores)


def launch(name: str, count: int, out: jax.ShapeDtypeStruct, *operands: ArrayLike) -> jax.Array:
    """Launch a kernel in `count` blocks of threads."""
    numbers = {"grid_x": count, "grid_y": 1, "grid_z": 1, "shared_mem_bytes": 0}
    numbers |= {"block_x": BLOCK_THREADS, "block_y": 1, "block_z": 1}
    x: jax.Array = jax.ffi.ffi_call(TARGET, out, custom_call_api_version=4)(
        *map(jnp.asarray, operands),
        name=name,
        kernel_type="ptx",
        kernel_data=kernel_text(name),
        **{key: np.int32(value) for key, value in numbers.items()},
    )
    return x


@functools.cache
def ptx_text() -> str:
    """Return the shipped PTX of all kernels."""
    return resources.files("jax_von_mises.von_mises").joinpath("kernels", "angles.ptx").read_text(encoding="ascii")


def kernel_text(name: str) -> str:
    """Return the PTX of one kernel."""
    head, *parts = re.split(r"(?=^\.visible \.entry )", ptx_text(), flags=re.M)
    return head + next(part for part in parts if part.startswith(f".visible .entry {name}("))


@functools.cache
def _difference(cipher: str) -> str | None:
    """Return `difference` of a cipher's kernel, or the error that ended it; log a warning for either."""
    # A new thread has neither the caller's trace nor its mesh, default device or 64-bit mode.
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            found = thread.submit(difference, cipher).result()
    except Exception as error:
        found = f"{type(error).__name__}: {str(error).strip()[:300]}"
    if found:
        log.warning("the CUDA kernel of %s is not used: %s", cipher, found)
    return found


def difference(cipher: str, count: int = TESTED) -> str | None:
    """Return a description of the difference of a cipher's kernel from the plain path on the CUDA device, or None.

    Angles of all dtypes are compared with float32 angles of the plain path on the same device.
    """
    key = np.arange(KEY_SIZES[cipher], dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(12345)
    loc, kappa = np.float32(2.5), np.geomspace(1e-3, 1e6, count, dtype=np.float32)
    plain, by_kernel = (jax.jit(function, static_argnums=0) for function in (plain_angles, kernel_angles))
    (device,) = devices()
    with jax.transfer_guard("allow"):
        given = jax.device_put((key, loc, kappa), device)
        expected = np.asarray(plain(KernelSpec(cipher, "float32", (count,)), *given), np.float64)
        for dtype in KERNEL_DTYPES:
            ours = np.asarray(by_kernel(KernelSpec(cipher, dtype, (count,)), *given))
            if not rounded_from(ours, expected, allowed(kappa)).all():
                return f"on {device.device_kind}, its {dtype} angles differ from those of XLA's program"
    return None


def allowed(kappa: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the largest accepted distance between float32 angles of the two paths, for concentrations of 0 or more.

    It is twice the error of either path, and the rounding of `loc`. Both are far below the distance between the angles
    of unrelated words.
    """
    apart: np.ndarray[Any, Any] = 4e-6 / np.sqrt(np.maximum(kappa, 1)) + 1.5e-6
    return apart


def rounded_from(
    ours: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], allowed: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return whether each of `ours` is an angle within `allowed` of the `expected` one, rounded to the dtype of `ours`.

    Rounding is monotonic, so such values lie between the rounded bounds. Adding the spacing of 16-bit floats to
    `allowed` instead would accept errors thousands of times as large.
    """
    # Where an angle next to pi is expected, one next to -pi may be equally close, and vice versa.
    places = expected + 2 * np.pi * np.array([-1.0, 0.0, 1.0])[:, None]
    there = np.abs(places) <= np.pi + allowed
    largest = float(np.nextafter(np.float32(np.pi), np.float32(0)))
    ends = (np.clip(places + side * allowed, -largest, largest).astype(ours.dtype) for side in (-1, 1))
    least, most, ours = (x.astype(np.float64) for x in (*ends, ours))
    right: np.ndarray[Any, Any] = (there & (least <= ours) & (ours <= most)).any(axis=0)
    return right

"""Test a CUDA kernel before its first use in a process: compare thousands of its angles with those of the plain path.

XLA accepts the kernels in a custom call that is not a stable interface. If the environment turns them on although they
have not passed their trial (`cuda_verdict`), each kernel must pass this test first. Any error counts as a failure.
"""

import functools
import itertools
import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises.numerics.circle import largest_angle
from jax_von_mises.sampling import cuda_launch

__all__ = [
    "KEY_SIZES",
    "allowed",
    "difference",
    "halves",
    "key_words",
    "passes",
    "reference_device",
    "rounded_from",
    "verdicts",
]

# Number of compared angles, and positions from which they are drawn: the first, and one just before a carry to the
# upper half.
TESTED = 4099
TESTED_FROM = (0, 2**32 - 6)
# Twice the error of either path, and the rounding of `loc`. Both are far below the distance between the angles of
# unrelated words.
TOLERANCE, ROUNDING = 4e-6, 1e-6
# Number of words in a key of each cipher.
KEY_SIZES = {"threefry2x32": 2, "threefry4x32": 4, "philox2x32": 1, "philox4x32": 2}
# Seconds after which a test fails. The driver compiles a kernel in well under one second.
TIMEOUT = 120

log = logging.getLogger("jax_von_mises")
_lock = threading.Lock()
# For each kernel by name: None if it passed, else why it failed.
_verdicts: dict[str, str | None] = {}


def passes(spec: cuda_launch.KernelSpec) -> bool:
    """Return whether a kernel passes its test, which runs once in a process."""
    with _lock:
        if spec.name not in _verdicts:
            _verdicts[spec.name] = fault = _tested(spec)
            log.debug("CUDA kernel %s: %s", spec.name, fault or "agrees with the plain path, and is used")
        return _verdicts[spec.name] is None


def verdicts() -> dict[str, str | None]:
    """Return the result of each test so far, by the kernel's name: None if it passed, else why it failed."""
    with _lock:
        return dict(_verdicts)


def _tested(spec: cuda_launch.KernelSpec) -> str | None:
    """Return None if the kernel is correct on every kind of device in this process, else a description of the fault.

    The test runs in a separate thread, which can be abandoned and does not inherit the caller's trace, mesh or default
    device.
    """
    outcome: list[str | None] = ["no answer"]

    def test() -> None:
        try:
            outcome[0] = next(filter(None, (difference(spec, device) for device in cuda_launch.devices())), None)
        except Exception as error:
            outcome[0] = f"{type(error).__name__}: {str(error).strip()[:300]}"

    try:
        thread = threading.Thread(target=test, name="test of a CUDA kernel", daemon=True)
        thread.start()
        thread.join(TIMEOUT)
    except RuntimeError as error:  # the interpreter is shutting down
        return str(error)
    return f"no answer within {TIMEOUT} s" if thread.is_alive() else outcome[0]


def difference(spec: cuda_launch.KernelSpec, device: jax.Device, count: int = TESTED) -> str | None:
    """Return a description of the kernel's fault on a device, or None.

    Of `count` angles, the first, the middle and the last `TESTED` are compared.
    """
    # A cipher has one kernel, with one verdict, for all dtypes of the direct route. Each dtype is therefore tested.
    dtypes = cuda_launch.KERNEL_DTYPES if spec.route == "direct" else (spec.dtype,)
    spec = spec._replace(dtype="float32", shape=(TESTED,))
    key = key_words(spec.cipher)
    kappa: np.ndarray[Any, np.dtype[np.float32]] = np.array(4, np.float32)
    if spec.route == "direct":
        kappa = np.geomspace(1e-3, 1e6, count, dtype=np.float32)
    loc = np.float32(2.5)
    plain = jax.jit(cuda_launch.plain_angles, static_argnums=0)
    fused = {
        dtype: jax.jit(functools.partial(cuda_launch.kernel_angles, spec._replace(dtype=dtype, shape=(count,))))
        for dtype in dtypes
    }
    for start, (dtype, draw) in itertools.product(TESTED_FROM, fused.items()):
        found = jax.device_get(draw(*jax.device_put((key, halves(start), loc, kappa), device)))
        for first in sorted({0, (count - TESTED) // 2, count - TESTED}):
            window = slice(first, first + TESTED)
            ours, kappas = found[window], kappa[window] if kappa.ndim else kappa
            given = key, halves((start + first) % 2**64), loc, kappas
            expected = np.asarray(plain(spec, *jax.device_put(given, reference_device(device))), np.float64)
            if not rounded_from(ours, expected, allowed(kappas)).all():
                apart = np.abs(np.mod(ours.astype(np.float64) - expected + np.pi, 2 * np.pi) - np.pi)
                detail = f"its {dtype} angles are up to {np.nanmax(apart):.1e} away from the plain path's"
                return f"on {device.device_kind} {detail}"
    return None


def halves(start: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a position as the two words that a kernel reads, the upper half first."""
    return np.array([start >> 32, start % 2**32], np.uint32)


def key_words(cipher: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the words of the key for tests of a cipher's kernels."""
    return np.arange(KEY_SIZES[cipher], dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(12345)


def allowed(kappa: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, Any]:
    """Return the largest accepted distance between the float32 angles of two paths, for concentrations of 0 or more."""
    apart: np.ndarray[Any, Any]
    apart = TOLERANCE / np.sqrt(np.maximum(kappa, 1)) + ROUNDING + 4 * float(jnp.finfo(jnp.float32).eps)
    return apart


def rounded_from(
    ours: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], allowed: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether each of `ours` is an angle within `allowed` of the `expected` one, rounded to the dtype of `ours`.

    Rounding is monotonic, so such values lie between the rounded bounds. Adding the spacing of 16-bit floats to
    `allowed` instead would accept errors thousands of times as large.
    """
    largest = largest_angle(np.float32)
    # Where an angle next to pi is expected, one next to -pi may be equally close, and vice versa.
    places = expected + 2 * np.pi * np.array([-1.0, 0.0, 1.0])[:, None]
    there = np.abs(places) <= np.pi + allowed
    ends = (np.clip(places + side * allowed, -largest, largest).astype(ours.dtype) for side in (-1, 1))
    least, most, ours = (x.astype(np.float64) for x in (*ends, ours))
    right: np.ndarray[Any, np.dtype[np.bool_]] = (there & (least <= ours) & (ours <= most)).any(axis=0)
    return right


def reference_device(device: jax.Device) -> jax.Device:
    """Return the device for the plain path in comparisons: the CPU, which compiles faster, or else `device`."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except Exception:  # JAX_PLATFORMS may leave the CPU out
        return device

"""Start JAX and draw on each of its devices; `diagnose` runs this program in a child, which may crash or hang.

Each step prints a line of JSON to stdout. The last line shows where a failure happened.
"""

import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.backend import get_backend

from jax_von_mises import environment
from jax_von_mises.runtime import memory
from jax_von_mises.sampling import counter, sampler, transform, wide_vectors

ANGLES = 2**22
DIRECT = 2**12
REPEATS = 5
CONCENTRATION = 4.0
# Largest difference, in radians, between two computations of an angle at this concentration, if the tail probability
# of each has a relative error of at most 2e-6.
ANGLE_TOLERANCE = 3e-6

# The first float32 angles of key 0 at this concentration and loc 0, computed from the distribution's integral in higher
# precision. A device that draws other angles is faulty, or its compiler uses fast-math flags.
KNOWN_ANGLES = (
    *(-0.423439735, 0.272692690, -0.654942120, -0.128790057),
    *(-0.022559651, -0.248476948, -0.292507943, 0.069036138),
)


def report(step: str, **details: Any) -> None:
    """Print a step as a line of JSON."""
    print(json.dumps({"step": step, **details}), flush=True)


def draw_on(
    device: jax.Device, count: int, concentration: float = CONCENTRATION, method: str = "auto", loc: float = 0.0
) -> jax.Array:
    """Draw angles on a device, and wait for them."""
    with jax.default_device(device):
        key = jax.random.key(0, impl="threefry2x32")
        return sampler.sample_von_mises(key, loc, concentration, (count,), "float32", method=method).block_until_ready()


def draw_in_program() -> None:
    """Draw on the CPU inside another program, as users' programs do, and wait for the angles."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        key = jax.random.key(0, impl="threefry2x32")
        in_program(key).block_until_ready()


@jax.jit
def in_program(key: jax.Array) -> jax.Array:
    """Draw angles as part of another program."""
    return sampler.sample_von_mises(key, 0.0, CONCENTRATION, (ANGLES,), "float32")


def timed(draw: Callable[[], object]) -> tuple[float, float]:
    """Return the time of the first call and the median time of `REPEATS` later calls, in seconds."""
    seconds = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        draw()
        seconds.append(time.perf_counter() - began)
    return seconds[0], statistics.median(seconds[1:])


def words_on(device: jax.Device) -> np.ndarray:
    """Return the first random words of key 0, generated on a device."""
    with jax.default_device(device):
        key = jax.random.key(0, impl="threefry2x32")
        return np.asarray(counter.words(key, (1024,), transform.words_per_element(np.dtype(np.float32)), None, None))


@functools.cache
def reference() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the angles by the table, the angles by the direct route, and the random words, all from the CPU."""
    cpu = jax.local_devices(backend="cpu")[0]
    return np.asarray(draw_on(cpu, ANGLES)), np.asarray(draw_on(cpu, DIRECT, method="direct")), words_on(cpu)


def examine(device: jax.Device) -> None:
    """Draw on a device, and compare its angles and words with those of the CPU and with known angles."""
    name = memory.named(device)
    report("draw", device=name)
    first, seconds = timed(lambda: draw_on(device, ANGLES))
    wide = device.platform == "cpu" and wide_vectors.supported()
    table, direct = np.asarray(draw_on(device, ANGLES)), np.asarray(draw_on(device, DIRECT, method="direct"))
    apart = max(float(np.abs(a - b).max()) for a, b in zip((table, direct), reference()[:2], strict=True))
    known = float(np.abs(table[: len(KNOWN_ANGLES)] - np.asarray(KNOWN_ANGLES, np.float32)).max())
    extremes = {
        "a negative concentration gives NaN": bool(np.isnan(draw_on(device, 4, -1.0)).all()),
        "an infinite concentration gives loc": bool((np.asarray(draw_on(device, 4, math.inf, loc=0.5)) == 0.5).all()),
    }
    report(
        "device",
        device=name,
        kind=device.device_kind,
        angles=ANGLES,
        first_seconds=first,
        seconds=seconds,
        seconds_in_programs=timed(draw_in_program)[1] if wide else None,
        words_agree=bool(np.array_equal(words_on(device), reference()[2])),
        apart=max(apart, known),
        agrees=bool(apart <= ANGLE_TOLERANCE and known <= ANGLE_TOLERANCE and np.isfinite(table).all()),
        broken=[what for what, holds in extremes.items() if not holds],
        kernels=kernels(),
        memory=memory.of_device(device)._asdict(),
    )


def kernels() -> bool | None:
    """Return whether the CUDA kernels agree with XLA's program; None if they are off or there is no CUDA device."""
    if not environment.cuda_kernels():
        return None
    from jax_von_mises.sampling import cuda

    return all(map(cuda.agrees, cuda.KEY_SIZES)) if cuda.devices() else None


def main() -> None:
    """Start JAX, examine its devices, and report each step."""
    report("start", jax=jax.__version__)
    backend = get_backend()
    devices = jax.local_devices()
    # Several CPU devices share the same cores, so one is enough.
    examined = devices[:1] if devices[0].platform == "cpu" else devices
    report(
        "devices",
        platform=backend.platform,
        platform_version=backend.platform_version,
        devices=[memory.named(device) for device in devices],
        examined=len(examined),
    )
    for device in examined:
        examine(device)
    report("end")


if __name__ == "__main__":
    main()

"""Start JAX and draw on each of its devices; `diagnose` runs this program in a child, which may crash or hang.

Each step prints a line of JSON to stdout. The last line shows where a failure happened.
"""

import functools
import json
import math
import statistics
import time
from typing import Any

import jax
import numpy as np
from jax.extend.backend import get_backend

from jax_von_mises import environment
from jax_von_mises.engine import counter
from jax_von_mises.runtime import memory
from jax_von_mises.von_mises import sampler

ANGLES, DIRECT, REPEATS = 2**22, 2**12, 5
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


def print_step(step: str, **details: Any) -> None:
    """Print a step as a line of JSON."""
    print("\n" + json.dumps({"step": step, **details}, allow_nan=False), flush=True)


def draw_on(
    device: jax.Device, count: int, concentration: float = CONCENTRATION, method: str = "auto", loc: float = 0.0
) -> np.ndarray:
    """Draw angles on a device, and wait for them."""
    with jax.default_device(device):
        key = jax.random.key(0, impl="threefry2x32")
        return np.asarray(sampler.sample_von_mises(key, loc, concentration, (count,), "float32", method=method))


def timed(device: jax.Device) -> tuple[float, float]:
    """Return the time of the first draw and the median time of `REPEATS` later draws, in seconds."""
    seconds = []
    with jax.default_device(device):
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            key = jax.random.key(0, impl="threefry2x32")
            sampler.sample_von_mises(key, 0.0, CONCENTRATION, (ANGLES,), "float32").block_until_ready()
            seconds.append(time.perf_counter() - began)
    return seconds[0], statistics.median(seconds[1:])


def words_on(device: jax.Device) -> np.ndarray:
    """Return the first random words of key 0, generated on a device."""
    with jax.default_device(device):
        return np.asarray(counter.words(jax.random.key(0, impl="threefry2x32"), (1024,), 1)[0])


@functools.cache
def reference() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the angles by the table, the angles by the direct route, and the random words, all from the CPU."""
    cpu = jax.local_devices(backend="cpu")[0]
    return draw_on(cpu, ANGLES), draw_on(cpu, DIRECT, method="direct"), words_on(cpu)


def examine(device: jax.Device) -> None:
    """Draw on a device, and compare its angles and words with those of the CPU and with known angles."""
    name = memory.named(device)
    print_step("draw", device=name)
    first, seconds = timed(device)
    table, direct = draw_on(device, ANGLES), draw_on(device, DIRECT, method="direct")
    known = np.abs(table[: len(KNOWN_ANGLES)] - np.asarray(KNOWN_ANGLES, np.float32))
    parts = np.concatenate([known, np.abs(table - reference()[0]), np.abs(direct - reference()[1])])
    extremes = {
        "a negative concentration gives NaN": np.isnan(draw_on(device, 4, -1.0)).all(),
        "an infinite concentration gives loc": (draw_on(device, 4, math.inf, loc=0.5) == 0.5).all(),
    }
    print_step(
        "device",
        device=name,
        kind=device.device_kind,
        angles=ANGLES,
        first_seconds=first,
        seconds=seconds,
        words_agree=bool(np.array_equal(words_on(device), reference()[2])),
        apart=float(parts.max()) if np.isfinite(parts).all() else None,
        agrees=bool((parts <= ANGLE_TOLERANCE).all()),  # false for NaN
        broken=[what for what, holds in extremes.items() if not holds],
        kernels=kernels(),
        free=memory.of_device(device).free,
    )


def kernels() -> str | None:
    """Return why the CUDA kernels are not used, "" if they are; None if they are off."""
    if not environment.cuda_kernels():
        return None
    from jax_von_mises.von_mises import cuda

    return next(filter(None, map(cuda.fault, cuda.KEY_SIZES)), "")


def main() -> None:
    """Start JAX, examine its devices, and report each step."""
    print_step("start", jax=jax.__version__)
    backend = get_backend()
    devices = jax.local_devices()
    print_step("devices", platform=backend.platform, version=backend.platform_version, count=len(devices))
    # Several CPU devices share the same cores, so one is enough.
    for device in devices[:1] if backend.platform == "cpu" else devices:
        examine(device)
    print_step("end")


if __name__ == "__main__":
    main()

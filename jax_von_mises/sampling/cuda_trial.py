"""Try all CUDA kernels in a process that may crash: ``python -P -m jax_von_mises.sampling.cuda_trial``.

`runtime.kernel_trial` starts the process and stores its verdict. For each kind of card, the process prints a line with
JSON before the trial and another after it. Each kernel is launched

- by XLA, and its angles are compared with the plain path's (`cuda_self_test.difference`). One kernel also draws rows of
  `jax.vmap`;
- by the driver, on arrays at the edge of memory (`cuda_driver`), with many sizes and positions in a stream, for one row
  and for several. In the table route, the table is an operand, and special tables make the angles reveal their words.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jax_von_mises.sampling import counter, cuda_driver, cuda_launch, cuda_self_test, cuda_verdict
from jax_von_mises.sampling.cuda_launch import KERNEL_DTYPES, KernelSpec, Operand, Rows
from jax_von_mises.sampling.cuda_self_test import halves

__all__ = ["MARK", "faults", "main"]

Array = np.ndarray[Any, Any]
Launch = Callable[..., Array]

SIZES = (*range(1, 9), 1023, 1025, 4099)
# The stream's first position, one inside a group of four words, one before a carry, and the one from which the longest
# draw ends at the end of the stream.
STARTS = (0, 3, 2**32 - 6, 2**64 - SIZES[-1])
# Number of angles that makes each thread loop several times; on an H100, 3 million suffice.
LONG = 2**23 + 5
CELLS = 512
ROWS, ROW = 5, 37
# Operands that differ between rows, and operands that differ between elements.
LAYOUTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("key",), ()),
    (("start", "loc"), ()),
    (("key", "start", "concentration", "loc"), ()),
    (("key",), ("loc", "concentration")),
    (("concentration", "loc"), ("loc", "concentration")),
)
# The beginning of each printed line.
MARK = "cuda kernels: "


def specs() -> Iterator[KernelSpec]:
    """Yield a specification for each kernel and dtype."""
    for cipher, route, dtype in itertools.product(cuda_self_test.KEY_SIZES, ("table", "direct"), KERNEL_DTYPES):
        yield KernelSpec(cipher, route, dtype, (SIZES[-1],))


@functools.cache
def words_of(cipher: str, start: int) -> Array:
    """Return the words of the longest draw from `start`, as the plain path computes them on the CPU."""

    @jax.jit
    def words(key: jax.Array, high: jax.Array, low: jax.Array) -> jax.Array:
        return counter.block_words(cipher, key, counter.indices((SIZES[-1],), (high, low)), 1)[0]

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(words(cuda_self_test.key_words(cipher), *halves(start)))


def tables() -> Iterator[tuple[Array, Callable[[Array], Array]]]:
    """Yield two tables: one whose angles are positions within cells, and one whose angles encode the numbers of cells.

    Each table comes with a function that maps words to the expected angles. Together, the two angles of a word contain
    the 24 leading bits of its tail probability.
    """
    unit, none = np.ones(CELLS, np.float32), np.zeros(CELLS, np.float32)
    number = np.arange(CELLS, dtype=np.float32) / 1024

    def bits(words: Array) -> Array:
        tail = ((words >> 1).astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
        return tail.view(np.uint32)

    def place(words: Array) -> Array:
        below = (((bits(words) << 4) & 0x007FFFF0) | 0x3F800000).view(np.float32) - 1
        # A tail of 1/2 is at the end of the last cell.
        return np.where(cell(words) < CELLS, below, np.float32(1 - 2**-19))

    def cell(words: Array) -> Array:
        return (bits(words) >> 19) - (94 << 4)

    yield np.stack([none, unit, none, none], axis=1), place
    yield np.stack([number, none, none, none], axis=1), lambda words: number[np.minimum(cell(words), CELLS - 1)]


def faults(launch: Launch) -> Iterator[str]:
    """Yield a description of each fault of the kernels; `launch` is `Driver.launch`."""
    for spec in specs():
        for fault in itertools.chain(_faults_of_words(launch, spec), _faults_of_rows(launch, spec)):
            yield f"{spec.name} in {spec.dtype}: {fault}"


def _launched(launch: Launch, rows: Rows, at_end: bool, one_block: bool = False) -> Array:
    """Launch rows and return their angles."""
    (name, grid, block, out), operands = cuda_launch.launch_arguments(rows)
    if one_block:  # so small that its threads loop both along a row and over rows
        grid, block = (1, 1), (min(block[0], 4), 1)
    return launch(name, grid, block, out, *operands, at_end=at_end)


def _faults_of_words(launch: Launch, spec: KernelSpec) -> Iterator[str]:
    """Check that angles match their words, for all `SIZES` and `STARTS`; yield each fault.

    In the table route, all angles are compared with the words. In the direct route, the signs of the longest draw are
    compared with the words, and shorter draws with the longest.
    """
    dtype = np.dtype(spec.dtype)
    key, loc = Operand(cuda_self_test.key_words(spec.cipher)), Operand(np.zeros((), np.float32))
    cases = tables() if spec.route == "table" else ((np.full((), 4, np.float32), None),)
    for (concentration, angle), start in itertools.product(cases, STARTS):

        def draw(size: int, at_end: bool, concentration: Array = concentration, start: int = start) -> Array:
            operands = key, Operand(halves(start)), Operand(concentration), loc
            angles: Array = _launched(launch, Rows(spec._replace(shape=(size,)), 1, *operands), at_end)[0]
            return angles

        words = words_of(spec.cipher, start)
        if angle is None:
            expected = draw(SIZES[-1], True)
            if not np.array_equal(np.signbit(expected), words & 1):
                yield f"from {start} the signs do not match the words"
        else:
            signs = np.where(words & 1, -1, 1).astype(np.float32)
            expected = (signs * angle(words)).astype(dtype)
        for size, at_end in itertools.product(SIZES, (False, True)):
            if draw(size, at_end).tobytes() != expected[:size].tobytes():
                yield f"{size} angles from {start} do not match their words"


def _faults_of_rows(launch: Launch, spec: KernelSpec) -> Iterator[str]:
    """Compare rows with single draws, bit for bit; yield each fault."""
    random, table = np.random.default_rng(0), spec.route == "table"
    spec = spec._replace(shape=(ROW,))
    tables = random.uniform(0, 0.7, (ROWS, CELLS, 4)).astype(np.float32)
    kappas = np.geomspace(0.1, 100, ROWS * ROW, dtype=np.float32).reshape(ROWS, ROW)
    values = {
        "key": random.integers(2**32, size=(ROWS, cuda_self_test.key_words(spec.cipher).size), dtype=np.uint32),
        "start": np.stack([halves(start) for start in (*STARTS, 2**40 + 1)]),
        "concentration": tables if table else kappas,
        "loc": random.uniform(-9, 9, (ROWS, ROW)).astype(np.float32),
    }
    for by_row, by_element in LAYOUTS:
        by_element = tuple(name for name in by_element if not (table and name == "concentration"))

        def rows(
            count: int, at: Any, by_row: tuple[str, ...] = by_row, by_element: tuple[str, ...] = by_element
        ) -> Rows:
            operands = {}
            for name, x in values.items():
                x = x[at] if name in by_row else x[0]
                if x.shape[-1] == ROW and name not in by_element:
                    x = x[..., 0]
                operands[name] = Operand(x, name in by_row and count > 1, name in by_element)
            return Rows(spec, count, **operands)

        single = b"".join(_launched(launch, rows(1, row), False).tobytes() for row in range(ROWS))
        for at_end, one_block in itertools.product((False, True), repeat=2):
            if _launched(launch, rows(ROWS, slice(None)), at_end, one_block).tobytes() != single:
                yield f"rows that vary in {', '.join(by_row)} differ from single draws{', in one block' * one_block}"


def fault_of_maps(device: jax.Device) -> str | None:
    """Return a description of the fault in rows that `jax.vmap` adds to a draw, or None."""
    spec = KernelSpec("threefry2x32", "direct", "float32", (ROW,))
    keys = np.random.default_rng(1).integers(2**32, size=(ROWS, 2), dtype=np.uint32)
    kappas = np.geomspace(0.1, 100, ROWS * ROW, dtype=np.float32).reshape(ROWS, ROW)

    def drawn(draw: Callable[..., jax.Array], place: jax.Device) -> Array:
        rows = jax.jit(jax.vmap(functools.partial(draw, spec), in_axes=(0, None, None, 0)))
        given = keys, halves(STARTS[2]), np.float32(2.5), kappas
        return np.ravel(rows(*jax.device_put(given, place)))

    ours = drawn(cuda_launch.draw_by_kernel, device)
    expected = drawn(cuda_launch.plain_angles, cuda_self_test.reference_device(device)).astype(np.float64)
    if not cuda_self_test.rounded_from(ours, expected, cuda_self_test.allowed(kappas.ravel())).all():
        return f"{spec.name} in rows under jax.vmap: angles differ from the plain path's"
    return None


def try_on(device: jax.Device) -> str:
    """Return "" if all kernels are correct on a device, else the first fault."""
    driver = cuda_driver.Driver(device.local_hardware_id)
    # `difference` compares the direct route's kernel in all dtypes at once.
    alone = (spec for spec in specs() if spec.route == "table" or spec.dtype == "float32")
    counts = (cuda_self_test.TESTED, LONG)
    by_xla = (cuda_self_test.difference(spec, device, count) for spec, count in itertools.product(alone, counts))
    with_maps = itertools.chain(by_xla, map(fault_of_maps, (device,)))
    return next(itertools.chain(filter(None, with_maps), faults(driver.launch)), "")


def main() -> None:
    """Try the kernels on one card of each kind in this machine."""
    for device in cuda_launch.devices():
        about = cuda_verdict.identity(device)
        say("begin", about=about)
        try:
            failed = try_on(device)
        except cuda_driver.Unavailable as error:
            say("unavailable", about=about, why=str(error))
            continue
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                say("unavailable", about=about, why="the device has no free memory")
                continue
            failed = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        say("end", about=about, failed=failed)


def say(step: str, **what: object) -> None:
    """Print a step of the trial."""
    print(MARK + json.dumps({"step": step, **what}), flush=True)


if __name__ == "__main__":
    main()

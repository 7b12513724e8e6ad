"""Read the coefficients of `fits` that the package ships, written by ``python -m tools.make_sphere_fits``.

With the same coefficients everywhere, draws do not depend on the NumPy, the BLAS library and the CPU that would compute
them, and the first call does not spend time on the fits.
"""

import functools
import itertools
import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_name("fits.npz")
Rows = tuple[tuple[float, ...], ...]
Entry = tuple[Rows, tuple[float, ...]]
"""Rows of coefficients, and further numbers."""


def find(name: str) -> Entry | None:
    """Return the entry of a name, or None."""
    index, values = contents()
    if name not in index:
        return None
    dtype, start, lengths, numbers = index[name]
    ends = list(itertools.accumulate(lengths, initial=start))
    coefficients = values[dtype]
    rows = tuple(tuple(coefficients[a:b].tolist()) for a, b in itertools.pairwise(ends))
    return rows, tuple(numbers)


@functools.cache
def contents() -> tuple[dict[str, tuple[str, int, list[int], list[float]]], dict[str, np.ndarray]]:
    """Return, for each name, the dtype, the first coefficient, the lengths of rows and the numbers; and all values."""
    with np.load(FILE) as arrays:
        return json.loads(arrays["index"].tobytes()), {name: arrays[name] for name in ("float32", "float64")}


def write(entries: dict[str, tuple[str, Entry]], file: pathlib.Path) -> None:
    """Write named entries, each with the dtype to which its coefficients are rounded."""
    index: dict[str, tuple[str, int, list[int], list[float]]] = {}
    values: dict[str, list[float]] = {"float32": [], "float64": []}
    for name, (dtype, (rows, numbers)) in entries.items():
        index[name] = dtype, len(values[dtype]), [len(row) for row in rows], list(numbers)
        values[dtype] += itertools.chain(*rows)
    text = json.dumps(index, separators=(",", ":")).encode()
    float32, float64 = (np.array(numbers, name) for name, numbers in values.items())
    np.savez_compressed(file, index=np.frombuffer(text, np.uint8), float32=float32, float64=float64)

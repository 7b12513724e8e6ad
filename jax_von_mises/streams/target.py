"""Open the file or store to which a stream is written, and compute the checksums of its blocks."""

import math
import os
import zlib

import numpy as np

from jax_von_mises import arguments
from jax_von_mises.streams import npy, zarr

# Bytes that are read at a time when checksums are compared.
PIECE = 2**26

Target = npy.NpyFile | zarr.ZarrStore
# The arguments of `open_target` after `caller`.
Place = tuple[str, tuple[int, ...], np.dtype, int, int, int]


def is_npy(out: str) -> bool:
    """Return whether `out` names a ``.npy`` file."""
    return out.lower().endswith(".npy") and "://" not in out


def is_zarr(out: str) -> bool:
    """Return whether `out` names a Zarr store: a directory, or a URL such as gs://bucket/big.zarr."""
    return out.lower().rstrip("/").endswith(".zarr")


def open_target(
    caller: str, out: str, shape: tuple[int, ...], dtype: np.dtype, block_rows: int, part: int = 0, parts: int = 1
) -> Target:
    """Return the target that `out` names."""
    target: Target
    if is_zarr(out):
        arguments.utf8(caller, "out", out, "TensorStore")
        target = zarr.ZarrStore(out, shape, dtype, block_rows, part, parts)
    elif not is_npy(out):
        raise ValueError(f"{caller}: out={arguments.safe_repr(out)} must end in .npy, or in .zarr for a Zarr store.")
    elif parts > 1:
        raise ValueError(
            f"{caller}: out={arguments.safe_repr(out)} can have only one writer, but parts={parts}. Write a .zarr "
            "store instead."
        )
    else:
        target = npy.NpyFile(out, shape, dtype, block_rows)
    if target.directory is not None and not os.path.isdir(target.directory):
        raise FileNotFoundError(f"{out}: there is no directory {target.directory}; create it first")
    return target


def stored_checksum(target: Target, first: int, count: int, whole: bool) -> str:
    """Return the `checksum` of rows on the disk, read in pieces since a block may exceed the memory."""
    width = math.prod(target.shape[1:])
    found = checksum(target, ())
    if width == 0:
        return found  # there are no bytes, but there may be too many rows for a loop
    step = max(1, PIECE // (width * target.dtype.itemsize))
    for start in range(first, first + count, step):
        rows = target.read(start, min(step, first + count - start), whole)
        found = checksum(target, rows, found)
        if len(rows) < min(step, first + count - start):
            break  # the file ends here
    return found


def checksum(target: Target, rows: np.ndarray | tuple[()], before: str = "0") -> str:
    """Return the CRC-32 of the stored bytes of `rows`, continued from `before`, as eight hexadecimal digits."""
    stored = np.ascontiguousarray(rows, target.dtype.newbyteorder("<"))
    return f"{zlib.crc32(stored.view(np.uint8).reshape(-1).data, int(before, 16)):08x}"

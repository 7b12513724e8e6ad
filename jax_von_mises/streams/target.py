"""What a stream is written to, by its name: a ``.npy`` file or a Zarr store, and the checksums of its blocks."""

import math
import os
import zlib

import numpy as np

from jax_von_mises import arguments
from jax_von_mises.streams import npy, zarr

# Bytes that are read at a time when checksums are compared.
PIECE = 2**26


def is_npy(out):
    """Whether `out` names a ``.npy`` file."""
    return out.lower().endswith(".npy") and "://" not in out


def is_zarr(out):
    """Whether `out` names a Zarr store: a directory, or a URL such as gs://bucket/big.zarr."""
    return out.lower().rstrip("/").endswith(".zarr")


def open_target(caller, out, shape, dtype, block_rows, part=0, parts=1):
    """The target that `out` names."""
    if is_zarr(out):
        arguments.utf8(caller, "out", out, "TensorStore")
        target = zarr.ZarrStore(out, shape, dtype, block_rows, part, parts)
    elif not is_npy(out):
        raise ValueError(f"{caller}: out={arguments.safe_repr(out)} must end in .npy, or in .zarr for a Zarr store.")
    elif parts > 1:
        raise ValueError(
            f"{caller}: out={arguments.safe_repr(out)} has one writer, not parts={parts}. Let them write a .zarr store."
        )
    else:
        target = npy.NpyFile(out, shape, dtype, block_rows)
    if target.directory is not None and not os.path.isdir(target.directory):
        raise FileNotFoundError(f"{out}: there is no directory {target.directory}; create it first")
    return target


def stored_checksum(target, first, count, whole):
    """`checksum` of rows that are on the disk, read in pieces: a record may tell of blocks of any size."""
    width = math.prod(target.shape[1:])
    found = checksum(target, ())
    if width == 0:
        return found  # there may be 2^59 such rows
    step = max(1, PIECE // (width * target.dtype.itemsize))
    for start in range(first, first + count, step):
        rows = target.read(start, min(step, first + count - start), whole)
        found = checksum(target, rows, found)
        if len(rows) < min(step, first + count - start):
            break  # the file ends here
    return found


def checksum(target, rows, before="0"):
    """CRC-32 of the bytes of `rows` as they are stored, after those of `before`, eight hexadecimal digits."""
    stored = np.ascontiguousarray(rows, target.dtype.newbyteorder("<"))
    return f"{zlib.crc32(stored.view(np.uint8).reshape(-1).data, int(before, 16)):08x}"

"""Read and format records, the text files that list the written blocks of a file or store and their checksums.

A file or store, the *target*, appears complete or not at all. A file gets its name, and a store its metadata, once
every block has been written. Until then the record lists the blocks that have reached the disk, so that a process can
be killed at any time. The record begins with a JSON object, the head, which describes the stream and lists the blocks
that had been written when the run was started or resumed. For each further block, a line with its number and checksum
is appended. The record of a finished target consists only of a head, which lists all blocks. (Version 0.1 replaced the
head after each block; its records are read as heads without lines.)

======================= ===================================== ==========================================
..                      ``big.npy``                           ``big.zarr``
======================= ===================================== ==========================================
unfinished target       ``big.npy.partial``                   the shards ``big.zarr/c/0``, ``c/1``, ...
head of its record      ``big.npy.partial.json``              ``big.zarr/blocks-0of4.json``, one per writer
lines                   at the end of the same file           ``big.zarr/blocks-0of4.0.txt``, ``.1.txt``, ...
completed by            the name ``big.npy``                  ``big.zarr/zarr.json``
record of all blocks    ``big.npy.json``                      ``big.zarr/blocks.json``
======================= ===================================== ==========================================

With ``force``, a finished file or store keeps its name until its replacement is finished. Until then, the new store is
named ``big.zarr.partial``. While the names are exchanged, the old store is ``.replaced`` inside the new one.

`NpyFile` and `ZarrStore` have the same methods, which `writer` calls.
"""

import hashlib
import math
import os
import re
from typing import Any, BinaryIO

from jax_von_mises.arguments import DTYPES
from jax_von_mises.streams import safe_files

try:
    import fcntl
except ImportError:  # no flock on Windows: concurrent writers of one target go undetected there
    fcntl = None  # type: ignore[assignment]

# Identifies the layout of a record.
RECORD_FORMAT = "jax_von_mises/samples/1"
# Limit on the number of angles; no disk holds more.
MOST_ANGLES = 2**60
# Maximum number of blocks, since the record of a finished target is a single JSON text that is read at once.
MOST_BLOCKS = 2**20
# Maximum size of a record in bytes; a record of `MOST_BLOCKS` blocks is smaller.
LARGEST_RECORD = 2**26
# Maximum number of angles in a row, which is drawn and read in one piece.
LARGEST_ROW = 2**36

# The end of a complete head, and a complete line after it. Anything else was cut off while it was written.
END_OF_HEAD = b"\n}\n"
LINE = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{8})\n")


class ForeignTargetError(OSError):
    """The target was not written by this package, or another process is using it. It is left unchanged."""


def lock(descriptor: int | BinaryIO, name: str, alone: bool = True) -> None:
    """Lock an open file or directory until it is closed; if `alone` is false, several processes can share the lock."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ForeignTargetError(f"{name} is being written by another process; wait for it") from None
    except OSError:
        pass  # a file system without locks


def allocated(path: str) -> int:
    """Return the bytes that a file, or all files below a directory, occupy on the disk; 0 if it does not exist."""
    if not os.path.isdir(path):
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            return 0
        return 512 * status.st_blocks if hasattr(status, "st_blocks") else status.st_size
    return sum(allocated(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def readable(size: int) -> str:
    """Format a number of bytes with a unit."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def sync_directory(path: str) -> None:
    """Flush the names in a directory to the disk."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def run_words(run: str) -> bytes:
    """Return the bytes that name a run near the beginning of its head."""
    return f'"run": "{run}"'.encode()


def mark_of(record: bytes) -> str:
    """Return a short hash of a record, by which two processes check that they see the same one."""
    return hashlib.sha256(record).hexdigest()[:16]


def lines_of(blocks: dict[int, str]) -> str:
    """Return the lines that record some blocks with their checksums."""
    return "".join(f"{i} {crc}\n" for i, crc in sorted(blocks.items()))


def parse_record(name: str, text: bytes, more: bytes = b"") -> dict[str, Any]:
    """Return the record in `text` (a head followed by lines), with the lines of `more` added.

    Heads are written atomically, so an incomplete one was not written by this package. An incomplete line, where a
    process or machine stopped while writing, and all lines after it are ignored.
    """
    head, end, lines = text.partition(END_OF_HEAD)
    try:
        record: dict[str, Any] = safe_files.parse_json(head + end, MOST_BLOCKS + 1_000)
        if record["format"] != RECORD_FORMAT or not isinstance(record["stream"], dict):
            raise ValueError
        record["shape"] = tuple(int(size) for size in record["shape"])
        record["block_rows"] = int(record["block_rows"])
        record["crc32"] = {int(i): str(crc) for i, crc in record["crc32"].items()}
        sizes = *record["shape"], math.prod(record["shape"])
        if not sizes[:-1] or min(sizes) < 0 or max(sizes) >= MOST_ANGLES or not 0 < record["block_rows"] < MOST_ANGLES:
            raise ValueError
        # No run has so many blocks, and a loop over them would take too long.
        if -(-record["shape"][0] // record["block_rows"]) > MOST_BLOCKS:
            raise ValueError
        if math.prod(record["shape"][1:]) > LARGEST_ROW or record["stored"] not in DTYPES:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ForeignTargetError(f"{name} is not a record of this package; move it away") from error
    for line in (lines + more).splitlines(keepends=True):
        match = LINE.fullmatch(line)
        if match is None:
            break
        record["crc32"][int(match[1])] = match[2].decode()
    return record

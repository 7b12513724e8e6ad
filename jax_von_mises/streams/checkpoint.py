"""Records: which blocks of a file or a store are written, and their checksums, in a text next to it.

A target appears complete or not at all: a file gets its name, a store its metadata, when every block is there. Until
then the record says which blocks have reached the disk, so that a process may be killed at any instant. It begins with
a JSON object, the head, which says what is drawn and lists the blocks that were there when the run was begun or
resumed. A line is appended for each further block: its number and its checksum. The record of a finished target is the
head alone, with all blocks. (Version 0.1 replaced the head after each block; its records are read as heads without
lines.)

======================= ===================================== ==========================================
..                      ``big.npy``                           ``big.zarr``
======================= ===================================== ==========================================
while blocks are drawn  ``big.npy.partial``                   the shards ``big.zarr/c/0``, ``c/1``, ...
head until then         ``big.npy.partial.json``              ``big.zarr/blocks-0of4.json``, one per writer
lines                   at the end of the same file           ``big.zarr/blocks-0of4.0.txt``, ``.1.txt``, ...
what makes it complete  the name ``big.npy``                  ``big.zarr/zarr.json``
record of all blocks    ``big.npy.json``                      ``big.zarr/blocks.json``
======================= ===================================== ==========================================

With ``force`` a finished file or store keeps its name until the new one is finished. A store is then written as
``big.zarr.partial``, and for the last moments the old one is ``.replaced`` in it.

`NpyFile` and `ZarrStore` have the same methods, which `writer` calls.
"""

import hashlib
import math
import os
import re

from jax_von_mises.arguments import DTYPES
from jax_von_mises.streams import safe_files

try:
    import fcntl
except ImportError:  # Windows has other locks; there two writers of one target are not kept apart
    fcntl = None  # type: ignore[assignment]

# Names the layout of a record, for whoever reads one later.
RECORD_FORMAT = "jax_von_mises/samples/1"
# More angles than this no disk holds.
MOST_ANGLES = 2**60
# The record of a finished target is one JSON text that is read at once: no target has more blocks.
MOST_BLOCKS = 2**20
# Bytes that no record of so many blocks reaches.
LARGEST_RECORD = 2**26
# Angles in a row. A row is drawn, and read, in one piece.
LARGEST_ROW = 2**36

# How a head ends, and a line after it: whatever does not end so was cut off as it was written.
END_OF_HEAD = b"\n}\n"
LINE = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{8})\n")


class ForeignTargetError(OSError):
    """What is there is not known to be ours, or is in use: touch nothing."""


def lock(descriptor, name, alone=True):
    """Keep others out of an open file or directory until it is closed; those who are not `alone` share it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ForeignTargetError(f"{name} is being written by another process; wait for it") from None
    except OSError:
        pass  # a file system without locks


def allocated(path):
    """Bytes that a file, or all files below a directory, take up on the disk; 0 if there is none."""
    if not os.path.isdir(path):
        try:
            about = os.stat(path, follow_symlinks=False)
        except OSError:
            return 0
        return 512 * about.st_blocks if hasattr(about, "st_blocks") else about.st_size
    return sum(allocated(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def readable(size: int) -> str:
    """Write a number of bytes with a unit."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def sync_directory(path):
    """Let the names in a directory reach the disk."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def run_words(run):
    """The bytes that name a run near the beginning of its head."""
    return f'"run": "{run}"'.encode()


def mark_of(record):
    """A few characters by which two processes know that they see the same record, given as bytes."""
    return hashlib.sha256(record).hexdigest()[:16]


def lines_of(blocks):
    """The lines that record some blocks, given with their checksums."""
    return "".join(f"{i} {crc}\n" for i, crc in sorted(blocks.items()))


def parse_record(name, text, more=b""):
    """The record in `text`, a head and lines, and in `more` lines; a head is written at once, so others are not ours.

    Lines count up to the first that is incomplete: a process or a machine ended as it was written.
    """
    head, end, lines = text.partition(END_OF_HEAD)
    try:
        record = safe_files.parse_json(head + end, MOST_BLOCKS + 1_000)
        if record["format"] != RECORD_FORMAT or not isinstance(record["stream"], dict):
            raise ValueError
        record["shape"] = tuple(int(size) for size in record["shape"])
        record["block_rows"] = int(record["block_rows"])
        record["crc32"] = {int(i): str(crc) for i, crc in record["crc32"].items()}
        sizes = *record["shape"], math.prod(record["shape"])
        if not sizes[:-1] or min(sizes) < 0 or max(sizes) >= MOST_ANGLES or not 0 < record["block_rows"] < MOST_ANGLES:
            raise ValueError
        # More blocks than are ever begun: whoever goes through them would not come to an end.
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

"""Read and replace files that somebody else may have created, within limits and without blocking.

Opening a pipe can block, a device may have no end, a link may lead to a file that must be kept, and an archive may
unpack to any size. All code that reads or replaces a file of a given name uses these functions.
"""

import contextlib
import json
import math
import os
import re
import stat
import zipfile
from typing import Any, BinaryIO

import numpy as np

# Compression methods for which Python respects a limit on the unpacked bytes. With other methods, a few kilobytes can
# expand to gigabytes before their size is known.
BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Maximum nesting depth of brackets in a JSON text. Records and the metadata of stores have ten levels.
NESTED = 100
# Maximum nesting depth of folders. A Zarr store has one level per array axis; TensorStore arrays have up to 32 axes.
DEEPEST = 64


def at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a writer if it is a pipe; for use as the `opener` of `open`."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes; raise OSError for a pipe, a device or the like."""
    file = open(path, "rb", opener=at_once)  # noqa: SIM115
    try:
        must_be_plain(file, path)
    except BaseException:
        file.close()
        raise
    return file


def must_be_plain(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Refuse an open file that is not a regular one."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError(f"{path} is not a regular file but a pipe, a device or similar; move it away")


def read_plain(path: str, limit: int) -> bytes:
    """Return the bytes of a file; raise OSError if there are more than `limit`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > limit else file.read(size + 1)
    if max(size, len(content)) > limit:
        raise OSError(f"{path} has more than {limit} bytes, too many for a file of this name; move it away")
    return content


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return the contents of a file in an open zip archive; KeyError if missing, ValueError if too large."""
    if name not in archive.namelist():
        raise KeyError(name)
    about = archive.getinfo(name)
    if about.compress_type not in BOUNDED:
        raise ValueError(
            f"its member {name} is compressed by method {about.compress_type}, which this package does not read"
        )
    if about.file_size > limit:
        raise ValueError(f"its member {name} has {about.file_size} bytes, but may have at most {limit}")
    with archive.open(about) as file:
        # Without a size, read() would unpack up to 1 GiB before it checks the size in the archive's directory.
        return file.read(about.file_size + 1)


def read_npy(file: BinaryIO) -> np.ndarray:
    """Return the array in an open ``.npy`` file; raise an exception, of any type, if it is invalid or too short.

    The checks come first, since NumPy allocates what the header claims before it reads the data, and passes on errors
    of Python's parser and of its own arithmetic.
    """
    layout = np.lib.format
    headers = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
    version = layout.read_magic(file)
    if version not in headers:
        raise ValueError(f"it has the version {version[0]}.{version[1]}, which arrays of numbers do not need")
    try:
        shape, _, dtype = headers[version](file)
    except MemoryError as error:  # from Python's parser
        raise ValueError("its header is nested too deeply") from error
    begin = file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > file.seek(0, os.SEEK_END) - begin:
        raise ValueError(f"its header claims the shape {shape}, but the file is too short for that")
    file.seek(0)
    return layout.read_array(file, allow_pickle=False)


def parse_json(content: bytes, limit: int) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid, or has more than `limit` parts.

    Brackets nested more than `NESTED` deep are refused as well, since parsers recurse. At great depth, TensorStore's
    parser crashes the process, and so may Python's if the program has raised the recursion limit.
    """
    # Count the parts before parsing, since a parsed part can take fifty times the memory of its text.
    if max(content.count(b","), content.count(b"[") + content.count(b"{"), content.count(b'"') // 4) > limit:
        raise ValueError(f"it has more than {limit} parts")
    try:
        text = content.decode()  # Python's parser would guess other encodings
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    # In JSON, backslashes occur only inside strings. Once the escapes are removed, the quotes delimit the strings.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in re.finditer(r"[][{}]", outside):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > NESTED:
            raise ValueError(f"its brackets are nested more than {NESTED} deep")
    try:
        return json.loads(text)
    except ValueError as error:  # also raised for numbers with too many digits
        raise ValueError("it is not JSON, or contains a number with too many digits") from error


def write_new(path: str, text: str) -> None:
    """Write a small text to a new file.

    A file of that name, left by a process that was killed, is removed rather than overwritten, since it might be a
    link.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def take_free_name(temporary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Rename a file to a free name; raise OSError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # from a file system without hard links
        if os.path.lexists(path):
            raise
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def strange_below(folder: str) -> str | None:
    """Return the path of an entry below `folder` that is neither a regular file nor a folder; None if there is none.

    Raise OSError if folders are nested deeper than `DEEPEST`, where recursive functions would fail.
    """
    waiting = [(folder, 0)]
    while waiting:
        above, depth = waiting.pop()
        if depth > DEEPEST:
            raise OSError(
                f"{folder} holds folders nested more than {DEEPEST} levels deep, which no store does; move it away"
            )
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(above) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    return entry.path
    return None

"""Files that somebody else may have made: opened without waiting, read no further than what they can rightly be.

A pipe in the place of a file would be waited for, a device may have no end, a link may lead to what is to be kept, and
an archive may unpack to anything. Whoever reads or replaces a file of a given name goes through here.
"""

import contextlib
import json
import math
import os
import re
import stat
import zipfile

import numpy as np

# Of the ways to pack a file, those that Python unpacks no further than it is asked to: with the others a few kilobytes
# become gigabytes before anyone can look.
BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Brackets in brackets of a JSON text. Records and the metadata of stores have ten.
NESTED = 100
# Folders in folders. A Zarr store has one for each axis of an array, and TensorStore arrays have 32.
DEEPEST = 64


def at_once(path, flags):
    """Open for `open`: a pipe without a writer is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def open_plain(path):
    """Open a file to read its bytes; OSError where it is a pipe, a device or the like."""
    file = open(path, "rb", opener=at_once)  # noqa: SIM115
    try:
        must_be_plain(file, path)
    except BaseException:
        file.close()
        raise
    return file


def must_be_plain(file, path):
    """Refuse an open file that is none of a disk."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError(f"{path} is not a file, but a pipe, a device or the like; move it away")


def read_plain(path, limit):
    """The bytes of a file; OSError where there are more than `limit`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > limit else file.read(size + 1)
    if max(size, len(content)) > limit:
        raise OSError(f"{path} has more than {limit} bytes, so it is not what its name says; move it away")
    return content


def read_member(archive, name, limit):
    """The bytes of a file in an open zip archive; KeyError if there is none, ValueError if it is not as small."""
    about = archive.getinfo(name)
    if about.compress_type not in BOUNDED:
        raise ValueError(f"{name} in it is packed by method {about.compress_type}, which this package does not read")
    if about.file_size > limit:
        raise ValueError(f"{name} in it has {about.file_size} bytes, and may have {limit}")
    with archive.open(about) as file:
        # And not read(), which unpacks 2 GiB before it looks at the size that was told.
        return file.read(about.file_size + 1)


def read_npy(file):
    """The array in an open ``.npy`` file; an exception of whatever kind where it is none, or claims more than it holds.

    NumPy makes room for what the header claims before it looks for it, and lets pass what Python's parser and its own
    arithmetic say of a header.
    """
    layout = np.lib.format
    headers = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
    version = layout.read_magic(file)
    if version not in headers:
        raise ValueError(f"it has the version {version[0]}.{version[1]}, which arrays of numbers do not need")
    try:
        shape, _, dtype = headers[version](file)
    except MemoryError as error:  # of Python's parser
        raise ValueError("its header is nested too deeply") from error
    begin = file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > file.seek(0, os.SEEK_END) - begin:
        raise ValueError(f"it claims to be of shape {shape}, and is too short for that")
    file.seek(0)
    return layout.read_array(file, allow_pickle=False)


def parse_json(content, limit):
    """The value in the bytes of a JSON text; ValueError where there is none, or one of more than `limit` parts.

    Also where brackets are nested more than `NESTED` deep. Parsers call themselves for each: Python's refuses in time,
    unless the program has allowed it any depth, and that of TensorStore ends the process.
    """
    # Counted before anything is made of them: each can take fifty times its bytes.
    if max(content.count(b","), content.count(b"[") + content.count(b"{"), content.count(b'"') // 4) > limit:
        raise ValueError(f"it has more than {limit} parts")
    try:
        text = content.decode()  # not of whatever encoding Python's parser would guess
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    # Backslashes stand in strings alone, so what is left of a text without them is told apart by its quotes.
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in re.finditer(r"[][{}]", outside):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > NESTED:
            raise ValueError(f"its brackets are nested more than {NESTED} deep")
    try:
        return json.loads(text)
    except ValueError as error:  # of numbers too, with more digits than Python takes
        raise ValueError("it is not JSON, or has numbers that no such file has") from error


def write_anew(path, text):
    """Write a small text file under a name that nothing bears afterwards but this file.

    What was there, from a process that was killed, is removed and not written to: it might be a link.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def take_free_name(temporary, path):
    """Rename a file to a name that nothing else has; FileExistsError if something has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # of a file system that gives a file one name
        if os.path.lexists(path):
            raise
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def strange_below(folder):
    """The first thing in a folder, or below, that is neither a file nor a folder; None if there is none.

    OSError where folders lie deeper than `DEEPEST`: whoever goes down by calling itself would not come back.
    """
    waiting = [(folder, 0)]
    while waiting:
        above, depth = waiting.pop()
        if depth > DEEPEST:
            raise OSError(
                f"{folder} holds folders in folders, more than {DEEPEST} deep, as no store does; move it away"
            )
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(above) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    return entry.path
    return None

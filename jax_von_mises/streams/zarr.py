"""Write a Zarr v3 array block by block, on a local disk or in a bucket.

========================================= ==================================================
key                                       holds
========================================= ==================================================
``stream.json``                           the plan; written first
``c.0``, ``c.1``, ... (``c.0.0``, ...)    one block each, with Zarr's own checksum (CRC-32C)
``zarr.json``                             the metadata of the array; written last
========================================= ==================================================

Each key is put in one atomic step, and readers find no array before ``zarr.json``. zarr-python encodes and decodes the
blocks in memory; this module only puts the bytes. fsspec reaches buckets.
"""

import contextlib
import json
import os
import re
from typing import Any, Protocol

import numpy as np

from jax_von_mises.streams import disk
from jax_von_mises.streams.blocks import MARK, Found, Plan, of_another_run

METADATA, IDENTITY = "zarr.json", "stream.json"
# Stands at the end of the plan of a store that is being removed.
REMOVED = b"\n"
BLOCK = re.compile(r"c\.([0-9]+)((?:\.0)*)")
# Bytes that readers decode at a time; a larger block becomes a shard of several chunks.
CHUNK = 2**26


class Keys(Protocol):
    """The keys of a store."""

    def names(self) -> list[str]:
        """Return all names."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a key, or None."""

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Set a key in one step."""

    def create(self, name: str, data: bytes) -> None:
        """Set a key in one step, unless it exists."""

    def delete(self, name: str) -> None:
        """Remove a key, if it is there."""

    def sync(self) -> None:
        """Make the names safe."""


class Folder:
    """Keys that are files in a local folder."""

    def __init__(self, path: str):
        self.path = path
        disk.must_not_be_a_link(path.rstrip("/"))

    def names(self) -> list[str]:
        """Return the names of all files; those of links, folders and the like get a slash at the end."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            return [entry.name + "/" * (not entry.is_file(follow_symlinks=False)) for entry in entries]
        return []

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None."""
        return disk.read(os.path.join(self.path, name))

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write a file."""
        disk.put(os.path.join(self.path, name), data)

    def create(self, name: str, data: bytes) -> None:
        """Write a file, unless it exists."""
        os.makedirs(self.path, exist_ok=True)
        disk.create(os.path.join(self.path, name), data)
        self.sync()
        disk.sync_directory(os.path.dirname(os.path.abspath(self.path)))

    def delete(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def sync(self) -> None:
        """Flush the names to the disk."""
        disk.sync_directory(self.path)


class Bucket:
    """Keys that are objects below a URL, which fsspec reaches."""

    def __init__(self, url: str):
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(
                'Zarr stores need zarr-python and fsspec: pip install "jax_von_mises[storage]".'
            ) from error
        self.system, self.path = url_to_fs(url.rstrip("/"))
        if "file" in self.system.protocol:  # whose files are not written in one step
            raise ValueError(f"write_samples: out={url!r} is on a local disk; give its path.")

    def names(self) -> list[str]:
        """Return the names of all objects."""
        self.system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            found = self.system.ls(self.path, detail=False)
            return [name[len(self.path) + 1 :] for name in found if len(name) > len(self.path) + 1]
        return []

    def get(self, name: str) -> bytes | None:
        """Return the bytes of an object, or None."""
        with contextlib.suppress(FileNotFoundError):
            found: bytes = self.system.cat_file(f"{self.path}/{name}")
            return found
        return None

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write an object."""
        self.system.pipe_file(f"{self.path}/{name}", bytes(data))

    def create(self, name: str, data: bytes) -> None:
        """Write an object, unless it exists."""
        if self.get(name) is None:
            self.put(name, data)

    def delete(self, name: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.path}/{name}")

    def sync(self) -> None:
        """Do nothing, since an object that was put is safe."""


def keys_of(path: str) -> Keys:
    """Return the keys of the store that `path` names."""
    return Bucket(path) if "://" in path else Folder(path)


class ZarrStore:
    """One array of a Zarr v3 store."""

    def __init__(self, path: str, plan: Plan):
        self.path, self.plan, self.keys = path, plan, keys_of(path)
        # The encoded metadata, and the block that is encoded or decoded at the time.
        self.memory: dict[str, Any] = {}
        self.array = self._encoder()

    @classmethod
    def found(cls, path: str) -> Found:
        """Return what stands at `path`."""
        import_zarr()
        keys = keys_of(path)
        names = [name for name in keys.names() if not disk.is_temporary(name)]
        text = (keys.get(IDENTITY) or b"").decode(errors="replace")
        return Found(bool(names), text.strip() if text.startswith(MARK) else None, METADATA in names)

    def _encoder(self) -> Any:
        """Return an array in memory, which encodes and decodes blocks and metadata."""
        zarr = import_zarr()
        plan = self.plan
        columns = tuple(max(size, 1) for size in plan.shape[1:])
        least = max(1, -(-plan.block_rows * plan.row_bytes // CHUNK))
        pieces = next((n for n in range(least, 1024) if plan.block_rows % n == 0), 1)
        return zarr.create_array(
            zarr.storage.MemoryStore(self.memory),
            shape=plan.shape,
            dtype=plan.dtype,
            chunks=(plan.block_rows // pieces, *columns),
            shards=(plan.block_rows, *columns) if pieces > 1 else None,
            filters=None,
            compressors=[zarr.codecs.Crc32cCodec()],
            fill_value=float("nan"),
            chunk_key_encoding={"name": "default", "separator": "."},
            config={"write_empty_chunks": True},  # a block of NaN is a block
            attributes={"jax_von_mises": plan.about},
        )

    def key(self, block: int) -> str:
        """Return the key of a block."""
        return f"c.{block}" + ".0" * (len(self.plan.shape) - 1)

    def done(self) -> dict[int, str]:
        """Return the finished blocks. Their checksums are in the blocks themselves."""
        if (self.keys.get(IDENTITY) or b"").strip() != self.plan.text.encode():
            return {}
        matches = filter(None, map(BLOCK.fullmatch, self.keys.names()))
        numbers = {int(match[1]) for match in matches if match[0] == self.key(int(match[1]))}
        return dict.fromkeys(sorted(number for number in numbers if number < self.plan.blocks), "")

    def begin(self, found: Found, replace: bool) -> None:
        """Put the plan, if it is not there; remove the store first if `replace` is true."""
        if replace:
            self._remove()
        elif found.text is None and found.exists:
            raise FileExistsError(f"{self.path}: was not written by this package; move it away")
        text, stored = self.plan.text.encode(), self.keys.get(IDENTITY)
        if stored is None:
            self.keys.create(IDENTITY, text)
        elif stored == text + REMOVED:
            self.keys.put(IDENTITY, text)
        self._must_be_ours()
        if found.finished and len(self.done()) < self.plan.blocks:
            self.keys.delete(METADATA)  # a block was lost, so readers must not find the array

    def _remove(self) -> None:
        """Remove a store of this package: the metadata first, so that readers find no array, and the plan last."""
        names = self.keys.names()
        blocks = [name for name in names if BLOCK.fullmatch(name) or disk.is_temporary(name)]
        other = sorted(set(names) - {*blocks, METADATA, IDENTITY})
        if other or (names and IDENTITY not in names):
            what = ", ".join(other[:5]) or "no stream.json"
            raise FileExistsError(f"{self.path}: holds {what}, so it is not only of this package; move it away")
        if not names:
            return
        self.keys.delete(METADATA)
        # From here on, late writers of the old stream take back their blocks.
        self.keys.put(IDENTITY, (self.keys.get(IDENTITY) or b"").strip() + REMOVED)
        for name in self.keys.names():
            if BLOCK.fullmatch(name) or disk.is_temporary(name):
                self.keys.delete(name)
        self.keys.delete(IDENTITY)

    def _must_be_ours(self) -> None:
        """Raise OSError if the store holds another plan."""
        if self.keys.get(IDENTITY) != self.plan.text.encode():
            raise of_another_run(self.path)

    def put(self, block: int, rows: np.ndarray) -> str:
        """Write a block; it is in the store when this returns."""
        first, count = self.plan.span(block)
        self.array[first : first + count] = rows
        data = self.memory.pop(self.key(block)).as_numpy_array()
        self._must_be_ours()
        self.keys.put(self.key(block), memoryview(data))
        try:
            self._must_be_ours()
        except FileNotFoundError:
            # The process was suspended, while the store was replaced. The block is not of the new stream.
            self.keys.delete(self.key(block))
            raise
        return ""

    def record(self, block: int, crc: str) -> None:
        """Do nothing, since a block that is there is finished."""

    def read(self, block: int) -> np.ndarray:
        """Return the rows of a block; raise ValueError if zarr-python finds that it is damaged."""
        from zarr.buffer import cpu

        data = self.keys.get(self.key(block))
        if not data:  # zarr-python takes an empty shard for one of fill values
            raise ValueError(f"{self.path}: block {block} is missing")
        first, count = self.plan.span(block)
        self.memory[self.key(block)] = cpu.Buffer.from_bytes(data)
        try:
            return np.asarray(self.array[first : first + count])
        finally:
            self.memory.pop(self.key(block), None)

    def damaged(self, block: int, _expected: str) -> bool:
        """Return whether zarr-python cannot decode a block, or finds another checksum."""
        try:
            self.read(block)
        except (ValueError, RuntimeError, IndexError):
            return True
        return False

    def finish(self) -> bool:
        """Put the metadata if all blocks are there; return whether they are."""
        if len(self.done()) < self.plan.blocks:
            return False
        self._must_be_ours()
        if self._wrong_metadata():
            self.keys.sync()
            self.keys.put(METADATA, self.memory[METADATA].to_bytes())
            self.keys.sync()
        # Left by processes that were killed, or of writers of a key that is there by now.
        for name in filter(disk.is_temporary, self.keys.names()):
            self.keys.delete(name)
        return True

    def check(self) -> None:
        """Raise OSError if the metadata of the finished store describe another array."""
        if wrong := self._wrong_metadata():
            raise OSError(f"{self.path}: its metadata {wrong}; `resume` with `repair` writes them again")

    def _wrong_metadata(self) -> str:
        """Return how the stored metadata differ from those of the array, to which others may have added attributes."""
        ours = json.loads(self.memory[METADATA].to_bytes())
        try:
            found = json.loads(self.keys.get(METADATA) or b"{}")
        except ValueError:
            return "are not JSON"
        for name in ("shape", "data_type", "chunk_grid", "chunk_key_encoding"):
            if found.get(name) != ours[name]:
                return f"give {name} {found.get(name)}, but its plan implies {ours[name]}"
        return ""

    def close(self) -> None:
        """Do nothing, since nothing is open or locked."""


def import_zarr() -> Any:
    """Import and return zarr-python, which only stores need."""
    try:
        import zarr
        import zarr.codecs
        import zarr.storage
    except ImportError as error:
        raise ImportError(
            'Zarr stores need zarr-python: pip install "jax_von_mises[storage]". A .npy file does not need it.'
        ) from error
    return zarr

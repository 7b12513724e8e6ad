"""Write a Zarr v3 array block by block, with TensorStore."""

import contextlib
import errno
import glob
import itertools
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jax_von_mises.streams import safe_files
from jax_von_mises.streams.checkpoint import (
    LARGEST_RECORD,
    ForeignTargetError,
    allocated,
    lock,
    mark_of,
    parse_record,
    readable,
    run_words,
    sync_directory,
)


class ZarrStore:
    """One array of a Zarr v3 store, on a local disk or in an object store, written by one process or by several.

    A block is a shard, one file or object that holds chunks. Readers can fetch each chunk separately. The array's
    metadata are written last; until then readers find no array. On a disk, a store that replaces a finished one is
    written next to it, as ``big.zarr.partial``. When all blocks are written, the old store is moved into the new one as
    ``.replaced``, the new store takes its name, and the old one is removed.
    """

    # Maximum number of chunks per shard.
    CHUNKS = 64
    METADATA, RECORD, REPLACED = "zarr.json", "blocks.json", ".replaced"
    # Maximum size of the metadata in bytes. This class writes about two thousand; others may have added attributes.
    LARGEST_METADATA = 2**20
    WRITER_RECORD = re.compile(r"blocks-(\d+)of(\d+)\.json")
    # Nothing can be appended to an object, so each new line rewrites the last segment of a record. A segment is full
    # when it has `SEGMENT_LINES` lines.
    SEGMENT = re.compile(r"(blocks-\d+of\d+)\.(\d+)\.txt")
    SEGMENT_LINES = 256

    def __init__(
        self, out: str, shape: tuple[int, ...], dtype: np.dtype, block_rows: int, part: int = 0, parts: int = 1
    ):
        self.path, self.shape, self.dtype, self.block_rows = out, shape, dtype, block_rows
        self.stem = f"blocks-{part}of{parts}"
        self.writer_record = f"{self.stem}.json"
        self.segment, self.lines = 0, ""  # number and content of the last segment
        self.alone = parts == 1
        # Resolve links, so that the old and the new name of a renamed store lie on one file system.
        self.folder = None if self.directory is None else os.path.realpath(out)
        self.partial = f"{self.folder}.partial"
        # Whether this run writes next to a finished store and will replace it.
        self.replaces = self.alone and self.folder is not None and self._has_run(self.partial)
        if self.folder is not None:
            for folder in (out, self.partial) if self.replaces else (out,):
                must_be_plain_store(folder)
        self.tensorstore = import_tensorstore()
        # One context for all operations, without a cache, since data are not read again after they are written.
        self.context = self.tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.in_turn = InTurn()
        try:
            self.final = self._keys(out)
            self.run = self._keys(self.partial) if self.replaces else self.final
        except BaseException:
            self.in_turn.close()
            raise
        self.array: Any = None
        self.locked: dict[str, int] = {}
        self.begun = False  # whether this run has changed anything
        self.created = False  # whether this run created the store, and removes it if no block is drawn
        self.made: list[str] = []  # folders that did not exist before

    @property
    def disk(self) -> str | None:
        """The directory on whose disk the store lies, or None for an object store."""
        return None if self.folder is None else os.path.dirname(self.folder)

    def _has_run(self, folder: str) -> bool:
        """Return whether a directory holds an unfinished run, with the record of a writer."""
        return os.path.isdir(folder) and any(self.WRITER_RECORD.fullmatch(name) for name in os.listdir(folder))

    def _is_ours(self, name: str) -> bool:
        """Return whether this class or TensorStore makes files of this name in a store's directory."""
        fixed = name in ("c", self.METADATA, self.RECORD, self.REPLACED) or name.endswith(".__lock")
        return fixed or bool(self.WRITER_RECORD.fullmatch(name) or self.SEGMENT.fullmatch(name))

    def _keys(self, name: str) -> "Keys":
        return Keys(self.tensorstore, self.context, self.in_turn, name)

    def specification(self, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return TensorStore's specification of the array."""
        chunks = next(n for n in range(self.CHUNKS, 0, -1) if self.block_rows % n == 0)
        columns = [max(size, 1) for size in self.shape[1:]]
        plain = {"name": "bytes", "configuration": {"endian": "little"}}
        sharding = {
            "chunk_shape": [self.block_rows // chunks, *columns],
            "codecs": [plain],
            "index_codecs": [plain, {"name": "crc32c"}],
        }
        return {
            "driver": "zarr3",
            "kvstore": self.run.kvstore,
            "metadata": {
                "shape": list(self.shape),
                "data_type": self.dtype.name,
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [self.block_rows, *columns]},
                },
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
                "fill_value": "NaN",
                "attributes": attributes or {},
            },
        }

    def whole(self) -> bool:
        """Return whether there is a complete array, written by this package or not."""
        return self.final.read(self.METADATA) is not None

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all writers of an unfinished run."""
        names = self.run.names()
        if not self.replaces and {self.METADATA, self.RECORD} <= set(names):
            return []  # the store is complete, and a run that was killed in `finish` has left its records
        found = sorted(name for name in names if self.WRITER_RECORD.fullmatch(name))
        if names and not found and (self.replaces or self.RECORD not in names):
            raise ForeignTargetError(f"{self.run.name} is not empty, and holds no record of this package; move it away")
        texts = ((name, self.run.read(name), self._lines(name.removesuffix(".json"), names)) for name in found)
        return [parse_record(f"{self.run.name}/{name}", text, more) for name, text, more in texts if text is not None]

    def _lines(self, stem: str, names: list[str]) -> bytes:
        """Return the lines that a writer has added to its head."""
        matches = sorted(
            (int(match[2]), match[0]) for match in map(self.SEGMENT.fullmatch, names) if match and match[1] == stem
        )
        return b"".join(self.run.read(name) or b"" for _, name in matches)

    def final_record(self) -> dict[str, Any] | None:
        """Return the record of the finished store, or None."""
        text = self.final.read(self.RECORD)
        return None if text is None else parse_record(f"{self.path}/{self.RECORD}", text)

    @property
    def directory(self) -> str | None:
        """The directory that contains the store, or None for an object store."""
        return None if "://" in self.path else os.path.dirname(self.path.rstrip("/")) or os.curdir

    def check_layout(self) -> None:
        """Open the finished array as its readers do, and check its shape, dtype and codecs.

        The codecs are checked because other codecs could expand a few bytes to any size.
        """
        self._metadata_must_be_sound(self.final)
        with as_os_errors(self.path):
            spec = {"driver": "zarr3", "kvstore": self.final.kvstore}
            self.array = self.tensorstore.open(spec, open=True, context=self.context).result()
        if self.array.shape != self.shape or self.array.dtype.numpy_dtype != self.dtype:
            found = f"{self.array.shape}, {self.array.dtype.name}"
            raise ForeignTargetError(
                f"{self.path} ({found}) is not the array that its record describes ({self.shape}, {self.dtype}); "
                "restore it, or move both away"
            )
        with as_os_errors(self.path):
            # TensorStore compares the stored metadata with this specification.
            spec = self.specification() | {"kvstore": self.final.kvstore}
            self.tensorstore.open(spec, open=True, context=self.context).result()

    def _metadata_must_be_sound(self, keys: "Keys") -> None:
        """Refuse metadata that would crash TensorStore's parser."""
        content = keys.read(self.METADATA)
        if content is None:
            return
        try:
            if len(content) > self.LARGEST_METADATA:
                raise ValueError(f"it has more than {self.LARGEST_METADATA} bytes")
            safe_files.parse_json(content, self.LARGEST_METADATA)
        except ValueError as error:
            name = os.path.join(keys.name, self.METADATA)
            raise ForeignTargetError(f"{name} is not the metadata of a store: {error}; move it away") from error

    def begin(self, text: str) -> None:
        """Start a run without blocks, with the record `text`."""
        self._lock_run()
        self.created = self.alone and not self.run.names()
        self.begun = True
        self._start_record(text)
        self._open()

    def _lock_run(self) -> None:
        """Lock the run, and refuse one that another process has just finished."""
        self._lock(self.run.name)
        # A store that replaces another gets its metadata before its name.
        if self.alone and not self.replaces and self.run.read(self.METADATA) is not None:
            raise ForeignTargetError(f"{self.run.name} was finished by another process")

    def _lock(self, folder: str) -> None:
        """Lock a directory, exclusively for a single writer and shared among several parts."""
        if self.folder is None or folder in self.locked:
            return
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            self.made.append(folder)
        if os.name == "posix":
            self.locked[folder] = os.open(folder, os.O_RDONLY)
            lock(self.locked[folder], folder, self.alone)

    def go_on(self, text: str) -> None:
        """Open the array of an earlier run, which has no metadata yet, and replace its record with `text`."""
        self._lock_run()
        if self.replaces and self.folder is not None and os.path.isdir(self.folder):
            self._lock(self.final.name)
        self.begun = True
        self._start_record(text)
        self._open()

    def join(self) -> None:
        """Open the array to write blocks that another process records."""
        self._open()

    def leave(self) -> None:
        """Close the array that `join` has opened."""
        self.array = None

    def _open(self) -> None:
        with as_os_errors(self.path):
            self.array = self.tensorstore.open(
                self.specification(), open=True, assume_metadata=True, context=self.context
            ).result()

    def write(self, first: int, rows: np.ndarray) -> None:
        """Write `rows` from row `first` on; they have reached the store when this returns."""
        with as_os_errors(self.path):
            # The call waits until a disk has the rows, so they need no copy. A store in memory would keep a reference.
            to = self.array[first : first + len(rows)]
            local = self.folder is not None
            self.in_turn(lambda: to.write(np.asarray(rows), can_reference_source_data_indefinitely=local).commit)

    def read(self, first: int, count: int, whole: bool = False) -> np.ndarray:
        """Return rows of the array: NaN where a shard is missing, and only infinities if one cannot be decoded."""
        if self.array is None:
            self._open()
        # NumPy raises MemoryError when memory runs out; TensorStore would end the process.
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        with as_os_errors(self.path):
            try:
                self.tensorstore.array(rows, context=self.context).write(self.array[first : first + count]).result()
            except ValueError as error:
                if not str(error).startswith("DATA_LOSS"):
                    raise
                rows.fill(np.inf)  # no angle is infinite, so the checksum will differ
        return rows

    def _start_record(self, text: str) -> None:
        """Replace this writer's record with a head, to which `append` adds lines."""
        self.run.write(self.writer_record, text)
        for name in self.run.names():  # the new head includes the blocks of older segments
            match = self.SEGMENT.fullmatch(name)
            if match and match[1] == self.stem:
                self.run.delete(name)
        self.segment, self.lines = 0, ""

    def append(self, lines: str) -> None:
        """Add lines to the record; they are in the store when this returns. An interrupted call can be repeated."""
        lines = self.lines + lines
        self.run.write(f"{self.stem}.{self.segment}.txt", lines)
        self.lines = lines
        if lines.count("\n") >= self.SEGMENT_LINES:
            self.segment, self.lines = self.segment + 1, ""

    def runs(self, run: str) -> bool:
        """Return whether the record of the unfinished run has the name `run`."""
        return run_words(run) in (self.run.read(self.writer_record) or b"")

    def marks(self) -> Iterator[str]:
        """Yield marks of the records, with which other processes check that they see the same records."""
        for keys in {self.final, self.run}:
            for name in keys.names():
                if name == self.RECORD or self.WRITER_RECORD.fullmatch(name):
                    yield mark_of(keys.read(name) or b"")

    def finish(self, text: str) -> None:
        """Complete the store: write its metadata, and give it its name."""
        self.run.write(self.RECORD, text)
        self._metadata_must_be_sound(self.run)  # TensorStore parses metadata that another process may have written
        attributes = {"jax_von_mises": json.loads(text)["stream"]}
        with as_os_errors(self.path):
            spec = self.specification(attributes)
            self.in_turn(lambda: self.tensorstore.open(spec, open=True, create=True, context=self.context))
        if self.replaces and self.folder is not None:
            self._take_name(self.folder)
        self.settle()

    def _take_name(self, folder: str) -> None:
        """Give the new store the name `folder` of the old one, after moving the old one into it."""
        self.array = None
        inside = os.path.join(self.partial, self.REPLACED)
        try:
            if os.path.isdir(folder):
                if os.listdir(folder) and self.final_record() is None:
                    raise ForeignTargetError(
                        f"{self.path} appeared while its angles were drawn; move it away, and resume"
                    )
                self._remove_replaced(self.partial)
                os.rename(folder, inside)
            os.rename(self.partial, folder)
        except BaseException:
            if not os.path.lexists(folder) and os.path.isdir(inside):
                os.rename(inside, folder)
            raise
        self.run, self.replaces = self.final, False
        sync_directory(os.path.dirname(folder))

    def settle(self) -> None:
        """Remove leftovers of a run that has finished, or was killed in `finish`."""
        self._remove_records(self.final)
        if self.folder is not None:
            self._remove_locks(self.final)
            self._remove_replaced(self.folder)

    def _remove_records(self, keys: "Keys") -> None:
        """Remove the writers' records, heads last, since the next run would take lines without a head for its own."""
        names = keys.names()
        for pattern in (self.SEGMENT, self.WRITER_RECORD):
            for name in filter(pattern.fullmatch, names):
                keys.delete(name)

    def _remove_locks(self, keys: "Keys") -> None:
        """Remove lock files that TensorStore leaves if it is killed while it replaces a record, or cannot write."""
        for name in glob.glob(os.path.join(glob.escape(keys.name), "*.__lock")):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _remove_replaced(self, folder: str) -> None:
        """Remove the old store that `folder` has replaced, but move files in it that are not ours to the new store."""
        replaced = os.path.join(folder, self.REPLACED)
        if not os.path.isdir(replaced):
            return
        for name in os.listdir(replaced):
            if not self._is_ours(name):
                if os.path.lexists(os.path.join(folder, name)):
                    raise ForeignTargetError(
                        f"{os.path.join(replaced, name)} belongs to the store that was replaced; move it away"
                    )
                os.rename(os.path.join(replaced, name), os.path.join(folder, name))
        self._empty(self._keys(replaced))
        os.rmdir(replaced)

    def interrupted_at_the_end(self) -> bool:
        """Return False, since one atomic write of the metadata completes a store."""
        return False

    def discard(self) -> None:
        """Remove what this run has created."""
        self._empty(self.run)
        for folder in self.made:
            with contextlib.suppress(OSError):  # not empty: somebody else uses it
                os.rmdir(folder)

    def _empty(self, keys: "Keys") -> None:
        """Remove everything that this package has written to a store."""
        # Remove the metadata first, so that readers find no array, and the records last, since they show that the rest
        # is ours.
        keys.delete(self.METADATA)
        if self.folder is None:
            keys.delete("c/", "c0")
        else:
            # A shard and a directory of shards cannot have the same name.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(os.path.join(keys.name, "c"))
            self._remove_locks(keys)
        self._remove_records(keys)
        keys.delete(self.RECORD)

    def bytes_needed(self, missing: int, force: bool = False) -> int:
        """Return the free disk space, in bytes, that writing `missing` more bytes of angles requires."""
        if force and self.folder is not None:
            return max(missing - allocated(self.folder) - allocated(self.partial), 0)
        # Blocks that were written but not recorded already occupy their space.
        total = math.prod(self.shape) * self.dtype.itemsize
        return max(min(missing, total - allocated(os.path.join(self.run.name, "c"))), 0)

    def replace(self, missing: int) -> None:
        """Prepare to write a new array of `missing` bytes; the old one is kept if the disk has space for both."""
        if self.folder is not None:
            inside = os.path.join(self.partial, self.REPLACED)
            if os.path.isdir(inside) and not os.path.lexists(self.folder):
                os.rename(inside, self.folder)  # a run was killed between the two renames in `_take_name`
            if os.path.lexists(self.partial) and not self._holds_ours_alone(self.partial):
                raise ForeignTargetError(f"{self.partial} was not written by this package; move it away")
        old = self.whole()
        if old and self.final_record() is None:
            raise ForeignTargetError(f"{self.path} is an array that this package did not write; choose another name")
        for keys in (self.final, self.run):
            self._lock(keys.name)
        self.begun = True
        if self.replaces or not old:
            self._empty(self.run)  # the unfinished run
        obstacle = self._obstacle(missing, self.folder) if old and self.folder is not None else None
        self.replaces = old and self.folder is not None and obstacle is None
        if self.replaces:
            self.run = self._keys(self.partial)
            self._lock(self.run.name)
            self._empty(self.run)  # leftovers of a run killed before it wrote its record, or during its removal
            return
        if self.run is not self.final:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(self.partial)
        if obstacle is not None:
            warnings.warn(
                f"write_samples: {self.path}: {obstacle}, so the old store is removed first",
                RuntimeWarning,
                stacklevel=4,
            )
        if old:
            self._empty(self.final)
        self.run = self.final

    def _holds_ours_alone(self, folder: str) -> bool:
        """Return whether a directory holds an unfinished run, or only files of this class."""
        if os.path.islink(folder) or not os.path.isdir(folder):
            return False
        return self._has_run(folder) or all(map(self._is_ours, os.listdir(folder)))

    def _obstacle(self, missing: int, folder: str) -> str | None:
        """Return why a new array cannot be written next to the old one in `folder`, or None."""
        disk = os.path.dirname(folder)
        if os.path.ismount(folder) or not os.access(disk, os.W_OK):
            return "nothing can be written next to it"
        if missing > shutil.disk_usage(disk).free:
            return f"the disk has no space for the old store and the new one ({readable(missing)}) together"
        return None

    def reopen(self, text: str) -> None:
        """Turn the finished array into an unfinished one in which some blocks are missing."""
        self._lock(self.run.name)
        self.begun = True
        self._start_record(text)
        self.run.delete(self.METADATA)
        self.run.delete(self.RECORD)
        self._open()

    def close(self) -> None:
        """Close the array and release the locks."""
        self.array = None
        self.in_turn.close()
        while self.locked:
            os.close(self.locked.popitem()[1])


class Keys:
    """The keys of a store: files below a local directory, or objects below a URL."""

    def __init__(self, tensorstore: Any, context: Any, in_turn: "InTurn", name: str):
        self.name, self._in_turn = name.rstrip("/"), in_turn
        location = f"{self.name}/"
        self.kvstore = location if "://" in name else {"driver": "file", "path": os.path.abspath(location) + "/"}
        self._range = tensorstore.KvStore.KeyRange
        with as_os_errors(name):
            self._store = tensorstore.KvStore.open(self.kvstore, context=context).result()

    def names(self) -> list[str]:
        """Return all keys."""
        with as_os_errors(self.name):
            return [os.fsdecode(name) for name in self._store.list().result()]

    def read(self, key: str) -> bytes | None:
        """Return the value of a key; None if the key does not exist."""
        with as_os_errors(self.name):
            found = self._store.read(key).result()
        return found.value if found.state == "value" else None

    def write(self, key: str, text: str) -> None:
        """Set the value of a key atomically."""
        with as_os_errors(self.name):
            self._in_turn(lambda: self._store.write(key, text.encode()))

    def delete(self, first: str, end: str | None = None) -> None:
        """Delete one key, or all keys from `first` up to but excluding `end`."""
        with as_os_errors(self.name):
            self._in_turn(lambda: self._store.delete_range(self._range(first, end or first + "\0")))


def must_be_plain_store(folder: str) -> None:
    """Refuse a directory with links, pipes or the like, or with records or metadata that are too large.

    TensorStore follows links, even when it removes files, and waits for the writers of pipes.
    """
    if (strange := safe_files.strange_below(folder)) is not None:
        raise ForeignTargetError(f"{strange} is neither a file nor a directory, and not part of a store; move it away")
    texts = (glob.glob(os.path.join(glob.escape(folder), pattern)) for pattern in ("*.json", "*.txt"))
    for name in itertools.chain(*texts):
        if os.path.getsize(name) > LARGEST_RECORD:
            raise ForeignTargetError(
                f"{name} has more than {LARGEST_RECORD} bytes, too many for a file of this name; move it away"
            )


class InTurn:
    """Run operations that change a store in a separate thread, one after another.

    TensorStore finishes an operation even if the caller is interrupted. Further operations, such as the removal of the
    store, must wait for it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        try:
            # Start the thread now, since an executor that is interrupted while starting it would start a second one.
            self._thread.submit(int).result()
        except BaseException:
            self.close()
            raise

    def __call__(self, operation: Callable[[], Any]) -> Any:
        """Return the result of ``operation()``, a future of TensorStore."""
        return self._thread.submit(lambda: operation().result()).result()

    def close(self) -> None:
        """End the thread once its operations are finished."""
        self._thread.shutdown()


def import_tensorstore() -> Any:
    """Import and return TensorStore, which only stores need."""
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError(
            'Zarr stores need TensorStore: pip install "jax_von_mises[storage]". A .npy file does not need it.'
        ) from error
    return tensorstore


@contextlib.contextmanager
def as_os_errors(name: str) -> Iterator[None]:
    """Convert errors that TensorStore raises as ValueError or RuntimeError to the OSError that they describe."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        number = re.search(r"os_error_code='(\d+)'", str(error))
        code = int(number[1]) if number else errno.EIO
        reason = os.strerror(code) if number else str(error).split("[")[0].strip()
        raise OSError(code, reason, name) from error

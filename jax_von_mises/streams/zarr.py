"""A Zarr v3 array written block by block, through TensorStore."""

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
from concurrent.futures import ThreadPoolExecutor

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

    A block is a shard: one file or object, which holds chunks that readers can fetch alone. The array's metadata come
    last; until then readers find no array. On a disk, an array that replaces a finished one is written next to it, as
    ``big.zarr.partial``, which takes the old one in as ``.replaced`` when it takes its name, and then removes it.
    """

    # A shard is cut into at most so many chunks.
    CHUNKS = 64
    METADATA, RECORD, REPLACED = "zarr.json", "blocks.json", ".replaced"
    # Bytes of metadata, which others may have given attributes; ours have two thousand.
    LARGEST_METADATA = 2**20
    WRITER_RECORD = re.compile(r"blocks-(\d+)of(\d+)\.json")
    # No file of a store can grow: lines are added to one that is replaced, and from so many lines on to the next.
    SEGMENT = re.compile(r"(blocks-\d+of\d+)\.(\d+)\.txt")
    SEGMENT_LINES = 256

    def __init__(self, out, shape, dtype, block_rows, part=0, parts=1):
        self.path, self.shape, self.dtype, self.block_rows = out, shape, dtype, block_rows
        self.stem = f"blocks-{part}of{parts}"
        self.writer_record = f"{self.stem}.json"
        self.segment, self.lines = 0, ""  # number and content of the one that grows
        self.alone = parts == 1
        # Through links, so that the names to change lie on one file system.
        self.folder = None if self.directory is None else os.path.realpath(out)
        self.partial = f"{self.folder}.partial"
        # Whether this run writes next to a finished store, which it will replace.
        self.replaces = self.alone and self.folder is not None and self._has_run(self.partial)
        if self.folder is not None:
            for folder in (out, self.partial) if self.replaces else (out,):
                must_be_plain_store(folder)
        self.tensorstore = import_tensorstore()
        # One context for all, without a cache: what was written is not read again.
        self.context = self.tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        self.in_turn = InTurn()
        try:
            self.final = self._keys(out)
            self.run = self._keys(self.partial) if self.replaces else self.final
        except BaseException:
            self.in_turn.close()
            raise
        self.array = None
        self.locked = {}
        self.begun = False  # whether this run has changed anything
        self.created = False  # whether all that is in the store is this run's own, to be removed if nothing comes of it
        self.made = []  # folders that did not exist before

    @property
    def disk(self):
        """The directory on whose disk the store lies, or None if that is none of this machine's."""
        return None if self.folder is None else os.path.dirname(self.folder)

    def _has_run(self, folder):
        """Whether a directory holds an unfinished run, as a record of a writer says."""
        return os.path.isdir(folder) and any(self.WRITER_RECORD.fullmatch(name) for name in os.listdir(folder))

    def _is_ours(self, name):
        """Whether a name in a store's directory is one that this class gives."""
        given = name in ("c", self.METADATA, self.RECORD, self.REPLACED) or name.endswith(".__lock")
        return given or bool(self.WRITER_RECORD.fullmatch(name) or self.SEGMENT.fullmatch(name))

    def _keys(self, name):
        return Keys(self.tensorstore, self.context, self.in_turn, name)

    def specification(self, attributes=None):
        """What TensorStore needs to know of the array."""
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

    def whole(self):
        """Whether there is an array, ours or another's."""
        return self.final.read(self.METADATA) is not None

    def records(self):
        """The records of all writers of a run that has not finished."""
        names = self.run.names()
        if not self.replaces and {self.METADATA, self.RECORD} <= set(names):
            return []  # it is whole: a run that was killed in `finish` has left those it had not removed yet
        found = sorted(name for name in names if self.WRITER_RECORD.fullmatch(name))
        if names and not found and (self.replaces or self.RECORD not in names):
            raise ForeignTargetError(f"{self.run.name} is not empty, and holds no record of this package; move it away")
        texts = ((name, self.run.read(name), self._lines(name.removesuffix(".json"), names)) for name in found)
        return [parse_record(f"{self.run.name}/{name}", text, more) for name, text, more in texts if text is not None]

    def _lines(self, stem, names):
        """The lines that a writer has added to its head."""
        matches = sorted(
            (int(match[2]), match[0]) for match in map(self.SEGMENT.fullmatch, names) if match and match[1] == stem
        )
        return b"".join(self.run.read(name) or b"" for _, name in matches)

    def final_record(self):
        """The record of the finished store, or None."""
        text = self.final.read(self.RECORD)
        return None if text is None else parse_record(f"{self.path}/{self.RECORD}", text)

    @property
    def directory(self):
        """The directory that the store lies in, or None if that is none of this machine's."""
        return None if "://" in self.path else os.path.dirname(self.path.rstrip("/")) or os.curdir

    def check_layout(self):
        """Open the whole array as its readers do, and see that it is what its record tells of, and packed as by us.

        Other codecs could unpack a few bytes to any size.
        """
        self._metadata_must_be_sound(self.final)
        with as_os_errors(self.path):
            spec = {"driver": "zarr3", "kvstore": self.final.kvstore}
            self.array = self.tensorstore.open(spec, open=True, context=self.context).result()
        if self.array.shape != self.shape or self.array.dtype.numpy_dtype != self.dtype:
            found = f"{self.array.shape}, {self.array.dtype.name}"
            raise ForeignTargetError(
                f"{self.path} ({found}) is not the array that its record tells of ({self.shape}, {self.dtype})"
            )
        with as_os_errors(self.path):
            # Which compares what is there with what we would write.
            spec = self.specification() | {"kvstore": self.final.kvstore}
            self.tensorstore.open(spec, open=True, context=self.context).result()

    def _metadata_must_be_sound(self, keys):
        """Refuse metadata, if there are any, that TensorStore's parser does not survive."""
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

    def begin(self, text):
        """Start with no blocks, as the record `text` says."""
        self._lock_run()
        self.created = self.alone and not self.run.names()
        self.begun = True
        self._start_record(text)
        self._open()

    def _lock_run(self):
        """Keep others out of the run, which none of them has finished until now."""
        self._lock(self.run.name)
        # One that replaces another has its metadata before it takes the name.
        if self.alone and not self.replaces and self.run.read(self.METADATA) is not None:
            raise ForeignTargetError(f"{self.run.name} was finished by another process")

    def _lock(self, folder):
        """Keep others out of a directory: one writer alone all others, one of several those who are alone."""
        if self.folder is None or folder in self.locked:
            return
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            self.made.append(folder)
        if os.name == "posix":
            self.locked[folder] = os.open(folder, os.O_RDONLY)
            lock(self.locked[folder], folder, self.alone)

    def go_on(self, text):
        """Open the array, whose metadata are not there yet, and record it as `text` says."""
        self._lock_run()
        if self.replaces and os.path.isdir(self.folder):
            self._lock(self.final.name)
        self.begun = True
        self._start_record(text)
        self._open()

    def join(self):
        """Open the array, to write blocks that another process records."""
        self._open()

    def leave(self):
        """Let go of what `join` has opened."""
        self.array = None

    def _open(self):
        with as_os_errors(self.path):
            self.array = self.tensorstore.open(
                self.specification(), open=True, assume_metadata=True, context=self.context
            ).result()

    def write(self, first, rows):
        """Write `rows` from row `first` on; they have reached the store when this returns."""
        with as_os_errors(self.path):
            # On a disk the rows are there when this returns, so they need not be copied; memory would keep them.
            to = self.array[first : first + len(rows)]
            local = self.folder is not None
            self.in_turn(lambda: to.write(np.asarray(rows), can_reference_source_data_indefinitely=local).commit)

    def read(self, first, count, whole=False):
        """Rows of the array; NaN where a shard is missing, infinities where one cannot be decoded."""
        if self.array is None:
            self._open()
        # Into memory of NumPy: where there is none TensorStore ends the process.
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        with as_os_errors(self.path):
            try:
                self.tensorstore.array(rows, context=self.context).write(self.array[first : first + count]).result()
            except ValueError as error:
                if not str(error).startswith("DATA_LOSS"):
                    raise
                rows.fill(np.inf)  # which no angle is, so that the block has another checksum
        return rows

    def _start_record(self, text):
        """Replace this writer's record by a head, to which lines are added."""
        self.run.write(self.writer_record, text)
        for name in self.run.names():  # whose blocks the head has
            match = self.SEGMENT.fullmatch(name)
            if match and match[1] == self.stem:
                self.run.delete(name)
        self.segment, self.lines = 0, ""

    def append(self, lines):
        """Add lines to the record; they are in the store when this returns, and the call can be repeated."""
        lines = self.lines + lines
        self.run.write(f"{self.stem}.{self.segment}.txt", lines)
        self.lines = lines
        if lines.count("\n") >= self.SEGMENT_LINES:
            self.segment, self.lines = self.segment + 1, ""

    def runs(self, run):
        """Whether the run of this name is under way here: its record lies where it should."""
        return run_words(run) in (self.run.read(self.writer_record) or b"")

    def marks(self):
        """Yield marks of the records that are here, for other processes that should see the same."""
        for keys in {self.final, self.run}:
            for name in keys.names():
                if name == self.RECORD or self.WRITER_RECORD.fullmatch(name):
                    yield mark_of(keys.read(name) or b"")

    def finish(self, text):
        """Make the store whole: write its metadata, and give it its name."""
        self.run.write(self.RECORD, text)
        self._metadata_must_be_sound(self.run)  # there may be some by now, and would be compared with ours
        attributes = {"jax_von_mises": json.loads(text)["stream"]}
        with as_os_errors(self.path):
            spec = self.specification(attributes)
            self.in_turn(lambda: self.tensorstore.open(spec, open=True, create=True, context=self.context))
        if self.replaces:
            self._take_name()
        self.settle()

    def _take_name(self):
        """Give the new store the name of the old one, which it takes in."""
        self.array = None
        inside = os.path.join(self.partial, self.REPLACED)
        try:
            if os.path.isdir(self.folder):
                if os.listdir(self.folder) and self.final_record() is None:
                    raise ForeignTargetError(
                        f"{self.path} appeared while its angles were drawn; move it away, and resume"
                    )
                self._remove_replaced(self.partial)
                os.rename(self.folder, inside)
            os.rename(self.partial, self.folder)
        except BaseException:
            if not os.path.lexists(self.folder) and os.path.isdir(inside):
                os.rename(inside, self.folder)
            raise
        self.run, self.replaces = self.final, False
        sync_directory(self.disk)

    def settle(self):
        """Remove what a finished run, or one that was killed as it finished, no longer needs."""
        self._remove_records(self.final)
        if self.folder is not None:
            self._remove_locks(self.final)
            self._remove_replaced(self.folder)

    def _remove_records(self, keys):
        """Remove the records of writers: a head last, since lines without one would be taken for those of the next."""
        names = keys.names()
        for pattern in (self.SEGMENT, self.WRITER_RECORD):
            for name in filter(pattern.fullmatch, names):
                keys.delete(name)

    def _remove_locks(self, keys):
        """Remove what TensorStore leaves of a record that it was replacing when it was killed, or could not write."""
        for name in glob.glob(os.path.join(glob.escape(keys.name), "*.__lock")):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _remove_replaced(self, folder):
        """Remove the store that the one in `folder` has replaced; files in it that are not ours move to the new one."""
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

    def interrupted_at_the_end(self):
        """Whether a run was killed between two names: never, the metadata are written at a stroke."""
        return False

    def discard(self):
        """Remove what this run has created."""
        self._empty(self.run)
        for folder in self.made:
            with contextlib.suppress(OSError):  # not empty: then it is not ours alone
                os.rmdir(folder)

    def _empty(self, keys):
        """Remove all that is ours of a store."""
        # What makes it an array goes first, the records last: without one, the rest would not be known as ours.
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

    def bytes_needed(self, missing, force=False):
        """Bytes of free disk space that `missing` more bytes of angles need at least."""
        if force:
            return max(missing - allocated(self.folder) - allocated(self.partial), 0)
        # Blocks that are written and not recorded have their space.
        whole = math.prod(self.shape) * self.dtype.itemsize
        return max(min(missing, whole - allocated(os.path.join(self.run.name, "c"))), 0)

    def replace(self, missing):
        """Make way for a new array of `missing` bytes: on a disk that has space for both, the old one stays for now."""
        if self.folder is not None:
            inside = os.path.join(self.partial, self.REPLACED)
            if os.path.isdir(inside) and not os.path.lexists(self.folder):
                os.rename(inside, self.folder)  # a run was killed between the two names in `_take_name`
            if os.path.lexists(self.partial) and not self._holds_ours_alone(self.partial):
                raise ForeignTargetError(f"{self.partial} is not of this package; move it away")
        old = self.whole()
        if old and self.final_record() is None:
            raise ForeignTargetError(f"{self.path} is an array that this package did not write; choose another name")
        for keys in (self.final, self.run):
            self._lock(keys.name)
        self.begun = True
        if self.replaces or not old:
            self._empty(self.run)  # the unfinished run
        obstacle = self._obstacle(missing) if old and self.folder is not None else None
        self.replaces = old and self.folder is not None and obstacle is None
        if self.replaces:
            self.run = self._keys(self.partial)
            self._lock(self.run.name)
            self._empty(self.run)  # what a run left that was killed before its record, or as it was removed
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

    def _holds_ours_alone(self, folder):
        """Whether a directory has only what this class makes in it, and what a forced run may have moved there."""
        if os.path.islink(folder) or not os.path.isdir(folder):
            return False
        return self._has_run(folder) or all(map(self._is_ours, os.listdir(folder)))

    def _obstacle(self, missing):
        """Why a new array cannot be written next to the old one, or None."""
        if os.path.ismount(self.folder) or not os.access(self.disk, os.W_OK):
            return "nothing can be written next to it"
        if missing > shutil.disk_usage(self.disk).free:
            return f"the disk has no space for the old store and the new one ({readable(missing)}) together"
        return None

    def reopen(self, text):
        """Make the finished array an unfinished one again, in which some blocks are missing."""
        self._lock(self.run.name)
        self.begun = True
        self._start_record(text)
        self.run.delete(self.METADATA)
        self.run.delete(self.RECORD)
        self._open()

    def close(self):
        """Let go of the array, and let others in."""
        self.array = None
        self.in_turn.close()
        while self.locked:
            os.close(self.locked.popitem()[1])


class Keys:
    """What a store consists of: the files below a local directory, or the objects below a URL."""

    def __init__(self, tensorstore, context, in_turn, name):
        self.name, self._in_turn = name.rstrip("/"), in_turn
        location = f"{self.name}/"
        self.kvstore = location if "://" in name else {"driver": "file", "path": os.path.abspath(location) + "/"}
        self._range = tensorstore.KvStore.KeyRange
        with as_os_errors(name):
            self._store = tensorstore.KvStore.open(self.kvstore, context=context).result()

    def names(self):
        """All keys."""
        with as_os_errors(self.name):
            return [os.fsdecode(name) for name in self._store.list().result()]

    def read(self, key):
        """The bytes of a key; None if there is none."""
        with as_os_errors(self.name):
            found = self._store.read(key).result()
        return found.value if found.state == "value" else None

    def write(self, key, text):
        """Replace a key whole."""
        with as_os_errors(self.name):
            self._in_turn(lambda: self._store.write(key, text.encode()))

    def delete(self, first, end=None):
        """Delete one key, or those from `first` up to, not with, `end`."""
        with as_os_errors(self.name):
            self._in_turn(lambda: self._store.delete_range(self._range(first, end or first + "\0")))


def must_be_plain_store(folder):
    """Refuse a directory in which there are links, pipes or the like, or metadata that are none.

    TensorStore follows links, also when it removes what is below one, and waits for pipes.
    """
    if (strange := safe_files.strange_below(folder)) is not None:
        raise ForeignTargetError(f"{strange} is neither a file nor a directory, and no part of a store; move it away")
    texts = (glob.glob(os.path.join(glob.escape(folder), pattern)) for pattern in ("*.json", "*.txt"))
    for name in itertools.chain(*texts):
        if os.path.getsize(name) > LARGEST_RECORD:
            raise ForeignTargetError(f"{name} has more than {LARGEST_RECORD} bytes, so it is not what its name says")


class InTurn:
    """Runs operations that change a store, one after the other, in a thread.

    TensorStore goes on with what it has begun when the caller is interrupted. So what the caller does next, such as to
    remove what is there, waits for it.
    """

    def __init__(self):
        self._thread = ThreadPoolExecutor(1)
        try:
            # Started now: an executor that is interrupted while it starts its thread forgets it, and starts another.
            self._thread.submit(int).result()
        except BaseException:
            self.close()
            raise

    def __call__(self, operation):
        """The result of ``operation()``, a future of TensorStore."""
        return self._thread.submit(lambda: operation().result()).result()

    def close(self):
        """End the thread, when it has done what it was given."""
        self._thread.shutdown()


def import_tensorstore():
    """TensorStore, which only stores need."""
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError(
            'A Zarr store is written through TensorStore: pip install "jax_von_mises[storage]". '
            "A .npy file needs nothing more."
        ) from error
    return tensorstore


@contextlib.contextmanager
def as_os_errors(name):
    """Raise what TensorStore reports in its own words, as ValueError, as the OSError it stands for."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        number = re.search(r"os_error_code='(\d+)'", str(error))
        code = int(number[1]) if number else errno.EIO
        reason = os.strerror(code) if number else str(error).split("[")[0].strip()
        raise OSError(code, reason, name) from error

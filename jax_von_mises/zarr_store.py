"""A Zarr v3 array written block by block, through TensorStore."""

import contextlib
import errno
import glob
import json
import os
import re
import shutil

import numpy as np

from jax_von_mises import untrusted
from jax_von_mises.records import LARGEST_RECORD, Unknown, lock, parse_record


class ZarrStore:
    """One array of a Zarr v3 store, on a local disk or in an object store, written by one process or by several.

    A block is a shard: one file or object, which holds chunks that readers can fetch alone. The array's metadata come
    last; until then the store is none for its readers.
    """

    # An old store goes when drawing begins, so nothing waits to be replaced in the end.
    replaces = False
    # A shard is cut into at most so many chunks.
    CHUNKS = 64
    METADATA, RECORD = "zarr.json", "blocks.json"
    # Bytes of metadata, which others may have given attributes; ours have two thousand.
    LARGEST_METADATA = 2**20
    WRITER_RECORD = re.compile(rb"blocks-(\d+)of(\d+)\.json")

    def __init__(self, out, shape, dtype, block_rows, part=0, parts=1):
        self.path, self.shape, self.dtype, self.block_rows = out, shape, dtype, block_rows
        self.writer_record = self.name_of(part, parts)
        self._must_be_plain()
        self.tensorstore = import_tensorstore()
        location = out if out.endswith("/") else out + "/"
        self.kvstore = location if "://" in out else {"driver": "file", "path": os.path.abspath(location) + "/"}
        # One context for all, without a cache: what was written is not read again.
        self.context = self.tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        with as_os_errors(out):
            self.keys = self.tensorstore.KvStore.open(self.kvstore, context=self.context).result()
        self.array = self.locked = None
        self.alone = parts == 1

    def _must_be_plain(self):
        """Refuse a directory in which there are links, pipes or the like, or metadata that are none.

        TensorStore follows links, also when it removes what is below one, and waits for pipes.
        """
        if self.directory is None:
            return
        if (strange := untrusted.strange_below(self.path)) is not None:
            raise Unknown(f"{strange} is neither a file nor a directory, and no part of a store; move it away")
        for name in glob.glob(os.path.join(glob.escape(self.path), "*.json")):
            if os.path.getsize(name) > LARGEST_RECORD:
                raise Unknown(f"{name} has more than {LARGEST_RECORD} bytes, so it is not what its name says")

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
            "kvstore": self.kvstore,
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
        return self._read(self.METADATA) is not None

    def records(self):
        """The records of all writers of a run that has not finished."""
        with as_os_errors(self.path):
            names = self.keys.list().result()
        if {self.METADATA.encode(), self.RECORD.encode()} <= set(names):
            return []  # it is whole: a run that was killed in `finish` has left those it had not removed yet
        found = sorted(name.decode() for name in names if self.WRITER_RECORD.fullmatch(name))
        if names and not found and self.RECORD.encode() not in names:
            raise Unknown(f"{self.path} is not empty, and holds no record of this package; choose another name")
        texts = ((name, self._read(name)) for name in found)
        return [parse_record(f"{self.path}/{name}", text) for name, text in texts if text is not None]

    @staticmethod
    def name_of(part, parts):
        """Name of a writer's record."""
        return f"blocks-{part}of{parts}.json"

    def record_of(self, part, parts):
        """A writer's record as text, or None."""
        return self._read(self.name_of(part, parts))

    def final_record(self):
        """The record of the finished store, or None."""
        text = self._read(self.RECORD)
        return None if text is None else parse_record(f"{self.path}/{self.RECORD}", text)

    @property
    def directory(self):
        """The directory that the store lies in, or None if that is none of this machine's."""
        return None if "://" in self.path else os.path.dirname(self.path.rstrip("/")) or os.curdir

    def check_layout(self):
        """Open the whole array as its readers do, and see that it is what its record tells of, and packed as by us.

        Other codecs could unpack a few bytes to any size.
        """
        self._metadata_must_be_sound()
        with as_os_errors(self.path):
            spec = {"driver": "zarr3", "kvstore": self.kvstore}
            self.array = self.tensorstore.open(spec, open=True, context=self.context).result()
        if self.array.shape != self.shape or self.array.dtype.numpy_dtype != self.dtype:
            found = f"{self.array.shape}, {self.array.dtype.name}"
            raise Unknown(
                f"{self.path} ({found}) is not the array that its record tells of ({self.shape}, {self.dtype})"
            )
        with as_os_errors(self.path):
            # Which compares what is there with what we would write.
            self.tensorstore.open(self.specification(), open=True, context=self.context).result()

    def _metadata_must_be_sound(self):
        """Refuse metadata, if there are any, that TensorStore's parser does not survive."""
        content = self._read(self.METADATA)
        if content is None:
            return
        try:
            if len(content) > self.LARGEST_METADATA:
                raise ValueError(f"it has more than {self.LARGEST_METADATA} bytes")
            untrusted.parse_json(content, self.LARGEST_METADATA)
        except ValueError as error:
            name = os.path.join(self.path, self.METADATA)
            raise Unknown(f"{name} is not the metadata of a store: {error}; move it away") from error

    def begin(self, text):
        """Start anew, with the record `text`, which tells of no blocks."""
        self._lock()
        self.save_record(text)
        self.go_on()

    def _lock(self):
        """Keep others out of a directory: one writer alone all others, one of several those who are alone."""
        if self.directory is None or os.name != "posix" or self.locked is not None:
            return
        os.makedirs(self.path, exist_ok=True)
        self.locked = os.open(self.path, os.O_RDONLY)
        lock(self.locked, self.path, self.alone)

    def go_on(self):
        """Open the array, whose metadata are not there yet."""
        self._lock()
        self._open()

    def _open(self):
        with as_os_errors(self.path):
            self.array = self.tensorstore.open(
                self.specification(), open=True, assume_metadata=True, context=self.context
            ).result()

    def write(self, first, rows):
        """Write `rows` from row `first` on; they have reached the store when this returns."""
        with as_os_errors(self.path):
            # On a disk the rows are there when this returns, so they need not be copied; memory would keep them.
            self.array[first : first + len(rows)].write(
                np.asarray(rows), can_reference_source_data_indefinitely=self.directory is not None
            ).result()

    def read(self, first, count, whole=False):
        """Rows of the array; NaN where a shard is missing."""
        if self.array is None:
            self._open()
        # Into memory of NumPy: where there is none TensorStore ends the process.
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        with as_os_errors(self.path):
            self.tensorstore.array(rows, context=self.context).write(self.array[first : first + count]).result()
        return rows

    def save_record(self, text):
        """Replace this writer's record."""
        self._write(self.writer_record, text)

    def finish(self, text):
        """Make the store whole: write its metadata."""
        self._write(self.RECORD, text)
        self._metadata_must_be_sound()  # there may be some by now, and would be compared with ours
        attributes = {"jax_von_mises": json.loads(text)["stream"]}
        with as_os_errors(self.path):
            self.tensorstore.open(self.specification(attributes), open=True, create=True, context=self.context).result()
        self.clean_up()

    def clean_up(self):
        """Remove the records of the writers, which that of the whole has replaced."""
        with as_os_errors(self.path):
            names = self.keys.list().result()
        for name in names:
            if self.WRITER_RECORD.fullmatch(name):
                self._delete(name.decode())
        if self.directory is not None:
            # TensorStore's own, of a process that was killed while it replaced its record.
            for name in glob.glob(os.path.join(glob.escape(self.path), "*.__lock")):
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def interrupted_at_the_end(self):
        """Whether a run was killed between two names: never, the metadata are written at a stroke."""
        return False

    def discard(self):
        """Remove what this run has left."""
        self._delete("c/", "c0")
        self.clean_up()
        if self.directory is not None:
            for name in (os.path.join(self.path, "c"), self.path):
                with contextlib.suppress(OSError):  # not empty: then it is not ours alone
                    os.rmdir(name)

    def make_room(self, found):
        """Remove the old array or run. There is no way to replace one at a stroke in an object store."""
        if not found and self.final_record() is None:
            raise Unknown(f"{self.path} is an array that this package did not write; choose another name")
        self._lock()
        # What makes it an array goes first, the records last: without one, the rest would not be known as ours.
        self._delete(self.METADATA)
        self._delete("c/", "c0")
        if self.directory is not None:
            # A shard and a directory of shards cannot have the same name.
            shutil.rmtree(os.path.join(self.path, "c"), ignore_errors=True)
        self.clean_up()
        self._delete(self.RECORD)

    def reopen(self, text):
        """Make the whole array an unfinished one again, to draw some of its blocks anew."""
        self._lock()
        self.save_record(text)
        self._delete(self.METADATA)
        self._delete(self.RECORD)
        self.go_on()

    def close(self):
        """Let go of the array, and let others in."""
        self.array = None
        if self.locked is not None:
            os.close(self.locked)
            self.locked = None

    def _read(self, name):
        with as_os_errors(self.path):
            found = self.keys.read(name).result()
        return found.value if found.state == "value" else None

    def _delete(self, first, end=None):
        """Delete one key, or those from `first` up to, not with, `end`."""
        with as_os_errors(self.path):
            self.keys.delete_range(self.tensorstore.KvStore.KeyRange(first, end or first + "\0")).result()

    def _write(self, name, text):
        with as_os_errors(self.path):
            self.keys.write(name, text.encode()).result()


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

"""Test that files and stores hold the stream, appear complete or not at all, and are never taken for another stream.

Most tests write 10,000 angles in blocks of 1,000, and thus share two compiled programs.
"""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import types
from collections import namedtuple
from pathlib import Path

import jax
import numpy as np
import pytest
import zarr

import jax_von_mises
from jax_von_mises.streams import disk, npy, stream, writer
from jax_von_mises.streams import zarr as stores
from jax_von_mises.streams.blocks import Plan

KEY = jax.random.key(11)
KINDS = ("npy", "zarr")


def write(out, total=10_000, *, key=KEY, loc=0.5, concentration=4.0, dtype=None, block_rows=1_000, **options):
    return jax_von_mises.write_samples(out, key, loc, concentration, total, dtype, block_rows=block_rows, **options)


def read(out):
    """Read a file with NumPy, or a store with zarr-python, from the path alone."""
    return np.load(out) if str(out).endswith(".npy") else zarr.open_array(out, mode="r")[...]


def contents(out):
    """Map each file of a target to its bytes, and a log, whose lines come as workers finish, to its sorted lines."""
    result = {}
    for path in sorted(out.parent.glob(out.name + "*")):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        result |= {str(file.relative_to(out.parent)): file.read_bytes() for file in files}
    return {name: sorted(data.split(b"\n")) if name.endswith(".blocks") else data for name, data in result.items()}


class Stop(BaseException):
    """An interrupt that, like KeyboardInterrupt, is not an `Exception`."""


def stop_after(blocks):
    """Return a function for `progress` that raises `Stop` when `blocks` more blocks are finished."""
    seen = []

    def progress(done, total):
        seen.append(done)
        if len(seen) == blocks + 1:
            raise Stop

    return progress


def finished(out):
    """Return whether readers find an array at `out`."""
    return out.is_file() or (out / "zarr.json").exists()


def blocks_of(out):
    """Return the number of finished blocks."""
    kind = writer.kind_of("test", str(out))
    found = kind.found(str(out))
    return len(kind(str(out), Plan(found.text)).done()) if found.text else 0


def block_bytes(out, block):
    """Return the file that holds a block of 1,000 float32 angles, and the place of the block in it."""
    if out.suffix == ".zarr":
        return out / f"c.{block}", 0
    partial = out.with_name(f"{out.name}.partial")
    return partial if partial.exists() else out, npy.PAGE + 4_000 * block


def damage(out, block):
    path, place = block_bytes(out, block)
    data = bytearray(path.read_bytes())
    data[place + 5] ^= 1
    path.write_bytes(data)


def as_alone(out, tmp_path, **arguments):
    """Assert that the target has the bytes that an undisturbed run of this process writes."""
    (tmp_path / "alone").mkdir(exist_ok=True)
    write(tmp_path / "alone" / out.name, **arguments)
    assert contents(out) == contents(tmp_path / "alone" / out.name)


@pytest.fixture(scope="module")
def angles():
    return np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, (10_000,), method="table"))


@pytest.fixture(params=KINDS)
def out(request, tmp_path):
    return tmp_path / f"angles.{request.param}"


# What a run, and `verify_samples`, do with what they find. A run is refused and changes nothing or, if another program
# saved a file meanwhile, nothing in that file. Or it draws a number of blocks and leaves the bytes of an undisturbed
# run ("same"), the angles next to other things ("valid"), or damage, which `resume` does not look for.
Refused = namedtuple("Refused", "error message keeps", defaults=("everything",))
Done = namedtuple("Done", "drawn left", defaults=("same",))
EXISTS = Refused(FileExistsError, "already exists, .*`resume` .*`force`")
ANOTHER = Refused(ValueError, "holds another stream: ")
FOREIGN = Refused(FileExistsError, "was not written by this package; move it away")
LINK = Refused(FileExistsError, "is a symbolic link; give the name of what it leads to")
REPLACED = Refused(FileExistsError, r"is not the file that its \.blocks describes")
FORMAT = Refused(FileExistsError, r"has format jax_von_mises stream 1, but this version .* reads ")
VALID = None

State = namedtuple("State", "kinds prepare verify resume repair force plain", defaults=(Done(10), EXISTS))
OPERATIONS = {
    "plain": {},
    "resume": {"resume": True},
    "repair": {"resume": True, "repair": True},
    "force": {"force": True},
}


def unfinished(blocks):
    return Refused(FileNotFoundError, rf"is not finished: {blocks} of 10 blocks are\. Complete it with `resume`")


def blocks_damaged(numbers):
    return Refused(writer.Damaged, rf"missing or do(es)? not match (its checksum|their checksums: {numbers})\.")


def holds(name):
    return Refused(FileExistsError, rf"holds {name}/?, so it is not only of this package; move it away")


def begin(out, blocks=4, **options):
    """Interrupt a run after some blocks."""
    with pytest.raises(Stop) as stopped:
        write(out, progress=stop_after(blocks), **options)
    assert stopped.value.__notes__[0].endswith(" of 10 blocks are finished; continue with `resume`")


def complete(out):
    write(out)


def complete_and(change):
    """Return a preparation that writes all blocks and then makes a change."""
    return lambda out: (write(out), change(out))


def damaged(*blocks):
    return lambda out: [damage(out, block) for block in blocks]


def lost(out):
    begin(out)
    block_bytes(out, 2)[0].unlink()


def bytes_changed(change):
    return complete_and(lambda out: out.write_bytes(change(out.read_bytes())))


def torn(line):
    """Return a preparation: a power failure truncated the last line of the log, and another run wrote a block."""

    def prepare(out):
        begin(out)
        with open(f"{out}.blocks", "ab") as file:
            file.write(line)
        begin(out, 1, resume=True)

    return prepare


def metadata(change):
    """Return a preparation that changes the metadata of a finished store, given as a dict, or replaces their text."""

    def prepare(out):
        write(out)
        file = out / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change) if isinstance(change, dict) else change)

    return prepare


def log_of(out):
    return out / "stream.json" if out.suffix == ".zarr" else Path(f"{out}.blocks")


def of_another_format(out):
    write(out)
    log_of(out).write_text(log_of(out).read_text().replace(stream.FORMAT, "jax_von_mises stream 1", 1))


def at(out, name):
    """Return a path in a store, or the path whose name is that of the file with an ending."""
    return out / name if out.is_dir() and out.suffix == ".zarr" else Path(f"{out}{name}")


def old_pair_restored(out):
    """Put a finished file and its log back in place while a run that replaces them is unfinished."""
    write(out)
    pair = {path: path.read_bytes() for path in (out, log_of(out))}
    begin(out, loc=1.0, force=True)
    for path, data in pair.items():
        path.write_bytes(data)


def text_at(name):
    return lambda out: at(out, name).write_text("of the user")


def folder_at(end):
    return lambda out: at(out, end).mkdir()


def link(end=""):
    """Return a preparation: a link to a folder or a file has a name that the run would use."""

    def prepare(out):
        home = out.with_name("home")
        if out.suffix == ".zarr":
            home.mkdir()
        else:
            home.write_text("of the user")
        at(out, end).symlink_to(home)

    return prepare


def link_to_home(name):
    def change(out):
        out.with_name("home").mkdir()
        (out / name).symlink_to(out.with_name("home"))

    return change


def folder_with_our_names(out):
    out.mkdir()
    for name in ("stream.json", "c.0"):
        (out / name).write_text('{"camera": 1}')


NPY, ZARR = ("npy",), ("zarr",)
ANY = Refused((FileExistsError, NotADirectoryError), None)
UNUSABLE = Refused(OSError, None)
LEFTOVER = Refused(FileExistsError, r"partial: does not belong to the \.blocks next to it; move it away")
APPEARED = Refused(FileExistsError, "appeared while its angles were drawn; move it away, and resume")
BAD_SIZE = Refused(OSError, "does not have the size")
BAD_METADATA = Refused(OSError, "its metadata ")
LOST_LOG = Refused(FileNotFoundError, r"has no .*(a\.npy\.blocks|stream\.json) ")
NOTHING = Refused(FileNotFoundError, "no such (file|store)")
DAMAGED, KEPT = Done(0, "damaged"), Done(0, "valid")
STATES = {
    "nothing": State(KINDS, lambda out: None, NOTHING, *[Done(10)] * 4),
    "unfinished": State(KINDS, begin, unfinished(4), Done(6), Done(6)),
    "finished": State(KINDS, complete, VALID, Done(0), Done(0)),
    "another stream, unfinished": State(KINDS, lambda out: begin(out, 1, loc=1.0), unfinished(1), ANOTHER, ANOTHER),
    "a longer stream": State(KINDS, lambda out: write(out, 20_000, loc=1.0), VALID, ANOTHER, ANOTHER),
    # damage
    "unfinished, damaged": State(
        KINDS, lambda out: (begin(out, 6), damaged(1, 4)(out)), unfinished(6), Done(4, "damaged"), Done(6)
    ),
    "finished, damaged": State(KINDS, complete_and(damaged(1, 4)), blocks_damaged("1, 4"), DAMAGED, Done(2)),
    "file lost": State(NPY, lost, NOTHING, *[Done(10)] * 4),
    "block lost": State(ZARR, lost, unfinished(3), Done(7), Done(7)),
    "finished, block lost": State(
        ZARR, complete_and(lambda out: (out / "c.7").unlink()), blocks_damaged("7"), Done(1), Done(1)
    ),
    "short file": State(NPY, bytes_changed(lambda data: data[:-4]), BAD_SIZE, DAMAGED, Done(1)),
    "long file": State(NPY, bytes_changed(lambda data: data + b"0"), BAD_SIZE, DAMAGED, DAMAGED),
    "other header": State(NPY, bytes_changed(lambda data: b"a" + data[1:]), REPLACED, *[REPLACED] * 4),
    "other dtype": State(
        ZARR, metadata({"data_type": "int32"}), Refused(OSError, "its metadata give data_type int32"), Done(0), Done(0)
    ),
    "attributes": State(ZARR, metadata({"attributes": {"of": "the user"}}), VALID, KEPT, KEPT),
    "replaced": State(
        KINDS, lambda out: (write(out, loc=1.0), begin(out, 9, force=True)), unfinished(9), Done(1), Done(1)
    ),
    # other programs, and other versions
    "unfinished, and a file of others": State(
        NPY, lambda out: (begin(out, 3), text_at("")(out)), APPEARED, *[APPEARED] * 4
    ),
    "an old file and its log next to a new run": State(NPY, old_pair_restored, *[LEFTOVER] * 5),
    "an old log next to a new run": State(NPY, lambda out: (old_pair_restored(out), out.unlink()), *[LEFTOVER] * 5),
    "a file of others next to our log": State(
        NPY, complete_and(lambda out: np.save(out, np.zeros(10_000))), REPLACED, *[REPLACED] * 4
    ),
    "file of another format": State(NPY, of_another_format, FORMAT, *[FORMAT] * 4),
    "store of another format": State(ZARR, of_another_format, FORMAT, FORMAT, FORMAT),
    "no log": State(KINDS, complete_and(lambda out: log_of(out).unlink()), LOST_LOG, *[ANY] * 4),
    "an array": State(ZARR, lambda out: zarr.create_array(out, shape=(3,), dtype="int8"), UNUSABLE, *[ANY] * 4),
    "a group": State(ZARR, zarr.create_group, UNUSABLE, *[ANY] * 4),
    "folders": State(ZARR, lambda out: (out / "c").mkdir(parents=True), UNUSABLE, *[ANY] * 4),
    "files with our names": State(ZARR, folder_with_our_names, UNUSABLE, *[ANY] * 4),
    "a file": State(KINDS, text_at(""), UNUSABLE, *[ANY] * 4),
    "a link": State(KINDS, link(), UNUSABLE, *[LINK] * 4),
    "a temporary file": State(
        ZARR,
        lambda out: (begin(out, 1), text_at(".notes.tmp")(out)),
        *(unfinished(1), Done(9, "valid"), Done(9, "valid"), holds(r"\.notes\.tmp")),
    ),
}
for line in (b"4", b"4 ", b"4 0123abc", b"\0" * 40, b"4\0\0\0\0\n5 01234567\0\n"):
    STATES[f"torn line {line!r}"] = State(NPY, torn(line), unfinished(5), Done(5), Done(5))
for text in ("{", "", '{"zarr_format": 3, "node_type": "group"}'):
    STATES[f"metadata {text!r}"] = State(ZARR, metadata(text), BAD_METADATA, Done(0), Done(0))
for end in (".partial", ".blocks"):
    STATES[f"a file {end}"] = State(NPY, text_at(end), UNUSABLE, *[FOREIGN] * 4)
    STATES[f"a link {end}"] = State(NPY, link(end), UNUSABLE, *[LINK] * 4)
for end in ("", ".partial", ".blocks"):
    refused = Refused(FileExistsError, "is not a file")
    STATES[f"a folder {end}"] = State(NPY, folder_at(end), UNUSABLE, *[refused] * 4)
for name in ("notes.txt", "c.1.txt", "c.0.0.1"):
    STATES[f"with {name}"] = State(ZARR, complete_and(text_at(name)), VALID, KEPT, KEPT, holds(name))
for name in ("link", "c.10"):
    STATES[f"with a link {name}"] = State(ZARR, complete_and(link_to_home(name)), VALID, Done(0), Done(0), holds(name))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the contents of an undisturbed run of each kind."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for kind in KINDS:
        write(folder / f"a.{kind}")
    return {kind: contents(folder / f"a.{kind}") for kind in KINDS}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, state in STATES.items() for kind in state.kinds])
def test_states(tmp_path, angles, undisturbed, name, kind):
    """Whatever stands there, each kind of run does what the table says, and readers never find a wrong array."""
    state = STATES[name]
    for operation, options in OPERATIONS.items():
        folder = tmp_path / operation
        folder.mkdir()
        out, expected = folder / f"a.{kind}", getattr(state, operation)
        state.prepare(out)
        before = contents(out)
        if state.verify is VALID:
            jax_von_mises.verify_samples(out)
        else:
            with pytest.raises(state.verify.error, match=state.verify.message):
                jax_von_mises.verify_samples(out)
        assert contents(out) == before
        if isinstance(expected, Refused):
            with pytest.raises(expected.error, match=expected.message):
                write(out, **options)
            assert contents(out).get(out.name) == before.get(out.name)
            assert contents(out) == before or expected.keeps == "the file"
            continue
        assert write(out, **options)[3:] == (expected.drawn, 10 - expected.drawn, True)
        if expected.left == "same":
            assert contents(out) == undisturbed[kind]
        elif expected.left == "valid":
            jax_von_mises.verify_samples(out)
            np.testing.assert_array_equal(read(out), angles)
            assert contents(out).keys() >= undisturbed[kind].keys()
        else:
            with pytest.raises((writer.Damaged, OSError)):
                jax_von_mises.verify_samples(out)


@pytest.mark.parametrize("block_rows", [None, 1])
def test_file_does_not_depend_on_the_block_size(tmp_path, angles, block_rows):
    total = 50 if block_rows == 1 else 10_000
    for kind in KINDS:
        out = tmp_path / f"angles.{kind}"
        blocks = -(-total // min(block_rows or total, total))
        assert write(out, total, block_rows=block_rows) == (str(out), (total,), "float32", blocks, 0, True)
        np.testing.assert_array_equal(read(out), angles[:total])
        assert jax_von_mises.verify_samples(out)["blocks"] == blocks
    assert set(os.listdir(tmp_path)) == {"angles.npy", "angles.npy.blocks", "angles.zarr"}
    stored = {"stream.json", "zarr.json"} | {f"c.{block}" for block in range(blocks)}
    assert set(os.listdir(tmp_path / "angles.zarr")) == stored


def test_default_blocks_are_of_one_size():
    """Default blocks have 2^22 numbers, or more if there would be more than 2^16 blocks."""
    one, wide = (stream.Stream.of("test", KEY, np.zeros(n, np.float32), 4.0, None, "auto") for n in (1, 1_000))
    for total, rows in ((10, 10), (10**10, 2**22), (2**38, 2**22), (2**38 + 1, 2**23), (10**15, 2**34)):
        assert writer.rows_in_block(one, total, None, None) == rows
    assert writer.rows_in_block(wide, 10**6, None, None) * 1_000 == pytest.approx(2**22, rel=0.1)
    assert writer.rows_in_block(one, 10**10, None, Plan.of(one, 10**10, 77, "")) == 77


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.more)])
def test_dtypes_and_columns(tmp_path, dtype):
    loc = np.linspace(-3, 3, 5)
    with jax.enable_x64(dtype == "float64"):
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, loc, 4.0, (330, 5), dtype, method="table"))
        written = [write(tmp_path / f"a.{kind}", 330, loc=loc, dtype=dtype, block_rows=100) for kind in KINDS]
    for done in written:
        found, stored = read(done.out), "float32" if dtype == "bfloat16" else dtype
        assert (done.shape, found.dtype.name, done.dtype) == ((330, 5), stored, stored)
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
        assert jax_von_mises.verify_samples(done.out)["redrawn"] == [0, 1, 3]


@pytest.mark.parametrize("concentration", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("chunk", [2**26, 100])
def test_blocks_of_one_value(tmp_path, monkeypatch, concentration, chunk):
    """A block of NaN, the fill value, is a block, in chunks and in shards; the last block may have one row."""
    monkeypatch.setattr(stores, "CHUNK", chunk)
    out = tmp_path / "a.zarr"
    assert write(out, 301, concentration=concentration, block_rows=100).finished
    np.testing.assert_array_equal(read(out), np.full(301, 0.5 if concentration == np.inf else np.nan, np.float32))
    assert (zarr.open_array(out).shards is None) == (chunk > 400)
    assert jax_von_mises.verify_samples(out)["blocks"] == 4
    damage(out, 3)
    with pytest.raises(writer.Damaged, match="block 3"):
        jax_von_mises.verify_samples(out)


@pytest.mark.parametrize(("total", "columns"), [(0, 2), (3, 0), (0, 0)])
def test_nothing_to_draw(out, total, columns):
    for options in ({}, {"resume": True}, {"force": True}):
        assert write(out, total, loc=np.zeros(columns, np.float32), **options).finished
        assert read(out).shape == (total, columns)
    assert jax_von_mises.verify_samples(out)["blocks"] == 0


READERS = """
import sys
import numpy as np, tensorstore, xarray, zarr
name, expected = sys.argv[1], np.load(sys.argv[2])
for found in (
    zarr.open_array(name, mode="r")[:],
    xarray.DataArray(zarr.open_array(name, mode="r"), dims="draw").values,
    tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": name + "/"}}).result().read().result(),
):
    np.testing.assert_array_equal(found, expected)
assert "jax" not in sys.modules and "jax_von_mises" not in sys.modules
data = bytearray(open(name + "/c.4", "rb").read())
data[5] ^= 1
open(name + "/c.4", "wb").write(data)
try:
    zarr.open_array(name, mode="r")[:]
except ValueError as error:
    assert "checksum" in str(error), error
else:
    raise SystemExit("zarr-python did not report the flipped bit")
"""


@pytest.mark.more
def test_other_libraries_read_the_store_and_report_a_flipped_bit(tmp_path, angles):
    pytest.importorskip("tensorstore", reason="TensorStore is not installed")
    pytest.importorskip("xarray", reason="xarray is not installed")
    write(tmp_path / "a.zarr")
    np.save(tmp_path / "expected.npy", angles)
    command = [sys.executable, "-c", READERS, tmp_path / "a.zarr", tmp_path / "expected.npy"]
    subprocess.run(command, check=True, timeout=120)


def test_store_in_a_bucket(angles):
    """fsspec reaches the store; memory:// has the same operations as the bucket of a cloud."""
    out = "memory://bucket/angles.zarr"
    with pytest.raises(Stop):
        write(out, progress=stop_after(4))
    assert write(out, resume=True).kept == 4
    assert jax_von_mises.verify_samples(out)["redrawn"] == [0, 4, 9]
    np.testing.assert_array_equal(np.concatenate(list(writer.read_blocks(out))), angles)
    assert write(out, loc=1.0, force=True).drawn == 10
    system, path = stores.Bucket(out).system, stores.Bucket(out).path
    assert len(system.ls(path)) == 12
    system.rm(path, recursive=True)


def test_parts_in_any_order(tmp_path):
    """Each part writes its blocks, and the one that finds all blocks completes the store."""
    out = tmp_path / "a.zarr"
    assert [write(out, part=part, parts=3)[3:] for part in (0, 2, 0, 1)] == [
        (3, 0, False),
        (4, 0, False),
        (0, 3, False),
        (3, 0, True),
    ]
    assert write(out, part=2, parts=3)[3:] == (0, 4, True)
    as_alone(out, tmp_path)
    more = tmp_path / "more.zarr"  # more parts than blocks
    assert [write(more, 2_000, part=part, parts=4).finished for part in range(4)][-1]


@pytest.mark.parametrize("chunk", [2**26, 1_000])
def test_block_of_any_length_is_found(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(stores, "CHUNK", chunk)
    out = tmp_path / "a.zarr"
    write(out)
    for data in (b"", b"abc", b"\0" * 4, b"\0" * 4_003, b"\0" * 9_000):
        (out / "c.3").write_bytes(data)
        with pytest.raises(writer.Damaged, match="block 3"):
            jax_von_mises.verify_samples(out)
        assert write(out, resume=True, repair=True).drawn == 1
        jax_von_mises.verify_samples(out)


def test_blocks_of_another_stream_are_found_by_drawing_again(out):
    """A late writer of another stream may leave a block that matches its own checksum."""
    write(out, loc=1.0)
    text = Plan.of(stream.Stream.of("test", KEY, 0.5, 4.0, None, "auto"), 10_000, 1_000, "").about
    lines = log_of(out).read_text().splitlines(keepends=True)
    first = jax_von_mises.sample_block(KEY, 0.5, 4.0, 0, 1_000, method="table")
    about = json.loads(lines[0]) | {"stream": text["stream"]}
    about["first_rows"] = Plan(json.dumps(about)).first_rows(first)
    log_of(out).write_text(json.dumps(about) + "\n" + "".join(lines[1:]))
    with pytest.raises(writer.Damaged, match="block 0 is not of this stream"):
        jax_von_mises.verify_samples(out)


def shifted(monkeypatch):
    """Let this machine draw other last digits."""
    real = stream.Stream.rows

    def rows(self, first, count, *more):
        return jax.numpy.nextafter(real(self, first, count, *more), jax.numpy.float32(9))

    monkeypatch.setattr(stream.Stream, "rows", rows)


def test_another_kind_of_machine_is_refused(out, monkeypatch):
    begin(out)
    before = contents(out)
    shifted(monkeypatch)
    for options in ({"resume": True}, {"resume": True, "repair": True}):
        with pytest.raises(ValueError, match="this machine draws other last digits than the one that started the run"):
            write(out, **options)
        assert contents(out) == before
    monkeypatch.undo()
    write(out, resume=True)
    shifted(monkeypatch)
    assert jax_von_mises.verify_samples(out)["redrawn"] == []


CHANGES = [
    (dict(key=jax.random.key(12)), r'key .*"data": \[0, 11\].*now .*\[0, 12\]'),
    (dict(key=jax.random.key(11, impl="rbg")), "now .*rbg"),
    (dict(loc=0.25), r"loc 0\.5 \(now 0\.25\)"),
    (dict(concentration=np.full(2, 4.0)), r"concentration 4\.0 \(now "),
    (dict(total=10_001), r"shape \[10000\] \(now \[10001\]\)"),
    (dict(dtype="float16"), r"dtype float32 \(now float16\)"),
    (dict(method="direct"), r"method table \(now direct\)"),
    (
        dict(loc=None, concentration=None, distribution=jax_von_mises.VonMisesFisher(np.float32([1, 0]), 4.0)),
        "distribution von-mises .now von-mises-fisher",
    ),
]


def test_changed_parameters(out):
    """Changed parameters are refused, and no file changes."""
    begin(out, 1)
    before = contents(out)
    for change, message in CHANGES:
        with pytest.raises(ValueError, match=f"holds another stream: .*{message}"):
            write(out, **({"resume": True} | change))
        assert contents(out) == before


def test_old_target_during_a_new_run(out):
    """The old file or store is removed first, so readers find no array."""
    write(out)
    begin(out, 9, loc=1.0, force=True)
    if out.suffix == ".npy":
        assert sorted(os.listdir(out.parent)) == ["angles.npy.blocks", "angles.npy.partial"]
    else:
        assert sorted(os.listdir(out)) == [*(f"c.{block}" for block in range(9)), "stream.json"]


# Runs at the same time


def test_name_that_appears_is_kept(tmp_path):
    """A file that another program saves while the blocks are drawn is not replaced."""
    out = tmp_path / "a.npy"

    def save(done, total):
        if done == total:
            out.write_text("of the user")

    with pytest.raises(FileExistsError, match="appeared while its angles were drawn; move it away, and resume"):
        write(out, progress=save)
    assert out.read_text() == "of the user"
    out.unlink()
    assert write(out, resume=True)[3:] == (0, 10, True)
    jax_von_mises.verify_samples(out)


@pytest.mark.skipif(disk.fcntl is None, reason="locks need POSIX")
def test_two_runs_on_one_file(tmp_path):
    out = tmp_path / "a.npy"

    def second(done, total):
        if done == 2_000:
            for options in ({"resume": True}, {"force": True}):
                with pytest.raises(BlockingIOError, match="is being written by another process; wait for it"):
                    write(out, **options)

    assert write(out, progress=second).drawn == 10
    jax_von_mises.verify_samples(out)


def test_two_runs_of_one_stream_on_one_store(tmp_path):
    """Equal streams give equal bytes, so it does not matter who writes a block."""
    out = tmp_path / "a.zarr"

    def second(done, total):
        if done == 3_000:
            assert write(out, resume=True)[3:] == (7, 3, True)

    assert write(out, progress=second)[3:] == (10, 0, True)
    as_alone(out, tmp_path)


def once_before(monkeypatch, module, name, action, end=""):
    """Let an action run once, just before an operation on a path with this ending."""
    real = getattr(module, name)

    def wrapped(*arguments):
        if str(arguments[-1]).endswith(end):
            monkeypatch.undo()
            action()
        return real(*arguments)

    monkeypatch.setattr(module, name, wrapped)


@pytest.mark.parametrize(
    ("prepare", "operation", "end", "another", "this"),
    [
        # The other run removes unfinished files, which this one writes again.
        (None, "replace", "c.9", dict(resume=True), dict()),
        (None, "fsync", "", dict(resume=True), dict(resume=True)),
        (None, "replace", "", dict(resume=True), dict(resume=True)),
        (None, "link", "", dict(resume=True), dict(resume=True)),
        (complete_and(damaged(9)), "replace", "c.9", dict(part=0, parts=2), dict(part=1, parts=2, repair=True)),
    ],
)
def test_another_run_meanwhile_on_one_store(tmp_path, monkeypatch, prepare, operation, end, another, this):
    """Both runs write the same stream, and the store is finished in the end."""
    out = tmp_path / "a.zarr"
    if prepare:
        prepare(out)
    once_before(monkeypatch, os, operation, lambda: write(out, **another), end)
    assert write(out, **this).finished
    as_alone(out, tmp_path)


def late_writer(out):
    """Return a writer of the run that stands at `out`."""
    kind = writer.kind_of("test", str(out))
    return kind(str(out), Plan(kind.found(str(out)).text))


NOT_OURS = "no longer belongs to this run"


@pytest.mark.parametrize("moment", ["before the block", "after the check"])
def test_late_writer_of_another_stream_notices(out, tmp_path, monkeypatch, moment):
    """A worker that slept while `force` replaced the stream stops; its last block is taken back, or in no file."""
    begin(out, 2)
    late = late_writer(out)
    if moment == "before the block":
        begin(out, 1, loc=1.0, force=True)
    else:
        name = "write_at" if out.suffix == ".npy" else "put"
        once_before(monkeypatch, disk, name, lambda: begin(out, 1, loc=1.0, force=True))
    nowhere = out.suffix == ".npy" and moment == "after the check"
    with contextlib.nullcontext() if nowhere else pytest.raises(FileNotFoundError, match=NOT_OURS):
        late.put(5, np.zeros(1_000, np.float32))
    assert blocks_of(out) == 1
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


def test_late_block_while_the_store_is_removed(tmp_path, monkeypatch):
    out = tmp_path / "a.zarr"
    write(out)
    late, delete = late_writer(out), stores.Folder.delete

    def removed(self, name):
        delete(self, name)
        if name == "c.9":
            with pytest.raises(FileNotFoundError, match=NOT_OURS):
                late.put(7, np.zeros(1_000, np.float32))

    monkeypatch.setattr(stores.Folder, "delete", removed)
    write(out, loc=1.0, force=True)
    as_alone(out, tmp_path, loc=1.0)


def test_two_streams_that_start_together(tmp_path, monkeypatch):
    """The second one does not replace the plan of the first."""
    out = tmp_path / "a.zarr"
    once_before(monkeypatch, disk, "create", lambda: write(out, loc=1.0, part=0, parts=2))
    with pytest.raises(FileNotFoundError, match=NOT_OURS):
        write(out, part=1, parts=2)
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


def test_repair_and_force_of_one_file(tmp_path):
    """A repair does not give the file's name to an unfinished file of another run."""
    out = tmp_path / "a.npy"
    write(out)
    for options in ({"resume": True}, {"resume": True, "repair": True}):
        damage(out, 5)

        def second(done, total, options=options):
            if done == 3_000:
                with pytest.raises((BlockingIOError, ValueError)):
                    write(out, **options)

        write(out, loc=1.0, force=True, progress=second)
        jax_von_mises.verify_samples(out)
        write(out, force=True)
    late = late_writer(out)
    begin(out, 3, loc=1.0, force=True)
    with pytest.raises(FileNotFoundError, match=NOT_OURS):
        late.finish()  # of a run that began before
    assert not out.exists()


# Disks and arguments


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.skipif(disk.fcntl is None, reason="locks need POSIX")
def test_file_system_without_locks(tmp_path, monkeypatch, code):
    """One warning says that concurrent runs are not noticed; the file is written."""

    def flock(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk.fcntl, "flock", flock)
    with pytest.warns(RuntimeWarning, match=rf"cannot be locked \({os.strerror(code)}\), so two runs") as seen:
        write(tmp_path / "a.npy", 3_000)
    assert [warning.filename for warning in seen] == [__file__]
    write(tmp_path / "b.npy", 3_000)
    monkeypatch.undo()
    as_alone(tmp_path / "a.npy", tmp_path, total=3_000)


def test_bad_sector_is_a_damaged_block(out, monkeypatch):
    write(out)
    real = writer.kind_of("test", str(out))
    damaged = real.damaged

    def unreadable(self, block, expected):
        if block == 4:
            raise OSError(errno.EIO, "Input/output error")
        return damaged(self, block, expected)

    monkeypatch.setattr(real, "damaged", unreadable)
    with pytest.raises(writer.Damaged, match="block 4"):
        jax_von_mises.verify_samples(out)
    assert write(out, resume=True, repair=True).drawn == 1


def test_long_names(tmp_path):
    for kind in KINDS:
        assert write(tmp_path / f"{'a' * 200}.{kind}", 10).finished


# Disks and arguments


def test_disk_without_space(out, monkeypatch):
    """A run that does not fit is refused before anything is written."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=39_999))
    with pytest.raises(OSError, match=r"needs 39\.06 KiB, but the disk has 39\.06 KiB free") as refused:
        write(out)
    assert refused.value.errno is None
    assert not contents(out)
    monkeypatch.undo()
    write(out, 1_000)
    before = contents(out)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=30_000))
    with pytest.raises(OSError, match=r"needs 39\.06 KiB, but the disk has 29\.3 KiB free"):
        write(out, force=True)  # what it would remove is too small
    assert contents(out) == before
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=39_000))
    write(out, force=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(parts=2), ValueError, r"can have only one writer, but parts=2\. Write a \.zarr"),
        (dict(parts=2, part=2), ValueError, "part=2 must be below parts=2"),
        (dict(parts=2, force=True), ValueError, "`force` cannot be combined with parts=2"),
        (dict(resume=True, force=True), ValueError, "`resume` keeps what `force` would replace"),
        (dict(total=2**59, loc=np.zeros(2)), ValueError, "rows of length 2 are too many"),
        (dict(total=2**21 + 1, block_rows=1), ValueError, r"at most 1048576\. Give block_rows=3 or more"),
        (dict(out="no/a.npy"), FileNotFoundError, r"there is no directory .*; create it first"),
        (dict(out="no/a.zarr"), FileNotFoundError, r"there is no directory .*; create it first"),
        (dict(out="local:///tmp/a.zarr"), ValueError, "is on a local disk; give its path"),
        (dict(out="a.txt"), ValueError, r"must end in \.npy, or in \.zarr"),
        (dict(out="gs://bucket/a.npy"), ValueError, r"must end in \.npy, or in \.zarr"),
    ],
)
def test_invalid_arguments(tmp_path, monkeypatch, options, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        write(**{"out": "a.npy", **options})
    assert list(tmp_path.iterdir()) == []


def test_zarr_that_is_not_installed(tmp_path, monkeypatch):
    for name in ("zarr", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[storage\]"'):
        write(tmp_path / "a.zarr")
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[storage\]"'):
        stores.Bucket("gs://bucket/a.zarr")
    write(tmp_path / "a.npy")


def test_errors_name_the_file(out, monkeypatch):
    """System calls on an open file do not know its name."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(OSError, match=f"No space left on device.*{out.name}"):
        write(out)

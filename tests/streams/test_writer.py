"""Test that files and stores hold the stream, appear complete or not at all, and are never taken for another stream.

Most tests write 10,000 angles in blocks of 1,000, and thus share two compiled programs.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import types

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
    """Map each file of a target, including logs and partial files, to its bytes."""
    result = {}
    for path in sorted(out.parent.glob(out.name + "*")):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        result |= {str(file.relative_to(out.parent)): file.read_bytes() for file in files}
    return result


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


@pytest.fixture
def interrupted(out):
    """Return an unfinished target with four of ten blocks."""
    with pytest.raises(Stop) as stopped:
        write(out, progress=stop_after(4))
    assert stopped.value.__notes__ == ["4 of 10 blocks are finished; continue with resume=True"]
    return out


@pytest.mark.few(2)
@pytest.mark.parametrize("block_rows", [None, 1, 4_096, 10**6])
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
        assert writer.rows_of(one, total, None, None) == rows
    assert writer.rows_of(wide, 10**6, None, None) * 1_000 == pytest.approx(2**22, rel=0.1)
    assert writer.rows_of(one, 10**10, None, Plan.of(one, 10**10, 77, "")) == 77


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", pytest.param("float64", marks=pytest.mark.slow)])
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


# Runs that were interrupted


def test_interrupted_and_resumed(interrupted, angles, tmp_path):
    """An interrupted target is not finished; the resumed run writes the same bytes as an uninterrupted one."""
    out = interrupted
    assert not finished(out)
    with pytest.raises(FileNotFoundError):
        read(out)
    with pytest.raises(FileNotFoundError, match=r"is not finished: 4 of 10 blocks are\. Complete it with resume=True"):
        jax_von_mises.verify_samples(out)
    assert write(out, resume=True, block_rows=77)[3:] == (6, 4, True)
    np.testing.assert_array_equal(read(out), angles)
    as_alone(out, tmp_path)


def test_resume_begins_a_run_and_keeps_a_complete_one(out):
    assert write(out, resume=True).drawn == 10
    before = contents(out)
    assert write(out, resume=True)[3:] == (0, 10, True)
    assert contents(out) == before


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


@pytest.mark.parametrize("torn", [b"4", b"4 ", b"4 0123abc", b"\0" * 40, b"4\0\0\0\0\n5 01234567\0\n"])
def test_torn_line_is_an_unfinished_block(tmp_path, torn):
    """A line that a power failure truncated is ignored: its block is drawn again."""
    out = tmp_path / "a.npy"
    with pytest.raises(Stop):
        write(out, progress=stop_after(4))
    with open(f"{out}.partial.blocks", "ab") as file:
        file.write(torn)
    with pytest.raises(Stop):
        write(out, resume=True, progress=stop_after(1))
    assert blocks_of(out) == 5
    assert write(out, resume=True)[3:] == (5, 5, True)
    jax_von_mises.verify_samples(out)


def test_lost_files_are_drawn_again(out, tmp_path):
    """Blocks that are gone are missing, in an unfinished target and, in a store, in a finished one."""
    with pytest.raises(Stop):
        write(out, progress=stop_after(4))
    block_bytes(out, 2)[0].unlink()
    assert write(out, resume=True).kept == (3 if out.suffix == ".zarr" else 0)
    as_alone(out, tmp_path)
    if out.suffix == ".zarr":
        (out / "c.7").unlink()
        with pytest.raises(writer.Damaged, match="block 7 is missing"):
            jax_von_mises.verify_samples(out)
        assert write(out, resume=True).drawn == 1
        as_alone(out, tmp_path, force=True)


# Damage


@pytest.mark.parametrize("state", ["unfinished", "finished"])
def test_repair(out, tmp_path, state):
    """Damaged blocks are found by their checksums, and only these are drawn again."""
    if state == "finished":
        write(out)
    else:
        with pytest.raises(Stop):
            write(out, progress=stop_after(6))
    for block in (1, 4):
        damage(out, block)
    if state == "finished":
        with pytest.raises(writer.Damaged, match="2 blocks are missing or do not match their checksums: 1, 4"):
            jax_von_mises.verify_samples(out)
        assert write(out, resume=True).drawn == 0  # resume trusts finished blocks
    done = write(out, resume=True, repair=True)
    assert (done.drawn, done.finished) == (2 if state == "finished" else 6, True)
    jax_von_mises.verify_samples(out)
    if out.suffix == ".zarr":
        as_alone(out, tmp_path)


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 4, b"\0" * 4_003, b"\0" * 9_000])
@pytest.mark.parametrize("chunk", [2**26, 1_000])
def test_block_of_any_length_is_found(tmp_path, monkeypatch, data, chunk):
    monkeypatch.setattr(stores, "CHUNK", chunk)
    out = tmp_path / "a.zarr"
    write(out)
    (out / "c.3").write_bytes(data)
    with pytest.raises(writer.Damaged, match="block 3"):
        jax_von_mises.verify_samples(out)
    assert write(out, resume=True, repair=True).drawn == 1
    jax_von_mises.verify_samples(out)


def test_file_with_a_wrong_size_or_header(tmp_path):
    for change in (lambda data: data[:-4], lambda data: data + b"0", lambda data: b"a" + data[1:]):
        out = tmp_path / "a.npy"
        write(out, force=True)
        out.write_bytes(change(out.read_bytes()))
        with pytest.raises(OSError, match="does not have the header and the size"):
            jax_von_mises.verify_samples(out)


def test_metadata_of_another_array(tmp_path):
    out = tmp_path / "a.zarr"
    write(out)
    metadata = json.loads((out / "zarr.json").read_text())
    (out / "zarr.json").write_text(json.dumps(metadata | {"attributes": {"of": "the user"}}))
    jax_von_mises.verify_samples(out)
    (out / "zarr.json").write_text(json.dumps(metadata | {"data_type": "int32"}))
    with pytest.raises(OSError, match="its metadata give data_type int32"):
        jax_von_mises.verify_samples(out)


def test_blocks_of_another_stream_are_found_by_drawing_again(out):
    """A late writer of another stream may leave a block that matches its own checksum."""
    write(out, loc=1.0)
    text = Plan.of(stream.Stream.of("test", KEY, 0.5, 4.0, None, "auto"), 10_000, 1_000, "").about
    name = out / "stream.json" if out.is_dir() else out.with_name(f"{out.name}.blocks")
    lines = name.read_text().splitlines(keepends=True)
    first = jax_von_mises.sample_block(KEY, 0.5, 4.0, 0, 1_000, method="table")
    about = json.loads(lines[0]) | {"stream": text["stream"]}
    about["first_rows"] = Plan(json.dumps(about)).first_rows(first)
    name.write_text(json.dumps(about) + "\n" + "".join(lines[1:]))
    with pytest.raises(writer.Damaged, match="block 0 is not of this stream"):
        jax_von_mises.verify_samples(out)


# Machines that draw other last digits


def shifted(monkeypatch):
    """Let this machine draw other last digits."""
    real = stream.Stream.rows

    def rows(self, first, count, *more):
        return jax.numpy.nextafter(real(self, first, count, *more), jax.numpy.float32(9))

    monkeypatch.setattr(stream.Stream, "rows", rows)


def test_another_kind_of_machine_is_refused(interrupted, monkeypatch):
    before = contents(interrupted)
    shifted(monkeypatch)
    for options in ({"resume": True}, {"resume": True, "repair": True}):
        with pytest.raises(ValueError, match="this machine draws other last digits than the one that started the run"):
            write(interrupted, **options)
        assert contents(interrupted) == before
    monkeypatch.undo()
    write(interrupted, resume=True)
    shifted(monkeypatch)
    assert jax_von_mises.verify_samples(interrupted)["redrawn"] == []


# Targets that must not be resumed or overwritten


CHANGES = [
    (dict(key=jax.random.key(12)), r'key .*"data": \[0, 11\].*now .*\[0, 12\]'),
    (dict(key=jax.random.key(11, impl="rbg")), "now .*rbg"),
    (dict(loc=0.25), r"loc 0\.5 \(now 0\.25\)"),
    (dict(concentration=np.full(2, 4.0)), r"concentration 4\.0 \(now "),
    (dict(total=10_001), r"shape \[10000\] \(now \[10001\]\)"),
    (dict(dtype="float16"), r"dtype float32 \(now float16\)"),
    (dict(method="direct"), r"method table \(now direct\)"),
    (dict(loc=np.float32([1, 0]), distribution="von-mises-fisher"), "distribution von-mises .now von-mises-fisher"),
]


@pytest.mark.parametrize("blocks", [1, 10])
def test_changed_parameters(out, blocks):
    """Changed parameters are refused for unfinished and finished targets, and no file changes."""
    if blocks == 10:
        write(out)
    else:
        with pytest.raises(Stop):
            write(out, progress=stop_after(blocks))
    before = contents(out)
    for change, message in CHANGES:
        with pytest.raises(ValueError, match=f"holds another stream: .*{message}"):
            write(out, **({"resume": True} | change))
        assert contents(out) == before


def test_existing_target_needs_an_option(interrupted, angles):
    for _ in range(2):
        before = contents(interrupted)
        with pytest.raises(FileExistsError, match=r"already exists, .*resume=True .*force=True"):
            write(interrupted)
        assert contents(interrupted) == before
        assert write(interrupted, loc=1.0, force=True).drawn == 10
    write(interrupted, force=True)
    np.testing.assert_array_equal(read(interrupted), angles)


def test_old_file_stays_until_the_new_one_is_complete(tmp_path, angles):
    out = tmp_path / "a.npy"
    write(out)
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True, progress=stop_after(9))
    np.testing.assert_array_equal(read(out), angles)
    assert write(out, loc=1.0, resume=True).drawn == 1  # `resume` replaces it as well
    assert not (read(out) == angles).all()
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "a.npy.blocks"]


def test_old_store_is_removed_first(tmp_path):
    """Readers find no array, and the old stream or any other can go on."""
    out = tmp_path / "a.zarr"
    write(out, 20_000)
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True, progress=stop_after(1))
    assert sorted(os.listdir(out)) == ["c.0", "stream.json"]
    write(out, force=True)
    as_alone(out, tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "c.1.txt", "link", "c.4", "c.0.0.1"])
def test_store_with_other_things_is_not_removed(tmp_path, name):
    """Nothing is removed if there is anything else, such as a link with the name of a block."""
    out, home = tmp_path / "a.zarr", tmp_path / "home"
    home.mkdir()
    (home / "kept.txt").write_text("of the user")
    write(out, 3_000)
    if name in ("link", "c.4"):
        (out / name).symlink_to(home)
    else:
        (out / name).write_text("of the user")
    before = contents(out)
    with pytest.raises(FileExistsError, match=rf"holds {name}/?, so it is not only of this package; move it away"):
        write(out, force=True)
    assert contents(out) == before
    assert (home / "kept.txt").read_text() == "of the user"


@pytest.mark.parametrize("made", ["array", "group", "folder", "file"])
def test_store_of_others_is_refused(tmp_path, made):
    out = tmp_path / "a.zarr"
    if made == "array":
        zarr.create_array(out, shape=(3,), dtype="float32")
    elif made == "group":
        zarr.create_group(out)
    elif made == "folder":
        (out / "c").mkdir(parents=True)
    else:
        out.write_text("of the user")
    before = contents(out)
    for options in ({}, {"resume": True}, {"force": True}, {"parts": 2}):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            write(out, **options)
        assert contents(out) == before


def test_file_of_others(tmp_path):
    """Neither finished nor unfinished files of others are replaced, nor logs of others, whatever is given."""
    out = tmp_path / "a.npy"
    np.save(out, np.zeros(3))
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(FileExistsError):
            write(out, **options)
    with pytest.raises(FileNotFoundError, match=r"has no .*a\.npy\.blocks next to it"):
        jax_von_mises.verify_samples(out)
    assert np.load(out).shape == (3,)
    out.unlink()
    write(out)
    for name in ("b.npy.partial", "b.npy.blocks", "b.npy.partial.blocks"):
        (tmp_path / name).write_text("of the user")
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(FileExistsError, match="was not written by this package; move it away"):
                write(tmp_path / "b.npy", **options)
        assert (tmp_path / name).read_text() == "of the user"
        (tmp_path / name).unlink()
    for out in (tmp_path / "b.npy", tmp_path / "b.npy.partial", tmp_path / "b.npy.partial.blocks"):
        out.mkdir()
        with pytest.raises(FileExistsError, match="is not a file"):
            write(tmp_path / "b.npy", force=True)
        out.rmdir()
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "a.npy.blocks"]


@pytest.mark.parametrize("end", ["", ".partial", ".partial.blocks", ".blocks"])
@pytest.mark.parametrize("kind", KINDS)
def test_links_are_not_followed(tmp_path, kind, end):
    out, home = tmp_path / f"a.{kind}", tmp_path / "home"
    if kind == "zarr":
        if end:
            pytest.skip("a store has no such files")
        home.mkdir()
    else:
        home.write_text("of the user")
    (tmp_path / f"a.{kind}{end}").symlink_to(home)
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(FileExistsError, match="is a symbolic link; give the name of what it leads to"):
            write(out, **options)
    assert os.listdir(home) == [] if kind == "zarr" else home.read_text() == "of the user"


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


@pytest.mark.parametrize("moment", ["before the block", "after the check"])
@pytest.mark.parametrize("kind", KINDS)
def test_late_writer_of_another_stream_notices(tmp_path, monkeypatch, kind, moment):
    """A worker that slept while `force` replaced the stream stops, and in a store it takes back its block."""
    out = tmp_path / f"a.{kind}"
    target = writer.kind_of("test", str(out))
    with pytest.raises(Stop):
        write(out, progress=stop_after(2))
    late = target(str(out), Plan(target.found(str(out)).text))
    rows = np.zeros(1_000, np.float32)
    name = "write_at" if kind == "npy" else "put"
    real = getattr(disk, name)

    def asleep(*arguments):
        monkeypatch.undo()
        with pytest.raises(Stop):
            write(out, loc=1.0, force=True, progress=stop_after(1))
        real(*arguments)

    if moment == "before the block":
        with pytest.raises(Stop):
            write(out, loc=1.0, force=True, progress=stop_after(1))
    else:
        monkeypatch.setattr(disk, name, asleep)
    with pytest.raises(FileNotFoundError, match="no longer belongs to this run"):
        late.put(5, rows)
    assert blocks_of(out) == 1
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


def test_block_that_another_writer_finishes_meanwhile(tmp_path, monkeypatch):
    """`finish` removes unfinished files, whose writers write them again."""
    out = tmp_path / "a.zarr"
    replace = os.replace

    def late(source, name):
        if name.endswith("c.9"):
            monkeypatch.undo()
            assert write(out, resume=True).drawn == 1
        replace(source, name)

    monkeypatch.setattr(os, "replace", late)
    assert write(out).finished
    as_alone(out, tmp_path)


def test_repair_while_another_part_finishes(tmp_path, monkeypatch):
    """A repaired block is written although the other part removes its unfinished file."""
    out = tmp_path / "a.zarr"
    write(out)
    damage(out, 9)
    replace = os.replace

    def late(source, name):
        if name.endswith("c.9"):
            monkeypatch.undo()
            assert write(out, part=0, parts=2).drawn == 0
        replace(source, name)

    monkeypatch.setattr(os, "replace", late)
    assert write(out, part=1, parts=2, repair=True).drawn == 1
    jax_von_mises.verify_samples(out)


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
    late = npy.NpyFile(str(out), Plan(npy.NpyFile.found(str(out)).text))
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True, progress=stop_after(3))
    before = out.read_bytes()
    assert late.finish()  # of a run that began before
    assert out.read_bytes() == before
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


def test_late_block_while_the_store_is_removed(tmp_path, monkeypatch):
    out = tmp_path / "a.zarr"
    write(out)
    late = stores.ZarrStore(str(out), Plan(stores.ZarrStore.found(str(out)).text))
    delete = stores.Folder.delete

    def removed(self, name):
        delete(self, name)
        if name == "c.9":
            with pytest.raises(FileNotFoundError, match="no longer belongs to this run"):
                late.put(7, np.zeros(1_000, np.float32))

    monkeypatch.setattr(stores.Folder, "delete", removed)
    write(out, loc=1.0, force=True)
    as_alone(out, tmp_path, loc=1.0)


def test_two_streams_that_start_together(tmp_path, monkeypatch):
    """The second one does not replace the plan of the first."""
    out, create = tmp_path / "a.zarr", disk.create

    def slow(name, data):
        monkeypatch.undo()
        write(out, loc=1.0, part=0, parts=2)
        create(name, data)

    monkeypatch.setattr(disk, "create", slow)
    with pytest.raises(FileNotFoundError, match="no longer belongs to this run"):
        write(out, part=1, parts=2)
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


@pytest.mark.parametrize("name", ["fsync", "replace", "link"])
def test_store_finished_by_another_while_this_one_starts(tmp_path, monkeypatch, name):
    """The other writer removes the unfinished files of this one."""
    out, operation = tmp_path / "a.zarr", getattr(os, name)

    def slow(*arguments):
        monkeypatch.undo()
        write(out, resume=True)
        return operation(*arguments)

    monkeypatch.setattr(os, name, slow)
    write(out, resume=True)
    as_alone(out, tmp_path)


def test_file_of_others_beside_a_list_of_blocks(tmp_path):
    """A file that replaced ours is not repaired."""
    out = tmp_path / "a.npy"
    write(out)
    np.save(out, np.zeros(10_000))
    before = out.read_bytes()
    for options in ({"resume": True}, {"resume": True, "repair": True}, {"force": True}):
        with pytest.raises(FileExistsError, match=r"is not the file that its \.blocks describes"):
            write(out, **options)
    assert out.read_bytes() == before


@pytest.mark.parametrize("ours", [True, False])
def test_file_of_others_that_appears_during_a_run(tmp_path, ours):
    """Neither `force` nor the end of a run that replaces a file replaces one that another program saved meanwhile."""
    out = tmp_path / "a.npy"
    if ours:
        write(out)
    with pytest.raises(Stop):
        write(out, loc=1.0, force=ours, progress=stop_after(3))
    out.write_text("of the user")
    for options in ({"force": True}, {"resume": True}):
        with pytest.raises(FileExistsError, match="move it away"):
            write(out, loc=1.0, **options)
        assert out.read_text() == "of the user"
    out.unlink()
    write(out, loc=1.0, resume=True)
    as_alone(out, tmp_path, loc=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_verified(tmp_path, kind):
    """The message says whether nothing is there, or another program's, or another format."""
    out = tmp_path / f"a.{kind}"
    with pytest.raises(FileNotFoundError, match=f"a.{kind}: there is no such {'file' if kind == 'npy' else 'store'}"):
        jax_von_mises.verify_samples(out)
    write(out, 3_000)
    log = tmp_path / "a.npy.blocks" if kind == "npy" else out / "stream.json"
    text = log.read_text()
    log.write_text(text.replace(stream.FORMAT, "jax_von_mises stream 1", 1))
    for call in (lambda: jax_von_mises.verify_samples(out), lambda: write(out, 3_000, resume=True)):
        with pytest.raises(FileExistsError, match=r"has format jax_von_mises stream 1, but this version .* reads "):
            call()
    log.unlink()
    with pytest.raises(FileNotFoundError, match=f"has no .*{log.name} "):
        jax_von_mises.verify_samples(out)


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


def test_old_file_is_not_taken_for_the_new_one(tmp_path):
    """The partial file of a run that replaces a file is lost after its last block."""
    out = tmp_path / "a.npy"
    write(out)
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True, progress=stop_after(10))
    os.unlink(f"{out}.partial")
    assert write(out, loc=1.0, resume=True).drawn == 10
    as_alone(out, tmp_path, loc=1.0)


def test_metadata_are_written_again(tmp_path):
    out = tmp_path / "a.zarr"
    for text in ("{", "", json.dumps({"zarr_format": 3, "node_type": "group"})):
        write(out, force=True)
        (out / "zarr.json").write_text(text)
        with pytest.raises(OSError, match="its metadata "):
            jax_von_mises.verify_samples(out)
        assert write(out, resume=True).drawn == 0
        jax_von_mises.verify_samples(out)
    as_alone(out, tmp_path)


def test_stores_and_files_of_others_with_our_names(tmp_path):
    """Neither a store with another stream.json is removed, nor a file whose name looks like a temporary one."""
    out = tmp_path / "a.zarr"
    out.mkdir()
    for name in ("stream.json", "c.0"):
        (out / name).write_text('{"camera": 1}')
    before = contents(out)
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(FileExistsError):
            write(out, **options)
    assert contents(out) == before
    shutil.rmtree(out)
    with pytest.raises(Stop):
        write(out, progress=stop_after(1))
    (out / ".notes.tmp").write_text("of the user")
    write(out, resume=True)
    assert (out / ".notes.tmp").read_text() == "of the user"


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


def test_directory_that_does_not_exist(tmp_path):
    for kind in KINDS:
        with pytest.raises(FileNotFoundError, match=r"there is no directory .*; create it first"):
            write(tmp_path / "no" / f"a.{kind}")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(parts=2), ValueError, r"can have only one writer, but parts=2\. Write a \.zarr"),
        (dict(parts=2, part=2), ValueError, "part=2 must be below parts=2"),
        (dict(parts=2, force=True), ValueError, "force=True cannot be combined with parts=2"),
        (dict(resume=True, force=True), ValueError, "resume=True keeps what force=True would replace"),
        (dict(total=2**59, loc=np.zeros(2)), ValueError, "rows of length 2 are too many"),
        (dict(total=2**21 + 1, block_rows=1), ValueError, r"at most 1048576\. Give block_rows=3 or more"),
        (dict(progress=3), TypeError, "progress=3 must be a function, or None"),
        (dict(executor=map), TypeError, "must be a concurrent.futures.Executor"),
    ],
)
def test_invalid_arguments(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        write(tmp_path / "a.npy", **options)
    assert list(tmp_path.iterdir()) == []


def test_url_of_a_local_disk():
    with pytest.raises(ValueError, match="is on a local disk; give its path"):
        write("local:///tmp/a.zarr")


def test_name_of_another_kind(tmp_path):
    for out in ("a.txt", "gs://bucket/a.npy"):
        with pytest.raises(ValueError, match=r"must end in \.npy, or in \.zarr"):
            write(tmp_path / out if "://" not in out else out)


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

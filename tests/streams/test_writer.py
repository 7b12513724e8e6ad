"""Test that files and stores hold the stream after any fault, and that they appear complete or not at all.

Most tests write 10,000 angles in blocks of 1,000, and thus share two compiled programs.
"""

import contextlib
import errno
import json
import os
import shutil
import sys
import types
import zlib

import jax
import numpy as np
import pytest

import jax_von_mises
from jax_von_mises.streams import checkpoint, npy, writer, zarr
from tests import children

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")

KEY = jax.random.key(11)
KINDS = ("npy", "zarr")


def write(out, total=10_000, *, key=KEY, loc=0.5, concentration=4.0, dtype=None, block_rows=1_000, **options):
    return jax_von_mises.write_samples(out, key, loc, concentration, total, dtype, block_rows=block_rows, **options)


def read(out):
    """Read a file with NumPy, or a store with TensorStore, from the path alone."""
    if str(out).endswith(".npy"):
        return np.load(out, mmap_mode="r")
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{out}/"}}
    return tensorstore.open(spec).result().read().result()


def contents(out):
    """Map each file of a target, including records and partial files, to its bytes."""
    result = {}
    for path in sorted(out.parent.glob(out.name + "*")):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        result |= {str(file.relative_to(out.parent)): file.read_bytes() for file in files}
    return result


class Stop(BaseException):
    """An interrupt that, like KeyboardInterrupt, is not an `Exception`."""


def stop_after(blocks):
    """Return an observer that raises `Stop` once, when it has seen `blocks` blocks."""
    seen = []

    def observe(rows):
        seen.append(len(rows))
        if len(seen) == blocks:
            raise Stop

    return observe


@pytest.fixture(scope="module")
def stream():
    return np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, (10_000,), method="table"))


@pytest.fixture(params=KINDS)
def out(request, tmp_path):
    return tmp_path / f"angles.{request.param}"


@pytest.fixture
def interrupted(out):
    """Return an unfinished target with four of ten blocks."""
    with pytest.raises(Stop) as stopped:
        write(out, observe=stop_after(4))
    assert "4 of 10 blocks kept" in stopped.value.__notes__[0]
    return out


def finished(out):
    """Return whether readers find an array at `out`."""
    return out.is_file() or (out / "zarr.json").exists()


@pytest.mark.few(2)
@pytest.mark.parametrize("block_rows", [None, 1, 4_096, 10**6])
def test_file_does_not_depend_on_the_block_size(tmp_path, stream, block_rows):
    total = 50 if block_rows == 1 else 10_000
    for kind in KINDS:
        out = tmp_path / f"angles.{kind}"
        done = write(out, total, block_rows=block_rows)
        np.testing.assert_array_equal(read(out), stream[:total])
        blocks = -(-total // min(block_rows or total, total))
        assert (done.out, done.shape, done.dtype, done.drawn, done.kept) == (str(out), (total,), "float32", blocks, 0)
        assert len(jax_von_mises.verify_samples(out)["crc32"]) == blocks
    names = {"angles.npy", "angles.npy.json", "angles.zarr"}
    assert set(os.listdir(tmp_path)) == names
    assert set(os.listdir(tmp_path / "angles.zarr")) == {"zarr.json", "blocks.json", "c"}


def test_default_blocks_are_of_one_size():
    """Default blocks have 2^24 numbers, or more if a finished record could not otherwise list all blocks."""
    for angles, block in ((10, 2**24), (10**12, 2**24), (2**44, 2**24), (2**44 + 1, 2**25), (10**15, 2**30)):
        assert writer.block_angles(angles) == block
    wide = writer.Stream.of("test", KEY, np.zeros(1_000, np.float32), 4.0, None, "auto")
    rows = writer.default_block_rows(wide, 10**6, None)
    assert rows % 1_024 == 0  # complete pages
    assert 0.9 * 2**24 < rows * 1_000 <= 2**24


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.slow)])
def test_dtypes_and_columns(tmp_path, dtype):
    loc = np.linspace(-3, 3, 5)
    with jax.enable_x64(dtype == "float64"):
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, loc, 4.0, (330, 5), dtype, method="table"))
        written = [write(tmp_path / f"a.{kind}", 330, loc=loc, dtype=dtype, block_rows=100) for kind in KINDS]
    for done in written:
        assert done.shape == (330, 5)
        array = read(done.out)
        stored = "float32" if dtype == "bfloat16" and done.out.endswith(".npy") else dtype
        assert (array.dtype.name, done.dtype) == (stored, stored)
        np.testing.assert_array_equal(array.astype(np.float64), expected.astype(np.float64))
        jax_von_mises.verify_samples(done.out)


def test_nothing_to_draw(out):
    assert write(out, 0).shape == (0,)
    assert read(out).shape == (0,)
    jax_von_mises.verify_samples(out)


def test_record_describes_the_draw(out):
    write(out, 2_500)
    record = json.loads(((out / "blocks.json") if out.is_dir() else out.with_suffix(".npy.json")).read_text())
    assert record["stream"] == {
        "key": {"impl": "threefry2x32", "data": [0, 11]},
        "loc": "0.5",
        "concentration": "4.0",
        "dtype": "float32",
        "method": "table",
    }
    assert record["made_with"]["jax"] == jax.__version__
    assert (record["shape"], record["block_rows"], len(record["crc32"])) == ([2_500], 1_000, 3)
    if out.is_dir():
        assert json.loads((out / "zarr.json").read_text())["attributes"]["jax_von_mises"] == record["stream"]
    # For files and stores alike, the checksum is the CRC-32 of the block's bytes.
    assert record["crc32"]["2"] == f"{zlib.crc32(np.asarray(read(out))[2_000:].tobytes()):08x}"


def test_whole_pages_bypass_the_cache(tmp_path, stream, monkeypatch):
    """Direct writes, plain writes, and direct writes that the file system refuses halfway give the same angles."""
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system does not support direct writes")
    write(tmp_path / "direct.npy", block_rows=4_096)
    monkeypatch.delattr(os, "O_DIRECT")
    write(tmp_path / "plain.npy", block_rows=4_096)
    monkeypatch.undo()
    real, calls = os.pwrite, []

    def refusing(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", refusing)
    write(tmp_path / "refused.npy", block_rows=4_096)
    if not calls:
        pytest.skip("this file system does not support direct writes")
    assert len(calls) > 1
    for name in ("direct", "plain", "refused"):
        np.testing.assert_array_equal(read(tmp_path / f"{name}.npy"), stream)


def test_interrupted_and_resumed(interrupted, stream, tmp_path):
    """An interrupted target is not finished; the resumed run writes the same bytes as an uninterrupted one."""
    out = interrupted
    assert not finished(out)
    done = write(out, resume=True)
    assert (done.drawn, done.kept) == (6, 4)
    np.testing.assert_array_equal(read(out), stream)
    resumed = contents(out)
    undisturbed = tmp_path / "undisturbed" / out.name
    undisturbed.parent.mkdir()
    write(undisturbed)
    assert resumed == contents(undisturbed)


def test_resume_begins_a_run_and_keeps_a_complete_one(out):
    assert write(out, resume=True).drawn == 10
    before = contents(out)
    done = write(out, resume=True)
    assert (done.drawn, done.kept) == (0, 10)
    assert contents(out) == before


def test_interrupt_before_the_first_block_leaves_no_file(out, monkeypatch):
    def fail(*_):
        raise Stop

    monkeypatch.setattr(writer, "checksum", fail)
    with pytest.raises(Stop) as stopped:
        write(out)
    assert stopped.value.__notes__ == ["nothing was kept"]
    assert not contents(out)


@pytest.mark.parametrize("stage", ["append", "settle"])
def test_interrupted_at_the_end(out, monkeypatch, tmp_path, stage):
    """After an interrupt between the last block and the last rename, the next run draws at most one block."""
    target = npy.NpyFile if out.suffix == ".npy" else zarr.ZarrStore
    real = getattr(target, stage)
    calls = []

    def fail(self, *arguments):
        calls.append(stage)
        if stage != "append" or len(calls) == 10:  # the last block
            raise Stop
        return real(self, *arguments)

    monkeypatch.setattr(target, stage, fail)
    with pytest.raises(Stop):
        write(out)
    monkeypatch.undo()
    done = write(out, resume=True)
    assert done.drawn <= 1
    resumed = contents(out)
    undisturbed = tmp_path / "undisturbed" / out.name
    undisturbed.parent.mkdir()
    write(undisturbed)
    assert resumed == contents(undisturbed)


# Records


def heads(out):
    """Return the files that hold the heads of an unfinished target's records."""
    return [*out.parent.glob(f"{out.name}.partial.json"), *out.glob("blocks-*.json")]


def recorded(out):
    """Map each recorded block of an unfinished target to its checksum; the map is empty if there is no record."""
    blocks = {}
    for head in heads(out):
        lines = b"".join(path.read_bytes() for path in sorted(out.glob(f"{head.stem}.*.txt")))
        with contextlib.suppress(FileNotFoundError):
            blocks |= checkpoint.parse_record(str(head), head.read_bytes(), lines)["crc32"]
    return blocks


def test_nothing_is_written_twice(out, monkeypatch):
    """A run writes the head of its record once. Each block then adds a line; a store keeps lines in segments."""
    monkeypatch.setattr(zarr.ZarrStore, "SEGMENT_LINES", 3)
    seen = []

    def observe(_):
        (head,) = heads(out)
        seen.append((head.read_bytes().split(b"\n}\n")[0], len(recorded(out)), len(list(out.glob("*.txt")))))
        if len(seen) == 7:
            raise Stop

    with pytest.raises(Stop):
        write(out, observe=observe)
    assert len({head for head, _, _ in seen}) == 1
    assert [blocks for _, blocks, _ in seen] == list(range(1, 8))
    assert [segments for _, _, segments in seen] == ([1, 1, 1, 2, 2, 2, 3] if out.is_dir() else [0] * 7)
    with pytest.raises(Stop):
        write(out, resume=True, observe=stop_after(1))
    assert len(recorded(out)) == 8
    assert len(list(out.glob("*.txt"))) == int(out.is_dir())
    assert write(out, resume=True).kept == 8
    jax_von_mises.verify_samples(out)


@pytest.mark.parametrize(
    "torn", [b"4", b"4 ", b"4 0123abc", b"4 01234567", b"\0" * 40, b"4\0\0\0\0\0\0\0\0\0\n5 01234567\n"]
)
def test_torn_line_is_an_unrecorded_block(interrupted, torn):
    """A line that a power failure truncated is ignored: its block is drawn again, and the record stays readable."""
    lines = interrupted / "blocks-0of1.0.txt" if interrupted.is_dir() else heads(interrupted)[0]
    with open(lines, "ab") as file:
        file.write(torn)
    with pytest.raises(Stop):
        write(interrupted, resume=True, observe=stop_after(1))
    assert sorted(recorded(interrupted)) == [0, 1, 2, 3, 4]
    done = write(interrupted, resume=True)
    assert (done.drawn, done.kept) == (5, 5)
    jax_von_mises.verify_samples(interrupted)


# Files that version 0.1 wrote, each with 300 angles in 10 blocks


OLD = children.ROOT / "tests" / "streams" / "written_by_0_1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Return a directory with copies of these files; streams return the stored angles, since rounding may differ."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    angles = np.load(OLD / "finished.npy")

    def rows(self, first, count, *_):
        return jax.device_put(np.resize(angles[first : first + count], count))

    monkeypatch.setattr(writer.Stream, "rows", rows)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_finished_by_0_1(old, kind):
    """Files that version 0.1 finished can be verified, stay unchanged when resumed, and are repaired byte for byte."""
    out = old / f"finished.{kind}"
    before = contents(out)
    assert jax_von_mises.verify_samples(out)["made_with"]["jax_von_mises"] == "0.1.0"
    assert write(out, 300, block_rows=30, resume=True).drawn == 0
    assert contents(out) == before
    path, place = (out / "c" / "7", 0) if out.is_dir() else (out, 4_096 + 7 * 120)
    data = bytearray(path.read_bytes())
    data[place + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(writer.Damaged, match="block 7"):
        write(out, 300, block_rows=30, resume=True)
    assert write(out, 300, block_rows=30, resume=True, repair=True).drawn == 1
    found = contents(out)
    for name in before.keys() - {f"{out.name}.json", f"{out.name}/blocks.json"}:  # records may name other releases
        assert found[name] == before[name]
    assert found.keys() == before.keys()


@pytest.mark.parametrize(("name", "kept"), [("unfinished.npy", 4), ("unfinished.zarr", 4), ("parts.zarr", 5)])
def test_begun_by_0_1(old, name, kept):
    """Runs that version 0.1 began can be resumed, even after another interrupt, and write the bytes of version 0.1."""
    out, full = old / name, old / f"finished{os.path.splitext(name)[1]}"
    with pytest.raises(Stop):
        write(out, 300, block_rows=999, resume=True, observe=stop_after(2))
    done = write(out, 300, resume=True)
    assert (done.drawn, done.kept) == (8 - kept, kept + 2)
    found, expected = contents(out), contents(full)
    assert len(found) == len(expected)
    for path, data in expected.items():
        if not path.endswith(("npy.json", "blocks.json")):
            assert found[path.replace(full.name, name)] == data
    record, written = jax_von_mises.verify_samples(out), jax_von_mises.verify_samples(full)
    assert record | {"made_with": None} == written | {"made_with": None}


def test_record_of_a_finished_file_is_that_of_0_1(old):
    """The record of a finished file is that of version 0.1 byte for byte, except for the releases that it names."""
    for out, name in ((old / "new.npy", "new.npy.json"), (old / "new.zarr", "new.zarr/blocks.json")):
        write(out, 300, block_rows=30)
        expected = (OLD / name.replace("new", "finished")).read_text()
        for key, value in json.loads((old / name).read_text())["made_with"].items():
            expected = expected.replace(f'"{key}": "{json.loads(expected)["made_with"][key]}"', f'"{key}": "{value}"')
        assert (old / name).read_text() == expected


# Targets that must not be resumed or overwritten


CHANGES = [
    (dict(key=jax.random.key(12)), r'key .*"data": \[0, 11\].*now .*\[0, 12\]'),
    (dict(key=jax.random.key(11, impl="rbg")), "now .*rbg"),
    (dict(loc=0.25), r"loc 0\.5 \(now 0\.25\)"),
    (dict(concentration=np.full(2, 4.0)), r"concentration 4\.0 \(now "),
    (dict(total=10_001), r"shape \[10000\] \(now \[10001\]\)"),
    (dict(dtype="float16"), r"dtype float32 \(now float16\)"),
    (dict(method="direct"), r"method table \(now direct\)"),
]


def test_target_finished_by_another_process_is_kept(interrupted, monkeypatch):
    """A target that another process finishes after this one has read its record is not written again."""
    target = npy.NpyFile if interrupted.suffix == ".npy" else zarr.ZarrStore
    read_records, looked = target.records, []

    def records(self):
        found = read_records(self)
        if not looked:
            looked.append(self)
            write(interrupted, resume=True)
        return found

    monkeypatch.setattr(target, "records", records)
    with pytest.raises(OSError, match=r"was finished by another process|appeared|No such file"):
        write(interrupted, resume=True)
    assert finished(interrupted)


def test_changed_parameters(out):
    """Changed parameters are refused for unfinished and finished targets, and no file changes."""
    with pytest.raises(Stop):
        write(out, observe=stop_after(1))
    for _ in range(2):
        before = contents(out)
        for change, message in CHANGES:
            with pytest.raises(ValueError, match=f"holds another stream: .*{message}"):
                write(out, **({"resume": True} | change))
            assert contents(out) == before
        assert write(out, block_rows=333, resume=True).kept in (1, 10)  # keeps the recorded block size


def test_unfinished_target_needs_an_option(interrupted):
    before = contents(interrupted)
    with pytest.raises(FileExistsError, match=r"holds an unfinished run; .*resume=True .*force=True"):
        write(interrupted)
    assert contents(interrupted) == before
    assert write(interrupted, force=True).drawn == 10


def test_complete_target_needs_force(out, stream):
    write(out, 500, loc=1.0)
    before = contents(out)
    with pytest.raises(FileExistsError, match="exists; choose another name, or give force=True"):
        write(out)
    assert contents(out) == before
    write(out, force=True)
    np.testing.assert_array_equal(read(out), stream)
    jax_von_mises.verify_samples(out)


def test_old_target_stays_until_the_new_one_is_complete(out, stream):
    write(out)
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True, observe=stop_after(3))
    np.testing.assert_array_equal(read(out), stream)
    assert write(out, loc=1.0, resume=True).kept == 3
    assert not np.array_equal(read(out), stream)
    jax_von_mises.verify_samples(out)


def test_neighbours_of_a_store_stay(tmp_path, stream):
    """Files next to a store stay, whatever their names, and leftovers of a killed run do not enter the new store."""
    out, backup = tmp_path / "a.zarr", tmp_path / "a.zarr.replaced"
    write(out, loc=1.0)
    shutil.copytree(out, backup)
    before = contents(backup)
    (tmp_path / "a.zarr.partial").mkdir()
    (tmp_path / "a.zarr.partial" / "blocks-0of1.json.__lock").write_text("left by TensorStore")
    damage(out, 2)
    assert write(out, loc=1.0, resume=True, repair=True).kept == 9
    jax_von_mises.verify_samples(out)
    write(out, force=True)
    np.testing.assert_array_equal(read(out), stream)
    assert contents(backup) == before
    (tmp_path / "a.zarr.partial").mkdir()
    (tmp_path / "a.zarr.partial" / "thesis.txt").write_text("of the user")
    with pytest.raises(OSError, match=r"a\.zarr\.partial was not written by this package; move it away"):
        write(out, force=True)
    np.testing.assert_array_equal(read(out), stream)


def test_force_through_a_link_asks_the_disk_of_the_store(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "a.zarr").symlink_to(tmp_path / "real" / "a.zarr", target_is_directory=True)
    write(tmp_path / "real" / "a.zarr", loc=1.0)
    paths = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: paths.append(path) or types.SimpleNamespace(free=10**9))
    write(tmp_path / "a.zarr", force=True)
    assert {os.path.realpath(path) for path in paths} == {str(tmp_path / "real")}
    assert (tmp_path / "a.zarr").is_symlink()
    jax_von_mises.verify_samples(tmp_path / "a.zarr")


def test_force_that_fails_keeps_the_record_of_the_old_file(tmp_path, monkeypatch):
    """The old file's record is kept, even if a failed repair has already renamed this record."""
    out = tmp_path / "a.npy"
    write(out)
    damage(out, 7)
    real = os.replace

    def fail(source, target):
        if source == str(out):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        write(out, resume=True, repair=True)
    monkeypatch.undo()
    monkeypatch.setattr(writer, "checksum", lambda *_: stop_after(1)(()))
    with pytest.raises(Stop):
        write(out, loc=1.0, force=True)
    monkeypatch.undo()
    assert write(out, resume=True, repair=True).kept == 9
    jax_von_mises.verify_samples(out)


def block_file(out, block):
    """Return the file that holds a block, and the offset of the block's first byte."""
    if out.suffix == ".zarr":
        return out / "c" / str(block), 0
    return out if out.is_file() else out.with_suffix(".npy.partial"), 4_096 + block * 4_000


def damage(out, block):
    path, place = block_file(out, block)
    data = bytearray(path.read_bytes())
    data[place + 5] ^= 1
    path.write_bytes(data)


def test_damaged_block(interrupted, stream):
    """A damaged block is reported, and does not change until the user requests a repair."""
    damage(interrupted, 2)
    before = contents(interrupted)
    with pytest.raises(
        writer.Damaged, match=r"block 2 does not match its checksum \(1 of 4 blocks; rows 2000 to 2999\).*repair=True"
    ):
        write(interrupted, resume=True)
    assert contents(interrupted) == before
    done = write(interrupted, resume=True, repair=True)
    assert (done.drawn, done.kept) == (7, 3)
    np.testing.assert_array_equal(read(interrupted), stream)


@pytest.mark.parametrize("lost", ["all of a shard", "its end", "its index"])
def test_lost_block(interrupted, stream, lost):
    """A block is lost if its file or shard is truncated, or if its shard is missing or has a damaged index."""
    path, place = block_file(interrupted, 3)
    if place:
        os.truncate(path, place + {"all of a shard": 0, "its end": 10, "its index": 3_999}[lost])
    elif lost == "all of a shard":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:100] if lost == "its end" else data[:-9] + bytes(9))
    with pytest.raises(writer.Damaged, match="block 3"):
        write(interrupted, resume=True)
    write(interrupted, resume=True, repair=True)
    np.testing.assert_array_equal(read(interrupted), stream)


@pytest.mark.parametrize("hold", ["link", "lock", "permission"])
def test_irreparable_target_keeps_its_names(tmp_path, hold):
    """A finished file that cannot be repaired keeps its name, its record and its bytes."""
    out, real = tmp_path / "a.npy", tmp_path / "real.npy"
    write(out)
    damage(out, 3)
    if hold == "link":
        out.rename(real)
        out.symlink_to(real.name)
    if hold == "permission":
        out.chmod(0o444)
        if os.access(out, os.W_OK):
            pytest.skip("this user can write to every file")
    before = contents(out), sorted(os.listdir(tmp_path))
    with open(out, "rb") as file:
        if hold == "lock":
            checkpoint.lock(file, out)
        words = {
            "link": r"a\.npy is a symbolic link, to .*real\.npy",
            "lock": "another process",
            "permission": "denied",
        }
        with pytest.raises(OSError, match=words[hold]):
            write(out, resume=True, repair=True)
    assert (contents(out), sorted(os.listdir(tmp_path))) == before
    if hold == "link":
        real.replace(out)
    out.chmod(0o644)
    assert write(out, resume=True, repair=True).drawn == 1


def test_verify_needs_a_complete_target_with_a_record(interrupted, tmp_path):
    with pytest.raises(FileNotFoundError, match="no finished file or store with a record"):
        jax_von_mises.verify_samples(interrupted)
    np.save(tmp_path / "other.npy", np.ones(3))
    with pytest.raises(FileNotFoundError, match="no finished file or store with a record"):
        jax_von_mises.verify_samples(tmp_path / "other.npy")


def test_repair_on_another_machine_changes_nothing(out, monkeypatch):
    """A redrawn block must match the recorded checksum, even if no other block remains for a comparison."""
    write(out, 1_000)
    damage(out, 0)
    rows = writer.Stream.rows
    monkeypatch.setattr(writer.Stream, "rows", lambda *arguments: rows(*arguments) * jax.numpy.float32(1.0001))
    before = contents(out)
    with pytest.raises(ValueError, match="block 0 differs in its last digits when it is drawn again"):
        write(out, 1_000, resume=True, repair=True)
    assert contents(out) == before


def test_another_machine_is_detected(interrupted, monkeypatch):
    """A machine that draws different angles is detected, even if only the last digit of one angle differs."""
    rows = writer.Stream.rows

    def other_digits(self, first, count, *rest):
        x = np.array(rows(self, first, count, *rest))
        x[17] = np.nextafter(x[17], np.float32(4))
        return jax.numpy.asarray(x)

    before = contents(interrupted)
    monkeypatch.setattr(writer.Stream, "rows", other_digits)
    with pytest.raises(ValueError, match="block 3 differs in its last digits when it is drawn again"):
        write(interrupted, resume=True)
    assert contents(interrupted) == before


@pytest.mark.parametrize("options", [{}, {"force": True}, {"resume": True}], ids=["plain", "force", "resume"])
def test_foreign_files_are_left_alone(tmp_path, options):
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "half.npy.partial").write_bytes(b"thesis")
    (tmp_path / "record.npy.json").write_text('{"my": "precious metadata"}')
    (tmp_path / "text.npy.partial.json").write_text('{"crc32": 3}')
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "link.npy").symlink_to(tmp_path / "nowhere")
    (tmp_path / "home.zarr").mkdir()
    (tmp_path / "home.zarr" / "letter.txt").write_text("dear")
    (tmp_path / "other.zarr").mkdir()
    (tmp_path / "other.zarr" / "zarr.json").write_text("{}")
    (tmp_path / "file.zarr").write_text("x")
    names = ["half.npy", "record.npy", "text.npy", "folder.npy", "link.npy", "home.zarr", "other.zarr", "file.zarr"]
    if "force" not in options:
        names.append("array.npy")  # `force` replaces any .npy file
    before = contents(tmp_path)
    for name in names:
        with pytest.raises(OSError, match=name):
            write(tmp_path / name, **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("kind", "parts"), [("npy", 1), ("zarr", 1), ("zarr", 2)])
def test_two_writers(tmp_path, stream, kind, parts):
    """A second run without `part` is refused before it changes anything, even if the first run writes only a part."""
    pytest.importorskip("fcntl", reason="needs POSIX file locks")
    out = tmp_path / f"a.{kind}"
    refused = []

    def second(_):
        if not refused:
            for options in ({"resume": True}, {"force": True}, {"resume": True, "repair": True}):
                with pytest.raises(checkpoint.ForeignTargetError, match="written by another process"):
                    write(out, **options)
                refused.append(options)

    if parts > 1:
        write(out, part=1, parts=parts)
    write(out, observe=second, part=0, parts=parts)
    assert len(refused) == 3
    np.testing.assert_array_equal(read(out), stream)
    jax_von_mises.verify_samples(out)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(out="a.txt"), ValueError, "out='a.txt' must end in .npy, or in .zarr"),
        (dict(out="gs://b/a.npy"), ValueError, "must end in .npy"),
        (dict(out="\udcff.zarr"), ValueError, "cannot be encoded in UTF-8, as TensorStore requires"),
        (dict(out="no/a.npy"), FileNotFoundError, "no directory no; create it"),
        (dict(out="no/a.zarr"), FileNotFoundError, "no directory no; create it"),
        (dict(total=-1), ValueError, "write_samples: total=-1"),
        (dict(block_rows=0), ValueError, "block_rows=0"),
        (dict(part=2, parts=2, out="a.zarr"), ValueError, "part=2 must be below parts=2"),
        (dict(parts=2), ValueError, "can have only one writer, but parts=2"),
        (dict(parts=2, out="a.zarr", force=True), ValueError, "force=True cannot be combined with parts=2"),
        (dict(resume=True, force=True), ValueError, "Give only one of them"),
        (dict(key=0), TypeError, "write_samples: key must be"),
        (dict(total=2**59), OSError, "needs 2048 PiB"),
        (dict(total=2**60), ValueError, "rows of length 1 are too many"),
        (
            dict(total=2**60, loc=np.zeros(0)),
            ValueError,
            "total=1152921504606846976 rows of length 0 .* must both be below 2",
        ),
        (dict(total=10**30, loc=np.zeros(0)), ValueError, "total=10{30} must be at least 0 and below 2"),
    ],
)
def test_invalid_arguments(tmp_path, monkeypatch, change, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        write(**(dict(out="a.npy") | change))
    assert os.listdir(tmp_path) == []


def test_file_that_appears_meanwhile_is_kept(tmp_path, stream):
    out = tmp_path / "a.npy"
    appear = iter([True])

    def observe(_):
        if next(appear, False):
            np.save(out, np.arange(3))

    with pytest.raises(FileExistsError, match="appeared while its angles were drawn"):
        write(out, observe=observe)
    np.testing.assert_array_equal(np.load(out), np.arange(3))
    with pytest.raises(FileExistsError, match="appeared after the run was started"):
        write(out, resume=True)
    np.testing.assert_array_equal(np.load(out), np.arange(3))
    out.unlink()
    assert write(out, resume=True).kept == 10
    np.testing.assert_array_equal(read(out), stream)


def test_resume_of_a_damaged_complete_target(out, stream):
    """Resuming a complete target verifies it, and redraws its damaged blocks only with `repair`."""
    write(out)
    damage(out, 7)
    before = contents(out)
    with pytest.raises(writer.Damaged, match=r": block 7 does not match its checksum"):
        jax_von_mises.verify_samples(out)
    with pytest.raises(writer.Damaged, match=r"block 7 does not match its checksum \(1 of 10 blocks; rows"):
        write(out, resume=True)
    assert contents(out) == before
    done = write(out, resume=True, repair=True)
    assert (done.drawn, done.kept) == (1, 9)
    np.testing.assert_array_equal(read(out), stream)
    jax_von_mises.verify_samples(out)


def swap_header(out):
    out.write_bytes(out.read_bytes().replace(b"<f4", b"<i4", 1))


@pytest.mark.parametrize("change", [swap_header, lambda out: os.truncate(out, 44_104), lambda out: np.save(out, [1])])
def test_file_that_contradicts_its_record(tmp_path, change):
    """A file that contradicts its record is refused, even if its blocks are correct."""
    out = tmp_path / "a.npy"
    write(out)
    change(out)
    for call in (jax_von_mises.verify_samples, lambda out: write(out, resume=True, repair=True)):
        with pytest.raises(checkpoint.ForeignTargetError, match=r"is not the file that .*a\.npy\.json describes"):
            call(out)


def test_store_that_contradicts_its_record(tmp_path):
    out = tmp_path / "a.zarr"
    write(out)
    metadata = json.loads((out / "zarr.json").read_text())
    for change in ({"shape": [9_000]}, {"node_type": "none"}):
        (out / "zarr.json").write_text(json.dumps(metadata | change))
        with pytest.raises(OSError, match=r"a\.zarr"):
            jax_von_mises.verify_samples(out)


def test_impossible_force_removes_nothing(out):
    write(out, 500)
    before = contents(out)
    with pytest.raises(OSError, match="the disk has"):
        write(out, 2**58, force=True)
    assert contents(out) == before


def test_force_over_an_unfinished_run_removes_it(interrupted, tmp_path):
    out, change = interrupted, dict(total=2_000, loc=1.0)
    if out.suffix == ".zarr":
        (out / "blocks-1of3.json").write_bytes((out / "blocks-0of1.json").read_bytes())
    write(out, force=True, **change)
    undisturbed = tmp_path / "undisturbed" / out.name
    undisturbed.parent.mkdir()
    write(undisturbed, **change)
    assert contents(out) == contents(undisturbed)


def test_last_part_killed_while_it_removes_the_records(tmp_path, monkeypatch):
    """The store is complete before its records are removed, and any later call removes those that remain."""
    out = tmp_path / "a.zarr"
    assert not write(out, part=1, parts=2).finished
    delete = zarr.Keys.delete

    def fail(self, first, end=None):
        delete(self, first, end)
        raise Stop

    monkeypatch.setattr(zarr.Keys, "delete", fail)
    with pytest.raises(Stop):
        write(out, part=0, parts=2)
    monkeypatch.undo()
    assert (out / "zarr.json").exists()
    (out / "blocks-1of2.json.__lock").write_text("left by TensorStore")
    for options in (dict(part=0, parts=2), dict(part=1, parts=2), dict(resume=True)):
        assert write(out, **options).drawn == 0
    assert set(os.listdir(out)) == {"zarr.json", "blocks.json", "c"}


def test_record_that_is_not_saved_does_not_count(tmp_path, monkeypatch):
    """The note on the error counts only recorded blocks, which a resumed run keeps."""
    real, calls = npy.NpyFile.append, []

    def fail(self, lines):
        calls.append(lines)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, lines)

    monkeypatch.setattr(npy.NpyFile, "append", fail)
    with pytest.raises(OSError, match=r"a\.npy") as failed:
        write(tmp_path / "a.npy")
    assert failed.value.__notes__ == ["2 of 10 blocks kept; continue with resume=True"]
    monkeypatch.undo()
    assert write(tmp_path / "a.npy", resume=True).kept == 2


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_interrupt_while_the_first_block_is_recorded(tmp_path, monkeypatch, after):
    """A block that is on the disk is recorded despite the interrupt, and the note counts it."""
    real, calls = npy.NpyFile.append, []

    def interrupt(self, lines):
        calls.append(lines)
        if len(calls) != 1 or after:
            real(self, lines)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(npy.NpyFile, "append", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        write(tmp_path / "a.npy")
    assert stopped.value.__notes__ == ["1 of 10 blocks kept; continue with resume=True"]
    monkeypatch.undo()
    assert write(tmp_path / "a.npy", resume=True).kept == 1


def test_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[storage\]"'):
        write(tmp_path / "a.zarr")
    write(tmp_path / "a.npy")


def test_object_store(stream):
    """A bucket has keys, but no directories or renames; TensorStore's memory driver stands in for a bucket."""
    import tensorstore

    target = zarr.ZarrStore("memory://bucket/a.zarr", (10_000,), np.dtype("float32"), 1_000)
    run = writer.WriteRun(target, writer.Stream.of("test", KEY, 0.5, 4.0, None, "auto"), writer.WriteOptions())
    assert target.directory is None
    assert run.prepare()
    assert run.draw() == 10
    assert not target.whole()
    assert run.finish()
    spec = {"driver": "zarr3", "kvstore": "memory://bucket/a.zarr/"}
    array = tensorstore.open(spec, context=target.context).result()
    np.testing.assert_array_equal(array.read().result(), stream)
    assert set(target.run.names()) == {"blocks.json", "zarr.json", *(f"c/{i}" for i in range(10))}


# Parts of one store, written one after another


@pytest.mark.parametrize("parts", [3, 12])
def test_parts_make_one_store(tmp_path, parts):
    """Parts in any order write the same bytes as one process, and the store is complete after the last one."""
    out = tmp_path / "parts.zarr"
    *others, last = np.random.default_rng(parts).permutation(parts).tolist()
    for part in others:
        # Of twelve parts, two have none of the ten blocks.
        assert write(out, part=part, parts=parts).finished == finished(out)
    assert write(out, part=last, parts=parts).finished
    write(tmp_path / "alone.zarr")
    found, expected = (
        {name.split("/", 1)[1]: data for name, data in contents(tmp_path / f"{stem}.zarr").items()}
        for stem in ("parts", "alone")
    )
    assert found == expected
    assert write(out, part=1, parts=parts).drawn == 0


def test_one_process_continues_three_parts(tmp_path, stream):
    """Of three parts, one ends, one is interrupted and one never starts; a single process then completes the store."""
    out = tmp_path / "a.zarr"
    write(out, part=1, parts=3)
    with pytest.raises(Stop):
        write(out, part=2, parts=3, observe=stop_after(2))
    done = write(out, resume=True)
    assert (done.drawn, done.kept) == (5, 5)
    np.testing.assert_array_equal(read(out), stream)


def test_parts_that_end_together(tmp_path, monkeypatch):
    """If two parts find all blocks recorded and complete the store, the second one changes nothing."""
    out = tmp_path / "a.zarr"
    write(out, part=1, parts=2)
    finish = zarr.ZarrStore.finish

    def after_the_other(self, text):
        monkeypatch.undo()
        assert write(out, part=1, parts=2).finished
        before = contents(out)
        finish(self, text)
        assert contents(out) == before

    monkeypatch.setattr(zarr.ZarrStore, "finish", after_the_other)
    assert write(out, part=0, parts=2).finished
    jax_von_mises.verify_samples(out)
    assert set(os.listdir(out)) == {"zarr.json", "blocks.json", "c"}


@pytest.mark.parametrize("options", [{"resume": True}, {"part": 0, "parts": 2}], ids=["resume", "part"])
def test_store_that_no_part_has_finished(tmp_path, monkeypatch, options):
    """If all blocks are recorded but no part has completed the store, any later call completes it."""
    out = tmp_path / "a.zarr"
    write(out, part=1, parts=2)
    monkeypatch.setattr(zarr.ZarrStore, "finish", lambda *_: stop_after(1)(()))
    with pytest.raises(Stop):
        write(out, part=0, parts=2)
    monkeypatch.undo()
    done = write(out, **options)
    assert (done.drawn, done.finished) == (0, True)
    jax_von_mises.verify_samples(out)


def test_rows_without_angles(out):
    """Any number of rows of length 0 can be written and verified as a single block."""
    rows = 10**18
    assert write(out, rows, loc=np.zeros(0), block_rows=rows).shape == (rows, 0)
    assert jax_von_mises.verify_samples(out)["shape"] == (rows, 0)
    for options in ({"resume": True}, {"resume": True, "repair": True}):
        assert write(out, rows, loc=np.zeros(0), block_rows=rows, **options).drawn == 0
    assert write(out, rows, loc=np.zeros(0), block_rows=rows, force=True).drawn == 1


def test_parts_of_different_streams(tmp_path):
    out = tmp_path / "a.zarr"
    write(out, part=1, parts=2)
    with pytest.raises(ValueError, match="holds another stream: loc"):
        write(out, loc=0.25, part=0, parts=2)


# Memory and disks


def test_memory_stays_the_same(tmp_path):
    """Memory grows by less than 8 MiB after the first 20 of 60 blocks of 1 MiB."""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    held = []

    def observe(rows):
        with open("/proc/self/statm") as file:
            held.append(int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE"))

    block = 2**18
    write(tmp_path / "a.npy", 60 * block, block_rows=block, observe=observe)
    assert max(held[20:]) - max(held[:20]) < 8 * 4 * block


DISKS = """
import os, subprocess, sys, warnings
import jax
from jax_von_mises import write_samples, verify_samples
from tests.children import fill_disk

folder = sys.argv[1]
every = dict(key=jax.random.key(11), concentration=4.0, block_rows=100_000)


def mount(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def fill(spare=0):
    fill_disk(f"{folder}/filler", spare)


# The disk is full from the third block on, then read-only, then writable.
for kind in ("npy", "zarr"):
    mount("size=3m")
    out, arguments = f"{folder}/a.{kind}", every | dict(loc=0.5, total=500_000)
    seen = []
    try:
        write_samples(out, **arguments, observe=lambda rows: seen.append(1) or len(seen) == 2 and fill())
    except OSError as error:
        print("FULL", error.strerror, error.__notes__)
    os.unlink(f"{folder}/filler")
    mount("remount,ro")
    before = sorted(os.listdir(folder))
    for options in (dict(resume=True), dict(force=True)):
        try:
            write_samples(out, **arguments, **options)
        except OSError as error:
            print("READ-ONLY", error.strerror)
    assert sorted(os.listdir(folder)) == before
    mount("remount,rw")
    print("RESUMED", write_samples(out, **arguments, resume=True)[3:5])
    verify_samples(out)
    if kind == "npy":
        subprocess.run(["umount", folder], check=True)

# The old store of 1.9 MiB is removed first if the new one then fits, and stays if the new one would still not fit.
try:
    write_samples(out, **arguments | dict(loc=1.0, total=1_000_000), force=True)
except OSError as error:
    print("NEEDS", error)
print(verify_samples(out)["stream"]["loc"])
with warnings.catch_warnings(record=True, action="always") as caught:
    write_samples(out, **arguments | dict(loc=1.0), force=True)
print(*(str(warning.message).replace(folder, "") for warning in caught))
print(verify_samples(out)["stream"]["loc"], sorted(os.listdir(folder)))

# The repair of a file needs space only for the record.
out, arguments = f"{folder}/b.npy", every | dict(loc=0.5, total=100_000)
write_samples(out, **arguments)
right = open(out, "rb").read()
fill(spare=2**16)
with open(out, "r+b") as file:
    file.seek(100_000)
    file.write(b"noise")
print(write_samples(out, **arguments, resume=True, repair=True).drawn, open(out, "rb").read() == right)
"""


def test_disks(tmp_path):
    """A disk that is full, read-only or too small causes clear errors, and runs can be resumed."""
    unshare = children.own_mounts(tmp_path)
    full = [
        "FULL No space left on device ['2 of 5 blocks kept; continue with resume=True']",
        *["READ-ONLY Read-only file system"] * 2,
        "RESUMED (3, 2)",
    ]
    lines = children.run(DISKS, tmp_path, before=unshare)
    assert lines[:8] == full * 2
    assert "a.zarr: needs " in lines[8]
    assert lines[9:] == [
        "0.5",
        "write_samples: /a.zarr: the disk has no space for the old store and the new one (1.907 MiB) together, so the "
        "old store is removed first",
        "1.0 ['a.zarr']",
        "1 True",
    ]


@contextlib.contextmanager
def limit_of_files(size):
    """Limit the size of the files that this process may write."""
    resource = pytest.importorskip("resource", reason="needs POSIX resource limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_quota(tmp_path):
    """A limit on file sizes causes a clear error, and the run or the repair can be resumed without the limit."""
    out = tmp_path / "a.npy"
    with limit_of_files(15_000), pytest.raises(OSError, match="File too large") as failed:
        write(out)
    assert failed.value.__notes__ == ["2 of 10 blocks kept; continue with resume=True"]
    assert write(out, resume=True).kept == 2
    out = tmp_path / "b.npy"
    write(out, 1_000)
    right = out.read_bytes()
    damage(out, 0)
    with limit_of_files(6_000), pytest.raises(OSError, match="File too large") as failed:
        write(out, 1_000, resume=True, repair=True)
    assert failed.value.__notes__ == ["0 of 1 blocks kept; continue with resume=True"]
    assert {path.name for path in tmp_path.glob("b.*")} == {"b.npy.partial", "b.npy.partial.json"}
    assert write(out, 1_000, resume=True).drawn == 1
    assert out.read_bytes() == right

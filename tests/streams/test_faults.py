"""Test runs in which each operation on a file fails, or is the last one before the process is killed.

The operations are enumerated by wrapping the functions of `os` that change files. No angles are drawn: streams return
prepared rows.
"""

import builtins
import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from jax_von_mises.streams import stream, writer
from tests import children
from tests.streams.test_writer import Stop, contents, damage, finished, read, stop_after, write

ROWS, BLOCKS = 1_000, 3
CHANGES = ("write", "replace", "link", "unlink", "fsync", "ftruncate", "makedirs", "mkdir")
OLD, NEW = 1.0, 0.5  # the locations of two streams


def prepared(loc):
    """Return rows that stand for those of a stream."""
    return np.linspace(0, 1, BLOCKS * ROWS, dtype=np.float32) * np.float32(loc)


def give_prepared_rows():
    """Let streams return prepared rows, since drawing takes longer than writing."""

    def rows(self, first, count, *_):
        return jax.device_put(np.resize(prepared(float(self.row.parameters[0]))[first : first + count], count))

    stream.Stream.rows = rows


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test here needs a disk that survives the machine
    monkeypatch.setattr(stream.Stream, "rows", stream.Stream.rows)  # restored afterwards
    give_prepared_rows()


class Killed(BaseException):
    """Stands for the end of the process."""


class Operations:
    """Count the operations that change files; let number `at` fail, or half-finish and be the last one.

    It fails with one of `codes`; without any, the process is killed.
    """

    def __init__(self, at, codes=()):
        self.at, self.count, self.dead = at, 0, False
        self.code = codes[at % len(codes)] if codes else None

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for name in CHANGES:
            self.wrap(os, name)
        self.wrap(os, "open", lambda _path, flags, *_: flags & os.O_CREAT)
        self.wrap(builtins, "open", lambda _path, mode="r", *_, **__: set(mode) & {"x", "w", "a"})
        return self

    def __exit__(self, *_):
        self.stack.close()

    def wrap(self, module, name, changes=lambda *_, **__: True):
        """Replace a function by one that is counted."""
        real = getattr(module, name)

        def counted(*arguments, **options):
            if not changes(*arguments, **options):
                return real(*arguments, **options)
            if self.dead:  # the process is no longer there
                raise Killed
            self.count += 1
            if self.count == self.at:
                if self.code is not None:
                    raise OSError(self.code, os.strerror(self.code))
                self.dead = True
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise Killed
            return real(*arguments, **options)

        setattr(module, name, counted)
        self.stack.callback(setattr, module, name, real)


def run(out, loc=NEW, **options):
    return write(out, BLOCKS * ROWS, loc=loc, block_rows=ROWS, **options)


def begun(out, loc, blocks):
    with pytest.raises(Stop):
        run(out, loc, progress=stop_after(blocks))


def finished_and_damaged(out):
    run(out)
    damage(out, 1)


def unfinished_and_damaged(out):
    begun(out, NEW, 2)
    damage(out, 0)


SCENARIOS = {
    "fresh": (lambda out: None, {}),
    "resume": (lambda out: begun(out, NEW, 1), {"resume": True}),
    "repair an unfinished run": (unfinished_and_damaged, {"resume": True, "repair": True}),
    "repair a finished one": (finished_and_damaged, {"resume": True, "repair": True}),
    "force over an unfinished run": (lambda out: begun(out, OLD, 2), {"force": True}),
    "force over a finished one": (lambda out: run(out, OLD), {"force": True}),
}


def blocks_in(out):
    """Return the blocks of the new stream that are there, valid and known to be finished."""
    kind = writer.kind_of("test", str(out))
    found = kind.found(str(out))
    if found.text is None:
        return set()
    target = kind(str(out), writer.Plan(found.text))
    if target.plan.about["stream"]["parameters"]["loc"] != str(NEW):
        return set()
    return {block for block, crc in target.done().items() if not target.damaged(block, crc)}


def restore(folder, start):
    shutil.rmtree(folder)
    shutil.copytree(start, folder)


ERRORS = (errno.EIO, errno.ENOSPC, errno.EFBIG)


@pytest.mark.parametrize(
    "codes",
    [
        pytest.param((), id="killed"),
        pytest.param(ERRORS, id="errors in turn"),
        *(pytest.param((code,), id=errno.errorcode[code], marks=pytest.mark.slow) for code in ERRORS),
    ],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_each_operation(tmp_path, kind, scenario, codes):
    """Complete blocks stay, readers find the old array or the new one, and the next run finishes with equal bytes."""
    prepare, options = SCENARIOS[scenario]
    (tmp_path / "alone").mkdir()
    run(tmp_path / "alone" / f"a.{kind}")
    expected = contents(tmp_path / "alone" / f"a.{kind}")
    (tmp_path / "start").mkdir()
    prepare(tmp_path / "start" / f"a.{kind}")
    folder = tmp_path / "run"
    folder.mkdir()
    out = folder / f"a.{kind}"
    damaged = prepare is finished_and_damaged
    for at in itertools.count(1):
        restore(folder, tmp_path / "start")
        before = blocks_in(out)
        old = read(out) if finished(out) and not damaged else None
        operations, error = Operations(at, codes), None
        try:
            with operations:
                run(out, **options)
        except (Killed, OSError) as raised:
            error = raised
        where = f"at operation {at} of {scenario}"
        if isinstance(error, OSError):
            assert (error.errno, out.name in str(error)) == (operations.code, True), f"an unclear message {where}"
        assert blocks_in(out) >= before, f"blocks were lost {where}"
        if finished(out) and not damaged:  # as a reader finds it
            found, new = read(out), prepared(NEW)
            assert (found == new).all() or (old is not None and (found == old).all()), f"a wrong array {where}"
        elif not damaged:
            assert old is None or "force" in options, f"the old file was lost {where}"
        try:
            run(out, resume=True, repair="repair" in options)
        except (ValueError, FileExistsError):
            assert "force" in options, where
            run(out, force=True)
        assert contents(out) == expected, where
        if operations.count < at:
            assert at > BLOCKS or "repair a" in scenario
            return


def writing(folder, kind, first, ready):
    """Write targets, from number `first` on, until this process is killed."""
    give_prepared_rows()
    run(folder / f"warm-up-{os.getpid()}.{kind}")
    ready.send(None)
    for number in range(first, first + 40):
        run(folder / f"{number}.{kind}", resume=True)
    time.sleep(60)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("kind", ["zarr", "npy"])
@pytest.mark.parametrize("rounds", [2, pytest.param(13, marks=pytest.mark.slow)])
def test_processes_killed_at_random(tmp_path, kind, rounds):
    """Four processes write the same stores, or one writes files; they are killed at random instants."""
    folder, first, rng = tmp_path / "targets", 0, random.Random(5)
    folder.mkdir()
    run(tmp_path / f"alone.{kind}")
    expected = [*contents(tmp_path / f"alone.{kind}").values()]
    for _ in range(rounds if kind == "zarr" else 4 * rounds):
        started = [children.forked(writing, folder, kind, first) for _ in range(4 if kind == "zarr" else 1)]
        for process, _ in started:
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
        for process, _ in started:
            process.join(60)
        assert {process.exitcode for process, _ in started} == {-signal.SIGKILL}
        while finished(folder / f"{first}.{kind}"):
            np.testing.assert_array_equal(read(folder / f"{first}.{kind}"), prepared(NEW))
            first += 1
    assert first > 0
    for out in folder.glob(f"[0-9]*.{kind}"):
        run(out, resume=True)
        assert [*contents(out).values()] == expected


def test_the_operations_are_counted(tmp_path):
    """The wrapper sees what a run does, or the tests above would find nothing."""
    for kind, least in (("npy", 15), ("zarr", 15)):
        with Operations(0) as operations:
            run(tmp_path / f"a.{kind}")
        assert operations.count > least


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_data_are_on_the_disk_before_their_names(tmp_path, kind, monkeypatch):
    """Before a log names a block, or a file gets its name, all that was written is flushed: a power cut loses none."""
    out, unflushed, named = tmp_path / f"a.{kind}", set(), []
    log = out.with_name(f"{out.name}.blocks")
    flushed, write, place = os.fsync, os.write, {name: getattr(os, name) for name in ("link", "replace")}

    def file_of(handle):
        return os.fstat(handle if isinstance(handle, int) else handle.fileno()).st_ino

    def observed_write(descriptor, data):
        if log.exists() and file_of(descriptor) == log.stat().st_ino:
            named.append(set(unflushed) - {file_of(descriptor)})
        unflushed.add(file_of(descriptor))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", observed_write)
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed(handle), unflushed.discard(file_of(handle)))[0])
    for name, real in place.items():
        monkeypatch.setattr(os, name, lambda *paths, real=real: (named.append(set(unflushed)), real(*paths))[1])
    run(out)
    assert len(named) > BLOCKS
    assert not any(named)

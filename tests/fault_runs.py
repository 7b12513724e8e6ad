"""Run `write_samples` with each file operation failing or interrupted in turn.

This program runs with the library of `faults.c` preloaded. It reads rows of a table from its input as lines of JSON.
For each row it repeats a run with one failing operation at a time, and prints the problems that it finds.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import types
import warnings
from pathlib import Path
from unittest import mock

import jax
import numpy as np

import jax_von_mises
from jax_von_mises.streams import checkpoint, writer

STREAM = dict(key=jax.random.key(11), loc=0.5, concentration=4.0, total=3_072, block_rows=1_024)
OTHER = STREAM | dict(loc=1.0)
THIRD = STREAM | dict(loc=2.0)
ARGUMENTS = ("key", "loc", "concentration", "total")
BLOCK_BYTES, HEADER_BYTES = 4_096, 4_096

TAKES_SPACE, ANY = 1, 3
# For each fault: the kinds of operations that fail, the error code, whether all later ones fail too, and the signal
# that replaces the error (0 for none).
FAULTS = {
    "EIO": (ANY, errno.EIO, False, 0),
    "ENOSPC": (TAKES_SPACE, errno.ENOSPC, True, 0),
    "EFBIG": (TAKES_SPACE, errno.EFBIG, False, 0),
    # Python retries system calls that fail with EINTR.
    "EINTR": (ANY, errno.EINTR, False, 0),
    # SIGINT and SIGTERM raise an exception in this program, as they do in the command-line program.
    "SIGINT": (ANY, 0, False, signal.SIGINT),
    "SIGTERM": (ANY, 0, False, signal.SIGTERM),
    # SIGKILL ends a separate process that performs only the run.
    "SIGKILL": (ANY, 0, False, signal.SIGKILL),
    # All later operations fail, too, so the files remain as a killed process would leave them.
    "killed": (ANY, errno.EIO, True, 0),
}


class Stop(BaseException):
    """An interruption of a run."""


def write(out, stream, **options):
    with warnings.catch_warnings(action="ignore"):
        return jax_von_mises.write_samples(out, **stream, **options)


def begun(out, blocks, stream=STREAM, **options):
    """Write `blocks` blocks of a stream and interrupt the run."""
    left = iter(range(blocks - 1))

    def observe(_):
        if next(left, None) is None:
            raise Stop

    try:
        write(out, stream, observe=observe, **options)
    except Stop:
        return
    raise AssertionError("the run was not interrupted")


def shard(out, block):
    """Return (file, offset) for each file that holds a block; a failed run may leave a final and a partial ``.npy``."""
    if out.suffix == ".zarr":
        return [(out / "c" / str(block), 0)]
    names = (out, out.with_name(f"{out.name}.partial"))
    return [(name, HEADER_BYTES + block * BLOCK_BYTES) for name in names if name.exists()]


def damage(out, block):
    path, place = shard(out, block)[0]
    data = bytearray(path.read_bytes())
    data[place + 5] ^= 1
    path.write_bytes(data)


def nothing(out):
    pass


def unfinished(out):
    begun(out, 2)


def unfinished_damaged(out):
    begun(out, 2)
    damage(out, 0)


def unfinished_lost(out):
    begun(out, 1)
    damage(out, 0)


def finished_damaged(out):
    write(out, STREAM)
    damage(out, 1)


def finished_lost(out):
    write(out, STREAM)
    for block in range(3):
        damage(out, block)


def finished_other(out):
    write(out, OTHER)


def finished_other_with_notes(out):
    finished_other(out)
    if out.is_dir():
        (out / "notes.txt").write_text("of the user")


def unfinished_other(out):
    begun(out, 2, OTHER)


def finished_and_unfinished_other(out):
    finished_other(out)
    begun(out, 2, THIRD, force=True)


REPAIR = dict(resume=True, repair=True)
# For each scenario: the function that prepares the files, the options of the run, the blocks that are valid before the
# run, and whether the run replaces a finished array.
SCENARIOS = {
    "fresh": (nothing, {}, (), False),
    "resume": (unfinished, dict(resume=True), (0, 1), False),
    "repair of an unfinished run": (unfinished_damaged, REPAIR, (1,), False),
    "repair of an unfinished run without a valid block": (unfinished_lost, REPAIR, (), False),
    "repair of a finished one": (finished_damaged, REPAIR, (0, 2), False),
    "repair of a finished one without a valid block": (finished_lost, REPAIR, (), False),
    "force over a finished one": (finished_other_with_notes, dict(force=True), (), True),
    "force over an unfinished run": (unfinished_other, dict(force=True), (), False),
    "force over both": (finished_and_unfinished_other, dict(force=True), (), True),
    "force without space for two": (finished_other, dict(force=True), (), False),
}
# Free bytes in the scenario without space for two arrays: too few for a new array until the old one is removed.
SPACE = 10_000


def tree(folder):
    """Map the name of every file below a folder to its bytes, and that of every directory to None."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def restore(folder, entries):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in entries.items():
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


def files(entries):
    """Return the entries that are files; a run may leave empty directories."""
    return {name: data for name, data in entries.items() if data is not None}


def array(entries, out):
    """Return the contents that readers of a finished array use; None if there is no such array."""
    if out.suffix == ".npy":
        return entries.get(out.name)
    used = {
        name: data for name, data in entries.items() if name.startswith((f"{out.name}/c/", f"{out.name}/zarr.json"))
    }
    return used if f"{out.name}/zarr.json" in used else None


def lost(out, before, now, valid, crc):
    """Describe each valid block, and each checksum of a valid block, that was lost."""
    problems = []
    records = {}
    for name, data in now.items():
        if data and name.endswith(".json") and data.startswith(b'{\n "format"'):
            more = b"".join(now[each] for each in sorted(now) if each.startswith(f"{name.removesuffix('.json')}."))
            records |= checkpoint.parse_record(name, data, more)["crc32"]
    for block in valid:
        content = before[block]
        if not any(path.exists() and content in path.read_bytes() for path, _ in shard(out, block)):
            problems.append(f"block {block} is lost")
        if records.get(block) != crc[block]:
            problems.append(f"the checksum of block {block} is lost")
    return problems


def go_through(kind, scenario, fault, first, step, library):
    """Repeat a run, each time with one failing operation: number `first`, then every `step`-th after it.

    Return the number of runs, how many of them raised an error, and descriptions of the problems found.
    """
    prepare, options, valid, replaces = SCENARIOS[scenario]
    which, code, lasting, number = FAULTS[fault]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "run"
        folder.mkdir()
        out = folder / f"a.{kind}"
        write(out, STREAM)
        full = tree(folder)
        crc = jax_von_mises.verify_samples(out)["crc32"]
        restore(folder, {"neighbour.npy": b"not ours", f"a.{kind}.txt": b"not ours either"})
        bystanders = tree(folder)
        prepare(out)
        start = tree(folder)
        if (out / "notes.txt").exists():
            bystanders["a.zarr/notes.txt"] = start["a.zarr/notes.txt"]
        blocks = {}
        for block in valid:
            path, place = shard(out, block)[0]
            blocks[block] = path.read_bytes()[place : None if kind == "zarr" else place + BLOCK_BYTES]
        expected = full | bystanders
        arrays = array(start, out), array(expected, out)
        # `force` removes an unfinished run, and a finished one only if the disk has no space for two.
        removed = f"{out.name}.partial" if arrays[0] and "space" not in scenario else out.name
        nothing_kept = {name: data for name, data in start.items() if not f"{name}/".startswith(f"{removed}/")}
        little_space = lambda _: types.SimpleNamespace(free=SPACE)  # noqa: E731
        disk = (
            mock.patch.object(shutil, "disk_usage", little_space) if "space" in scenario else contextlib.nullcontext()
        )
        problems, failed = [], 0
        for at in itertools.count(first, step):
            restore(folder, start)
            error = None
            if number == signal.SIGKILL:
                error = KeyboardInterrupt() if is_killed(out, options, at) else None
                operations = at if error else at - 1
            else:
                library.faults_arm(f"{folder}/a.{kind}".encode(), which, at, code, lasting, number)
                try:
                    with disk:
                        write(out, STREAM, **options)
                except (OSError, KeyboardInterrupt) as raised:
                    error = raised
                finally:
                    operations = library.faults_disarm()
            now = tree(folder)

            def wrong(what, at=at, error=error, now=now):
                problems.append(f"operation {at}, {type(error).__name__} {error}: {what}; there is {sorted(now)}")

            failed += error is not None
            if number == 0 and error is not None and (error.errno != code or a_name(error) not in str(error)):
                wrong("the error does not state what failed")
            missing = [n for n, data in bystanders.items() if data not in now.values()]
            if missing:
                wrong(f"{missing} are lost")
            for problem in lost(out, blocks, now, valid, crc):
                wrong(problem)
            # A process killed between two renames may leave no array under the final name.
            killed = fault in ("killed", "SIGKILL")
            if replaces and array(now, out) not in arrays and (not killed or array(now, out) is not None):
                wrong("neither the old array nor the new one exists")
            kept_nothing = "nothing was kept" in getattr(error, "__notes__", []) and not killed
            if kept_nothing and files(now) != files(nothing_kept):
                wrong("the files are not those that 'nothing was kept' implies")
            try:
                try:
                    write(out, STREAM, **REPAIR)
                except (ValueError, FileExistsError):
                    if "force" not in options:
                        raise
                    write(out, STREAM, force=True)
            except Exception as raised:
                wrong(f"cannot be repaired: {raised!r}")
            else:
                repaired = tree(folder)
                if repaired != expected:
                    different = sorted(n for n in repaired.keys() | expected if repaired.get(n) != expected.get(n))
                    wrong(f"repaired, but {different} differ")
            if operations < at:
                return {"runs": (at - first) // step, "failed": failed, "problems": problems}


def is_killed(out, options, at):
    """Perform a run in a process that is killed at operation `at`; return False if the run ended before it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax_von_mises.streams.writer"])
    process = context.Process(target=run_killed, args=(out, options, at, ANGLES))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def run_killed(out, options, at, angles):
    """Perform a run that is killed at operation `at`. This is the body of a process."""
    give(angles)
    ctypes.CDLL(None).faults_arm(os.fsencode(out), ANY, at, 0, False, signal.SIGKILL)
    write(out, STREAM, **options)
    os._exit(0)


def a_name(error):
    return "a." if error.filename is None else str(error.filename)


def draws():
    """Draw all angles once and let streams return them, since only writing is tested."""
    angles = {each["loc"]: jax_von_mises.sample_von_mises(*map(each.get, ARGUMENTS)) for each in (STREAM, OTHER, THIRD)}
    ANGLES.update({loc: np.asarray(x) for loc, x in angles.items()})
    give(ANGLES)


ANGLES: dict = {}


def give(angles):
    """Let streams return prepared angles, a mapping from `loc` to angles."""

    def rows(self, first, count, *_):
        return jax.device_put(angles[float(self.row.loc)][first : first + count])

    writer.Stream.rows = rows


def main():
    draws()
    library = ctypes.CDLL(None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # even if the parent process ignores it
    for line in sys.stdin:
        kind, *row = json.loads(line)
        answer = go_through(kind, *row, library)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

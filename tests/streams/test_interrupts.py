"""Test that runs interrupted or killed at any time do not hang, leave no thread or lock, and can be resumed."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import jax
import numpy as np
import pytest

import jax_von_mises
from jax_von_mises.streams import writer, zarr
from tests import children
from tests.streams.test_writer import KEY, contents, finished, recorded, write

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

RUN = dict(total=20 * 4_096, block_rows=4_096)
ENDING = (signal.SIGINT, signal.SIGTERM)


def undisturbed(tmp_path, kind):
    """Return a target for disturbed runs, the bytes that they must write, and the angles that they draw."""
    (tmp_path / "undisturbed").mkdir()
    write(tmp_path / "undisturbed" / f"a.{kind}", **RUN)
    angles = jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, RUN["total"], method="table")
    return tmp_path / f"a.{kind}", contents(tmp_path / "undisturbed" / f"a.{kind}"), np.asarray(angles)


def draws(angles):
    """Make the streams of this process return these angles, since loading the programs would take most of the time."""
    writer.Stream.rows = lambda self, first, count, *_: jax.device_put(angles[first : first + count])


def disturbed_child(out, angles, ready):
    """Write the given angles in a child process, which receives signals.

    The first SIGINT or SIGTERM raises an exception, as in the command line; further ones are ignored.
    """

    def stop(number, frame):
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    draws(angles)
    zarr.import_tensorstore()
    jax.block_until_ready(jax.device_put(0.0))
    for number in ENDING:
        signal.signal(number, stop)
    try:
        ready.send(None)  # the first signal may arrive before this returns
        began = time.monotonic()
        write(out, **RUN, resume=True)
    except KeyboardInterrupt:
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        # If the interrupt hit the start of a thread, nothing could wait for that thread, but it ends by itself.
        deadline = time.monotonic() + 5
        while any(thread.is_alive() or thread.ident is None for thread in others) and time.monotonic() < deadline:
            time.sleep(0.01)
        ready.send([thread.name for thread in others if thread.is_alive()])
        os._exit(7)
    ready.send(time.monotonic() - began)


def disturb(tmp_path, kind, numbers, times):
    """Send signals to runs that resume one another; return the number of recorded blocks after each disturbed run.

    The signals arrive at random times in all stages of a run, from the checks of the target to its completion.
    """
    out, expected, angles = undisturbed(tmp_path, kind)
    rng = random.Random(5)
    longest, kept = None, []
    for _ in range(10 * times):
        if len(kept) == times:
            break
        process, ours = children.forked(disturbed_child, out, angles)
        # The first run gets no signal; its duration sets the range of the random times.
        if longest is not None:
            time.sleep(rng.uniform(0, 0.6 * longest))
            with contextlib.suppress(ProcessLookupError):  # it has already finished
                os.kill(process.pid, rng.choice(numbers))
        assert ours.poll(60), "the run hangs"
        try:
            answer = ours.recv()
        except EOFError:
            answer = None
        process.join(60)
        if process.exitcode == 7 or answer is None:
            assert not answer, "threads were left"
            kept.append(len(recorded(out)))
            left = {path.name for path in tmp_path.iterdir()} - {"undisturbed"}
            allowed = {"a.npy", "a.npy.json", "a.npy.partial", "a.npy.partial.json", "a.zarr"}
            assert answer is None or left <= allowed, "a temporary file was left"
        else:
            longest = longest or answer
        if finished(out):
            write(out, **RUN, resume=True)
            assert contents(out) == expected
            for path in tmp_path.glob(f"a.{kind}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert len(kept) == times, "the run finished before it could be disturbed"
    write(out, **RUN, resume=True)
    assert contents(out) == expected
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "zarr"])
@pytest.mark.parametrize("numbers", [ENDING, (signal.SIGKILL,)], ids=["interrupted", "killed"])
@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_streams_to_disk(tmp_path, kind, numbers, times):
    kept = disturb(tmp_path, kind, numbers, times)
    if times == 100:  # the signals must have been spread over the run
        assert len(set(kept)) >= 6


# The test sends signals only after the first printed line, since a signal may abort some of JAX's imports.
COMMAND = """
import sys
from jax_von_mises.cli import commands
print("imported", flush=True)
sys.exit(commands.entry())
"""


def commands(tmp_path, kind, times, late):
    """Interrupt the command line at random times, resume it, and return the checksums of the finished target."""
    command = [sys.executable, "-W", "error", "-c", COMMAND, "sample", "--quiet", "--concentration", "4"]
    command += ["--size", "3e7", "--block", "1e6", "--resume", "--out"]
    environment = children.environment(JAX_PLATFORMS="cpu")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rng = random.Random(9)
    out = tmp_path / f"a.{kind}"
    for _ in range(times):
        number = rng.choice(ENDING)
        process = subprocess.Popen([*command, out], env=environment, cwd=tmp_path, **pipes)
        process.stdout.readline()
        time.sleep(rng.uniform(0, late))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        # Python itself handles a signal before the command's handlers are installed and after they are removed.
        assert process.returncode in (0, 128 + number, -number), err
        assert process.returncode != 128 + number or "error: " in err.splitlines()[-1]
    done = subprocess.run([*command, out], env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = jax_von_mises.verify_samples(out)
    assert len(record["crc32"]) == 30
    assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name]
    assert kind == "npy" or {path.name for path in out.iterdir()} == {"zarr.json", "blocks.json", "c"}
    return record["crc32"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_command_line(tmp_path, kind):
    (tmp_path / "undisturbed").mkdir()
    expected = commands(tmp_path / "undisturbed", kind, 0, 0)
    assert commands(tmp_path, kind, 12, 4.0) == expected


def ours():
    """Return the threads of `prefetch_to_host`."""
    return [thread for thread in threading.enumerate() if thread.name == "prefetch_to_host"]


@pytest.fixture
def alarm():
    """Return a function that interrupts this thread once, after the given number of seconds."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("times", [15, pytest.param(1_000, marks=pytest.mark.slow)])
# If an interrupt hits a destructor, Python drops it and pytest warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_iterators(alarm, times):
    """A caller that is interrupted, and continues after the last row it received, gets every row exactly once."""
    total, size = 50_000, 1_000
    full = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, total, method="table"))

    def batches(start):
        return jax_von_mises.sample_batches(KEY, 0.5, 4.0, total - start, size, start=start)

    list(batches(total - 2 * size))  # compile
    rng = random.Random(7)
    received, interrupts = [], 0
    while interrupts < times:
        place = sum(map(len, received))
        if place == total:
            np.testing.assert_array_equal(np.concatenate(received), full)
            received, place = [], 0
        plain = rng.random() < 0.5
        source = batches(place)
        try:
            alarm(rng.uniform(1e-4, 5e-3))
            if plain:
                for batch in source:
                    received.append(np.asarray(batch))
            else:
                with jax_von_mises.prefetch_to_host(source) as host:
                    for batch in host:
                        received.append(batch)
            alarm(0)
        except (KeyboardInterrupt, RuntimeError) as error:
            # An interrupt inside CPython's `threading.Condition.wait` may end in a RuntimeError about a lock.
            if isinstance(error, RuntimeError) and not isinstance(error.__context__, KeyboardInterrupt):
                raise
            interrupts += 1
        # Even an interrupted `close` has notified its thread, which ends by itself.
        deadline = time.monotonic() + 30
        while ours():
            assert time.monotonic() < deadline, "a thread is left"
            time.sleep(0.001)
        source.close()
    place = sum(map(len, received))
    np.testing.assert_array_equal(np.concatenate([*received, *map(np.asarray, batches(place))]), full)


def test_operations_of_a_store_keep_their_order(monkeypatch):
    """Operations on a store run in the order of the calls, even if every start of a thread is interrupted."""
    in_turn, order = zarr.InTurn(), []
    real = threading.Thread.start

    def start(thread):
        real(thread)
        raise KeyboardInterrupt

    def first():
        time.sleep(0.1)
        return operation(1)

    def operation(number):
        return types.SimpleNamespace(result=lambda: order.append(number))

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", start)
        in_turn(first)
    in_turn(lambda: operation(2))
    in_turn.close()
    assert order == [1, 2]


CACHED = """
import signal, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
import jax
from jax_von_mises import initialize_compilation_cache, sample_von_mises
print("started", flush=True)
initialize_compilation_cache(sys.argv[1])
print(float(sample_von_mises(jax.random.key(1), 0.0, 4.0, (1000,)).sum()), flush=True)
"""


@pytest.mark.slow
def test_compilation_cache(tmp_path):
    """Processes interrupted at random times leave a cache that the next process uses without a warning."""
    tmp_path.chmod(0o700)
    rng = random.Random(2)
    command = [sys.executable, "-c", CACHED, str(tmp_path / "cache")]
    environment = children.environment(JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=None)
    for _ in range(25):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 1.5))
        process.send_signal(rng.choice(ENDING))
        _, err = process.communicate(timeout=60)
        # Even with JAX 0.10 alone, one process in three crashes at exit if it is interrupted while XLA compiles.
        crashed = process.returncode == -signal.SIGSEGV and err.rstrip().endswith("KeyboardInterrupt")
        # The exit code is -SIGTERM if Python has already restored the system's handler at exit.
        assert crashed or process.returncode in (0, 1, -signal.SIGINT, -signal.SIGTERM), err
    (first,) = children.run(CACHED, tmp_path / "cache", JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=None)[1:]
    expected = float(jax_von_mises.sample_von_mises(jax.random.key(1), 0.0, 4.0, (1000,)).sum())
    assert float(first) == pytest.approx(expected)

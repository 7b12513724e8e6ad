"""Test the command line with several processes: workers, a Dask cluster, and the parts of an array job."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import jax
import pytest

import jax_von_mises
from jax_von_mises.cli import program
from tests import children
from tests.cli.test_commands import finished

pytest.importorskip("zarr", reason="zarr-python is not installed (extra `storage`)")

BLOCKS, ROWS = 120, 2_048
SAMPLE = [
    *("sample", "--out", "a.zarr", "--seed", "5", "--loc", "0.5", "--concentration", "4"),
    *("--size", str(BLOCKS * ROWS), "--block-rows", str(ROWS)),
]
LARGE = ["sample", "--quiet", "--concentration", "4", "--size", str(400 * 2**18), "--block-rows", str(2**18), "--out"]
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


def files(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the files of a store that a single process writes."""
    out = tmp_path_factory.mktemp("alone") / "a.zarr"
    jax_von_mises.write_samples(out, jax.random.key(5), 0.5, 4.0, BLOCKS * ROWS, "float32", block_rows=ROWS)
    return files(out)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the command line in the test's directory, or another module.

    Each process leads a group, and all groups are killed afterwards.
    """
    started = []

    def start(*argv, module="jax_von_mises"):
        log = open(tmp_path / f"{len(started)}.log", "w+")  # noqa: SIM115
        warnings = ["-W", "error"] if module == "jax_von_mises" and "--scheduler" not in argv else []
        process = subprocess.Popen(
            [sys.executable, *warnings, "-m", module, *map(str, argv)],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env=children.environment(
                JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=None, DASK_DISTRIBUTED__WORKER__DAEMON="True"
            ),
            start_new_session=True,
        )
        started.append((process, log))
        return process

    yield start
    for process, log in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def messages(tmp_path):
    return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))


def wait_until(condition, process=None, seconds=120):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, "the process ended too early"
        time.sleep(0.01)
    return result


def group(process):
    """Return the command lines of the living processes of the group that `process` leads."""
    members = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            state, _, number = file.read().rpartition(")")[2].split()[:3]
            if int(number) == process.pid and state != "Z":
                with open(f"/proc/{name}/cmdline") as command:
                    members[int(name)] = command.read()
    return members


def must_complete(process, out, tmp_path):
    """Assert that a resumed run succeeds, and that the file or store then holds the stream."""
    assert process.wait(120) == 0, messages(tmp_path)
    assert jax_von_mises.verify_samples(out)["blocks"] == 400


def test_parts_of_an_array_job(tmp_path, monkeypatch, capsys, alone):
    """The last part completes the store, and any part can be repeated, before or after."""
    monkeypatch.chdir(tmp_path)
    assert program.main([*SAMPLE, "--part", "1", "--parts", "2"]) == 0
    output = capsys.readouterr().out
    assert f"part 1 of 2: drew {60 * ROWS:,} angles (60 blocks) in" in output
    assert "a.zarr: not complete yet; the last part to finish completes it" in output
    assert program.main([*SAMPLE, "--part", "1", "--parts", "2"]) == 0
    output = capsys.readouterr().out
    assert "nothing was drawn" in output
    assert "already complete" not in output
    assert program.main([*SAMPLE, "--parts", "2", "--part", "0", "--quiet"]) == 0
    assert files(tmp_path / "a.zarr") == alone
    assert program.main([*SAMPLE, "--part", "1", "--parts", "2"]) == 0
    assert "a.zarr is already complete; nothing was drawn" in capsys.readouterr().out
    assert files(tmp_path / "a.zarr") == alone


@pytest.mark.more
def test_workers(tmp_path, start, alone):
    """Workers write the same bytes as a single process; the summary counts what all of them drew."""
    assert start(*SAMPLE, "--workers", "2").wait(120) == 0, messages(tmp_path)
    assert f"drew {BLOCKS * ROWS:,} angles ({BLOCKS} blocks) in " in messages(tmp_path)
    assert files(tmp_path / "a.zarr") == alone


def test_dask_that_is_not_installed_or_does_not_answer(tmp_path, monkeypatch, capsys, no_cache):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scheduler.json").write_text("{}")
    for address in ("nonsense", "scheduler.json"):
        assert program.main([*SAMPLE, "--scheduler", address]) == 1
        assert f"error: --scheduler {address}: no scheduler answers there (" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert program.main([*SAMPLE, "--scheduler", "tcp://127.0.0.1:1"]) == 1
    assert 'pip install "jax_von_mises[dask]"' in capsys.readouterr().err
    assert os.listdir() == ["scheduler.json"]


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, "npy"), (signal.SIGTERM, "zarr"), (signal.SIGKILL, "zarr")]
)
def test_signal_stops_the_run(tmp_path, start, number, kind):
    """After a signal, finished blocks are kept, no process is left, and a single process can complete the run."""
    out = tmp_path / f"a.{kind}"
    process = start(*LARGE, out, "--workers", "2")
    wait_until(lambda: len(finished(out)) >= 3, process)
    assert len(group(process)) >= 3
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    code = process.wait(60)
    wait_until(lambda: not group(process), seconds=20)
    kept = len(finished(out))
    assert 3 <= kept < 400
    assert code == (130 if number == signal.SIGINT else -number), messages(tmp_path)
    if number == signal.SIGINT:
        (line,) = messages(tmp_path).splitlines()
        assert line.startswith("jax-von-mises sample: error: interrupted; ")
        assert "of 400 blocks are finished; continue with `resume`" in line
    must_complete(start(*LARGE, out, "--resume"), out, tmp_path)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0])
def test_interrupt_while_workers_start(tmp_path, start, seconds):
    """Ctrl-C while workers start gives one line on stderr and leaves no process."""
    process = start(*LARGE, tmp_path / "a.npy", "--workers", "2")
    wait_until(lambda: sum("spawn_main" in command for command in group(process).values()) == 2, process)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    wait_until(lambda: not group(process), seconds=20)
    (line,) = messages(tmp_path).splitlines()
    assert line.startswith("jax-von-mises sample: error: interrupted")


@pytest.mark.slow
@needs_proc
def test_worker_that_is_killed(tmp_path, start):
    """The run ends with one line that names the lost worker, leaves no process, and other workers resume it."""
    out = tmp_path / "a.zarr"
    process = start(*LARGE, out, "--workers", "2")
    wait_until(lambda: len(finished(out)) >= 3, process)
    os.kill(next(number for number, command in group(process).items() if "spawn_main" in command), signal.SIGKILL)
    assert process.wait(60) == 1
    wait_until(lambda: not group(process), seconds=20)
    (line,) = messages(tmp_path).splitlines()
    assert line.startswith("jax-von-mises sample: error: BrokenProcessPool: ")
    assert "of 400 blocks are finished; continue with `resume`" in line
    must_complete(start(*LARGE, out, "--resume", "--workers", "2"), out, tmp_path)


@pytest.mark.slow
def test_dask_cluster(tmp_path, start, alone):
    """A scheduler file or address selects a cluster; after the scheduler is killed, a new cluster resumes the run."""
    pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
    file, out = tmp_path / "scheduler.json", tmp_path / "large.zarr"

    def cluster():
        file.unlink(missing_ok=True)
        address = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
        scheduler = start("scheduler", *address, "--no-dashboard", module="dask")
        wait_until(file.exists, scheduler)
        options = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--local-directory", tmp_path / "dask")
        return scheduler, start("worker", "--scheduler-file", file, *options, module="dask")

    scheduler, workers = cluster()
    assert start(*SAMPLE, "--quiet", "--scheduler", file.name).wait(120) == 0, messages(tmp_path)
    assert files(tmp_path / "a.zarr") == alone
    process = start(*LARGE, out, "--scheduler", json.loads(file.read_text())["address"])
    wait_until(lambda: len(finished(out)) >= 3, process)
    scheduler.kill()
    assert process.wait(120) == 1
    assert "of 400 blocks are finished; continue with `resume`" in messages(tmp_path)
    workers.kill()
    assert 3 <= len(finished(out)) < 400
    cluster()
    must_complete(start(*LARGE, out, "--resume", "--scheduler", file.name), out, tmp_path)

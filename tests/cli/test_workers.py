"""Test the command line with several processes: workers, a Dask cluster, and the parts of an array job."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import pytest

import jax_von_mises
from jax_von_mises.cli import commands
from tests import children
from tests.streams.test_writer import recorded

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")

BLOCKS, ROWS = 120, 2_048
SAMPLE = [
    *("sample", "--out", "a.zarr", "--seed", "5", "--loc", "0.5", "--concentration", "4"),
    *("--size", str(BLOCKS * ROWS), "--block", str(ROWS)),
]
QUIET = [*SAMPLE, "--quiet"]


def files(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the files of a store that a single process writes."""
    out = tmp_path_factory.mktemp("alone") / "a.zarr"
    jax_von_mises.write_samples(out, jax.random.key(5), 0.5, 4.0, BLOCKS * ROWS, "float32", block_rows=ROWS)
    return files(out)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a Python program in the test's directory; all programs are killed afterwards."""
    started = []

    def start(*command, **options):
        log = open(tmp_path / f"{len(started)}.log", "w+")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env=children.environment(JAX_PLATFORMS="cpu", DASK_DISTRIBUTED__WORKER__DAEMON="True"),
            start_new_session=True,
            **options,
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


def test_parts_of_an_array_job(tmp_path, monkeypatch, capsys, alone):
    """Options under either name select a part; the last part completes the store, and any part can be repeated."""
    monkeypatch.chdir(tmp_path)
    assert commands.main([*SAMPLE, "--part", "1", "--parts", "2"]) == 0
    output = capsys.readouterr().out
    assert f"part 1 of 2 drew {60 * ROWS:,} of {BLOCKS * ROWS:,} angles (60 blocks) in" in output
    assert "a.zarr: not complete yet; the last part to finish completes it, as does a run with --resume" in output
    assert commands.main([*QUIET, "--parts", "2", "--part", "0"]) == 0
    assert files(tmp_path / "a.zarr") == alone
    assert commands.main([*SAMPLE, "--part", "1", "--parts", "2"]) == 0
    assert "is already complete; nothing was drawn" in capsys.readouterr().out


@pytest.mark.slow
def test_workers(tmp_path, monkeypatch, capsys, alone):
    """Workers write the same bytes as a single process."""
    monkeypatch.chdir(tmp_path)
    assert commands.main([*SAMPLE, "--workers", "2"]) == 0
    captured = capsys.readouterr()
    assert f"drew {BLOCKS * ROWS:,} angles ({BLOCKS} blocks) in " in captured.out
    assert re.search(
        r"^drew and wrote at .* M/s, including compilation and the start of the workers$", captured.out, re.M
    )
    assert "by 2 workers: float32, seed 5" in captured.out
    assert files(tmp_path / "a.zarr") == alone


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--part", "0"], "--part and --parts go together"),
        (["--part", "2", "--parts", "2"], "--part 2: too large; give at most 1"),
        (["--parts", "2"], "--part and --parts go together"),
        (["--parts", "0", "--part", "0"], "--parts 0: give 1 or more"),
        (["--parts", "two", "--part", "0"], "--parts two: not a whole number"),
        (
            ["--parts", "2", "--part", "1", "--out", "a.npy"],
            "has one writer; with --parts give a .zarr store",
        ),
        (["--parts", "2", "--part", "1", "--force"], "--force cannot be combined with --parts"),
        (["--workers", "0"], "--workers 0: give 1 or more"),
        (["--workers", "2", "--scheduler", "tcp://h:1"], "--workers starts new processes and --scheduler"),
        (["--timeout", "-1"], "--timeout -1: give a positive number of seconds"),
    ],
)
def test_invalid_argument_gives_one_line(tmp_path, monkeypatch, capfd, argv, message):
    monkeypatch.chdir(tmp_path)
    assert commands.main([*QUIET, *argv]) == 2
    text = "".join(capfd.readouterr())
    assert message in text
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_dask_that_is_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert commands.main([*QUIET, "--scheduler", "tcp://127.0.0.1:1"]) == 1
    assert 'pip install "jax_von_mises[dask]"' in capsys.readouterr().err


def group(process):
    """Return the living processes of the group that `process` leads."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            state, _, number = file.read().rpartition(")")[2].split()[:3]
            if int(number) == process.pid and state != "Z":
                members.append(int(name))
    return members


LARGE = ["sample", "--quiet", "--concentration", "4", "--size", "1e8", "--block", "2.5e5", "--out"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_signal_stops_the_run(tmp_path, start, number, kind):
    """After a signal, recorded blocks are kept, no process is left, and a single process can complete the run."""
    out = tmp_path / f"a.{kind}"
    run = ["-W", "error", "-m", "jax_von_mises", *LARGE, out]
    process = start(*run, "--workers", "2")
    wait_until(lambda: len(recorded(out)) >= 3, process)
    assert len(group(process)) >= 3
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code = process.wait(60)
    wait_until(lambda: not group(process), seconds=20)
    assert code == (-number if number == signal.SIGKILL else 128 + number), messages(tmp_path)
    kept = len(recorded(out))
    assert 3 <= kept < 400
    if number != signal.SIGKILL:
        (line,) = messages(tmp_path).splitlines()
        assert f"{kept} of 400 blocks kept; continue with --resume" in line
    assert start(*run, "--resume").wait(120) == 0, messages(tmp_path)
    assert len(jax_von_mises.verify_samples(out)["crc32"]) == 400


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 1.0])
def test_interrupt_while_workers_start(tmp_path, start, seconds):
    """Ctrl-C while workers start gives one line on stderr and leaves no process."""
    process = start("-W", "error", "-m", "jax_von_mises", *LARGE, tmp_path / "a.npy", "--workers", "2")
    wait_until(lambda: len(group(process)) >= 4, process)  # including multiprocessing's resource tracker
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    wait_until(lambda: not group(process), seconds=20)
    (line,) = messages(tmp_path).splitlines()
    assert line.startswith("jax-von-mises sample: error: interrupted")


@pytest.mark.slow
def test_worker_that_hangs_is_ended(tmp_path, start):
    """If a worker hangs, the command ends after the timeout and leaves no process."""
    out = tmp_path / "a.zarr"
    run = ["-W", "error", "-m", "jax_von_mises", *LARGE, out]
    process = start(*run, "--workers", "1", "--timeout", "3")
    wait_until(lambda: len(recorded(out)) >= 3, process)
    for worker in group(process):
        with open(f"/proc/{worker}/cmdline") as file:
            if "spawn_main" in file.read():  # a worker, not multiprocessing's resource tracker
                os.kill(worker, signal.SIGSTOP)
    assert process.wait(60) == 1
    wait_until(lambda: not group(process), seconds=20)
    assert "no worker finished a task for 3 s. Look for a worker that hangs" in messages(tmp_path)
    assert start(*run, "--resume").wait(120) == 0, messages(tmp_path)
    jax_von_mises.verify_samples(out)


@pytest.mark.slow
def test_dask_cluster(tmp_path, start, alone):
    """A scheduler file or address selects a cluster; after the scheduler is killed, a new cluster resumes the run."""
    pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
    file, out = tmp_path / "scheduler.json", tmp_path / "a.zarr"

    def cluster():
        file.unlink(missing_ok=True)
        scheduler = start("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                          "--scheduler-file", file)  # fmt: skip
        wait_until(file.exists, scheduler)
        options = ["--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--local-directory", tmp_path / "dask"]
        return scheduler, start("-m", "dask", "worker", "--scheduler-file", file, *options)

    scheduler, workers = cluster()
    command = ["-m", "jax_von_mises"]
    assert start(*command, *QUIET, "--scheduler", "scheduler.json").wait(120) == 0, messages(tmp_path)
    assert files(out) == alone
    large = tmp_path / "large.zarr"
    address = json.loads(file.read_text())["address"]
    process = start(*command, *LARGE, large, "--scheduler", address)
    wait_until(lambda: len(recorded(large)) >= 3, process)
    scheduler.kill()
    assert process.wait(120) == 1
    assert "blocks kept; continue with --resume" in messages(tmp_path)
    workers.kill()
    kept = len(recorded(large))
    assert 3 <= kept < 400
    cluster()
    assert start(*command, *LARGE, large, "--resume", "--scheduler", "scheduler.json").wait(120) == 0, messages(
        tmp_path
    )
    assert len(jax_von_mises.verify_samples(large)["crc32"]) == 400

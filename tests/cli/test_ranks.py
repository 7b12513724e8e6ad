"""Run several processes over the loopback address: they write one store, also when some die and come back."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import jax
import pytest

import jax_von_mises
from jax_von_mises.cli import commands, ranks
from tests import children

pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")

BLOCKS, ROWS = 120, 2_048


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


SAMPLE = [
    *("sample", "--out", "a.zarr", "--quiet", "--seed", "5", "--loc", "0.5", "--concentration", "4"),
    *("--size", str(BLOCKS * ROWS), "--block", str(ROWS)),
    *("--distributed", "--join-timeout", "90", "--patience", "90"),
]


@pytest.fixture
def start(tmp_path):
    """Start one process of the job that writes ``a.zarr``; at the end of the test none is left."""
    started = []

    def start(*argv, **environment):
        command = [sys.executable, "-P", "-W", "error", "-m", "jax_von_mises", *SAMPLE, *argv]
        log = open(tmp_path / f"{len(started)}.log", "w+")  # noqa: SIM115
        environment = children.environment(**environment)
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=environment)
        started.append((process, log))
        return process

    yield start
    for process, log in started:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process writes."""
    out = tmp_path_factory.mktemp("alone") / "a.zarr"
    jax_von_mises.write_samples(out, jax.random.key(5), 0.5, 4.0, BLOCKS * ROWS, "float32", block_rows=ROWS)
    return contents(out)


def contents(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def wait_for_blocks(out, part, parts, count):
    """Until a process has recorded so many blocks."""
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(FileNotFoundError):
            if len(json.loads((out / f"blocks-{part}of{parts}.json").read_text())["crc32"]) >= count:
                return
        assert time.monotonic() < deadline
        assert not (out / "zarr.json").exists(), "the job was over before anything could be killed"
        time.sleep(0.005)


def ended(process, tmp_path):
    code = process.wait(120)
    assert code == 0, "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills as POSIX does")
@pytest.mark.parametrize(
    ("parts", "victims"),
    [pytest.param(2, [1], id="two"), pytest.param(4, [2, 0], id="four", marks=pytest.mark.slow)],
)
def test_killed_processes_come_back(tmp_path, start, alone, parts, victims):
    """A worker dies and is started again alone; with four, process 0 too, which the others had met at."""
    # The directory in which a job runs is no place from which its helpers take modules.
    (tmp_path / "tempfile.py").write_text("raise SystemExit('taken from the working directory')")
    out = tmp_path / "a.zarr"
    job = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(parts)]
    processes = [start(*job, "--process-id", str(part)) for part in range(parts)]
    for victim in victims:
        wait_for_blocks(out, victim, parts, 3)
        processes[victim].kill()
        processes[victim].wait()
        assert not (out / "zarr.json").exists()
        processes[victim] = start(*job, "--process-id", str(victim))
    for process in processes:
        ended(process, tmp_path)
    assert contents(out) == alone
    # One that comes back when all is over finds nobody, and needs nobody.
    ended(start(*job, "--process-id", "1"), tmp_path)
    assert contents(out) == alone


def slurm(part, job):
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(part),
        "SLURM_LOCALID": str(part),
    }


def open_mpi(part, job):
    return {
        "OMPI_MCA_orte_hnp_uri": f"{job << 16}.0;tcp://127.0.0.1:4000",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(part),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(part),
    }


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [slurm, open_mpi])
def test_cluster_is_found(tmp_path, start, alone, cluster):
    """By the variables that the launcher sets, and nothing on the command line."""
    job = random.randrange(2**15)  # decides the port
    processes = [start(**cluster(part, job)) for part in range(2)]
    for process in processes:
        ended(process, tmp_path)
    assert contents(tmp_path / "a.zarr") == alone


def test_numbers_alone_need_no_connection(tmp_path, monkeypatch, alone):
    """And never the same time: the tasks of an array job, one after the other."""
    monkeypatch.chdir(tmp_path)
    for part in ("1", "0"):
        assert commands.main([*SAMPLE, "--processes", "2", "--process-id", part]) == 0
    assert contents(tmp_path / "a.zarr") == alone


@pytest.mark.slow
def test_job_of_one_comes_back(tmp_path, start, alone):
    """By the same command, as any job."""
    job = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "1", "--process-id", "0"]
    process = start(*job)
    wait_for_blocks(tmp_path / "a.zarr", 0, 1, 3)
    process.kill()
    process.wait()
    ended(start(*job), tmp_path)
    assert contents(tmp_path / "a.zarr") == alone


def test_silent_process_0(tmp_path):
    """A process that waits for it does not wait for ever."""
    arguments = dict(total=2 * ROWS, block_rows=ROWS, part=1, parts=2, stay=True, patience=0.1)
    with pytest.raises(TimeoutError, match=r"blocks of this process are written, but process 0 .* for 0\.1 s"):
        jax_von_mises.write_samples(tmp_path / "a.zarr", jax.random.key(5), 0.5, 4.0, **arguments)


@pytest.mark.parametrize(
    ("shown", "own", "expected"), [(None, "1", "1"), ("0", "1", None), ("2,5", "1", "1"), ("GPU-a", "0", "0")]
)
def test_devices_of_a_task(monkeypatch, shown, own, expected):
    """JAX counts them on the machine; a launcher may have shown the task its own alone."""
    name, chosen = "jax_cuda_visible_devices", {}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    ranks.show_devices({name: own})
    assert chosen == ({} if expected is None else {name: expected})


NO_JOB = "JAX finds no job here (coordinator_address should be defined.); give --coordinator"
ALONE = ["--coordinator", "127.0.0.1:1", "--processes", "2", "--process-id", "1", "--join-timeout", "1"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--processes", "2", "--process-id", "2"], 2, "--process-id 2: too large; give at most 1"),
        (["--processes", "0"], 2, "--processes 0: give 1 or more"),
        (["--processes", "two"], 2, "--processes two: not a whole number"),
        (["--coordinator", "host"], 2, "--coordinator host: not an address; write HOST:PORT"),
        (["--coordinator", "host:99999"], 2, "--coordinator host:99999: not an address"),
        (["--patience", "-1"], 2, "--patience -1: give seconds"),
        (["--out", "a.npy"], 2, "a .npy file has one writer; give --distributed a .zarr store"),
        (["--processes", "2", "--process-id", "1", "--force"], 2, "--force would remove what other processes write"),
        ([], 1, NO_JOB),
        (ALONE, 1, "2 processes did not all meet within 1 s; start them, and see that process 0 can be reached at"),
    ],
)
def test_errors_in_one_line(tmp_path, monkeypatch, capfd, argv, code, message):
    monkeypatch.chdir(tmp_path)
    try:
        found = commands.main([*SAMPLE, *argv])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    text = "".join(capfd.readouterr())
    assert message in text
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_options_need_the_word(capsys):
    assert commands.main(["sample", "--processes", "2"]) == 2
    assert "--processes is for --distributed; add that" in capsys.readouterr().err


@pytest.mark.slow
def test_keeper_ends_with_its_process():
    """However that ended: here it is killed while the keeper waits for a process that never comes."""
    code = f"from jax_von_mises.cli import ranks\nranks.Place('127.0.0.1:{free_port()}', 2, 0, 60)\n"
    process = subprocess.Popen([sys.executable, "-c", code], env=children.environment())
    started = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not started.exists():
        process.kill()
        pytest.skip("reads /proc")
    deadline = time.monotonic() + 60
    while not (found := started.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    while any(os.path.exists(f"/proc/{pid}") and "Z" not in state(pid) for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_last_words():
    """Of a crash, the status; of a job that is not there, that no other try will help."""

    def words(text):
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            return ranks.last_words(file, "before")

    assert words("W0 x\nF1 client.h:80] Terminating. absl::Status: DEADLINE_EXCEEDED: late\n  @ 0x1\n") == (
        False,
        "DEADLINE_EXCEEDED: late",
    )
    assert words("CannotJoin: no job") == (True, "no job")
    assert words("Traceback (most recent call last):\n x\nModuleNotFoundError: No module named 'x'") == (
        True,
        "the helper process cannot run: ModuleNotFoundError: No module named 'x'",
    )
    assert words("Traceback (most recent call last):\n x\nRuntimeError: port") == (False, "RuntimeError: port")
    assert words("") == (False, "before")

"""Test that runs with killed or hanging Dask workers, or on a full disk, complete or can be resumed.

`tests/cli/test_workers.py` also kills the scheduler.
"""

import contextlib
import os
import random
import signal

import pytest

from tests import children
from tests.streams.test_writer import contents, recorded, write

distributed = pytest.importorskip("distributed", reason="Dask is not installed (extra `dask`)")
pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals"),
]

RUN = dict(total=60 * 2**17, block_rows=2**17)


@contextlib.contextmanager
def local_cluster(folder, **settings):
    """Yield a client of a cluster of three worker processes, each with a nanny that restarts it.

    By default, Dask drops a nanny if its worker is not back within 15 s, but importing JAX may take longer.
    """
    import dask

    settings = {"distributed.deploy.lost-worker-timeout": "10m", **settings}
    options = dict(n_workers=3, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1")
    options["local_directory"] = folder / "dask"
    with (
        dask.config.set(settings),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the bytes that a single process writes for each kind of target."""
    folder = tmp_path_factory.mktemp("alone")
    for kind in ("npy", "zarr"):
        write(folder / f"a.{kind}", **RUN)
    return {kind: contents(folder / f"a.{kind}") for kind in ("npy", "zarr")}


def processes(client):
    """Map the address of each worker to its process ID (not that of its nanny)."""
    return client.run(os.getpid, on_error="ignore")  # dead workers are left out


def strike(client, number, at):
    """Return a callback that signals a random busy worker after `at` blocks, and a list that receives its ID."""
    signalled = []

    def progress(done, _):
        # The caller submits no block while this function runs. If no worker is busy, try again after the next block.
        if signalled or done < at * RUN["block_rows"]:
            return
        living = processes(client)
        busy = sorted(address for address, blocks in client.processing().items() if blocks and address in living)
        if not busy:
            return
        victim = living[random.Random(at).choice(busy)]
        with contextlib.suppress(ProcessLookupError):  # killed in an earlier run, but still listed
            os.kill(victim, number)
            signalled.append(victim)

    return progress, signalled


def test_killed_workers(tmp_path, expected):
    """Dask moves the blocks of a killed worker to others and starts a new worker (20 kills at random times)."""
    rng = random.Random(4)
    with local_cluster(tmp_path) as client:
        for trial in range(20):
            client.wait_for_workers(2, timeout=60)  # the third may still be starting
            out = tmp_path / f"{trial}" / f"a.{('npy', 'zarr')[trial % 2]}"
            out.parent.mkdir()
            progress, signalled = strike(client, signal.SIGKILL, rng.randrange(1, 40))
            assert write(out, **RUN, executor=client.get_executor(), progress=progress).finished
            assert signalled
            assert contents(out) == expected[out.suffix[1:]]


def test_worker_that_hangs_is_replaced(tmp_path, expected):
    """A worker that hangs is replaced if the scheduler limits how long a worker may be silent."""
    with local_cluster(tmp_path, **{"distributed.scheduler.worker-ttl": "10s"}) as client:
        progress, signalled = strike(client, signal.SIGSTOP, 5)
        assert write(tmp_path / "a.npy", **RUN, executor=client.get_executor(), progress=progress).finished
        with contextlib.suppress(ProcessLookupError):  # the nanny has ended it
            os.kill(signalled[0], signal.SIGKILL)
    assert contents(tmp_path / "a.npy") == expected["npy"]


def test_worker_that_hangs_ends_the_run(tmp_path, expected):
    """If such a worker is not replaced, the run times out and can be resumed; the worker may continue without harm."""
    out = tmp_path / "a.zarr"
    with local_cluster(tmp_path) as client:
        progress, signalled = strike(client, signal.SIGSTOP, 5)
        with pytest.raises(TimeoutError, match=r"no worker finished a task for 5 s\. Look for a worker that hangs"):
            write(out, **RUN, executor=client.get_executor(), progress=progress, timeout=5.0)
        assert 5 <= len(recorded(out)) < 60
        assert write(out, **RUN, resume=True).finished
        os.kill(signalled[0], signal.SIGCONT)
        client.wait_for_workers(3, timeout=60)
        assert len(processes(client)) == 3  # the worker answers again
    assert contents(out) == expected["zarr"]


FULL = """
import os, subprocess, sys
import jax
from distributed import Client, LocalCluster
from jax_von_mises import verify_samples, write_samples
from tests.children import fill_disk

folder = sys.argv[1]


def fill(done, _):
    if done >= 200_000 and not os.path.exists(f"{folder}/filler"):
        fill_disk(f"{folder}/filler")


def main():
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", folder], check=True)
    run = dict(key=jax.random.key(11), loc=0.5, concentration=4.0, total=2_000_000, block_rows=100_000)
    options = dict(n_workers=3, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1")
    with LocalCluster(**options, local_directory=os.path.dirname(folder)) as cluster, Client(cluster) as client:
        for kind in ("npy", "zarr"):
            out = f"{folder}/a.{kind}"
            try:
                write_samples(out, **run, executor=client.get_executor(), progress=fill)
            except OSError as error:
                print("FULL", error.strerror, error.__notes__)
            os.unlink(f"{folder}/filler")
            done = write_samples(out, **run, executor=client.get_executor(), resume=True)
            print("RESUMED", done.drawn + done.kept, done.kept >= 2, done.finished)
            verify_samples(out)
            subprocess.run(["rm", "-r", out])


if __name__ == "__main__":
    main()
"""


def test_full_disk(tmp_path):
    """A full disk causes a clear error, and the run can be resumed once there is space again."""
    folder, program = tmp_path / "disk", tmp_path / "full.py"
    folder.mkdir()
    program.write_text(FULL)
    # The processes of the cluster import the program again, so it must be a file.
    start = "import runpy, sys; runpy.run_path(sys.argv[1], None, '__main__')"
    start = start.replace("runpy.run", "sys.argv.pop(0); runpy.run").replace("argv[1]", "argv[0]")
    lines = children.run(start, program, folder, before=children.own_mounts(folder), timeout=300, JAX_PLATFORMS="cpu")
    assert [line.split("blocks kept")[1] for line in lines if line.startswith("FULL No space")] == [
        "; continue with resume=True']"
    ] * 2, lines
    assert [line for line in lines if line.startswith("RESUMED")] == ["RESUMED 20 True True"] * 2

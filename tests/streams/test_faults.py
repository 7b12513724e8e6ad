"""Test that a failed or interrupted file operation loses no valid block, and that the run can be repaired.

Each test combines a scenario of `fault_runs.SCENARIOS` with a fault of `fault_runs.FAULTS`. It repeats a run with the
fault at one file operation after another, including those of TensorStore. In the quick tests, every second operation
raises an error, and a kill is simulated at the remaining ones. The slow tests try every fault at every operation.
"""

import json
import shutil
import subprocess
import sys

import pytest

from tests import children, fault_runs

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")

SOURCE = children.ROOT / "tests" / "faults.c"
QUICK = [pytest.param("EIO", 1, 2, id="some EIO"), pytest.param("killed", 2, 2, id="some killed")]
SLOW = [pytest.param(fault, 1, 1, id=fault, marks=pytest.mark.slow) for fault in fault_runs.FAULTS]
TABLE = [
    (kind, scenario)
    for kind in ("npy", "zarr")
    for scenario in fault_runs.SCENARIOS
    if kind == "zarr" or "space" not in scenario  # a .npy file is never removed first
]


@pytest.fixture(scope="module")
def try_row(tmp_path_factory):
    """Return a function that tries a scenario with a fault in a child process, which all tests share."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler, to replace functions of the C library")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    command = [sys.executable, "-W", "error", "-m", "tests.fault_runs"]
    environment = children.environment(LD_PRELOAD=str(library))
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=environment, cwd=children.ROOT, **pipes) as process:

        def ask(*row):
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, "the process has ended"
            return json.loads(line)

        yield ask
        process.stdin.close()


def lose_nothing(try_row, *row):
    report = try_row(*row)
    assert not report["problems"], "\n".join(report["problems"])
    assert report["runs"] >= 2
    # One or two of the runs may succeed despite the fault.
    assert "EINTR" in row or report["failed"] >= report["runs"] - 2


@pytest.mark.parametrize(("kind", "scenario"), TABLE)
@pytest.mark.parametrize(("fault", "first", "step"), QUICK + SLOW)
def test_nothing_is_lost(try_row, kind, scenario, fault, first, step):
    if fault == "SIGKILL" and "space" in scenario:
        pytest.skip("the reported disk space cannot be changed in another process")
    lose_nothing(try_row, kind, scenario, fault, first, step)

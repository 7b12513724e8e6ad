"""Let an operation on a file fail or be interrupted: no valid block is lost, and the same command continues.

The table combines an initial state and a request (`fault_runs.SCENARIOS`) with a fault (`fault_runs.FAULTS`). Every
operation is tried, those of TensorStore included. The quick tests fail every other operation and kill at those
between; the slow ones try all faults at each.
"""

import json
import shutil
import subprocess
import sys

import pytest

from tests import children, fault_runs

pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")

SOURCE = children.ROOT / "tests" / "faults.c"
QUICK = [pytest.param("EIO", 1, 2, id="some EIO"), pytest.param("killed", 2, 2, id="some killed")]
SLOW = [pytest.param(fault, 1, 1, id=fault, marks=pytest.mark.slow) for fault in fault_runs.FAULTS]
TABLE = [
    (kind, scenario)
    for kind in ("npy", "zarr")
    for scenario in fault_runs.SCENARIOS
    if kind == "zarr" or "space" not in scenario  # a file is never removed first
]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Return a function that asks a process in which calls of the C library fail; all rows share its programs."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("failures are put in the way of Linux's C library, by a C compiler")
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


def lose_nothing(answer, *row):
    found = answer(*row)
    assert not found["problems"], "\n".join(found["problems"])
    assert found["runs"] >= 2
    # One or two operations may fail without consequence, so that the run continues.
    assert "EINTR" in row or found["failed"] >= found["runs"] - 2


@pytest.mark.parametrize(("kind", "scenario"), TABLE)
@pytest.mark.parametrize(("fault", "first", "step"), QUICK + SLOW)
def test_nothing_is_lost(answer, kind, scenario, fault, first, step):
    if fault == "SIGKILL" and "space" in scenario:
        pytest.skip("another process sees how much space there is")
    lose_nothing(answer, kind, scenario, fault, first, step)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        ("force", "EIO"),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("fresh", "EIO"), ("force", "SIGINT"))),
    ],
)
def test_exported_sampler_is_complete_or_absent(answer, scenario, fault):
    lose_nothing(answer, "export", scenario, fault, 1, 1)

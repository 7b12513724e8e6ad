"""Whatever operation on a file fails, or is interrupted: nothing that was valid is lost, and the same command goes on.

The table: what is there and what is asked for (`fault_runs.SCENARIOS`), by what happens (`fault_runs.FAULTS`). In each
row every single operation of the run fails in turn, those of TensorStore too.
"""

import json
import shutil
import subprocess
import sys

import pytest

from tests import children, fault_runs

pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")

SOURCE = children.ROOT / "tests" / "faults.c"
# Errors of a disk without space take the same way in every scenario: in these they do most harm.
QUICK = ("fresh", "repair of a finished one without a valid block", "force over a finished one")
TABLE = [
    pytest.param(
        kind,
        scenario,
        fault,
        marks=[pytest.mark.slow] * (fault not in ("EIO", "killed") and scenario not in QUICK) + [pytest.mark.once],
    )
    for kind in ("npy", "zarr")
    for scenario in fault_runs.SCENARIOS
    for fault in fault_runs.FAULTS
    if kind == "zarr" or "space" not in scenario  # a file is never removed first
]
EXPORTS = [
    pytest.param("export", scenario, fault, marks=pytest.mark.once)
    for scenario in ("fresh", "force")
    for fault in ("EIO", "SIGINT")
]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Asks a process in which calls of the C library fail; one for all rows, which share compiled programs."""
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


@pytest.mark.parametrize(("kind", "scenario", "fault"), TABLE + EXPORTS)
def test_nothing_is_lost(answer, kind, scenario, fault):
    found = answer(kind, scenario, fault)
    assert not found["problems"], "\n".join(found["problems"])
    assert found["operations"] >= 4
    # All but an operation or two whose failure is of no consequence, so that the run goes on.
    assert found["failed"] >= found["operations"] - 2

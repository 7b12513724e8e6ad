"""The example of several processes: they agree with one, and none of them is left behind."""

import os
import subprocess
import sys
import time
import zlib

import jax
import numpy as np
import pytest

from docs.examples import several_processes as example
from tests import children

# Prints its number and waits.
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def alone():
    """What this process finds by itself."""
    return example.work(jax.random.key(0), 0, 1, lambda rows: rows)


@pytest.fixture(scope="module")
def whole():
    return np.asarray(example.draw_at_once(jax.random.key(0)))


def test_blocks_are_parts_of_one_stream(alone, whole):
    parts = np.split(whole, example.BLOCKS)
    assert alone["checksums"] == [zlib.crc32(part.tobytes()) for part in parts]
    assert len(set(alone["checksums"])) == example.BLOCKS
    for part, counts in zip(parts, alone["counts"], strict=True):
        assert counts == np.histogram(part, example.BINS, (-np.pi, np.pi))[0].tolist()


def test_fit_finds_the_truth(alone, whole):
    """Within five standard errors, and where the gradient of all angles is 0."""
    found = np.array(alone["parameters"])
    hour = np.arange(len(whole)) % 24 * np.pi / 12
    information = example.CONCENTRATION * 0.80999 * len(hour) * np.array([1, 0.5])  # A(3) = I1(3)/I0(3)
    np.testing.assert_allclose(example.information(), information, rtol=1e-4)
    assert np.all(np.abs(found - example.TRUTH) < 5 / np.sqrt(information))
    residual = np.sin(whole.astype(float) - found[0] - found[1] * np.cos(hour))
    score = example.CONCENTRATION * np.array([residual.sum(), (residual * np.cos(hour)).sum()])
    assert np.all(np.abs(score / information) < 1e-6)


def test_gradient_is_that_of_the_likelihood():
    parameters = np.array([1.0, 0.5], np.float32)
    hour, directions = np.float32([0.0, 2.0, -1.0]), np.float32([0.3, 2.0, -3.0])
    angle = directions.astype(float) - 1 - 0.5 * np.cos(hour.astype(float))
    right = [3 * np.sin(angle).sum(), 3 * (np.sin(angle) * np.cos(hour.astype(float))).sum()]
    np.testing.assert_allclose(example.gradient(parameters, hour, directions), right, rtol=1e-5)


@pytest.mark.parametrize("processes", example.DIVISORS)
def test_shares_cover_the_stream(processes):
    shares = [example.share(process, processes) for process in range(processes)]
    assert [block for share in shares for block in share] == list(range(example.BLOCKS))
    assert {len(share) for share in shares} == {example.BLOCKS // processes}


def test_two_processes_agree_with_one(alone):
    """Whatever flags this process was started with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_no_such_flag")
        patch.setenv("JAX_PLATFORMS", "no_such_platform")
        together = example.together(2)
    assert together | {"sums": None} == alone | {"sums": None}
    np.testing.assert_allclose(together["sums"], alone["sums"], rtol=1e-6)


def test_error_of_a_child_is_shown_and_ends_the_others(tmp_path):
    begin = time.monotonic()
    place = tmp_path / "pid"
    waiting = (
        f"import os, pathlib, time; new = pathlib.Path({str(place) + '.new'!r}); new.write_text(str(os.getpid())); "
        f"new.rename({str(place)!r}); time.sleep(60)"
    )
    failing = f"import os, sys, time\nwhile not os.path.exists({str(place)!r}): time.sleep(0.01)\nsys.exit('no disk')"
    with pytest.raises(RuntimeError, match=r"process 1 ended with 1:\nno disk"):
        example.launch([[sys.executable, "-c", waiting], [sys.executable, "-c", failing]])
    assert time.monotonic() - begin < 30
    assert not running(int(place.read_text()))


def test_time_is_limited():
    quick = [sys.executable, "-c", ""]
    slow = [sys.executable, "-c", "import sys, time; print('so far', file=sys.stderr, flush=True); time.sleep(60)"]
    with pytest.raises(TimeoutError, match=r"2 of 3 processes are late: 0\.5 s\nso far\nso far\n"):
        example.launch([slow, quick, slow], timeout=0.5)


def test_children_end_with_a_parent_that_is_killed():
    """The parent starts a child as the example does; both have the functions of the example."""
    module = "from docs.examples.several_processes import "
    child = f"import threading; {module}end_with_parent; threading.Thread(target=end_with_parent).start(); {WAIT}"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE).wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=children.environment())
    try:
        number = int(parent.stdout.readline())
        assert running(number)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 30
    while running(number):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(number):
    """Whether there is a process of this number that has not ended."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return os.path.exists("/proc") is False


def test_table_sees_a_difference(alone):
    checksums = alone["checksums"]
    good = example.table(checksums, {1: alone, 2: alone})
    assert sum("yes" in line for line in good) == 3
    assert not any("NO" in line for line in good)
    other = alone | {"checksums": [*checksums[:-1], 0]}
    assert sum("NO" in line for line in example.table(checksums, {1: alone, 2: other})) == 2
    turned = alone | {"parameters": np.nextafter(np.float32(alone["parameters"]), np.float32(0)).tolist()}
    assert sum("NO" in line for line in example.table(checksums, {1: alone, 2: turned})) == 1


def test_marginal_density_integrates_to_one():
    grid = np.linspace(-np.pi, np.pi, 256, endpoint=False).astype(np.float32)
    assert np.mean(example.marginal(grid)) * 2 * np.pi == pytest.approx(1, abs=1e-5)


def test_picture_is_the_same_twice(alone, tmp_path):
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    files = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for file in files:
        with example.settings():
            example.write(example.picture({1: alone, 2: alone}), file)
    assert files[0].read_bytes() == files[1].read_bytes()

"""Concurrent threads draw the angles of a single thread; processes write files without conflict and share a cache."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import jax_von_mises
from tests import children
from tests.streams.test_writer import KEY, read, write

SHAPES = [(7,), (3, 5)]
DRAWS = range(16)


def drawn(i):
    """Return draw `i` and a log density; each `i` has a separate key and parameters, and uses one of four programs."""
    key = jax.random.fold_in(KEY, i)
    dtype = ("float32", "float16")[i // 2 % 2]
    x = jax_von_mises.sample_von_mises(key, 0.1 * i, 0.5 * i, SHAPES[i % len(SHAPES)], dtype)
    return np.asarray(x), float(jax_von_mises.log_prob(0.3, 0.1 * i, 0.5 * i))


def test_threads_draw_the_angles_of_one():
    """Eight threads draw the angles of a single thread, even while two of them compile each of the four programs."""
    barrier = threading.Barrier(8)

    def first(i):
        if i < 8:
            barrier.wait(30)
        return drawn(i)

    jax.clear_caches()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(first, DRAWS))
    for (x, p), (y, q) in zip(together, map(drawn, DRAWS), strict=True):
        np.testing.assert_array_equal(x.view(np.uint8 if x.ndim else x.dtype), y.view(np.uint8 if y.ndim else y.dtype))
        assert p == q


@pytest.mark.more
def test_threads_write_separate_files(tmp_path):
    with ThreadPoolExecutor(6) as pool:
        written = list(pool.map(lambda i: write(tmp_path / f"{i}.npy", 2_000, loc=i / 10), range(6)))
    assert [each.drawn for each in written] == [2] * 6
    for i in range(6):
        expected = jax_von_mises.sample_von_mises(KEY, i / 10, 4.0, (2_000,), method="table")
        np.testing.assert_array_equal(read(tmp_path / f"{i}.npy"), expected)
    assert len(list(tmp_path.iterdir())) == 12


CACHE = """
import json, sys
import jax
from jax_von_mises import initialize_compilation_cache, runtime
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    initialize_compilation_cache(sys.argv[1])
print(json.dumps([float(jax.jit(lambda x: x + 1)(1.0)), runtime.cache_info().entries]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="file modes and owners need POSIX")
def test_processes_create_one_cache(tmp_path):
    """Processes that start together without a cache create one, and none of them warns."""
    tmp_path.chmod(0o700)
    command = [sys.executable, "-W", "error", "-c", CACHE, str(tmp_path / "new" / "cache")]
    environment = children.environment(JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=None)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started = [subprocess.Popen(command, env=environment, **pipes) for _ in range(12)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    reports = []
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        reports.append(json.loads(out))
    assert {value for value, _ in reports} == {2.0}
    assert min(entries for _, entries in reports) > 0

"""Bad arguments of every public function: a clear word or NaN, in time, and nothing else."""

import json
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jax_von_mises as jvm

pytest.importorskip("numpyro", reason="the distribution for NumPyro is called too: the extra `numpyro`")
pytest.importorskip("flatbuffers", reason="samplers are exported too: the extra `export`")

from tests import children, refusals

# Characters of a message: it tells of a value, however long that is.
LONGEST = 700


def told(group, folder):
    """What a process says of each call of a group; it must not crash, hang or leave files."""
    command = [sys.executable, "-W", "error", "-m", "tests.refusals", group, str(folder)]
    environment = children.environment(XLA_FLAGS=None, JAX_NUM_CPU_DEVICES="2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=children.ROOT, env=environment)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr}"
    return [json.loads(line) for line in lines]


def test_every_public_function_is_in_the_table():
    """A new one must be told what it refuses."""
    named = {name for group in refusals.FUNCTIONS.values() for name in group}
    # Two that are made by their class.
    assert refusals.public() - named - refusals.WITHOUT_ARGUMENTS == set()
    assert named - refusals.public() == set()
    assert refusals.WITHOUT_ARGUMENTS - refusals.public() == set()


@pytest.mark.parametrize("group", refusals.FUNCTIONS)
def test_bad_arguments_get_a_clear_word(group, tmp_path):
    """ValueError or TypeError, which names the function and the argument; nothing is written."""
    found = told(group, tmp_path)
    assert len(found) > 300
    unclear = []
    for call in found:
        function, *arguments = call["names"]
        kind = {"ValueError", "TypeError"} & set(call["error"] or ())
        # `shapes` and `dtypes` hold several, of which one is meant.
        named = any(argument.rstrip("s") in call["text"] for argument in arguments)
        if not kind or not named or function not in call["text"] or len(call["text"]) > LONGEST:
            unclear.append(call)
    assert unclear == []
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])


@pytest.mark.parametrize("group", ["lanes", pytest.param("long lanes", marks=pytest.mark.slow)])
def test_bad_values_spoil_their_own_lane_alone(tmp_path, group):
    """They give NaN, extreme ones NaN or what the function may give, and every other lane has the same bits."""
    found = told(group, tmp_path)
    assert len(found) >= (9 if group == "long lanes" else 50)
    for call in found:
        assert (call["spoilt"], call["finite"], call["outside"]) == (0, [], []), call


GOOD = np.full(2**16, 0.5, np.float32)
# Functions that could take longer for some numbers than for others, of a concentration for each lane.
CALLS = {
    "sample_von_mises": lambda k: jvm.sample_von_mises(refusals.KEY, 0.5, k),
    "sample_truncated": lambda k: jvm.sample_truncated(refusals.KEY, 0.5, k[: 2**12], 0.0, 1.0),
    "icdf": lambda k: jvm.icdf(GOOD, 0.5, k),
    "cdf": lambda k: jvm.cdf(GOOD, 0.5, k),
    "log_prob": lambda k: jvm.log_prob(GOOD, 0.5, k),
    "fit": jvm.fit,
}


def best(call, value, times=15):
    """The shortest of several calls, after one that compiles."""
    jax.block_until_ready(call(value))
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(call(value))
        found.append(time.perf_counter() - start)
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf, 1e-45, 3e38])
def test_bad_values_take_no_longer(name, bad):
    """There is no loop that waits for a lane. Subnormal numbers cost some CPUs more, hence the room."""
    mixed = GOOD.copy()
    mixed[::2] = bad
    assert best(CALLS[name], mixed) < 4 * best(CALLS[name], GOOD) + 1e-3

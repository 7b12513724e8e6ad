"""Invalid arguments of all public functions: a clear message or NaN, in bounded time."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_von_mises as jvm

pytest.importorskip("numpyro", reason="the distribution for NumPyro is called too: the extra `numpyro`")
pytest.importorskip("flatbuffers", reason="samplers are exported too: the extra `export`")

from tests import children, refusals

# Largest number of characters in a message, however long the value is.
LONGEST = 700


def test_every_public_function_is_in_the_table():
    """A new function must be listed with its invalid arguments."""
    named = {name for group in refusals.FUNCTIONS.values() for name in group}
    assert refusals.public() - named - refusals.WITHOUT_ARGUMENTS == set()
    assert named - refusals.public() == set()
    assert refusals.WITHOUT_ARGUMENTS - refusals.public() == set()


def test_bad_arguments_get_a_clear_message(tmp_path):
    """The error is a ValueError or TypeError that names function and argument; no crash, no hang, and no file."""
    command = [sys.executable, "-W", "error", "-m", "tests.refusals", str(tmp_path)]
    environment = children.environment(XLA_FLAGS=None, JAX_NUM_CPU_DEVICES="2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=children.ROOT, env=environment)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr}"
    found = [json.loads(line) for line in lines]
    assert len(found) > 1000
    unclear = []
    for call in found:
        function, *arguments = call["names"]
        kind = {"ValueError", "TypeError"} & set(call["error"] or ())
        # `shapes` and `dtypes` hold several values, one of which is invalid.
        named = any(argument.rstrip("s") in call["text"] for argument in arguments)
        if not kind or not named or function not in call["text"] or len(call["text"]) > LONGEST:
            unclear.append(call)
    assert unclear == []
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])


NAN, INF = np.nan, np.inf
EXTREME = [0.0, -0.0, 1e-45, -1e-45, 3e38]
# Values of one element: invalid ones, which must give NaN, and allowed extremes.
VALUES = {
    "loc": ([NAN, INF, -INF], [*EXTREME, -3e38, 2.0**24]),
    "concentration": ([NAN, -1.0, -INF, -3e38], [*EXTREME, INF]),
    "q": ([NAN, -0.5, 1.5, INF, -INF], [*EXTREME[:-1], 1.0]),
    "size": ([NAN, -1.0, -INF], EXTREME),
}


@pytest.mark.parametrize(
    ("function", "names", "low", "high"),
    [
        (lambda *parameters: jvm.sample_von_mises(refusals.KEY, *parameters), ["loc", "concentration"], -np.pi, np.pi),
        (jvm.icdf, ["q", "loc", "concentration"], -INF, INF),
        (jvm.kl_divergence, ["loc", "concentration"] * 2, 0, INF),
        (jvm.standard_errors, ["concentration", "size"], 0, INF),
    ],
    ids=["sample_von_mises", "icdf", "kl_divergence", "standard_errors"],
)
def test_bad_values_affect_only_their_own_element(function, names, low, high):
    """They give NaN, extreme ones NaN or an allowed value, and every other element keeps its bits."""
    width = 2 * max(len(bad) + len(extreme) for bad, extreme in VALUES.values())
    good = [np.full(width, 0.5, np.float32) for _ in names]
    undisturbed = jax.tree.leaves(function(*good))
    for place, name in enumerate(names):
        bad, extreme = VALUES[name]
        mixed = good[place].copy()
        mixed[1 : 2 * (len(bad) + len(extreme)) : 2] = [*bad, *extreme]
        found = jax.tree.leaves(function(*good[:place], mixed, *good[place + 1 :]))
        for x, expected in zip(map(np.asarray, found), map(np.asarray, undisturbed), strict=True):
            np.testing.assert_array_equal(x[::2].view(np.int32), expected[::2].view(np.int32))
            assert (np.isnan(x) | ((x >= np.float32(low)) & (x <= np.float32(high)))).all(), (place, mixed, x)
        spoilt = np.isnan(np.stack(found))[:, 1 : 2 * len(bad) : 2]
        assert spoilt.any(0).all() if function is jvm.standard_errors else spoilt.all(), (place, bad)

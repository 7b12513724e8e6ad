"""Invalid arguments of all public functions give an error with a clear message, or NaN, in bounded time."""

import inspect
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_von_mises as jvm

pytest.importorskip("numpyro", reason="the table includes the distributions for NumPyro (extra `numpyro`)")

from tests import children, refusals

# Largest number of characters in a message, however long the value is.
LONGEST = 700


def test_every_public_function_is_in_the_table():
    """The table lists every public function and no other, besides methods of the classes for NumPyro."""
    named = {name for name, _ in refusals.public_rows()}
    assert named | refusals.WITHOUT_ARGUMENTS == refusals.public()


def test_every_argument_is_in_the_table():
    """All but `validate_args`, of which any value counts as true or false."""
    for name, row in refusals.public_rows():
        function = refusals.public_function(name)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        accepted = {k for k, each in inspect.signature(function).parameters.items() if each.kind not in variadic}
        assert accepted - {"self", "validate_args"} <= set(row.kinds), name


def test_invalid_arguments_get_a_clear_message(tmp_path):
    """Each invalid argument raises a ValueError or TypeError that names the function and the argument.

    The calls leave at most a cache directory.
    """
    command = [sys.executable, "-W", "error", "-m", "tests.refusals", str(tmp_path)]
    environment = children.environment(XLA_FLAGS=None, JAX_NUM_CPU_DEVICES="2", JAX_COMPILATION_CACHE_DIR=None)
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=children.ROOT, env=environment)
    lines = completed.stdout.splitlines()
    assert completed.returncode == 0, f"after {lines[-1:]}: {completed.stderr}"
    calls = [json.loads(line) for line in lines]
    assert len(calls) > 800
    unclear = []
    for call in calls:
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
# Values for one element: invalid ones, which must give NaN, and allowed extremes.
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
def test_invalid_values_affect_only_their_own_element(function, names, low, high):
    """Invalid values give NaN, extreme values NaN or an allowed value, and all other elements keep their bits."""
    width = 2 * max(len(invalid) + len(extreme) for invalid, extreme in VALUES.values())
    good = [np.full(width, 0.5, np.float32) for _ in names]
    undisturbed = jax.tree.leaves(function(*good))
    for place, name in enumerate(names):
        invalid, extreme = VALUES[name]
        mixed = good[place].copy()
        mixed[1 : 2 * (len(invalid) + len(extreme)) : 2] = [*invalid, *extreme]
        results = jax.tree.leaves(function(*good[:place], mixed, *good[place + 1 :]))
        for x, expected in zip(map(np.asarray, results), map(np.asarray, undisturbed), strict=True):
            np.testing.assert_array_equal(x[::2].view(np.int32), expected[::2].view(np.int32))
            assert (np.isnan(x) | ((x >= np.float32(low)) & (x <= np.float32(high)))).all(), (place, mixed, x)
        is_nan = np.isnan(np.stack(results))[:, 1 : 2 * len(invalid) : 2]
        assert is_nan.any(0).all() if function is jvm.standard_errors else is_nan.all(), (place, invalid)

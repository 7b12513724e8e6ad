"""Test the detection of a busy machine, mostly on made-up measurements."""

import json
import math

import pytest

from benchmarks import quiet


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ((2.0, 2, 0.0, 0.03), ""),
        ((3.1, 2, 0.0, 0.03), "load average 3.1 on 2 cores"),
        ((0.1, 2, 0.05, 0.03), "5% of the CPU time"),
        ((0.1, 2, 0.0, 0.3), "varies by 30%"),
        ((0.1, 2, 0.0, None), "too little CPU time"),
    ],
)
def test_decision(measured, reason):
    state = quiet.decide(*measured)
    assert state.quiet == (not reason)
    assert reason in state.reason
    assert state.reason in state.text()
    assert json.loads(json.dumps(state.as_dict(), allow_nan=False)) == state._asdict()


def test_the_worst_core_counts():
    steady, slow = [1.0] * 9, [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert quiet.worst_spread([steady, steady]) == 0
    assert quiet.worst_spread([steady, slow]) == 1.0
    assert quiet.worst_spread([steady, steady[:3]]) is None


def test_a_real_check():
    state = quiet.check(0.1)
    assert state.load >= 0
    assert 0 <= state.steal <= 1
    assert math.isfinite(state.spread)
    assert state.quiet == (state.reason == "")

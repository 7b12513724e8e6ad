"""Test the benchmark of the first call on made-up processes and on one real process."""

import json

import numpy as np
import pytest

from benchmarks import goals, quiet, startup


def pretended(order):
    """Return made-up times: the first call takes 1 s without a cache and 0.1 s with one; PyTorch is not installed."""
    if order["way"] == "torch":
        return {"missing": "not installed"}
    first = 1.0 if not order["cache"] else 0.1
    return dict.fromkeys(startup.PARTS, 0.01) | {"first": first, "ready": 0.05 if order["cache"] else 0.0}


@pytest.mark.slow
def test_result(tmp_path, monkeypatch, capsys):
    orders = []
    monkeypatch.setattr(startup, "ask", lambda order: orders.append(order) or pretended(order))
    monkeypatch.setattr(quiet, "check", lambda: quiet.decide(0.0, 2, 0.0, 0.0))
    assert startup.main(["--rounds", "3", "--json", str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    ways = result["tasks"]["one"]["ways"]
    assert list(ways) == [way.name for way in startup.WAYS if way.name != "torch"]
    assert result["missing"] == {"torch": "not installed"}
    assert ways["compile"]["seconds"] == pytest.approx(1.0)
    assert ways["cache"]["seconds"] == pytest.approx(0.15)
    assert ways["cache"]["parts"]["first"] == pytest.approx(0.1)
    # Before the rounds, processes fill each full cache and try each peer. Ways that keep programs have separate caches.
    before = sum(way.cache == "full" or way.peer != startup.OURS for way in startup.WAYS) - 1
    assert len(orders) == 1 + 2 * (before + 3 * (len(startup.WAYS) - 1))
    empty = [order["cache"] for order in orders if order["cache"] and "keep" in order["cache"]]
    assert len(set(empty)) == len(empty) == 6
    assert result["machine_state"]["quiet"]
    text = capsys.readouterr().out
    assert "2 met, 2 too close to tell" in text  # compiling takes exactly the allowed time
    assert "PyTorch (not installed)" in text


@pytest.mark.parametrize(
    ("seconds", "busy", "state"),
    [
        ([1.5] * 3, False, goals.MISSED),
        ([0.5] * 3, False, goals.MET),
        ([0.5] * 3, True, quiet.BUSY),
        ([0.5, 1.0, 2.0], False, goals.TOO_NOISY),
    ],
)
def test_goals(seconds, busy, state):
    rounds = [pretended({"cache": None, "way": "compile"}) | {"first": first} for first in seconds]
    summary = startup.summarise({"one": {"compile": rounds}})
    assert state in startup.goal_text(summary, busy)


@pytest.mark.slow
def test_a_process(tmp_path):
    """A process with a cache reports the time of every step."""
    ways = [way for way in startup.WAYS if way.name == "cache"]
    measured, missing = startup.measure(ways, ["array"], 1, tmp_path)
    assert missing == {}
    (parts,) = measured["array"]["cache"]
    assert list(parts) == list(startup.PARTS)
    assert np.all(np.array(list(parts.values())) > 0)
    assert list((tmp_path / "array-cache").glob("*-cache")), "the cache must keep the program"


def test_invalid_arguments(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        startup.main(["--json", str(tmp_path / "no" / "x.json")])
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="a process failed"):
        startup.ask({})


def test_a_missing_peer_gives_the_reason(monkeypatch):
    monkeypatch.setattr(startup, "WAYS", [startup.Way("other", "Other", peer="torch", module="no_such_library")])
    assert startup.live({"way": "other", "task": "array"}) == {"missing": "No module named 'no_such_library'"}

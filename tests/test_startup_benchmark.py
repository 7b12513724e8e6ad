"""The benchmark of the first call, on made-up processes but for one."""

import json

import numpy as np
import pytest

from benchmarks import startup
from benchmarks.text import NOISE


def pretended(order):
    """What a process would tell: compiling takes a second, and less from a cache or a file."""
    first = 1.0 if not order["cache"] else 0.1
    return dict.fromkeys(startup.PARTS, 0.01) | {"first": first, "ready": 0.05 if order["file"] else 0.0}


def test_result(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(startup, "ask", lambda order: asked.append(order) or pretended(order))
    assert startup.main(["--rounds", "3", "--json", str(tmp_path / "result.json")]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    ways = result["tasks"]["one"]["ways"]
    assert list(ways) == [way.name for way in startup.WAYS]
    assert ways["compile"]["seconds"] == pytest.approx(1.0)
    assert ways["file"]["seconds"] == pytest.approx(1.05)
    assert ways["cache"]["parts"]["first"] == pytest.approx(0.1)
    # Those that find a full cache have filled it before, and each that keeps has one of its own.
    full = sum(way.cache == "full" for way in startup.WAYS)
    assert len(asked) == 2 * (full + 3 * len(startup.WAYS))
    empty = [order["cache"] for order in asked if order["cache"] and "keep" in order["cache"]]
    assert len(set(empty)) == len(empty) == 6
    text = capsys.readouterr().out
    assert "from the cache" in text
    assert "one, cache" in text
    assert "met" in text
    assert "MISSED" not in text


def test_goals_can_be_missed():
    summary = startup.summarise({"one": {"compile": [pretended({"cache": None, "file": None}) | {"first": 1.5}] * 3}})
    assert "MISSED" in startup.goal_text(summary)


def test_spread_is_told():
    rounds = [pretended({"cache": "x", "file": None}) | {"first": first} for first in (0.1, 0.2, 0.4)]
    summary = startup.summarise({"one": {"cache": rounds}})
    assert summary["one"]["cache"]["wide"]
    assert startup.summary_text("one", summary["one"]).splitlines()[2].split()[-5:] == [NOISE] * 5
    assert "too noisy" in startup.goal_text(summary)


def test_a_process(tmp_path):
    """One that loads a file and has a cache does all there is to do."""
    found = startup.measure([way for way in startup.WAYS if way.name == "file-cache"], ["array"], 1, tmp_path)
    (parts,) = found["array"]["file-cache"]
    assert list(parts) == list(startup.PARTS)
    assert np.all(np.array(list(parts.values())) > 0)
    assert list((tmp_path / "array-file-cache").glob("*-cache")), "the program was kept"


def test_bad_arguments(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        startup.main(["--json", str(tmp_path / "no" / "x.json")])
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="a process failed"):
        startup.ask({})

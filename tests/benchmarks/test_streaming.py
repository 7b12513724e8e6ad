"""Test the benchmark of long streams and its pictures."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks import quiet, timing
from benchmarks.streaming import __main__ as streaming
from benchmarks.streaming import cases, pictures, process
from tests import children

SIZE = 20_000
COMMITTED = Path(streaming.__file__).parents[1] / "results" / "streaming-cpu-epyc-2-cores.json"
QUIET, BUSY = quiet.decide(0.1, 2, 0.0, 0.01), quiet.decide(9.0, 2, 0.0, 0.01)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Run all sections on a tiny stream, tracing only the memory of a stream to .npy; return the path of the result."""
    pytest.importorskip("zarr", reason="zarr-python is not installed (extra `storage`)")
    directory = tmp_path_factory.mktemp("streaming")
    path, place = directory / "result.json", directory / "disk"
    place.mkdir()
    (place / "other.npy").write_text("not ours")
    command = ["--size", str(SIZE), "--quick", "--rounds", "2", "--json", str(path), "--directory", str(place)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "KINDS", {"npy": process.KINDS["npy"]})
        assert streaming.main(command) == 0
    assert [each.name for each in place.iterdir()] == ["other.npy"]
    return path


@pytest.mark.slow
def test_a_complete_run(measured):
    result = json.loads(measured.read_text())
    assert (result["program"], result["format"]) == ("streaming", streaming.FORMAT)
    assert result["options"] == {"mode": "quick", "size": SIZE, "rounds": 2, "block": SIZE // streaming.PARTS}
    assert {"quiet", "reason"} <= set(result["machine_state"])
    assert result["goals"] == []  # too small to judge
    sections = result["sections"]
    assert set(sections) == {"host idle", "host busy", "disk", "memory"}
    assert set(sections["disk"]["results"]) == {"plain", "npy", "zarr", "save", "draw", "read"}
    assert {"prefetch 1", "prefetch 2", "prefetch 4", "draw", "work"} <= set(sections["host busy"]["results"])
    for name in ("host idle", "host busy", "disk"):
        for entry in sections[name]["results"].values():
            assert entry["rate"] == pytest.approx(sections[name]["count"] / np.median(entry["seconds"]))
    held = sections["memory"]
    assert held["whole_bytes"] == 4 * SIZE
    assert held["results"]["npy"]["trace"][0][1] > 10_000_000


@pytest.mark.slow
def test_pictures_of_new_and_committed_results(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    for result in (measured, COMMITTED):
        drawn = []
        for name in ("one.svg", "two.svg"):
            assert pictures.main([str(result), "--out", str(tmp_path / name)]) == 0
            drawn.append((tmp_path / name).read_bytes())
        assert drawn[0] == drawn[1]


def test_texts_of_the_committed_result():
    sections = json.loads(COMMITTED.read_text())["sections"]
    for name in ("host idle", "host busy", "disk", "memory"):
        text = streaming.section_text(name, sections[name])
        assert all(row["label"] in text for row in sections[name]["results"].values())
    assert "divided by the rate of plain write of ready bytes" in streaming.section_text("disk", sections["disk"])


def test_a_busy_machine_gives_no_verdict(tmp_path, monkeypatch, capsys):
    sections = json.loads(COMMITTED.read_text())["sections"]
    monkeypatch.setattr(streaming, "measure", lambda *_: sections)
    for state, goals in ((QUIET, 4), (BUSY, 0)):
        monkeypatch.setattr(quiet, "check", lambda state=state: state)
        assert streaming.main(["--quick", "--directory", str(tmp_path), "--json", str(tmp_path / "a.json")]) == 0
        result = json.loads((tmp_path / "a.json").read_text())
        assert len(result["goals"]) == goals
        assert result["machine_state"]["quiet"] == (goals > 0)
        assert (quiet.BUSY in capsys.readouterr().out) == (goals == 0)


def test_goals():
    npy = {"ratio": 0.7, "ratio_quartiles": [0.68, 0.72], "wide": False}
    sections = {
        "disk": {"results": {"npy": npy, "plain": {"wide": False}}},
        "memory": {
            "block_bytes": 100,
            "results": {"npy": {"label": "", "growth_bytes": 400}, "zarr": {"label": "", "growth_bytes": 401}},
        },
    }
    assert [each["state"] for each in streaming.judge(sections)] == ["MISSED", "met", "MISSED"]
    for quartiles, state in (([0.6, 0.8], "too close to tell"), ([0.8, 0.9], "met")):
        npy["ratio_quartiles"] = quartiles
        assert streaming.judge(sections)[0]["state"] == state
    sections["disk"]["results"]["plain"]["wide"] = True
    assert streaming.judge(sections)[0]["state"] == "too noisy"


def test_an_interrupt_removes_the_files_of_the_run_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "other").write_text("not ours")

    def interrupted(plan, scratch):
        scratch.fresh("left").write_bytes(b"data")
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt

    monkeypatch.setitem(streaming.SECTIONS, "host", interrupted)
    assert streaming.main(["--directory", str(tmp_path), "--size", "1000"]) == 130
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
    assert "have been removed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_that_fails_is_an_error(tmp_path, capfd):
    with pytest.raises(process.Failed, match="ended with code 1"):
        process.run("npy", tmp_path / "none" / "a.npy", 10, 5)
    assert "there is no directory" in capfd.readouterr().err


def test_impossible_runs_are_refused_before_the_measurement(tmp_path, monkeypatch, capsys):
    for size in ("1.5", "0", "nan", "1e17"):
        with pytest.raises(SystemExit):
            streaming.main([f"--size={size}"])
    assert streaming.main(["--directory", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    assert streaming.main(["--directory", str(tmp_path), "--size", "1e9"]) == 2
    assert "953.7 MiB free" in capsys.readouterr().err


def test_impossible_ways_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.setattr(cases.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    runs, missing = cases.disk(1_000, 100, cases.Scratch(tmp_path))
    assert set(runs) == {"plain", "npy", "draw", "read"}
    assert "jax_von_mises[storage]" in missing["zarr"]
    assert "11.72 KiB of memory" in missing["save"]


def test_the_loop_by_hand_and_the_plain_files_move_all_angles(tmp_path):
    assert [len(values) for values in cases.by_hand(jax.random.key(0), 25, 10)] == [10, 10, 5]
    path = tmp_path / "plain"
    cases.plain_write(path, 2_500, memoryview(bytes(range(250)) * 4))
    assert path.read_bytes() == bytes(range(250)) * 10
    cases.forget_cached(path)
    cases.plain_read(path, piece=1_000)


def test_ratios_are_taken_round_by_round():
    now = [0.0]

    def competitor(*seconds):
        def wait(i):
            now[0] += seconds[i]

        return timing.Competitor(lambda i: i, wait=wait)

    runs = {
        "plain": cases.Run("plain", competitor(9, 1, 2, 8)),
        "ours": cases.Run("ours", competitor(7, 2, 4, 4), "plain"),
    }
    comparison = streaming.compare(runs, 100, 3, lambda: now[0])
    assert comparison["plain"]["seconds"] == [1, 2, 8]
    assert comparison["plain"]["rate"] == 50
    assert comparison["ours"]["first_call_seconds"] == 7
    assert comparison["ours"]["ratio"] == 0.5  # median of 1/2, 2/4 and 8/4
    assert comparison["ours"]["ratio_quartiles"] == [0.5, 1.25]


# Use a separate process, since this one may free memory of earlier tests at any time.
GROWTH = """
import time
import numpy as np
from benchmarks import memory
size = 2**25
with memory.Trace(0.001) as trace:
    held = np.ones(size, np.uint8)
    time.sleep(0.05)
    del held
    time.sleep(0.05)
assert 0.9 * size < trace.growth() < 1.5 * size
assert 0.9 * size < trace.growth(private=True) < 1.5 * size
assert trace.points[-1][1] - trace.points[0][1] < 0.5 * size
"""


def test_growth_of_memory_is_recorded():
    children.run(GROWTH)


def test_file_systems_are_found_by_the_longest_mount(monkeypatch):
    mounts = [("/", "ext4"), ("/data/deep", "nfs4"), ("/data", "xfs"), ("/data", "tmpfs")]
    partitions = [SimpleNamespace(mountpoint=place, fstype=kind) for place, kind in mounts]
    monkeypatch.setattr(streaming.psutil, "disk_partitions", lambda all: partitions)
    places = ("/home", "/data", "/data/deep/er", "/database")
    assert [streaming.filesystem(Path(place)) for place in places] == ["ext4", "tmpfs", "nfs4", "ext4"]

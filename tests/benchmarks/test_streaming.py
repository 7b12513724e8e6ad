"""The benchmark of long streams, its pictures and the model of many processes."""

import importlib.util
import json
import math
import shutil
import sys

import numpy as np
import pytest

from benchmarks import (
    files,
    goals,
    memory,
    scaling,
    stream_cases,
    stream_process,
    streaming,
    streaming_plots,
    timing,
)
from tests import children

pytest.importorskip("tensorstore", reason="stores are written through TensorStore: the extra `storage`")

SIZE = 20_000


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Result file, and what was printed, of a tiny run of everything; the processes are those of one traced stream."""
    directory = tmp_path_factory.mktemp("streaming")
    path, place = directory / "result.json", directory / "disk"
    place.mkdir()
    command = ["--size", str(SIZE), "--quick", "--rounds", "2", "--json", str(path), "--directory", str(place)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "TRACED", ("npy",))
        patch.setattr(streaming, "RECORDED", {"quick": (10, 1_000)})
        patch.setattr(stream_process, "run", pretended(stream_process.run))
        assert streaming.main(command) == 0
    assert list(place.iterdir()) == []
    return path


def pretended(run):
    """Run what is traced in a process, and tell made-up times of the others, each of which takes seconds to start."""

    def start(orders):
        if orders[0]["trace"]:
            return run(orders)
        steady = 3.0 / len(orders)
        times = {"imported": 1.0, "compiled": 3.0, "written": steady, "finished": steady + 0.5}
        return [times for _ in orders]

    return start


@pytest.fixture
def result(measured):
    return json.loads(measured.read_text())


def test_a_whole_run(result):
    assert (result["program"], result["format"]) == ("streaming", streaming.FORMAT)
    assert result["options"] == {"mode": "quick", "size": SIZE, "rounds": 2, "block": SIZE // streaming.PARTS}
    assert set(result["environment"]["versions"]) >= {"jax", "numpy", "tensorstore"}
    assert result["disk"]["free_bytes"] > 0
    sections = result["sections"]
    assert set(sections) == {"draw", "host idle", "host busy", "apply", "disk", "record", "processes", "memory"}
    assert set(sections["disk"]["results"]) == {"plain", "npy", "zarr", "save", "draw", "read"}
    assert {"prefetch 1", "prefetch 2", "prefetch 4", "draw", "work"} <= set(sections["host busy"]["results"])
    for name in ("draw", "host idle", "host busy", "apply", "disk"):
        for found in sections[name]["results"].values():
            assert len(found["seconds"]) == 2
            assert found["rate"] == pytest.approx(sections[name]["count"] / np.median(found["seconds"]))
            if found["against"] is not None:
                against = sections[name]["results"][found["against"]]["seconds"]
                assert found["ratio"] == pytest.approx(np.median(np.divide(against, found["seconds"])))
    assert all(found["peak_bytes"] >= 0 for found in sections["apply"]["results"].values())
    assert sections["processes"]["results"]["2"]["seconds"]["steady"] == [1.5, 1.5]
    held = sections["memory"]
    assert held["whole_bytes"] == 4 * SIZE
    assert held["results"]["npy"]["trace"][0][1] > 10_000_000
    assert [goal["peer"] for goal in result["goals"]] == ["a plain write", "the growth of memory: npy"]


def test_texts_of_a_whole_run(result):
    plan = streaming.Plan(SIZE, 2, "quick", streaming.SECTIONS)
    texts = [streaming.section_text(name, found, plan) for name, found in result["sections"].items()]
    for part in ("faster by: than plain write", "peak memory", "to the last block", "the whole result in memory"):
        assert any(part in text for text in texts)
    text = streaming.summary(result["sections"])
    assert "of its bound, which is" in text
    assert "fill a store 2.00 times as fast as one" in text
    assert "a plain write" in streaming.verdict_text(streaming.verdicts(result["sections"]))


def test_two_processes_begin_together_and_fill_one_store(tmp_path):
    order = {"kind": "zarr", "path": str(tmp_path / "a.zarr"), "total": 1_000, "block": 100, "parts": 2}
    reports = stream_process.run([order | {"part": part, "seed": 3, "trace": False} for part in (0, 1)])
    for report in reports:
        assert 0 < report["imported"] < report["compiled"]
        assert 0 < report["written"] <= report["finished"]
    assert stream_cases.jvm.verify_samples(tmp_path / "a.zarr")["shape"] == (1_000,)


def test_a_process_that_fails_ends_the_others(tmp_path, capfd):
    order = {"kind": "zarr", "path": str(tmp_path / "none" / "a.zarr"), "total": 10, "block": 5, "parts": 1}
    with pytest.raises(stream_process.Failed, match="ended with code 1"):
        stream_process.run([order | {"part": 0, "seed": 3, "trace": False}])
    assert "there is no directory" in capfd.readouterr().err


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(plan, scratch):
        scratch.fresh("left").write_bytes(b"data")
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setitem(streaming.MEASURE, "draw", interrupted)
    assert streaming.main(["--directory", str(tmp_path), "--size", "1000"]) == 130
    assert list(tmp_path.iterdir()) == []
    assert "has been removed" in capsys.readouterr().err


def test_a_full_disk_is_told_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    assert streaming.main(["--directory", str(tmp_path), "--size", "1e9"]) == 2
    error = capsys.readouterr().err
    assert "953.7 MiB free" in error
    assert "--size" in error


@pytest.mark.parametrize(
    ("option", "message"), [("--json", "there is no folder"), ("--directory", "there is no such folder")]
)
def test_missing_folders_are_one_line(option, message, tmp_path, capsys):
    try:
        code = streaming.main([option, str(tmp_path / "none" / "none")])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("size", ["1.5", "0", "-8", "nan", "inf", "1e17", "many"])
def test_sizes_are_whole_numbers(size, capsys):
    with pytest.raises(SystemExit):
        streaming.main([f"--size={size}"])
    assert "--size" in capsys.readouterr().err


def test_without_tensorstore_the_files_are_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    runs, missing = stream_cases.disk(1_000, 100, stream_cases.Scratch(tmp_path))
    assert "zarr" not in runs
    assert "jax_von_mises[storage]" in missing["zarr"]
    plan = streaming.Plan(1_000, 1, "quick", ("processes",))
    found = streaming.processes_case(plan, None)["processes"]
    assert found["results"] == {}
    assert "jax_von_mises[storage]" in streaming.processes_text(found)


def test_numpy_save_is_left_out_where_it_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine", lambda: {"total": 10_000, "available": 10_000})
    runs, missing = stream_cases.disk(1_000, 100, stream_cases.Scratch(tmp_path))
    assert "save" not in runs
    assert "11.72 KiB of memory" in missing["save"]


def test_all_loops_see_every_angle():
    sizes = [len(values) for values in stream_cases.by_hand(stream_cases.jax.random.key(0), 25, 10)]
    assert sizes == [10, 10, 5]
    seen = []
    consume, sines = stream_cases.busy(100, 1e-3)
    assert sines > 0
    consume(np.zeros(30, np.float32))
    for value in stream_cases.batches(stream_cases.jax.random.key(0), 25, 10):
        seen.append(len(value))
    assert seen == [10, 10, 5]


def test_plain_write_and_read_move_all_bytes(tmp_path):
    path = tmp_path / "plain"
    stream_cases.plain_write(path, 2_500, memoryview(bytes(range(250)) * 4))
    assert path.read_bytes() == (bytes(range(250)) * 4) * 2 + bytes(range(250)) * 2
    stream_cases.forget_cached(path)
    stream_cases.plain_read(path, piece=1_000)


def test_turns_have_the_same_length_for_all():
    now = [0.0]

    def wait(seconds):
        now[0] += seconds

    competitors = {
        "short": timing.Competitor(lambda i: 0.25, wait=wait),
        "long": timing.Competitor(lambda i: i, wait=wait),
    }
    found = timing.take_turns(competitors, 3, lambda: now[0])
    assert found["long"] == [1, 2, 3]
    assert found["short"] == [0.25] * 3


def test_ratios_are_taken_round_by_round():
    now = [0.0]

    def competitor(*seconds):
        def wait(i):
            now[0] += seconds[i]

        return timing.Competitor(lambda i: i, wait=wait)

    runs = {
        "plain": stream_cases.Run("plain", competitor(9, 1, 2, 8)),
        "ours": stream_cases.Run("ours", competitor(7, 2, 4, 4), "plain"),
    }
    found = streaming.compare(runs, 100, 3, lambda: now[0])
    assert found["plain"]["seconds"] == [1, 2, 8]
    assert found["plain"]["rate"] == 50
    assert found["ours"]["first_call_seconds"] == 7
    assert found["ours"]["ratio"] == 0.5  # of 1/2, 2/4 and 8/4
    assert found["ours"]["ratio_quartiles"] == [0.5, 1.25]
    assert "ratio" not in found["plain"]


def test_verdicts_on_goals():
    npy = {"ratio": 0.7, "ratio_quartiles": [0.68, 0.72], "wide": False}
    disk = {"results": {"npy": npy, "plain": {"wide": False}}}
    held = {"block_bytes": 100, "results": {"npy": {"growth_bytes": 400}, "zarr": {"growth_bytes": 401}}}
    found = streaming.verdicts({"disk": disk, "memory": held})
    assert [verdict.state for verdict in found] == [goals.MISSED, goals.MET, goals.MISSED, goals.NOT_MEASURED]
    npy["ratio_quartiles"] = [0.6, 0.8]
    assert streaming.verdicts({"disk": disk})[0].state == goals.TOO_CLOSE
    disk["results"]["plain"]["wide"] = True
    assert streaming.verdicts({"disk": disk})[0].state == goals.TOO_NOISY


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


def test_memory_is_seen_to_grow():
    """In a process of its own: here, memory of earlier tests may be given back meanwhile."""
    children.run(GROWTH)


def test_memory_without_psutil(monkeypatch, tmp_path):
    if not memory.STATM.exists():
        pytest.skip("this system has no /proc")
    monkeypatch.setattr(memory, "psutil", None)
    assert 0 < memory.resident().private < memory.resident().total
    assert 0 < memory.machine()["available"] <= memory.machine()["total"]
    monkeypatch.setattr(memory, "STATM", tmp_path / "none")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    with pytest.raises(ImportError, match="pip install psutil"):
        memory.resident()
    assert memory.machine() == {"total": None, "available": None}


def test_file_systems_are_found_by_the_longest_mount(monkeypatch, tmp_path):
    table = tmp_path / "mountinfo"
    deep = tmp_path / "with space"
    deep.mkdir()
    place = str(deep).replace(" ", "\\040")
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:5 / {place} rw,nosuid shared:3 - nfs4 host:/x rw\n"
        f"3 1 0:6 / {tmp_path} rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(memory, "MOUNTS", table)
    assert [memory.filesystem(path) for path in ("/", tmp_path, deep)] == ["ext4", "tmpfs", "nfs4"]
    monkeypatch.setattr(memory, "MOUNTS", tmp_path / "none")
    assert memory.filesystem(tmp_path) is None


def test_picture_is_the_same_bytes_every_time(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    pictures = []
    for name in ("one.svg", "two.svg"):
        assert streaming_plots.main([str(measured), "--out", str(tmp_path / name)]) == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]


def test_picture_without_matplotlib_names_the_extra(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert streaming_plots.main([str(measured), "--out", str(tmp_path / "picture.svg")]) == 1
    assert f"{sys.executable} -m pip install -e " in capsys.readouterr().err


OTHER_FILES = [
    ("{}", "has no 'program'"),
    ('{"program": "other"}', "is no result of streaming"),
    ('{"program": "streaming", "format": 99}', "format 99 is not 1"),
    ('{"program": "streaming", "format": 1, "sections": {}}', "without --sections"),
    ("text", "Expecting value"),
]


@pytest.mark.parametrize(("text", "message"), OTHER_FILES)
def test_other_files_are_refused(text, message, tmp_path, capsys):
    source = tmp_path / "result.json"
    source.write_text(text)
    assert scaling.main(["--from", str(source)]) == 1
    assert message in capsys.readouterr().err
    if importlib.util.find_spec("matplotlib"):
        assert streaming_plots.main([str(source), "--out", str(tmp_path / "picture.svg")]) == 1
        assert message in capsys.readouterr().err


# 1000 angles of 4 bytes, in 10 blocks.
RATES = scaling.Rates(draw=50.0, link=100.0, shared=250.0, start_up=3.0, compile=2.0, block=100)


@pytest.mark.parametrize(
    ("processes", "changes", "expected"),
    [
        (1, {}, (20, 40, 0, 45, scaling.OWN_STORAGE)),
        (2, {}, (10, 20, 0, 25, scaling.OWN_STORAGE)),
        (4, {}, (5, 16, 0, 21, scaling.SHARED_STORAGE)),
        (1, {"draw": 20.0}, (50, 40, 0, 55, scaling.DRAWING)),
        (2, {"draw_shared": 50.0}, (20, 20, 0, 25, scaling.DRAWING)),
        # 10 records of 1 s, and 0 + 1 + ... + 9 = 45 lines of 2 s.
        (1, {"record": 1.0, "record_growth": 2.0}, (20, 40, 100, 145, scaling.RECORDING)),
        # The most blocks of one of 4 processes are 3: 3 records, and 0 + 1 + 2 lines.
        (4, {"record": 1.0, "record_growth": 2.0}, (5, 16, 9, 30, scaling.SHARED_STORAGE)),
    ],
)
def test_model_is_the_formula(processes, changes, expected):
    assert scaling.predict(1_000, processes, RATES._replace(**changes)) == expected


def test_cost_and_rates_in_series():
    assert scaling.cost(8, 1_800, 3.0) == 12.0
    assert scaling.in_series(2.0, 2.0) == 1.0
    assert scaling.in_series(3.0, math.inf) == 3.0


def synthetic():
    """A result of a machine that draws 100 angles/s, writes 800 B/s and keeps to the model but for one process."""

    def once(seconds):
        return {"seconds": [seconds], "rate": 800 / seconds}

    phases = {"start_up": [1.0, 1.0], "compile": [2.0, 2.0], "finish": [0.0, 0.0]}
    record = {"seconds_each": 0.5, "seconds_each_per_block_done": 0.0}
    return {
        "program": "streaming",
        "format": 1,
        "options": {"block": 100},
        "environment": {"platform": "gpu"},
        "sections": {
            "disk": {
                "count": 800,
                "results": {"draw": once(8.0), "plain": once(4.0), "npy": once(10.0), "read": once(2.0)},
            },
            "record": {"checksum_rate": 1e9, "results": {"npy": record, "zarr": record}},
            "processes": {
                "count": 800,
                "block": 100,
                "results": {
                    "1": {"seconds": phases | {"steady": [20.0, 20.0]}},
                    "2": {"seconds": phases | {"steady": [10.0, 10.0]}},
                },
            },
        },
    }


def test_parameters_and_predictions_of_a_machine():
    rates = scaling.fitted(synthetic())
    # 20 s, of which 8 records take 4: 3200 bytes in 16 s.
    assert rates == scaling.Rates(100, 200, 800, draw_shared=100, start_up=1, compile=2, record=0.5, block=100)
    points = scaling.comparison(synthetic(), rates)
    # .npy: 8 s of drawing, and 4 s of writing with 4 s of records. Two processes: 8 s of writing, 2 s of records.
    assert [(point.measured, point.predicted) for point in points] == [(10, 8), (10, 10), (13, 13)]
    assert points[0].error == pytest.approx(-0.2)


def test_cores_that_draw_and_store_do_no_more_for_two():
    """On a CPU one process keeps all cores at work: two take as long, but for the records, which they share out."""
    result = synthetic() | {"environment": {"platform": "cpu"}}
    rates = scaling.fitted(result)
    assert (rates.link, rates.shared) == (200, 200)
    assert [point.predicted for point in scaling.comparison(result, rates)][1:] == [16 + 2, 16 + 2 + 3]


def test_scaling_prints_measured_beside_predicted(tmp_path, capsys):
    source = tmp_path / "result.json"
    files.write_json(source, synthetic())
    assert scaling.main(["--from", str(source), "--price", "2"]) == 0
    text = capsys.readouterr().out
    assert "-20%" in text
    assert "measured on the host of that result" in text
    assert "reading is 4 times as fast as drawing" in text
    assert next(line for line in text.splitlines() if "a GPU for an hour" in line).endswith(scaling.GIVEN)


def test_assumptions_are_marked(capsys):
    assert scaling.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for parameter in scaling.PARAMETERS.values():
        (line,) = (line for line in lines if line.strip().startswith(parameter.what + "  "))
        assert line.endswith((scaling.ASSUMED, scaling.CEILING))
    # 4 PB over 100 GB/s shared: 11.1 hours, and little more.
    row = next(line.split() for line in lines if line.split()[:4] == ["1e15", "4", "PB", "1,024"])
    assert float(row[4]) == pytest.approx(4e15 / 100e9 / 3600, rel=0.1)
    assert any("Bound by recording" in line for line in lines)


def test_model_takes_the_blocks_of_the_writer():
    """Where none are given: 1e15 angles come in larger blocks than 1e9."""
    rates = RATES._replace(block=None, record=1.0, record_growth=0.0)
    for angles in (10**9, 10**15):
        blocks = -(-angles // stream_cases.writer.block_angles(angles))
        assert scaling.predict(angles, 1, rates).recording == blocks

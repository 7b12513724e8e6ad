"""The program that works for hours: what is sound holds, and what leaks or lies is reported, each fault for itself."""

import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import endurance
from benchmarks.endurance import Action, Point, Run

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def not_held(actions, seconds=0.4, growth=2**23):
    run = endurance.work(actions, seconds, threads=2)
    return {each.what for each in endurance.judge(run, growth) if not each.held}


def sound(number):
    return np.full(3, number)


def test_nothing_is_reported_of_sound_work(tmp_path):
    """Of ours, in several threads: drawn, written, read, computed; files are gone."""
    names = {"sample small", "batches", "log_prob", "file", "store"}
    chosen = [action for action in endurance.actions(tmp_path, small=True) if action.name in names]
    run = endurance.work(chosen, 2.0, threads=3)
    assert run.faults == ()
    assert min(run.calls.values()) > 0
    assert [each for each in endurance.judge(run) if not each.held] == []
    assert list(tmp_path.iterdir()) == []
    # It was looked at while threads worked, and they were seen.
    assert len(run.points) > 10
    assert max(point.threads for point in run.points) >= run.points[0].threads + 3


@pytest.mark.slow
def test_every_way_for_a_minute(tmp_path, capsys):
    path = tmp_path / "result.json"
    assert endurance.main(["--minutes", "1", "--json", str(path)]) == 0
    assert "nothing was left behind" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert result["program"] == "endurance"
    assert len(result["calls"]) >= 14
    assert all(each["held"] for each in result["verdicts"])


def leaks():
    """Actions that each leave something behind, with what must be reported of them."""
    kept = []
    stop = threading.Event()

    def of_memory(number):
        time.sleep(0.005)  # so that what is kept is not all memory on a fast machine
        kept.append(np.ones(2**18))

    def of_threads(number):
        if len(kept) < 200:
            kept.append(threading.Thread(target=stop.wait, daemon=True))
            kept[-1].start()

    def of_files(number):
        if len(kept) < 200:
            kept.append(open(__file__))  # noqa: SIM115

    def of_arrays(number):
        kept.append(jnp.zeros(3))

    def of_programs(number):
        return jax.jit(lambda x: x + number)(np.float32(0))

    def of_errors(number):
        if number >= endurance.KNOWN:
            raise OSError("the disk is full")

    def of_numbers(number):
        return np.random.default_rng().random(3)

    yield of_memory, {"growth of memory, bytes"}, stop
    yield of_threads, {"threads more than before", "growth of threads"}, stop
    yield of_files, {"open files more than before", "growth of open files"}, stop
    yield of_arrays, {"arrays more than before"}, stop
    yield of_programs, {"programs compiled after the first round"}, stop
    yield of_errors, {"errors and wrong numbers"}, stop
    yield of_numbers, {"errors and wrong numbers"}, stop


@pytest.mark.parametrize("leaking", ["memory", "threads", "files", "arrays", "programs", "errors", "numbers"])
def test_a_leak_is_reported(leaking):
    leak, told, stop = next(each for each in leaks() if each[0].__name__ == f"of_{leaking}")
    try:
        found = not_held([Action("leak", leak), Action("sound", sound)])
    finally:
        stop.set()
    assert found & told
    # And nothing else is: a thread has memory of its own, and whoever ends early has not done all.
    assert found - told <= {"growth of memory, bytes", "actions that were never done"}


def points(**fields):
    """Ten points, in which the fields are as told, one value or ten."""
    still = {"memory": 2**28, "threads": 20, "files": 9, "programs": 0, "arrays": 5}
    series = {name: value if isinstance(value, list) else [value] * 10 for name, value in (still | fields).items()}
    return tuple(Point(float(second), *(series[name][second] for name in Point._fields[1:])) for second in range(10))


def failed(run, **options):
    return [each.what for each in endurance.judge(run, **options) if not each.held]


def test_judgement():
    """On made-up points: what grows while threads begin is no leak, what goes on growing is."""
    calls = {"a": 3}
    assert failed(Run(points(), calls, ())) == []
    assert failed(Run(points(memory=[2**28, *[2**29] * 9]), calls, ())) == []
    growing = [2**28 + i * 2**25 for i in range(10)]
    assert failed(Run(points(memory=growing), calls, ())) == ["growth of memory, bytes"]
    assert failed(Run(points(memory=growing), calls, ()), growth=2**30) == []
    assert failed(Run(points(arrays=[5] * 9 + [6]), calls, ())) == ["arrays more than before"]
    assert failed(Run(points(), {"a": 0}, ())) == ["actions that were never done"]
    assert failed(Run(points(), calls, ("a: wrong",))) == ["errors and wrong numbers"]
    assert failed(Run(points(), calls, ()), left=1) == ["files left behind"]


def test_program(monkeypatch, tmp_path, capsys):
    """Its exit code is the verdict, and its file tells all."""
    path = tmp_path / "result.json"
    monkeypatch.setattr(endurance, "actions", lambda folder, small: [Action("sound", sound)])
    assert endurance.main(["--minutes", "0.005", "--json", str(path)]) == 0
    assert "nothing was left behind" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert result["fields"] == list(Point._fields)
    assert {each["held"] for each in result["verdicts"]} == {True}

    def left(folder, small):
        return [Action("left", lambda number: open(f"{folder}/{number}", "w").close())]

    monkeypatch.setattr(endurance, "actions", left)
    assert endurance.main(["--minutes", "0.005"]) == 1
    assert "SOMETHING WAS LEFT BEHIND" in capsys.readouterr().out

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(endurance, "work", interrupted)
    assert endurance.main(["--quick"]) == 130


@pytest.mark.parametrize("argument", [("--minutes", "0"), ("--minutes", "nan"), ("--threads", "0"), ("--growth", "x")])
def test_bad_arguments(argument):
    with pytest.raises(SystemExit, match="2"):
        endurance.main(argument)

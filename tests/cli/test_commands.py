"""Test the files and messages of the command line, and what remains after a failure."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
import warnings
from collections import namedtuple

import jax
import mpmath
import numpy as np
import pytest
from scipy import special

import jax_von_mises
from jax_von_mises.cli import commands, summary
from jax_von_mises.streams import npy, stream, writer
from tests import children
from tests.streams.test_writer import recorded

SMALL = ("--size", "1000", "--concentration", "3")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command line in an empty directory and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)
    result = namedtuple("result", "code out err")

    def run(*argv):
        try:
            code = commands.main(["sample", *argv])
        except SystemExit as stop:
            code = stop.code
        return result(code, *capsys.readouterr())

    return run


def subprocess_sample(directory, *argv, **environment):
    """Start the command line of the tested package, installed or not, in a separate process."""
    command = [sys.executable, "-m", "jax_von_mises", "sample", *argv]
    environment = children.environment(**environment)
    return subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("block", ["1000", "1e9"])
def test_file_holds_the_draws_of_the_function(run, block):
    """The file equals the function's result bit for bit, for any block size."""
    result = run("--block", block, "--loc", "-0.5", "--concentration", "3", "--size", "2_345", "--seed", "7")
    assert result.code == 0, result.err
    expected = jax_von_mises.sample_von_mises(
        jax.random.key(7), np.float32(-0.5), np.float32(3), (2345,), method="table"
    )
    drawn = np.load("samples.npy")
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn, np.asarray(expected))
    assert sorted(os.listdir()) == ["samples.npy", "samples.npy.json"]


def test_parameter_files(run):
    """Each value in the files gives a column of `size` angles."""
    loc, concentration = np.linspace(-3, 3, 7, dtype=np.float32), np.geomspace(0.1, 1e4, 7)
    np.savetxt("loc.csv", loc)
    np.save("concentration.npy", concentration)
    files = ("--loc", "loc.csv", "--concentration", "concentration.npy")
    result = run(*files, "--block", "64", "--size", "301", "--key-impl", "rbg")
    assert result.code == 0, result.err
    expected = jax_von_mises.sample_von_mises(
        jax.random.key(0, impl="rbg"), loc, concentration.astype(np.float32), (301, 7), method="direct"
    )
    np.testing.assert_array_equal(np.load("samples.npy"), np.asarray(expected))
    assert "mean direction - loc" in result.out


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_dtype(run, dtype):
    result = run(*SMALL, "--dtype", dtype)
    assert result.code == 0, result.err
    with jax.enable_x64(dtype == "float64"):
        parameter = np.float64 if dtype == "float64" else np.float32
        expected = jax_von_mises.sample_von_mises(
            jax.random.key(0), parameter(0), parameter(3), (1000,), dtype, method="table"
        )
        stored = np.asarray(expected).astype("float32" if dtype == "bfloat16" else dtype)
    drawn = np.load("samples.npy")
    assert drawn.dtype == stored.dtype
    np.testing.assert_array_equal(drawn, stored)
    assert ("do not support bfloat16" in result.out) == (dtype == "bfloat16")


@pytest.mark.slow
def test_module_runs_without_warnings(tmp_path):
    """`python -m jax_von_mises` runs without warnings and shows progress on stderr."""
    process = subprocess_sample(tmp_path, "--size", "1e6", "--loc", "-1e0", "--out", "x.npy", PYTHONWARNINGS="error")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "mean direction" in out
    assert "x.npy: 3.815 MiB, shape (1000000,), float32; checksums next to it" in out
    assert "angles" in err
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.json"]


def test_exists_and_force(run):
    assert run(*SMALL).code == 0
    with open("samples.npy", "rb") as file:
        before = file.read()
    refused = run(*SMALL, "--seed", "1")
    assert refused.code == 2
    assert "--force" in refused.err
    with open("samples.npy", "rb") as file:
        assert file.read() == before
    assert run(*SMALL, "--seed", "1", "--force").code == 0
    with open("samples.npy", "rb") as file:
        assert file.read() != before


@pytest.mark.parametrize(("size", "argv"), [("0", ()), ("1", ()), ("1000", ("--concentration", "0", "--quiet"))])
def test_edges(run, size, argv):
    result = run("--size", size, *argv)
    assert result.code == 0, result.err
    assert len(np.load("samples.npy")) == int(size)
    assert (result.out == result.err == "") == ("--quiet" in argv)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("loc", ["0.7", "3.14159265358979", "-3.14159265358979"])
def test_point_mass(run, dtype, loc):
    """All angles equal `loc` up to rounding and full turns."""
    result = run("--concentration", "inf", "--loc", loc, "--size", "10", "--dtype", dtype)
    drawn = np.load("samples.npy").astype(np.float64)
    half = (drawn - np.float64(np.dtype(dtype).type(loc))) / 2
    assert (np.abs(np.sin(half)) <= np.finfo(dtype).eps).all()
    assert compared(result.out)[1][1] == 0


def test_spreadsheet_mark(run):
    """A byte order mark, which spreadsheets write, is not part of the first number."""
    with open("loc.csv", "wb") as file:
        file.write("1\r\n-2\r\n".encode("utf-8-sig"))
    assert run("--loc", "loc.csv", "--concentration", "inf", "--size", "3").code == 0
    np.testing.assert_array_equal(np.load("samples.npy"), np.tile(np.float32([1, -2]), (3, 1)))


def compared(out):
    """Return the sample's number and the distribution's in each line of the summary."""
    return [tuple(map(float, pair)) for pair in re.findall(r"(\S+)   distribution (\S+)$", out, re.M)]


@pytest.mark.parametrize("concentration", ["0.01", "2", "1e5", "1e12"])
def test_summary(run, concentration):
    """Mean direction and resultant length are near the distribution's; the seed is fixed."""
    k, n = float(concentration), 1e5
    (direction, loc), (length, expected) = compared(run("--size", "1e5", "--concentration", f"{k}", "--loc", "0.7").out)
    assert loc == 0.7
    ratio = special.i1e(k) / special.i0e(k) if k < 1e4 else 1.0
    assert abs(direction - loc) < 5 / np.sqrt(n * max(k, 1)) / ratio + 1e-7
    assert expected == pytest.approx(ratio if k < 10 else 0.5 / k, rel=1e-4)
    assert length == pytest.approx(expected, rel=0.02, abs=0.01 if k < 1 else 1e-14)


def test_summary_of_a_large_loc(run):
    """Many turns are removed from a float64 `loc` exactly."""
    found = compared(run("--size", "1e5", "--dtype", "float64", "--loc", "9e15", "--concentration", "100").out)
    with mpmath.workdps(40):
        turns = mpmath.nint(mpmath.mpf(9e15) / (2 * mpmath.pi))
        exact = float(mpmath.mpf(9e15) - turns * 2 * mpmath.pi)
    assert found[0] == (pytest.approx(exact, abs=0.01), pytest.approx(exact, abs=1e-6))
    assert found[1] == (pytest.approx(0.00501, rel=0.03), pytest.approx(0.0050126, rel=1e-3))


def test_summary_of_opposite_modes(run):
    """The mean direction of an angle may be opposite to its location."""
    pair = ("--distribution", "cosine-bivariate-von-mises", "--concentration", "1,50", "--correlation", "20")
    found = compared(run(*pair, "--size", "1e5").out)
    assert abs(found[0][0]) == pytest.approx(np.pi, abs=0.01)
    assert abs(found[0][1]) == pytest.approx(np.pi, abs=1e-5)
    assert found[1][0] == pytest.approx(found[1][1], abs=0.01)


def test_summary_of_columns(run):
    """With a concentration for each column, the mean resultant length is compared."""
    np.save("k.npy", np.float32([0.5, 2, 8]))
    result = run("--size", "3e4", "--concentration", "k.npy", "--loc", "0.7")
    (direction, loc), (length, expected) = compared(result.out)
    assert expected == pytest.approx(np.mean([special.i1(k) / special.i0(k) for k in (0.5, 2, 8)]), rel=1e-5)
    assert length == pytest.approx(expected, abs=0.01)
    assert abs(direction - loc) < 0.02


SPHERE = ("--distribution", "von-mises-fisher", "--size", "1000", "--concentration", "3")


def test_directions(run):
    """The file holds the function's draws; the summary compares them with the distribution."""
    result = run(*SPHERE, "--mean-direction", "-3,0,4", "--seed", "7", "--block", "400")
    assert result.code == 0, result.err
    mean = np.float32([-3, 0, 4])
    draw = jax_von_mises.sample_von_mises_fisher(jax.random.key(7), mean, np.float32(3), (1000,), method="table")
    np.testing.assert_array_equal(np.load("samples.npy"), draw)
    assert "drew 1,000 directions (3 blocks) in" in result.out
    assert re.search(r"^compiled in .* s, drew at .* M/s \(first block\), wrote at .* MB/s while", result.out, re.M)
    assert "shape (1000, 3)" in result.out
    (off, none), (length, expected) = compared(result.out)
    assert none == 0
    assert off < 0.1
    assert expected == pytest.approx(1 / np.tanh(3) - 1 / 3, rel=1e-5)
    assert length == pytest.approx(expected, abs=0.05)
    np.savetxt("mean.csv", mean)
    np.savetxt("two.csv", [1, 2])
    assert run(*SPHERE, "--mean-direction", "mean.csv", "--seed", "7", "--resume").code == 0
    for change, message in (
        ((), "needs --mean-direction, such as 0,0,1"),
        (("--mean-direction", "0,0"), "the zero vector has no direction"),
        (("--mean-direction", "1"), "1 number; give two or more"),
        (("--mean-direction", "1,1e39"), "value 1 (counted from 0) is 1e+39: not finite in float32"),
        (("--mean-direction", "1,x"), "neither a number nor the name"),
        (("--mean-direction", "1,2", "--loc", "1"), "--loc is for angles"),
        (("--mean-direction", "1,2", "--concentration", "two.csv"), "von-mises-fisher takes one number"),
        (("--mean-direction", "1,2", "--distribution", "von-mises"), "--mean-direction is for --distribution"),
    ):
        result = run(*SPHERE, *change)
        assert result.code == 2
        assert message in result.err


PAIRS = ("--distribution", "sine-bivariate-von-mises", "--size", "1000", "--loc", "-3,1", "--concentration", "5,6")


def test_pairs(run):
    """The file holds the class's draws; the summary compares both angles with the distribution."""
    result = run(*PAIRS, "--correlation", "-4", "--seed", "7", "--block", "400")
    assert result.code == 0, result.err
    pair = jax_von_mises.SineBivariateVonMises(*map(np.float32, (-3, 1, 5, 6, -4)))
    np.testing.assert_array_equal(np.load("samples.npy"), pair.sample(jax.random.key(7), (1000,), method="table"))
    assert "drew 1,000 pairs (3 blocks) in" in result.out
    found = compared(result.out)
    assert [round(expected, 3) for _, expected in found[::2]] == [-3, 1]
    assert [expected for _, expected in found[1::2]] == pytest.approx(
        [float(1 - x) if x > 0.99 else float(x) for x in pair.moments()[:2]], rel=1e-4
    )
    for sample, expected in found:
        assert sample == pytest.approx(expected, abs=0.1)
    for change, message in (
        (("--loc", "1"), "--loc 1: give two numbers separated by a comma, one for each angle of a pair"),
        (("--loc", "1,inf"), "value 1 (counted from 0) is inf: not finite"),
        (("--concentration", "1,-2"), "value 1 (counted from 0) is -2: out of range; give numbers from 0 to 1e+07"),
        (("--concentration", "1,nan"), "value 1 (counted from 0) is nan: out of range"),
        (("--concentration", "1,1e10"), "value 1 (counted from 0) is 1e+10: out of range"),
        (("--correlation", "nan"), "--correlation nan: not a finite float32 number; give one, such as 0.5"),
        (("--mean-direction", "1,2"), "--mean-direction is for --distribution von-mises-fisher"),
        (("--distribution", "von-mises", "--correlation", "1"), "--correlation is for pairs"),
    ):
        result = run(*PAIRS, *change)
        assert result.code == 2
        assert message in result.err


BAD = {
    "negative concentration": (("--concentration", "-1"), "--concentration -1: negative"),
    "negative exponent": (("--concentration", "-1e3"), "--concentration -1e3: negative"),
    "nan concentration": (("--concentration", "nan"), "--concentration nan: not a number"),
    "overflow": (("--concentration", "1e300"), "use --dtype float64"),
    "distant loc": (
        ("--loc", "1e8"),
        "--loc 1e8: neighbouring float32 numbers are more than a radian apart there; give at most 16777216,",
    ),
    "infinite loc": (("--loc", "-inf"), "--loc -inf: not finite"),
    "word": (("--loc", "north"), "neither a number nor the name"),
    "fraction": (("--size", "1.5"), "--size 1.5: not a whole number"),
    "infinite size": (("--size", "inf"), "--size inf: not a whole number"),
    "negative size": (("--size", "-3"), "--size -3: negative"),
    "large seed": (("--seed", "4294967296"), "at most 4294967295"),
    "dtype": (("--dtype", "int8"), "invalid choice: 'int8'"),
    "key": (("--key-impl", "dice"), "threefry2x32"),
    "unknown option": (("--kappa", "3"), "unrecognized arguments: --kappa 3 (see jax-von-mises sample --help)"),
    "no file": (("--loc", "none.npy"), "no such file"),
    "pickle": (("--loc", "pickle.npy"), "not a .npy file of numbers"),
    "not a npy": (("--loc", "text.npy"), "not a .npy file of numbers"),
    "strings": (("--loc", "strings.npy"), "not real numbers"),
    "two axes": (("--loc", "square.npy"), "has shape (2, 2)"),
    "empty npy": (("--loc", "nothing.npy"), "holds no numbers"),
    "empty csv": (("--loc", "nothing.csv"), "holds no numbers"),
    "header": (("--loc", "header.csv"), "without a header"),
    "bad value": (("--concentration", "three.npy"), "value 1 (counted from 0) is -2: negative"),
    "ragged": (("--loc", "ragged.csv"), "changed from 2 to 1 at row 2); write"),
    "folder": (("--loc", "folder.npy"), "not a file"),
    "lengths": (("--loc", "two.csv", "--concentration", "four.npy"), "holds 2 numbers"),
    "suffix": (("--out", "samples.txt"), "must end in .npy (a NumPy file) or .zarr (a Zarr store)"),
    "bucket": (("--out", "gs://bucket/samples.npy"), "must end in .npy (a NumPy file) or .zarr (a Zarr store)"),
    "block": (("--block", "0"), "--block 0: give 1 or more rows"),
    "resume and force": (("--resume", "--force"), "--resume keeps what --force would replace"),
}


@pytest.mark.parametrize(("argv", "message"), BAD.values(), ids=BAD)
def test_invalid_argument_gives_one_line(run, argv, message):
    np.save("pickle.npy", np.array([{}], object), allow_pickle=True)
    np.save("strings.npy", np.array(["1"]))
    np.save("square.npy", np.ones((2, 2)))
    np.save("nothing.npy", np.ones(0))
    np.save("three.npy", np.array([1.0, -2.0, 3.0]))
    np.save("four.npy", np.ones(4))
    texts = {
        "text.npy": "1 2",
        "nothing.csv": "",
        "header.csv": "k\n1\n",
        "two.csv": "1\n2\n",
        "ragged.csv": "1,2\n3\n",
    }
    for name, text in texts.items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    os.mkdir("folder.npy")
    before = sorted(os.listdir())
    result = run("--size", "10", *argv)
    assert result.code == 2
    assert message in result.err
    assert result.err.startswith(("jax-von-mises sample: error: ", "jax-von-mises: error: "))
    assert result.err.count("\n") == 1
    assert result.out == ""
    assert sorted(os.listdir()) == before


def test_disk_too_small(run):
    result = run("--size", "1e17")
    assert result.code == 1
    assert "the disk has" in result.err
    assert os.listdir() == []


def test_target_that_cannot_be_written(run):
    os.mkdir("folder.npy")
    for out, message in (("no/samples.npy", "no directory no"), ("folder.npy", "is not a file")):
        result = run(*SMALL, "--out", out, "--force")
        assert result.code == 1
        assert message in result.err
        assert result.err.count("\n") == 1
    assert os.listdir() == ["folder.npy"]


def test_old_store_that_goes_first_is_announced_in_one_line(run, monkeypatch):
    command = ("--concentration", "3", "--size", "100000", "--out", "a.zarr", "--quiet")
    assert run(*command).code == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=100_000))
    with warnings.catch_warnings(action="default"):
        result = run(*command, "--force")
    assert result.code == 0
    assert result.err == (
        "jax-von-mises sample: warning: a.zarr: the disk has no space for the old store and the new one (390.6 KiB) "
        "together, so the old store is removed first\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device"), 1, "No space left on device; 2 of 10 blocks kept"),
        (MemoryError("8 GiB"), 1, "out of memory: 8 GiB; 2 of 10"),
        (KeyboardInterrupt(), 130, "interrupted; 2 of 10 blocks kept; continue with --resume"),
    ],
)
def test_failure_midway_keeps_finished_blocks(run, monkeypatch, error, code, message):
    """If the third block fails, the old file stays until the new one is complete, and the run can be resumed."""
    assert run(*SMALL).code == 0
    old = np.load("samples.npy")
    write, calls = npy.NpyFile.write, []

    def failing_write(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise error
        write(self, *arguments)

    monkeypatch.setattr(npy.NpyFile, "write", failing_write)
    command = (*SMALL, "--seed", "1", "--block", "100")
    result = run(*command, "--force")
    assert result.code == code
    assert message in result.err.splitlines()[-1]
    np.testing.assert_array_equal(np.load("samples.npy"), old)
    assert sorted(os.listdir()) == [f"samples.npy{end}" for end in ("", ".json", ".partial", ".partial.json")]
    refused = run(*command)
    assert refused.code == 2
    assert "holds an unfinished run; choose another name, or give --resume to continue it" in refused.err
    resumed = run(*command, "--resume")
    assert resumed.code == 0, resumed.err
    assert "drew 800 of 1,000 angles (8 blocks, 2 kept) in" in resumed.out
    assert sorted(os.listdir()) == ["samples.npy", "samples.npy.json"]
    expected = jax_von_mises.sample_von_mises(jax.random.key(1), 0.0, 3.0, (1000,), method="table")
    np.testing.assert_array_equal(np.load("samples.npy"), expected)


def test_resume_of_another_stream(run):
    assert run(*SMALL).code == 0
    result = run(*SMALL, "--seed", "1", "--resume")
    assert result.code == 2
    assert "samples.npy holds another stream: key" in result.err


@pytest.mark.parametrize("size", [100, 300, 1_000])
def test_times(run, monkeypatch, size):
    """The summary has the time of compilation and the rates of drawing the first block and of writing all blocks."""
    clock = [0.0]
    monkeypatch.setattr(writer.time, "perf_counter", lambda: clock[0])

    def lasts(owner, name, seconds):
        function = getattr(owner, name)

        def slow(*arguments):
            clock[0] += next(seconds)
            return function(*arguments)

        monkeypatch.setattr(owner, name, slow)

    lasts(stream.Stream, "rows", itertools.chain([2.0, 0.0, 0.5], itertools.repeat(0.0)))
    lasts(writer.jax, "block_until_ready", itertools.chain([1e-4], itertools.repeat(10.0)))
    lasts(npy.NpyFile, "write", itertools.repeat(1e-5))
    result = run("--size", str(size), "--block", "100")
    compiled, several = 2.0 + 0.5 * (size > 200), size > 100
    assert (
        f"\ncompiled in {compiled:.2f} s, drew at 1 M/s{' (first block)' * several}, wrote at 40 MB/s"
        f"{' while drawing the next block' * several}\n"
    ) in result.out


def test_verify(run, capsys):
    """The checksums match until the file changes."""
    assert run(*SMALL, "--block", "100").code == 0
    assert commands.main(["verify", "samples.npy"]) == 0
    output = capsys.readouterr().out
    assert "all 10 blocks match their checksums; shape (1000,)" in output
    assert '"concentration": "3.0"' in output
    with open("samples.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert commands.main(["verify", "samples.npy"]) == 1
    assert "samples.npy: block 9 does not match its checksum" in capsys.readouterr().err
    with open("samples.npy", "r+b") as file:
        file.seek(-4 * 300, os.SEEK_END)
        file.write(bytes(range(256)))
    assert commands.main(["verify", "samples.npy"]) == 1
    assert "2 blocks do not match their checksums: 7, 9" in capsys.readouterr().err
    for size, message in (("1", "the one block matches its checksum"), ("0", "there is no checksum to compare")):
        assert run("--size", size, "--out", f"{size}.npy").code == 0
        assert commands.main(["verify", f"{size}.npy"]) == 0
        assert f"{message}; shape ({size},)" in capsys.readouterr().out
    assert commands.main(["verify", "none.npy"]) == 1
    assert "no finished file or store with a record" in capsys.readouterr().err
    assert commands.main(["verify", "none.txt"]) == 2


def test_zarr_store(run):
    tensorstore = pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")
    result = run(*SMALL, "--out", "samples.zarr", "--dtype", "bfloat16", "--block", "300")
    assert result.code == 0, result.err
    assert "samples.zarr: 1.953 KiB, shape (1000,), bfloat16" in result.out
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.path.abspath("samples.zarr") + "/"}}
    drawn = tensorstore.open(spec).result().read().result()
    expected = jax_von_mises.sample_von_mises(jax.random.key(0), 0.0, 3.0, (1000,), "bfloat16", method="table")
    np.testing.assert_array_equal(drawn, np.asarray(expected))


def test_the_summary_of_a_long_stream(run, monkeypatch):
    """The summary covers the first blocks of a long stream, and says how many angles they have."""
    monkeypatch.setattr(commands.Watch, "SUMMARISED", 2_500)
    result = run("--size", "10_000", "--block", "1000")
    assert "the first 3,000 angles:\nmean direction" in result.out


class Collected:
    """An object that sends a signal to this process when it is destroyed."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_a_destructor(number):
    """An exception that Python drops in a destructor is raised again with the next block."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this process ignores the signal, as under nohup, and so would the command")
    error = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: commands.Terminated}[number]
    watch = commands.Watch(summary.Summary("von-mises", np.float64(0), np.float64(1)), quiet=True)
    before = signal.getsignal(number)
    with commands.terminate_by_exception():
        Collected(number)
        with pytest.raises(error):
            watch.progress(1, 2)
    assert signal.getsignal(number) is before
    watch.progress(2, 2)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_ignored_signals_stay_ignored():
    """A run under `nohup` outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with commands.terminate_by_exception():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
    ids=["int", "term", "hup"],
)
def test_signal_keeps_finished_blocks(tmp_path, number, code):
    """After a signal, recorded blocks are kept, and the message names --resume."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this process ignores the signal, as under nohup, and so would the command")
    process = subprocess_sample(tmp_path, "--size", "1e9", "--block", "1e6")
    deadline = time.monotonic() + 60
    while not recorded(tmp_path / "samples.npy"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    kept = len(recorded(tmp_path / "samples.npy"))
    assert f"{kept} of 1000 blocks kept; continue with --resume" in err
    assert sorted(os.listdir(tmp_path)) == ["samples.npy.partial", "samples.npy.partial.json"]


def test_plain_progress_without_tqdm(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(commands.PlainProgress, "INTERVAL", 0.0)
    result = run(*SMALL)
    assert result.code == 0
    assert "1000 angles, 100%" in result.err


def test_plain_progress(monkeypatch, capsys):
    """Lines are printed every two seconds and at the end, but not in a short run, which mostly compiles."""
    clock = [0.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: clock[0])
    short, long = commands.PlainProgress(0, 100, "angles"), commands.PlainProgress(0, 100, "angles")
    clock[0] = 1.0
    short.update(100)
    long.update(10)
    assert capsys.readouterr().err == ""
    clock[0] = 2.0
    long.update(10)
    clock[0] = 2.5
    long.update(30)
    long.update(50)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["20 angles, 20%, 10 per second, 8 s left", "100 angles, 100%, 40 per second, 0 s left"]

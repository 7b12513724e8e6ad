"""Test the files and messages of the command line, and what remains after a failure."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import jax
import mpmath
import numpy as np
import pytest
from scipy import special

import jax_von_mises
from jax_von_mises import rotations
from jax_von_mises.cli import commands, program
from jax_von_mises.engine import base
from jax_von_mises.streams import npy
from tests import children
from tests.marks import slow

SMALL = ("--size", "1000", "--concentration", "3")


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command line in an empty directory and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)
    result = namedtuple("result", "code out err")

    def cli(*argv):
        try:
            code = program.main(argv)
        except SystemExit as stop:
            code = stop.code
        return result(code, *capsys.readouterr())

    return cli


@pytest.fixture
def sample(cli):
    """Return a function that runs ``sample``, by default into a.npy."""
    return lambda *argv: cli("sample", "--out", "a.npy", *argv)


def must_fail(result, code, message):
    """Assert that a command printed one line, on stderr, and that this line has the message."""
    assert message in result.err
    assert re.fullmatch(r"jax-von-mises( [a-z-]+)?: error: [^: ].*\n", result.err)
    assert (result.code, result.out) == (code, "")


def angles(seed=0, loc=0.0, concentration=3.0, shape=(1000,), dtype="float32"):
    with jax.enable_x64(dtype == "float64"):
        key, kind = jax.random.key(seed), np.float64 if dtype == "float64" else np.float32
        drawn = jax_von_mises.sample_von_mises(key, kind(loc), kind(concentration), shape, dtype, method="table")
        return np.asarray(drawn)


def test_file_holds_the_draws_of_the_function(sample):
    """The file equals the function's result bit for bit."""
    result = sample("--block-rows", "1000", "--loc", "-0.5", "--concentration", "3", "--size", "2_345", "--seed", "7")
    assert result.code == 0, result.err
    drawn = np.load("a.npy")
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn, angles(7, -0.5, shape=(2345,)))
    assert sorted(os.listdir()) == ["a.npy", "a.npy.blocks"]


@pytest.mark.more
def test_parameter_files(sample):
    """Each value in the files gives a column of `size` angles; a byte order mark is not part of the first number."""
    loc, concentration = np.linspace(-3, 3, 7, dtype=np.float32), np.geomspace(0.1, 1e4, 7)
    with open("loc.csv", "wb") as file:
        file.write("\r\n".join(map(str, loc)).encode("utf-8-sig"))
    np.save("concentration.npy", concentration)
    files = ("--loc", "loc.csv", "--concentration", "concentration.npy")
    result = sample(*files, "--block-rows", "64", "--size", "301", "--key-impl", "rbg")
    assert result.code == 0, result.err
    expected = jax_von_mises.sample_von_mises(
        jax.random.key(0, impl="rbg"), loc, concentration.astype(np.float32), (301, 7), method="direct"
    )
    np.testing.assert_array_equal(np.load("a.npy"), np.asarray(expected))
    assert "drew 2,107 angles (5 blocks) in" in result.out
    assert "off their means, radians" in result.out
    np.save("loc.npy", np.array([1, -2]))
    for name, given in (("b.npy", "loc.npy"), ("c.npy", "1,-2")):
        assert sample("--loc", given, "--concentration", "inf", "--size", "3", "--out", name).code == 0
        np.testing.assert_array_equal(np.load(name), np.tile(np.float32([1, -2]), (3, 1)))


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.more)])
def test_dtype(sample, dtype):
    """Files hold the values of the dtype, which for bfloat16 are stored as float32."""
    result = sample(*SMALL, "--dtype", dtype)
    assert result.code == 0, result.err
    drawn, stored = np.load("a.npy"), "float32" if dtype == "bfloat16" else dtype
    assert drawn.dtype == stored
    np.testing.assert_array_equal(drawn, angles(dtype=dtype).astype(stored))
    assert f"shape (1000,), {stored}\n" in result.out
    assert f"s: {dtype}, seed 0\n" in result.out


@pytest.mark.parametrize(
    ("suffix", "size", "argv"),
    [("npy", "0", ()), ("zarr", "0", ()), ("zarr", "1", ()), ("npy", "1000", ("--concentration", "0", "--quiet"))],
)
def test_edges(cli, suffix, size, argv):
    result = cli("sample", "--out", f"a.{suffix}", *SMALL, "--size", size, *argv)
    assert result.code == 0, result.err
    assert len(read(f"a.{suffix}")) == int(size)
    assert (result.out == result.err == "") == ("--quiet" in argv)
    assert cli("verify", f"a.{suffix}").code == 0


def read(out):
    """Read a file with NumPy, or a store with zarr-python, from the path alone."""
    if out.endswith(".npy"):
        return np.load(out)
    zarr = pytest.importorskip("zarr", reason="zarr-python is not installed (extra `storage`)")
    return zarr.open_array(out, mode="r")[:]


@pytest.mark.parametrize(
    ("loc", "dtype"),
    [
        ("0.7", "float32"),
        ("-3.14159265358979", "float32"),
        pytest.param("3.14159265358979", "float64", marks=pytest.mark.more),
    ],
)
def test_point_mass(sample, loc, dtype):
    """All angles equal `loc` up to rounding and full turns."""
    result = sample("--concentration", "inf", "--loc", loc, "--size", "10", "--dtype", dtype)
    half = (np.load("a.npy").astype(np.float64) - np.float64(np.dtype(dtype).type(loc))) / 2
    assert (np.abs(np.sin(half)) <= np.finfo(dtype).eps).all()
    assert compared(result.out)[1][1] == 0


def compared(out):
    """Return the sample's number and the distribution's in each line of the summary."""
    return [tuple(map(float, pair)) for pair in re.findall(r"(\S+)   distribution (\S+)$", out, re.M)]


@pytest.mark.parametrize("concentration", ["0.01", "2", "1e5", "1e12"])
def test_summary(sample, concentration):
    """Mean direction and resultant length are near the distribution's; the seed is fixed."""
    k, n = float(concentration), 1e5
    result = sample("--size", "1e5", "--concentration", concentration, "--loc", "0.7")
    (direction, loc), (length, expected) = compared(result.out)
    assert loc == 0.7
    ratio = special.i1e(k) / special.i0e(k) if k < 1e4 else 1.0
    assert abs(direction - loc) < 5 / np.sqrt(n * max(k, 1)) / ratio + 1e-7
    assert expected == pytest.approx(ratio if k < 10 else 0.5 / k, rel=1e-4)
    assert length == pytest.approx(expected, rel=0.02, abs=0.01 if k < 1 else 1e-14)


@pytest.mark.more
def test_summary_of_a_large_loc(sample):
    """Many turns are removed from a float64 `loc` exactly."""
    found = compared(sample("--size", "1e5", "--dtype", "float64", "--loc", "9e15", "--concentration", "100").out)
    with mpmath.workdps(40):
        turns = mpmath.nint(mpmath.mpf(9e15) / (2 * mpmath.pi))
        exact = float(mpmath.mpf(9e15) - turns * 2 * mpmath.pi)
    assert found[0] == (pytest.approx(exact, abs=0.01), pytest.approx(exact, abs=1e-6))
    assert found[1] == (pytest.approx(0.00501, rel=0.03), pytest.approx(0.0050126, rel=1e-3))


@pytest.mark.slow
def test_summary_of_opposite_modes(sample):
    """The mean direction of an angle may be opposite to its location."""
    pair = ("--distribution", "cosine-bivariate-von-mises", "--phi-concentration", "1", "--psi-concentration", "50")
    found = compared(sample(*pair, "--correlation", "20", "--size", "1e5").out)
    assert abs(found[0][0]) == pytest.approx(np.pi, abs=0.01)
    assert abs(found[0][1]) == pytest.approx(np.pi, abs=1e-5)
    assert found[1][0] == pytest.approx(found[1][1], abs=0.01)


@pytest.mark.more
def test_summary_of_columns_and_of_the_first_blocks(sample, monkeypatch):
    """With a concentration for each column, the mean resultant length is compared, here in the first four blocks."""
    monkeypatch.setattr(commands, "SUMMARISED", 10_001)
    result = sample("--size", "8000", "--block-rows", "1000", "--concentration", "0.5,2,8", "--loc", "0.7")
    assert "the first 4,000 rows:\noff their means" in result.out
    (off, zero), (length, expected) = compared(result.out)
    assert expected == pytest.approx(np.mean([special.i1(k) / special.i0(k) for k in (0.5, 2, 8)]), rel=1e-5)
    assert length == pytest.approx(expected, abs=0.02)
    assert abs(off) < 0.04
    assert zero == 0


# Options that give parameters, and the same distributions.
GIVEN = {
    "von-mises-fisher": ("--mean-direction -3,0,4 --concentration 3", dict(mean_direction=[-3, 0, 4], concentration=3)),
    "sine-bivariate-von-mises": (
        "--phi-loc -3 --psi-loc=1 --phi-concentration 5 --psi-concentration 6 --correlation -4",
        dict(phi_loc=-3, psi_loc=1, phi_concentration=5, psi_concentration=6, correlation=-4),
    ),
    "wrapped-cauchy": ("--rho 0.5,0.75 --loc -1", dict(loc=-1, rho=[0.5, 0.75])),
    "truncated-von-mises": (
        "--concentration 3 --low -0.5 --high 1",
        dict(loc=0, concentration=3, low=-0.5, high=1),
    ),
    "projected-normal": ("--concentration 3,4", dict(concentration=[3, 4])),
}
QUICK = {"von-mises-fisher", "wrapped-cauchy"}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.more) for x in GIVEN])
def test_any_class_by_the_names_of_its_parameters(sample, name):
    """The file holds the class's draws; the summary compares them with the distribution."""
    options, values = GIVEN[name]
    command = ("--distribution", name, "--size", "1000", "--seed", "7", *options.split())
    result = sample(*command, "--block-rows", "400")
    assert result.code == 0, result.err
    (kind,) = (kind for kind in base.declared() if kind.FAMILY.name == name)
    distribution = kind(**{parameter: np.float32(value) for parameter, value in values.items()})
    method = "table" if not distribution.batch_shape and "table" in kind.FAMILY.methods else "direct"
    drawn = distribution.sample(jax.random.key(7), (1000,), method=method, start=0)
    np.testing.assert_array_equal(np.load("a.npy"), drawn)
    noun = f"{kind.FAMILY.noun}s"
    assert f"drew {1000 * max(1, len(np.ravel(values.get('rho', 1)))):,} {noun} (3 blocks) in" in result.out
    for number, expected in compared(result.out):
        assert number == pytest.approx(expected, abs=0.1)
    assert len(compared(result.out)) == {"pairs": 4, "angles": 2, "directions": int(hasattr(kind, "_unit_means"))}[noun]
    assert sample(*command, "--resume").code == 0


def test_vectors_from_files(sample):
    np.savetxt("mean.csv", [-3.0, 0.0, 4.0])
    assert sample("--distribution", "von-mises-fisher", *SMALL, "--mean-direction", "mean.csv").code == 0
    mean = np.load("a.npy").mean(0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), [-0.6, 0, 0.8], atol=0.1)


def test_degrees_and_text(cli):
    """Parameters, summary and text are in degrees; the numbers of the text are those of a file in radians."""
    command = ("--loc", "-90", "--concentration", "50", "--size", "1000", "--degrees")
    result = cli("sample", *command, "--out", "a.csv")
    assert result.code == 0, result.err
    assert cli("sample", *command, "--out", "a.npy").code == 0
    text = np.loadtxt("a.csv")
    np.testing.assert_allclose(text, np.degrees(np.load("a.npy").astype(np.float64)), rtol=1e-8)
    (direction, loc), _ = compared(result.out)
    assert loc == -90
    assert direction == pytest.approx(-90, abs=2)
    pair = ("--distribution", "von-mises-fisher", "--mean-direction", "1,0", "--concentration", "3")
    assert cli("sample", *pair, "--size", "10", "--out", "b.csv", "--dtype", "float64", "--quiet").code == 0
    np.testing.assert_allclose(np.linalg.norm(np.loadtxt("b.csv", delimiter=","), axis=1), 1, atol=1e-15)
    must_fail(cli("sample", *command, *pair, "--out", "c.csv"), 2, "--degrees: von-mises-fisher has no angles")


def test_text_files_are_never_replaced(cli, monkeypatch):
    """A small text file is written at once, or not at all."""
    command = ("sample", *SMALL, "--out", "a.csv")
    assert cli(*command).code == 0
    before = Path("a.csv").read_text()
    must_fail(cli(*command), 2, "a.csv: already exists; move it away, or choose another name")
    must_fail(
        cli(*command, "--force"), 2, "--force is for .npy files and .zarr stores; a.csv is written at once, if new"
    )
    assert Path("a.csv").read_text() == before
    must_fail(cli(*command, "--size", "1e7"), 2, "a.csv: 10,000,000 numbers are too many for a .csv file")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savetxt", full)
    must_fail(cli("sample", *SMALL, "--out", "b.csv"), 1, "No space left on device")
    assert os.listdir() == ["a.csv"]


# One invalid argument for each branch of a function that reads or checks options; the library's own checks are tested
# where they are made, and here only with an option for each argument that its messages name.
SPHERE = ("--distribution", "von-mises-fisher", *SMALL)
PAIRS = ("--distribution", "sine-bivariate-von-mises", "--phi-concentration", "5", "--psi-concentration", "6")
PAIRS += ("--correlation", "-4")
BAD = [
    ("--size 1.5", "--size: 1.5: not a whole number from 0; write one such as 10_000_000 or 1e7"),
    ("--seed 4294967296", "--seed: 4294967296: give a number from 0 to 4294967295"),
    ("--dtype int8", "invalid choice: 'int8'"),
    ("--key-impl dice", "--key-impl dice: unrecognized PRNG implementation"),
    # numbers
    ("--loc north", "--loc: north: neither a number nor the name of a .npy or .csv file"),
    ("--loc none.npy", "--loc: none.npy: No such file or directory"),
    ("--loc pickle.npy", "--loc: pickle.npy: "),
    ("--loc strings.npy", "holds <U1 of shape (1,); give one or more real numbers"),
    ("--loc", "argument --loc: expected a value"),
    ("--loc nothing.csv", "holds float64 of shape (0,)"),
    ("--loc header.csv", "give one number per line without a header"),
    # parameters
    ("--concentration three.npy", "VonMises: concentration is -2 at index (1,), but must be at least 0"),
    ("--concentration 1e300", "concentration is 1e+300, but can be at most 3.40282347e+38 in float32"),
    ("--loc -1e8", "loc is -1e+08, but can be at most 16777216 in float32"),
    ("--loc 1,2 --concentration 1,2,3", "loc of shape (2,) and concentration of shape (3,)"),
    ("--mean-direction 1,2", "--distribution von-mises needs the options --loc --concentration"),
    ("SPHERE", "--distribution von-mises-fisher needs the options --mean-direction --concentration"),
    ("SPHERE --mean-direction 0,0", "error: VonMisesFisher: mean_direction is 0"),
    ("SPHERE --mean-direction 1", "mean_direction has shape ()"),
    ("--distribution truncated-von-mises --low 1", "needs the options --loc --concentration --low --high"),
    ("PAIRS --phi-loc inf", "error: SineBivariateVonMises: phi_loc is inf, but must be finite"),
    # sample
    ("--repair", "--repair needs --resume"),
    ("--cache dir --workers 2", "--cache is for this process; for workers, set JAX_"),
    ("--part 0", "--part and --parts go together"),
    ("--parts 2", "--part and --parts go together"),
    ("--workers 0", "--workers 0: give 1 or more"),
    ("--workers 2 --scheduler tcp://h:1", "give only one of the two"),
    # arguments of the library
    ("--size -3", "argument --size: -3: not a whole number from 0"),
    ("--block-rows 0", "block_rows=0 must be at least 1"),
    ("--resume --force", "`resume` keeps what `force` would replace"),
    ("--out a.zarr --part 2 --parts 2", "part=2 must be below parts=2; parts are counted from 0"),
    ("--out a.txt", "out='a.txt' must end in .npy, or in .zarr for a Zarr store"),
    ("--out three.npy --force", "three.npy: was not written by this package; move it away, or"),
]


def test_invalid_argument_gives_one_line(sample):
    np.save("pickle.npy", np.array([{}], object), allow_pickle=True)
    for name, values in (("strings", ["1"]), ("three", [1.0, -2.0, 3.0])):
        np.save(f"{name}.npy", values)
    for name, text in (("nothing.csv", ""), ("header.csv", "k\n1\n")):
        with open(name, "w") as file:
            file.write(text)
    before = sorted(os.listdir())
    for argv, message in BAD:
        first, _, rest = argv.partition(" ")
        given = {"SPHERE": SPHERE, "PAIRS": PAIRS}.get(first, ("--concentration", "3", first))
        must_fail(sample("--size", "10", *given, *rest.split()), 2, message)
        assert sorted(os.listdir()) == before


def test_options_that_are_missing_or_unknown(cli):
    """Size and file are required, and each message names the help of its command."""
    must_fail(cli("sample", "--out", "a.npy"), 2, "required: --size (see jax-von-mises sample --help)")
    must_fail(cli("sample", "--size", "10"), 2, "required: --out (see jax-von-mises sample --help)")
    must_fail(cli("--kappa", "3"), 2, "(see jax-von-mises --help)")
    must_fail(cli("doctor", "--timeout", "-1"), 2, "error: diagnose: timeout=-1.0 must be a finite number of seconds")
    for command, *argv in (
        ("verify", "a.npy"),
        ("warm-up", "1"),
        ("doctor",),
    ):
        result = cli(command, *argv, "--kappa", "3")
        must_fail(result, 2, f"unrecognized arguments: --kappa 3 (see jax-von-mises {command} --help)")
    assert os.listdir() == []


def test_distributions(cli):
    """The message for an unknown distribution names all of them, with their options."""
    result = cli("sample", "--size", "1", "--out", "a.npy", "--distribution", "normal")
    must_fail(result, 2, "--distribution normal: choose one of bingham (--parameter); ")
    for kind in base.declared():
        assert f"{kind.FAMILY.name} (--{kind.PARAMETERS[0].name.replace('_', '-')}" in result.err
    must_fail(cli("sample", "--size", "1", "--out", "a.npy", "b.npy"), 2, "unrecognized arguments: b.npy")


def test_matrices(cli):
    """The elements of a matrix are given row by row."""
    drawn = "--size", "3", "--out", "a.csv", "--distribution"
    assert cli("sample", *drawn, "matrix-fisher", "--parameter", "3,1,0,-1,2,0,0,0,1").code == 0
    expected = rotations.MatrixFisher(np.float32([[3, 1, 0], [-1, 2, 0], [0, 0, 1]])).sample(jax.random.key(0), (3,))
    np.testing.assert_allclose(np.loadtxt("a.csv", delimiter=",", ndmin=2), expected, atol=4e-6)
    result = cli("sample", *drawn, "bingham", "--parameter", "1,2,3")
    must_fail(result, 2, "Bingham: parameter has shape (3,), but must hold matrices")


HELP = """
import sys
from jax_von_mises.cli import program
codes = []
for argv in ("--help", "sample --help", "--version", "--kappa", "verify --kappa", "sample --loc x"):
    try:
        program.main(argv.split())
    except SystemExit as stop:
        codes.append(stop.code)
print(codes, {"jax", "scipy"} & set(sys.modules))
"""


def test_help_and_typing_errors_do_not_wait_for_jax():
    printed = children.run(HELP)
    assert f"jax-von-mises {jax_von_mises.__version__}, JAX {jax.__version__}" in printed
    assert printed[-1] == "[0, 0, 0, 2, 2, 2] set()"


WORKERS = """
import sys, jax
from jax_von_mises.cli import program
code = program.main(["sample", "--size", "1", "--concentration", "1", "--out", sys.argv[1], "--workers", "0"])
print(code, jax.config.jax_platforms, jax.default_backend())
"""


@pytest.mark.more
def test_a_process_with_workers_stays_off_the_gpu(tmp_path):
    """JAX starts after the platform is chosen: it would raise an error for the one of the environment."""
    assert children.run(WORKERS, tmp_path / "a.npy", JAX_PLATFORMS="none") == ["2 cpu cpu"]


def test_targets_that_cannot_be_written(sample):
    """A missing directory, a file in place of a directory or a small disk is a failure, and nothing is written."""
    open("file", "w").close()
    for out in ("no/a.npy", "no/a.zarr"):
        must_fail(sample(*SMALL, "--out", out), 1, f"{out}: there is no directory no; create it first")
    must_fail(sample(*SMALL, "--out", "file/a.npy"), 1, "Not a directory")
    must_fail(sample(*SMALL, "--size", "1e17"), 1, "a.npy: needs 355.3 PiB, but the disk has")
    assert os.listdir() == ["file"]


def test_existing_file_is_kept_replaced_or_continued(sample, tmp_path):
    file = tmp_path / "a.npy"
    assert sample(*SMALL).code == 0
    before = file.read_bytes()
    must_fail(sample(*SMALL, "--seed", "1"), 2, "choose another name, set `resume` to continue it, or `force` to")
    must_fail(sample(*SMALL, "--seed", "1", "--resume"), 2, "a.npy holds another stream: key")
    assert file.read_bytes() == before
    assert "a.npy is already complete; nothing was drawn\n" in sample(*SMALL, "--resume").out
    assert sample(*SMALL, "--seed", "1", "--force").code == 0
    np.testing.assert_array_equal(np.load(file), angles(1))


FAILURES = [
    (OSError(28, "No space left on device"), 1, "error: a.npy: No space left on device; "),
    (MemoryError(), 1, "error: out of memory; "),
    (RuntimeError("INTERNAL: no device"), 1, "error: RuntimeError: INTERNAL: no device; "),
    (KeyboardInterrupt(), 130, "error: interrupted; "),
]


@pytest.mark.parametrize(("error", "code", "message"), FAILURES, ids=[type(error).__name__ for error, *_ in FAILURES])
def test_failure_midway_keeps_finished_blocks(sample, monkeypatch, error, code, message):
    """If the third block fails, there is no file of this name, and the run can be resumed."""
    assert sample(*SMALL).code == 0
    put = npy.NpyFile.put

    def failing(self, block, rows):
        if block == 2:
            raise error
        return put(self, block, rows)

    command = (*SMALL, "--seed", "1", "--block-rows", "100")
    with monkeypatch.context() as patch:
        patch.setattr(npy.NpyFile, "put", failing)
        result = sample(*command, "--force", "--quiet")
    must_fail(result, code, f"{message}2 of 10 blocks are finished; continue with `resume`")
    assert not os.path.exists("a.npy")
    resumed = sample(*command, "--resume")
    assert resumed.code == 0, resumed.err
    assert "drew 800 angles (8 blocks, 2 kept) in" in resumed.out
    np.testing.assert_array_equal(np.load("a.npy"), angles(1))


def test_verify(cli, sample, tmp_path):
    """The checksums match until the file changes, and damaged blocks can be drawn again."""
    file, command = tmp_path / "a.npy", (*SMALL, "--block-rows", "100")
    assert sample(*command).code == 0
    whole = file.read_bytes()
    result = cli("verify", "a.npy")
    assert (result.code, result.err) == (0, "")
    assert "a.npy: all 10 blocks match; drawn again and equal: 0, 4, 9; shape (1000,)\n" in result.out
    assert re.search(r'^stream: \{"distribution": "von-mises", .*"concentration": "3.0"', result.out, re.M)
    changed = bytearray(whole)
    changed[-1] ^= 1
    file.write_bytes(changed)
    advice = "Repeat the run with `resume` and `repair`"
    must_fail(cli("verify", "a.npy"), 1, f"a.npy: block 9 is missing or does not match its checksum. {advice}")
    assert "drew 100 angles (1 block, 9 kept) in" in sample(*command, "--resume", "--repair").out
    assert file.read_bytes() == whole
    must_fail(cli("verify", "none.zarr"), 1, "none.zarr: there is no such store")
    must_fail(cli("verify", "none.txt"), 2, "out='none.txt' must end in .npy, or in .zarr for a Zarr store")


@pytest.mark.usefixtures("no_cache")
def test_sample_fills_the_cache(cli, tmp_path):
    for out in ("a.npy", "b.npy"):
        jax.clear_caches()
        assert cli("sample", *SMALL, "--out", out, "--cache", "cache").code == 0
    assert list(tmp_path.glob("cache/*-cache"))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    open("file", "w").close()
    must_fail(cli("sample", *SMALL, "--out", "c.npy", "--cache", "file"), 1, "file")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes and owners")
@pytest.mark.usefixtures("no_cache")
def test_warm_up_fills_the_cache(cli, tmp_path):
    """Programs of all shapes and dtypes are in the given directory, which the last line describes."""
    dtypes = ("--dtype", "float64", "--dtype", "bfloat16")
    result = cli("warm-up", "12,3", *dtypes, "--cache", "cache")
    assert (result.code, result.err) == (0, "")
    *programs, cache = result.out.splitlines()
    assert [line.split(" (")[0] for line in programs] == [f"{dtype}[12, 3]" for dtype in ("float64", "bfloat16")]
    assert str(tmp_path / "cache") in cache
    assert len(list((tmp_path / "cache").glob("*-cache"))) >= 2
    must_fail(cli("warm-up", "12,x", "--cache", "cache"), 2, "x: not a whole number")
    must_fail(cli("warm-up", "-3", "--cache", "cache"), 2, "error: ")
    open("file", "w").close()
    must_fail(cli("warm-up", "3", "--cache", "file"), 1, "file")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(monkeypatch, capsys, terminal):
    """A line every ten seconds says share, rate and time left; on a terminal, a line every second replaces the last."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    now = 0.0
    progress = commands.Progress(False, "about 90 MB", lambda: now)
    for done in range(1_000_000, 90_000_001, 1_000_000):
        progress(done, 90_000_000)
        now += 0.25
    progress.close()
    lines = capsys.readouterr().err.replace("\r", "\n").split("\n")
    first, *said = [line.strip() for line in lines if line.strip()]
    assert first == "about 90 MB"
    assert len(said) == (22 if terminal else 2)
    assert said[-1] == ("98.9%" if terminal else "90.0%") + " of 90,000,000 rows, 4 million a second, " + (
        "0:00:00 left" if terminal else "0:00:02 left"
    )
    assert progress.drawn == 89_000_000


def test_a_large_result_is_announced(sample, monkeypatch):
    monkeypatch.setattr(commands, "LARGE", 1000)
    result = sample(*SMALL)
    assert (result.code, result.err) == (0, "a.npy will have 3.906 KiB\n")
    assert sample(*SMALL, "--force", "--quiet").err == ""


def finished(out):
    """Return the finished blocks of a run that has not ended."""
    if out.suffix == ".zarr":
        return [name for name in os.listdir(out) if name.startswith("c.")] if out.exists() else []
    log = out.with_name(f"{out.name}.blocks")
    return re.findall(r"^\d+ [0-9a-f]{8}$", log.read_text(), re.M) if log.exists() else []


def start(directory, *argv, **environment):
    """Start the command line of the tested package, installed or not, in a separate process without warnings."""
    command = [sys.executable, "-W", "error", "-m", "jax_von_mises", "sample", *argv]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(
        command, cwd=directory, env=children.environment(JAX_COMPILATION_CACHE_DIR=None, **environment), **pipes
    )


@pytest.mark.more
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("number", "suffix"),
    [
        (signal.SIGINT, "npy"),
        *slow((signal.SIGTERM, "npy")),
        (signal.SIGKILL, "zarr"),
    ],
)
def test_signal_keeps_finished_blocks(tmp_path, number, suffix):
    """After a signal, finished blocks are kept, readers find no array, and a resumed run draws only the others."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this process ignores the signal, as under nohup, and so would the command")
    out = tmp_path / f"a.{suffix}"
    command = ("--size", "4e6", "--concentration", "1", "--block-rows", "1e4", "--out", out.name)
    process = start(tmp_path, *command, "--quiet")
    deadline = time.monotonic() + 60
    while len(finished(out)) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    kept = len(finished(out))
    assert 3 <= kept < 400
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    message = f"jax-von-mises sample: error: interrupted; {kept} of 400 blocks are finished; continue with `resume`\n"
    assert err == message * (number == signal.SIGINT)
    assert not (out / "zarr.json" if suffix == "zarr" else out).exists()
    printed, err = (process := start(tmp_path, *command, "--resume")).communicate(timeout=120)
    assert process.returncode == 0, err
    assert f"({400 - kept} blocks, {kept} kept)" in printed
    assert jax_von_mises.verify_samples(out)["blocks"] == 400
    if suffix == "zarr":
        assert not list(out.glob(".*"))  # no leftovers

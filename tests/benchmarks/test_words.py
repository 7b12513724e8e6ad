"""Test `benchmarks.words` with a stand-in for PractRand and an independent cipher."""

import itertools
import json
import stat
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import words
from benchmarks.exactness.stream import word

# Abridged output of PractRand 0.96 for 2^27 bytes.
GOOD = """\
RNG_test using PractRand version 0.96
RNG = RNG_stdin32, seed = unknown
test set = core, folding = standard (32 bit)

rng=RNG_stdin32, seed=unknown
length= 64 megabytes (2^26 bytes), time= 2.1 seconds
  Test Name                         Raw       Processed     Evaluation
  DC6-9x1Bytes-1                    R=  +6.3  p =  2.4e-3   unusual
  ...and 150 test result(s) without anomalies

rng=RNG_stdin32, seed=unknown
length= 128 megabytes (2^27 bytes), time= 4.5 seconds
  no anomalies in 162 test result(s)
"""
BAD = """\
rng=RNG_stdin32, seed=unknown
length= 128 megabytes (2^27 bytes), time= 4.4 seconds
  Test Name                         Raw       Processed     Evaluation
  BCFN(2+0,13-2,T)                  R>+99999  p = 0           FAIL !!!!!!!!
  [Low1/32]FPF-14+6/16:all          R= +13.1  p =  1.1e-11    FAIL
  [Low8/32]Gap-16:A                 R=  +4.4  p =  2.8e-3   unusual
  ...and 97 test result(s) without anomalies
"""


def test_reports():
    assert words.parse(GOOD) == words.Report(27, 162, (), ())
    assert words.parse(GOOD).passed
    report = words.parse(BAD)
    assert (report.power, report.tests, len(report.unusual), len(report.failed)) == (27, 100, 1, 2)
    assert report.failed[1] == "[Low1/32]FPF-14+6/16:all R= +13.1 p = 1.1e-11 FAIL"
    assert not report.passed
    with pytest.raises(ValueError, match="no tested length: 'invalid test length'"):
        words.parse("invalid test length")


@pytest.fixture
def small(monkeypatch):
    """Make blocks small, so that a test covers several of them."""
    monkeypatch.setattr(words, "BLOCK", 64)
    monkeypatch.setattr(words, "LANES", 16)
    monkeypatch.setattr(words, "SHORT", 8)


def first(order, number):
    """Return the first `number` words in the given order, from the cipher that `independent` also computes."""
    blocks = words.blocks("threefry2x32", order, seed=5)
    return np.concatenate(list(itertools.islice(blocks, 3)))[:number]


def independent(key, places):
    """Return a key's words at these places, from a cipher that is independent of the package."""
    data = [int(each) for each in jax.random.key_data(key)]
    return [word(data, place) for place in places]


def test_orders(small):
    key = jax.random.key(5)
    assert first("stream", 150).tolist() == independent(key, range(150))
    each = [jax.random.fold_in(key, i) for i in range(24)]
    # "keys" takes one word from each of sixteen keys in turn, and "split" takes eight words of each key.
    table = np.array([independent(one, range(9)) for one in each])
    assert first("keys", 144).tolist() == table[:16].T.ravel().tolist()
    assert first("split", 192).tolist() == table[:, :8].ravel().tolist()


@pytest.mark.parametrize("cipher", words.CIPHERS)
def test_ciphers(small, cipher):
    """A key of every cipher gives distinct words."""
    block = next(words.blocks(cipher, "stream"))
    assert block.dtype == np.uint32
    assert len(np.unique(block)) == 64


STAND_IN = """#!{python}
import sys
assert sys.argv[1:] == ["stdin32", "-tlmin", "{least}", "-tlmax", "{power}", "-multithreaded"], sys.argv
size = len(sys.stdin.buffer.read(2**{power}))
assert size == 2**{power}, size
print({output!r})
"""


def stand_in(folder, output, power):
    """Return the path of a program that reads PractRand's input and prints `output`."""
    path = folder / "RNG_test"
    path.write_text(STAND_IN.format(python=sys.executable, output=output, power=power, least=min(power, 27)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(("output", "code", "verdict"), [(GOOD, 0, "passed"), (BAD, 1, "FAILED")])
def test_a_run(tmp_path, capsys, small, output, code, verdict):
    path = tmp_path / "result.json"
    command = [
        "--power",
        "16",
        "--practrand",
        stand_in(tmp_path, output, 16),
        "--orders",
        "stream",
        "--json",
        str(path),
    ]
    assert words.main(command) == code
    text = capsys.readouterr().out
    assert "2^27 bytes" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  threefry2x32, stream")]
    assert line.split()[-1] == verdict
    (row,) = json.loads(path.read_text())["streams"]
    assert (row["cipher"], row["order"], row["power"], row["passed"]) == ("threefry2x32", "stream", 27, code == 0)


def test_a_test_that_stops_early_has_not_passed(tmp_path, capsys, small):
    output = GOOD.replace("(2^27 bytes)", "(2^15 bytes)")
    command = ["--power", "16", "--practrand", stand_in(tmp_path, output, 16), "--orders", "stream"]
    assert words.main(command) == 1
    assert "2^15    162        0       0  FAILED" in capsys.readouterr().out


def test_without_practrand(capsys):
    assert words.main(["--practrand", "no-such-program"]) == 2
    assert "not found as no-such-program" in capsys.readouterr().err


@pytest.mark.slow
def test_raw_words_go_to_the_reader():
    """A reader that closes the pipe once it has enough words causes no error."""
    root = Path(words.__file__).parents[1]
    command = f"{sys.executable} -m benchmarks.words --raw --seed 5 --orders stream | head -c 4000"
    done = subprocess.run(command, shell=True, cwd=root, capture_output=True, timeout=120)
    assert done.stderr == b""
    assert np.frombuffer(done.stdout, "<u4").tolist() == independent(jax.random.key(5), range(1000))

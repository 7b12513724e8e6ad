"""Test that damaged files and links are refused before anything changes, and that no input is executed."""

import ast
import json
import os
import struct

import pytest

import jax_von_mises
from jax_von_mises.cli import commands
from jax_von_mises.streams import checkpoint, safe_files
from tests import children
from tests.streams.test_writer import Stop, contents, stop_after, write

pytest.importorskip("tensorstore", reason="TensorStore is not installed (extra `storage`)")

RESUME, FORCE = {"resume": True}, {"force": True}


def begin(out):
    """Write one block and interrupt the run."""
    with pytest.raises(Stop):
        write(out, observe=stop_after(1))


def record_of(out):
    return out / "blocks.json" if out.suffix == ".zarr" else out.with_name(f"{out.name}.json")


# Invalid values of a record.
VALUES = [
    {"shape": [-5]},
    {"shape": [10**19]},
    {"shape": [2**40, 2**40]},
    {"shape": [2**60 - 1, 0], "block_rows": 1},  # too many blocks to iterate over
    {"shape": []},
    {"stored": "O"},
    {"block_rows": 0},
    {"block_rows": float("inf")},
    {"crc32": [1]},
    {"crc32": {"a": "b"}},
    {"format": "other"},
]
TEXTS = [b"", b"\xff\xfe" * 100, b"null", b'{"format": ' + b"[" * 10**5]


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_invalid_record_is_refused(tmp_path, kind):
    """`verify_samples` and a resumed run refuse an invalid record and change nothing."""
    out = tmp_path / f"a.{kind}"
    write(out, 2_000)
    record = record_of(out)
    valid = record.read_bytes()
    for text in (*TEXTS, *(json.dumps(json.loads(valid) | change).encode() for change in VALUES)):
        record.write_bytes(text)
        before = contents(out)
        for call in (jax_von_mises.verify_samples, lambda out: write(out, 2_000, **RESUME)):
            with pytest.raises(checkpoint.ForeignTargetError, match="not a record of this package"):
                call(out)
        assert contents(out) == before
    with open(record, "wb") as file:
        file.truncate(checkpoint.LARGEST_RECORD + 1)
    with pytest.raises(OSError, match="has more than 67108864 bytes"):
        jax_von_mises.verify_samples(out)


def test_json_is_bounded_before_it_is_parsed():
    """JSON that is nested too deeply for TensorStore's parser, or has too many parts to fit in memory, is refused."""
    for text, message in (
        (b"[" * 101 + b"]" * 101, "more than 100 deep"),
        (b'["\\\\", "\\"", ' + b"[" * 101 + b"]" * 101 + b"]", "more than 100 deep"),
        (b"[" + b"[]," * 2_000 + b"[]]", "more than 1000 parts"),
        (b"1" * 10**5, "not JSON"),
        ("[1]".encode("utf-16"), "not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message):
            safe_files.parse_json(text, 1_000)
    deep = b"[" * 100 + b"]" * 100
    assert safe_files.parse_json(b'{"a": "[[[", "b": ' + deep[1:-1] + b"}", 1_000)["a"] == "[[["


def test_metadata_nested_deeply_is_refused(tmp_path):
    """Deeply nested metadata of a store is refused before TensorStore parses it."""
    out = tmp_path / "a.zarr"
    write(out, 2_000)
    ours = (out / "zarr.json").read_bytes()
    nested = ours.replace(b'"attributes":{', b'"attributes":{"x":' + b"[" * 10**5 + b"]" * 10**5 + b",")
    assert nested != ours
    (out / "zarr.json").write_bytes(nested)
    for call in (jax_von_mises.verify_samples, lambda out: write(out, 2_000, **RESUME, repair=True)):
        with pytest.raises(checkpoint.ForeignTargetError, match=r"zarr\.json is not the metadata of a store"):
            call(out)


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_links_are_not_written_through(tmp_path, link):
    """Nothing is written through a link that replaces a partial file, a record or a temporary record."""
    out, precious = tmp_path / "a.npy", tmp_path / "precious"
    begin(out)
    partial = tmp_path / "a.npy.partial"
    partial.rename(precious)  # valid content, which a run would otherwise continue
    link(precious, partial)
    content = precious.read_bytes()
    for options in (RESUME, FORCE):
        with pytest.raises(checkpoint.ForeignTargetError, match=r"symbolic link|hard link"):
            write(out, **options)
        assert precious.read_bytes() == content
    partial.unlink()
    link(precious, tmp_path / "a.npy.partial.json.new")
    assert write(out, **FORCE).drawn == 10
    assert precious.read_bytes() == content
    out.unlink()
    record_of(out).unlink()
    link(precious, record_of(out))
    for options in ({}, RESUME, FORCE):
        with pytest.raises(checkpoint.ForeignTargetError, match="not a record of this package"):
            write(out, **options)
    assert precious.read_bytes() == content


@pytest.mark.parametrize("make", [write, begin], ids=["finished", "unfinished"])
def test_links_in_a_store_are_not_followed(tmp_path, make):
    """A link in place of the shards' folder, or of a file that TensorStore writes, is refused and not followed."""
    out, home = tmp_path / "a.zarr", tmp_path / "home"
    home.mkdir()
    (home / "precious").write_bytes(b"what stays")
    make(out)
    (out / "c").rename(tmp_path / "moved")
    (out / "c").symlink_to(home, target_is_directory=True)
    for options in (FORCE, RESUME, {}):
        with pytest.raises(checkpoint.ForeignTargetError, match="neither a file nor a directory"):
            write(out, **options)
    assert [(path.name, path.read_bytes()) for path in home.iterdir()] == [("precious", b"what stays")]
    (out / "c").unlink()
    (tmp_path / "moved").rename(out / "c")
    (out / "blocks-0of1.json.__lock").symlink_to(home / "made")
    with pytest.raises(checkpoint.ForeignTargetError, match="neither a file nor a directory"):
        write(out, **FORCE)
    assert not (home / "made").exists()


def npy(text, data=bytes(64), version=1, length=None):
    """Return the bytes of a ``.npy`` file with this header."""
    header = text.encode() + b"\n"
    count = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", count) + header + data


HEADER = "{{'descr': {!r}, 'fortran_order': False, 'shape': {}, }}"
PARAMETERS = {
    "2^34 numbers": npy(HEADER.format("<f8", f"({2**34},)")),
    "2^61 numbers": npy(HEADER.format("<f8", f"({2**61},)")),
    "-1 numbers": npy(HEADER.format("<f8", "(-1,)")),
    "cut": npy(HEADER.format("<f8", "(100,)")),
    "nested": npy("(" * 4_000 + ")" * 4_000),
    "long header": npy("x", version=2, length=2**32 - 1),
    "version": npy("x", version=9),
    "objects": npy(HEADER.format("|O", "(2,)")),
    "fields": npy("{'descr': [('a','<f8')], 'fortran_order': False, 'shape': (2,), }"),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "empty": b"",
}


@pytest.mark.parametrize("content", PARAMETERS.values(), ids=PARAMETERS)
def test_invalid_parameter_file_is_refused_in_one_line(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.npy").write_bytes(content)
    assert commands.main(["sample", "--size", "3", "--loc", "x.npy"]) == 2
    message = capsys.readouterr().err
    assert "--loc x.npy: not a .npy file of numbers" in message or "--loc x.npy: holds" in message
    assert message.count("\n") == 1
    assert os.listdir(tmp_path) == ["x.npy"]


# Modules and functions that can execute input.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "codeop"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "subprocess.getoutput"}
SOURCES = [
    path
    for folder in ("jax_von_mises", "benchmarks", "docs")
    for path in sorted((children.ROOT / folder).rglob("*.py"))
    if "_build" not in path.parts
]


def dangers(text):
    """Yield the line number and the name of each import, call or argument that could execute input."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        yield from ((node.lineno, name) for name in names & MODULES)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in CALLS:
            yield node.lineno, called
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        shell = keywords.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield node.lineno, "shell"
        allowed = keywords.get("allow_pickle")
        # The default is False in every supported release of NumPy.
        if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
            yield node.lineno, "allow_pickle"


def test_no_input_is_executed():
    """The package, the benchmarks and the docs read no pickles, evaluate no input, and start no shell."""
    assert len(SOURCES) > 60
    dangerous = {
        str(path.relative_to(children.ROOT)): list(dangers(path.read_text(encoding="utf-8"))) for path in SOURCES
    }
    assert {path: lines for path, lines in dangerous.items() if lines} == {}


def test_execution_is_detected():
    for text in ("import pickle", "from yaml import load", "np.load(x, allow_pickle=given)", "eval(x)", "os.system(x)"):
        assert list(dangers(text))
    assert list(dangers("subprocess.run(x, shell=True)"))

"""Files made to do harm, and the program that reads them: ``python -m tests.hostile KIND FOLDER``.

Each case makes its files in a folder of its own, calls what reads them, and prints a line of JSON: the case, the error,
its message, and by how much memory has grown. A case that takes longer than `PATIENCE` ends the program.
"""

import bz2
import contextlib
import faulthandler
import functools
import importlib.util
import io
import json
import lzma
import os
import resource
import socket
import struct
import sys
import zipfile
import zlib

import jax
import numpy as np

import jax_von_mises as jvm
from jax_von_mises import runtime
from jax_von_mises.cli import commands
from jax_von_mises.runtime import sampler_file
from jax_von_mises.streams import checkpoint, writer, zarr

PATIENCE = 30
# Bytes beyond what the process has when the cases begin. A bomb would need more.
ROOM = 2**30
KEY = jax.random.key(5)
PRECIOUS = b"what must stay as it is"

CASES: dict[str, dict] = {"npy": {}, "zarr": {}, "parameters": {}, "sampler": {}, "results": {}}


def case(kind, words):
    """Take a function, which makes the files and calls what reads them, as a case: the error must have these words."""

    def take(function):
        CASES[kind][function.__name__] = (function, words)
        return function

    return take


def cases(kind, words, table):
    """A case for each entry of a table, made by a function of its value."""

    def take(function):
        for name, value in table.items():
            CASES[kind][f"{function.__name__}: {name}"] = (functools.partial(function, value), words)
        return function

    return take


def write(out, **options):
    return jvm.write_samples(out, KEY, 0.5, 4.0, 1_000, block_rows=100, **options)


def begin(out):
    """A run that was broken off."""

    def stop(rows):
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        write(out, observe=stop)


def every_way(out):
    """All ways to come to a target; the first that gets through is an error of its own."""
    for call in (jvm.verify_samples, write, *(functools.partial(write, **{way: True}) for way in ("resume", "force"))):
        try:
            call(out)
        except (OSError, ValueError) as error:
            last = error
        else:
            raise AssertionError(f"{call} took it")
    raise last


def untouched(call, *arguments):
    """Call, and see that the precious file is as it was."""
    try:
        call(*arguments)
    finally:
        with open("precious", "rb") as file:
            assert file.read() == PRECIOUS


def precious(text=PRECIOUS):
    with open("precious", "wb") as file:
        file.write(text)


def changed(name, **changes):
    """Change what a file of JSON says."""
    with open(name, encoding="utf-8") as file:
        found = json.load(file)
    with open(name, "w", encoding="utf-8") as file:
        json.dump(found | changes, file)


# What can stand in the place of a small file.
def pipe(name):
    os.mkfifo(name)


def device(name):
    os.symlink("/dev/zero", name)


def endless(name):
    with open(name, "wb") as file:
        file.truncate(2**40)


def listening(name):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(name)


def nested(name):
    with open(name, "w") as file:
        file.write('{"format": ' + "[" * 10**6)


def deeper(name):
    """Less deep than Python's parser refuses, and as a value that is told of in a message."""
    with open(name) as file:
        found = json.load(file)
    found["stream"]["loc"] = "LOC"
    with open(name, "w") as file:
        file.write(json.dumps(found).replace('"LOC"', "[" * 900 + "]" * 900))


def digits(name):
    with open(name) as file:
        text = file.read()
    with open(name, "w") as file:
        file.write(text.replace('"block_rows": 100', '"block_rows": ' + "1" * 10**6))


def nan(name):
    with open(name) as file:
        text = file.read()
    with open(name, "w") as file:
        file.write(text.replace('"block_rows": 100', '"block_rows": NaN'))


def bytes_of_none(name):
    with open(name, "wb") as file:
        file.write(b"\xff\xfe" * 100)


def filled(text):
    """A text as large as a record may be, of parts that take far more memory than their bytes."""

    def put(name):
        with open(name, "w") as file:
            file.write("[" + text * (checkpoint.LARGEST_RECORD // 2 // len(text)) + "]")

    return put


def lists(name):
    filled("[],")(name)


def brackets(name):
    filled("[]")(name)


def quotes(name):
    filled('"')(name)


STRANGE = {
    each.__name__: each for each in (pipe, device, endless, listening, nested, bytes_of_none, lists, brackets, quotes)
}
TOLD = {each.__name__: each for each in (digits, nan)}
NOT_OURS = "not a record of this package|not a file|more than|No such device|already in use"


@cases("npy", NOT_OURS, STRANGE | TOLD)
def record_of_a_file(put):
    write("a.npy")
    if put.__name__ not in TOLD:
        os.unlink("a.npy.json")
    put("a.npy.json")
    every_way("a.npy")


@cases("npy", NOT_OURS, STRANGE | TOLD)
def record_of_a_run(put):
    begin("a.npy")
    if put.__name__ not in TOLD:
        os.unlink("a.npy.partial.json")
    put("a.npy.partial.json")
    write("a.npy", resume=True)


@case("npy", "holds another stream|another record|not a record")
def record_with_a_deep_value(_=None):
    write("a.npy")
    deeper("a.npy.json")
    write("a.npy", resume=True)


@cases("npy", "not a file|is not the file|No such device|exists", {k: v for k, v in STRANGE.items() if k != "nested"})
def file_itself(put):
    write("a.npy")
    os.unlink("a.npy")
    put("a.npy")
    with contextlib.suppress(FileExistsError):
        write("a.npy")
    for call in (jvm.verify_samples, functools.partial(write, resume=True)):
        try:
            call("a.npy")
        except OSError as error:
            last = error
    raise last


@cases("npy", "has no record beside it|symbolic link", STRANGE)
def unfinished_file(put):
    put("a.npy.partial")
    write("a.npy")


@cases("npy", "symbolic link|hard link", {"link": os.symlink, "hard link": os.link})
def unfinished_file_that_leads_elsewhere(link):
    """With a record that is right: to go on, and to begin anew, would write over what it leads to."""
    begin("a.npy")
    with open("a.npy.partial", "rb") as file:
        content = file.read()
    with open("precious", "wb") as file:
        file.write(content)
    os.unlink("a.npy.partial")
    link("precious", "a.npy.partial")
    for way in ("resume", "force"):
        try:
            write("a.npy", **{way: True})
        except checkpoint.ForeignTargetError as error:
            last = error
        with open("precious", "rb") as file:
            assert file.read() == content
    raise last


@cases("npy", "drawn=10", {"link": os.symlink, "hard link": os.link})
def record_on_its_way_that_leads_elsewhere(link):
    """A name that a killed process may have left: it is removed, and what it leads to stays."""
    precious()
    link("precious", "a.npy.partial.json.new")
    untouched(lambda: raised(write("a.npy")))


def raised(result):
    """What came of it, told as an error is."""
    raise LookupError(repr(result))


def rows_without_angles(rows, **said):
    """A file as long as its record says: it is all header."""
    jvm.write_samples("a.npy", KEY, np.zeros(0, np.float32), 4.0, 1_000, block_rows=100)
    changed("a.npy.json", shape=[rows, 0], **said)
    target = writer.open_target("x", "a.npy", (rows, 0), np.dtype("float32"), 1)
    with open("a.npy", "wb") as file:
        file.write(target.header())


@cases("npy", "not a record", {"verify": "verify", "resume": "resume"})
def record_of_endless_blocks(way):
    rows = 2**60 - 1
    rows_without_angles(rows, block_rows=1, crc32={})
    if way == "verify":
        jvm.verify_samples("a.npy")
    jvm.write_samples("a.npy", KEY, np.zeros(0, np.float32), 4.0, rows, resume=True)


@cases("npy", "as it should|do not match", {"right": "00000000", "wrong": "00000001"})
def record_of_endless_rows(crc):
    rows = 2**60 - 1
    rows_without_angles(rows, block_rows=rows, crc32={"0": crc})
    jvm.verify_samples("a.npy")
    written = jvm.write_samples("a.npy", KEY, np.zeros(0, np.float32), 4.0, rows, resume=True)
    assert written.kept == 1
    raise ValueError("as it should")


@case("npy", "do not match their checksums")
def record_of_one_block_of_gigabytes():
    """In a file with a hole, which takes no room on the disk; it is read in pieces."""
    write("a.npy")
    rows = 2**28
    changed("a.npy.json", shape=[rows], block_rows=rows, crc32={"0": "00000000"})
    target = writer.open_target("x", "a.npy", (rows,), np.dtype("float32"), rows)
    with open("a.npy", "wb") as file:
        file.write(target.header())
        file.truncate(target.size())
    jvm.verify_samples("a.npy")


@case("npy", "makes 16777216 blocks")
def more_blocks_than_a_record_has_lines():
    jvm.write_samples("a.npy", KEY, 0.5, 4.0, 2**24, block_rows=1)


@case("npy", "no directory|Not a directory")
def file_in_the_place_of_a_directory():
    precious()
    untouched(write, "precious/../a.npy/b.npy")


@case("npy", "drawn=10")
def way_through_a_link_and_back():
    """The folder is where the system says that the path leads."""
    os.makedirs("real/inner")
    os.symlink("real/inner", "link")
    written = write("link/../a.npy")
    assert sorted(os.listdir("real")) == ["a.npy", "a.npy.json", "inner"]
    raised(written)


@cases("zarr", NOT_OURS + "|neither a file nor a directory|is not|Error|damaged", STRANGE)
def name_in_a_store(put):
    for name in ("zarr.json", "blocks.json"):
        folder = f"{name}.zarr"
        write(folder)
        os.unlink(f"{folder}/{name}")
        put(f"{folder}/{name}")
        try:
            jvm.verify_samples(folder)
        except (OSError, ValueError) as error:
            last = error
    begin("run.zarr")
    os.unlink("run.zarr/blocks-0of1.json")
    put("run.zarr/blocks-0of1.json")
    with contextlib.suppress(OSError):
        write("run.zarr", resume=True)
        raise AssertionError("it was taken")
    raise last


@cases("zarr", "neither a file nor a directory", {"whole": write, "unfinished": begin})
def shards_that_lead_elsewhere(make):
    """To replace the store removes what is in its folders: not what they lead to."""
    precious()
    os.mkdir("home")
    os.rename("precious", "home/precious")
    make("a.zarr")
    os.rename("a.zarr/c", "moved")
    os.symlink(os.path.abspath("home"), "a.zarr/c")
    for options in ({"force": True}, {"resume": True}, {}):
        try:
            write("a.zarr", **options)
        except checkpoint.ForeignTargetError as error:
            last = error
        with open("home/precious", "rb") as file:
            assert file.read() == PRECIOUS
    raise last


@cases("zarr", "holds folders in folders, more than 64 deep", {"65": 65, "1500": 1_500})
def folders_in_folders(depth):
    write("a.zarr")
    names = [os.path.join("a.zarr", *["d"] * i) for i in range(1, depth + 1)]
    for name in names:
        os.mkdir(name)
    try:
        every_way("a.zarr")
    finally:
        for name in reversed(names):  # what cleans up after the tests would not come to their end either
            os.rmdir(name)


@case("zarr", "drawn=10")
def store_of_many_axes():
    """As many as there can be are not too deep."""
    concentration = np.full((1,) * 30, 4.0, np.float32)
    for way in ({}, {"resume": True}):
        written = jvm.write_samples("a.zarr", KEY, 0.5, concentration, 1_000, block_rows=100, **way)
    jvm.verify_samples("a.zarr")
    raised(written._replace(drawn=written.kept))


@case("zarr", "neither a file nor a directory")
def lock_that_leads_elsewhere():
    """TensorStore would write the record to where it leads."""
    begin("a.zarr")
    os.symlink(os.path.abspath("made"), "a.zarr/blocks-0of1.json.__lock")
    try:
        write("a.zarr", resume=True)
    finally:
        assert not os.path.lexists("made")


def bytes_codec():
    return {"name": "bytes", "configuration": {"endian": "little"}}


FOREIGN = {
    "gzip": {"codecs": [bytes_codec(), {"name": "gzip", "configuration": {"level": 9}}]},
    "zstd": {"codecs": [bytes_codec(), {"name": "zstd", "configuration": {"level": 1}}]},
    "grid": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1_000]}}},
    "fill": {"fill_value": 0.0},
    "keys": {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "../"}}},
    "unknown keys": {"chunk_key_encoding": {"name": "../../{}", "configuration": {}}},
    "transformers": {"storage_transformers": [{"name": "x"}]},
    "group": {"node_type": "group"},
    "shape": {"shape": [2**62]},
    "format": {"zarr_format": 10**30},
}


DEEP = {
    "lists": "[" * 10**5 + "]" * 10**5,
    "101 lists": "[" * 101 + "]" * 101,
    "open": "[" * 10**5,
    "objects": '{"a":' * 10**5 + "1" + "}" * 10**5,
    "behind strings": '["\\\\", "\\"", ' + "[" * 10**5 + "]" * 10**5 + "]",
    "large": "[" * 2**20 + "]" * 2**20,
    "many": "[" + "[]," * 2**17 + "[]]",
    "digits": "1" * 10**5,
    "UTF-16": ("[" * 10**5 + "]" * 10**5).encode("utf-16"),
}


@cases("zarr", "zarr.json is not the metadata of a store|is not|Error", DEEP)
def metadata_nested(text):
    """TensorStore's parser would end the process. In the place of all, of an attribute, and of a run's."""
    content = text if isinstance(text, bytes) else text.encode()
    write("a.zarr")
    with open("a.zarr/zarr.json", "rb") as file:
        ours = file.read()
    begin("b.zarr")
    for out, put in (
        ("a.zarr", content),
        ("a.zarr", ours.replace(b'"attributes":{', b'"attributes":{"x":' + content + b",")),
        ("b.zarr", content),
    ):
        with open(f"{out}/zarr.json", "wb") as file:
            file.write(put)
        for call in (jvm.verify_samples, functools.partial(write, resume=True, repair=True)):
            with contextlib.suppress(FileNotFoundError):  # to verify: that of a run
                try:
                    call(out)
                except checkpoint.ForeignTargetError as error:
                    last = error
                else:
                    raise AssertionError("it was taken")
    raise last


@case("zarr", "drawn=0, kept=10")
def metadata_with_attributes_of_others():
    """Which are no harm, with brackets in their texts."""
    write("a.zarr")
    with open("a.zarr/zarr.json", encoding="utf-8") as file:
        attributes = json.load(file)["attributes"]
    changed("a.zarr/zarr.json", attributes=attributes | {"note": '["\\' * 200, "axes": [[["\u00e9"]]] * 100})
    jvm.verify_samples("a.zarr")
    raised(write("a.zarr", resume=True))


@cases("zarr", "Error|Mismatch|is not the array|FAILED|INVALID", FOREIGN)
def metadata_of_another(changes):
    write("a.zarr")
    changed("a.zarr/zarr.json", **changes)
    for call in (jvm.verify_samples, functools.partial(write, resume=True, repair=True)):
        try:
            call("a.zarr")
        except OSError as error:
            last = error
        else:
            raise AssertionError("it was taken")
    raise last


@case("zarr", "Mismatch|Error")
def shard_that_unpacks_to_gigabytes():
    write("a.zarr")
    block = 2**32
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = packer.compress(bytes(2**20))
    bomb = io.BytesIO()
    bomb.write(piece)
    for _ in range(256):
        bomb.write(packer.compress(bytes(2**20)))
    bomb.write(packer.flush())
    changed("a.zarr/blocks.json", shape=[block], block_rows=block, crc32={"0": "00000000"})
    grid = {"name": "regular", "configuration": {"chunk_shape": [block]}}
    changed("a.zarr/zarr.json", shape=[block], chunk_grid=grid, **FOREIGN["gzip"])
    with open("a.zarr/c/0", "wb") as file:
        file.write(bomb.getvalue())
    jvm.verify_samples("a.zarr")


@case("zarr", "Unable to allocate")
def row_larger_than_memory():
    """A store that is ours but for the shards, which are missing: what is missing reads as NaN."""
    write("a.zarr")
    shape = (2, 2**36)
    store = zarr.ZarrStore("a.zarr", shape, np.dtype("float32"), 1)
    os.unlink("a.zarr/zarr.json")
    store.tensorstore.open(store.specification(), open=True, create=True).result()
    changed("a.zarr/blocks.json", shape=shape, block_rows=1, crc32={"0": "00000000", "1": "00000000"})
    jvm.verify_samples("a.zarr")


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "noise": lambda content: os.urandom(len(content)),
    "index": lambda content: content[:-20] + b"\xff" * 20,
    "long": lambda content: content + bytes(4),
}


@cases("zarr", "checksum|Error|DATA_LOSS|FAILED", DAMAGE)
def shard(change):
    write("a.zarr")
    with open("a.zarr/c/3", "rb") as file:
        content = file.read()
    with open("a.zarr/c/3", "wb") as file:
        file.write(change(content))
    jvm.verify_samples("a.zarr")


@cases("zarr", "not a directory|non-directory|Not a directory|File exists", {"pipe": pipe, "file": precious})
def store_itself(put):
    if put is precious:
        precious()
        os.rename("precious", "a.zarr")
    else:
        put("a.zarr")
    write("a.zarr")


HEADER = "{{'descr': {!r}, 'fortran_order': False, 'shape': {}, }}"


def npy(text, data=bytes(64), version=1, length=None):
    """A ``.npy`` file with a header of one's own."""
    header = text.encode() + b"\n"
    count = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", count) + header + data


def archive(pack=zipfile.ZIP_DEFLATED):
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", pack) as file:
        file.writestr("a.npy", bytes(2**20))
    return found.getvalue()


PARAMETERS = {
    "2^60 numbers": npy(HEADER.format("<f8", f"({2**60},)")),
    "2^61 numbers": npy(HEADER.format("<f8", f"({2**61},)")),
    "2^34 numbers": npy(HEADER.format("<f8", f"({2**34},)")),
    "2^70 numbers": npy(HEADER.format("<f8", f"({2**70},)")),
    "-1 numbers": npy(HEADER.format("<f8", "(-1,)")),
    "true": npy(HEADER.format("<f8", "(True,)")),
    "100 axes": npy(HEADER.format("<f8", "(" + "1," * 100 + ")")),
    "nested": npy("(" * 4_000 + ")" * 4_000),
    "signs": npy("-" * 9_900 + "1"),
    "long header": npy("x", version=2, length=2**32 - 1),
    "version": npy("x", version=9),
    "magic": b"\x93NUMP",
    "cut header": npy(HEADER.format("<f8", "(100,)"))[:40],
    "cut": npy(HEADER.format("<f8", "(100,)")),
    "objects": npy(HEADER.format("|O", "(2,)")),
    "large items": npy(HEADER.format("V2000000000", "(2,)")),
    "fields": npy("{'descr': [('a','<f8')], 'fortran_order': False, 'shape': (2,), }"),
    "unhashable": npy("{[]: 1}"),
    "open text": npy("{'descr': '<f8', 'x"),
    "indented": npy(" {\n 1\n  2}"),
    "null": npy("{'descr': '\0'}"),
    "old": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2L,), "),
    "dates": npy(HEADER.format("<M8[s]", "(2,)")),
    "archive": archive(),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "empty": b"",
}


def at_the_command_line(*arguments):
    """Run it: one line on stderr, and an exit code that is an error's."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = commands.main(["sample", "--size", "3", *arguments])
    assert code in (1, 2)
    assert said.getvalue().count("\n") == 1, said.getvalue()
    raise ValueError(said.getvalue())


@cases("parameters", "--loc x.npy: (not a .npy file|holds|has shape)", PARAMETERS)
def file_of_numbers(content):
    with open("x.npy", "wb") as file:
        file.write(content)
    at_the_command_line("--loc", "x.npy")


@cases(
    "parameters",
    "--loc x.npy: not a|--loc x.npy: no such file",
    {k: STRANGE[k] for k in ("pipe", "device", "endless", "listening")},
)
def strange_file_of_numbers(put):
    put("x.npy")
    at_the_command_line("--loc", "x.npy")


TEXTS = {"null": "\0", "long": "1" * 10**6, "inf": "1e999", "word": "__import__('os')", "binary": "\x1b\x00\x01,,,"}


@cases("parameters", "--loc x.csv", TEXTS)
def text_of_numbers(text):
    with open("x.csv", "w") as file:
        file.write(text)
    at_the_command_line("--loc", "x.csv")


WORDS = {
    "size": ("--size", "9" * 5_000),
    "size as a float": ("--size", "1e308"),
    "block as a float": ("--block", "1e308"),
    "seed": ("--seed", "1e30"),
    "block": ("--block", "-1"),
    "null": ("--loc", "\0"),
    "out": ("--out", "a\0.npy"),
    "long": ("--out", "x" * 5_000 + ".npy"),
    "patience": ("--patience", "nan"),
    "impl": ("--key-impl", "\0"),
}


@cases("parameters", "--|a is|name|long|null|larger|more angles|disk", WORDS)
def argument(words):
    at_the_command_line(*words)


@functools.cache
def exported():
    """The bytes of a sampler's file."""
    runtime.export_sampler("good", (3,), platforms=("cpu",))
    with open("good", "rb") as file:
        return file.read()


def unpacked():
    """Its manifest and its program."""
    with zipfile.ZipFile(io.BytesIO(exported())) as file:
        return file.read(sampler_file.MANIFEST), file.read(sampler_file.PROGRAM)


def pack(path, manifest, program, method=zipfile.ZIP_DEFLATED, times=1):
    """A sampler's file; its program so many times over."""
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr(sampler_file.MANIFEST, manifest)
        with file.open(sampler_file.PROGRAM, "w") as member:
            for _ in range(times):
                member.write(program)


METHODS = {"bzip2": (zipfile.ZIP_BZIP2, bz2), "lzma": (zipfile.ZIP_LZMA, lzma)}


def lie(path, size):
    """Let the archive say that its last file has so many bytes, where its header tells of it."""
    with open(path, "r+b") as file:
        content = bytearray(file.read())
        at = content.rindex(b"PK\x01\x02")
        content[at + 24 : at + 28] = struct.pack("<I", size)
        file.seek(0)
        file.write(content)


@cases("sampler", "packed by method", {name: method for name, (method, _) in METHODS.items()})
def sampler_packed_otherwise(method):
    """A few kilobytes that become gigabytes, and say that they are few: these unpackers look at the size afterwards."""
    manifest, _ = unpacked()
    pack("x", manifest, bytes(2**20), method, times=32)
    lie("x", 100)
    runtime.load_sampler("x")


@case("sampler", "damaged|checksum")
def sampler_that_lies_of_its_size():
    manifest, _ = unpacked()
    pack("x", manifest, bytes(2**20), times=256)
    lie("x", 100)
    runtime.load_sampler("x")


@case("sampler", "may have")
def sampler_with_a_long_manifest():
    _, program = unpacked()
    pack("x", "[" + "[]," * 2**20 + "[]]", program)
    runtime.load_sampler("x")


@cases(
    "sampler",
    "damaged|manifest",
    {"nested": "[" * 10**5, "digits": '{"bytes": ' + "1" * 10**5 + "}", "nan": '{"format": NaN}'},
)
def manifest(text):
    _, program = unpacked()
    pack("x", text, program)
    runtime.load_sampler("x")


@case("sampler", "bytes, as no sampler has")
def sampler_with_many_names():
    with open("x", "wb") as file:
        file.truncate(sampler_file.LARGEST_FILE + 1)
    runtime.load_sampler("x")


@cases(
    "sampler",
    "not a file|damaged|bytes, as no|No such device",
    {k: STRANGE[k] for k in ("pipe", "device", "endless", "listening", "bytes_of_none")},
)
def sampler(put):
    put("x")
    runtime.load_sampler("x")


@case("sampler", "all of them")
def sampler_with_a_bit_that_fell_over():
    """Wherever it is the program is refused, or what is loaded is what was written."""
    whole = exported()
    with open("x", "wb") as file:
        file.write(whole)
    told = runtime.load_sampler("x").manifest
    rng = np.random.default_rng(0)
    for at, bit in zip(rng.integers(len(whole), size=30), rng.integers(8, size=30), strict=True):
        content = bytearray(whole)
        content[at] ^= 1 << bit
        with open("x", "wb") as file:
            file.write(content)
        with contextlib.suppress(ValueError):
            assert runtime.load_sampler("x").manifest == told
    raise ValueError("all of them")


RESULTS = {
    "nested": "[" * 10**6,
    "digits": '{"format": 2, "cases": [], "x": ' + "1" * 10**5 + "}",
    "nan": '{"format": 2, "cases": [], "x": NaN}',
    "infinity": '{"format": 2, "cases": [], "x": -Infinity}',
    "overflow": '{"format": 2, "cases": [], "x": 1e999}',
    "list": "[]",
    "text": '"text"',
    "null": "null",
    "empty": "",
    "cases": '{"format": 2, "cases": 3}',
    "nothing in it": '{"format": 2, "cases": []}',
    "program": '{"program": "streaming", "format": 1, "sections": 3}',
    "sections": '{"program": "streaming", "format": 1, "sections": {"disk": 1, "record": 2, "processes": []}}',
}


def of_a_program(main, *arguments):
    """Run a program of the benchmarks: it must end with an error that names the file."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(arguments))
    assert code in (1, 2)
    assert "Traceback" not in said.getvalue()
    raise ValueError(said.getvalue())


def readers(name):
    """All programs that read results."""
    from benchmarks import performance_benchmark, plots
    from benchmarks.streaming import pictures

    yield performance_benchmark.main, "--from", name, "--compare", name
    if importlib.util.find_spec("matplotlib"):
        yield plots.main, name, "--out", "x.svg"
        yield pictures.main, name, "--out", "x.svg"


@cases("results", "x.json", RESULTS)
def result(text):
    with open("x.json", "w") as file:
        file.write(text)
    for main, *arguments in readers("x.json"):
        try:
            of_a_program(main, *arguments)
        except ValueError as error:
            last = error
    raise last


@cases("results", "x.json", {k: STRANGE[k] for k in ("pipe", "device", "endless", "listening", "bytes_of_none")})
def strange_result(put):
    put("x.json")
    for main, *arguments in readers("x.json"):
        try:
            of_a_program(main, *arguments)
        except ValueError as error:
            last = error
    raise last


def grown():
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(kind, folder):
    """Run the cases of a kind, under a limit of memory."""
    os.chdir(folder)
    os.mkdir("warm")
    os.chdir("warm")
    # What every process loads and compiles once is no harm of the cases.
    write("a.npy")
    write("a.zarr")
    if kind == "sampler":
        exported()
        runtime.load_sampler("good")
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
    for number, (name, (function, words)) in enumerate(CASES[kind].items()):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        os.mkdir(f"{folder}/{number}")
        os.chdir(f"{folder}/{number}")
        before = grown()
        try:
            function()
            error, text = None, ""
        except Exception as raised:
            error, text = type(raised).__name__, str(raised)
        print(json.dumps({"case": name, "words": words, "error": error, "text": text, "grown": grown() - before}))
        sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], os.path.abspath(sys.argv[2]))

"""Test programs that are compiled in advance in this process, or exported to a file."""

import hashlib
import json
import sys
import zipfile

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jax_von_mises import runtime, sample_block, sample_von_mises
from jax_von_mises.runtime import sampler_file


@pytest.fixture
def compiled():
    """Return a list that grows with each program that JAX compiles or loads from disk during the test."""
    events = []

    def count(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(seconds)

    jax.random.key(0)  # `warmup` makes a key; compile its programs now, so that they do not count
    jax.monitoring.register_event_duration_secs_listener(count)
    yield events
    jax.monitoring.unregister_event_duration_listener(count)


def test_nothing_is_left_to_compile(key, compiled):
    many = np.linspace(1, 3, 7, dtype=np.float32)
    programs = runtime.warmup([40_001, (5, 7), None], ("float32", "bfloat16"), key=key, concentration=many[:1])
    assert [(item.shape, item.dtype) for item in programs] == [
        (shape, dtype) for shape in ((40_001,), (5, 7), (1,)) for dtype in ("float32", "bfloat16")
    ]
    assert [item.method for item in programs] == ["table"] * 2 + ["direct"] * 4
    for item in programs:
        assert min(item.trace_seconds, item.lower_seconds, item.compile_seconds) > 0
        assert item.output_bytes == np.prod(item.shape) * np.dtype(item.dtype).itemsize
        assert item.temporary_bytes >= 0
        assert item.flops > item.shape[0]
    assert str(programs[2]).startswith("float32[5, 7] (direct): ")
    other = jax.random.key(0, impl="rbg")
    runtime.warmup((9,), key=other)
    runtime.warmup((5, 7), loc=0, concentration=jax.ShapeDtypeStruct((7,), np.float32), key=key)
    runtime.warmup((5, 7), key=key, block=True)
    compiled.clear()
    for shape in (40_001, (5, 7), None):
        for dtype in ("float32", "bfloat16"):
            sample_von_mises(key, 0.3, many[2:3], shape, dtype)
    sample_von_mises(key, 1, many, (5, 7))
    sample_block(key, 0.25, 9.0, 2**40, (5, 7))
    sample_von_mises(other, 0.0, 1.0, (9,))
    assert not compiled, "`warmup` must have compiled the programs of these calls"
    sample_von_mises(key, 0.25, 9.0, (5, 8))
    assert len(compiled) == 1, "a new shape must be compiled"


def test_described_arguments_on_other_devices(compiled, key):
    """`warmup` accepts a `jax.ShapeDtypeStruct` with a sharding."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    k = jax.device_put(np.linspace(1, 3, 6, dtype=np.float32), sharding)
    runtime.warmup(6, concentration=jax.ShapeDtypeStruct(k.shape, k.dtype, sharding=sharding), key=key)
    compiled.clear()
    sample_von_mises(key, 0.0, k, 6)
    assert not compiled


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (((2, -1),), ValueError, "negative size"),
        (([3, "x"],), TypeError, "shape='x'"),
        ((3, ["float32", "int8"]), TypeError, "int8 cannot hold an angle"),
    ],
)
def test_invalid_arguments_of_warmup(arguments, error, words, compiled):
    with pytest.raises(error, match=f"warmup: .*{words}"):
        runtime.warmup(*arguments)
    with pytest.raises(TypeError, match="block=1"):
        runtime.warmup(3, block=1)
    assert not compiled, "all arguments must be checked first"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the path and manifest of an exported sampler, shared by the tests that only read it."""
    path = tmp_path_factory.mktemp("sampler") / "many.sampler"
    manifest = runtime.export_sampler(path, (40, 3), concentration=np.ones(3, np.float32))
    return path, manifest


CONCENTRATION = np.float32([0.5, 20, 1e6])


@pytest.mark.slow
def test_same_angles_and_derivatives(written, key):
    path, manifest = written
    sampler = runtime.load_sampler(path)
    assert sampler.manifest == manifest
    assert manifest["platforms"] == ["cpu", "cuda", "rocm", "tpu"]
    expected = sample_von_mises(key, 0.3, CONCENTRATION, (40, 3))
    np.testing.assert_array_equal(sampler(key, 0.3, CONCENTRATION), expected)
    np.testing.assert_array_equal(jax.jit(sampler)(key, 0.3, CONCENTRATION), expected)

    def total(draw):
        return jax.grad(lambda k, loc: draw(key, loc, k).sum(), (0, 1))

    ours = total(lambda key, loc, k: sample_von_mises(key, loc, k, (40, 3)))
    loaded, drawn = (f(jnp.asarray(CONCENTRATION), 0.3) for f in (total(sampler), ours))
    for one, other in zip(loaded, drawn, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert repr(sampler) == "<sampler of float32[40, 3] for cpu, cuda, rocm, tpu>"
    with pytest.raises(ValueError, match=r"concentration has shape \(\), but this program is for \(3,\)"):
        sampler(key, 0.0, 4.0)
    with pytest.raises(TypeError, match="key must be a JAX random key"):
        sampler(3, 0.0, CONCENTRATION)
    with pytest.raises(TypeError, match="loc must be a real number"):
        sampler(key, "x", CONCENTRATION)


@pytest.mark.slow
def test_options(tmp_path):
    """A sampler may use the table, another dtype or key implementation, and one platform; it refuses other keys."""
    key = jax.random.key(3, impl="unsafe_rbg")
    path = tmp_path / ("a" * 250)  # near the limit of 255 characters, so a temporary name cannot be much longer
    options = dict(method="table", key=key, loc=np.float32(0), platforms="cpu")
    assert runtime.export_sampler(path, 100, "bfloat16", **options)["key"] == "unsafe_rbg"
    sampler = runtime.load_sampler(str(path))
    expected = sample_von_mises(key, 0.1, 3.0, 100, "bfloat16", method="table")
    np.testing.assert_array_equal(sampler(key, 0.1, 3.0), expected)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="has the implementation threefry2x32, but this program is for unsafe_rbg"):
        sampler(jax.random.PRNGKey(0))


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    path = tmp_path / "mine"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="mine already exists"):
        runtime.export_sampler(path, 3)
    runtime.export_sampler(path, 3, force=True)
    assert runtime.load_sampler(path).manifest["shape"] == [3]
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        runtime.export_sampler(path, 4, force=True)
    assert path.read_bytes() == before
    assert [name.name for name in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("platforms", [("cpu", "gpu"), (), 3])
def test_invalid_platforms(tmp_path, platforms):
    with pytest.raises(ValueError, match=r"export_sampler: platforms=.*must be one or more of cpu, cuda"):
        runtime.export_sampler(tmp_path / "a", 3, platforms=platforms)
    assert not list(tmp_path.iterdir())


def test_without_flatbuffers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    for call in (lambda: runtime.export_sampler(tmp_path / "a", 3), lambda: runtime.load_sampler(tmp_path / "a")):
        with pytest.raises(ImportError, match=r'pip install "jax_von_mises\[export\]"'):
            call()


def repacked(path, target, manifest=None, content=None, names=(sampler_file.MANIFEST, sampler_file.PROGRAM)):
    """Write a copy of a sampler's file with another manifest, program or names."""
    with zipfile.ZipFile(path) as file:
        parts = [file.read(sampler_file.MANIFEST), file.read(sampler_file.PROGRAM)]
    description = json.loads(parts[0]) | (manifest or {})
    with zipfile.ZipFile(target, "w") as file:
        file.writestr(names[0], json.dumps(description))
        file.writestr(names[1], parts[1] if content is None else content)


def test_damage(written, tmp_path):
    """A file with a flipped bit is refused, unless its manifest and program are unaffected."""
    full = written[0].read_bytes()
    path = tmp_path / "damaged"
    refused = 0
    for at in np.linspace(0, len(full) - 1, 40, dtype=int):
        path.write_bytes(full[:at] + bytes([full[at] ^ 4]) + full[at + 1 :])
        try:
            loaded = runtime.load_sampler(path)
        except ValueError:
            refused += 1
        else:
            assert loaded.manifest == written[1]
    assert refused > 33
    path.write_bytes(full[: len(full) // 2])
    with pytest.raises(ValueError, match="damaged, or is not a sampler of this package"):
        runtime.load_sampler(path)
    with pytest.raises(FileNotFoundError):
        runtime.load_sampler(tmp_path / "nothing")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"{}" * 1000])
def test_other_files(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"load_sampler: .*x is damaged, or is not a sampler of this package"):
        runtime.load_sampler(tmp_path / "x")


def test_other_archives(written, tmp_path):
    path = tmp_path / "x"
    repacked(written[0], path, names=("a", "b"))
    with pytest.raises(ValueError, match="is not a sampler of this package: it lacks "):
        runtime.load_sampler(path)
    for manifest, words in (
        ({"format": "jax_von_mises/sampler/2"}, "its format is 'jax_von_mises/sampler/2', but this release reads"),
        ({"sha256": "0"}, "does not match its checksum"),
        ({"key": None}, "manifest was not written by this package"),
    ):
        repacked(written[0], path, manifest)
        with pytest.raises(ValueError, match=f"load_sampler: .*{words}"):
            runtime.load_sampler(path)
    runtime.export_sampler(path, (3,), platforms="cuda", force=True)
    with pytest.raises(ValueError, match="is for cuda, but JAX runs on cpu here"):
        runtime.load_sampler(path)


def test_programs_that_jax_cannot_read(written, tmp_path):
    """Programs that JAX cannot read, such as those of distant releases, are refused even with a correct checksum."""
    path, content = tmp_path / "x", b"\x10\0\0\0" + bytes(500)
    repacked(written[0], path, {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}, content)
    with pytest.raises(ValueError, match=f"was written by JAX {jax.__version__} and cannot be read"):
        runtime.load_sampler(path)


def test_programs_that_call_code_outside(written, tmp_path):
    """Programs with custom calls are refused, since such calls can run any function registered with XLA."""
    outside = jax.export.export(jax.jit(lambda key, loc, k: loc + jnp.linalg.cholesky(jnp.eye(3)).sum() + k))
    arguments = ((2,), "uint32"), ((), "float32"), ((3,), "float32")
    like = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments]
    content = bytes(outside(*like).serialize())
    manifest = {
        "shape": [3],
        "platforms": ["cpu"],
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    repacked(written[0], tmp_path / "x", manifest, content)
    with pytest.raises(ValueError, match="calls external code"):
        runtime.load_sampler(tmp_path / "x")


def test_too_large(written, tmp_path):
    """A program above the size limit is refused, since a small archive may unpack to any size."""
    path = tmp_path / "bomb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(sampler_file.MANIFEST, "{}")
        file.writestr(sampler_file.PROGRAM, bytes(sampler_file.LARGEST_PROGRAM + 1))
    with pytest.raises(ValueError, match=f"has {sampler_file.LARGEST_PROGRAM + 1} bytes, but may have"):
        runtime.load_sampler(path)

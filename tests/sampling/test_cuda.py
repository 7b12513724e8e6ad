"""Test the CUDA kernels without a GPU: execute them on the CPU, assemble them, and use them in draws.

Tests that draw use few and small programs, since each is compiled for both paths.
"""

import functools
import re
import shutil
import subprocess
import threading
import types

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import jax_von_mises
from jax_von_mises.numerics import piecewise
from jax_von_mises.sampling import counter, cuda, cuda_launch, cuda_self_test, cuda_verdict
from jax_von_mises.sampling.request import DrawRequest
from tests import host_kernels, reference
from tests.host_kernels import on_host  # noqa: F401
from tools import make_kernels
from tools.ptx import battery

CIPHERS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32")
KAPPAS = (0.0, 1e-6, 0.1, 1.0, 4.0, 4.9999, 5.0, 16.9, 17.1, 100.0, 1e4, 1e8, 1e20)
COUNT = 2**12


@jax.jit
def table_of(kappa):
    """Return the quantile table as a kernel reads it."""
    return piecewise.quantile_table(kappa).T


def host(job, start, loc, kappa, flags=0, **kwargs):
    """Return the angles that a job's kernel draws; `kappa` is an array, or a number for the table route."""
    (count,) = job.shape
    sizes = np.array([count, 0, 1, flags, cuda_launch.KERNEL_DTYPES[job.dtype]], np.uint32)
    values = kappa if job.route == "direct" else np.asarray(table_of(jnp.float32(kappa)))
    place = np.array([start >> 32, start % 2**32], np.uint32)
    out = jax.ShapeDtypeStruct(job.shape, job.dtype)
    return host_kernels.launch(job.name, (3, 1), (64, 1), out, key_of(job.cipher), place, sizes, values, loc, **kwargs)


def key_of(cipher):
    """Return key words for a cipher."""
    size = {"threefry2x32": 2, "threefry4x32": 4, "philox2x32": 1, "philox4x32": 2}[cipher]
    return np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344][:size], np.uint32)


def plain(job, start, loc, kappa):
    """Return the angles that the plain path draws for the same job."""
    place = np.array([start >> 32, start % 2**32], np.uint32)
    return np.asarray(jax.jit(cuda_launch.plain_angles, static_argnums=0)(job, key_of(job.cipher), place, loc, kappa))


def around(a, b):
    """Return the distances between angles on the circle."""
    return np.abs(np.mod(a.astype(np.float64) - b.astype(np.float64) + np.pi, 2 * np.pi) - np.pi)


def test_the_text_is_that_of_the_source():
    """The first line of the kernels' text identifies its source."""
    first = make_kernels.TARGET.read_text().splitlines()[0]
    assert make_kernels.fingerprint() in first, "run `python -m tools.make_kernels`"


@pytest.mark.slow
def test_the_text_is_what_the_compiler_makes_of_the_source():
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc")
    release = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    if "release 13.0" not in release:
        pytest.skip("other releases of nvcc produce other text")
    assert make_kernels.make() == make_kernels.TARGET.read_text()


@pytest.mark.parametrize(
    "architecture", ["sm_90", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_80", "sm_100"))]
)
def test_the_text_assembles(architecture, tmp_path):
    """Each kernel assembles alone, as XLA receives it, with few spills; XLA would report errors only on a GPU."""
    if shutil.which("ptxas") is None:
        pytest.skip("no ptxas to assemble with")
    head, parts = cuda_launch._ptx()
    assert set(parts) == {
        cuda_launch.KernelSpec(cipher, method, dtype, ()).name
        for cipher in CIPHERS
        for method in ("table", "direct")
        for dtype in cuda_launch.KERNEL_DTYPES
    }
    assert len(parts) == 16
    for name, part in parts.items():
        (tmp_path / f"{name}.ptx").write_text(head + part)
        command = ["ptxas", "-v", f"-arch={architecture}", f"{name}.ptx", "-o", f"{name}.cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", done.stderr)]
        assert sum(spilled) <= 16, f"{name} lacks registers: {done.stderr}"


def test_angles_by_the_table():
    """Angles are within 4 ulp of the plain path's, where the ulp is at least that of the quantile Q(31/64).

    In the last cell, between Q(31/64) and 0, the cubic is a difference of nearly equal numbers. Another order of
    operations changes the last digit of its largest term, Q(31/64). Both orders keep the guarantee, which concerns the
    probability.
    """
    job = cuda_launch.KernelSpec("threefry2x32", "table", "float32", (COUNT,))
    for kappa in KAPPAS:
        a = host(job, 2**32 - 6, np.zeros(1, np.float32), kappa)
        b = plain(job, 2**32 - 6, np.float32(0), np.float32(kappa))
        end = np.quantile(np.abs(b), 1 / 32)
        allowed = 4 * np.spacing(np.maximum(np.abs(b), end))
        assert (np.abs(a - b) <= allowed).all(), f"kappa={kappa}"


@pytest.mark.parametrize("error", battery.ERRORS)
def test_angles_by_the_direct_route(error):
    """The direct route keeps the sampler's accuracy for every error that the hardware's functions may have.

    The bounds are a relative error of 2e-6 in the tail probability, or 4 ulp in the angle. The angles are not compared
    with the plain path's, which are up to 12 ulp from the exact angles where the bound on the tail is the looser one.
    """
    job = cuda_launch.KernelSpec("philox4x32", "direct", "float32", (COUNT,))
    program = jax.jit(lambda key: counter.block_words(job.cipher, key, counter.indices((COUNT,), (0, 0)), 1)[0])
    words = np.asarray(program(key_of(job.cipher)))
    t = ((words >> 1) + 0.5) * 2.0**-32
    for kappa in KAPPAS:
        x = host(job, 0, np.zeros(1, np.float32), np.array([kappa], np.float32), error=error)
        np.testing.assert_array_equal(x < 0, words & 1)
        size = np.abs(x).astype(np.float64)
        k = float(np.float32(kappa))
        tail = reference.sf(size, k)
        per_ulp = reference.pdf(size, k) * np.spacing(np.abs(x))
        off = np.abs(tail - t) / np.maximum(2e-6 * t, 4 * per_ulp)
        assert off.max() <= 1, f"kappa={kappa}: {off.max():.2f} times the allowed error"


def test_arrays_of_parameters():
    """Angles agree with the plain path's for arrays of parameters, even with invalid elements, from two starts."""
    job = cuda_launch.KernelSpec("threefry2x32", "direct", "float32", (1027,))
    kappa = np.geomspace(1e-3, 1e6, 1027).astype(np.float32)
    loc = np.linspace(-400, 400, 1027).astype(np.float32)
    kappa[[5, 600]] = -1, np.nan
    loc[[7, 601, 602]] = np.inf, np.nan, 3e7
    kappa[1000] = np.inf
    for start in (0, 2**32 - 6):
        a = host(job, start, loc, kappa, flags=cuda_launch.CONCENTRATIONS | cuda_launch.LOCS)
        b = plain(job, start, loc, kappa)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        assert np.flatnonzero(np.isnan(a)).tolist() == [5, 7, 600, 601, 602]
        good = ~np.isnan(a)
        # The rounding of `loc`, and the error bounds of both paths.
        assert (around(a, b)[good] <= 5e-7 + 4e-6 / np.sqrt(np.maximum(kappa[good], 1))).all()
        assert (np.abs(a[good]) < np.pi).all()


def launches(monkeypatch):
    """Return a list to which each program adds the names of its kernels when it is traced."""
    names = []

    def launch(name, *arguments):
        names.append(name)
        return host_kernels.callback(name, *arguments)

    monkeypatch.setattr(cuda_launch, "launch", launch)
    return names


def test_draws_go_to_the_kernel(on_host, key):  # noqa: F811
    """Draws use the kernel where it applies, and agree with the plain path within the error bounds of both."""
    names = launches(on_host)
    cases = [
        (dict(concentration=4.0, shape=(77,), method="table"), "threefry2x32_table_float32"),
        (dict(concentration=jnp.array([[0.5], [50.0]]), shape=(2, 9), dtype="bfloat16"), "threefry2x32_direct"),
    ]
    for arguments, name in cases:
        del names[:]
        ours = jax_von_mises.sample_von_mises(key, 2.5, **arguments)
        assert set(names) == {name}
        expected = by_the_plain_path(on_host, jax_von_mises.sample_von_mises, key, 2.5, **arguments)
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        assert around(np.asarray(ours), np.asarray(expected)).max() <= 5e-6 + 4 * float(jnp.finfo(ours.dtype).eps)
    for shape, dtype, sharding in (((8,), "float64", None), ((0,), "float32", None), ((8,), "float32", "named")):
        request = DrawRequest(key, jnp.zeros(()), jnp.ones(()), None, shape, np.dtype(dtype), "direct", sharding)
        assert not cuda.use_cuda_kernel(request)
    assert "passed their trial" in cuda.kernel_report()


def by_the_plain_path(monkeypatch, function, *arguments, **options):
    """Return the result with the kernels turned off."""
    monkeypatch.setenv(cuda.VARIABLE, "0")
    try:
        return function(*arguments, **options)
    finally:
        monkeypatch.delenv(cuda.VARIABLE)


@pytest.mark.slow
def test_parts_equal_the_complete_draw(on_host, key):  # noqa: F811
    """A block and a batch equal the same parts of the complete draw, bit for bit."""
    draw = jax.jit(lambda start: jax_von_mises.sample_block(key, 1.0, 4.0, start, (333,)))
    full = jax_von_mises.sample_von_mises(key, 1.0, 4.0, (2000,), method="table")
    np.testing.assert_array_equal(draw(np.uint32(1234)), full[1234 : 1234 + 333])
    batch = next(iter(jax_von_mises.sample_batches(key, 1.0, 4.0, 2000, 500, start=500)))
    np.testing.assert_array_equal(batch, full[500:1000])


@pytest.mark.parametrize("method", [pytest.param("table", marks=pytest.mark.slow), "direct"])
def test_vmap(on_host, key, method):  # noqa: F811
    """Mapping over any argument, even twice, launches one kernel, and its rows equal single draws."""
    names = launches(on_host)
    keys, locs = jax.random.split(key, 3), jnp.array([-3.0, 3.0])
    kappas = jnp.array([[0.5, 8.0], [1.0, 2.0], [4.0, 4.0]])

    def draw(key, loc, kappa):
        return jax_von_mises.sample_von_mises(key, loc, kappa, (41,), method=method)

    twice = jax.jit(jax.vmap(jax.vmap(draw, (None, 0, 0)), (0, None, 0)))
    result = twice(keys, locs, kappas)
    assert result.shape == (3, 2, 41)
    assert len(set(names)) == 1
    for i in range(3):
        for j in range(2):
            np.testing.assert_array_equal(result[i, j], draw(keys[i], locs[j], kappas[i, j]))


def test_arrays_under_vmap(on_host, key):  # noqa: F811
    """Rows equal single draws, both for separate arrays of concentrations and for a shared one."""
    kappas = jnp.linspace(0.5, 9, 6).reshape(2, 3)

    def draw(key, kappa):
        return jax_von_mises.sample_von_mises(key, 0.5, kappa, (4, 3), method="direct")

    mapped = jax.vmap(draw, (None, 0))(key, kappas)
    shared = jax.vmap(draw, (0, None))(jax.random.split(key, 2), kappas[0])
    for row in range(2):
        np.testing.assert_array_equal(mapped[row], draw(key, kappas[row]))
        np.testing.assert_array_equal(shared[row], draw(jax.random.split(key, 2)[row], kappas[0]))


def gradient(key, method):
    """Return a new, uncompiled function of the concentration, and a function that returns its value and derivative."""

    def total(kappa):
        return (jax_von_mises.sample_von_mises(key, 0.3, kappa, (64,), method=method) ** 2).sum()

    return total, jax.value_and_grad(total)


def test_derivatives(on_host, key):  # noqa: F811
    """The value with a gradient equals the value alone, and the gradient agrees with the plain path's."""
    names = launches(on_host)
    total, both = gradient(key, "direct")
    value, slope = both(jnp.float32(2.0))
    assert names
    assert value == total(jnp.float32(2.0))
    _, expected = by_the_plain_path(on_host, gradient(key, "direct")[1], jnp.float32(2.0))
    np.testing.assert_allclose(slope, expected, rtol=1e-5)
    assert np.isnan(both(jnp.float32(-1.0))[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["table", "direct"])
def test_further_derivatives(on_host, key, method):  # noqa: F811
    """First derivatives in both modes, and second derivatives, agree with those of the plain path."""

    def total(loc, kappa):
        return (jax_von_mises.sample_von_mises(key, loc, kappa, (64,), method=method) ** 2).sum()

    def all_of_them():
        # Use a new function each time, since JAX would not trace the same one again.
        function, point = lambda *arguments: total(*arguments), (jnp.float32(0.3), jnp.float32(2.0))
        forward = jax.jacfwd(function, argnums=1)(*point)
        return *jax.grad(function, argnums=(0, 1))(*point), forward, *jax.grad(jax.grad(function, 1), (0, 1))(*point)

    np.testing.assert_allclose(all_of_them(), by_the_plain_path(on_host, all_of_them), rtol=2e-4)


def test_several_devices(on_host, key):  # noqa: F811
    """In shard_map and pmap, each device draws its part by the kernel if the variable turns kernels on."""
    on_host.setattr(jax, "device_count", lambda *_: 8)
    names = launches(on_host)
    jax.eval_shape(lambda key: jax_von_mises.sample_pmap(key, 0.0, 4.0, (8, 49)), key)
    assert not names
    assert cuda.VARIABLE in cuda.kernel_report()
    on_host.setenv(cuda.VARIABLE, "1")
    full = jax_von_mises.sample_von_mises(key, 0.0, 4.0, (8, 50), method="direct")
    assert not names
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    kappa = jax.device_put(jnp.full(8, 4.0), jax.sharding.NamedSharding(mesh, PartitionSpec("d")))

    def part(key, kappa):
        return jax_von_mises.sample_shard(key, 0.0, kappa[0], (1, 50), "d", method="direct")

    specs = dict(mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("d")), out_specs=PartitionSpec("d"))
    for more in ({}, {"check_vma": False}):
        del names[:]
        parts = jax.jit(jax.shard_map(part, **specs, **more))(key, kappa)
        assert names
        assert around(np.asarray(parts), np.asarray(full)).max() < 5e-6
    del names[:]
    mapped = jax_von_mises.sample_pmap(key, 0.0, 4.0, (8, 50), method="direct")
    assert names
    np.testing.assert_array_equal(mapped, parts)


def lowered(function, *arguments):
    """Return the text of a program for CUDA, which can be lowered without a GPU."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def one_draw(route):
    """Return a function that draws with the key's words and a concentration."""
    spec = cuda_launch.KernelSpec("threefry2x32", route, "float32", (1000,))
    return lambda key, kappa: cuda_launch.draw_by_kernel(spec, key, None, jnp.float32(0), kappa)


def test_the_program_for_a_gpu():
    """The program contains the kernel's text and no operation of the plain path."""
    text = lowered(one_draw("direct"), jnp.zeros(2, jnp.uint32), jnp.ones(1000))
    assert text.count(cuda_launch.TARGET) == 1
    assert ".visible .entry threefry2x32_direct" in text
    assert "stablehlo.xor" not in text, "the plain path's cipher"


@pytest.mark.parametrize(
    ("route", "keys", "kappas", "in_axes", "kernel"),
    [
        ("table", (3, 2), (5,), ((None, 0), (0, None)), False),
        ("table", (5, 2), (3,), ((0, None), (None, 0)), False),
        ("table", (3, 2), (1,), ((None, 0), (0, None)), True),
        ("table", (3, 2), (3, 5), ((None, 0), (0, 0)), True),
        ("table", (3, 5, 2), (), ((0, None), (0, None)), True),
        ("direct", (3, 2), (5,), ((None, 0), (0, None)), True),
        ("direct", (2**16, 2**16, 2), (), ((0, None), (0, None)), False),
        ("direct", (0, 2), (), ((0, None),), False),
    ],
)
def test_each_map_is_one_launch(route, keys, kappas, in_axes, kernel):
    """A map launches one kernel unless rows would need copies of a table, or their number is 0 or exceeds 32 bits."""
    draw = one_draw(route)
    for each in in_axes:
        draw = jax.vmap(draw, each)
    text = lowered(draw, jax.ShapeDtypeStruct(keys, "uint32"), jax.ShapeDtypeStruct(kappas, "float32"))
    assert (cuda_launch.TARGET in text) == kernel


def test_a_program_for_several_devices():
    """A program for several devices contains the plain path, except for the parts inside `jax.shard_map`."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    key = jax.ShapeDtypeStruct((2,), "uint32", sharding=jax.sharding.NamedSharding(mesh, PartitionSpec()))
    draw = functools.partial(one_draw("direct"), kappa=jnp.float32(4))
    assert cuda_launch.TARGET not in lowered(draw, key)
    part = jax.shard_map(draw, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("d"), check_vma=False)
    assert cuda_launch.TARGET in lowered(part, key)


def test_without_compilation_the_plain_path_draws(monkeypatch):
    """Outside jit the plain path draws, since the operands need not be on the default device."""
    monkeypatch.setattr(cuda_launch, "PLATFORM", "cpu")
    monkeypatch.setattr(cuda_launch, "launch", lambda *_: pytest.fail("launched"))
    spec = cuda_launch.KernelSpec("threefry2x32", "direct", "float32", (8,))
    operands = key_of(spec.cipher), np.zeros(2, np.uint32), np.float32(0), np.float32(4)
    output = jax.eval_shape(functools.partial(cuda_launch.draw_primitive().impl, spec=spec, maps=()), *operands)
    assert output.shape == spec.shape


@pytest.mark.parametrize("platforms", [pytest.param(("cuda",), marks=pytest.mark.slow), ("cpu", "cuda")])
def test_exported_programs(monkeypatch, key, platforms):
    """An exported program contains the plain path, even if other programs of the same function launch a kernel."""
    pytest.importorskip("flatbuffers", reason="jax.export needs it to serialize programs")
    monkeypatch.setattr(cuda_launch, "devices", lambda: ("a card",))
    monkeypatch.setattr(cuda, "whole_on_one_device", lambda *_: True)
    monkeypatch.setattr(cuda, "tried", lambda: True)
    monkeypatch.setenv(cuda.VARIABLE, "1")

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def draw(key, kappa):
        return jax_von_mises.sample_von_mises(key, 0.0, kappa, (3000,), method="table")

    arguments = jax.random.split(key, 2), jnp.float32(4.0)
    text = draw.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert ".visible .entry threefry2x32_table_float32" in text
    program = jax.export.deserialize(jax.export.export(draw, platforms=platforms)(*arguments).serialize(vjp_order=1))
    assert program.platforms == platforms
    assert cuda_launch.TARGET not in program.mlir_module()
    if "cpu" in platforms:
        np.testing.assert_array_equal(program.call(*arguments), draw(*arguments))


@pytest.mark.slow
def test_a_kernel_that_fails_is_not_used(on_host, key, caplog):  # noqa: F811
    """After wrong angles, an error or a hang, the plain path draws; the failure is logged once and reported."""
    expected = by_the_plain_path(on_host, jax_von_mises.sample_von_mises, key, 0.0, 4.0, (99,))
    never = threading.Event()
    on_host.setattr(cuda, "tried", lambda: False)
    on_host.setenv(cuda.VARIABLE, "1")

    def shifted(*arguments):
        return host_kernels.callback(*arguments) + jnp.float32(1e-4)

    def broken(*_):
        raise ValueError("no such target")

    def endless(*_):
        never.wait()

    for launch, detail in ((shifted, "away from the plain path's"), (broken, "no such target"), (endless, "no answer")):
        host_kernels.forget()
        jax.clear_caches()  # JAX 0.12 keeps the program of an equal function
        on_host.setattr(cuda_launch, "launch", launch)
        on_host.setattr(cuda_self_test, "TIMEOUT", 0.5 if launch is endless else 60)
        caplog.clear()
        with caplog.at_level("DEBUG", logger="jax_von_mises"):
            for _ in range(2):
                # Draw in a trace, where the self-test must not become part of the program.
                angles = jax.jit(lambda key: jax_von_mises.sample_von_mises(key, 0.0, 4.0, (99,)))(key)
        np.testing.assert_array_equal(angles, expected)
        assert sum("CUDA kernel" in record.message for record in caplog.records) == 1
        assert detail in caplog.text
        assert detail in cuda.kernel_report()
        assert cuda.FAILED in cuda.kernel_report()
    never.set()


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("direct", "bfloat16"),
        *(
            pytest.param(method, dtype, marks=pytest.mark.slow)
            for method in ("table", "direct")
            for dtype in cuda_launch.KERNEL_DTYPES
            if (method, dtype) != ("direct", "bfloat16")
        ),
    ],
)
def test_a_kernel_is_tested_to_float32_whatever_is_drawn_first(on_host, method, first):  # noqa: F811
    """An error of 1%, about one to three units in the last place of bfloat16, fails the self-test for every dtype."""
    host_kernels.forget()

    def off(name, grid, block, out, *operands):
        single = host_kernels.callback(name, grid, block, out, *operands).astype(jnp.float32)
        return (single * jnp.float32(0.99)).astype(out.dtype)

    on_host.setattr(cuda_launch, "launch", off)
    assert not cuda_self_test.passes(cuda_launch.KernelSpec("threefry2x32", method, first, (8,)))
    assert not cuda_self_test.passes(cuda_launch.KernelSpec("threefry2x32", method, "float32", (8,)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["table", "direct"])
def test_a_kernel_is_tested_in_each_dtype_that_it_rounds_to(on_host, method):  # noqa: F811
    """One direct kernel rounds to every dtype, so truncation to bfloat16 turns it off for float32, too."""
    host_kernels.forget()

    def cut_off(name, grid, block, out, *operands):
        angles = host_kernels.callback(name, grid, block, out, *operands)
        if out.dtype != jnp.bfloat16:
            return angles
        return jnp.where(jnp.abs(angles) > 1, jnp.nextafter(angles, jnp.zeros_like(angles)), angles)

    on_host.setattr(cuda_launch, "launch", cut_off)
    assert not cuda_self_test.passes(cuda_launch.KernelSpec("philox2x32", method, "bfloat16", (8,)))
    assert cuda_self_test.passes(cuda_launch.KernelSpec("philox2x32", method, "float32", (8,))) == (method == "table")


def test_roundings_are_recognised():
    """Correctly rounded angles are accepted, also next to the cut, where they may be on either side of it."""
    expected = np.array([0.0, 1.0, 3.14159, -3.1415925])
    for dtype in (np.float32, jnp.bfloat16, np.float16):
        right = expected.astype(dtype)
        assert cuda_self_test.rounded_from(right, expected, 1e-5).all()
        assert cuda_self_test.rounded_from(right * np.array([1, 1, -1, -1], dtype), expected, 1e-5).all()
        assert not cuda_self_test.rounded_from(-np.ones(4, dtype), expected, 1e-5).any()
        assert not cuda_self_test.rounded_from(np.full(4, np.nan, dtype), expected, 1e-5).any()
        next_up = np.array([0.02, *np.nextafter(right[1:2], right[1:2] + right[1:2])]).astype(dtype)
        detail = cuda_self_test.rounded_from(next_up, expected[:2], 1e-5)
        assert detail.tolist() == [False, dtype == np.float32]
    assert cuda_self_test.rounded_from(np.float32([-3.14159, 3.1415925]), expected[2:], 1e-5).all()
    assert not cuda_self_test.rounded_from(np.float32([np.pi, np.pi]), expected[2:], 1e-5).any(), "angles are below pi"


def test_blocks_of_a_launch(monkeypatch):
    """A launch has enough blocks to keep a GPU busy, but few more, since a block may first copy a table of 8 KiB."""
    limit = cuda_launch.BLOCKS * cuda_launch.MULTIPROCESSORS
    monkeypatch.setattr(cuda_launch, "devices", lambda: ())
    for count in (1, 41, 4099, 2**20, 2**26):
        for rows in (1, 2, 3, 100, 1024, 3000, 2**20):
            for table, of_rows in ((True, False), (True, True), (False, False)):
                (along, over), (wide, high) = cuda_launch._grid(count, rows, table, of_rows)
                assert 32 < wide * high <= cuda_launch.BLOCK_THREADS or count * rows < 1000 or (table and of_rows)
                groups = -(-(count + 4) // 4)
                needed = -(-groups // wide), -(-rows // high)
                assert along <= needed[0]
                assert over <= min(needed[1], 65535)
                assert along * over >= min(needed[0] * needed[1], limit) * (2 / 3)
                if not (table and of_rows):
                    assert along * over < 2 * limit or over > limit
                # If each row has a table, few blocks copy the same one. One common table must not add blocks.
                if table and of_rows:
                    assert along < limit / min(rows, limit) + 1
                elif table:
                    assert along * over < 2 * limit
    assert cuda_launch._grid(2**20, 1024, True, False)[0] == (3, 1024)


@pytest.mark.parametrize(
    ("value", "alone", "together"),
    [(None, True, False), ("1", True, True), ("off", False, False), ("auto", True, False)],
)
def test_the_switch(on_host, key, value, alone, together):  # noqa: F811
    """The variable turns kernels on or off; by default, only processes with a single device use them."""
    on_host.setattr(cuda_self_test, "passes", lambda spec: True)
    on_host.setattr(cuda, "whole_on_one_device", lambda *_: True)
    if value is not None:
        on_host.setenv(cuda.VARIABLE, value)
    for devices, used in ((1, alone), (2, together)):
        on_host.setattr(jax, "device_count", lambda *_, devices=devices: devices)
        request = DrawRequest(key, jnp.zeros(()), jnp.ones(()), None, (8,), np.dtype(np.float32), "direct")
        assert request.engine() == ("kernel" if used else "xla")


def test_kernels_are_off_on_untried_cards(on_host, key):  # noqa: F811
    """Kernels are off on untried cards until the variable turns them on, since a fault would end the process."""
    on_host.setattr(cuda, "tried", lambda: False)
    on_host.setattr(cuda_verdict, "find", lambda: {"cpu": None})
    on_host.setattr(cuda_self_test, "_tested", lambda spec: pytest.fail("tested"))
    request = DrawRequest(key, jnp.zeros(()), jnp.ones(()), None, (8,), np.dtype(np.float32), "direct")
    assert not cuda.use_cuda_kernel(request)
    assert "have no verdict on cpu" in cuda.kernel_report()
    on_host.setattr(cuda_self_test, "passes", lambda spec: True)
    on_host.setenv(cuda.VARIABLE, "1")
    assert cuda.use_cuda_kernel(request)


@pytest.mark.parametrize(("capabilities", "used"), [(("8.0", "10.0"), True), (("9.0", "7.5"), False)])
def test_unsupported_cards(monkeypatch, capabilities, used):
    """One unsupported card turns the kernels off, since a program may run on any card."""
    cards = [types.SimpleNamespace(device_kind=each, compute_capability=each) for each in capabilities]
    monkeypatch.setattr(jax, "local_devices", lambda backend: cards)
    assert cuda_launch.devices.__wrapped__() == (tuple(cards) if used else ())
    assert f".target sm_{cuda_launch.LEAST_CAPABILITY * 10:.0f}" in cuda_launch.ptx_text()


def test_without_a_gpu_nothing_is_tried(monkeypatch, key):
    """Without a GPU there is no device to use and no self-test."""
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    monkeypatch.setattr(cuda_self_test, "_tested", lambda spec: pytest.fail("tested"))
    assert cuda_launch.devices() == ()
    assert cuda.kernel_report() is None
    jax_von_mises.sample_von_mises(key, 0.0, 4.0, (8,))

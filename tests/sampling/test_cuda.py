"""Test the choice between the CUDA kernels and the plain path, without a GPU; a stand-in draws for the kernels.

`test_kernels` executes the kernels themselves, and `tests/test_gpu.py` runs them on a GPU.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises
from jax_von_mises import environment
from jax_von_mises.engine import counter, draws
from jax_von_mises.engine.request import Request, program
from jax_von_mises.von_mises import cuda, sampler
from tests import children

DIFFERENCE = cuda._difference.__wrapped__


@pytest.fixture
def launches(monkeypatch):
    """Let a CPU device of this process stand in for a CUDA device; return the names of the kernels in programs."""
    names = []

    def launch(name, count, out, key, sizes, kappa, loc):
        names.append(name)
        size, flags = int(sizes[0]) | int(sizes[1]) << 32, int(sizes[2])
        assert (size,) == out.shape
        assert (kappa.size > 1, loc.size > 1) == (bool(flags & cuda.CONCENTRATIONS), bool(flags & cuda.LOCS))
        return cuda.plain_angles(cuda.KernelSpec(name.split("_")[0], out.dtype.name, out.shape), key, loc, kappa)

    cpu = jax.local_devices(backend="cpu")[:1]
    monkeypatch.setenv(environment.CUDA_KERNELS, "1")
    monkeypatch.setattr(cuda, "PLATFORM", "cpu")
    monkeypatch.setattr(cuda, "devices", lambda: cpu)
    monkeypatch.setattr(cuda, "launch", launch)
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: cpu)
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 1)
    monkeypatch.setattr(cuda, "_difference", lambda cipher: None)
    monkeypatch.setattr(cuda, "LEAST_CAPABILITY", 0)
    monkeypatch.setattr(cuda, "SMALLEST", 2)
    return names


@pytest.mark.more
def test_nothing_is_imported():
    """Without a CUDA device, neither the import nor a draw imports the module, even if the kernels are turned on."""
    code = """
import sys, jax, jax_von_mises
jax_von_mises.sample_von_mises(jax.random.key(0), 0.0, 4.0, (8,))
assert not [name for name in sys.modules if name.startswith("jax_von_mises.von_mises.cuda")]
"""
    children.run(code, **{environment.CUDA_KERNELS: "1"})


def test_draws_by_a_kernel(launches, key):
    """Draws by the direct route use a kernel, also inside other programs, and equal the plain path's."""
    for options, kernel in (
        (dict(concentration=jnp.array([[0.5], [50.0]]), shape=(2, 9)), "threefry2x32_direct"),
        (dict(concentration=jnp.linspace(1, 9, 77), dtype="bfloat16"), "threefry2x32_direct"),
    ):
        del launches[:]
        ours = jax.jit(lambda key, options=options: jax_von_mises.sample_von_mises(key, 2.5, **options))(key)
        assert launches == [kernel]
        with pytest.MonkeyPatch.context() as off:
            off.setenv(environment.CUDA_KERNELS, "0")
            expected = jax_von_mises.sample_von_mises(key, 2.5, **options)
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(ours, expected)
    del launches[:]
    jax_von_mises.sample_von_mises(jax.random.key(0, impl="rbg"), 0.0, jnp.ones(8))
    assert launches == ["threefry4x32_direct"]


def test_draws_by_the_plain_path(launches, key, monkeypatch):
    """All other draws use the plain path: other dtypes, routes and devices, and blocks of a stream."""

    def request(shape=(8,), dtype="float32", route="direct", key=key, sharding=None, count=8):
        parameters = jnp.ones((), jnp.float32), jnp.ones(count, jnp.float32)
        return Request(sampler.VON_MISES, key, parameters, None, shape, np.dtype(dtype), route, sharding)

    assert draws.program_of(request()) is not program
    for other in (
        request(shape=(0,), count=0),
        request(count=1),
        request(key=jax.random.key(0, impl="threefry2x32"), shape=(1,)),
        request(dtype="float64"),
        request(route="table"),
        request(sharding="named"),
    ):
        assert draws.program_of(other) is program
    with jax.set_mesh(jax.make_mesh((1,), ("d",), devices=jax.local_devices())):
        assert draws.program_of(request()) is program
    kappa = jnp.ones(8)
    jax_von_mises.sample_block(key, 0.0, kappa, 3, (8,), method="direct")
    next(iter(jax_von_mises.sample_batches(key, 0.0, kappa, 8, 8, method="direct")))
    jax_von_mises.sample_antithetic(key, 0.0, kappa, (16, 8))
    assert not launches
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 2)
    assert draws.program_of(request()) is program
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 1)
    for value in ("0", "off", "", "maybe"):
        monkeypatch.setenv(environment.CUDA_KERNELS, value)
        assert draws.program_of(request()) is program


@pytest.mark.slow
def test_transformations(launches, key):
    """`jax.vmap` takes the plain path; derivatives use the kernel's angles and agree with the plain path's."""
    kappas = jnp.linspace(0.5, 9, 6).reshape(2, 3)

    def draw(key, kappa):
        return jax_von_mises.sample_von_mises(key, 0.5, kappa, (4, 3), method="direct")

    single = [draw(key, kappa) for kappa in kappas]
    np.testing.assert_array_equal(jax.vmap(draw, (None, 0))(key, kappas), single)

    def total(loc, kappa):
        return (jax_von_mises.sample_von_mises(key, loc, jnp.full(64, kappa)) ** 2).sum()

    def results():
        # Use a new function each time, since JAX would not trace the same one again.
        function, point = lambda *arguments: total(*arguments), (jnp.float32(0.3), jnp.float32(2.0))
        mapped = jax.vmap(jax.grad(function, 1), (None, 0))(point[0], jnp.array([2.0, 5.0]))
        return *jax.grad(function, (0, 1))(*point), jax.jacfwd(function, 1)(*point), *mapped

    ours = results()
    assert launches
    with pytest.MonkeyPatch.context() as off:
        off.setenv(environment.CUDA_KERNELS, "0")
        np.testing.assert_allclose(ours, results(), rtol=2e-5)
    assert np.isnan(jax.grad(total, 1)(jnp.float32(0.3), jnp.float32(-1.0)))


@pytest.mark.more
@pytest.mark.parametrize("fault", [None, "other angles", "an error"])
def test_kernels_are_compared_first(launches, key, monkeypatch, caplog, fault):
    """A kernel that draws other angles, in one dtype, or fails is not used, and one warning says so."""
    launch = cuda.launch

    def wrong(name, count, out, *operands):
        if fault == "an error":
            raise RuntimeError("no such call")
        angles = launch(name, count, out, *operands)
        damaged = fault and out.dtype == jnp.bfloat16
        return jnp.nextafter(angles, jnp.zeros_like(angles)) if damaged else angles

    monkeypatch.setattr(cuda, "launch", wrong)
    monkeypatch.setattr(cuda, "_difference", functools.cache(DIFFERENCE))
    # A trace with another launch must not be found again.
    monkeypatch.setattr(cuda, "kernel_angles", functools.partial(cuda.kernel_angles))
    with caplog.at_level("WARNING"):
        for size in (5, 6):
            x = jax.jit(lambda key, size=size: jax_von_mises.sample_von_mises(key, 0.0, jnp.full(size, 4.0)))(key)
            assert np.isfinite(x).all()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(fault)
    if fault:
        assert "threefry2x32 is not used" in messages[0]
        assert ("no such call" if fault == "an error" else "bfloat16") in messages[0]


def test_the_program_for_a_gpu(key):
    """A program for CUDA holds the kernel's text once and no cipher; one for a CPU holds no kernel."""
    spec = cuda.KernelSpec("threefry2x32", "float32", (1000,))

    def draw(words, kappa):
        return cuda.draw(spec, words, jnp.float32(0), kappa)

    traced = jax.jit(draw).trace(counter.key_words(key)[1], jnp.ones(1000))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count(cuda.TARGET) == 1
    assert "shift_left" not in text
    assert cuda.TARGET not in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_roundings_are_recognised():
    """Correctly rounded angles are accepted, also next to the cut, where they may be on either side of it."""
    expected = np.array([0.0, 1.0, 3.14159, -3.1415925])
    for dtype in (np.float32, jnp.bfloat16, np.float16):
        right = expected.astype(dtype)
        assert cuda.rounded_from(right, expected, 1e-5).all()
        assert cuda.rounded_from(right * np.array([1, 1, -1, -1], dtype), expected, 1e-5).all()
        assert not cuda.rounded_from(-np.ones(4, dtype), expected, 1e-5).any()
        assert not cuda.rounded_from(np.full(4, np.nan, dtype), expected, 1e-5).any()
        next_up = np.array([0.02, *np.nextafter(right[1:2], right[1:2] + right[1:2])]).astype(dtype)
        assert cuda.rounded_from(next_up, expected[:2], 1e-5).tolist() == [False, dtype == np.float32]
    assert not cuda.rounded_from(np.float32([np.pi, np.pi]), expected[2:], 1e-5).any(), "angles are below pi"


def test_why_kernels_are_not_used(monkeypatch):
    """Kernels need one CUDA device that is as new as the PTX."""
    assert cuda.fault("threefry2x32") == "JAX has no CUDA device"
    card = type("Card", (), {"compute_capability": "7.5"})()
    monkeypatch.setattr(cuda, "devices", lambda: (card,))
    for count, why in ((2, "several CUDA devices"), (1, "capability below 8.0")):
        monkeypatch.setattr(jax, "device_count", lambda backend, count=count: count)
        assert why in cuda.fault("threefry2x32")
    assert f".target sm_{cuda.LEAST_CAPABILITY * 10:.0f}" in cuda.ptx_text()


@pytest.mark.more
def test_the_plain_path_keeps_its_bits(launches, key, monkeypatch):
    """On a CPU and under `jax.vmap`, the last digits are those of draws with the kernels turned off."""
    monkeypatch.setattr(cuda, "PLATFORM", "cuda")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [])

    def drawn():
        kappa = np.linspace(1, 9, 4099, dtype=np.float32)  # a constant of the program
        draw = lambda key: jax_von_mises.sample_von_mises(key, 2.5, kappa)  # noqa: E731
        return jax.jit(draw)(key), jax.jit(jax.vmap(draw))(jax.random.split(key, 2))

    ours = drawn()
    monkeypatch.setenv(environment.CUDA_KERNELS, "0")
    for a, b in zip(ours, drawn(), strict=True):
        np.testing.assert_array_equal(a, b)

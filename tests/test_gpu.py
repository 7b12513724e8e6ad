"""Test draws and functions on CUDA devices: ``make test-gpu``.

Words must be those of the CPU, bit for bit, and all other results must agree with the CPU's to the documented accuracy.
The kernels of the package must agree with XLA's program at sizes from 1 to 8 million.
"""

import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from jax_von_mises import environment
from jax_von_mises.engine import counter
from jax_von_mises.von_mises import cuda
from tests import children

pytestmark = pytest.mark.gpu
SIZES = (*range(1, 10), 1023, 1024, 1025, 4099, 65_537, 2**23 + 5)
STARTS = (0, 2**32 - 6, 2**40 + 3, 2**64 - 4096)
KAPPAS = np.geomspace(1e-3, 1e8, 2**20).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def device():
    """Return the first CUDA device."""
    return jax.local_devices(backend="cuda")[0]


@pytest.fixture
def by_kernels(monkeypatch):
    """Turn the kernels on, for draws of every size."""
    why = cuda.fault("threefry2x32")
    if why and "differ" not in why:
        pytest.skip(why)
    monkeypatch.setenv(environment.CUDA_KERNELS, "1")
    monkeypatch.setattr(cuda, "SMALLEST", 2)
    assert not any(map(cuda.fault, cuda.KEY_SIZES))


def both(function, *arguments):
    """Return the results of a compiled function on the GPU and on the CPU."""
    results = []
    for backend in ("cuda", "cpu"):
        device = jax.local_devices(backend=backend)[0]
        with jax.default_device(device):
            result = jax.jit(function)(*jax.device_put(arguments, device))
            assert all(
                place.platform == device.platform for leaf in jax.tree.leaves(result) for place in leaf.devices()
            )
            results.append(jax.tree.map(np.asarray, result))
    return results


def apart(a, b):
    """Return the distances between angles on the circle."""
    return np.abs(np.mod(a.astype(np.float64) - b + np.pi, 2 * np.pi) - np.pi)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("start", STARTS)
def test_words(key, implementation, start):
    """Words are those of the CPU, bit for bit, from places before a carry and at the end of a stream."""
    key = jax.random.key(3, impl=implementation)
    first = counter.halves(start)
    gpu, cpu = both(lambda data: counter.words(jax.random.wrap_key_data(data, impl=implementation), (2**20,), 1, first),
                    jax.random.key_data(key))  # fmt: skip
    np.testing.assert_array_equal(gpu, cpu)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("method", ["table", "direct"])
def test_angles(key, request, method, kernels):
    """Angles agree with the CPU's to the documented accuracy, with NaN in the same places."""
    if kernels:
        request.getfixturevalue("by_kernels")
    kappa = KAPPAS.copy() if method == "direct" else np.float32(7)
    loc = np.linspace(-400, 400, KAPPAS.size).astype(np.float32)
    loc[3] = np.inf
    if method == "direct":
        kappa[5] = -1
    gpu, cpu = both(lambda data, loc, kappa: jvm.sample_von_mises(jax.random.wrap_key_data(data), loc, kappa, loc.shape,
                    method=method), jax.random.key_data(key), loc, kappa)  # fmt: skip
    np.testing.assert_array_equal(np.isnan(gpu), np.isnan(cpu))
    valid = ~np.isnan(cpu)
    assert (apart(gpu, cpu) <= cuda.allowed(np.abs(kappa)))[valid].all()
    assert (np.abs(gpu[valid]) < np.pi).all()


@pytest.mark.parametrize("cipher", sorted(cuda.KEY_SIZES))
@pytest.mark.parametrize("size", SIZES)
def test_kernels_agree(by_kernels, cipher, size):
    """Each kernel agrees with XLA's program in all dtypes, with threads that draw less than a group or loop."""
    assert cuda.difference(cipher, size) is None


def test_kernels_in_programs(by_kernels, key):
    """A draw by a kernel is the same in any program, and equals a draw of one row for each row."""
    draw = lambda key: jvm.sample_von_mises(key, 0.5, jnp.full((3, 1027), 5.0))  # noqa: E731
    alone = draw(key)
    text = jax.jit(draw).lower(key).as_text()
    assert cuda.TARGET in text
    np.testing.assert_array_equal(jax.jit(lambda key: jnp.stack([draw(key)] * 2))(key), np.stack([alone] * 2))
    _, scanned = jax.lax.scan(lambda _, key: (None, draw(key)), None, jnp.stack([key] * 2))
    np.testing.assert_array_equal(scanned, np.stack([alone] * 2))
    mapped = jax.vmap(draw)(jnp.stack([key] * 2))
    assert apart(np.asarray(mapped), np.asarray(alone)[None]).max() < cuda.allowed(np.float32(5))


@pytest.mark.parametrize("kernels", [False, True])
def test_gradients(key, request, kernels):
    """Derivatives agree with the CPU's."""
    if kernels:
        request.getfixturevalue("by_kernels")

    def total(data, loc, kappa):
        x = jvm.sample_von_mises(jax.random.wrap_key_data(data), loc, jnp.full(1024, kappa))
        return (x**2).sum()

    for kappa in (0.1, 1.0, 5.0, 100.0, 1e4):
        given = jax.random.key_data(key), np.float32(0.3), np.float32(kappa)
        (gpu_value, gpu), (cpu_value, cpu) = both(jax.value_and_grad(total, (1, 2)), *given)
        np.testing.assert_allclose(gpu, cpu, rtol=2e-4)
        np.testing.assert_allclose(gpu_value, cpu_value, rtol=1e-5)


def test_rows_equal_single_draws(key):
    """Rows of `jax.vmap`, also mapped twice, equal single draws, bit for bit."""
    keys, locs, kappas = jax.random.split(key, 3), jnp.array([-3.0, 3.0]), jnp.array([0.5, 8.0, 900.0])
    for method in ("table", "direct"):
        draw = jax.jit(lambda key, loc, kappa, m=method: jvm.sample_von_mises(key, loc, kappa, (1027,), method=m))
        rows = jax.jit(jax.vmap(jax.vmap(draw, (None, 0, None)), (0, None, 0)))(keys, locs, kappas)
        single = [[draw(key, loc, kappa) for loc in locs] for key, kappa in zip(keys, kappas, strict=True)]
        np.testing.assert_array_equal(rows, np.stack([np.stack(row) for row in single]))


def test_functions():
    """Densities, probabilities, quantiles and fits agree with the CPU's."""
    x = np.linspace(-3, 3, 2**14).astype(np.float32)
    kappa = np.geomspace(1e-2, 1e4, 2**14).astype(np.float32)
    q = np.linspace(1e-4, 1 - 1e-4, 2**14).astype(np.float32)
    gpu, cpu = both(lambda x, kappa: jvm.log_prob(x, 0.3, kappa), x, kappa)
    np.testing.assert_allclose(gpu, cpu, rtol=2e-6, atol=2e-6)
    gpu, cpu = both(lambda x, kappa: jvm.cdf(x, 0.3, kappa), x, kappa)
    np.testing.assert_allclose(gpu, cpu, rtol=1e-5, atol=1e-30)
    gpu, cpu = both(lambda q, kappa: jvm.icdf(q, 0.3, kappa), q, kappa)
    np.testing.assert_allclose(gpu, cpu, atol=1.3e-5)
    gpu, cpu = both(lambda x: tuple(jvm.fit(x)), x)
    np.testing.assert_allclose(gpu, cpu, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dimension", [2, 3, 10])
def test_directions(key, dimension):
    """Directions are unit vectors near the CPU's."""
    mean = np.eye(dimension, dtype=np.float32)[0]
    gpu, cpu = both(lambda data: jvm.sample_von_mises_fisher(jax.random.wrap_key_data(data), mean, 20.0, (4099,)),
                    jax.random.key_data(key))  # fmt: skip
    np.testing.assert_allclose(np.linalg.norm(gpu, axis=-1), 1, atol=5e-7)
    np.testing.assert_allclose(gpu, cpu, atol=1e-5)


def test_float64(key):
    """float64 draws agree with the CPU's."""
    with jax.enable_x64(True):
        kappa = np.geomspace(1e-3, 1e8, 2**14)
        gpu, cpu = both(lambda data, kappa: jvm.sample_von_mises(jax.random.wrap_key_data(data), 0.0, kappa,
                        kappa.shape, "float64"), jax.random.key_data(key), kappa)  # fmt: skip
    assert apart(gpu, cpu).max() < 2e-11


def test_more_than_2_to_the_32_angles(key, device):
    """Slices of a draw of more than 2^32 angles equal blocks of the stream."""
    count, part = 2**32 + 4099, 1001
    if (device.memory_stats() or {}).get("bytes_limit", 0) < 4 * 2 * count:
        pytest.skip("the device has too little memory")
    x = jvm.sample_von_mises(key, 1.0, 5.0, (count,), jnp.bfloat16)
    for start in (0, 2**31 - 500, 2**32 - 500, count - part):
        block = jvm.sample_block(key, 1.0, 5.0, start, (part,), jnp.bfloat16)
        found = jax.jit(lambda x, start=start: jax.lax.slice(x, (start,), (start + part,)))(x)
        np.testing.assert_array_equal(found, block)


def test_memory(key):
    """A draw needs no more temporary memory per angle than the documentation says."""
    n = 2**24
    for kappa, most in ((np.float32(5), 4), (jnp.full(n, 5.0), 24)):
        draw = jax.jit(lambda key, kappa: jvm.sample_von_mises(key, 0.0, kappa, (n,)))
        assert draw.lower(key, kappa).compile().memory_analysis().temp_size_in_bytes <= most * n + 2**20


def test_sharding(key):
    """Parts on several devices, or on the only one, make up the draw of one device, bit for bit."""
    count = jax.local_device_count()
    mesh = jax.make_mesh((count,), ("device",), axis_types=(AxisType.Auto,))
    single = np.asarray(jvm.sample_von_mises(key, 1.0, 5.0, (count * 1024,), method="direct"))
    whole = jvm.sample_von_mises(
        *(key, 1.0, 5.0, single.shape), method="direct", out_sharding=NamedSharding(mesh, PartitionSpec("device"))
    )
    np.testing.assert_array_equal(whole, single)
    body = lambda key: jvm.sample_shard(key, 1.0, 5.0, (1024,), "device", method="direct")  # noqa: E731
    parts = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("device"))
    np.testing.assert_array_equal(jax.jit(parts)(key), single)
    np.testing.assert_array_equal(np.ravel(jvm.sample_pmap(key, 1.0, 5.0, (count, 1024), method="direct")), single)


def test_no_access_outside_the_arrays(by_kernels):
    """NVIDIA's tool finds no invalid access; each array is a separate allocation, so any access beyond it is found."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not on the path")
    code = "from jax_von_mises.von_mises import cuda\n"
    code += "for cipher in cuda.KEY_SIZES:\n    for n in (1, 5, 1027, 2**20 + 3):\n"
    code += "        assert cuda.difference(cipher, n) is None, (cipher, n)\n"
    command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", sys.executable]
    alone = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [*command, "-c", code], env=children.environment(**alone), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_command_line(tmp_path):
    """`doctor` finds no problem, and `sample` draws a file that `verify` accepts."""
    environ = children.environment(JAX_PLATFORMS=os.environ.get("JAX_PLATFORMS"), XLA_PYTHON_CLIENT_PREALLOCATE="false")
    for command in (
        ("doctor", "--expect", "cuda"),
        ("sample", "--concentration", "4", "--size", "100_000", "--out", "x.npy"),
        ("verify", "x.npy"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "jax_von_mises", *command], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

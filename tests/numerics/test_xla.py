"""Test the workarounds for XLA; those for XLA:CPU are only in programs for a CPU, wherever these are traced.

Arrays of sizes that XLA:CPU partitions badly are computed in rows, with the same bits, shapes and shardings.
"""

import math
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_von_mises as jvm
from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.numerics import table
from jax_von_mises.von_mises import quantile, tail_integral
from tests import children
from tests.marks import more, slow

NEWER = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
needed = pytest.mark.skipif(not NEWER, reason="only the newest JAX decides which workarounds are needed")


@pytest.fixture
def one_device(monkeypatch):
    """Simulate a machine with a single CPU device; clear programs compiled for several devices."""
    monkeypatch.setattr(xla, "one_cpu", lambda: True)
    jax.clear_caches()
    yield
    jax.clear_caches()


def test_several_cpu_devices_are_left_alone(monkeypatch):
    assert (xla.rows_of((2**20 + 1,)) is None) == (jax.device_count("cpu") > 1)
    monkeypatch.setattr(jax, "device_count", lambda _: 8)
    assert xla.rows_of((2**20 + 1,)) is None

    def no_cpu(_):
        raise RuntimeError("Unknown backend cpu")

    # A program can still be exported for a CPU.
    monkeypatch.setattr(jax, "device_count", no_cpu)
    assert xla.rows_of((2**20 + 1,)) is not None


LONG = 20_011  # computed in rows
ANGLES, NUMBER = jax.ShapeDtypeStruct((LONG,), np.float32), jax.ShapeDtypeStruct((), np.float32)
PROGRAMS = {
    "table": (lambda k: jvm.sample_von_mises(jax.random.key(0), 0.3, k, (LONG,), method="table"), NUMBER),
    "gradient": (jax.grad(lambda k: jvm.sample_von_mises(jax.random.key(0), 0.3, k).sum()), ANGLES),
    "draw": (lambda k: jvm.sample_von_mises(jax.random.key(0), 0.3, k), ANGLES),
}


def program_for(name, *platforms):
    """Return a program of `PROGRAMS`, traced here and lowered for `platforms`."""
    function, argument = PROGRAMS[name]
    jax.clear_caches()
    return export.export(jax.jit(lambda x: function(x)), platforms=platforms)(argument)


def text_of(program):
    """Return the operations of a program, without source locations."""
    return re.sub(r"^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)", "", program.mlir_module(), flags=re.M)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("name", [*more("draw"), *slow("table", "gradient")])
def test_only_programs_for_a_cpu_are_made_for_one(name, monkeypatch):
    """Only programs for a CPU contain the workarounds, even if they are traced on a machine with eight GPUs."""
    here = {platform: text_of(program_for(name, platform)) for platform in ("cpu", "cuda")}
    for operation in ("20x1024", "stablehlo.sort"):
        assert operation in here["cpu"]
        assert operation not in here["cuda"]
        assert operation in text_of(program_for(name, "cpu", "cuda"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 1 if backend == "cpu" else 8)
    # This imports a module, without which the next trace would list its constants in another order.
    arguments.on_device(dtype=np.dtype(np.float32))
    for platform, text in here.items():
        assert text_of(program_for(name, platform)) == text, platform


@pytest.mark.usefixtures("one_device")
def test_only_programs_for_a_gpu_hide_the_key():
    """Only programs for a GPU mix the key's words with zeros, so that no separate kernel computes the key schedule."""
    mixed = {platform: text_of(program_for("table", platform)).count("xor") for platform in ("cpu", "cuda", "tpu")}
    assert mixed["cpu"] == mixed["tpu"] < mixed["cuda"]


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("name", ["draw", *more("table", "gradient")])
def test_a_program_for_several_platforms_gives_the_same_bits(name):
    function, argument = PROGRAMS[name]
    x = jnp.full(argument.shape, 2.0)
    expected = jax.jit(lambda x: function(x))(x)
    np.testing.assert_array_equal(program_for(name, "cpu", "cuda").call(x), expected)


@pytest.mark.usefixtures("one_device")
def test_a_gradient_in_rows_does_not_compute_the_value():
    """Otherwise gradients of 250,001 elements would take up to five times as long as those of 250,048."""
    slope = jax.jit(jax.grad(lambda x: jvm.log_prob(x, 0.3, 4.0).sum()))
    value = jax.jit(lambda x: jvm.log_prob(x, 0.3, 4.0))
    odd, even = (jax.ShapeDtypeStruct((size,), np.float32) for size in (250_001, 250_048))
    logarithms = {
        name: f.lower(odd).compile().as_text().count(" log(") for name, f in (("value", value), ("slope", slope))
    }
    assert logarithms["value"] > 0 == logarithms["slope"] == slope.lower(even).compile().as_text().count(" log(")


@pytest.mark.usefixtures("one_device")
def test_rows():
    for shape in ((2**14 - 1,), (1000, 1000), (2**20,), (1, 1_000_000), (0, 5), ()):
        assert xla.rows_of(shape) is None
    for shape, rows in (((2**20 + 1,), 1025), ((1, 2**20 + 1), 1025), ((349_525, 3), 1024), ((2**19, 2), 1024)):
        assert xla.rows_of(shape) == (rows, 1024)
        assert 0 <= 1024 * rows - math.prod(shape) < 1024


def test_into_rows_and_out():
    x, shapes = jnp.arange(20_011.0), []

    def add(shape, constants, *arrays):
        shapes.append((shape, *(each.shape for each in arrays)))
        return (arrays[0] + arrays[1] + constants[0],)

    total = xla.in_rows(add, x.shape, (20, 1024), (jnp.ones(()),), x, jnp.ones((1, 1)))[0]
    assert np.array_equal(total, x + 2)
    assert set(shapes) == {((20, 1024), (20, 1024), ())}


@pytest.mark.usefixtures("one_device")
def test_derivatives_in_rows():
    """Derivatives with respect to elementwise and shared arguments are correct, and are rounded once."""
    x, two = jnp.linspace(-1, 1, 20_011), jnp.float32(2)

    def power(shape, constants, x, k):
        return jnp.broadcast_to(constants[0].astype(x.dtype) * x**3 * k**2, shape)

    def total(x, k):
        return xla.compute_elementwise(power, x.shape, x.dtype, (jnp.int32(5),), x, k).sum()

    slope, of_k = jax.grad(total, (0, 1))(x, two)
    np.testing.assert_allclose(slope, 60 * x**2, rtol=1e-6)
    np.testing.assert_allclose(of_k, jnp.sum(20 * x**3), atol=1e-2)
    curvature = jax.grad(lambda x: jax.grad(total)(x, two).sum())(x)
    np.testing.assert_allclose(curvature, 120 * x, rtol=1e-6)
    value, moved = jax.jvp(
        lambda k: xla.compute_elementwise(power, x.shape, jnp.bfloat16, (jnp.int32(5),), x, k), (two,), (two,)
    )
    assert value.dtype == moved.dtype == jnp.bfloat16
    np.testing.assert_array_equal(moved, (40 * x**3).astype(jnp.bfloat16))


SHAPE = (6_001, 3)
KAPPAS, POINTS = (
    np.linspace(low, high, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE) for low, high in ((0.5, 50), (-3, 3))
)
COLUMN = KAPPAS[..., :1]


def draw(key, loc, concentration, *shape, **options):
    return jvm.sample_von_mises(key, loc, concentration, *shape, **options)


# Results for one shape: draws by both routes and in two dtypes, their derivatives, and functions of the distribution.
RESULTS = {
    "table": lambda key: draw(key, 0.3, 4.0, SHAPE, method="table"),
    "direct": lambda key: draw(key, jnp.full((1, 1), 0.3), 4.0, SHAPE, method="direct"),
    "array": lambda key: draw(key, 0.3, KAPPAS),
    "broadcast": lambda key: draw(key, 0.3, COLUMN, SHAPE),
    "bfloat16": lambda key: draw(key, 0.3, 4.0, SHAPE, dtype="bfloat16"),
    "block": lambda key: jvm.sample_block(key, 0.3, 4.0, 12_345, SHAPE),
    "vmap": lambda key: jax.vmap(lambda k: draw(key, 0.0, k, SHAPE, method="direct"))(jnp.array([1.0, 2.0])),
    "slope": lambda key: jax.jvp(lambda k: draw(key, 0.3, k, SHAPE), (4.0,), (1.0,))[1],
    "gradient": lambda key: jax.grad(lambda k: draw(key, 0.3, k).sum())(KAPPAS),
    "log_prob": lambda _: jvm.log_prob(POINTS, 0.3, 4.0),
    "cdf": lambda _: jvm.cdf(POINTS, 0.3, KAPPAS),
    "gradient of log_prob": lambda _: jax.grad(lambda x: jvm.log_prob(x, 0.3, COLUMN).sum())(POINTS),
}


@pytest.mark.parametrize("name", ["table", *more(*(name for name in RESULTS if name != "table"))])
def test_the_same_bits(name, key, monkeypatch):
    results = {}
    for one in (False, True):
        monkeypatch.setattr(xla, "one_cpu", lambda one=one: one)
        jax.clear_caches()
        results[one] = RESULTS[name](key)
    jax.clear_caches()
    assert results[True].shape == results[False].shape
    assert results[True].dtype == results[False].dtype
    a, b = np.asarray(results[True]), np.asarray(results[False])
    if name in ("slope", "gradient", "log_prob", "cdf", "gradient of log_prob"):
        # These agree only to a few ulp (up to 9 in measurements), since XLA contracts products in some loops only.
        assert (np.abs(a - b) <= (16 if NEWER else 8) * np.spacing(np.abs(b))).all()
    else:
        assert np.array_equal(a, b)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("axis_type", [*slow(AxisType.Auto), *more(AxisType.Explicit)])
def test_meshes_keep_their_shapes(axis_type, key):
    """Shapes are kept in the body of `jax.shard_map`, with a mesh in scope, and for arrays on an explicit mesh."""
    size, devices = 20_011, min(2, jax.device_count())
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(axis_type,))
    expected = jvm.sample_von_mises(key, 0.3, 4.0, (devices * size,), method="table")

    def part(key):
        return jvm.sample_shard(key, 0.3, 4.0, (size,), "d")

    mapped = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=P(), out_specs=P("d")))
    assert np.array_equal(mapped(key), expected)
    angles = jax.device_put(expected, NamedSharding(mesh, P("d")))
    with jax.set_mesh(mesh):
        drawn = jvm.sample_von_mises(key, 0.3, 4.0, (devices * size,), method="table", out_sharding=P("d"))
        assert np.array_equal(drawn, expected)
        # The other arguments take the sharding of the angles, inside and outside the scope of the mesh.
        assert np.array_equal(jvm.log_prob(angles, 0.3, 4.0), jvm.log_prob(expected, 0.3, 4.0))
    if axis_type == AxisType.Explicit:
        assert jvm.log_prob(angles, 0.3, 4.0).sharding.spec == P("d")
    else:
        slopes = jax.shard_map(
            jax.grad(lambda x: jvm.cdf(x, 0.3, 4.0).sum()), mesh=mesh, in_specs=P("d"), out_specs=P("d")
        )
        assert np.allclose(jax.jit(slopes)(angles), jvm.prob(expected, 0.3, 4.0), rtol=1e-5)
        pmapped = jvm.sample_pmap(key, 0.3, 4.0, (jax.device_count(), 20_008 // jax.device_count()), method="table")
        assert np.array_equal(pmapped.ravel(), expected[:20_008])


@pytest.mark.usefixtures("one_device")
def test_nan_stays_where_it_is():
    x = jnp.ones(20_011).at[7].set(jnp.nan)
    log_prob = jvm.log_prob(x, 0.0, 2.0)
    assert np.flatnonzero(np.isnan(log_prob)).tolist() == [7]


# --------------------------------------------------------------------------------- compilers without the workarounds


@pytest.fixture
def without(monkeypatch):
    """Return a function that replaces a workaround with plain code."""

    def replace(name, plain):
        monkeypatch.setattr(xla, name, plain)
        jax.clear_caches()

    jax.clear_caches()
    yield replace
    jax.clear_caches()


def draws_of_a_constant_and_of_an_argument():
    """Return the results for one concentration as a constant and as an argument of the program."""
    k, key = np.float32(np.geomspace(1e-2, 1e6, 2**16)[40_000]), jax.random.key(3)

    def draw(key, k):
        return jvm.sample_von_mises(key, np.float32(0.3), k, (2**12,), method="table")

    return np.asarray(jax.jit(lambda key: draw(key, k))(key)), np.asarray(jax.jit(draw)(key, k))


def test_constants_are_not_folded():
    np.testing.assert_array_equal(*draws_of_a_constant_and_of_an_argument())


@needed
@pytest.mark.jax
def test_constants_are_folded_without_hiding(without):
    without("hide_constants", lambda *arrays: list(arrays))
    a, b = draws_of_a_constant_and_of_an_argument()
    assert (a != b).any()


@pytest.mark.jax
def test_a_barrier_hides_constants_from_newer_releases(without):
    """From JAX 0.12 on a barrier hides constants, so it can replace the sort once older releases are dropped."""
    without("hide_constants", lambda *arrays: [jax.lax.optimization_barrier(x) for x in arrays])
    a, b = draws_of_a_constant_and_of_an_argument()
    assert (a == b).all() == NEWER


def of_one_concentration_and_of_an_array(key):
    k = np.geomspace(1e-2, 1e6, 2**16)[40_000]
    return [
        jvm.sample_von_mises(key, 0.3, each, (2**16,), "float64", method="direct") for each in (k, np.full(2**16, k))
    ]


@pytest.mark.more
def test_products_are_rounded(monkeypatch):
    """Angles of one concentration and of an array of it are the same in float64, whichever loops XLA makes."""
    monkeypatch.setattr(xla, "one_cpu", lambda: False)
    with jax.enable_x64(True):
        one, other = of_one_concentration_and_of_an_array(jax.random.key(3))
        np.testing.assert_array_equal(one.reshape(-1), other)


@needed
@pytest.mark.jax
def test_products_are_contracted_without_rounding(without, monkeypatch):
    """Without rounding, products are contracted in one program but not in another, and the angles differ."""
    monkeypatch.setattr(xla, "one_cpu", lambda: False)
    with jax.enable_x64(True):
        without("round_here", lambda x, most: x)
        one, other = of_one_concentration_and_of_an_array(jax.random.key(3))
        assert (one.reshape(-1) != other).any()


@pytest.mark.more
def test_float64_angles_are_the_same_in_rows_of_three(key):
    with jax.enable_x64(True):
        k = np.full((21_845, 3), 0.7)
        rows, flat = (jvm.sample_von_mises(key, 0.3, each, dtype="float64", method="direct") for each in (k, k.ravel()))
        assert np.array_equal(rows.ravel(), flat)


@pytest.mark.jax
def test_residuals_have_the_shapes_of_every_platform():
    """Residuals have the CPU's shapes on every platform, so `xla.compute_elementwise` defines its own derivatives."""

    def total(x):
        by_rows = lambda x: jnp.sin(x.reshape(5, 7)).reshape(35)  # noqa: E731
        return jax.lax.platform_dependent(x, cpu=by_rows, default=jnp.sin).sum()

    gradient = export.export(jax.jit(jax.grad(total)), platforms=("cuda",))(jax.ShapeDtypeStruct((35,), np.float32))
    assert "5x7" in gradient.mlir_module()


@pytest.mark.jax
def test_vmap_computes_both_sides_of_a_condition():
    """`jax.vmap` turns a condition into a selection, so `xla.replace_where_any` is a loop."""

    def conditional(x):
        return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)

    assert "cond[" in str(jax.make_jaxpr(conditional)(1.0))
    assert "cond[" not in str(jax.make_jaxpr(jax.vmap(conditional))(jnp.ones(3)))


def sharded_words():
    """Return words that are divided over all devices, and their sharding."""
    if jax.device_count() == 1:
        pytest.skip("there is one device")
    cut = NamedSharding(jax.make_mesh((jax.device_count(),), ("d",)), P("d"))
    return jax.ShapeDtypeStruct((8 * jax.device_count(),), np.uint32, sharding=cut), cut


def test_the_upper_half_of_a_product_is_compiled_for_several_devices():
    words, cut = sharded_words()
    jax.jit(lambda x: xla.multiply_high(x, 0xD256D193), out_shardings=cut).lower(words).compile()


@pytest.mark.jax
@pytest.mark.skipif(not hasattr(jax.lax, "mulhi"), reason="the installed JAX has no such function")
def test_jax_does_not_compile_the_upper_half_of_a_product_for_several_devices():
    words, cut = sharded_words()
    with pytest.raises(jax.errors.JaxRuntimeError, match="Unable to convert MHLO to StableHLO"):
        jax.jit(lambda x: jax.lax.mulhi(x, np.uint32(0xD256D193)), out_shardings=cut).lower(words).compile()


PRELUDE = """
import time
import jax
import jax.numpy as jnp
import jax_von_mises as jvm
from jax_von_mises.compiler import xla
from jax_von_mises.numerics import quadrature
"""
# Draw few angles, so that compilation dominates.
COMPILE = """
jax.config.update("jax_enable_x64", True)
key, k = jax.random.key(0), jnp.ones(100, {dtype!r})
def seconds():
    jax.clear_caches()
    start = time.perf_counter()
    jax.jit(lambda key, k: {program}).lower(key, k).compile()
    return time.perf_counter() - start
print(seconds(), flush=True)
{name} = {plain}
print(seconds(), flush=True)
"""
NO_BARRIER = "lambda words: words"
UNROLLED = "lambda term, *at, loop=False: [sum(column) for column in zip(*map(term, *at[:2]))]"
SLOPE = "jax.jvp(lambda k: jvm.sample_von_mises(key, 0.3, k, (64,), 'float32', method='direct'), (k[0],), (k[0],))"
PAIRS = "jax.grad(lambda k: jvm.SineBivariateVonMises(0.0, 0.0, k, k, k).sample(key).sum())(k)"


@pytest.mark.jax
@pytest.mark.parametrize(
    ("name", "plain", "program", "dtype", "devices"),
    [
        # On one device, `boundary` also keeps words and quantiles apart.
        pytest.param("xla.finish_words", NO_BARRIER, SLOPE, "float32", 2, id="finish_words"),
        pytest.param("quadrature.add_terms", UNROLLED, PAIRS, "float64", 1, id="add_terms"),
    ],
)
def test_compiling_takes_long_without(name, plain, program, dtype, devices):
    """Without the workaround, compilation takes at least twice as long, plus two seconds."""
    if name != "quadrature.add_terms" and not NEWER:
        pytest.skip("the LLVM of JAX before 0.12 compiles this in seconds")
    code = PRELUDE + COMPILE.format(name=name, plain=plain, program=program, dtype=dtype)
    environment = children.environment(
        JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(devices), JAX_COMPILATION_CACHE_DIR=None
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            seconds = float(process.stdout.readline())
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2 * seconds + 2)
        finally:
            process.kill()


# Run on two cores. XLA then splits an odd number of angles into two pieces, which are slow.
TIMES = """
key = jax.random.key(0)
x = jvm.sample_von_mises(key, 0.3, 4.0, (2**20,))
def compiled():
    jax.clear_caches()
    return jax.jit(lambda key, x: {program}).lower(key, x).compile()
def seconds(program):
    start = time.perf_counter()
    jax.block_until_ready(program(key, x))
    return time.perf_counter() - start
assert jax.device_count() == 1
programs = [compiled()]
xla.{name} = {plain}
programs += [compiled()]
both = [[seconds(program) for program in programs] for _ in range(30)]
print(min(b for _, b in both) / min(a for a, _ in both))
"""
NO_BOUNDARY = "lambda compute, *arrays, joined=False: compute(*arrays)"
IN_SPACE = "jvm.sample_von_mises_fisher(key, jnp.array([0.6, 0.0, 0.8]), 3.0, (2**20,), method='table')"
only_older = pytest.mark.skipif(not xla.ONE_RESULT, reason="loops of this release have several results")
UNEVEN = "jvm.sample_von_mises(key, 0.3, 4.0, (2**18 + 1,), method='table')"


@pytest.mark.jax
@pytest.mark.parametrize(
    ("name", "plain", "program"),
    [
        pytest.param("rows_of", "lambda *_: None", UNEVEN, id="compute_elementwise"),
        pytest.param("sum_last_axis", "lambda values: values.sum(-1)", "jvm.fit(x)", id="sum_last_axis"),
        pytest.param("boundary", NO_BOUNDARY, IN_SPACE, id="boundary, joined", marks=only_older),
    ],
)
def test_running_takes_several_times_as_long_without(name, plain, program):
    """Without the workaround, a program takes over 1.7 times as long on two cores, and typically three times."""
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        pytest.skip("needs two cores, and a system that can assign them to a process")
    on_two = f"import os\nos.sched_setaffinity(0, {set(cores)})"
    code = on_two + PRELUDE + TIMES.format(name=name, plain=plain, program=program)
    (ratio,) = children.run(code, JAX_PLATFORMS="cpu")
    assert float(ratio) > 1.7


def stored_by_a_table():
    """Return whether a program stores the values of a table."""
    program = jax.jit(lambda kappa: quantile.quantile_table(kappa)).lower(NUMBER).compile()
    values = table.tails(table.TAILS["float32"]).astype(np.float32).nbytes
    return program.memory_analysis().temp_size_in_bytes >= values


@needed
def test_the_values_of_a_table_are_stored():
    assert stored_by_a_table()


@needed
@pytest.mark.jax
def test_a_table_is_computed_again_for_each_coefficient(without):
    """Without `cell_coefficients`, the values of a table are recomputed for each coefficient instead of stored."""

    def by_columns(values, powers, origin):
        others = list(values.T)
        first = others.pop(origin)
        rises = [other - first for other in others]
        return jnp.stack([first, *(sum(r * float(p) for r, p in zip(rises, row, strict=True)) for row in powers.T)])

    without("cell_coefficients", by_columns)
    assert not stored_by_a_table()


def with_derivative(k):
    """Return angles by the table, and their derivatives."""
    draw = lambda k: jvm.sample_von_mises(jax.random.key(0), 0.3, k, (2**16,), method="table")  # noqa: E731
    return jax.jvp(draw, (k,), (k,))


def ciphers():
    """Return how often the program of a draw runs the cipher."""
    jax.clear_caches()
    program = jax.jit(lambda k: with_derivative(k)).lower(NUMBER).compile()
    return program.as_text().count(" shift-left(") // 20  # rounds of a cipher


@needed
@pytest.mark.usefixtures("one_device")
def test_a_draw_is_computed_once_with_its_derivative():
    assert ciphers() == 1


@needed
@pytest.mark.jax
@pytest.mark.usefixtures("one_device")
def test_a_draw_is_computed_again_for_its_derivative(without):
    without("boundary", lambda compute, *arrays, joined=False: compute(*arrays))
    assert ciphers() > 1


@pytest.mark.parametrize("parameters", [2, 1000])
def test_a_gradient_traces_its_functions_once(one_device, monkeypatch, key, parameters):
    """A draw and its derivative each evaluate one integral, and their gradient traces no integral twice."""
    traced = []

    def integrals(*args, right=tail_integral.integrals, **options):
        traced.append(options.get("order", 0))
        return right(*args, **options)

    monkeypatch.setattr(quantile, "integrals", integrals)
    monkeypatch.setattr(tail_integral, "integrals", integrals)
    k = jnp.linspace(1.0, 5.0, parameters)
    jax.jit(jax.grad(lambda k: jvm.sample_von_mises(key, 0.0, k).sum())).trace(k)
    assert sorted(traced) == [0, 1]

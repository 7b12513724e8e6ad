"""Test formulas with one form on a CPU and another on a GPU: transformations, meshes, and the programs of each."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_von_mises.compiler import platform, xla
from jax_von_mises.numerics import coefficients, elementary

TERMS = (0.5, -1.25, 2.0, 0.3, -0.7)
X = np.linspace(-1, 1, 16, dtype=np.float32)
GPU_FORMS = {
    "polynomial": elementary.Polynomial(TERMS),
    "polynomial_at": elementary.PolynomialAt(TERMS, 0.3, 2, -1.5),
    "exp2_in_sum": elementary.Exp2InSum(),
    "stored": platform.Stored(),
}


def polynomial(x):
    return elementary.polynomial(TERMS, x)


def series(x, order=0):
    return np.polynomial.Polynomial(TERMS).deriv(order)(np.asarray(x, np.float64))


def text_of(function, *platforms, dtype=np.float32):
    program = export.export(jax.jit(function), platforms=platforms)(jax.ShapeDtypeStruct((16,), dtype)).mlir_module()
    return re.sub(r"^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)|@jit_\w+", "", program, flags=re.M)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (polynomial, lambda x: elementary.estrin(TERMS, x)),
        (
            lambda x: elementary.polynomial_at(0.3, TERMS, x, power=1),
            lambda x: elementary.estrin([c * 0.3 ** (2 * j) * 0.3 for j, c in enumerate(TERMS)], x),
        ),
        (elementary.exp2_in_sum, elementary.exp2),
        (platform.stored, lambda x: x),
    ],
    ids=["polynomial", "polynomial_at", "exp2_in_sum", "stored"],
)
def test_a_cpu_runs_the_same_program_as_if_there_were_no_other_form(found, expected):
    assert text_of(found, "cpu") == text_of(expected, "cpu") == text_of(found, "tpu")
    assert text_of(found, "cuda") == text_of(found, "rocm") != text_of(found, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_programs_for_a_gpu_have_no_coefficients(dtype):
    """XLA counts coefficients as operands of a fusion, and divides fusions that have more than 96."""
    with jax.enable_x64(True):
        constants = re.findall(r"constant dense<(.*?)>", text_of(polynomial, "cuda", dtype=dtype))
    assert not set(TERMS) & set(map(float, constants))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hidden_constants_are_unchanged(dtype):
    with jax.enable_x64(True):
        x = jnp.asarray([-jnp.inf, -1.5, -0.0, 0.0, 2.0, jnp.nan], dtype)
        constants = (*coefficients.EXP2_64, -1e-30, 0.0, 1e30)
        for constant, found in zip(constants, jax.jit(functools.partial(xla.hidden, constants))(x), strict=True):
            np.testing.assert_array_equal(found, np.full(6, constant, dtype), strict=True)


def of_row(x):
    return xla.polynomial_of_row(jnp.asarray(TERMS, x.dtype), x)


def test_a_gpu_reads_the_coefficients_of_a_loop_for_each_element(monkeypatch):
    """Read as scalars, they become up to 196 kernels in one pass of the loop (`tools.gpu_programs`, d = 10)."""
    plain = jax.jit(of_row).lower(X).compile()
    np.testing.assert_allclose(plain(X), series(X), rtol=1e-6)
    monkeypatch.setattr(xla, "GPUS", ("cpu",))
    of_places = jax.jit(lambda x: of_row(x)).lower(X).compile()  # traced again
    assert [program.as_text().count(" gather(") for program in (plain, of_places)] == [0, len(TERMS)]
    np.testing.assert_array_equal(of_places(X), plain(X))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GPU_FORMS)
def test_both_forms_agree(name, dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(X, dtype)
        found, expected = jax.jit(GPU_FORMS[name].on_gpu)(x), GPU_FORMS[name].on_cpu(x)
        np.testing.assert_allclose(found, expected, 8 * np.finfo(dtype).eps, 8 * np.finfo(dtype).eps, strict=True)


@pytest.mark.parametrize("name", GPU_FORMS)
def test_slopes(name):
    """Slopes are formulas as well, so derivatives of any order hide their coefficients."""
    value = functools.partial(platform.evaluate, GPU_FORMS[name])
    slope = jax.grad(lambda x: value(x))
    with jax.enable_x64(True):
        x, step = jnp.asarray(X, jnp.float64), 1e-6
        for below, above in ((value, jax.vmap(slope)), (jax.vmap(slope), jax.vmap(jax.grad(slope)))):
            np.testing.assert_allclose(above(x), (below(x + step) - below(x - step)) / (2 * step), 1e-6, 1e-7)


def test_derivatives_of_every_order():
    """The last ones have one term and none."""
    function = lambda x: elementary.polynomial_at(0.5, TERMS, x)  # noqa: E731
    scaled = np.polynomial.Polynomial([c * 0.25**j for j, c in enumerate(TERMS)])
    for order in range(1, len(TERMS) + 2):
        function = jax.grad(function)
        np.testing.assert_allclose(jax.jit(jax.vmap(function))(X), scaled.deriv(order)(X), 1e-4, 1e-6)


@pytest.mark.parametrize("transform", ["jit", "eager", "disabled", "vmap", "scan", "linearize", "checkpoint"])
def test_transformations(transform):
    run = {
        "jit": jax.jit(polynomial),
        "eager": polynomial,
        "disabled": polynomial,
        "vmap": jax.vmap(jax.vmap(polynomial)),
        "scan": lambda x: jax.lax.scan(lambda carry, x: (carry, polynomial(x)), 0, x)[1],
        "linearize": lambda x: jax.linearize(polynomial, x)[0],
        "checkpoint": jax.checkpoint(polynomial),
    }[transform]
    with jax.disable_jit(transform == "disabled"):
        x = jnp.reshape(X, (4, 4)) if transform == "vmap" else jnp.asarray(X)
        np.testing.assert_allclose(run(x), series(x), 1e-5, 1e-6)


@pytest.mark.parametrize("run", [polynomial, jax.jit(polynomial), jax.grad(polynomial)], ids=["eager", "jit", "grad"])
def test_a_search_for_nans_finds_the_operation(run):
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in \w+"):
        run(jnp.inf)


def test_equal_formulas_share_a_program():
    traced = []

    class Counted(elementary.Polynomial):
        def on_cpu(self, x):
            traced.append(x)
            return super().on_cpu(x)

    for _ in range(3):
        platform.evaluate(Counted(tuple(c + 0 for c in TERMS)), jnp.asarray(X))
    assert len(traced) == 1


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit, AxisType.Manual])
def test_meshes(kind):
    """Values and slopes keep the sharding of the argument; programs for a GPU compile for a mesh as well."""
    count = jax.device_count()
    axis = AxisType.Auto if kind is AxisType.Manual else kind
    mesh = jax.make_mesh((count,), ("i",), axis_types=(axis,))
    slope = jax.vmap(jax.grad(polynomial))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.resize(X, 4 * count), NamedSharding(mesh, P("i")))
        rows = jax.device_put(np.resize(X, (4 * count, 3)), NamedSharding(mesh, P("i")))
        for function in (polynomial, of_row):  # the sharded axis is mapped
            np.testing.assert_allclose(jax.jit(jax.vmap(function))(rows), series(rows), 1e-5, 1e-6)
        for function, order in ((polynomial, 0), (slope, 1), (of_row, 0)):
            run = jax.shard_map(function, in_specs=P("i"), out_specs=P("i")) if kind is AxisType.Manual else function
            found = jax.jit(run)(x)
            np.testing.assert_allclose(found, series(x, order), 1e-5, 1e-6)
            assert found.sharding.is_equivalent_to(x.sharding, 1)
            on_gpu = export.export(jax.jit(run), platforms=("cuda",))(x)
            operation = "gather" if function is of_row else "iota"
            assert on_gpu.mlir_module().count(operation) >= len(TERMS) - order

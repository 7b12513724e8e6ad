"""Several devices draw the angles of one device, bit for bit and without communication."""

import functools
import logging
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_von_mises import (
    Mixture,
    SineBivariateVonMises,
    Torus,
    VonMises,
    VonMisesFisher,
    sample_block,
    sample_pmap,
    sample_shard,
    sample_von_mises,
)
from jax_von_mises.rotations import IsotropicGaussianSO3, MatrixFisher
from tests.arrays import equal
from tests.marks import more, slow

KEY = random.key(5)
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "recv",
    "reduce-scatter",
    "send",
)

draw = functools.partial(sample_von_mises, KEY, 0.3, 2.5)


def mesh_of(shape, axis_type):
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, ("x", "y")[: len(shape)], axis_types=(axis_type,) * len(shape), devices=devices)


@pytest.fixture(params=["Auto", *more("Explicit")])
def axis_type(request):
    return getattr(AxisType, request.param)


# --------------------------------------------------------------------------------------- no communication


def collectives(program):
    """Return the instructions of a compiled program that exchange data between devices."""
    return set(re.findall(rf"\s({'|'.join(COLLECTIVES)})(?:-start|-done)?\(", program))


def compiled(function, *arguments):
    """Return the text of the optimised program for a function of complete arrays."""
    return jax.jit(function).lower(*arguments).compile().as_text()


def test_collectives_are_detected():
    """`collectives` recognises exchanges between devices; this is a control for the tests below."""

    def exchange(x):
        x = lax.psum(x, "x") + lax.all_to_all(x, "x", 0, 0, tiled=True)
        x = lax.ppermute(x, "x", [(0, 1), (1, 0)]) + lax.psum_scatter(jnp.tile(x, 8), "x", tiled=True)
        return jnp.sin(lax.all_gather(x, "x"))

    mapped = jax.shard_map(
        exchange, mesh=mesh_of((8,), AxisType.Auto), in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    found = collectives(compiled(mapped, jnp.arange(64.0)))
    assert found == {"all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "all-gather"}


@pytest.mark.more
def test_sums_over_a_sharded_result_are_detected():
    """A sum over a sharded draw communicates; this is a control with the sampler in the program."""
    sharding = NamedSharding(mesh_of((8,), AxisType.Auto), P("x"))
    assert collectives(compiled(lambda key: jnp.sum(sample_von_mises(key, 0.3, 2.5, 800, out_sharding=sharding)), KEY))


# ------------------------------------------------------------------------------------------------- pmap


@pytest.mark.parametrize(
    ("implementation", "method", "dtype"),
    [
        ("threefry2x32", "direct", "float32"),
        *more(("philox4x32", "table", "float32"), ("rbg", "direct", "bfloat16"), ("threefry2x32", "table", "float64")),
    ],
)
def test_pmap(implementation, method, dtype):
    key = random.key(5, impl=implementation)
    with jax.enable_x64(dtype == "float64"):
        x = sample_pmap(key, 0.3, 2.5, (8, 3, 41), dtype, method=method)
        assert equal(x, sample_von_mises(key, 0.3, 2.5, (8, 3, 41), dtype, method=method))
    assert x.dtype == dtype
    assert [shard.device for shard in x.addressable_shards] == jax.devices()
    assert all(shard.data.shape == (1, 3, 41) for shard in x.addressable_shards)


@pytest.mark.more
def test_pmap_parameters():
    """Parameters with the device axis are partitioned; those without it, or of length 1 along it, are copied."""
    every = np.geomspace(0.1, 100, 5, dtype=np.float32)
    each = np.geomspace(0.01, 1000, 8, dtype=np.float32)[:, None]
    loc = jnp.linspace(-3, 3, 8)[:, None]
    for m, k in ((0.3, every), (loc, 2.5), (loc, each * every), (0.3, every[None]), (loc, np.ones((1, 1)))):
        assert equal(sample_pmap(KEY, m, k, (8, 5)), sample_von_mises(KEY, m, k, (8, 5)))


@pytest.mark.more
@pytest.mark.parametrize(
    ("make", "method", "count", "size"), [(random.key, "auto", 8, 2**14), (random.PRNGKey, "direct", 3, 50)]
)
def test_pmap_keys_of_the_devices(make, method, count, size):
    """With a key for each device, row d equals a single-device draw with key d and the parameters of row d."""
    keys, devices = random.split(make(7), count), jax.devices()[:count]
    loc, concentration = jnp.linspace(-3, 3, count), jnp.geomspace(0.1, 100, count)
    options = {"method": method, "devices": devices}
    x = sample_pmap(keys, loc[:, None], concentration[:, None], (count, size), **options)
    assert [shard.device for shard in x.addressable_shards] == devices
    alone = functools.partial(sample_von_mises, shape=(size,), method=method)
    assert equal(x, jnp.stack([alone(*row) for row in zip(keys, loc, concentration, strict=True)]))
    full = functools.partial(sample_pmap, shape=(count, size), **options)
    assert equal(jax.jit(full)(keys, 0.3, 2.5), jnp.stack([alone(key, 0.3, 2.5) for key in keys]))


def test_pmap_parameters_of_the_devices():
    """Parameters of shape (devices,) are refused, since axes align from the last; the remedy in the message works."""
    loc, concentration = jnp.zeros(8), jnp.full(8, 5.0)
    for key in (KEY, random.split(KEY, 8)):
        with pytest.raises(ValueError, match=r"loc has shape \(8,\).*shape=\(8, 10\).*write loc\[:, None\] to match"):
            sample_pmap(key, loc, concentration, (8, 10))
        with pytest.raises(ValueError, match=r"concentration has shape \(8,\).*write concentration\[:, None, None\]"):
            sample_pmap(key, 0.0, concentration, (8, 10, 2))
        remedied = jax.eval_shape(lambda key=key: sample_pmap(key, loc[:, None], concentration[:, None], (8, 10)))
        assert remedied.shape == (8, 10)


@pytest.mark.more
def test_pmap_devices():
    """Devices are used in the given order, a single one is allowed, and a committed key is moved to them."""
    some = jax.devices()[:2:-2]
    x = sample_pmap(KEY, 0.3, 2.5, (3, 50), devices=some)
    assert equal(x, draw((3, 50)))
    for i, device in enumerate(some):
        (part,) = [shard.data for shard in x.addressable_shards if shard.device == device]
        assert equal(part, draw((3, 50))[i : i + 1])
    assert equal(
        sample_pmap(KEY, 0.3, jnp.ones(1), (1, 50), devices=some[:1]), sample_von_mises(KEY, 0.3, 1.0, (1, 50))
    )
    assert equal(sample_pmap(jax.device_put(KEY, jax.devices()[3]), 0.3, 2.5, (3, 50), devices=some), draw((3, 50)))
    # 2^14 angles use the table, although the 2^11 angles of a single device would use the direct route.
    assert equal(sample_pmap(KEY, 0.3, 2.5, (8, 2**11)), draw((8, 2**11), method="table"))
    assert equal(sample_pmap(KEY, 0.3, 2.5, 8), draw(8))


@pytest.mark.more
def test_pmap_compiles_once(caplog):
    """Other keys and values reuse the program; another shape compiles another program, as the log shows."""

    def compilations(key, loc, concentration, size):
        caplog.clear()
        with caplog.at_level(logging.WARNING), jax.log_compiles():
            sample_pmap(key, loc, concentration, (8, size))
        return [record for record in caplog.records if record.getMessage().startswith("Compiling")]

    assert compilations(KEY, 0.3, 2.5, 10)
    other = random.key(6)
    assert not compilations(other, 0.4, 3.5, 10)
    assert compilations(other, 0.4, 3.5, 11)


@pytest.mark.more
def test_pmap_transformations():
    """Results and derivatives equal those of one device, also inside a jitted program and under vmap."""
    pmapped = functools.partial(sample_pmap, shape=(2, 50), method="direct", devices=jax.devices()[:2])
    alone = functools.partial(sample_von_mises, shape=(2, 50), method="direct")
    assert equal(jax.jit(pmapped)(KEY, 0.3, 2.5), alone(KEY, 0.3, 2.5))
    keys = random.split(KEY, 3)
    assert equal(jax.vmap(pmapped, (0, None, None))(keys, 0.3, 2.5), jax.vmap(alone, (0, None, None))(keys, 0.3, 2.5))
    slope = [jax.jvp(lambda k, f=f: f(KEY, 0.3, k), (2.5,), (1.0,))[1] for f in (pmapped, alone)]
    assert equal(*slope)
    mean_slope = jax.grad(lambda k: jnp.mean(pmapped(KEY, 0.3, k)))(2.5)
    np.testing.assert_allclose(mean_slope, jnp.mean(slope[1]), rtol=1e-5)


@pytest.mark.parametrize("method", ["direct", *more("table")])
def test_pmap_has_no_collectives(method):
    program = compiled(lambda key, m, k: sample_pmap(key, m, k, (8, 1000), method=method), KEY, 0.3, 2.5)
    assert not collectives(program)
    assert "[1,1000]" in program
    assert "[8,1000]" not in program


# --------------------------------------------------------------------------------------------- shardings

# Each case compiles two programs, which is faster for two devices than for eight.
SHARDINGS = [
    (AxisType.Auto, (2,), P(None, "x"), "table"),
    *more(
        (AxisType.Explicit, (4, 2), P("x", "y"), "direct"),
        (AxisType.Auto, (4, 2), P(None, ("y", "x")), "direct"),
        (AxisType.Explicit, (8,), P("x"), "table"),
    ),
]


@pytest.mark.parametrize(("axis_type", "sizes", "spec", "method"), SHARDINGS, ids=str)
def test_out_sharding(axis_type, sizes, spec, method):
    mesh = mesh_of(sizes, axis_type)
    sharding = NamedSharding(mesh, spec)
    # Draw with a PartitionSpec for the mesh in scope, and with a NamedSharding inside a user's program.
    full = jax.jit(functools.partial(sample_von_mises, shape=(8, 120), method=method, out_sharding=sharding))
    with jax.set_mesh(mesh):
        results = [draw((8, 120), method=method, out_sharding=spec)]
        program = full.lower(KEY, 0.3, 2.5).compile()
        results.append(program(KEY, jnp.float32(0.3), jnp.float32(2.5)))
    for x in results:
        assert x.sharding.is_equivalent_to(sharding, 2)
        assert equal(x, draw((8, 120), method=method))
    assert not collectives(program.as_text())
    assert "f32[8,120]" not in program.as_text()  # each device draws only its own part


@pytest.mark.more
@pytest.mark.parametrize(
    ("axis_type", "sizes", "spec"),
    [
        (AxisType.Explicit, (2, 1), P("x", "y")),
        *more((AxisType.Auto, (4, 2), P("x")), (AxisType.Explicit, (4, 2), P(None, ("x", "y")))),
    ],
    ids=str,
)
def test_sharded_parameters(axis_type, sizes, spec):
    """A result takes the sharding of an argument of its shape, without communication, also on 2-D meshes."""
    concentration = jnp.geomspace(0.1, 100, 64).reshape(8, 8)
    mesh = mesh_of(sizes, axis_type)
    sharding = NamedSharding(mesh, spec)
    with jax.set_mesh(mesh):
        parts = jax.device_put(concentration, sharding)
        x = sample_von_mises(KEY, 0.3, parts)
        program = compiled(lambda key, k: sample_von_mises(key, 0.3, k), KEY, parts)
    assert x.sharding.is_equivalent_to(sharding, 2)
    assert equal(x, sample_von_mises(KEY, 0.3, concentration))
    assert not collectives(program)
    assert "f32[8,8]" not in program


@pytest.mark.parametrize("method", more("direct", "table"))
def test_out_shardings_of_the_program(method):
    """If only the user's jit determines the sharding of the result, the counters are partitioned as well."""
    sharding = NamedSharding(mesh_of((2,), AxisType.Auto), P("x"))
    cut = jax.jit(functools.partial(sample_von_mises, shape=(2000,), method=method), out_shardings=sharding)
    program = cut.lower(KEY, 0.3, 2.5).compile().as_text()
    assert not collectives(program)
    assert "u32[1000]" in program
    assert equal(cut(KEY, 0.3, 2.5), draw((2000,), method=method))


def test_invalid_shardings():
    with pytest.raises(ValueError, match=r"out_sharding=.* no mesh is in scope. Enter one with jax.set_mesh"):
        draw((8,), out_sharding=P("x"))
    with (
        jax.set_mesh(mesh_of((8,), AxisType.Explicit)),
        pytest.raises(ValueError, match=r"does not fit the mesh in scope, whose axes are \('x',\)"),
    ):
        draw((8,), out_sharding=P("nowhere"))


# ------------------------------------------------------------------------------------------- shard_map


def shard_map(mesh, out_specs, **options):
    """Decorate a function of key and concentration that every device calls."""
    return jax.shard_map(mesh=mesh, in_specs=(P(), P()), out_specs=out_specs, **options)


@pytest.mark.parametrize(
    ("axis_type", "sizes", "axes", "method"),
    [
        (AxisType.Explicit, (2, 2), ("y", "x"), "direct"),
        *more((AxisType.Auto, (8,), ("x",), "table"), (AxisType.Auto, (4, 2), ("x", "y"), "direct")),
    ],
    ids=str,
)
def test_shard(axis_type, sizes, axes, method):
    """Device j in row-major order of the axes draws part j; the mesh need not be in scope."""
    mesh = mesh_of(sizes, axis_type)
    name = axes if len(axes) == 2 else axes[0]

    @shard_map(mesh, P(axes))
    def parts(key, k):
        return sample_shard(key, 0.3, k, (8 // mesh.size, 120), name, method=method)

    program = jax.jit(parts).lower(KEY, 2.5).compile()
    x = program(KEY, jnp.float32(2.5))
    assert equal(x, draw((8, 120), method=method))
    assert x.sharding.is_equivalent_to(NamedSharding(mesh, P(axes)), 2)
    assert not collectives(program.as_text())


@pytest.mark.more
def test_shard_over_one_axis_of_two(axis_type):
    """Devices that differ only in the other axis draw the same angles, as shard_map itself verifies."""
    for options in ({}, {"axis_names": {"x"}}):

        @jax.jit
        @shard_map(mesh_of((2, 2), axis_type), P("x"), **options)
        def parts(key, k):
            return sample_shard(key, 0.3, k, (4, 120), "x")

        assert equal(parts(KEY, 2.5), draw((8, 120), method="table"))


@pytest.mark.more
def test_shard_in_pmap_and_vmap():
    """`sample_shard` works wherever there is a named axis, as in `jax.pmap` and `jax.vmap`."""
    for transform in (jax.pmap, jax.vmap):
        parts = transform(lambda _: sample_shard(KEY, 0.3, 2.5, (120,), "x"), axis_name="x")
        assert equal(parts(np.arange(2)), draw((2, 120), method="table"))


@pytest.mark.more
def test_shard_parameters_and_keys(axis_type):
    """Parts with separate concentrations and one location equal the draw of one device, for another kind of key."""
    key = random.key(5, impl="rbg")
    concentration = jnp.geomspace(0.1, 100, 64).reshape(8, 8)
    mesh = mesh_of((8,), axis_type)
    parts = jax.shard_map(
        lambda k: sample_shard(key, 0.3, k, (1, 8), "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    cut = jax.device_put(concentration, NamedSharding(mesh, P("x")))
    assert equal(jax.jit(parts)(cut), sample_von_mises(key, 0.3, concentration))


@pytest.mark.more
def test_shard_derivatives():
    """The derivative with respect to a shared concentration equals that of one device, with or without `check_vma`."""
    alone = functools.partial(sample_von_mises, KEY, 0.3, shape=(8, 120))
    expected = jax.jit(jax.grad(lambda k: jnp.sum(alone(k))))(2.5)
    for check in (True, False):
        parts = shard_map(mesh_of((2,), AxisType.Auto), P("x"), check_vma=check)(
            lambda key, k: sample_shard(key, 0.3, k, (4, 120), "x", method="direct")
        )
        actual = jax.jit(jax.grad(lambda k, f=parts: jnp.sum(f(KEY, k))))(2.5)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.slow
def test_shard_beyond_32_bits():
    """Eight parts of 2^30 angles continue the stream beyond 32 bits; only their last angles are computed."""
    size = 2**30

    @jax.jit
    @shard_map(mesh_of((8,), AxisType.Auto), P("x"))
    def ends(key, k):
        return sample_shard(key, 0.3, k, (size,), "x", method="table")[-4:]

    memory = ends.lower(KEY, 2.5).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**20, "the parts are computed in full"
    expected = [sample_block(KEY, 0.3, 2.5, (j + 1) * size - 4, (4,)) for j in range(8)]
    assert equal(ends(KEY, 2.5), jnp.concatenate(expected))


@pytest.mark.more
def test_shard_map_of_the_user(axis_type):
    """`sample_von_mises` works in a user's shard_map, with a key and a concentration for each device."""
    keys, concentrations = random.split(KEY, 8), jnp.geomspace(0.1, 100, 8)
    mesh = mesh_of((8,), axis_type)
    mapped = jax.shard_map(
        lambda key, k: sample_von_mises(key[0], 0.3, k[0], (50,)), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    expected = [sample_von_mises(key, 0.3, k, (50,)) for key, k in zip(keys, concentrations, strict=True)]
    actual = jax.jit(mapped)(*jax.device_put((keys, concentrations), NamedSharding(mesh, P("x"))))
    assert equal(actual, jnp.concatenate(expected))


VECTORS = np.eye(4, dtype=np.float32)[:2]
DENSITIES = {
    "angles": (VonMises(0.3, 2.5), "log_prob", "cdf"),
    "directions": (VonMisesFisher([0.0, 0.0, 1.0], 5.0), "log_prob"),
    "mixture of directions": (Mixture(probs=[0.3, 0.7], components=VonMisesFisher(VECTORS, [5.0, 20.0])), "log_prob"),
    "mixture of angles": (Mixture(probs=[0.3, 0.7], components=VonMises([0.0, 1.0], 4.0)), "responsibilities", "cdf"),
    "natural": (VonMises.from_natural([1.0, 2.0]), "log_prob"),
    "natural directions": (VonMisesFisher.from_natural([1.0, 2.0, 3.0, 4.0]), "log_prob"),
    "points": (Torus(VonMises([0.3, 0.5], [1.0, 2.0])), "log_prob"),
    "pairs": (SineBivariateVonMises(0.1, 0.2, 2.0, 3.0, 0.5), "log_prob"),
    "rotations": (IsotropicGaussianSO3([1.0, 0.0, 0.0, 0.0], 0.5), "log_prob", "score"),
    "matrix Fisher": (MatrixFisher(np.diag([3.0, 2.0, 1.0])), "log_prob"),
}
SHORT = ("directions", "natural", "points")
LONG = [name for name in DENSITIES if name not in ("angles", *SHORT)]


@pytest.mark.parametrize("name", ["angles", *more(*SHORT), *slow(*LONG)])
def test_densities_of_sharded_values(name):
    """Methods take values over a mesh with explicit axes, and keep their sharding; so do derivatives."""
    distribution, *methods = DENSITIES[name]
    x = distribution.sample(KEY, (4,))
    sharding = NamedSharding(mesh_of((2,), AxisType.Explicit), P("x"))
    gradient = jax.grad(lambda x: jnp.sum(distribution.log_prob(x)))
    calls = [getattr(distribution, method) for method in methods]
    for call in [*calls, gradient][: None if name in ("directions", "rotations") else -1]:
        with jax.set_mesh(sharding.mesh):
            found = call(jax.device_put(x, sharding))
        assert found.sharding.is_equivalent_to(sharding, found.ndim)
        np.testing.assert_allclose(found, call(x), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- errors

INVALID_PMAPS = [
    (
        dict(shape=(4, 10)),
        r"shape=\(4, 10\) has length 4 along its leading axis.* number of devices, 8\. Give shape=",
    ),
    (dict(shape=()), r"shape=\(\) has no leading axis"),
    (dict(loc=jnp.ones(3)), r"loc has shape \(3,\).*shape=\(8, 2\)"),
    (dict(method="table", concentration=jnp.ones(2)), "method='table' needs one concentration"),
    (dict(key=random.split(KEY, 4)), r"key array of shape \(4,\).* devices is 8.*split\(key, 8\)"),
    (
        dict(key=random.split(KEY, 8), method="table", concentration=jnp.ones((8, 2))),
        r"method='table' needs one concentration, got an array of shape \(2,\)",
    ),
]


@pytest.mark.parametrize(("change", "message"), INVALID_PMAPS)
def test_invalid_pmap(change, message):
    arguments = dict(key=KEY, loc=0.0, concentration=1.0, shape=(8, 2)) | change
    with pytest.raises(ValueError, match="sample_pmap: .*" + message):
        sample_pmap(**arguments)


def test_pmap_inside_a_mesh():
    """Inside a mesh, an error names the remedy, since the error of `jax.pmap` itself does not help."""
    with (
        jax.set_mesh(mesh_of((8,), AxisType.Auto)),
        pytest.raises(ValueError, match=r"sample_pmap: a mesh with the axes \('x',\) is in scope.*out_sharding"),
    ):
        sample_pmap(KEY, 0.0, 1.0, (8,))


INVALID_SHARDS = [
    (dict(axis_name="z"), "axis_name='z' is not an axis.*in the body of jax.shard_map or jax.pmap"),
    (dict(axis_name=("x", "z")), "axis_name=.* is not an axis"),
    (dict(loc=jnp.ones(3)), r"loc has shape \(3,\).*shape=\(2,\)"),
    (dict(method="table", concentration=jnp.ones(2)), "method='table' needs one concentration"),
]


@pytest.mark.parametrize(("change", "message"), INVALID_SHARDS)
def test_invalid_shard(change, message):
    arguments = dict(key=KEY, loc=0.0, concentration=1.0, shape=(2,), axis_name="x") | change
    with pytest.raises(ValueError, match="sample_shard: .*" + message):
        jax.eval_shape(
            jax.shard_map(
                lambda: sample_shard(**arguments), mesh=mesh_of((8,), AxisType.Auto), in_specs=(), out_specs=P("x")
            )
        )

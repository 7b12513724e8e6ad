"""Test the stream, distribution and derivatives of `sample_von_mises_fisher`, under JAX's transformations."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

from jax_von_mises import VonMisesFisher, sample_von_mises, sample_von_mises_fisher
from jax_von_mises.engine import counter
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.sphere import draw as sphere
from tests import sphere_reference as reference
from tests.arrays import equal
from tests.marks import more, slow
from tests.sphere_reference import direction

KEY = random.key(5)


def block_of(key, mu, kappa, start, shape, method="direct"):
    direction = VonMisesFisher(mu, kappa)
    return direction.sample(key, shape[: len(shape) - len(direction.batch_shape)], start=start, method=method)


# ------------------------------------------------------------------------------------------------ the stream

# Checksums of the words of directions 0 to 9 and 2^33 to 2^33 + 9. They are frozen: see docs/guarantees.md.
DIGESTS = {
    ("threefry2x32", 3, "float32"): "47d6c95e6373b045",
    ("threefry2x32", 5, "float32"): "ff98b81043041a2c",
    ("threefry2x32", 5, "float64"): "cb2cec5ae5276cf1",
    ("philox4x32", 3, "float32"): "9b185a8d79eb1af6",
    ("philox4x32", 5, "float32"): "2b8d80435b87167a",
    ("rbg", 5, "float32"): "b4f542d6781d487e",
}


def words_of(implementation, d, dtype, start):
    """Return the words of ten directions, as the sampler computes them."""
    key, width = random.key(7, impl=implementation), 2 if dtype == "float64" else 1
    start, per_draw = None if start is None else counter.halves(start), sphere.numbers_per_direction(d)
    return np.stack(Numbers(key, start, (10,), per_draw, width)(0, per_draw), -1).reshape(10, -1)


@pytest.mark.parametrize(("implementation", "d", "dtype"), [*list(DIGESTS)[:2], *more(*list(DIGESTS)[2:])])
def test_words_are_frozen(implementation, d, dtype):
    words = [words_of(implementation, d, dtype, start) for start in (None, 2**33)]
    digest = hashlib.sha256(np.ascontiguousarray(np.stack(words), "<u4").tobytes()).hexdigest()[:16]
    assert digest == DIGESTS[implementation, d, dtype]


def test_words_are_those_of_the_stream():
    """Direction i takes words 6 i to 6 i + 5 of the key's stream for d = 5, and words 2 i and 2 i + 1 for d = 3."""
    words = counter.words(random.key(7), (60,), 1)[0]
    assert equal(words_of("threefry2x32", 5, "float32", None), np.asarray(words).reshape(10, 6))
    assert equal(words_of("threefry2x32", 3, "float32", None), np.asarray(words)[:20].reshape(10, 2))


@pytest.mark.parametrize("d", [5, *more(3)])
def test_the_first_directions(d):
    """Directions agree with those that NumPy and SciPy compute from the same words."""
    words = words_of("threefry2x32", d, "float32", None).astype(np.int64)
    mu, k = direction(d).astype(float), 4.0
    cosine = (jnp.asarray(words[:, 0], jnp.uint32),)
    signed = np.asarray(sphere.drawn_share(cosine, jnp.float32(k), d, "direct", None))
    w = np.where(signed < 0, -1, 1) - 2 * signed.astype(float)
    t, near = ((words[:, 0] >> 1) + 0.5) * 2.0**-32, words[:, 0] % 2 == 1
    tails = np.exp(reference.log_tail(np.abs(signed).astype(float), near, (signed >= 0) == near, d, k))
    np.testing.assert_allclose(tails, t, rtol=2e-6)
    if d == 5:
        rest = ((words[:, 1:] >> 1) + 0.5) * 2.0**-32
        z = np.where(words[:, 1:] % 2 == 1, 1, -1) * stats.norm.ppf(rest)
        z = z - (z @ mu)[:, None] * mu
        exact = w[:, None] * mu + np.sqrt(1 - w * w)[:, None] * z / np.linalg.norm(z, axis=1)[:, None]
    else:
        azimuth = np.pi * ((words[:, 1] ^ 2**31) - 2**31 + 0.5) * 2.0**-31
        exact = np.stack([*(np.sqrt(1 - w * w) * f(azimuth) for f in (np.cos, np.sin)), w], 1)
        mu = np.array([0.0, 0.0, 1.0])
    x = sample_von_mises_fisher(random.key(7), np.float32(mu), k, (10,), method="direct")
    np.testing.assert_allclose(x, exact, atol=2e-6)


@pytest.mark.parametrize(
    ("d", "implementation"),
    [
        (3, "threefry2x32"),
        *more((2, "rbg"), (3, "philox2x32"), (3, "unsafe_rbg")),
        *slow((5, "philox4x32"), (4, "threefry4x32")),
    ],
)
def test_slices(d, implementation):
    """A block equals the same slice of a full draw bit for bit, in any shape; a distant block has other directions."""
    key, mu = random.key(1, impl=implementation), direction(d)
    full = np.asarray(sample_von_mises_fisher(key, mu, 2.5, (240,), method="direct"))
    block = block_of(key, mu, 2.5, 70, (100,))
    assert equal(block, full[70:170])
    assert equal(sample_von_mises_fisher(key, mu, 2.5, (4, 60), method="direct").reshape(240, d), full)
    assert not equal(block_of(key, mu, 2.5, 2**40 + 70, (100,)), block)


@pytest.mark.parametrize(
    ("d", "method"), slow(*((3, "direct"), (4, "each"), (5, "table"), (7, "direct"), (20, "each"), (100, "table")))
)
def test_bits_do_not_depend_on_the_program(d, method):
    """Pieces of any length, for which XLA:CPU generates other loops, and a larger program draw the same bits."""
    count, mu = 2**15, direction(d)
    kappa = np.float32(2.5) if method != "each" else np.geomspace(1e-2, 1e4, count).astype(np.float32)
    method = "direct" if method == "each" else method
    full = np.asarray(sample_von_mises_fisher(KEY, mu, kappa, (count,), method=method))
    for start, size in ((0, 1), (0, 7), (70, 100), (33, 1000), (3, 20_001)):
        part = kappa[start : start + size] if kappa.ndim else kappa
        assert equal(block_of(KEY, mu, part, start, (size,), method), full[start : start + size])
    doubled = jax.jit(lambda key: 2 * sample_von_mises_fisher(key, mu, kappa, (count,), method=method))(KEY)
    assert equal(doubled, 2 * full)


@pytest.mark.parametrize("d", [*more(3), *slow(5)])
def test_traced_start_and_vmap(d):
    starts = jnp.arange(0, 40, 10, dtype=jnp.uint32)
    full = sample_von_mises_fisher(KEY, direction(d), 2.5, (40,), method="direct")
    assert equal(jax.vmap(lambda s: block_of(KEY, direction(d), 2.5, s, (10,)))(starts).reshape(40, d), full)
    keys = random.split(KEY, 3)
    rows = jax.vmap(lambda key: sample_von_mises_fisher(key, direction(d), 2.5, (10,), method="direct"))(keys)
    for key, row in zip(keys, rows, strict=True):
        assert equal(row, sample_von_mises_fisher(key, direction(d), 2.5, (10,), method="direct"))


@pytest.fixture
def mesh():
    if jax.device_count() < 2:
        pytest.skip("one device")
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])


@pytest.mark.parametrize(("d", "each"), [*more((3, False), (2, True)), *slow((5, True))])
def test_devices_draw_their_parts(d, each, mesh):
    """Two devices draw the same directions as one device, for one concentration and for one per direction."""
    kappa, spec = np.geomspace(0.1, 100, 64, dtype=np.float32) if each else np.float32(2.5), PartitionSpec("data")
    with jax.set_mesh(mesh):
        parts = sample_von_mises_fisher(KEY, direction(d), kappa, (64,), out_sharding=spec)
        assert parts.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
        assert equal(parts, sample_von_mises_fisher(KEY, direction(d), kappa, (64,)))
    across = NamedSharding(mesh, PartitionSpec(None, "data"))
    with pytest.raises(ValueError, match="components"):
        sample_von_mises_fisher(KEY, direction(d), kappa, (64,), out_sharding=across)


@pytest.mark.parametrize("d", [*more(3), *slow(5)])
def test_derivatives_over_devices(d, mesh):
    kappa, spec = jnp.geomspace(0.1, 100, 64, dtype=np.float32), PartitionSpec("data")

    def slope(out_sharding):
        draw = functools.partial(sample_von_mises_fisher, KEY, direction(d), shape=(64,), out_sharding=out_sharding)
        return jax.jvp(draw, (kappa,), (jnp.ones_like(kappa),))[1]

    with jax.set_mesh(mesh):
        np.testing.assert_allclose(slope(spec), slope(None), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("d", [*more(3), *slow(5, 100)])
def test_derivative_by_table(d):
    """Derivatives by the table agree with those by the direct route, up to interpolation error."""
    draw = functools.partial(sample_von_mises_fisher, KEY, direction(d), shape=(2**13,))
    for k in (0.0, 0.3, 5.0, 1e3, 1e7, 1e20):
        table, direct = (
            np.asarray(jax.jvp(functools.partial(draw, method=method), (jnp.float32(k),), (jnp.float32(1),))[1], float)
            for method in ("table", "direct")
        )
        np.testing.assert_allclose(table, direct, rtol=1e-5, atol=2e-6 * np.abs(direct).max())


@pytest.mark.more
def test_two_dimensions_are_the_circle():
    """In two dimensions, directions have the angles that `sample_von_mises` draws."""
    mu = direction(2)
    x = np.asarray(sample_von_mises_fisher(KEY, mu, 3.0, (500,), method="direct"), float)
    angle = sample_von_mises(KEY, float(np.arctan2(mu[1], mu[0])), 3.0, (500,), method="direct")
    np.testing.assert_allclose(np.stack([np.cos(angle), np.sin(angle)], 1), x, atol=1e-6)


# ------------------------------------------------------------------------------------------------ the distribution


@pytest.mark.parametrize("d", [5, *more(2, 3), *slow(4, 16, 100)])
def test_goodness_of_fit(d):
    """The cosine has the right distribution, the orthogonal direction is uniform, and the two are independent."""
    mu, size = direction(d).astype(float), 2**15
    draw = jax.jit(lambda k: sample_von_mises_fisher(KEY, direction(d), k, (size,), method="direct"))
    for k in (0.0, 3.0, 200.0):
        x = np.asarray(draw(jnp.float32(k)), float)
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=2e-6)
        orthogonal = x - (x @ mu)[:, None] * mu
        radius = np.linalg.norm(orthogonal, axis=1)
        small = 0.5 * radius**2 / (1 + np.abs(x @ mu))
        cosine = x @ mu
        below = np.exp(reference.log_tail(small, False, cosine < 0, d, k))
        assert stats.kstest(below, "uniform").pvalue > 1e-4
        basis = np.linalg.svd(np.eye(d) - np.outer(mu, mu))[0][:, : d - 1]
        coordinates = (orthogonal / radius[:, None]) @ basis
        if d > 2:
            # The square of one coordinate of a uniform direction has a beta distribution.
            assert stats.kstest(coordinates[:, 0] ** 2, stats.beta(0.5, 0.5 * (d - 2)).cdf).pvalue > 1e-4
            assert abs(np.mean(coordinates[:, 0] * coordinates[:, 1])) < 5 / np.sqrt(size)
        assert np.abs(coordinates.mean(0)).max() < 5 / np.sqrt(size)
        assert abs(stats.spearmanr(below, coordinates[:, 0]).statistic) < 5 / np.sqrt(size)
        assert abs(stats.spearmanr(below, np.abs(coordinates[:, 0])).statistic) < 5 / np.sqrt(size) or d == 2


@pytest.mark.parametrize("d", more(3, 5))
def test_rotation_equivariance(d):
    """The second moments rotate with the mean direction, which may also point along the first axis."""
    for mu in (direction(d), np.eye(d, dtype=np.float32)[0], -np.eye(d, dtype=np.float32)[0]):
        x = np.asarray(sample_von_mises_fisher(KEY, mu, 4.0, (2**15,), method="direct"), float)
        second = x.T @ x / len(x)
        ww = np.mean((x @ mu) ** 2)
        expected = ww * np.outer(mu, mu) + (1 - ww) / (d - 1) * (np.eye(d) - np.outer(mu, mu))
        np.testing.assert_allclose(second, expected, atol=5 / np.sqrt(len(x)))


def test_high_concentrations_keep_their_digits():
    """Concentrated directions have distinct polar angles of scale 1 / sqrt(k); infinite k gives a point mass."""
    draw = jax.jit(lambda k: sample_von_mises_fisher(KEY, jnp.eye(3)[2], k, (100_000,)))
    for k in (1e5, 1e7, 1e18, 1e25):
        x = np.asarray(draw(jnp.float32(k)), float)
        angle = np.hypot(x[:, 0], x[:, 1])
        assert len(np.unique(angle.astype(np.float32))) > 90_000
        assert np.mean(angle**2) * k == pytest.approx(2, rel=0.02)
    assert equal(draw(jnp.float32(np.inf)), np.tile(np.eye(3)[2], (100_000, 1)))


@pytest.mark.parametrize("d", [*more(4), *slow(5, 2)])
def test_methods_agree(d):
    for k in (0.0, 1.0, 1e6):
        table, direct = (
            np.asarray(sample_von_mises_fisher(KEY, direction(d), np.float32(k), (4000,), method=method))
            for method in ("table", "direct")
        )
        np.testing.assert_allclose(table, direct, atol=4e-6)


@pytest.mark.parametrize("d", [*more(3), *slow(6)])
def test_float64(d):
    with jax.enable_x64(True):
        x = np.asarray(sample_von_mises_fisher(KEY, direction(d).astype(np.float64), 5.0, (4000,)))
        assert x.dtype == np.float64
    mu = direction(d).astype(float)
    mu /= np.linalg.norm(mu)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-13)
    small = 0.5 * (1 - np.abs(x @ mu))
    below = np.exp(reference.log_tail(small, False, x @ mu < 0, d, 5.0))
    assert stats.kstest(below, "uniform").pvalue > 1e-4


@pytest.mark.more
def test_short_floats_are_rounded_once():
    x = sample_von_mises_fisher(KEY, direction(3), 2.5, (100,))
    assert equal(sample_von_mises_fisher(KEY, direction(3), 2.5, (100,), "bfloat16"), x.astype("bfloat16"))


# ------------------------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize(
    ("d", "dtype"),
    [*more((3, "float32")), *slow((2, "float64"), (4, "float32"), (3, "float64"), (16, "float32"))],
)
def test_a_single_direction(d, dtype):
    """A single direction equals the first of several up to rounding, and has finite derivatives.

    XLA compiles its program differently.
    """
    with jax.enable_x64(dtype == "float64"):
        draw = functools.partial(sample_von_mises_fisher, KEY, jnp.eye(d, dtype=dtype)[0], dtype=dtype, method="direct")
        several = draw(3.0, (3,))
        for shape in ((), (1,)):
            np.testing.assert_allclose(draw(3.0, shape).reshape(d), several[0], atol=1e-6)
            assert np.isfinite(jax.jacfwd(lambda k, shape=shape: draw(k, shape))(jnp.asarray(3.0, dtype))).all()


@pytest.mark.slow
def test_derivatives_are_finite_and_along_the_sphere():
    d = 5
    x = functools.partial(sample_von_mises_fisher, KEY, shape=(200,), method="direct")

    @jax.jit
    def slopes(mu, k):
        by_mean = jax.jvp(lambda mu: x(mu, k), (mu,), (jnp.arange(d, dtype=jnp.float32),))
        return by_mean, jax.jvp(lambda k: x(mu, k), (k,), (jnp.ones_like(k),))[1]

    for mu in (jnp.eye(d)[0], -jnp.eye(d)[0], jnp.asarray(direction(d))):
        for k in (0.0, 3.0, 1e7, 1e20, jnp.inf):
            (value, by_mean), by_kappa = slopes(mu, jnp.float32(k))
            for tangent in (by_mean, by_kappa):
                assert jnp.isfinite(tangent).all()
                np.testing.assert_allclose(jnp.sum(value * tangent, -1), 0, atol=2e-5)


@pytest.mark.slow
def test_second_derivative():
    """The second derivative of the mean cosine agrees with a central difference of its first derivative."""
    draw = functools.partial(sample_von_mises_fisher, KEY, jnp.eye(5)[0], shape=(2**12,), method="direct")
    first = jax.grad(lambda k: jnp.mean(draw(k)[:, 0]))
    steps = [float(jax.jit(first)(jnp.float32(2 + h))) for h in (-0.05, 0.05)]
    second = float(jax.jit(jax.grad(first))(jnp.float32(2)))
    assert second == pytest.approx((steps[1] - steps[0]) / 0.1, rel=2e-3)


# ------------------------------------------------------------------------------------------------ arguments


def test_shapes_broadcast():
    mus = jnp.stack([jnp.eye(3)[0], jnp.eye(3)[1]])
    for kappa, shape in ((2.0, (2, 3)), (jnp.ones((4, 1)), (4, 2, 3))):
        assert jax.eval_shape(lambda kappa=kappa: sample_von_mises_fisher(KEY, mus, kappa)).shape == shape
    one, seven = (sample_von_mises_fisher(KEY, scale * jnp.eye(3)[0], 2.0, 8) for scale in (1, 7))
    assert one.shape == (8, 3)
    np.testing.assert_allclose(seven, one)


@pytest.mark.parametrize("d", [3, *more(2, 4)])
def test_invalid_values_affect_only_their_own_element(d):
    mus = np.tile(direction(d), (6, 1))
    mus[1], mus[3, 0] = 0, np.nan
    kappa = np.float32([1, 1, -1, 1, np.nan, 1])
    invalid = np.isnan(sample_von_mises_fisher(KEY, mus, kappa)).all(-1)
    assert invalid.tolist() == [False, True, True, True, True, False]


def test_invalid_arguments_raise():
    for mu in (1.0, [1.0], np.zeros((3, 1)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match=r"sample_von_mises_fisher: mean_direction .* 2 or more"):
            sample_von_mises_fisher(KEY, mu, 1.0)
    with pytest.raises(ValueError, match="method"):
        sample_von_mises_fisher(KEY, [1.0, 0.0, 0.0], np.ones(3), method="table")
    with pytest.raises(ValueError, match="broadcast"):
        sample_von_mises_fisher(KEY, np.ones((4, 3)), np.ones(3))
    with pytest.raises(ValueError, match="reach beyond"):
        block_of(KEY, [1.0, 0.0, 0.0], 1.0, 2**63 - 1, (2,))
    assert block_of(KEY, [1.0, 0.0, 0.0], 1.0, 2**63 - 2, (2,)).shape == (2, 3)

"""Test the families that are made of others, and that every family has slices, batches and files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import special

import jax_von_mises as jvm
from jax_von_mises import (
    CosineBivariateVonMises,
    Mixture,
    SineBivariateVonMises,
    SineSkewed,
    Torus,
    VonMises,
    VonMisesFisher,
)
from jax_von_mises.rotations import IsotropicGaussianSO3
from jax_von_mises.sampling import counter, mixture, request
from jax_von_mises.streams.stream import Stream
from tests import children
from tests.streams.test_writer import Stop, stop_after

slow = pytest.mark.slow


def bimodal(x, k):
    return k * jnp.cos(2 * x)


DENSITY = jvm.CircularDistribution(bimodal, 3.0)
# Distributions whose draws are the same in every shape, and a method with which they are.
DISTRIBUTIONS = {
    "VonMises": (VonMises(0.5, 4.0), "direct"),
    "VonMisesFisher": (VonMisesFisher([0.0, 0.0, 1.0], 5.0), "direct"),
    "SineBivariateVonMises": (SineBivariateVonMises(0.0, 1.0, 5.0, 6.0, 3.0), "direct"),
    "CosineBivariateVonMises": (CosineBivariateVonMises(0.0, 1.0, 5.0, 6.0, 3.0), "direct"),
    "Torus": (Torus(VonMises([0.0, 1.0, 2.0], 4.0)), "direct"),
    "WrappedCauchy": (jvm.WrappedCauchy(0.5, 0.7), "direct"),
    "Cardioid": (jvm.Cardioid(0.5, 0.4), "direct"),
    "WrappedNormal": (jvm.WrappedNormal(0.5, 0.8), "direct"),
    "Density": (DENSITY, "table"),
    "Mixture": (Mixture(probs=[0.3, 0.7], components=VonMises([-1.0, 2.0], [5.0, 20.0])), "direct"),
    "Mixture of tori": (
        Mixture(probs=[0.3, 0.7], components=Torus(VonMises([[0.0, 1.0], [2.0, 3.0]], 9.0))),
        "direct",
    ),
    "Mixture of pairs": (
        Mixture(probs=[0.3, 0.7], components=SineBivariateVonMises([0.0, 2.0], 1.0, 5.0, 6.0, [3.0, -2.0])),
        "direct",
    ),
    "SineSkewed": (SineSkewed(VonMises(0.5, 4.0), -0.8), "direct"),
    "SineSkewed density": (SineSkewed(DENSITY, 0.5), "table"),
    "SineSkewed mixture": (
        SineSkewed(Mixture(probs=[0.5, 0.5], components=VonMises([-1.0, 1.0], 4.0)), 0.5),
        "direct",
    ),
    "VonMises natural": (VonMises.from_natural([1.0, 2.0]), "direct"),
    "IsotropicGaussianSO3": (IsotropicGaussianSO3([1.0, 0.0, 0.0, 0.0], 0.5), "direct"),
}
# Angles that are made of others, and directions, are in `make test`.
FIRST = ("Mixture", "VonMisesFisher")
each = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FIRST else pytest.mark.more) for n in DISTRIBUTIONS]
)


def assert_same(found, expected, name):
    """Assert equal bits; for rotations, the rounding between shapes that the page of guarantees allows."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if name == "IsotropicGaussianSO3" else 0)


@each
def test_slices_batches_and_files(name, key, tmp_path):
    """A slice, the batches of a stream and a file that was interrupted hold the same draws as one call."""
    distribution, method = DISTRIBUTIONS[name]
    whole = np.asarray(distribution.sample(key, (12, 5), method=method)).reshape(60, *distribution.event_shape)
    assert_same(distribution.sample(key, (7,), start=31, method=method), whole[31:38], name)
    options = dict(distribution=distribution, method=method)
    for donate in (False, True):
        batches = jvm.sample_batches(key, total=20, batch_size=8, start=3, donate=donate, **options)
        assert_same(np.concatenate([np.array(batch) for batch in batches]), whole[3:23], name)
    out = tmp_path / "draws.npy"
    with pytest.raises(Stop):
        jvm.write_samples(out, key, total=30, block_rows=8, progress=stop_after(2), **options)
    assert jvm.write_samples(out, key, total=30, block_rows=8, resume=True, **options)[3:] == (2, 2, True)
    assert_same(np.load(out), whole[:30], name)
    # A process that knows only the identity of the stream draws blocks again.
    assert len(jvm.verify_samples(out)["redrawn"]) == 3
    with pytest.raises(ValueError, match="holds another stream: key"):
        jvm.write_samples(out, jax.random.key(0), total=30, resume=True, **options)


@pytest.mark.parametrize("name", ["Mixture", pytest.param("SineSkewed density", marks=slow)])
def test_automatic_meshes(name, key):
    """Each device draws its part, and the draws are those of one device up to rounding."""
    distribution, _ = DISTRIBUTIONS[name]
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    x = distribution.sample(key, (16,), out_sharding=sharding)
    assert x.sharding.is_equivalent_to(sharding, x.ndim)
    np.testing.assert_allclose(x, distribution.sample(key, (16,)), atol=2e-6)


def test_refusals(key):
    mixed, _ = DISTRIBUTIONS["Mixture"]
    with pytest.raises(ValueError, match=r"Mixture\.sample: method='table' is not one of 'auto', 'direct'\."):
        mixed.sample(key, method="table")
    with pytest.raises(ValueError, match=r"CircularDistribution\.sample: method='direct' is not one of"):
        DENSITY.sample(key, method="direct")
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="over which angles cannot be sharded"):
        mixed.sample(key, (4,), out_sharding=NamedSharding(mesh, PartitionSpec("x")))
    with pytest.raises(TypeError, match="give the parameters once"):
        jvm.sample_batches(key, 0.0, 1.0, 10, 5, distribution=mixed)
    with pytest.raises(ValueError, match="distribution=3 is not one of"):
        jvm.sample_batches(key, 0.0, 1.0, 10, 5, distribution=3)
    with pytest.raises(ValueError, match=r"stream's 2\^64 numbers \(each angle takes 2\)"):
        mixed.sample(key, (4,), start=2**63)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_words_choose_components_exactly(count):
    """The words are shared out as the weights say, to one in 2^32; a weight of 0 has no word."""
    weights = np.random.default_rng(count).dirichlet(np.full(count, 0.4)).astype(np.float32)
    weights[-1] = 0 if count > 1 else 1
    weights /= weights.sum()
    largest = int(weights.argmax())
    shares = np.floor(np.where(np.arange(count) == largest, 0, weights).astype(np.float64) * 2**32)
    ends = np.cumsum(shares).astype(np.int64)
    # The words at each end of a component's share, which follow those of the components before it.
    words = np.unique(np.concatenate([[0, 2**32 - 1], ends, ends - 1]).clip(0, 2**32 - 1))
    expected = np.searchsorted(ends, words, side="right")
    expected = np.where(expected == count, largest, expected)
    found = mixture.chosen(jnp.asarray(words.astype(np.uint32)), jnp.asarray(weights))
    np.testing.assert_array_equal(found, expected)
    assert not (weights[np.asarray(found)] == 0).any()


def test_mixture_layout(key):
    """A draw of a mixture of angles takes two words: the first chooses, and the second is that of the angle."""
    distribution = Mixture(probs=[0.25, 0.75], components=VonMises([-1.0, 2.0], [5.0, 20.0]))
    words = np.asarray(counter.words(key, (400,), 1)[0]).reshape(200, 2)
    angles = np.asarray([VonMises(loc, k).sample(key, (400,)) for loc, k in ((-1.0, 5.0), (2.0, 20.0))])[:, 1::2]
    expected = np.where(words[:, 0] < 2**30, angles[0], angles[1])
    np.testing.assert_array_equal(distribution.sample(key, (200,)), expected)


RESOLVE = """
import json, sys
from jax_von_mises.streams.stream import Stream
for text in sys.argv[1:]:
    identity = json.loads(text)
    stream = Stream.from_identity("test", identity)
    assert stream.identity() == identity, identity
print(len(sys.argv) - 1)
"""


def test_identities_in_a_new_process(key):
    """A process that has only imported the package finds every family by its name, those made of others too."""
    streams = [Stream.of("test", key, None, None, None, method, one) for one, method in DISTRIBUTIONS.values()]
    identities = [stream.identity() for stream in streams]
    plain = {name for name in request.FAMILIES if not name.startswith(tuple(request.MADE_OF))}
    assert plain == plain & {identity["distribution"] for identity in identities}
    assert children.run(RESOLVE, *map(json.dumps, identities)) == [str(len(identities))]
    with pytest.raises(ValueError, match="this version of jax_von_mises has no distribution 'cubic'"):
        request.family_named("cubic")


def test_angles_before_the_reflection(key):
    """Those of a skewed mixture are the mixture's, whose draws take two numbers each."""
    mixed = Mixture(probs=[0.5, 0.5], components=VonMises([-1.0, 1.5], [40.0, 4.0]))
    x, centre = np.asarray(mixed.sample(key, (500,))), float(mixed.mean())
    skewed = np.asarray(SineSkewed(mixed, 0.5).sample(key, (500,)))
    away = np.abs(np.angle(np.exp(1j * (x - centre))))
    np.testing.assert_allclose(np.abs(np.angle(np.exp(1j * (skewed - centre)))), away, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [2, 30, 1000])
def test_probabilities_of_components(count, dtype):
    """They differ from the weights, computed in float64, by no more than the page of guarantees says."""
    logits = np.random.default_rng(count).normal(size=(8, count)) * np.array([[0.3], [1], [4], [8]] * 2) + 300
    logits = logits.astype(dtype)
    exact = special.softmax(logits.astype(np.float64), -1)
    rows, largest = np.arange(8), exact.argmax(-1)

    @jax.jit
    def rank(word, weights):
        """Return the position of the component that each word chooses, where the most likely one comes last."""
        found = jax.vmap(mixture.chosen)(word, weights)
        return jnp.where(found == largest[:, None].astype(np.int32), count, found)

    with jax.enable_x64(dtype == np.float64):
        weights = jax.jit(mixture.weights_of)(logits)
        # Find the first word of a later component by bisection.
        first, last = np.zeros((8, count), np.int64), np.full((8, count), 2**32)
        while (first < last).any():
            middle = np.minimum((first + last) // 2, 2**32 - 1)
            later = np.asarray(rank(middle.astype(np.uint32), weights)) > np.arange(count)
            first, last = np.where(later, first, np.minimum(middle + 1, last)), np.where(later, middle, last)
    found = np.diff(first, prepend=0) / 2**32
    found[rows, largest] = 1 - first[:, -1] / 2**32
    limit = np.full_like(exact, 2.0**-32)
    limit[rows, largest] *= count
    assert (np.abs(found - exact) <= limit + (5e-7 if dtype == np.float32 else 1e-14)).all()

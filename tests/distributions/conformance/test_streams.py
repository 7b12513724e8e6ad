"""Test that batches, files and shardings of each distribution hold the draws of one call."""

import json

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from jax_von_mises.engine import request
from jax_von_mises.streams.stream import Stream
from tests import children
from tests.distributions.conformance.cases import LIGHT, marked
from tests.distributions.conformance.examples import EXAMPLES
from tests.streams.test_writer import Stop, stop_after

QUICK = "Mixture VonMises", "VonMisesFisher"


def assert_equal(name, found, expected):
    """Angles have the same bits in every shape; points have the same digits but for the last."""
    rounding = 2e-6 if EXAMPLES[name].make(**EXAMPLES[name].one()).event_shape else 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)


@pytest.mark.parametrize("name", marked(QUICK, LIGHT - {"IsotropicGaussianSO3"} | {"SineBivariateVonMises"}))
def test_batches_and_files(name, key, tmp_path):
    """A slice, the batches of a stream and a file hold the same draws as one call; workers know the stream by name."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    method = "direct" if "direct" in one._drawn_by()[0].methods else "table"
    whole = np.asarray(one.sample(key, (16, 2), method=method)).reshape(32, *one.event_shape)
    assert_equal(name, one.sample(key, (8,), start=11, method=method), whole[11:19])
    options = dict(distribution=one, method=method)
    for donate in (False, True):
        batches = jvm.sample_batches(key, total=24, batch_size=8, start=3, donate=donate, **options)
        assert_equal(name, np.concatenate([np.array(batch) for batch in batches]), whole[3:27])
    out = tmp_path / "draws.npy"
    with pytest.raises(Stop):
        jvm.write_samples(out, key, total=32, block_rows=8, progress=stop_after(2), **options)
    assert jvm.write_samples(out, key, total=32, block_rows=8, resume=True, **options)[3:] == (2, 2, True)
    assert_equal(name, np.load(out), whole)
    # This draws blocks again, of the stream that the file names.
    assert jvm.verify_samples(out)["redrawn"]
    with pytest.raises(ValueError, match="holds another stream: key"):
        jvm.write_samples(out, jax.random.key(0), total=32, resume=True, **options)


@pytest.mark.parametrize("name", marked((), LIGHT))
def test_shardings(name, key):
    """Each device draws its part, and the draws are those of one device up to rounding."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    x = one.sample(key, (16,), out_sharding=sharding)
    assert x.sharding.is_equivalent_to(sharding, x.ndim)
    np.testing.assert_allclose(x, one.sample(key, (16,)), atol=2e-6)


RESOLVE = """
import json, sys
from jax_von_mises.streams.stream import Stream
for text in sys.argv[1:]:
    identity = json.loads(text)
    stream = Stream.from_identity("test", identity)
    assert stream.identity() == identity, identity
print(len(sys.argv) - 1)
"""


@pytest.mark.more
def test_identities_in_a_new_process(key):
    """A process that has only imported the package finds every family by its name, those made of others too."""
    made = (example.make(**example.one()) for example in EXAMPLES.values())
    identities = [Stream.of("test", key, None, None, None, "auto", one).identity() for one in made]
    plain = {name for name in request.FAMILIES if not name.startswith(tuple(request.MADE_OF))}
    assert plain == plain & {identity["distribution"] for identity in identities}
    assert children.run(RESOLVE, *map(json.dumps, identities)) == [str(len(identities))]
    with pytest.raises(ValueError, match="this version of jax_von_mises has no distribution 'cubic'"):
        request.family_named("cubic")

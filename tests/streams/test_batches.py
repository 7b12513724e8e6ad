"""Test that batches of any size form the same stream, and that the thread of `prefetch_to_host` always ends."""

import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_von_mises
from jax_von_mises.streams import batches
from tests import children

KEY = jax.random.key(3)


def collect(iterator):
    return np.concatenate([np.array(batch) for batch in iterator])


@pytest.fixture(scope="module")
def stream():
    return np.asarray(jax_von_mises.sample_von_mises(KEY, 0.5, 4.0, (2_500,), method="table"))


@pytest.mark.parametrize(("batch_size", "donate"), [(400, True), (400, False), (10_000, True)])
def test_stream_does_not_depend_on_the_batch(stream, batch_size, donate):
    """Batches are slices of the stream, and those that are not donated stay."""
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, batch_size, donate=donate)
    assert len(iterator) == -(-2_500 // batch_size)
    np.testing.assert_array_equal(collect(iterator if donate else list(iterator)), stream)
    assert len(iterator) == 0
    assert next(iterator, None) is None


def test_start_continues_the_stream(stream):
    np.testing.assert_array_equal(
        collect(jax_von_mises.sample_batches(KEY, 0.5, 4.0, 1_600, 400, start=900)), stream[900:]
    )


@pytest.mark.more
def test_rows_of_arrays_and_wide_floats():
    """Rows with a concentration for each column equal those of one float64 call, even if another thread draws them."""
    concentration = np.array([0.1, 3.0, 50.0])
    with jax.enable_x64(True):
        expected = np.asarray(jax_von_mises.sample_von_mises(KEY, 0.0, concentration, (50, 3), "float64"))
        iterator = jax_von_mises.sample_batches(KEY, 0.0, concentration, 50, 20, "float64")
    drawn = np.concatenate(list(jax_von_mises.prefetch_to_host(iterator)))
    assert drawn.dtype == np.float64
    np.testing.assert_array_equal(drawn, expected)


def test_nothing_to_draw():
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 0, 10)
    assert len(iterator) == 0
    assert list(iterator) == []


def test_donation_reuses_two_buffers():
    """Donated batches use two addresses; the previous batch is deleted, but a view of it keeps its values."""
    size = 2**12
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 8 * size, size, donate=True)
    addresses, previous = set(), None
    for batch in iterator:
        batch.block_until_ready()
        addresses.add(batch.unsafe_buffer_pointer())
        if previous is not None and len(iterator):
            with pytest.raises(RuntimeError, match="deleted"):
                np.asarray(previous)
        previous = batch
    assert len(addresses) == 2
    held = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 3 * size, size, donate=True)
    view = np.asarray(next(held))
    copy = view.copy()
    for batch in held:
        batch.block_until_ready()
    np.testing.assert_array_equal(view, copy)


def test_batches_may_be_deleted_by_the_caller():
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 1_600, 400, donate=True)
    assert [batch.delete() for batch in iterator] == [None] * 4


def test_one_program_serves_all_batches():
    from jax_von_mises.engine import request

    jax.clear_caches()
    list(jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_345, 100))
    assert request.program._cache_size() == 1


def test_next_batch_is_already_started():
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 30, 10)
    next(iterator)
    assert iterator._pending is not None
    iterator.close()
    assert list(iterator) == []


def test_sharded_batches(stream):
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_400, 400, out_sharding=DEVICES, donate=True)
    drawn = []
    for batch in iterator:
        assert batch.sharding.is_equivalent_to(DEVICES, 1)
        drawn.append(np.array(batch))
    np.testing.assert_array_equal(np.concatenate(drawn), stream[:2_400])


def test_end_of_the_stream():
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 20, 10, start=2**64 - 40)
    assert collect(iterator).shape == (20,)


DEVICES = NamedSharding(Mesh(np.array(jax.devices()[:4]), "d"), PartitionSpec("d"))
NONE = dict(loc=None, concentration=None)
DIRECTIONS = NONE | dict(distribution=jax_von_mises.VonMisesFisher([0.6, 0.0, -0.8], 4.0))
PAIRS = NONE | dict(distribution=jax_von_mises.SineBivariateVonMises(0.0, 0.0, 5.0, 6.0, -7.0))
COMPONENTS = NamedSharding(DEVICES.mesh, PartitionSpec(None, "d"))
EXPLICIT = NamedSharding(
    jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4]), PartitionSpec("d")
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(total=2**63), "must be at least 0 and below 2"),
        (dict(start=2**64 - 5), "beyond the stream's 2"),
        (DIRECTIONS | dict(start=2**63 - 5), r"2\^64 numbers \(each direction takes 2\)"),
        (PAIRS | dict(start=2**63 - 5), r"2\^64 numbers \(each pair takes 2\)"),
        (dict(batch_size=2**61, total=2**61), "more than any memory holds"),
        (DIRECTIONS | dict(out_sharding=COMPONENTS), r"sample_batches: out_sharding=.* shards the components"),
        (PAIRS | dict(out_sharding=EXPLICIT), "a mesh with explicit axes, over which pairs cannot be sharded"),
        (DIRECTIONS | dict(loc=0.5), "give the parameters once"),
        (dict(distribution="von-mises-fisher"), "'von-mises-fisher' must be a distribution of this package"),
    ],
)
def test_invalid_arguments_raise_at_once(change, message):
    arguments = dict(key=KEY, loc=0.5, concentration=4.0, total=10, batch_size=5) | change
    with pytest.raises((TypeError, ValueError), match=message):
        jax_von_mises.sample_batches(**arguments)


def test_interrupt_between_two_batches(stream, monkeypatch):
    """An interrupt between two batches loses no batch and repeats none."""
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, 400)
    draw, calls = batches.SampleBatches._draw, []

    def interrupted(self, place):
        calls.append(place)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(self, place)

    monkeypatch.setattr(batches.SampleBatches, "_draw", interrupted)
    drawn = [np.array(next(iterator)), np.array(next(iterator))]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    drawn += [np.array(batch) for batch in iterator]
    np.testing.assert_array_equal(np.concatenate(drawn), stream)


def test_threads_share_an_iterator(stream):
    """Each batch goes to exactly one of the threads."""
    iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, 10)
    drawn = []

    def consume():
        drawn.extend(float(batch[0]) for batch in iterator)

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
    assert sorted(drawn) == sorted(map(float, stream[::10]))


@pytest.mark.more
def test_explicit_mesh(stream):
    """The stream is the same on a mesh with explicit axes, even if the last batch is shorter."""
    with jax.set_mesh(EXPLICIT.mesh):
        iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_488, 400, out_sharding=PartitionSpec("d"))
    np.testing.assert_array_equal(np.concatenate(list(jax_von_mises.prefetch_to_host(iterator))), stream[:2_488])


# batched_apply

SHARED = np.ones(10, np.float32)


def test_apply_with_ragged_ends():
    for total in (0, 1, 9, 10, 11, 20, 29):
        x = np.linspace(-3, 3, total, dtype=np.float32)
        result = jax_von_mises.batched_apply(jnp.square, x, 10)
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, np.square(x))


def test_apply_to_trees_and_into_memory_maps(tmp_path):
    arrays = {"x": np.arange(1_003, dtype=np.int32), "k": np.ones((1_003, 2), np.float32)}
    np.save(tmp_path / "x.npy", arrays["x"])
    arrays["x"] = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = (
        np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.int32, (1_003,)),
        np.lib.format.open_memmap(tmp_path / "b.npy", "w+", np.float32, (1_003, 2)),
    )
    result = jax_von_mises.batched_apply(lambda tree: (tree["x"] + 1, tree["k"] * 2), arrays, 100, out=out)
    assert result is out
    np.testing.assert_array_equal(out[0], np.arange(1, 1_004))
    np.testing.assert_array_equal(out[1], 2)


def test_apply_compiles_once():
    traces = []

    def f(x):
        traces.append(x.shape)
        return x * 2

    jax_von_mises.batched_apply(f, np.ones(1_005, np.float32), 10)
    assert traces == [(10,)]


def test_apply_passes_errors_on():
    def f(x):
        raise ZeroDivisionError("in f")

    with pytest.raises(ZeroDivisionError, match="in f"):
        jax_von_mises.batched_apply(f, np.ones(10), 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(arrays=np.float32(1)), "must share the length"),
        (dict(arrays=(np.ones(3), np.ones(4))), r"\(3,\), \(4,\)"),
        (dict(arrays=()), "the shapes none"),
        (dict(f=jnp.sum), r"returned an array of shape \(\) for 5 rows"),
        (dict(out=np.ones(9, np.float32)), r"out has shape \(9,\)"),
        (dict(out=np.ones(10, np.float16)), "float16; give NumPy arrays"),
        (dict(out=[np.ones(10, np.float32)]), "out has the structure"),
        (dict(arrays=SHARED, out=SHARED[::-1]), "out shares memory with the arrays"),
    ],
)
def test_apply_refuses(change, message):
    arguments = dict(f=lambda x: x, arrays=np.ones(10, np.float32), batch_size=5) | change
    with pytest.raises(ValueError, match=message):
        jax_von_mises.batched_apply(**arguments)


# prefetch_to_host


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch_to_host")]


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Source:
    """An iterator that records how far it was advanced and whether it was closed."""

    def __init__(self, items, error=None):
        self.items, self.error, self.given, self.closed = items, error, 0, False

    def __iter__(self):
        return self

    def __next__(self):
        if self.given == self.items:
            raise self.error or StopIteration
        self.given += 1
        return {"x": jnp.full(3, self.given), "n": self.given}

    def close(self):
        """Record the call."""
        self.closed = True


def test_prefetch_gives_numpy_in_order():
    source = Source(7)
    items = list(jax_von_mises.prefetch_to_host(source))
    assert all(isinstance(item["x"], np.ndarray) for item in items)
    assert [int(item["x"][0]) for item in items] == [item["n"] for item in items] == list(range(1, 8))
    assert source.closed
    assert not threads()


def test_prefetch_of_batches(stream):
    for donate in (False, True):
        iterator = jax_von_mises.sample_batches(KEY, 0.5, 4.0, 2_500, 400, donate=donate)
        np.testing.assert_array_equal(np.concatenate(list(jax_von_mises.prefetch_to_host(iterator))), stream)


@pytest.mark.parametrize("depth", [1, 3])
def test_prefetch_runs_ahead_by_its_depth(depth):
    """The thread pauses when `depth` items are waiting and it holds one more."""
    source = Source(100)
    host = jax_von_mises.prefetch_to_host(source, depth)
    for taken in (1, 2):
        next(host)
        wait_for(lambda taken=taken: source.given == taken + depth + 1)
        time.sleep(0.05)
        assert source.given == taken + depth + 1
    host.close()


def test_prefetch_passes_errors_after_earlier_items():
    source = Source(2, ZeroDivisionError("late"))
    host = jax_von_mises.prefetch_to_host(source)
    assert [next(host)["n"], next(host)["n"]] == [1, 2]
    with pytest.raises(ZeroDivisionError, match="late"):
        next(host)
    assert next(host, None) is None
    assert source.closed
    assert not threads()


def test_prefetch_closes_early():
    """A generator that is closed, or left with its loop, ends its thread and its source."""
    for taken in (1, 5):
        source = Source(10**9)
        host = jax_von_mises.prefetch_to_host(source)
        for _ in range(taken):
            next(host)
        host.close()
        host.close()
        assert source.closed
        assert not threads()
        assert next(host, None) is None
    source = Source(10**9)
    for item in jax_von_mises.prefetch_to_host(source):
        if item["n"] == 3:
            break
    gc.collect()
    assert source.closed
    assert not threads()


EXIT = """
import jax, jax_von_mises as jvm
host = jvm.prefetch_to_host(jvm.sample_batches(jax.random.key(0), 0.0, 4.0, 10**9, 2**18))
print(next(host).shape)
"""


def test_a_program_ends_before_its_prefetched_items():
    assert children.run(EXIT) == ["(262144,)"]

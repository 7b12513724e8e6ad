"""Draw streams, apply functions to long arrays, and copy arrays to the host, batch by batch in constant memory.

The device and the host work at the same time, since the next batch is started before the current one is returned. JAX's
asynchronous dispatch suffices for computations; only copies to the host need a thread.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.base import Distribution
from jax_von_mises.streams.stream import Spans, Stream


def sample_batches(
    key: ArrayLike,
    loc: ArrayLike | None = None,
    concentration: ArrayLike | None = None,
    total: int | None = None,
    batch_size: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    start: int = 0,
    method: str = "auto",
    donate: bool = False,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    distribution: Distribution | None = None,
) -> "SampleBatches":
    """Draw a long stream of angles, directions or pairs, batch by batch, in constant memory.

    The concatenated batches are the rows `start` to ``start + total - 1`` of the key's stream, for any `batch_size`.
    Row i of the stream is ``sample_von_mises(key, loc, concentration, (i + 1, *row_shape))[i]`` with the same method.
    The next batch is drawn while the caller works on the current one.

    Parameters
    ----------
    key, loc, concentration, dtype
        As in `sample_block`. The shape of a row is the broadcast shape of `loc` and `concentration`, () if both are
        numbers.
    total : int
        Number of rows to draw, 0 or more.
    batch_size : int
        Number of rows per batch; the last batch may be shorter.
    start : int
        Index of the first row in the stream, to continue where another run stopped. A stream has 2^64 numbers.
    method : {"auto", "direct", "table"}
        "auto" uses the table for a single concentration, whatever the batch size, so that all batches agree.
    donate : bool
        Reuse the memory of the batch before last for the next one. A batch is then valid only until the next one is
        requested (later use raises RuntimeError, "Array has been deleted"). The complete run needs two buffers, and is
        faster where allocation is slow, as it is for large batches on a CPU.
    out_sharding : optional
        Sharding of each batch ``(count, *row_shape)`` over devices, as in `sample_von_mises`. In an explicit mesh,
        `batch_size` and `total` must be multiples of the number of devices along a sharded first axis.
    distribution : optional
        Any distribution of this package, such as a `VonMisesFisher` or a `Mixture`, in place of `loc` and
        `concentration`. Row i, of shape ``batch_shape + event_shape``, then has index i of its ``sample(key, shape)``.

    Returns
    -------
    SampleBatches
        An iterator over arrays ``(rows, *row_shape)`` of angles in radians in [-pi, pi), or of unit vectors. Its `len`
        is the number of remaining batches. Several threads may iterate over it; each batch goes to one of them.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, before anything is drawn.

    Examples
    --------
    >>> import jax
    >>> batches = sample_batches(jax.random.key(0), 0.0, 4.0, total=2_500, batch_size=1_000)
    >>> [len(batch) for batch in batches]
    [1000, 1000, 500]
    """
    caller = "sample_batches"
    stream = Stream.of(caller, key, loc, concentration, dtype, method, distribution)
    total = arguments.whole_number(caller, "total", total, 0)
    batch_size = arguments.whole_number(caller, "batch_size", batch_size, 1)
    start = arguments.whole_number(caller, "start", start, 0, 2**64)
    arguments.whole_sizes(caller, "shape", (min(batch_size, total), *stream.row_shape))
    end = start + total
    # A shorter last batch is cut from one of full size.
    stream.within(caller, start, end + batch_size, f"total={total}")
    donate = arguments.flag(caller, "donate", donate)
    out_sharding = arguments.sharding(caller, out_sharding)
    stream.row.at(0, shape=(batch_size, *stream.row.shape)).sharded(caller, out_sharding)
    return SampleBatches(stream, Spans(start, end, batch_size), min(batch_size, total), donate, out_sharding)


class SampleBatches(Iterator[jax.Array]):
    """Iterator over the batches of a stream, returned by `sample_batches`."""

    def __init__(
        self,
        stream: Stream,
        spans: Spans | Sequence[tuple[int, int]],
        rows: int,
        donate: bool = False,
        out_sharding: NamedSharding | None = None,
    ):
        self._stream, self._spans = stream, spans
        self._donate, self._out_sharding = donate, out_sharding
        self._rows = rows  # all batches are drawn at this size and the last one is cut, so that one program suffices
        self._place = 0  # index of the batch that is returned next
        self._pending: tuple[int, jax.Array] | None = None  # place and array of the batch in progress
        self._lent: jax.Array | None = None  # the batch that the caller has, if its memory is donated
        self._turn = threading.Lock()
        # Arrays on an explicit mesh must be made within its scope, and a background thread starts without a mesh.
        self._mesh: Mesh | None = None
        if out_sharding is not None and AxisType.Explicit in out_sharding.mesh.axis_types:
            self._mesh = out_sharding.mesh if isinstance(out_sharding.mesh, Mesh) else jax.sharding.get_mesh()

    def __len__(self) -> int:
        return len(self._spans) - self._place

    def __iter__(self) -> "SampleBatches":
        return self

    def __next__(self) -> jax.Array:
        with self._turn:
            return self._advance()

    def _advance(self) -> jax.Array:
        if self._place == len(self._spans):
            self._pending = self._lent = None
            raise StopIteration
        # An interrupt can stop this method between any two lines, so the batch in progress is stored with its place.
        if self._pending is None or self._pending[0] != self._place:
            self._pending = self._place, self._draw(self._place)
        _, current = self._pending
        following = None
        if self._place + 1 < len(self._spans):
            following = self._place + 1, self._draw(self._place + 1)
        self._place, self._pending = self._place + 1, following
        self._lent = current if self._donate else None
        rows = self._spans[self._place - 1][1]
        return current if len(current) == rows else lax.slice_in_dim(current, 0, rows)

    def start(self) -> jax.Array:
        """Start the next batch and no other; return its array, which may still be in progress."""
        with self._turn:
            self._pending = self._place, self._draw(self._place)
            return self._pending[1]

    def close(self) -> None:
        """Stop, and wait for the batch in progress; the interpreter must not exit before the threads that draw it."""
        with self._turn:
            pending, self._pending, self._lent = self._pending, None, None
            self._place = len(self._spans)
        if pending is not None:
            jax.block_until_ready(pending[1])

    def _draw(self, place: int) -> jax.Array:
        first, rows = self._spans[place]
        if self._out_sharding is None:
            rows = self._rows  # the last one is cut to size
        # Donate the caller's previous batch, unless the caller has deleted it.
        buffer, self._lent = self._lent, None
        if buffer is not None and (buffer.is_deleted() or len(buffer) != rows):
            buffer = None
        with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            return self._stream.rows(first, rows, buffer, self._out_sharding)


def batched_apply(f: Callable[..., Any], arrays: Any, batch_size: int, *, out: Any = None) -> Any:
    """Apply a function to long arrays in batches, so that the device holds only a few batches at a time.

    Equivalent to ``jax.tree.map(numpy.asarray, f(arrays))`` for a function that treats each row separately. The next
    batch is transferred and computed while the result of the previous one is copied back.

    Parameters
    ----------
    f : callable
        Function that maps a batch of `arrays` to an array, or a pytree of arrays, with the same number of rows. Row i
        of the result must depend only on row i of `arrays`, since a shorter last batch is extended by the rows before
        it. The function is compiled once, by `jax.jit`.
    arrays : array or pytree of arrays
        Arrays whose first axes have the same length. NumPy arrays and memory maps are read in batches.
    batch_size : int
        Number of rows per batch.
    out : optional
        NumPy arrays (such as memory maps) that receive the result, in the structure of the result. They must not share
        memory with `arrays`. By default, new arrays are allocated.

    Returns
    -------
    numpy.ndarray or pytree of numpy.ndarray
        The results of all rows; `out` if it was given.

    Raises
    ------
    TypeError, ValueError
        For arrays of different lengths, a result without an axis of rows, or an `out` that does not match the result.
        Exceptions raised by `f` are passed on.

    Examples
    --------
    >>> import numpy as np
    >>> from jax_von_mises import log_prob
    >>> angles = np.linspace(-3, 3, 1_000_001, dtype=np.float32)
    >>> batched_apply(lambda x: log_prob(x, 0.0, 4.0), angles, 100_000).shape
    (1000001,)
    """
    caller = "batched_apply"
    batch_size = arguments.whole_number(caller, "batch_size", batch_size, 1)
    if not callable(f):
        raise TypeError(f"{caller}: f={arguments.safe_repr(f)} must be a function of the arrays.")
    _structure(caller, "arrays", arrays)
    leaves = jax.tree.leaves(arrays)
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(np.shape(leaf)) for leaf in leaves) or "none"
        raise ValueError(
            f"{caller}: arrays must share the length of their first axis, the rows; got the shapes {shapes}. "
            "Bind arguments that are the same for all rows to f with functools.partial."
        )
    (total,) = (np.shape(leaf)[0] for leaf in leaves[:1])
    rows = min(batch_size, total)
    compiled = jax.jit(f)

    def start(first: int) -> Any:
        return compiled(jax.tree.map(lambda leaf: arguments.native(leaf[first : first + rows]), arrays))

    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (rows, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(arguments.native(leaf[:0]).dtype)
        ),
        arrays,
    )
    results = jax.eval_shape(compiled, template)
    for result in jax.tree.leaves(results):
        if result.shape[:1] != (rows,):
            raise ValueError(
                f"{caller}: f returned an array of shape {result.shape} for {rows} rows; the first axis must be the "
                "rows. Reduce the result of all rows afterwards."
            )
    if out is None:
        out = jax.tree.map(lambda result: np.empty((total, *result.shape[1:]), result.dtype), results)
    else:
        _check_out(caller, out, results, total, leaves)
    # The last batch has full size and begins earlier, so that only one shape is compiled.
    firsts = [min(first, total - rows) for first in range(0, total, batch_size)]
    pending: tuple[int, Any] | None = None
    for first in firsts:
        following = first, start(first)
        if pending is not None:
            _store(out, *pending, rows)
        pending = following
    if pending is not None:
        _store(out, *pending, rows)
    return out


def _store(out: Any, first: int, values: Any, rows: int) -> None:
    """Copy the result of one batch to its rows of `out`."""

    def store(target: np.ndarray, value: jax.Array) -> None:
        target[first : first + rows] = np.asarray(value)

    jax.tree.map(store, out, values)


def _structure(caller: str, name: str, tree: Any) -> Any:
    """Return the structure of a pytree."""
    try:
        return jax.tree.structure(tree)
    except (SystemError, RecursionError) as error:  # JAX recurses into the tree
        raise ValueError(
            f"{caller}: {name} is nested too deeply. Give an array, or a pytree with few levels."
        ) from error


def _check_out(caller: str, out: Any, results: Any, total: int, leaves: Sequence[Any]) -> None:
    """Refuse an `out` that does not match the results in structure, shape and dtype, or shares memory with `leaves`."""
    given, wanted = _structure(caller, "out", out), jax.tree.structure(results)
    if given != wanted:
        raise ValueError(
            f"{caller}: out has the structure {arguments.safe_repr(given)}, but f returns "
            f"{arguments.safe_repr(wanted)}. Give arrays in that structure."
        )
    for target, result in zip(jax.tree.leaves(out), jax.tree.leaves(results), strict=True):
        shape = (total, *result.shape[1:])
        if not isinstance(target, np.ndarray) or target.shape != shape or target.dtype != result.dtype:
            have = f"shape {np.shape(target)} and dtype {getattr(target, 'dtype', type(target).__name__)}"
            raise ValueError(f"{caller}: out has {have}; give NumPy arrays of shape {shape} and dtype {result.dtype}.")
        if any(isinstance(leaf, np.ndarray) and np.may_share_memory(target, leaf) for leaf in leaves):
            raise ValueError(
                f"{caller}: out shares memory with the arrays, which are read while out is written. Give other arrays."
            )


def prefetch_to_host(iterator: Iterable[Any], depth: int = 1) -> Generator[Any, None, None]:
    """Copy the items of an iterator to NumPy arrays in the background, ahead of the consumer.

    Parameters
    ----------
    iterator : iterable
        Iterable of arrays, or of pytrees of arrays. It is advanced in a separate thread, so it must not be used
        elsewhere. Settings that JAX keeps per thread (the contexts ``jax.set_mesh``, ``jax.enable_x64``,
        ``jax.default_device``) do not apply there. `sample_batches` does not need them, since it stores the mesh and
        the dtype, and draws on the device of the key.
    depth : int
        Maximum number of waiting items, 1 or more. At most ``depth`` + 2 items are in memory: those that wait, the one
        that is being copied and the one that the consumer has. The source may hold more, as `sample_batches` does with
        the batch in progress. A depth of 1 lets both sides work at the same time; a larger depth evens out irregular
        work.

    Returns
    -------
    generator
        The same items, with read-only NumPy arrays in place of JAX's (not copied if the device is the CPU). The first
        ``next`` starts the thread. The end of the items or of the loop, an error, or ``close()`` waits for the item
        that is being copied, and ends the thread; then the source is closed, if it has ``close()``. If the source
        raises an exception, ``next`` raises it after all earlier items.

    Raises
    ------
    TypeError, ValueError
        For an invalid `depth`, or an `iterator` that cannot be iterated.

    Examples
    --------
    >>> import jax
    >>> batches = sample_batches(jax.random.key(0), 0.0, 4.0, total=3_000, batch_size=1_000)
    >>> sum(float(x.sum()) > 0 for x in prefetch_to_host(batches)) <= 3
    True
    """
    caller = "prefetch_to_host"
    depth = arguments.whole_number(caller, "depth", depth, 1)
    try:
        source = iter(iterator)
    except TypeError as error:
        raise TypeError(
            f"{caller}: iterator={arguments.safe_repr(iterator)} cannot be iterated. Give an iterable of arrays."
        ) from error
    return _host_copies(source, depth)


def _host_copies(source: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """Yield host copies of the items of `source`, made in one thread."""
    end = object()

    def copied() -> Any:
        value = next(source, end)
        # Start the copies of all arrays of an item; the next line then only waits.
        jax.tree.map(lambda leaf: leaf.copy_to_host_async() if isinstance(leaf, jax.Array) else None, value)
        return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)

    thread = futures.ThreadPoolExecutor(1, "prefetch_to_host")
    try:
        waiting = collections.deque(thread.submit(copied) for _ in range(depth + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(copied))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
        getattr(source, "close", lambda: None)()

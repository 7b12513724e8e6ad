"""Long work in batches of constant memory: draws, functions over long arrays, and copies to the host.

Each keeps the device and the host busy at the same time: what comes next is started before what is there is handed
over. JAX's dispatch does that without threads for computations; only copies to the host need a thread.
"""

import contextlib
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.streams import executors
from jax_von_mises.streams.stream import Spans, Stream


def sample_batches(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    total: int,
    batch_size: int,
    dtype: DTypeLike | None = None,
    *,
    start: int = 0,
    method: str = "auto",
    donate: bool = False,
    out_sharding: NamedSharding | PartitionSpec | None = None,
    executor: Executor | None = None,
    distribution: str = "von-mises",
) -> "SampleBatches | WorkerBatches":
    """Draw a long stream of angles, directions or pairs, batch by batch, in constant memory.

    The batches, one after the other, are the rows `start` to ``start + total - 1`` of the key's stream, whatever
    `batch_size` is: row i is ``sample_von_mises(key, loc, concentration, (i + 1, *row_shape))[i]`` with the same
    method. The next batch is under way while the caller works on this one.

    Parameters
    ----------
    key, loc, concentration, dtype
        As in `sample_von_mises`. Their broadcast shape, () for two numbers, is the shape of a row. For directions as in
        `sample_von_mises_fisher`, with its `mean_direction` for `loc`: a row then has a last axis for the components.
        For pairs, `loc` holds phi_loc and psi_loc along a last axis, and `concentration` phi_concentration,
        psi_concentration and correlation, as in `SineBivariateVonMises`; a row has a last axis for the two angles.
    total : int
        Rows to draw, 0 or more.
    batch_size : int
        Rows in a batch; the last may be shorter.
    start : int
        Position of the first row, to go on where another run stopped. The stream has 2^64 angles.
    method : {"auto", "direct", "table"}
        "auto" takes the table for one concentration, whatever the size: all batches agree.
    donate : bool
        Give the memory of the batch before last to the next one. A batch is then valid only until the next is asked
        for (using it later raises RuntimeError, "Array has been deleted"), two buffers serve the whole run, and
        where allocating costs time, as it does for large batches on a CPU, drawing is faster.
    out_sharding : optional
        Sharding of each batch ``(count, *row_shape)`` over devices, as in `sample_von_mises`. In an explicit mesh,
        `batch_size` and `total` must be multiples of the devices along a sharded first axis.
    executor : concurrent.futures.Executor, optional
        Draws the batches in its workers, as in `write_samples`, without CUDA kernels; some more than there are workers
        are under way, or wait. They come as NumPy arrays, so `donate` and `out_sharding` have no use with it.
    distribution : {"von-mises", "von-mises-fisher", "sine-bivariate-von-mises", "cosine-bivariate-von-mises"}
        What is drawn: angles, directions or pairs of angles.

    Returns
    -------
    SampleBatches
        An iterator over arrays ``(rows, *row_shape)`` of angles in radians in [-pi, pi), or of unit vectors; `len` is
        the number of batches still to come. Several threads may ask for batches: each batch goes to one of them.

    Raises
    ------
    TypeError, ValueError
        For a bad argument, at once.

    Examples
    --------
    >>> import jax
    >>> batches = sample_batches(jax.random.key(0), 0.0, 4.0, total=2_500, batch_size=1_000)
    >>> [len(batch) for batch in batches]
    [1000, 1000, 500]
    """
    caller = "sample_batches"
    executor = executors.checked_executor(caller, executor)
    engine = "xla" if executor else None
    stream = Stream.of(caller, key, loc, concentration, dtype, method, distribution, engine)
    total = arguments.whole_number(caller, "total", total, 0)
    batch_size = arguments.whole_number(caller, "batch_size", batch_size, 1)
    start = arguments.whole_number(caller, "start", start, 0, 2**64)
    arguments.result_shape(caller, (min(batch_size, total), *stream.row_shape))
    end = start + total
    # A last batch that is short is cut from a whole one.
    stream.within(caller, start, end + batch_size, f"total={total}")
    donate = arguments.flag(caller, "donate", donate)
    out_sharding = arguments.sharding(caller, out_sharding)
    stream.row.at(0, shape=(batch_size, *stream.row.shape)).sharded(caller, out_sharding)
    if executor is None:
        return SampleBatches(stream, Spans(start, end, batch_size), min(batch_size, total), donate, out_sharding)
    if donate or out_sharding is not None:
        raise ValueError(
            f"{caller}: donate and out_sharding are for batches of this process; leave them out with an executor."
        )
    return WorkerBatches(caller, stream, Spans(start, end, batch_size), executor)


class SampleBatches(Iterator):
    """Iterator over the batches of a stream, made by `sample_batches`."""

    def __init__(self, stream, spans, rows, donate=False, out_sharding=None):
        self._stream, self._spans = stream, spans
        self._donate, self._out_sharding = donate, out_sharding
        self._rows = rows  # every batch is drawn at this size, and the last cut, so that one program serves all
        self._place = 0  # of the batch that is handed over next
        self._pending = None  # place and array of the batch under way
        self._lent = None
        self._turn = threading.Lock()
        # A mesh of explicit axes must be in scope where its arrays are made; the background thread has no scope.
        self._mesh = None
        if out_sharding is not None and AxisType.Explicit in out_sharding.mesh.axis_types:
            self._mesh = out_sharding.mesh if isinstance(out_sharding.mesh, Mesh) else jax.sharding.get_mesh()

    def __len__(self):
        return len(self._spans) - self._place

    def __iter__(self):
        return self

    def __next__(self):
        with self._turn:
            return self._advance()

    def _advance(self):
        if self._place == len(self._spans):
            self._pending = self._lent = None
            raise StopIteration
        # An interrupt may have come between any two of these lines, so what is under way has its place with it.
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

    def start(self):
        """Begin with the batch that is handed over next, and nothing else; its array, which may not be drawn yet."""
        with self._turn:
            self._pending = self._place, self._draw(self._place)
            return self._pending[1]

    def close(self):
        """Stop: wait for what is under way, since the interpreter must not end below the threads that draw it."""
        with self._turn:
            pending, self._pending, self._lent = self._pending, None, None
            self._place = len(self._spans)
        if pending is not None:
            jax.block_until_ready(pending[1])

    def _draw(self, place):
        first, rows = self._spans[place]
        if self._out_sharding is None:
            rows = self._rows  # the last one is cut to size
        # The batch that the caller had before is given up; the caller may have deleted it himself.
        buffer, self._lent = self._lent, None
        if buffer is not None and (buffer.is_deleted() or len(buffer) != rows):
            buffer = None
        with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            return self._stream.rows(first, rows, buffer, self._out_sharding)


class WorkerBatches(Iterator):
    """Iterator over the batches of a stream that the workers of an executor draw, made by `sample_batches`."""

    def __init__(self, caller, stream, spans, executor):
        self._crew = executors.Crew(caller, executor, None)
        self._stream, self._spans = stream, spans
        self._place = 0
        self._answers: Iterator | None = None

    def __len__(self):
        return len(self._spans) - self._place

    def __iter__(self):
        return self

    def __next__(self):
        if self._place == len(self._spans):
            raise StopIteration
        if self._answers is None:
            self._crew.meet()
            spans = self._spans
            job = self._crew.job(self._stream, None, spans.firsts.start, spans.stop, spans.firsts.step)
            self._crew.brief(job)
            self._answers = self._crew.draw(job, len(spans))
        rows = next(self._answers)
        self._place += 1
        return rows

    def close(self):
        """Stop: call back what has not begun."""
        self._place = len(self._spans)
        self._crew.stop(patient=False)


def batched_apply(f: Callable[..., Any], arrays: Any, batch_size: int, *, out: Any = None) -> Any:
    """Apply a function to long arrays, some rows at a time, so that the device holds few of them.

    Equivalent to ``jax.tree.map(numpy.asarray, f(arrays))`` for a function that treats each row for itself. The next
    batch is on its way to the device, and computed, while the last is copied back.

    Parameters
    ----------
    f : callable
        Takes what `arrays` is, with fewer rows, and returns arrays (any pytree of them) with as many rows as it was
        given. Row i of the result must depend on row i of `arrays` alone: where the last batch would be ragged, it is
        filled up with rows from before it. Compiled once, by `jax.jit`.
    arrays : array or pytree of arrays
        With one common length of the first axis; NumPy arrays and memory maps are read in batches.
    batch_size : int
        Rows in a batch.
    out : optional
        Arrays to write the result to (memory maps, say), in the structure of the result; not the memory of `arrays`.
        Made anew by default.

    Returns
    -------
    numpy.ndarray or pytree of them
        The results of all rows; `out` if it was given.

    Raises
    ------
    TypeError, ValueError
        For arrays of different lengths, a result without an axis of rows, or an `out` that does not fit. What `f`
        raises is passed on.

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
            "Bind what is the same for all rows to f with functools.partial."
        )
    (total,) = (np.shape(leaf)[0] for leaf in leaves[:1])
    rows = min(batch_size, total)
    compiled = jax.jit(f)

    def start(first):
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
                f"{caller}: f gave an array of shape {result.shape} for {rows} rows; the first axis must be the rows. "
                "Reduce the result of all rows afterwards."
            )
    if out is None:
        out = jax.tree.map(lambda result: np.empty((total, *result.shape[1:]), result.dtype), results)
    else:
        _check_out(caller, out, results, total, leaves)
    # The last batch is a whole one that begins earlier, so that one shape is compiled.
    firsts = [min(first, total - rows) for first in range(0, total, batch_size)]
    pending = None
    for first in firsts:
        following = first, start(first)
        if pending is not None:
            _store(out, *pending, rows)
        pending = following
    if pending is not None:
        _store(out, *pending, rows)
    return out


def _store(out, first, values, rows):
    """Copy the result of one batch to its rows of `out`."""

    def store(target, value):
        target[first : first + rows] = np.asarray(value)

    jax.tree.map(store, out, values)


def _structure(caller, name, tree):
    """The structure of a pytree."""
    try:
        return jax.tree.structure(tree)
    except (SystemError, RecursionError) as error:  # JAX goes down by calling itself
        raise ValueError(f"{caller}: {name} is nested too deeply. Give an array, or a pytree of few levels.") from error


def _check_out(caller, out, results, total, leaves):
    """Refuse an `out` that does not have the structure, shapes and dtypes of the results, or lies in the arrays."""
    given, wanted = _structure(caller, "out", out), jax.tree.structure(results)
    if given != wanted:
        raise ValueError(
            f"{caller}: out has the structure {arguments.safe_repr(given)}, but f gives {arguments.safe_repr(wanted)}."
        )
    for target, result in zip(jax.tree.leaves(out), jax.tree.leaves(results), strict=True):
        shape = (total, *result.shape[1:])
        if not isinstance(target, np.ndarray) or target.shape != shape or target.dtype != result.dtype:
            have = f"shape {np.shape(target)} and dtype {getattr(target, 'dtype', type(target).__name__)}"
            raise ValueError(f"{caller}: out has {have}; make NumPy arrays of shape {shape} and {result.dtype}.")
        if any(isinstance(leaf, np.ndarray) and np.may_share_memory(target, leaf) for leaf in leaves):
            raise ValueError(f"{caller}: out shares memory with the arrays, which are read while it is written.")


def prefetch_to_host(iterator: Iterable[Any], depth: int = 1) -> "HostPrefetch":
    """Copy what an iterator gives to NumPy in the background, some items ahead of the consumer.

    Parameters
    ----------
    iterator : iterable
        Of arrays, or pytrees of them. It is advanced in a thread of its own, so it must not be used elsewhere; what
        JAX keeps for each thread (``jax.set_mesh``, ``jax.enable_x64``, ``jax.default_device`` as a context) is not
        set there. `sample_batches` needs none of it: it remembers the mesh and the dtype, and a key that was put on a
        device is drawn with there.
    depth : int
        Items that may wait, 1 or more. In memory are at most ``depth`` + 2 at a time: these, the one that is being
        copied and the one the consumer has; and what the source holds, for `sample_batches` the batch under way. With
        one that waits the two sides already work at the same time; more make up for uneven work.

    Returns
    -------
    HostPrefetch
        An iterator over the same items with NumPy arrays in place of JAX's; read-only, and without a copy where the
        device is the CPU. It is a context manager, and has ``close()``: stop early, and wait for the thread to end.
        An iterator that is forgotten or left at exit closes itself. What the source raises is raised by the
        consumer's ``next``, after the items before it. The source is closed too, if it has ``close()``.

    Raises
    ------
    TypeError, ValueError
        For a bad `depth`, or something that cannot be iterated.

    Examples
    --------
    >>> import jax
    >>> batches = sample_batches(jax.random.key(0), 0.0, 4.0, total=3_000, batch_size=1_000)
    >>> with prefetch_to_host(batches) as host:
    ...     sum(float(x.sum()) > 0 for x in host) <= 3
    True
    """
    caller = "prefetch_to_host"
    depth = arguments.whole_number(caller, "depth", depth, 1)
    try:
        source = iter(iterator)
    except TypeError as error:
        raise TypeError(f"{caller}: iterator={arguments.safe_repr(iterator)} cannot be iterated.") from error
    return HostPrefetch(source, depth)


class HostPrefetch(Iterator):
    """Iterator over host copies, made by `prefetch_to_host`."""

    def __init__(self, source, depth):
        self._items: queue.Queue = queue.Queue(depth)
        self._ended = False
        stop = threading.Event()
        # The thread must not hold `self`, or a forgotten iterator would live as long as its thread.
        thread = threading.Thread(
            target=_copy_items, args=(source, self._items, stop), name="prefetch_to_host", daemon=True
        )
        # Runs once: by close(), when the iterator is forgotten, or when the interpreter ends.
        self._finish = weakref.finalize(self, _stop_copying, thread, stop)
        thread.start()

    def __iter__(self):
        return self

    def __next__(self):
        while not self._ended and self._finish.alive:
            try:
                item, error = self._items.get(timeout=STOP_POLL)
            except queue.Empty:
                continue  # look again: another thread may have closed this
            if item is not _END:
                return item
            self._ended = True
            self._finish()
            if error is not None:
                raise error
        raise StopIteration

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Stop copying, drop what waits, and wait for the thread to end. Further `next` raise StopIteration."""
        self._finish()


_END = object()
# Seconds between two looks at whether the other side has stopped; nothing waits for them in normal work.
STOP_POLL = 0.05
# Seconds that closing waits for a source which does not give its next item.
CLOSE_TIMEOUT = 30.0


def _copy_items(source, items, stop):
    """Body of the thread: items as (value, None), then (_END, the error or None)."""
    error = None
    try:
        for value in source:
            if stop.is_set():
                break
            # All copies of an item at once; the loop below then only waits.
            jax.tree.map(lambda leaf: leaf.copy_to_host_async() if isinstance(leaf, jax.Array) else None, value)
            copied = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)
            del value
            _put_unless_stopped(items, (copied, None), stop)
            del copied
            if stop.is_set():
                break
    except BaseException as raised:
        error = raised
    finally:
        try:
            getattr(source, "close", lambda: None)()
        except BaseException as raised:
            error = error or raised
    _put_unless_stopped(items, (_END, error), stop)


def _put_unless_stopped(items, item, stop):
    """Wait for room, unless nobody will make any."""
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            return items.put(item, timeout=STOP_POLL)


def _stop_copying(thread, stop):
    """End the thread, which may be waiting for room. A source that hangs is left to itself: the thread is a daemon."""
    stop.set()
    if thread is threading.current_thread():
        return  # the garbage collector may run anywhere; the thread sees the word by itself
    deadline = time.monotonic() + CLOSE_TIMEOUT
    while thread.is_alive():
        thread.join(timeout=STOP_POLL)
        if time.monotonic() > deadline:
            warnings.warn(
                f"prefetch_to_host: the source gave no item for {CLOSE_TIMEOUT:g} s; its thread is left behind.",
                RuntimeWarning,
                stacklevel=2,
            )
            return

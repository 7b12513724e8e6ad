"""Streams: which counters of a key a piece of work draws from.

A **stream** is the endless sequence of angles of one (key, loc, concentration, dtype): a row for each position, and in
a row an angle for each element of the broadcast of `loc` and `concentration` (one, where both are numbers). Angle
``j`` of row ``i`` is element ``i * width + j`` of the key's sequence of words. Where directions are drawn, `loc` holds
mean directions, and a row has a vector for each. Positions have 64 bits, and nothing else enters: so batches, devices,
processes and restarts share a stream by sharing out its rows, under one key, and the result does not depend on how they
were shared out.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jax_von_mises import arguments
from jax_von_mises.sampling import counter, sampler
from jax_von_mises.sampling.request import Request


class Description(NamedTuple):
    """A stream in plain values, which can be sent to another process and need no device before they are used."""

    implementation: str
    """Of the key."""
    key_data: np.ndarray
    parameters: tuple[np.ndarray, ...]
    dtype: str
    method: str
    distribution: str
    engine: str | None

    def stream(self, caller):
        """The stream."""
        with jax.enable_x64(True) if self.dtype == "float64" else contextlib.nullcontext():
            key = jax.random.wrap_key_data(self.key_data, impl=self.implementation)
            return Stream.of(caller, key, *self.parameters, self.dtype, self.method, self.distribution, self.engine)


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One stream of rows. Make it by `Stream.of`, which checks."""

    row: Request
    """Its first row."""
    engine: str | None = None
    """What draws it, as `DrawRequest.engine` names it; None for what that chooses."""

    @classmethod
    def of(cls, caller, key, loc, concentration, dtype, method, distribution="von-mises", engine=None):
        """The stream of these arguments, which are those of `sample_block`."""
        request = sampler.family_of(caller, distribution).request
        return cls(request.part(caller, key, loc, concentration, None, dtype, method), engine)

    @property
    def row_shape(self):
        """Shape of a row."""
        return *self.row.shape, *self.row.event_shape

    @property
    def dtype(self):
        """Dtype of the numbers."""
        return self.row.dtype

    @property
    def width(self):
        """Numbers in a row: angles, or components of directions."""
        return math.prod(self.row_shape)

    def within(self, caller, start, end, described):
        """Refuse the rows from `start` to `end`, as `described`, if they go on where the stream has ended."""
        self.row.within_stream(caller, start, end * max(math.prod(self.row.shape), 1), described)

    def rows(self, first, count, buffer=None, out_sharding=None):
        """Rows `first` to ``first + count - 1``, ``(count, *row_shape)``; they may take the memory of `buffer`.

        Computed with 64 bits where the stream is float64, wherever this is called: a background thread starts in
        JAX's default mode.
        """
        # Put there, and not left for the call to send: a user may have forbidden hidden transfers.
        start = jax.device_put(counter.halves(first * math.prod(self.row.shape)))
        request = self.row.at(start, shape=(count, *self.row.shape), out_sharding=out_sharding)
        with jax.enable_x64(True) if self.dtype == np.float64 else contextlib.nullcontext():
            return sampler.FAMILIES[self.row.distribution].draw(request, buffer, self.engine)

    def description(self):
        """The stream for another process, which makes of it one of equal `identity`."""
        row = self.row
        return Description(
            str(jax.random.key_impl(row.key)),
            np.asarray(jax.random.key_data(row.key)),
            tuple(map(np.asarray, row.parameters.values())),
            self.dtype.name,
            row.route,
            row.distribution,
            self.engine,
        )

    def identity(self):
        """What decides the numbers, as JSON takes it: equal for equal streams, readable where it is short."""
        # As version 0.1 wrote it, which knew one distribution alone.
        named = {} if self.row.distribution == "von-mises" else {"distribution": self.row.distribution}
        return {
            **named,
            "key": {
                "impl": str(jax.random.key_impl(self.row.key)),
                "data": np.asarray(jax.random.key_data(self.row.key)).tolist(),
            },
            **{name: _parameter_identity(value, self.dtype) for name, value in self.row.parameters.items()},
            "dtype": self.dtype.name,
            "method": self.row.route,
        }


# Arrays of parameters up to so many values are written out, longer ones by their hash.
WRITTEN_OUT = 32


def _parameter_identity(value, dtype):
    """A parameter as it enters the computation: a float's shortest text, or shape and values or hash of an array."""
    with np.errstate(over="ignore"):  # too large is infinite, as in the computation
        value = np.ascontiguousarray(np.asarray(value), arguments.compute_dtype(dtype)) + 0  # + 0: no negative zero
    if value.size == 1:
        return str(float(value.reshape(())))
    if value.size <= WRITTEN_OUT:
        return {"shape": list(value.shape), "values": [str(float(x)) for x in value.flat]}
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {"shape": list(value.shape), "sha256": hashlib.sha256(little.tobytes()).hexdigest()}


def split_evenly(count: int, parts: int, part: int) -> range:
    """Which of `count` consecutive pieces of work part `part` of `parts` does: a range, all as long to within one."""
    return range(part * count // parts, (part + 1) * count // parts)


class Spans(Sequence):
    """First position and length of each batch of `size` in [start, stop); the last may be shorter.

    Computed when asked for: there may be billions.
    """

    def __init__(self, start, stop, size):
        self.firsts, self.stop = range(start, stop, size), stop

    def __len__(self):
        return len(self.firsts)

    def __getitem__(self, index):
        first = self.firsts[index]
        return first, min(self.firsts.step, self.stop - first)

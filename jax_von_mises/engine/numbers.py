"""Find the numbers of each draw in a key's stream of words.

Number j of a stream is word j (float32), or words 2 j and 2 j + 1 (float64). Draw i of a family that uses n numbers per
draw has the numbers n i to n i + n - 1.
"""

import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_von_mises.engine import counter


class Numbers(NamedTuple):
    """The numbers of a batch of draws; a call computes the words of some of them."""

    key: jax.Array
    """One typed key."""
    start: counter.Wide | None
    """Position of the first draw; None for 0."""
    shape: tuple[int, ...]
    """Shape of the batch."""
    per_draw: int
    """How many numbers each draw uses."""
    width: int
    """Words in a number, 1 or 2."""
    sharding: NamedSharding | None = None
    """Sharding of the draws on a mesh with explicit axes; those after the batch belong to a draw."""
    passed: int = 0
    """How many numbers at the beginning of each draw are used elsewhere."""

    def __call__(self, first: int, count: int | None = None) -> counter.Words:
        """Return the words of number `first` of each draw, or of `count` numbers from there on, along a last axis."""
        return self._words(self._positions(first, count), self.width)

    def both(self) -> tuple[counter.Words, counter.Words]:
        """Return the words of numbers 0 and 1 of each draw."""
        if self.per_draw == 2 and self.width == 1:
            # One block of the generator holds both numbers.
            first, second = self._words(counter.indices(self.shape, self.start, self.of_batch), 2)
            return (first,), (second,)
        return self(0), self(1)

    def after(self, count: int) -> Self:
        """Return the numbers of each draw without the first `count`."""
        return self._replace(passed=self.passed + count)

    def in_second_stream(self) -> Self:
        """Return one number of one word for each draw, in a stream of its own."""
        return self._replace(key=jax.random.fold_in(self.key, 1), per_draw=1, width=1, passed=0)

    @property
    def of_batch(self) -> NamedSharding | None:
        """Sharding of the batch, without the axes of a draw."""
        if self.sharding is None:
            return None
        return NamedSharding(self.sharding.mesh, PartitionSpec(*self.sharding.spec[: len(self.shape)]))

    def _words(self, index: counter.Wide, width: int) -> counter.Words:
        generator, key = counter.key_words(self.key)
        return counter.block_words(generator, key, index, width)

    def _positions(self, first: int, count: int | None) -> counter.Wide:
        full = self.shape if count is None else (*self.shape, count)
        place: Any = np.uint32(self.passed + first)
        if count is not None:
            place = place + lax.broadcasted_iota(jnp.uint32, full, len(self.shape), out_sharding=self.sharding)
        hi, lo = counter.indices(self.shape, self.start, self.of_batch)
        if count is not None:
            lo, hi = (
                lax.broadcast_in_dim(x, full, range(len(self.shape)), out_sharding=self.sharding) if x.ndim else x
                for x in (lo, hi)
            )
        if self.start is None and math.prod(self.shape) * self.per_draw <= counter.UINT32_SPAN:
            return hi, lo * np.uint32(self.per_draw) + place
        high, low = counter.multiply_wide(lo, self.per_draw)
        return counter.add_wide((high + hi * np.uint32(self.per_draw), low), (np.uint32(0), place))

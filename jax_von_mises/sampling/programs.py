"""Compile the program of a draw in two forms: one that allocates its result, and one that reuses an array's memory."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax


class Programs(NamedTuple):
    """The two forms of a program."""

    new: jax.stages.Wrapped
    into: jax.stages.Wrapped
    """The program with an additional first argument, the array to reuse."""

    @classmethod
    def of(cls, program: Callable[..., jax.Array], **options: Any) -> Self:
        """Apply `jax.jit` with these options to both forms of ``program(request)``."""

        def into(buffer: jax.Array, request: Any) -> jax.Array:
            return program(request)

        return cls(jax.jit(program, **options), jax.jit(into, donate_argnums=0, keep_unused=True, **options))

    def run(self, request: Any, buffer: jax.Array | None) -> jax.Array:
        """Draw `request`, in the memory of `buffer` if that is given."""
        drawn: jax.Array = self.new(request) if buffer is None else self.into(buffer, request)
        return drawn

"""Compile the program that draws a request, once with a result in new memory and once in memory that is given up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Programs(NamedTuple):
    """A program compiled in two ways."""

    new: jax.stages.Wrapped
    into: jax.stages.Wrapped
    """With a first argument more: an array like the result, whose memory it takes."""

    @classmethod
    def of(cls, program: Callable[..., jax.Array], **options: Any) -> "Programs":
        """Compile ``program(request, **static)``, with options of `jax.jit`."""

        def into(buffer: jax.Array, request: Any, **static: Any) -> jax.Array:
            return program(request, **static)

        return cls(jax.jit(program, **options), jax.jit(into, donate_argnums=0, keep_unused=True, **options))

    def run(self, request: Any, buffer: jax.Array | None, **static: Any) -> jax.Array:
        """Draw what `request` says; into the memory of `buffer` where that is not None."""
        drawn: jax.Array = self.new(request, **static) if buffer is None else self.into(buffer, request, **static)
        return drawn

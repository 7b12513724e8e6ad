"""Compile the program that draws a request, once with its result in new memory and once in an argument's memory."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax


class Programs(NamedTuple):
    """A program compiled in two ways."""

    new: jax.stages.Wrapped
    into: jax.stages.Wrapped
    """The program with an additional first argument, an array like the result, whose memory the result reuses."""

    @classmethod
    def of(cls, program: Callable[..., jax.Array], **options: Any) -> Self:
        """Compile ``program(request, **static)``, with options of `jax.jit`."""

        def into(buffer: jax.Array, request: Any, **static: Any) -> jax.Array:
            return program(request, **static)

        return cls(jax.jit(program, **options), jax.jit(into, donate_argnums=0, keep_unused=True, **options))

    def run(self, request: Any, buffer: jax.Array | None, **static: Any) -> jax.Array:
        """Draw `request`, in the memory of `buffer` if that is given."""
        drawn: jax.Array = self.new(request, **static) if buffer is None else self.into(buffer, request, **static)
        return drawn

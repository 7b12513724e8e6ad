"""Draw from any family, from the start of a key's stream or from another position."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.typing import DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.request import Family, Request, draw, program


def sample(
    caller: str,
    family: Family,
    key: object,
    values: Mapping[str, object],
    shape: object,
    dtype: DTypeLike | None,
    start: Any = None,
    method: str = "auto",
    out_sharding: object = None,
) -> jax.Array:
    """Draw from a family, from position `start` of the key's stream if that is given.

    Method "auto" uses the table for one set of parameters and many draws, or any slice.
    """
    request = Request.of(caller, family, key, values, shape, dtype, method, by_size=start is None)
    request = request.sharded(caller, arguments.sharding(caller, out_sharding))
    if start is not None:
        return draw(request.block(caller, arguments.position(caller, start)))
    drawn: jax.Array = program_of(request)(request)
    return drawn


def program_of(request: Request) -> jax.stages.Wrapped:
    """Return the program that draws a whole request: that of `draw`, or a kernel of the family.

    Blocks, batches and files never use kernels, so that their last digits depend only on the backend.
    """
    kernel = request.family.kernel
    return (kernel and kernel(request)) or program

"""Draw from any family, whole or in blocks of a stream."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine.request import Family, Request, draw, program, registered


def sample_block(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    start: ArrayLike | tuple[ArrayLike, ArrayLike],
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    distribution: str = "von-mises",
) -> jax.Array:
    """Draw the angles, directions or pairs ``start`` to ``start + prod(shape) - 1`` of a key's stream.

    The block is a slice of the result of a single call of `sample_von_mises`, `sample_von_mises_fisher` or a bivariate
    distribution's ``sample``. A long stream can thus be drawn in blocks, in any order and on any machine. Blocks of one
    shape share one compiled program.

    Parameters
    ----------
    key, loc, concentration, dtype
        As in `sample_von_mises`; `loc` and `concentration` broadcast to the block. For directions, `loc` is the
        `mean_direction` of `sample_von_mises_fisher`. For pairs, `loc` holds phi_loc and psi_loc along its last axis,
        and `concentration` holds phi_concentration, psi_concentration and correlation, as in `SineBivariateVonMises`.
    start : int, traced integer scalar, or pair of them
        Position of the block's first angle, direction or pair, 0 <= start < 2^64. Inside a traced program, `start` may
        be an int32 or uint32 scalar (int64 or uint64 in 64-bit mode). For positions beyond the range of that dtype,
        give a pair ``(hi, lo)`` of uint32, the upper and the lower half. Traced positions count modulo 2^64.
    shape : int or tuple of ints
        Shape of the block, filled in row-major order.
    method : {"auto", "direct", "table"}
        "auto" uses the table for one concentration, whatever the size of the block, so that all blocks of a stream
        agree.
    distribution : {"von-mises", "von-mises-fisher", "sine-bivariate-von-mises", "cosine-bivariate-von-mises"}
        Distribution of the angles, the directions or the pairs of angles.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), with the accuracy and the derivatives of `sample_von_mises`; or unit vectors of
        shape `shape` + (d,), with those of `sample_von_mises_fisher`; or pairs of angles of shape `shape` + (2,). The
        modules :mod:`jax_von_mises.sphere.draw` and :mod:`jax_von_mises.pairs.draw` state which numbers of
        the stream a direction and a pair use.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, or a block that reaches beyond the end of the stream (unless `start` is traced), before
        anything is computed.
    """
    caller = "sample_block"
    family = family_of(caller, distribution)
    start = arguments.position(caller, start)
    values = family.unpacked(caller, loc, concentration)
    request = Request.of(caller, family, key, values, shape, dtype, method, by_size=False)
    return draw(request.block(caller, start))


def family_of(caller: str, distribution: str) -> Family:
    """Return the family that `sample_block` draws by this name."""
    return registered()[arguments.one_of(caller, "distribution", distribution, names())]


def names() -> tuple[str, ...]:
    """Return the names of the families that `sample_block` draws by their names."""
    return tuple(sorted(name for name, family in registered().items() if family.by_name))


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

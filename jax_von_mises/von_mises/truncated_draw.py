"""Draw angles from the distribution restricted to an arc, without rejection and without unbounded loops.

*Layout of the stream.* Angle i uses number i of the stream (see :mod:`jax_von_mises.engine.numbers`), which gives the
fraction of the arc's probability before the angle.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.compiler import xla
from jax_von_mises.engine import counter, tails
from jax_von_mises.engine.draws import sample
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, Request, placed
from jax_von_mises.numerics.elementary import aligned
from jax_von_mises.von_mises.truncated import good_arc, infinite_if_point, restricted


def sample_truncated(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Draw angles from the von Mises distribution restricted to an arc, without rejection.

    The arc runs counterclockwise from `low` to `high`. It may cross pi, contain the mode or the point opposite to it,
    be as narrow as floats allow, or lie so far out that its probability is below the smallest float.

    Parameters
    ----------
    key : jax.Array
        One random key, as for `sample_von_mises`.
    loc, concentration : float or array
        As for `sample_von_mises`. At concentrations above 1e36 (1e300 in float64), the angle is `loc`, or the nearer
        end of the arc if `loc` is outside.
    low, high : float or array
        Ends of the arc in radians, 0 < high - low <= 2 pi. ``low=3, high=4`` crosses pi.
    shape : int or tuple of ints, optional
        Shape of the result, to which all four parameters broadcast; their broadcast shape by default.
    dtype : optional
        As for `sample_von_mises`. Rounding to bfloat16 or float16 is the last step and may move an angle across an end.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), within the arc.

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape or dtype, or an arc that is empty, longer than a turn (in `dtype`) or not finite. If
        the ends are traced, such an arc gives NaN. An invalid concentration or `loc` always gives NaN.

    Notes
    -----
    *Accuracy.* A random word determines a fraction u of the arc's probability. The fraction before the angle drawn
    differs from u by at most 1e-6 (2e-13 in float64) times the smaller of u and 1 - u, or the angle is within 4 ulp.
    This holds for an arc with the ends low - loc and high - loc, which are rounded by up to 2 ulp. At a large
    concentration, this rounding shifts probability between the ends of an arc that contains loc + pi.

    *Derivatives.* Pathwise derivatives with respect to `loc`, `concentration`, `low` and `high` are exact at the drawn
    angle.

    *Speed.* Two CPU cores draw about 35 million float32 angles per second from a single arc, unless its probability is
    below the smallest float. Such an arc takes five times as long. Arcs that differ between elements take ten times as
    long.

    Examples
    --------
    >>> import jax
    >>> x = sample_truncated(jax.random.key(0), 0.0, 1e4, low=2.0, high=3.0, shape=(1000,))
    >>> bool(((x >= 2) & (x < 2.01)).all())
    True
    """
    caller = "sample_truncated"
    given = {"loc": loc, "concentration": concentration, "low": low, "high": high}
    checked = {name: arguments.parameter(caller, name, value) for name, value in given.items()}
    of_result = arguments.float_dtype(caller, dtype, checked.values())
    check_arc(caller, checked["low"], checked["high"], arguments.compute_dtype(of_result))
    return sample(caller, TRUNCATED, key, checked, shape, dtype)


def check_arc(caller: str, low: ArrayLike, high: ArrayLike, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if `low` and `high` are not traced and are not the ends of an arc."""
    if isinstance(low, jax.core.Tracer) or isinstance(high, jax.core.Tracer):
        return
    arguments.broadcast_shapes(caller, {"low": np.shape(low), "high": np.shape(high)})
    starts, ends = np.broadcast_arrays(*(np.asarray(arguments.with_dtype(x, dtype), dtype) for x in (low, high)))
    bad = ~np.asarray(good_arc(starts, ends, np))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" at index {index}" if index else ""
        raise ValueError(
            f"{caller}: low={starts[index]:.9g} and high={ends[index]:.9g}{where} are not the ends of an arc in "
            f"{dtype}: high - low must be above 0 and at most 2 pi. Add 2 pi to `high` for an arc that crosses pi."
        )


def on_arcs(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return angles, as a family's `place`."""
    return from_words(numbers(0), numbers.shape, *parameters)


def from_words(words: counter.Words, shape: tuple[int, ...], *parameters: jax.Array) -> jax.Array:
    """Return angles from the words of each."""
    loc, kappa, low, high = (aligned(x, len(shape)) for x in parameters)
    given = loc, infinite_if_point(kappa), low, high
    return restricted(*tails.fractions(tails.tail(xla.finish_words(words))), *given)


def drawn_in_rows(request: Request) -> jax.Array:
    """Return the angles of a request; a CPU computes them in rows if that is faster, outside of meshes."""
    if request.out_sharding is not None:
        return placed(request)
    compute = arguments.compute_dtype(request.dtype)
    parameters = [jnp.asarray(x, compute) for x in request.parameters]
    generator, key = counter.key_words(request.key)

    def drawn(shape: tuple[int, ...], stream: tuple[Any, Any], *parameters: jax.Array) -> jax.Array:
        key, start = stream
        index = counter.indices(shape, start)
        return from_words(
            counter.block_words(generator, key, index, tails.words_per_element(compute)), shape, *parameters
        )

    return xla.compute_elementwise(drawn, request.shape, request.dtype, (key, request.start), *parameters)


TRUNCATED = Family(
    name="truncated-von-mises",
    noun="angle",
    parameters={"loc": 0, "concentration": 0, "low": 0, "high": 0},
    place=on_arcs,
    program=drawn_in_rows,
    methods=("auto", "direct"),
)

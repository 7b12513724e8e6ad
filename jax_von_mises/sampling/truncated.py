r"""Draw angles from the distribution restricted to an arc, without rejection and without unbounded loops.

`arc` integrates the density over the arc and inverts the integral.

*Derivatives.* Let :math:`m_1, m_2` be the masses before and after x relative to p(x), and :math:`l_1, l_2` the same
integrals with the factor :math:`\cos\theta - \cos x`. At a fixed fraction of the mass before x,

.. math:: dx = d\mu + \frac{m_1 l_2 - m_2 l_1}{m_1 + m_2} d\kappa + \frac{m_2\, p(low)}{(m_1 + m_2)\, p(x)}
          (dlow - d\mu) + \frac{m_1\, p(high)}{(m_1 + m_2)\, p(x)} (dhigh - d\mu).
"""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.numerics import arc, xla
from jax_von_mises.numerics.arc import (
    LARGEST_RISE,
    back_inside,
    cut,
    from_mode,
    masses_about,
    parts_of,
    rise_between,
    stacked,
)
from jax_von_mises.numerics.circle import TWO_PI, reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.sampling import counter, transform
from jax_von_mises.sampling.variance_reduction import aligned, fractions

# Above this concentration the formulas would overflow; the standard deviation is below 1e-18 or 1e-150 radians.
POINT_MASS = {"float32": 1e36, "float64": 1e300}


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
    key = arguments.one_key(caller, key)
    given = {"loc": loc, "concentration": concentration, "low": low, "high": high}
    arrays, of_result = arguments.parameters(caller, dtype, **given)
    sizes = arguments.result_shape(caller, shape, {name: np.shape(x) for name, x in arrays.items()})
    # As given: those in `arrays` may be on a GPU.
    low, high = (arguments.parameter(caller, name, given[name]) for name in ("low", "high"))
    _check_arc(caller, low, high, arguments.compute_dtype(of_result))
    x: jax.Array = _truncated(key, *arrays.values(), sizes, of_result)
    return x


def _check_arc(caller: str, low: ArrayLike, high: ArrayLike, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if `low` and `high` are not traced and are not the ends of an arc."""
    if isinstance(low, jax.core.Tracer) or isinstance(high, jax.core.Tracer):
        return
    starts, ends = np.broadcast_arrays(np.asarray(low, dtype), np.asarray(high, dtype))
    bad = ~np.asarray(good_arc(starts, ends, np))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" at index {index}" if index else ""
        raise ValueError(
            f"{caller}: low={starts[index]:.9g} and high={ends[index]:.9g}{where} are not the ends of an arc in "
            f"{dtype}: high - low must be above 0 and at most 2 pi. Add 2 pi to `high` for an arc that crosses pi."
        )


def good_arc(low: Any, high: Any, xp: ModuleType = jnp) -> Any:
    """Return whether the ends are finite and 0 < high - low <= 2 pi up to rounding; `xp` is `numpy` or `jax.numpy`."""
    rounding = 2 * float(jnp.finfo(low.dtype).eps) * (xp.abs(low) + xp.abs(high))
    return (high > low) & (high - low <= TWO_PI + rounding) & (xp.abs(low) + xp.abs(high) < xp.inf)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _truncated(
    key: jax.Array,
    loc: jax.Array,
    concentration: jax.Array,
    low: jax.Array,
    high: jax.Array,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> jax.Array:
    compute = arguments.compute_dtype(dtype)
    loc, concentration, *ends = (aligned(a, shape, compute) for a in (loc, concentration, low, high))
    concentration = jnp.where(concentration > POINT_MASS[compute.name], jnp.inf, concentration)
    generator, key = counter.key_words(key)

    def drawn(shape: tuple[int, ...], key: jax.Array, *parameters: jax.Array) -> jax.Array:
        words = counter.block_words(generator, key, counter.indices(shape), transform.words_per_element(compute))
        return restricted(*fractions(transform.tail(xla.finish_words(words))), *parameters)

    return xla.compute_elementwise(drawn, shape, dtype, key, loc, concentration, *ends)


def finite_concentration(kappa: jax.Array) -> jax.Array:
    """Return `kappa` with a finite number in place of infinity, and NaN where it is negative."""
    return jnp.where(kappa == jnp.inf, 1e30, valid(kappa))


@jax.custom_jvp
def restricted(
    before: jax.Array, after: jax.Array, loc: jax.Array, kappa: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    """Return the angle with the fractions `before` and `after` of the arc's probability on its two sides."""
    k = finite_concentration(kappa)
    width = jnp.minimum(high - low, TWO_PI)
    given = before, after, parts_of(stacked(cut(low, high, width, loc)), k).as_one(), k

    def start(*given: Any) -> jax.Array:
        s, covered = arc.common_start(arc.equation(*given))
        # XLA:CPU would compute a second result in a second loop. No offset is negative.
        return jnp.where(covered, s, -1)

    def replaced(s: jax.Array, *given: Any) -> jax.Array:
        return jnp.where(s < 0, arc.rare_start(arc.equation(*given)), s)

    starts = xla.separate_loop(start, *given)
    starts = xla.replace_where_any(starts < 0, replaced, starts, *given)

    def finish(
        start: jax.Array, kappa: jax.Array, low: jax.Array, high: jax.Array, width: jax.Array, *given: Any
    ) -> jax.Array:
        equation = arc.equation(*given)
        piece, s = equation.part.piece, jnp.where(kappa == jnp.inf, 0, arc.improved(equation, start))
        x = back_inside(wrap(piece.side * s, reduce_turns(piece.anchor)), low, high, width)
        return jnp.where(good_arc(low, high), x, jnp.nan)

    return xla.separate_loop(finish, starts, kappa, low, high, width, *given)


@restricted.defjvp
def _restricted_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    _, _, loc, kappa, low, high = primals
    x = restricted(*primals)
    loc, kappa, low, high = (jnp.broadcast_to(a, x.shape) for a in (loc, kappa, low, high))
    k = finite_concentration(kappa)
    (before, after), (weighted_before, weighted_after) = masses_about(low, high, x, loc, k[None, None])
    total = before + after
    before, after = before / total, after / total

    def ratio(end: jax.Array) -> jax.Array:
        """Return p(end) / p(x)."""
        at_end, at_x = (jnp.abs(from_mode(a, loc)) for a in (end, x))
        return jnp.exp(jnp.minimum(rise_between(at_end, at_x, k), LARGEST_RISE))

    of_low, of_high = after * ratio(low), before * ratio(high)
    of_kappa = jnp.where(kappa == jnp.inf, 0, before * weighted_after - after * weighted_before)
    _, _, dloc, dkappa, dlow, dhigh = tangents
    return x, dloc + of_kappa * dkappa + of_low * (dlow - dloc) + of_high * (dhigh - dloc)

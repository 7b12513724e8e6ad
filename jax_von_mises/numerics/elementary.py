"""Compute elementary functions in forms that XLA compiles to one vector loop.

XLA's ``exp2``, ``log2``, ``sin`` and ``cos`` are accurate for all arguments. The functions here cover only the ranges
that the quantile needs, cost half as much on a CPU, and never split a fusion. In float64, `log2` calls XLA's function.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jax_von_mises.compiler import platform, xla
from jax_von_mises.numerics import coefficients

Function = Callable[..., jax.Array]

LOG2_E = float(np.log2(np.e))
LN_2 = float(np.log(2))

# Taylor coefficients, with a truncation error below 1e-17 on [0, pi/2].
SINE64 = tuple(float((-1) ** j / np.prod(np.arange(1.0, 2 * j + 2))) for j in range(12))
COSINE64 = tuple(float((-1) ** j / np.prod(np.arange(1.0, 2 * j + 1))) for j in range(13))

MANTISSA_BITS = 23
# The integers of the size of a float, and the bits of its mantissa.
LAYOUT = {"float32": (jnp.int32, MANTISSA_BITS), "float64": (jnp.int64, 52)}
# All bits of a float but the lower half of its mantissa.
HEAD: dict[str, np.unsignedinteger[Any]] = {"float32": np.uint32(0xFFFFF000), "float64": np.uint64(0xFFFFFFFFF8000000)}
# ln 2 as a sum of two numbers. The product of the first one and any exponent is exact.
LN2_HEAD = 0.693359375
LN2_TAIL = LN_2 - LN2_HEAD
LN2_HEAD_64 = 0.6931471803691238
LN2_TAIL_64 = 1.9082149292705877e-10
# Newton's method for 1 / x starts from the first constant minus the bits of x. That for 1 / sqrt(x) starts from the
# second constant minus these bits shifted right by one.
RECIPROCAL_BITS = np.int32(0x7EF311C7)
ROOT_BITS = np.int32(0x5F3759DF)
# Bit pattern of 2/3.
TWO_THIRDS_BITS = np.int32(0x3F2AAAAB)


def with_slopes(slopes: Callable[..., Any], static: tuple[int, ...] = ()) -> Callable[[Function], Function]:
    """Give a function of arrays, elementwise up to broadcasting, the derivatives that a formula states.

    Parameters
    ----------
    slopes
        A function of the result and all arguments. It returns the derivative with respect to each argument that is not
        `static`, as a tuple if there are several, with None for an argument that has no derivative. Where it uses the
        result or functions that have derivatives themselves, there are higher derivatives.
    static
        Positions, in ascending order, of arguments that are never differentiated.
    """

    def decorate(function: Function) -> Function:
        differentiable: Any = jax.custom_jvp(function, nondiff_argnums=static)

        @functools.partial(differentiable.defjvp, symbolic_zeros=True)
        def derivative(*given: Any) -> tuple[jax.Array, jax.Array]:
            *fixed, primals, tangents = given
            arguments = list(primals)
            for position, value in zip(static, fixed, strict=True):
                arguments.insert(position, value)
            y = differentiable(*arguments)
            found = slopes(y, *arguments)
            each = found if isinstance(found, tuple) else (found,)
            # A slope times a tangent that is known to be 0 would still be computed inside a branch.
            terms = [
                slope * tangent
                for slope, tangent in zip(each, tangents, strict=True)
                if slope is not None and not isinstance(tangent, SymbolicZero)
            ]
            return y, functools.reduce(operator.add, terms) if terms else jnp.zeros_like(y)

        result: Function = differentiable
        return result

    return decorate


def polynomial(terms: Sequence[float | jax.Array], x: jax.Array) -> jax.Array:
    """Return the sum of terms[j] x^j; numbers among the terms are either all or none."""
    numbers = tuple(c for c in terms if isinstance(c, float))
    if len(numbers) == len(terms) > 1:
        return platform.evaluate(Polynomial(numbers), x)
    return estrin(terms, x)


def polynomial_at(node: float, terms: Sequence[float], x: jax.Array, power: int = 0, factor: float = 1.0) -> jax.Array:
    """Return `factor` times the sum of terms[j] node^(2 j + power) x^j.

    On a CPU, the powers of the node are part of the coefficients. On a GPU, all nodes share their coefficients.
    """
    if len(terms) < 2:  # the last derivatives
        return jnp.full_like(x, factor * sum(terms) * node**power)
    return platform.evaluate(PolynomialAt(tuple(terms), node, power, factor), x)


def estrin(terms: Sequence[float | jax.Array], x: jax.Array) -> jax.Array:
    """Return the sum of terms[j] x^j by Estrin's scheme.

    Chains of dependent operations limit the speed of the samplers on a CPU. At degree 7, Estrin's scheme has as many
    multiply-adds as Horner's, but a depth of 3 instead of 7.
    """
    # `lax` operations take half as long to trace as those of `jnp`, and programs contain hundreds of these.
    sums: list[Any] = [x.dtype.type(c) if isinstance(c, float) else c for c in terms]
    while len(sums) > 1:
        pairs = [lax.add(a, lax.mul(x, b)) for a, b in zip(sums[::2], sums[1::2], strict=False)]
        sums = pairs + sums[len(sums) - len(sums) % 2 :]
        x = lax.mul(x, x)
    result: jax.Array = sums[0]
    return result


def horner(terms: Sequence[float], x: jax.Array) -> jax.Array:
    """Return the sum of terms[j] x^j by Horner's scheme, for a GPU, where the number of operations limits the speed."""
    *rest, last = xla.hidden(terms, x)
    total = last
    for c in reversed(rest):
        total = lax.add(lax.mul(x, total), c)
    return total


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """The `platform.Formula` of `polynomial`."""

    terms: tuple[float, ...]

    def on_cpu(self, x: jax.Array) -> jax.Array:
        """Evaluate as `estrin` does."""
        return estrin(self.terms, x)

    def on_gpu(self, x: jax.Array) -> jax.Array:
        """Evaluate as `horner` does."""
        return horner(self.terms, x) if x.ndim else self.on_cpu(x)

    def slope(self, _: jax.Array, x: jax.Array) -> jax.Array:
        """Return the polynomial's derivative."""
        return polynomial(derivative_terms(self.terms), x)


@dataclasses.dataclass(frozen=True)
class PolynomialAt:
    """The `platform.Formula` of `polynomial_at`."""

    terms: tuple[float, ...]
    node: float
    power: int
    factor: float

    def on_cpu(self, x: jax.Array) -> jax.Array:
        """Evaluate with the powers of the node in the coefficients."""
        n, last = self.node, self.node**self.power
        return estrin([self.factor * (c * n ** (2 * j) * last) for j, c in enumerate(self.terms)], x)

    def on_gpu(self, x: jax.Array) -> jax.Array:
        """Evaluate with the powers of the node in `x` and in a factor."""
        if not x.ndim:
            return self.on_cpu(x)
        square, factor = xla.hidden((self.node * self.node, self.factor * self.node**self.power), x)
        return factor * horner(self.terms, square * x)

    def slope(self, _: jax.Array, x: jax.Array) -> jax.Array:
        """Return the derivative, which has two more powers of the node."""
        return polynomial_at(self.node, derivative_terms(self.terms), x, self.power + 2, self.factor)


def derivative_terms(terms: tuple[float, ...]) -> tuple[float, ...]:
    """Return the coefficients of a polynomial's derivative."""
    return tuple(j * c for j, c in enumerate(terms))[1:]


def clip(x: jax.Array, low: float, high: float) -> jax.Array:
    """Return `x` clipped to two constants; NaN is kept, and the derivative at a bound is 1, not 1/2."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def polynomial2(table: Sequence[Sequence[float]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the sum of table[i][j] x^i y^j."""
    return polynomial([polynomial(row, y) for row in table], x)


def nan_unless(x: jax.Array, good: jax.Array) -> jax.Array:
    """Return `x` where `good` is true, and NaN elsewhere.

    The derivative is then NaN as well; a selection between `x` and NaN would make it 0 in reverse mode.
    """
    return x * jnp.where(good, 1, jnp.nan).astype(x.dtype)


def undifferentiable(message: str) -> Callable[[jax.Array], jax.Array]:
    """Return the identity for arrays whose derivatives raise NotImplementedError with a message."""

    @jax.custom_jvp
    def same(x: jax.Array) -> jax.Array:
        return x

    @same.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        raise NotImplementedError(message)

    found: Callable[[jax.Array], jax.Array] = same
    return found


def sine_over(square: jax.Array) -> jax.Array:
    """Return sin(d) / d from `square` = d^2, for |d| <= pi/2."""
    return polynomial(SINE64 if square.dtype == jnp.float64 else coefficients.SINE, square)


def cosine(square: jax.Array) -> jax.Array:
    """Return cos(d) from `square` = d^2, for |d| <= pi/2."""
    return polynomial(COSINE64 if square.dtype == jnp.float64 else coefficients.COSINE, square)


def nearest_whole(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the integer nearest to `x`, |x| < 2^22, as a float and as the lower bits of an integer of that size."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), whole_bits(x)


def whole_bits(x: jax.Array) -> jax.Array:
    """Return an integer whose lower bits are those of the integer nearest to `x`, for |x| < 2^22 (else arbitrary).

    Adding 1.5 * 2^23 (2^52 in float64) leaves no bits for a fraction, so the lower bits of the mantissa hold the
    integer. A conversion to an integer takes six instructions on a CPU, because it also saturates and checks for NaN.
    """
    integer, mantissa_bits = LAYOUT[x.dtype.name]
    return lax.bitcast_convert_type(x + 1.5 * 2.0**mantissa_bits, integer)


def scale_by(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return `x` times 2 to the power in the lower bits of `exponent`, if the result is a normal number.

    NaN without a payload stays NaN if `exponent` is its `nearest_whole`.
    """
    integer, mantissa_bits = LAYOUT[x.dtype.name]
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, integer) + (exponent << mantissa_bits), x.dtype)


def exp2_without_slope(x: jax.Array) -> jax.Array:
    """Compute `exp2`."""
    whole, exponent = nearest_whole(x)
    terms = coefficients.EXP2_64 if x.dtype == jnp.float64 else coefficients.EXP2
    return scale_by(polynomial(terms, x - whole), exponent)


def exp2_in_sum(x: jax.Array) -> jax.Array:
    """Return 2^x where large |x| matter little, as in a sum of such terms; a GPU computes it by XLA's ``exp``.

    On a GPU, x times ln 2 is rounded, so the relative error grows by |x| 4e-8 in float32. Its ``exp`` is that of CUDA's
    library, with a documented error of 2 ulp (1 ulp in float64). The error on a card was not measured.
    """
    return platform.evaluate(Exp2InSum(), x)


@dataclasses.dataclass(frozen=True)
class Exp2InSum:
    """The `platform.Formula` of `exp2_in_sum`."""

    def on_cpu(self, x: jax.Array) -> jax.Array:
        """Evaluate as `exp2` does."""
        return exp2_without_slope(x)

    def on_gpu(self, x: jax.Array) -> jax.Array:
        """Evaluate by XLA's ``exp``, to which JAX lowers its ``exp2``."""
        return lax.exp2(x)

    def slope(self, y: jax.Array, _: jax.Array) -> jax.Array:
        """Return the derivative."""
        return LN_2 * y


@with_slopes(lambda y, x: LN_2 * y)
def exp2(x: jax.Array) -> jax.Array:
    """Return 2^x for |x| < 126 (float32) or 1022 (float64)."""
    return exp2_without_slope(x)


def exponent_and_log(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write a normal positive float32 as 2^e (1 + m) with m in [-1/3, 1/3]; return e and the binary log of 1 + m."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - TWO_THIRDS_BITS) >> MANTISSA_BITS
    m = lax.bitcast_convert_type(bits - (exponent << MANTISSA_BITS), jnp.float32) - 1
    return exponent.astype(jnp.float32), m * polynomial(coefficients.LOG2, m)


@with_slopes(lambda y, x: LOG2_E / x)
def log2(x: jax.Array) -> jax.Array:
    """Return the binary logarithm of a normal positive number."""
    if x.dtype == jnp.float64:
        return jnp.log2(x)
    exponent, log_mantissa = exponent_and_log(x)
    return exponent + log_mantissa


@with_slopes(lambda y, x: -(y * y))
def reciprocal(x: jax.Array) -> jax.Array:
    """Return 1 / x to 1 ulp, for a normal number of magnitude 1e37 or less.

    In float32, this avoids division: if several instructions read the result of a division, XLA:CPU splits the program
    there into loops that pass arrays through memory.
    """
    if x.dtype == jnp.float64:
        return 1 / x
    y = lax.bitcast_convert_type(RECIPROCAL_BITS - lax.bitcast_convert_type(x, jnp.int32), jnp.float32)
    for _ in range(3):
        y = y + y * (1 - x * y)
    return y


@with_slopes(lambda y, x: (-0.5 * y) * (y * y))
def inverse_root(x: jax.Array) -> jax.Array:
    """Return 1 / sqrt(x) to 2 ulp for a normal positive number, without division, like `reciprocal`."""
    if x.dtype == jnp.float64:
        return lax.sqrt(1 / x)  # XLA:CPU does not vectorise a float64 `rsqrt`
    y = lax.bitcast_convert_type(ROOT_BITS - (lax.bitcast_convert_type(x, jnp.int32) >> 1), jnp.float32)
    for _ in range(3):
        y = y + y * (0.5 - (0.5 * x * y) * y)
    return y


@with_slopes(lambda y, x: 0.5 * inverse_root(x))
def square_root(x: jax.Array) -> jax.Array:
    """Return sqrt(x) to 1 ulp for a normal positive number, without division, like `reciprocal`."""
    if x.dtype == jnp.float64:
        return lax.sqrt(x)
    inverse = inverse_root(x)
    root = x * inverse
    return root + 0.5 * inverse * (x - root * root)


def head(x: jax.Array) -> jax.Array:
    """Return `x` with the lower half of its mantissa cleared; the product of two such heads is exact."""
    mask = HEAD[x.dtype.name]
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, mask.dtype) & mask, x.dtype)


def sine_square(x: jax.Array, exact: bool = True) -> tuple[jax.Array, jax.Array]:
    """Return sin(x)^2 for x in [0, pi/4] as a sum of two numbers, the first of which is exact in float32.

    The float32 error is 2e-8, or 5e-9 with `exact`.
    """
    square = x * x
    if x.dtype == jnp.float64:
        sine = x * sine_over(square)
        return sine * sine, jnp.zeros_like(x)
    x_head = head(x)
    first, low = x_head * x_head, (x + x_head) * (x - x_head)
    # Compute the fourth power from both parts, since the rounded square would triple its error.
    fourth = first * first + xla.round_here(low * (first + square), 1) if exact else square * square
    return first, low + fourth * polynomial(coefficients.SINE_SQUARE, square)


def wide_sine_square(x: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``factor**2 * sin(x)**2`` for |x| <= pi/2 as a sum of two numbers like those of `sine_square`.

    The relative error is 3.2e-7. `factor` is a power of two that keeps the square of a tiny x from underflowing.
    """
    square, scaled = x * x, factor * x
    x_head = head(scaled)
    first, low = x_head * x_head, (scaled + x_head) * (scaled - x_head)
    # As in `sine_square`, but by Horner's scheme, which rounds less: near pi/2, rounding errors have 1.5 times the
    # effect.
    unscaled = first * factor**-2
    fourth = first * unscaled + xla.round_here(low * (unscaled + square), 1e30)
    sum_: float | jax.Array = coefficients.SINE_SQUARE_WIDE[-1]
    for coefficient in coefficients.SINE_SQUARE_WIDE[-2::-1]:
        sum_ = sum_ * square + coefficient
    return first, low + fourth * sum_


def product_parts(a: jax.Array, b: tuple[float | jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return float32 2 a b as a sum of two numbers, for `b` with three summands.

    The first number is exact, and the second has a relative error of 1e-7.
    """
    total = b[0] + b[1] + b[2]
    a_head, b_head = head(a), head(total)
    small = 2 * (a_head * (((b[0] - b_head) + b[1]) + b[2]) + (a - a_head) * total)
    return 2 * (a_head * b_head), small


def log_parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log(x) for a normal positive float32 as a sum of two numbers, the first exact and the second below 1."""
    exponent, log_mantissa = exponent_and_log(x)
    return exponent * LN2_HEAD, exponent * LN2_TAIL + LN_2 * log_mantissa


def exp_product(a: jax.Array, b: tuple[jax.Array, jax.Array, jax.Array], c: jax.Array) -> jax.Array:
    """Return exp(2 a b - c) with a relative error of 1e-7, for exponents in [-20, 88].

    `b` is a sum of three numbers, largest first. A rounded float32 product near 22 has an absolute error of 1e-6, which
    would be the largest error in the quantile.
    """
    if a.dtype == jnp.float64:
        y = 2 * a * (b[0] + b[1] + b[2]) - c
        whole, exponent = nearest_whole(LOG2_E * y)
        # The first difference is exact.
        rest = (y - whole * LN2_HEAD_64) - whole * LN2_TAIL_64
        return scale_by(polynomial(coefficients.EXP2_64, LOG2_E * rest), exponent)
    large, small = product_parts(a, b)
    whole, exponent = nearest_whole(LOG2_E * (large - c))
    # All differences except the last one are exact, since they are multiples of a power of two with few enough digits.
    return scale_by(
        polynomial(coefficients.EXP, (((large - whole * LN2_HEAD) - c) - whole * LN2_TAIL) + small), exponent
    )


def valid(concentration: jax.Array) -> jax.Array:
    """Return the concentration, or NaN where it is negative."""
    return nan_unless(concentration, concentration >= 0)


def integers_of(x: jax.Array) -> jax.Array:
    """Return the bits of floats as signed integers."""
    return lax.bitcast_convert_type(lax.stop_gradient(x), np.dtype(f"int{jnp.finfo(x.dtype).bits}"))


def aligned(array: jax.Array, ndim: int) -> jax.Array:
    """Add leading axes of length 1 up to `ndim` axes, since JAX may be configured to refuse rank promotion."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)

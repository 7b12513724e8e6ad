"""Work around compiler defects. The docstrings state the effect, the affected versions and the report to file.

The workarounds preserve the bits of angles and the accuracy of all other results. Modules call the functions as
``xla.name(...)``. For those marked with an asterisk, `tests/numerics/test_xla.py` and, for CUDA, ``python -m
tools.gpu_programs --check`` remove the workaround and fail if the newest JAX no longer needs it.

JAX traces a program once and may lower it for several platforms, so `lax.platform_dependent` chooses a branch when the
program is lowered. The only property of the tracing machine that matters is its number of CPU devices (`one_cpu`).

=========================  ==================================================================
`compute_elementwise` *    draws of any number are fast on a CPU
`hide_constants` *         an angle does not depend on which arguments are constants
`boundary` *               on a CPU, words, look-ups and derivatives are in separate loops
`finish_words` *           on a CPU, words and quantiles are in separate loops
`round_here` *             a product is rounded before it is added, in every program
`traced_once`              a derivative does not trace its function again
`sum_last_axis` *          summands are computed by vector instructions
`cell_coefficients` *      a table is not recomputed for each coefficient
`replace_where_any` *      rare cases cost nothing unless they occur, also under `jax.vmap`
`multiply_high` *          a program compiles for several devices
`hidden` *                 a quantile on a GPU is one kernel, or two in float64
`polynomial_of_row`        a GPU reads a table in the kernels that use it
`carry_sign_on_cuda` *     a number and its sign cross to the next CUDA kernel as one
`vary_key_on_gpu` *        the key schedule does not become a kernel of one thread
=========================  ==================================================================
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jax_von_mises.compiler.platform import GPUS
from jax_von_mises.compiler.sharding import explicit

# XLA:CPU does not partition smaller programs.
SMALLEST = 2**14
# Length of a row, and length from which a last axis serves as rows without a reshape.
LENGTH, SHORTEST = 1024, 64
# A single long axis whose size is a multiple of this splits evenly between 2, 4, ..., 64 cores.
EVEN = 64
# Whether a loop on a CPU has one result, so that several arrays that need a common value compute it several times.
ONE_RESULT = jax.__version_info__ < (0, 11, 1)
# Bits of a number that `hidden` reads from an iota.
PIECE = 32

Shape = tuple[int, ...]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def traced_once(*static: str) -> Callable[[F], F]:
    """Return a decorator for a function whose trace programs and derivatives share, for equal `static` arguments.

    Tracing takes a third of a first call. A derivative would trace its function again, and so would the next program.
    The compiler sees no difference, since it puts the inner program into each place where it is called.
    """

    def decorate(function: F) -> F:
        shared = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def traced(*args: Any, **options: Any) -> Any:
            # While JAX differentiates a program, an empty mesh is in scope instead of none, and traces are not shared.
            with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
                return shared(*args, **options)

        return cast(F, traced)

    return decorate


def compute_elementwise(
    compute: Callable[..., jax.Array],
    shape: Shape,
    dtype: np.dtype,
    constants: Any,
    *arrays: jax.Array,
    apart: bool = False,
) -> jax.Array:
    """Return ``compute(shape, constants, *arrays)`` rounded to `dtype`; a CPU computes it in rows if that is faster.

    XLA:CPU splits an elementwise program into one piece for each core, along the outermost axes. If the pieces differ
    in length, their bounds are not constants, and LLVM does not vectorise the loops. An odd number of angles took eight
    times as long as an even number. Rows of constant length avoid such pieces. If the size is not a multiple of the row
    length, the last row is padded and the result is copied. Without rows, a density of 250,001 angles takes 5 times as
    long, its gradient 4 times, and a cdf 12 times (AVX-512, two cores).

    Observed with JAX 0.10.2 to 0.12.0.1. To report to XLA: parallel loop fusions with a remainder get dynamic bounds
    for all partitions, which LLVM does not vectorise.

    Parameters
    ----------
    compute
        An elementwise function of the `arrays`, for any shape with the right number of elements. It must not close over
        arrays.
    shape
        Shape of the result.
    dtype
        Dtype of the result.
    constants
        Arguments of `compute` without derivatives, a pytree of arrays.
    *arrays
        Arguments of `compute` with derivatives, which broadcast to `shape`.
    apart
        Whether values and derivatives are computed in separate programs. A gradient then need not compute the value,
        which takes longer than its derivative for a density or a probability, and is needed for that of a draw.
    """
    rows = rows_of(shape, *arrays)
    if rows is None:
        return compute(shape, constants, *arrays).astype(dtype)
    return _by_platform(lambda *args: (compute(*args),), shape, rows, (dtype,), apart, constants, *arrays)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3, 4))
def _by_platform(
    compute: Callable[..., tuple[jax.Array, ...]],
    shape: Shape,
    rows: Shape,
    dtypes: tuple[np.dtype, ...],
    apart: bool,
    constants: Any,
    *arrays: jax.Array,
) -> tuple[jax.Array, ...]:
    """Compute as `compute_elementwise` does, for a function with several results."""

    def rounded(shape: Shape, *args: Any) -> tuple[jax.Array, ...]:
        return tuple(x.astype(dtype) for x, dtype in zip(compute(shape, *args), dtypes, strict=True))

    in_shape = functools.partial(rounded, shape)
    by_rows = functools.partial(in_rows, rounded, shape, rows)
    results: tuple[jax.Array, ...] = lax.platform_dependent(constants, *arrays, cpu=by_rows, default=in_shape)
    return results


@functools.partial(_by_platform.defjvp, symbolic_zeros=True)
def _by_platform_jvp(
    compute: Callable[..., tuple[jax.Array, ...]],
    shape: Shape,
    rows: Shape,
    dtypes: tuple[np.dtype, ...],
    apart: bool,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    # Compute slopes as further results of the same program. Otherwise, in reverse mode, each platform's branch would
    # also store residuals in the shapes of the other branches. For example, if `compute` returns (f,) for the arrays
    # (a, b), and only b has a tangent, `tangent_of` is {1: db}, the program returns (f, df/db), and the rule returns
    # (f,) and (df/db * db,). If both have tangents, the program returns (f, df/da, df/db).
    constants, *arrays = primals
    tangent_of = {j: t for j, t in enumerate(tangents[1:]) if not isinstance(t, SymbolicZero)}

    def values_and_slopes(shape: Shape, constants: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        def values(moving: dict[int, jax.Array]) -> tuple[jax.Array, ...]:
            return compute(shape, constants, *(moving.get(j, x) for j, x in enumerate(arrays)))

        moving = {j: arrays[j] for j in tangent_of}
        results: tuple[jax.Array, ...]
        results, push = jax.linearize(values, moving)
        results = () if apart else results
        for j in tangent_of:
            # The function is elementwise, so a tangent of 1 for every element of one array gives the slopes.
            results += push({i: jnp.full_like(x, i == j) for i, x in moving.items()})
        return results

    slope_dtypes = (arrays[0].dtype,) * (len(dtypes) * len(tangent_of))
    before = _by_platform(compute, shape, rows, dtypes, apart, constants, *arrays) if apart else ()
    of_results = slope_dtypes if apart else dtypes + slope_dtypes
    results = before + _by_platform(values_and_slopes, shape, rows, of_results, apart, constants, *arrays)
    values, slopes = results[: len(dtypes)], iter(results[len(dtypes) :])
    total = [jnp.zeros(shape, arrays[0].dtype)] * len(dtypes)
    for tangent in tangent_of.values():
        total = [x + next(slopes) * jnp.broadcast_to(tangent, shape) for x in total]
    return values, tuple(x.astype(dtype) for x, dtype in zip(total, dtypes, strict=True))


def rows_of(shape: Shape, *arrays: jax.Array) -> Shape | None:
    """Return the shape (rows, length) in which a CPU should compute a result of `shape`, or None to keep `shape`.

    Shapes are kept inside a mesh, `jax.shard_map` or `jax.pmap`, and for arrays on a mesh with explicit axes. There the
    sharding is part of an array's type, and sharded arrays must not be mixed with others.
    """
    total = math.prod(shape)
    if total < SMALLEST or not may_move(*arrays):
        return None
    long = [size for size in shape if size > 1]
    even = len(long) == 1 and total % EVEN == 0
    if even or (len(long) > 1 and shape[-1] >= SHORTEST):
        return None
    return -(-total // LENGTH), LENGTH


def may_move(*arrays: jax.Array) -> bool:
    """Return whether arrays may be reshaped or enter a branch: neither a mesh nor a second CPU device shards them."""
    return one_cpu() and not explicit(arrays) and jax.sharding.get_abstract_mesh().empty


def one_cpu() -> bool:
    """Return whether there is exactly one CPU device.

    With several, which tests of sharding use, a reshape would move data between them.
    """
    try:
        return jax.device_count("cpu") == 1
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU, but a program may still be exported for it
        return True


def in_rows(
    compute: Callable[..., tuple[jax.Array, ...]], shape: Shape, rows: Shape, constants: Any, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the results of ``compute(rows, constants, *arrays)`` in `shape`, to which the `arrays` broadcast.

    Arrays of one element become scalars. The last row is padded with 1/2, a valid value of every argument.
    """
    total, missing = math.prod(shape), math.prod(rows) - math.prod(shape)

    def fill_rows(x: jax.Array) -> jax.Array:
        if x.size == 1:
            return x.reshape(())
        flat = jnp.broadcast_to(x, shape).reshape(-1)
        return (jnp.pad(flat, (0, missing), constant_values=0.5) if missing else flat).reshape(rows)

    # Use a branch, since XLA would otherwise move the reshape into the program and compute the result in uneven pieces.
    results = _in_branch(functools.partial(compute, rows), constants, *map(fill_rows, arrays))
    return tuple(x.reshape(-1)[:total].reshape(shape) for x in results)


def _in_branch(compute: Callable[..., T], *arrays: Any) -> T:
    """Return ``compute(*arrays)`` from a branch that is always taken, so that XLA moves nothing into or out of it."""
    compute = jax.jit(compute)  # traced once
    shapes = jax.eval_shape(compute, *arrays)
    never = lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)  # noqa: E731
    results: T = lax.cond(_always(), compute, never, *arrays)
    return results


def _always() -> jax.Array:
    """Return True, computed by a sort, which XLA:CPU does not fold into a constant."""
    return lax.sort(lax.iota(jnp.uint32, 2))[0] == 0


def hide_constants(*arrays: jax.Array) -> list[jax.Array]:
    """Return the `arrays`, hidden from XLA:CPU's constant folding.

    Folding rounds a product before it is added, whereas a program that takes the arrays as arguments contracts the
    product and the sum into one operation. The angles of the two programs would differ in their last digits.

    Folding was observed with JAX 0.10.2 to 0.12.0.1. Barriers prevent it from JAX 0.12 on; earlier versions of XLA:CPU
    remove a barrier around constants. To report to XLA: folded constants are rounded differently from arguments.
    """

    def hidden(*arrays: jax.Array) -> list[jax.Array]:
        known = _always()
        return [jnp.where(known, x, 1) for x in arrays]

    def behind_barriers(*arrays: jax.Array) -> list[jax.Array]:
        # Use one barrier per array. Under `jax.shard_map`, a common barrier would make every array vary over all axes
        # over which any of them varies.
        return [lax.optimization_barrier(x) for x in arrays]

    results: list[jax.Array] = lax.platform_dependent(*arrays, cpu=hidden, default=behind_barriers)
    return results


def boundary(compute: Callable[..., T], *arrays: Any, joined: bool = False) -> T:
    """Return ``compute(*arrays)``; a CPU computes it in a loop separate from its producers and consumers.

    If a look-up shared a loop with the cipher, XLA would repeat parts of both. If the derivative shared a loop with the
    draws, angles would be drawn several times. Loops are separated only where `may_move` allows it.

    With `joined`, the first two arrays, of float32, enter the loop as halves of 64-bit numbers, so that one loop makes
    both. Otherwise XLA:CPU up to JAX 0.11.0 would use one loop per array, and each loop would compute the values that
    both arrays need, such as a cipher. It makes float32 directions in three dimensions 7 times as fast, in two
    dimensions 3.5 times, and an angle with its derivative 1.8 times (two cores with AVX-512). Later releases do not
    need it: there, directions in space would take 1.8 times as long with it, so `compute` is not separated.

    The loop is in a branch, since XLA:CPU in JAX 0.10.2 (but not in 0.12.0.1) removes optimization barriers before it
    forms loops. Observed with JAX 0.8.0 to 0.12.0.1. To report to XLA: a fusion recomputes values that several of its
    instructions read.
    """
    if (joined and not ONE_RESULT) or not may_move(*jax.tree.leaves(arrays)):
        return compute(*arrays)
    results: T = _kept_whole(jax.jit(compute), joined, *arrays)  # traced once for all platforms
    return results


def as_pair(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two arrays, as the function of a `boundary` that joins them and computes nothing."""
    return first, second


def _apart(compute: Callable[..., T], joined: bool, *arrays: Any) -> T:
    def by_halves(first: jax.Array, second: jax.Array, *others: Any) -> T:
        def of_halves(both: jax.Array, *others: Any) -> T:
            return compute(*from_halves(both), *others)

        return _in_branch(of_halves, to_halves(first, second), *others)

    on_cpu = by_halves if joined else functools.partial(_in_branch, compute)
    results: T = lax.platform_dependent(*arrays, cpu=on_cpu, default=compute)
    return results


# The derivative is the one that JAX would use anyway. But JAX divides a program with a branch into the part that needs
# no derivative and the rest, and traces both, unless the branch has a derivative of its own. Halves have no derivative.
_kept_whole: Any = jax.custom_jvp(_apart, nondiff_argnums=(0, 1))


@_kept_whole.defjvp  # type: ignore[untyped-decorator]
def _kept_whole_jvp(
    compute: Callable[..., T], joined: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[T, T]:
    if joined:
        return _kept_whole(compute, joined, *primals), jax.jvp(compute, primals, tangents)[1]
    results: tuple[T, T] = jax.jvp(functools.partial(_apart, compute, joined), primals, tangents)
    return results


def to_halves(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return the bits of two float32 arrays as the upper and the lower halves of one array."""
    with jax.enable_x64(True):
        bits = (lax.bitcast_convert_type(x, jnp.uint32) for x in (first, second))
        high, low = (lax.convert_element_type(x, np.uint64) for x in bits)
        return (high << np.uint64(32)) | low


def from_halves(both: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two arrays that `to_halves` joined."""
    with jax.enable_x64(True):
        high, low = (lax.convert_element_type(x, np.uint32) for x in (both >> np.uint64(32), both))
    return lax.bitcast_convert_type(high, jnp.float32), lax.bitcast_convert_type(low, jnp.float32)


def finish_words(words: T) -> T:
    """Return `words`; a CPU computes all of them before the first quantile, and a GPU keeps one kernel.

    If words and quantiles share a loop, LLVM's vectoriser in JAX 0.12 follows every path through the quantile and its
    derivative once for each path through the cipher's rounds, and compilation takes minutes. Compiling the quantile
    alone takes as long unless `elementary.clip` bounds it. JAX 0.10.2 compiles shared and separate loops in seconds,
    and both run equally fast. Observed with JAX 0.12.0 and 0.12.0.1. To report to LLVM (SLP vectoriser).
    """
    results: T = lax.platform_dependent(words, cpu=lax.optimization_barrier, default=lambda words: words)
    return results


def round_here(x: jax.Array, most: float) -> jax.Array:
    """Return the product `x`, or `most` if that is smaller, rounded to its dtype before it enters a sum.

    XLA:CPU contracts a product and a sum into one operation in some programs but not in others, and reorders sums of
    constants, so angles would differ between programs. A selection prevents both.

    Observed with JAX 0.10.2 to 0.12.0.1. To report to XLA: contraction cannot be controlled per operation.
    """
    return jnp.where(x > most, most, x)


def sum_last_axis(values: jax.Array) -> jax.Array:
    """Return the sum over the last axis, as a matrix product.

    XLA:CPU would fuse a sum with the computation of `values`, and then compute the values one at a time instead of by
    vector instructions. Observed with JAX 0.10.2 to 0.12.0.1. To report to XLA.
    """
    return jnp.matmul(values, jnp.ones(values.shape[-1], values.dtype), precision=lax.Precision.HIGHEST)


def tree_sum(terms: list[jax.Array]) -> jax.Array:
    """Return the sum of `terms`, added in pairs to keep the chain of dependent additions short."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def cell_coefficients(values: jax.Array, powers: np.ndarray, origin: int) -> jax.Array:
    """Return the coefficients (n + 1, cells) of `values` (cells, n + 1).

    The first row is the column `origin` of `values`. The others are the differences of the other columns from that one,
    times the matrix `powers`, transposed.

    XLA would recompute `values` for each coefficient, but it does not fuse a matrix product with the computation of its
    operand. The differences are therefore also computed by a matrix product. On CUDA, XLA tunes each matrix product.
    This takes seconds, and the order of summation may differ between processes, so sums between barriers replace the
    products. Observed with JAX 0.10.2 to 0.12.0.1. To report to XLA: a fusion that is read by columns is computed once
    for each column.
    """
    degree = len(powers)

    def by_products(values: jax.Array) -> jax.Array:
        def product(x: jax.Array, matrix: np.ndarray) -> jax.Array:
            return jnp.matmul(x, jnp.asarray(matrix, x.dtype), precision=lax.Precision.HIGHEST)

        eye = np.eye(degree + 1)
        # A slice would make XLA compute `values` again.
        first = product(values, eye[:, [origin]])
        rises = product(values, np.delete(eye, origin, 1) - eye[:, [origin]])
        return jnp.concatenate([first, product(rises, powers)], axis=1).T

    def by_sums(values: jax.Array) -> jax.Array:
        values = lax.optimization_barrier(values)
        others = [values[:, j] for j in range(degree + 1)]
        first = others.pop(origin)
        rises = [other - first for other in others]
        columns = [sum(rise * float(row[j]) for rise, row in zip(rises, powers, strict=True)) for j in range(degree)]
        stacked: jax.Array = lax.optimization_barrier(jnp.stack([first, *columns]))
        return stacked

    results: jax.Array = lax.platform_dependent(values, cuda=by_sums, default=by_products)
    return results


def replace_where_any(where: jax.Array, replace: Callable[..., jax.Array], x: jax.Array, *arrays: Any) -> jax.Array:
    """Return ``replace(x, *arrays)`` if `where` is true anywhere, else `x` without computing a replacement.

    This is a loop of at most one iteration, because `jax.vmap` turns `lax.cond` into a selection between two results
    that are always computed. Inside the loop, the `arrays` depend on its state; otherwise XLA would move operations on
    them out of the loop and always compute them. Observed with JAX 0.10.2 to 0.12.0.1.
    """

    def once(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        todo, x = state
        return ~todo, replace(x, *jax.tree.map(lambda a: jnp.where(todo, a, jnp.ones((), a.dtype)), arrays))

    return lax.while_loop(lambda state: state[0], once, (jnp.any(where), x))[1]


def multiply_high(x: jax.Array, constant: int | np.uint32) -> jax.Array:
    """Return the upper half of the 64-bit product of uint32 `x` and a uint32 constant.

    `lax.mulhi` cannot be compiled for several devices ("Unable to convert MHLO to StableHLO"). Compilers turn this form
    into the same instruction. Observed with JAX 0.10.2 to 0.12.0.1. To report to JAX.
    """
    with jax.enable_x64(True):
        product = lax.convert_element_type(x, np.uint64) * np.uint64(constant)
        return lax.convert_element_type(product >> np.uint64(32), np.uint32)


def hidden(constants: Sequence[float], x: jax.Array) -> list[jax.Array]:
    """Return `constants` in the dtype of `x`, for a program for a GPU, in a form that XLA does not see as constants.

    XLA counts each distinct constant as an operand of a fusion, and a fusion may have no more than 96 operands. A
    quantile has more constants than that, so it was split into three kernels (seven in float64), between which up to
    41 numbers per angle crossed through memory. Here a constant is an element of an iota, combined with a zero
    that is computed from `x`. XLA folds neither of them, and LLVM both, so the final code has immediate operands.

    Observed with the CUDA compiler of JAX 0.11.2 and 0.12.0.1, and assumed for ROCm, which shares this compiler. To
    report to XLA: constants should not count against `MaxOperandsAndOutputsPerFusion`.
    """
    width = 8 * x.dtype.itemsize
    word = jnp.uint32 if width == 32 else jnp.uint64
    always_zero = zero_of(x)

    def piece(value: int) -> jax.Array:
        # A scalar, which also combines with an array on a mesh.
        return always_zero ^ lax.squeeze(lax.slice(lax.iota(word, 2**PIECE), (value,), (value + 1,)), (0,))

    def one(constant: float) -> jax.Array:
        bits = int(np.asarray(constant, x.dtype).view(word))
        pieces = [piece(bits >> place & (2**PIECE - 1)) << word(place) for place in range(0, width, PIECE)]
        result: jax.Array = lax.bitcast_convert_type(functools.reduce(lax.bitwise_or, pieces), x.dtype)
        return result

    return [one(c) for c in constants]


def polynomial_of_row(row: jax.Array, x: jax.Array) -> jax.Array:
    """Return the sum of row[j] x^j, where `row` is an array of coefficients that a loop reads from a table.

    XLA:GPU would read each coefficient by a kernel of its own if `x` is large, up to 196 in one pass of a loop. So a
    GPU reads them anew for each element of `x`: their places depend on a `zero_of` it.
    """

    def total(terms: list[jax.Array], x: jax.Array) -> jax.Array:
        *rest, value = terms
        for term in reversed(rest):
            value = value * x + term
        return value

    def of_places(row: jax.Array, x: jax.Array) -> jax.Array:
        zero = zero_of(x).astype(jnp.int32)
        # Under `jax.vmap`, an axis that is mapped may be sharded although no axis that is visible here is.
        sharding = jax.typeof(x).sharding if explicit([x]) else None

        def read(j: int) -> jax.Array:
            return row.at[zero + j].get(mode="promise_in_bounds", out_sharding=sharding)

        return total([read(j) for j in range(row.size)], x)

    def of_scalars(row: jax.Array, x: jax.Array) -> jax.Array:
        return total([row[j] for j in range(row.size)], x)

    result: jax.Array = lax.platform_dependent(row, x, **dict.fromkeys(GPUS, of_places), default=of_scalars)
    return result


def zero_of(x: jax.Array) -> jax.Array:
    """Return zeros, unsigned integers as wide as `x`, that XLA does not recognise as zeros, but LLVM does."""
    width = 8 * x.dtype.itemsize
    word = jnp.uint32 if width == 32 else jnp.uint64
    zero: jax.Array = (lax.bitcast_convert_type(x, word) >> word(width - 1)) >> word(1)
    return zero


def carry_sign_on_cuda(t: jax.Array, negative: jax.Array, most: float) -> tuple[jax.Array, jax.Array]:
    """Return `t` and `negative`; on CUDA they cross to the next kernel as one number, and `t` is at most `most`.

    XLA splits a program before a look-up, where two or three numbers per angle would otherwise be written to memory and
    read again. Observed with the CUDA compiler of JAX 0.11.2 and 0.12.0.1. To report to XLA: fusions are split without
    regard to the data that crosses.
    """

    def cut(t: jax.Array, negative: jax.Array) -> tuple[jax.Array, jax.Array]:
        t = jnp.minimum(t, most)
        signed = lax.optimization_barrier(jnp.where(negative, -t, t))
        return jnp.abs(signed), signed < 0

    results: tuple[jax.Array, jax.Array] = lax.platform_dependent(
        t, negative, cuda=cut, default=lambda t, negative: (t, negative)
    )
    return results


def vary_key_on_gpu(encrypt: Callable[[tuple[jax.Array, ...]], T], key: tuple[jax.Array, ...], lo: jax.Array) -> T:
    """Return ``encrypt(key)``; on a GPU the key's words appear to depend on each element's uint32 `lo`.

    Otherwise the compiler would put everything that depends only on the key into a kernel of one thread, for which the
    next kernel waits. Observed with the CUDA compiler of JAX 0.11.2 and 0.12.0.1, and assumed for ROCm, which shares
    this compiler. To report to XLA: scalars could be recomputed in each thread.
    """
    once: Callable[[tuple[jax.Array, ...]], T] = jax.jit(encrypt, inline=True)  # traced once for all platforms

    def varied(key: tuple[jax.Array, ...], lo: jax.Array) -> T:
        always_zero = (lo >> 31) >> 1
        return once(tuple(word ^ always_zero for word in key))

    results: T = lax.platform_dependent(key, lo, cuda=varied, rocm=varied, default=lambda key, lo: once(key))
    return results

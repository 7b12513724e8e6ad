"""Every workaround for a compiler, once: what it achieves, where it was seen, and what to report.

None of them changes what is computed: angles keep their bits, and other functions their accuracy. Modules call them as
``xla.name(...)``. `tests/numerics/test_xla.py` and, for CUDA, ``python -m tools.gpu_programs --check`` take out those
that are marked below, and fail when the newest JAX no longer needs them.

A program is traced once and may be lowered for several platforms, so `lax.platform_dependent` chooses when it is
lowered. Of the machine that traces it only the number of CPU devices counts (`one_cpu`).

=========================  ==================================================================
`compute_elementwise` *    XLA:CPU makes fast loops of arrays of any length
`hide_constants` *         an angle does not depend on which arguments are constants
`separate_loop` *          on a CPU, words, look-ups and derivatives are separate loops
`finish_words` *           the same, of words and quantiles
`in_one_loop`              two arrays that share a cipher do not compute it twice
`round_here` *             a product is rounded before it is added, in every program
`round_product` *          the same, of every float64 product
`add_terms` *              sums of long terms compile in seconds
`sum_last_axis` *          what is summed is computed by vector instructions
`cell_coefficients` *      a table is not computed again for each coefficient
`replace_where_any` *      a rare case costs nothing under `jax.vmap`
`multiply_high` *          compiles for several devices
`recompute_on_cuda` *      few numbers cross from one CUDA kernel to the next
`carry_sign_on_cuda` *     the same, two numbers in one
`vary_key_on_gpu` *        work on the key alone is no kernel of one thread
=========================  ==================================================================
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jax_von_mises.numerics.sharding import explicit

# Smaller programs are not cut into parts for the cores.
SMALLEST = 2**14
# Of a row; and of the last axis of a shape that has rows of its own.
LENGTH, SHORTEST = 1024, 64
# One long axis whose size is a multiple of this is cut into equal pieces, by two cores and by most other numbers.
EVEN = 64


def compute_elementwise(compute, shape, dtype, constants, *arrays):
    """Return ``compute(shape, constants, *arrays)`` rounded to `dtype`, on a CPU computed in rows where that is faster.

    XLA:CPU cuts an elementwise program into one piece for each core, along the outermost axes. Where the pieces are not
    of equal length, their bounds are no constants, and the loops over them no vector loops: an odd number of angles
    took eight times as long as an even one. Rows of a constant length, at least some for each core, have no such
    pieces. Where no divisor of the size serves as the length, the last row is filled up, and the result copied.

    Seen with JAX 0.10.2 to 0.12.0.1. To report to XLA: parallel loop fusions with a remainder get dynamic bounds for
    all partitions, which LLVM does not vectorise.

    Parameters
    ----------
    compute : callable
        An elementwise function of the `arrays`, for any shape of the right size. It closes over no array.
    shape : tuple of ints
        Shape of the result, to which the arrays broadcast.
    dtype : dtype
    constants : pytree of arrays
        Other arguments of `compute`, without derivatives.
    *arrays : float arrays
    """
    rows = rows_of(shape, *arrays)
    if rows is None:
        return compute(shape, constants, *arrays).astype(dtype)
    return _by_platform(lambda *given: (compute(*given),), shape, rows, (dtype,), constants, *arrays)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _by_platform(compute, shape, rows, dtypes, constants, *arrays):
    """`compute_elementwise` for a function with several results."""

    def rounded(shape, *given):
        return tuple(x.astype(dtype) for x, dtype in zip(compute(shape, *given), dtypes, strict=True))

    in_shape = functools.partial(rounded, shape)
    by_rows = functools.partial(in_rows, rounded, shape, rows)
    return lax.platform_dependent(constants, *arrays, cpu=by_rows, default=in_shape)


@functools.partial(_by_platform.defjvp, symbolic_zeros=True)
def _by_platform_jvp(compute, shape, rows, dtypes, primals, tangents):
    # The slopes are results too. JAX itself would keep what reverse mode needs from every platform's branch, in its
    # shapes, and compute the other platforms' rows for it.
    constants, *arrays = primals
    moved = {j: t for j, t in enumerate(tangents[1:]) if not isinstance(t, SymbolicZero)}

    def with_slopes(shape, constants, *arrays):
        def values(moving):
            return compute(shape, constants, *(moving.get(j, x) for j, x in enumerate(arrays)))

        moving = {j: arrays[j] for j in moved}
        results, push = jax.linearize(values, moving)
        for j in moved:
            results += push({i: jnp.full_like(x, i == j) for i, x in moving.items()})
        return results

    of_slopes = (arrays[0].dtype,) * (len(dtypes) * len(moved))
    results = _by_platform(with_slopes, shape, rows, dtypes + of_slopes, constants, *arrays)
    values, slopes = results[: len(dtypes)], iter(results[len(dtypes) :])
    total = [jnp.zeros(shape, arrays[0].dtype)] * len(dtypes)
    for tangent in moved.values():
        total = [x + next(slopes) * jnp.broadcast_to(tangent, shape) for x in total]
    return values, tuple(x.astype(dtype) for x, dtype in zip(total, dtypes, strict=True))


def rows_of(shape, *arrays):
    """The shape (rows, length) in which a CPU should compute `shape` from `arrays`; None where that one is as good.

    Inside a mesh, `jax.shard_map` or `jax.pmap`, and with arrays over explicit axes, shapes stay: types say there how
    an array is shared out, and what is not must not be mixed with what is.
    """
    total = math.prod(shape)
    if total < SMALLEST or not may_move(*arrays):
        return None
    long = [size for size in shape if size > 1]
    even = len(long) == 1 and total % EVEN == 0
    if even or (len(long) > 1 and shape[-1] >= SHORTEST):
        return None
    return -(-total // LENGTH), LENGTH


def may_move(*arrays):
    """Whether arrays may go into another shape or a branch: no mesh, and no second CPU device, shares them out."""
    return one_cpu() and not explicit(arrays) and jax.sharding.get_abstract_mesh().empty


def one_cpu():
    """Whether there is one CPU device. Several serve to try out shardings: reshaping would move sharded arrays."""
    try:
        return jax.device_count("cpu") == 1
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out, which a program may be exported for all the same
        return True


def in_rows(compute, shape, rows, constants, *arrays):
    """``compute(rows, constants, *arrays)`` for `arrays` that broadcast to `shape`, with its results in that shape.

    Arrays of a single value stay scalars. The last row is filled up by halves, which are good values of all arguments.
    """
    total, missing = math.prod(shape), math.prod(rows) - math.prod(shape)

    def fill_rows(x):
        if x.size == 1:
            return x.reshape(())
        flat = jnp.broadcast_to(x, shape).reshape(-1)
        return (jnp.pad(flat, (0, missing), constant_values=0.5) if missing else flat).reshape(rows)

    # XLA would move the reshape into the program, and compute what is kept in the pieces that are to be avoided.
    results = _in_branch(functools.partial(compute, rows), constants, *map(fill_rows, arrays))
    return tuple(x.reshape(-1)[:total].reshape(shape) for x in results)


def _in_branch(compute, *arrays):
    """``compute(*arrays)`` in a branch that is always taken: XLA moves nothing into it or out of it."""
    compute = jax.jit(compute, inline=True)  # traced once
    results = jax.eval_shape(compute, *arrays)
    never = lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), results)  # noqa: E731
    return lax.cond(_always(), compute, never, *arrays)


def _always():
    """Return True in a form that XLA:CPU does not evaluate while it compiles: it folds no sort."""
    return lax.sort(lax.iota(jnp.uint32, 2))[0] == 0


def hide_constants(*arrays):
    """Return the `arrays`, whose values the compiler does not use where they are constants of the program.

    XLA:CPU would evaluate what depends on them alone while it compiles, with two roundings where a program that takes
    them as arguments contracts a product and a sum into one, and the angles would differ in their last places.

    Seen with JAX 0.10.2 to 0.12.0.1, whose XLA:CPU removes an optimization barrier around constants before it folds
    them: to report to XLA.
    """

    def hidden(*arrays):
        known = _always()
        return [jnp.where(known, x, 1) for x in arrays]

    def barrier(*arrays):
        # One for each: a common one makes all vary over the axes of a `jax.shard_map` that one of them varies over.
        return [lax.optimization_barrier(x) for x in arrays]

    return lax.platform_dependent(*arrays, cpu=hidden, default=barrier)


def separate_loop(compute, *arrays):
    """Return ``compute(*arrays)``; on a CPU the arrays are in memory before, and what is computed is after it.

    In one loop with the cipher, a look-up repeats parts of both; one with the derivative draws several times. Where
    shapes stay (`rows_of`), so do loops.

    Through a branch, since XLA:CPU removes an optimization barrier before it makes loops: seen with JAX 0.10.2, and not
    with 0.12.0.1. To report to XLA: a fusion computes again what several of its instructions read.
    """
    if not may_move(*jax.tree.leaves(arrays)):
        return compute(*arrays)
    return lax.platform_dependent(*arrays, cpu=functools.partial(_in_branch, compute), default=compute)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def in_one_loop(compute, first, second, *arrays):
    """Return ``compute(first, second, *arrays)``; on a CPU one loop before it computes the two float32 arrays.

    As halves of 64-bit numbers: XLA:CPU makes a loop for each array, and repeats in both what they share, such as a
    cipher. Seen with JAX 0.10.2 to 0.12.0.1. To report to XLA: loop fusions on a CPU have one result.
    """
    if not may_move(first, second, *arrays):
        return compute(first, second, *arrays)

    def by_halves(first, second, *arrays):
        with jax.enable_x64(True):
            high, low = (
                lax.convert_element_type(lax.bitcast_convert_type(x, jnp.uint32), np.uint64) for x in (first, second)
            )
            both = (high << np.uint64(32)) | low

        def of_halves(both, *arrays):
            with jax.enable_x64(True):
                halves = [lax.convert_element_type(x, np.uint32) for x in (both >> np.uint64(32), both)]
            return compute(*(lax.bitcast_convert_type(x, jnp.float32) for x in halves), *arrays)

        return _in_branch(of_halves, both, *arrays)

    return lax.platform_dependent(first, second, *arrays, cpu=by_halves, default=compute)


@in_one_loop.defjvp
def _in_one_loop_jvp(compute, primals, tangents):
    _, tangent = jax.jvp(compute, primals, tangents)
    return in_one_loop(compute, *primals), tangent


def finish_words(words):
    """On a CPU, compute all words before the first quantile. A GPU keeps one kernel.

    In one loop with the ciphers' words, LLVM's vectoriser in JAX 0.12 walks every path through the quantile and its
    derivative once per path through the rounds, and compiles for minutes; so it does for the quantile alone where its
    bounds are not those of `elementary.clip`. JAX 0.10.2 compiles either in seconds, and both run equally fast. Seen
    with JAX 0.12.0 and 0.12.0.1; to report to LLVM (SLP vectoriser).
    """
    return lax.platform_dependent(words, cpu=lax.optimization_barrier, default=lambda words: words)


def round_here(x, most):
    """Return the product `x`, or `most` where that is smaller, rounded to its dtype before it enters a sum.

    XLA:CPU contracts a product and a sum into one rounding in some programs and not in others, and adds up constants
    out of turn; the angles would differ between programs. It sees through no selection.

    Seen with JAX 0.10.2 to 0.12.0.1. XLA has no per-operation control of contraction: to report.
    """
    return jnp.where(x > most, most, x)


def round_product(x):
    """`round_here` for every float64 product: XLA:CPU contracts those in loops of some shapes and not of others.

    Seen with JAX 0.10.2 to 0.12.0.1. To report as for `round_here`.
    """
    return jnp.minimum(x, 1e300) if x.dtype == jnp.float64 else x


def add_terms(term, nodes, weights, like):
    """Sums of the arrays of ``term(node, weight)``, of the shape and dtype of `like`.

    In float64 by a loop: unrolled, so many nodes of so long polynomials take XLA:CPU gigabytes to compile, and in
    `sample_truncated` more than half a minute instead of seconds. Seen with JAX 0.10.2 to 0.12.0.1; to report to XLA:
    both grow faster than the program.
    """
    if like.dtype == jnp.float64:

        def add(totals, at):
            return tuple(a + round_product(b) for a, b in zip(totals, term(*at), strict=True)), None

        first = term(nodes[0], weights[0])
        rest = jnp.asarray(nodes[1:], like.dtype), jnp.asarray(weights[1:], like.dtype)
        return lax.scan(add, first, rest)[0]
    columns = zip(*(term(node, weight) for node, weight in zip(nodes, weights, strict=True)), strict=True)
    return tuple(tree_sum(list(column)) for column in columns)


def sum_last_axis(values):
    """Sums over the last axis.

    By a product of matrices, which XLA:CPU makes of vector instructions. A sum it fuses with what makes the values, and
    then computes these one number at a time. Seen with JAX 0.10.2 to 0.12.0.1; to report to XLA.
    """
    return jnp.matmul(values, jnp.ones(values.shape[-1], values.dtype), precision=lax.Precision.HIGHEST)


def tree_sum(terms):
    """Sum in pairs: the chain of dependent additions is short."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def cell_coefficients(values, powers):
    """Coefficients (n + 1, cells) of ``values[:, 0] + powers (values[:, 1:] - values[:, 0])``, for (cells, n + 1).

    XLA would compute `values` again for each coefficient, but fuses no matrix product with what makes its operand; so
    on a CPU the differences, too, are a product. For CUDA it tries many programs for each product, which takes seconds,
    and the one that it takes, and with it the order of the sums, may differ between processes: there these are sums,
    between barriers. Seen with JAX 0.10.2 to 0.12.0.1; to report to XLA: a fusion that is read by columns is computed
    once for each column.
    """
    degree = len(powers)

    def by_products(values):
        product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        difference = np.concatenate([-np.ones((1, degree)), np.eye(degree)])
        rises = product(values, jnp.asarray(difference, values.dtype))
        return jnp.concatenate([values[:, :1], product(rises, jnp.asarray(powers, values.dtype))], axis=1).T

    def by_sums(values):
        values = lax.optimization_barrier(values)
        first, *others = (values[:, j] for j in range(degree + 1))
        rises = [other - first for other in others]
        columns = [sum(rise * float(row[j]) for rise, row in zip(rises, powers, strict=True)) for j in range(degree)]
        return lax.optimization_barrier(jnp.stack([first, *columns]))

    return lax.platform_dependent(values, cuda=by_sums, default=by_products)


def replace_where_any(where, replace, x, *arrays):
    """Return ``replace(x, *arrays)`` if `where` is true anywhere, else `x`, which costs nothing then.

    By a loop of at most one round: `jax.vmap` turns `lax.cond` into a selection between two results, both always
    computed. `replace` sees ones for the `arrays` where it does not run: XLA would move what does not depend on the
    loop's state out of it, and always compute it. `jax.lax.cond` documents that; seen with JAX 0.10.2 to 0.12.0.1.
    """

    def once(state):
        todo, x = state
        return ~todo, replace(x, *jax.tree.map(lambda a: jnp.where(todo, a, jnp.ones((), a.dtype)), arrays))

    return lax.while_loop(lambda state: state[0], once, (jnp.any(where), x))[1]


def multiply_high(x, constant):
    """Upper half of the 64-bit product of uint32 `x` and a uint32 constant.

    `lax.mulhi` cannot be compiled for several devices ("Unable to convert MHLO to StableHLO"): to report to JAX. Seen
    with JAX 0.10.2 to 0.12.0.1. Compilers make the same instruction of this form.
    """
    with jax.enable_x64(True):
        product = lax.convert_element_type(x, np.uint64) * np.uint64(constant)
        return lax.convert_element_type(product >> np.uint64(32), np.uint32)


def recompute_on_cuda(rest_of, stored, rest):
    """Return `stored` and `rest`; on CUDA only `stored` crosses to the next kernel, and `rest` is ``rest_of(*stored)``.

    By itself XLA cuts a program of this length where a dozen numbers per angle cross from one kernel to the next. Seen
    with the CUDA compiler of JAX 0.11.2 and 0.12.0.1; to report to XLA: fusions are split by the number of their
    instructions, and not by what crosses.
    """

    def cut(stored, _):
        stored = lax.optimization_barrier(stored)
        return stored, rest_of(*stored)

    return lax.platform_dependent(stored, rest, cuda=cut, default=lambda *both: both)


def carry_sign_on_cuda(t, negative, most):
    """Return `t`, at most `most`, and `negative`; on CUDA they cross to the next kernel as one number.

    XLA cuts a program before a look-up, where by itself two or three numbers an angle cross, each written and read.
    Seen, and to report, as `recompute_on_cuda`.
    """

    def cut(t, negative):
        t = jnp.minimum(t, most)
        signed = lax.optimization_barrier(jnp.where(negative, -t, t))
        return jnp.abs(signed), signed < 0

    return lax.platform_dependent(t, negative, cuda=cut, default=lambda t, negative: (t, negative))


def vary_key_on_gpu(encrypt, key, lo):
    """Return ``encrypt(key)``; on a GPU the key's words seem to depend on each element's uint32 `lo`.

    The compiler would make a kernel of one thread of what depends on the key alone, and wait for it. Seen with the CUDA
    compiler of JAX 0.11.2 and 0.12.0.1, and assumed of the one for ROCm, which shares it; to report to XLA: scalars
    could be computed again in each thread.
    """

    def varied(key, lo):
        always_zero = (lo >> 31) >> 1
        return encrypt(tuple(word ^ always_zero for word in key))

    return lax.platform_dependent(key, lo, cuda=varied, rocm=varied, default=lambda key, lo: encrypt(key))

"""Draw angles with `sample_von_mises`, and slices of its streams with `sample_block`."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments, environment
from jax_von_mises.compiler.sharding import explicit_sharding
from jax_von_mises.engine import counter
from jax_von_mises.engine.draws import sample
from jax_von_mises.engine.numbers import Numbers
from jax_von_mises.engine.request import Family, Request, draw
from jax_von_mises.von_mises import transform


def sample_von_mises(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> jax.Array:
    r"""Draw angles from the von Mises distribution, without rejection.

    The density is :math:`\exp(\kappa\cos(x-\mu)) / (2\pi I_0(\kappa))`. Element ``i`` of the result, in row-major
    order, is computed from word ``i`` of the key's stream (words ``2 i`` and ``2 i + 1`` in float64; see
    :mod:`jax_von_mises.engine.counter`), whatever the shape, the batch and the device.

    Parameters
    ----------
    key : jax.Array
        One random key of any implementation, typed (``jax.random.key``) or legacy (``jax.random.PRNGKey``).
    loc : float or array
        Mean direction :math:`\mu` in radians; any finite number, reduced to one turn. The result is NaN where `loc` is
        not finite, or so large (above 2^24 in float32) that neighbouring floats are more than a radian apart.
    concentration : float or array
        :math:`\kappa` in [0, inf]. At 0 (or a value too small for a normal float) the distribution is uniform on the
        circle; at inf it is a point mass at `loc`. Negative numbers and NaN give NaN rather than an error, since values
        are unknown while a function is traced.
    shape : int, tuple or array of ints, optional
        Shape of the result, to which `loc` and `concentration` broadcast; by default their broadcast shape.
    dtype : optional
        float32, float64 (64-bit mode only), bfloat16 or float16. The last two are computed in float32 and rounded once.
        The default is the dtype of the floating-point arrays among the arguments, including arrays without axes, or
        JAX's default float if there are none.
    method : {"auto", "direct", "table"}
        How to convert words to angles; the accuracy is the same. "direct" takes any concentrations. "table" takes a
        single one, and is faster for many angles. "auto" uses the table for one concentration and at least 2^14 angles
        (2^13 in float64). Give "direct" or "table" if the last digits of angles must not depend on the shape.
    out_sharding : optional
        Sharding of the result, a `NamedSharding` or a `PartitionSpec` of the mesh in scope (``jax.set_mesh``). Each
        device draws its own part, without communication, and the angles are those that a single device draws. The
        default is the sharding of an argument that has the result's shape and is sharded over an explicit mesh. With
        an explicit sharding, use ``method="direct"`` under `vmap` over keys, since JAX has no sharding rule for the
        table look-up there.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi).

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape, dtype or method, before anything is computed.

    Notes
    -----
    *Accuracy.* Let Q(t) be the distance from `loc` of the angle drawn for the tail probability t, which takes 2^31
    values down to 2^-33 (2^63 values down to 2^-65 in float64). Then
    :math:`|P(|X - \mu| > Q(t)) / (2t) - 1| \le 2\cdot 10^{-6}` (1e-12 in float64), or Q(t) is within 4 ulp of the
    exact distance where floats are too coarse for that. This holds for every concentration.

    *Source.* The density is equation (3.5.17) of K. V. Mardia and P. E. Jupp, *Directional Statistics*, 2000. The page
    *Method* of the documentation derives the quantile function.

    *Derivatives.* Forward and reverse mode use the implicit function theorem. With respect to `loc`, the
    derivative is 1. With respect to `concentration`, it is :math:`-(\partial F/\partial\kappa) / p` at the angle
    drawn, and is finite for every concentration.

    *Streams.* A key gives the same words on every backend, bit for bit. On one backend, one method gives the same
    angles bit for bit in every shape, transformation and program, unless this package's CUDA kernels are turned on.
    In float64, those that the direct method draws for arrays of parameters may differ by 4.5e-16. Angles from a CPU
    and a GPU, or from a kernel of this package and XLA, agree to the accuracy above.

    Examples
    --------
    >>> import jax
    >>> x = sample_von_mises(jax.random.key(0), 0.0, 4.0, (1000,))
    >>> x.shape, x.dtype.name
    ((1000,), 'float32')
    """
    caller = "sample_von_mises"
    values = {"loc": loc, "concentration": concentration}
    return sample(caller, VON_MISES, key, values, shape, dtype, None, method, out_sharding)


def sample_block(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    start: ArrayLike | tuple[ArrayLike, ArrayLike],
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
) -> jax.Array:
    """Draw the angles ``start`` to ``start + prod(shape) - 1`` of a key's stream.

    The block is a slice of the result of a single call of `sample_von_mises`. A long stream can thus be drawn in
    blocks, in any order and on any machine. Blocks of one shape share one compiled program. Blocks of other
    distributions are drawn by ``sample(key, shape, start=start)`` of their classes.

    Parameters
    ----------
    key, loc, concentration, dtype
        As in `sample_von_mises`; `loc` and `concentration` broadcast to the block.
    start : int, traced integer scalar, or pair of them
        Position of the block's first angle, 0 <= start < 2^64. Inside a traced program, `start` may be an int32 or
        uint32 scalar (int64 or uint64 in 64-bit mode). For positions beyond the range of that dtype, give a pair
        ``(hi, lo)`` of uint32, the upper and the lower half. Traced positions count modulo 2^64.
    shape : int or tuple of ints
        Shape of the block, filled in row-major order.
    method : {"auto", "direct", "table"}
        "auto" uses the table for one concentration, whatever the size of the block, so that all blocks of a stream
        agree.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), with the accuracy and the derivatives of `sample_von_mises`.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, or a block that reaches beyond the end of the stream (unless `start` is traced), before
        anything is computed.
    """
    caller = "sample_block"
    request = Request.of(
        caller, VON_MISES, key, {"loc": loc, "concentration": concentration}, shape, dtype, method, by_size=False
    )
    return draw(request.block(caller, arguments.position(caller, start)))


def angles_of(request: Request) -> jax.Array:
    """Return the angles of a request, computed in one program."""
    shape, dtype, route, out_sharding = request.shape, request.dtype, request.route, request.out_sharding
    # Promote explicitly, since users may disable implicit promotion.
    compute = arguments.compute_dtype(dtype)
    loc, concentration = (jnp.asarray(x, compute) for x in request.parameters)
    if out_sharding is None:
        out_sharding = explicit_sharding(shape, loc, concentration)
    # An automatic mesh needs only a constraint on the result; an explicit one needs the sharding of every array.
    automatic = isinstance(out_sharding, NamedSharding) and AxisType.Explicit not in out_sharding.mesh.axis_types
    declared = None if automatic else out_sharding
    generator, key = counter.key_words(request.key)
    given = generator, (key, request.start), shape, dtype, loc, concentration, route
    x = transform.draw(*given, declared, in_rows=out_sharding is None)
    return lax.with_sharding_constraint(x, out_sharding) if automatic else x


def angles_of_numbers(
    numbers: Numbers, parameters: tuple[jax.Array, ...], route: str, sharding: NamedSharding | None
) -> jax.Array:
    """Return angles, as a family's `place`; they are those of `angles_of`."""
    loc, concentration = parameters
    if route == "table":
        concentration = concentration.reshape(())
    return transform.angles(numbers(0), loc, concentration, route, sharding)


def kernel(request: Request) -> jax.stages.Wrapped | None:
    """Return the program of a CUDA kernel that draws a request, if the environment turns them on and one does.

    The module of the kernels is imported only if JAX has a CUDA device.
    """
    if not environment.cuda_kernels():
        return None
    try:
        jax.local_devices(backend="cuda")
    except RuntimeError:  # no CUDA backend, or one that does not start
        return None
    from jax_von_mises.von_mises import cuda

    return cuda.angles_by_kernel if cuda.draws(request) else None


VON_MISES = Family(
    name="von-mises",
    noun="angle",
    parameters={"loc": 0, "concentration": 0},
    place=angles_of_numbers,
    tabulated=("concentration",),
    program=angles_of,
    explicit_meshes=True,
    kernel=kernel,
)

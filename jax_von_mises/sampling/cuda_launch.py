"""Draw angles in one launch of a CUDA kernel from ``kernels/angles.cu``.

The kernels are shipped as PTX, which the driver compiles for the GPU at hand, so no compiler or toolkit is needed.
XLA accepts them in the custom call `TARGET`, which is not a stable interface. `jax.export` rejects a program with such
a call. A draw is therefore a primitive (`draw_primitive`), which an export lowers to the plain path.

One launch draws any number of rows, and `jax.vmap` adds rows. The rows share the values of an operand, or each row has
separate values (`Operand`). Flags tell the kernel which operands are shared (`Rows.flags`).

XLA launches a kernel as follows, according to its source (github.com/openxla/xla; the paths are relative to ``xla/``,
and the hashes are the commits that were read). ``tools/launch_contract.py`` checks compiled programs against this
description:

- The kernel receives the addresses of the operands in order, then that of the result. Scalars are passed by address,
  and equal operands are passed twice (``service/gpu/custom_kernel_emitter_cuda.cc`` 827aca0e,
  ``codegen/emitters/kernel_arguments.cc`` 01288362). XLA does not check the number of arguments against the PTX
  (``stream_executor/cuda/cuda_kernel.cc`` 1e57a34e).
- Grid, block and dynamic shared memory come from the attributes (``service/gpu/kernel_call.cc`` 3be98a5f). XLA does not
  read ``.maxntid``; the driver rejects a larger block.
- Addresses are multiples of 16 bytes for arguments of the program and of 256 bytes for other memory; otherwise the run
  fails (``service/gpu/gpu_executable_buffer_allocator.cc``).
- Without ``input_output_aliases``, the result shares no memory with an operand (``service/gpu/nvptx_alias_info.cc``).
  If the caller donates an operand for the result, XLA copies the result there afterwards.
- Memory is kept until the launch is queued; later work of the same CUDA stream may then reuse it
  (``pjrt/local_device_state.h``). The PTX is loaded before the first run
  (``backends/gpu/runtime/custom_kernel_thunk.cc`` 0a35eaa3), and an error in it is reported only then.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching, mlir

from jax_von_mises.numerics import piecewise, xla
from jax_von_mises.numerics.circle import reduce_turns, wrap
from jax_von_mises.numerics.density import valid
from jax_von_mises.numerics.sharding import broadcast_sharded
from jax_von_mises.sampling import counter, transform

if TYPE_CHECKING:
    from jax.extend.core import Primitive

    from jax_von_mises.sampling.request import DrawRequest

__all__ = ["KERNEL_DTYPES", "KernelSpec", "cipher_of", "devices", "draw_by_kernel", "kernel_angles", "plain_angles"]

PLATFORM, TARGET = "cuda", "__gpu$xla.gpu.ptx"
LEAST_CAPABILITY = 8.0  # compute capability that the PTX is compiled for
KERNEL_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # `Kind` in angles.cu
# Flags in angles.cu: the first four mark operands with separate values for each row, the other two mark operands with
# separate values for each angle.
KEY_ROWS, START_ROWS, CONCENTRATION_ROWS, LOC_ROWS, CONCENTRATIONS, LOCS = (1 << j for j in range(6))
BLOCK_THREADS = 256
# Blocks per multiprocessor, over all rows: enough for the multiprocessors to finish at about the same time, and few
# enough that filling a table of 8 KiB for each block takes negligible time.
BLOCKS = 16
MULTIPROCESSORS = 132  # if a device does not report the number
MOST_ROWS = 65535  # limit of a grid's second dimension; the kernel loops over further rows

# The size and ``in_axes`` of each `jax.vmap` of a draw, the innermost first.
Maps = tuple[tuple[int, tuple[int | None, ...]], ...]


class KernelSpec(NamedTuple):
    """The static arguments of a kernel's launch."""

    cipher: str
    route: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, request: "DrawRequest") -> Self:
        """Return the static arguments of the launch that draws a request."""
        return cls(cipher_of(request.key), request.route, request.dtype.name, request.shape)

    @property
    def name(self) -> str:
        """The kernel's name in the PTX; for the direct route, one kernel serves all dtypes."""
        return f"{self.cipher}_table_{self.dtype}" if self.route == "table" else f"{self.cipher}_direct"


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """Return one CUDA device of each kind in this process; () if any is too old for the kernels."""
    try:
        found = jax.local_devices(backend=PLATFORM)
    except Exception:  # no CUDA backend, or one that does not start
        return ()
    if any(float(getattr(device, "compute_capability", LEAST_CAPABILITY)) < LEAST_CAPABILITY for device in found):
        return ()
    return tuple({device.device_kind: device for device in found}.values())


def cipher_of(key: jax.Array) -> str:
    """Return the name of the cipher that computes a key's words."""
    generator = counter.GENERATORS.get(str(jax.random.key_impl(key)))
    return generator.cipher.__name__ if generator else "threefry4x32"


def draw_by_kernel(
    spec: KernelSpec, key: jax.Array, start: counter.Wide | None, loc: jax.Array, kappa: jax.Array
) -> jax.Array:
    """Draw the angles of a `KernelSpec`, by its kernel on CUDA devices and by the plain path elsewhere.

    Parameters
    ----------
    spec : KernelSpec
    key : uint32 array
        The words of the key, as from `counter.key_words`.
    start : pair of uint32, or None
        Position of the first angle in the stream; None for 0.
    loc, kappa : float32 arrays
        As in `transform.angles`.

    Returns
    -------
    array of the shape and dtype of `spec`
        Differentiable like `transform.angles`, by the implicit function theorem at the angle drawn.
    """
    first = jnp.zeros(2, jnp.uint32) if start is None else jnp.stack([jnp.asarray(half, jnp.uint32) for half in start])
    return _draw_by_kernel(spec, key, first, loc, kappa)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _draw_by_kernel(spec: KernelSpec, key: jax.Array, start: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    operands = key, start, loc, kappa
    x: jax.Array = draw_primitive().bind(*operands, spec=spec, maps=())
    # Inside `jax.shard_map`, the result must be declared to vary over every axis over which an operand varies.
    axes = frozenset().union(*map(_varying, operands)) - _varying(x)
    return lax.pcast(x, tuple(axes), to="varying") if axes else x


@_draw_by_kernel.defjvp
def _draw_by_kernel_jvp(
    spec: KernelSpec, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    key, start, loc, kappa = primals

    def moved(loc: jax.Array, kappa: jax.Array) -> jax.Array:
        x = _about_zero(spec._replace(dtype="float32"), key, start, kappa)
        direction = broadcast_sharded(reduce_turns(loc), spec.shape, None)
        return wrap(x, direction).astype(spec.dtype)

    x: jax.Array
    x, dx = jax.jvp(moved, (loc, kappa), tangents[2:])
    return x, dx


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _about_zero(spec: KernelSpec, key: jax.Array, start: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw float32 angles about 0, from which derivatives are computed."""
    return _draw_by_kernel(spec, key, start, jnp.zeros_like(kappa, shape=()), kappa)


@_about_zero.defjvp
def _about_zero_jvp(
    spec: KernelSpec, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    key, start, kappa = primals
    x = _about_zero(spec, key, start, kappa)
    kappa, moved = (broadcast_sharded(each, spec.shape, None) for each in (kappa, tangents[2]))
    return x, transform.slope(x, kappa) * moved


def _varying(x: jax.Array) -> frozenset[Any]:
    """Return the axes of `jax.shard_map` over which an array varies."""
    axes: frozenset[Any] = jax.typeof(x).manual_axis_type.varying
    return axes


def _by_platform(spec: KernelSpec, *operands: jax.Array) -> jax.Array:
    """Draw by the kernel on CUDA devices and by the plain path elsewhere."""
    by_kernel = {PLATFORM: functools.partial(kernel_angles, spec)}
    x: jax.Array = lax.platform_dependent(*operands, default=functools.partial(plain_angles, spec), **by_kernel)
    return x


def _mapped(draw: Callable[..., jax.Array], *operands: jax.Array, spec: KernelSpec, maps: Maps) -> jax.Array:
    """Draw with every `jax.vmap` in `maps` applied."""
    draw = functools.partial(draw, spec)
    for _, in_axes in maps:
        draw = jax.vmap(draw, in_axes)
    return draw(*operands)


@functools.cache
def draw_primitive() -> "Primitive":
    """Return the primitive of a draw, whose lowering chooses between the kernel and the plain path.

    Its parameter `maps` has the size and ``in_axes`` of each `jax.vmap` of the draw, the innermost first.
    """
    from jax.extend.core import Primitive  # slow to import, since it loads Pallas

    primitive = Primitive("draw_von_mises")
    # Under `jax.disable_jit` nothing is lowered, and the device is unknown.
    primitive.def_impl(functools.partial(_mapped, plain_angles))
    primitive.def_abstract_eval(_drawn)
    batching.primitive_batchers[primitive] = _map_once_more
    mlir.register_lowering(primitive, _lower)
    return primitive


def _drawn(*operands: Any, spec: KernelSpec, maps: Maps) -> jax.core.ShapedArray:
    """Return the abstract result of the primitive."""
    sizes = tuple(size for size, _ in reversed(maps))
    return jax.core.ShapedArray(sizes + spec.shape, np.dtype(spec.dtype))


def _map_once_more(
    operands: Sequence[jax.Array], in_axes: Sequence[int | None], *, spec: KernelSpec, maps: Maps
) -> tuple[jax.Array, int]:
    """Bind the primitive with one more `jax.vmap`."""
    size = next(x.shape[axis] for x, axis in zip(operands, in_axes, strict=True) if axis is not None)
    return draw_primitive().bind(*operands, spec=spec, maps=(*maps, (size, tuple(in_axes)))), 0


def _lower(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
    """Lower the primitive to the kernel where the program allows it, else to the plain path."""
    module = context.module_context
    # `jax.export` rejects a kernel, and XLA cannot split one. The context of a `jax.shard_map` has no `num_devices`.
    alone = getattr(module.axis_context, "num_devices", 1) == 1 and not module.lowering_parameters.for_export
    draw = _by_platform if alone and _one_launch(**parameters) else plain_angles
    # Drop the axes of a mesh from the shapes, since this is the program of one device.
    sharded: Sequence[Any] = context.avals_in
    avals = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in sharded]
    lower = mlir.lower_fun(functools.partial(_mapped, draw), multiple_results=False)
    return lower(context.replace(avals_in=avals), *operands, **parameters)


def _one_launch(spec: KernelSpec, maps: Maps) -> bool:
    """Return whether one launch can draw all rows of `maps`, without repeating a table that rows could share."""
    rows = math.prod(size for size, _ in maps)
    mapped = {in_axes[3] is not None for size, in_axes in maps if size > 1}
    return 0 < rows < 2**32 and not (spec.route == "table" and len(mapped) == 2)


def plain_angles(spec: KernelSpec, key: jax.Array, start: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw the angles of a `KernelSpec` by the plain path."""

    def angles(
        shape: tuple[int, ...], stream: tuple[jax.Array, jax.Array], loc: jax.Array, kappa: jax.Array
    ) -> jax.Array:
        key, start = stream
        # All generators of one cipher have the same form of counter, so the cipher's name serves as the generator's.
        words = counter.block_words(spec.cipher, key, counter.indices(shape, (start[0], start[1])), 1)
        return transform.angles(words, loc, kappa, spec.route)

    return xla.compute_elementwise(angles, spec.shape, np.dtype(spec.dtype), (key, start), loc, kappa)


def kernel_angles(spec: KernelSpec, key: jax.Array, start: jax.Array, loc: jax.Array, kappa: jax.Array) -> jax.Array:
    """Draw by the kernel, in one launch."""
    of_loc = Operand.of_angles(loc, spec.shape)
    if spec.route == "table":
        # Transposed, so that a thread reads the four coefficients of a cell at once.
        concentration = Operand(piecewise.quantile_table(valid(kappa.reshape(()))).T)
    else:
        concentration = Operand.of_angles(kappa, spec.shape)
    rows = Rows(spec, 1, Operand(key), Operand(start), concentration, of_loc)
    x: jax.Array = _launch_rows(rows).reshape(spec.shape)
    return x


@functools.partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("per_row", "per_element"))
@dataclasses.dataclass(frozen=True)
class Operand:
    """An operand of a kernel; a pytree in which the layout is static."""

    values: jax.Array | np.ndarray[Any, Any]
    per_row: bool = False
    """Whether each row has its own values, along a leading axis; otherwise the rows share them."""
    per_element: bool = False
    """Whether each angle of a row has its own value, along a flat last axis."""

    @classmethod
    def of_angles(cls, x: jax.Array, shape: tuple[int, ...]) -> Self:
        """Lay out a parameter of one draw, as a scalar if it has a single element, else with a value for each angle."""
        if x.size == 1:
            return cls(x.reshape(()))
        return cls(jnp.broadcast_to(x, shape).reshape(-1), per_element=True)

    def for_batch(self, size: int, batched: bool, rows: int) -> "Operand":
        """Lay out `rows` rows for each of `size` batch elements; if `batched`, `values` has a leading batch axis."""
        x = self.values
        if batched and self.per_row:
            x = x.reshape(size * rows, *x.shape[2:])
        elif batched:
            x = jnp.repeat(x, rows, axis=0)
        elif self.per_row:
            x = jnp.tile(x, (size,) + (1,) * (x.ndim - 1))
        return Operand(x, self.per_row or batched, self.per_element)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "start", "concentration", "loc"),
    meta_fields=("spec", "count"),
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """The draws of one launch, one in each row; a pytree of the operands."""

    spec: KernelSpec
    """The static arguments, in which the shape is that of one row."""
    count: int
    key: Operand
    start: Operand
    concentration: Operand
    """Concentrations for the direct route, a table of the quantile function for the table route."""
    loc: Operand

    @property
    def flags(self) -> int:
        """The layout of the operands, encoded for the kernel."""
        held = {
            KEY_ROWS: self.key.per_row,
            START_ROWS: self.start.per_row,
            CONCENTRATION_ROWS: self.concentration.per_row,
            LOC_ROWS: self.loc.per_row,
            CONCENTRATIONS: self.concentration.per_element,
            LOCS: self.loc.per_element,
        }
        return sum(flag for flag, holds in held.items() if holds)

    def for_batch(self, size: int, batched: "Rows") -> "Rows":
        """Lay out these rows for each of `size` elements of a batch; `batched` has booleans in place of the arrays."""

        def operand(name: str) -> Operand:
            of_rows: Operand = getattr(self, name)
            return of_rows.for_batch(size, getattr(batched, name).values, self.count)

        operands: dict[str, Any] = {name: operand(name) for name in ("key", "start", "concentration", "loc")}
        return dataclasses.replace(self, count=size * self.count, **operands)


@jax.custom_batching.custom_vmap
def _launch_rows(rows: Rows) -> jax.Array:
    """Launch the kernel once; the result has an axis of rows and an axis of their angles."""
    kernel, operands = launch_arguments(rows)
    return launch(*kernel, *map(jnp.asarray, operands))


def launch_arguments(
    rows: Rows,
) -> tuple[tuple[str, tuple[int, int], tuple[int, int], jax.ShapeDtypeStruct], tuple[Any, ...]]:
    """Return the first four arguments of `launch` for `Rows`, and the operands."""
    spec, size = rows.spec, math.prod(rows.spec.shape)
    grid, block = _grid(size, rows.count, spec.route == "table", rows.concentration.per_row)
    sizes = np.array([size % 2**32, size >> 32, rows.count, rows.flags, KERNEL_DTYPES[spec.dtype]], np.uint32)
    key, start, concentration, loc = jax.tree.leaves(rows)
    out = jax.ShapeDtypeStruct((rows.count, size), spec.dtype)
    return (spec.name, grid, block, out), (key, start, sizes, concentration, loc)


@_launch_rows.def_vmap
def _launch_more_rows(size: int, batched: Sequence[Rows], rows: Rows) -> tuple[jax.Array, bool]:
    x: jax.Array = _launch_rows(rows.for_batch(size, *batched))
    return x.reshape(size, rows.count, -1), True


def _grid(count: int, rows: int, table: bool, table_per_row: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the numbers of blocks and of threads per block, each along a row of `count` angles and across `rows` rows.

    The kernel loops over the remaining angles and rows. If `table` is true, each block copies one table to shared
    memory, or one table for each row if `table_per_row` is also true.
    """
    cores = getattr(next(iter(devices()), None), "core_count", None)
    limit = BLOCKS * (cores if isinstance(cores, int) and cores > 0 else MULTIPROCESSORS)
    # One more group of four words than the angles fill, since they may start inside a group.
    groups = _ceiling(count + 4, 4)
    wide = min(BLOCK_THREADS, 1 << (groups - 1).bit_length())
    # Short rows share a block unless they have separate tables.
    high = 1 if table and table_per_row else min(BLOCK_THREADS // wide, rows)
    over = _ceiling(rows, high)
    # If all rows share a table, each block takes the same number of rows.
    over = _ceiling(over, _ceiling(over, limit)) if table and not table_per_row else min(over, MOST_ROWS)
    return (min(_ceiling(groups, wide), _ceiling(limit, over)), over), (wide, high)


def _ceiling(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def launch(
    name: str, grid: tuple[int, int], block: tuple[int, int], out: jax.ShapeDtypeStruct, *operands: jax.Array
) -> jax.Array:
    """Launch a kernel, whose arguments are pointers to the operands and the result, over a grid of thread blocks."""
    numbers = {"grid_x": grid[0], "grid_y": grid[1], "grid_z": 1, "shared_mem_bytes": 0}
    numbers |= {"block_x": block[0], "block_y": block[1], "block_z": 1}
    return jax.ffi.ffi_call(TARGET, out, custom_call_api_version=4)(
        *operands,
        name=name,
        kernel_type="ptx",
        kernel_data=kernel_text(name),
        **{key: np.int32(value) for key, value in numbers.items()},
    )


@functools.cache
def ptx_text() -> str:
    """Return the shipped PTX of all kernels."""
    return resources.files("jax_von_mises.sampling").joinpath("kernels", "angles.ptx").read_text(encoding="ascii")


def kernel_text(name: str) -> str:
    """Return the PTX of one kernel."""
    head, parts = _ptx()
    return head + parts[name]


@functools.cache
def _ptx() -> tuple[str, dict[str, str]]:
    """Return the head of the shipped PTX, and the part of each kernel by name."""
    head, *parts = re.split(r"(?=^\.visible \.entry )", ptx_text(), flags=re.M)
    return head, {re.findall(r"^\.visible \.entry (\w+)\(", part)[0]: part for part in parts}

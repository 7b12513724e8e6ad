"""Draw angles by one launch of a CUDA kernel of ``kernels/angles.cu``.

The kernels are shipped as PTX, a text that the driver compiles for the GPU at hand: neither a compiler nor a toolkit is
needed. XLA takes them by the custom call `TARGET`, which is not a stable interface. `jax.export` refuses a program with
one, so a draw is a primitive (`draw_primitive`), which is lowered to the plain path for an export.

One launch makes any number of rows, each a draw. `jax.vmap` adds rows, and an operand (`Operand`) is shared by all rows
or has a value for each. The kernel reads which from flags (`Rows.flags`).

XLA's side of a launch, by its source (github.com/openxla/xla, files under ``xla/``, with the commit that was read).
``tools/launch_contract.py`` checks it on compiled programs:

- The kernel gets the addresses of the operands in their order, then of the result. Scalars are passed by address, and
  equal operands twice (``service/gpu/custom_kernel_emitter_cuda.cc`` 827aca0e, ``codegen/emitters/kernel_arguments.cc``
  01288362). Nothing compares their number with the PTX (``stream_executor/cuda/cuda_kernel.cc`` 1e57a34e).
- Grid, block and dynamic shared memory are the attributes (``service/gpu/kernel_call.cc`` 3be98a5f). XLA does not read
  ``.maxntid``; the driver refuses a larger block.
- Addresses are multiples of 16 bytes for arguments of the program and of 256 for other memory, or the run fails
  (``service/gpu/gpu_executable_buffer_allocator.cc``).
- The result shares no memory with an operand (``service/gpu/nvptx_alias_info.cc``) without ``input_output_aliases``.
  Where the caller donates an operand for it, XLA copies the result there afterwards.
- Memory is kept until the launch is queued, then goes to later work of the same stream (``pjrt/local_device_state.h``).
  The PTX is loaded before the first run (``backends/gpu/runtime/custom_kernel_thunk.cc`` 0a35eaa3), and an error in it
  shows only then.
"""

import dataclasses
import functools
import math
import re
from importlib import resources
from typing import NamedTuple

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

__all__ = ["KERNEL_DTYPES", "KernelSpec", "cipher_of", "devices", "draw_by_kernel", "kernel_angles", "plain_angles"]

PLATFORM, TARGET = "cuda", "__gpu$xla.gpu.ptx"
LEAST_CAPABILITY = 8.0  # of a device, for the target of the PTX
KERNEL_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # `Kind` of angles.cu
# Of angles.cu: which operands have a row for each row of the result, and an element for each element.
KEY_ROWS, START_ROWS, CONCENTRATION_ROWS, LOC_ROWS, CONCENTRATIONS, LOCS = (1 << j for j in range(6))
BLOCK_THREADS = 256
# For each multiprocessor: enough blocks, of all rows together, that all end at about the same time, and few enough that
# filling their tables of 8 KiB is nothing.
BLOCKS = 16
MULTIPROCESSORS = 132  # where a device does not report its own
MOST_ROWS = 65535  # of a grid's second dimension; the kernel goes round


class KernelSpec(NamedTuple):
    """What a kernel's launch depends on besides its operands."""

    cipher: str
    route: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, request):
        """Return the launch that draws a `DrawRequest`."""
        return cls(cipher_of(request.key), request.route, request.dtype.name, request.shape)

    @property
    def name(self):
        """The kernel's name in the PTX; with the direct route one kernel rounds to every dtype."""
        return f"{self.cipher}_table_{self.dtype}" if self.route == "table" else f"{self.cipher}_direct"


@functools.cache
def devices():
    """Return one CUDA device of this process for each kind; none where one is too old for the kernels."""
    try:
        found = jax.local_devices(backend=PLATFORM)
    except Exception:  # no such backend, or one that does not start
        return ()
    if any(float(getattr(device, "compute_capability", LEAST_CAPABILITY)) < LEAST_CAPABILITY for device in found):
        return ()
    return tuple({device.device_kind: device for device in found}.values())


def cipher_of(key):
    """Return the name of the cipher that makes a key's words."""
    generator = counter.GENERATORS.get(str(jax.random.key_impl(key)))
    return generator.cipher.__name__ if generator else "threefry4x32"


def draw_by_kernel(spec, key, start, loc, kappa):
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
        With the derivatives of `transform.angles`: by the implicit function theorem at the angle drawn.
    """
    start = jnp.zeros(2, jnp.uint32) if start is None else jnp.stack([jnp.asarray(half, jnp.uint32) for half in start])
    return _draw_by_kernel(spec, key, start, loc, kappa)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _draw_by_kernel(spec, key, start, loc, kappa):
    operands = key, start, loc, kappa
    x = draw_primitive().bind(*operands, spec=spec, maps=())
    # Inside `jax.shard_map` the primitive does not say that its result varies where an operand does.
    axes = frozenset().union(*map(_varying, operands)) - _varying(x)
    return lax.pcast(x, tuple(axes), to="varying") if axes else x


@_draw_by_kernel.defjvp
def _draw_by_kernel_jvp(spec, primals, tangents):
    key, start, loc, kappa = primals

    def moved(loc, kappa):
        x = _about_zero(spec._replace(dtype="float32"), key, start, kappa)
        direction = broadcast_sharded(reduce_turns(loc), spec.shape, None)
        return wrap(x, direction).astype(spec.dtype)

    return jax.jvp(moved, (loc, kappa), tangents[2:])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _about_zero(spec, key, start, kappa):
    """Draw float32 angles about 0: a derivative needs nothing else."""
    return _draw_by_kernel(spec, key, start, jnp.zeros_like(kappa, shape=()), kappa)


@_about_zero.defjvp
def _about_zero_jvp(spec, primals, tangents):
    key, start, kappa = primals
    x = _about_zero(spec, key, start, kappa)
    kappa, moved = (broadcast_sharded(each, spec.shape, None) for each in (kappa, tangents[2]))
    return x, transform.slope(x, kappa) * moved


def _varying(x):
    return jax.typeof(x).manual_axis_type.varying


def _by_platform(spec, *operands):
    """Draw by the kernel on CUDA devices and by the plain path elsewhere."""
    by_kernel = {PLATFORM: functools.partial(kernel_angles, spec)}
    return lax.platform_dependent(*operands, default=functools.partial(plain_angles, spec), **by_kernel)


def _mapped(draw, *operands, spec, maps):
    draw = functools.partial(draw, spec)
    for _, in_axes in maps:
        draw = jax.vmap(draw, in_axes)
    return draw(*operands)


@functools.cache
def draw_primitive():
    """Return the primitive of a draw: its lowering alone knows what a program is for.

    Its parameter `maps` has the size and ``in_axes`` of each `jax.vmap` of the draw, the innermost first.
    """
    from jax.extend.core import Primitive  # slow to import: it brings Pallas

    primitive = Primitive("draw_von_mises")
    # Without compilation (`jax.disable_jit`) the device is unknown.
    primitive.def_impl(functools.partial(_mapped, plain_angles))
    primitive.def_abstract_eval(_drawn)
    batching.primitive_batchers[primitive] = _map_once_more
    mlir.register_lowering(primitive, _lower)
    return primitive


def _drawn(*operands, spec, maps):
    sizes = tuple(size for size, _ in reversed(maps))
    return jax.core.ShapedArray(sizes + spec.shape, np.dtype(spec.dtype))


def _map_once_more(operands, in_axes, *, spec, maps):
    size = next(x.shape[axis] for x, axis in zip(operands, in_axes, strict=True) if axis is not None)
    return draw_primitive().bind(*operands, spec=spec, maps=(*maps, (size, tuple(in_axes)))), 0


def _lower(context, *operands, **parameters):
    module = context.module_context
    # `jax.export` refuses a kernel, and XLA cannot split one. Inside `jax.shard_map` no number of devices is given.
    alone = getattr(module.axis_context, "num_devices", 1) == 1 and not module.lowering_parameters.for_export
    draw = _by_platform if alone and _one_launch(**parameters) else plain_angles
    # Without the axes of a mesh: here each device's part is all there is.
    avals = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
    lower = mlir.lower_fun(functools.partial(_mapped, draw), multiple_results=False)
    return lower(context.replace(avals_in=avals), *operands, **parameters)


def _one_launch(spec, maps):
    """Whether one launch draws all rows of `maps`, with no table repeated for rows that could share it."""
    rows = math.prod(size for size, _ in maps)
    mapped = {in_axes[3] is not None for size, in_axes in maps if size > 1}
    return 0 < rows < 2**32 and not (spec.route == "table" and len(mapped) == 2)


def plain_angles(spec, key, start, loc, kappa):
    """Draw by XLA what the kernel draws."""

    def angles(shape, stream, loc, kappa):
        key, start = stream
        # Generators of one cipher have one form of counter.
        words = counter.block_words(spec.cipher, key, counter.indices(shape, (start[0], start[1])), 1)
        return transform.angles(words, loc, kappa, spec.route)

    return xla.compute_elementwise(angles, spec.shape, spec.dtype, (key, start), loc, kappa)


def kernel_angles(spec, key, start, loc, kappa):
    """Draw by the kernel, in one launch."""
    loc = Operand.of_angles(loc, spec.shape)
    if spec.route == "table":
        # Rows of four coefficients, which a thread reads at once.
        concentration = Operand(piecewise.quantile_table(valid(kappa.reshape(()))).T)
    else:
        concentration = Operand.of_angles(kappa, spec.shape)
    rows = Rows(spec, 1, Operand(key), Operand(start), concentration, loc)
    return _launch_rows(rows).reshape(spec.shape)


@functools.partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("per_row", "per_element"))
@dataclasses.dataclass(frozen=True)
class Operand:
    """An operand of a kernel; a pytree with the layout static."""

    values: jax.Array
    per_row: bool = False
    """Whether each row has its own values, along a leading axis; else the rows share them."""
    per_element: bool = False
    """Whether each angle of a row has its own value, along a flat last axis."""

    @classmethod
    def of_angles(cls, x, shape):
        """Lay out a parameter of the angles of one draw: a scalar if it has one value, else one for each angle."""
        if x.size == 1:
            return cls(x.reshape(()))
        return cls(jnp.broadcast_to(x, shape).reshape(-1), per_element=True)

    def for_batch(self, size, batched, rows):
        """Lay out `rows` rows for each of `size` elements of a batch, the leading axis of `values` if `batched`."""
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
    """Draws that one launch makes, a row for each; a pytree of the operands."""

    spec: KernelSpec
    """What each row draws."""
    count: int
    key: Operand
    start: Operand
    concentration: Operand
    """By the direct route concentrations, by the table route a table of the quantile."""
    loc: Operand

    @property
    def flags(self):
        """The layout of the operands as the kernel reads it."""
        held = {
            KEY_ROWS: self.key.per_row,
            START_ROWS: self.start.per_row,
            CONCENTRATION_ROWS: self.concentration.per_row,
            LOC_ROWS: self.loc.per_row,
            CONCENTRATIONS: self.concentration.per_element,
            LOCS: self.loc.per_element,
        }
        return sum(flag for flag, holds in held.items() if holds)

    def for_batch(self, size, batched):
        """Lay out these rows for each of `size` elements of a batch; `batched` has the same structure, of booleans."""

        def operand(name):
            return getattr(self, name).for_batch(size, getattr(batched, name).values, self.count)

        operands = {name: operand(name) for name in ("key", "start", "concentration", "loc")}
        return dataclasses.replace(self, count=size * self.count, **operands)


@jax.custom_batching.custom_vmap
def _launch_rows(rows):
    """Launch the kernel once; the result has an axis of the rows and one of their angles."""
    kernel, operands = launch_arguments(rows)
    return launch(*kernel, *map(jnp.asarray, operands))


def launch_arguments(rows):
    """Return the arguments of `launch` for `Rows`: the first four, and the operands."""
    spec, size = rows.spec, math.prod(rows.spec.shape)
    grid, block = _grid(size, rows.count, spec.route == "table", rows.concentration.per_row)
    sizes = np.array([size % 2**32, size >> 32, rows.count, rows.flags, KERNEL_DTYPES[spec.dtype]], np.uint32)
    key, start, concentration, loc = jax.tree.leaves(rows)
    out = jax.ShapeDtypeStruct((rows.count, size), spec.dtype)
    return (spec.name, grid, block, out), (key, start, sizes, concentration, loc)


@_launch_rows.def_vmap
def _launch_more_rows(size, batched, rows):
    x = _launch_rows(rows.for_batch(size, *batched))
    return x.reshape(size, rows.count, -1), True


def _grid(count, rows, table, table_per_row):
    """Return the blocks along a row of `count` angles and over `rows`, and the threads of a block along each.

    The kernel goes round in both. By the `table` route each block fills one, or one for each row (`table_per_row`).
    """
    cores = getattr(next(iter(devices()), None), "core_count", None)
    limit = BLOCKS * (cores if isinstance(cores, int) and cores > 0 else MULTIPROCESSORS)
    # A group more than there may be, for a start inside of one.
    groups = _ceiling(count + 4, 4)
    wide = min(BLOCK_THREADS, 1 << (groups - 1).bit_length())
    # Short rows share a block, if they share its table.
    high = 1 if table and table_per_row else min(BLOCK_THREADS // wide, rows)
    over = _ceiling(rows, high)
    # Where a table serves all rows, a block takes several, and each as many as the others.
    over = _ceiling(over, _ceiling(over, limit)) if table and not table_per_row else min(over, MOST_ROWS)
    return (min(_ceiling(groups, wide), _ceiling(limit, over)), over), (wide, high)


def _ceiling(a, b):
    """Return a / b, rounded up."""
    return -(-a // b)


def launch(name, grid, block, out, *operands):
    """Launch a kernel over a grid of blocks of threads; its arguments are pointers to the operands and the result."""
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
def ptx_text():
    """Return the shipped text of all kernels."""
    return resources.files("jax_von_mises.sampling").joinpath("kernels", "angles.ptx").read_text(encoding="ascii")


def kernel_text(name):
    """Return the text of one kernel."""
    head, parts = _ptx()
    return head + parts[name]


@functools.cache
def _ptx():
    """Return the head of the shipped text, and each kernel's part by its name."""
    head, *parts = re.split(r"(?=^\.visible \.entry )", ptx_text(), flags=re.M)
    return head, {re.match(r"\.visible \.entry (\w+)\(", part)[1]: part for part in parts}

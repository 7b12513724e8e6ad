"""Check how XLA launches the CUDA kernels, on a machine without a GPU.

`cuda_launch` uses a custom call that any release of XLA may change. This script compiles programs for an H100, and
compares the launch that each executable describes with the launch that the kernel expects. It also introduces each
fault in `PLANTED` on purpose, and must find it. ``make test-gpu-programs`` runs the script for several releases of JAX.
In the environment that `tools.gpu_programs` needs, run from the repository root::

    python -m tools.launch_contract    # exit code 1 if anything differs

An executable is a protocol buffer in Riegeli records, compressed with Snappy; this module reads the parts of these
formats that it needs. The field numbers are those of XLA's ``gpu_executable.proto``, ``thunk.proto``,
``custom_kernel.proto`` and ``kernel_spec.proto``.
"""

import math
import re
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

from jax_von_mises.sampling import cuda_launch
from tools import gpu_programs

SOURCE = gpu_programs.HERE.parent / "jax_von_mises" / "sampling" / "kernels" / "angles.cu"
RIEGELI = bytes.fromhex("83af70d10d884a3f")
COUNT = 1000
# The kernels read the table and write the result in pieces of 16 bytes.
ALIGNMENT = 16
TABLE_BYTES = 512 * 16
# Shared memory that a block can use without requesting more.
SHARED_BYTES = 48 * 1024


class Argument(NamedTuple):
    """A buffer whose address the kernel receives."""

    name: str
    allocation: int
    offset: int
    size: int
    row_major: bool = True
    written: bool = False


class Launch(NamedTuple):
    """A launch as an executable describes it."""

    name: str
    text: str
    arguments: tuple[Argument, ...]
    order: tuple[int, ...]
    """Index of the argument that each parameter of the kernel receives."""
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    unknown: tuple[str, ...] = ()
    """Fields that are set, but were not set when this module was written."""


class Case(NamedTuple):
    """A program with one launch."""

    function: Callable
    parameters: dict
    """Shape and dtype of each parameter of the program, by the parameter's name (or names) in the kernel's source."""
    spec: cuda_launch.KernelSpec
    rows: int = 1
    tables: int = 1
    donated: tuple[int, ...] = ()


def varint(data, at):
    """Return the number at position `at`, stored with seven bits per byte, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def decompress(data):
    """Decompress Snappy data."""
    (size, at), out = varint(data, 0), bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        if tag & 3 == 0:
            wide, length = max(0, (tag >> 2) - 59), tag >> 2
            if wide:
                length = int.from_bytes(data[at : at + wide], "little")
            out += data[at + wide : at + wide + length + 1]
            at += wide + length + 1
            continue
        wide, length = (1, 2, 4)[(tag & 3) - 1], (tag >> 2) + 1
        back = int.from_bytes(data[at : at + wide], "little")
        if wide == 1:
            back, length = back | tag >> 5 << 8, (tag >> 2 & 7) + 4
        at += wide
        for _ in range(length):
            out.append(out[-back])
    if len(out) != size:
        raise ValueError("damaged Snappy data")
    return bytes(out)


def records(data):
    """Yield the records of a Riegeli file, and of the Riegeli files inside it."""
    data = data[data.index(RIEGELI) :]
    # Each block of 64 KiB begins with a header of 24 bytes, and each chunk with one of 40.
    data, at = b"".join(data[start + 24 : start + 2**16] for start in range(0, len(data), 2**16)), 0
    while at + 40 <= len(data):
        size, kind = struct.unpack_from("<8xQ8xB", data, at)
        chunk, at = data[at + 40 : at + 40 + size], at + 40 + size
        if kind not in b"smprt" or at > len(data):
            return  # beyond the end of the file
        if kind in b"smp":
            continue
        if kind != ord("r") or chunk[0] not in (0, ord("s")):
            raise ValueError(f"records of kind {kind}, compressed by {chunk[:1]!r}")
        length, first = varint(chunk, 1)
        parts = chunk[first : first + length], chunk[first + length :]
        sizes, values = (decompress(part[varint(part, 0)[1] :]) if chunk[0] else part for part in parts)
        place = first = 0
        while place < len(sizes):
            length, place = varint(sizes, place)
            record, first = values[first : first + length], first + length
            yield from records(record) if record.startswith(RIEGELI) else (record,)


def message(data):
    """Return the values of each field of a protocol buffer, varints as int and all others as bytes."""
    fields, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 in (1, 2, 5):
            length, at = varint(data, at) if tag & 7 == 2 else (8 if tag & 7 == 1 else 4, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError("not a protocol buffer")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def get(data, *path, default=0):
    """Return the first value at a path of field numbers, or `default` if there is none."""
    for number in path:
        data = message(data).get(number, [None])[0]
        if data is None:
            return default
    return data


def read_launch(executable, parameters):
    """Return the `Launch` of the package's only kernel in a serialized executable."""
    for record in records(executable):
        try:
            program = message(record)
            kernels = [each for thunk in program.get(13, ()) for each in message(thunk).get(36, ())]
        except (ValueError, IndexError, TypeError):  # another record, such as the machine code of XLA's own kernels
            continue
        ours = [each for each in kernels if get(each, 3, 2, 4, default=b"").decode() in cuda_launch._ptx()[1]]
        if ours:
            (kernel,) = ours
            allocations = [message(each) for each in message(program[10][0])[1]]
            return launch_of(kernel, {each.get(1, [0])[0]: each for each in allocations}, parameters)
    raise LookupError("no launch of a kernel of the package")


def launch_of(thunk, allocations, parameters):
    """Return the `Launch` that XLA's thunk of a custom kernel describes."""
    fields = message(thunk)
    kernel = message(fields[3][0])
    spec = message(kernel[2][0])

    def argument(data, written):
        place, layout = get(data, 1), get(data, 2, 5, 1, default=b"")
        allocation = allocations[get(place, 3)]
        if written:
            name = "out"
        elif 5 in allocation:
            name = parameters[allocation.get(6, [0])[0]]
        else:
            name = "sizes" if 12 in allocation else "table"
        row_major = list(layout) == sorted(layout, reverse=True)
        return Argument(name, get(place, 3), get(place, 1), get(place, 2), row_major, bool(written))

    def dimensions(data, number):
        return tuple(get(data, number, axis, default=1) for axis in (1, 2, 3))

    known = (("thunk", fields, (1, 2, 3)), ("kernel", kernel, (1, 2, 3, 4, 6)), ("kernel's text", spec, (1, 3, 4, 5)))
    return Launch(
        name=spec[4][0].decode(),
        text=get(spec[1][0], 1).decode(),
        arguments=tuple(argument(*each) for each in zip(fields[1], fields[2][0], strict=True)),
        order=tuple(get(each, 1, 2) for each in message(spec[5][0])[1]),
        grid=dimensions(kernel[3][0], 2),
        block=dimensions(kernel[4][0], 1),
        shared=kernel.get(6, [0])[0],
        unknown=tuple(
            f"{number} of the {what}"
            for what, there, numbers in known
            for number, values in there.items()
            if number not in numbers and any(values)
        ),
    )


def cases():
    """Return the cases to compile, by name."""

    def angles(route, dtype="float32"):
        spec = cuda_launch.KernelSpec("threefry2x32", route, dtype, (COUNT,))
        return lambda key, start, loc, kappa: cuda_launch.kernel_angles(spec, key, start, loc, kappa), spec

    words, one, many = ((2,), "uint32"), ((), "float32"), ((COUNT,), "float32")
    arrays = {"key": words, "start": words, "loc": many, "kappa": many}
    twice = {"key": words, "start": words, "loc kappa": many}
    numbers = {"key": words, "start": words, "loc": one, "table": one}
    rows = {"key": ((3, 2), "uint32"), "start": words, "loc": one, "table": ((3,), "float32")}
    (direct, of_direct), (table, of_table) = angles("direct"), angles("table")
    return {
        "arrays": Case(direct, arrays, of_direct),
        "donated": Case(direct, arrays, of_direct, donated=(2,)),
        "one array twice": Case(lambda key, start, x: direct(key, start, x, x), twice, of_direct),
        "table": Case(table, numbers, of_table),
        "bfloat16": Case(angles("table", "bfloat16")[0], numbers, angles("table", "bfloat16")[1]),
        "three rows": Case(jax.vmap(table, in_axes=(0, None, None, 0)), rows, of_table, rows=3, tables=3),
    }


def compile_case(case, sharding):
    """Compile a case and return its `Launch`."""
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in case.parameters.values()]
    compiled = jax.jit(case.function, donate_argnums=case.donated).lower(*given).compile()
    return read_launch(compiled.runtime_executable().serialize(), list(case.parameters))


def parameters_of(route):
    """Return the names of the parameters of a route's kernels in their source."""
    found = re.search(rf"define {route.upper()}_KERNEL\(.*?\bname\((.*?)\)", SOURCE.read_text(), re.S)
    return re.findall(r"\*(\w+)", found[1])


def faults(launch, case):
    """Yield a description of each difference between a launch and what its kernel expects."""
    spec, arguments, taken = case.spec, launch.arguments, parameters_of(case.spec.route)
    part, size = cuda_launch.kernel_text(spec.name), math.prod(spec.shape)
    if launch.name != spec.name or launch.text != part:
        yield f"the kernel is {launch.name} instead of {spec.name}, or its text differs"
    of_text = len(re.findall(r"\.param \.u64", part))
    if not len(arguments) == of_text == len(taken):
        yield f"XLA passes {len(arguments)} arguments, the PTX takes {of_text}, its source {len(taken)}"
    if launch.order != tuple(range(len(arguments))):
        yield f"the kernel's parameters receive the arguments in the order {launch.order}"

    sizes = {name: math.prod(shape) * jnp.dtype(dtype).itemsize for name, (shape, dtype) in case.parameters.items()}
    sizes = {each: length for name, length in sizes.items() for each in name.split()}
    sizes |= {"sizes": 20, "table": case.tables * TABLE_BYTES, "out": case.rows * size * jnp.dtype(spec.dtype).itemsize}
    for place, (argument, name) in enumerate(zip(arguments, taken, strict=False)):
        if name not in argument.name.split():
            yield f"argument {place} is {argument.name} instead of {name}"
            continue
        if argument.size != sizes[name]:
            yield f"{name} has {argument.size} bytes instead of {sizes[name]}"
        if not argument.row_major:
            yield f"{name} is not in row-major order"
        if name in ("table", "out") and argument.offset % ALIGNMENT:
            yield f"{name} is not aligned to {ALIGNMENT} bytes"
        for out in arguments:
            apart = min(out.offset + out.size, argument.offset + argument.size) <= max(out.offset, argument.offset)
            if out.written and not argument.written and out.allocation == argument.allocation and not apart:
                yield f"the result is written over {name}"

    grid, block = cuda_launch._grid(size, case.rows, spec.route == "table", case.tables > 1)
    for what, found, wanted in (("grid", launch.grid, (*grid, 1)), ("block", launch.block, (*block, 1))):
        if found != wanted:
            yield f"the {what} is {found} instead of {wanted}"
    most = math.prod(map(int, re.search(r"\.maxntid (\d+), (\d+), (\d+)", part).groups()))
    if math.prod(launch.block) > most:
        yield f"a block has {math.prod(launch.block)} threads, but the kernel allows {most}"
    static = sum(map(int, re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", part)))
    if launch.shared or static > SHARED_BYTES:
        yield f"the kernel has {static} bytes of shared memory, and XLA adds {launch.shared}"
    for field in launch.unknown:
        yield f"XLA sets field {field}, which it did not set before"


# Faults introduced on purpose in the case "arrays"; each function changes the arguments of `cuda_launch.launch`.
PLANTED = {
    "operands in another order": lambda *given: (*given[:-2], given[-1], given[-2]),
    "one block too many": lambda name, grid, *rest: (name, (grid[0] + 1, grid[1]), *rest),
    "one operand too few": lambda *given: given[:-1],
}


def check(sharding):
    """Yield each difference, and each planted fault that is not found."""
    for name, case in cases().items():
        try:
            found = list(faults(compile_case(case, sharding), case))
        except Exception as error:
            found = [f"XLA rejects the call, or its executables have another format: {type(error).__name__}: {error}"]
        yield from (f"{name}: {fault}" for fault in found)
    launch, case = cuda_launch.launch, cases()["arrays"]
    for name, change in PLANTED.items():
        jax.clear_caches()
        with mock.patch.object(cuda_launch, "launch", lambda *given, change=change: launch(*change(*given))):
            found = list(faults(compile_case(case, sharding), case))
        print(f"planted, {name}: {'; '.join(found)}", file=sys.stderr)
        if not found:
            yield f"planted, {name}: not found"


def main():
    """Print all differences; return the exit code."""
    jax.config.update("jax_platforms", "cpu")
    found = [f"JAX {jax.__version__}: {fault}" for fault in check(gpu_programs.h100())]
    print("\n".join(found) or f"JAX {jax.__version__} launches the kernels as expected")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

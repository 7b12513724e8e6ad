"""Launch the kernels of a PTX text on the CPU."""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tools.ptx.translate import translate

__all__ = ["FAULTS", "Fault", "Machine", "compiler"]

SOURCE = Path(__file__).with_name("machine.c")
# As in the PTX, products and sums are not contracted to fused multiply-adds. The native `fmaf` makes launches several
# times as fast.
OPTIONS = ("-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")
# In the order of `fault` in machine.c.
FAULTS = (
    "an access outside of every operand and of the result",
    "a misaligned access",
    "a byte of the result written twice",
    "a misaligned access to shared memory, or one outside of it",
    "shared memory read before it is written",
    "two threads at the same shared memory with no barrier between them",
    "threads that do not all reach the same barrier",
    "a division by zero",
    "a loop without an end",
)
NOT_WRITTEN = "a byte of the result that is not written"


class Fault(Exception):
    """An error of a kernel or its launch; `text` is from `FAULTS` or `NOT_WRITTEN`, or names a broken launch rule."""

    def __init__(self, kernel, text, line=None):
        super().__init__(f"{kernel}: {text}" + (f", line {line} of its body" if line else ""))
        self.text = text


class _Pair(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32)]


class _Buffer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("first", "end", "bytes", "written")]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_int32),
        ("grid", _Pair),
        ("block", _Pair),
        ("least_error", ctypes.c_double),
        ("most_error", ctypes.c_double),
    ]


class Part(NamedTuple):
    """A part of an operand or result that is too large for this machine, and the offset of the part in bytes."""

    array: np.ndarray
    offset: int


def _parts(operand):
    if isinstance(operand, Part):
        return (operand,)
    return operand if isinstance(operand, tuple) else (Part(np.ascontiguousarray(operand), 0),)


def compiler():
    """Return the command that compiles C here, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


class Machine:
    """The kernels of a PTX text; each is compiled at its first launch."""

    def __init__(self, text):
        self.kernels = translate(text)
        self._built = functools.cache(self._build)

    def _build(self, name):
        """Compile a kernel, and return the library."""
        source = SOURCE.read_text() + self.kernels[name].source
        source += "int launch(const Launch *launch, const uint64_t *given, Pair from, Pair to, int *line) {\n"
        source += f"  return run(entry_{name}, launch, given, from, to, line);\n}}\n"
        with tempfile.TemporaryDirectory() as folder:
            file, target = Path(folder, "kernel.c"), Path(folder, "kernel.so")
            file.write_text(source)
            subprocess.run([compiler(), *OPTIONS, "-o", target, file, "-lm"], check=True)
            # `PyDLL` keeps Python's lock while a launch runs, since the state of a launch is global.
            return ctypes.PyDLL(os.fspath(target))

    def shared_memory(self, name):
        """Return the shared memory that the last block of a kernel's last launch left behind."""
        size = self.kernels[name].shared_bytes
        return np.frombuffer((ctypes.c_uint8 * size).in_dll(self._built(name), "shared_bytes"), np.uint8).copy()

    def launch(self, name, grid, block, out, *operands, blocks=None, blocks_over=None, error=(-1.0, 1.0)):
        """Run a kernel, and return its result.

        Parameters
        ----------
        name : str
        grid, block : pairs of int
            Blocks of the grid and threads of a block, along x and y.
        out : array
            Empty array of the result's shape and dtype, a `Part` with such an array, or a tuple of such Parts.
        *operands : arrays, or tuples of Parts
            Values that the kernel's parameters point to, in order; the last parameter points to the result.
        blocks, blocks_over : pairs of int, optional
            Ranges of the blocks to run along x and along y, with the ends excluded; by default all blocks.
        error : pair of float
            Least and largest error of each approximation, as fractions of the error that the hardware is allowed.

        Raises
        ------
        Fault
        """
        kernel = self.kernels[name]
        if len(kernel.parameters) != len(operands) + 1:
            raise Fault(name, f"{len(kernel.parameters)} parameters, but a launch with {len(operands) + 1}")
        if not 0 < block[0] * block[1] <= kernel.most_threads:
            raise Fault(name, f"at most {kernel.most_threads} threads per block, but a launch with {block}")
        if not (0 < grid[0] < 2**31 and 0 < grid[1] < 2**16):
            raise Fault(name, f"a grid that no GPU accepts: {grid}")
        # The arrays are far apart, so that no access reaches from one into another.
        bases = [j + 1 << 44 for j in range(len(kernel.parameters))]
        places = [(base, part) for base, each in zip(bases, (*operands, out), strict=True) for part in _parts(each)]
        buffers = (_Buffer * len(places))()
        for buffer, (base, (array, offset)) in zip(buffers, places, strict=True):
            buffer.first, buffer.end = base + offset, base + offset + array.nbytes
            buffer.bytes = array.ctypes.data
        results = _parts(out)
        written = [np.zeros(part.array.nbytes, np.uint8) for part in results]
        for buffer, counts in zip(buffers[-len(results) :], written, strict=True):
            buffer.written = counts.ctypes.data
        launch = _Launch(buffers, len(places), _Pair(*grid), _Pair(*block), *error)
        line = ctypes.c_int()
        given = (ctypes.c_uint64 * len(bases))(*bases)
        first, last = ((x or (0, size)) for x, size in zip((blocks, blocks_over), grid, strict=True))
        ends = (_Pair(*pair) for pair in zip(first, last, strict=True))
        fault = self._built(name).launch(ctypes.byref(launch), given, *ends, ctypes.byref(line))
        if fault:
            raise Fault(name, FAULTS[fault - 1], line.value)
        for counts in written:
            if not counts.all():
                raise Fault(name, f"{NOT_WRITTEN}, the first at {int(np.argmin(counts))}")
        return [part.array for part in results] if isinstance(out, tuple) else results[0].array

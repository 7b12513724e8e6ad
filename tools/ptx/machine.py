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

__all__ = ["FAULTS", "NOT_WRITTEN", "Fault", "Machine", "Part", "compiler"]

SOURCE = Path(__file__).with_name("machine.c")
# As in the PTX, products and sums are not contracted to fused multiply-adds. The native `fmaf` makes launches several
# times as fast.
OPTIONS = ("-O1", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")
# In the order of `fault` in machine.c.
FAULTS = (
    "an access outside of every operand and of the result",
    "a misaligned access",
    "a byte of the result written twice",
    "a loop without an end",
)
NOT_WRITTEN = "a byte of the result that is not written"


class Fault(Exception):
    """An error of a kernel or its launch."""


class _Buffer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("first", "end", "bytes", "written")]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_int32),
        ("blocks", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("least_error", ctypes.c_double),
        ("most_error", ctypes.c_double),
    ]


class Part(NamedTuple):
    """A part of an operand or result that is too large for this machine, and the offset of the part in bytes."""

    array: np.ndarray
    offset: int


def compiler():
    """Return the command that compiles C here, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


class Machine:
    """The kernels of a PTX text; each is compiled at its first launch."""

    def __init__(self, text):
        self.kernels = translate(text)
        self._built = functools.cache(self._build)

    def _build(self, name):
        """Compile a kernel, and return the function that runs it."""
        with tempfile.TemporaryDirectory() as folder:
            file, target = Path(folder, "kernel.c"), Path(folder, "kernel.so")
            file.write_text(SOURCE.read_text() + self.kernels[name].source)
            subprocess.run([compiler(), *OPTIONS, "-o", target, file, "-lm"], check=True)
            # `PyDLL` keeps Python's lock while a launch runs, since the state of a launch is global.
            return ctypes.PyDLL(os.fspath(target)).run

    def launch(self, name, blocks, threads, out, *operands, some=None, error=(-1.0, 1.0)):
        """Run a kernel, which writes its result into `out`.

        Parameters
        ----------
        name : str
        blocks, threads : int
            Blocks of the grid, and threads of a block.
        out : array, or list of Parts
            The result, or the parts of it that the kernel writes.
        *operands : arrays, or lists of Parts
            Values that the kernel's parameters point to, in order; the last parameter points to the result.
        some : range, optional
            The blocks to run; by default all.
        error : pair of float
            Least and largest error of each approximation, as fractions of the error that the hardware is allowed.

        Raises
        ------
        Fault
        """
        kernel, some = self.kernels[name], range(blocks) if some is None else some
        if kernel.parameters != len(operands) + 1:
            raise Fault(f"{name}: {kernel.parameters} parameters, but a launch with {len(operands) + 1}")
        if not (0 < threads <= kernel.most_threads and 0 < blocks < 2**31):
            raise Fault(f"{name}: a launch with {blocks} blocks of {threads} threads")
        # The arrays are far apart, so that no access reaches from one into another.
        bases = (ctypes.c_uint64 * kernel.parameters)(*(j + 1 << 44 for j in range(kernel.parameters)))
        buffers, written = [], []
        for base, given in zip(bases, (*operands, out), strict=True):
            for array, offset in given if isinstance(given, list) else [Part(given, 0)]:
                counts = np.zeros(array.nbytes, np.uint8) if given is out else None
                assert array.flags.c_contiguous
                at = (base + offset, base + offset + array.nbytes, array.ctypes.data)
                buffers.append(_Buffer(*at, 0 if counts is None else counts.ctypes.data))
                written += [] if counts is None else [counts]
        launch = _Launch((_Buffer * len(buffers))(*buffers), len(buffers), blocks, threads, *error)
        line = ctypes.c_int()
        fault = self._built(name)(ctypes.byref(launch), bases, some.start, some.stop, ctypes.byref(line))
        if fault:
            raise Fault(f"{name}: {FAULTS[fault - 1]}, line {line.value} of its body")
        if not all(counts.all() for counts in written):
            raise Fault(f"{name}: {NOT_WRITTEN}")

"""The kernels of `angles.cu` on the host: compiled by g++, called through ctypes, and put in the place of a GPU's."""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_von_mises.sampling import cuda, cuda_launch, cuda_self_test
from tools import make_kernels

SOURCE = Path(__file__).with_suffix(".cc")


@functools.cache
def built():
    """The compiled library; skips where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the CUDA source for the host")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tables.h").write_text(make_kernels.header())
        target = Path(folder, "kernels.so")
        options = ["-O2", "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC"]
        # With the processor's own multiply-add, where it has one, it is ten times as fast.
        options += ["-mfma"] if "fma" in cpu_flags() else []
        given = [f"-I{folder}", f'-DSOURCE="{make_kernels.SOURCE}"']
        subprocess.run([compiler, *options, *given, "-o", target, SOURCE], check=True)
        found = ctypes.CDLL(os.fspath(target))
    found.set_error.argtypes = [ctypes.c_float]
    return found


def cpu_flags():
    """What the processor can, as Linux tells."""
    try:
        return Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return []


def address(array):
    """Of a contiguous array, for ctypes."""
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)


def words(cipher, key, group, groups):
    """Words of `groups` groups of four."""
    number = ["threefry2x32", "threefry4x32", "philox2x32", "philox4x32"].index(cipher)
    out = np.empty(4 * groups, np.uint32)
    built().words(number, address(np.asarray(key)), ctypes.c_uint64(group), ctypes.c_uint64(groups), address(out))
    return out


# What stands before and after a result, and must stay.
GUARD, MARK = 16, 0xA5


def launch(name, grid, block, out, *operands):
    """A kernel's result, computed here; AssertionError if it wrote outside."""
    operands = [np.ascontiguousarray(x) for x in operands]
    size = int(np.prod(out.shape)) * np.dtype(out.dtype).itemsize
    memory = np.full(size + 2 * GUARD + 16, MARK, np.uint8)
    # 16 bytes aligned, as XLA's memory is.
    first = -memory.ctypes.data % 16 + GUARD
    result = memory[first : first + size]
    kernel = ctypes.cast(getattr(built(), name), ctypes.c_void_p)
    built().launch(kernel, *map(int, (*grid, *block)), *map(address, operands), address(result))
    assert (memory[:first] == MARK).all(), f"{name} wrote before its result"
    assert (memory[first + size :] == MARK).all(), f"{name} wrote beyond its result"
    return result.view(out.dtype).reshape(out.shape)


def callback(name, grid, block, out, *operands):
    """`launch` as `cuda_launch.launch` is called, in a program for the CPU."""
    # Blocks of few threads do the work of any; few of them, for the time.
    few = (min(3, grid[0]), min(2, grid[1])), (1, min(2, block[1]))
    host = functools.partial(launch, name, *few, out)
    return jax.pure_callback(lambda *given: host(*given), out, *operands)


def forget():
    """Let kernels be tested anew."""
    cuda_self_test._verdicts.clear()


# Kernels that have passed their test in this process: tested once, as it is for a user.
PASSED = {}


@pytest.fixture
def on_host(monkeypatch):
    """A process whose one CPU device is what a CUDA device is elsewhere."""
    built()
    monkeypatch.setattr(cuda_launch, "PLATFORM", "cpu")
    monkeypatch.setattr(cuda_launch, "launch", callback)
    monkeypatch.setattr(cuda, "tried", lambda: True)
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    monkeypatch.delenv(cuda.VARIABLE, raising=False)
    cuda_launch.devices.cache_clear()
    cuda_self_test._verdicts.update(PASSED)
    yield monkeypatch
    PASSED.update((name, fault) for name, fault in cuda_self_test._verdicts.items() if fault is None)
    cuda_launch.devices.cache_clear()
    forget()

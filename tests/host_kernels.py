"""Execute the PTX of the CUDA kernels on the CPU."""

import functools

import jax
import numpy as np
import pytest

from jax_von_mises.sampling import cuda, cuda_launch, cuda_self_test
from tools.ptx import machine


@functools.cache
def built():
    """Return the machine that executes kernels; skip the test if there is no C compiler."""
    if machine.compiler() is None:
        pytest.skip("no C compiler to execute the kernels with")
    return machine.Machine(cuda_launch.ptx_text())


def launch(name, grid, block, out, *operands, **how):
    """Launch a kernel and return its result; raise `machine.Fault` for any error."""
    return built().launch(name, grid, block, np.empty(out.shape, out.dtype), *map(np.asarray, operands), **how)


def callback(name, grid, block, out, *operands):
    """Launch a kernel through a callback from a CPU program, in place of `cuda_launch.launch`."""
    host = functools.partial(launch, name, grid, block, out)
    return jax.pure_callback(lambda *arrays: host(*arrays), out, *operands)


def forget():
    """Forget the results of the self-tests, so that kernels are tested again."""
    cuda_self_test._verdicts.clear()


# Kernels that have passed their self-test in this process; each is tested only once, as in a user's process.
PASSED = {}


@pytest.fixture
def on_host(monkeypatch):
    """Let the CPU device of this process stand in for a CUDA device."""
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

"""Launch a CUDA kernel with the driver API, on arrays at the edge of mapped memory.

XLA allocates a device's memory in one piece, in which an out-of-bounds access by a kernel goes unnoticed. Here each
array lies at the start or at the end of a separate range, and the addresses before and after the range are not mapped,
so an access to them is an error. After an error the process cannot use the device any more; `cuda_trial` therefore runs
in a child process.

The functions and structures are those of the CUDA driver API, sections *Virtual Memory Management*, *Module
Management* and *Execution Control*.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

import jax
import numpy as np

from jax_von_mises.sampling import cuda_launch

__all__ = ["Driver", "DriverError", "Unavailable", "version"]

LIBRARY = "libcuda.so.1"
PINNED, ON_DEVICE, READ_AND_WRITE = 1, 1, 3
# The value of every byte of a result before a kernel writes it.
MARK = 0xA5


class DriverError(Exception):
    """A driver function returned an error, for example because a kernel faulted."""


class Unavailable(Exception):
    """The driver is missing, lacks a function or cannot be initialized, so the kernels cannot be tried."""


class _Location(Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Allocation(Structure):
    _fields_ = (
        *(("type", c_int), ("handle_types", c_int), ("location", _Location)),
        *(("windows", c_void_p), ("flags", c_ubyte * 8)),
    )


class _Access(Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


# Argument types of driver functions. Each returns 0 or an error code; memory addresses and handles have 64 bits.
FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Allocation), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Allocation), c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *7 * (c_uint,), c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
}


def version() -> int | None:
    """Return the CUDA version of this process's user-mode driver, or None if there is no driver."""
    number = c_int()
    try:
        error = ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if error else number.value


class Driver:
    """The driver for one device, with memory for the five operands and the result of a kernel."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
            for name, types in FUNCTIONS.items():
                getattr(self._library, name).argtypes = types
        except (OSError, AttributeError) as error:
            raise Unavailable(str(error)) from error
        self._kernels: dict[str, int] = {}
        try:
            self._call("cuInit", 0)
            device = self._new(c_int, "cuDeviceGet", ordinal)
            self._call("cuCtxSetCurrent", self._new(c_void_p, "cuDevicePrimaryCtxRetain", device))
            about = _Allocation(PINNED, 0, _Location(ON_DEVICE, device))
            self._size = self._new(c_size_t, "cuMemGetAllocationGranularity", about, 0)
            self._ranges = [self._mapped(about) for _ in range(6)]
        except DriverError as error:
            raise Unavailable(str(error)) from error

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        out: jax.ShapeDtypeStruct,
        *operands: Any,
        at_end: bool,
    ) -> np.ndarray[Any, Any]:
        """Launch a kernel as `cuda_launch.launch` does, and return its result.

        Each array lies at the end of its memory if `at_end` is true, otherwise at the start.

        Raises
        ------
        DriverError
            The driver reports an error, for example because the kernel reads or writes outside its arrays.
        ValueError
            An array does not fit in its memory.
        """
        dtype = np.dtype(out.dtype)
        result: np.ndarray[Any, Any]
        result = np.full((*out.shape, dtype.itemsize), MARK, np.uint8).view(dtype).reshape(out.shape)
        arrays = [*(np.ascontiguousarray(x) for x in operands), result]
        if max(x.nbytes for x in arrays) > self._size:
            raise ValueError(f"an array has more bytes than the {self._size} of its memory")
        places = [first + (self._size - x.nbytes) * at_end for first, x in zip(self._ranges, arrays, strict=True)]
        for place, x in zip(places, arrays, strict=True):
            self._call("cuMemcpyHtoD_v2", place, x.ctypes.data, x.nbytes)
        addresses = [c_uint64(place) for place in places]
        parameters = (c_void_p * len(addresses))(*map(ctypes.addressof, addresses))
        self._call("cuLaunchKernel", self._kernel(name), *grid, 1, *block, 1, 0, None, parameters, None)
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH_v2", result.ctypes.data, places[-1], result.nbytes)
        return result

    def _kernel(self, name: str) -> int:
        """Return the handle of a kernel, loaded at its first use."""
        if name not in self._kernels:
            module = self._new(c_void_p, "cuModuleLoadData", cuda_launch.kernel_text(name).encode())
            self._kernels[name] = self._new(c_void_p, "cuModuleGetFunction", module, name.encode())
        return self._kernels[name]

    def _mapped(self, about: _Allocation) -> int:
        """Return the address of new memory, with unmapped ranges of the same size before and after it."""
        address: int = self._new(c_uint64, "cuMemAddressReserve", 3 * self._size, 0, 0, 0) + self._size
        self._call("cuMemMap", address, self._size, 0, self._new(c_uint64, "cuMemCreate", self._size, about, 0), 0)
        self._call("cuMemSetAccess", address, self._size, _Access(about.location, READ_AND_WRITE), 1)
        return address

    def _new(self, kind: Any, function: str, *arguments: Any) -> Any:
        """Return the value that a driver function writes to its first argument, of the ctypes type `kind`."""
        value = kind()
        self._call(function, value, *arguments)
        return value.value

    def _call(self, function: str, *arguments: Any) -> None:
        error = getattr(self._library, function)(*arguments)
        if error:
            raise DriverError(f"{function} fails with error {error} of the CUDA driver")

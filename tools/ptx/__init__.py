"""Execute PTX on a machine without a GPU, instruction by instruction, and check every access to memory.

`translate` turns the text of a kernel into a C function, and rejects unknown instructions. `machine.Machine` compiles
the function together with ``machine.c``, with any C compiler. `tests/sampling/test_kernels.py` executes the package's
kernels in this way and compares their angles with those of the plain path.
"""

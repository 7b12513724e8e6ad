"""Execute PTX on a machine without a GPU, instruction by instruction, and check every access to memory.

`translate` turns the text of a kernel into a C function, and rejects unknown instructions. `machine.Machine` compiles
the function together with ``machine.c``, with any C compiler. `battery` compares the package's kernels with its plain
path::

    python -m tools.ptx
"""

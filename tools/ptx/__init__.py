"""Execute PTX on a machine without a GPU, instruction by instruction, with every access to memory checked.

`translate` makes a C function of a kernel's text, and rejects unknown instructions. `machine.Machine` builds the
function together with ``machine.c``, with any C compiler. `battery` compares the package's kernels with its plain
path::

    python -m tools.ptx
"""

"""Execute PTX on a machine without a GPU, instruction by instruction, with every access to memory checked.

A kernel's text becomes a function of C (`translate`), which any C compiler builds together with ``machine.c``
(`machine.Machine`). An instruction that is not known here is refused. `battery` compares the package's kernels with its
plain path::

    python -m tools.ptx
"""

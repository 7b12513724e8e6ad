"""Check the accuracy and the speed of the sampler on a GPU: ``python -m benchmarks.gpu_acceptance --json FILE``.

The checks compare words with the CPU's bit for bit, and errors of angles with the guaranteed error. They cover every
cipher and dtype, arrays of parameters, odd sizes, draws of more than 2^32 angles, gradients and transformations. Then
the CUDA kernels and the plain path (programs compiled by XLA) are timed in one process, together with JAX's samplers,
other libraries and the memory bandwidth. The longest checks come last: out-of-bounds accesses, and
`benchmarks.exactness` on 1e11 angles of each distribution. The result is written after each part, and the same command
continues an interrupted run.

The program needs no network and only the package's dependencies; it uses other libraries and matplotlib if they are
installed. Its running time on a GPU has not been measured. ``--quick`` draws a hundredth of the angles for
`benchmarks.exactness`, and uses fewer sizes and rounds.
"""

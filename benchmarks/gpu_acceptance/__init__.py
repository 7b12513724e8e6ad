"""Check that the sampler is right and fast on a GPU: ``python -m benchmarks.gpu_acceptance --json FILE``.

The checks compare the GPU with the CPU: words bit for bit, angles to the sampler's promise with every cipher, arrays of
parameters, every dtype, odd sizes, parts beyond 2^32 angles, gradients, transformations. Then both paths are timed, in
one process, together with JAX's samplers, other libraries and the memory bandwidth. What takes longest comes last:
accesses outside of arrays, and `benchmarks.exactness` on 1e11 angles of each distribution. The result is written after
each part, and the same command continues an interrupted run.

It needs no network and nothing beyond what the package needs; other libraries and matplotlib are used where installed.
How long it takes was not measured on a GPU; ``--quick`` draws a hundredth of the angles.
"""

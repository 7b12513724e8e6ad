"""Whether the sampler is right and fast on a GPU, in one command; run with ``python -m benchmarks.gpu_acceptance``.

First what must hold, on the GPU beside the CPU: words bit for bit, angles to the sampler's promise with every cipher,
arrays of parameters, every dtype, odd sizes, parts beyond 2^32 angles, gradients, transformations. Then the time, in
one process: ours by either path beside JAX's own samplers, other libraries and the memory's limit. What takes longest
comes last: no access outside of arrays, and the law itself on 1e11 angles each. The result is written after each of
them, and the same command goes on where a run was broken off.

Nothing is fetched, and nothing beyond what the package needs has to be installed; other libraries and matplotlib join
in where they are there. How long it takes was not measured on a GPU; ``--quick`` draws a hundredth.
"""

"""Whether the sampler is right and fast on a GPU, in one command; run with ``python -m benchmarks.gpu_acceptance``.

First what must hold, on the GPU beside the CPU: words bit for bit, angles to the sampler's promise, every dtype, odd
sizes, parts beyond 2^32 angles, gradients, transformations, the law itself on 1e11 angles each, and no write outside.
Then the time, in one process: ours by either path beside JAX's own samplers, other libraries and the memory's limit.

Nothing is fetched, and nothing beyond what the package needs has to be installed; other libraries and matplotlib join
in where they are there. How long it takes was not measured on a GPU; ``--quick`` draws a hundredth.
"""

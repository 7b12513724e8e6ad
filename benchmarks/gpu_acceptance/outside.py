"""Draw with the CUDA kernels; `checks.outside` runs this module under a tool that checks memory accesses.

Each case is reported as soon as it is finished, so the output of a run that timed out shows how far it got.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from benchmarks.words import CIPHERS
from jax_von_mises.sampling import cuda, cuda_launch, cuda_self_test

__all__ = ["main"]

# Draws that end at every place in a group of four angles, and start at the beginning of a group and inside one.
SIZES = (1, 3, 4, 5, 1027, 2**20 + 3)
STARTS = (0, 2**32 - 6)


def cases():
    """Yield the name and the function of every draw."""
    key = jax.random.key(0)

    def block(size, dtype="float32", key=key, loc=0.5, kappa=5.0, method="direct"):
        return [jvm.sample_block(key, loc, kappa, start, (size,), dtype, method=method) for start in STARTS]

    for method in ("table", "direct"):
        for size in SIZES:
            yield f"{method}, {size}", lambda size=size, method=method: block(size, method=method)
        for dtype in ("bfloat16", "float16"):
            yield f"{method}, {dtype}", lambda dtype=dtype, method=method: block(1027, dtype, method=method)
        for cipher in CIPHERS[1:]:
            other = jax.random.key(0, impl=cipher)
            yield f"{method}, {cipher}", lambda key=other, method=method: block(1027, key=key, method=method)
        many = np.linspace(-9, 9, 1027, dtype=np.float32)
        yield f"{method}, directions", lambda many=many, method=method: block(1027, loc=many, method=method)
        keys, several = jax.random.split(key, 5), jnp.linspace(0.5, 9, 5)

        def row(key, loc, kappa, method=method):
            return jvm.sample_von_mises(key, loc, kappa, (41,), method=method)

        for over in ((0, 0, 0), (0, None, None)):
            given = [x if axis == 0 else x[0] for x, axis in zip((keys, several, several), over, strict=True)]
            yield f"{method}, vmap over {over}", lambda row=row, over=over, given=given: jax.vmap(row, over)(*given)
    for size in (5, 1027, 4096):
        kappa, loc = np.geomspace(0.1, 1e4, size, dtype=np.float32), np.linspace(-9, 9, size, dtype=np.float32)
        yield f"arrays, {size}", lambda size=size, loc=loc, kappa=kappa: block(size, loc=loc, kappa=kappa)


def main(say=print):
    """Draw all cases; return 1 if a case was not drawn by a kernel, otherwise 0."""
    # A kernel's self-test is slow while every access is checked.
    cuda_self_test.TIMEOUT = 3600
    for cipher in CIPHERS:
        for method in ("table", "direct"):
            cuda_self_test.passes(cuda_launch.KernelSpec(cipher, method, "float32", ()))
    launched, launch = [], cuda_launch.launch

    def noted(name, *arguments):
        launched.append(name)
        return launch(name, *arguments)

    cuda_launch.launch = noted
    kernels, number = set(), 0
    try:
        for name, draw in cases():
            launched.clear()
            jax.block_until_ready(draw())
            if not launched:
                say(f"not drawn by a kernel: {name}; {cuda.kernel_report()}", flush=True)
                return 1
            kernels.update(launched)
            number += 1
            say(f"done: {name}", flush=True)
    finally:
        cuda_launch.launch = launch
    say(f"{number} programs by {len(kernels)} kernels", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

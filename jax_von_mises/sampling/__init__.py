"""Sample angles: convert a key to words, and words to angles, in any shape and on any device.

`counter` computes words, and `numbers` finds those of a draw. `tails` converts them to tail probabilities, and
`transform` these to angles. `request` checks the arguments of a draw and chooses the route, and `draws` draws it. The
main public functions are in `sampler`; others are in `draws`, `sharded`, `truncated`, `variance_reduction` and
`sphere` (directions). `pairs`, `symmetric`, `any_density`, `mixture` and `skewed` place the draws of the other
distributions, as do `natural`, `rotations` and `torus`.

`cuda` draws angles with CUDA kernels, which users can turn on; `sampler` imports it only then.

Batches and files of angles are in `jax_von_mises.streams`.
"""

# Each of these modules registers its families.
from jax_von_mises.sampling import (
    any_density,
    mixture,
    natural,
    pairs,
    rotations,
    sampler,
    skewed,
    sphere,
    symmetric,
    torus,
    truncated,
)

__all__ = [
    "any_density",
    "mixture",
    "natural",
    "pairs",
    "rotations",
    "sampler",
    "skewed",
    "sphere",
    "symmetric",
    "torus",
    "truncated",
]

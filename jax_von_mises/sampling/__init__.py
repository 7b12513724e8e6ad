"""Sample angles: convert a key to words, and words to angles, in any shape and on any device.

`counter` computes words, and `transform` converts them to angles. `request` checks the arguments of a draw and chooses
the route. The main public functions are in `sampler`; others are in `sharded`, `truncated`, `variance_reduction` and
`sphere` (directions). `numbers` finds the words of a draw that needs several; `pairs`, `symmetric`, `any_density`,
`mixture` and `skewed` place the draws of the other distributions.

`cuda` draws angles with CUDA kernels, which users can turn on; `sampler` imports it only then.

Batches and files of angles are in `jax_von_mises.streams`.
"""

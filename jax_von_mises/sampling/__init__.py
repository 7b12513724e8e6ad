"""Sample angles: convert a key to words, and words to angles, in any shape and on any device.

`counter` computes words, and `transform` converts them to angles. `request` checks the arguments of a draw and chooses
the route. The main public functions are in `sampler`; others are in `sharded`, `truncated`, `variance_reduction`,
`sphere` (directions) and `bivariate` (pairs).

`cuda` decides whether to draw with a CUDA kernel, and `cuda_launch` launches it. `cuda_trial` tests the kernels in a
child process, `cuda_verdict` stores the result, and `cuda_self_test` tests a kernel in the current process.

Batches and files of angles are in `jax_von_mises.streams`.
"""

"""Sample angles: convert a key to words, and words to angles, in any shape and on any device.

`counter` computes words and `transform` converts them to angles. `request` checks the arguments of a draw and decides
how to draw; `sampler` has the main public functions. Others are in `sharded`, `truncated`, `variance_reduction`,
`sphere` (directions) and `bivariate` (pairs).

`cuda` decides whether a CUDA kernel draws, and `cuda_launch` launches it. `cuda_trial` tests the kernels in a child
process, `cuda_verdict` keeps the result, and `cuda_self_test` tests a kernel in the process itself.

Files and iterators of angles are in `jax_von_mises.streams`.
"""

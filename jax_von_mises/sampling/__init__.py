"""Random angles: from a key to words, from words to angles, in every shape and on every device.

`counter` makes the words, `transform` angles of them, `request` decides a draw once from its checked arguments, and
`sampler` has the public functions; `sharded`, `truncated` and `variance_reduction` have further ones. `cuda` decides
whether a CUDA kernel draws, which `cuda_launch` launches, by the verdict of `cuda_trial` that `cuda_verdict` keeps, or
by a `cuda_self_test`. Files and iterators of angles are in `jax_von_mises.streams`.
"""

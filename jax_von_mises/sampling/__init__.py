"""Random angles: from a key to words, from words to angles, in every shape and on every device.

`counter` makes the words, `transform` angles of them, `request` decides a draw once from its checked arguments, and
`sampler` has the public functions. Files and iterators of angles are in `jax_von_mises.streams`.
"""

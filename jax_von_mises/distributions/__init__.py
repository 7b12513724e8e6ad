"""Define the distribution classes: von Mises and related distributions, mixtures and tori.

`base` holds what they share. Their methods call the functions of `jax_von_mises.functions` and the samplers of
`jax_von_mises.sampling`.
"""

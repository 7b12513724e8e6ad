"""Distribution classes: von Mises and related distributions, mixtures, tori, and distributions for NumPyro.

Their methods call the functions of `jax_von_mises.functions` and the samplers of `jax_von_mises.sampling`.
"""

"""Distributions as objects: von Mises, mixtures, tori and others, and those for NumPyro.

Their methods call the functions of `jax_von_mises.functions` and the samplers of `jax_von_mises.sampling`.
"""

"""Distributions as objects: the von Mises distribution, mixtures, tori, and the one for NumPyro.

Their methods call the functions of `jax_von_mises.functions` and the samplers of `jax_von_mises.sampling`.
"""

"""Compute densities, probabilities, quantiles, moments and maximum likelihood estimates of the distributions.

The functions check and broadcast their arguments, and are compiled. The formulas are in `jax_von_mises.numerics`.
"""

"""The functions of the distributions: densities, probabilities, quantiles, moments, and maximum likelihood.

All of them are compiled, and check and broadcast their arguments. The formulas are in `jax_von_mises.numerics`.
"""

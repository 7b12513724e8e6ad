"""The distributions as functions: densities, probabilities, quantiles, moments, and maximum likelihood.

The functions check and broadcast their arguments, and are compiled. The formulas are in `jax_von_mises.numerics`.
"""

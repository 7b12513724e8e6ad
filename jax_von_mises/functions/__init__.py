"""The functions of the distributions: densities, probabilities, quantiles, moments, and maximum likelihood.

They check and broadcast their arguments and are compiled; the formulas are in `jax_von_mises.numerics`.
"""

"""The public functions of the distribution: densities, probabilities, quantiles, moments, and maximum likelihood.

They check and broadcast their arguments and compile; the formulas are in `jax_von_mises.numerics`.
"""

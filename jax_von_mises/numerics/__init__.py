"""Evaluate differentiable formulas that no distribution owns, in float32 and float64; no function takes a random key.

`coefficients` holds the fitted constants of the package. `symmetric` computes what follows from a law about 0.
"""

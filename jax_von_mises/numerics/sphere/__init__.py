"""Compute tails and quantiles of the cosine, moments and the normaliser of the von Mises-Fisher distribution.

The cosine is that of the angle to the mean direction. While a program is traced, `fits` computes in NumPy the
quantities that depend only on the dimension, for `radial` and `moments`.
"""

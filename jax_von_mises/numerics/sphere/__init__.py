"""The cosine of a von Mises-Fisher direction: its tail probability, quantile, derivatives, moments and normaliser.

While a program is traced, `fits` computes in NumPy the quantities that depend only on the dimension, for `radial` and
`moments`.
"""

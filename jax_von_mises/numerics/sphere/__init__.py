"""The cosine of a von Mises-Fisher direction: its tail probability, quantile, derivatives, moments and normaliser.

While a program is traced, `fits` computes in NumPy what depends on the dimension alone, for `radial` and `moments`.
"""

"""The cosine of a von Mises-Fisher direction: its tail probability, quantile, derivatives, moments and normaliser.

`fits` makes what depends on the dimension alone, in NumPy while a program is traced; `radial` and `moments` use it.
"""

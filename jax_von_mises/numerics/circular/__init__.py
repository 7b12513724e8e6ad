"""Numerics of any density on the circle: adaptive intervals, their integrals, and a table of the quantile.

`panels` divides the circle and integrates the density, and `quantiles` tabulates the quantile for draws. Both work at
run time, with static shapes, and are differentiable with respect to the parameters of the density.
"""

"""Integrate any density on the circle over intervals that adapt to it, and tabulate its quantile function.

`panels` divides the circle and integrates the density, and `quantiles` tabulates the quantile for draws. Both work at
run time, with static shapes, and are differentiable with respect to the parameters of the density.
"""

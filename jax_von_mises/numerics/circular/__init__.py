"""Any density on the circle: adaptive intervals, their integrals, and a table of the quantile.

`panels` divides the circle and integrates, `quantiles` tabulates the quantile for draws. Shapes are static, the program
computes both from the density, and both are differentiable in its parameters.
"""

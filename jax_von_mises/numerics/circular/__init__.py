"""Any density on the circle: adaptive intervals, their integrals, and a table of the quantile.

`panels` divides the circle and integrates, and `quantiles` tabulates the quantile for draws. Shapes are static. The
program computes both from the density, and both are differentiable in its parameters.
"""

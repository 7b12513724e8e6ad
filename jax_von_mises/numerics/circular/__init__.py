"""Any density on the circle: adaptive intervals, their integrals, and a table of the quantile.

`panels` divides the circle and integrates the density, and `quantiles` tabulates the quantile for draws. Shapes are
static. Both are computed from the density at run time, and are differentiable in its parameters.
"""

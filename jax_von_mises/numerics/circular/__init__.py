"""Any density on the circle: intervals that adapt to it, their integrals, and a table of its quantile.

`panels` divides the circle and integrates, `quantiles` tabulates the quantile for draws. Shapes are static, all of it
is made inside the program, and everything is differentiable in what the density depends on.
"""

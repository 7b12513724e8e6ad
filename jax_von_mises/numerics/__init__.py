"""Evaluate differentiable formulas of the distributions in float32 and float64; no function takes a random key.

`tail_integral` computes the integral from which the functions of the von Mises distribution follow, and `quantile`
inverts it. `coefficients` holds the fitted constants, and `xla` the workarounds for compiler defects. The folders
`sphere`, `pairs` and `any_density` contain the formulas of the other distributions.
"""

"""Elementwise, differentiable functions of arrays, each with a stated error.

Arguments and results are arrays of one float dtype; no function takes a random key. `tail_integral` computes the
integral from which the other functions follow, `quantile` inverts it, `coefficients` holds the fitted constants, and
`xla` the workarounds for compilers. Only `xla` and `sharding` depend on shapes and devices.
"""

"""Functions of numbers: elementwise, differentiable, each with a stated error.

No keys and no choice of dtypes: arrays of one float dtype go in and come out. `tail_integral` has the one
integral that everything comes from, `quantile` inverts it, `coefficients` holds all fitted constants, and `xla` every
workaround for a compiler. Those workarounds and `sharding` alone look at shapes and devices.
"""

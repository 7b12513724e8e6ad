"""The von Mises distribution: formulas, draws, classes.

`tail_integral` computes the integral from which probabilities follow, and `quantile` inverts it. `transform` converts
words to angles, and `sampler` draws them; `sharded`, `variance_reduction` and `truncated_draw` draw in other ways.
`cuda` draws angles with CUDA kernels, which users can turn on; `sampler` imports it only then.
"""

"""Whether the angles are those of the law, and cannot be told from it by ten thousand million draws.

``python -m benchmarks.exactness --quick`` takes some seconds; without it 1e10 angles are drawn (1e12 on a GPU) and none
is kept: what is tested are counts and sums. See `benchmarks.exactness.verdicts` for the tests, and `damage` for
samplers that must not pass.
"""

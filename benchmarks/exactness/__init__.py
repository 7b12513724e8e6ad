"""Test whether the angles follow their von Mises distribution, on up to 1e12 draws.

``python -m benchmarks.exactness --quick`` takes a minute; without it 1e10 angles are drawn (1e12 on a GPU). Only counts
and sums are kept. `verdicts` has the tests, and `damage` the samplers that must not pass them.
"""

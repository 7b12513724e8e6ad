"""Test whether the angles follow their von Mises distribution, with up to 1e12 draws.

``python -m benchmarks.exactness --quick`` takes a minute; without ``--quick`` it draws 1e10 angles (1e12 on a GPU). It
keeps only counts and sums. `verdicts` defines the tests, and `damage` defines samplers that must not pass them.
"""

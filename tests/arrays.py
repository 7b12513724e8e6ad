"""Compare arrays."""

import numpy as np


def equal(a, b):
    """Return whether two arrays have the same shape and values; NaN equals NaN."""
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)

"""Mark the parameters of tests."""

import pytest


def slow(*values):
    """Return values as parameters of slow cases."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]

"""Mark the parameters of tests."""

import pytest


def marked(mark, values):
    """Return values as marked parameters; a tuple has one value for each parameter."""
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark) for value in values]


def more(*values):
    """Return values as parameters of cases that run in `make test-more`."""
    return marked(pytest.mark.more, values)


def slow(*values):
    """Return values as parameters of slow cases."""
    return marked(pytest.mark.slow, values)
